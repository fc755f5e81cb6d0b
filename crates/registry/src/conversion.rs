//! Conversions between a stored version and other served versions of the same objects: both directions rename fields of
//! the JSON and rewrite `apiVersion`. That of autoscalers is in [`crate::autoscaling::v1`].

use serde_json::Value;

use super::resource::Conversion;

/// `events.k8s.io/v1` over stored core events: the same facts under newer names.
pub const EVENTS_V1: Conversion = Conversion::Fixed {
    to_storage: |event| rename_event_fields(event, "v1", |(core, new)| (new, core)),
    from_storage: |event| rename_event_fields(event, "events.k8s.io/v1", |pair| pair),
};

/// Core name, name in `events.k8s.io`.
const EVENT_FIELDS: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn rename_event_fields(
    event: &mut Value,
    version: &str,
    direction: fn((&'static str, &'static str)) -> (&'static str, &'static str),
) {
    let Some(event) = event.as_object_mut() else { return };
    event.insert("apiVersion".to_owned(), version.into());
    for pair in EVENT_FIELDS {
        let (from, to) = direction(*pair);
        if let Some(value) = event.remove(from) {
            event.insert(to.to_owned(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_round_trip() {
        let stored = json!({"apiVersion": "v1", "kind": "Event", "message": "m", "involvedObject": {"name": "a"},
            "count": 2, "reportingComponent": "c"});
        let mut event = stored.clone();
        EVENTS_V1.from_storage(&mut event);
        assert_eq!(
            event,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "m", "regarding": {"name": "a"},
                "deprecatedCount": 2, "reportingController": "c"})
        );
        EVENTS_V1.to_storage(&mut event);
        assert_eq!(event, stored);
    }
}

//! Conversions between a stored version and other served versions of the same objects.
//!
//! They work on JSON: both directions rename or regroup fields and rewrite `apiVersion`.

use serde_json::{Map, Value, json};

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

/// `autoscaling/v1` over stored `autoscaling/v2`: one CPU target instead of a list of metrics. What v1 cannot say
/// travels in annotations, as upstream does.
pub const AUTOSCALING_V1: Conversion =
    Conversion::Fixed { to_storage: autoscaler_to_v2, from_storage: autoscaler_to_v1 };

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

fn cpu_utilization(metric: &Value) -> bool {
    metric["type"] == "Resource"
        && metric["resource"]["name"] == "cpu"
        && !metric["resource"]["target"]["averageUtilization"].is_null()
}

fn object<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    parent.get_mut(key)?.as_object_mut()
}

fn autoscaler_to_v1(hpa: &mut Value) {
    let Some(hpa) = hpa.as_object_mut() else { return };
    hpa.insert("apiVersion".to_owned(), "autoscaling/v1".into());
    let mut annotations: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = object(hpa, "spec") {
        let metrics = spec.remove("metrics").unwrap_or_default();
        let (cpu, others): (Vec<Value>, Vec<Value>) =
            metrics.as_array().cloned().unwrap_or_default().into_iter().partition(cpu_utilization);
        if let Some(target) = cpu.first().map(|metric| metric["resource"]["target"]["averageUtilization"].clone())
            && !target.is_null()
        {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), target);
        }
        if !others.is_empty() {
            annotations.push((METRICS, Value::Array(others)));
        }
        if let Some(behavior) = spec.remove("behavior") {
            annotations.push((BEHAVIOR, behavior));
        }
    }
    if let Some(status) = object(hpa, "status") {
        let current = status.remove("currentMetrics").unwrap_or_default();
        if let Some(metrics) = current.as_array() {
            let cpu = metrics.iter().find(|metric| metric["type"] == "Resource" && metric["resource"]["name"] == "cpu");
            if let Some(value) = cpu.map(|metric| metric["resource"]["current"]["averageUtilization"].clone())
                && !value.is_null()
            {
                status.insert("currentCPUUtilizationPercentage".to_owned(), value);
            }
            if !metrics.is_empty() {
                annotations.push((CURRENT_METRICS, current.clone()));
            }
        }
        if let Some(conditions) =
            status.remove("conditions").filter(|list| list.as_array().is_some_and(|list| !list.is_empty()))
        {
            annotations.push((CONDITIONS, conditions));
        }
    }
    if annotations.is_empty() {
        return;
    }
    let metadata = hpa.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        let target = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(target) = target.as_object_mut() {
            for (key, value) in annotations {
                target.insert(key.to_owned(), value.to_string().into());
            }
        }
    }
}

fn autoscaler_to_v2(hpa: &mut Value) {
    let Some(hpa) = hpa.as_object_mut() else { return };
    hpa.insert("apiVersion".to_owned(), "autoscaling/v2".into());
    let mut carried = |key: &str| -> Option<Value> {
        let annotations = object(object(hpa, "metadata")?, "annotations")?;
        let text = annotations.remove(key)?;
        serde_json::from_str(text.as_str()?).ok()
    };
    let metrics = carried(METRICS);
    let current = carried(CURRENT_METRICS);
    let conditions = carried(CONDITIONS);
    let behavior = carried(BEHAVIOR);
    if let Some(spec) = object(hpa, "spec") {
        let mut all = Vec::new();
        if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
            all.push(json!({"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": target}}}));
        }
        all.extend(metrics.and_then(|metrics| metrics.as_array().cloned()).unwrap_or_default());
        if !all.is_empty() {
            spec.insert("metrics".to_owned(), Value::Array(all));
        }
        if let Some(behavior) = behavior {
            spec.insert("behavior".to_owned(), behavior);
        }
    }
    if let Some(status) = object(hpa, "status") {
        let cpu = status.remove("currentCPUUtilizationPercentage");
        match (current, cpu) {
            (Some(current), _) => {
                status.insert("currentMetrics".to_owned(), current);
            }
            (None, Some(cpu)) => {
                status.insert(
                    "currentMetrics".to_owned(),
                    json!([{"type": "Resource",
                    "resource": {"name": "cpu", "current": {"averageUtilization": cpu}}}]),
                );
            }
            (None, None) => {}
        }
        if let Some(conditions) = conditions {
            status.insert("conditions".to_owned(), conditions);
        }
    }
}

#[cfg(test)]
mod tests {
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

    #[test]
    fn autoscalers_round_trip() {
        let stored = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a", "annotations": {}},
            "spec": {"maxReplicas": 3, "metrics": [
                {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
                {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}]}});
        let mut hpa = stored.clone();
        AUTOSCALING_V1.from_storage(&mut hpa);
        assert_eq!(hpa["spec"]["targetCPUUtilizationPercentage"], 80);
        AUTOSCALING_V1.to_storage(&mut hpa);
        assert_eq!(hpa, stored);
    }

    #[test]
    fn a_cpu_value_survives_whatever_its_type_is_called() {
        for kind in ["AverageValue", "Value", "Utilization"] {
            let stored = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a", "annotations": {}},
                "spec": {"maxReplicas": 3, "metrics": [{"type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": kind, "averageValue": "500m"}}}]}});
            let mut hpa = stored.clone();
            AUTOSCALING_V1.from_storage(&mut hpa);
            AUTOSCALING_V1.to_storage(&mut hpa);
            assert_eq!(hpa, stored, "{kind}");
        }
    }
}

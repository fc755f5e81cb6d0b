//! Events and batches that are too large for where they go (`--audit-*-truncate-*`): bodies are left out, batches split.

use bytes::Bytes;
use serde_json::Value;

use crate::config::Truncation;

impl Truncation {
    /// The event, without its bodies if it is too large; `None` if even that is.
    pub(super) fn fit(self, event: Bytes) -> Option<Bytes> {
        if event.len() <= self.max_event {
            return Some(event);
        }
        let mut value: Value = serde_json::from_slice(&event).ok()?;
        let fields = value.as_object_mut()?;
        let bodies = [fields.remove("requestObject"), fields.remove("responseObject")];
        bodies.iter().flatten().next()?;
        value["annotations"]["audit.k8s.io/truncated"] = "true".into();
        let short = Bytes::from(value.to_string());
        (short.len() <= self.max_event).then_some(short)
    }
}

/// The batches that events go out in: at most `count` of them together, and no more than `bytes` unless it is one alone.
pub(super) fn batches(events: &[Bytes], count: usize, bytes: usize) -> Vec<&[Bytes]> {
    let mut parts = Vec::new();
    let (mut start, mut size) = (0, 0_usize);
    for (at, event) in events.iter().enumerate() {
        if at > start && (at - start >= count.max(1) || size.saturating_add(event.len()) > bytes) {
            parts.push(&events[start..at]);
            (start, size) = (at, 0);
        }
        size += event.len();
    }
    if start < events.len() {
        parts.push(&events[start..]);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn bodies_are_left_out_where_they_do_not_fit() {
        let limit = Truncation { max_event: 120, max_batch: 1000 };
        let event = |value: Value| Bytes::from(value.to_string());
        let small = event(json!({"verb": "get", "requestObject": {"a": 1}}));
        assert_eq!(limit.fit(small.clone()), Some(small));
        let large =
            event(json!({"verb": "create", "requestObject": {"a": "x".repeat(200)}, "annotations": {"k": "v"}}));
        let short: Value = serde_json::from_slice(&limit.fit(large).unwrap()).unwrap();
        assert_eq!(short, json!({"verb": "create", "annotations": {"k": "v", "audit.k8s.io/truncated": "true"}}));
        // Nothing to leave out, or not enough.
        assert_eq!(limit.fit(event(json!({"requestURI": "x".repeat(200)}))), None);
        assert_eq!(limit.fit(event(json!({"requestURI": "x".repeat(200), "requestObject": {}}))), None);
    }

    #[test]
    fn batches_are_split_by_number_and_size() {
        let events: Vec<Bytes> = [10, 10, 10, 50, 5].iter().map(|size| Bytes::from(vec![b'x'; *size])).collect();
        for (count, bytes, expected) in
            [(10, 1000, vec![5]), (2, 1000, vec![2, 2, 1]), (10, 30, vec![3, 1, 1]), (0, 1000, vec![1, 1, 1, 1, 1])]
        {
            let sizes: Vec<usize> = batches(&events, count, bytes).iter().map(|batch| batch.len()).collect();
            assert_eq!(sizes, expected, "{count} {bytes}");
        }
        assert!(batches(&[], 3, 10).is_empty());
    }
}

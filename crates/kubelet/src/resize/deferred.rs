//! Wishes that wait for room, and which of them comes first.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use api::sort::CompactSort as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::PENDING;
use crate::{qos, state};

/// The pods that wish for more than there is room for, by uid, and since when.
#[derive(Debug, Default)]
pub(crate) struct Deferred(HashMap<String, (Arc<Pod>, Timestamp)>);

impl Deferred {
    /// A pod waits. After a restart of the kubelet its condition tells since when.
    pub(crate) fn note(&mut self, wish: &Arc<Pod>, now: Timestamp) {
        let waiting = self.0.entry(state::uid(wish).to_owned());
        waiting.and_modify(|(known, _)| known.clone_from(wish)).or_insert_with(|| (wish.clone(), since(wish, now)));
    }

    /// A pod waits no more. Returns whether it did.
    pub(crate) fn forget(&mut self, uid: &str) -> bool {
        self.0.remove(uid).is_some()
    }

    /// The wishes that are granted before `wish`, the first one first.
    pub(crate) fn before(&self, wish: &Pod, now: Timestamp) -> Vec<Arc<Pod>> {
        let uid = state::uid(wish);
        let mine = rank(wish, self.0.get(uid).map_or_else(|| since(wish, now), |(_, since)| *since));
        let others = self.0.iter().filter(|(other, _)| *other != uid);
        let mut first: Vec<_> = others.map(|(_, (other, since))| (rank(other, *since), other)).collect();
        first.retain(|(rank, _)| *rank < mine);
        first.compact_sort_by(|(left, _), (right, _)| left.cmp(right));
        first.into_iter().map(|(_, other)| other.clone()).collect()
    }
}

fn since(wish: &Pod, now: Timestamp) -> Timestamp {
    let conditions = wish.status.as_ref().and_then(|status| status.conditions.as_ref());
    let pending = conditions.into_iter().flatten().find(|condition| condition.type_ == PENDING);
    pending.and_then(|pending| pending.last_transition_time.as_ref()).map_or(now, |time| time.0)
}

/// Priority, then class, then time (`sortPendingResizes`, v1.36). No two pods rank the same.
fn rank(wish: &Pod, since: Timestamp) -> (Reverse<i32>, bool, Timestamp, String) {
    let priority = wish.spec.as_ref().and_then(|spec| spec.priority).unwrap_or_default();
    let is_guaranteed = qos::class(wish) == qos::Class::Guaranteed;
    (Reverse(priority), !is_guaranteed, since, state::uid(wish).to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn wish(uid: &str, priority: i32, limits: Value, pending: Option<&str>) -> Arc<Pod> {
        let resources = json!({"requests": {"cpu": "1", "memory": "1Gi"}, "limits": limits});
        let conditions = pending.map(|since| json!([{"type": PENDING, "status": "True", "lastTransitionTime": since}]));
        let pod = json!({
            "metadata": {"uid": uid},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
            "status": {"conditions": conditions},
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn priority_comes_before_class_and_class_before_time() {
        let burstable = |uid: &str, priority| wish(uid, priority, json!({}), None);
        let guaranteed = wish("guaranteed", 0, json!({"cpu": "1", "memory": "1Gi"}), None);
        let mut deferred = Deferred::default();
        deferred.note(&burstable("early", 0), at(1));
        deferred.note(&guaranteed, at(2));
        deferred.note(&burstable("important", 1000), at(3));
        deferred.note(&burstable("late", 0), at(4));
        deferred.note(&wish("told", 0, json!({}), Some("1970-01-01T00:00:02Z")), at(9));
        let before = |pod: &Pod| -> Vec<String> {
            deferred.before(pod, at(10)).iter().map(|pod| state::uid(pod).to_owned()).collect()
        };
        assert_eq!(before(&burstable("important", 1000)), Vec::<String>::new());
        assert_eq!(before(&guaranteed), ["important"]);
        assert_eq!(before(&burstable("late", 0)), ["important", "guaranteed", "early", "told"]);
        assert_eq!(before(&burstable("new", 0)), ["important", "guaranteed", "early", "told", "late"]);
        assert!(deferred.forget("important") && !deferred.forget("important"));
        assert!(deferred.before(&guaranteed, at(10)).is_empty());
    }
}

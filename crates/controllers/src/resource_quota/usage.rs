//! What the objects of a namespace use, in the terms of a quota.

use std::collections::BTreeMap;
use std::time::Duration;

use api::cached::Pod;
use api::quantity::{Format, Quantity};
use api::quota;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuotaSpec};

pub(super) type Usage = BTreeMap<String, Quantity>;

/// Whether a quota looks at this pod.
pub(super) fn selects_pod(spec: &ResourceQuotaSpec, pod: &Pod) -> bool {
    quota::scopes(spec).iter().all(|scope| quota::matches_pod(scope, pod))
}

/// Until when a pod that is being deleted is charged. After that its node is perhaps lost, and whoever waits for its place must
/// not wait for ever (`QuotaV1Pod`, v1.36).
pub(super) fn charged_until(pod: &Pod) -> Option<Timestamp> {
    let deletion = pod.metadata.deletion_timestamp.as_ref()?.0;
    let grace = pod.metadata.deletion_grace_period_seconds?.max(0).unsigned_abs();
    deletion.checked_add(Duration::from_secs(grace)).ok()
}

/// What a pod uses now.
pub(super) fn of_pod_at(pod: &Pod, now: Timestamp) -> Usage {
    let mut usage = quota::of_pod(pod);
    if charged_until(pod).is_some_and(|until| until < now) {
        usage.retain(|name, _| name == "count/pods");
    }
    usage
}

/// Whether a quota looks at this claim.
pub(super) fn selects_claim(spec: &ResourceQuotaSpec, claim: &PersistentVolumeClaim) -> bool {
    quota::scopes(spec).iter().all(|scope| quota::matches_volume_claim(scope, claim))
}

/// `used` for exactly the names in `hard`.
pub(super) fn sum(hard: impl IntoIterator<Item = String>, parts: impl IntoIterator<Item = Usage>) -> Usage {
    let mut total: Usage = hard.into_iter().map(|name| (name, Quantity::new(0, Format::DecimalSI))).collect();
    for part in parts {
        for (name, amount) in part {
            if let Some(present) = total.get_mut(&name) {
                if present.is_zero() {
                    *present = amount;
                } else {
                    present.add(&amount);
                }
            }
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use api::quota::of_pod;

    fn pod(value: serde_json::Value) -> Pod {
        api::codec::from_value(&value).unwrap()
    }

    #[test]
    fn pods_use_what_they_request() {
        let running = pod(json!({ "metadata": {}, "spec": {
            "containers": [{ "name": "a", "resources": { "requests": { "cpu": "100m", "memory": "64Mi" }, "limits": { "cpu": "1" } } },
                           { "name": "b", "resources": { "requests": { "cpu": "200m" } } }],
            "initContainers": [{ "name": "i", "resources": { "requests": { "cpu": "500m", "memory": "32Mi" } } }],
        } }));
        let mut finished = running.clone();
        finished.status.get_or_insert_default().phase = Some("Succeeded".into());
        let hard = ["pods", "requests.cpu", "cpu", "requests.memory", "limits.cpu", "count/pods", "secrets"]
            .map(str::to_owned);
        let used = sum(hard, [of_pod(&running), of_pod(&finished)]);
        let seen: Vec<String> = used.iter().map(|(name, amount)| format!("{name}={amount}")).collect();
        assert_eq!(
            seen,
            [
                "count/pods=2",
                "cpu=500m",
                "limits.cpu=1",
                "pods=1",
                "requests.cpu=500m",
                "requests.memory=64Mi",
                "secrets=0"
            ]
        );
    }

    #[test]
    fn a_pod_that_does_not_go_is_not_charged_for_ever() {
        let metadata = json!({ "deletionTimestamp": "1970-01-01T00:01:00Z", "deletionGracePeriodSeconds": 30 });
        let going = pod(json!({ "metadata": metadata, "spec": { "containers": [] } }));
        let staying = pod(json!({ "metadata": {}, "spec": { "containers": [] } }));
        for (pod, now, pods) in [(&staying, 999, 1), (&going, 60, 1), (&going, 90, 1), (&going, 91, 0)] {
            let now = Timestamp::from_second(now).unwrap();
            let used = sum(["pods", "count/pods"].map(str::to_owned), [of_pod_at(pod, now)]);
            assert_eq!((used["pods"].value(), used["count/pods"].value()), (pods, 1), "at {now}");
        }
    }

    #[test]
    fn scopes_choose_pods() {
        let best_effort =
            pod(json!({ "metadata": {}, "spec": { "containers": [{ "name": "a" }], "activeDeadlineSeconds": 5 } }));
        let burstable = pod(
            json!({ "metadata": {}, "spec": { "containers": [{ "name": "a", "resources": { "requests": { "cpu": "1" } } }], "priorityClassName": "high" } }),
        );
        for (scopes, first, second) in [
            (json!({ "scopes": ["BestEffort"] }), true, false),
            (json!({ "scopes": ["NotBestEffort", "NotTerminating"] }), false, true),
            (json!({ "scopes": ["Terminating"] }), true, false),
            (
                json!({ "scopeSelector": { "matchExpressions": [{ "scopeName": "PriorityClass", "operator": "In", "values": ["high"] }] } }),
                false,
                true,
            ),
            (json!({}), true, true),
        ] {
            let spec: ResourceQuotaSpec = serde_json::from_value(scopes.clone()).unwrap();
            assert_eq!((selects_pod(&spec, &best_effort), selects_pod(&spec, &burstable)), (first, second), "{scopes}");
        }
    }

    #[test]
    fn scopes_choose_claims() {
        let claim: PersistentVolumeClaim =
            serde_json::from_value(json!({ "metadata": {}, "spec": { "volumeAttributesClassName": "gold" } })).unwrap();
        let scope = |values: serde_json::Value| json!({ "scopeSelector": { "matchExpressions": [{ "scopeName": "VolumeAttributesClass", "operator": "In", "values": values }] } });
        for (scopes, expected) in [
            (json!({}), true),
            (scope(json!(["gold"])), true),
            (scope(json!(["silver"])), false),
            (json!({ "scopes": ["NotTerminating"] }), false),
        ] {
            let spec: ResourceQuotaSpec = serde_json::from_value(scopes.clone()).unwrap();
            assert_eq!(selects_claim(&spec, &claim), expected, "{scopes}");
        }
    }
}

//! What keeps a node from running pods.

use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, NodeCondition};

use super::Cause;

/// What keeps pods away from a node that is ready, and what helps.
const PRESSURES: [(&str, &str); 4] = [
    ("MemoryPressure", "free memory on the machine: cox top"),
    ("DiskPressure", "free room on the machine's disks: df -h; images that are not needed: cox image list"),
    ("PIDPressure", "too many processes run on the machine: ps ax"),
    ("NetworkUnavailable", "cox logs kubelet"),
];

/// Decides, never awaits.
pub(super) fn cause(node: &Node, now: Timestamp) -> Cause {
    let name = node.metadata.name();
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let find = |kind: &str| conditions.iter().find(|condition| condition.type_ == kind);
    match find("Ready") {
        None => Cause::new("its kubelet has not reported yet").then("cox logs kubelet"),
        Some(ready) if ready.status == "Unknown" => {
            Cause::new("its kubelet went silent").because(since("no status", ready, now)).then(format!(
                "is the machine up? cox node start {name}, or on the machine 'cox status' and 'cox logs kubelet'"
            ))
        }
        Some(ready) if ready.status != "True" => Cause::new("its kubelet says it is not ready")
            .because(ready.message.clone().unwrap_or_else(|| ready.reason.clone().unwrap_or_default()))
            .then("cox logs kubelet"),
        Some(_) => {
            let mut pressed = PRESSURES.into_iter().filter_map(|(kind, step)| Some((find(kind)?, step)));
            if let Some((condition, step)) = pressed.find(|(condition, _)| condition.status == "True") {
                return Cause::new(format!("it has {}", condition.type_))
                    .because(condition.message.clone().unwrap_or_default())
                    .then(step)
                    .then(format!("cox kubectl describe node {name}"));
            }
            if node.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true) {
                return Cause::new("it takes no new pods: it is cordoned").then(format!("cox kubectl uncordon {name}"));
            }
            Cause::new("nothing blocks it: it is ready")
        }
    }
}

fn since(what: &str, condition: &NodeCondition, now: Timestamp) -> String {
    let heartbeat = condition.last_heartbeat_time.as_ref().map(|time| now.duration_since(time.0).as_secs());
    match heartbeat {
        Some(seconds) => format!("{what} for {}", period(seconds)),
        None => what.to_owned(),
    }
}

/// Seconds as people say them: `42s`, `5m`, `3h`.
pub(super) fn period(seconds: i64) -> String {
    match seconds {
        ..120 => format!("{}s", seconds.max(0)),
        120..7200 => format!("{}m", seconds / 60),
        _ => format!("{}h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn one_cause_per_state() {
        let now: Timestamp = "2026-01-01T00:10:00Z".parse().unwrap();
        let ready = |status: &str| {
            json!({"type": "Ready", "status": status, "message": "container runtime is down",
            "lastHeartbeatTime": "2026-01-01T00:05:00Z"})
        };
        for (spec, conditions, expected, evidence) in [
            (json!({}), json!([]), "its kubelet has not reported yet", None),
            (json!({}), json!([ready("Unknown")]), "its kubelet went silent", Some("no status for 5m")),
            (json!({}), json!([ready("False")]), "its kubelet says it is not ready", Some("container runtime is down")),
            (
                json!({}),
                json!([ready("True"), {"type": "DiskPressure", "status": "True", "message": "disk is full"}]),
                "it has DiskPressure",
                Some("disk is full"),
            ),
            (json!({"unschedulable": true}), json!([ready("True")]), "it takes no new pods: it is cordoned", None),
            (json!({}), json!([ready("True")]), "nothing blocks it: it is ready", None),
        ] {
            let node = json!({"metadata": {"name": "n1"}, "spec": spec, "status": {"conditions": conditions}});
            let node: Node = serde_json::from_value(node).unwrap();
            let cause = cause(&node, now);
            assert_eq!((cause.summary.as_str(), cause.evidence.first().map(String::as_str)), (expected, evidence));
        }
    }

    #[test]
    fn periods_are_short() {
        for (seconds, expected) in [(-3, "0s"), (42, "42s"), (300, "5m"), (7200, "2h")] {
            assert_eq!(period(seconds), expected);
        }
    }
}

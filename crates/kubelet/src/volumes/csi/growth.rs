//! What a claim says of the growth of its volume, between the resizer and this node. Pure. A growth that the driver will never
//! make is given up, so that the resizer can go back to what the user asks for then (`RecoverVolumeExpansionFailure`, v1.36).

use csi::tonic::{Code, Status};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaimCondition, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

const FAILED: &str = "NodeResizeError";
const GIVEN_UP: &str = "NodeResizeInfeasible";

/// How far the resizer says that it is, if it does.
fn stage(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    status.allocated_resource_statuses.as_ref()?.get("storage").map(String::as_str)
}

/// Whether it is the node's turn.
pub(super) fn is_for_node(status: Option<&PersistentVolumeClaimStatus>) -> bool {
    matches!(status.and_then(stage), None | Some("NodeResizePending" | "NodeResizeInProgress"))
}

/// The change of a claim whose volume did not grow; none if it says so already.
pub(super) fn failed(status: PersistentVolumeClaimStatus, failure: &Status, now: Timestamp) -> Option<Value> {
    let is_never = matches!(failure.code(), Code::InvalidArgument | Code::OutOfRange | Code::NotFound);
    let is_given_up = is_never && stage(&status).is_some_and(|stage| stage != GIVEN_UP);
    let message = format!("failed to expand pvc with {}", csi::describe(failure));
    let mut conditions = status.conditions.unwrap_or_default();
    let is_reported = |it: &PersistentVolumeClaimCondition| it.type_ == FAILED && it.message.as_ref() == Some(&message);
    if conditions.iter().any(is_reported) && !is_given_up {
        return None;
    }
    conditions.retain(|condition| condition.type_ != FAILED);
    conditions.push(PersistentVolumeClaimCondition {
        type_: FAILED.to_owned(),
        status: "True".to_owned(),
        last_transition_time: Some(Time(now)),
        message: Some(message),
        ..PersistentVolumeClaimCondition::default()
    });
    let mut patch = json!({"status": {"conditions": conditions}});
    if is_given_up {
        patch["status"]["allocatedResourceStatuses"] = json!({"storage": GIVEN_UP});
    }
    Some(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(stage: &str) -> PersistentVolumeClaimStatus {
        let stages = (!stage.is_empty()).then(|| json!({"storage": stage}));
        let pending = json!([{"type": "FileSystemResizePending", "status": "True"}]);
        serde_json::from_value(json!({"allocatedResourceStatuses": stages, "conditions": pending})).unwrap()
    }

    #[test]
    fn the_node_grows_a_volume_in_its_turn() {
        for (stage, expected) in [
            ("", true),
            ("NodeResizePending", true),
            ("NodeResizeInProgress", true),
            ("NodeResizeInfeasible", false),
            ("ControllerResizeInProgress", false),
            ("ControllerResizeInfeasible", false),
        ] {
            assert_eq!(is_for_node(Some(&status(stage))), expected, "{stage}");
        }
        assert!(is_for_node(None));
    }

    #[test]
    fn a_growth_that_never_comes_is_given_up() {
        let now = Timestamp::UNIX_EPOCH;
        for (stage, failure, is_given_up) in [
            ("NodeResizePending", Status::out_of_range("too large"), true),
            ("NodeResizePending", Status::failed_precondition("in use"), false),
            // A resizer that does not say where it is cannot go back.
            ("", Status::out_of_range("too large"), false),
        ] {
            let patch = failed(status(stage), &failure, now).unwrap();
            let expected = if is_given_up { json!({"storage": GIVEN_UP}) } else { Value::Null };
            assert_eq!(patch["status"]["allocatedResourceStatuses"], expected, "{failure}");
            let conditions = patch["status"]["conditions"].as_array().unwrap();
            let message = format!("failed to expand pvc with {}", csi::describe(&failure));
            assert_eq!(conditions[0]["type"], "FileSystemResizePending");
            assert_eq!((&conditions[1]["type"], &conditions[1]["message"]), (&json!(FAILED), &json!(message)));
            let mut told = status(GIVEN_UP);
            told.conditions = serde_json::from_value(patch["status"]["conditions"].clone()).unwrap();
            assert_eq!(failed(told, &failure, now), None, "once");
        }
    }
}

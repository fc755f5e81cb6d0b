//! What a claim says of the growth of its volume, between the resizer and this node, and what this node says there. Pure. A
//! growth that the driver will never make is given up, so that the resizer can go back to what the user asks for then
//! (`NodeExpander` and `RecoverVolumeExpansionFailure`, v1.36).

use api::claim::is_resize_condition;
use csi::tonic::{Code, Status};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, PersistentVolumeClaimCondition, PersistentVolumeClaimStatus, VolumeResourceRequirements,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::resources;

const STORAGE: &str = "storage";
const FAILED: &str = "NodeResizeError";
const PENDING: &str = "NodeResizePending";
const IN_PROGRESS: &str = "NodeResizeInProgress";
const GIVEN_UP: &str = "NodeResizeInfeasible";
/// The resizer's word that nodes have nothing to do for a volume that has grown.
const NOT_REQUIRED: &str = "volume.kubernetes.io/node-expansion-not-required";

/// What this node has to do.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Growth {
    /// In bytes, and as claims have it.
    pub(super) size: i64,
    pub(super) shown: Quantity,
    pub(super) telling: Telling,
    /// The claim asks for another size by now.
    pub(super) is_outdated: bool,
}

/// What the claim hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// Each step.
    Steps,
    /// The end alone: its resizer is too old to know steps.
    End,
    /// Nothing: another node that has the volume has told it all.
    Nothing,
}

pub(super) fn bytes(quantity: &Quantity) -> Option<i64> {
    resources::parse(quantity).map(|quantity| quantity.value()).filter(|bytes| *bytes > 0)
}

/// How large the claim says that its volume is.
pub(super) fn claimed(status: Option<&PersistentVolumeClaimStatus>) -> Option<i64> {
    bytes(status?.capacity.as_ref()?.get(STORAGE)?)
}

/// How far the resizer says that it is, if it does.
fn stage(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    let stage = status.allocated_resource_statuses.as_ref()?.get(STORAGE)?;
    Some(stage.as_str()).filter(|stage| !stage.is_empty())
}

/// Whether it is the node's turn, for a volume that `has` so much.
pub(super) fn due(claim: &PersistentVolumeClaim, has: &Quantity) -> Option<Growth> {
    let status = claim.status.as_ref()?;
    let allocated = status.allocated_resources.as_ref();
    let shown = allocated.and_then(|allocated| allocated.get(STORAGE)).unwrap_or(has);
    let (seen, has, size) = (claimed(Some(status))?, bytes(has)?, bytes(shown)?);
    let spec = claim.spec.as_ref();
    let is_shared = spec.and_then(|spec| spec.access_modes.as_ref()).is_some_and(|modes| {
        let annotations = claim.metadata.annotations.as_ref();
        modes.iter().any(|mode| mode == "ReadWriteMany")
            && annotations.is_none_or(|annotations| !annotations.contains_key(NOT_REQUIRED))
    });
    let telling = match stage(status) {
        Some(PENDING | IN_PROGRESS) if seen < has => Telling::Steps,
        None if seen < has && allocated.is_none() => Telling::End,
        None if seen >= size && is_shared => Telling::Nothing,
        _ => return None,
    };
    let requests = spec.and_then(|spec| spec.resources.as_ref()).and_then(requests_of);
    let is_outdated = requests.and_then(bytes) != Some(size);
    Some(Growth { size, shown: shown.clone(), telling, is_outdated })
}

fn requests_of(resources: &VolumeResourceRequirements) -> Option<&Quantity> {
    resources.requests.as_ref()?.get(STORAGE)
}

/// Whether a driver that failed is certainly not at it any more, as upstream's kubelet reads it (`isFinalError`, v1.36): nothing
/// but words depends on it here, so that [`csi::is_final`] can be more careful.
pub(super) fn is_over(failure: &Status) -> bool {
    !matches!(
        failure.code(),
        Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::ResourceExhausted | Code::Aborted
    )
}

/// The change of a claim whose volume the driver is going to be asked to grow; none if it says so already.
pub(super) fn begun(status: &PersistentVolumeClaimStatus) -> Option<Value> {
    (stage(status) != Some(IN_PROGRESS)).then(|| json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}))
}

/// The change of a claim whose volume has grown.
pub(super) fn ended(status: &PersistentVolumeClaimStatus, shown: &Quantity) -> Value {
    let conditions = status.conditions.iter().flatten();
    let left: Vec<_> = conditions.filter(|condition| !is_resize_condition(&condition.type_)).collect();
    json!({"capacity": {STORAGE: shown}, "conditions": left, "allocatedResourceStatuses": {STORAGE: null}})
}

/// The change of a claim whose volume did not grow; none if it says so already.
pub(super) fn failed(
    status: &PersistentVolumeClaimStatus,
    why: &str,
    is_given_up: bool,
    now: Timestamp,
) -> Option<Value> {
    let is_news = is_given_up && stage(status) != Some(GIVEN_UP);
    let message = format!("failed to expand pvc with {why}");
    let mut conditions = status.conditions.clone().unwrap_or_default();
    let is_told = |it: &PersistentVolumeClaimCondition| it.type_ == FAILED && it.message.as_ref() == Some(&message);
    if conditions.iter().any(is_told) && !is_news {
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
    let mut change = json!({"conditions": conditions});
    if is_given_up {
        change["allocatedResourceStatuses"] = json!({STORAGE: GIVEN_UP});
    }
    Some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a volume that has 2Gi, and whose claim asks for as much.
    fn claim(seen: &str, stage: &str, allocated: &str, more: Value) -> PersistentVolumeClaim {
        let stages = (!stage.is_empty()).then(|| json!({"storage": stage}));
        let allocated = (!allocated.is_empty()).then(|| json!({"storage": allocated}));
        let mut claim = json!({
            "metadata": {"name": "c"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "2Gi"}}},
            "status": {
                "capacity": {"storage": seen}, "allocatedResourceStatuses": stages, "allocatedResources": allocated,
                "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Other", "status": "True"}],
            },
        });
        for (key, value) in more.as_object().unwrap() {
            claim[key].as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
        }
        serde_json::from_value(claim).unwrap()
    }

    fn status(stage: &str) -> PersistentVolumeClaimStatus {
        claim("1Gi", stage, "2Gi", json!({})).status.unwrap()
    }

    #[test]
    fn the_node_grows_a_volume_in_its_turn() {
        let (plain, many) = (json!({}), json!({"spec": {"accessModes": ["ReadWriteMany"]}}));
        let mut done = many.clone();
        done["metadata"] = json!({"annotations": {NOT_REQUIRED: "true"}});
        for (seen, stage, allocated, more, expected) in [
            ("1Gi", "", "", &plain, Some((2 << 30, Telling::End))),
            ("2Gi", "", "", &plain, None),
            ("3Gi", "", "", &plain, None),
            ("1Gi", PENDING, "2Gi", &plain, Some((2 << 30, Telling::Steps))),
            ("1Gi", IN_PROGRESS, "2Gi", &plain, Some((2 << 30, Telling::Steps))),
            ("1Gi", PENDING, "", &plain, Some((2 << 30, Telling::Steps))),
            // What was asked for at last is less than what the volume was to have before.
            ("1Gi", PENDING, "1536Mi", &plain, Some((1536 << 20, Telling::Steps))),
            ("1Gi", GIVEN_UP, "2Gi", &plain, None),
            ("1Gi", "ControllerResizeInProgress", "2Gi", &plain, None),
            ("1Gi", "ControllerResizeInfeasible", "2Gi", &plain, None),
            // The resizer knows steps, and this is none of the node's.
            ("1Gi", "", "2Gi", &plain, None),
            // Another node has grown it, and this one has to as well.
            ("2Gi", "", "2Gi", &many, Some((2 << 30, Telling::Nothing))),
            ("2Gi", "", "", &many, Some((2 << 30, Telling::Nothing))),
            ("2Gi", "", "2Gi", &done, None),
        ] {
            let due = due(&claim(seen, stage, allocated, more.clone()), &Quantity("2Gi".into()));
            assert_eq!(due.map(|it| (it.size, it.telling)), expected, "{seen} {stage} {allocated} {more}");
        }
        let unknown: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {}, "status": {}})).unwrap();
        assert_eq!(due(&unknown, &Quantity("2Gi".into())), None);
    }

    #[test]
    fn a_growth_is_outdated_when_the_claim_asks_for_another_size() {
        for (requested, expected) in [("2Gi", false), ("1536Mi", true), ("3Gi", true)] {
            let more = json!({"spec": {"resources": {"requests": {"storage": requested}}}});
            let due = due(&claim("1Gi", PENDING, "2Gi", more), &Quantity("2Gi".into())).unwrap();
            assert_eq!((due.is_outdated, due.shown.0.as_str()), (expected, "2Gi"), "{requested}");
        }
    }

    #[test]
    fn claims_hear_of_each_step() {
        assert_eq!(begun(&status(PENDING)), Some(json!({"allocatedResourceStatuses": {"storage": IN_PROGRESS}})));
        assert_eq!(begun(&status(IN_PROGRESS)), None);
        let change = ended(&status(IN_PROGRESS), &Quantity("2Gi".into()));
        let left = json!([{"type": "Other", "status": "True"}]);
        let expected = json!({
            "capacity": {"storage": "2Gi"}, "conditions": left, "allocatedResourceStatuses": {"storage": null},
        });
        assert_eq!(change, expected);
    }

    #[test]
    fn a_growth_that_never_comes_is_given_up() {
        let now = Timestamp::UNIX_EPOCH;
        for is_given_up in [true, false] {
            let change = failed(&status(IN_PROGRESS), "no room", is_given_up, now).unwrap();
            let expected = if is_given_up { json!({"storage": GIVEN_UP}) } else { Value::Null };
            assert_eq!(change["allocatedResourceStatuses"], expected);
            let conditions = change["conditions"].as_array().unwrap();
            assert_eq!(conditions[0]["type"], "FileSystemResizePending");
            let told = &conditions[2];
            assert_eq!(
                (&told["type"], &told["message"]),
                (&json!(FAILED), &json!("failed to expand pvc with no room"))
            );
            let mut after = status(if is_given_up { GIVEN_UP } else { IN_PROGRESS });
            after.conditions = serde_json::from_value(change["conditions"].clone()).unwrap();
            assert_eq!(failed(&after, "no room", is_given_up, now), None, "once");
            assert!(failed(&after, "no disk", is_given_up, now).is_some());
        }
    }

    #[test]
    fn only_a_driver_that_may_still_be_at_it_is_not_over() {
        for (failure, expected) in [
            (Status::internal("resize2fs"), true),
            (Status::permission_denied(""), true),
            (Status::failed_precondition("in use"), true),
            (Status::deadline_exceeded(""), false),
            (Status::aborted("pending"), false),
        ] {
            assert_eq!(is_over(&failure), expected, "{failure}");
        }
    }
}

//! What ReplicaSet and ReplicationController have in common.

use std::collections::BTreeMap;

use api::cached::Packed;
use api::meta::Meta as _;
use api::selector::Selector;
use client::Resource;
use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetCondition, ReplicaSetStatus};
use k8s_openapi::api::core::v1::{
    PodTemplateSpec, ReplicationController, ReplicationControllerCondition, ReplicationControllerStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::Error;
use crate::pods::selector;

pub(super) trait Replicated: Resource + serde::Serialize {
    fn replicas(&self) -> i32;
    fn min_ready_seconds(&self) -> i32;
    fn pod_selector(&self) -> Result<Selector, Error>;
    /// The same without unpacking the object.
    fn packed_selector(object: &Packed<Self>) -> Result<Selector, Error>;
    fn template(&self) -> Option<&PodTemplateSpec>;
    fn replica_status(&self) -> Status;
    fn with_replica_status(&self, status: Status) -> Self;

    fn uid(&self) -> &str {
        self.metadata().uid()
    }
}

/// Zero is left out on the wire.
fn nonzero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Status {
    pub(super) replicas: i32,
    pub(super) fully_labeled: i32,
    pub(super) ready: i32,
    pub(super) available: i32,
    pub(super) terminating: Option<i32>,
    pub(super) observed_generation: i64,
    pub(super) conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Condition {
    pub(super) kind: String,
    pub(super) status: String,
    pub(super) reason: Option<String>,
    pub(super) message: Option<String>,
    pub(super) since: Option<Time>,
}

/// The two kinds differ in how they select pods, and in a count that only ReplicaSets have (`$terminating`).
macro_rules! replicated {
    ($kind:ident, $status:ident, $condition:ident, $selector:ident $(, $terminating:ident)?) => {
        impl Replicated for $kind {
            fn replicas(&self) -> i32 {
                self.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1)
            }

            fn min_ready_seconds(&self) -> i32 {
                self.spec.as_ref().and_then(|spec| spec.min_ready_seconds).unwrap_or_default()
            }

            fn pod_selector(&self) -> Result<Selector, Error> {
                $selector(self.spec.as_ref().map(|spec| &spec.selector))
            }

            fn packed_selector(object: &Packed<Self>) -> Result<Selector, Error> {
                $selector(object.part(&["spec", "selector"]).as_ref())
            }

            fn template(&self) -> Option<&PodTemplateSpec> {
                self.spec.as_ref()?.template.as_ref()
            }

            fn replica_status(&self) -> Status {
                let status = self.status.clone().unwrap_or_default();
                let conditions = status.conditions.into_iter().flatten().map(|condition| Condition {
                    kind: condition.type_,
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    since: condition.last_transition_time,
                });
                Status {
                    replicas: status.replicas,
                    fully_labeled: status.fully_labeled_replicas.unwrap_or_default(),
                    ready: status.ready_replicas.unwrap_or_default(),
                    available: status.available_replicas.unwrap_or_default(),
                    terminating: None$(.or(status.$terminating))?,
                    observed_generation: status.observed_generation.unwrap_or_default(),
                    conditions: conditions.collect(),
                }
            }

            fn with_replica_status(&self, status: Status) -> Self {
                let conditions = status.conditions.into_iter().map(|condition| $condition {
                    type_: condition.kind,
                    status: condition.status,
                    reason: condition.reason,
                    message: condition.message,
                    last_transition_time: condition.since,
                });
                let conditions: Vec<_> = conditions.collect();
                let status = $status {
                    replicas: status.replicas,
                    fully_labeled_replicas: nonzero(status.fully_labeled),
                    ready_replicas: nonzero(status.ready),
                    available_replicas: nonzero(status.available),
                    $($terminating: status.terminating,)?
                    observed_generation: Some(status.observed_generation),
                    conditions: (!conditions.is_empty()).then_some(conditions),
                };
                Self { status: Some(status), ..self.clone() }
            }
        }
    };
}

replicated!(ReplicaSet, ReplicaSetStatus, ReplicaSetCondition, selector, terminating_replicas);
replicated!(ReplicationController, ReplicationControllerStatus, ReplicationControllerCondition, equal_labels);

/// The older of the two selects by labels that must be equal.
fn equal_labels(labels: Option<&Option<BTreeMap<String, String>>>) -> Result<Selector, Error> {
    let labels = labels.and_then(|labels| labels.as_ref());
    Ok(labels.map_or_else(Selector::nothing, Selector::from_map))
}

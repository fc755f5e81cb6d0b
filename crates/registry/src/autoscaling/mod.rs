//! Strategies of the autoscaling group.

mod behavior;
pub mod horizontal_pod_autoscaler;
mod rules;
pub(crate) mod v1;

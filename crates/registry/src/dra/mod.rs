//! `resource.k8s.io`: devices, and claims to them (dynamic resource allocation).
//!
//! A driver publishes slices of devices, an administrator sorts them into classes, a claim asks for some. CEL selectors
//! are checked for their length here; what they say is evaluated by the scheduler.

pub mod admin_access;
pub mod claim;
pub mod claim_status;
pub mod device;
pub mod device_class;
pub mod pool_status_request;
pub mod rules;
pub mod slice;
pub mod taint_rule;

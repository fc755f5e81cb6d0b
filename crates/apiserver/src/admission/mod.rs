//! Admission: plug-ins that may change or refuse a write, after authorization and before validation.
//!
//! Flow: a write verb -> [`Chain::admit`] (mutating, in table order) -> defaults, strategy, validation ->
//! [`Chain::validate`] -> the store. One refusal ends the request. Every plug-in is one file (or folder) and one line in
//! `table.rs`. A plug-in that has nothing to say answers at once, without an allocation; objects it decides on come from
//! the watch cache.

mod attributes;
mod chain;
mod config;
pub(crate) mod expressions;
pub(crate) mod managed_fields;
mod matching;
mod metrics;
mod reinvocation;
mod table;
mod versioned;

mod always;
mod always_pull_images;
mod certificates;
mod default_class;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod event_rate_limit;
mod extended_resource_toleration;
mod image_policy;
mod initial_resources;
mod initializers;
mod limit_ranger;
mod namespace_exists;
mod namespace_lifecycle;
mod node_restriction;
mod owner_references;
mod pod_anti_affinity;
mod pod_node_selector;
mod pod_resize;
mod pod_security;
mod pod_toleration_restriction;
mod pod_topology_labels;
mod policy;
mod priority;
mod resource_quota;
mod runtime_class;
mod secret_references;
mod service_account;
mod service_external_ips;
mod storage_protection;
mod taint_nodes;
mod tolerations;
mod volume_claim_resize;
mod webhook;

pub(crate) use attributes::{Attributes, Verb};
pub(crate) use chain::{Admitted, Chain, Plugin, warnings};
pub use node_restriction::labels_not_for_nodes;
pub(crate) use policy::check_types;

use chain::{admitted, later};

//! What the server serves: one row per resource, one strategy per kind.
//!
//! Flow: `chain` finds the row for a URL -> `verbs` run the generic steps and call the row's strategy -> `store`.

pub mod cells;
pub mod column;
pub mod conversion;
pub(crate) mod index;
pub mod metadata;
pub mod object;
pub mod parts;
pub(crate) mod priority;
#[cfg(test)]
mod random;
pub mod resource;
pub mod strategy;
pub mod table;
pub mod unset;
#[cfg(test)]
mod zero_values;

// Strategies by group.
pub(crate) mod address;
pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod discovery;
pub mod dra;
pub mod flowcontrol;
pub mod metrics;
pub mod networking;
pub mod policy;
pub mod rbac;
pub mod scheduling;
pub mod storage;

pub use index::RuntimeConfig;
pub(crate) use index::{Registry, Table};
pub use object::{AnyObject, Object, Typed};
pub use resource::{Action, MetricsOf, Resource, Review, Scope, Serving, Subresource};
pub use strategy::{AnyStrategy, Call, Grace, NameRule, Plain, SelectableField, Strategy};

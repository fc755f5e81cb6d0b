//! What the API server serves: one row per resource, one strategy per kind.
//!
//! Flow: the server's chain finds the row for a URL -> its verbs run the generic steps and call the row's strategy.
//! Invariant: nothing here waits, reads a file, or knows of a store or a request beyond the object and the user.
#![cfg_attr(test, allow(clippy::unwrap_used))]
// A `Status` is the answer itself: it is moved out once, to the client.
#![allow(clippy::result_large_err)]

mod action;
pub mod cells;
pub mod column;
pub mod conversion;
mod index;
pub mod metadata;
pub mod object;
pub mod parts;
pub mod priority;
#[cfg(test)]
mod random;
pub mod resource;
pub mod scale;
mod scale_paths;
pub mod strategy;
pub mod table;
pub mod unset;
mod verb;
mod versions;
#[cfg(test)]
mod zero_values;

// Strategies by group.
pub mod address;
pub mod admissionregistration;
pub mod apiextensions;
pub mod apiregistration;
pub mod apps;
pub mod autoscaling;
pub mod batch;
pub mod certificates;
pub mod coordination;
pub mod core;
pub mod custom;
pub mod discovery;
pub mod dra;
pub mod flowcontrol;
pub mod metrics;
pub mod networking;
pub mod policy;
pub mod rbac;
pub mod scheduling;
pub mod storage;
pub mod storagemigration;

pub use action::Action;
pub use index::{BadRuntimeConfig, Registry, RuntimeConfig, Table};
pub use object::{AnyObject, Object, Typed};
pub use resource::{MetricsOf, Resource, Review, Scope, Serving, Subresource};
pub use strategy::{AnyStrategy, Call, Deletion, Grace, NameRule, Plain, SelectableField, Strategy};
pub use verb::Verb;
pub use versions::KindVersions;

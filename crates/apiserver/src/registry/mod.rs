//! What the server serves: one row per resource, one strategy per kind.
//!
//! Flow: `chain` finds the row for a URL -> `verbs` run the generic steps and call the row's strategy -> `store`.

pub mod cells;
pub mod column;
pub mod conversion;
pub mod metadata;
pub mod object;
pub mod parts;
pub mod resource;
pub mod strategy;
pub mod table;
pub mod unset;

// Strategies by group.
pub mod apps;
pub mod core;

pub use object::{AnyObject, Object, Typed};
pub use resource::{Action, Resource, Review, Scope, Serving, Subresource};
pub use strategy::{AnyStrategy, Call, Grace, NameRule, Plain, SelectableField, Strategy};

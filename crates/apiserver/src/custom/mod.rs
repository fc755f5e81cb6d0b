//! Custom resources: kinds that CustomResourceDefinitions describe, served like all others.
//!
//! Flow: the watch cache of definitions -> [`definitions`] (whose names are accepted) -> `registry::custom` (rows of the
//! resource table, one per served version) -> `registry::Registry`, from where the generic verbs take them. [`convert`]
//! asks a webhook for other versions.
//! Invariant: rows are in the table before their definition says that it is established.

mod convert;
mod definitions;
mod finalize;
mod names;

pub(crate) use definitions::{discoverable, is_synced, run, served};

//! The rows of custom kinds, which CustomResourceDefinitions describe.
//!
//! Flow: the server decides which definitions are served -> [`rows()`] (one per served version) -> [`Registry`](crate::Registry),
//! from where the generic verbs take them. What makes a custom kind itself is one `CustomStrategy` over a schema that
//! is compiled once per version: `validate` says what is wrong with an object, `shape` takes out what the schema does not know
//! and puts in its defaults, `merge` says who owns what in an apply, `expressions` are its rules in CEL and `cost` says what
//! they may take, `columns` print it, `openapi` publishes it.

mod columns;
mod cost;
mod expressions;
mod formats;
mod merge;
mod object;
mod openapi;
mod pattern;
mod rows;
mod schema;
mod shape;
mod strategy;
mod validate;

pub(crate) use expressions::check as check_expressions;
pub use rows::{any, rows, store_prefix};

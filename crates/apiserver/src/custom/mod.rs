//! Custom resources: kinds that CustomResourceDefinitions describe, served like all others.
//!
//! Flow: the watch cache of definitions -> [`definitions`] (whose names are accepted) -> [`rows`] (rows of the resource
//! table, one per served version) -> `registry::Registry`, from where the generic verbs take them. What makes a custom
//! kind itself is one [`strategy::CustomStrategy`] over a schema that is compiled once per version: [`validate`] says what is
//! wrong with an object, [`shape`] takes out what the schema does not know and puts in its defaults, [`merge`] says who
//! owns what in an apply, [`expressions`] are its rules in CEL and [`cost`] says what they may take,
//! [`columns`] print it, [`openapi`] publishes it, [`convert`] asks a webhook for other versions.
//! Invariant: rows are in the table before their definition says that it is established.

mod columns;
mod convert;
mod cost;
mod definitions;
mod expressions;
mod finalize;
mod formats;
mod merge;
mod names;
mod object;
mod openapi;
mod pattern;
mod rows;
mod schema;
mod shape;
mod strategy;
mod validate;

pub(crate) use convert::{Converter, entries, entry, to_storage};
pub(crate) use definitions::{Definitions, is_synced, run, served};
pub(crate) use expressions::check as check_expressions;
pub(crate) use finalize::mark;
pub(crate) use rows::{ScalePaths, at};
pub(crate) use strategy::Reader;

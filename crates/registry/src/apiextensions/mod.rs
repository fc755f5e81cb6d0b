//! apiextensions.k8s.io.

pub mod conditions;
pub mod custom_resource_definition;
mod schema;

//! apiextensions.k8s.io.

pub mod beta;
pub mod conditions;
pub mod custom_resource_definition;
mod schema;

//! Strategies of the RBAC group: who may do what.

pub mod binding;
pub mod role;

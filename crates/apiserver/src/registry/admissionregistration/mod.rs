//! Strategies of the admissionregistration group: what else has a say in writes.

pub mod initializer;
pub mod policy;
pub mod webhook;

//! Strategies of the admissionregistration group: what else has a say in writes.

pub mod environment;
pub mod initializer;
pub mod policy;
mod rules;
pub mod webhook;

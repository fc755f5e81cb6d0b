//! Strategies of the coordination group.

pub mod lease;

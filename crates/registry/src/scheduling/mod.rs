//! Strategies of the scheduling and node groups: what the scheduler and the runtime look up by name.

pub mod priority_class;
pub mod runtime_class;

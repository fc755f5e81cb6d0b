//! Strategies of the flowcontrol group: who waits when there is much to do.

pub mod flow_schema;
pub mod priority_level;
pub mod suggested;

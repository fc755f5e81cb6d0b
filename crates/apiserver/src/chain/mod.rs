//! The handler chain: what every request passes before a verb runs.

mod request_info;

pub(crate) use request_info::{Query, RequestInfo};

//! What the server counts, under upstream's names: `crates/metrics/src/upstream.rs` is the table of them.
//!
//! Requests, who sent them and what they asked of the store are counted as they pass; what caches and store hold is looked
//! at when somebody reads `/metrics`. Flow control and admission are counted in their own modules.

mod access;
mod requests;
mod storage;

pub(crate) use requests::{Labels, RequestMetrics, Serving, Took, Totals};
pub(crate) use storage::{Timed, WatchCounts};

//! The API server: every resource through one generic REST implementation over the store.
//!
//! Flow of a request: `chain` (who asks for what, and may they) -> `verbs` (generic REST) -> `registry` (what makes each
//! resource itself) and `admission` -> `store`. Reads are answered from `watch_cache`.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod body;
mod chain;
mod json;
pub mod registry;
mod status;
mod watch_cache;

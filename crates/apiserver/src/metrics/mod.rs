//! What the server counts, under upstream's names: `crates/metrics/src/upstream.rs` is the table of them.
//!
//! Requests, who sent them and what they asked of the store are counted as they pass; what caches and store hold is looked
//! at when somebody reads `/metrics`. Flow control and admission count in their own rooms.

mod access;
mod elsewhere;
mod requests;
mod storage;

use std::fmt::Write;

use crate::state::State;

pub(crate) use elsewhere::{Elsewhere, spent_elsewhere};
pub(crate) use requests::{Labels, RequestMetrics, Serving, Took, Totals};
pub(crate) use storage::{Timed, WatchCounts};

/// The text of `/metrics`.
pub(crate) async fn render(state: &State) -> String {
    storage::collect(state).await;
    let mut out = state.metrics.all().render();
    state.admission.render_metrics(&mut out);
    crate::aggregation::render_metrics(&state.caches, &mut out);
    out.push_str("# HELP apiserver_audit_error_total [ALPHA] Audit events that were lost.\n");
    out.push_str("# TYPE apiserver_audit_error_total counter\n");
    // Writing to a String cannot fail.
    let _ = writeln!(out, "apiserver_audit_error_total {}", crate::audit::dropped());
    out
}

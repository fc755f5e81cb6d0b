//! `/metrics`: what was counted as it passed, and what caches and store hold at the moment.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use ::metrics::{Kind, Metrics};
use registry::Resource;

use crate::state::State;

/// The text of `/metrics`.
pub(crate) async fn render(state: &State) -> String {
    collect(state).await;
    let mut out = state.metrics.all().render();
    state.admission.render_metrics(&mut out);
    crate::aggregation::render_metrics(&state.caches, &mut out);
    out.push_str("# HELP apiserver_audit_error_total [ALPHA] Audit events that were lost.\n");
    out.push_str("# TYPE apiserver_audit_error_total counter\n");
    for (plugin, count) in crate::audit::lost() {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "apiserver_audit_error_total{{plugin=\"{plugin}\"}} {count}");
    }
    out
}

/// What the cache of a resource holds.
struct Held<'r> {
    row: &'r Resource,
    objects: usize,
    revision: u64,
    /// Events so far, and those that are kept.
    events: (u64, usize),
}

/// Looks at what caches and store hold.
async fn collect(state: &State) {
    let all = state.metrics.all();
    let table = state.registry.table();
    let mut held = Vec::new();
    for row in table.rows().iter().filter(|row| row.api_version() == row.storage_version) {
        if let Some(cache) = state.caches.get(&row.store_prefix) {
            let (objects, revision) = (cache.snapshot().objects.len(), cache.revision());
            held.push(Held { row, objects, revision, events: cache.window() });
        }
    }
    let show = |kind, name, help, value: &dyn Fn(&Held<'_>) -> f64| {
        all.set_rows(kind, name, help, |rows| {
            for of in &held {
                rows.add(&[("group", &of.row.group), ("resource", &of.row.plural)], value(of));
            }
        });
    };
    show(Kind::Gauge, "apiserver_resource_objects", "Stored objects, by resource.", &|of| of.objects as f64);
    let help = "The latest change that the cache of a resource shows.";
    show(Kind::Gauge, "apiserver_watch_cache_resource_version", help, &|of| of.revision as f64);
    let help = "Events that the cache of a resource keeps for watchers.";
    show(Kind::Gauge, "watch_cache_capacity", help, &|of| of.events.1 as f64);
    for (name, help) in [
        ("apiserver_storage_events_received_total", "Changes that the store reported, by resource."),
        ("apiserver_watch_cache_events_received_total", "Changes that the cache of a resource took in."),
        ("apiserver_watch_cache_events_dispatched_total", "Changes that the cache of a resource passed on."),
    ] {
        show(Kind::Counter, name, help, &|of| of.events.0 as f64);
    }
    all.set_rows(Kind::Gauge, "apiserver_storage_objects", "Stored objects, by resource.", |rows| {
        for of in &held {
            rows.add(&[("resource", &of.row.group_resource().to_string())], of.objects as f64);
        }
    });
    if state.config.history_remote_write.is_some() {
        let (sent, dropped) = state.history.remote.get();
        let help = "Values of the history for remote write, by what became of them.";
        all.set_rows(Kind::Counter, "cox_history_remote_write_values_total", help, |rows| {
            rows.add(&[("result", "sent")], sent as f64);
            rows.add(&[("result", "dropped")], dropped as f64);
        });
    }
    for (names, reloads) in [(AUTHENTICATION, state.authn.reloads()), (AUTHORIZATION, state.authz.reloads())] {
        if let Some(reloads) = reloads {
            show_reloads(all, names, &reloads, &identity_hash(state));
        }
    }
    if let Some(exporting) = state.trace.exporting() {
        let (sent, lost) = exporting.counted();
        let help = "Spans for the collector of traces, by what became of them.";
        all.set_rows(Kind::Counter, "cox_trace_spans_exported_total", help, |rows| {
            rows.add(&[("result", "sent")], sent as f64);
            rows.add(&[("result", "lost")], lost as f64);
        });
    }
    match state.caches.store.size().await {
        Ok(Some(bytes)) => {
            let help = "Bytes that the store takes on its disk.";
            all.gauge("apiserver_storage_size_bytes", help, &[("storage_cluster_id", "etcd-0")]).set(bytes as f64);
        }
        Ok(None) => {}
        Err(error) => {
            all.forget("apiserver_storage_size_bytes", &[]);
            tracing::warn!(%error, "the size of the store is not known");
        }
    }
}

/// Upstream's series about a configuration that is read again when it changes: how often, and when last.
type Reloaded = [&'static str; 2];
const AUTHENTICATION: Reloaded = [
    "apiserver_authentication_config_controller_automatic_reloads_total",
    "apiserver_authentication_config_controller_automatic_reload_last_timestamp_seconds",
];
const AUTHORIZATION: Reloaded = [
    "apiserver_authorization_config_controller_automatic_reloads_total",
    "apiserver_authorization_config_controller_automatic_reload_last_timestamp_seconds",
];

fn show_reloads(all: &Metrics, [count_name, time_name]: Reloaded, reloads: &tls::Reloads, server: &str) {
    let rows =
        [("success", reloads.succeeded, reloads.last_success), ("failure", reloads.failed, reloads.last_failure)];
    for (status, count, last) in rows {
        // As upstream, a status is shown once it was seen.
        let Some(last) = last.and_then(|last| last.duration_since(UNIX_EPOCH).ok()) else { continue };
        let labels = [("apiserver_id_hash", server), ("status", status)];
        let shown = all.counter(count_name, "How often a changed configuration was read.", &labels);
        shown.add((count as f64 - shown.get()).max(0.0) as usize);
        all.gauge(time_name, "When a changed configuration was last read.", &labels).set(last.as_secs_f64());
    }
}

/// Tells this server from the others of its cluster.
fn identity_hash(state: &State) -> String {
    let address = state.endpoint().map_or_else(|| "localhost".to_owned(), |address| address.to_string());
    let digest = ring::digest::digest(&ring::digest::SHA256, format!("apiserver-{address}").as_bytes());
    format!("sha256:{}", api::hex::encode(digest))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reloads_are_counted_by_how_they_went() {
        let all = Metrics::new();
        let at = |seconds| Some(UNIX_EPOCH + Duration::from_secs(seconds));
        let mut reloads = tls::Reloads { succeeded: 1, last_success: at(5), ..Default::default() };
        show_reloads(&all, AUTHENTICATION, &reloads, "h");
        assert!(!all.render().contains("failure"));
        reloads = tls::Reloads { succeeded: 3, failed: 1, last_success: at(9), last_failure: at(8) };
        // Whoever looks twice sees the same.
        show_reloads(&all, AUTHENTICATION, &reloads, "h");
        show_reloads(&all, AUTHENTICATION, &reloads, "h");
        let text = all.render();
        let name = "apiserver_authentication_config_controller_automatic_reload";
        for row in [
            "s_total{status=\"success\"} 3",
            "s_total{status=\"failure\"} 1",
            "_last_timestamp_seconds{status=\"success\"} 9",
        ] {
            let row = format!("{name}{row}").replace("{status", "{apiserver_id_hash=\"h\",status");
            assert!(text.contains(&row), "{row}\n{text}");
        }
    }
}

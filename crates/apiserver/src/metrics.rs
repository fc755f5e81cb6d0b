//! `/metrics`: request counts and durations in the Prometheus text format, under upstream's names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;

use crate::registry::Resource;
use crate::state::State;

#[derive(Default)]
struct Counter {
    count: u64,
    seconds: f64,
}

type Key = (&'static str, String, u16);

static REQUESTS: Mutex<BTreeMap<Key, Counter>> = Mutex::new(BTreeMap::new());

/// Counts one finished request.
pub(crate) fn observe(verb: &'static str, resource: &str, status: StatusCode, took: Duration) {
    let mut requests = REQUESTS.lock();
    let counter = requests.entry((verb, resource.to_owned(), status.as_u16())).or_default();
    counter.count += 1;
    counter.seconds += took.as_secs_f64();
}

pub(crate) fn render(state: &State) -> String {
    let mut out = String::from("# TYPE apiserver_request_total counter\n");
    let requests = REQUESTS.lock();
    for ((verb, resource, code), counter) in requests.iter() {
        let verb = verb.to_uppercase();
        let _ = writeln!(
            out,
            "apiserver_request_total{{code=\"{code}\",resource=\"{resource}\",verb=\"{verb}\"}} {}",
            counter.count
        );
    }
    out.push_str("# TYPE apiserver_request_duration_seconds summary\n");
    for ((verb, resource, code), counter) in requests.iter() {
        let labels = format!("code=\"{code}\",resource=\"{resource}\",verb=\"{}\"", verb.to_uppercase());
        let _ = writeln!(out, "apiserver_request_duration_seconds_sum{{{labels}}} {}", counter.seconds);
        let _ = writeln!(out, "apiserver_request_duration_seconds_count{{{labels}}} {}", counter.count);
    }
    drop(requests);
    state.admission.render_metrics(&mut out);
    crate::aggregation::render_metrics(state, &mut out);
    out.push_str("# TYPE apiserver_audit_error_total counter\n");
    let _ = writeln!(out, "apiserver_audit_error_total {}", crate::audit::dropped());
    out.push_str("# TYPE apiserver_storage_objects gauge\n");
    let table = state.registry.table();
    let is_stored = |row: &&Arc<Resource>| row.api_version() == row.storage_version;
    for row in table.rows().iter().filter(is_stored) {
        if let Some(cache) = state.caches.get(&row.store_prefix) {
            let count = cache.snapshot().objects.len();
            let _ = writeln!(out, "apiserver_storage_objects{{resource=\"{}\"}} {count}", row.group_resource());
        }
    }
    out
}

//! Fills the history: once a minute what the nodes say to everybody who asks for usage, and what this server has counted;
//! and sends it elsewhere, if that is wanted.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;

use crate::history::STEP;
use crate::history::remote_write::{self, Identity};
use crate::history::sample::{self, Counted};
use crate::node_usage::{MAX_WINDOW, Question, is_on};
use crate::remote::Remote;
use crate::state::State;

/// Minutes between two writes of the file.
const SAVE: u32 = 15;
/// Nodes that are asked in a minute.
const NODES_A_MINUTE: usize = 60;
/// Until a file that could not be read is tried again.
const FILE_INTERVAL: Duration = Duration::from_secs(60);

/// Samples once a minute until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    if !state.history.is_kept() {
        return;
    }
    let mut before = Counted::now(state.metrics.totals());
    let mut unsaved = 0;
    loop {
        let (minute, wait) = next_minute(Timestamp::now());
        tokio::select! {
            () = state.stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let counted = Counted::now(state.metrics.totals());
        let mut values = sample::of_server(&before, &counted);
        before = counted;
        let nodes = state.caches.get("minions").map_or(0, |cache| cache.snapshot().objects.len());
        let every = minutes_between_questions(nodes);
        if minute.is_multiple_of(every) {
            // One question may come late, or stay without an answer.
            let longest = MAX_WINDOW.max(Duration::from_secs(2 * every * STEP));
            let windows =
                state.resource_metrics.windows(&state.cluster, Question::AllButFiles, longest, |_| true).await;
            values.extend(sample::of_nodes(&windows, |node, namespace, pod| runs_on(&state, node, namespace, pod)));
        }
        let left_out = state.history.record(minute, values);
        if left_out > 0 {
            tracing::debug!(left_out, "the history of figures has no room for more");
        }
        unsaved += 1;
        if unsaved >= SAVE {
            unsaved = 0;
            let saved = state.clone();
            // Nothing depends on it: the next one comes.
            let _ = tokio::task::spawn_blocking(move || saved.history.save()).await;
        }
    }
}

/// Sends each minute to a Prometheus until the server stops.
pub(crate) async fn write_remotely(state: Arc<State>, remote: Arc<Remote>) {
    let address = state.config.advertise_address.map(|address| address.to_string());
    let instance =
        address.or_else(|| Some(std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_owned()));
    let identity = || {
        let system = state.objects().get::<Namespace>("", "kube-system").ok().flatten()?;
        Some(Identity { cluster: system.metadata.uid.clone()?, instance: instance.clone()? })
    };
    remote_write::run(&state.history, &remote, identity, state.stop.clone()).await;
}

/// The same, once the file that names the Prometheus can be read: without it the server serves all the same.
pub(crate) async fn write_by_file(state: Arc<State>, file: PathBuf) {
    let mut complained = false;
    loop {
        match Remote::from_kubeconfig(&file) {
            Ok(remote) => return write_remotely(state, Arc::new(remote)).await,
            Err(error) if !complained => {
                complained = true;
                let file = file.display();
                tracing::warn!(%file, "the history of figures is sent nowhere until this can be read: {error:#}");
            }
            Err(_) => {}
        }
        tokio::select! {
            () = state.stop.cancelled() => return,
            () = tokio::time::sleep(FILE_INTERVAL) => {}
        }
    }
}

/// So that no more than one node is asked in a second.
fn minutes_between_questions(nodes: usize) -> u64 {
    nodes.div_ceil(NODES_A_MINUTE).max(1) as u64
}

/// The minute that comes next, and how long until then.
fn next_minute(now: Timestamp) -> (u64, Duration) {
    let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or_default();
    let next = milliseconds / (STEP * 1000) + 1;
    (next, Duration::from_millis(next * STEP * 1000 - milliseconds))
}

/// Whether a pod exists and is assigned to a node.
fn runs_on(state: &State, node: &str, namespace: &str, pod: &str) -> bool {
    let pod = state.caches.get("pods").and_then(|cache| cache.get(&format!("{namespace}/{pod}")));
    pod.is_some_and(|pod| is_on(&pod, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nodes_are_asked_less_often() {
        for (nodes, expected) in [(0, 1), (1, 1), (60, 1), (61, 2), (6000, 100)] {
            assert_eq!(minutes_between_questions(nodes), expected, "{nodes}");
        }
    }

    #[test]
    fn minutes_begin_on_the_minute() {
        let at = |millisecond| next_minute(Timestamp::from_millisecond(millisecond).unwrap());
        assert_eq!(at(0), (1, Duration::from_secs(60)));
        assert_eq!(at(59_999), (1, Duration::from_millis(1)));
        assert_eq!(at(60_000), (2, Duration::from_secs(60)));
    }
}

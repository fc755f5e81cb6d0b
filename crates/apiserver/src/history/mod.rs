//! The last hours of the cluster: CPU, memory, network and disk of nodes and pods, rates and latency of the API.
//!
//! Flow: once a minute `sample` reads what the nodes say to everybody who asks for usage, and what this server has
//! counted -> `ring` -> `serve` (`GET /cox/history`, authorized like any other path), for `cox top`, `cox ui` and
//! `cox why cluster`. The ring is written to a file four times an hour and when the server stops.
//!
//! Invariant: bounded memory, and no more than one question a second to nodes, however many there are.

mod file;
mod ring;
mod sample;
mod serve;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use parking_lot::Mutex;

use self::ring::{Ring, STEP};
use self::sample::Counted;
use crate::state::State;

pub(crate) use self::serve::{PATH, serve};

/// Minutes between two writes of the file.
const SAVE: u32 = 15;
/// Nodes that are asked in a minute.
const NODES_A_MINUTE: usize = 60;

/// Kept where there is a file for it.
pub(crate) struct History {
    file: Option<PathBuf>,
    ring: Mutex<Ring>,
}

impl History {
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let loaded = file.as_deref().map(file::load).transpose();
        let ring = loaded.unwrap_or_else(|error| {
            tracing::warn!(file = ?file, error, "the history of figures begins anew");
            None
        });
        Self { file, ring: Mutex::new(ring.flatten().unwrap_or_default()) }
    }

    /// Writes the file. Blocks.
    pub(crate) fn save(&self) {
        let Some(path) = &self.file else { return };
        // A copy, so that nobody waits for the disk.
        let ring = self.ring.lock().clone();
        if let Err(error) = file::save(&ring, path) {
            tracing::warn!(path = %path.display(), %error, "the history of figures is not kept");
        }
    }
}

/// Samples once a minute until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    if state.history.file.is_none() {
        return;
    }
    let mut before = Counted::now(&state);
    let mut unsaved = 0;
    loop {
        let (minute, wait) = next_minute(Timestamp::now());
        tokio::select! {
            () = state.stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
        }
        let counted = Counted::now(&state);
        let mut values = sample::of_server(&before, &counted);
        before = counted;
        let nodes = state.caches.get("minions").map_or(0, |cache| cache.snapshot().objects.len());
        if minute.is_multiple_of(nodes.div_ceil(NODES_A_MINUTE).max(1) as u64) {
            let windows = state.resource_metrics.windows(&state.cluster).await;
            values.extend(sample::of_nodes(&windows, |node, namespace, pod| {
                sample::runs_on(&state, node, namespace, pod)
            }));
        }
        let left_out = state.history.ring.lock().record(minute, values);
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

/// The minute that comes next, and how long until then.
fn next_minute(now: Timestamp) -> (u64, Duration) {
    let milliseconds = u64::try_from(now.as_millisecond()).unwrap_or_default();
    let next = milliseconds / (STEP * 1000) + 1;
    (next, Duration::from_millis(next * STEP * 1000 - milliseconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_begin_on_the_minute() {
        let at = |millisecond| next_minute(Timestamp::from_millisecond(millisecond).unwrap());
        assert_eq!(at(0), (1, Duration::from_secs(60)));
        assert_eq!(at(59_999), (1, Duration::from_millis(1)));
        assert_eq!(at(60_000), (2, Duration::from_secs(60)));
    }

    #[test]
    fn what_was_kept_is_there_again_and_damage_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history");
        let history = History::open(Some(path.clone()));
        let values = sample::of_server(&Counted::default(), &Counted::default());
        history.ring.lock().record(5, values);
        history.save();
        assert_eq!(History::open(Some(path.clone())).ring.lock().newest(), 5);
        std::fs::write(&path, "nonsense").unwrap();
        assert_eq!(History::open(Some(path)).ring.lock().newest(), 0);
    }
}

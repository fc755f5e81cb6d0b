//! The last hours of the cluster: CPU, memory, network and disk of nodes and pods, rates and latency of the API.
//!
//! Flow: once a minute `sampler` reads what the nodes say to everybody who asks for usage, and what this server has
//! counted -> `sample` (pure) -> `ring` -> `serve` (`GET /cox/history`, authorized like any other path), for `cox top`, `cox ui` and
//! `cox why cluster`. The ring is written to a file four times an hour and when the server stops.
//!
//! `remote_write` sends each minute to a Prometheus as well, if one is named.
//!
//! Invariant: bounded memory, and no more than one question a second to nodes, however many there are.

mod file;
pub(crate) mod remote_write;
mod ring;
pub(crate) mod sample;
mod serve;

use std::path::PathBuf;

use parking_lot::Mutex;
use tokio::sync::Notify;

use self::ring::Ring;
pub(crate) use self::ring::{Key, STEP};
pub(crate) use self::serve::{PATH, serve};

/// Kept where there is a file for it.
pub(crate) struct History {
    file: Option<PathBuf>,
    ring: Mutex<Ring>,
    /// Told of every minute.
    recorded: Notify,
    /// What became of values that were sent elsewhere.
    pub(crate) remote: remote_write::Counts,
}

impl History {
    pub(crate) fn open(file: Option<PathBuf>) -> Self {
        let loaded = file.as_deref().map(file::load).transpose();
        let ring = loaded.unwrap_or_else(|error| {
            tracing::warn!(file = ?file, %error, "the history of figures begins anew");
            None
        });
        let ring = Mutex::new(ring.flatten().unwrap_or_default());
        Self { file, ring, recorded: Notify::new(), remote: Default::default() }
    }

    /// Whether anything is kept at all.
    pub(crate) fn is_kept(&self) -> bool {
        self.file.is_some()
    }

    /// Takes the values of a minute. Returns how many series there was no room for.
    pub(crate) fn record(&self, minute: u64, values: Vec<(Key, f32)>) -> usize {
        let left_out = self.ring.lock().record(minute, values);
        self.recorded.notify_one();
        left_out
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

#[cfg(test)]
mod tests {
    use super::sample::Counted;
    use super::*;

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

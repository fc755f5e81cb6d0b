//! Whether the node is shutting down, and when its pods were last ended for that.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// What others need to know: whether a shutdown is under way, and how the last one went.
pub(crate) struct Shutdown {
    is_on: AtomicBool,
    last: Mutex<Times>,
    path: PathBuf,
}

/// `graceful_node_shutdown_state`: when pods began to be ended, and when that was done.
#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) start_time: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) end_time: Option<Timestamp>,
}

impl Shutdown {
    pub(crate) fn open(root_dir: &Path) -> Self {
        let path = root_dir.join("graceful_node_shutdown_state");
        let last = match std::fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map_err(|error| error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Times::default()),
            Err(error) => Err(error.to_string()),
        };
        let last = last.unwrap_or_else(|error| {
            // Only metrics show it.
            tracing::warn!(path = %path.display(), error, "times of the last shutdown not read");
            Times::default()
        });
        Shutdown { is_on: AtomicBool::new(false), last: Mutex::new(last), path }
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// When pods were last ended for a shutdown.
    pub(crate) fn last(&self) -> Times {
        self.last.lock().clone()
    }

    /// Shows that a shutdown is under way, or no longer.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::Relaxed);
    }

    /// Keeps the times, over restarts too.
    pub(crate) fn note(&self, times: Times) {
        let written = serde_json::to_vec(&times).map_err(std::io::Error::from);
        if let Err(error) = written.and_then(|bytes| std::fs::write(&self.path, bytes)) {
            tracing::warn!(path = %self.path.display(), %error, "times of the shutdown not kept");
        }
        *self.last.lock() = times;
    }
}

//! What can go wrong, in the store's own words. `apiserver` turns these into a Kubernetes `Status`.

use crate::{LeaseId, Revision};
use std::path::{Path, PathBuf};

/// Errors are `Clone` because one failed sync answers every writer of its batch.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    #[error("key {key} is at revision {found}, not {expected}")]
    Conflict { key: String, expected: Revision, found: Revision },
    #[error("revision {asked} is older than {oldest}, the oldest kept")]
    Compacted { asked: Revision, oldest: Revision },
    #[error("revision {asked} is in the future: the store is at {current}")]
    FutureRevision { asked: Revision, current: Revision },
    #[error("{0} does not exist or has expired")]
    LeaseNotFound(LeaseId),
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The store cannot answer now. A write may or may not have happened.
    #[error("store unavailable: {0}")]
    Unavailable(String),
    /// The peer refused who we are.
    #[error("store access denied: {0}")]
    Denied(String),
    /// Nothing was written; reads go on, and writes succeed again once there is room.
    #[error("no space left for the store at {}", path.display())]
    Full { path: PathBuf },
    #[error("{} is damaged at byte {offset}: {reason}", file.display())]
    Corrupt { file: PathBuf, offset: u64, reason: String },
    #[error("{} is in use by process {pid}", dir.display())]
    Locked { dir: PathBuf, pid: u32 },
    #[error("{} is not a file of this store", file.display())]
    Foreign { file: PathBuf },
    #[error("{} has format version {found}; this program reads up to {supported}", file.display())]
    NewerFormat { file: PathBuf, found: u32, supported: u32 },
    #[error("{}: {reason}", path.display())]
    Io { path: PathBuf, reason: String },
}

impl StoreError {
    /// Whether a write that failed so may have happened all the same, or may happen yet.
    pub fn leaves_outcome_open(&self) -> bool {
        matches!(self, StoreError::Unavailable(_))
    }

    /// An I/O error with the place where it happened; a full disk has an error of its own.
    pub(crate) fn io(path: &Path, error: &std::io::Error) -> StoreError {
        match error.kind() {
            std::io::ErrorKind::StorageFull | std::io::ErrorKind::QuotaExceeded => {
                StoreError::Full { path: path.into() }
            }
            _ => StoreError::Io { path: path.into(), reason: error.to_string() },
        }
    }
}

//! Stores of other programs, read from their files while nobody writes to them: the database of a k3s server
//! ([`kine`], in [`sqlite`]'s format) and snapshots of etcd ([`etcd_snapshot`], in [`bolt`]'s).
//!
//! Nothing here writes. Every length, page number and depth that a file says is held against what the file can have.

mod bolt;
mod etcd_snapshot;
mod kine;
mod sqlite;

pub use etcd_snapshot::{is_database as is_etcd_database, read as read_etcd_snapshot};
pub use kine::{holder as kine_holder, read as read_kine};

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::{Result, StoreError};

/// A file of pages, read where it is asked for.
struct PagedFile {
    path: PathBuf,
    file: File,
    len: u64,
}

impl PagedFile {
    fn open(path: &Path) -> Result<PagedFile> {
        let file = File::open(path).map_err(|error| StoreError::io(path, &error))?;
        let len = file.metadata().map_err(|error| StoreError::io(path, &error))?.len();
        Ok(PagedFile { path: path.to_owned(), file, len })
    }

    fn read(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(self.damaged(offset, "the file ends before what it says it has"));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset).map_err(|error| StoreError::io(&self.path, &error))?;
        Ok(bytes)
    }

    fn damaged(&self, offset: u64, reason: impl Into<String>) -> StoreError {
        StoreError::Corrupt { file: self.path.clone(), offset, reason: reason.into() }
    }
}

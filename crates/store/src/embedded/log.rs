//! The log being written: one frame per group commit, on disk before anyone is answered.

use super::directory;
use super::frame::{self, FRAME_HEADER, FileHeader};
use crate::{Result, StoreError};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

pub(super) struct Log {
    dir: PathBuf,
    path: PathBuf,
    file: File,
    store_id: u64,
    offset: u64,
    next_sequence: u64,
    /// Set when the end of the file is unknown; nothing may be written any more.
    broken: Option<String>,
}

impl Log {
    pub(super) fn create(dir: &Path, store_id: u64, sequence: u64) -> Result<Log> {
        let (path, file) = directory::create_log(dir, FileHeader { store_id, sequence })?;
        let offset = frame::FILE_HEADER as u64;
        Ok(Log { dir: dir.into(), path, file, store_id, offset, next_sequence: sequence, broken: None })
    }

    /// Goes on at `offset`, cutting what follows it.
    pub(super) fn reopen(dir: &Path, path: &Path, store_id: u64, offset: u64, next_sequence: u64) -> Result<Log> {
        let io = |error: std::io::Error| StoreError::io(path, &error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() != offset {
            file.set_len(offset).map_err(io)?;
        }
        // Frames that a killed process wrote may not have been synced; they are part of the state from now on.
        file.sync_all().map_err(io)?;
        Ok(Log { dir: dir.into(), path: path.into(), file, store_id, offset, next_sequence, broken: None })
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    pub(super) fn store_id(&self) -> u64 {
        self.store_id
    }

    /// An empty frame to append records to.
    pub(super) fn start_frame(frame: &mut Vec<u8>) {
        frame.clear();
        frame.resize(FRAME_HEADER, 0);
    }

    pub(super) fn is_empty_frame(frame: &[u8]) -> bool {
        frame.len() <= FRAME_HEADER
    }

    /// Appends a frame and syncs. After an error the log is as it was before, or refuses all further writes.
    pub(super) fn append(&mut self, frame: &mut Vec<u8>) -> Result<u64> {
        if let Some(reason) = &self.broken {
            return Err(StoreError::Unavailable(reason.clone()));
        }
        frame::seal(frame, self.store_id, self.offset, self.next_sequence);
        let written = self.file.write_all_at(frame, self.offset).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            self.cut_unfinished(&error);
            return Err(StoreError::io(&self.path, &error));
        }
        self.offset += frame.len() as u64;
        self.next_sequence += 1;
        Ok(frame.len() as u64)
    }

    /// Starts the next file, so that a snapshot can take the place of those before it.
    pub(super) fn rotate(&mut self) -> Result<()> {
        *self = Log::create(&self.dir, self.store_id, self.next_sequence)?;
        Ok(())
    }

    fn cut_unfinished(&mut self, cause: &std::io::Error) {
        // The frames before this one were synced on their own, so a failed sync concerns this frame only.
        let cut = self.file.set_len(self.offset).and_then(|()| self.file.sync_all());
        if let Err(error) = cut {
            let path = self.path.display();
            let reason = format!("{path}: writing failed ({cause}) and could not be undone ({error}); restart needed");
            tracing::error!(path = %self.path.display(), %error, %cause, "log is in an unknown state");
            self.broken = Some(reason);
        }
    }
}

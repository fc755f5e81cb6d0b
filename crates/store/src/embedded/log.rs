//! The log being written: one frame per group commit, on disk before anyone is answered.
//!
//! A frame goes to the end of the last file, or over the zeros of a file that was prepared. Only the last file may have zeros
//! after its last frame: moving on cuts them off first.

use super::directory;
use super::frame::{self, FRAME_HEADER, FileHeader, LOG_MAGIC};
use super::spare::{PAGE, Prepared, Spare};
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
    /// The file is written up to here; zeros follow the last frame. Zero if it grows.
    prepared: u64,
    spare: Spare,
    next_sequence: u64,
    /// Set when the end of the file is unknown; nothing may be written any more.
    broken: Option<String>,
}

impl Log {
    /// The first file of a log, whose snapshots are about `between` bytes apart.
    pub(super) fn create(dir: &Path, store_id: u64, sequence: u64, between: u64) -> Result<Log> {
        let (path, file) = directory::create_log(dir, FileHeader { store_id, sequence })?;
        let offset = frame::FILE_HEADER as u64;
        Ok(Log::new(dir, path, file, store_id, offset, sequence, between))
    }

    /// Goes on at `offset`, cutting what follows it.
    pub(super) fn reopen(
        dir: &Path,
        path: &Path,
        store_id: u64,
        offset: u64,
        next_sequence: u64,
        between: u64,
    ) -> Result<Log> {
        let io = |error: std::io::Error| StoreError::io(path, &error);
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(io)?;
        if file.metadata().map_err(io)?.len() != offset {
            file.set_len(offset).map_err(io)?;
        }
        // Frames that a killed process wrote may not have been synced; they are part of the state from now on.
        file.sync_all().map_err(io)?;
        Ok(Log::new(dir, path.into(), file, store_id, offset, next_sequence, between))
    }

    fn new(dir: &Path, path: PathBuf, file: File, store_id: u64, offset: u64, next_sequence: u64, between: u64) -> Log {
        let spare = Spare::new(dir, between);
        Log { dir: dir.into(), path, file, store_id, offset, prepared: 0, spare, next_sequence, broken: None }
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
        let len = frame.len() as u64 + frame::TRAILER_LEN;
        if self.offset + len > self.prepared
            && let Some(spare) = self.spare.take(len)
            && let Err(error) = self.move_to(spare)
        {
            tracing::warn!(%error, "no use of a spare log file");
            if let Some(reason) = &self.broken {
                return Err(StoreError::Unavailable(reason.clone()));
            }
        }
        frame::seal(frame, self.store_id, self.offset, self.next_sequence);
        if self.offset + len <= self.prepared {
            // To the end of the page, where zeros are anyway: else the kernel would have to read it first.
            let end = (self.offset + len).next_multiple_of(PAGE as u64).min(self.prepared);
            frame.resize((end - self.offset) as usize, 0);
        }
        let written = self.file.write_all_at(frame, self.offset).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            self.cut_unfinished(&error);
            return Err(StoreError::io(&self.path, &error));
        }
        self.offset += len;
        self.next_sequence += 1;
        self.spare.note(len);
        Ok(len)
    }

    /// Starts the next file, so that a snapshot can take the place of those before it.
    pub(super) fn rotate(&mut self) -> Result<()> {
        if let Some(spare) = self.spare.take(0) {
            return self.move_to(spare);
        }
        self.cut_zeros()?;
        let created = directory::create_log(&self.dir, self.next_header());
        let (path, file) = created.inspect_err(|error| self.check_still_last(error))?;
        (self.path, self.file, self.offset) = (path, file, frame::FILE_HEADER as u64);
        Ok(())
    }

    fn next_header(&self) -> FileHeader {
        FileHeader { store_id: self.store_id, sequence: self.next_sequence }
    }

    /// Goes on in a prepared file.
    fn move_to(&mut self, spare: Prepared) -> Result<()> {
        let header = self.next_header().encode(LOG_MAGIC);
        let written = spare.file.write_all_at(&header, 0).and_then(|()| spare.file.sync_data());
        written.map_err(|error| StoreError::io(&spare.path, &error))?;
        self.cut_zeros()?;
        let path = directory::log_path(&self.dir, self.next_sequence);
        directory::give_name(&spare.path, &path).inspect_err(|error| self.check_still_last(error))?;
        (self.path, self.file) = (path, spare.file);
        (self.offset, self.prepared) = (frame::FILE_HEADER as u64, spare.size);
        Ok(())
    }

    /// After the next file could not be started: frames must not go on in this one if that has its name after all.
    fn check_still_last(&mut self, cause: &StoreError) {
        let next = directory::log_path(&self.dir, self.next_sequence);
        if !matches!(next.try_exists(), Ok(false)) {
            tracing::error!(path = %next.display(), %cause, "log is in an unknown state");
            self.broken = Some(format!("{}: {cause}; restart needed", next.display()));
        }
    }

    /// Makes the file end with its last frame, on disk too.
    fn cut_zeros(&mut self) -> Result<()> {
        if std::mem::take(&mut self.prepared) == 0 {
            return Ok(());
        }
        let cut = self.file.set_len(self.offset).and_then(|()| self.file.sync_all());
        cut.map_err(|error| StoreError::io(&self.path, &error))
    }

    fn cut_unfinished(&mut self, cause: &std::io::Error) {
        // The frames before this one were synced on their own, so a failed sync concerns this frame only.
        self.prepared = 0;
        let cut = self.file.set_len(self.offset).and_then(|()| self.file.sync_all());
        if let Err(error) = cut {
            let path = self.path.display();
            let reason = format!("{path}: writing failed ({cause}) and could not be undone ({error}); restart needed");
            tracing::error!(path = %self.path.display(), %error, %cause, "log is in an unknown state");
            self.broken = Some(reason);
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Err(error) = self.cut_zeros() {
            // The next opening cuts them.
            tracing::debug!(%error, "zeros are left at the end of the log");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embedded::frame::{FrameReader, Next};
    use std::time::{Duration, Instant};

    #[test]
    fn frames_go_on_in_prepared_files() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = Log::create(dir.path(), 7, 1, 16 * PAGE as u64).unwrap();
        let (mut files, mut frames) = (vec![log.path.clone()], 0_u64);
        let deadline = Instant::now() + Duration::from_secs(60);
        // Three prepared files: the last is not full, so zeros follow its last frame.
        while files.len() < 4 {
            assert!(Instant::now() < deadline, "no file was prepared after {frames} frames in {files:?}");
            let mut frame = Vec::new();
            Log::start_frame(&mut frame);
            frame.resize(FRAME_HEADER + (frames as usize * 37) % 3000, b'x');
            log.append(&mut frame).unwrap();
            frames += 1;
            if files.last() != Some(&log.path) {
                files.push(log.path.clone());
            }
        }
        let mut expected = 1;
        for (index, path) in files.iter().enumerate() {
            let mut reader = FrameReader::open(path, LOG_MAGIC).unwrap();
            assert_eq!(reader.header, FileHeader { store_id: 7, sequence: expected });
            let prepared = loop {
                match reader.next().unwrap() {
                    Next::Frame { sequence, .. } => assert_eq!(sequence, expected),
                    Next::End => break false,
                    Next::Torn { .. } => break true,
                    Next::Damaged { reason, .. } => panic!("{}: {reason}", path.display()),
                }
                expected += 1;
            };
            assert_eq!(prepared, index == 3, "only the last file has zeros at its end: {}", path.display());
        }
        assert_eq!(expected, frames + 1);

        let (last, end) = (log.path.clone(), log.offset);
        drop(log);
        assert_eq!(std::fs::metadata(&last).unwrap().len(), end, "closing cuts the zeros");
        assert!(!directory::spare_path(dir.path()).exists());
    }
}

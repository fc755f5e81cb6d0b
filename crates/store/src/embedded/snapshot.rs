//! Snapshots: a whole view as a file. They bound the time to open and are the backup format.
//!
//! A snapshot is the state before its history, then the history: what a log would look like that
//! began with that state. So both are read by the same [`Replay`].

use super::directory;
use super::frame::{self, FILE_HEADER, FRAME_HEADER, FileHeader, FrameReader, Next, SNAPSHOT_MAGIC, damaged};
use super::index::View;
use super::record::{self, Replay};
use crate::{Result, StoreError};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

const FRAME_SIZE: usize = 256 << 10;
/// Syncing as it goes keeps a large snapshot from making the log's syncs wait for all of it; resting some times as long as
/// that took leaves disk and processor to writers, who are waited for, as nobody waits for a snapshot.
const SYNC_EVERY: usize = 1 << 20;
const REST: u32 = 3;

/// Writes a view. `sequence` is the log's first frame that the view does not contain.
pub(super) fn write(view: &View, store_id: u64, sequence: u64, out: &mut dyn Write) -> io::Result<()> {
    let header = FileHeader { store_id, sequence };
    out.write_all(&header.encode(SNAPSHOT_MAGIC))?;
    let mut frames = Frames { out, store_id, offset: FILE_HEADER as u64, number: 0, frame: vec![0; FRAME_HEADER] };

    record::meta(&mut frames.frame, view);
    for (id, lease) in &view.leases {
        record::lease_grant(&mut frames.frame, *id, lease.ttl);
        frames.flush_if_full()?;
    }
    let mut keys = 0;
    for kv in view.base() {
        record::key(&mut frames.frame, kv);
        keys += 1;
        frames.flush_if_full()?;
    }
    let mut revision = view.snapshot_floor();
    while let Some(changes) = view.changes(revision) {
        record::txn(&mut frames.frame, revision, changes);
        revision = revision.next();
        frames.flush_if_full()?;
    }
    record::end(&mut frames.frame, keys, view.revision);
    frames.flush()
}

struct Frames<'a> {
    out: &'a mut dyn Write,
    store_id: u64,
    offset: u64,
    number: u64,
    frame: Vec<u8>,
}

impl Frames<'_> {
    fn flush_if_full(&mut self) -> io::Result<()> {
        if self.frame.len() >= FRAME_SIZE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        frame::seal(&mut self.frame, self.store_id, self.offset, self.number);
        self.out.write_all(&self.frame)?;
        self.offset += self.frame.len() as u64;
        self.number += 1;
        self.frame.truncate(FRAME_HEADER);
        Ok(())
    }
}

/// Writes a view as a file, whole or not at all. Returns its size.
pub(super) fn write_file(path: &Path, view: &View, store_id: u64, sequence: u64, stop: &AtomicBool) -> Result<u64> {
    let io = |error: io::Error| StoreError::io(path, &error);
    let file = directory::create_whole(path, |file| {
        let mut out = SyncingWriter { file, since_sync: 0, piece_began: Instant::now(), stop };
        write(view, store_id, sequence, &mut out).map_err(io)
    })?;
    Ok(file.metadata().map_err(io)?.len())
}

struct SyncingWriter<'a> {
    file: &'a mut File,
    since_sync: usize,
    piece_began: Instant,
    stop: &'a AtomicBool,
}

impl Write for SyncingWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the store is closing"));
        }
        let written = self.file.write(bytes)?;
        self.since_sync += written;
        if self.since_sync >= SYNC_EVERY {
            self.since_sync = 0;
            self.file.sync_data()?;
            std::thread::sleep(self.piece_began.elapsed() * REST);
            self.piece_began = Instant::now();
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

pub(super) struct Loaded {
    pub(super) header: FileHeader,
    pub(super) replay: Replay,
    pub(super) size: u64,
    /// Frames that a lenient read had to leave out, with their offsets.
    pub(super) lost: Vec<(u64, String)>,
}

/// Reads a snapshot. Every byte is covered by a checksum; damage anywhere is an error, unless `lenient`.
pub(super) fn read(path: &Path, lenient: bool) -> Result<Loaded> {
    let mut reader = FrameReader::open(path, SNAPSHOT_MAGIC)?;
    let header = reader.header;
    let mut replay = Replay::new();
    replay.complete = false;
    replay.lenient = lenient;
    let mut number = 0;
    let mut lost = Vec::new();
    loop {
        let (offset, reason) = match reader.next()? {
            Next::Frame { sequence, offset, payload } => {
                if sequence != number && !lenient {
                    (offset, format!("frame {number} is missing"))
                } else {
                    number = sequence + 1;
                    match replay.apply(payload) {
                        Ok(()) => continue,
                        Err(bad) => (offset, bad.to_string()),
                    }
                }
            }
            Next::End if replay.complete => break,
            Next::End | Next::Torn { .. } => (reader.offset, "the snapshot ends too early".to_owned()),
            Next::Damaged { offset, reason } => (offset, reason),
        };
        if !lenient {
            return Err(damaged(path, offset, reason));
        }
        lost.push((offset, reason));
        if offset == reader.offset && !reader.skip_damage()? {
            break;
        }
    }
    Ok(Loaded { header, size: reader.offset, replay, lost })
}

//! Opening: newest snapshot, then the log from there on. Reads only; the caller acts on the findings.

use super::directory::Listing;
use super::frame::{FrameReader, LOG_MAGIC, Next, damaged};
use super::index::View;
use super::record::Replay;
use super::snapshot;
use crate::{Result, StoreError};
use std::path::{Path, PathBuf};

pub(super) struct Recovered {
    pub(super) view: View,
    pub(super) store_id: u64,
    pub(super) next_sequence: u64,
    pub(super) snapshot: Option<(PathBuf, u64)>,
    /// The log files that were read, with the length of their valid part.
    pub(super) logs: Vec<(PathBuf, u64)>,
    pub(super) torn: Option<TornTail>,
}

/// An unfinished, never acknowledged write at the end of the log.
#[derive(Clone, Debug)]
pub struct TornTail {
    pub file: PathBuf,
    pub offset: u64,
}

/// Reads the store in `dir`; `None` if there is none.
pub(super) fn recover(dir: &Path) -> Result<Option<Recovered>> {
    let listing = Listing::read(dir)?;
    if listing.is_empty() {
        listing.check_vacant()?;
        return Ok(None);
    }
    let mut store_id = None;
    let mut next_sequence = 1;
    let mut replay = Replay::new();
    let mut snapshot = None;
    if let Some((_, path)) = listing.snapshots.last() {
        let loaded = snapshot::read(path, false)?;
        store_id = Some(loaded.header.store_id);
        next_sequence = loaded.header.sequence;
        replay = loaded.replay;
        snapshot = Some((path.clone(), loaded.size));
    }
    let from = next_sequence;
    let mut logs = Vec::new();
    let mut torn = None;
    for (index, (first, path)) in listing.logs.iter().enumerate() {
        let following = listing.logs.get(index + 1);
        if following.is_some_and(|(sequence, _)| *sequence <= from) {
            continue; // All of it is in the snapshot.
        }
        let mut reader = FrameReader::open(path, LOG_MAGIC)?;
        let header = reader.header;
        if *store_id.get_or_insert(header.store_id) != header.store_id || header.sequence != *first {
            return Err(StoreError::Foreign { file: path.clone() });
        }
        if *first > next_sequence {
            let reason = format!("frames {next_sequence} to {} are missing before it", first - 1);
            return Err(damaged(path, 0, reason));
        }
        read_log(&mut reader, *first, &mut next_sequence, &mut replay, following.is_none(), &mut torn)?;
        logs.push((path.clone(), reader.offset));
    }
    let store_id = store_id.expect("set by the first file: the listing is not empty");
    Ok(Some(Recovered { view: replay.view, store_id, next_sequence, snapshot, logs, torn }))
}

fn read_log(
    reader: &mut FrameReader,
    first: u64,
    next_sequence: &mut u64,
    replay: &mut Replay,
    is_last: bool,
    torn: &mut Option<TornTail>,
) -> Result<()> {
    let path = reader.path.clone();
    let mut expected = first;
    loop {
        match reader.next()? {
            Next::Frame { sequence, offset, .. } if sequence != expected => {
                return Err(damaged(&path, offset, format!("frame {sequence} stands where {expected} belongs")));
            }
            Next::Frame { sequence, offset, payload } => {
                expected += 1;
                if sequence >= *next_sequence {
                    replay.apply(payload).map_err(|bad| damaged(&path, offset, bad.to_string()))?;
                    *next_sequence = sequence + 1;
                }
            }
            Next::End => return Ok(()),
            Next::Torn { offset } if is_last => {
                *torn = Some(TornTail { file: path, offset });
                return Ok(());
            }
            Next::Torn { offset } => {
                return Err(damaged(&path, offset, "the file ends within a frame, and another file follows"));
            }
            Next::Damaged { offset, reason } => return Err(damaged(&path, offset, reason)),
        }
    }
}

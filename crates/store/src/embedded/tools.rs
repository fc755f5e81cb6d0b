//! Examining, salvaging, copying and restoring a store directory: what `cox store` does.

use super::directory::{self, Listing, Lock};
use super::frame::{FrameReader, LOG_MAGIC};
use super::index::{Lease, View};
use super::recover::{self, TornTail};
use super::{random_number, snapshot};
use crate::{Contents, KeyValue, LeaseId, Range, Result, Revision, StoreError};
use imbl::OrdSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// A store that can be opened.
#[derive(Clone, Debug)]
pub struct Report {
    pub revision: Revision,
    pub compacted: Revision,
    pub keys: u64,
    pub leases: usize,
    /// The files in use, with the length of their valid part.
    pub files: Vec<(PathBuf, u64)>,
    /// An opening will cut this; nothing acknowledged is in it.
    pub torn: Option<TornTail>,
}

/// Reads every byte that an opening would and reports; changes nothing and needs no lock, so it also
/// works while the store is in use.
pub fn check(dir: &Path) -> Result<Report> {
    let found = read(dir)?;
    let mut files: Vec<_> = found.snapshot.into_iter().collect();
    files.extend(found.logs);
    Ok(Report {
        revision: found.view.revision,
        compacted: found.view.compacted,
        keys: found.view.live_keys(),
        leases: found.view.leases.len(),
        files,
        torn: found.torn,
    })
}

/// What a store holds now, also while it is in use.
pub fn contents(dir: &Path) -> Result<Contents> {
    let view = read(dir)?.view;
    let found = view.range(&Range::prefix(""))?;
    Ok(Contents { kvs: found.kvs, revision: view.revision })
}

/// Copies the store's state into one file, also while the store is in use. Returns its revision and size.
pub fn backup(dir: &Path, file: &Path) -> Result<(Revision, u64)> {
    if file.exists() {
        return Err(StoreError::Io { path: file.into(), reason: "already exists".into() });
    }
    let found = read(dir)?;
    let size = snapshot::write_file(file, &found.view, found.store_id, found.next_sequence, &AtomicBool::new(false))?;
    Ok((found.view.revision, size))
}

/// From where a store that is made of a backup goes on counting. Clients may have seen revisions that the backup does not have: if
/// these were given to other changes, a watch would go on without what is between, and a write that was decided on what is lost
/// would be taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoOn {
    /// Above this one, the latest that was given.
    Above(Revision),
    /// So many after the backup's. With none it is the same store again, history included.
    Later(u64),
}

/// More than are usually given between two backups.
pub const USUALLY_LATER: u64 = 1_000_000;

impl GoOn {
    /// After a backup of this revision.
    fn after(self, backup: Revision) -> Revision {
        match self {
            // One more: whoever saw the latest asks for what comes next, and is to be told that it is gone.
            GoOn::Above(latest) if latest > backup => latest.next().next(),
            GoOn::Above(_) => backup,
            GoOn::Later(count) => Revision(backup.0 + count),
        }
    }
}

/// Makes a store from a backup in `dir`, which must not hold one.
pub fn restore(file: &Path, dir: &Path, go_on: GoOn) -> Result<Report> {
    let loaded = snapshot::read(file, false)?;
    refuse_occupied(dir)?;
    directory::create(dir)?;
    let _lock = Lock::take(dir)?;
    let sequence = loaded.header.sequence;
    let mut view = loaded.replay.view;
    let revision = go_on.after(view.revision);
    if revision != view.revision {
        let leases = view.leases.iter().map(|(id, lease)| (*id, lease.ttl)).collect();
        view = without_history(view.range(&Range::prefix(""))?.kvs, leases, revision);
    }
    let path = directory::snapshot_path(dir, sequence);
    // A store of its own from here on: its files must not be mixed with the original's.
    snapshot::write_file(&path, &view, random_number(), sequence, &AtomicBool::new(false))?;
    check(dir)
}

/// A view of these keys, of which nothing before `revision` is known.
fn without_history(kvs: Vec<KeyValue>, leases: Vec<(LeaseId, Duration)>, revision: Revision) -> View {
    let mut view = View::starting(revision, revision, revision.next());
    for (lease, ttl) in leases {
        view.leases.insert(lease, Lease { ttl, keys: OrdSet::new() });
    }
    kvs.into_iter().for_each(|kv| view.insert_base(kv));
    view
}

fn refuse_occupied(dir: &Path) -> Result<()> {
    if dir.exists() {
        let listing = Listing::read(dir)?;
        listing.check_vacant()?;
        if !listing.is_empty() {
            return Err(StoreError::Io { path: dir.into(), reason: "already holds a store".into() });
        }
    }
    Ok(())
}

/// What a store is made of that comes from elsewhere.
pub struct Imported {
    pub kvs: Vec<KeyValue>,
    /// Of the latest change; none of the keys is newer.
    pub revision: Revision,
    /// How long keys with a lease are kept.
    pub lease_time: Duration,
}

/// Makes a store in `dir`, which must not hold one. Keys keep their revisions, and nothing before them is known.
pub fn import(dir: &Path, from: Imported) -> Result<Report> {
    refuse_occupied(dir)?;
    directory::create(dir)?;
    let _lock = Lock::take(dir)?;
    let leases = from.kvs.iter().filter_map(|kv| Some((kv.lease?, from.lease_time))).collect();
    let view = without_history(from.kvs, leases, from.revision);
    let first = 1;
    let path = directory::snapshot_path(dir, first);
    snapshot::write_file(&path, &view, random_number(), first, &AtomicBool::new(false))?;
    check(dir)
}

/// Writes what a store that is not in use keeps as one snapshot and removes the files before: what was compacted away is
/// then in none of them. The change at the compacted revision keeps what it replaced.
pub fn condense(dir: &Path) -> Result<Report> {
    let _lock = Lock::take(dir)?;
    let found = read(dir)?;
    let path = directory::snapshot_path(dir, found.next_sequence);
    snapshot::write_file(&path, &found.view, found.store_id, found.next_sequence, &AtomicBool::new(false))?;
    // Everything is in the snapshot, and nobody writes on.
    let listing = Listing::read(dir)?;
    listing.remove_before(found.next_sequence)?;
    listing.logs.iter().try_for_each(|(_, log)| directory::remove(log))?;
    directory::sync_dir(dir)?;
    check(dir)
}

/// What a repair did.
#[derive(Clone, Debug)]
pub struct Repaired {
    pub report: Report,
    /// What could not be kept, in words; empty if the store was sound.
    pub lost: Vec<String>,
    /// Where the damaged originals are now.
    pub set_aside: Vec<PathBuf>,
}

/// Salvages what can be read: of the log everything before the damage, of a snapshot every intact
/// frame. The damaged originals are kept beside it under another name.
pub fn repair(dir: &Path) -> Result<Repaired> {
    if !dir.is_dir() {
        return check(dir).map(|report| Repaired { report, lost: Vec::new(), set_aside: Vec::new() });
    }
    let mut lost = Vec::new();
    let mut set_aside = Vec::new();
    let lock = Lock::take(dir)?;
    // Each round removes one place of damage, and there are finitely many files.
    let report = loop {
        match check(dir) {
            Ok(report) => break report,
            Err(StoreError::Corrupt { file, offset, reason }) => {
                let listing = Listing::read(dir)?;
                if let Some((sequence, _)) = listing.snapshots.iter().find(|(_, path)| *path == file) {
                    salvage_snapshot(dir, &file, *sequence, &mut lost, &mut set_aside)?;
                } else {
                    cut_log(&listing, &file, offset, &reason, &mut lost, &mut set_aside)?;
                }
            }
            Err(error) => return Err(error),
        }
    };
    drop(lock);
    Ok(Repaired { report, lost, set_aside })
}

fn salvage_snapshot(
    dir: &Path,
    file: &Path,
    sequence: u64,
    lost: &mut Vec<String>,
    set_aside: &mut Vec<PathBuf>,
) -> Result<()> {
    let loaded = snapshot::read(file, true)?;
    for (offset, reason) in &loaded.lost {
        lost.push(format!("{}: part of the snapshot at byte {offset}: {reason}", file.display()));
    }
    set_aside.push(keep_aside(file)?);
    snapshot::write_file(file, &loaded.replay.view, loaded.header.store_id, sequence, &AtomicBool::new(false))?;
    // The log's revisions continue only a snapshot that is complete.
    if loaded.replay.complete {
        return Ok(());
    }
    for (first, path) in Listing::read(dir)?.logs {
        lost.push(format!("{}: the log from frame {first} on continues a state that is lost", path.display()));
        set_aside.push(put_aside(&path)?);
    }
    Ok(())
}

fn cut_log(
    listing: &Listing,
    file: &Path,
    offset: u64,
    reason: &str,
    lost: &mut Vec<String>,
    set_aside: &mut Vec<PathBuf>,
) -> Result<()> {
    let io = |error: std::io::Error| StoreError::io(file, &error);
    let len = fs::metadata(file).map_err(io)?.len();
    lost.push(format!("{}: {} bytes from byte {offset} on: {reason}", file.display(), len - offset));
    let aside = keep_aside(file)?;
    if FrameReader::open(&aside, LOG_MAGIC).is_ok() && offset > 0 {
        directory::create_whole(file, |copy| {
            let mut original = std::io::Read::take(fs::File::open(&aside).map_err(io)?, offset);
            std::io::copy(&mut original, copy).map(|_| ()).map_err(io)
        })?;
    } else {
        directory::remove(file)?;
    }
    set_aside.push(aside);
    for (_, later) in listing.logs.iter().skip_while(|(_, path)| path != file).skip(1) {
        lost.push(format!("{}: all of it, because it follows the damage", later.display()));
        set_aside.push(put_aside(later)?);
    }
    directory::sync_dir(file.parent().unwrap_or(Path::new(".")))
}

/// Gives a damaged file its name beside, and leaves it in its place until another takes that: a repair that ends in between,
/// because the disk is full or it is killed, must not leave a store that opens without what was in the file.
fn keep_aside(file: &Path) -> Result<PathBuf> {
    let io = |error: std::io::Error| StoreError::io(file, &error);
    let mut name = file.as_os_str().to_owned();
    name.push(".damaged");
    let aside = PathBuf::from(name);
    if aside.exists() {
        let (kept, found) = (fs::metadata(&aside).map_err(io)?, fs::metadata(file).map_err(io)?);
        if (kept.dev(), kept.ino()) == (found.dev(), found.ino()) {
            return Ok(aside);
        }
        return Err(StoreError::Io {
            path: aside,
            reason: "already there from an earlier repair: move it away".into(),
        });
    }
    fs::hard_link(file, &aside).map_err(io)?;
    Ok(aside)
}

fn put_aside(file: &Path) -> Result<PathBuf> {
    let aside = keep_aside(file)?;
    directory::remove(file)?;
    Ok(aside)
}

fn read(dir: &Path) -> Result<recover::Recovered> {
    // A running store may replace log files by a snapshot between our listing and our reading.
    let mut attempts = 0;
    loop {
        attempts += 1;
        match recover::recover(dir) {
            Ok(Some(found)) => return Ok(found),
            Ok(None) => return Err(StoreError::Io { path: dir.into(), reason: "holds no store".into() }),
            Err(StoreError::Io { path, .. }) if attempts < 5 && dir.is_dir() && !path.exists() => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::embedded::Options;
    use crate::{EmbeddedStore, Store, Watch};

    #[tokio::test]
    async fn a_repair_that_fails_leaves_no_store_that_opens_with_less() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let open = || -> Arc<dyn Store> { Arc::new(EmbeddedStore::open(dir, Options::default()).unwrap()) };
        let store = open();
        store.put("/a", "in the snapshot").await.unwrap();
        drop(store);
        condense(dir).unwrap();
        let store = open();
        for value in ["first", "second", "third"] {
            store.put(&format!("/{value}"), value).await.unwrap();
        }
        drop(store);
        let (_, log) = Listing::read(dir).unwrap().logs.pop().unwrap();
        let mut bytes = fs::read(&log).unwrap();
        let place = bytes.windows(6).rposition(|found| found == b"second").unwrap();
        bytes[place] ^= 1;
        fs::write(&log, &bytes).unwrap();
        // Where the part before the damage would be written.
        let mut unfinished = log.clone().into_os_string();
        unfinished.push(".tmp");
        fs::create_dir(&unfinished).unwrap();

        assert!(repair(dir).is_err());
        let refused = check(dir).unwrap_err();
        assert!(matches!(&refused, StoreError::Corrupt { file, .. } if *file == log), "{refused}");
        fs::remove_dir(&unfinished).unwrap();
        let repaired = repair(dir).unwrap();
        assert_eq!((repaired.report.keys, repaired.lost.len()), (2, 1), "{:?}", repaired.lost);
        assert_eq!(fs::read(&repaired.set_aside[0]).unwrap(), bytes);
    }

    #[tokio::test]
    async fn revisions_that_were_lost_are_not_given_again() {
        let dir = tempfile::tempdir().unwrap();
        let (first, file) = (dir.path().join("first"), dir.path().join("backup"));
        let open = |dir: &Path| -> Arc<dyn Store> { Arc::new(EmbeddedStore::open(dir, Options::default()).unwrap()) };
        let store = open(&first);
        let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
        let with_lease = crate::Op::put_with_lease("/leased", "v", lease);
        store.txn(crate::Txn::new().then(with_lease)).await.unwrap();
        let known = store.put("/k", "in the backup").await.unwrap();
        backup(&first, &file).unwrap();
        let lost = store.put("/k", "lost").await.unwrap();
        drop(store);

        for (go_on, expected) in [
            (GoOn::Above(lost), lost.next().next()),
            (GoOn::Later(USUALLY_LATER), Revision(known.0 + USUALLY_LATER)),
            // Nobody saw more than the backup has: it goes on with its history.
            (GoOn::Above(known), known),
            (GoOn::Later(0), known),
        ] {
            let again = dir.path().join(format!("{go_on:?}"));
            let report = restore(&file, &again, go_on).unwrap();
            assert_eq!((report.revision, report.keys, report.leases), (expected, 2, 1), "{go_on:?}");
            let store = open(&again);
            let kv = store.get("/k").await.unwrap().unwrap();
            assert_eq!((&kv.value[..], kv.mod_revision), (&b"in the backup"[..], known), "{go_on:?}");
            assert_eq!(store.get("/leased").await.unwrap().unwrap().lease, Some(lease));
            assert_eq!(store.keep_alive(lease).await.unwrap(), Duration::from_secs(600));
            let written = store.put("/k", "another").await.unwrap();
            assert_eq!(written, expected.next(), "{go_on:?}");
            if expected == known {
                assert!(store.watch(Watch::key("/k").from(known)).await.is_ok());
                continue;
            }
            assert_ne!(written, lost, "who decided on what is lost would write over it");
            // Who saw what is lost reads anew, and does not go on from there.
            for from in [known, lost, lost.next()] {
                let refused = store.watch(Watch::key("/k").from(from)).await.err();
                assert!(matches!(refused, Some(StoreError::Compacted { .. })), "{go_on:?} from {from}: {refused:?}");
            }
        }
    }
}

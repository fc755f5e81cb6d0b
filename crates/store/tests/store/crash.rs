//! What a crash or a bad disk may leave: the log cut and flipped at every byte, snapshots flipped at every
//! byte, unwritten sectors, missing files. And what `repair` makes of it.

use crate::{memory_dir, open};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::embedded::{GoOn, Options, backup, check, repair, restore};
use store::*;

/// A store whose log has one frame per write, and where each frame ends: (length of the log, revision).
async fn small_store(dir: &Path) -> (PathBuf, Vec<(u64, Revision)>) {
    let store: Arc<dyn Store> = Arc::new(open(dir));
    let log = dir.join("log-0000000000000001");
    let mut ends = Vec::new();
    let mut mark = async |store: &dyn Store| {
        let len = std::fs::metadata(&log).unwrap().len();
        ends.push((len, store.current_revision().await.unwrap()));
    };
    mark(&*store).await;
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    mark(&*store).await;
    for n in 0..6 {
        store.put(&format!("/key/{}", n % 4), format!("value {n}")).await.unwrap();
        mark(&*store).await;
    }
    let txn = Txn::new().then(Op::put_with_lease("/leased", "x", lease)).then(Op::delete_prefix("/key/1"));
    store.txn(txn).await.unwrap();
    mark(&*store).await;
    store.compact(Revision(4)).await.unwrap();
    mark(&*store).await;
    store.revoke_lease(lease).await.unwrap();
    mark(&*store).await;
    // Longer than a sector, and without zeros.
    store.put("/large", vec![b'z'; 1300]).await.unwrap();
    mark(&*store).await;
    (log, ends)
}

fn file_of(error: &StoreError) -> Option<(&Path, u64)> {
    match error {
        StoreError::Corrupt { file, offset, .. } => Some((file, *offset)),
        StoreError::Foreign { file } | StoreError::NewerFormat { file, .. } => Some((file, 0)),
        _ => None,
    }
}

#[tokio::test]
async fn log_cut_anywhere_opens_with_what_was_whole() {
    let dir = memory_dir();
    let (log, ends) = small_store(dir.path()).await;
    let whole = std::fs::read(&log).unwrap();
    for cut in 0..whole.len() as u64 {
        std::fs::write(&log, &whole[..cut as usize]).unwrap();
        let Some((_, revision)) = ends.iter().rev().find(|(end, _)| *end <= cut) else {
            // Within the file header, which is written before the file gets its name: no crash does that.
            let error = check(dir.path()).unwrap_err();
            assert_eq!(file_of(&error).map(|(file, _)| file), Some(&*log), "cut at {cut}: {error}");
            continue;
        };
        let report = check(dir.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        assert_eq!(report.revision, *revision, "cut at {cut}");
        if cut % 5 == 0 {
            // Opening cuts the torn tail, and the next write goes where it was.
            let store: Arc<dyn Store> = Arc::new(open(dir.path()));
            assert_eq!(store.current_revision().await.unwrap(), *revision);
            store.put("/after", "x").await.unwrap();
            drop(store);
            let report = check(dir.path()).unwrap();
            assert_eq!((report.revision, report.torn.is_none()), (revision.next(), true));
        }
    }
}

#[tokio::test]
async fn log_flipped_anywhere_is_refused_with_the_place() {
    let dir = memory_dir();
    let (log, ends) = small_store(dir.path()).await;
    let whole = std::fs::read(&log).unwrap();
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= if at % 2 == 0 { 0x01 } else { 0xff };
        // Whether the file was prepared with zeros makes no difference.
        bytes.resize(whole.len() + at % 3 * 700, 0);
        std::fs::write(&log, &bytes).unwrap();
        let error = match check(dir.path()) {
            Err(error) => error,
            Ok(report) => panic!("flip at {at} was not noticed: {report:?}"),
        };
        let (file, offset) = file_of(&error).unwrap_or_else(|| panic!("flip at {at}: {error}"));
        let frame = ends.iter().rev().map(|(end, _)| *end).find(|end| *end <= at as u64).unwrap_or(0);
        assert_eq!((file, offset), (&*log, frame), "flip at {at}: {error}");
        if at % 97 == 0 {
            assert!(EmbeddedStore::open(dir.path(), Options::default()).is_err());
            assert_eq!(std::fs::read(&log).unwrap(), bytes, "a refusal changes nothing");
        }
    }
}

#[tokio::test]
async fn unwritten_sectors_of_the_last_frame_are_a_torn_write() {
    let dir = memory_dir();
    let (log, ends) = small_store(dir.path()).await;
    let whole = std::fs::read(&log).unwrap();
    let [.., (start, before), (end, _)] = ends[..] else { panic!("two frames") };
    let (start, end) = (start as usize, end as usize);
    let boundary = start.next_multiple_of(512);
    for hole in
        [start..end, start..boundary, boundary..end, boundary..boundary + 512, end.next_multiple_of(512) - 512..end]
    {
        let mut bytes = whole.clone();
        bytes[hole.clone()].fill(0);
        bytes.resize(whole.len() + hole.len() % 3 * 700, 0);
        std::fs::write(&log, &bytes).unwrap();
        let report = check(dir.path()).unwrap_or_else(|error| panic!("hole {hole:?}: {error}"));
        assert_eq!(report.revision, before, "hole {hole:?}");
        assert_eq!(report.torn.map(|torn| torn.offset), Some(start as u64));
    }
    // The same hole before the last frame is damage: the frame after it proves that it was written.
    let mut bytes = whole.clone();
    bytes[ends[4].0 as usize..ends[5].0 as usize].fill(0);
    std::fs::write(&log, &bytes).unwrap();
    let error = check(dir.path()).unwrap_err();
    assert_eq!(file_of(&error), Some((&*log, ends[4].0)), "{error}");
}

#[tokio::test]
async fn snapshot_damaged_anywhere_is_refused() {
    let dir = memory_dir();
    small_store(&dir.path().join("a")).await;
    let file = dir.path().join("backup");
    let (revision, size) = backup(&dir.path().join("a"), &file).unwrap();
    assert_eq!(size, std::fs::metadata(&file).unwrap().len());
    let restored = restore(&file, &dir.path().join("b"), GoOn::Later(0)).unwrap();
    assert_eq!(restored.revision, revision);
    let original = check(&dir.path().join("a")).unwrap();
    assert_eq!((restored.keys, restored.compacted), (original.keys, original.compacted));

    let whole = std::fs::read(&file).unwrap();
    let target = dir.path().join("c");
    for at in 0..whole.len() {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        std::fs::write(&file, &bytes).unwrap();
        let error = restore(&file, &target, GoOn::Later(0)).unwrap_err();
        assert!(file_of(&error).is_some(), "flip at {at}: {error}");
        std::fs::write(&file, &whole[..at]).unwrap();
        let error = restore(&file, &target, GoOn::Later(0)).unwrap_err();
        assert!(file_of(&error).is_some(), "cut at {at}: {error}");
    }
    assert!(!target.exists(), "nothing was made");
}

#[tokio::test]
async fn missing_log_file_is_noticed() {
    let dir = memory_dir();
    let options = Options { snapshot_after: u64::MAX };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), options).unwrap());
    store.put("/a", "1").await.unwrap();
    drop(store);
    let log = dir.path().join("log-0000000000000001");
    let later = dir.path().join("log-0000000000000009");
    std::fs::rename(&log, &later).unwrap();
    assert!(matches!(check(dir.path()), Err(StoreError::Foreign { .. })), "the name disagrees with the content");
}

#[tokio::test]
async fn repair_keeps_what_precedes_the_damage() {
    let dir = memory_dir();
    let (log, ends) = small_store(dir.path()).await;
    let mut bytes = std::fs::read(&log).unwrap();
    let (damaged_at, _) = ends[5];
    bytes[damaged_at as usize + 30] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let done = repair(dir.path()).unwrap();
    assert_eq!(done.report.revision, ends[5].1);
    assert_eq!((done.lost.len(), done.set_aside.len()), (1, 1), "{done:?}");
    assert_eq!(std::fs::read(&done.set_aside[0]).unwrap(), bytes, "the damaged file is kept");
    let store: Arc<dyn Store> = Arc::new(open(dir.path()));
    store.put("/after", "x").await.unwrap();
    drop(store);
    let done = repair(dir.path()).unwrap();
    assert!(done.lost.is_empty() && done.report.revision == ends[5].1.next(), "{done:?}");
}

#[tokio::test]
async fn repair_salvages_a_snapshot() {
    let dir = memory_dir();
    let source = dir.path().join("a");
    {
        let store: Arc<dyn Store> = Arc::new(open(&source));
        for n in 0..40 {
            store.put(&format!("/{n:02}"), vec![b'v'; 32 << 10]).await.unwrap();
        }
    }
    let file = dir.path().join("backup");
    backup(&source, &file).unwrap();
    let target = dir.path().join("b");
    restore(&file, &target, GoOn::Later(0)).unwrap();
    let snapshot = std::fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().path());
    let snapshot = snapshot.into_iter().find(|path| path.to_string_lossy().contains("snapshot-")).unwrap();
    let mut bytes = std::fs::read(&snapshot).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&snapshot, &bytes).unwrap();
    assert!(matches!(check(&target), Err(StoreError::Corrupt { .. })));
    let done = repair(&target).unwrap();
    assert!(!done.lost.is_empty() && done.report.keys >= 20 && done.report.keys < 40, "{done:?}");
    let store: Arc<dyn Store> = Arc::new(open(&target));
    store.put("/after", "x").await.unwrap();
}

#[tokio::test]
async fn online_backup_is_consistent() {
    let dir = memory_dir();
    let source = dir.path().join("a");
    let options = Options { snapshot_after: 20_000 };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&source, options).unwrap());
    let stop = tokio_util::sync::CancellationToken::new();
    let writer = {
        let (store, stop) = (store.clone(), stop.clone());
        tokio::spawn(async move {
            let mut n = 0u64;
            while !stop.is_cancelled() {
                n += 1;
                let value = n.to_string();
                let txn = Txn::new().then(Op::put("/a", value.clone())).then(Op::put("/b", value));
                let done = store.txn(txn).await.unwrap();
                if n.is_multiple_of(100) {
                    store.compact(done.revision).await.unwrap();
                }
            }
        })
    };
    for round in 0..10 {
        let before = store.current_revision().await.unwrap();
        let file = dir.path().join(format!("backup-{round}"));
        let from = source.clone();
        let copy = file.clone();
        let (revision, _) = tokio::task::spawn_blocking(move || backup(&from, &copy)).await.unwrap().unwrap();
        assert!(revision >= before, "everything acknowledged before is in it");
        let target = dir.path().join(format!("restored-{round}"));
        restore(&file, &target, GoOn::Later(0)).unwrap();
        let copy: Arc<dyn Store> = Arc::new(open(&target));
        let found = copy.range(Range::prefix("")).await.unwrap();
        assert!(found.kvs.iter().all(|kv| kv.value == found.kvs[0].value), "whole transactions only");
    }
    stop.cancel();
    writer.await.unwrap();
}

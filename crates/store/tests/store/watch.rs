//! Watches under load: no gap, no duplicate, no reordering, across reconnects, reopening and compaction.

use crate::suite::{WAIT_TIMEOUT, next};
use futures_util::StreamExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::*;

const WRITERS: u64 = 4;
const WRITES: u64 = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watches_see_every_change_once_and_in_order() {
    let dir = crate::memory_dir();
    let store: Arc<dyn Store> = Arc::new(crate::open(dir.path()));
    let start = store.current_revision().await.unwrap();
    // Some stay connected, others come back after every few events.
    let patience = [u64::MAX, u64::MAX, 1, 7, 50];
    let positions: Arc<[AtomicU64]> = patience.iter().map(|_| AtomicU64::new(start.0)).collect();
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let store = store.clone();
        let positions = positions.clone();
        tasks.spawn(async move {
            for n in 0..WRITES {
                // Two changes in one revision, one inside and one outside the watched prefix.
                let txn = Txn::new()
                    .then(Op::put(format!("/in/{writer}"), format!("{n}")))
                    .then(Op::put(format!("/out/{writer}"), "x"));
                store.txn(txn).await.unwrap();
                if writer == 0 && n % 20 == 19 {
                    // Right behind the slowest follower.
                    let seen = positions.iter().map(|position| position.load(Ordering::SeqCst)).min().unwrap();
                    match store.compact(Revision(seen)).await {
                        Ok(()) | Err(StoreError::Compacted { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }
        });
    }
    let total = WRITERS * WRITES;
    let mut followers = tokio::task::JoinSet::new();
    for (follower, patience) in patience.into_iter().enumerate() {
        let store = store.clone();
        let positions = positions.clone();
        followers.spawn(async move {
            let mut last = start;
            let mut versions = [0; WRITERS as usize];
            let mut seen = 0;
            while seen < total {
                let mut watch = store.watch(Watch::prefix("/in/").from(last.next()).prev_kv()).await.unwrap();
                let mut taken = 0;
                while seen < total && taken < patience {
                    let WatchEvent::Put { kv, prev } = next(&mut watch).await else { panic!("only puts") };
                    assert_eq!(kv.mod_revision, last.next(), "every revision concerns the prefix exactly once");
                    last = kv.mod_revision;
                    positions[follower].store(last.0, Ordering::SeqCst);
                    let writer: usize = kv.key.trim_start_matches("/in/").parse().unwrap();
                    assert_eq!(kv.version, versions[writer] + 1);
                    assert_eq!(prev.map_or(0, |prev| prev.version), versions[writer]);
                    versions[writer] = kv.version;
                    (seen, taken) = (seen + 1, taken + 1);
                }
            }
        });
    }
    tasks.join_all().await;
    tokio::time::timeout(WAIT_TIMEOUT, followers.join_all()).await.expect("all followers arrive");
}

#[tokio::test]
async fn slow_watch_ends_with_compacted() {
    let dir = crate::memory_dir();
    let store: Arc<dyn Store> = Arc::new(crate::open(dir.path()));
    let mut slow = store.watch(Watch::prefix("/a/")).await.unwrap();
    let mut last = Revision::ZERO;
    for n in 0..3000 {
        last = store.put(&format!("/a/{}", n % 10), "x").await.unwrap();
    }
    store.compact(last).await.unwrap();
    // The history goes in steps, between batches: write until it is gone.
    let ended = async {
        loop {
            store.put("/b", "x").await.unwrap();
            match slow.next().await.expect("an event or an error") {
                Ok(_) => {}
                Err(error) => break error,
            }
        }
    };
    let error = tokio::time::timeout(WAIT_TIMEOUT, ended).await.unwrap();
    assert!(matches!(error, StoreError::Compacted { oldest, .. } if oldest == last), "{error}");
    assert!(slow.next().await.is_none(), "it ends there");
}

#[tokio::test]
async fn watch_resumes_after_reopening() {
    let dir = crate::memory_dir();
    let first: Arc<dyn Store> = Arc::new(crate::open(dir.path()));
    let mut watch = first.watch(Watch::prefix("/")).await.unwrap();
    let mut written = Vec::new();
    for n in 0..20 {
        written.push(first.put(&format!("/{n}"), "x").await.unwrap());
    }
    for expected in &written[..10] {
        assert_eq!(next(&mut watch).await.revision(), *expected);
    }
    drop(first);
    // What is still in the history may come; then the watch says why it ends.
    let error = loop {
        match watch.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    drop(watch);
    let second: Arc<dyn Store> = Arc::new(crate::open(dir.path()));
    let mut watch = second.watch(Watch::prefix("/").from(written[10])).await.unwrap();
    for expected in &written[10..] {
        assert_eq!(next(&mut watch).await.revision(), *expected);
    }
}

#[tokio::test]
async fn progress_comes_by_itself_when_idle() {
    let dir = crate::memory_dir();
    let store: Arc<dyn Store> = Arc::new(crate::open(dir.path()));
    let mut watch = store.watch(Watch::prefix("/a/").progress(Duration::from_millis(10))).await.unwrap();
    let elsewhere = store.put("/b/", "x").await.unwrap();
    while next(&mut watch).await != WatchEvent::Progress(elsewhere) {}
}

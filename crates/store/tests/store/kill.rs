//! `kill -9` of a writing process at random points, again and again on the same directory.
//!
//! 200 rounds by default, as far as they fit in the time budget; `COX_KILL_ROUNDS=5000` for as many as you like.

use crate::{child, child_argument};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::embedded::Options;
use store::*;

const WRITERS: usize = 4;
const BUDGET: Duration = Duration::from_secs(40);
/// However long they take.
const AT_LEAST: usize = 20;

/// Small, so that snapshots and new log files are also caught half done.
fn options() -> Options {
    Options { snapshot_after: 40_000 }
}

#[test]
fn acknowledged_writes_survive_kill_9() {
    let asked: Option<usize> = std::env::var("COX_KILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok());
    let dir = tempfile::tempdir().unwrap();
    let started = Instant::now();
    let mut acknowledged: BTreeMap<usize, u64> = (0..WRITERS).map(|writer| (writer, 0)).collect();
    let mut total = 0u64;
    let mut rounds = 0;
    let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(std::process::id());
    while rounds < asked.unwrap_or(200) && (asked.is_some() || rounds < AT_LEAST || started.elapsed() < BUDGET) {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        total += round(dir.path(), &mut acknowledged, (random >> 33) % 60);
        verify(dir.path(), &mut acknowledged, rounds);
        rounds += 1;
    }
    println!("{rounds} rounds, {total} acknowledged writes");
    assert!(total > 0, "{rounds} rounds, {total} writes in {:?}", started.elapsed());
}

/// Lets a child write, kills it after `answers` acknowledged writes, and returns how many there were.
fn round(dir: &std::path::Path, acknowledged: &mut BTreeMap<usize, u64>, answers: u64) -> u64 {
    let mut process = child("kill::writing_child", dir).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let mut count = 0;
    // The pipe is read to its end: what the child wrote before it died was acknowledged.
    for line in lines {
        let Ok(line) = line else { break };
        let Some((writer, value)) = line.strip_prefix("ack ").and_then(|rest| rest.split_once(' ')) else {
            assert!(!line.contains("panicked"), "{line}");
            continue;
        };
        acknowledged.insert(writer.parse().unwrap(), value.parse().unwrap());
        if count == answers {
            process.kill().unwrap();
        }
        count += 1;
    }
    process.kill().unwrap();
    process.wait().unwrap();
    count
}

/// Reads everything back. What is found counts as acknowledged from now on.
fn verify(dir: &std::path::Path, acknowledged: &mut BTreeMap<usize, u64>, round: usize) {
    let store: Arc<dyn Store> = match EmbeddedStore::open(dir, options()) {
        Ok(store) => Arc::new(store),
        Err(error) => panic!("round {round}: {error}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        for (writer, value) in acknowledged {
            let found = async |name: &str| -> u64 {
                let kv = store.get(&format!("/{name}/{writer}")).await.unwrap();
                kv.map_or(0, |kv| std::str::from_utf8(&kv.value[..20]).unwrap().parse().unwrap())
            };
            let (a, b) = (found("a").await, found("b").await);
            assert_eq!(a, b, "round {round}: half a transaction");
            // One more may have been on its way to disk without an answer.
            assert!(a == *value || a == *value + 1, "round {round}: writer {writer} had {value}, found {a}");
            *value = a;
        }
    });
}

#[test]
fn writing_child() {
    let Some(dir) = child_argument() else { return };
    let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&dir, options()).unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    // The test runner has begun a line of its own.
    println!();
    runtime.block_on(async {
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..WRITERS {
            let store = store.clone();
            writers.spawn(async move {
                let (a, b) = (format!("/a/{writer}"), format!("/b/{writer}"));
                let found = store.get(&a).await.unwrap();
                let mut value: u64 =
                    found.map_or(0, |kv| std::str::from_utf8(&kv.value[..20]).unwrap().parse().unwrap());
                loop {
                    value += 1;
                    let bytes = format!("{value:020}{}", "x".repeat((value as usize * 37) % 900));
                    let txn = Txn::new().then(Op::put(&*a, bytes.clone())).then(Op::put(&*b, bytes));
                    let done = store.txn(txn).await.unwrap();
                    // Straight to the pipe: a line in a buffer of ours would die with us.
                    std::io::stdout().lock().write_all(format!("ack {writer} {value}\n").as_bytes()).unwrap();
                    if value.is_multiple_of(50) {
                        let _ = store.compact(Revision(done.revision.0 - 20)).await;
                    }
                }
            });
        }
        writers.join_all().await;
    });
}

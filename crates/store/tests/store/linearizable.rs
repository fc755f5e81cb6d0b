//! Concurrent histories: the order of revisions must explain every answer and agree with real time.
//!
//! Each write answers with its revision and each read with the revision that it saw, so the order of
//! revisions is the candidate order. It remains to check that an operation which ended before another began
//! is not ordered after it, and that every read saw exactly the writes up to its revision.

use crate::peer::Cluster;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::*;

const KEYS: [&str; 3] = ["/lin/a", "/lin/b", "/lin/c"];

struct Operation {
    started: u64,
    ended: u64,
    revision: Revision,
    kind: Kind,
}

enum Kind {
    Write { key: usize, value: String },
    Read { key: usize, found: Option<(String, Revision)> },
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn embedded_histories_are_linearizable() {
    let dir = tempfile::tempdir().unwrap();
    check(Arc::new(crate::open(dir.path())), 8, 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn etcd_histories_are_linearizable() {
    let cluster = Cluster::start(1);
    check(Arc::new(cluster.connect().await), 8, 50).await;
}

async fn check(store: Arc<dyn Store>, clients: u64, operations: u64) {
    let clock = Arc::new(AtomicU64::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for client in 0..clients {
        tasks.spawn(run_client(store.clone(), clock.clone(), client, operations));
    }
    let mut history: Vec<Operation> = tasks.join_all().await.into_iter().flatten().collect();

    let mut states: [BTreeMap<Revision, String>; KEYS.len()] = Default::default();
    for operation in &history {
        if let Kind::Write { key, value } = &operation.kind {
            let replaced = states[*key].insert(operation.revision, value.clone());
            assert_eq!(replaced, None, "two writes share revision {}", operation.revision);
        }
    }
    for operation in &history {
        let Kind::Read { key, found } = &operation.kind else { continue };
        let expected = states[*key].range(..=operation.revision).next_back();
        let expected = expected.map(|(revision, value)| (value.clone(), *revision));
        assert_eq!(*found, expected, "read of {} at {}", KEYS[*key], operation.revision);
    }
    // In order of their end: nothing that began later may have a smaller revision than the largest so far.
    history.sort_by_key(|operation| operation.started);
    let mut ends: Vec<_> = history.iter().map(|operation| (operation.ended, operation.revision)).collect();
    ends.sort();
    let mut ended = ends.into_iter().peekable();
    let mut reached = Revision::ZERO;
    for operation in &history {
        while let Some((_, revision)) = ended.next_if(|(end, _)| *end < operation.started) {
            reached = reached.max(revision);
        }
        let is_write = matches!(operation.kind, Kind::Write { .. });
        let in_order = if is_write { operation.revision > reached } else { operation.revision >= reached };
        assert!(in_order, "an operation at {} began after {reached} was answered", operation.revision);
    }
}

async fn run_client(store: Arc<dyn Store>, clock: Arc<AtomicU64>, client: u64, operations: u64) -> Vec<Operation> {
    let mut history = Vec::new();
    let mut seen = [Revision::ZERO; KEYS.len()];
    for n in 0..operations {
        let key = ((client * 7 + n * 5) % 3) as usize;
        let value = format!("{client}-{n}");
        let started = clock.fetch_add(1, Ordering::SeqCst);
        let (revision, kind) = match (client + n) % 3 {
            0 => {
                let found = store.range(Range::key(KEYS[key])).await.unwrap();
                let kv = found.kvs.first();
                let kv = kv.map(|kv| (String::from_utf8(kv.value.to_vec()).unwrap(), kv.mod_revision));
                seen[key] = kv.as_ref().map_or(Revision::ZERO, |(_, revision)| *revision);
                (found.revision, Kind::Read { key, found: kv })
            }
            1 => {
                let revision = store.put(KEYS[key], value.clone()).await.unwrap();
                (revision, Kind::Write { key, value })
            }
            _ => {
                // Compare and swap; a failed one is a read.
                let txn = Txn::new()
                    .when(Compare::mod_revision(KEYS[key], seen[key]))
                    .then(Op::put(KEYS[key], value.clone()))
                    .otherwise(Op::get(KEYS[key]));
                let done = store.txn(txn).await.unwrap();
                if done.succeeded {
                    (done.revision, Kind::Write { key, value })
                } else {
                    let kv = done.kv(0).map(|kv| (String::from_utf8(kv.value.to_vec()).unwrap(), kv.mod_revision));
                    (done.revision, Kind::Read { key, found: kv })
                }
            }
        };
        let ended = clock.fetch_add(1, Ordering::SeqCst);
        history.push(Operation { started, ended, revision, kind });
    }
    history
}

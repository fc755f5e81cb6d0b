//! The embedded store against a model that keeps a whole `BTreeMap` per revision.

use futures_util::StreamExt;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;
use store::embedded::Options;
use store::*;

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u8,
        value: u16,
    },
    /// Compares with the key's revision `back` changes ago.
    Swap {
        key: u8,
        back: u64,
        value: u16,
    },
    Delete {
        key: u8,
    },
    DeletePrefix {
        prefix: u8,
    },
    PutTwo {
        first: u8,
        second: u8,
        value: u16,
    },
    Read {
        prefix: u8,
        back: u64,
        limit: usize,
        after: Option<u8>,
    },
    /// Puts with one of the leases that exist, or with a new one.
    PutLeased {
        key: u8,
        lease: usize,
    },
    Revoke {
        lease: usize,
    },
    Compact {
        back: u64,
    },
    Watch {
        prefix: u8,
        back: u64,
    },
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..12u8;
    let back = prop_oneof![3 => 0..4u64, 1 => 0..60u64];
    prop_oneof![
        6 => (key.clone(), any::<u16>()).prop_map(|(key, value)| Step::Put { key, value }),
        3 => (key.clone(), 0..3u64, any::<u16>()).prop_map(|(key, back, value)| Step::Swap { key, back, value }),
        3 => key.clone().prop_map(|key| Step::Delete { key }),
        1 => (0..4u8).prop_map(|prefix| Step::DeletePrefix { prefix }),
        2 => (key.clone(), key.clone(), any::<u16>()).prop_map(|(first, second, value)| Step::PutTwo { first, second, value }),
        4 => (0..4u8, back.clone(), 0..5usize, proptest::option::of(key)).prop_map(|(prefix, back, limit, after)| Step::Read { prefix, back, limit, after }),
        2 => (0..12u8, 0..4usize).prop_map(|(key, lease)| Step::PutLeased { key, lease }),
        1 => (0..4usize).prop_map(|lease| Step::Revoke { lease }),
        1 => back.clone().prop_map(|back| Step::Compact { back }),
        2 => (0..4u8, back).prop_map(|(prefix, back)| Step::Watch { prefix, back }),
        1 => Just(Step::Reopen),
    ]
}

/// Twelve keys under three prefixes; prefix 3 is everything.
fn key(n: u8) -> String {
    format!("/{}/{}", n % 3, n / 3)
}

fn prefix(n: u8) -> String {
    if n == 3 { "/".into() } else { format!("/{n}/") }
}

type State = BTreeMap<String, KeyValue>;

struct Model {
    /// The state at each revision; the index is the revision.
    states: Vec<State>,
    events: Vec<Vec<WatchEvent>>,
    compacted: u64,
    leases: Vec<LeaseId>,
}

impl Model {
    fn new() -> Model {
        Model { states: vec![State::new(); 2], events: vec![Vec::new(); 2], compacted: 0, leases: Vec::new() }
    }

    fn revision(&self) -> Revision {
        Revision(self.states.len() as u64 - 1)
    }

    fn now(&self) -> &State {
        self.states.last().unwrap()
    }

    fn back(&self, back: u64) -> Revision {
        Revision(self.revision().0.saturating_sub(back).max(1))
    }

    fn commit(&mut self, puts: &[(String, String)], deletes: &[String]) {
        self.commit_leased(puts, None, deletes);
    }

    fn commit_leased(&mut self, puts: &[(String, String)], lease: Option<LeaseId>, deletes: &[String]) {
        let revision = self.revision().next();
        let mut state = self.now().clone();
        let mut events = Vec::new();
        for (key, value) in puts {
            let prev = state.get(key).cloned();
            let kv = KeyValue {
                key: key.as_str().into(),
                value: value.clone().into(),
                create_revision: prev.as_ref().map_or(revision, |kv| kv.create_revision),
                mod_revision: revision,
                version: prev.as_ref().map_or(1, |kv| kv.version + 1),
                lease,
            };
            state.insert(key.clone(), kv.clone());
            events.push(WatchEvent::Put { kv, prev });
        }
        for key in deletes {
            if let Some(prev) = state.remove(key) {
                events.push(WatchEvent::Delete { key: prev.key.clone(), revision, prev: Some(prev) });
            }
        }
        if !events.is_empty() {
            self.states.push(state);
            self.events.push(events);
        }
    }

    fn is_compacted(&self, revision: Revision) -> bool {
        revision.0 < self.compacted
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn embedded_agrees_with_the_model(steps in proptest::collection::vec(step(), 1..80)) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(run(steps));
    }
}

async fn run(steps: Vec<Step>) {
    let dir = crate::memory_dir();
    // Small enough for several snapshots and log files in one case.
    let open = || EmbeddedStore::open(dir.path(), Options { snapshot_after: 600 }).unwrap();
    let mut store: Option<Arc<dyn Store>> = Some(Arc::new(open()));
    let mut model = Model::new();
    for step in &steps {
        if matches!(step, Step::Reopen) {
            store = None;
        }
        let store = &**store.get_or_insert_with(|| Arc::new(open()));
        apply(store, &mut model, step).await;
        assert_eq!(store.current_revision().await.unwrap(), model.revision(), "{step:?} of {steps:?}");
    }
    let store = store.unwrap();
    for revision in (1..model.states.len() as u64).map(Revision) {
        let found = store.range(Range::prefix("").at(revision)).await;
        if model.is_compacted(revision) {
            assert!(matches!(found, Err(StoreError::Compacted { oldest, .. }) if oldest.0 == model.compacted));
        } else {
            let expected: Vec<_> = model.states[revision.0 as usize].values().cloned().collect();
            assert_eq!(found.unwrap().kvs, expected, "state at {revision}");
        }
    }
}

async fn apply(store: &dyn Store, model: &mut Model, step: &Step) {
    match step {
        Step::Put { key: n, value } => {
            store.put(&key(*n), value.to_string()).await.unwrap();
            model.commit(&[(key(*n), value.to_string())], &[]);
        }
        Step::Swap { key: n, back, value } => {
            let past = model.back(*back);
            let at = |state: &State| state.get(&key(*n)).map_or(Revision::ZERO, |kv| kv.mod_revision);
            let expected = at(&model.states[past.0 as usize]);
            let found = at(model.now());
            let result = store.update(&key(*n), value.to_string(), expected).await;
            if found == expected {
                result.unwrap();
                model.commit(&[(key(*n), value.to_string())], &[]);
            } else {
                let error = result.unwrap_err();
                assert!(matches!(error, StoreError::Conflict { found: f, .. } if f == found), "{error}");
            }
        }
        Step::Delete { key: n } => {
            store.txn(Txn::new().then(Op::delete(key(*n)))).await.unwrap();
            model.commit(&[], &[key(*n)]);
        }
        Step::DeletePrefix { prefix: p } => {
            let doomed: Vec<_> = model.now().keys().filter(|key| key.starts_with(&prefix(*p))).cloned().collect();
            let done = store.txn(Txn::new().then(Op::delete_prefix(prefix(*p)))).await.unwrap();
            assert_eq!(done.results[0], OpResult::Delete { deleted: doomed.len() as u64 });
            model.commit(&[], &doomed);
        }
        Step::PutTwo { first, second, value } => {
            let (a, b) = (key(*first), key(*second));
            let txn = Txn::new().then(Op::put(&*a, value.to_string())).then(Op::put(&*b, value.to_string()));
            let done = store.txn(txn).await;
            if a == b {
                assert!(matches!(done, Err(StoreError::Invalid(_))));
            } else {
                done.unwrap();
                model.commit(&[(a, value.to_string()), (b, value.to_string())], &[]);
            }
        }
        Step::PutLeased { key: n, lease } => {
            let lease = match model.leases.get(*lease) {
                Some(lease) => *lease,
                None => {
                    let lease = store.grant_lease(std::time::Duration::from_secs(600)).await.unwrap();
                    model.leases.push(lease);
                    lease
                }
            };
            store.txn(Txn::new().then(Op::put_with_lease(key(*n), "leased", lease))).await.unwrap();
            model.commit_leased(&[(key(*n), "leased".into())], Some(lease), &[]);
        }
        Step::Revoke { lease } => {
            let Some(lease) = (*lease < model.leases.len()).then(|| model.leases.remove(*lease)) else { return };
            let held = model.now().values().filter(|kv| kv.lease == Some(lease));
            let held: Vec<_> = held.map(|kv| kv.key.to_string()).collect();
            store.revoke_lease(lease).await.unwrap();
            assert!(matches!(store.keep_alive(lease).await, Err(StoreError::LeaseNotFound(_))));
            model.commit(&[], &held);
        }
        Step::Read { prefix: p, back, limit, after } => {
            let at = model.back(*back);
            let mut range = Range::prefix(prefix(*p)).at(at).limit(*limit);
            range.start_after = after.map(|n| key(n).into());
            let found = store.range(range).await;
            if model.is_compacted(at) {
                assert!(matches!(found, Err(StoreError::Compacted { .. })));
                return;
            }
            let state = model.states[at.0 as usize].values();
            let matching =
                state.filter(|kv| kv.key.starts_with(&prefix(*p)) && after.is_none_or(|n| *kv.key > *key(n)));
            let matching: Vec<_> = matching.cloned().collect();
            let cut = if *limit == 0 { matching.len() } else { matching.len().min(*limit) };
            let found = found.unwrap();
            assert_eq!((found.count, found.more), (matching.len() as u64, cut < matching.len()));
            assert_eq!(found.kvs, matching[..cut]);
        }
        Step::Compact { back } => {
            let at = model.back(*back);
            let result = store.compact(at).await;
            if at.0 <= model.compacted {
                assert!(matches!(result, Err(StoreError::Compacted { .. })));
            } else {
                result.unwrap();
                model.compacted = at.0;
            }
        }
        Step::Watch { prefix: p, back } => {
            let from = model.back(*back);
            let watch = store.watch(Watch::prefix(prefix(*p)).from(from).prev_kv()).await;
            if model.is_compacted(from) {
                assert!(matches!(watch, Err(StoreError::Compacted { .. })));
                return;
            }
            let expected = model.events[from.0 as usize..].iter().flatten().filter(|event| match event {
                WatchEvent::Put { kv, .. } => kv.key.starts_with(&prefix(*p)),
                WatchEvent::Delete { key, .. } => key.starts_with(&prefix(*p)),
                WatchEvent::Progress(_) => false,
            });
            let expected: Vec<_> = expected.cloned().collect();
            let found: Vec<_> = watch.unwrap().take(expected.len()).map(|event| event.unwrap()).collect().await;
            assert_eq!(found, expected);
        }
        Step::Reopen => {}
    }
}

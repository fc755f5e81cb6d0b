//! The suite that every store passes. Each case works under a prefix of its own.

use futures_util::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use store::embedded::Options;
use store::*;

/// Long enough for two busy cores; only a failing test waits this long.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedded_passes() {
    let dir = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(dir.path(), Options::default()).unwrap();
    passes(Arc::new(store), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relocated_store_passes_and_leaves_others_alone() {
    let dir = tempfile::tempdir().unwrap();
    let inner: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), Options::default()).unwrap());
    inner.put("/others/a", "theirs").await.unwrap();
    passes(Arc::new(Relocated::new(inner.clone(), "/", "/other/")), true).await;

    let store: Arc<dyn Store> = Arc::new(Relocated::new(inner.clone(), "/registry/", "/other/place/"));
    let at = store.create("/registry/a", "1").await.unwrap();
    assert_eq!(&inner.get("/other/place/a").await.unwrap().unwrap().value[..], b"1");
    assert_eq!(&*store.get("/registry/a").await.unwrap().unwrap().key, "/registry/a");
    for wide in ["", "/registry/"] {
        let found = store.range(Range::prefix(wide)).await.unwrap();
        assert_eq!(found.kvs.iter().map(|kv| &*kv.key).collect::<Vec<_>>(), ["/registry/a"], "{wide:?}");
    }
    // What is elsewhere is out of reach, whatever it is called.
    for outside in ["/others/a", "/other/place/a", "/registry"] {
        assert!(matches!(store.get(outside).await, Err(StoreError::Invalid(_))), "{outside}");
        assert!(matches!(store.put(outside, "mine").await, Err(StoreError::Invalid(_))), "{outside}");
    }
    // Of what others write, the revision is seen where there is nothing else to go by.
    let seeing: Arc<dyn Store> = Arc::new(Relocated::new(inner.clone(), "/registry/", "/other/place/").seeing_others());
    let mut watch = seeing.watch(Watch::prefix("/registry/b").progress(WAIT_TIMEOUT)).await.unwrap();
    let theirs = inner.put("/others/b", "theirs").await.unwrap();
    assert_eq!(next(&mut watch).await, WatchEvent::Progress(theirs));
    seeing.put("/registry/a", "2").await.unwrap();
    seeing.put("/registry/b", "1").await.unwrap();
    let WatchEvent::Put { kv, .. } = next(&mut watch).await else { panic!("a put") };
    assert_eq!((&*kv.key, &kv.value[..]), ("/registry/b", &b"1"[..]));
    drop(watch);
    store.txn(Txn::new().then(Op::delete("/registry/b"))).await.unwrap();
    let everything = store.txn(Txn::new().then(Op::delete_prefix(""))).await.unwrap();
    assert_eq!(everything.results, [OpResult::Delete { deleted: 1 }]);
    assert!(everything.revision > at);
    assert_eq!(&inner.get("/others/a").await.unwrap().unwrap().value[..], b"theirs");
}

/// Runs every case, one after the other: several look at the global revision. An etcd with wrong
/// answers to requests for progress is not asked for it.
pub(crate) async fn passes(store: Arc<dyn Store>, progress: bool) {
    macro_rules! cases {
        ($($case:ident)*) => { $(
            let prefix = concat!("/", stringify!($case), "/");
            let case = $case(&*store, prefix);
            tokio::time::timeout(WAIT_TIMEOUT, case).await.expect(concat!(stringify!($case), " takes too long"));
        )* };
    }
    cases! {
        versions_count_changes
        txn_takes_one_branch_in_one_revision
        txn_reads_its_own_writes
        txn_that_changes_nothing_takes_no_revision
        invalid_txns_are_refused
        short_forms_detect_conflicts
        ranges_page_and_count
        ranges_read_the_past
        watch_delivers_in_order
        watch_replays_history
        watch_of_one_key_sees_no_other
        leases_take_their_keys_along
        leases_expire_unless_kept_alive
        compaction_closes_the_past
        watch_survives_compaction_of_what_it_saw
        snapshot_is_not_empty
    }
    if progress {
        cases! { watch_reports_progress }
    }
}

pub(crate) fn key(prefix: &str, name: impl std::fmt::Display) -> String {
    format!("{prefix}{name}")
}

pub(crate) async fn next(watch: &mut WatchStream) -> WatchEvent {
    let event = tokio::time::timeout(WAIT_TIMEOUT, watch.next()).await.expect("an event in time");
    event.expect("the watch goes on").unwrap()
}

async fn versions_count_changes(store: &dyn Store, p: &str) {
    let k = key(p, "a");
    let first = store.put(&k, "1").await.unwrap();
    let second = store.put(&k, "2").await.unwrap();
    assert_eq!(second, first.next());
    let kv = store.get(&k).await.unwrap().unwrap();
    assert_eq!((&kv.value[..], kv.create_revision, kv.mod_revision, kv.version), (&b"2"[..], first, second, 2));
    store.delete(&k, second).await.unwrap();
    assert_eq!(store.get(&k).await.unwrap(), None);
    let again = store.put(&k, "3").await.unwrap();
    let kv = store.get(&k).await.unwrap().unwrap();
    assert_eq!((kv.create_revision, kv.version), (again, 1));
    assert_eq!(store.current_revision().await.unwrap(), again);
}

async fn txn_takes_one_branch_in_one_revision(store: &dyn Store, p: &str) {
    let (a, b) = (key(p, "a"), key(p, "b"));
    let at = store.put(&a, "1").await.unwrap();
    // compares -> does the success branch apply?
    for (compares, expected) in [
        (vec![Compare::mod_revision(&*a, at)], true),
        (vec![Compare::mod_revision(&*a, at.next())], false),
        (vec![Compare::mod_revision(&*b, Revision::ZERO)], true),
        (vec![Compare::exists(&*a), Compare::absent(&*b)], true),
        (vec![Compare::exists(&*a), Compare::exists(&*b)], false),
        (vec![Compare::absent(&*a)], false),
        (vec![], true),
    ] {
        let txn = Txn { compares, success: vec![Op::get(&*a)], failure: vec![Op::get(&*b)] };
        let done = store.txn(txn.clone()).await.unwrap();
        assert_eq!((done.succeeded, done.kv(0).is_some()), (expected, expected), "{txn:?}");
    }
    let txn = Txn::new().then(Op::put(&*a, "2")).then(Op::put(&*b, "2")).then(Op::delete(key(p, "none")));
    let done = store.txn(txn).await.unwrap();
    assert_eq!(done.revision, at.next());
    assert_eq!(done.results[2], OpResult::Delete { deleted: 0 });
    let found = store.range(Range::prefix(p)).await.unwrap();
    assert!(found.kvs.iter().all(|kv| kv.mod_revision == done.revision), "{found:?}");
    let done = store.txn(Txn::new().then(Op::delete_prefix(p))).await.unwrap();
    assert_eq!(done.results[0], OpResult::Delete { deleted: 2 });
}

async fn txn_reads_its_own_writes(store: &dyn Store, p: &str) {
    let (a, b) = (key(p, "a"), key(p, "b"));
    store.put(&b, "old").await.unwrap();
    let txn = Txn::new()
        .then(Op::get(&*a))
        .then(Op::put(&*a, "new"))
        .then(Op::get(&*a))
        .then(Op::delete(&*b))
        .then(Op::Get(Range::prefix(p)));
    let done = store.txn(txn).await.unwrap();
    assert_eq!(done.kv(0), None);
    assert_eq!(done.kv(2).unwrap().value, "new");
    let OpResult::Get(all) = &done.results[4] else { panic!("{done:?}") };
    assert_eq!((all.count, &*all.kvs[0].key), (1, &*a));
}

async fn txn_that_changes_nothing_takes_no_revision(store: &dyn Store, p: &str) {
    let at = store.put(&key(p, "a"), "1").await.unwrap();
    let txn = Txn::new().then(Op::delete(key(p, "none"))).then(Op::get(key(p, "a")));
    assert_eq!(store.txn(txn).await.unwrap().revision, at);
    assert_eq!(store.current_revision().await.unwrap(), at);
}

async fn invalid_txns_are_refused(store: &dyn Store, p: &str) {
    let k = key(p, "a");
    let unknown = LeaseId::new(0x7fff_0000_1234).unwrap();
    let before = store.current_revision().await.unwrap();
    for (txn, expected) in [
        (Txn::new().then(Op::put("", "x")), "empty key"),
        (Txn::new().then(Op::put(&*k, "x")).then(Op::put(&*k, "y")), "twice"),
        (Txn::new().then(Op::put(&*k, "x")).then(Op::delete(&*k)), "twice"),
        (Txn::new().then(Op::put(&*k, "x")).then(Op::delete_prefix(p)), "twice"),
        (Txn::new().then(Op::put(key(p, "b"), "x")).then(Op::put_with_lease(&*k, "x", unknown)), "does not exist"),
    ] {
        let error = store.txn(txn.clone()).await.unwrap_err().to_string();
        assert!(error.contains(expected), "{txn:?}: {error}");
    }
    assert_eq!(store.current_revision().await.unwrap(), before);
    assert_eq!(store.range(Range::prefix(p)).await.unwrap().count, 0);
}

async fn short_forms_detect_conflicts(store: &dyn Store, p: &str) {
    let k = key(p, "a");
    let first = store.create(&k, "1").await.unwrap();
    let error = store.create(&k, "2").await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { found, .. } if found == first), "{error}");
    let second = store.update(&k, "2", first).await.unwrap();
    let error = store.update(&k, "3", first).await.unwrap_err();
    assert_eq!(error.to_string(), format!("key {k} is at revision {second}, not {first}"));
    assert!(store.delete(&k, first).await.is_err());
    store.delete(&k, second).await.unwrap();
    let error = store.update(&k, "3", second).await.unwrap_err();
    assert!(matches!(error, StoreError::Conflict { found: Revision::ZERO, .. }), "{error}");
}

async fn ranges_page_and_count(store: &dyn Store, p: &str) {
    for n in 0..10 {
        store.put(&key(p, format_args!("k{n}")), format!("v{n}")).await.unwrap();
    }
    store.put(&format!("{}0", p.trim_end_matches('/')), "beside the prefix").await.unwrap();
    let names = |found: &RangeResult| -> Vec<String> {
        found.kvs.iter().map(|kv| kv.key.trim_start_matches(p).to_owned()).collect()
    };
    let all = store.range(Range::prefix(p)).await.unwrap();
    assert_eq!((all.kvs.len(), all.count, all.more), (10, 10, false));
    let page = store.range(Range::prefix(p).limit(4)).await.unwrap();
    assert_eq!(
        (names(&page), page.count, page.more),
        (vec!["k0".into(), "k1".into(), "k2".into(), "k3".into()], 10, true)
    );
    let rest = store.range(Range::prefix(p).limit(7).start_after(key(p, "k3"))).await.unwrap();
    assert_eq!((names(&rest).first().unwrap().as_str(), rest.kvs.len(), rest.count, rest.more), ("k4", 6, 6, false));
    let between = store.range(Range::prefix(p).start_after(key(p, "k30"))).await.unwrap();
    assert_eq!(between.count, 6);
    let bare = store.range(Range::prefix(p).keys_only().limit(1)).await.unwrap();
    assert!(bare.kvs[0].value.is_empty() && bare.kvs[0].version == 1);
    let count = store.range(Range::prefix(p).count_only()).await.unwrap();
    assert_eq!((count.kvs.len(), count.count), (0, 10));
    let one = store.range(Range::key(key(p, "k5"))).await.unwrap();
    assert_eq!((names(&one), one.count), (vec!["k5".into()], 1));
    assert_eq!(store.range(Range::key(key(p, "k"))).await.unwrap().count, 0);
    let everything = store.range(Range::prefix("")).await.unwrap();
    assert!(everything.count >= 11);
}

async fn ranges_read_the_past(store: &dyn Store, p: &str) {
    let (a, b) = (key(p, "a"), key(p, "b"));
    let r1 = store.put(&a, "1").await.unwrap();
    let r2 = store.put(&b, "2").await.unwrap();
    let r3 = store.delete(&a, r1).await.unwrap();
    let r4 = store.put(&a, "4").await.unwrap();
    for (revision, expected) in [(r1, vec!["1"]), (r2, vec!["1", "2"]), (r3, vec!["2"]), (r4, vec!["4", "2"])] {
        let found = store.range(Range::prefix(p).at(revision)).await.unwrap();
        let values: Vec<_> = found.kvs.iter().map(|kv| std::str::from_utf8(&kv.value).unwrap()).collect();
        assert_eq!((values, found.revision), (expected, r4), "at {revision}");
    }
    let error = store.range(Range::prefix(p).at(Revision(r4.0 + 5))).await.unwrap_err();
    assert!(matches!(error, StoreError::FutureRevision { .. }), "{error}");
}

async fn watch_delivers_in_order(store: &dyn Store, p: &str) {
    let (a, b) = (key(p, "a"), key(p, "b"));
    let mut watch = store.watch(Watch::prefix(p).prev_kv()).await.unwrap();
    let r1 = store.put(&a, "1").await.unwrap();
    store.put("/elsewhere", "x").await.unwrap();
    let r2 = store.txn(Txn::new().then(Op::put(&*b, "2")).then(Op::put(&*a, "2"))).await.unwrap().revision;
    let r3 = store.delete(&a, r2).await.unwrap();

    let event = next(&mut watch).await;
    assert!(event.is_create() && event.revision() == r1, "{event:?}");
    let WatchEvent::Put { kv, prev: None } = next(&mut watch).await else { panic!("b was created") };
    assert_eq!((&*kv.key, kv.mod_revision), (&*b, r2));
    let WatchEvent::Put { kv, prev: Some(prev) } = next(&mut watch).await else { panic!("a was changed") };
    assert_eq!((&*kv.key, &kv.value[..], &prev.value[..], prev.mod_revision), (&*a, &b"2"[..], &b"1"[..], r1));
    let WatchEvent::Delete { key, revision, prev: Some(prev) } = next(&mut watch).await else {
        panic!("a was deleted")
    };
    assert_eq!((&*key, revision, &prev.value[..], prev.version), (&*a, r3, &b"2"[..], 2));
}

async fn watch_replays_history(store: &dyn Store, p: &str) {
    let mut revisions = Vec::new();
    for n in 0..20 {
        revisions.push(store.put(&key(p, n % 3), format!("{n}")).await.unwrap());
    }
    for from in [0, 7, 19] {
        let mut watch = store.watch(Watch::prefix(p).from(revisions[from])).await.unwrap();
        for expected in &revisions[from..] {
            let WatchEvent::Put { kv, prev: None } = next(&mut watch).await else { panic!("only puts, without prev") };
            assert_eq!(kv.mod_revision, *expected);
        }
    }
    // From a revision that is still to come: the put before it is not delivered.
    let last = revisions[19];
    let mut watch = store.watch(Watch::prefix(p).from(Revision(last.0 + 2))).await.unwrap();
    store.put(&key(p, "early"), "x").await.unwrap();
    store.put(&key(p, "due"), "x").await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), Revision(last.0 + 2));
}

async fn watch_reports_progress(store: &dyn Store, p: &str) {
    let mut watch = store.watch(Watch::prefix(p).progress(Duration::from_secs(600))).await.unwrap();
    let elsewhere = store.put("/elsewhere", "x").await.unwrap();
    // A request that overtakes the change elsewhere reports less; ask until it is covered.
    loop {
        store.request_progress().await.unwrap();
        match tokio::time::timeout(Duration::from_millis(200), watch.next()).await {
            Ok(Some(Ok(WatchEvent::Progress(revision)))) if revision >= elsewhere => break,
            Ok(Some(Ok(WatchEvent::Progress(_)))) | Err(_) => {}
            other => panic!("{other:?}"),
        }
    }
    let put = store.put(&key(p, "a"), "1").await.unwrap();
    loop {
        match next(&mut watch).await {
            WatchEvent::Progress(revision) => assert!(revision < put, "progress before the event it covers"),
            event => break assert_eq!(event.revision(), put),
        }
    }
}

async fn watch_of_one_key_sees_no_other(store: &dyn Store, p: &str) {
    let mut watch = store.watch(Watch::key(key(p, "a"))).await.unwrap();
    store.put(&key(p, "ab"), "x").await.unwrap();
    let put = store.put(&key(p, "a"), "x").await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), put);
}

async fn leases_take_their_keys_along(store: &dyn Store, p: &str) {
    let lease = store.grant_lease(Duration::from_secs(600)).await.unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|name| key(p, name));
    let put = |k: &str| Txn::new().then(Op::put_with_lease(k, "x", lease));
    for k in [&a, &b, &c] {
        store.txn(put(k)).await.unwrap();
    }
    assert_eq!(store.get(&a).await.unwrap().unwrap().lease, Some(lease));
    let kept = store.put(&c, "without").await.unwrap();
    assert_eq!(store.keep_alive(lease).await.unwrap(), Duration::from_secs(600));
    let mut watch = store.watch(Watch::prefix(p)).await.unwrap();
    store.revoke_lease(lease).await.unwrap();
    for _ in 0..2 {
        let event = next(&mut watch).await;
        assert!(matches!(event, WatchEvent::Delete { .. }) && event.revision() == kept.next(), "{event:?}");
    }
    let left = store.range(Range::prefix(p)).await.unwrap();
    assert_eq!((left.count, &*left.kvs[0].key), (1, &*c));
    for error in [store.keep_alive(lease).await.unwrap_err(), store.revoke_lease(lease).await.unwrap_err()] {
        assert!(matches!(error, StoreError::LeaseNotFound(id) if id == lease), "{error}");
    }
}

async fn leases_expire_unless_kept_alive(store: &dyn Store, p: &str) {
    let mut watch = store.watch(Watch::prefix(p)).await.unwrap();
    // Not so short that it is over before it is used.
    let short = store.grant_lease(Duration::from_secs(4)).await.unwrap();
    store.txn(Txn::new().then(Op::put_with_lease(key(p, "a"), "x", short))).await.unwrap();
    assert!(matches!(next(&mut watch).await, WatchEvent::Put { .. }));
    assert!(matches!(next(&mut watch).await, WatchEvent::Delete { .. }), "the lease ends by itself");
    assert!(store.keep_alive(short).await.is_err());
}

async fn compaction_closes_the_past(store: &dyn Store, p: &str) {
    let a = key(p, "a");
    let r1 = store.put(&a, "1").await.unwrap();
    let r2 = store.put(&a, "2").await.unwrap();
    let r3 = store.put(&a, "3").await.unwrap();
    store.compact(r2).await.unwrap();
    let error = store.range(Range::key(&*a).at(r1)).await.unwrap_err();
    assert!(matches!(error, StoreError::Compacted { .. }), "{error}");
    assert_eq!(store.range(Range::key(&*a).at(r2)).await.unwrap().kvs[0].value, "2");
    assert_eq!(store.range(Range::key(&*a).at(r3)).await.unwrap().kvs[0].value, "3");
    let error = match store.watch(Watch::prefix(p).from(r1)).await {
        Err(error) => error,
        Ok(mut watch) => watch.next().await.expect("an error").unwrap_err(),
    };
    assert!(matches!(error, StoreError::Compacted { asked, oldest } if asked == r1 && oldest == r2), "{error:?}");
    let mut watch = store.watch(Watch::prefix(p).from(r2.next())).await.unwrap();
    assert_eq!(next(&mut watch).await.revision(), r3);
    for (revision, expected) in [(r1, "older than"), (r2, "older than"), (Revision(r3.0 + 9), "in the future")] {
        let error = store.compact(revision).await.unwrap_err().to_string();
        assert!(error.contains(expected), "compact {revision}: {error}");
    }
}

async fn watch_survives_compaction_of_what_it_saw(store: &dyn Store, p: &str) {
    let mut idle = store.watch(Watch::prefix(key(p, "idle/"))).await.unwrap();
    let mut last = Revision::ZERO;
    for n in 0..50 {
        last = store.put(&key(p, "busy"), format!("{n}")).await.unwrap();
    }
    store.compact(last).await.unwrap();
    let put = store.put(&key(p, "idle/a"), "x").await.unwrap();
    assert_eq!(next(&mut idle).await.revision(), put, "an idle watch misses nothing");
}

async fn snapshot_is_not_empty(store: &dyn Store, _: &str) {
    let mut size = 0;
    let mut pieces = store.snapshot().await.unwrap();
    while let Some(piece) = pieces.next().await {
        size += piece.unwrap().len();
    }
    assert!(size > 100, "{size} bytes");
}

//! From an embedded store into a real etcd and back: nothing is lost, and no revision is given twice.

use std::sync::Arc;

use store::embedded::Options;
use store::transfer::{Carried, Transfer};
use store::*;

use crate::peer::Cluster;

const TRANSFER: Transfer<'static> =
    Transfer { root: "/registry/", mark: "/registry/cox/moving", without: &["/registry/masterleases/"] };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_carried_into_etcd_and_back_and_revisions_grow() {
    let dir = tempfile::tempdir().unwrap();
    let first: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path().join("a"), Options::default()).unwrap());
    for n in 0..1200 {
        first.put(&format!("/registry/a/{:04}", n % 600), format!("{n}")).await.unwrap();
    }
    let lease = first.grant_lease(std::time::Duration::from_secs(600)).await.unwrap();
    first
        .txn(Txn::new().then(Op::Put { key: "/registry/events/e".into(), value: "e".into(), lease: Some(lease) }))
        .await
        .unwrap();
    first.put("/registry/masterleases/192.0.2.1", "gone in seconds").await.unwrap();
    let last = first.put("/cox/other", "not an object").await.unwrap();

    let cluster = Cluster::start(1);
    let etcd: Arc<dyn Store> = Arc::new(cluster.connect().await);
    // Others' objects are nothing to write over, and an attempt that was broken off is.
    etcd.put("/registry/other", "x").await.unwrap();
    let refused = TRANSFER.into_store(&*first, &*etcd).await.unwrap_err().to_string();
    assert!(refused.contains("is not empty: it has /registry/other"), "{refused}");
    etcd.put(TRANSFER.mark, "x").await.unwrap();
    let carried = TRANSFER.into_store(&*first, &*etcd).await.unwrap();
    assert_eq!(carried.keys, 601);
    // Ended before it is in use, it is carried once more.
    let carried = TRANSFER.into_store(&*first, &*etcd).await.unwrap();
    assert_eq!(carried.keys, 601);
    assert!(carried.revision > last, "{carried:?} {last}");
    for _ in 0..2 {
        TRANSFER.taken_over(&*etcd).await.unwrap();
    }
    let refused = TRANSFER.into_store(&*first, &*etcd).await.unwrap_err().to_string();
    assert!(refused.contains("is not empty"), "{refused}");
    for (key, expected) in
        [("/registry/a/0007", Some("607")), ("/registry/events/e", Some("e")), ("/registry/other", None)]
    {
        let found = etcd.get(key).await.unwrap();
        assert_eq!(found.as_ref().map(|kv| &*kv.value), expected.map(str::as_bytes), "{key}");
        assert!(found.is_none_or(|kv| kv.mod_revision > last), "{key}");
    }
    for gone in [TRANSFER.mark, "/registry/masterleases/192.0.2.1", "/cox/other"] {
        assert_eq!(etcd.get(gone).await.unwrap(), None, "{gone}");
    }
    let known = etcd.get("/registry/events/e").await.unwrap().unwrap();
    assert!(known.lease.is_some(), "events still end");
    // Whoever watched the old store learns that it must read anew.
    let stale = etcd.range(Range::prefix("/registry/").at(last)).await.unwrap_err();
    assert!(matches!(stale, StoreError::Compacted { .. }), "{stale}");

    // Back: every key as it is in etcd.
    etcd.put("/registry/a/0007", "later").await.unwrap();
    let current = etcd.current_revision().await.unwrap();
    let path = dir.path().join("b");
    let carried = TRANSFER.into_directory(&*etcd, &path).await.unwrap();
    assert_eq!(carried, Carried { keys: 601, revision: current });
    assert!(TRANSFER.into_directory(&*etcd, &path).await.unwrap_err().to_string().ends_with("already holds a store"));
    let second: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&path, Options::default()).unwrap());
    let (found, expected) = (second.range(Range::prefix("")), etcd.range(Range::prefix("/registry/")));
    assert_eq!(found.await.unwrap().kvs, expected.await.unwrap().kvs);
    let watch = second.watch(Watch::prefix("/registry/").from(current)).await.err();
    assert!(watch.is_none_or(|error| matches!(error, StoreError::Compacted { .. })));
    assert_eq!(second.put("/registry/a/0007", "after").await.unwrap(), current.next());
    drop(second);
    let report = embedded::check(&path).unwrap();
    assert_eq!((report.revision, report.keys, report.leases), (current.next(), 601, 1));
}

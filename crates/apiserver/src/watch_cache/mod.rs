//! Watch cache: the current objects of every resource and a window of recent changes, in memory.
//!
//! Flow: `store::watch` -> [`dispatch`] (one task, one watch over `/registry/`) -> one [`Cache`] per resource -> every get,
//! list and watch. One dispatcher means one order: once it has applied revision N, every cache shows all changes up to N.
//! Invariant: events leave in revision order, no watcher sees a revision twice, and no list shows a part of one.

mod cache;
mod deflate;
mod dispatch;
mod entry;
mod groups;
mod labels;
mod objects;
mod unreadable;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use registry::Resource;
use std::collections::HashMap;
use store::{Revision, Store, StoreError};
use tokio_util::sync::CancellationToken;

pub(crate) use cache::{Cache, Change, Cursor, Event, Snapshot, TooOld, frame};
pub(crate) use deflate::{Gzip, Piece};
pub(crate) use dispatch::{run, start};
pub(crate) use entry::{Entry, Filter};
pub(crate) use groups::{Groups, first_group};
pub(crate) use objects::Objects;
pub(crate) use unreadable::{Prefix, Unreadable};

/// The root of all keys, as upstream's default `--etcd-prefix`.
pub(crate) const ROOT: &str = "/registry/";

/// How long a reader waits for the cache to reach a revision before the request fails, as upstream.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(3);
/// How soon a waiting reader asks the store to report progress.
const PROGRESS_REQUEST_INTERVAL: Duration = Duration::from_millis(50);

/// What a change itself takes in the histories of store and caches, whatever the size of the object.
const CHANGE_BYTES: u64 = 512;
/// How finely the growth of history is told.
const RETIRED_STEP: u64 = 1 << 20;

/// All caches, and how far they are.
pub(crate) struct Caches {
    pub(crate) store: Arc<dyn Store>,
    /// Those of the start, by prefix: every request asks for some of them, and takes no lock for it.
    fixed: HashMap<Arc<str>, Arc<Cache>>,
    /// Those of kinds that come and go.
    added: RwLock<HashMap<Arc<str>, Arc<Cache>>>,
    /// Held while changes are applied, and while a cache is filled that is to see the changes after.
    applying: tokio::sync::Mutex<()>,
    applied: tokio::sync::watch::Sender<u64>,
    /// When the store was last asked to report progress.
    asked: Mutex<Option<Instant>>,
    /// The latest write of this server.
    written: AtomicU64,
    /// For lists that are asked for compressed.
    pub(crate) groups: Groups,
    /// What was stored when the server started has been read.
    pub(crate) checked: AtomicBool,
    /// Bytes that changes have turned into history so far; announced in steps.
    retired: tokio::sync::watch::Sender<u64>,
    /// The store was found at an older revision than the caches: nothing that they show is to be believed.
    went_back: CancellationToken,
}

/// The caches did not reach a revision in time.
#[derive(Debug)]
pub(crate) struct Behind {
    pub(crate) asked: u64,
    pub(crate) applied: u64,
}

/// Why the caches could not be brought up to date.
#[derive(Debug)]
pub(crate) enum NotFresh {
    Store(StoreError),
    Behind(Behind),
    WentBack(WentBack),
}

/// The store has lost changes that the caches show: it was restored from a backup, or is another one.
#[derive(Debug, thiserror::Error)]
#[error("the store was at revision {applied} and is at {current} now: it was restored, or is another one")]
pub(crate) struct WentBack {
    applied: u64,
    current: u64,
}

impl Caches {
    pub(crate) fn get(&self, prefix: &str) -> Option<Arc<Cache>> {
        self.fixed.get(prefix).cloned().or_else(|| self.added.read().get(prefix).cloned())
    }

    /// Begins to keep the objects under a prefix, if they are not kept yet.
    pub(crate) async fn add(&self, prefix: &str) -> Result<(), StoreError> {
        if self.get(prefix).is_some() {
            return Ok(());
        }
        let _applying = self.applying.lock().await;
        let revision = Revision(self.applied());
        let cache = dispatch::load(&*self.store, prefix, revision).await?;
        self.added.write().insert(prefix.into(), Arc::new(cache));
        Ok(())
    }

    /// Forgets the objects under a prefix; whoever watches them is told that there is no more to see.
    pub(crate) fn remove(&self, prefix: &str) {
        if let Some(cache) = self.added.write().remove(prefix) {
            cache.close();
        }
    }

    /// Lets go of events that nobody may ask for any more, where no change does it on the way.
    pub(crate) fn forget_old(&self) {
        let now = std::time::Instant::now();
        for cache in self.all() {
            cache.forget_old(now);
        }
    }

    /// How much all current objects take, in bytes.
    pub(crate) fn live(&self) -> usize {
        self.all().iter().map(|cache| cache.live()).sum()
    }

    /// Every stored object of which is known that it cannot be read.
    pub(crate) fn unreadable(&self) -> Vec<Unreadable> {
        self.all().iter().flat_map(|cache| cache.unreadable()).collect()
    }

    /// Reads again what could not be opened: there may be a key for it by now.
    pub(crate) async fn reread(&self) -> Result<(), StoreError> {
        for unreadable in self.unreadable() {
            // A key service may take its time; nothing else waits for it.
            let found = self.store.get(unreadable.key()).await?;
            let _applying = self.applying.lock().await;
            let Some((cache, inner)) = self.route(unreadable.key()) else { continue };
            if let Some(kv) = found {
                cache.reopen(inner, &kv.value, kv.mod_revision.0);
            }
        }
        Ok(())
    }

    fn all(&self) -> Vec<Arc<Cache>> {
        self.fixed.values().chain(self.added.read().values()).cloned().collect()
    }

    /// The cache a key belongs to, and the key within it.
    fn route<'k>(&self, key: &'k str) -> Option<(Arc<Cache>, &'k str)> {
        let rest = key.strip_prefix(ROOT)?;
        let (first, inner) = rest.split_once('/')?;
        if let Some(cache) = self.get(first) {
            return Some((cache, inner));
        }
        let (second, inner) = inner.split_once('/')?;
        let cache = self.get(&rest[..first.len() + 1 + second.len()])?;
        Some((cache, inner))
    }

    pub(crate) fn applied(&self) -> u64 {
        *self.applied.borrow()
    }

    /// Notes a write of this server.
    pub(crate) fn wrote(&self, Revision(revision): Revision) {
        self.written.fetch_max(revision, Ordering::AcqRel);
    }

    /// Notes that so many changes left states of this size to history.
    fn retire(&self, changes: usize, size: usize) {
        self.retired.send_if_modified(|total| {
            let before = *total;
            *total += size as u64 + changes as u64 * CHANGE_BYTES;
            before / RETIRED_STEP != *total / RETIRED_STEP
        });
    }

    /// Waits until about `bytes` more have become history.
    pub(crate) async fn retires(&self, bytes: u64) {
        let mut retired = self.retired.subscribe();
        let wanted = *retired.borrow() + bytes;
        // Fails only without a sender, which is here.
        let _ = retired.wait_for(|total| *total >= wanted).await;
    }

    /// Waits until the caches show every finished write of this server. Unlike [`Caches::fresh`] this never asks the
    /// store, so it is cheap enough for what admission looks at.
    pub(crate) async fn settled(&self) -> Result<(), Behind> {
        self.wait(self.written.load(Ordering::Acquire), Waiting::ForEvent).await
    }

    /// Waits until the caches show every write that finished before this call.
    pub(crate) async fn fresh(&self) -> Result<u64, NotFresh> {
        // Read first: the store had all of this before it is asked.
        let applied = self.applied();
        let Revision(current) = self.store.current_revision().await.map_err(NotFresh::Store)?;
        if current < applied {
            self.went_back.cancel();
            return Err(NotFresh::WentBack(WentBack { applied, current }));
        }
        self.reach(current).await.map_err(NotFresh::Behind)?;
        Ok(current)
    }

    /// Waits until the caches have applied `revision`.
    pub(crate) async fn reach(&self, revision: u64) -> Result<(), Behind> {
        // Other writers of the same etcd can move the revision without an event of ours.
        self.wait(revision, Waiting::ForProgress).await
    }

    async fn wait(&self, revision: u64, waiting: Waiting) -> Result<(), Behind> {
        if self.applied() >= revision {
            return Ok(());
        }
        // On the heap: nearly nobody waits, and a request that does not needs no room for it.
        Box::pin(self.wait_for_events(revision, waiting)).await
    }

    async fn wait_for_events(&self, revision: u64, waiting: Waiting) -> Result<(), Behind> {
        let mut applied = self.applied.subscribe();
        let reached = async {
            if waiting == Waiting::ForEvent {
                // It comes soon and by itself: no timer wakes anybody before. This fails only without a sender, which is here.
                let _ = applied.wait_for(|applied| *applied >= revision).await;
                return;
            }
            loop {
                let wait = applied.wait_for(|applied| *applied >= revision);
                if tokio::time::timeout(PROGRESS_REQUEST_INTERVAL, wait).await.is_ok() {
                    return;
                }
                if self.is_time_to_ask(Instant::now()) {
                    drop(self.store.request_progress().await);
                }
            }
        };
        let in_time = tokio::time::timeout(CATCH_UP_TIMEOUT, reached).await;
        in_time.map_err(|_| Behind { asked: revision, applied: self.applied() })
    }

    /// One question is enough for all who wait: each has waited for the interval, so it was asked after they began.
    fn is_time_to_ask(&self, now: Instant) -> bool {
        let mut asked = self.asked.lock();
        let is_time = asked.is_none_or(|asked| now.saturating_duration_since(asked) >= PROGRESS_REQUEST_INTERVAL);
        if is_time {
            *asked = Some(now);
        }
        is_time
    }
}

/// What brings the caches to a revision that somebody waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// A change of ours, which is on its way.
    ForEvent,
    /// Perhaps nothing but word from the store that it is past it.
    ForProgress,
}

/// What ended the dispatcher.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DispatchError {
    #[error("watching the store: {0}")]
    Store(#[from] StoreError),
    #[error("the store ended its watch")]
    Ended,
    #[error("the store is at an older revision than the caches: it was restored, or is another one")]
    WentBack,
}

/// The key of an object within its cache.
pub(crate) fn inner_key(resource: &Resource, namespace: &str, name: &str) -> String {
    if resource.is_namespaced() { [namespace, "/", name].concat() } else { name.to_owned() }
}

/// The key of an object in the store.
pub(crate) fn store_key(resource: &Resource, inner: &str) -> String {
    [ROOT, &resource.store_prefix, "/", inner].concat()
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::future::BoxFuture;

    use super::*;

    /// A store that may be put back to its beginning.
    struct Restored {
        inner: store::EmbeddedStore,
        is_back: AtomicBool,
    }

    impl Store for Restored {
        fn current_revision(&self) -> BoxFuture<'_, store::Result<Revision>> {
            match self.is_back.load(Ordering::Relaxed) {
                true => std::future::ready(Ok(Revision(1))).boxed(),
                false => self.inner.current_revision(),
            }
        }

        store::forward!(
            inner: range, txn, watch, request_progress, compact, grant_lease, keep_alive, revoke_lease, snapshot, size
        );
    }

    #[tokio::test]
    async fn a_store_that_went_back_is_not_served_from_memory() {
        let dir = tempfile::tempdir().unwrap();
        let inner = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let store = Arc::new(Restored { inner, is_back: AtomicBool::new(false) });
        let caches = start(store.clone(), &["pods"]).await.unwrap();
        let running = tokio::spawn(run(caches.clone(), CancellationToken::new()));
        let value = bytes::Bytes::from_static(br#"{"metadata":{"name":"b"}}"#);
        let made = caches.store.create("/registry/pods/a/b", value).await.unwrap();
        assert!(caches.fresh().await.is_ok_and(|fresh| fresh >= made.0));
        store.is_back.store(true, Ordering::Relaxed);
        let refused = caches.fresh().await.unwrap_err();
        assert!(matches!(&refused, NotFresh::WentBack(WentBack { current: 1, .. })), "{refused:?}");
        let ended = tokio::time::timeout(Duration::from_secs(60), running).await.unwrap().unwrap();
        assert!(matches!(ended, Err(DispatchError::WentBack)), "{ended:?}");
    }

    #[tokio::test]
    async fn the_growth_of_history_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let caches = start(Arc::new(store), &[]).await.unwrap();
        let mut grown = std::pin::pin!(caches.retires(2 * RETIRED_STEP));
        assert!(grown.as_mut().now_or_never().is_none());
        caches.retire(1, RETIRED_STEP as usize);
        assert!(grown.as_mut().now_or_never().is_none());
        caches.retire(1, RETIRED_STEP as usize);
        grown.await;
    }

    #[tokio::test]
    async fn finished_writes_are_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let caches = start(Arc::new(store), &["pods"]).await.unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn(run(caches.clone(), stop.clone()));
        let value = bytes::Bytes::from_static(br#"{"metadata":{"name":"b"}}"#);
        caches.wrote(caches.store.create("/registry/pods/a/b", value).await.unwrap());
        caches.settled().await.unwrap();
        assert!(caches.get("pods").unwrap().get("a/b").is_some());
        stop.cancel();
        running.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_does_not_show_is_not_waited_for_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let caches = start(Arc::new(store), &[]).await.unwrap();
        let began = tokio::time::Instant::now();
        caches.wrote(Revision(9));
        let behind = caches.settled().await.unwrap_err();
        assert_eq!((behind.asked, behind.applied), (9, caches.applied()));
        assert!(began.elapsed() >= CATCH_UP_TIMEOUT);
    }

    #[tokio::test]
    async fn the_store_is_asked_for_progress_once_for_all_who_wait() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let caches = start(Arc::new(store), &[]).await.unwrap();
        let now = Instant::now();
        let asks = [0, 10, 49, 50, 60, 200].map(|after| caches.is_time_to_ask(now + Duration::from_millis(after)));
        assert_eq!(asks, [true, false, false, true, false, true]);
    }

    #[tokio::test]
    async fn an_unreadable_change_is_neither_left_out_nor_taken_for_a_deletion() {
        let dir = tempfile::tempdir().unwrap();
        let store = store::EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let caches = start(Arc::new(store), &["pods"]).await.unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn(run(caches.clone(), stop.clone()));
        let cache = caches.get("pods").unwrap();
        let mut cursor = cache.cursor_after(caches.applied()).unwrap();
        let key = "/registry/pods/a/b";
        let good = bytes::Bytes::from_static(br#"{"metadata":{"name":"b"}}"#);
        let first = caches.store.create(key, good.clone()).await.unwrap();
        let second = caches.store.update(key, bytes::Bytes::from_static(b"no json"), first).await.unwrap();
        caches.reach(second.0).await.unwrap();
        assert_eq!(caches.unreadable()[0].to_string(), "stored object /registry/pods/a/b cannot be read");
        assert!(cache.get("a/b").is_some_and(|entry| entry.readable().is_err()));
        let third = caches.store.update(key, good, second).await.unwrap();
        caches.reach(third.0).await.unwrap();
        assert!(caches.unreadable().is_empty() && cache.get("a/b").unwrap().readable().is_ok());
        // The watcher is told of the one, and sees the object come again after it.
        let of = |namespace: &str| Filter { namespace: Some(namespace.into()), ..Filter::default() };
        let events = cache.read(&mut cursor, 10).unwrap();
        let changes: Vec<_> = events.iter().map(|event| event.change(&of("a")).ok()).collect();
        assert_eq!(changes, [Some(Some(Change::Added)), None, Some(Some(Change::Added))]);
        assert!(events.iter().all(|event| event.change(&of("other")).is_ok_and(|change| change.is_none())));
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}

//! Feeding the caches: one list of everything at the start, then one watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use futures_util::{FutureExt, StreamExt};
use imbl::OrdMap;
use store::{Range, Revision, Store, StoreError, Watch, WatchEvent};
use tokio_util::sync::CancellationToken;

use super::{Cache, Caches, DispatchError, Entry, Prefix, ROOT};

/// How many objects are read at once while the caches fill.
const PAGE: usize = 1000;
/// The same where so many do not come: large objects take an etcd longer than a request may last.
const SMALL_PAGE: usize = 10;
/// Bookmarks and idle caches move at least this often.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// Lists the store into one cache per prefix.
pub(crate) async fn start(store: Arc<dyn Store>, prefixes: &[&str]) -> Result<Arc<Caches>, StoreError> {
    let revision = store.current_revision().await?;
    let mut caches = HashMap::new();
    for &prefix in prefixes {
        if caches.contains_key(prefix) {
            continue;
        }
        caches.insert(Arc::<str>::from(prefix), Arc::new(load(&*store, prefix, revision).await?));
    }
    Ok(Arc::new(Caches {
        store,
        fixed: caches,
        added: Default::default(),
        applying: Default::default(),
        applied: tokio::sync::watch::Sender::new(revision.0),
        asked: Default::default(),
        written: Default::default(),
        groups: Default::default(),
        checked: Default::default(),
        retired: Default::default(),
        went_back: Default::default(),
    }))
}

/// A cache with what the store has under a prefix.
pub(super) async fn load(store: &dyn Store, prefix: &str, at: Revision) -> Result<Cache, StoreError> {
    let shared = Prefix::new(prefix);
    let root = format!("{ROOT}{prefix}/");
    let mut objects = OrdMap::new();
    let mut after: Option<Arc<str>> = None;
    let mut limit = PAGE;
    loop {
        let mut range = Range::prefix(root.as_str()).limit(limit).uncounted();
        // Revision zero is an empty store; there is no state to ask for.
        if at != Revision::ZERO {
            range = range.at(at);
        }
        if let Some(after) = &after {
            range = range.start_after(after.clone());
        }
        let page = match store.range(range).await {
            Err(StoreError::Unavailable(reason)) if limit > SMALL_PAGE => {
                limit = (limit / 5).max(SMALL_PAGE);
                tracing::warn!(prefix, limit, %reason, "reading fewer objects at once");
                continue;
            }
            page => page?,
        };
        for kv in &page.kvs {
            let Some(key) = kv.key.strip_prefix(root.as_str()).map(Arc::<str>::from) else { continue };
            let entry = Entry::new(&shared, key.clone(), &kv.value, kv.mod_revision.0);
            objects.insert(key, Arc::new(entry));
        }
        after = page.kvs.last().map(|kv| kv.key.clone());
        if !page.more {
            return Ok(Cache::new(shared, objects, at.0));
        }
    }
}

/// Applies changes until `stop` fires or the store fails.
pub(crate) async fn run(caches: Arc<Caches>, stop: CancellationToken) -> Result<(), DispatchError> {
    let from = Revision(caches.applied()).next();
    let watch = Watch::prefix(ROOT).from(from).progress(PROGRESS_INTERVAL);
    let mut events = caches.store.watch(watch).await?;
    loop {
        let event = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = caches.went_back.cancelled() => return Err(DispatchError::WentBack),
            event = events.next() => event,
        };
        let event = event.ok_or(DispatchError::Ended)??;
        let _applying = caches.applying.lock().await;
        let mut revisions = Revisions::default();
        revisions.take(&caches, event);
        // Take what is ready before waking anybody: one wake-up for a burst, and no half transactions.
        while let Some(Some(event)) = events.next().now_or_never() {
            revisions.take(&caches, event?);
        }
        let applied = revisions.finish(&caches);
        caches.applied.send_if_modified(|now| {
            let moved = applied > *now;
            *now = applied.max(*now);
            moved
        });
    }
}

/// Puts together what one revision changes, which is shown at once: who listed a part of it, and watched from there, would
/// never see the rest.
#[derive(Default)]
struct Revisions {
    revision: u64,
    changes: Vec<(Arc<Cache>, Arc<str>, Option<Entry>)>,
}

impl Revisions {
    fn take(&mut self, caches: &Caches, event: WatchEvent) {
        let Revision(revision) = event.revision();
        if revision != self.revision {
            self.apply(caches);
            self.revision = revision;
        }
        let (key, value) = match &event {
            WatchEvent::Put { kv, .. } => (&kv.key, Some(&kv.value)),
            WatchEvent::Delete { key, .. } => (key, None),
            WatchEvent::Progress(_) => return,
        };
        if let Some((cache, inner)) = caches.route(key) {
            let inner: Arc<str> = inner.into();
            let entry = value.map(|value| cache.entry(inner.clone(), value, revision));
            self.changes.push((cache, inner, entry));
        }
    }

    fn apply(&mut self, caches: &Caches) {
        if self.changes.len() > 1 {
            // In the order in which they came where they are of one cache.
            self.changes.compact_sort_by_key(|(cache, _, _)| Arc::as_ptr(cache));
        }
        let mut changes = self.changes.drain(..).peekable();
        while let Some((cache, key, entry)) = changes.next() {
            let mut count = 1;
            let others = std::iter::from_fn(|| {
                let (_, key, entry) = changes.next_if(|(other, _, _)| Arc::ptr_eq(other, &cache))?;
                count += 1;
                Some((key, entry))
            });
            let size = cache.apply(std::iter::once((key, entry)).chain(others), self.revision);
            caches.retire(count, size);
        }
    }

    /// Applies the last revision, and returns it.
    fn finish(mut self, caches: &Caches) -> u64 {
        self.apply(caches);
        self.revision
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use futures_util::future::BoxFuture;
    use parking_lot::Mutex;
    use store::{EmbeddedStore, Op, Txn, WatchStream};

    use super::*;

    /// Counts the objects in a cache whenever an event leaves the store.
    struct Counted {
        inner: EmbeddedStore,
        cache: Arc<OnceLock<Arc<Cache>>>,
        counts: Arc<Mutex<Vec<usize>>>,
    }

    impl Store for Counted {
        fn watch(&self, watch: Watch) -> BoxFuture<'_, store::Result<WatchStream>> {
            Box::pin(async move {
                let (cache, counts) = (self.cache.clone(), self.counts.clone());
                let events = self.inner.watch(watch).await?.inspect(move |event| {
                    if let (Ok(WatchEvent::Put { .. } | WatchEvent::Delete { .. }), Some(cache)) = (event, cache.get())
                    {
                        counts.lock().push(cache.snapshot().objects.len());
                    }
                });
                Ok(events.boxed())
            })
        }

        store::forward!(
            inner: range, txn, request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot,
            size
        );
    }

    /// Gives no more than so many objects at once.
    struct Slow {
        inner: EmbeddedStore,
        most: usize,
    }

    impl Store for Slow {
        fn range(&self, range: Range) -> BoxFuture<'_, store::Result<store::RangeResult>> {
            match range.limit > self.most {
                true => std::future::ready(Err(StoreError::Unavailable("no answer in time".to_owned()))).boxed(),
                false => self.inner.range(range),
            }
        }

        store::forward!(
            inner: txn, watch, request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot,
            size
        );
    }

    #[tokio::test]
    async fn security_many_large_objects_do_not_keep_a_server_from_starting() {
        let dir = tempfile::tempdir().unwrap();
        let mut slow = Slow { inner: EmbeddedStore::open(dir.path(), Default::default()).unwrap(), most: SMALL_PAGE };
        let value = bytes::Bytes::from_static(br#"{"metadata":{}}"#);
        let keys = (0..3 * SMALL_PAGE).map(|number| format!("{ROOT}configmaps/a/{number}"));
        let made = keys.fold(Txn::new(), |txn, key| txn.then(Op::put(key, value.clone())));
        let at = slow.inner.txn(made).await.unwrap().revision;
        let cache = load(&slow, "configmaps", at).await.unwrap();
        assert_eq!(cache.snapshot().objects.len(), 3 * SMALL_PAGE);
        // A store that is away is not asked for ever.
        slow.most = 0;
        assert!(matches!(load(&slow, "configmaps", at).await, Err(StoreError::Unavailable(_))));
    }

    #[tokio::test]
    async fn no_list_shows_a_part_of_a_revision() {
        let dir = tempfile::tempdir().unwrap();
        let inner = EmbeddedStore::open(dir.path(), Default::default()).unwrap();
        let (shown, counts) = (Arc::<OnceLock<Arc<Cache>>>::default(), Arc::<Mutex<Vec<usize>>>::default());
        let store = Arc::new(Counted { inner, cache: shown.clone(), counts: counts.clone() });
        let caches = start(store, &["events", "pods"]).await.unwrap();
        let cache = caches.get("events").unwrap();
        assert!(shown.set(cache.clone()).is_ok());
        let stop = CancellationToken::new();
        let running = tokio::spawn(run(caches.clone(), stop.clone()));

        let value = |name: &str| bytes::Bytes::from(format!(r#"{{"metadata":{{"name":"{name}"}}}}"#));
        let keys = ["events/a/1", "pods/a/1", "events/a/2", "events/a/3"].map(|key| format!("{ROOT}{key}"));
        let made = keys.iter().fold(Txn::new(), |txn, key| txn.then(Op::put(key.as_str(), value(key))));
        let Revision(made) = caches.store.txn(made).await.unwrap().revision;
        caches.reach(made).await.unwrap();
        assert_eq!((cache.snapshot().objects.len(), cache.revision()), (3, made));
        let gone = keys.iter().fold(Txn::new(), |txn, key| txn.then(Op::delete(key.as_str())));
        let Revision(gone) = caches.store.txn(gone).await.unwrap().revision;
        caches.reach(gone).await.unwrap();
        assert_eq!((cache.snapshot().objects.len(), cache.revision()), (0, gone));
        // All that a list could see on the way: nothing yet, then everything.
        assert_eq!(*counts.lock(), [0, 0, 0, 0, 3, 3, 3, 3]);
        stop.cancel();
        running.await.unwrap().unwrap();
    }
}

//! Feeding the caches: one list of everything at the start, then one watch.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use imbl::OrdMap;
use store::{Range, Revision, Store, StoreError, Watch, WatchEvent};
use tokio_util::sync::CancellationToken;

use super::{Cache, Caches, DispatchError, Entry, Prefix, ROOT};

/// How many objects are read at once while the caches fill.
const PAGE: usize = 1000;
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
    }))
}

/// A cache with what the store has under a prefix.
pub(super) async fn load(store: &dyn Store, prefix: &str, at: Revision) -> Result<Cache, StoreError> {
    let shared = Prefix::new(prefix);
    let root = format!("{ROOT}{prefix}/");
    let mut objects = OrdMap::new();
    let mut after: Option<Arc<str>> = None;
    loop {
        let mut range = Range::prefix(root.as_str()).limit(PAGE);
        // Revision zero is an empty store; there is no state to ask for.
        if at != Revision::ZERO {
            range = range.at(at);
        }
        if let Some(after) = &after {
            range = range.start_after(after.clone());
        }
        let page = store.range(range).await?;
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
            event = events.next() => event,
        };
        let event = event.ok_or(DispatchError::Ended)??;
        let _applying = caches.applying.lock().await;
        let mut applied = apply(&caches, event);
        // Take what is ready before waking anybody: one wake-up for a burst, and no half transactions.
        while let Some(Some(event)) = events.next().now_or_never() {
            applied = apply(&caches, event?);
        }
        caches.applied.send_if_modified(|now| {
            let moved = applied > *now;
            *now = applied.max(*now);
            moved
        });
    }
}

fn apply(caches: &Caches, event: WatchEvent) -> u64 {
    let Revision(revision) = event.revision();
    let (key, value) = match &event {
        WatchEvent::Put { kv, .. } => (&kv.key, Some(&kv.value)),
        WatchEvent::Delete { key, .. } => (key, None),
        WatchEvent::Progress(_) => return revision,
    };
    if let Some((cache, inner)) = caches.route(key) {
        let inner: Arc<str> = inner.into();
        let entry = value.map(|value| cache.entry(inner.clone(), value, revision));
        caches.retire(cache.apply(&inner, entry, revision));
    }
    revision
}

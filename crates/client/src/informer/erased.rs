//! What an informer is, whatever the type of its objects.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use super::cache::Cache;
use super::held::{Held, Kind};
use super::{Event, key_of};
use crate::ListParams;
use crate::api_client::Collection;

pub(super) type Handler = Box<dyn Fn(&Event<Held>) + Send + Sync>;

pub(super) struct Erased {
    pub(super) kind: Kind,
    pub(super) collection: Collection,
    pub(super) params: ListParams,
    pub(super) cache: RwLock<Cache>,
    /// Held while an event is applied and told, so a new subscriber misses nothing and sees nothing twice.
    /// Lock order: `handlers`, then `cache`.
    handlers: Mutex<Vec<Handler>>,
    synced: watch::Sender<bool>,
}

impl Erased {
    pub(super) fn new(kind: Kind, collection: Collection, params: ListParams) -> Self {
        Self {
            kind,
            collection,
            params,
            cache: RwLock::default(),
            handlers: Mutex::default(),
            synced: watch::channel(false).0,
        }
    }

    pub(super) fn subscribe(&self, handler: Handler) {
        let mut handlers = self.handlers.lock();
        // Handlers read the cache: it is not locked while they run.
        let mut present = Vec::new();
        self.cache.read().each(&mut |object| present.push(object.clone()));
        for object in present {
            handler(&Event::Added(object));
        }
        handlers.push(handler);
    }

    pub(super) fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    pub(super) fn synced(&self) -> BoxFuture<'_, ()> {
        let mut synced = self.synced.subscribe();
        Box::pin(async move {
            // The sender lives in `self`.
            let _ = synced.wait_for(|synced| *synced).await;
        })
    }

    pub(super) fn apply(&self, object: Arc<Held>) {
        let handlers = self.handlers.lock();
        let events = self.cache.write().put(object);
        self.notify_traced(&handlers, &events);
    }

    pub(super) fn remove(&self, object: Arc<Held>) {
        let handlers = self.handlers.lock();
        let event = self.cache.write().remove(object);
        self.notify_traced(&handlers, event.as_slice());
    }

    /// The whole truth after a list: what is missing was deleted while nobody watched.
    pub(super) fn replace(&self, objects: Vec<Arc<Held>>) {
        let handlers = self.handlers.lock();
        let events = self.cache.write().replace(objects);
        notify(&handlers, &events);
        drop(handlers);
        self.synced.send_replace(true);
    }

    /// Tells what the watch brought. The commit that made an object's version is the cause of whatever follows.
    fn notify_traced(&self, handlers: &[Handler], events: &[Event<Held>]) {
        let Some(traced) = self.collection.client().trace() else { return notify(handlers, events) };
        for event in events {
            let meta = event.object().object_meta();
            let version = meta.resource_version.as_deref().and_then(|version| version.parse().ok());
            let Some(revision) = version else {
                notify(handlers, std::slice::from_ref(event));
                continue;
            };
            let name = format!("{}/{}", self.collection.plural(), key_of(meta));
            trace::deliver(&traced.recorder, &traced.actor, name, revision, || {
                notify(handlers, std::slice::from_ref(event));
            });
        }
    }
}

fn notify(handlers: &[Handler], events: &[Event<Held>]) {
    for event in events {
        for handler in handlers {
            // An object that one handler cannot take must not end the watch for all.
            metrics::panics::catch("informer", || handler(event));
        }
    }
}

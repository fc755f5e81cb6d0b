//! Informers: a local, indexed copy of one type that follows the server, shared by everyone in the process.
//!
//! Flow: `reflector` (list, then watch) -> `cache` (objects and indexes) -> handlers, in order -> work queues.
//! Informers of one process that hold the same version of an object hold one copy of it (`shared`).
//! Invariants: one watch per type per component; a handler sees every object's events in the server's order and the cache
//! is never older than the event it is told about; an object that vanished during an outage is reported as deleted.

mod cache;
mod factory;
mod reflector;
mod shared;

use std::sync::Arc;

use api::meta::Meta as _;
use api::read::Read;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

pub use factory::InformerFactory;

use crate::{Api, ListParams, Owned, PartialObject, Resource};
use cache::{Cache, IndexFn};

/// Anything an informer can hold.
pub trait Object: Read + Clone + Send + Sync + 'static {
    fn meta(&self) -> &ObjectMeta;
    fn meta_mut(&mut self) -> &mut ObjectMeta;
    /// What the object is called in logs.
    fn kind() -> &'static str;
    /// As informers hold it. Those that hold an equal one may share it.
    fn held(self) -> Arc<Self> {
        Arc::new(self)
    }
}

impl<K: Resource> Object for K {
    fn meta(&self) -> &ObjectMeta {
        self.metadata()
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.metadata_mut()
    }
    fn kind() -> &'static str {
        K::KIND
    }
    fn held(self) -> Arc<Self> {
        shared::one(self)
    }
}

impl Object for Owned {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "PartialObjectMetadata"
    }
}

impl Object for PartialObject {
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
    fn kind() -> &'static str {
        "PartialObjectMetadata"
    }
}

/// A change of the cache.
#[derive(Debug, Clone)]
pub enum Event<K> {
    Added(Arc<K>),
    Modified {
        old: Arc<K>,
        new: Arc<K>,
    },
    /// The last state that was seen.
    Deleted(Arc<K>),
}

impl<K> Event<K> {
    /// The object as it is now, or last was.
    pub fn object(&self) -> &Arc<K> {
        match self {
            Event::Added(object) | Event::Deleted(object) | Event::Modified { new: object, .. } => object,
        }
    }
}

impl<K: Object> Event<K> {
    /// The same for those who look at no more than the metadata.
    pub fn metadata(&self) -> MetadataEvent<'_> {
        match self {
            Event::Added(object) | Event::Modified { new: object, .. } => MetadataEvent::Present(object.meta()),
            Event::Deleted(object) => MetadataEvent::Deleted(object.meta()),
        }
    }
}

/// A change of an object of which only the metadata is looked at.
#[derive(Debug, Clone, Copy)]
pub enum MetadataEvent<'a> {
    /// It came, or changed.
    Present(&'a ObjectMeta),
    Deleted(&'a ObjectMeta),
}

pub type MetadataHandler = Box<dyn Fn(MetadataEvent<'_>) + Send + Sync>;

/// `namespace/name`, or `name` for cluster-scoped objects.
pub fn object_key<K: Object>(object: &K) -> String {
    key_of(object.meta())
}

fn key_of(meta: &ObjectMeta) -> String {
    let name = meta.name();
    match meta.namespace.as_deref().filter(|namespace| !namespace.is_empty()) {
        Some(namespace) => format!("{namespace}/{name}"),
        None => name.to_owned(),
    }
}

/// The namespace (empty for cluster-scoped objects) and name of a key.
pub fn split_key(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

type Handler<K> = Box<dyn Fn(&Event<K>) + Send + Sync>;

/// The shared copy of one type. Clones share it.
pub struct Informer<K> {
    inner: Arc<Inner<K>>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<K> {
    api: Api<K>,
    params: ListParams,
    cache: RwLock<Cache<K>>,
    /// Held while an event is applied and told, so a new subscriber misses nothing and sees nothing twice.
    /// Lock order: `handlers`, then `cache`.
    handlers: Mutex<Vec<Handler<K>>>,
    synced: watch::Sender<bool>,
}

impl<K: Object> Informer<K> {
    /// An informer on its own; usually `InformerFactory::informer` is wanted. It does nothing until `run`.
    pub fn new(api: Api<K>, params: ListParams) -> Self {
        let inner = Inner {
            api,
            params,
            cache: RwLock::new(Cache::default()),
            handlers: Mutex::new(Vec::new()),
            synced: watch::channel(false).0,
        };
        Self { inner: Arc::new(inner) }
    }

    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        self.inner.cache.read().get(key)
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        self.inner.cache.read().list()
    }

    pub fn by_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        self.inner.cache.read().by_namespace(namespace)
    }

    /// Objects with an owner reference to `uid`.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<K>> {
        self.inner.cache.read().by_owner(uid)
    }

    /// Adds an index; `values` names the entries under which an object is found.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        let values: IndexFn<K> = Box::new(values);
        self.inner.cache.write().add_index(name, values);
    }

    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        self.inner.cache.read().by_index(name, value)
    }

    pub fn len(&self) -> usize {
        self.inner.cache.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `handler` with every event from now on, beginning with `Added` for what is there already.
    /// It runs on the informer's task: it must not block and must not subscribe.
    pub fn subscribe(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        let mut handlers = self.inner.handlers.lock();
        for object in self.list() {
            handler(&Event::Added(object));
        }
        handlers.push(Box::new(handler));
    }

    pub fn has_synced(&self) -> bool {
        *self.inner.synced.borrow()
    }

    /// Waits until the cache holds all that the server had when the informer began, and every handler was told.
    pub async fn synced(&self) {
        let mut synced = self.inner.synced.subscribe();
        // The sender lives in `inner`, which `self` keeps.
        let _ = synced.wait_for(|synced| *synced).await;
    }

    fn apply(&self, object: K) {
        let handlers = self.inner.handlers.lock();
        let events = self.inner.cache.write().put(object);
        self.notify_traced(&handlers, &events);
    }

    fn remove(&self, object: K) {
        let handlers = self.inner.handlers.lock();
        let event = self.inner.cache.write().remove(object);
        self.notify_traced(&handlers, event.as_slice());
    }

    /// The whole truth after a list: what is missing was deleted while nobody watched.
    fn replace(&self, objects: Vec<K>) {
        let handlers = self.inner.handlers.lock();
        let events = self.inner.cache.write().replace(objects);
        notify(&handlers, &events);
        drop(handlers);
        self.inner.synced.send_replace(true);
    }
}

impl<K: Object> Informer<K> {
    /// Tells what the watch brought. The commit that made an object's version is the cause of whatever follows.
    fn notify_traced(&self, handlers: &[Handler<K>], events: &[Event<K>]) {
        let Some(traced) = self.inner.api.client().trace() else { return notify(handlers, events) };
        for event in events {
            let object = event.object();
            let version = object.meta().resource_version.as_deref().and_then(|version| version.parse().ok());
            let Some(revision) = version else {
                notify(handlers, std::slice::from_ref(event));
                continue;
            };
            let name = format!("{}/{}", self.inner.api.plural(), object_key(&**object));
            trace::deliver(&traced.recorder, &traced.actor, name, revision, || {
                notify(handlers, std::slice::from_ref(event));
            });
        }
    }
}

fn notify<K>(handlers: &[Handler<K>], events: &[Event<K>]) {
    for event in events {
        for handler in handlers {
            // An object that one handler cannot take must not end the watch for all.
            metrics::panics::catch("informer", || handler(event));
        }
    }
}

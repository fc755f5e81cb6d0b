//! Informers: a local, indexed copy of one type that follows the server, shared by everyone in the process.
//!
//! Flow: `reflector` (list, then watch) -> `cache` (objects and indexes) -> handlers, in order -> work queues.
//! Informers of one process that hold the same version of an object hold one copy of it (`shared`).
//! Invariants: one watch per type per component; a handler sees every object's events in the server's order and the cache
//! is never older than the event it is told about; an object that vanished during an outage is reported as deleted.

mod cache;
mod erased;
mod factory;
mod held;
mod reflector;
mod shared;

use std::marker::PhantomData;
use std::sync::Arc;

use api::meta::Meta as _;
use api::read::Read;
use futures_util::future::BoxFuture;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio_util::sync::CancellationToken;

pub use factory::InformerFactory;

use crate::{Api, ListParams, Resource};
use erased::Erased;
use held::{Held, Kind, typed, typed_ref};

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

/// A change of the cache.
#[derive(Debug, Clone)]
pub enum Event<K: ?Sized> {
    Added(Arc<K>),
    Modified {
        old: Arc<K>,
        new: Arc<K>,
    },
    /// The last state that was seen.
    Deleted(Arc<K>),
}

impl<K: ?Sized> Event<K> {
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

impl Event<Held> {
    fn typed<K: Object>(&self) -> Event<K> {
        match self {
            Event::Added(object) => Event::Added(typed(object)),
            Event::Modified { old, new } => Event::Modified { old: typed(old), new: typed(new) },
            Event::Deleted(object) => Event::Deleted(typed(object)),
        }
    }

    fn metadata_of_any(&self) -> MetadataEvent<'_> {
        match self {
            Event::Added(object) | Event::Modified { new: object, .. } => MetadataEvent::Present(object.object_meta()),
            Event::Deleted(object) => MetadataEvent::Deleted(object.object_meta()),
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

/// The shared copy of one type. Clones share it.
pub struct Informer<K> {
    erased: Arc<Erased>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Informer<K> {
    fn clone(&self) -> Self {
        Self { erased: self.erased.clone(), kind: PhantomData }
    }
}

impl<K: Object> Informer<K> {
    /// An informer on its own; usually `InformerFactory::informer` is wanted. It does nothing until `run`.
    pub fn new(api: Api<K>, params: ListParams) -> Self {
        Self::of(Arc::new(Erased::new(Kind::of::<K>(), api.collection, params)))
    }

    /// `erased` holds objects of `K`.
    fn of(erased: Arc<Erased>) -> Self {
        Self { erased, kind: PhantomData }
    }

    pub fn get(&self, key: &str) -> Option<Arc<K>> {
        let cache = self.erased.cache.read();
        cache.get(key).map(typed)
    }

    pub fn list(&self) -> Vec<Arc<K>> {
        let cache = self.erased.cache.read();
        let mut list = Vec::with_capacity(cache.len());
        cache.each(&mut |object| list.push(typed(object)));
        list
    }

    pub fn by_namespace(&self, namespace: &str) -> Vec<Arc<K>> {
        let mut list = Vec::new();
        self.erased.cache.read().each_in_namespace(namespace, &mut |object| list.push(typed(object)));
        list
    }

    /// Objects with an owner reference to `uid`.
    pub fn by_owner(&self, uid: &str) -> Vec<Arc<K>> {
        let mut list = Vec::new();
        self.erased.cache.read().each_of_owner(uid, &mut |object| list.push(typed(object)));
        list
    }

    /// Adds an index; `values` names the entries under which an object is found.
    pub fn add_index(&self, name: &'static str, values: impl Fn(&K) -> Vec<String> + Send + Sync + 'static) {
        self.erased.cache.write().add_index(name, Box::new(move |object: &Held| values(typed_ref(object))));
    }

    pub fn by_index(&self, name: &str, value: &str) -> Vec<Arc<K>> {
        let mut list = Vec::new();
        self.erased.cache.read().each_of_index(name, value, &mut |object| list.push(typed(object)));
        list
    }

    pub fn len(&self) -> usize {
        self.erased.cache.read().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Calls `handler` with every event from now on, beginning with `Added` for what is there already.
    /// It runs on the informer's task: it must not block and must not subscribe.
    pub fn subscribe(&self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) {
        self.erased.subscribe(Box::new(move |event: &Event<Held>| handler(&event.typed())));
    }

    pub fn has_synced(&self) -> bool {
        self.erased.has_synced()
    }

    /// Waits until the cache holds all that the server had when the informer began, and every handler was told.
    pub fn synced(&self) -> BoxFuture<'_, ()> {
        self.erased.synced()
    }

    /// Follows the server until `stop`.
    pub fn run(&self, stop: CancellationToken) -> BoxFuture<'_, ()> {
        self.erased.follow(stop)
    }

    /// The same informer for those who only run it or wait for it.
    pub fn untyped(&self) -> AnyInformer {
        AnyInformer(self.erased.clone())
    }
}

/// An informer of any type. What is done with it is compiled once, not for each type.
#[derive(Clone)]
pub struct AnyInformer(Arc<Erased>);

impl AnyInformer {
    /// As [`Informer::run`].
    pub fn run(&self, stop: CancellationToken) -> BoxFuture<'_, ()> {
        self.0.follow(stop)
    }

    /// As [`Informer::synced`].
    pub fn synced(self) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.0.synced().await })
    }
}

//! One informer per type and selection, whoever asks for it.

use std::any::TypeId;
use std::collections::HashMap;
use std::sync::Arc;

use api::Gvr;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::erased::Erased;
use super::held::{Held, Kind};
use super::{Event, Informer, MetadataHandler};
use crate::api_client::Collection;
use crate::{Client, ListParams, Resource};

/// Type, namespace and selection: what makes two informers the same.
type Identity = (TypeId, Option<String>, ListParams);

/// Hands out shared informers and runs them. Clones share everything.
#[derive(Clone)]
pub struct InformerFactory {
    client: Client,
    shared: Arc<Mutex<Shared>>,
    tasks: TaskTracker,
}

#[derive(Default)]
struct Shared {
    /// Each holds objects of the type that its identity names.
    informers: HashMap<Identity, Arc<Erased>>,
    /// Those that hold a resource in full, for callers who only know its name.
    complete: HashMap<Gvr, Arc<Erased>>,
    /// Those that were asked for before the factory was started.
    waiting: Vec<Arc<Erased>>,
    started: Option<CancellationToken>,
}

impl InformerFactory {
    pub fn new(client: Client) -> Self {
        Self { client, shared: Arc::default(), tasks: TaskTracker::new() }
    }

    /// All objects of `K`.
    pub fn informer<K: Resource>(&self) -> Informer<K> {
        self.select(None, ListParams::default())
    }

    /// The objects of `K` that `params` selects.
    pub fn filtered<K: Resource>(&self, params: ListParams) -> Informer<K> {
        self.select(None, params)
    }

    /// The objects of `K` in one namespace.
    pub fn namespaced<K: Resource>(&self, namespace: &str, params: ListParams) -> Informer<K> {
        self.select(Some(namespace.into()), params)
    }

    /// Calls `handler` with the metadata of every object of a resource that is watched in full already, as
    /// `Informer::subscribe` does. Gives the handler back if nobody asked for all objects of the resource yet.
    pub fn follow_metadata(&self, gvr: &Gvr, handler: MetadataHandler) -> Result<(), MetadataHandler> {
        let complete = self.shared.lock().complete.get(gvr).cloned();
        match complete {
            Some(informer) => {
                informer.subscribe(Box::new(move |event: &Event<Held>| handler(event.metadata_of_any())));
                Ok(())
            }
            None => Err(handler),
        }
    }

    fn select<K: Resource>(&self, namespace: Option<String>, params: ListParams) -> Informer<K> {
        let gvr = Gvr::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT);
        let identity = (TypeId::of::<K>(), namespace, params);
        Informer::of(self.of_type(identity, Kind::of::<K>(), gvr, Collection::of::<K>))
    }

    fn of_type(
        &self,
        identity: Identity,
        kind: Kind,
        gvr: Gvr,
        collection: fn(Client, Option<&str>) -> Collection,
    ) -> Arc<Erased> {
        let mut shared = self.shared.lock();
        if let Some(known) = shared.informers.get(&identity) {
            return known.clone();
        }
        let (_, namespace, params) = &identity;
        let collection = collection(self.client.clone(), namespace.as_deref());
        let informer = Arc::new(Erased::new(kind, collection, params.clone()));
        match shared.started.clone() {
            Some(stop) => spawn(&self.tasks, informer.clone(), stop),
            None => shared.waiting.push(informer.clone()),
        }
        if identity.1.is_none() && identity.2 == ListParams::default() {
            shared.complete.insert(gvr, informer.clone());
        }
        shared.informers.insert(identity, informer.clone());
        informer
    }

    /// Runs every informer asked for so far; those asked for later start at once.
    pub fn start(&self, stop: CancellationToken) {
        let mut shared = self.shared.lock();
        for informer in std::mem::take(&mut shared.waiting) {
            spawn(&self.tasks, informer, stop.clone());
        }
        shared.started = Some(stop);
    }

    /// Waits until every informer has ended, which they do once the token given to `start` fires.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn spawn(tasks: &TaskTracker, informer: Arc<Erased>, stop: CancellationToken) {
    tasks.spawn(FutureExt::boxed(async move { informer.follow(stop).await }));
}

//! One informer per type and selection, whoever asks for it.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Informer, MetadataHandler, Object};
use crate::{Client, Gvr, ListParams, Resource};

/// Type, namespace and selection: what makes two informers the same.
type Identity = (TypeId, Option<String>, ListParams);

/// Hands out shared informers and runs them. Clones share everything.
#[derive(Clone)]
pub struct InformerFactory {
    client: Client,
    shared: Arc<Mutex<Shared>>,
    tasks: TaskTracker,
}

/// Subscribes to an informer whose type is not known.
type Follow = Arc<dyn Fn(MetadataHandler) + Send + Sync>;

/// Starts an informer that was asked for before the factory was started.
type Start = Box<dyn FnOnce(&TaskTracker, CancellationToken) + Send>;

#[derive(Default)]
struct Shared {
    informers: HashMap<Identity, Box<dyn Any + Send>>,
    /// Those that hold a resource in full, for callers who only know its name.
    complete: HashMap<Gvr, Follow>,
    waiting: Vec<Start>,
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
        let follow = self.shared.lock().complete.get(gvr).cloned();
        match follow {
            Some(follow) => {
                follow(handler);
                Ok(())
            }
            None => Err(handler),
        }
    }

    fn select<K: Resource>(&self, namespace: Option<String>, params: ListParams) -> Informer<K> {
        let mut shared = self.shared.lock();
        let identity = (TypeId::of::<K>(), namespace, params);
        if let Some(known) = shared.informers.get(&identity).and_then(|known| known.downcast_ref::<Informer<K>>()) {
            return known.clone();
        }
        let (_, namespace, params) = &identity;
        let api = match namespace {
            Some(namespace) => self.client.namespaced(namespace),
            None => self.client.all(),
        };
        let informer = Informer::new(api, params.clone());
        match shared.started.clone() {
            Some(stop) => spawn(&self.tasks, informer.clone(), stop),
            None => {
                let informer = informer.clone();
                shared.waiting.push(Box::new(move |tasks, stop| spawn(tasks, informer, stop)));
            }
        }
        if identity.1.is_none() && identity.2 == ListParams::default() {
            let gvr = Gvr::new(K::GROUP, K::VERSION, K::URL_PATH_SEGMENT);
            let source = informer.clone();
            let follow = move |handler: MetadataHandler| source.subscribe(move |event| handler(event.metadata()));
            shared.complete.insert(gvr, Arc::new(follow));
        }
        shared.informers.insert(identity, Box::new(informer.clone()));
        informer
    }

    /// Runs every informer asked for so far; those asked for later start at once.
    pub fn start(&self, stop: CancellationToken) {
        let mut shared = self.shared.lock();
        for begin in std::mem::take(&mut shared.waiting) {
            begin(&self.tasks, stop.clone());
        }
        shared.started = Some(stop);
    }

    /// Waits until every informer has ended, which they do once the token given to `start` fires.
    pub async fn ended(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn spawn<K: Object>(tasks: &TaskTracker, informer: Informer<K>, stop: CancellationToken) {
    tasks.spawn(FutureExt::boxed(async move { informer.run(stop).await }));
}

//! ConfigMaps and Secrets that pods of this node use, each kept by a watch of its own.
//!
//! Flow: `env` and `volumes` ask by name -> here -> API watch of that one object (which is all the
//! Node authorizer allows). A change wakes the pods that use it, so that mounted files follow in
//! moments. The watch ends with its last user.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use client::{Client, Informer, ListParams, Resource};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a pod waits for the first look at an object.
const SYNC_TIMEOUT: Duration = Duration::from_secs(10);

/// Wakes the worker of a pod, by uid.
pub(crate) type Wake = Arc<dyn Fn(&str) + Send + Sync>;

/// The first look at an object took too long.
#[derive(Debug, thiserror::Error)]
#[error("failed to sync {kind} cache: timed out waiting for the condition")]
pub(crate) struct NotSynced {
    kind: String,
}

pub(crate) struct Objects<K> {
    client: Client,
    wake: Wake,
    stop: CancellationToken,
    tasks: TaskTracker,
    watched: Mutex<HashMap<(String, String), Watched<K>>>,
}

struct Watched<K> {
    informer: Informer<K>,
    stop: CancellationToken,
    users: Arc<Mutex<HashSet<String>>>,
}

impl<K: Resource> Objects<K> {
    pub(crate) fn new(client: Client, wake: Wake, stop: CancellationToken, tasks: TaskTracker) -> Self {
        Objects { client, wake, stop, tasks, watched: Mutex::new(HashMap::new()) }
    }

    /// The object as of now, or `None` if there is none. `uid` is the pod that asks.
    pub(crate) async fn get(&self, uid: &str, namespace: &str, name: &str) -> Result<Option<Arc<K>>, NotSynced> {
        let informer = self.watch(uid, namespace, name);
        if tokio::time::timeout(SYNC_TIMEOUT, informer.synced()).await.is_err() {
            return Err(NotSynced { kind: K::KIND.to_lowercase() });
        }
        Ok(informer.get(&format!("{namespace}/{name}")))
    }

    /// The pod is gone: drop the watches that only it used.
    pub(crate) fn release(&self, uid: &str) {
        self.watched.lock().retain(|_, watched| {
            let mut users = watched.users.lock();
            users.remove(uid);
            if users.is_empty() {
                watched.stop.cancel();
            }
            !users.is_empty()
        });
    }

    fn watch(&self, uid: &str, namespace: &str, name: &str) -> Informer<K> {
        let mut all = self.watched.lock();
        let watched = all.entry((namespace.to_string(), name.to_string())).or_insert_with(|| {
            let informer: Informer<K> = Informer::new(
                self.client.namespaced::<K>(namespace),
                ListParams::fields(format!("metadata.name={name}")),
            );
            let users: Arc<Mutex<HashSet<String>>> = Arc::default();
            let (wake, to_wake) = (self.wake.clone(), users.clone());
            informer.subscribe(move |_| {
                let users: Vec<String> = to_wake.lock().iter().cloned().collect();
                for uid in users {
                    wake(&uid);
                }
            });
            let stop = self.stop.child_token();
            let (running, until) = (informer.clone(), stop.clone());
            self.tasks.spawn(FutureExt::boxed(async move {
                client::outlive_panics("kubelet objects", K::KIND, &until, || running.run(until.clone())).await;
            }));
            Watched { informer, stop, users }
        });
        watched.users.lock().insert(uid.to_string());
        watched.informer.clone()
    }
}

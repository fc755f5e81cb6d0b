//! The backends of this moment: followed from the cache of registrations, found by requests and discovery.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::header::VIA;
use http::{HeaderMap, HeaderValue};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use parking_lot::{Mutex, RwLock};
use tokio::task::{AbortHandle, JoinSet};

use super::PREFIX;
use super::availability;
use super::backend::Backend;
use super::remote_discovery::Discovered;
use crate::chain::RequestInfo;
use crate::state::State;
use crate::watch_cache::Snapshot;

/// Who serves what this server does not. A request costs one look at a flag as long as nobody does.
pub(crate) struct Aggregation {
    has_backends: AtomicBool,
    backends: RwLock<Arc<[Arc<Backend>]>>,
    /// What this server calls itself to servers behind it, so that it knows its own requests when they come back.
    pseudonym: String,
    /// Held while the documents of discovery are made: the last ones made show the last state.
    pub(crate) publishing: Mutex<()>,
}

impl Default for Aggregation {
    fn default() -> Self {
        Self {
            has_backends: AtomicBool::new(false),
            backends: RwLock::new(Arc::new([])),
            pseudonym: format!("1.1 cox-{:016x}", rand::random::<u64>()),
            publishing: Mutex::new(()),
        }
    }
}

impl Aggregation {
    pub(crate) fn is_idle(&self) -> bool {
        !self.has_backends.load(Ordering::Acquire)
    }

    pub(crate) fn backends(&self) -> Arc<[Arc<Backend>]> {
        self.backends.read().clone()
    }

    pub(crate) fn find(&self, group: &str, version: &str) -> Option<Arc<Backend>> {
        if self.is_idle() {
            return None;
        }
        self.backends.read().iter().find(|backend| backend.group == group && backend.version == version).cloned()
    }

    /// Who answers a request, if not this server.
    pub(crate) fn of(&self, info: &RequestInfo) -> Option<Arc<Backend>> {
        if self.is_idle() {
            return None;
        }
        if info.is_resource {
            return self.find(&info.group, &info.version);
        }
        match info.path.trim_matches('/').split('/').collect::<Vec<_>>().as_slice() {
            ["api", version] => self.find("", version),
            ["apis", group, version] => self.find(group, version),
            _ => None,
        }
    }

    /// Marks a request that leaves this server. `false` if it has been here before.
    pub(super) fn sign(&self, headers: &mut HeaderMap) -> bool {
        let seen =
            |value: &HeaderValue| value.to_str().is_ok_and(|via| via.split(',').any(|by| by.trim() == self.pseudonym));
        if headers.get_all(VIA).iter().any(seen) {
            return false;
        }
        if let Ok(value) = HeaderValue::from_str(&self.pseudonym) {
            headers.append(VIA, value);
        }
        true
    }
}

/// Follows the registrations until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let Some(cache) = state.caches.get(PREFIX) else { return };
    let mut changes = cache.subscribe();
    let mut followers: HashMap<String, AbortHandle> = HashMap::new();
    let mut tasks = JoinSet::new();
    loop {
        changes.mark_unchanged();
        let registered = registered(&cache.snapshot());
        let (backends, fresh) = next(&state, &registered);
        let before = std::mem::replace(&mut *state.aggregation.backends.write(), backends.clone());
        state.aggregation.has_backends.store(!backends.is_empty(), Ordering::Release);
        followers.retain(|name, follower| {
            let stays = backends.iter().any(|backend| backend.name() == *name);
            if !stays {
                follower.abort();
            }
            stays
        });
        for backend in &fresh {
            let follower = tasks.spawn(availability::follow(state.clone(), backend.clone()));
            if let Some(old) = followers.insert(backend.name(), follower) {
                old.abort();
            }
        }
        if !fresh.is_empty() || before.len() != backends.len() {
            crate::discovery::publish(&state);
        }
        tokio::select! {
            () = state.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// A registration, or the name of one that cannot be read.
type Registered = Result<Arc<APIService>, String>;

fn registered(snapshot: &Snapshot) -> Vec<Registered> {
    snapshot.objects.values().map(|entry| entry.read().map_err(|_| entry.name().to_owned())).collect()
}

/// The backends that registrations ask for, and those among them that are new. One that has not changed stays, and so
/// does one whose registration can no longer be read.
fn next(state: &State, registered: &[Registered]) -> (Arc<[Arc<Backend>]>, Vec<Arc<Backend>>) {
    let before = state.aggregation.backends();
    let (mut all, mut fresh) = (Vec::new(), Vec::new());
    for service in registered {
        let service = match service {
            Ok(service) => service,
            Err(name) => {
                all.extend(before.iter().find(|backend| backend.name() == *name).cloned());
                continue;
            }
        };
        if let Some(known) = before.iter().find(|backend| backend.is_of(service)) {
            known.observe(service);
            all.push(known.clone());
        } else if let Some(backend) = Backend::new(&state.config, service) {
            // Another priority or another port is no reason to forget what was offered.
            if let Some(old) = before.iter().find(|old| old.is_like(&backend)) {
                backend.learn(old.discovered());
            }
            let backend = Arc::new(backend);
            fresh.push(backend.clone());
            all.push(backend);
        }
    }
    (all.into(), fresh)
}

/// Takes in what a backend offers; the documents follow.
pub(super) fn learned(state: &Arc<State>, backend: &Backend, found: Discovered) {
    if backend.learn(Arc::new(found)) {
        crate::discovery::publish(state);
    }
}

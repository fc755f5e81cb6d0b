//! Keeps the backends in line with the registrations.

use std::collections::HashMap;
use std::sync::Arc;

use futures_util::FutureExt;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use tokio::task::{AbortHandle, JoinSet};

use super::availability;
use crate::aggregation::remote_discovery::Discovered;
use crate::aggregation::{Backend, PREFIX};
use crate::state::State;
use crate::watch_cache::Snapshot;

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
        let before = state.aggregation.set(backends.clone());
        followers.retain(|name, follower| {
            let stays = backends.iter().any(|backend| backend.name() == *name);
            if !stays {
                follower.abort();
            }
            stays
        });
        for backend in &fresh {
            let follower = tasks.spawn(FutureExt::boxed(availability::follow(state.clone(), backend.clone())));
            if let Some(old) = followers.insert(backend.name(), follower) {
                old.abort();
            }
        }
        if !fresh.is_empty() || before.len() != backends.len() {
            state.publish();
        }
        tokio::select! {
            () = state.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            Some(_) = tasks.join_next() => {}
        }
    }
}

/// A registration, or the name of one that cannot be read.
type Registered = Result<Arc<APIService>, UnreadableName>;

struct UnreadableName(String);

fn registered(snapshot: &Snapshot) -> Vec<Registered> {
    snapshot.objects.values().map(|entry| entry.read().map_err(|_| UnreadableName(entry.name().to_owned()))).collect()
}

/// The backends that registrations ask for, and those among them that are new. One that has not changed stays, and so
/// does one whose registration can no longer be read.
fn next(state: &State, registered: &[Registered]) -> (Arc<[Arc<Backend>]>, Vec<Arc<Backend>>) {
    let before = state.aggregation.backends();
    let (mut all, mut fresh) = (Vec::new(), Vec::new());
    for service in registered {
        let service = match service {
            Ok(service) => service,
            Err(UnreadableName(name)) => {
                all.extend(before.iter().find(|backend| backend.name() == *name).cloned());
                continue;
            }
        };
        if let Some(known) = before.iter().find(|backend| backend.is_of(service)) {
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
        state.publish();
    }
}

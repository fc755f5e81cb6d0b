//! Follows the definitions: accepts names, keeps the rows of the resource table, writes what became of them.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use futures_util::FutureExt;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionNames,
};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use registry::apiextensions::conditions::{has_condition, set_condition};
use registry::custom::{self, store_prefix};
use registry::unset::or_empty;
use registry::{AnyObject, Object, Resource, Verb};
use tokio::task::JoinSet;

use super::names::{Decision, Taken, decide};
use super::{convert, finalize};
use crate::state::{Operation, State, own_operation};
use crate::verbs::{Current, Target, modify};
use crate::watch_cache::{Snapshot, Unreadable};

pub(super) const PREFIX: &str = "apiextensions.k8s.io/customresourcedefinitions";

/// What could not be written or read is tried again after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// A request for a kind that is not there waits this long for definitions that were just written.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(3);

/// The row of a request that the table does not have: a definition that is in the cache but not yet in the table is
/// waited for.
pub(crate) async fn served(
    state: &State,
    group: &str,
    version: &str,
    plural: &str,
) -> Result<Option<Arc<Resource>>, Unreadable> {
    let Some(cache) = state.caches.get(PREFIX) else { return Ok(None) };
    let newest = cache.revision();
    let mut seen = state.definitions.subscribe();
    let caught_up = seen.wait_for(|seen| seen.is_some_and(|seen| seen >= newest));
    if !matches!(tokio::time::timeout(DISCOVERY_TIMEOUT, caught_up).await, Ok(Ok(_))) {
        return Ok(None);
    }
    // Also when there was nothing to wait for: the row may have come since the table was asked.
    let found = state.registry.find(group, version, plural);
    if found.is_none() {
        // What is defined or registered in words that cannot be read is not what nobody has heard of.
        state.objects().get::<CustomResourceDefinition>("", &format!("{plural}.{group}"))?;
        state.objects().get::<APIService>("", &format!("{version}.{group}"))?;
    }
    Ok(found)
}

/// Waits until discovery shows the kinds of all definitions in the cache, but not for long: whoever has seen that a definition is
/// established finds its kind.
pub(crate) async fn discoverable(state: &State) {
    let Some(cache) = state.caches.get(PREFIX) else { return };
    let newest = cache.revision();
    let mut published = state.published.subscribe();
    let caught_up = published.wait_for(|published| published.is_none_or(|published| published >= newest));
    // What is late comes with a later request.
    let _ = tokio::time::timeout(DISCOVERY_TIMEOUT, caught_up).await;
}

/// Whether the definitions that were there when the server started have their rows.
pub(crate) fn is_synced(state: &State) -> bool {
    state.definitions.borrow().is_some()
}

/// Keeps rows and definitions in step until the server stops.
pub(crate) async fn run(state: Arc<State>) {
    let Some(cache) = state.caches.get(PREFIX) else {
        // Where definitions are not served, nobody has to wait for them.
        state.definitions.send_replace(Some(0));
        state.published.send_replace(Some(0));
        return;
    };
    let mut changes = cache.subscribe();
    let mut keeper =
        Keeper { state: state.clone(), known: HashMap::new(), ending: HashSet::new(), tasks: JoinSet::new() };
    loop {
        changes.mark_unchanged();
        let is_done = keeper.sync(&cache.snapshot()).await;
        let again = tokio::time::sleep(RETRY_INTERVAL);
        tokio::select! {
            () = state.stop.cancelled() => return,
            changed = changes.changed() => if changed.is_err() { return },
            () = again, if !is_done => {}
        }
    }
}

/// A definition whose rows are in the table.
struct Known {
    uid: String,
    generation: Option<i64>,
    names: CustomResourceDefinitionNames,
    rows: Vec<Arc<Resource>>,
    prefix: String,
}

struct Keeper {
    state: Arc<State>,
    known: HashMap<String, Known>,
    /// Definitions whose objects are being deleted.
    ending: HashSet<String>,
    tasks: JoinSet<String>,
}

impl Keeper {
    /// Brings the table to what the definitions say, then tells each what became of it, then discovery. Returns whether all is
    /// done.
    async fn sync(&mut self, snapshot: &Snapshot) -> bool {
        let mut definitions: Vec<Arc<CustomResourceDefinition>> = Vec::new();
        let mut wanted: BTreeMap<&str, Known> = BTreeMap::new();
        for entry in snapshot.objects.values() {
            match entry.read() {
                Ok(definition) => definitions.push(definition),
                // What it said last stays: its objects are there, and others must not think that they are not.
                Err(_) => wanted.extend(self.known.remove(entry.name()).map(|known| (entry.name(), known))),
            }
        }
        let decisions = decisions(&definitions);
        let mut is_done = true;
        for (definition, decision) in definitions.iter().zip(&decisions) {
            if decision.conflict.is_some() && !has_condition(definition, "Established") {
                continue;
            }
            let name = or_empty(&definition.metadata.name);
            let uid = or_empty(&definition.metadata.uid);
            let known = self.known.remove(name).filter(|known| {
                *known.uid == *uid
                    && known.generation == definition.metadata.generation
                    && known.names == decision.names
            });
            let prefix = store_prefix(definition);
            if let Err(error) = self.state.caches.add(&prefix).await {
                tracing::warn!(%error, name, "reading custom resources");
                is_done = false;
                continue;
            }
            let known = match known {
                Some(known) => known,
                None => {
                    let rows: Vec<_> = rows(&self.state, definition, &decision.names);
                    is_done &= crate::integrity::check(&self.state, &rows).await;
                    Known {
                        uid: uid.to_owned(),
                        generation: definition.metadata.generation,
                        names: decision.names.clone(),
                        rows,
                        prefix,
                    }
                }
            };
            wanted.insert(name, known);
        }
        let is_new = self.install(wanted, snapshot.revision);
        for (definition, decision) in definitions.iter().zip(decisions) {
            is_done &= self.settle(definition, decision).await;
        }
        // Not before: who finds a kind in discovery and changes its definition must not meet our own write of its status.
        if is_new {
            self.state.publish();
        }
        self.state.published.send_replace(Some(snapshot.revision));
        is_done
    }

    /// Serves the rows that are wanted and no others. Returns whether that is a change.
    fn install(&mut self, wanted: BTreeMap<&str, Known>, revision: u64) -> bool {
        let rows: Vec<Arc<Resource>> = wanted.values().flat_map(|known| known.rows.iter().cloned()).collect();
        let gone: Vec<Known> = self.known.drain().map(|(_, known)| known).collect();
        let (state, registry) = (&self.state, &self.state.registry);
        let is_new = registry.set_custom(rows);
        for known in gone.iter().filter(|gone| !wanted.values().any(|known| known.prefix == gone.prefix)) {
            state.caches.remove(&known.prefix);
        }
        self.known = wanted.into_iter().map(|(name, known)| (name.to_owned(), known)).collect();
        state.definitions.send_replace(Some(revision));
        is_new
    }

    /// Writes what was decided; begins to end what is to be deleted. Returns whether that worked.
    async fn settle(&mut self, definition: &Arc<CustomResourceDefinition>, decision: Decision) -> bool {
        let name = or_empty(&definition.metadata.name);
        while let Some(ended) = self.tasks.try_join_next() {
            if let Ok(uid) = ended {
                self.ending.remove(&uid);
            }
        }
        let mut probe = CustomResourceDefinition::clone(definition);
        let now = crate::stamp::now();
        if accept(&mut probe, &decision, now) {
            let written = write_status(&self.state, name, |definition| {
                accept(definition, &decision, now);
            });
            if let Err(status) = written.await
                && !status.is_not_found()
            {
                tracing::warn!(message = status.message, name, "writing the status of a definition");
                return false;
            }
        }
        let uid = or_empty(&definition.metadata.uid).to_owned();
        if finalize::is_ending(definition) && self.ending.insert(uid.clone()) {
            let (state, definition) = (self.state.clone(), definition.clone());
            self.tasks.spawn(FutureExt::boxed(async move {
                finalize::run(&state, &definition).await;
                uid
            }));
        }
        true
    }
}

/// The rows of a definition whose names were accepted.
fn rows(
    state: &State,
    definition: &CustomResourceDefinition,
    names: &CustomResourceDefinitionNames,
) -> Vec<Arc<Resource>> {
    let converter = convert::converter(&state.services, definition.spec.conversion.as_ref());
    let rows = custom::rows(definition, names).into_iter();
    rows.map(|row| Arc::new(Resource { converter: converter.clone(), ..row })).collect()
}

/// A row in the stored version, served or not.
pub(super) fn any_row(state: &State, definition: &CustomResourceDefinition) -> Option<Arc<Resource>> {
    let converter = convert::converter(&state.services, definition.spec.conversion.as_ref());
    custom::any(definition).map(|row| Arc::new(Resource { converter, ..row }))
}

/// Decides over all names: who has theirs already comes before who asks for the first time.
fn decisions(definitions: &[Arc<CustomResourceDefinition>]) -> Vec<Decision> {
    let mut taken: HashMap<&str, Taken> = HashMap::new();
    for definition in definitions {
        if let Some(names) = definition.status.as_ref().and_then(|status| status.accepted_names.as_ref()) {
            taken.entry(&definition.spec.group).or_default().add(names);
        }
    }
    let mut decisions = Vec::with_capacity(definitions.len());
    for definition in definitions {
        let taken = taken.entry(&definition.spec.group).or_default();
        let decision = decide(definition, taken);
        taken.add(&decision.names);
        decisions.push(decision);
    }
    decisions
}

/// Puts a decision into the status; returns whether it was not there yet.
fn accept(definition: &mut CustomResourceDefinition, decision: &Decision, now: jiff::Timestamp) -> bool {
    let names = match &decision.conflict {
        None => ("NamesAccepted", true, "NoConflicts", "no conflicts found"),
        Some((reason, message)) => ("NamesAccepted", false, *reason, message.as_str()),
    };
    let mut changed = set_condition(definition, names, now);
    if decision.conflict.is_none() {
        let accepted = ("Established", true, "InitialNamesAccepted", "the initial names have been accepted");
        changed |= set_condition(definition, accepted, now);
    } else if !has_condition(definition, "Established") {
        let refused = ("Established", false, "NotAccepted", "not all names are accepted");
        changed |= set_condition(definition, refused, now);
    }
    let accepted = &mut definition.status.get_or_insert_default().accepted_names;
    changed |= accepted.as_ref() != Some(&decision.names);
    *accepted = Some(decision.names.clone());
    changed
}

/// An operation of the server itself on a definition.
fn own(state: &Arc<State>, name: &str, subresource: &str) -> Result<Operation, Status> {
    let row = state.registry.find_any("apiextensions.k8s.io", "customresourcedefinitions");
    let row = row.ok_or_else(|| Status::internal("definitions are not served"))?;
    let mut operation = own_operation(state, Verb::Patch, &row, "", name, subresource);
    operation.headers.insert(http::header::USER_AGENT, http::HeaderValue::from_static("kube-apiserver"));
    Ok(operation)
}

/// Changes the status of a definition, whatever it is by now.
pub(super) async fn write_status(
    state: &Arc<State>,
    name: &str,
    change: impl Fn(&mut CustomResourceDefinition) + Send + Sync,
) -> Result<(), Status> {
    write(&own(state, name, "status")?, Target::Status, change).await
}

/// Changes a definition, whatever it is by now.
pub(super) async fn write_main(
    state: &Arc<State>,
    name: &str,
    change: impl Fn(&mut CustomResourceDefinition) + Send + Sync,
) -> Result<(), Status> {
    write(&own(state, name, "")?, Target::Main, change).await
}

async fn write(
    operation: &Operation,
    target: Target,
    change: impl Fn(&mut CustomResourceDefinition) + Send + Sync,
) -> Result<(), Status> {
    let make = |_: &Current<'_>, old: &dyn Object| -> Result<AnyObject, Status> {
        let old = old.downcast_ref::<CustomResourceDefinition>();
        let mut definition = old.cloned().ok_or_else(|| Status::internal("not a definition"))?;
        definition.metadata.resource_version = None;
        change(&mut definition);
        Ok(Box::new(definition))
    };
    modify(operation, target, make).await.map(drop)
}

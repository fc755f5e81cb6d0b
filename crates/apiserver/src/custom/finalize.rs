//! The end of a definition: its objects go first.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use registry::unset::{items, or_empty};
use registry::{Resource, Verb};

use super::definitions::{self, write_main, write_status};
use crate::delete_options::DeleteOptions;
use crate::state::{State, own_operation};
use crate::verbs::delete_object;
use registry::apiextensions::conditions::{FINALIZER, has_condition, set_condition};

/// Objects that others hold back are looked at again when one of them changes, and after this long.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Whether a definition waits for its objects to go.
pub(super) fn is_ending(definition: &CustomResourceDefinition) -> bool {
    definition.metadata.deletion_timestamp.is_some()
        && items(&definition.metadata.finalizers).iter().any(|name| name == FINALIZER)
}

/// Deletes all objects of a definition, waits until they are gone and lets the definition go.
pub(super) async fn run(state: &Arc<State>, definition: &CustomResourceDefinition) {
    let name = or_empty(&definition.metadata.name);
    while let Err(status) = end(state, definition, name).await {
        if status.is_not_found() || state.stop.is_cancelled() {
            return;
        }
        tracing::warn!(message = status.message, name, "ending a definition");
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

async fn end(state: &Arc<State>, definition: &CustomResourceDefinition, name: &str) -> Result<(), Status> {
    let note = async |is, reason, message| {
        let condition = ("Terminating", is, reason, message);
        let set = |definition: &mut CustomResourceDefinition| {
            set_condition(definition, condition, crate::stamp::now());
        };
        write_status(state, name, set).await
    };
    if has_condition(definition, "Established") {
        note(true, "InstanceDeletionInProgress", "CustomResource deletion is in progress").await?;
        empty(state, definition).await?;
        note(false, "InstanceDeletionCompleted", "removed all instances").await?;
    } else {
        note(false, "NeverEstablished", "resource was never established").await?;
    }
    write_main(state, name, |definition| {
        if let Some(finalizers) = &mut definition.metadata.finalizers {
            finalizers.retain(|name| name != FINALIZER);
        }
    })
    .await
}

/// Deletes until nothing is left.
async fn empty(state: &Arc<State>, definition: &CustomResourceDefinition) -> Result<(), Status> {
    let prefix = registry::custom::store_prefix(definition);
    let Some(cache) = state.caches.get(&prefix) else { return Ok(()) };
    let mut changes = cache.subscribe();
    loop {
        changes.mark_unchanged();
        let snapshot = cache.snapshot();
        if snapshot.objects.is_empty() {
            return Ok(());
        }
        for entry in snapshot.objects.values() {
            let row = any_row(state, definition)?;
            let operation = own_operation(state, Verb::Delete, &row, entry.namespace(), entry.name(), "");
            match delete_object(&operation, entry.namespace(), entry.name(), &DeleteOptions::default()).await {
                Err(status) if !status.is_not_found() => return Err(status),
                _ => {}
            }
        }
        tokio::select! {
            () = state.stop.cancelled() => return Err(Status::internal("the server stops")),
            _ = changes.changed() => {}
            () = tokio::time::sleep(RETRY_INTERVAL) => {}
        }
    }
}

/// A row of the definition, to delete its objects by; in which version does not matter.
fn any_row(state: &State, definition: &CustomResourceDefinition) -> Result<Arc<Resource>, Status> {
    let spec = &definition.spec;
    let served = state.registry.find_any(&spec.group, &spec.names.plural);
    let made = || definitions::any_row(state, definition);
    served.or_else(made).ok_or_else(|| Status::internal("the definition has no versions"))
}

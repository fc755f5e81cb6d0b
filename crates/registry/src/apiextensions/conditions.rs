//! Conditions of definitions, and what happens to one that is about to be deleted.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, CustomResourceDefinitionCondition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::unset::items;

/// Keeps a definition until its objects are gone.
pub const FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// Holds a definition that is about to be deleted until its objects are gone.
pub(super) fn mark(definition: &mut CustomResourceDefinition, now: jiff::Timestamp) {
    if definition.metadata.deletion_timestamp.is_some() {
        return;
    }
    let finalizers = definition.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|name| name == FINALIZER) {
        finalizers.push(FINALIZER.to_owned());
    }
    let message = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon";
    set_condition(definition, ("Terminating", true, "InstanceDeletionPending", message), now);
}

pub fn has_condition(definition: &CustomResourceDefinition, kind: &str) -> bool {
    let conditions = definition.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == kind && condition.status == "True")
}

/// Sets a condition; returns whether that changed anything.
pub fn set_condition(
    definition: &mut CustomResourceDefinition,
    (kind, is, reason, message): (&str, bool, &str, &str),
    now: jiff::Timestamp,
) -> bool {
    let status = if is { "True" } else { "False" };
    let observed = definition.metadata.generation;
    let conditions = definition.status.get_or_insert_default().conditions.get_or_insert_default();
    let found = conditions.iter_mut().find(|condition| condition.type_ == kind);
    let new = CustomResourceDefinitionCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        observed_generation: observed,
    };
    match found {
        None => conditions.push(new),
        Some(old)
            if old.status == status
                && old.reason == new.reason
                && old.message == new.message
                && old.observed_generation == observed =>
        {
            return false;
        }
        Some(old) => {
            let since =
                if old.status == status { old.last_transition_time.clone() } else { new.last_transition_time.clone() };
            *old = CustomResourceDefinitionCondition { last_transition_time: since, ..new };
        }
    }
    true
}

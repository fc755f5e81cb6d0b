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

/// Sets a condition; returns whether that changed anything. As upstream's (`SetCRDCondition`, v1.36) it names no
/// generation: `kubectl wait` would wait for ever for one that is not renewed with every change of the spec. A
/// generation that a server of an older version wrote stays as long as it is the present one: the two would write over
/// each other for ever.
pub fn set_condition(
    definition: &mut CustomResourceDefinition,
    (kind, is, reason, message): (&str, bool, &str, &str),
    now: jiff::Timestamp,
) -> bool {
    let status = if is { "True" } else { "False" };
    let generation = definition.metadata.generation;
    let conditions = definition.status.get_or_insert_default().conditions.get_or_insert_default();
    let found = conditions.iter_mut().find(|condition| condition.type_ == kind);
    let new = CustomResourceDefinitionCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_transition_time: Some(Time(now)),
        observed_generation: None,
    };
    match found {
        None => conditions.push(new),
        Some(old)
            if old.status == status
                && old.reason == new.reason
                && old.message == new.message
                && old.observed_generation.is_none_or(|observed| Some(observed) >= generation) =>
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_name_no_generation() {
        let [then, now] = [1, 2].map(|second| jiff::Timestamp::from_second(second).unwrap());
        let mut definition = CustomResourceDefinition::default();
        definition.metadata.generation = Some(2);
        let established = ("Established", true, "InitialNamesAccepted", "the initial names have been accepted");
        assert!(set_condition(&mut definition, established, then));
        assert!(!set_condition(&mut definition, established, now));
        // What an older version wrote goes when it is not true any more, and the condition is as old as it was.
        let conditions = |definition: &CustomResourceDefinition| definition.status.clone().unwrap().conditions.unwrap();
        let expected = conditions(&definition);
        assert_eq!(expected[0].observed_generation, None);
        for (observed, is_written) in [(2, false), (1, true)] {
            let mut older = expected.clone();
            older[0].observed_generation = Some(observed);
            definition.status.as_mut().unwrap().conditions = Some(older);
            assert_eq!(set_condition(&mut definition, established, now), is_written, "{observed}");
        }
        assert_eq!(conditions(&definition), expected);
    }
}

//! Priority: turns a pod's priority class into its number, and keeps at most one default class.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{Admitted, Attributes, Plugin, Verb};
use crate::state::State;

pub(super) struct Priority;

impl Plugin for Priority {
    fn name(&self) -> &'static str {
        "Priority"
    }

    fn admit<'a>(&'a self, state: &'a Arc<State>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let outcome = (|| {
            if !attributes.creates("", "pods") {
                return Ok(());
            }
            let Some(pod) = attributes.object_ref::<Pod>() else { return Ok(()) };
            let spec = pod.spec.clone().unwrap_or_default();
            let class = match spec.priority_class_name.as_deref().filter(|name| !name.is_empty()) {
                Some(name) => match state.peek::<PriorityClass>("priorityclasses", name) {
                    Some(class) => Some(class),
                    None => return Err(attributes.forbidden(format!("no PriorityClass with name {name} was found"))),
                },
                None => default_class(state),
            };
            let value = class.as_ref().and_then(|class| class.value).unwrap_or(0);
            let policy = class
                .as_ref()
                .and_then(|class| class.preemption_policy.clone())
                .unwrap_or_else(|| "PreemptLowerPriority".to_owned());
            if spec.priority.is_some_and(|given| given != value) {
                let message = format!(
                    "the integer value of priority ({}) must not be provided in pod spec; priority admission controller computed {value} from the given PriorityClass name",
                    spec.priority.unwrap_or_default()
                );
                return Err(attributes.forbidden(message));
            }
            if spec.preemption_policy.as_ref().is_some_and(|given| *given != policy) {
                let message = format!(
                    "the string value of PreemptionPolicy ({}) must not be provided in pod spec; priority admission controller computed {policy} from the given PriorityClass name",
                    spec.preemption_policy.unwrap_or_default()
                );
                return Err(attributes.forbidden(message));
            }
            if let Some(pod) = attributes.object_mut::<Pod>() {
                let spec = pod.spec.get_or_insert_default();
                spec.priority = Some(value);
                spec.preemption_policy = Some(policy);
                if spec.priority_class_name.as_deref().unwrap_or_default().is_empty() {
                    spec.priority_class_name = class.and_then(|class| class.metadata.name);
                }
            }
            Ok(())
        })();
        Box::pin(std::future::ready(outcome))
    }

    fn validate<'a>(&'a self, state: &'a Arc<State>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        let outcome = (|| {
            let writes = matches!(attributes.verb, Verb::Create | Verb::Update)
                && attributes.is("scheduling.k8s.io", "priorityclasses");
            let Some(class) = attributes.object_ref::<PriorityClass>().filter(|_| writes) else { return Ok(()) };
            if class.global_default != Some(true) {
                return Ok(());
            }
            let other = state
                .peek_all::<PriorityClass>("priorityclasses", None)
                .into_iter()
                .find(|other| other.global_default == Some(true) && other.metadata.name != class.metadata.name);
            match other {
                None => Ok(()),
                Some(other) => Err(attributes.forbidden(format!(
                    "PriorityClass {} is already marked as default. Only one default can exist",
                    other.metadata.name.unwrap_or_default()
                ))),
            }
        })();
        Box::pin(std::future::ready(outcome))
    }
}

/// The default class; the lowest if, against the rules, there are several.
fn default_class(state: &State) -> Option<PriorityClass> {
    let cache = state.caches.get("priorityclasses")?;
    let snapshot = cache.snapshot();
    snapshot
        .range(None, None)
        .filter(|entry| {
            crate::json::find(&entry.stored, &["globalDefault"]).is_some_and(|range| &entry.stored[range] == b"true")
        })
        .filter_map(|entry| serde_json::from_slice::<PriorityClass>(&entry.stored).ok())
        .min_by_key(|class| class.value)
}

//! Priority: turns a pod's priority class into its number, and keeps at most one default class.

use std::sync::Arc;

use api::Status;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::scheduling::v1::PriorityClass;

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

pub(super) struct Priority;

const PREFIX: &str = "priorityclasses";

impl Plugin for Priority {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("", "pods") {
            return admitted();
        }
        if attributes.verb == Verb::Update {
            keep(attributes);
            return admitted();
        }
        let pod = attributes.object_ref::<Pod>();
        let name = pod.and_then(|pod| pod.spec.as_ref()?.priority_class_name.clone()).filter(|name| !name.is_empty());
        let known = match &name {
            Some(name) => cluster.objects().get("", name),
            None => default_class(cluster),
        };
        let name = match (known, name) {
            (Err(unreadable), _) => return Err(unreadable.into()).into(),
            (Ok(class), None) => return apply(attributes, class.as_deref()).into(),
            (Ok(Some(class)), Some(_)) => return apply(attributes, Some(&class)).into(),
            (Ok(None), Some(name)) => name,
        };
        later(async move {
            // It may have been created a moment ago.
            cluster.caches.fresh().await?;
            match cluster.objects().get("", &name)? {
                Some(class) => apply(attributes, Some(&class)),
                None => Err(attributes.forbidden(format!("no PriorityClass with name {name} was found"))),
            }
        })
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("scheduling.k8s.io", "priorityclasses") {
            return admitted();
        }
        let class = attributes.object_ref::<PriorityClass>().filter(|class| class.global_default == Some(true));
        let Some(class) = class else { return admitted() };
        let default = match default_class(cluster) {
            Ok(default) => default,
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        match default.and_then(|other| other.metadata.name.clone()) {
            Some(other) if Some(&other) != class.metadata.name.as_ref() => Err(attributes
                .forbidden(format!("PriorityClass {other} is already marked as default. Only one default can exist")))
            .into(),
            _ => admitted(),
        }
    }
}

/// An update that leaves the numbers out means to keep them.
fn keep(attributes: &mut Attributes<'_>) {
    let old = attributes.old_ref::<Pod>().and_then(|pod| pod.spec.as_ref());
    let Some((priority, policy)) = old.map(|spec| (spec.priority, spec.preemption_policy.clone())) else { return };
    if let Some(spec) = attributes.object_mut::<Pod>().and_then(|pod| pod.spec.as_mut()) {
        spec.priority = spec.priority.or(priority);
        spec.preemption_policy = spec.preemption_policy.take().or(policy);
    }
}

fn apply(attributes: &mut Attributes<'_>, class: Option<&PriorityClass>) -> Result<(), Status> {
    let Some(spec) = attributes.object_ref::<Pod>().and_then(|pod| pod.spec.as_ref()) else { return Ok(()) };
    let value = class.and_then(|class| class.value).unwrap_or(0);
    let policy = class.and_then(|class| class.preemption_policy.clone());
    let policy = policy.unwrap_or_else(|| "PreemptLowerPriority".to_owned());
    if let Some(given) = spec.priority.filter(|given| *given != value) {
        return Err(attributes.forbidden(format!(
            "the integer value of priority ({given}) must not be provided in pod spec; \
             priority admission controller computed {value} from the given PriorityClass name"
        )));
    }
    if let Some(given) = spec.preemption_policy.as_ref().filter(|given| **given != policy) {
        return Err(attributes.forbidden(format!(
            "the string value of PreemptionPolicy ({given}) must not be provided in pod spec; \
             priority admission controller computed {policy} from the given PriorityClass name"
        )));
    }
    if let Some(spec) = attributes.object_mut::<Pod>().and_then(|pod| pod.spec.as_mut()) {
        spec.priority = Some(value);
        spec.preemption_policy = Some(policy);
        if spec.priority_class_name.as_deref().unwrap_or_default().is_empty() {
            spec.priority_class_name = class.and_then(|class| class.metadata.name.clone());
        }
    }
    Ok(())
}

/// The default class; the lowest if, against the rules, there are several.
fn default_class(cluster: &Cluster) -> Result<Option<Arc<PriorityClass>>, Unreadable> {
    let Some(cache) = cluster.caches.get(PREFIX) else { return Ok(None) };
    let mut default: Option<Arc<PriorityClass>> = None;
    for entry in cache.snapshot().range(None, None) {
        let class = entry.read::<PriorityClass>()?;
        if class.global_default == Some(true) && default.as_ref().is_none_or(|other| class.value < other.value) {
            default = Some(class);
        }
    }
    Ok(default)
}

//! Initializers: gives new objects their list of pending initializers, and guards who takes entries off it.

use std::sync::Arc;

use api::Status;
use api::field::FieldErrors;
use parking_lot::RwLock;
use registry::admissionregistration::initializer::{InitializerConfiguration, Rule};

use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::authz;
use crate::cluster::Cluster;
use crate::cluster::own_user;
use crate::initializers::Initializers as Pending;
use crate::watch_cache::Unreadable;

/// All configured initializers in order of their configurations' names, parsed once per change.
#[derive(Default)]
pub(super) struct Initializers(RwLock<(Option<u64>, Arc<Vec<InitializerConfiguration>>)>);

const PREFIX: &str = "initializerconfigurations";

impl Plugin for Initializers {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if !attributes.resource.initializers || !attributes.subresource.is_empty() {
            return admitted();
        }
        match attributes.verb {
            Verb::Create => self.create(cluster, attributes),
            Verb::Update => update(cluster, attributes),
            Verb::Delete | Verb::Connect => admitted(),
        }
    }
}

impl Initializers {
    fn create<'a>(&self, cluster: &'a Cluster, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        let Some(meta) = attributes.object.as_deref().map(|object| object.meta()) else { return admitted() };
        if let Some(given) = Pending::of(meta) {
            // Administrators decide for themselves, also that nobody is to be asked.
            if given.pending.is_empty() && given.result.is_none() {
                set(attributes, None);
            }
            return later(may_initialize(cluster, attributes, "create with initializers denied"));
        }
        // A mirror pod already runs, and the server cannot wait for others before it is up.
        if api::pod::is_mirror(meta) || attributes.user().name == own_user().name {
            return admitted();
        }
        let configurations = match self.configurations(cluster) {
            Ok(configurations) => configurations,
            Err(unreadable) => return Err(unreadable.into()).into(),
        };
        let matching = configurations.iter().flat_map(|configuration| &configuration.initializers);
        let matching = matching.filter(|initializer| initializer.rules.iter().any(|rule| matches(rule, attributes)));
        let mut names: Vec<String> = Vec::new();
        for initializer in matching {
            if !names.contains(&initializer.name) {
                names.push(initializer.name.clone());
            }
        }
        if !names.is_empty() {
            set(attributes, Some(&Pending::new(names)));
        }
        admitted()
    }

    fn configurations(&self, cluster: &Cluster) -> Result<Arc<Vec<InitializerConfiguration>>, Unreadable> {
        let Some(cache) = cluster.caches.get(PREFIX) else { return Ok(Arc::default()) };
        let revision = Some(cache.revision());
        {
            let built = self.0.read();
            if built.0 == revision {
                return Ok(built.1.clone());
            }
        }
        let all: Arc<Vec<InitializerConfiguration>> = Arc::new(cluster.objects().list(None)?);
        *self.0.write() = (revision, all.clone());
        Ok(all)
    }
}

fn set(attributes: &mut Attributes<'_>, cluster: Option<&Pending>) {
    if let Some(object) = attributes.object.as_deref_mut() {
        Pending::set(object.meta_mut(), cluster);
    }
}

/// Initializers and their configurations are not for initializers: a broken one could never be repaired.
fn matches(rule: &Rule, attributes: &Attributes<'_>) -> bool {
    let resource = attributes.resource;
    let listed = |items: &[String], wanted: &str| items.iter().any(|item| item == "*" || item == wanted);
    resource.group != "admissionregistration.k8s.io"
        && listed(&rule.api_groups, &resource.group)
        && listed(&rule.api_versions, &resource.version)
        && listed(&rule.resources, &resource.plural)
}

fn update<'a>(cluster: &'a Cluster, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
    let of = |meta: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta>| meta.and_then(Pending::of);
    let old = of(attributes.old.map(|old| old.meta()));
    let mut new = of(attributes.object.as_deref().map(|object| object.meta()));
    // An empty list is no list: the object is finished.
    if new.as_ref().is_some_and(|new| new.pending.is_empty() && new.result.is_none()) {
        set(attributes, None);
        new = None;
    }
    if new == old {
        return admitted();
    }
    if let Some(problem) = transition(old.as_ref(), new.as_ref()) {
        let mut errors = FieldErrors::default();
        let names: Vec<String> = new.iter().flat_map(|new| &new.pending).map(|pending| pending.name.clone()).collect();
        errors.invalid("metadata.initializers", names, problem);
        return Err(Status::invalid(&attributes.resource.group_kind(), attributes.name, errors)).into();
    }
    later(may_initialize(cluster, attributes, "update to uninitialized resource denied"))
}

/// Why a change of the list is not allowed.
fn transition(old: Option<&Pending>, new: Option<&Pending>) -> Option<&'static str> {
    let Some(old) = old else { return Some("field is immutable once initialization has completed") };
    let left = new.map(|new| new.pending.as_slice()).unwrap_or_default();
    let next = old.pending.get(1..).unwrap_or_default();
    if left == old.pending || left == next {
        return None;
    }
    Some("initializers are removed one at a time, the first one first")
}

async fn may_initialize(cluster: &Cluster, attributes: &Attributes<'_>, denied: &str) -> Result<(), Status> {
    let asked = authz::Attributes {
        is_resource: true,
        verb: registry::Verb::custom("initialize"),
        group: attributes.resource.group.to_string(),
        resource: attributes.resource.plural.to_string(),
        namespace: attributes.namespace.to_owned(),
        name: attributes.name.to_owned(),
        ..Default::default()
    };
    let decision = cluster.authz.decide(attributes.user(), &asked).await;
    if decision.allowed {
        return Ok(());
    }
    Err(attributes.forbidden(format!("{denied}: {}", decision.reason)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_leave_the_list_in_order() {
        let list = |names: &[&str]| Some(Pending::new(names.iter().map(|name| (*name).to_owned()).collect()));
        for (old, new, allowed) in [
            (list(&["a", "b"]), list(&["b"]), true),
            (list(&["a", "b"]), list(&["a"]), false),
            (list(&["a", "b"]), None, false),
            (list(&["a"]), None, true),
            (list(&["a"]), list(&["a", "b"]), false),
            (None, list(&["a"]), false),
        ] {
            assert_eq!(transition(old.as_ref(), new.as_ref()).is_none(), allowed, "{old:?} {new:?}");
        }
    }
}

//! Whether a webhook is asked about a write, and in which version of the object.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::{GroupResource, Status};
use k8s_openapi::api::admissionregistration::v1::RuleWithOperations;

use super::super::{Attributes, Verb};
use super::source::Hook;
use crate::registry::Resource;
use crate::state::State;

/// A webhook that wants to see a write, and the version of the resource that it understands.
pub(super) struct Invocation<'h> {
    pub(super) hook: &'h Hook,
    /// `None` when the request's own version is the right one.
    pub(super) equivalent: Option<Arc<Resource>>,
}

/// `None` when the webhook has nothing to do with the write. Problems with selectors count only for webhooks whose rules
/// match, so that a broken one does not stop writes it never asked for.
pub(super) async fn invocation<'h>(
    state: &State,
    hook: &'h Hook,
    attributes: &Attributes<'_>,
) -> Result<Option<Invocation<'h>>, Status> {
    let Some(equivalent) = matching_resource(state, hook, attributes) else { return Ok(None) };
    if !(in_namespace(state, hook, attributes).await? && selects(hook, attributes)?) {
        return Ok(None);
    }
    if !hook.conditions.is_empty() {
        return undecided(hook, attributes);
    }
    Ok(Some(Invocation { hook, equivalent }))
}

/// Match conditions are CEL expressions. Until they can be evaluated here, a webhook that has some is treated as one
/// whose conditions failed to evaluate: its failure policy decides.
fn undecided<'h>(hook: &Hook, attributes: &Attributes<'_>) -> Result<Option<Invocation<'h>>, Status> {
    if hook.ignores_failure {
        return Ok(None);
    }
    Err(attributes.forbidden(format!("match conditions of webhook {:?} cannot be evaluated", hook.name)))
}

/// `Some(None)`: the request's own resource; `Some(Some(row))`: the same objects under another version or group.
fn matching_resource(state: &State, hook: &Hook, attributes: &Attributes<'_>) -> Option<Option<Arc<Resource>>> {
    let own = attributes.resource;
    if hook.rules.iter().any(|rule| rule_matches(rule, attributes, &own.group, &own.version, &own.plural)) {
        return Some(None);
    }
    if !hook.equivalent {
        return None;
    }
    let table = state.registry.table();
    hook.rules.iter().find_map(|rule| {
        let equivalents = table.rows().iter().filter(|row| {
            row.store_prefix == own.store_prefix && (row.group != own.group || row.version != own.version)
        });
        let mut matching =
            equivalents.filter(|row| rule_matches(rule, attributes, &row.group, &row.version, &row.plural));
        matching.next().map(|row| Some(row.clone()))
    })
}

fn rule_matches(
    rule: &RuleWithOperations,
    attributes: &Attributes<'_>,
    group: &str,
    version: &str,
    plural: &str,
) -> bool {
    let is_namespace = group.is_empty() && plural == "namespaces";
    let is_namespaced = !is_namespace && !attributes.namespace.is_empty();
    let in_scope = match rule.scope.as_deref() {
        None | Some("*") => true,
        Some("Namespaced") => is_namespaced,
        Some("Cluster") => !is_namespaced,
        Some(_) => false,
    };
    let listed =
        |items: &Option<Vec<String>>, wanted: &str| items.iter().flatten().any(|item| item == "*" || item == wanted);
    let resource = rule.resources.iter().flatten().any(|item| {
        let (name, sub) = item.split_once('/').unwrap_or((item, ""));
        (name == "*" || name == plural) && (sub == "*" || sub == attributes.subresource)
    });
    in_scope
        && resource
        && listed(&rule.operations, attributes.verb.as_str())
        && listed(&rule.api_groups, group)
        && listed(&rule.api_versions, version)
}

async fn in_namespace(state: &State, hook: &Hook, attributes: &Attributes<'_>) -> Result<bool, Status> {
    let is_namespace = attributes.resource.plural == "namespaces";
    // Objects outside of namespaces cannot be told apart by them.
    if attributes.namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let selector = hook.namespaces.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    // A namespace that is being written counts as it will be.
    if is_namespace && attributes.subresource.is_empty() && matches!(attributes.verb, Verb::Create | Verb::Update) {
        return Ok(selector.matches(attributes.object.as_deref().and_then(|object| object.meta().labels.as_ref())));
    }
    let labels = namespace_labels(state, attributes.namespace).await?;
    Ok(selector.matches(Some(&labels)))
}

async fn namespace_labels(state: &State, name: &str) -> Result<BTreeMap<String, String>, Status> {
    let read = || Some(state.caches.get("namespaces")?.get(name)?.labels().clone());
    if let Some(labels) = read() {
        return Ok(labels);
    }
    // It may have been created a moment ago.
    state.caches.fresh().await?;
    read().ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), name))
}

/// Either state of the object may carry the labels: a write that adds or removes them is seen too.
fn selects(hook: &Hook, attributes: &Attributes<'_>) -> Result<bool, Status> {
    let selector = hook.objects.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    let new = attributes.object.as_deref().map(|object| object.meta());
    let old = attributes.old.map(|object| object.meta());
    Ok([new, old].into_iter().flatten().any(|meta| selector.matches(meta.labels.as_ref())))
}

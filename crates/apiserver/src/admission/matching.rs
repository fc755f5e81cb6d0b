//! Whether a webhook or a policy has to do with a write, and in which version of the object.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::selector::{ParseError, Selector};
use api::{GroupResource, Status};
use k8s_openapi::api::admissionregistration::v1::{MatchResources, NamedRuleWithOperations, RuleWithOperations};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use registry::Resource;

use super::{Attributes, Verb};
use crate::cluster::Cluster;

/// Which writes are meant.
pub(super) struct Criteria {
    pub(super) rules: Vec<Rule>,
    pub(super) exceptions: Vec<Rule>,
    /// Without rules, everything is meant; otherwise nothing.
    pub(super) is_open: bool,
    /// `matchPolicy: Equivalent`: also the same object in another version or group.
    pub(super) equivalent: bool,
    pub(super) namespaces: Result<Selector, ParseError>,
    pub(super) objects: Result<Selector, ParseError>,
}

pub(super) struct Rule {
    rule: RuleWithOperations,
    /// Empty for all.
    names: Vec<String>,
}

impl Criteria {
    /// Those of a webhook.
    pub(super) fn of_rules(
        rules: Option<Vec<RuleWithOperations>>,
        match_policy: Option<&str>,
        namespaces: Option<&LabelSelector>,
        objects: Option<&LabelSelector>,
    ) -> Self {
        let rules = rules.into_iter().flatten().map(|rule| Rule { rule, names: Vec::new() });
        Self {
            rules: rules.collect(),
            exceptions: Vec::new(),
            is_open: false,
            equivalent: match_policy == Some("Equivalent"),
            namespaces: selector(namespaces),
            objects: selector(objects),
        }
    }

    /// Those of a policy or of its binding.
    pub(super) fn of_resources(resources: &MatchResources, is_open: bool) -> Self {
        let named = |rules: &Option<Vec<NamedRuleWithOperations>>| rules.iter().flatten().map(Rule::new).collect();
        Self {
            rules: named(&resources.resource_rules),
            exceptions: named(&resources.exclude_resource_rules),
            is_open,
            equivalent: resources.match_policy.as_deref() == Some("Equivalent"),
            namespaces: selector(resources.namespace_selector.as_ref()),
            objects: selector(resources.object_selector.as_ref()),
        }
    }
}

impl Rule {
    fn new(rule: &NamedRuleWithOperations) -> Self {
        let names = rule.resource_names.clone().unwrap_or_default();
        let rule = RuleWithOperations {
            api_groups: rule.api_groups.clone(),
            api_versions: rule.api_versions.clone(),
            operations: rule.operations.clone(),
            resources: rule.resources.clone(),
            scope: rule.scope.clone(),
        };
        Self { rule, names }
    }

    fn matches(&self, attributes: &Attributes<'_>, row: &Resource) -> bool {
        rule_matches(&self.rule, attributes, &row.group, &row.version, &row.plural)
            && (self.names.is_empty() || self.names.iter().any(|name| name == attributes.name))
    }
}

fn selector(selector: Option<&LabelSelector>) -> Result<Selector, ParseError> {
    match selector {
        None => Ok(Selector::everything()),
        Some(selector) => Selector::from_label_selector(Some(selector)),
    }
}

/// The version of the resource in which a write is meant.
#[derive(Clone)]
pub(super) enum Match {
    /// The request's own.
    Own,
    /// The same objects under another version or group.
    Equivalent(Arc<Resource>),
}

impl Match {
    pub(super) fn resource<'a>(&'a self, attributes: &'a Attributes<'_>) -> &'a Resource {
        match self {
            Match::Own => attributes.resource,
            Match::Equivalent(row) => row,
        }
    }
}

/// `None` when the write is not meant. Problems with selectors count only where rules match, so that a broken one does
/// not stop writes it never asked for.
pub(super) async fn matched(
    cluster: &Cluster,
    criteria: &Criteria,
    attributes: &Attributes<'_>,
) -> Result<Option<Match>, Status> {
    if first(cluster, &criteria.exceptions, criteria.equivalent, attributes).is_some() {
        return Ok(None);
    }
    let found = match criteria.rules.is_empty() && criteria.is_open {
        true => Some(Match::Own),
        false => first(cluster, &criteria.rules, criteria.equivalent, attributes),
    };
    let Some(found) = found else { return Ok(None) };
    let is_meant = in_namespace(cluster, criteria, attributes).await? && selects(criteria, attributes)?;
    Ok(is_meant.then_some(found))
}

/// The resource of the first rule that matches.
fn first(cluster: &Cluster, rules: &[Rule], equivalent: bool, attributes: &Attributes<'_>) -> Option<Match> {
    let own = attributes.resource;
    if rules.iter().any(|rule| rule.matches(attributes, own)) {
        return Some(Match::Own);
    }
    if !equivalent || rules.is_empty() {
        return None;
    }
    let table = cluster.registry.table();
    rules.iter().find_map(|rule| {
        let equivalents = table.rows().iter().filter(|row| {
            row.store_prefix == own.store_prefix && (row.group != own.group || row.version != own.version)
        });
        let mut matching = equivalents.filter(|row| rule.matches(attributes, row));
        matching.next().map(|row| Match::Equivalent(row.clone()))
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

async fn in_namespace(cluster: &Cluster, criteria: &Criteria, attributes: &Attributes<'_>) -> Result<bool, Status> {
    let is_namespace = attributes.resource.plural == "namespaces";
    // Objects outside of namespaces cannot be told apart by them.
    if attributes.namespace.is_empty() && !is_namespace {
        return Ok(true);
    }
    let selector = criteria.namespaces.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    // A namespace that is being written counts as it will be.
    if is_namespace && attributes.subresource.is_empty() && matches!(attributes.verb, Verb::Create | Verb::Update) {
        return Ok(selector.matches(attributes.object.as_deref().and_then(|object| object.meta().labels.as_ref())));
    }
    let labels = namespace_labels(cluster, attributes.namespace).await?;
    Ok(selector.matches(Some(&labels)))
}

async fn namespace_labels(cluster: &Cluster, name: &str) -> Result<BTreeMap<String, String>, Status> {
    let read = || {
        let entry = cluster.objects().entry::<Namespace>("", name);
        entry.map(|entry| entry.map(|entry| entry.labels().clone()))
    };
    if let Some(labels) = read()? {
        return Ok(labels);
    }
    // It may have been created a moment ago.
    cluster.caches.fresh().await?;
    read()?.ok_or_else(|| Status::not_found(&GroupResource::new("", "namespaces"), name))
}

/// Either state of the object may carry the labels: a write that adds or removes them is seen too.
fn selects(criteria: &Criteria, attributes: &Attributes<'_>) -> Result<bool, Status> {
    let selector = criteria.objects.as_ref().map_err(Status::internal)?;
    if selector.is_empty() {
        return Ok(true);
    }
    let new = attributes.object.as_deref().map(|object| object.meta());
    let old = attributes.old.map(|object| object.meta());
    Ok([new, old].into_iter().flatten().any(|meta| selector.matches(meta.labels.as_ref())))
}

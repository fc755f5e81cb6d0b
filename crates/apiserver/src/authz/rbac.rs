//! RBAC: roles, bindings and the index that answers from memory.
//!
//! The index is made from the watch caches and made anew for a kind of object when its cache has changed; a decision
//! looks up the user and each group, never scans all bindings.

use std::collections::HashMap;
use std::sync::Arc;

use api::UserInfo;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};
use parking_lot::Mutex;

use super::{Attributes, Opinion};
use crate::state::State;

#[derive(Default)]
pub(crate) struct Rbac {
    index: Mutex<Arc<Index>>,
}

#[derive(Clone, Default)]
struct Index {
    /// Revisions of the four caches the parts were made from.
    made_from: [u64; 4],
    cluster_roles: Arc<HashMap<String, Arc<Vec<PolicyRule>>>>,
    /// By `<namespace>/<name>`.
    roles: Arc<HashMap<String, Arc<Vec<PolicyRule>>>>,
    cluster_bindings: Arc<HashMap<String, Vec<Grant>>>,
    /// By namespace, then subject.
    bindings: Arc<HashMap<String, HashMap<String, Vec<Grant>>>>,
}

/// A role given to a subject by a binding.
#[derive(Clone)]
struct Grant {
    binding: String,
    cluster_role: bool,
    role: String,
}

fn subject_key(subject: &Subject, namespace: &str) -> String {
    match subject.kind.as_str() {
        "Group" => format!("g:{}", subject.name),
        "ServiceAccount" => {
            let namespace = subject.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(namespace);
            format!("u:system:serviceaccount:{namespace}:{}", subject.name)
        }
        _ => format!("u:{}", subject.name),
    }
}

fn grant(binding: &str, role: &RoleRef) -> Grant {
    Grant { binding: binding.to_owned(), cluster_role: role.kind == "ClusterRole", role: role.name.clone() }
}

const PREFIXES: [&str; 4] = ["clusterroles", "roles", "clusterrolebindings", "rolebindings"];

impl Rbac {
    /// The index as of now.
    fn index(&self, state: &State) -> Arc<Index> {
        let mut revisions = [0; 4];
        for (slot, prefix) in revisions.iter_mut().zip(PREFIXES) {
            *slot = state.caches.get(prefix).map_or(0, |cache| cache.revision());
        }
        let mut current = self.index.lock();
        if current.made_from == revisions {
            return current.clone();
        }
        let mut index = Index { made_from: revisions, ..(**current).clone() };
        let changed = |slot: usize| current.made_from[slot] != revisions[slot];
        if changed(0) {
            let roles: Vec<ClusterRole> = state.peek_all(PREFIXES[0], None);
            let named = roles
                .into_iter()
                .map(|role| (role.metadata.name.unwrap_or_default(), Arc::new(role.rules.unwrap_or_default())));
            index.cluster_roles = Arc::new(named.collect());
        }
        if changed(1) {
            let roles: Vec<Role> = state.peek_all(PREFIXES[1], None);
            let named = roles.into_iter().map(|role| {
                let meta = role.metadata;
                let key = format!("{}/{}", meta.namespace.unwrap_or_default(), meta.name.unwrap_or_default());
                (key, Arc::new(role.rules.unwrap_or_default()))
            });
            index.roles = Arc::new(named.collect());
        }
        if changed(2) {
            let mut map: HashMap<String, Vec<Grant>> = HashMap::new();
            for binding in state.peek_all::<ClusterRoleBinding>(PREFIXES[2], None) {
                let name = binding.metadata.name.unwrap_or_default();
                for subject in binding.subjects.iter().flatten() {
                    map.entry(subject_key(subject, "")).or_default().push(grant(&name, &binding.role_ref));
                }
            }
            index.cluster_bindings = Arc::new(map);
        }
        if changed(3) {
            let mut map: HashMap<String, HashMap<String, Vec<Grant>>> = HashMap::new();
            for binding in state.peek_all::<RoleBinding>(PREFIXES[3], None) {
                let namespace = binding.metadata.namespace.unwrap_or_default();
                let name = binding.metadata.name.unwrap_or_default();
                for subject in binding.subjects.iter().flatten() {
                    let key = subject_key(subject, &namespace);
                    map.entry(namespace.clone())
                        .or_default()
                        .entry(key)
                        .or_default()
                        .push(grant(&name, &binding.role_ref));
                }
            }
            index.bindings = Arc::new(map);
        }
        let index = Arc::new(index);
        *current = index.clone();
        index
    }

    pub(super) fn decide(&self, state: &State, user: &UserInfo, attributes: &Attributes) -> Opinion {
        let index = self.index(state);
        let mut opinion = Opinion::None;
        index.visit(user, &attributes.namespace, |subject, grant, namespace, rules| {
            if !rules.iter().any(|rule| allows(rule, attributes)) {
                return false;
            }
            let (kind, name) = match subject.split_once(':') {
                Some(("g", name)) => ("Group", name),
                Some((_, name)) => ("User", name),
                None => ("User", subject),
            };
            let role = if grant.cluster_role { "ClusterRole" } else { "Role" };
            let binding = match namespace {
                None => format!("ClusterRoleBinding {:?}", grant.binding),
                Some(namespace) => format!("RoleBinding {:?}", format!("{}/{namespace}", grant.binding)),
            };
            opinion =
                Opinion::Allow(format!("RBAC: allowed by {binding} of {role} {:?} to {kind} {name:?}", grant.role));
            true
        });
        opinion
    }

    /// Every rule that applies to a user in a namespace, from the last index made.
    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<PolicyRule> {
        let index = self.index.lock().clone();
        let mut found = Vec::new();
        index.visit(user, namespace, |_, _, _, rules| {
            found.extend(rules.iter().cloned());
            false
        });
        found
    }

    /// As [`Rbac::rules_for`], up to date.
    pub(crate) fn current_rules(&self, state: &State, user: &UserInfo, namespace: &str) -> Vec<PolicyRule> {
        drop(self.index(state));
        self.rules_for(user, namespace)
    }

    /// The rules of a role, or `None` if there is no such role.
    pub(crate) fn role_rules(&self, state: &State, role: &RoleRef, namespace: &str) -> Option<Arc<Vec<PolicyRule>>> {
        let index = self.index(state);
        match role.kind.as_str() {
            "ClusterRole" => index.cluster_roles.get(&role.name).cloned(),
            _ => index.roles.get(&format!("{namespace}/{}", role.name)).cloned(),
        }
    }
}

impl Index {
    /// Calls `visit` with each grant of the user and the rules behind it, until it returns true.
    fn visit(
        &self,
        user: &UserInfo,
        namespace: &str,
        mut visit: impl FnMut(&str, &Grant, Option<&str>, &[PolicyRule]) -> bool,
    ) {
        let subjects =
            || std::iter::once(format!("u:{}", user.name)).chain(user.groups.iter().map(|group| format!("g:{group}")));
        for subject in subjects() {
            for grant in self.cluster_bindings.get(&subject).into_iter().flatten() {
                if let Some(rules) = self.cluster_roles.get(&grant.role)
                    && visit(&subject, grant, None, rules)
                {
                    return;
                }
            }
        }
        let Some(bindings) = self.bindings.get(namespace).filter(|_| !namespace.is_empty()) else { return };
        for subject in subjects() {
            for grant in bindings.get(&subject).into_iter().flatten() {
                let rules = if grant.cluster_role {
                    self.cluster_roles.get(&grant.role)
                } else {
                    self.roles.get(&format!("{namespace}/{}", grant.role))
                };
                if let Some(rules) = rules
                    && visit(&subject, grant, Some(namespace), rules)
                {
                    return;
                }
            }
        }
    }
}

fn has(list: &Option<Vec<String>>, value: &str) -> bool {
    list.as_ref().is_some_and(|list| list.iter().any(|item| item == "*" || item == value))
}

/// Whether one rule allows one request.
pub(super) fn allows(rule: &PolicyRule, attributes: &Attributes) -> bool {
    let verb = rule.verbs.iter().any(|verb| verb == "*" || *verb == attributes.verb);
    if !verb {
        return false;
    }
    if !attributes.is_resource {
        return rule.non_resource_urls.iter().flatten().any(|url| {
            url == "*"
                || *url == attributes.path
                || url.strip_suffix('*').is_some_and(|prefix| attributes.path.starts_with(prefix))
        });
    }
    has(&rule.api_groups, &attributes.group)
        && resource_matches(rule, &attributes.resource, &attributes.subresource)
        && rule.resource_names.as_ref().is_none_or(|names| names.is_empty() || names.contains(&attributes.name))
}

fn resource_matches(rule: &PolicyRule, resource: &str, subresource: &str) -> bool {
    rule.resources.iter().flatten().any(|pattern| {
        if pattern == "*" {
            return true;
        }
        if subresource.is_empty() {
            return pattern == resource;
        }
        match pattern.split_once('/') {
            Some(("*", sub)) => sub == subresource,
            Some((main, sub)) => main == resource && sub == subresource,
            None => false,
        }
    })
}

/// Whether `owned` rules together grant everything that `wanted` grants: nobody may give what they do not have.
pub(crate) fn covers(owned: &[PolicyRule], wanted: &[PolicyRule]) -> bool {
    wanted.iter().flat_map(breakdown).all(|single| owned.iter().any(|rule| grants(rule, &single)))
}

/// Splits a rule into rules with one verb, group, resource and name each.
fn breakdown(rule: &PolicyRule) -> Vec<PolicyRule> {
    let mut singles = Vec::new();
    let list = |values: &Option<Vec<String>>| values.clone().unwrap_or_default();
    for verb in &rule.verbs {
        for url in list(&rule.non_resource_urls) {
            singles.push(PolicyRule {
                verbs: vec![verb.clone()],
                non_resource_urls: Some(vec![url]),
                ..Default::default()
            });
        }
        for group in list(&rule.api_groups) {
            for resource in list(&rule.resources) {
                let base = PolicyRule {
                    verbs: vec![verb.clone()],
                    api_groups: Some(vec![group.clone()]),
                    resources: Some(vec![resource]),
                    ..Default::default()
                };
                let names = list(&rule.resource_names);
                if names.is_empty() {
                    singles.push(base);
                } else {
                    singles.extend(
                        names.into_iter().map(|name| PolicyRule { resource_names: Some(vec![name]), ..base.clone() }),
                    );
                }
            }
        }
    }
    singles
}

fn grants(owner: &PolicyRule, single: &PolicyRule) -> bool {
    let verb = single.verbs.first().map(String::as_str).unwrap_or_default();
    if !owner.verbs.iter().any(|owned| owned == "*" || owned == verb) {
        return false;
    }
    let first = |list: &Option<Vec<String>>| list.as_ref().and_then(|list| list.first().cloned()).unwrap_or_default();
    if single.non_resource_urls.is_some() {
        let url = first(&single.non_resource_urls);
        return owner.non_resource_urls.iter().flatten().any(|owned| {
            owned == "*"
                || *owned == url
                || owned.strip_suffix('*').is_some_and(|prefix| url.trim_end_matches('*').starts_with(prefix))
        });
    }
    let resource = first(&single.resources);
    let (main, sub) = resource.split_once('/').unwrap_or((&resource, ""));
    let names = first(&single.resource_names);
    has(&owner.api_groups, &first(&single.api_groups))
        && (has(&owner.resources, &resource) || resource_matches(owner, main, sub))
        && owner
            .resource_names
            .as_ref()
            .is_none_or(|owned| owned.is_empty() || (!names.is_empty() && owned.contains(&names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(verbs: &[&str], groups: &[&str], resources: &[&str]) -> PolicyRule {
        let list = |values: &[&str]| values.iter().map(|value| (*value).to_owned()).collect::<Vec<_>>();
        PolicyRule {
            verbs: list(verbs),
            api_groups: Some(list(groups)),
            resources: Some(list(resources)),
            ..Default::default()
        }
    }

    fn request(verb: &str, group: &str, resource: &str, subresource: &str) -> Attributes {
        Attributes {
            is_resource: true,
            verb: verb.into(),
            group: group.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            ..Default::default()
        }
    }

    #[test]
    fn rules_match_requests() {
        for (rule, request, allowed) in [
            (rule(&["get"], &[""], &["pods"]), request("get", "", "pods", ""), true),
            (rule(&["get"], &[""], &["pods"]), request("list", "", "pods", ""), false),
            (rule(&["get"], &[""], &["pods"]), request("get", "", "pods", "log"), false),
            (rule(&["get"], &[""], &["pods/log"]), request("get", "", "pods", "log"), true),
            (rule(&["*"], &["*"], &["*/scale"]), request("update", "apps", "deployments", "scale"), true),
            (rule(&["*"], &["*"], &["*"]), request("update", "apps", "deployments", "scale"), true),
            (rule(&["get"], &["apps"], &["pods"]), request("get", "", "pods", ""), false),
        ] {
            assert_eq!(allows(&rule, &request), allowed, "{rule:?} {request:?}");
        }
    }

    #[test]
    fn nobody_gives_what_they_do_not_have() {
        let owned = [rule(&["get", "list"], &[""], &["pods", "services"])];
        for (wanted, covered) in [
            (rule(&["get"], &[""], &["pods"]), true),
            (rule(&["get", "list"], &[""], &["pods", "services"]), true),
            (rule(&["*"], &[""], &["pods"]), false),
            (rule(&["get"], &[""], &["secrets"]), false),
        ] {
            assert_eq!(covers(&owned, std::slice::from_ref(&wanted)), covered, "{wanted:?}");
        }
    }
}

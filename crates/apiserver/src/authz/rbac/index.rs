//! Who has which roles, by subject: a decision looks up the user and each group, and never scans bindings.

use std::collections::HashMap;
use std::sync::Arc;

use api::UserInfo;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject};

use super::rules::allows;
use crate::authz::Attributes;

/// Roles and bindings, indexed. Objects are put in and taken out one at a time.
#[derive(Default)]
pub struct Index {
    cluster_roles: HashMap<String, Arc<[PolicyRule]>>,
    /// By `<namespace>/<name>`.
    roles: HashMap<String, Arc<[PolicyRule]>>,
    cluster_bindings: Bindings,
    /// By namespace.
    bindings: HashMap<String, Bindings>,
}

#[derive(Default)]
struct Bindings {
    users: HashMap<String, Vec<Grant>>,
    groups: HashMap<String, Vec<Grant>>,
    /// Whom each binding names, to take it out again.
    subjects: HashMap<String, Vec<Holder>>,
}

/// A role given to a subject by a binding.
#[derive(Clone)]
struct Grant {
    binding: Arc<str>,
    kind: RoleKind,
    role: Arc<str>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum RoleKind {
    Role,
    ClusterRole,
}

/// Service accounts are users by the name that authentication gives them.
enum Holder {
    User(String),
    Group(String),
}

impl Holder {
    fn new(subject: &Subject, namespace: &str) -> Self {
        match subject.kind.as_str() {
            "Group" => Holder::Group(subject.name.clone()),
            "ServiceAccount" => {
                let namespace = subject.namespace.as_deref().filter(|name| !name.is_empty()).unwrap_or(namespace);
                Holder::User(format!("system:serviceaccount:{namespace}:{}", subject.name))
            }
            _ => Holder::User(subject.name.clone()),
        }
    }
}

impl Bindings {
    fn remove(&mut self, binding: &str) {
        for holder in self.subjects.remove(binding).unwrap_or_default() {
            let (map, name) = match &holder {
                Holder::User(name) => (&mut self.users, name),
                Holder::Group(name) => (&mut self.groups, name),
            };
            if let Some(grants) = map.get_mut(name) {
                grants.retain(|grant| *grant.binding != *binding);
                if grants.is_empty() {
                    map.remove(name);
                }
            }
        }
    }

    fn insert(&mut self, binding: &str, role: &RoleRef, subjects: &[Subject], namespace: &str) {
        self.remove(binding);
        let kind = if role.kind == "ClusterRole" { RoleKind::ClusterRole } else { RoleKind::Role };
        let grant = Grant { binding: binding.into(), kind, role: role.name.as_str().into() };
        let holders: Vec<Holder> = subjects.iter().map(|subject| Holder::new(subject, namespace)).collect();
        for holder in &holders {
            let grants = match holder {
                Holder::User(name) => self.users.entry(name.clone()),
                Holder::Group(name) => self.groups.entry(name.clone()),
            }
            .or_default();
            // In order of names, so that the reason given for a decision does not depend on history.
            let at = grants.partition_point(|other| other.binding < grant.binding);
            if grants.get(at).is_none_or(|other| other.binding != grant.binding) {
                grants.insert(at, grant.clone());
            }
        }
        self.subjects.insert(binding.to_owned(), holders);
    }

    fn is_empty(&self) -> bool {
        self.subjects.is_empty()
    }
}

/// A grant that a decision looks at.
pub(super) struct Visited<'i> {
    /// `User` or `Group`, and its name.
    holder: (&'static str, &'i str),
    grant: &'i Grant,
    /// `None` for cluster role bindings.
    namespace: Option<&'i str>,
    /// `None` if the role does not exist.
    pub(super) rules: Option<&'i [PolicyRule]>,
}

impl Visited<'_> {
    fn reason(&self) -> String {
        let (kind, name) = self.holder;
        let role = if self.grant.kind == RoleKind::ClusterRole { "ClusterRole" } else { "Role" };
        let binding = match self.namespace {
            None => format!("ClusterRoleBinding {:?}", self.grant.binding),
            Some(namespace) => format!("RoleBinding {:?}", format!("{}/{namespace}", self.grant.binding)),
        };
        format!("RBAC: allowed by {binding} of {role} {:?} to {kind} {name:?}", self.grant.role)
    }

    /// What is wrong with the grant.
    pub(super) fn problem(&self) -> Option<String> {
        let role = if self.grant.kind == RoleKind::ClusterRole { "clusterrole" } else { "role" };
        let text = || format!("{role}.rbac.authorization.k8s.io {:?} not found", self.grant.role);
        self.rules.is_none().then(text)
    }
}

/// No role of the user allows the request. `problems` names roles that are bound to the user and do not exist.
#[derive(Debug, thiserror::Error)]
#[error("{}", described(.problems))]
pub struct NotAllowed {
    problems: Vec<String>,
}

fn described(problems: &[String]) -> String {
    match problems {
        [] => String::new(),
        [one] => format!("RBAC: {one}"),
        many => format!("RBAC: [{}]", many.join(", ")),
    }
}

impl Index {
    /// Puts a role in, or takes it out.
    pub fn set_cluster_role(&mut self, name: &str, role: Option<ClusterRole>) {
        match role {
            Some(role) => drop(self.cluster_roles.insert(name.to_owned(), role.rules.unwrap_or_default().into())),
            None => drop(self.cluster_roles.remove(name)),
        }
    }

    pub fn set_role(&mut self, key: &str, role: Option<Role>) {
        match role {
            Some(role) => drop(self.roles.insert(key.to_owned(), role.rules.unwrap_or_default().into())),
            None => drop(self.roles.remove(key)),
        }
    }

    pub fn set_cluster_binding(&mut self, name: &str, binding: Option<ClusterRoleBinding>) {
        match binding {
            Some(binding) => self.cluster_bindings.insert(
                name,
                &binding.role_ref,
                binding.subjects.as_deref().unwrap_or_default(),
                "",
            ),
            None => self.cluster_bindings.remove(name),
        }
    }

    /// `key` is `<namespace>/<name>`.
    pub fn set_binding(&mut self, key: &str, binding: Option<RoleBinding>) {
        let Some((namespace, name)) = key.split_once('/') else { return };
        match binding {
            Some(binding) => {
                let bindings = self.bindings.entry(namespace.to_owned()).or_default();
                bindings.insert(name, &binding.role_ref, binding.subjects.as_deref().unwrap_or_default(), namespace);
            }
            None => {
                if let Some(bindings) = self.bindings.get_mut(namespace) {
                    bindings.remove(name);
                    if bindings.is_empty() {
                        self.bindings.remove(namespace);
                    }
                }
            }
        }
    }

    pub(super) fn clear_cluster_roles(&mut self) {
        self.cluster_roles.clear();
    }

    pub(super) fn clear_roles(&mut self) {
        self.roles.clear();
    }

    pub(super) fn clear_cluster_bindings(&mut self) {
        self.cluster_bindings = Bindings::default();
    }

    pub(super) fn clear_bindings(&mut self) {
        self.bindings.clear();
    }

    /// `Ok` with the reason if a role of the user allows the request.
    pub fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Result<String, NotAllowed> {
        let mut problems = Vec::new();
        let mut reason = None;
        self.visit(user, &attributes.namespace, |visited| {
            problems.extend(visited.problem());
            let allowed = visited.rules.is_some_and(|rules| rules.iter().any(|rule| allows(rule, attributes)));
            if allowed {
                reason = Some(visited.reason());
            }
            allowed
        });
        reason.ok_or(NotAllowed { problems })
    }

    /// The rules of a role, or `None` if there is no such role.
    pub(super) fn role_rules(&self, role: &RoleRef, namespace: &str) -> Option<Arc<[PolicyRule]>> {
        match role.kind.as_str() {
            "ClusterRole" => self.cluster_roles.get(&role.name).cloned(),
            _ => self.roles.get(&format!("{namespace}/{}", role.name)).cloned(),
        }
    }

    /// Calls `visit` with each grant of the user and the rules behind it, until it returns true.
    pub(super) fn visit<'i>(
        &'i self,
        user: &'i UserInfo,
        namespace: &'i str,
        mut visit: impl FnMut(Visited<'i>) -> bool,
    ) {
        let local = self.bindings.get(namespace).filter(|_| !namespace.is_empty());
        let places = [Some((&self.cluster_bindings, None)), local.map(|local| (local, Some(namespace)))];
        for (bindings, namespace) in places.into_iter().flatten() {
            let of_user = bindings.users.get(&user.name).map(|grants| (("User", user.name.as_str()), grants));
            let of_groups = user
                .groups
                .iter()
                .filter_map(|group| bindings.groups.get(group).map(|grants| (("Group", group.as_str()), grants)));
            for (holder, grants) in of_user.into_iter().chain(of_groups) {
                for grant in grants {
                    let rules = match (grant.kind, namespace) {
                        (RoleKind::ClusterRole, _) => self.cluster_roles.get(&*grant.role),
                        (RoleKind::Role, Some(namespace)) => self.roles.get(&format!("{namespace}/{}", grant.role)),
                        (RoleKind::Role, None) => None,
                    };
                    if visit(Visited { holder, grant, namespace, rules: rules.map(|rules| &**rules) }) {
                        return;
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn from<T: serde::de::DeserializeOwned>(value: serde_json::Value) -> Option<T> {
        Some(serde_json::from_value(value).unwrap())
    }

    fn index() -> Index {
        let mut index = Index::default();
        let rules = |verb: &str, resource: &str| json!({"rules": [{"verbs": [verb], "apiGroups": [""], "resources": [resource]}]});
        index.set_cluster_role("reader", from(rules("get", "pods")));
        index.set_role("a/writer", from(rules("update", "pods")));
        let subject = |kind: &str, name: &str| json!([{"kind": kind, "name": name}]);
        let binding = |kind: &str, role: &str, subjects| json!({"roleRef": {"apiGroup": "", "kind": kind, "name": role}, "subjects": subjects});
        index.set_cluster_binding("all", from(binding("ClusterRole", "reader", subject("Group", "dev"))));
        index.set_cluster_binding("lost", from(binding("ClusterRole", "gone", subject("User", "eve"))));
        index.set_binding("a/w", from(binding("Role", "writer", subject("User", "ann"))));
        index.set_binding("a/s", from(binding("ClusterRole", "reader", subject("ServiceAccount", "robot"))));
        index
    }

    fn decide(index: &Index, user: &str, groups: &[&str], verb: &str, namespace: &str) -> Result<String, String> {
        let attributes = Attributes {
            is_resource: true,
            verb: verb.into(),
            resource: "pods".into(),
            namespace: namespace.into(),
            ..Default::default()
        };
        index.decide(&UserInfo::new(user, groups), &attributes).map_err(|refused| refused.to_string())
    }

    #[test]
    fn bindings_reach_their_subjects_and_nobody_else() {
        let index = index();
        for (user, groups, verb, namespace, allowed) in [
            ("x", &["dev"][..], "get", "a", true),
            ("x", &["dev"], "get", "", true),
            ("x", &["dev"], "update", "a", false),
            ("x", &[], "get", "a", false),
            ("dev", &[], "get", "a", false),
            ("ann", &[], "update", "a", true),
            ("ann", &[], "update", "b", false),
            ("ann", &[], "update", "", false),
            ("x", &["ann"], "update", "a", false),
            ("system:serviceaccount:a:robot", &[], "get", "a", true),
            ("system:serviceaccount:b:robot", &[], "get", "a", false),
            ("eve", &[], "get", "a", false),
        ] {
            assert_eq!(decide(&index, user, groups, verb, namespace).is_ok(), allowed, "{user} {verb} {namespace}");
        }
        let reason = decide(&index, "ann", &[], "update", "a").unwrap();
        assert_eq!(reason, r#"RBAC: allowed by RoleBinding "w/a" of Role "writer" to User "ann""#);
        let problem = decide(&index, "eve", &[], "get", "a").unwrap_err();
        assert_eq!(problem, r#"RBAC: clusterrole.rbac.authorization.k8s.io "gone" not found"#);
    }

    #[test]
    fn what_is_taken_away_no_longer_counts() {
        let mut index = index();
        index.set_binding("a/w", None);
        assert!(decide(&index, "ann", &[], "update", "a").is_err());
        index.set_cluster_binding(
            "all",
            from(json!({"roleRef": {"apiGroup": "", "kind": "ClusterRole", "name": "reader"}})),
        );
        assert!(decide(&index, "x", &["dev"], "get", "a").is_err());
        index.set_cluster_role("reader", None);
        assert!(decide(&index, "system:serviceaccount:a:robot", &[], "get", "a").is_err());
        assert!(
            !index.cluster_bindings.groups.contains_key("dev") && !index.cluster_bindings.users.contains_key("ann")
        );
    }
}

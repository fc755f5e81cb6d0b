//! The roles and bindings every cluster starts with, reconciled when the server starts.

use std::sync::OnceLock;

use k8s_openapi::api::rbac::v1::{
    AggregationRule, ClusterRole, ClusterRoleBinding, PolicyRule, Role, RoleBinding, RoleRef, Subject,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};

const TABLE: &str = include_str!("bootstrap_policy.txt");
const GROUP: &str = "rbac.authorization.k8s.io";
const CONTROLLER: &str = "system:controller:";

/// The parsed table.
#[derive(Default)]
pub(crate) struct Policy {
    pub(crate) cluster_roles: Vec<ClusterRole>,
    pub(crate) cluster_role_bindings: Vec<ClusterRoleBinding>,
    pub(crate) roles: Vec<Role>,
    pub(crate) role_bindings: Vec<RoleBinding>,
}

pub(crate) fn policy() -> &'static Policy {
    static POLICY: OnceLock<Policy> = OnceLock::new();
    POLICY.get_or_init(|| parse(TABLE))
}

/// What a kubelet may do at most; the node authorizer narrows it to its own objects.
pub(crate) fn node_rules() -> &'static [PolicyRule] {
    let role = policy().cluster_roles.iter().find(|role| role.metadata.name.as_deref() == Some("system:node"));
    role.and_then(|role| role.rules.as_deref()).unwrap_or_default()
}

fn parse(table: &str) -> Policy {
    let mut policy = Policy::default();
    let mut to_cluster_role = true;
    for line in table.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            _ if line.starts_with("  ") => {
                let rule = rule(&words);
                if to_cluster_role {
                    let role = policy.cluster_roles.last_mut();
                    role.into_iter().for_each(|role| role.rules.get_or_insert_default().push(rule.clone()));
                } else {
                    let role = policy.roles.last_mut();
                    role.into_iter().for_each(|role| role.rules.get_or_insert_default().push(rule.clone()));
                }
            }
            ["clusterrole", name, options @ ..] => {
                to_cluster_role = true;
                policy.cluster_roles.push(cluster_role(name, options));
            }
            ["role", namespace, name] => {
                to_cluster_role = false;
                policy.roles.push(Role { metadata: meta(name, Some(namespace)), ..Default::default() });
            }
            ["clusterrolebinding", name, "->", role, subjects @ ..] => {
                policy.cluster_role_bindings.push(cluster_binding(name, role, subjects));
            }
            ["rolebinding", namespace, name, "->", kind, role, subjects @ ..] => {
                let kind = if *kind == "role" { "Role" } else { "ClusterRole" };
                policy.role_bindings.push(RoleBinding {
                    metadata: meta(name, Some(namespace)),
                    role_ref: RoleRef {
                        api_group: Some(GROUP.to_owned()),
                        kind: kind.to_owned(),
                        name: (*role).to_owned(),
                    },
                    subjects: Some(subjects_of(subjects)),
                });
            }
            _ => {}
        }
    }
    let controllers: Vec<String> = policy
        .cluster_roles
        .iter()
        .filter_map(|role| role.metadata.name.as_deref()?.strip_prefix(CONTROLLER).map(str::to_owned))
        .collect();
    for name in controllers {
        let role = format!("{CONTROLLER}{name}");
        policy.cluster_role_bindings.push(cluster_binding(&role, &role, &["account", &format!("kube-system/{name}")]));
    }
    aggregate(&mut policy.cluster_roles);
    policy
}

fn meta(name: &str, namespace: Option<&str>) -> ObjectMeta {
    let pair = |key: &str, value: &str| Some([(key.to_owned(), value.to_owned())].into());
    ObjectMeta {
        name: Some(name.to_owned()),
        namespace: namespace.map(str::to_owned),
        labels: pair("kubernetes.io/bootstrapping", "rbac-defaults"),
        annotations: pair("rbac.authorization.kubernetes.io/autoupdate", "true"),
        ..Default::default()
    }
}

fn aggregate_label(to: &str) -> String {
    format!("{GROUP}/aggregate-to-{to}")
}

fn cluster_role(name: &str, options: &[&str]) -> ClusterRole {
    let mut role = ClusterRole { metadata: meta(name, None), ..Default::default() };
    for option in options.chunks_exact(2) {
        let label = aggregate_label(option[1]);
        if option[0] == "label" {
            role.metadata.labels.get_or_insert_default().insert(label, "true".to_owned());
        } else {
            let selector =
                LabelSelector { match_labels: Some([(label, "true".to_owned())].into()), ..Default::default() };
            let rule = role.aggregation_rule.get_or_insert_with(AggregationRule::default);
            rule.cluster_role_selectors.get_or_insert_default().push(selector);
        }
    }
    role
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| if item == "core" { String::new() } else { item.to_owned() }).collect()
}

fn rule(words: &[&str]) -> PolicyRule {
    match words {
        [verbs, "url", urls] => {
            PolicyRule { verbs: list(verbs), non_resource_urls: Some(list(urls)), ..Default::default() }
        }
        [verbs, "@", groups, ":", resources, rest @ ..] => PolicyRule {
            verbs: list(verbs),
            api_groups: Some(list(groups)),
            resources: Some(list(resources)),
            resource_names: rest.get(1).map(|names| list(names)),
            ..Default::default()
        },
        _ => PolicyRule::default(),
    }
}

fn subjects_of(words: &[&str]) -> Vec<Subject> {
    words
        .chunks_exact(2)
        .map(|pair| match (pair[0], pair[1].split_once('/')) {
            ("account", Some((namespace, name))) => Subject {
                kind: "ServiceAccount".to_owned(),
                name: name.to_owned(),
                namespace: Some(namespace.to_owned()),
                api_group: None,
            },
            (kind, _) => Subject {
                kind: if kind == "group" { "Group" } else { "User" }.to_owned(),
                name: pair[1].to_owned(),
                namespace: None,
                api_group: Some(GROUP.to_owned()),
            },
        })
        .collect()
}

fn cluster_binding(name: &str, role: &str, subjects: &[&str]) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: meta(name, None),
        role_ref: RoleRef { api_group: Some(GROUP.to_owned()), kind: "ClusterRole".to_owned(), name: role.to_owned() },
        subjects: Some(subjects_of(subjects)),
    }
}

/// Fills roles that collect others, so that they work before the aggregation controller runs. `view` goes into `edit`
/// and `edit` into `admin`, hence the repeated passes.
fn aggregate(roles: &mut [ClusterRole]) {
    for _ in 0..3 {
        for index in 0..roles.len() {
            let Some(rule) = roles[index].aggregation_rule.clone() else { continue };
            let wanted: Vec<String> = rule
                .cluster_role_selectors
                .iter()
                .flatten()
                .flat_map(|selector| selector.match_labels.iter().flatten().map(|(key, _)| key.clone()))
                .collect();
            let mut rules: Vec<PolicyRule> = Vec::new();
            for (other, role) in roles.iter().enumerate() {
                let labels = role.metadata.labels.as_ref();
                let wanted = wanted.iter().any(|key| labels.is_some_and(|labels| labels.contains_key(key)));
                if other != index && wanted {
                    for rule in role.rules.iter().flatten() {
                        if !rules.contains(rule) {
                            rules.push(rule.clone());
                        }
                    }
                }
            }
            roles[index].rules = Some(rules);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_parses() {
        let policy = policy();
        let role =
            |name: &str| policy.cluster_roles.iter().find(|role| role.metadata.name.as_deref() == Some(name)).unwrap();
        assert_eq!(role("cluster-admin").rules.as_ref().unwrap().len(), 2);
        assert!(role("admin").rules.as_ref().unwrap().len() > role("view").rules.as_ref().unwrap().len());
        assert!(!node_rules().is_empty());
        for role in &policy.cluster_roles {
            for rule in role.rules.iter().flatten() {
                assert!(!rule.verbs.is_empty(), "{:?}", role.metadata.name);
            }
        }
        let bound = |name: &str| {
            policy.cluster_role_bindings.iter().any(|binding| binding.metadata.name.as_deref() == Some(name))
        };
        assert!(bound("cluster-admin") && bound("system:controller:replicaset-controller"));
    }
}

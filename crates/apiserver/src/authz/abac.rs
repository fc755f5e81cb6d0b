//! ABAC: one policy per line of a file (`--authorization-policy-file`); the first that matches allows.

use std::path::{Path, PathBuf};

use anyhow::Context;
use api::UserInfo;
use k8s_openapi::api::rbac::v1::PolicyRule;
use serde::Deserialize;
use serde_json::Value;
use tls::Reloading;

use super::{Attributes, Opinion};

pub(crate) struct Abac(Reloading<Vec<Policy>>);

/// The `spec` of a `v1beta1` policy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Policy {
    user: String,
    group: String,
    readonly: bool,
    api_group: String,
    resource: String,
    namespace: String,
    #[serde(rename = "nonResourcePath")]
    path: String,
}

impl Abac {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let load = |files: &[PathBuf]| {
            let named = || format!("policy file {}", files[0].display());
            parse(&std::fs::read_to_string(&files[0]).with_context(named)?).with_context(named)
        };
        Ok(Self(Reloading::new(vec![path.to_owned()], load)?))
    }

    pub(super) fn decide(&self, user: &UserInfo, attributes: &Attributes) -> Opinion {
        let allowed = self.0.get().iter().any(|policy| policy.names(user) && policy.matches(attributes));
        if allowed { Opinion::Allow(String::new()) } else { Opinion::None("No policy matched.".to_owned()) }
    }

    /// What the file allows a user in a namespace, as rules.
    pub(super) fn rules_for(&self, user: &UserInfo, namespace: &str) -> Vec<PolicyRule> {
        let mut rules = Vec::new();
        for policy in self.0.get().iter().filter(|policy| policy.names(user)) {
            if policy.namespace != "*" && policy.namespace != namespace {
                continue;
            }
            let verbs: &[&str] = if policy.readonly { &["get", "list", "watch"] } else { &["*"] };
            let verbs: Vec<String> = verbs.iter().map(|verb| (*verb).to_owned()).collect();
            if !policy.resource.is_empty() {
                rules.push(PolicyRule {
                    verbs: verbs.clone(),
                    api_groups: Some(vec![policy.api_group.clone()]),
                    resources: Some(vec![policy.resource.clone()]),
                    ..Default::default()
                });
            }
            if !policy.path.is_empty() {
                let urls = Some(vec![policy.path.clone()]);
                rules.push(PolicyRule { verbs, non_resource_urls: urls, ..Default::default() });
            }
        }
        rules
    }
}

impl Policy {
    /// Whether it is about this user. A policy that names nobody is about nobody.
    fn names(&self, user: &UserInfo) -> bool {
        if self.user.is_empty() && self.group.is_empty() {
            return false;
        }
        (self.user.is_empty() || self.user == user.name) && (self.group.is_empty() || user.in_group(&self.group))
    }

    fn matches(&self, attributes: &Attributes) -> bool {
        if self.readonly && !attributes.verb.is_read() {
            return false;
        }
        let is = |pattern: &str, value: &str| pattern == "*" || pattern == value;
        if attributes.is_resource {
            return is(&self.namespace, &attributes.namespace)
                && is(&self.resource, &attributes.resource)
                && is(&self.api_group, &attributes.group);
        }
        is(&self.path, &attributes.path)
            || self.path.strip_suffix('*').is_some_and(|prefix| attributes.path.starts_with(prefix))
    }
}

fn parse(text: &str) -> anyhow::Result<Vec<Policy>> {
    let mut policies = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let policy = parse_line(line).with_context(|| format!("line {}: {line}", number + 1))?;
        policies.push(policy);
    }
    Ok(policies)
}

fn parse_line(line: &str) -> anyhow::Result<Policy> {
    let value: Value = serde_json::from_str(line)?;
    let is_versioned = value.get("apiVersion").is_some();
    let mut policy: Policy = if is_versioned {
        anyhow::ensure!(
            value["apiVersion"] == "abac.authorization.kubernetes.io/v1beta1" && value["kind"] == "Policy",
            "not a v1beta1 Policy"
        );
        serde_json::from_value(value["spec"].clone())?
    } else {
        serde_json::from_value(value)?
    };
    let everybody = policy.user == "*" || policy.group == "*";
    if everybody || !is_versioned && policy.user.is_empty() && policy.group.is_empty() {
        // Everybody is everybody who said who they are.
        policy.user = String::new();
        policy.group = api::user::AUTHENTICATED.to_owned();
    }
    if !is_versioned {
        // The first format had no groups of resources, and what is absent means everything.
        policy.api_group = "*".to_owned();
        let anywhere = policy.namespace.is_empty() && policy.resource.is_empty();
        policy.path = if anywhere { "*" } else { "" }.to_owned();
        for field in [&mut policy.namespace, &mut policy.resource] {
            if field.is_empty() {
                *field = "*".to_owned();
            }
        }
    }
    Ok(policy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(spec: &str) -> String {
        format!(r#"{{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{spec}}}"#)
    }

    #[test]
    fn policies_allow_what_they_say() {
        let text = [
            "# people".to_owned(),
            policy(r#"{"user":"ann","namespace":"*","resource":"*","apiGroup":"*"}"#),
            policy(r#"{"group":"dev","namespace":"a","resource":"pods","readonly":true}"#),
            policy(r#"{"user":"bob","group":"ops","namespace":"a","resource":"pods"}"#),
            policy(r#"{"group":"*","nonResourcePath":"/healthz*","readonly":true}"#),
            policy(r#"{"namespace":"*","resource":"*","apiGroup":"*"}"#),
            r#"{"user":"old","namespace":"a","resource":"secrets"}"#.to_owned(),
        ]
        .join("\n");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy");
        std::fs::write(&file, text).unwrap();
        let abac = Abac::load(&file).unwrap();
        for (user, groups, verb, what, allowed) in [
            ("ann", &[][..], "delete", "apps:x deployments", true),
            ("ann", &[], "get", "/metrics", false),
            ("x", &["dev"], "list", ":a pods", true),
            ("x", &["dev"], "create", ":a pods", false),
            ("x", &["dev"], "list", ":b pods", false),
            ("x", &["dev"], "list", "apps:a pods", false),
            ("bob", &["ops"], "create", ":a pods", true),
            ("bob", &[], "create", ":a pods", false),
            ("x", &["ops"], "create", ":a pods", false),
            ("x", &["system:authenticated"], "get", "/healthz/etcd", true),
            ("system:anonymous", &["system:unauthenticated"], "get", "/healthz/etcd", false),
            ("x", &["system:authenticated"], "post", "/healthz", false),
            ("nobody", &[], "get", ":a pods", false),
            ("old", &[], "create", ":a secrets", true),
            ("old", &[], "create", ":b secrets", false),
        ] {
            let attributes = match what.split_once(' ') {
                None => Attributes { verb: verb.into(), path: what.into(), ..Default::default() },
                Some((place, resource)) => {
                    let (group, namespace) = place.split_once(':').unwrap();
                    Attributes {
                        is_resource: true,
                        verb: verb.into(),
                        group: group.into(),
                        namespace: namespace.into(),
                        resource: resource.into(),
                        ..Default::default()
                    }
                }
            };
            let found = matches!(abac.decide(&UserInfo::new(user, groups), &attributes), Opinion::Allow(_));
            assert_eq!(found, allowed, "{user} {groups:?} {verb} {what}");
        }
        assert_eq!(abac.rules_for(&UserInfo::new("x", &["dev"]), "a").len(), 1);
    }

    #[test]
    fn mistakes_are_named_by_line() {
        for text in ["{", &policy("7"), r#"{"apiVersion":"v1","kind":"Policy"}"#] {
            let error = format!("{:#}", parse(&format!("\n{text}")).unwrap_err());
            assert!(error.starts_with("line 2"), "{error}");
        }
    }
}

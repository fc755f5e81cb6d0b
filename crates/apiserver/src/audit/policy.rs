//! Audit policy: how much of which request is recorded (`--audit-policy-file`).

use std::path::{Path, PathBuf};

use anyhow::Context;
use api::UserInfo;
use serde::{Deserialize, Serialize};

use crate::authz::Attributes;

/// How much is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Level {
    #[default]
    None,
    Metadata,
    Request,
    RequestResponse,
}

/// When something is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Stage {
    RequestReceived,
    ResponseStarted,
    ResponseComplete,
    Panic,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Policy {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default, rename = "metadata")]
    _metadata: serde_json::Value,
    #[serde(default)]
    rules: Vec<Rule>,
    #[serde(default)]
    omit_stages: Vec<Stage>,
    #[serde(default)]
    omit_managed_fields: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Rule {
    level: Level,
    users: Vec<String>,
    user_groups: Vec<String>,
    verbs: Vec<String>,
    resources: Vec<Resources>,
    namespaces: Vec<String>,
    #[serde(rename = "nonResourceURLs")]
    urls: Vec<String>,
    omit_stages: Vec<Stage>,
    omit_managed_fields: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Resources {
    group: String,
    resources: Vec<String>,
    resource_names: Vec<String>,
}

/// What the policy says of one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) level: Level,
    pub(super) omit_stages: Vec<Stage>,
    pub(super) omit_managed_fields: bool,
}

/// Resources whose bodies are secrets. A rule records them only if it names the resource: one that says "everything" did
/// not mean passwords.
const SECRET: [(&str, &str, &str); 3] =
    [("", "secrets", ""), ("", "serviceaccounts", "token"), ("authentication.k8s.io", "tokenreviews", "")];

impl Policy {
    pub(super) fn load(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("audit policy file {}", path.display());
        Self::parse(&std::fs::read(path).with_context(named)?).with_context(named)
    }

    /// Without a file: who did what, and no bodies.
    pub(super) fn metadata_only() -> Self {
        let rules = vec![Rule { level: Level::Metadata, ..Default::default() }];
        Self { rules, omit_stages: vec![Stage::RequestReceived], ..Default::default() }
    }

    fn parse(bytes: &[u8]) -> anyhow::Result<Self> {
        let value = api::codec::from_yaml(bytes)?.value;
        let mut rules = value["rules"].as_array().into_iter().flatten();
        if let Some(index) = rules.position(|rule| rule["level"].as_str().is_none_or(str::is_empty)) {
            anyhow::bail!("rules[{index}].level: Required value");
        }
        let policy: Policy = serde_json::from_value(value)?;
        anyhow::ensure!(
            policy.api_version == "audit.k8s.io/v1" && policy.kind == "Policy",
            "unknown group version field {}, Kind={} in policy",
            policy.api_version,
            policy.kind
        );
        anyhow::ensure!(!policy.rules.is_empty(), "loaded illegal policy with 0 rules");
        for (index, rule) in policy.rules.iter().enumerate() {
            rule.check().with_context(|| format!("rules[{index}]"))?;
        }
        Ok(policy)
    }

    pub(super) fn judge(&self, user: Option<&UserInfo>, request: &Attributes) -> Verdict {
        let rule = self.rules.iter().find(|rule| rule.matches(user, request));
        let mut level = rule.map_or(Level::None, |rule| rule.level);
        let is_secret = SECRET.contains(&(&*request.group, &*request.resource, &*request.subresource));
        if request.is_resource && is_secret && !rule.is_some_and(|rule| rule.names(request)) {
            level = level.min(Level::Metadata);
        }
        let own = rule.map(|rule| rule.omit_stages.as_slice()).unwrap_or_default();
        Verdict {
            level,
            omit_stages: self.omit_stages.iter().chain(own).copied().collect(),
            omit_managed_fields: rule.and_then(|rule| rule.omit_managed_fields).unwrap_or(self.omit_managed_fields),
        }
    }
}

impl Rule {
    fn check(&self) -> anyhow::Result<()> {
        if !self.urls.is_empty() {
            anyhow::ensure!(
                self.resources.is_empty() && self.namespaces.is_empty(),
                "rules cannot apply to both regular resources and non-resource URLs"
            );
        }
        for url in self.urls.iter().filter(|url| *url != "*") {
            anyhow::ensure!(url.starts_with('/'), "{url:?}: non-resource URL rules must begin with a '/' character");
            let last = url.strip_suffix('*').unwrap_or(url);
            anyhow::ensure!(
                !last.contains('*'),
                "{url:?}: non-resource URL wildcards '*' must be the final character of the rule"
            );
        }
        for resources in &self.resources {
            anyhow::ensure!(
                resources.resource_names.is_empty() || !resources.resources.is_empty(),
                "using resourceNames requires at least one resource"
            );
        }
        Ok(())
    }

    fn matches(&self, user: Option<&UserInfo>, request: &Attributes) -> bool {
        let among = |list: &[String], value: &str| list.is_empty() || list.iter().any(|item| item == value);
        if !self.users.is_empty() && !user.is_some_and(|user| self.users.contains(&user.name)) {
            return false;
        }
        let groups = user.map(|user| user.groups.as_slice()).unwrap_or_default();
        if !self.user_groups.is_empty() && !groups.iter().any(|group| self.user_groups.contains(group)) {
            return false;
        }
        if !among(&self.verbs, request.verb.as_str()) {
            return false;
        }
        if !self.namespaces.is_empty() || !self.resources.is_empty() {
            return request.is_resource
                && among(&self.namespaces, &request.namespace)
                && (self.resources.is_empty()
                    || self.resources.iter().any(|resources| resources.match_request(request)));
        }
        if self.urls.is_empty() {
            return true;
        }
        !request.is_resource
            && self.urls.iter().any(|url| {
                url == "*"
                    || *url == request.path
                    || url.strip_suffix('*').is_some_and(|prefix| request.path.starts_with(prefix))
            })
    }

    /// Whether the resource is spelled out.
    fn names(&self, request: &Attributes) -> bool {
        let wanted = combined(request);
        self.resources.iter().any(|resources| resources.resources.contains(&wanted))
    }
}

impl Resources {
    fn match_request(&self, request: &Attributes) -> bool {
        if self.group != "*" && self.group != request.group {
            return false;
        }
        if self.resources.is_empty() {
            return true;
        }
        if !self.resource_names.is_empty() && !self.resource_names.contains(&request.name) {
            return false;
        }
        let wanted = combined(request);
        self.resources.iter().any(|pattern| {
            *pattern == wanted
                || pattern == "*"
                || (!request.subresource.is_empty() && pattern.strip_prefix("*/") == Some(request.subresource.as_str()))
                || pattern.strip_suffix("/*") == Some(request.resource.as_str())
        })
    }
}

fn combined(request: &Attributes) -> String {
    match request.subresource.as_str() {
        "" => request.resource.clone(),
        subresource => format!("{}/{subresource}", request.resource),
    }
}

/// Loads the first of the files.
pub(super) fn load(files: &[PathBuf]) -> anyhow::Result<Policy> {
    files.first().map_or_else(|| Ok(Policy::metadata_only()), |path| Policy::load(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(rules: &str) -> anyhow::Result<Policy> {
        Policy::parse(
            format!("apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [Panic]\nrules:\n{rules}").as_bytes(),
        )
    }

    fn request(text: &str) -> Attributes {
        let words: Vec<&str> = text.split(' ').collect();
        match words.as_slice() {
            [verb, path] => Attributes { verb: (*verb).into(), path: (*path).into(), ..Default::default() },
            [verb, resource, namespace, name] => {
                let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
                Attributes {
                    is_resource: true,
                    verb: (*verb).into(),
                    resource: resource.into(),
                    subresource: subresource.into(),
                    namespace: (*namespace).into(),
                    name: (*name).into(),
                    ..Default::default()
                }
            }
            _ => panic!("{text}"),
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(
            "- {level: None, users: [quiet]}\n\
             - {level: RequestResponse, resources: [{group: '', resources: [pods, 'pods/*']}], namespaces: [a], verbs: [create, get]}\n\
             - {level: Request, resources: [{group: '', resources: [configmaps], resourceNames: [one]}], omitStages: [RequestReceived]}\n\
             - {level: None, nonResourceURLs: ['/healthz*', /version]}\n\
             - {level: Request, userGroups: [dev], omitManagedFields: true}\n\
             - {level: Metadata, resources: [{group: '', resources: ['*/status']}]}\n",
        )
        .unwrap();
        for (user, groups, text, level) in [
            ("quiet", &[][..], "get pods a p", Level::None),
            ("x", &[], "get pods a p", Level::RequestResponse),
            ("x", &[], "get pods/log a p", Level::RequestResponse),
            ("x", &[], "get pods b p", Level::None),
            ("x", &[], "delete pods a p", Level::None),
            ("x", &[], "get configmaps a one", Level::Request),
            ("x", &[], "get configmaps a two", Level::None),
            ("x", &["dev"], "get configmaps a two", Level::Request),
            ("x", &["dev"], "get secrets a s", Level::Metadata),
            ("x", &["dev"], "get /healthz/etcd", Level::None),
            ("x", &["dev"], "get /metrics", Level::Request),
            ("x", &[], "update nodes/status  n", Level::Metadata),
        ] {
            let verdict = policy.judge(Some(&UserInfo::new(user, groups)), &request(text));
            assert_eq!(verdict.level, level, "{user} {text}");
        }
        let verdict = policy.judge(None, &request("get configmaps a one"));
        assert_eq!(verdict.omit_stages, [Stage::Panic, Stage::RequestReceived]);
        assert!(policy.judge(Some(&UserInfo::new("x", &["dev"])), &request("get /metrics")).omit_managed_fields);
    }

    #[test]
    fn secrets_are_recorded_only_where_they_are_named() {
        let all = policy("- {level: RequestResponse}").unwrap();
        let named = policy("- {level: RequestResponse, resources: [{group: '', resources: [secrets]}]}").unwrap();
        for (policy, text, level) in [
            (&all, "get secrets a s", Level::Metadata),
            (&all, "create serviceaccounts/token a s", Level::Metadata),
            (&all, "get pods a p", Level::RequestResponse),
            (&named, "get secrets a s", Level::RequestResponse),
        ] {
            assert_eq!(policy.judge(None, &request(text)).level, level, "{text}");
        }
        assert_eq!(Policy::metadata_only().judge(None, &request("get pods a p")).level, Level::Metadata);
    }

    #[test]
    fn mistakes_are_refused() {
        for rules in [
            "[]",
            "- {users: [x]}",
            "- {level: Everything}",
            "- {level: None, nonResourceURLs: [healthz]}",
            "- {level: None, nonResourceURLs: ['/a*b']}",
            "- {level: None, nonResourceURLs: [/a], namespaces: [b]}",
            "- {level: None, resources: [{group: '', resourceNames: [x]}]}",
            "- {level: None, omitStages: [Never]}",
        ] {
            assert!(policy(rules).is_err(), "{rules}");
        }
        assert!(Policy::parse(b"apiVersion: v1\nkind: Policy\nrules: [{level: None}]").is_err());
    }
}

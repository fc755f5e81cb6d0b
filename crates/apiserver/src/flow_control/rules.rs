//! Which flow a request belongs to: the first schema that matches it, by precedence, and what tells its flows apart.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use api::UserInfo;
use api::sort::CompactSort as _;
use http::HeaderValue;
use k8s_openapi::api::flowcontrol::v1::{
    FlowSchema, NonResourcePolicyRule, PolicyRulesWithSubjects, ResourcePolicyRule, Subject,
};
use registry::unset::{items, or_empty};

use super::metrics::Counts;
use super::queue_set::LevelId;
use crate::request_info::RequestInfo;

/// Of schemas that match the same request, this is the order; the default is upstream's.
const DEFAULT_PRECEDENCE: i32 = 1000;

/// What a request was found to be: shown in the headers of its answer, and counted.
pub(crate) struct Flow {
    pub(super) schema: String,
    pub(super) level: LevelId,
    pub(super) is_exempt: bool,
    /// Nothing as long as the objects are not written.
    pub(crate) schema_uid: Option<HeaderValue>,
    pub(crate) level_uid: Option<HeaderValue>,
    pub(super) counts: Counts,
}

/// A level as schemas refer to it.
pub(super) struct LevelOf {
    pub(super) id: LevelId,
    pub(super) is_exempt: bool,
    pub(super) uid: Option<HeaderValue>,
}

enum Distinguisher {
    None,
    User,
    Namespace,
}

struct Row {
    precedence: i32,
    flow: Arc<Flow>,
    by: Distinguisher,
    rules: Vec<PolicyRulesWithSubjects>,
}

/// All schemas whose level exists, in the order in which they are tried.
#[derive(Default)]
pub(super) struct Table {
    rows: Vec<Row>,
}

impl Table {
    pub(super) fn new<'a>(
        schemas: impl Iterator<Item = &'a FlowSchema>,
        levels: &HashMap<String, LevelOf>,
        counts: impl Fn(&str, &str) -> Counts,
    ) -> Self {
        let row = |schema: &FlowSchema| {
            let spec = schema.spec.as_ref()?;
            let level_name = &spec.priority_level_configuration.name;
            let level = levels.get(level_name)?;
            let name = or_empty(&schema.metadata.name);
            let by = match spec.distinguisher_method.as_ref().map(|method| method.type_.as_str()) {
                Some("ByUser") => Distinguisher::User,
                Some("ByNamespace") => Distinguisher::Namespace,
                _ => Distinguisher::None,
            };
            let flow = Flow {
                schema: name.to_owned(),
                level: level.id,
                is_exempt: level.is_exempt,
                schema_uid: uid(schema.metadata.uid.as_deref()),
                level_uid: level.uid.clone(),
                counts: counts(level_name, name),
            };
            let precedence = spec.matching_precedence.unwrap_or(DEFAULT_PRECEDENCE);
            Some(Row { precedence, flow: Arc::new(flow), by, rules: items(&spec.rules).to_vec() })
        };
        let mut rows: Vec<Row> = schemas.filter_map(row).collect();
        rows.compact_sort_by(|a, b| (a.precedence, &a.flow.schema).cmp(&(b.precedence, &b.flow.schema)));
        Self { rows }
    }

    /// The flow of a request, and a number that its requests have in common. The catch-all schema, which cannot be
    /// deleted, takes what no other does; without it, at the very beginning, nothing is limited.
    pub(super) fn classify(&self, info: &RequestInfo, user: &UserInfo) -> Option<(&Arc<Flow>, u64)> {
        let row = self.rows.iter().find(|row| row.rules.iter().any(|rule| matches(rule, info, user)))?;
        let distinguisher = match row.by {
            Distinguisher::None => "",
            Distinguisher::User => &user.name,
            Distinguisher::Namespace => &info.namespace,
        };
        let mut hasher = DefaultHasher::new();
        (&row.flow.schema, distinguisher).hash(&mut hasher);
        Some((&row.flow, hasher.finish()))
    }
}

pub(super) fn uid(text: Option<&str>) -> Option<HeaderValue> {
    HeaderValue::from_str(text?).ok()
}

fn matches(rule: &PolicyRulesWithSubjects, info: &RequestInfo, user: &UserInfo) -> bool {
    rule.subjects.iter().any(|subject| is_about(subject, user))
        && if info.is_resource {
            items(&rule.resource_rules).iter().any(|rule| covers_resource(rule, info))
        } else {
            items(&rule.non_resource_rules).iter().any(|rule| covers_path(rule, info))
        }
}

fn is_about(subject: &Subject, user: &UserInfo) -> bool {
    if let Some(named) = &subject.user {
        return named.name == "*" || named.name == user.name;
    }
    if let Some(group) = &subject.group {
        return group.name == "*" || user.in_group(&group.name);
    }
    let Some(account) = &subject.service_account else { return false };
    let of = user.name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    of.is_some_and(|(namespace, name)| namespace == account.namespace && (account.name == "*" || account.name == name))
}

fn covers_resource(rule: &ResourcePolicyRule, info: &RequestInfo) -> bool {
    has(&rule.verbs, info.verb.as_str())
        && rule.resources.iter().any(|listed| match listed.split_once('/') {
            None => listed == "*" || (*listed == info.resource && info.subresource.is_empty()),
            Some((resource, subresource)) => resource == info.resource && subresource == info.subresource,
        })
        && has(&rule.api_groups, &info.group)
        && if info.namespace.is_empty() {
            rule.cluster_scope == Some(true)
        } else {
            has(items(&rule.namespaces), &info.namespace)
        }
}

/// A listed path covers all those below it.
fn covers_path(rule: &NonResourcePolicyRule, info: &RequestInfo) -> bool {
    has(&rule.verbs, info.verb.as_str())
        && rule.non_resource_urls.iter().any(|listed| {
            let stem = listed.strip_suffix('*').unwrap_or(listed);
            let stem = stem.strip_suffix('/').unwrap_or(stem);
            listed == "*"
                || *listed == info.path
                || info.path.strip_prefix(stem).is_some_and(|rest| rest.starts_with('/'))
        })
}

fn has(listed: &[String], value: &str) -> bool {
    listed.iter().any(|listed| listed == "*" || listed == value)
}

//! FlowSchema: which requests go to which priority level.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::flowcontrol::v1::{FlowSchema, PolicyRulesWithSubjects, ResourcePolicyRule, Subject};
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{items, or_empty};
use crate::{Strategy, cells};

pub struct FlowSchemaStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("PriorityLevel", "Where the requests go."),
    Column::string("MatchingPrecedence", "Lower is asked first."),
    Column::string("DistinguisherMethod", "What makes a flow."),
    Column::AGE,
    Column::string("MissingPL", "Whether the priority level does not exist."),
];

const DEFAULT_PRECEDENCE: i32 = 1000;

impl Strategy for FlowSchemaStrategy {
    type Object = FlowSchema;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, schema: &mut FlowSchema) {
        if let Some(spec) = &mut schema.spec
            && spec.matching_precedence.unwrap_or(0) == 0
        {
            spec.matching_precedence = Some(DEFAULT_PRECEDENCE);
        }
    }

    fn validate_create(&self, schema: &FlowSchema) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let name = or_empty(&schema.metadata.name);
        let spec = schema.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        let precedence = spec.matching_precedence.unwrap_or(0);
        if precedence <= 0 {
            errors.invalid(path.child("matchingPrecedence"), precedence, "must be a positive value");
        }
        if precedence > 10_000 {
            errors.invalid(path.child("matchingPrecedence"), precedence, "must not be greater than 10000");
        }
        if precedence == 1 && name != "exempt" {
            let rule = "only the schema named 'exempt' may have matchingPrecedence 1";
            errors.invalid(path.child("matchingPrecedence"), precedence, rule);
        }
        if let Some(method) = &spec.distinguisher_method
            && !matches!(method.type_.as_str(), "ByNamespace" | "ByUser")
        {
            errors.not_supported(path.child("distinguisherMethod.type"), method, &["ByNamespace", "ByUser"]);
        }
        let level = &spec.priority_level_configuration.name;
        let level_path = path.child("priorityLevelConfiguration.name");
        if level.is_empty() {
            errors.required(level_path, "must reference a priority level");
        } else {
            errors.invalid_each(level_path, level, validation::dns1123_subdomain(level));
        }
        for (i, rule) in items(&spec.rules).iter().enumerate() {
            check_rule(rule, path.child("rules").index(i), &mut errors);
        }
        if let Some(fixed) = super::suggested::mandatory_schema(name)
            && json!(schema.spec) != fixed
        {
            errors.invalid(path, &schema.spec, format!("spec of '{name}' must equal the fixed value"));
        }
        errors
    }

    fn validate_update(&self, new: &FlowSchema, _: &FlowSchema) -> FieldErrors {
        self.validate_create(new)
    }

    fn validate_status_update(&self, new: &FlowSchema, _: &FlowSchema) -> FieldErrors {
        let conditions = new.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        check_conditions(conditions.iter().map(|condition| or_empty(&condition.type_)))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, schema: &FlowSchema, now: Timestamp) -> Vec<Value> {
        let spec = schema.spec.clone().unwrap_or_default();
        let status = schema.status.clone().unwrap_or_default();
        let dangling = items(&status.conditions).iter().find(|c| c.type_.as_deref() == Some("Dangling"));
        let dangling = dangling.and_then(|condition| condition.status.clone());
        vec![
            cells::name(&schema.metadata),
            json!(spec.priority_level_configuration.name),
            json!(spec.matching_precedence.unwrap_or(0)),
            json!(spec.distinguisher_method.as_ref().map_or("<none>", |method| method.type_.as_str())),
            cells::age(&schema.metadata, now),
            json!(dangling.as_deref().unwrap_or("?")),
        ]
    }
}

/// Conditions have a type, and each type once.
pub(super) fn check_conditions<'a>(types: impl Iterator<Item = &'a str>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let mut seen = Vec::new();
    for (i, kind) in types.enumerate() {
        let path = format!("status.conditions[{i}].type");
        if seen.contains(&kind) {
            errors.duplicate(&path, kind);
        }
        seen.push(kind);
        if kind.is_empty() {
            errors.required(path, "");
        }
    }
    errors
}

fn check_rule(rule: &PolicyRulesWithSubjects, path: Path<'_>, errors: &mut FieldErrors) {
    for (i, subject) in rule.subjects.iter().enumerate() {
        check_subject(subject, path.child("subjects").index(i), errors);
    }
    if rule.subjects.is_empty() {
        errors.required(path.child("subjects"), "subjects must contain at least one value");
    }
    let (resources, urls) = (items(&rule.resource_rules), items(&rule.non_resource_rules));
    if resources.is_empty() && urls.is_empty() {
        errors.required(path, "at least one of resourceRules and nonResourceRules has to be non-empty");
    }
    for (i, rule) in resources.iter().enumerate() {
        check_resources(rule, path.child("resourceRules").index(i), errors);
    }
    for (i, rule) in urls.iter().enumerate() {
        let rules = path.child("nonResourceRules");
        let path = rules.index(i);
        check_verbs(&rule.verbs, path.child("verbs"), errors);
        let path = path.child("nonResourceURLs");
        let urls = &rule.non_resource_urls;
        let missing = "nonResourceURLs must contain at least one value";
        if check_list(urls, path, (missing, "non-resource URLs"), errors) {
            for (i, url) in urls.iter().enumerate() {
                if let Some(problem) = url_problem(url) {
                    errors.invalid(path.index(i), url, problem);
                }
            }
        }
    }
}

/// A subject is of one kind, and says who for that kind and no other.
fn check_subject(subject: &Subject, path: Path<'_>, errors: &mut FieldErrors) {
    const KINDS: [(&str, &str); 3] = [("ServiceAccount", "serviceAccount"), ("User", "user"), ("Group", "group")];
    let given = [subject.service_account.is_some(), subject.user.is_some(), subject.group.is_some()];
    if !KINDS.iter().any(|(kind, _)| *kind == subject.kind) {
        errors.not_supported(path.child("kind"), &subject.kind, &["Group", "ServiceAccount", "User"]);
        return;
    }
    for ((kind, field), is_given) in KINDS.into_iter().zip(given) {
        if kind != subject.kind && is_given {
            errors.forbidden(path.child(field), format!("{field} is forbidden when subject kind is not '{kind}'"));
        } else if kind == subject.kind && !is_given {
            errors.required(path.child(field), format!("{field} is required when subject kind is '{kind}'"));
        }
    }
    match (subject.kind.as_str(), &subject.service_account, &subject.user, &subject.group) {
        ("ServiceAccount", Some(account), ..) => {
            let path = path.child("serviceAccount");
            match account.name.as_str() {
                "" => errors.required(path.child("name"), ""),
                "*" => {}
                name => errors.invalid_each(path.child("name"), name, validation::dns1123_subdomain(name)),
            }
            match account.namespace.as_str() {
                "" => errors.required(path.child("namespace"), "must specify namespace for service account"),
                name => errors.invalid_each(path.child("namespace"), name, validation::dns1123_label(name)),
            }
        }
        ("User", _, Some(user), _) if user.name.is_empty() => errors.required(path.child("user.name"), ""),
        ("Group", _, _, Some(group)) if group.name.is_empty() => errors.required(path.child("group.name"), ""),
        _ => {}
    }
}

const VERBS: [&str; 9] = ["create", "delete", "deletecollection", "get", "list", "patch", "proxy", "update", "watch"];

fn check_verbs(verbs: &[String], path: Path<'_>, errors: &mut FieldErrors) {
    let is_plain = check_list(verbs, path, ("verbs must contain at least one value", "verbs"), errors);
    if is_plain && !verbs.iter().all(|verb| VERBS.contains(&verb.as_str())) {
        errors.not_supported(path, verbs, &VERBS);
    }
}

/// A list needs something in it, and `*` stands alone. Returns whether there are names to look at.
fn check_list(list: &[String], path: Path<'_>, (missing, what): (&str, &str), errors: &mut FieldErrors) -> bool {
    let has_wildcard = list.iter().any(|item| item == "*");
    if list.is_empty() {
        errors.required(path, missing);
    } else if has_wildcard && list.len() > 1 {
        errors.invalid(path, list, format!("if '*' is present, must not specify other {what}"));
    }
    !list.is_empty() && !has_wildcard
}

fn check_resources(rule: &ResourcePolicyRule, path: Path<'_>, errors: &mut FieldErrors) {
    check_verbs(&rule.verbs, path.child("verbs"), errors);
    let missing = "resource rules must supply at least one api group";
    check_list(&rule.api_groups, path.child("apiGroups"), (missing, "api groups"), errors);
    let missing = "resource rules must supply at least one resource";
    check_list(&rule.resources, path.child("resources"), (missing, "resources"), errors);
    let namespaces = items(&rule.namespaces);
    if namespaces.is_empty() && rule.cluster_scope == Some(true) {
        return;
    }
    let missing = "resource rules that are not cluster scoped must supply at least one namespace";
    let path = path.child("namespaces");
    if check_list(namespaces, path, (missing, "namespaces"), errors) {
        for (i, name) in namespaces.iter().enumerate() {
            for problem in validation::dns1123_label(name) {
                let rule = format!("each member of this list must be '*' or a DNS-1123 label; {problem}");
                errors.invalid(path.index(i), name, rule);
            }
        }
    }
}

/// What is wrong with a path that requests are matched with.
fn url_problem(url: &str) -> Option<&'static str> {
    match url {
        "" => Some("must not be empty"),
        "/" => None,
        _ if !url.starts_with('/') => Some("must start with slash"),
        _ if url.contains(' ') => Some("must not contain white-space"),
        _ if url.contains("//") => Some("must not contain double slash"),
        _ if url.find('*').is_some_and(|at| at != url.len() - 1 || !url.ends_with("/*")) => {
            Some("wildcard can only do suffix matching")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_say_whom_and_what_they_are_about() {
        let schema = |change: fn(&mut Value)| {
            let mut value = json!({"metadata": {"name": "s"}, "spec": {"matchingPrecedence": 5,
                "priorityLevelConfiguration": {"name": "l"}, "rules": [{
                    "subjects": [{"kind": "User", "user": {"name": "ann"}}],
                    "resourceRules": [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["pods"], "namespaces": ["a"]}],
                    "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["/a/*", "/"]}]}]}});
            change(&mut value);
            FlowSchemaStrategy.validate_create(&serde_json::from_value(value).unwrap()).to_string()
        };
        assert_eq!(schema(|_| {}), "[]");
        for (change, expected) in [
            ((|s| s["spec"]["matchingPrecedence"] = 1.into()) as fn(&mut Value), "only the schema named 'exempt'"),
            (|s| s["metadata"]["name"] = "catch-all".into(), "spec of 'catch-all' must equal the fixed value"),
            (
                |s| s["spec"]["rules"][0]["subjects"][0]["kind"] = "Group".into(),
                "group is required when subject kind is 'Group'",
            ),
            (
                |s| s["spec"]["rules"][0]["subjects"][0]["kind"] = "X".into(),
                "spec.rules[0].subjects[0].kind: Unsupported value",
            ),
            (
                |s| s["spec"]["rules"][0]["resourceRules"][0]["verbs"] = json!(["fly"]),
                "resourceRules[0].verbs: Unsupported value",
            ),
            (
                |s| s["spec"]["rules"][0]["resourceRules"][0]["resources"] = json!(["*", "a"]),
                "must not specify other resources",
            ),
            (|s| s["spec"]["rules"][0]["resourceRules"][0]["namespaces"] = json!([]), "at least one namespace"),
            (|s| s["spec"]["rules"][0]["resourceRules"][0]["namespaces"] = json!(["A"]), "each member of this list"),
            (|s| s["spec"]["rules"][0]["nonResourceRules"][0]["nonResourceURLs"] = json!(["/a*b"]), "only do suffix"),
        ] {
            let found = schema(change);
            assert!(found.contains(expected), "{expected}: {found}");
        }
        let twice = check_conditions(["a", "a", ""].into_iter()).to_string();
        assert!(twice.contains("status.conditions[1].type: Duplicate value") && twice.contains("[2].type: Required"));
    }
}

//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: servers that are asked about writes.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use cel::Type;
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration,
    WebhookClientConfig,
};
use serde_json::{Value, json};

use super::environment::{Compiler, Names};
use crate::column::Column;
use crate::metadata::label_selector;
use crate::unset::{items, items_mut, or_empty, set_text};
use crate::{Strategy, cells};

pub struct MutatingWebhookStrategy;
pub struct ValidatingWebhookStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::integer("Webhooks", "How many webhooks there are."), Column::AGE];

macro_rules! webhook_strategy {
    ($strategy:ty, $kind:ty, |$defaulted:ident| $more:block) => {
        impl Strategy for $strategy {
            type Object = $kind;
            const COUNTS_GENERATIONS: bool = true;
            const UNCONDITIONAL_UPDATE: bool = false;

            fn apply_defaults(&self, configuration: &mut $kind) {
                for $defaulted in items_mut(&mut configuration.webhooks) {
                    set_text(&mut $defaulted.failure_policy, "Fail");
                    set_text(&mut $defaulted.match_policy, "Equivalent");
                    $defaulted.namespace_selector.get_or_insert_default();
                    $defaulted.object_selector.get_or_insert_default();
                    $defaulted.timeout_seconds.get_or_insert(10);
                    if let Some(service) = &mut $defaulted.client_config.service {
                        service.port.get_or_insert(443);
                    }
                    for rule in items_mut(&mut $defaulted.rules) {
                        set_text(&mut rule.scope, "*");
                    }
                    $more
                }
            }

            fn validate_create(&self, configuration: &$kind) -> FieldErrors {
                let mut errors = FieldErrors::default();
                let mut names = BTreeSet::new();
                for (i, hook) in items(&configuration.webhooks).iter().enumerate() {
                    let path = Path::new("webhooks");
                    let path = path.index(i);
                    qualified(&mut errors, &path.child("name"), &hook.name);
                    if !names.insert(hook.name.as_str()) {
                        errors.duplicate(path.child("name"), &hook.name);
                    }
                    rules(&mut errors, &path.child("rules"), items(&hook.rules));
                    choice(
                        &mut errors,
                        &path.child("failurePolicy"),
                        or_empty(&hook.failure_policy),
                        &["Fail", "Ignore"],
                    );
                    choice(
                        &mut errors,
                        &path.child("matchPolicy"),
                        or_empty(&hook.match_policy),
                        &["Equivalent", "Exact"],
                    );
                    choice(&mut errors, &path.child("sideEffects"), &hook.side_effects, &["None", "NoneOnDryRun"]);
                    if let Some(seconds) = hook.timeout_seconds.filter(|seconds| !(1..=30).contains(seconds)) {
                        errors.invalid(
                            path.child("timeoutSeconds"),
                            seconds,
                            "the timeout value must be between 1 and 30 seconds",
                        );
                    }
                    label_selector(&mut errors, &path.child("namespaceSelector"), hook.namespace_selector.as_ref());
                    label_selector(&mut errors, &path.child("objectSelector"), hook.object_selector.as_ref());
                    client(&mut errors, &path.child("clientConfig"), &hook.client_config);
                    versions(&mut errors, &path.child("admissionReviewVersions"), &hook.admission_review_versions);
                    conditions(&mut errors, &path.child("matchConditions"), items(&hook.match_conditions), false);
                }
                errors
            }

            fn validate_update(&self, new: &$kind, _: &$kind) -> FieldErrors {
                self.validate_create(new)
            }

            fn columns(&self) -> &'static [Column] {
                COLUMNS
            }

            fn cells(&self, configuration: &$kind, now: Timestamp) -> Vec<Value> {
                vec![
                    cells::name(&configuration.metadata),
                    json!(items(&configuration.webhooks).len()),
                    cells::age(&configuration.metadata, now),
                ]
            }
        }
    };
}

webhook_strategy!(MutatingWebhookStrategy, MutatingWebhookConfiguration, |hook| {
    set_text(&mut hook.reinvocation_policy, "Never");
});
webhook_strategy!(ValidatingWebhookStrategy, ValidatingWebhookConfiguration, |hook| {});

pub(super) fn qualified(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
    if name.is_empty() {
        errors.required(path, "");
        return;
    }
    let messages = api::validation::dns1123_subdomain(name);
    if !messages.is_empty() {
        errors.invalid(path, name, messages.join(","));
    } else if name.split('.').count() < 3 {
        errors.invalid(path, name, "should be a domain with at least three segments separated by dots");
    }
}

/// A word that must be set, and be one of these.
pub(crate) fn choice(errors: &mut FieldErrors, path: &Path<'_>, value: &str, supported: &[&str]) {
    if value.is_empty() {
        errors.required(path, "");
    } else if !supported.contains(&value) {
        errors.not_supported(path, value, supported);
    }
}

/// Rules also stand in policies.
pub fn rules(errors: &mut FieldErrors, path: &Path<'_>, rules: &[RuleWithOperations]) {
    for (i, rule) in rules.iter().enumerate() {
        let path = path.index(i);
        for (name, values) in [
            ("apiGroups", items(&rule.api_groups)),
            ("apiVersions", items(&rule.api_versions)),
            ("resources", items(&rule.resources)),
            ("operations", items(&rule.operations)),
        ] {
            let path = path.child(name);
            if values.is_empty() {
                errors.required(path, "");
            }
            if values.len() > 1 && values.iter().any(|value| value == "*") && name != "resources" {
                errors.invalid(path, values, "if '*' is present, must not specify other values");
            }
        }
        for (i, version) in items(&rule.api_versions).iter().enumerate().filter(|(_, version)| version.is_empty()) {
            let _ = version;
            errors.required(path.child("apiVersions").index(i), "");
        }
        for (i, operation) in items(&rule.operations).iter().enumerate() {
            const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
            if !OPERATIONS.contains(&operation.as_str()) {
                errors.not_supported(path.child("operations").index(i), operation, OPERATIONS);
            }
        }
        if let Some(scope) = &rule.scope
            && !matches!(scope.as_str(), "*" | "Cluster" | "Namespaced")
        {
            errors.not_supported(path.child("scope"), scope, &["*", "Cluster", "Namespaced"]);
        }
    }
}

fn client(errors: &mut FieldErrors, path: &Path<'_>, client: &WebhookClientConfig) {
    match (&client.url, &client.service) {
        (None, None) | (Some(_), Some(_)) => errors.required(path, "exactly one of url or service is required"),
        (Some(url), None) => check_url(errors, &path.child("url"), url),
        (None, Some(service)) => {
            let (name, namespace) = (&service.name, &service.namespace);
            check_service(errors, &path.child("service"), name, namespace, service.path.as_deref(), service.port);
        }
    }
}

/// A webhook's URL: HTTPS, a host, and nothing that does not belong there.
pub(crate) fn check_url(errors: &mut FieldErrors, path: &Path<'_>, url: &str) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        errors.invalid(path, scheme, format!("'https' is the only allowed URL scheme{FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() { "" } else { rest.split('/').next().unwrap_or_default() };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        errors.invalid(path, host, format!("host must be specified{FORM}"));
    }
    if !user.is_empty() {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errors.invalid(path, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errors.invalid(path, query, "query parameters are not permitted in the URL");
    }
}

/// A webhook's service.
pub(crate) fn check_service(
    errors: &mut FieldErrors,
    path: &Path<'_>,
    name: &str,
    namespace: &str,
    url_path: Option<&str>,
    port: Option<i32>,
) {
    if name.is_empty() {
        errors.required(path.child("name"), "");
    }
    if namespace.is_empty() {
        errors.required(path.child("namespace"), "");
    }
    if let Some(port) = port.filter(|port| !(1..=65535).contains(port)) {
        errors.invalid(path.child("port"), port, "port is not valid: must be between 1 and 65535, inclusive");
    }
    let path = path.child("path");
    let Some(url_path) = url_path.filter(|path| !matches!(*path, "" | "/")) else { return };
    if url_path == "//" {
        errors.invalid(path, url_path, "segment[0] may not be empty");
        return;
    }
    if !url_path.starts_with('/') {
        errors.invalid(path, url_path, "must start with a '/'");
    }
    let inner = url_path.get(1..).unwrap_or_default();
    for (i, step) in inner.strip_suffix('/').unwrap_or(inner).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(path, url_path, format!("segment[{i}] may not be empty"));
        }
        for problem in api::validation::dns1123_subdomain(step).iter().filter(|_| !step.is_empty()) {
            errors.invalid(path, url_path, format!("segment[{i}]: {problem}"));
        }
    }
}

/// At most this many conditions, each with a name of its own and an expression.
const MAX_CONDITIONS: usize = 64;

/// Conditions also stand in policies, where they may know parameters.
pub(super) fn conditions(errors: &mut FieldErrors, path: &Path<'_>, conditions: &[MatchCondition], params: bool) {
    let known = Names { params, authorizer: true, ..Names::default() };
    let compiler = Compiler::default();
    if conditions.len() > MAX_CONDITIONS {
        errors.too_many(path, conditions.len(), MAX_CONDITIONS);
    }
    let mut names = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let path = path.index(i);
        match condition.expression.trim() {
            "" => errors.required(path.child("expression"), ""),
            expression => compiler.check(errors, path.child("expression"), expression, known, &[Type::Bool]),
        }
        if condition.name.is_empty() {
            errors.required(path.child("name"), "");
        } else {
            let name = path.child("name");
            errors.invalid_each(name, &condition.name, api::validation::qualified_name(&condition.name));
            if !names.insert(condition.name.as_str()) {
                errors.duplicate(name, &condition.name);
            }
        }
    }
}

fn versions(errors: &mut FieldErrors, path: &Path<'_>, versions: &[String]) {
    if versions.is_empty() {
        errors.required(path, "must specify one of v1, v1beta1");
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, version) in versions.iter().enumerate() {
        if !seen.insert(version) {
            errors.invalid(path.index(i), version, "duplicate version");
        } else {
            errors.invalid_each(path.index(i), version, api::validation::dns1035_label(version));
        }
    }
    if !versions.iter().any(|version| matches!(version.as_str(), "v1" | "v1beta1")) {
        errors.invalid(path, versions, "must include at least one of v1, v1beta1");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn webhooks_are_checked() {
        let hook = |more: Value| {
            let mut hook = json!({"name": "w.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"],
                "clientConfig": {"url": "https://h/x"}});
            hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            hook
        };
        let url = |url: &str| json!({"clientConfig": {"url": url}});
        let service = |path: &str| json!({"clientConfig": {"service": {"name": "s", "namespace": "n", "path": path}}});
        let condition = |name: &str, expression: &str| json!({"name": name, "expression": expression});
        for (more, problem) in [
            (json!({}), ""),
            (url("http://h"), "'https' is the only allowed URL scheme"),
            (url("https://u@h"), "user information is not permitted in the URL"),
            (url("https://h?q=1"), "query parameters are not permitted in the URL"),
            (url("https://h/#f"), "fragments are not permitted in the URL"),
            (url("https:///x"), "host must be specified"),
            (service("/a/b"), ""),
            (service("a"), "must start with a '/'"),
            (service("/a//b"), "segment[1] may not be empty"),
            (json!({"timeoutSeconds": 31}), "the timeout value must be between 1 and 30 seconds"),
            (json!({"sideEffects": "Some"}), "Unsupported value: \"Some\""),
            (json!({"admissionReviewVersions": ["v1", "v1"]}), "duplicate version"),
            (json!({"matchConditions": [condition("a", "true"), condition("b", "true")]}), ""),
            (json!({"matchConditions": [condition("a", "true"), condition("a", "true")]}), "Duplicate value: \"a\""),
            (json!({"matchConditions": [condition("a", " ")]}), "expression: Required value"),
            (
                json!({"matchConditions": [condition("a", "... [] bad expression")]}),
                "webhooks[0].matchConditions[0].expression: Invalid value: \"... [] bad expression\": compilation failed: ERROR: <input>:1:",
            ),
            (json!({"matchConditions": [condition("a", "object.x")]}), "must evaluate to bool but got dyn"),
            (json!({"matchConditions": [condition("a", "params.x == 1")]}), "undeclared reference to 'params'"),
            (json!({"matchConditions": [condition("a", "authorizer.requestResource.check('get').allowed()")]}), ""),
        ] {
            let mut object: ValidatingWebhookConfiguration =
                serde_json::from_value(json!({"webhooks": [hook(more.clone())]})).unwrap();
            Strategy::apply_defaults(&ValidatingWebhookStrategy, &mut object);
            let found = ValidatingWebhookStrategy.validate_create(&object);
            assert_eq!(found.is_empty(), problem.is_empty(), "{more}: {found}");
            assert!(found.to_string().contains(problem), "{more}: {found}");
        }
    }
}

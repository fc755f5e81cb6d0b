//! MutatingWebhookConfiguration and ValidatingWebhookConfiguration: servers that are asked about writes.

use std::collections::BTreeSet;

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, RuleWithOperations, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use serde_json::{Value, json};

use crate::registry::column::Column;
use crate::registry::metadata::label_selector;
use crate::registry::unset::{items, items_mut, or_empty, set_text};
use crate::registry::{Strategy, cells};

pub struct MutatingWebhookStrategy;
pub struct ValidatingWebhookStrategy;

const COLUMNS: &[Column] = &[Column::NAME, Column::integer("Webhooks", "How many webhooks there are."), Column::AGE];

macro_rules! webhook_strategy {
    ($strategy:ty, $kind:ty, |$defaulted:ident| $more:block) => {
        impl Strategy for $strategy {
            type Object = $kind;
            const COUNTS_GENERATIONS: bool = true;

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

fn qualified(errors: &mut FieldErrors, path: &Path<'_>, name: &str) {
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

fn choice(errors: &mut FieldErrors, path: &Path<'_>, value: &str, supported: &[&str]) {
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
        (Some(url), None) => {
            if !url.starts_with("https://") {
                errors.invalid(
                    path.child("url"),
                    url,
                    "'https' is the only allowed URL scheme; desired format: https://host[/path]",
                );
            }
        }
        (None, Some(service)) => {
            if service.name.is_empty() {
                errors.required(path.child("service.name"), "service name is required");
            }
            if service.namespace.is_empty() {
                errors.required(path.child("service.namespace"), "service namespace is required");
            }
            if let Some(port) = service.port.filter(|port| !(1..=65535).contains(port)) {
                errors.invalid(
                    path.child("service.port"),
                    port,
                    "port is not valid: must be between 1 and 65535, inclusive",
                );
            }
            if let Some(url_path) = &service.path
                && !url_path.starts_with('/')
            {
                errors.invalid(path.child("service.path"), url_path, "must start with a '/'");
            }
        }
    }
}

fn versions(errors: &mut FieldErrors, path: &Path<'_>, versions: &[String]) {
    if versions.is_empty() {
        errors.required(path, "must specify one of v1, v1beta1");
    } else if !versions.iter().any(|version| matches!(version.as_str(), "v1" | "v1beta1")) {
        errors.invalid(path, versions, "must include at least one of v1, v1beta1");
    }
}

//! Rules that all workloads share: selectors, templates, percentages.

use api::field::{FieldErrors, IMMUTABLE, Path};
use api::selector::Selector;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::core::pod_spec;
use crate::metadata;

/// Numbers that may not be below zero.
pub fn non_negative(errors: &mut FieldErrors, path: &Path<'_>, value: Option<i64>) {
    if let Some(value) = value.filter(|&value| value < 0) {
        errors.invalid(path, value, "must be greater than or equal to 0");
    }
}

/// Pods that are available are ready as well.
pub fn available_at_most_ready(
    errors: &mut FieldErrors,
    status: &Path<'_>,
    available: Option<i32>,
    ready: Option<i32>,
) {
    if available > ready {
        errors.invalid(status.child("availableReplicas"), available, "cannot be greater than readyReplicas");
    }
}

/// A workload goes on selecting the pods that it began with.
pub fn same_selector(errors: &mut FieldErrors, new: Option<&LabelSelector>, old: Option<&LabelSelector>) {
    if new != old {
        errors.invalid("spec.selector", new, IMMUTABLE);
    }
}

/// Checks the selector and that it selects the template's own labels. `kind` is the word of the messages.
pub fn selector_and_template(
    errors: &mut FieldErrors,
    spec: &Path<'_>,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
    kind: &str,
) {
    let path = spec.child("selector");
    metadata::label_selector(errors, &path, Some(selector));
    let empty = selector.match_labels.as_ref().is_none_or(|labels| labels.is_empty())
        && selector.match_expressions.as_ref().is_none_or(|expressions| expressions.is_empty());
    if empty {
        // Left out, most of the time; upstream can tell that from `{}`.
        match kind {
            "daemonset" => {}
            _ => errors.required(path, ""),
        }
        let labels = template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
        errors.invalid(spec.child("template.metadata.labels"), labels, "`selector` does not match template `labels`");
    }
    template_matches(errors, spec, selector, template);
}

/// The template's labels must be selected, or the workload would create pods for ever.
pub fn template_matches(
    errors: &mut FieldErrors,
    spec: &Path<'_>,
    selector: &LabelSelector,
    template: &PodTemplateSpec,
) {
    let path = spec.child("selector");
    match Selector::from_label_selector(Some(selector)) {
        Err(_) => errors.invalid(path, selector, "invalid label selector"),
        Ok(parsed) => {
            let metadata = template.metadata.clone().unwrap_or_default();
            if !parsed.is_empty() && !parsed.matches(metadata.labels.as_ref()) {
                errors.invalid(
                    spec.child("template.metadata.labels"),
                    metadata.labels.clone().unwrap_or_default(),
                    "`selector` does not match template `labels`",
                );
            }
        }
    }
    pod_spec::template::validate(errors, &spec.child("template"), template);
}

/// Workloads other than jobs keep their pods running.
pub fn always_restarts(errors: &mut FieldErrors, spec: &Path<'_>, template: &PodTemplateSpec, kind: &str) {
    let Some(pod) = &template.spec else { return };
    let policy = pod.restart_policy.as_deref().unwrap_or_default();
    if policy != "Always" {
        errors.not_supported(spec.child("template.spec.restartPolicy"), policy, &["Always"]);
    }
    if pod.active_deadline_seconds.is_some() {
        errors.forbidden(
            spec.child("template.spec.activeDeadlineSeconds"),
            format!("activeDeadlineSeconds in {kind} is not Supported"),
        );
    }
}

/// A count or a percentage, never negative.
pub fn count_or_percent(errors: &mut FieldErrors, path: &Path<'_>, value: Option<&IntOrString>) {
    match value {
        None => {}
        Some(IntOrString::Int(number)) => non_negative(errors, path, Some(i64::from(*number))),
        Some(IntOrString::String(text)) => errors.invalid_each(path, text, api::validation::percent(text)),
    }
}

/// Percentages above 100 make no sense where a share of the pods is meant.
pub fn at_most_all(errors: &mut FieldErrors, path: &Path<'_>, value: Option<&IntOrString>) {
    if let Some(IntOrString::String(text)) = value
        && percent(text).is_some_and(|percent| percent > 100)
    {
        errors.invalid(path, text, "must not be greater than 100%");
    }
}

/// Whether a count or percentage is zero.
pub fn is_zero(value: Option<&IntOrString>) -> bool {
    match value {
        None => true,
        Some(IntOrString::Int(number)) => *number == 0,
        Some(IntOrString::String(text)) => percent(text).is_none_or(|percent| percent == 0),
    }
}

fn percent(text: &str) -> Option<i64> {
    text.strip_suffix('%')?.parse().ok()
}

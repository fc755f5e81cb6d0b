//! ResourceClaim and ResourceClaimTemplate: what a workload asks for.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceConstraint, DeviceRequest, ResourceClaim, ResourceClaimSpec, ResourceClaimTemplate,
};
use serde_json::{Value, json};

use super::{claim_status, rules};
use crate::column::Column;
use crate::unset::{items, items_mut, or_empty, set_text};
use crate::{Call, Strategy, cells, metadata};

const CONSTRAINTS: usize = 32;
const ALTERNATIVES: usize = 8;

pub struct ResourceClaimStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("State", "A summary of the current state (allocated, pending, reserved, etc.)."),
    Column::AGE,
];

impl Strategy for ResourceClaimStrategy {
    type Object = ResourceClaim;

    fn apply_defaults(&self, claim: &mut ResourceClaim) {
        default_spec(&mut claim.spec);
    }

    fn validate_create(&self, claim: &ResourceClaim) -> FieldErrors {
        let mut errors = FieldErrors::default();
        validate_spec(&mut errors, &Path::new("spec"), &claim.spec);
        errors
    }

    fn validate_update(&self, new: &ResourceClaim, old: &ResourceClaim) -> FieldErrors {
        let mut errors = FieldErrors::default();
        errors.immutable("spec", &new.spec, &old.spec);
        errors
    }

    fn prepare_for_status_update(&self, _: &Call<'_>, new: &mut ResourceClaim, old: &ResourceClaim) {
        claim_status::drop_deallocated(new, old);
    }

    fn validate_status_update(&self, new: &ResourceClaim, old: &ResourceClaim) -> FieldErrors {
        claim_status::validate(new, old)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, claim: &ResourceClaim, now: Timestamp) -> Vec<Value> {
        vec![cells::name(&claim.metadata), json!(state(claim)), cells::age(&claim.metadata, now)]
    }
}

fn state(claim: &ResourceClaim) -> String {
    let status = claim.status.as_ref();
    let deleted = claim.metadata.deletion_timestamp.is_some();
    let allocated = status.is_some_and(|status| status.allocation.is_some());
    let reserved = allocated && status.is_some_and(|status| !items(&status.reserved_for).is_empty());
    let words =
        [(deleted, "deleted"), (!allocated && !deleted, "pending"), (allocated, "allocated"), (reserved, "reserved")];
    words.iter().filter(|(said, _)| *said).map(|(_, word)| *word).collect::<Vec<_>>().join(",")
}

pub struct ResourceClaimTemplateStrategy;

impl Strategy for ResourceClaimTemplateStrategy {
    type Object = ResourceClaimTemplate;

    fn apply_defaults(&self, template: &mut ResourceClaimTemplate) {
        default_spec(&mut template.spec.spec);
    }

    fn validate_create(&self, template: &ResourceClaimTemplate) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let path = Path::new("spec");
        if let Some(meta) = &template.spec.metadata {
            let path = path.child("metadata");
            metadata::labels(&mut errors, &path.child("labels"), meta.labels.as_ref());
            metadata::annotations(&mut errors, &path.child("annotations"), meta.annotations.as_ref());
        }
        validate_spec(&mut errors, &path.child("spec"), &template.spec.spec);
        errors
    }

    fn validate_update(&self, new: &ResourceClaimTemplate, old: &ResourceClaimTemplate) -> FieldErrors {
        let mut errors = self.validate_create(new);
        errors.immutable("spec", &new.spec, &old.spec);
        errors
    }

    fn columns(&self) -> &'static [Column] {
        &[Column::NAME, Column::AGE]
    }

    fn cells(&self, template: &ResourceClaimTemplate, now: Timestamp) -> Vec<Value> {
        cells::name_and_age(&template.metadata, now)
    }
}

/// One device is what a request means that does not say how many.
fn default_spec(spec: &mut ResourceClaimSpec) {
    fn default_count(mode: &mut Option<String>, count: &mut Option<i64>) {
        set_text(mode, "ExactCount");
        if mode.as_deref() == Some("ExactCount") && count.unwrap_or(0) == 0 {
            *count = Some(1);
        }
    }
    let Some(devices) = &mut spec.devices else { return };
    for request in items_mut(&mut devices.requests) {
        if let Some(exactly) = &mut request.exactly {
            default_count(&mut exactly.allocation_mode, &mut exactly.count);
        }
        for alternative in items_mut(&mut request.first_available) {
            default_count(&mut alternative.allocation_mode, &mut alternative.count);
        }
    }
}

/// Whether `name` is a request of the claim, or `<request>/<one of its alternatives>`.
pub(super) fn has_request(claim: &DeviceClaim, name: &str) -> bool {
    let (request, alternative) = match name.split_once('/') {
        Some((request, alternative)) => (request, Some(alternative)),
        None => (name, None),
    };
    items(&claim.requests).iter().filter(|candidate| candidate.name == request).any(|request| {
        alternative.is_none_or(|wanted| items(&request.first_available).iter().any(|sub| sub.name == wanted))
    })
}

/// A mention of a request, in a constraint, a configuration or a result.
pub(super) fn request_reference(errors: &mut FieldErrors, path: &Path<'_>, name: &str, claim: &DeviceClaim) {
    let unknown =
        "must be the name of a request in the claim or the name of a request and a subrequest separated by '/'";
    let segments: Vec<&str> = name.split('/').collect();
    if segments.len() > 2 {
        errors.invalid(path, name, unknown);
        return;
    }
    for segment in segments {
        rules::label(errors, path, segment);
    }
    if !has_request(claim, name) {
        errors.invalid(path, name, unknown);
    }
}

pub(super) fn request_references(errors: &mut FieldErrors, path: &Path<'_>, names: &[String], claim: &DeviceClaim) {
    rules::each_once(errors, path, names, rules::REQUESTS, String::clone, |errors, path, name| {
        request_reference(errors, path, name, claim);
    });
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &ResourceClaimSpec) {
    let Some(claim) = &spec.devices else { return };
    let path = path.child("devices");
    let requests = items(&claim.requests);
    let name = |request: &DeviceRequest| request.name.clone();
    rules::each_once(errors, &path.child("requests"), requests, rules::REQUESTS, name, validate_request);
    let constraints = items(&claim.constraints);
    rules::each(errors, &path.child("constraints"), constraints, CONSTRAINTS, |errors, path, constraint| {
        validate_constraint(errors, path, constraint, claim);
    });
    let configurations = items(&claim.config);
    rules::each(errors, &path.child("config"), configurations, rules::CONFIGURATIONS, |errors, path, config| {
        request_references(errors, &path.child("requests"), items(&config.requests), claim);
        rules::configuration(errors, path, config.opaque.as_ref());
    });
}

fn validate_request(errors: &mut FieldErrors, path: &Path<'_>, request: &DeviceRequest) {
    rules::label(errors, &path.child("name"), &request.name);
    let alternatives = items(&request.first_available);
    match (&request.exactly, alternatives.is_empty()) {
        (None, true) => errors.required(path, "exactly one of `exactly` or `firstAvailable` is required"),
        (Some(_), false) => errors.invalid(
            path,
            Value::Null,
            "exactly one of `exactly` or `firstAvailable` is required, but multiple fields are set",
        ),
        (Some(exactly), true) => {
            let path = path.child("exactly");
            rules::class_name(errors, &path.child("deviceClassName"), &exactly.device_class_name);
            rules::selectors(errors, &path.child("selectors"), items(&exactly.selectors));
            validate_count(errors, &path, or_empty(&exactly.allocation_mode), exactly.count);
            rules::tolerations(errors, &path.child("tolerations"), items(&exactly.tolerations));
        }
        (None, false) => {
            let path = path.child("firstAvailable");
            rules::each_once(
                errors,
                &path,
                alternatives,
                ALTERNATIVES,
                |sub| sub.name.clone(),
                |errors, path, sub| {
                    rules::label(errors, &path.child("name"), &sub.name);
                    rules::class_name(errors, &path.child("deviceClassName"), &sub.device_class_name);
                    rules::selectors(errors, &path.child("selectors"), items(&sub.selectors));
                    validate_count(errors, path, or_empty(&sub.allocation_mode), sub.count);
                    rules::tolerations(errors, &path.child("tolerations"), items(&sub.tolerations));
                },
            );
        }
    }
}

fn validate_count(errors: &mut FieldErrors, path: &Path<'_>, mode: &str, count: Option<i64>) {
    let count = count.unwrap_or(0);
    match mode {
        "All" if count != 0 => {
            errors.invalid(path.child("count"), count, "must not be specified when allocationMode is 'All'");
        }
        "ExactCount" if count <= 0 => errors.invalid(path.child("count"), count, "must be greater than zero"),
        "All" | "ExactCount" => {}
        other => errors.not_supported(path.child("allocationMode"), other, &["All", "ExactCount"]),
    }
}

fn validate_constraint(errors: &mut FieldErrors, path: &Path<'_>, constraint: &DeviceConstraint, claim: &DeviceClaim) {
    request_references(errors, &path.child("requests"), items(&constraint.requests), claim);
    match (&constraint.match_attribute, &constraint.distinct_attribute) {
        (Some(name), _) => rules::fully_qualified_name(errors, &path.child("matchAttribute"), name),
        (None, Some(name)) => rules::fully_qualified_name(errors, &path.child("distinctAttribute"), name),
        (None, None) => errors.required(path, "exactly one of \"matchAttribute\" or \"distinctAttribute\" is required"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(spec: Value) -> ResourceClaim {
        let mut claim = serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).unwrap();
        ResourceClaimStrategy.apply_defaults(&mut claim);
        claim
    }

    #[test]
    fn a_request_asks_for_one_device_unless_it_says_otherwise() {
        let claim = claim(json!({"devices": {"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu"}},
            {"name": "b", "exactly": {"deviceClassName": "gpu", "allocationMode": "All"}}]}}));
        let requests = claim.spec.devices.unwrap().requests.unwrap();
        let counts: Vec<_> = requests.iter().map(|request| request.exactly.as_ref().unwrap().count).collect();
        assert_eq!(counts, [Some(1), None]);
    }

    #[test]
    fn claims_are_checked() {
        let gpu = json!({"name": "a", "exactly": {"deviceClassName": "gpu"}});
        for (devices, expected) in [
            (json!({"requests": [gpu]}), ""),
            (json!({"requests": [{"name": "a"}]}), "spec.devices.requests[0]: Required value: exactly one of"),
            (json!({"requests": [gpu, gpu]}), "spec.devices.requests[1]: Duplicate value: \"a\""),
            (
                json!({"requests": [{"name": "a", "exactly": {"deviceClassName": ""}}]}),
                "spec.devices.requests[0].exactly.deviceClassName: Required value",
            ),
            (
                json!({"requests": [{"name": "a", "exactly": {"deviceClassName": "gpu", "count": -1}}]}),
                "spec.devices.requests[0].exactly.count: Invalid value: -1: must be greater than zero",
            ),
            (
                json!({"requests": [gpu], "constraints": [{"requests": ["b"], "matchAttribute": "x.example.com/numa"}]}),
                "spec.devices.constraints[0].requests[0]: Invalid value: \"b\": must be the name of a request",
            ),
            (
                json!({"requests": [gpu], "constraints": [{"matchAttribute": "numa"}]}),
                "spec.devices.constraints[0].matchAttribute: Invalid value: \"numa\": a fully qualified name",
            ),
            (
                json!({"requests": [gpu], "config": [{"opaque": {"driver": "d.example.com", "parameters": 5}}]}),
                "spec.devices.config[0].opaque.parameters: Invalid value: \"<value omitted>\": must be a valid JSON object",
            ),
        ] {
            let errors = ResourceClaimStrategy.validate_create(&claim(json!({"devices": devices})));
            let text = errors.to_string();
            assert_eq!(expected.is_empty(), errors.is_empty(), "{text}");
            assert!(errors.is_empty() || text.contains(expected), "{text}");
        }
    }
}

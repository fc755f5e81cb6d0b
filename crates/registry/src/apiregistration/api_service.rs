//! APIService: a version of a group, and who serves it.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceCondition};
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::{items, or_empty, text};
use crate::{Call, NameRule, Strategy, cells};

pub struct ApiServiceStrategy;

/// Whether a version can be used, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Availability<'a> {
    pub is_available: bool,
    pub reason: &'a str,
    pub message: &'a str,
}

pub const LOCAL: Availability<'static> =
    Availability { is_available: true, reason: "Local", message: "Local APIServices are always available" };

impl Availability<'_> {
    fn status(&self) -> &'static str {
        if self.is_available { "True" } else { "False" }
    }

    /// Whether a condition says just this.
    pub fn is(&self, found: &APIServiceCondition) -> bool {
        found.status == self.status()
            && found.reason.as_deref() == Some(self.reason)
            && found.message.as_deref() == Some(self.message)
    }

    /// Puts the condition into the status, with the time if it says something else than before.
    pub fn write(&self, service: &mut APIService, now: Time) {
        let conditions = service.status.get_or_insert_default().conditions.get_or_insert_default();
        let old = conditions.iter().position(|condition| condition.type_ == "Available");
        let since = old.map(|at| &conditions[at]).filter(|old| old.status == self.status());
        let new = APIServiceCondition {
            type_: "Available".to_owned(),
            status: self.status().to_owned(),
            reason: Some(self.reason.to_owned()),
            message: Some(self.message.to_owned()),
            last_transition_time: since.map_or(Some(now), |old| old.last_transition_time.clone()),
        };
        match old {
            Some(at) => conditions[at] = new,
            None => conditions.push(new),
        }
    }
}

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Service", "The reference to the service that hosts this API endpoint."),
    Column::string("Available", "Whether this service is available."),
    Column::AGE,
];
const HTTPS: i32 = 443;

impl Strategy for ApiServiceStrategy {
    type Object = APIService;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn apply_defaults(&self, object: &mut APIService) {
        if let Some(service) = object.spec.as_mut().and_then(|spec| spec.service.as_mut()) {
            service.port.get_or_insert(HTTPS);
        }
    }

    fn prepare_for_create(&self, call: &Call<'_>, object: &mut APIService) {
        // True from the beginning, and a write less for each version that a starting server registers.
        if object.spec.as_ref().is_some_and(|spec| spec.service.is_none()) {
            LOCAL.write(object, Time(call.now));
        }
    }

    fn validate_create(&self, object: &APIService) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = object.spec.clone().unwrap_or_default();
        let (group, version) = (or_empty(&spec.group), or_empty(&spec.version));
        let required = format!("{version}.{group}");
        let name = or_empty(&object.metadata.name);
        if name != required {
            let rule = format!("must be `spec.version+\".\"+spec.group`: {}", api::field::quote(&required));
            errors.invalid("metadata.name", name, rule);
        }
        let path = Path::new("spec");
        if group.is_empty() && version != "v1" {
            errors.required(path.child("group"), "only v1 may have an empty group and it better be legacy kube");
        }
        if !group.is_empty() {
            errors.invalid_each(path.child("group"), group, validation::dns1123_subdomain(group));
        }
        errors.invalid_each(path.child("version"), version, validation::dns1035_label(version));
        for (field, value, max) in [
            ("groupPriorityMinimum", spec.group_priority_minimum, 20_000),
            ("versionPriority", spec.version_priority, 1000),
        ] {
            if value <= 0 || value > max {
                errors.invalid(path.child(field), value, format!("must be positive and less than {max}"));
            }
        }
        let bundle = spec.ca_bundle.as_ref().map_or(0, |bundle| bundle.0.len());
        let insecure = spec.insecure_skip_tls_verify == Some(true);
        let Some(service) = &spec.service else {
            if bundle > 0 {
                errors.invalid(
                    path.child("caBundle"),
                    format!("{bundle} bytes"),
                    "local APIServices may not have a caBundle",
                );
            }
            if insecure {
                errors.invalid(
                    path.child("insecureSkipTLSVerify"),
                    true,
                    "local APIServices may not have insecureSkipTLSVerify",
                );
            }
            return errors;
        };
        let service_path = path.child("service");
        for (field, value) in [("namespace", &service.namespace), ("name", &service.name)] {
            if text(value).is_none() {
                errors.required(service_path.child(field), "");
            }
        }
        let port = service.port.unwrap_or(0);
        let problems = validation::port_number(port.into());
        if !problems.is_empty() {
            errors.invalid(service_path.child("port"), port, format!("port is not valid: {}", problems.join(", ")));
        }
        if insecure && bundle > 0 {
            errors.invalid(path.child("insecureSkipTLSVerify"), true, "may not be true if caBundle is present");
        }
        errors
    }

    fn validate_update(&self, new: &APIService, _: &APIService) -> FieldErrors {
        self.validate_create(new)
    }

    fn validate_status_update(&self, new: &APIService, _: &APIService) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let conditions = new.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        for (i, condition) in conditions.iter().enumerate() {
            if !matches!(condition.status.as_str(), "True" | "False" | "Unknown") {
                let path = format!("status.conditions[{i}].status");
                errors.not_supported(path, &condition.status, &["True", "False", "Unknown"]);
            }
        }
        errors
    }

    fn name_rule(&self) -> NameRule {
        NameRule::PathSegment
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &APIService, now: Timestamp) -> Vec<Value> {
        let service = object.spec.as_ref().and_then(|spec| spec.service.as_ref());
        let service = service.map_or("Local".to_owned(), |service| {
            format!("{}/{}", or_empty(&service.namespace), or_empty(&service.name))
        });
        let conditions = object.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        let available = match conditions.iter().find(|condition| condition.type_ == "Available") {
            None => "Unknown".to_owned(),
            Some(condition) => match text(&condition.reason) {
                Some(reason) if condition.status != "True" => format!("{} ({reason})", condition.status),
                _ => condition.status.clone(),
            },
        };
        vec![cells::name(&object.metadata), json!(service), json!(available), cells::age(&object.metadata, now)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_named_after_what_they_serve() {
        for (name, expected) in [
            ("v1.example.com", ""),
            (
                "v2.example.com",
                "metadata.name: Invalid value: \"v2.example.com\": must be `spec.version+\".\"+spec.group`",
            ),
        ] {
            let object = serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"group": "example.com", "version": "v1", "groupPriorityMinimum": 1, "versionPriority": 1}}));
            let errors = ApiServiceStrategy.validate_create(&object.unwrap());
            let text = errors.to_string();
            assert_eq!(expected.is_empty(), errors.is_empty(), "{text}");
            assert!(errors.is_empty() || text.contains(expected), "{text}");
        }
    }
}

//! CSIDriver: what a storage driver can do and needs.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::storage::v1::CSIDriver;
use serde_json::{Value, json};

use crate::column::Column;
use crate::metadata::same;
use crate::unset::items;
use crate::{Call, Strategy, cells};

pub struct CsiDriverStrategy;

const fn boolean(name: &'static str, description: &'static str) -> Column {
    Column { r#type: "boolean", ..Column::string(name, description) }
}

const COLUMNS: &[Column] = &[
    Column::NAME,
    boolean("AttachRequired", "Whether volumes are attached first."),
    boolean("PodInfoOnMount", "Whether the driver is told about the pod."),
    boolean("StorageCapacity", "Whether the driver publishes its capacity."),
    Column::string("TokenRequests", "Tokens the driver wants."),
    boolean("RequiresRepublish", "Whether volumes are published again and again."),
    Column::string("Modes", "Which lives of volumes it supports."),
    Column::AGE,
];

impl Strategy for CsiDriverStrategy {
    type Object = CSIDriver;
    const UNCONDITIONAL_UPDATE: bool = false;

    fn apply_defaults(&self, driver: &mut CSIDriver) {
        let spec = &mut driver.spec;
        spec.attach_required.get_or_insert(true);
        spec.pod_info_on_mount.get_or_insert(false);
        spec.storage_capacity.get_or_insert(false);
        spec.requires_republish.get_or_insert(false);
        spec.se_linux_mount.get_or_insert(false);
        spec.fs_group_policy.get_or_insert_with(|| "ReadWriteOnceWithFSType".to_owned());
        if items(&spec.volume_lifecycle_modes).is_empty() {
            spec.volume_lifecycle_modes = Some(vec!["Persistent".to_owned()]);
        }
    }

    /// Counts changes, and nothing before the first one.
    fn prepare_for_update(&self, _: &Call<'_>, new: &mut CSIDriver, old: &CSIDriver) {
        let generation = old.metadata.generation;
        new.metadata.generation = match new.spec == old.spec {
            true => generation,
            false => Some(generation.unwrap_or(0) + 1),
        };
    }

    fn validate_create(&self, driver: &CSIDriver) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let policy = driver.spec.fs_group_policy.as_deref().unwrap_or_default();
        if !matches!(policy, "File" | "None" | "ReadWriteOnceWithFSType") {
            errors.not_supported("spec.fsGroupPolicy", policy, &["File", "None", "ReadWriteOnceWithFSType"]);
        }
        let mut audiences = std::collections::BTreeSet::new();
        for (i, request) in items(&driver.spec.token_requests).iter().enumerate() {
            if !audiences.insert(request.audience.as_str()) {
                errors.duplicate(format!("spec.tokenRequests[{i}].audience"), &request.audience);
                continue;
            }
            let wrong = match request.expiration_seconds {
                Some(seconds) if seconds < 600 => "may not specify a duration less than 10 minutes",
                Some(seconds) if seconds > 1 << 32 => "may not specify a duration larger than 2^32 seconds",
                _ => continue,
            };
            let place = format!("spec.tokenRequests[{i}].expirationSeconds");
            errors.invalid(place, request.expiration_seconds, wrong);
        }
        for mode in items(&driver.spec.volume_lifecycle_modes) {
            if !matches!(mode.as_str(), "Ephemeral" | "Persistent") {
                errors.not_supported("spec.volumeLifecycleModes", mode, &["Persistent", "Ephemeral"]);
            }
        }
        if let Some(seconds) = driver.spec.node_allocatable_update_period_seconds.filter(|&seconds| seconds < 10) {
            let place = "spec.nodeAllocatableUpdatePeriodSeconds";
            errors.invalid(place, seconds, "must be greater than or equal to 10 seconds");
        }
        if let Some(is_secret) = driver.spec.service_account_token_in_secrets.filter(|_| audiences.is_empty()) {
            let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
            errors.invalid("spec.serviceAccountTokenInSecrets", is_secret, why);
        }
        errors
    }

    fn validate_update(&self, new: &CSIDriver, old: &CSIDriver) -> FieldErrors {
        let mut errors = self.validate_create(new);
        let (new, old) = (&new.spec, &old.spec);
        errors.immutable("spec.attachedRequired", &new.attach_required, &old.attach_required);
        errors.immutable("spec.volumeLifecycleModes", &new.volume_lifecycle_modes, &old.volume_lifecycle_modes);
        errors
    }

    fn warnings(&self, new: &CSIDriver, old: Option<&CSIDriver>) -> Vec<String> {
        const RECOMMENDED: &str = "spec.serviceAccountTokenInSecrets is unset; if supported by this CSI driver, set to true to prevent possible logging of tokens in volume attributes";
        let requests = &new.spec.token_requests;
        let is_new = old.is_none_or(|old| !same(&old.spec.token_requests, requests));
        let is_told = is_new && !items(requests).is_empty() && new.spec.service_account_token_in_secrets.is_none();
        is_told.then(|| RECOMMENDED.to_owned()).into_iter().collect()
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, driver: &CSIDriver, now: Timestamp) -> Vec<Value> {
        let spec = &driver.spec;
        let tokens: Vec<String> = items(&spec.token_requests).iter().map(|request| request.audience.clone()).collect();
        vec![
            cells::name(&driver.metadata),
            json!(spec.attach_required.unwrap_or(true)),
            json!(spec.pod_info_on_mount.unwrap_or(false)),
            json!(spec.storage_capacity.unwrap_or(false)),
            json!(if tokens.is_empty() { "<unset>".to_owned() } else { tokens.join(",") }),
            json!(spec.requires_republish.unwrap_or(false)),
            cells::joined(items(&spec.volume_lifecycle_modes)),
            cells::age(&driver.metadata, now),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_for_one_audience_each_and_for_a_while() {
        let place = "spec.tokenRequests";
        for (requests, in_secrets, expected) in [
            (json!([{"audience": "", "expirationSeconds": 600}, {"audience": "a"}]), json!(true), vec![]),
            (json!([{"audience": "a", "expirationSeconds": 1_i64 << 32}]), json!(null), vec![]),
            (
                json!([{"audience": "a"}, {"audience": "a", "expirationSeconds": 1}]),
                json!(null),
                vec![format!("{place}[1].audience: Duplicate value: \"a\"")],
            ),
            (
                json!([{"audience": "a", "expirationSeconds": 599}]),
                json!(null),
                vec![format!(
                    "{place}[0].expirationSeconds: Invalid value: 599: may not specify a duration less than 10 minutes"
                )],
            ),
            (
                json!([{"audience": "a", "expirationSeconds": (1_i64 << 32) + 1}]),
                json!(null),
                vec![format!(
                    "{place}[0].expirationSeconds: Invalid value: 4294967297: \
                     may not specify a duration larger than 2^32 seconds"
                )],
            ),
            (
                json!([]),
                json!(false),
                vec![
                    "spec.serviceAccountTokenInSecrets: Invalid value: false: \
                     serviceAccountTokenInSecrets is set but no tokenRequests are specified"
                        .to_owned(),
                ],
            ),
        ] {
            let spec = json!({"tokenRequests": requests, "serviceAccountTokenInSecrets": in_secrets});
            let mut driver = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
            CsiDriverStrategy.apply_defaults(&mut driver);
            let said: Vec<String> =
                CsiDriverStrategy.validate_create(&driver).iter().map(ToString::to_string).collect();
            assert_eq!(said, expected, "{spec}");
        }
    }

    #[test]
    fn tokens_that_may_be_logged_are_told_once() {
        let driver = |requests: Value, in_secrets: Value| -> CSIDriver {
            let spec = json!({"tokenRequests": requests, "serviceAccountTokenInSecrets": in_secrets});
            serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()
        };
        let (none, one) = (driver(json!(null), json!(null)), driver(json!([{"audience": "a"}]), json!(null)));
        let (two, safe) =
            (driver(json!([{"audience": "b"}]), json!(null)), driver(json!([{"audience": "a"}]), json!(true)));
        for (new, old, expected) in [
            (&none, None, 0),
            (&one, None, 1),
            (&safe, None, 0),
            (&one, Some(&one), 0),
            (&two, Some(&one), 1),
            (&none, Some(&one), 0),
        ] {
            assert_eq!(CsiDriverStrategy.warnings(new, old).len(), expected, "{new:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_told_in_upstreams_order() {
        let spec = json!({"fsGroupPolicy": "All", "volumeLifecycleModes": ["Long"],
            "nodeAllocatableUpdatePeriodSeconds": 9, "tokenRequests": [{"audience": ""}, {"audience": ""}]});
        let driver = serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
        let errors = CsiDriverStrategy.validate_create(&driver);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        let expected = [
            "spec.fsGroupPolicy",
            "spec.tokenRequests[1].audience",
            "spec.volumeLifecycleModes",
            "spec.nodeAllocatableUpdatePeriodSeconds",
        ];
        assert_eq!(fields, expected);
    }
}

//! ResourceQuota: how much one namespace may use in all.

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::{Value, json};

use super::pod_spec::{defaults, resources};
use crate::column::Column;
use crate::unset::items;
use crate::{Strategy, cells};

pub struct ResourceQuotaStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Request", "What is used and allowed of requests and counts."),
    Column::string("Limit", "What is used and allowed of limits."),
    Column::AGE,
];

const SCOPES: &[&str] = &[
    "BestEffort",
    "CrossNamespacePodAffinity",
    "NotBestEffort",
    "NotTerminating",
    "PriorityClass",
    "Terminating",
    "VolumeAttributesClass",
];

impl Strategy for ResourceQuotaStrategy {
    type Object = ResourceQuota;

    fn apply_defaults(&self, quota: &mut ResourceQuota) {
        if let Some(hard) = quota.spec.as_mut().and_then(|spec| spec.hard.as_mut()) {
            defaults::resource_list(hard);
        }
    }

    fn validate_create(&self, quota: &ResourceQuota) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = quota.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        let hard = path.child("hard");
        for (name, raw) in spec.hard.iter().flatten() {
            let path = hard.key(name);
            errors.invalid_each(path, name, api::validation::qualified_name(name));
            resources::quota_resource_name(&mut errors, &path, name);
            if let Ok(amount) = Quantity::try_from(raw) {
                resources::quantity_value(&mut errors, &path, name, &amount);
            }
        }
        for scope in items(&spec.scopes) {
            if !SCOPES.contains(&scope.as_str()) {
                errors.invalid(path.child("scopes"), items(&spec.scopes), "unsupported scope");
            }
        }
        errors
    }

    fn validate_update(&self, new: &ResourceQuota, old: &ResourceQuota) -> FieldErrors {
        let mut errors = self.validate_create(new);
        let scopes = |quota: &ResourceQuota| {
            let mut scopes = quota.spec.clone().unwrap_or_default().scopes.unwrap_or_default();
            scopes.sort();
            scopes
        };
        if scopes(new) != scopes(old) {
            errors.invalid("spec.scopes", scopes(new), api::field::IMMUTABLE);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, quota: &ResourceQuota, now: Timestamp) -> Vec<Value> {
        let status = quota.status.clone().unwrap_or_default();
        let (mut requests, mut limits) = (Vec::new(), Vec::new());
        for (name, hard) in status.hard.iter().flatten() {
            let used = status.used.as_ref().and_then(|used| used.get(name)).map_or("0", |used| used.0.as_str());
            let list = if name.starts_with("limits") { &mut limits } else { &mut requests };
            list.push(format!("{name}: {used}/{}", hard.0));
        }
        vec![
            cells::name(&quota.metadata),
            json!(requests.join(", ")),
            json!(limits.join(", ")),
            cells::age(&quota.metadata, now),
        ]
    }
}

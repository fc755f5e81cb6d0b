//! ResourceQuota: how much one namespace may use in all.

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::sort::CompactSort as _;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ResourceQuota, ResourceQuotaSpec};
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

/// Whether a scope says anything about what a quota of this name counts (`IsResourceQuotaScopeValidForResource`, v1.36). Names of
/// further resources are counted in every scope.
fn applies(scope: &str, name: &str) -> bool {
    let is_standard = resources::is_counted(name)
        || ["", "requests.", "limits."].iter().any(|side| {
            let bare = name.strip_prefix(side).unwrap_or_default();
            matches!(bare, "cpu" | "memory" | "ephemeral-storage")
        })
        || name == "requests.storage";
    let is_compute = |name: &str| {
        let bare = name.strip_prefix("requests.").or_else(|| name.strip_prefix("limits.")).unwrap_or(name);
        matches!(bare, "cpu" | "memory")
    };
    match scope {
        _ if !is_standard => true,
        "BestEffort" => name == "pods",
        "VolumeAttributesClass" => matches!(name, "persistentvolumeclaims" | "requests.storage"),
        "CrossNamespacePodAffinity" | "NotBestEffort" | "NotTerminating" | "PriorityClass" | "Terminating" => {
            name == "pods" || is_compute(name)
        }
        _ => true,
    }
}

fn contradict<'a>(scopes: impl Iterator<Item = &'a str> + Clone) -> usize {
    let has = |scope: &str| scopes.clone().any(|other| other == scope);
    [("BestEffort", "NotBestEffort"), ("Terminating", "NotTerminating")]
        .into_iter()
        .filter(|(one, other)| has(one) && has(other))
        .count()
}

fn scopes(errors: &mut FieldErrors, path: &Path<'_>, spec: &ResourceQuotaSpec) {
    let (path, scopes) = (path.child("scopes"), items(&spec.scopes));
    for scope in scopes {
        if !SCOPES.contains(&scope.as_str()) {
            errors.invalid(path, scopes, "unsupported scope");
        }
        for _ in spec.hard.iter().flatten().filter(|(name, _)| !applies(scope, name)) {
            errors.invalid(path, scopes, "unsupported scope applied to resource");
        }
    }
    for _ in 0..contradict(scopes.iter().map(String::as_str)) {
        errors.invalid(path, scopes, "conflicting scopes");
    }
}

fn selector(errors: &mut FieldErrors, path: &Path<'_>, spec: &ResourceQuotaSpec) {
    let Some(selector) = &spec.scope_selector else { return };
    let requirements = items(&selector.match_expressions);
    let path = path.child("scopeSelector");
    let path = path.child("matchExpressions");
    for requirement in requirements {
        let (scope, operator) = (requirement.scope_name.as_str(), requirement.operator.as_str());
        if !SCOPES.contains(&scope) {
            errors.invalid(path.child("scopeName"), scope, "unsupported scope");
        }
        for _ in spec.hard.iter().flatten().filter(|(name, _)| !applies(scope, name)) {
            errors.invalid(path, selector, "unsupported scope applied to resource");
        }
        if !matches!(scope, "PriorityClass" | "VolumeAttributesClass")
            && SCOPES.contains(&scope)
            && operator != "Exists"
        {
            let detail = "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity";
            errors.invalid(path.child("operator"), operator, detail);
        }
        let values = items(&requirement.values);
        match operator {
            "In" | "NotIn" if values.is_empty() => {
                let detail = "must be at least one value when `operator` is 'In' or 'NotIn' for scope selector";
                errors.required(path.child("values"), detail);
            }
            "Exists" | "DoesNotExist" if !values.is_empty() => {
                let detail = "must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector";
                errors.invalid(path.child("values"), values, detail);
            }
            "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
            other => errors.invalid(path.child("operator"), other, "not a valid selector operator"),
        }
    }
    for _ in 0..contradict(requirements.iter().map(|requirement| requirement.scope_name.as_str())) {
        errors.invalid(path, items(&spec.scopes), "conflicting scopes");
    }
}

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
        scopes(&mut errors, &path, &spec);
        selector(&mut errors, &path, &spec);
        errors
    }

    fn validate_update(&self, new: &ResourceQuota, old: &ResourceQuota) -> FieldErrors {
        let mut errors = self.validate_create(new);
        let scopes = |quota: &ResourceQuota| {
            let mut scopes = quota.spec.clone().unwrap_or_default().scopes.unwrap_or_default();
            scopes.compact_sort();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_fit_what_is_counted() {
        let by = |scope: &str, operator: &str, values: Value| json!({"matchExpressions": [{"scopeName": scope, "operator": operator, "values": values}]});
        for (spec, expected) in [
            (json!({"hard": {"pods": "1", "cpu": "1", "x.io/y": "1"}, "scopes": ["NotBestEffort"]}), vec![]),
            (json!({"hard": {"pods": "1"}, "scopes": ["Odd"]}), vec!["unsupported scope"]),
            (json!({"hard": {"cpu": "1"}, "scopes": ["BestEffort"]}), vec!["unsupported scope applied to resource"]),
            (
                json!({"hard": {"services": "1"}, "scopes": ["Terminating"]}),
                vec!["unsupported scope applied to resource"],
            ),
            (json!({"scopes": ["BestEffort", "NotBestEffort"]}), vec!["conflicting scopes"]),
            (json!({"hard": {"pods": "1"}, "scopeSelector": by("PriorityClass", "In", json!(["high"]))}), vec![]),
            (
                json!({"scopeSelector": by("PriorityClass", "In", json!([]))}),
                vec!["must be at least one value when `operator` is 'In' or 'NotIn' for scope selector"],
            ),
            (
                json!({"scopeSelector": by("PriorityClass", "Exists", json!(["a"]))}),
                vec!["must be no value when `operator` is 'Exist' or 'DoesNotExist' for scope selector"],
            ),
            (
                json!({"scopeSelector": by("PriorityClass", "Near", json!(["a"]))}),
                vec!["not a valid selector operator"],
            ),
            (
                json!({"scopeSelector": by("Terminating", "In", json!(["a"]))}),
                vec![
                    "must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
                ],
            ),
            (
                json!({"hard": {"secrets": "1"}, "scopeSelector": by("PriorityClass", "Exists", json!(null))}),
                vec!["unsupported scope applied to resource"],
            ),
        ] {
            let quota: ResourceQuota = serde_json::from_value(json!({"spec": spec})).unwrap();
            let errors = ResourceQuotaStrategy.validate_create(&quota);
            let found: Vec<&str> = errors.iter().map(|error| error.detail.as_str()).collect();
            assert_eq!(found, expected, "{spec}");
        }
    }
}

//! StorageVersionMigration: all objects of a resource are to be written once more, as they are written now.

use api::field::{FieldErrors, Path};
use api::validation;
use jiff::Timestamp;
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use serde_json::{Value, json};

use crate::column::Column;
use crate::unset::items;
use crate::{Strategy, cells};

pub struct StorageVersionMigrationStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Resource", "GroupResource to migrate"),
    Column::string("Status", "Status of the migration"),
];

/// Conditions that end a migration, each with what upstream calls it in a message.
const ENDS: [(&str, &str); 2] = [("Succeeded", "Success"), ("Failed", "Failed")];

impl Strategy for StorageVersionMigrationStrategy {
    type Object = StorageVersionMigration;

    fn validate_create(&self, migration: &StorageVersionMigration) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = migration.spec.clone().unwrap_or_default();
        let (group, resource) = (&spec.resource.group, &spec.resource.resource);
        let path = Path::new("spec.resource");
        if resource.is_empty() {
            errors.required(path.child("resource"), "resource is required to be set");
        } else {
            let wrong = validation::dns1035_label(resource);
            if !wrong.is_empty() {
                errors.invalid(path.child("resource"), resource, wrong.join(","));
            }
        }
        let wrong = if group.is_empty() { Vec::new() } else { validation::dns1123_subdomain(group) };
        if !wrong.is_empty() {
            errors.invalid(path.child("group"), group, wrong.join(","));
        }
        errors
    }

    fn validate_update(&self, new: &StorageVersionMigration, old: &StorageVersionMigration) -> FieldErrors {
        let mut errors = self.validate_create(new);
        errors.immutable("spec", &new.spec, &old.spec);
        errors
    }

    fn validate_status_update(&self, new: &StorageVersionMigration, old: &StorageVersionMigration) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let status = new.status.clone().unwrap_or_default();
        let (path, version) = (Path::new("status"), status.resource_version.unwrap_or_default());
        if !version.is_empty() && !is_well_formed(&version) {
            let why = format!("resource version is not well formed: {version}");
            errors.invalid(path.child("resourceVersion"), &version, why);
        }
        crate::metadata::conditions(&mut errors, &path.child("conditions"), items(&status.conditions));
        let before = old.status.as_ref().and_then(|status| status.resource_version.as_deref()).unwrap_or_default();
        if !before.is_empty() && before != version {
            errors.invalid(path.child("resourceVersion"), &version, "field is immutable");
        }
        if ENDS.iter().all(|(end, _)| holds(new, end)) {
            let why = "Both success and failed conditions cannot be true at the same time";
            errors.invalid(path.child("conditions"), &status.conditions, why);
        }
        for (end, word) in ENDS {
            if holds(old, end) && !holds(new, end) {
                let why = format!("{word} condition cannot be set to false once it is true");
                errors.invalid(path.child("conditions"), &status.conditions, why);
            }
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, migration: &StorageVersionMigration, _: Timestamp) -> Vec<Value> {
        let spec = migration.spec.clone().unwrap_or_default();
        let resource = match (spec.resource.resource, spec.resource.group) {
            (resource, group) if group.is_empty() => resource,
            (resource, group) => format!("{resource}.{group}"),
        };
        let state = ["Running", "Failed", "Succeeded"];
        let conditions = migration.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
        let shown = conditions.iter().rfind(|one| one.status == "True" && state.contains(&one.type_.as_str()));
        vec![
            cells::name(&migration.metadata),
            json!(resource),
            json!(shown.map_or("Unknown", |one| one.type_.as_str())),
        ]
    }
}

/// Whether a condition is true.
pub fn holds(migration: &StorageVersionMigration, condition: &str) -> bool {
    let conditions = migration.status.as_ref().map(|status| items(&status.conditions)).unwrap_or_default();
    conditions.iter().any(|one| one.type_ == condition && one.status == "True")
}

/// Digits, the first of them not zero (`isWellFormed` of resourceversion).
fn is_well_formed(version: &str) -> bool {
    !version.starts_with('0') && !version.is_empty() && version.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn migration(value: Value) -> StorageVersionMigration {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn migrations_are_checked() {
        let of = |resource: Value| migration(json!({"metadata": {"name": "m"}, "spec": {"resource": resource}}));
        let told =
            |errors: FieldErrors| errors.into_iter().map(|error| error.to_string()).collect::<Vec<_>>().join("; ");
        let strategy = StorageVersionMigrationStrategy;
        let good = of(json!({"group": "apps", "resource": "deployments"}));
        assert_eq!(told(strategy.validate_create(&good)), "");
        for (wrong, expected) in [
            (json!({}), "spec.resource.resource: Required value: resource is required to be set"),
            (json!({"resource": "Pods"}), "spec.resource.resource: Invalid value: \"Pods\""),
            (json!({"resource": "pods", "group": "A"}), "spec.resource.group: Invalid value: \"A\""),
        ] {
            let found = told(strategy.validate_create(&of(wrong)));
            assert!(found.starts_with(expected), "{found}");
        }
        let other = of(json!({"resource": "pods"}));
        assert!(told(strategy.validate_update(&other, &good)).contains("field is immutable"));

        let time = "2026-01-01T00:00:00Z";
        let condition = |kind: &str, status: &str| json!({"type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": time});
        let with = |version: &str, conditions: Value| {
            migration(
                json!({"metadata": {"name": "m"}, "status": {"resourceVersion": version, "conditions": conditions}}),
            )
        };
        let done = with("7", json!([condition("Succeeded", "True")]));
        for (new, old, expected) in [
            (with("7", json!([])), with("", json!([])), ""),
            (with("x", json!([])), with("", json!([])), "resource version is not well formed: x"),
            (with("07", json!([])), with("", json!([])), "resource version is not well formed: 07"),
            (with("8", json!([])), with("7", json!([])), "field is immutable"),
            (
                with("7", json!([condition("Succeeded", "False")])),
                done.clone(),
                "Success condition cannot be set to false",
            ),
            (
                with("7", json!([condition("Succeeded", "True"), condition("Failed", "True")])),
                done,
                "Both success and failed conditions",
            ),
        ] {
            let found = told(strategy.validate_status_update(&new, &old));
            assert!(found.contains(expected) && found.is_empty() == expected.is_empty(), "{found}");
        }
        let running = with("7", json!([condition("Running", "True")]));
        assert_eq!(strategy.cells(&running, Timestamp::UNIX_EPOCH)[2], "Running");
        assert_eq!(strategy.cells(&good, Timestamp::UNIX_EPOCH)[1..], [json!("deployments.apps"), json!("Unknown")]);
    }
}

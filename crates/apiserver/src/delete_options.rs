//! `DeleteOptions`: how a delete is asked for.

use api::Status;
use k8s_openapi::apimachinery::pkg::apis::meta::v1 as meta;
use serde_json::{Value, json};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const IGNORE_READ_ERROR: &str = "ignoreStoreReadErrorWithClusterBreakingPotential";

/// `DeleteOptions`
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub(crate) grace: Option<i64>,
    pub(crate) policy: Option<String>,
    pub(crate) orphan_dependents: Option<bool>,
    pub(crate) uid: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) dry_run: bool,
    /// Remove an object that cannot be read, without a look at anything in it.
    pub(crate) ignores_read_error: bool,
}

impl DeleteOptions {
    /// Takes over what a `DeleteOptions` object says. What cannot be read is refused: a condition or a dry run that was passed
    /// over would delete what was to stay.
    pub(crate) fn read(&mut self, body: &Value) -> Result<(), Status> {
        if body["kind"].as_str().is_some_and(|kind| !matches!(kind, "" | "DeleteOptions")) {
            return Err(Status::bad_request("decoded object cannot be converted to DeleteOptions"));
        }
        let said: Option<meta::DeleteOptions> = api::codec::from_value(body).map_err(|error| {
            Status::bad_request(format!(
                "DeleteOptions in version \"v1\" cannot be handled as a DeleteOptions: {error}"
            ))
        })?;
        let said = said.unwrap_or_default();
        let conditions = said.preconditions.unwrap_or_default();
        (self.grace, self.policy, self.orphan_dependents) =
            (said.grace_period_seconds, said.propagation_policy, said.orphan_dependents);
        (self.uid, self.resource_version) = (conditions.uid, conditions.resource_version);
        self.ignores_read_error = said.ignore_store_read_error_with_cluster_breaking_potential == Some(true);
        let wanted = said.dry_run.unwrap_or_default();
        self.dry_run |= !wanted.is_empty();
        if wanted.iter().any(|value| value != "All") {
            let mut errors = api::field::FieldErrors::default();
            errors.not_supported("dryRun", wanted, &["All"]);
            Self::refuse(errors)?;
        }
        Ok(())
    }

    /// As an object of its kind, for those who are asked about the delete.
    pub(crate) fn to_value(&self) -> Value {
        let mut value = json!({"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"});
        let mut set = |key: &str, field: Value| {
            if !field.is_null() {
                value[key] = field;
            }
        };
        set("gracePeriodSeconds", self.grace.into());
        set("propagationPolicy", self.policy.as_deref().into());
        set("orphanDependents", self.orphan_dependents.into());
        if self.uid.is_some() || self.resource_version.is_some() {
            let mut preconditions = serde_json::Map::new();
            preconditions.extend(self.uid.clone().map(|uid| ("uid".to_owned(), uid.into())));
            preconditions.extend(self.resource_version.clone().map(|rv| ("resourceVersion".to_owned(), rv.into())));
            set("preconditions", preconditions.into());
        }
        if self.dry_run {
            set("dryRun", json!(["All"]));
        }
        value
    }

    pub(crate) fn validate(&self) -> Result<(), Status> {
        let mut errors = api::field::FieldErrors::default();
        if let Some(policy) = &self.policy {
            if self.orphan_dependents.is_some() {
                errors.invalid(
                    "propagationPolicy",
                    policy,
                    "orphanDependents and deletionPropagation cannot be both set",
                );
            }
            if !matches!(&**policy, "Orphan" | "Background" | "Foreground") {
                errors.not_supported("propagationPolicy", policy, &["Background", "Foreground", "Orphan", "nil"]);
            }
        }
        if self.ignores_read_error {
            for (is_set, field) in [
                (self.dry_run, ".dryRun"),
                (self.policy.is_some(), ".propagationPolicy"),
                (self.orphan_dependents.is_some(), ".orphanDependents"),
                (self.grace.is_some(), ".gracePeriodSeconds"),
                (self.uid.is_some() || self.resource_version.is_some(), ".preconditions"),
            ] {
                if is_set {
                    errors.invalid(IGNORE_READ_ERROR, true, format!("cannot be set together with {field}"));
                }
            }
        }
        Self::refuse(errors)
    }

    pub(crate) fn refuse(errors: api::field::FieldErrors) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(&api::GroupKind::new("meta.k8s.io", "DeleteOptions"), "", errors))
    }

    /// The finalizers an object has after this delete was asked for.
    pub(crate) fn finalizers(&self, present: &[String], orphans_by_default: bool) -> Vec<String> {
        let wanted = match (self.policy.as_deref(), self.orphan_dependents) {
            (Some("Orphan"), _) | (None, Some(true)) => Some(ORPHAN),
            (Some("Foreground"), _) => Some(FOREGROUND),
            (Some(_), _) | (None, Some(false)) => None,
            (None, None) if present.iter().any(|name| name == ORPHAN || name == FOREGROUND) => return present.to_vec(),
            (None, None) => orphans_by_default.then_some(ORPHAN),
        };
        let mut finalizers: Vec<String> =
            present.iter().filter(|name| *name != ORPHAN && *name != FOREGROUND).cloned().collect();
        finalizers.extend(wanted.map(str::to_owned));
        finalizers
    }
}

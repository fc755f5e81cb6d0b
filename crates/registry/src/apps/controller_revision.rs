//! ControllerRevision: one state of a workload's template, kept so that it can be rolled back to.

use api::field::{FieldErrors, IMMUTABLE};
use api::meta::Meta as _;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use serde_json::{Value, json};

use crate::column::Column;
use crate::{Strategy, cells};

pub struct ControllerRevisionStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Controller", "Whose revision it is."),
    Column::string("Revision", "The number of the revision."),
    Column::AGE,
];

impl Strategy for ControllerRevisionStrategy {
    type Object = ControllerRevision;

    fn validate_create(&self, revision: &ControllerRevision) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if revision.data.as_ref().is_none_or(|data| data.0.is_null()) {
            errors.required("data", "data is mandatory");
        }
        if revision.revision < 0 {
            errors.invalid("revision", revision.revision, "must be greater than or equal to 0");
        }
        errors
    }

    fn validate_update(&self, new: &ControllerRevision, old: &ControllerRevision) -> FieldErrors {
        let mut errors = self.validate_create(new);
        if new.data != old.data {
            errors.invalid("data", &new.data, IMMUTABLE);
        }
        errors
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, revision: &ControllerRevision, now: Timestamp) -> Vec<Value> {
        let owner = revision.metadata.controller();
        let owner = owner.map(|owner| {
            let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            let kind = owner.kind.to_lowercase();
            if group.is_empty() { format!("{kind}/{}", owner.name) } else { format!("{kind}.{group}/{}", owner.name) }
        });
        vec![
            cells::name(&revision.metadata),
            json!(owner.as_deref().unwrap_or("<none>")),
            json!(revision.revision),
            cells::age(&revision.metadata, now),
        ]
    }
}

//! Namespace: the scope of names. It goes away in two steps: marked, emptied by its controller, then finalized.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus};
use serde_json::{Value, json};

use crate::column::{Column, age};
use crate::{Call, NameRule, SelectableField, Strategy};

pub struct NamespaceStrategy;

/// The finalizer in `spec.finalizers` that the namespace controller removes once the namespace is empty.
pub const KUBERNETES_FINALIZER: &str = "kubernetes";

const COLUMNS: &[Column] = &[Column::NAME, Column::string("Status", "The status of the namespace"), Column::AGE];

impl Strategy for NamespaceStrategy {
    type Object = Namespace;

    fn apply_defaults(&self, object: &mut Namespace) {
        // Selectors can then match a namespace by its name.
        if let Some(name) = object.metadata.name.clone().filter(|name| !name.is_empty()) {
            object.metadata.labels.get_or_insert_default().insert("kubernetes.io/metadata.name".to_owned(), name);
        }
    }

    fn prepare_for_create(&self, _: &Call<'_>, object: &mut Namespace) {
        object.status = Some(NamespaceStatus { phase: Some("Active".to_owned()), ..Default::default() });
        let finalizers = object.spec.get_or_insert_default().finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == KUBERNETES_FINALIZER) {
            finalizers.push(KUBERNETES_FINALIZER.to_owned());
        }
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut Namespace, old: &Namespace) {
        // Only the finalize subresource removes these.
        new.spec.clone_from(&old.spec);
    }

    fn name_rule(&self) -> NameRule {
        NameRule::Label
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("status.phase", &["status", "phase"])] }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Namespace, now: Timestamp) -> Vec<Value> {
        let phase = object.status.as_ref().and_then(|status| status.phase.clone());
        vec![
            json!(object.metadata.name),
            json!(phase.unwrap_or_default()),
            age(object.metadata.creation_timestamp.as_ref(), now),
        ]
    }
}

//! Namespace: the scope of names. It goes away in two steps: marked, emptied by its controller, then finalized.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Namespace, NamespaceStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use crate::column::{Column, age};
use crate::{Action, Call, Deletion, NameRule, SelectableField, Strategy};

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

    /// Only the finalizers of the specification, which nothing else changes.
    fn with_part(&self, action: Action, new: &Namespace, old: &Namespace, _: Timestamp) -> Option<Namespace> {
        if action != Action::Finalize {
            return None;
        }
        let mut kept = Namespace { metadata: new.metadata.clone(), ..old.clone() };
        match &new.spec {
            Some(spec) => kept.spec.get_or_insert_default().finalizers.clone_from(&spec.finalizers),
            None => kept.spec = None,
        }
        Some(kept)
    }

    fn is_held(&self, object: &Namespace) -> bool {
        object.spec.as_ref().and_then(|spec| spec.finalizers.as_ref()).is_some_and(|list| !list.is_empty())
    }

    /// A namespace is only marked; its controller empties it and then finalizes it.
    fn before_delete(&self, object: &mut Namespace, now: Timestamp) -> Option<Deletion> {
        let in_meta = object.metadata.finalizers.as_ref().is_some_and(|list| !list.is_empty());
        if object.metadata.deletion_timestamp.is_some() {
            return Some(if self.is_held(object) || in_meta { Deletion::Pending } else { Deletion::Remove });
        }
        object.metadata.deletion_timestamp = Some(Time(now));
        object.status.get_or_insert_default().phase = Some("Terminating".to_owned());
        Some(Deletion::Mark)
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

//! ReplicationController: the elder sibling of ReplicaSet, with a plain selector.

use api::field::{FieldErrors, Path};
use api::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodTemplateSpec, ReplicationController};
use serde_json::{Value, json};

use super::pod_spec;
use crate::column::Column;
use crate::{SelectableField, Strategy, cells};

pub struct ReplicationControllerStrategy;

/// ReplicaSets have the same.
pub const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::integer("Desired", "How many pods are wanted."),
    Column::integer("Current", "How many pods there are."),
    Column::integer("Ready", "How many pods are ready."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
    cells::SELECTOR,
];

impl Strategy for ReplicationControllerStrategy {
    type Object = ReplicationController;
    const ORPHANS_BY_DEFAULT: bool = true;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, controller: &mut ReplicationController) {
        let spec = controller.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        let Some(template) = &mut spec.template else { return };
        pod_spec::defaults::pod_template(template);
        // Both follow the template's labels when they say nothing.
        let labels = template.metadata.as_ref().and_then(|meta| meta.labels.clone());
        if let Some(labels) = labels.filter(|labels| !labels.is_empty()) {
            if spec.selector.as_ref().is_none_or(|selector| selector.is_empty()) {
                spec.selector = Some(labels.clone());
            }
            if controller.metadata.labels.as_ref().is_none_or(|own| own.is_empty()) {
                controller.metadata.labels = Some(labels);
            }
        }
    }

    fn validate_create(&self, controller: &ReplicationController) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = controller.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        for (name, value) in [("replicas", spec.replicas), ("minReadySeconds", spec.min_ready_seconds)] {
            if let Some(value) = value.filter(|&value| value < 0) {
                errors.invalid(path.child(name), value, "must be greater than or equal to 0");
            }
        }
        let selector = spec.selector.clone().unwrap_or_default();
        if selector.is_empty() {
            errors.required(path.child("selector"), "");
        }
        let Some(template) = &spec.template else {
            errors.required(path.child("template"), "");
            return errors;
        };
        let labels = template.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
        if !selector.is_empty() && !Selector::from_map(&selector).matches(labels) {
            errors.invalid(
                path.child("template.metadata.labels"),
                labels,
                "`selector` does not match template `labels`",
            );
        }
        pod_spec::template::validate(&mut errors, &path.child("template"), template);
        let policy = template.spec.as_ref().and_then(|pod| pod.restart_policy.as_deref()).unwrap_or_default();
        if policy != "Always" {
            errors.not_supported(path.child("template.spec.restartPolicy"), policy, &["Always"]);
        }
        errors
    }

    fn validate_update(&self, new: &ReplicationController, old: &ReplicationController) -> FieldErrors {
        pod_spec::template::forgive(self.validate_create(new), || self.validate_create(old))
    }

    fn warnings(&self, new: &ReplicationController, old: Option<&ReplicationController>) -> Vec<String> {
        fn template(object: &ReplicationController) -> Option<&PodTemplateSpec> {
            object.spec.as_ref()?.template.as_ref()
        }
        let Some(new) = template(new) else { return Vec::new() };
        pod_spec::template_warnings("spec.template", new, old.and_then(template))
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("status.replicas", &["status", "replicas"]).or("0")] }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, controller: &ReplicationController, now: Timestamp) -> Vec<Value> {
        let spec = controller.spec.clone().unwrap_or_default();
        let status = controller.status.clone().unwrap_or_default();
        let [containers, images] = cells::template(spec.template.as_ref());
        vec![
            cells::name(&controller.metadata),
            json!(spec.replicas.unwrap_or(0)),
            json!(status.replicas),
            json!(status.ready_replicas.unwrap_or(0)),
            cells::age(&controller.metadata, now),
            containers,
            images,
            cells::labels(spec.selector.as_ref()),
        ]
    }
}

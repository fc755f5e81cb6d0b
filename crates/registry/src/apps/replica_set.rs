//! ReplicaSet: a number of identical pods.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::core::pod_spec::defaults;
use crate::core::pod_spec::{template, template_warnings};
use crate::core::replication_controller::COLUMNS;
use crate::{SelectableField, Strategy, cells};

pub struct ReplicaSetStrategy;

impl Strategy for ReplicaSetStrategy {
    type Object = ReplicaSet;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, set: &mut ReplicaSet) {
        let spec = set.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        defaults::pod_template(spec.template.get_or_insert_default());
    }

    fn validate_create(&self, set: &ReplicaSet) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let spec = set.spec.clone().unwrap_or_default();
        let path = Path::new("spec");
        rules::non_negative(&mut errors, &path.child("replicas"), spec.replicas.map(i64::from));
        rules::non_negative(&mut errors, &path.child("minReadySeconds"), spec.min_ready_seconds.map(i64::from));
        let none = PodTemplateSpec::default();
        let template = spec.template.as_ref().unwrap_or(&none);
        rules::selector_and_template(&mut errors, &path, &spec.selector, template, "deployment");
        rules::always_restarts(&mut errors, &path, template, "ReplicaSet");
        errors
    }

    fn validate_update(&self, new: &ReplicaSet, old: &ReplicaSet) -> FieldErrors {
        let mut errors = template::forgive(self.validate_create(new), || self.validate_create(old));
        let [new, old] = [new, old].map(|object| object.spec.as_ref().map(|spec| &spec.selector));
        rules::same_selector(&mut errors, new, old);
        errors
    }

    fn validate_status_update(&self, new: &ReplicaSet, _: &ReplicaSet) -> FieldErrors {
        let status = new.status.clone().unwrap_or_default();
        let mut errors = FieldErrors::default();
        let path = Path::new("status");
        let counts = [
            ("replicas", Some(status.replicas)),
            ("fullyLabeledReplicas", status.fully_labeled_replicas),
            ("readyReplicas", status.ready_replicas),
            ("availableReplicas", status.available_replicas),
        ];
        for (name, value) in counts {
            rules::non_negative(&mut errors, &path.child(name), value.map(i64::from));
        }
        for (name, value) in &counts[1..] {
            if value.unwrap_or(0) > status.replicas {
                errors.invalid(path.child(name), value, "cannot be greater than status.replicas");
            }
        }
        rules::available_at_most_ready(&mut errors, &path, status.available_replicas, status.ready_replicas);
        errors
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("status.replicas", &["status", "replicas"]).or("0")] }
    }

    fn warnings(&self, new: &ReplicaSet, old: Option<&ReplicaSet>) -> Vec<String> {
        fn template(object: &ReplicaSet) -> Option<&PodTemplateSpec> {
            object.spec.as_ref().and_then(|spec| spec.template.as_ref())
        }
        let Some(new) = template(new) else { return Vec::new() };
        template_warnings("spec.template", new, old.and_then(template))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, set: &ReplicaSet, now: Timestamp) -> Vec<Value> {
        let spec = set.spec.clone().unwrap_or_default();
        let status = set.status.clone().unwrap_or_default();
        let [containers, images] = cells::template(spec.template.as_ref());
        vec![
            cells::name(&set.metadata),
            json!(spec.replicas.unwrap_or(0)),
            json!(status.replicas),
            json!(status.ready_replicas.unwrap_or(0)),
            cells::age(&set.metadata, now),
            containers,
            images,
            cells::selector(Some(&spec.selector)),
        ]
    }
}

//! DaemonSet: one pod on every node that fits.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::core::pod_spec::defaults;
use crate::core::pod_spec::{template, template_warnings};
use crate::unset::{or_empty, set_text};
use crate::{Call, Strategy, cells};

pub struct DaemonSetStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::integer("Desired", "How many nodes should run the pod."),
    Column::integer("Current", "How many nodes run the pod and should."),
    Column::integer("Ready", "How many pods are ready."),
    Column::integer("Up-to-date", "How many pods have the current template."),
    Column::integer("Available", "How many pods have been ready long enough."),
    Column::string("Node Selector", "Which nodes the pod runs on."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
    cells::SELECTOR,
];

impl Strategy for DaemonSetStrategy {
    type Object = DaemonSet;
    const COUNTS_GENERATIONS: bool = true;

    fn apply_defaults(&self, set: &mut DaemonSet) {
        let spec = set.spec.get_or_insert_default();
        let strategy = spec.update_strategy.get_or_insert_default();
        set_text(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert(IntOrString::Int(1));
            rolling.max_surge.get_or_insert(IntOrString::Int(0));
        }
        spec.revision_history_limit.get_or_insert(10);
        defaults::pod_template(&mut spec.template);
    }

    fn prepare_for_create(&self, _: &Call<'_>, set: &mut DaemonSet) {
        let generation = template_generation(set).max(1);
        set_template_generation(set, generation);
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut DaemonSet, old: &DaemonSet) {
        let template = |set: &DaemonSet| set.spec.as_ref().map(|spec| spec.template.clone());
        let changed = i64::from(template(new) != template(old));
        set_template_generation(new, template_generation(old) + changed);
    }

    fn validate_create(&self, set: &DaemonSet) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if let Some(spec) = &set.spec {
            validate_spec(&mut errors, &Path::new("spec"), spec);
        }
        errors
    }

    fn validate_update(&self, new: &DaemonSet, old: &DaemonSet) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let selectors = [new, old].map(|set| set.spec.as_ref().map(|spec| &spec.selector));
        rules::same_selector(&mut errors, selectors[0], selectors[1]);
        let found = template::forgive(self.validate_create(new), || self.validate_create(old));
        errors.extend(found.iter().cloned());
        errors
    }

    fn warnings(&self, new: &DaemonSet, old: Option<&DaemonSet>) -> Vec<String> {
        fn template(object: &DaemonSet) -> Option<&PodTemplateSpec> {
            object.spec.as_ref().map(|spec| &spec.template)
        }
        let Some(new) = template(new) else { return Vec::new() };
        template_warnings("spec.template", new, old.and_then(template))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, set: &DaemonSet, now: Timestamp) -> Vec<Value> {
        let spec = set.spec.clone().unwrap_or_default();
        let status = set.status.clone().unwrap_or_default();
        let [containers, images] = cells::template(Some(&spec.template));
        let node_selector = spec.template.spec.as_ref().and_then(|pod| pod.node_selector.as_ref());
        vec![
            cells::name(&set.metadata),
            json!(status.desired_number_scheduled),
            json!(status.current_number_scheduled),
            json!(status.number_ready),
            json!(status.updated_number_scheduled.unwrap_or(0)),
            json!(status.number_available.unwrap_or(0)),
            cells::labels(node_selector),
            cells::age(&set.metadata, now),
            containers,
            images,
            cells::selector(Some(&spec.selector)),
        ]
    }
}

/// Counts templates for clients from before the group `apps/v1`.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(set: &DaemonSet) -> i64 {
    let annotations = set.metadata.annotations.as_ref();
    annotations.and_then(|all| all.get(TEMPLATE_GENERATION)).and_then(|text| text.parse().ok()).unwrap_or(0)
}

fn set_template_generation(set: &mut DaemonSet, generation: i64) {
    let annotations = set.metadata.annotations.get_or_insert_default();
    annotations.insert(TEMPLATE_GENERATION.to_owned(), generation.to_string());
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &DaemonSetSpec) {
    rules::selector_and_template(errors, path, &spec.selector, &spec.template, "daemonset");
    rules::always_restarts(errors, path, &spec.template, "DaemonSet");
    rules::non_negative(errors, &path.child("minReadySeconds"), spec.min_ready_seconds.map(i64::from));
    rules::non_negative(errors, &path.child("revisionHistoryLimit"), spec.revision_history_limit.map(i64::from));
    let strategy = spec.update_strategy.clone().unwrap_or_default();
    let path = path.child("updateStrategy");
    match or_empty(&strategy.type_) {
        "OnDelete" => {}
        "RollingUpdate" => {
            let Some(rolling) = &strategy.rolling_update else {
                errors.required(path.child("rollingUpdate"), "");
                return;
            };
            let path = path.child("rollingUpdate");
            let (unavailable, surge) = (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref());
            for (name, value) in [("maxUnavailable", unavailable), ("maxSurge", surge)] {
                let path = path.child(name);
                rules::count_or_percent(errors, &path, value);
                rules::at_most_all(errors, &path, value);
            }
            match (rules::is_zero(unavailable), rules::is_zero(surge)) {
                (true, true) => {
                    errors.required(path.child("maxUnavailable"), "cannot be 0 when maxSurge is 0");
                }
                (false, false) => {
                    errors.invalid(path.child("maxSurge"), surge, "may not be set when maxUnavailable is non-zero")
                }
                _ => {}
            }
        }
        other => errors.not_supported(path.child("type"), other, &["RollingUpdate", "OnDelete"]),
    }
}

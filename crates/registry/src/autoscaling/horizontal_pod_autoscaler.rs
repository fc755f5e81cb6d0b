//! HorizontalPodAutoscaler: as many pods as the load asks for.

use api::field::FieldErrors;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscaler, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus,
};
use serde_json::{Value, json};

use super::{rules, v1};
use crate::column::Column;
use crate::unset::{items, set_text};
use crate::{Call, Strategy, cells};

pub struct HorizontalPodAutoscalerStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Reference", "What is scaled."),
    Column::string("Targets", "Where the metrics are and should be."),
    Column::string("MinPods", "Never fewer than this."),
    Column::string("MaxPods", "Never more than this."),
    Column::string("Replicas", "How many there are."),
    Column::AGE,
];

impl Strategy for HorizontalPodAutoscalerStrategy {
    type Object = HorizontalPodAutoscaler;

    fn apply_defaults(&self, scaler: &mut HorizontalPodAutoscaler) {
        let spec = &mut scaler.spec;
        spec.min_replicas.get_or_insert(1);
        if items(&spec.metrics).is_empty() {
            spec.metrics = Some(vec![v1::default_metric()]);
        }
        if let Some(behavior) = &mut spec.behavior {
            let up = behavior.scale_up.get_or_insert_default();
            up.stabilization_window_seconds.get_or_insert(0);
            scaling_rules(up, &[("Pods", 4), ("Percent", 100)]);
            scaling_rules(behavior.scale_down.get_or_insert_default(), &[("Percent", 100)]);
        }
    }

    fn prepare_for_create(&self, _: &Call<'_>, scaler: &mut HorizontalPodAutoscaler) {
        v1::drop_annotations(&mut scaler.metadata.annotations);
    }

    fn prepare_for_update(&self, _: &Call<'_>, new: &mut HorizontalPodAutoscaler, _: &HorizontalPodAutoscaler) {
        v1::drop_annotations(&mut new.metadata.annotations);
    }

    fn prepare_for_status_update(&self, _: &Call<'_>, new: &mut HorizontalPodAutoscaler, _: &HorizontalPodAutoscaler) {
        v1::drop_annotations(&mut new.metadata.annotations);
    }

    fn validate_create(&self, scaler: &HorizontalPodAutoscaler) -> FieldErrors {
        rules::autoscaler(scaler, None)
    }

    fn validate_update(&self, new: &HorizontalPodAutoscaler, old: &HorizontalPodAutoscaler) -> FieldErrors {
        rules::autoscaler(new, Some(old))
    }

    fn validate_status_update(&self, new: &HorizontalPodAutoscaler, _: &HorizontalPodAutoscaler) -> FieldErrors {
        rules::status(new)
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, scaler: &HorizontalPodAutoscaler, now: Timestamp) -> Vec<Value> {
        let spec = &scaler.spec;
        let status = scaler.status.clone().unwrap_or_default();
        let target = &spec.scale_target_ref;
        vec![
            cells::name(&scaler.metadata),
            json!(format!("{}/{}", target.kind, target.name)),
            json!(metrics(items(&spec.metrics), items(&status.current_metrics))),
            json!(spec.min_replicas.map_or("<unset>".to_owned(), |min| min.to_string())),
            json!(spec.max_replicas),
            json!(status.current_replicas.unwrap_or(0)),
            cells::age(&scaler.metadata, now),
        ]
    }
}

fn scaling_rules(rules: &mut HPAScalingRules, policies: &[(&str, i32)]) {
    set_text(&mut rules.select_policy, "Max");
    if items(&rules.policies).is_empty() {
        let policies = policies
            .iter()
            .map(|&(kind, value)| HPAScalingPolicy { type_: kind.to_owned(), value, period_seconds: 15 })
            .collect();
        rules.policies = Some(policies);
    }
}

/// `cpu: 12%/80%` for each metric, two at most (`formatHPAMetrics`, v1.36).
fn metrics(specs: &[MetricSpec], statuses: &[MetricStatus]) -> String {
    const SHOWN: usize = 2;
    if specs.is_empty() {
        return "<none>".to_owned();
    }
    let shown: Vec<String> =
        specs.iter().take(SHOWN).enumerate().map(|(i, spec)| metric(spec, statuses.get(i))).collect();
    let text = shown.join(", ");
    if specs.len() > SHOWN { format!("{text} + {} more...", specs.len() - SHOWN) } else { text }
}

fn metric(spec: &MetricSpec, status: Option<&MetricStatus>) -> String {
    let current = |value: Option<&MetricValueStatus>, target: &MetricTarget| {
        let shown = value.and_then(|value| {
            if target.average_value.is_some() {
                value.average_value.as_ref().map(|value| value.0.clone())
            } else if target.value.is_some() {
                value.value.as_ref().map(|value| value.0.clone())
            } else {
                value.average_utilization.map(|percent| format!("{percent}%"))
            }
        });
        shown.unwrap_or_else(|| "<unknown>".to_owned())
    };
    let wanted = |target: &MetricTarget| {
        if let Some(value) = &target.average_value {
            value.0.clone()
        } else if let Some(value) = &target.value {
            value.0.clone()
        } else {
            target.average_utilization.map_or("<auto>".to_owned(), |percent| format!("{percent}%"))
        }
    };
    let average = |target: &MetricTarget| if target.average_value.is_some() { " (avg)" } else { "" };
    if let Some(source) = &spec.resource {
        let value = status.and_then(|status| status.resource.as_ref()).map(|status| &status.current);
        format!("{}: {}/{}", source.name, current(value, &source.target), wanted(&source.target))
    } else if let Some(source) = &spec.container_resource {
        let value = status.and_then(|status| status.container_resource.as_ref()).map(|status| &status.current);
        format!("{}: {}/{}", source.name, current(value, &source.target), wanted(&source.target))
    } else if let Some(source) = &spec.pods {
        let value = status.and_then(|status| status.pods.as_ref()).map(|status| &status.current);
        format!("{}/{}", current(value, &source.target), wanted(&source.target))
    } else if let Some(source) = &spec.object {
        let value = status.and_then(|status| status.object.as_ref()).map(|status| &status.current);
        format!("{}/{}{}", current(value, &source.target), wanted(&source.target), average(&source.target))
    } else if let Some(source) = &spec.external {
        let value = status.and_then(|status| status.external.as_ref()).map(|status| &status.current);
        format!("{}/{}{}", current(value, &source.target), wanted(&source.target), average(&source.target))
    } else {
        "<unknown type>".to_owned()
    }
}

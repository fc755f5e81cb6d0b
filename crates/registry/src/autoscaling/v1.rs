//! `autoscaling/v1` over stored `autoscaling/v2`: one CPU target instead of a list of metrics. What v1 cannot say travels in
//! annotations, in the format of `pkg/apis/autoscaling/v1/conversion.go` (v1.36), so that clients and backups of other
//! clusters read it: metrics, their statuses and conditions in types that only v1 has, the behavior in an internal type.

use std::collections::BTreeMap;

use api::quantity::Quantity;
use k8s_openapi::api::autoscaling::v2;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::behavior::{self, Behavior};
use crate::resource::Conversion;

pub(crate) const CONVERSION: Conversion = Conversion::Fixed { to_storage: to_v2, from_storage: to_v1 };

const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT_METRICS: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";
/// No version that is served holds anything in these two.
const SCALE_DOWN_TOLERANCE: &str = "autoscaling.alpha.kubernetes.io/scale-down-tolerance";
const SCALE_UP_TOLERANCE: &str = "autoscaling.alpha.kubernetes.io/scale-up-tolerance";
const ANNOTATIONS: [&str; 6] =
    [METRICS, CURRENT_METRICS, CONDITIONS, BEHAVIOR, SCALE_DOWN_TOLERANCE, SCALE_UP_TOLERANCE];

/// Takes away the annotations that only conversions may set.
pub(super) fn drop_annotations(annotations: &mut Option<BTreeMap<String, String>>) {
    let Some(there) = annotations else { return };
    there.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
    if there.is_empty() {
        *annotations = None;
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricSpec {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodsSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<ResourceSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_resource: Option<ContainerResourceSource>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalSource>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Target {
    kind: String,
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    api_version: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectSource {
    target: Target,
    metric_name: String,
    target_value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    average_value: Option<Quantity>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodsSource {
    metric_name: String,
    target_average_value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceSource {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_average_utilization: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_average_value: Option<Quantity>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerResourceSource {
    #[serde(flatten)]
    resource: ResourceSource,
    container: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExternalSource {
    metric_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric_selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_value: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target_average_value: Option<Quantity>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct MetricStatus {
    r#type: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    object: Option<ObjectStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pods: Option<PodsStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    resource: Option<ResourceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    container_resource: Option<ContainerResourceStatus>,
    #[serde(skip_serializing_if = "Option::is_none")]
    external: Option<ExternalStatus>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectStatus {
    target: Target,
    metric_name: String,
    current_value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
    #[serde(skip_serializing_if = "Option::is_none")]
    average_value: Option<Quantity>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodsStatus {
    metric_name: String,
    current_average_value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    selector: Option<LabelSelector>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ResourceStatus {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_average_utilization: Option<i32>,
    current_average_value: Quantity,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerResourceStatus {
    #[serde(flatten)]
    resource: ResourceStatus,
    container: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ExternalStatus {
    metric_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    metric_selector: Option<LabelSelector>,
    current_value: Quantity,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_average_value: Option<Quantity>,
}

fn raw(quantity: Quantity) -> RawQuantity {
    RawQuantity(quantity.to_string())
}

fn read(raw: Option<&RawQuantity>) -> Option<Quantity> {
    raw.and_then(|raw| Quantity::try_from(raw).ok())
}

/// Of two values of which v1 cannot leave out the first.
fn value_or_average(value: Quantity, average: Option<Quantity>) -> (Option<RawQuantity>, Option<RawQuantity>) {
    let value = Some(value).filter(|value| average.is_none() || !value.is_zero());
    (value.map(raw), average.map(raw))
}

impl From<&v2::CrossVersionObjectReference> for Target {
    fn from(object: &v2::CrossVersionObjectReference) -> Self {
        let api_version = object.api_version.clone().unwrap_or_default();
        Self { kind: object.kind.clone(), name: object.name.clone(), api_version }
    }
}

impl From<Target> for v2::CrossVersionObjectReference {
    fn from(Target { kind, name, api_version }: Target) -> Self {
        Self { kind, name, api_version: Some(api_version).filter(|version| !version.is_empty()) }
    }
}

impl From<&v2::MetricSpec> for MetricSpec {
    fn from(spec: &v2::MetricSpec) -> Self {
        let resource = |name: &str, target: &v2::MetricTarget| ResourceSource {
            name: name.to_owned(),
            target_average_utilization: target.average_utilization,
            target_average_value: read(target.average_value.as_ref()),
        };
        Self {
            r#type: spec.type_.clone(),
            object: spec.object.as_ref().map(|source| ObjectSource {
                target: (&source.described_object).into(),
                metric_name: source.metric.name.clone(),
                target_value: read(source.target.value.as_ref()).unwrap_or_default(),
                selector: source.metric.selector.clone(),
                average_value: read(source.target.average_value.as_ref()),
            }),
            pods: spec.pods.as_ref().map(|source| PodsSource {
                metric_name: source.metric.name.clone(),
                target_average_value: read(source.target.average_value.as_ref()).unwrap_or_default(),
                selector: source.metric.selector.clone(),
            }),
            resource: spec.resource.as_ref().map(|source| resource(&source.name, &source.target)),
            container_resource: spec.container_resource.as_ref().map(|source| ContainerResourceSource {
                resource: resource(&source.name, &source.target),
                container: source.container.clone(),
            }),
            external: spec.external.as_ref().map(|source| ExternalSource {
                metric_name: source.metric.name.clone(),
                metric_selector: source.metric.selector.clone(),
                target_value: read(source.target.value.as_ref()),
                target_average_value: read(source.target.average_value.as_ref()),
            }),
        }
    }
}

impl From<MetricSpec> for v2::MetricSpec {
    fn from(spec: MetricSpec) -> Self {
        let of_one = |value: Option<RawQuantity>, average_value: Option<RawQuantity>, is_average: bool| {
            let type_ = if is_average { "AverageValue" } else { "Value" }.to_owned();
            v2::MetricTarget { type_, value, average_value, average_utilization: None }
        };
        let of_resource = |source: ResourceSource| {
            let average_utilization = source.target_average_utilization;
            let type_ = if average_utilization.is_some() { "Utilization" } else { "AverageValue" }.to_owned();
            let average_value = source.target_average_value.map(raw);
            (source.name, v2::MetricTarget { type_, average_utilization, average_value, value: None })
        };
        Self {
            type_: spec.r#type,
            object: spec.object.map(|source| {
                let (value, average) = value_or_average(source.target_value, source.average_value);
                let is_average = average.is_some();
                v2::ObjectMetricSource {
                    described_object: source.target.into(),
                    metric: v2::MetricIdentifier { name: source.metric_name, selector: source.selector },
                    target: of_one(value, average, is_average),
                }
            }),
            pods: spec.pods.map(|source| v2::PodsMetricSource {
                metric: v2::MetricIdentifier { name: source.metric_name, selector: source.selector },
                target: of_one(None, Some(raw(source.target_average_value)), true),
            }),
            resource: spec.resource.map(|source| {
                let (name, target) = of_resource(source);
                v2::ResourceMetricSource { name, target }
            }),
            container_resource: spec.container_resource.map(|source| {
                let (name, target) = of_resource(source.resource);
                v2::ContainerResourceMetricSource { name, container: source.container, target }
            }),
            external: spec.external.map(|source| {
                let is_average = source.target_value.is_none();
                v2::ExternalMetricSource {
                    metric: v2::MetricIdentifier { name: source.metric_name, selector: source.metric_selector },
                    target: of_one(source.target_value.map(raw), source.target_average_value.map(raw), is_average),
                }
            }),
        }
    }
}

impl From<&v2::MetricStatus> for MetricStatus {
    fn from(status: &v2::MetricStatus) -> Self {
        let value = |current: &v2::MetricValueStatus| read(current.value.as_ref()).unwrap_or_default();
        let average = |current: &v2::MetricValueStatus| read(current.average_value.as_ref());
        let resource = |name: &str, current: &v2::MetricValueStatus| ResourceStatus {
            name: name.to_owned(),
            current_average_utilization: current.average_utilization,
            current_average_value: average(current).unwrap_or_default(),
        };
        Self {
            r#type: status.type_.clone(),
            object: status.object.as_ref().map(|of| ObjectStatus {
                target: (&of.described_object).into(),
                metric_name: of.metric.name.clone(),
                current_value: value(&of.current),
                selector: of.metric.selector.clone(),
                average_value: average(&of.current),
            }),
            pods: status.pods.as_ref().map(|of| PodsStatus {
                metric_name: of.metric.name.clone(),
                current_average_value: average(&of.current).unwrap_or_default(),
                selector: of.metric.selector.clone(),
            }),
            resource: status.resource.as_ref().map(|of| resource(&of.name, &of.current)),
            container_resource: status.container_resource.as_ref().map(|of| ContainerResourceStatus {
                resource: resource(&of.name, &of.current),
                container: of.container.clone(),
            }),
            external: status.external.as_ref().map(|of| ExternalStatus {
                metric_name: of.metric.name.clone(),
                metric_selector: of.metric.selector.clone(),
                current_value: value(&of.current),
                current_average_value: average(&of.current),
            }),
        }
    }
}

impl From<MetricStatus> for v2::MetricStatus {
    fn from(status: MetricStatus) -> Self {
        let current = |value: Quantity, average: Option<Quantity>| {
            let (value, average_value) = value_or_average(value, average);
            v2::MetricValueStatus { value, average_value, average_utilization: None }
        };
        let of_resource = |of: ResourceStatus| {
            let average_value = Some(raw(of.current_average_value));
            let average_utilization = of.current_average_utilization;
            (of.name, v2::MetricValueStatus { average_value, average_utilization, value: None })
        };
        Self {
            type_: status.r#type,
            object: status.object.map(|of| v2::ObjectMetricStatus {
                described_object: of.target.into(),
                metric: v2::MetricIdentifier { name: of.metric_name, selector: of.selector },
                current: current(of.current_value, of.average_value),
            }),
            pods: status.pods.map(|of| v2::PodsMetricStatus {
                metric: v2::MetricIdentifier { name: of.metric_name, selector: of.selector },
                current: v2::MetricValueStatus {
                    average_value: Some(raw(of.current_average_value)),
                    ..v2::MetricValueStatus::default()
                },
            }),
            resource: status.resource.map(|of| {
                let (name, current) = of_resource(of);
                v2::ResourceMetricStatus { name, current }
            }),
            container_resource: status.container_resource.map(|of| {
                let (name, current) = of_resource(of.resource);
                v2::ContainerResourceMetricStatus { name, container: of.container, current }
            }),
            external: status.external.map(|of| v2::ExternalMetricStatus {
                metric: v2::MetricIdentifier { name: of.metric_name, selector: of.metric_selector },
                current: current(of.current_value, of.current_average_value),
            }),
        }
    }
}

const DEFAULT_CPU_PERCENT: i32 = 80;

/// What an autoscaler goes by that names no metrics.
pub(super) fn default_metric() -> v2::MetricSpec {
    let target = v2::MetricTarget {
        type_: "Utilization".to_owned(),
        average_utilization: Some(DEFAULT_CPU_PERCENT),
        ..v2::MetricTarget::default()
    };
    v2::MetricSpec {
        type_: "Resource".to_owned(),
        resource: Some(v2::ResourceMetricSource { name: "cpu".to_owned(), target }),
        ..v2::MetricSpec::default()
    }
}

/// A target of CPU that v1 has a field for.
fn cpu_utilization(metric: &v2::MetricSpec) -> Option<i32> {
    let resource = metric.resource.as_ref().filter(|resource| metric.type_ == "Resource" && resource.name == "cpu")?;
    resource.target.average_utilization
}

fn current_cpu_utilization(metric: &v2::MetricStatus) -> Option<i32> {
    let resource = metric.resource.as_ref().filter(|resource| metric.type_ == "Resource" && resource.name == "cpu")?;
    resource.current.average_utilization
}

fn object<'a>(parent: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    parent.get_mut(key)?.as_object_mut()
}

/// A field of an object that is stored, and so is of its type; unset where it is not there.
fn taken<T: DeserializeOwned + Default>(fields: &mut Map<String, Value>, name: &str) -> T {
    fields.remove(name).and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default()
}

/// The items of a list that is stored, each by itself: one that cannot be read takes no other with it.
fn taken_items<T: DeserializeOwned>(fields: &mut Map<String, Value>, name: &str) -> Vec<T> {
    let Some(Value::Array(items)) = fields.remove(name) else { return Vec::new() };
    items.into_iter().filter_map(|item| serde_json::from_value(item).ok()).collect()
}

/// A field of an object that was sent, whatever it holds: conversion comes before decoding, which refuses what is of another type.
fn given(fields: &mut Map<String, Value>, name: &str) -> Option<Value> {
    fields.remove(name).filter(|value| !value.is_null())
}

/// Go reads null as nothing.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(_, value)| !value.is_null());
            fields.map(|(name, value)| (name, without_nulls(value))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

fn is_percent(value: &Value) -> bool {
    value.as_i64().is_some_and(|value| i32::try_from(value).is_ok())
}

fn to_v1(hpa: &mut Value) {
    let Some(hpa) = hpa.as_object_mut() else { return };
    hpa.insert("apiVersion".to_owned(), "autoscaling/v1".into());
    let mut carried: Vec<(&str, Value)> = Vec::new();
    if let Some(spec) = object(hpa, "spec") {
        let metrics: Vec<v2::MetricSpec> = taken_items(spec, "metrics");
        if let Some(percent) = metrics.iter().find_map(cpu_utilization) {
            spec.insert("targetCPUUtilizationPercentage".to_owned(), percent.into());
        }
        let others = metrics.iter().filter(|metric| cpu_utilization(metric).is_none());
        let others: Vec<MetricSpec> = others.map(MetricSpec::from).collect();
        if !others.is_empty() {
            carried.push((METRICS, json!(others)));
        }
        let behavior: Option<v2::HorizontalPodAutoscalerBehavior> = taken(spec, "behavior");
        carried.extend(behavior.map(|behavior| (BEHAVIOR, json!(Behavior::from(&behavior)))));
    }
    if let Some(status) = object(hpa, "status") {
        let metrics: Vec<v2::MetricStatus> = taken_items(status, "currentMetrics");
        if let Some(percent) = metrics.iter().filter_map(current_cpu_utilization).next_back() {
            status.insert("currentCPUUtilizationPercentage".to_owned(), percent.into());
        }
        if !metrics.is_empty() {
            let metrics: Vec<MetricStatus> = metrics.iter().map(MetricStatus::from).collect();
            carried.push((CURRENT_METRICS, json!(metrics)));
        }
        // Written whatever it is, which it is not in v2.
        status.entry("currentReplicas").or_insert_with(|| 0.into());
        // Conditions are the same in both versions.
        let conditions = status.remove("conditions");
        carried.extend(
            conditions
                .filter(|list| list.as_array().is_some_and(|list| !list.is_empty()))
                .map(|list| (CONDITIONS, list)),
        );
    }
    let Some(metadata) = hpa.entry("metadata").or_insert_with(|| json!({})).as_object_mut() else { return };
    let mut annotations: Map<String, Value> = taken(metadata, "annotations");
    annotations.retain(|name, _| !ANNOTATIONS.contains(&name.as_str()));
    annotations.extend(carried.into_iter().map(|(name, value)| (name.to_owned(), value.to_string().into())));
    if !annotations.is_empty() {
        metadata.insert("annotations".to_owned(), annotations.into());
    }
}

/// What is carried and cannot be read is left out, as upstream does.
fn to_v2(hpa: &mut Value) {
    let Some(hpa) = hpa.as_object_mut() else { return };
    hpa.insert("apiVersion".to_owned(), "autoscaling/v2".into());
    let mut carried: Map<String, Value> = Map::new();
    if let Some(metadata) = object(hpa, "metadata")
        && let Some(annotations) = object(metadata, "annotations")
    {
        carried.extend(ANNOTATIONS.iter().filter_map(|name| annotations.remove_entry(*name)));
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    fn list<T: DeserializeOwned>(carried: &Map<String, Value>, name: &str) -> Option<Vec<T>> {
        let items = serde_json::from_str(carried.get(name)?.as_str()?).ok()?;
        serde_json::from_value(without_nulls(items)).ok()
    }
    if let Some(spec) = object(hpa, "spec") {
        let others: Vec<MetricSpec> = list(&carried, METRICS).unwrap_or_default();
        let mut metrics: Vec<Value> = others.into_iter().map(|metric| json!(v2::MetricSpec::from(metric))).collect();
        metrics.extend(given(spec, "targetCPUUtilizationPercentage").map(|percent| {
            let target = json!({"type": "Utilization", "averageUtilization": percent});
            json!({"type": "Resource", "resource": {"name": "cpu", "target": target}})
        }));
        if metrics.is_empty() {
            // Not among the defaults of v1, which do not know what is carried.
            metrics.push(json!(default_metric()));
        }
        spec.insert("metrics".to_owned(), metrics.into());
        if let Some(behavior) = carried.get(BEHAVIOR).and_then(Value::as_str).and_then(behavior::read) {
            spec.insert("behavior".to_owned(), json!(behavior));
        }
    }
    if let Some(status) = object(hpa, "status") {
        let percent = given(status, "currentCPUUtilizationPercentage");
        let carried_metrics: Option<Vec<MetricStatus>> = list(&carried, CURRENT_METRICS);
        // What is carried says more, but does not hide what is of another type.
        let percent = percent.filter(|percent| carried_metrics.is_none() || !is_percent(percent));
        let of_carried = carried_metrics.into_iter().flatten().map(|metric| json!(v2::MetricStatus::from(metric)));
        let of_cpu = percent.map(|percent| {
            json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": percent}}})
        });
        let current: Vec<Value> = of_carried.chain(of_cpu).collect();
        if !current.is_empty() {
            status.insert("currentMetrics".to_owned(), current.into());
        }
        let conditions: Option<Vec<v2::HorizontalPodAutoscalerCondition>> = list(&carried, CONDITIONS);
        if let Some(conditions) = conditions.filter(|conditions| !conditions.is_empty()) {
            status.insert("conditions".to_owned(), json!(conditions));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What v2 says, and what upstream writes into the annotation of v1.
    fn metrics() -> [(Value, Value); 8] {
        let object = json!({"kind": "Ingress", "name": "main", "apiVersion": "networking.k8s.io/v1"});
        let selector = json!({"matchLabels": {"verb": "GET"}});
        [
            (
                json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}}),
                json!({"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}),
            ),
            (
                json!({"type": "Resource", "resource": {"name": "memory", "target": {"type": "Utilization", "averageUtilization": 70}}}),
                json!({"type": "Resource", "resource": {"name": "memory", "targetAverageUtilization": 70}}),
            ),
            (
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "web",
                    "target": {"type": "Utilization", "averageUtilization": 60}}}),
                json!({"type": "ContainerResource", "containerResource": {"name": "cpu", "container": "web", "targetAverageUtilization": 60}}),
            ),
            (
                json!({"type": "Pods", "pods": {"metric": {"name": "rps", "selector": selector}, "target": {"type": "AverageValue", "averageValue": "1500m"}}}),
                json!({"type": "Pods", "pods": {"metricName": "rps", "targetAverageValue": "1500m", "selector": selector}}),
            ),
            (
                json!({"type": "Object", "object": {"describedObject": object, "metric": {"name": "rps", "selector": selector},
                    "target": {"type": "Value", "value": "2k"}}}),
                json!({"type": "Object", "object": {"target": object, "metricName": "rps", "targetValue": "2k", "selector": selector}}),
            ),
            (
                json!({"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s"}, "metric": {"name": "rps"},
                    "target": {"type": "AverageValue", "averageValue": "5"}}}),
                json!({"type": "Object", "object": {"target": {"kind": "Service", "name": "s"}, "metricName": "rps", "targetValue": "0", "averageValue": "5"}}),
            ),
            (
                json!({"type": "External", "external": {"metric": {"name": "queue", "selector": selector}, "target": {"type": "Value", "value": "30"}}}),
                json!({"type": "External", "external": {"metricName": "queue", "metricSelector": selector, "targetValue": "30"}}),
            ),
            (
                json!({"type": "External", "external": {"metric": {"name": "queue"}, "target": {"type": "AverageValue", "averageValue": "3"}}}),
                json!({"type": "External", "external": {"metricName": "queue", "targetAverageValue": "3"}}),
            ),
        ]
    }

    fn statuses() -> [(Value, Value); 5] {
        [
            (
                json!({"type": "Resource", "resource": {"name": "cpu", "current": {"averageUtilization": 12, "averageValue": "120m"}}}),
                json!({"type": "Resource", "resource": {"name": "cpu", "currentAverageUtilization": 12, "currentAverageValue": "120m"}}),
            ),
            (
                json!({"type": "ContainerResource", "containerResource": {"name": "memory", "container": "web", "current": {"averageValue": "1Mi"}}}),
                json!({"type": "ContainerResource", "containerResource": {"name": "memory", "container": "web", "currentAverageValue": "1Mi"}}),
            ),
            (
                json!({"type": "Pods", "pods": {"metric": {"name": "rps"}, "current": {"averageValue": "7"}}}),
                json!({"type": "Pods", "pods": {"metricName": "rps", "currentAverageValue": "7"}}),
            ),
            (
                json!({"type": "Object", "object": {"describedObject": {"kind": "Service", "name": "s"}, "metric": {"name": "rps"}, "current": {"value": "9"}}}),
                json!({"type": "Object", "object": {"target": {"kind": "Service", "name": "s"}, "metricName": "rps", "currentValue": "9"}}),
            ),
            (
                json!({"type": "External", "external": {"metric": {"name": "queue"}, "current": {"averageValue": "2"}}}),
                json!({"type": "External", "external": {"metricName": "queue", "currentValue": "0", "currentAverageValue": "2"}}),
            ),
        ]
    }

    fn cpu(percent: i32) -> Value {
        json!({"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": percent}}})
    }

    fn carried(hpa: &Value, name: &str) -> Value {
        serde_json::from_str(hpa["metadata"]["annotations"][name].as_str().unwrap_or("null")).unwrap()
    }

    #[test]
    fn what_v1_cannot_say_is_carried_in_the_format_of_upstream_and_comes_back() {
        let (of_v2, of_v1): (Vec<Value>, Vec<Value>) = metrics().into_iter().unzip();
        let (current_v2, current_v1): (Vec<Value>, Vec<Value>) = statuses().into_iter().unzip();
        let condition = json!({"type": "AbleToScale", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "ReadyForNewScale"});
        let policies = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}]);
        let all: Vec<Value> = of_v2.into_iter().chain([cpu(80)]).collect();
        let stored = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a", "annotations": {"own": "kept"}},
            "spec": {"maxReplicas": 3, "metrics": all, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 0,
                "selectPolicy": "Max", "policies": policies, "tolerance": "50m"}}},
            "status": {"currentReplicas": 1, "currentMetrics": current_v2, "conditions": [condition]}});
        let mut hpa = stored.clone();
        CONVERSION.from_storage(&mut hpa);
        assert_eq!(hpa["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}));
        assert_eq!(hpa["status"], json!({"currentReplicas": 1, "currentCPUUtilizationPercentage": 12}));
        assert_eq!(carried(&hpa, METRICS), json!(of_v1));
        assert_eq!(carried(&hpa, CURRENT_METRICS), json!(current_v1));
        assert_eq!(carried(&hpa, CONDITIONS), json!([condition]));
        assert_eq!(
            carried(&hpa, BEHAVIOR),
            json!({"ScaleUp": {"StabilizationWindowSeconds": 0, "SelectPolicy": "Max", "Tolerance": "50m",
                "Policies": [{"Type": "Pods", "Value": 4, "PeriodSeconds": 15}]}, "ScaleDown": null})
        );
        CONVERSION.to_storage(&mut hpa);
        assert_eq!(hpa, stored);
    }

    #[test]
    fn what_is_carried_comes_before_the_target_of_cpu() {
        let memory = &metrics()[0];
        let mut hpa = json!({"metadata": {"name": "a", "annotations": {METRICS: json!([memory.1]).to_string()}},
            "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": 50}});
        CONVERSION.to_storage(&mut hpa);
        assert_eq!(hpa["spec"]["metrics"], json!([memory.0, cpu(50)]));
        assert_eq!(hpa["metadata"], json!({"name": "a"}));
    }

    #[test]
    fn null_in_what_is_carried_is_nothing() {
        let carried = json!([{"type": "Pods", "object": null, "pods": {"metricName": null, "targetAverageValue": "1", "selector": null}}]);
        let mut hpa = json!({"metadata": {"annotations": {METRICS: carried.to_string()}}, "spec": {}});
        CONVERSION.to_storage(&mut hpa);
        let target = json!({"type": "AverageValue", "averageValue": "1"});
        assert_eq!(
            hpa["spec"]["metrics"],
            json!([{"type": "Pods", "pods": {"metric": {"name": ""}, "target": target}}])
        );
    }

    #[test]
    fn percentages_of_another_type_reach_the_decoder() {
        for percent in [json!("50"), json!(50.5), json!(3_000_000_000_u64), json!([])] {
            for current in [None, Some("[]")] {
                let carried = current.map(|text| json!({CURRENT_METRICS: text}));
                let mut hpa = json!({"metadata": {"name": "a", "annotations": carried},
                    "spec": {"maxReplicas": 3, "targetCPUUtilizationPercentage": percent},
                    "status": {"currentCPUUtilizationPercentage": percent}});
                CONVERSION.to_storage(&mut hpa);
                let (target, now) = (&hpa["spec"]["metrics"][0], &hpa["status"]["currentMetrics"][0]);
                assert_eq!(target["resource"]["target"]["averageUtilization"], percent);
                assert_eq!(now["resource"]["current"]["averageUtilization"], percent);
                assert!(serde_json::from_value::<v2::MetricSpec>(target.clone()).is_err(), "{percent}");
                assert!(serde_json::from_value::<v2::MetricStatus>(now.clone()).is_err(), "{percent}");
            }
        }
        let mut hpa = json!({"metadata": {}, "spec": {"targetCPUUtilizationPercentage": null},
            "status": {"currentCPUUtilizationPercentage": null}});
        CONVERSION.to_storage(&mut hpa);
        assert_eq!((&hpa["spec"], &hpa["status"]), (&json!({"metrics": [cpu(80)]}), &json!({})));
    }

    #[test]
    fn what_cannot_be_read_takes_no_other_with_it() {
        let (memory, now) = (&metrics()[0], &statuses()[0]);
        let mut hpa = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": [7, memory.0, cpu(80)]},
            "status": {"currentMetrics": [{"resource": 7}, now.0]}});
        CONVERSION.from_storage(&mut hpa);
        assert_eq!(hpa["spec"], json!({"maxReplicas": 3, "targetCPUUtilizationPercentage": 80}));
        assert_eq!(hpa["status"], json!({"currentReplicas": 0, "currentCPUUtilizationPercentage": 12}));
        assert_eq!(carried(&hpa, METRICS), json!([memory.1]));
        assert_eq!(carried(&hpa, CURRENT_METRICS), json!([now.1]));
    }

    #[test]
    fn a_value_of_cpu_is_carried_whatever_its_type_is_called() {
        for kind in ["AverageValue", "Value", "Utilization"] {
            let of = |kind: &str| json!([{"type": "Resource", "resource": {"name": "cpu", "target": {"type": kind, "averageValue": "500m"}}}]);
            let mut hpa = json!({"metadata": {"name": "a"}, "spec": {"maxReplicas": 3, "metrics": of(kind)}});
            CONVERSION.from_storage(&mut hpa);
            CONVERSION.to_storage(&mut hpa);
            assert_eq!(hpa["spec"]["metrics"], of("AverageValue"), "{kind}");
        }
    }

    #[test]
    fn security_annotations_that_cannot_be_read_do_no_harm() {
        for text in [
            "",
            "[",
            "7",
            "null",
            "[7]",
            r#"[{"status":7,"pods":{"targetAverageValue":"many","currentAverageValue":"many"}}]"#,
        ] {
            let annotations: Map<String, Value> =
                ANNOTATIONS.iter().map(|name| ((*name).to_owned(), text.into())).collect();
            let mut hpa = json!({"apiVersion": "autoscaling/v1", "metadata": {"name": "a", "annotations": annotations},
                "spec": {"maxReplicas": 3}, "status": {}});
            CONVERSION.to_storage(&mut hpa);
            let expected = json!({"apiVersion": "autoscaling/v2", "metadata": {"name": "a"},
                "spec": {"maxReplicas": 3, "metrics": [cpu(80)]}, "status": {}});
            assert_eq!(hpa, expected, "{text}");
        }
    }

    #[test]
    fn annotations_of_others_are_no_part_of_what_is_carried() {
        let forged = json!({"own": "kept", METRICS: "[]", BEHAVIOR: "{}", SCALE_UP_TOLERANCE: "1"});
        let mut hpa = json!({"metadata": {"annotations": forged}, "spec": {"maxReplicas": 1, "metrics": [cpu(80)]}});
        CONVERSION.from_storage(&mut hpa);
        assert_eq!(hpa["metadata"], json!({"annotations": {"own": "kept"}}));
        let mut annotations = Some(serde_json::from_value(forged).unwrap());
        drop_annotations(&mut annotations);
        assert_eq!(annotations, Some(BTreeMap::from([("own".to_owned(), "kept".to_owned())])));
        annotations = Some(BTreeMap::from([(METRICS.to_owned(), String::new())]));
        drop_annotations(&mut annotations);
        assert_eq!(annotations, None);
    }
}

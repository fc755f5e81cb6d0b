//! Validation of autoscalers (`ValidateHorizontalPodAutoscaler`, v1.36).

use api::field::{FieldErrors, Path};
use api::quantity::Quantity;
use api::validation::{dns1123_label, path_segment_name};
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, CrossVersionObjectReference, ExternalMetricSource, HPAScalingPolicy,
    HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, MetricIdentifier, MetricSpec, MetricTarget,
    ObjectMetricSource, PodsMetricSource, ResourceMetricSource,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as RawQuantity;

use crate::apps::rules::non_negative;
use crate::core::pod_spec::resources::container_resource_name;
use crate::unset::items;

const MAX_PERIOD_SECONDS: i32 = 1800;
const MAX_WINDOW_SECONDS: i32 = 3600;

const METRIC_TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];
const SELECT_POLICIES: &[&str] = &["Disabled", "Max", "Min"];
const POLICY_TYPES: &[&str] = &["Percent", "Pods"];

/// What the `apiVersion` of a reference must be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ApiVersion {
    /// With a group.
    Grouped,
    /// With a group, or of the core group, which may be left out.
    Any,
    /// Stored before it was looked at: nobody has to repair it in passing.
    Unchecked,
}

/// What is asked of a spec; an update may keep what is stored.
struct Demands {
    target: ApiVersion,
    objects: ApiVersion,
}

impl Demands {
    fn new(new: &HorizontalPodAutoscaler, old: Option<&HorizontalPodAutoscaler>) -> Self {
        let target = &new.spec.scale_target_ref;
        let is_kept = old.is_some_and(|old| {
            let old = &old.spec.scale_target_ref;
            old.kind == target.kind && api_version(old) == api_version(target)
        });
        let stored = old.into_iter().flat_map(|old| items(&old.spec.metrics));
        let mut stored = stored.filter(|metric| metric.type_ == "Object").filter_map(|metric| metric.object.as_ref());
        Self {
            target: match target.kind.as_str() {
                _ if is_kept => ApiVersion::Unchecked,
                "ReplicationController" => ApiVersion::Any,
                _ => ApiVersion::Grouped,
            },
            objects: match stored.any(|object| ApiVersion::Any.refuses(&object.described_object).is_some()) {
                true => ApiVersion::Unchecked,
                false => ApiVersion::Any,
            },
        }
    }
}

fn api_version(reference: &CrossVersionObjectReference) -> &str {
    reference.api_version.as_deref().unwrap_or_default()
}

impl ApiVersion {
    fn refuses(self, reference: &CrossVersionObjectReference) -> Option<String> {
        let version = api_version(reference);
        let group = version.split_once('/').map_or("", |(group, _)| group);
        match self {
            Self::Unchecked => None,
            _ if version.matches('/').count() > 1 => Some(format!("unexpected GroupVersion string: {version}")),
            Self::Grouped if group.is_empty() => Some("apiVersion must specify API group".to_owned()),
            Self::Grouped | Self::Any => None,
        }
    }
}

/// A new autoscaler, or one that changes from `old`.
pub(super) fn autoscaler(new: &HorizontalPodAutoscaler, old: Option<&HorizontalPodAutoscaler>) -> FieldErrors {
    let mut errors = FieldErrors::default();
    spec(&mut errors, &Path::new("spec"), &new.spec, &Demands::new(new, old));
    errors
}

pub(super) fn status(new: &HorizontalPodAutoscaler) -> FieldErrors {
    let mut errors = FieldErrors::default();
    let path = Path::new("status");
    let status = new.status.as_ref();
    let current = status.and_then(|status| status.current_replicas);
    non_negative(&mut errors, &path.child("currentReplicas"), current.map(i64::from));
    let desired = status.map(|status| status.desired_replicas);
    non_negative(&mut errors, &path.child("desiredReplicas"), desired.map(i64::from));
    errors
}

fn spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &HorizontalPodAutoscalerSpec, demands: &Demands) {
    if let Some(min) = spec.min_replicas.filter(|min| *min < 0) {
        errors.invalid(path.child("minReplicas"), min, "must be greater than or equal to 0");
    }
    if spec.max_replicas == 0 {
        errors.required(path.child("maxReplicas"), "must be set and greater than 0");
    } else if spec.max_replicas < 0 {
        errors.invalid(path.child("maxReplicas"), spec.max_replicas, "must be greater than or equal to 1");
    }
    if spec.min_replicas.is_some_and(|min| spec.max_replicas < min) {
        let detail = "must be greater than or equal to `minReplicas`";
        errors.invalid(path.child("maxReplicas"), spec.max_replicas, detail);
    }
    reference(errors, &path.child("scaleTargetRef"), &spec.scale_target_ref, demands.target);
    let metrics_path = path.child("metrics");
    let metrics = items(&spec.metrics);
    for (i, one) in metrics.iter().enumerate() {
        metric(errors, &metrics_path.index(i), one, demands.objects);
    }
    let reads_idle_targets = metrics.iter().any(|metric| matches!(metric.type_.as_str(), "Object" | "External"));
    if spec.min_replicas == Some(0) && !reads_idle_targets {
        let detail = "must specify at least one Object or External metric to support scaling to zero replicas";
        errors.forbidden(metrics_path, detail);
    }
    if let Some(behavior) = &spec.behavior {
        let path = path.child("behavior");
        for (name, rules) in [("scaleUp", &behavior.scale_up), ("scaleDown", &behavior.scale_down)] {
            if let Some(rules) = rules {
                scaling_rules(errors, &path.child(name), rules);
            }
        }
    }
}

fn reference(errors: &mut FieldErrors, path: &Path<'_>, reference: &CrossVersionObjectReference, version: ApiVersion) {
    for (name, value) in [("kind", &reference.kind), ("name", &reference.name)] {
        if value.is_empty() {
            errors.required(path.child(name), "");
        } else {
            errors.invalid_each(path.child(name), value, path_segment_name(value));
        }
    }
    if let Some(why) = version.refuses(reference) {
        errors.invalid(path.child("apiVersion"), api_version(reference), why);
    }
}

fn metric(errors: &mut FieldErrors, path: &Path<'_>, metric: &MetricSpec, objects: ApiVersion) {
    let kind = metric.type_.as_str();
    if kind.is_empty() {
        errors.required(path.child("type"), "must specify a metric source type");
    }
    if !METRIC_TYPES.contains(&kind) {
        errors.not_supported(path.child("type"), kind, METRIC_TYPES);
    }
    // Of several sources, the first in this order is looked into; the others are too many.
    if let Some(source) = &metric.object {
        object(errors, &path.child("object"), source, objects);
    } else if let Some(source) = &metric.external {
        external(errors, &path.child("external"), source);
    } else if let Some(source) = &metric.pods {
        pods(errors, &path.child("pods"), source);
    } else if let Some(source) = &metric.resource {
        resource(errors, &path.child("resource"), source);
    } else if let Some(source) = &metric.container_resource {
        container_resource(errors, &path.child("containerResource"), source);
    }
    let sources = [
        ("Object", "object", metric.object.is_some()),
        ("External", "external", metric.external.is_some()),
        ("Pods", "pods", metric.pods.is_some()),
        ("Resource", "resource", metric.resource.is_some()),
        ("ContainerResource", "containerResource", metric.container_resource.is_some()),
    ];
    let count = sources.iter().filter(|(_, _, is_present)| *is_present).count();
    for (of, field, is_present) in sources {
        if of == kind && !is_present {
            errors.required(path.child(field), "must populate information for the given metric source");
        }
        if of != kind && is_present && count > 1 {
            errors.forbidden(path.child(field), "must populate the given metric source only");
        }
    }
}

fn object(errors: &mut FieldErrors, path: &Path<'_>, source: &ObjectMetricSource, version: ApiVersion) {
    reference(errors, &path.child("describedObject"), &source.described_object, version);
    identifier(errors, &path.child("metric"), &source.metric);
    let path = path.child("target");
    target(errors, &path, &source.target);
    if source.target.value.is_none() && source.target.average_value.is_none() {
        errors.required(path.child("averageValue"), "must set either a target value or averageValue");
    }
}

fn external(errors: &mut FieldErrors, path: &Path<'_>, source: &ExternalMetricSource) {
    identifier(errors, &path.child("metric"), &source.metric);
    let path = path.child("target");
    target(errors, &path, &source.target);
    match (&source.target.value, &source.target.average_value) {
        (None, None) => {
            let detail = "must set either a target value for metric or a per-pod target";
            errors.required(path.child("averageValue"), detail);
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target value for metric and a per-pod target";
            errors.forbidden(path.child("value"), detail);
        }
        _ => {}
    }
}

fn pods(errors: &mut FieldErrors, path: &Path<'_>, source: &PodsMetricSource) {
    identifier(errors, &path.child("metric"), &source.metric);
    let path = path.child("target");
    target(errors, &path, &source.target);
    if source.target.average_value.is_none() {
        errors.required(path.child("averageValue"), "must specify a positive target averageValue");
    }
}

fn resource(errors: &mut FieldErrors, path: &Path<'_>, source: &ResourceMetricSource) {
    if source.name.is_empty() {
        errors.required(path.child("name"), "must specify a resource name");
    }
    resource_target(errors, &path.child("target"), &source.target);
}

fn container_resource(errors: &mut FieldErrors, path: &Path<'_>, source: &ContainerResourceMetricSource) {
    if source.name.is_empty() {
        errors.required(path.child("name"), "must specify a resource name");
    } else {
        container_resource_name(errors, &path.child("name"), &source.name);
    }
    if source.container.is_empty() {
        errors.required(path.child("container"), "must specify a container");
    } else {
        errors.invalid_each(path.child("container"), &source.container, dns1123_label(&source.container));
    }
    resource_target(errors, &path.child("target"), &source.target);
}

fn resource_target(errors: &mut FieldErrors, path: &Path<'_>, wanted: &MetricTarget) {
    target(errors, path, wanted);
    match (wanted.average_utilization, &wanted.average_value) {
        (None, None) => {
            let detail = "must set either a target raw value or a target utilization";
            errors.required(path.child("averageUtilization"), detail);
        }
        (Some(_), Some(_)) => {
            let detail = "may not set both a target raw value and a target utilization";
            errors.forbidden(path.child("averageValue"), detail);
        }
        _ => {}
    }
}

fn target(errors: &mut FieldErrors, path: &Path<'_>, target: &MetricTarget) {
    if target.type_.is_empty() {
        errors.required(path.child("type"), "must specify a metric target type");
    }
    if !matches!(target.type_.as_str(), "Utilization" | "Value" | "AverageValue") {
        errors.invalid(path.child("type"), &target.type_, "must be either Utilization, Value, or AverageValue");
    }
    for (name, value) in [("value", &target.value), ("averageValue", &target.average_value)] {
        if let Some(value) = value.as_ref().filter(|value| !is_positive(value)) {
            errors.invalid(path.child(name), &value.0, "must be positive");
        }
    }
    if let Some(percent) = target.average_utilization.filter(|percent| *percent < 1) {
        errors.invalid(path.child("averageUtilization"), percent, "must be greater than 0");
    }
}

fn is_positive(value: &RawQuantity) -> bool {
    Quantity::try_from(value).is_ok_and(|value| !value.is_zero() && !value.is_negative())
}

fn identifier(errors: &mut FieldErrors, path: &Path<'_>, metric: &MetricIdentifier) {
    if metric.name.is_empty() {
        errors.required(path.child("name"), "must specify a metric name");
    } else {
        errors.invalid_each(path.child("name"), &metric.name, path_segment_name(&metric.name));
    }
}

fn scaling_rules(errors: &mut FieldErrors, path: &Path<'_>, rules: &HPAScalingRules) {
    if let Some(window) = rules.stabilization_window_seconds {
        let path = path.child("stabilizationWindowSeconds");
        if window < 0 {
            errors.invalid(path, window, "must be greater than or equal to zero");
        }
        if window > MAX_WINDOW_SECONDS {
            errors.invalid(path, window, format!("must be less than or equal to {MAX_WINDOW_SECONDS}"));
        }
    }
    if let Some(select) = rules.select_policy.as_deref().filter(|select| !SELECT_POLICIES.contains(select)) {
        errors.not_supported(path.child("selectPolicy"), select, SELECT_POLICIES);
    }
    let policies_path = path.child("policies");
    let policies = items(&rules.policies);
    if policies.is_empty() {
        errors.required(policies_path, "must specify at least one Policy");
    }
    for (i, one) in policies.iter().enumerate() {
        policy(errors, &policies_path.index(i), one);
    }
    let is_negative = |raw: &&RawQuantity| !Quantity::try_from(*raw).is_ok_and(|value| !value.is_negative());
    if let Some(tolerance) = rules.tolerance.as_ref().filter(is_negative) {
        errors.invalid(path.child("tolerance"), &tolerance.0, "must be greater than or equal to 0");
    }
}

fn policy(errors: &mut FieldErrors, path: &Path<'_>, policy: &HPAScalingPolicy) {
    if !POLICY_TYPES.contains(&policy.type_.as_str()) {
        errors.not_supported(path.child("type"), &policy.type_, POLICY_TYPES);
    }
    if policy.value <= 0 {
        errors.invalid(path.child("value"), policy.value, "must be greater than zero");
    }
    let period = policy.period_seconds;
    if period <= 0 {
        errors.invalid(path.child("periodSeconds"), period, "must be greater than zero");
    }
    if period > MAX_PERIOD_SECONDS {
        let detail = format!("must be less than or equal to {MAX_PERIOD_SECONDS}");
        errors.invalid(path.child("periodSeconds"), period, detail);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::Strategy;
    use crate::autoscaling::horizontal_pod_autoscaler::HorizontalPodAutoscalerStrategy;

    /// A valid autoscaler with parts of its spec replaced (a null takes a part away), as it is after defaulting.
    fn scaler(changes: &Value) -> HorizontalPodAutoscaler {
        let mut spec = json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "minReplicas": 1, "maxReplicas": 5});
        for (key, value) in changes.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let mut scaler = serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        HorizontalPodAutoscalerStrategy.apply_defaults(&mut scaler);
        scaler
    }

    fn check(table: Vec<(&str, Value, &[&str])>) {
        for (what, changes, expected) in table {
            let errors = HorizontalPodAutoscalerStrategy.validate_create(&scaler(&changes));
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn bounds_and_target() {
        check(vec![
            ("valid", json!({}), &[]),
            (
                "fewer than none at least",
                json!({"minReplicas": -1}),
                &["spec.minReplicas: Invalid value: -1: must be greater than or equal to 0"],
            ),
            (
                "zero by what zero pods cannot tell",
                json!({"minReplicas": 0}),
                &[
                    "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
                ],
            ),
            (
                "zero by what others tell",
                json!({"minReplicas": 0, "metrics": [{"type": "External", "external": {"metric": {"name": "m"},
                    "target": {"type": "Value", "value": "1"}}}]}),
                &[],
            ),
            (
                "fewer at most than at least",
                json!({"minReplicas": 7}),
                &["spec.maxReplicas: Invalid value: 5: must be greater than or equal to `minReplicas`"],
            ),
            (
                "none at most",
                json!({"minReplicas": null, "maxReplicas": 0}),
                &[
                    "spec.maxReplicas: Required value: must be set and greater than 0",
                    "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
                ],
            ),
            (
                "nothing to scale",
                json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "", "name": ""}}),
                &["spec.scaleTargetRef.kind: Required value", "spec.scaleTargetRef.name: Required value"],
            ),
            (
                "names that are no path segments",
                json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "a/b", "name": ".."}}),
                &[
                    "spec.scaleTargetRef.kind: Invalid value: \"a/b\": may not contain '/'",
                    "spec.scaleTargetRef.name: Invalid value: \"..\": may not be '..'",
                ],
            ),
            (
                "no group",
                json!({"scaleTargetRef": {"kind": "Deployment", "name": "web"}}),
                &["spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group"],
            ),
            (
                "not a version",
                json!({"scaleTargetRef": {"apiVersion": "a/b/c", "kind": "Deployment", "name": "web"}}),
                &["spec.scaleTargetRef.apiVersion: Invalid value: \"a/b/c\": unexpected GroupVersion string: a/b/c"],
            ),
            ("the core group", json!({"scaleTargetRef": {"kind": "ReplicationController", "name": "web"}}), &[]),
        ]);
    }

    #[test]
    fn every_metric_has_its_source_only() {
        let cpu = json!({"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}});
        let rate = json!({"metric": {"name": "rate"}, "target": {"type": "AverageValue", "averageValue": "5"}});
        let types = "supported values: \"ContainerResource\", \"External\", \"Object\", \"Pods\", \"Resource\"";
        let unknown = format!("spec.metrics[0].type: Unsupported value: \"Node\": {types}");
        let none = format!("spec.metrics[0].type: Unsupported value: \"\": {types}");
        check(vec![
            ("one", json!({"metrics": [{"type": "Resource", "resource": cpu}]}), &[]),
            (
                "no type",
                json!({"metrics": [{"type": ""}]}),
                &["spec.metrics[0].type: Required value: must specify a metric source type", &none],
            ),
            ("an unknown type", json!({"metrics": [{"type": "Node", "resource": cpu}]}), &[&unknown]),
            (
                "no source",
                json!({"metrics": [{"type": "ContainerResource"}]}),
                &[
                    "spec.metrics[0].containerResource: Required value: must populate information for the given metric source",
                ],
            ),
            (
                "another source",
                json!({"metrics": [{"type": "Pods", "resource": cpu}]}),
                &["spec.metrics[0].pods: Required value: must populate information for the given metric source"],
            ),
            (
                "two sources",
                json!({"metrics": [{"type": "Resource", "resource": cpu, "pods": rate}]}),
                &["spec.metrics[0].pods: Forbidden: must populate the given metric source only"],
            ),
        ]);
    }

    #[test]
    fn sources_say_what_is_measured_and_wanted() {
        let metric = |kind: &str, field: &str, source: Value| json!({"metrics": [{"type": kind, field: source}]});
        let resource = |target: Value| metric("Resource", "resource", json!({"name": "cpu", "target": target}));
        let external =
            |target: Value| metric("External", "external", json!({"metric": {"name": "q"}, "target": target}));
        check(vec![
            (
                "nothing of a resource",
                metric("Resource", "resource", json!({"name": "", "target": {"type": ""}})),
                &[
                    "spec.metrics[0].resource.name: Required value: must specify a resource name",
                    "spec.metrics[0].resource.target.type: Required value: must specify a metric target type",
                    "spec.metrics[0].resource.target.type: Invalid value: \"\": must be either Utilization, Value, or AverageValue",
                    "spec.metrics[0].resource.target.averageUtilization: Required value: must set either a target raw value or a target utilization",
                ],
            ),
            (
                "no utilization",
                resource(json!({"type": "Utilization", "averageUtilization": 0})),
                &["spec.metrics[0].resource.target.averageUtilization: Invalid value: 0: must be greater than 0"],
            ),
            (
                "both targets",
                resource(json!({"type": "Utilization", "averageUtilization": 1, "averageValue": "1"})),
                &[
                    "spec.metrics[0].resource.target.averageValue: Forbidden: may not set both a target raw value and a target utilization",
                ],
            ),
            (
                "a negative value",
                resource(json!({"type": "AverageValue", "averageValue": "-1"})),
                &["spec.metrics[0].resource.target.averageValue: Invalid value: \"-1\": must be positive"],
            ),
            (
                "no container",
                metric(
                    "ContainerResource",
                    "containerResource",
                    json!({"name": "cpu", "container": "",
                    "target": {"type": "Utilization", "averageUtilization": 50}}),
                ),
                &["spec.metrics[0].containerResource.container: Required value: must specify a container"],
            ),
            (
                "not a container's resource",
                metric(
                    "ContainerResource",
                    "containerResource",
                    json!({"name": "pods", "container": "c",
                    "target": {"type": "Utilization", "averageUtilization": 50}}),
                ),
                &[
                    "spec.metrics[0].containerResource.name: Invalid value: \"pods\": must be a standard resource for containers",
                ],
            ),
            (
                "nothing of pods",
                metric("Pods", "pods", json!({"metric": {"name": ""}, "target": {"type": "Value", "value": "1"}})),
                &[
                    "spec.metrics[0].pods.metric.name: Required value: must specify a metric name",
                    "spec.metrics[0].pods.target.averageValue: Required value: must specify a positive target averageValue",
                ],
            ),
            (
                "nothing of an object",
                metric(
                    "Object",
                    "object",
                    json!({"describedObject": {"kind": "", "name": "", "apiVersion": "v1"},
                    "metric": {"name": "a/b"}, "target": {"type": "Value"}}),
                ),
                &[
                    "spec.metrics[0].object.describedObject.kind: Required value",
                    "spec.metrics[0].object.describedObject.name: Required value",
                    "spec.metrics[0].object.metric.name: Invalid value: \"a/b\": may not contain '/'",
                    "spec.metrics[0].object.target.averageValue: Required value: must set either a target value or averageValue",
                ],
            ),
            (
                "a value of nothing",
                external(json!({"type": "Value", "value": "0"})),
                &["spec.metrics[0].external.target.value: Invalid value: \"0\": must be positive"],
            ),
            (
                "no target outside",
                external(json!({"type": "Value"})),
                &[
                    "spec.metrics[0].external.target.averageValue: Required value: must set either a target value for metric or a per-pod target",
                ],
            ),
            (
                "both targets outside",
                external(json!({"type": "Value", "value": "1", "averageValue": "1"})),
                &[
                    "spec.metrics[0].external.target.value: Forbidden: may not set both a target value for metric and a per-pod target",
                ],
            ),
        ]);
    }

    #[test]
    fn behavior_within_limits() {
        let up = |rules: Value| json!({"behavior": {"scaleUp": rules}});
        let policies = |kind: &str, value: i32, period: i32| {
            up(json!({"policies": [{"type": kind, "value": value, "periodSeconds": period}]}))
        };
        check(vec![
            ("defaults", json!({"behavior": {}}), &[]),
            ("largest", up(json!({"stabilizationWindowSeconds": 3600, "tolerance": "0"})), &[]),
            ("longest", policies("Pods", 1, 1800), &[]),
            (
                "a negative window",
                up(json!({"stabilizationWindowSeconds": -1})),
                &[
                    "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: -1: must be greater than or equal to zero",
                ],
            ),
            (
                "a window too long",
                json!({"behavior": {"scaleDown": {"stabilizationWindowSeconds": 3601}}}),
                &[
                    "spec.behavior.scaleDown.stabilizationWindowSeconds: Invalid value: 3601: must be less than or equal to 3600",
                ],
            ),
            (
                "an unknown choice",
                up(json!({"selectPolicy": "Best"})),
                &[
                    "spec.behavior.scaleUp.selectPolicy: Unsupported value: \"Best\": supported values: \"Disabled\", \"Max\", \"Min\"",
                ],
            ),
            (
                "a negative tolerance",
                up(json!({"tolerance": "-0.1"})),
                &["spec.behavior.scaleUp.tolerance: Invalid value: \"-0.1\": must be greater than or equal to 0"],
            ),
            (
                "nothing of a policy",
                policies("", 0, 0),
                &[
                    "spec.behavior.scaleUp.policies[0].type: Unsupported value: \"\": supported values: \"Percent\", \"Pods\"",
                    "spec.behavior.scaleUp.policies[0].value: Invalid value: 0: must be greater than zero",
                    "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 0: must be greater than zero",
                ],
            ),
            (
                "a period too long",
                policies("Percent", 1, 1801),
                &[
                    "spec.behavior.scaleUp.policies[0].periodSeconds: Invalid value: 1801: must be less than or equal to 1800",
                ],
            ),
        ]);
    }

    #[test]
    fn rules_without_policies() {
        let mut scaler = scaler(&json!({"behavior": {}}));
        let behavior = scaler.spec.behavior.as_mut().unwrap();
        behavior.scale_up.as_mut().unwrap().policies = None;
        assert_eq!(
            autoscaler(&scaler, None).to_string(),
            "spec.behavior.scaleUp.policies: Required value: must specify at least one Policy"
        );
    }

    #[test]
    fn updates_may_keep_what_is_stored() {
        let object = |version: &str| {
            json!([{"type": "Object", "object": {"describedObject": {"apiVersion": version, "kind": "K", "name": "n"},
                "metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}}])
        };
        let bare = |name: &str| json!({"scaleTargetRef": {"kind": "Deployment", "name": name}});
        for (what, old, new, count) in [
            ("no group, another name", bare("a"), bare("b"), 0),
            ("no group any more", json!({}), bare("web"), 1),
            ("a wrong version", json!({"metrics": object("a/b/c")}), json!({"metrics": object("d/e/f")}), 0),
            ("a new wrong version", json!({"metrics": object("v1")}), json!({"metrics": object("d/e/f")}), 1),
            ("zero now", json!({"metrics": object("v1")}), json!({"minReplicas": 0, "metrics": object("v1")}), 0),
            ("zero, of pods", json!({}), json!({"minReplicas": 0}), 1),
        ] {
            let errors = HorizontalPodAutoscalerStrategy.validate_update(&scaler(&new), &scaler(&old));
            assert_eq!(errors.len(), count, "{what}: {errors}");
        }
    }

    #[test]
    fn status_counts_from_zero() {
        for (current, desired, expected) in [
            (0, 0, ""),
            (-1, 0, "status.currentReplicas: Invalid value: -1: must be greater than or equal to 0"),
            (0, -2, "status.desiredReplicas: Invalid value: -2: must be greater than or equal to 0"),
        ] {
            let mut new = scaler(&json!({}));
            let status = new.status.get_or_insert_default();
            status.current_replicas = Some(current);
            status.desired_replicas = desired;
            let errors = HorizontalPodAutoscalerStrategy.validate_status_update(&new, &scaler(&json!({})));
            let found: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(found.join(""), expected);
        }
    }
}

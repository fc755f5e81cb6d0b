//! Deployment: a set of identical pods, rolled from one template to the next.

use api::field::{FieldErrors, Path};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::rules;
use crate::column::Column;
use crate::core::pod_spec::defaults;
use crate::core::pod_spec::{template, template_warnings};
use crate::unset::{or_empty, set_text};
use crate::{Strategy, cells};

pub struct DeploymentStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Ready", "How many pods are ready, of how many."),
    Column::string("Up-to-date", "How many pods have the current template."),
    Column::string("Available", "How many pods have been ready long enough."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
    cells::SELECTOR,
];

impl Strategy for DeploymentStrategy {
    type Object = Deployment;
    const COUNTS_GENERATIONS: bool = true;
    const ANNOTATIONS_COUNT: bool = true;

    fn apply_defaults(&self, deployment: &mut Deployment) {
        let spec = deployment.spec.get_or_insert_default();
        spec.replicas.get_or_insert(1);
        let strategy = spec.strategy.get_or_insert_default();
        set_text(&mut strategy.type_, "RollingUpdate");
        if strategy.type_.as_deref() == Some("RollingUpdate") {
            let rolling = strategy.rolling_update.get_or_insert_default();
            rolling.max_unavailable.get_or_insert_with(quarter);
            rolling.max_surge.get_or_insert_with(quarter);
        }
        spec.revision_history_limit.get_or_insert(10);
        spec.progress_deadline_seconds.get_or_insert(600);
        defaults::pod_template(&mut spec.template);
    }

    fn validate_create(&self, deployment: &Deployment) -> FieldErrors {
        let mut errors = FieldErrors::default();
        if let Some(spec) = &deployment.spec {
            validate_spec(&mut errors, &Path::new("spec"), spec);
        }
        errors
    }

    fn validate_update(&self, new: &Deployment, old: &Deployment) -> FieldErrors {
        let mut errors = template::forgive(self.validate_create(new), || self.validate_create(old));
        let [new, old] = [new, old].map(|object| object.spec.as_ref().map(|spec| &spec.selector));
        rules::same_selector(&mut errors, new, old);
        errors
    }

    fn validate_status_update(&self, new: &Deployment, _: &Deployment) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let status = new.status.clone().unwrap_or_default();
        let path = Path::new("status");
        for (name, value) in [
            ("observedGeneration", status.observed_generation),
            ("replicas", status.replicas.map(i64::from)),
            ("updatedReplicas", status.updated_replicas.map(i64::from)),
            ("readyReplicas", status.ready_replicas.map(i64::from)),
            ("availableReplicas", status.available_replicas.map(i64::from)),
            ("unavailableReplicas", status.unavailable_replicas.map(i64::from)),
        ] {
            rules::non_negative(&mut errors, &path.child(name), value);
        }
        let replicas = status.replicas.unwrap_or(0);
        for (name, value) in [
            ("updatedReplicas", status.updated_replicas),
            ("readyReplicas", status.ready_replicas),
            ("availableReplicas", status.available_replicas),
        ] {
            if value.unwrap_or(0) > replicas {
                errors.invalid(path.child(name), value, "cannot be greater than status.replicas");
            }
        }
        rules::available_at_most_ready(&mut errors, &path, status.available_replicas, status.ready_replicas);
        errors
    }

    fn warnings(&self, new: &Deployment, old: Option<&Deployment>) -> Vec<String> {
        fn template(object: &Deployment) -> Option<&PodTemplateSpec> {
            object.spec.as_ref().map(|spec| &spec.template)
        }
        let Some(new) = template(new) else { return Vec::new() };
        template_warnings("spec.template", new, old.and_then(template))
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, deployment: &Deployment, now: Timestamp) -> Vec<Value> {
        let spec = deployment.spec.clone().unwrap_or_default();
        let status = deployment.status.clone().unwrap_or_default();
        let [containers, images] = cells::template(Some(&spec.template));
        vec![
            cells::name(&deployment.metadata),
            json!(format!("{}/{}", status.ready_replicas.unwrap_or(0), spec.replicas.unwrap_or(0))),
            json!(status.updated_replicas.unwrap_or(0)),
            json!(status.available_replicas.unwrap_or(0)),
            cells::age(&deployment.metadata, now),
            containers,
            images,
            cells::selector(Some(&spec.selector)),
        ]
    }
}

fn quarter() -> IntOrString {
    IntOrString::String("25%".to_owned())
}

fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &DeploymentSpec) {
    rules::non_negative(errors, &path.child("replicas"), spec.replicas.map(i64::from));
    rules::selector_and_template(errors, path, &spec.selector, &spec.template, "deployment");
    rules::always_restarts(errors, path, &spec.template, "ReplicaSet");
    let strategy = spec.strategy.clone().unwrap_or_default();
    let strategy_path = path.child("strategy");
    match or_empty(&strategy.type_) {
        "Recreate" => {
            if strategy.rolling_update.is_some() {
                errors.forbidden(
                    strategy_path.child("rollingUpdate"),
                    "may not be specified when strategy `type` is 'Recreate'",
                );
            }
        }
        "RollingUpdate" => match &strategy.rolling_update {
            None => errors.required(strategy_path.child("rollingUpdate"), "this should be defaulted and never be nil"),
            Some(rolling) => rolling_update(errors, &strategy_path.child("rollingUpdate"), rolling),
        },
        other => errors.not_supported(strategy_path.child("type"), other, &["Recreate", "RollingUpdate"]),
    }
    rules::non_negative(errors, &path.child("minReadySeconds"), spec.min_ready_seconds.map(i64::from));
    rules::non_negative(errors, &path.child("revisionHistoryLimit"), spec.revision_history_limit.map(i64::from));
    if let Some(deadline) = spec.progress_deadline_seconds {
        let deadline_path = path.child("progressDeadlineSeconds");
        rules::non_negative(errors, &deadline_path, Some(i64::from(deadline)));
        if deadline <= spec.min_ready_seconds.unwrap_or(0) {
            errors.invalid(deadline_path, deadline, "must be greater than minReadySeconds");
        }
    }
}

fn rolling_update(errors: &mut FieldErrors, path: &Path<'_>, rolling: &RollingUpdateDeployment) {
    let (unavailable, surge) = (rolling.max_unavailable.as_ref(), rolling.max_surge.as_ref());
    let unavailable_path = path.child("maxUnavailable");
    rules::count_or_percent(errors, &unavailable_path, unavailable);
    rules::count_or_percent(errors, &path.child("maxSurge"), surge);
    if rules::is_zero(unavailable) && rules::is_zero(surge) {
        errors.invalid(unavailable_path, unavailable, "may not be 0 when `maxSurge` is 0");
    }
    rules::at_most_all(errors, &unavailable_path, unavailable);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deployment(spec: Value) -> Deployment {
        let mut object: Deployment =
            serde_json::from_value(json!({"metadata": {"name": "web"}, "spec": spec})).unwrap();
        DeploymentStrategy.apply_defaults(&mut object);
        object
    }

    fn valid() -> Value {
        json!({
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "b"}]}}
        })
    }

    #[test]
    fn defaults_are_upstreams() {
        let spec = deployment(valid()).spec.unwrap();
        assert_eq!(spec.replicas, Some(1));
        assert_eq!(spec.progress_deadline_seconds, Some(600));
        assert_eq!(
            serde_json::to_value(spec.strategy).unwrap(),
            json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}})
        );
    }

    #[test]
    fn validation_speaks_like_upstream() {
        assert_eq!(DeploymentStrategy.validate_create(&deployment(valid())).to_string(), "[]");
        for (pointer, value, expected) in [
            ("/replicas", json!(-1), "spec.replicas: Invalid value: -1: must be greater than or equal to 0"),
            (
                "/template/metadata/labels/app",
                json!("other"),
                "spec.template.metadata.labels: Invalid value: {\"app\":\"other\"}: `selector` does not match template `labels`",
            ),
            (
                "/template/spec/restartPolicy",
                json!("Never"),
                "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
            ),
            (
                "/strategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}),
                "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
            ),
        ] {
            let mut spec = valid();
            let (parent, key) = pointer.rsplit_once('/').unwrap();
            spec.pointer_mut(parent).unwrap()[key] = value;
            assert_eq!(DeploymentStrategy.validate_create(&deployment(spec)).to_string(), expected);
        }
    }

    #[test]
    fn the_selector_is_immutable() {
        let mut changed = valid();
        changed["selector"]["matchLabels"]["tier"] = json!("x");
        changed["template"]["metadata"]["labels"]["tier"] = json!("x");
        let errors = DeploymentStrategy.validate_update(&deployment(changed), &deployment(valid()));
        assert_eq!(
            errors.to_string(),
            "spec.selector: Invalid value: {\"matchLabels\":{\"app\":\"web\",\"tier\":\"x\"}}: field is immutable"
        );
    }
}

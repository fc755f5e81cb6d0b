//! Job: pods that run until enough of them succeeded.

use api::field::{FieldErrors, IMMUTABLE, Path};
use api::meta::Meta as _;
use api::selector::Selector;
use jiff::Timestamp;
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{Affinity, Container, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::{Value, json};

use crate::column::Column;
use crate::core::pod_spec;
use crate::core::pod_spec::template_warnings;
use crate::metadata::{domain_prefixed_path, label_selector, same};
use crate::unset::{items, items_mut, or_empty, set_text};
use crate::{Call, SelectableField, Strategy, cells};

pub struct JobStrategy;

const COLUMNS: &[Column] = &[
    Column::NAME,
    Column::string("Status", "How the job stands."),
    Column::string("Completions", "How many pods succeeded, of how many."),
    Column::string("Duration", "How long the job ran."),
    Column::AGE,
    cells::CONTAINERS,
    cells::IMAGES,
    cells::SELECTOR,
];

/// The longest name of a controller that manages a job.
const LONGEST_MANAGER: usize = 63;

/// Labels that tie a job's pods to it, with and without the group's prefix.
const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
const NAME_LABELS: [&str; 2] = ["job-name", "batch.kubernetes.io/job-name"];

/// Whether no pod of the job runs or will run until it is resumed (`shouldAllowMutablePodTemplate`, v1.36).
fn is_at_rest(job: &Job) -> bool {
    let status = job.status.clone().unwrap_or_default();
    let suspended = job.spec.as_ref().is_some_and(|spec| spec.suspend == Some(true));
    let noted = || items(&status.conditions).iter().any(|c| c.type_ == "Suspended" && c.status == "True");
    suspended && (status.start_time.is_none() || noted()) && status.active.unwrap_or(0) == 0
}

/// Makes a change of the node affinity, and of nothing else of the affinity, go unseen.
fn keep_node_affinity(new: &mut Option<Affinity>, old: Option<&Affinity>) {
    let node_affinity = old.and_then(|old| old.node_affinity.clone());
    match new {
        Some(new) => {
            new.node_affinity = node_affinity;
        }
        None if node_affinity.is_some() => *new = Some(Affinity { node_affinity, ..Affinity::default() }),
        None => {}
    }
    if old.is_none() && *new == Some(Affinity::default()) {
        *new = None;
    }
}

/// Makes a change of resources go unseen, for containers that are the same otherwise.
fn keep_resources(new: &mut [Container], old: &[Container]) {
    if new.len() == old.len() {
        for (new, old) in new.iter_mut().zip(old).filter(|(new, old)| new.name == old.name) {
            new.resources.clone_from(&old.resources);
        }
    }
}

impl Strategy for JobStrategy {
    type Object = Job;
    const COUNTS_GENERATIONS: bool = true;
    const ORPHANS_BY_DEFAULT: bool = true;

    fn apply_defaults(&self, job: &mut Job) {
        let spec = job.spec.get_or_insert_default();
        spec_defaults(spec);
        spec.manual_selector.get_or_insert(false);
        let labels = spec.template.metadata.as_ref().and_then(|meta| meta.labels.clone());
        if job.metadata.labels.as_ref().is_none_or(|own| own.is_empty())
            && let Some(labels) = labels.filter(|labels| !labels.is_empty())
        {
            job.metadata.labels = Some(labels);
        }
    }

    fn prepare_for_create(&self, _: &Call<'_>, job: &mut Job) {
        let (name, uid) = (job.metadata.name().to_owned(), job.metadata.uid().to_owned());
        let Some(spec) = &mut job.spec else { return };
        if spec.manual_selector == Some(true) {
            return;
        }
        let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
        for (keys, value) in [(UID_LABELS, &uid), (NAME_LABELS, &name)] {
            for label in keys {
                labels.entry(label.to_owned()).or_insert_with(|| value.clone());
            }
        }
        let selector = spec.selector.get_or_insert_with(LabelSelector::default);
        selector.match_labels.get_or_insert_default().entry(UID_LABELS[1].to_owned()).or_insert(uid);
        // A job without labels wears those of its pods, these included.
        if job.metadata.labels.as_ref().is_none_or(|own| own.is_empty()) {
            job.metadata.labels = spec.template.metadata.as_ref().and_then(|template| template.labels.clone());
        }
    }

    fn validate_create(&self, job: &Job) -> FieldErrors {
        let mut errors = FieldErrors::default();
        let none = JobSpec::default();
        let spec = job.spec.as_ref().unwrap_or(&none);
        let path = Path::new("spec");
        own_labels(&mut errors, job, spec);
        validate_spec(&mut errors, &path, spec);
        if let ("Indexed", Some(last)) = (or_empty(&spec.completion_mode), spec.completions.filter(|&count| count > 0))
        {
            // The host name of the last pod.
            let (name, last) = (job.metadata.name(), last - 1);
            if !api::validation::dns1123_label(&format!("{name}-{last}")).is_empty() {
                let detail = format!("will not able to create pod with invalid DNS label: {name}-{last}");
                errors.invalid("metadata.name", name, detail);
            }
        }
        match &spec.selector {
            None => errors.required(path.child("selector"), ""),
            Some(selector) => {
                label_selector(&mut errors, &path.child("selector"), Some(selector));
                let labels = spec.template.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
                if Selector::from_label_selector(Some(selector)).is_ok_and(|selector| !selector.matches(labels)) {
                    errors.invalid(
                        path.child("template.metadata.labels"),
                        labels,
                        "`selector` does not match template `labels`",
                    );
                }
            }
        }
        errors
    }

    fn validate_update(&self, new: &Job, old: &Job) -> FieldErrors {
        let mut errors = pod_spec::template::forgive(self.validate_create(new), || self.validate_create(old));
        let (Some(new), Some(old_spec)) = (&new.spec, &old.spec) else { return errors };
        if new.completions != old_spec.completions {
            if or_empty(&new.completion_mode) != "Indexed" {
                errors.invalid("spec.completions", new.completions, IMMUTABLE);
            } else if new.completions.is_some() && new.completions != new.parallelism {
                let detail = "can only be modified in tandem with spec.parallelism";
                errors.invalid("spec.completions", new.completions, detail);
            }
        }
        if new.selector != old_spec.selector {
            errors.invalid("spec.selector", &new.selector, IMMUTABLE);
        }
        // A suspended job without pods may still be steered to other nodes and be given other resources.
        let mut template = new.template.clone();
        let at_rest = is_at_rest(old);
        if at_rest && let (Some(new), Some(old)) = (&mut template.spec, &old_spec.template.spec) {
            new.node_selector.clone_from(&old.node_selector);
            new.tolerations.clone_from(&old.tolerations);
            new.scheduling_gates.clone_from(&old.scheduling_gates);
            keep_node_affinity(&mut new.affinity, old.affinity.as_ref());
            keep_resources(&mut new.containers, &old.containers);
            let old_init = old.init_containers.as_deref().unwrap_or_default();
            keep_resources(new.init_containers.as_deref_mut().unwrap_or_default(), old_init);
        }
        if at_rest {
            if !same(&template.spec, &old_spec.template.spec) {
                errors.invalid("spec.template.spec", &new.template.spec, IMMUTABLE);
            }
        } else if !same(&template, &old_spec.template) {
            errors.invalid("spec.template", &new.template, IMMUTABLE);
        }
        if new.completion_mode != old_spec.completion_mode {
            errors.invalid("spec.completionMode", &new.completion_mode, IMMUTABLE);
        }
        for (name, changed) in [
            ("podFailurePolicy", new.pod_failure_policy != old_spec.pod_failure_policy),
            ("backoffLimitPerIndex", new.backoff_limit_per_index != old_spec.backoff_limit_per_index),
            ("managedBy", new.managed_by != old_spec.managed_by),
            ("successPolicy", new.success_policy != old_spec.success_policy),
        ] {
            if changed {
                let value = api::codec::to_value(new).ok().and_then(|spec| spec.get(name).cloned());
                errors.invalid(format!("spec.{name}"), value, IMMUTABLE);
            }
        }
        errors
    }

    fn validate_status_update(&self, new: &Job, old: &Job) -> FieldErrors {
        super::job_status::validate_update(new, old)
    }

    fn selectable_fields(&self) -> &'static [SelectableField] {
        const { &[SelectableField::new("status.successful", &["status", "succeeded"]).or("0")] }
    }

    fn warnings(&self, new: &Job, old: Option<&Job>) -> Vec<String> {
        fn template(object: &Job) -> Option<&PodTemplateSpec> {
            object.spec.as_ref().map(|spec| &spec.template)
        }
        let mut warnings = Vec::new();
        let messages = api::validation::dns1123_label(new.metadata.name());
        if old.is_none() && !messages.is_empty() {
            warnings.push(format!(
                "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]",
                messages.join(" ")
            ));
        }
        let Some(new) = template(new) else { return warnings };
        warnings.extend(template_warnings("spec.template", new, old.and_then(template)));
        warnings
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, job: &Job, now: Timestamp) -> Vec<Value> {
        let spec = job.spec.clone().unwrap_or_default();
        let status = job.status.clone().unwrap_or_default();
        let succeeded = status.succeeded.unwrap_or(0);
        let completions = match (spec.completions, spec.parallelism.unwrap_or(0)) {
            (Some(wanted), _) => format!("{succeeded}/{wanted}"),
            (None, parallelism) if parallelism > 1 => format!("{succeeded}/1 of {parallelism}"),
            (None, _) => format!("{succeeded}/1"),
        };
        let duration = status.start_time.as_ref().map_or(String::new(), |start| {
            let end = status.completion_time.as_ref().map_or(now, |end| end.0);
            api::duration::human(end.as_second() - start.0.as_second())
        });
        let is = |wanted: &str| items(&status.conditions).iter().any(|c| c.type_ == wanted && c.status == "True");
        let state = if is("Complete") {
            "Complete"
        } else if is("Failed") {
            "Failed"
        } else if job.metadata.deletion_timestamp.is_some() {
            "Terminating"
        } else if is("Suspended") {
            "Suspended"
        } else if is("FailureTarget") {
            "FailureTarget"
        } else if is("SuccessCriteriaMet") {
            "SuccessCriteriaMet"
        } else {
            "Running"
        };
        let [containers, images] = cells::template(Some(&spec.template));
        vec![
            cells::name(&job.metadata),
            json!(state),
            json!(completions),
            json!(duration),
            cells::age(&job.metadata, now),
            containers,
            images,
            cells::selector(spec.selector.as_ref()),
        ]
    }
}

/// Labels by which a job knows its pods must be its own (`validateGeneratedSelector`, v1.36). Jobs from before there were
/// labels with the group's prefix go on without them.
fn own_labels(errors: &mut FieldErrors, job: &Job, spec: &JobSpec) {
    if spec.manual_selector == Some(true) {
        return;
    }
    let labels = spec.template.metadata.as_ref().and_then(|meta| meta.labels.as_ref());
    let path = Path::new("spec.template.metadata.labels");
    for (keys, value) in [(UID_LABELS, job.metadata.uid()), (NAME_LABELS, job.metadata.name())] {
        for key in keys {
            match labels.and_then(|labels| labels.get(key)) {
                Some(found) if found != value => {
                    errors.invalid(path.key(key), labels, format!("must be '{value}'"));
                }
                _ => {}
            }
        }
    }
}

/// Limits that keep the lists of indexes in the status short.
fn indexed_limits(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec) {
    const MOST: i32 = 100_000;
    const MOST_BESIDE_MANY: i32 = 10_000;
    let failed = spec.max_failed_indexes;
    let place = path.child("maxFailedIndexes");
    if let (Some(failed), Some(completions)) = (failed, spec.completions)
        && failed > completions
    {
        errors.invalid(place, failed, "must be less than or equal to completions");
    }
    if let Some(failed) = failed.filter(|&failed| failed > MOST) {
        errors.invalid(place, failed, format!("must be less than or equal to {MOST}"));
    }
    if spec.completions.is_some_and(|completions| completions > MOST) && spec.backoff_limit_per_index.is_some() {
        if failed.is_none() {
            errors.required(place, format!("must be specified when completions is above {MOST}"));
        }
        for (name, value) in [("parallelism", spec.parallelism), ("maxFailedIndexes", failed)] {
            if let Some(value) = value.filter(|&value| value > MOST_BESIDE_MANY) {
                let detail = format!(
                    "must be less than or equal to {MOST_BESIDE_MANY} when completions are above {MOST} and used with backoff limit per index"
                );
                errors.invalid(path.child(name), value, detail);
            }
        }
    }
}

/// Defaults of a job's spec, also inside a CronJob.
pub fn spec_defaults(spec: &mut JobSpec) {
    if spec.completions.is_none() && spec.parallelism.is_none() {
        spec.completions = Some(1);
    }
    spec.parallelism.get_or_insert(1);
    if spec.backoff_limit.is_none() {
        spec.backoff_limit = Some(if spec.backoff_limit_per_index.is_some() { i32::MAX } else { 6 });
    }
    set_text(&mut spec.completion_mode, "NonIndexed");
    spec.suspend.get_or_insert(false);
    for rule in spec.pod_failure_policy.iter_mut().flat_map(|policy| policy.rules.iter_mut()) {
        for pattern in items_mut(&mut rule.on_pod_conditions) {
            set_text(&mut pattern.status, "True");
        }
    }
    let replacement = if spec.pod_failure_policy.is_some() { "Failed" } else { "TerminatingOrFailed" };
    set_text(&mut spec.pod_replacement_policy, replacement);
    pod_spec::defaults::pod_template(&mut spec.template);
}

pub fn validate_spec(errors: &mut FieldErrors, path: &Path<'_>, spec: &JobSpec) {
    for (name, value) in [
        ("parallelism", spec.parallelism.map(i64::from)),
        ("completions", spec.completions.map(i64::from)),
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("backoffLimit", spec.backoff_limit.map(i64::from)),
        ("ttlSecondsAfterFinished", spec.ttl_seconds_after_finished.map(i64::from)),
        ("backoffLimitPerIndex", spec.backoff_limit_per_index.map(i64::from)),
        ("maxFailedIndexes", spec.max_failed_indexes.map(i64::from)),
    ] {
        if let Some(value) = value.filter(|&value| value < 0) {
            errors.invalid(path.child(name), value, "must be greater than or equal to 0");
        }
    }
    if let Some(manager) = &spec.managed_by {
        domain_prefixed_path(errors, &path.child("managedBy"), manager);
        if manager.len() > LONGEST_MANAGER {
            errors.too_long(path.child("managedBy"), LONGEST_MANAGER);
        }
    }
    if spec.max_failed_indexes.is_some() && spec.backoff_limit_per_index.is_none() {
        errors.required(path.child("backoffLimitPerIndex"), "when maxFailedIndexes is specified");
    }
    match or_empty(&spec.completion_mode) {
        "Indexed" => {
            if spec.completions.is_none() {
                errors.required(path.child("completions"), "when completion mode is Indexed");
            }
            if let Some(parallelism) = spec.parallelism.filter(|&parallelism| parallelism > 100_000) {
                let detail = "must be less than or equal to 100000 when completion mode is Indexed";
                errors.invalid(path.child("parallelism"), parallelism, detail);
            }
            indexed_limits(errors, path, spec);
        }
        "" | "NonIndexed" => {
            for (name, value) in
                [("backoffLimitPerIndex", spec.backoff_limit_per_index), ("maxFailedIndexes", spec.max_failed_indexes)]
            {
                if let Some(value) = value {
                    errors.invalid(path.child(name), value, "requires indexed completion mode");
                }
            }
        }
        other => errors.not_supported(path.child("completionMode"), other, &["NonIndexed", "Indexed"]),
    }
    super::job_policies::validate(errors, path, spec);
    pod_spec::template::validate(errors, &path.child("template"), &spec.template);
    let policy = spec.template.spec.as_ref().map(|pod| or_empty(&pod.restart_policy)).unwrap_or_default();
    let policy_path = path.child("template.spec.restartPolicy");
    match policy {
        "" | "Always" => errors.required(policy_path, "valid values: \"OnFailure\", \"Never\""),
        "Never" => {}
        "OnFailure" if spec.pod_failure_policy.is_some() => {
            errors.invalid(policy_path, policy, "only \"Never\" is supported when podFailurePolicy is specified");
        }
        "OnFailure" => {}
        other => errors.not_supported(policy_path, other, &["OnFailure", "Never"]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_select_their_own_pods() {
        let mut job: Job = serde_json::from_value(json!({
            "metadata": {"name": "pi", "uid": "u1"},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}}
        }))
        .unwrap();
        JobStrategy.apply_defaults(&mut job);
        let user = api::UserInfo::anonymous();
        JobStrategy.prepare_for_create(&Call { user: &user, now: Timestamp::UNIX_EPOCH }, &mut job);
        assert_eq!(JobStrategy.validate_create(&job).to_string(), "[]");
        let spec = job.spec.clone().unwrap();
        assert_eq!((spec.completions, spec.parallelism, spec.backoff_limit), (Some(1), Some(1), Some(6)));
        assert_eq!(
            serde_json::to_value(spec.selector).unwrap(),
            json!({"matchLabels": {"batch.kubernetes.io/controller-uid": "u1"}})
        );
        let mut changed = job.clone();
        changed.spec.as_mut().unwrap().template.spec.as_mut().unwrap().containers[0].image = Some("c".to_owned());
        let errors = JobStrategy.validate_update(&changed, &job).to_string();
        assert!(errors.starts_with("spec.template: Invalid value:") && errors.ends_with("field is immutable"));
    }

    #[test]
    fn creation_speaks_like_upstream() {
        for (name, spec, expected) in [
            ("pi", json!({ "managedBy": "acme.io/jobs" }), "[]".to_owned()),
            (
                "pi",
                json!({ "managedBy": "jobs" }),
                r#"spec.managedBy: Invalid value: "jobs": must be a domain-prefixed path (such as "acme.io/foo")"#
                    .into(),
            ),
            (
                "pi",
                json!({ "managedBy": format!("acme.io/{}", "a".repeat(60)) }),
                "spec.managedBy: Too long: may not be more than 63 bytes".into(),
            ),
            (
                "pi",
                json!({ "completionMode": "Indexed", "completions": 2, "backoffLimitPerIndex": 1, "maxFailedIndexes": 3 }),
                "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions".into(),
            ),
            (
                "pi",
                json!({ "completionMode": "Indexed", "completions": 100_001, "backoffLimitPerIndex": 1 }),
                "spec.maxFailedIndexes: Required value: must be specified when completions is above 100000".into(),
            ),
            (
                "a.b",
                json!({ "completionMode": "Indexed", "completions": 2 }),
                r#"metadata.name: Invalid value: "a.b": will not able to create pod with invalid DNS label: a.b-1"#
                    .into(),
            ),
        ] {
            let mut whole =
                json!({"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}});
            whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
            let job = json!({ "metadata": { "name": name, "uid": "u1" }, "spec": whole });
            assert_eq!(JobStrategy.validate_create(&made(job)).to_string(), expected, "{spec}");
        }
    }

    fn made(job: Value) -> Job {
        let mut job: Job = serde_json::from_value(job).unwrap();
        JobStrategy.apply_defaults(&mut job);
        let user = api::UserInfo::anonymous();
        JobStrategy.prepare_for_create(&Call { user: &user, now: Timestamp::UNIX_EPOCH }, &mut job);
        job
    }

    /// A manifest that was read from another job brings the labels of that one.
    #[test]
    fn labels_of_another_job_are_refused() {
        let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "b" }] });
        let labels = json!({ "batch.kubernetes.io/job-name": "other" });
        let template = json!({ "metadata": { "labels": labels }, "spec": pod });
        let job = made(json!({ "metadata": { "name": "pi", "uid": "u1" }, "spec": { "template": template } }));
        let found = JobStrategy.validate_create(&job).to_string();
        assert!(
            found.contains("spec.template.metadata.labels[batch.kubernetes.io/job-name]: Invalid value"),
            "{found}"
        );
        assert!(found.ends_with("must be 'pi'"), "{found}");
    }

    #[test]
    fn an_indexed_job_becomes_wider_and_longer_at_once() {
        let job = |completions: i32, parallelism: i32| {
            let pod = json!({ "restartPolicy": "Never", "containers": [{ "name": "a", "image": "b" }] });
            made(json!({ "metadata": { "name": "pi", "uid": "u1" }, "spec": {
                "completionMode": "Indexed", "completions": completions, "parallelism": parallelism, "template": { "spec": pod },
            } }))
        };
        let old = job(2, 2);
        assert_eq!(JobStrategy.validate_update(&job(3, 3), &old).to_string(), "[]");
        assert_eq!(
            JobStrategy.validate_update(&job(3, 2), &old).to_string(),
            "spec.completions: Invalid value: 3: can only be modified in tandem with spec.parallelism"
        );
    }

    /// Before it starts, and between its pods' going and its being resumed.
    #[test]
    fn suspended_jobs_without_pods_take_other_resources_and_places() {
        let suspended = json!([{ "type": "Suspended", "status": "True" }]);
        let started = "2026-01-01T00:00:00Z";
        let place = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [] } });
        let term = json!({ "topologyKey": "zone", "labelSelector": {} });
        let beside = json!({ "podAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [term] } });
        for (suspend, status, patch, expected) in [
            (true, json!({}), json!({ "cpu": "2" }), ""),
            (true, json!({ "startTime": started, "conditions": suspended }), json!({ "cpu": "2" }), ""),
            (true, json!({ "startTime": started, "conditions": suspended }), json!({ "affinity": place }), ""),
            (true, json!({ "startTime": started }), json!({ "cpu": "2" }), "spec.template: Invalid value"),
            (true, json!({ "active": 1 }), json!({ "cpu": "2" }), "spec.template: Invalid value"),
            (false, json!({}), json!({ "cpu": "2" }), "spec.template: Invalid value"),
            (true, json!({}), json!({ "image": "c" }), "spec.template.spec: Invalid value"),
            (true, json!({}), json!({ "affinity": beside }), "spec.template.spec: Invalid value"),
        ] {
            let job = |change: &Value| -> Job {
                let container = json!({
                    "name": "a", "image": change.get("image").unwrap_or(&json!("b")),
                    "resources": { "requests": { "cpu": change.get("cpu").unwrap_or(&json!("1")) } },
                });
                let pod =
                    json!({ "restartPolicy": "Never", "containers": [container], "affinity": change.get("affinity") });
                let mut job: Job = serde_json::from_value(json!({
                    "metadata": { "name": "pi", "uid": "u1" }, "status": status,
                    "spec": { "suspend": suspend, "template": { "spec": pod } },
                }))
                .unwrap();
                JobStrategy.apply_defaults(&mut job);
                let user = api::UserInfo::anonymous();
                let status = job.status.clone();
                JobStrategy.prepare_for_create(&Call { user: &user, now: Timestamp::UNIX_EPOCH }, &mut job);
                job.status = status;
                job.spec.as_mut().unwrap().suspend = Some(suspend);
                job
            };
            let errors = JobStrategy.validate_update(&job(&patch), &job(&json!({}))).to_string();
            let right = if expected.is_empty() { errors == "[]" } else { errors.contains(expected) };
            assert!(right, "{suspend} {status} {patch}: {errors}");
        }
    }
}

//! PodSecurity: the Pod Security Standards, chosen by the labels of a namespace.
//!
//! Flow: `policy` (labels -> a level and version per mode) -> `checks` (a table, over `baseline` and `restricted`) ->
//! here, where enforce refuses pods, warn speaks to the client and audit to the log. Workloads with a pod template are
//! warned about and audited, never refused: their pods will be.

mod baseline;
mod checks;
mod exemptions;
mod namespaces;
mod policy;
mod restricted;
mod subject;

use std::sync::Arc;

use api::Status;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::core::v1::{Namespace, Pod, PodSpec, PodTemplate, PodTemplateSpec, ReplicationController};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::config::Setting;
use super::{Admitted, Attributes, Plugin, Verb, admitted, later};
use crate::cluster::Cluster;
use crate::watch_cache::{Entry, Unreadable};
use checks::{Violation, detail, violations};
use exemptions::Settings;
use policy::{LevelVersion, Policy};
use subject::Subject;

pub(super) struct PodSecurity(Settings);

impl PodSecurity {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        Settings::new(setting).map(Self)
    }
}

/// Subresources of pods that do not change what runs.
const HARMLESS: [&str; 8] = ["exec", "attach", "binding", "eviction", "log", "portforward", "proxy", "status"];

impl Plugin for PodSecurity {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !matches!(attributes.verb, Verb::Create | Verb::Update) {
            return admitted();
        }
        match (&*attributes.resource.group, &*attributes.resource.plural) {
            ("", "namespaces") => namespaces::validate(&self.0, cluster, attributes).into(),
            ("", "pods") if HARMLESS.contains(&attributes.subresource) => admitted(),
            ("", "pods") => later(self.validate_pod(cluster, attributes)),
            ("", "podtemplates" | "replicationcontrollers") | ("apps" | "batch", _)
                if attributes.subresource.is_empty() =>
            {
                self.validate_workload(cluster, attributes).into()
            }
            _ => admitted(),
        }
    }
}

impl PodSecurity {
    async fn validate_pod(&self, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
        if self.0.exempts(attributes) {
            return Ok(());
        }
        let mut namespace = namespace_entry(cluster, attributes)?;
        if namespace.is_none() {
            cluster.caches.fresh().await?;
            namespace = namespace_entry(cluster, attributes)?;
        }
        let Some(namespace) = namespace else {
            return Err(Status::internal(format!("failed to lookup namespace {:?}", attributes.namespace)));
        };
        let (policy, errors) = Policy::of(Some(namespace.labels()), self.0.defaults);
        if errors.is_empty() && policy.is_privileged() {
            note(attributes, "enforce-policy", LevelVersion::PRIVILEGED.to_string());
            return Ok(());
        }
        let Some(pod) = attributes.object_ref::<Pod>() else { return Ok(()) };
        if let Some(old) = attributes.old_ref::<Pod>().filter(|_| attributes.verb == Verb::Update)
            && !changes_images(pod, old)
        {
            return Ok(());
        }
        if !errors.is_empty() {
            note(attributes, "error", format!("Failed to parse policy: {errors}"));
        }
        let Some(spec) = &pod.spec else { return Ok(()) };
        if self.0.exempts_runtime_class(attributes, spec) {
            return Ok(());
        }
        let subject = Subject::new(&pod.metadata, spec);
        note(attributes, "enforce-policy", policy.enforce.to_string());
        let found = violations(policy.enforce, &subject);
        audit(attributes, &policy, &subject);
        if found.is_empty() {
            warn(attributes, &policy, &subject);
            return Ok(());
        }
        Err(attributes.forbidden(format!("violates PodSecurity \"{}\": {}", policy.enforce, detail(&found))))
    }

    fn validate_workload(&self, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
        let Some(namespace) = namespace_entry(cluster, attributes)? else { return Ok(()) };
        let (policy, errors) = Policy::of(Some(namespace.labels()), self.0.defaults);
        if (errors.is_empty() && policy.warn.is_privileged() && policy.audit.is_privileged())
            || self.0.exempts(attributes)
        {
            return Ok(());
        }
        let Some((metadata, spec)) = template(attributes) else { return Ok(()) };
        if self.0.exempts_runtime_class(attributes, spec) {
            return Ok(());
        }
        if !errors.is_empty() {
            note(attributes, "error", format!("Failed to parse policy: {errors}"));
        }
        let subject = Subject::new(&metadata, spec);
        audit(attributes, &policy, &subject);
        warn(attributes, &policy, &subject);
        Ok(())
    }
}

/// Most namespaces ask for nothing: this look must cost little.
fn namespace_entry(cluster: &Cluster, attributes: &Attributes<'_>) -> Result<Option<Arc<Entry>>, Unreadable> {
    cluster.objects().entry::<Namespace>("", attributes.namespace)
}

fn note(attributes: &Attributes<'_>, key: &str, value: String) {
    attributes.annotate(format!("pod-security.kubernetes.io/{key}"), value);
}

fn would_violate(wanted: LevelVersion, found: &[Violation]) -> String {
    format!("would violate PodSecurity \"{wanted}\": {}", detail(found))
}

fn audit(attributes: &Attributes<'_>, policy: &Policy, subject: &Subject<'_>) {
    let found = violations(policy.audit, subject);
    if !found.is_empty() {
        note(attributes, "audit-violations", would_violate(policy.audit, &found));
    }
}

fn warn(attributes: &Attributes<'_>, policy: &Policy, subject: &Subject<'_>) {
    let found = violations(policy.warn, subject);
    if !found.is_empty() {
        attributes.warn(would_violate(policy.warn, &found));
    }
}

/// The pod template of a workload, if the object is one and has one.
fn template<'a>(attributes: &'a Attributes<'_>) -> Option<(ObjectMeta, &'a PodSpec)> {
    let object = attributes.object.as_deref()?;
    let template: &PodTemplateSpec = if let Some(object) = object.downcast_ref::<Deployment>() {
        &object.spec.as_ref()?.template
    } else if let Some(object) = object.downcast_ref::<ReplicaSet>() {
        object.spec.as_ref()?.template.as_ref()?
    } else if let Some(object) = object.downcast_ref::<StatefulSet>() {
        &object.spec.as_ref()?.template
    } else if let Some(object) = object.downcast_ref::<DaemonSet>() {
        &object.spec.as_ref()?.template
    } else if let Some(object) = object.downcast_ref::<Job>() {
        &object.spec.as_ref()?.template
    } else if let Some(object) = object.downcast_ref::<CronJob>() {
        &object.spec.job_template.spec.as_ref()?.template
    } else if let Some(object) = object.downcast_ref::<ReplicationController>() {
        object.spec.as_ref()?.template.as_ref()?
    } else {
        object.downcast_ref::<PodTemplate>()?.template.as_ref()?
    };
    Some((template.metadata.clone().unwrap_or_default(), template.spec.as_ref()?))
}

/// Of what an update may change, only images matter to the standards.
fn changes_images(new: &Pod, old: &Pod) -> bool {
    let empty = PodSpec::default();
    let (new, old) = (new.spec.as_ref().unwrap_or(&empty), old.spec.as_ref().unwrap_or(&empty));
    let images = |spec: &PodSpec| -> (Vec<Option<String>>, Vec<Option<String>>) {
        let of = |list: &[k8s_openapi::api::core::v1::Container]| list.iter().map(|c| c.image.clone()).collect();
        (of(&spec.containers), of(spec.init_containers.as_deref().unwrap_or_default()))
    };
    if images(new) != images(old) {
        return true;
    }
    let known = old.ephemeral_containers.as_deref().unwrap_or_default();
    new.ephemeral_containers
        .iter()
        .flatten()
        .any(|container| !known.iter().any(|before| before.name == container.name && before.image == container.image))
}

//! PodTolerationRestriction: default tolerations of a namespace, and the only ones its pods may have.

use std::sync::Arc;

use api::Status;
use api::pod::qos;
use k8s_openapi::api::core::v1::{Namespace, Pod, Toleration};
use serde::Deserialize;

use super::config::{Setting, parse};
use super::tolerations::{are_allowed, merge};
use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;

const DEFAULT: &str = "scheduler.alpha.kubernetes.io/defaultTolerations";
const ALLOWED: &str = "scheduler.alpha.kubernetes.io/tolerationsWhitelist";
const MEMORY_PRESSURE: &str = "node.kubernetes.io/memory-pressure";

/// What holds for namespaces without annotations of their own.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct PodTolerationRestriction {
    default: Vec<Toleration>,
    whitelist: Vec<Toleration>,
}

impl PodTolerationRestriction {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        const VERSIONS: &[&str] = &["podtolerationrestriction.admission.k8s.io/v1alpha1"];
        setting.map_or_else(|| Ok(Self::default()), |setting| parse(setting, VERSIONS, "Configuration"))
    }

    fn check(&self, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
        let pod = attributes.object_ref::<Pod>();
        let tolerations = pod.and_then(|pod| pod.spec.as_ref()?.tolerations.as_deref()).unwrap_or_default();
        if tolerations.is_empty() {
            return Ok(());
        }
        let own = annotation(cluster, attributes, ALLOWED)?;
        let scope = if own.is_some() { "namespace" } else { "cluster" };
        let allowed = own.as_ref().unwrap_or(&self.whitelist);
        if allowed.is_empty() || are_allowed(tolerations, allowed) {
            return Ok(());
        }
        Err(attributes.forbidden(format!(
            "pod tolerations (possibly merged with namespace default tolerations) conflict with its {scope} whitelist"
        )))
    }
}

impl Plugin for PodTolerationRestriction {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("", "pods") {
            return admitted();
        }
        let mut extra = Vec::new();
        if attributes.verb == Verb::Create {
            match annotation(cluster, attributes, DEFAULT) {
                Ok(own) => extra = own.unwrap_or_else(|| self.default.clone()),
                Err(status) => return Err(status).into(),
            }
        }
        if let Some(pod) = attributes.object_mut::<Pod>() {
            if qos::class(pod) != qos::Class::BestEffort {
                extra.push(Toleration {
                    key: Some(MEMORY_PRESSURE.to_owned()),
                    operator: Some("Exists".to_owned()),
                    effect: Some("NoSchedule".to_owned()),
                    ..Default::default()
                });
            }
            let spec = pod.spec.get_or_insert_default();
            if !extra.is_empty() {
                spec.tolerations = Some(merge(spec.tolerations.take().unwrap_or_default(), extra));
            }
        }
        self.check(cluster, attributes).into()
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.writes("", "pods") {
            return admitted();
        }
        self.check(cluster, attributes).into()
    }
}

/// Tolerations written into an annotation of the pod's namespace; an empty text is an empty list.
fn annotation(cluster: &Cluster, attributes: &Attributes<'_>, key: &str) -> Result<Option<Vec<Toleration>>, Status> {
    let namespace = cluster.objects().metadata::<Namespace>("", attributes.namespace)?;
    let text = namespace.and_then(|metadata| metadata.annotations?.remove(key));
    match text.as_deref() {
        None => Ok(None),
        Some("") => Ok(Some(Vec::new())),
        Some(text) => serde_json::from_str(text).map(Some).map_err(Status::internal),
    }
}

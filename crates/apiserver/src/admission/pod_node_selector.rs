//! PodNodeSelector: a namespace decides on which nodes its pods run.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::Status;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use serde::Deserialize;

use super::config::Setting;
use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;

const ANNOTATION: &str = "scheduler.alpha.kubernetes.io/node-selector";
const CLUSTER_DEFAULT: &str = "clusterDefaultNodeSelector";

type Labels = BTreeMap<String, String>;

/// Selectors by namespace: what pods there may select at most. One entry is the default for all others.
#[derive(Default)]
pub(super) struct PodNodeSelector(BTreeMap<String, Labels>);

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(default)]
    pod_node_selector_plugin_config: BTreeMap<String, String>,
}

impl PodNodeSelector {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let Some(setting) = setting else { return Ok(Self::default()) };
        let file: File = serde_json::from_value(setting)?;
        let parsed = file.pod_node_selector_plugin_config.into_iter().map(|(namespace, text)| {
            let labels = labels(&text).map_err(|problem| anyhow::anyhow!("{namespace}: {problem}"))?;
            anyhow::Ok((namespace, labels))
        });
        Ok(Self(parsed.collect::<Result<_, _>>()?))
    }

    /// What the namespace adds to its pods.
    fn of_namespace(&self, cluster: &Cluster, attributes: &Attributes<'_>) -> Result<Labels, Status> {
        let namespace = cluster.objects().metadata::<Namespace>("", attributes.namespace)?;
        let text = namespace.and_then(|metadata| metadata.annotations?.remove(ANNOTATION));
        match text {
            Some(text) => labels(&text).map_err(Status::internal),
            None => Ok(self.0.get(CLUSTER_DEFAULT).cloned().unwrap_or_default()),
        }
    }

    fn check(&self, attributes: &Attributes<'_>, wanted: &Labels) -> Result<(), Status> {
        let pod = attributes.object_ref::<Pod>();
        let selector = pod.and_then(|pod| pod.spec.as_ref()?.node_selector.clone()).unwrap_or_default();
        if wanted.iter().any(|(key, value)| selector.get(key).is_some_and(|own| own != value)) {
            let message = "pod node label selector conflicts with its namespace node label selector";
            return Err(attributes.forbidden(message));
        }
        let allowed = self.0.get(attributes.namespace).filter(|allowed| !allowed.is_empty());
        if allowed.is_some_and(|allowed| selector.iter().any(|(key, value)| allowed.get(key) != Some(value))) {
            return Err(attributes.forbidden("pod node label selector labels conflict with its namespace whitelist"));
        }
        Ok(())
    }
}

impl Plugin for PodNodeSelector {
    fn admit<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if !attributes.creates("", "pods") {
            return admitted();
        }
        let wanted = match self.of_namespace(cluster, attributes) {
            Ok(wanted) => wanted,
            Err(status) => return Err(status).into(),
        };
        if let Some(pod) = attributes.object_mut::<Pod>() {
            let selector = pod.spec.get_or_insert_default().node_selector.get_or_insert_default();
            for (key, value) in &wanted {
                selector.entry(key.clone()).or_insert_with(|| value.clone());
            }
            if selector.is_empty() {
                pod.spec.get_or_insert_default().node_selector = None;
            }
        }
        self.check(attributes, &wanted).into()
    }

    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if !attributes.creates("", "pods") {
            return admitted();
        }
        self.of_namespace(cluster, attributes).and_then(|wanted| self.check(attributes, &wanted)).into()
    }
}

/// Why a text names no labels.
#[derive(Debug, thiserror::Error)]
enum LabelsError {
    #[error("invalid selector: [{0}]")]
    NoValue(String),
    #[error("{0}")]
    Invalid(String),
}

/// Reads `key=value,key=value`.
fn labels(text: &str) -> Result<Labels, LabelsError> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').ok_or_else(|| LabelsError::NoValue(text.to_owned()))?;
        let (key, value) = (key.trim(), value.trim_start_matches('=').trim());
        let problems = [api::validation::qualified_name(key), api::validation::label_value(value)].concat();
        if problems.is_empty() {
            Ok((key.to_owned(), value.to_owned()))
        } else {
            Err(LabelsError::Invalid(problems.join("; ")))
        }
    });
    pairs.collect()
}

//! InitialResources: containers that ask for nothing get requests from what their image has used in the past.
//!
//! Flow: a task asks every kubelet once a minute for its usage (`/stats/summary`) and remembers it by image (`samples`);
//! a new pod's containers without requests and limits get a percentile of that. Without enough of a past nothing is
//! set. The memory is this process's own and bounded; a restart begins anew.

mod samples;

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::Deserialize;

use super::config::{Setting, parse};
use super::{Admitted, Attributes, Plugin, admitted};
use crate::cluster::Cluster;
use samples::{Kind, Sample, Samples};

/// Says which values came from here.
const ANNOTATION: &str = "kubernetes.io/initial-resources";
const INTERVAL: Duration = Duration::from_secs(60);

pub(super) struct InitialResources {
    settings: Settings,
    samples: Arc<Samples>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Settings {
    /// Which part of the past usage the estimate covers.
    percentile: u8,
    /// Look only at the pod's own namespace.
    namespace_only: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self { percentile: 90, namespace_only: false }
    }
}

impl InitialResources {
    pub(super) fn new(setting: Setting) -> anyhow::Result<Self> {
        let settings: Settings = match setting {
            Some(setting) => parse(setting, &["initialresources.admission.k8s.io/v1alpha1"], "Configuration")?,
            None => Settings::default(),
        };
        anyhow::ensure!((1..=100).contains(&settings.percentile), "percentile must be between 1 and 100");
        Ok(Self { settings, samples: Arc::default() })
    }

    /// Sets what the container leaves open; returns the names of what was set.
    fn estimate(&self, namespace: &str, container: &mut Container, now: Instant) -> Vec<&'static str> {
        let Some(image) = container.image.clone() else { return Vec::new() };
        let mut set = Vec::new();
        for (kind, name) in [(Kind::Cpu, "cpu"), (Kind::Memory, "memory")] {
            let resources = container.resources.get_or_insert_default();
            let stated = [&resources.requests, &resources.limits];
            if stated.into_iter().flatten().any(|amounts| amounts.contains_key(name)) {
                continue;
            }
            let Settings { percentile, namespace_only } = self.settings;
            let estimate = self.samples.estimate(kind, &image, namespace, percentile, namespace_only, now);
            if let Some(amount) = estimate {
                let text = if kind == Kind::Cpu { format!("{amount}m") } else { amount.to_string() };
                resources.requests.get_or_insert_default().insert(name.to_owned(), Quantity(text));
                set.push(name);
            }
        }
        set
    }
}

impl Plugin for InitialResources {
    fn admit<'a>(&'a self, _: &'a Arc<Cluster>, attributes: &'a mut Attributes<'_>) -> Admitted<'a> {
        if !attributes.creates("", "pods") {
            return admitted();
        }
        let (namespace, now) = (attributes.namespace.to_owned(), Instant::now());
        let Some(pod) = attributes.object_mut::<Pod>() else { return admitted() };
        let Some(spec) = pod.spec.as_mut() else { return admitted() };
        let mut notes = Vec::new();
        let init = spec.init_containers.iter_mut().flatten().map(|container| ("init container", container));
        for (what, container) in init.chain(spec.containers.iter_mut().map(|container| ("container", container))) {
            let set = self.estimate(&namespace, container, now);
            if !set.is_empty() {
                notes.push(format!("{} request for {what} {}", set.join(", "), container.name));
            }
        }
        if !notes.is_empty() {
            let note = format!("Initial Resources plugin set: {}", notes.join("; "));
            pod.metadata.annotations.get_or_insert_default().insert(ANNOTATION.to_owned(), note);
        }
        admitted()
    }

    fn background(&self, cluster: &Arc<Cluster>) -> Option<BoxFuture<'static, ()>> {
        let (samples, cluster) = (self.samples.clone(), cluster.clone());
        Some(Box::pin(async move {
            loop {
                tokio::time::sleep(INTERVAL).await;
                let nodes = cluster.caches.get("minions").map(|cache| cache.snapshot());
                for node in nodes.iter().flat_map(|nodes| nodes.range(None, None)) {
                    if let Err(status) = sample(&cluster, &samples, node.name()).await {
                        tracing::debug!(node = node.name(), error = status.message, "no usage from this node");
                    }
                }
            }
        }))
    }
}

/// Remembers what the containers of one node use right now.
async fn sample(cluster: &Arc<Cluster>, samples: &Samples, node: &str) -> Result<(), api::Status> {
    let path = "/stats/summary?only_cpu_and_memory=true&without_pressure=true";
    let body = cluster.own()?.ask_kubelet(node, path).await?;
    let summary = serde_json::from_slice(&body).map_err(api::Status::internal)?;
    let at = Instant::now();
    for used in samples::read_summary(&summary) {
        let pod = cluster.objects().get::<Pod>(&used.namespace, &used.pod)?;
        let spec = pod.and_then(|pod| Arc::unwrap_or_clone(pod).spec).unwrap_or_default();
        let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
        let image = containers.find(|container| container.name == used.container).and_then(|c| c.image.clone());
        if let Some(image) = image {
            let sample = Sample { at, namespace: used.namespace, cpu: used.cpu, memory: used.memory };
            samples.record(&image, sample);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_left_open_is_estimated() {
        let plugin = InitialResources::new(None).unwrap();
        let now = Instant::now();
        for _ in 0..samples::THRESHOLD {
            plugin.samples.record("web:1", Sample { at: now, namespace: "n".into(), cpu: 25, memory: 1000 });
        }
        for (resources, set) in [
            (serde_json::json!({}), &["cpu", "memory"][..]),
            (serde_json::json!({"requests": {"cpu": "1"}}), &["memory"]),
            (serde_json::json!({"limits": {"memory": "1Gi"}}), &["cpu"]),
        ] {
            let container = serde_json::json!({"name": "c", "image": "web:1", "resources": resources});
            let mut container: Container = serde_json::from_value(container).unwrap();
            assert_eq!(plugin.estimate("n", &mut container, now), set, "{resources}");
            if set.contains(&"cpu") {
                assert_eq!(container.resources.unwrap().requests.unwrap()["cpu"].0, "25m");
            }
        }
    }
}

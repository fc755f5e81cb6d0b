//! What every pod asks for and may use, as metrics: the page `/metrics/resources`.

use std::sync::Arc;

use api::cached::Pod;
use client::metrics::Metrics;

use crate::pod::{self, Catalogue, Requests, Resources};

const REQUEST: &str = "kube_pod_resource_request";
const LIMIT: &str = "kube_pod_resource_limit";
const REQUEST_HELP: &str = "[STABLE] Resources requested by workloads on the cluster, broken down by pod.";
const LIMIT_HELP: &str = "[STABLE] Resources limit for workloads on the cluster, broken down by pod.";

/// Pods that have run to their end hold nothing and are left out.
pub(crate) fn page(pods: &[Arc<Pod>], catalogue: &Catalogue) -> String {
    let metrics = Metrics::new();
    for pod in pods.iter().filter(|pod| pod::node_name(pod).is_none() || !pod::is_terminal(pod)) {
        note(&metrics, REQUEST, REQUEST_HELP, pod, &Requests::of(pod, catalogue).asked);
        note(&metrics, LIMIT, LIMIT_HELP, pod, &pod::limits(pod, catalogue));
    }
    metrics.render()
}

fn note(metrics: &Metrics, name: &'static str, help: &'static str, pod: &Pod, resources: &Resources) {
    let metadata = &pod.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (namespace, pod_name) = (text(&metadata.namespace), text(&metadata.name));
    let node = pod::node_name(pod).unwrap_or_default();
    let scheduler = pod.spec.as_ref().and_then(|spec| spec.scheduler_name.as_deref()).unwrap_or_default();
    let priority = pod.spec.as_ref().and_then(|spec| spec.priority).map(|priority| priority.to_string());
    let priority = priority.unwrap_or_default();
    let amounts = [
        ("cpu", resources.milli_cpu as f64 / 1000.0),
        ("memory", resources.memory as f64),
        ("ephemeral-storage", resources.ephemeral_storage as f64),
    ];
    let scalars = resources.scalars.iter().map(|scalar| (&*scalar.name, scalar.amount as f64));
    for (resource, amount) in amounts.into_iter().chain(scalars).filter(|(_, amount)| *amount != 0.0) {
        let labels = [
            ("namespace", namespace.as_str()),
            ("pod", &pod_name),
            ("node", node),
            ("scheduler", scheduler),
            ("priority", &priority),
            ("resource", resource),
            ("unit", unit(resource)),
        ];
        metrics.gauge(name, help, &labels).set(amount);
    }
}

fn unit(resource: &str) -> &'static str {
    match resource {
        "cpu" => "cores",
        "memory" | "ephemeral-storage" => "bytes",
        name if name.starts_with("hugepages-") => "bytes",
        name if name.starts_with("attachable-volumes-") => "integer",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn requests_and_limits_are_shown_by_pod() {
        let container = |name: &str| {
            json!({"name": name, "resources": {
                "requests": {"cpu": "250m", "memory": "1Mi", "example.com/gpu": "2"}, "limits": {"cpu": "1"}}})
        };
        let pod = |phase: &str| {
            let pod = json!({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": phase}, "spec": {
                "nodeName": "a", "schedulerName": "s", "priority": 7, "overhead": {"cpu": "100m", "memory": "1Mi"},
                "containers": [container("c"), container("d")]}});
            Arc::new(api::codec::from_value::<Pod>(&pod).unwrap())
        };
        let text = page(&[pod("Running")], &Catalogue::default());
        let series = |metric: &str, resource: &str, unit: &str| {
            format!(
                "{metric}{{namespace=\"n\",node=\"a\",pod=\"p\",priority=\"7\",resource=\"{resource}\",scheduler=\"s\",unit=\"{unit}\"}}"
            )
        };
        for (metric, resource, unit, amount) in [
            (REQUEST, "cpu", "cores", "0.6"),
            (REQUEST, "memory", "bytes", "3145728"),
            (REQUEST, "example.com/gpu", "", "4"),
            // No limit, no overhead on it.
            (LIMIT, "cpu", "cores", "2.1"),
        ] {
            let line = format!("{} {amount}\n", series(metric, resource, unit));
            assert!(text.contains(&line), "{line} not in\n{text}");
        }
        assert!(!text.contains(&series(LIMIT, "memory", "bytes")), "{text}");
        assert_eq!(page(&[pod("Succeeded")], &Catalogue::default()), "");
    }
}

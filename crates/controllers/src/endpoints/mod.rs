//! Endpoints and EndpointSlices: which pods stand behind a Service, at which ports.
//!
//! Flow: Service, Pod and Node events -> Service keys -> `plan` -> `Endpoints` (legacy) and `EndpointSlice` objects, which
//! the proxy and DNS follow. Services without a selector are left to whoever writes their endpoints.

mod legacy;
mod measure;
mod mirror;
mod slice_plan;
mod slices;
mod topology;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::{Event, Informer};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::controller::Context;
use crate::pods;

pub(crate) use legacy::build as build_legacy;
pub(crate) use mirror::build as build_mirror;
pub(crate) use slices::build as build_slices;

const HEADLESS: &str = "service.kubernetes.io/headless";

/// The index of Services by namespace and one pair of their selector; the pairs of a pod's labels find them.
const BY_SELECTOR_PAIR: &str = "selector-pair";

/// The Service informer, told about pods that come, go or change in a way a Service cares about.
fn watch(context: &Context) -> (Informer<Service>, Informer<Pod>) {
    let services = context.on_self::<Service>();
    services.add_index(BY_SELECTOR_PAIR, |service| {
        let namespace = service.metadata.namespace();
        selector(service)
            .and_then(|selector| selector.iter().next())
            .map(|pair| pair_key(namespace, pair))
            .into_iter()
            .collect()
    });
    let pods = {
        let services = services.clone();
        context.on::<Pod, _>(move |event| match event {
            Event::Added(pod) | Event::Deleted(pod) => services_of(&services, pod),
            Event::Modified { old, new } if facts(old) == facts(new) => Vec::new(),
            Event::Modified { old, new } => {
                let mut keys = services_of(&services, new);
                if old.metadata.labels != new.metadata.labels {
                    keys.extend(services_of(&services, old));
                }
                keys
            }
        })
    };
    (services, pods)
}

fn selector(service: &Service) -> Option<&BTreeMap<String, String>> {
    service.spec.as_ref()?.selector.as_ref().filter(|selector| !selector.is_empty())
}

fn pair_key(namespace: &str, (key, value): (&String, &String)) -> String {
    format!("{namespace}/{key}={value}")
}

fn selects(service: &Service, pod: &Pod) -> bool {
    selector(service).is_some_and(|selector| {
        let labels = pod.metadata.labels.as_ref();
        selector.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
    })
}

fn services_of(services: &Informer<Service>, pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace();
    let pairs = pod.metadata.labels.iter().flatten().map(|pair| pair_key(namespace, pair));
    let found = pairs.flat_map(|pair| services.by_index(BY_SELECTOR_PAIR, &pair));
    found.filter(|service| selects(service, pod)).map(|service| pods::key(&*service)).collect()
}

/// The Services that a slice belongs to, and belonged to before it changed; `service` says which one that is.
pub(crate) fn services_of_slice(
    event: &Event<EndpointSlice>,
    service: fn(&EndpointSlice) -> Option<String>,
) -> Vec<String> {
    let former = if let Event::Modified { old, .. } = event { service(old) } else { None };
    let present = service(event.object());
    let former = former.filter(|former| present.as_ref() != Some(former));
    present.into_iter().chain(former).collect()
}

/// All of a pod that endpoints depend on.
fn facts(pod: &Pod) -> impl PartialEq + '_ {
    let status = pod.status.as_ref();
    (
        pod.metadata.labels.as_ref(),
        pod.metadata.deletion_timestamp.is_some(),
        pods::is_ready(pod),
        pods::is_finished(pod),
        status.and_then(|status| status.pod_ip.as_ref()),
        status.and_then(|status| status.pod_ips.as_ref()),
        pods::node_name(pod),
    )
}

/// The pods a Service selects, in a stable order.
fn selected(pods: &Informer<Pod>, service: &Service) -> Vec<Arc<Pod>> {
    let namespace = service.metadata.namespace();
    let mut found: Vec<_> = pods.by_namespace(namespace).into_iter().filter(|pod| selects(service, pod)).collect();
    found.compact_sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
    found
}

fn is_headless(spec: &ServiceSpec) -> bool {
    spec.cluster_ip.as_deref() == Some("None")
}

fn ip_of(pod: &Pod, ipv6: bool) -> Option<String> {
    let status = pod.status.as_ref()?;
    let all = status.pod_ips.iter().flatten().map(|address| address.ip.as_str());
    let mut all = all.chain(status.pod_ip.as_deref()).filter(|address| !address.is_empty()).map(canonical);
    all.find(|address| address.contains(':') == ipv6)
}

/// An address as a slice has to write it: statuses of pods and Endpoints may write it in several ways.
fn canonical(address: &str) -> String {
    address.parse::<IpAddr>().map_or_else(|_| address.to_owned(), |parsed| parsed.to_canonical().to_string())
}

/// The hostname under which DNS serves this pod of a headless Service.
fn hostname<'a>(pod: &'a Pod, service: &Service) -> Option<&'a String> {
    let spec = pod.spec.as_ref()?;
    (spec.subdomain == service.metadata.name).then_some(spec.hostname.as_ref())?
}

/// The number behind a Service's target port on this pod. Names are looked up in its containers, sidecars included.
fn target_port(pod: &Pod, port: &ServicePort) -> Option<i32> {
    match port.target_port.as_ref() {
        None => Some(port.port),
        Some(IntOrString::Int(number)) => Some(if *number == 0 { port.port } else { *number }),
        Some(IntOrString::String(wanted)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let spec = pod.spec.as_ref()?;
            let sidecars = spec
                .init_containers
                .iter()
                .flatten()
                .filter(|container| container.restart_policy.as_deref() == Some("Always"));
            let mut ports =
                spec.containers.iter().chain(sidecars).flat_map(|container| container.ports.iter().flatten());
            let found = ports.find(|port| {
                port.name.as_ref() == Some(wanted) && port.protocol.as_deref().unwrap_or("TCP") == protocol
            });
            found.map(|port| port.container_port)
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::slice_plan::SERVICE_NAME;
    use super::*;

    /// A slice that is given to another Service is missed by the one that had it.
    #[test]
    fn a_slice_concerns_the_services_before_and_after_a_change() {
        let slice = |service: &str| -> Arc<EndpointSlice> {
            let labels = json!({ SERVICE_NAME: service });
            let slice =
                json!({ "metadata": { "name": "s", "labels": labels }, "addressType": "IPv4", "endpoints": [] });
            Arc::new(serde_json::from_value(slice).unwrap())
        };
        let service = |slice: &EndpointSlice| slice.metadata.labels.as_ref()?.get(SERVICE_NAME).cloned();
        for (event, expected) in [
            (Event::Added(slice("a")), vec!["a"]),
            (Event::Deleted(slice("a")), vec!["a"]),
            (Event::Modified { old: slice("a"), new: slice("a") }, vec!["a"]),
            (Event::Modified { old: slice("a"), new: slice("b") }, vec!["b", "a"]),
        ] {
            assert_eq!(services_of_slice(&event, service), expected);
        }
    }
}

//! The legacy `Endpoints` object of a Service: one object with every address, ready or not.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::cached::{Packed, Pod};
use api::sort::CompactSort as _;
use client::{Client, DeleteParams, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointPort, EndpointSubset, Endpoints, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{HEADLESS, hostname, ip_of, is_headless, selected, selector, target_port, watch};
use crate::controller::{CATCH_UP_TIMEOUT, Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::pods;

const MANAGED_BY: (&str, &str) = ("endpoints.kubernetes.io/managed-by", "endpoint-controller");
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";
/// More addresses than this are cut off and marked so.
const CAPACITY: usize = 1000;

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    pods: Informer<Pod>,
    endpoints: Informer<Packed<Endpoints>>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let (services, pods) = watch(context);
    // What somebody else does to ours is repaired, and what was decided on a version that was not the latest is looked at
    // again. Those that people write are theirs, with or without a Service.
    let all = services.clone();
    let endpoints = context.on::<Packed<Endpoints>, _>(move |event| match event {
        Event::Added(endpoints) if is_ours(&endpoints.metadata) => Some(pods::key(&**endpoints)),
        Event::Modified { old, new } if is_ours(&old.metadata) || is_ours(&new.metadata) => Some(pods::key(&**new)),
        Event::Deleted(gone) => {
            Some(pods::key(&**gone)).filter(|key| is_ours(&gone.metadata) || all.get(key).is_some())
        }
        _ => None,
    });
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        services,
        pods,
        endpoints,
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let (namespace, name) = client::split_key(key);
        let api = self.client.namespaced::<Endpoints>(namespace);
        let present = self.endpoints.get(key);
        let Some(service) = self.services.get(key) else {
            let Some(present) = present else { return Ok(Requeue::Never) };
            // The cache of Services may be behind that of Endpoints, so the server is asked.
            if self.client.namespaced::<Service>(namespace).get_opt(name).await?.is_some() {
                return Ok(Requeue::After(CATCH_UP_TIMEOUT));
            }
            let params = DeleteParams { uid: present.metadata.uid.clone(), ..DeleteParams::default() };
            if_unchanged(api.delete(name, &params).await)?;
            return Ok(Requeue::Never);
        };
        if selector(&service).is_none()
            || service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName")
        {
            return Ok(Requeue::Never);
        }
        let wanted = plan(&service, &selected(&self.pods, &service));
        let result = match present.map(|present| present.unpack()) {
            Some(present) if is_same(&present, &wanted) => return Ok(Requeue::Never),
            Some(mut changed) => {
                changed.subsets = wanted.subsets;
                changed.metadata.labels = wanted.metadata.labels;
                let annotations = changed.metadata.annotations.get_or_insert_default();
                annotations.remove(OVER_CAPACITY);
                annotations.extend(wanted.metadata.annotations.into_iter().flatten());
                api.update(&changed).await
            }
            None => api.create(&wanted).await,
        };
        match result {
            Ok(_) => Ok(Requeue::Never),
            Err(error) if error.is_namespace_terminating() => Ok(Requeue::Never),
            // Made a moment ago, and not in the cache yet.
            Err(error) if error.is_already_exists() => Ok(Requeue::After(CATCH_UP_TIMEOUT)),
            Err(error) => {
                if !error.is_conflict() {
                    let message = format!("Failed to update endpoint {key}: {error}");
                    self.recorder.warning(&client::reference(&*service), "FailedToUpdateEndpoint", message);
                }
                Err(error.into())
            }
        }
    }
}

fn is_ours(endpoints: &ObjectMeta) -> bool {
    let manager = endpoints.labels.as_ref().and_then(|labels| labels.get(MANAGED_BY.0));
    manager.is_some_and(|manager| manager == MANAGED_BY.1)
}

fn is_same(present: &Endpoints, wanted: &Endpoints) -> bool {
    let cut = |endpoints: &Endpoints| {
        endpoints.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(OVER_CAPACITY))
    };
    let subsets = |endpoints: &Endpoints| endpoints.subsets.clone().unwrap_or_default();
    subsets(present) == subsets(wanted)
        && present.metadata.labels == wanted.metadata.labels
        && cut(present) == cut(wanted)
}

/// The ports of one subset, and its ready and other addresses.
type Subsets = BTreeMap<Vec<(Option<String>, i32, String)>, (Vec<EndpointAddress>, Vec<EndpointAddress>)>;

fn plan(service: &Service, pods: &[Arc<Pod>]) -> Endpoints {
    let spec = service.spec.clone().unwrap_or_default();
    let publish_unready = spec.publish_not_ready_addresses == Some(true);
    let ipv6 = spec.ip_families.iter().flatten().next().is_some_and(|family| family == "IPv6");
    let mut subsets = Subsets::new();
    let mut count = 0;
    for pod in pods {
        // Terminating pods are out unless the Service wants everything.
        if pods::is_finished(pod) || (pods::is_terminating(pod) && !publish_unready) {
            continue;
        }
        let Some(ip) = ip_of(pod, ipv6) else { continue };
        let mut ports: Vec<_> = spec
            .ports
            .iter()
            .flatten()
            .filter_map(|port| {
                let number = target_port(pod, port)?;
                Some((port.name.clone(), number, port.protocol.clone().unwrap_or_else(|| "TCP".into())))
            })
            .collect();
        // A headless Service needs no ports; any other has nothing to offer without them.
        if ports.is_empty() && !(is_headless(&spec) && spec.ports.iter().flatten().next().is_none()) {
            continue;
        }
        count += 1;
        if count > CAPACITY {
            continue;
        }
        ports.compact_sort();
        let address = EndpointAddress {
            ip,
            hostname: hostname(pod, service).cloned(),
            node_name: Some(pods::node_name(pod).to_owned()).filter(|name| !name.is_empty()),
            target_ref: Some(pods::target(pod)),
        };
        let (ready, other) = subsets.entry(ports).or_default();
        if publish_unready || pods::is_ready(pod) { ready.push(address) } else { other.push(address) }
    }
    let subsets: Vec<EndpointSubset> = subsets
        .into_iter()
        .map(|(ports, (mut ready, mut other))| {
            ready.compact_sort_by(|left, right| left.ip.cmp(&right.ip));
            other.compact_sort_by(|left, right| left.ip.cmp(&right.ip));
            let ports: Vec<_> = ports
                .into_iter()
                .map(|(name, port, protocol)| {
                    let app_protocol = spec
                        .ports
                        .iter()
                        .flatten()
                        .find(|port| port.name == name)
                        .and_then(|port| port.app_protocol.clone());
                    EndpointPort { name, port, protocol: Some(protocol), app_protocol }
                })
                .collect();
            EndpointSubset {
                addresses: (!ready.is_empty()).then_some(ready),
                not_ready_addresses: (!other.is_empty()).then_some(other),
                ports: (!ports.is_empty()).then_some(ports),
            }
        })
        .collect();
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
    if is_headless(&spec) {
        labels.insert(HEADLESS.into(), String::new());
    }
    let annotations = (count > CAPACITY).then(|| BTreeMap::from([(OVER_CAPACITY.to_owned(), "truncated".to_owned())]));
    Endpoints {
        metadata: ObjectMeta {
            name: service.metadata.name.clone(),
            namespace: service.metadata.namespace.clone(),
            labels: Some(labels),
            annotations,
            ..ObjectMeta::default()
        },
        subsets: (!subsets.is_empty()).then_some(subsets),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{Container, ContainerPort, ServicePort, ServiceSpec};
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

    use super::*;
    use crate::pods::tests::{Builder, at};

    fn pod(name: &str, ip: &str, ready: bool) -> Arc<Pod> {
        let mut builder = Builder::new(name).on("n1");
        if ready {
            builder = builder.ready(at(0));
        }
        let mut pod = builder.0;
        pod.status.get_or_insert_default().pod_ip = Some(ip.into());
        let port = ContainerPort { name: Some("web".into()), container_port: 8080, ..ContainerPort::default() };
        pod.spec.get_or_insert_default().containers =
            vec![Container { ports: Some(vec![port]), ..Container::default() }];
        Arc::new(pod.into())
    }

    #[test]
    fn ready_and_other_addresses_at_the_pods_own_port() {
        let port = |target| ServicePort { port: 80, target_port: Some(target), ..ServicePort::default() };
        let pods = [pod("b", "10.0.0.2", true), pod("a", "10.0.0.1", true), pod("c", "10.0.0.3", false)];
        for (target, expected) in [
            (IntOrString::String("web".into()), Some(8080)),
            (IntOrString::Int(81), Some(81)),
            (IntOrString::String("no".into()), None),
        ] {
            let spec = ServiceSpec { ports: Some(vec![port(target)]), ..ServiceSpec::default() };
            let service = Service { spec: Some(spec), ..Service::default() };
            let subsets = plan(&service, &pods).subsets.unwrap_or_default();
            assert_eq!(subsets.first().and_then(|subset| subset.ports.as_ref()).map(|ports| ports[0].port), expected);
            if let Some(subset) = subsets.first() {
                let ips = |list: &Option<Vec<EndpointAddress>>| {
                    list.iter().flatten().map(|address| address.ip.clone()).collect::<Vec<_>>()
                };
                assert_eq!(ips(&subset.addresses), ["10.0.0.1", "10.0.0.2"]);
                assert_eq!(ips(&subset.not_ready_addresses), ["10.0.0.3"]);
            }
        }
    }
}

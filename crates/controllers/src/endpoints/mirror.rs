//! Mirroring: Endpoints that people write for a Service without selector become EndpointSlices, which is what proxies read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use client::metrics::{Metrics, exponential};
use client::{Client, DeleteParams, Event, Expectations, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::selector;
use super::slice_plan::{MANAGED_BY, SERVICE_NAME};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::owners::controller_reference;

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const BY_SERVICE: &str = "mirrored";
/// Addresses of one subset beyond this are left out.
const CAPACITY: usize = 1000;
static SYNC_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

struct Controller {
    client: Client,
    services: Informer<Service>,
    endpoints: Informer<Endpoints>,
    slices: Informer<EndpointSlice>,
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let services = context.on_self::<Service>();
    let endpoints = context.on_self::<Endpoints>();
    let expectations = Arc::new(Expectations::new());
    let slices = {
        let expectations = expectations.clone();
        context.on::<EndpointSlice, _>(move |event| {
            let key = mirrored(event.object())?;
            if let Event::Added(_) = event {
                expectations.creation_observed(&key);
            }
            Some(key)
        })
    };
    slices.add_index(BY_SERVICE, |slice| mirrored(slice).into_iter().collect());
    let (client, metrics) = (context.client.clone(), context.config.metrics.clone());
    Arc::new(Controller { client, services, endpoints, slices, expectations, metrics })
}

fn mirrored(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    let service =
        labels.get(SERVICE_NAME).filter(|_| labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER))?;
    Some(format!("{}/{service}", slice.metadata.namespace.as_deref().unwrap_or_default()))
}

fn is_mirrored(service: &Service, endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    let skipped = labels.and_then(|labels| labels.get(SKIP)).is_some_and(|value| value == "true");
    let elects = endpoints.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER));
    // The API server writes both objects of its own Service.
    let own = service.metadata.namespace.as_deref() == Some("default")
        && service.metadata.name.as_deref() == Some("kubernetes");
    selector(service).is_none() && !skipped && !elects && !own
}

/// One slice per subset and family.
fn plan(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let mut slices = Vec::new();
    for subset in endpoints.subsets.iter().flatten() {
        for ipv6 in [false, true] {
            let of = |list: &Option<Vec<EndpointAddress>>, ready: bool| -> Vec<Endpoint> {
                list.iter()
                    .flatten()
                    .filter(|address| address.ip.contains(':') == ipv6)
                    .map(|address| endpoint(address, ready))
                    .collect()
            };
            let mut addresses = of(&subset.addresses, true);
            addresses.extend(of(&subset.not_ready_addresses, false));
            addresses.truncate(CAPACITY);
            if !addresses.is_empty() {
                slices.push(slice(endpoints, subset, ipv6, addresses));
            }
        }
    }
    slices
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

fn slice(endpoints: &Endpoints, subset: &EndpointSubset, ipv6: bool, addresses: Vec<Endpoint>) -> EndpointSlice {
    let ports = subset.ports.iter().flatten().map(|port| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: port.protocol.clone(),
        app_protocol: port.app_protocol.clone(),
    });
    let name = endpoints.metadata.name.clone().unwrap_or_default();
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.into(), name.clone());
    labels.insert(MANAGED_BY.into(), MANAGER.into());
    let mut annotations: BTreeMap<String, String> = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    annotations.remove("endpoints.kubernetes.io/last-change-trigger-time");
    EndpointSlice {
        metadata: ObjectMeta {
            generate_name: Some(format!("{name}-")),
            namespace: endpoints.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: (!annotations.is_empty()).then_some(annotations),
            owner_references: Some(vec![OwnerReference { ..controller_reference(endpoints) }]),
            ..ObjectMeta::default()
        },
        address_type: if ipv6 { "IPv6".into() } else { "IPv4".into() },
        endpoints: Some(addresses),
        ports: Some(ports.collect()),
    }
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let began = Instant::now();
            let outcome = self.sync(key).await;
            let (name, help) = ("endpoint_slice_mirroring_controller_endpoints_sync_duration", "How long a sync takes");
            self.metrics.histogram(name, help, &SYNC_BOUNDS, &[]).observe_duration(began.elapsed());
            outcome
        })
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        if !self.expectations.satisfied(key) {
            return Ok(Requeue::Never);
        }
        let (namespace, _) = client::split_key(key);
        let api = self.client.namespaced::<EndpointSlice>(namespace);
        let source = self
            .services
            .get(key)
            .zip(self.endpoints.get(key))
            .filter(|(service, endpoints)| is_mirrored(service, endpoints));
        let mut wanted = source.map(|(_, endpoints)| plan(&endpoints)).unwrap_or_default();
        let mut present: Vec<Arc<EndpointSlice>> = self.slices.by_index(BY_SERVICE, key);
        present.sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
        for slice in present {
            let same_group =
                |other: &EndpointSlice| other.address_type == slice.address_type && other.ports == slice.ports;
            match wanted.iter().position(same_group).map(|at| wanted.remove(at)) {
                Some(new) if new.endpoints == slice.endpoints && new.metadata.labels == slice.metadata.labels => {}
                Some(new) => {
                    let mut changed = EndpointSlice::clone(&slice);
                    changed.endpoints = new.endpoints;
                    changed.metadata.labels = new.metadata.labels;
                    changed.metadata.annotations = new.metadata.annotations;
                    api.update(&changed).await?;
                    self.changed("update");
                }
                None => {
                    match api.delete(slice.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await
                    {
                        Err(error) if !error.is_not_found() => return Err(error.into()),
                        _ => self.changed("delete"),
                    }
                }
            }
        }
        if !wanted.is_empty() {
            self.expectations.expect_creations(key, wanted.len());
        }
        for (done, slice) in wanted.iter().enumerate() {
            if let Err(error) = api.create(slice).await {
                self.expectations.creations_observed(key, wanted.len() - done);
                return if error.is_namespace_terminating() { Ok(Requeue::Never) } else { Err(error.into()) };
            }
            self.changed("create");
        }
        Ok(Requeue::Never)
    }

    fn changed(&self, operation: &str) {
        let (name, labels) = ("endpoint_slice_mirroring_controller_changes", [("operation", operation)]);
        self.metrics.counter(name, "Changes of EndpointSlices", &labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_subset_and_family_is_a_slice() {
        let endpoints: Endpoints = serde_json::from_value(json!({
            "metadata": { "name": "ext", "namespace": "default", "labels": { "a": "b" } },
            "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }, { "ip": "fd00::1" }], "notReadyAddresses": [{ "ip": "10.0.0.2" }], "ports": [{ "port": 80 }] }],
        }))
        .unwrap();
        let slices = plan(&endpoints);
        let seen: Vec<_> =
            slices.iter().map(|slice| (slice.address_type.as_str(), slice.endpoints.as_ref().unwrap().len())).collect();
        assert_eq!(seen, [("IPv4", 2), ("IPv6", 1)]);
        assert_eq!(slices[0].metadata.labels.as_ref().unwrap()["a"], "b");
    }
}

//! Mirroring: Endpoints that people write for a Service without selector become EndpointSlices, which is what proxies read.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use api::cached::Packed;
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use client::metrics::{Metrics, exponential};
use client::{Client, DeleteParams, Event, EventRecorder, Expectations, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::measure::{COUNT_BOUNDS, Changes, count_slices};
use super::slice_plan::{MANAGED_BY, SERVICE_NAME};
use super::{canonical, selector, services_of_slice};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::owners::controller_reference;

const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
const BY_SERVICE: &str = "mirrored";
/// `--mirroring-max-endpoints-per-subset`: addresses of one subset beyond this are left out.
const CAPACITY: usize = 1000;
/// Endpoints, slices, and how few would do.
const TOTALS: [&str; 3] = [
    "endpoint_slice_mirroring_controller_endpoints_desired",
    "endpoint_slice_mirroring_controller_num_endpoint_slices",
    "endpoint_slice_mirroring_controller_desired_endpoint_slices",
];
static SYNC_BOUNDS: [f64; 15] = exponential(0.001, 2.0);

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    endpoints: Informer<Packed<Endpoints>>,
    slices: Informer<EndpointSlice>,
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let services = context.on_self::<Service>();
    let endpoints = context.on_self::<Packed<Endpoints>>();
    let expectations = context.expectations();
    let slices = {
        let expectations = expectations.clone();
        context.on::<EndpointSlice, _>(move |event| {
            if let Event::Added(slice) = event
                && let Some(key) = mirrored(slice)
            {
                expectations.creation_observed(&key);
            }
            services_of_slice(event, mirrored)
        })
    };
    slices.add_index(BY_SERVICE, |slice| mirrored(slice).into_iter().collect());
    count_slices(&context.config.metrics, TOTALS, CAPACITY, &slices, mirrored);
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        services,
        endpoints,
        slices,
        expectations,
        metrics: context.config.metrics.clone(),
    })
}

fn mirrored(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    let service =
        labels.get(SERVICE_NAME).filter(|_| labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER))?;
    Some(format!("{}/{service}", slice.metadata.namespace()))
}

fn is_mirrored(service: &Service, endpoints: &ObjectMeta) -> bool {
    let labels = endpoints.labels.as_ref();
    let skipped = labels.and_then(|labels| labels.get(SKIP)).is_some_and(|value| value == "true");
    let elects = endpoints.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER));
    // The API server writes both objects of its own Service.
    let own = service.metadata.namespace.as_deref() == Some("default")
        && service.metadata.name.as_deref() == Some("kubernetes");
    selector(service).is_none() && !skipped && !elects && !own
}

#[derive(Debug, Default, PartialEq)]
struct Mirror {
    /// One per subset and family.
    slices: Vec<EndpointSlice>,
    /// Addresses left out because a subset has too many.
    skipped: usize,
}

fn plan(endpoints: &Endpoints) -> Mirror {
    let mut mirror = Mirror::default();
    for subset in endpoints.subsets.iter().flatten() {
        let of = |list: &Option<Vec<EndpointAddress>>, ready: bool| {
            list.iter().flatten().map(|address| endpoint(address, ready)).collect::<Vec<_>>()
        };
        let mut addresses = of(&subset.addresses, true);
        addresses.extend(of(&subset.not_ready_addresses, false));
        mirror.skipped += addresses.len().saturating_sub(CAPACITY);
        addresses.truncate(CAPACITY);
        let is_ipv6 = |endpoint: &Endpoint| endpoint.addresses.iter().any(|address| address.contains(':'));
        let (ipv6, ipv4): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_ipv6);
        for (ipv6, addresses) in [(false, ipv4), (true, ipv6)] {
            if !addresses.is_empty() {
                mirror.slices.push(slice(endpoints, subset, ipv6, addresses));
            }
        }
    }
    mirror
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![canonical(&address.ip)],
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
    let name = endpoints.metadata.name().to_owned();
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
        // A list with nothing in it is stored as none, and compared with that.
        endpoints: Some(addresses).filter(|addresses| !addresses.is_empty()),
        ports: Some(ports.collect()).filter(|ports: &Vec<EndpointPort>| !ports.is_empty()),
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
            .filter(|(service, endpoints)| is_mirrored(service, &endpoints.metadata));
        let mut present: Vec<Arc<EndpointSlice>> = self.slices.by_index(BY_SERVICE, key);
        present.compact_sort_by(|left, right| left.metadata.name.cmp(&right.metadata.name));
        let mut wanted = Vec::new();
        if let Some((_, endpoints)) = source {
            let endpoints = endpoints.unpack();
            let mirror = plan(&endpoints);
            self.note(&endpoints, &mirror, &present);
            wanted = mirror.slices;
        }
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
                None => match api.delete(slice.metadata.name(), &DeleteParams::default()).await {
                    Err(error) if !error.is_not_found() => return Err(error.into()),
                    _ => self.changed("delete"),
                },
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

    fn note(&self, endpoints: &Endpoints, mirror: &Mirror, present: &[Arc<EndpointSlice>]) {
        let changes = Changes::between(present.iter().map(|slice| &**slice), mirror.slices.iter());
        for (name, help, count) in [
            (
                "endpoint_slice_mirroring_controller_endpoints_added_per_sync",
                "Number of endpoints added on each Endpoints sync",
                changes.added,
            ),
            (
                "endpoint_slice_mirroring_controller_endpoints_updated_per_sync",
                "Number of endpoints updated on each Endpoints sync",
                changes.updated,
            ),
            (
                "endpoint_slice_mirroring_controller_endpoints_removed_per_sync",
                "Number of endpoints removed on each Endpoints sync",
                changes.removed,
            ),
            (
                "endpoint_slice_mirroring_controller_addresses_skipped_per_sync",
                "Number of addresses skipped on each Endpoints sync because their subset has too many",
                mirror.skipped,
            ),
        ] {
            self.metrics.histogram(name, help, &COUNT_BOUNDS, &[]).observe(count as f64);
        }
        if mirror.skipped > 0 {
            let message = format!(
                "A max of {CAPACITY} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                mirror.skipped
            );
            self.recorder.warning(&client::reference(endpoints), "TooManyAddressesToMirror", message);
        }
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
            "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }, { "ip": "FD00::01" }], "notReadyAddresses": [{ "ip": "10.0.0.2" }], "ports": [{ "port": 80 }] }],
        }))
        .unwrap();
        let slices = plan(&endpoints).slices;
        let seen: Vec<_> =
            slices.iter().map(|slice| (slice.address_type.as_str(), slice.endpoints.as_ref().unwrap().len())).collect();
        assert_eq!(seen, [("IPv4", 2), ("IPv6", 1)]);
        assert_eq!(slices[1].endpoints.as_ref().unwrap()[0].addresses, ["fd00::1"]);
        assert_eq!(slices[0].metadata.labels.as_ref().unwrap()["a"], "b");
    }

    /// As the server gives them back: a slice that differs from what is stored would be made anew for ever.
    #[test]
    fn a_subset_without_ports_is_a_slice_without_a_list_of_them() {
        let endpoints: Endpoints = serde_json::from_value(
            json!({ "metadata": { "name": "ext" }, "subsets": [{ "addresses": [{ "ip": "10.0.0.1" }] }] }),
        )
        .unwrap();
        assert_eq!(plan(&endpoints).slices[0].ports, None);
    }

    #[test]
    fn a_subset_is_mirrored_up_to_its_limit() {
        let list = |from: usize, count: usize| -> Vec<_> {
            (from..from + count)
                .map(|number| json!({ "ip": format!("10.{}.{}.1", number / 250, number % 250) }))
                .collect()
        };
        for (ready, unready, kept, skipped) in [(3, 0, 3, 0), (1000, 5, 1000, 5), (999, 5, 1000, 4), (0, 1001, 1000, 1)]
        {
            let endpoints: Endpoints = serde_json::from_value(json!({ "metadata": { "name": "ext" }, "subsets": [{
                "addresses": list(0, ready), "notReadyAddresses": list(ready, unready), "ports": [{ "port": 80 }] }] }))
            .unwrap();
            let mirror = plan(&endpoints);
            let count: usize = mirror.slices.iter().flat_map(|slice| &slice.endpoints).map(Vec::len).sum();
            assert_eq!((count, mirror.skipped), (kept, skipped), "{ready} ready, {unready} not");
        }
    }
}

//! EndpointSlices: the endpoints of a Service in pieces of a hundred.

use std::collections::HashMap;
use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use client::metrics::Metrics;
use client::{Client, DeleteParams, Event, EventRecorder, Expectations, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::measure::{COUNT_BOUNDS, Changes, count_slices};
use super::slice_plan::{
    CAPACITY, MANAGED_BY, MANAGER, Plan, SERVICE_NAME, plan, spreads_by_zone, traffic_distribution, zone_of,
};
use super::topology::{Facts, Zones};
use super::{selected, selector, services_of, services_of_slice, watch};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};

/// Slices by the Service they belong to.
const BY_SERVICE: &str = "service";
/// Pods by the node they are on.
const BY_NODE: &str = "node";
/// Endpoints, slices, and how few would do.
const TOTALS: [&str; 3] = [
    "endpoint_slice_controller_endpoints_desired",
    "endpoint_slice_controller_num_endpoint_slices",
    "endpoint_slice_controller_desired_endpoint_slices",
];
/// Prometheus's own, which is what upstream's metric has.
static SLICE_BOUNDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    pods: Informer<Pod>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    /// Slices created but not seen yet: their names are the server's choice, so a stale cache would make them twice.
    expectations: Arc<Expectations>,
    metrics: Metrics,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let (services, pods) = watch(context);
    let expectations = context.expectations();
    let slices = {
        let expectations = expectations.clone();
        context.on::<EndpointSlice, _>(move |event| {
            if let Event::Added(slice) = event
                && let Some(key) = service_key(slice)
            {
                expectations.creation_observed(&key);
            }
            services_of_slice(event, service_key)
        })
    };
    slices.add_index(BY_SERVICE, |slice| service_key(slice).into_iter().collect());
    count_slices(&context.config.metrics, TOTALS, CAPACITY, &slices, service_key);
    count_distributions(&context.config.metrics, services.clone());
    // Endpoints are in the zone of their node, which may be known later than the pod.
    pods.add_index(BY_NODE, |pod| vec![pods::node_name(pod).to_owned()]);
    let nodes = {
        let (services, pods) = (services.clone(), pods.clone());
        context.on::<Node, Vec<String>>(move |event| {
            let node = event.object();
            // Shares of zones change with any node, for whoever goes by them.
            let is_share = !matches!(event, Event::Modified { old, new } if Facts::of(old) == Facts::of(new));
            let all = if is_share { services.list() } else { Vec::new() };
            let spread = all.iter().filter(|service| spreads_by_zone(service)).map(|service| pods::key(&**service));
            match event {
                Event::Modified { old, new } if zone_of(old) == zone_of(new) => return spread.collect(),
                Event::Added(node) if zone_of(node).is_none() => return spread.collect(),
                _ => {}
            }
            let name = node.metadata.name();
            let own = pods.by_index(BY_NODE, name);
            own.iter().flat_map(|pod| services_of(&services, pod)).chain(spread).collect()
        })
    };
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        services,
        pods,
        nodes,
        slices,
        expectations,
        metrics: context.config.metrics.clone(),
    })
}

/// How many Services prefer endpoints of which kind.
fn count_distributions(metrics: &Metrics, services: Informer<Service>) {
    let gauges = metrics.downgrade();
    metrics.on_render(move || {
        let Some(metrics) = gauges.upgrade() else { return };
        let mut counts: HashMap<String, usize> = HashMap::new();
        for service in services.list() {
            if let Some(wanted) = service.spec.as_ref().and_then(|spec| spec.traffic_distribution.clone()) {
                *counts.entry(wanted).or_default() += 1;
            }
        }
        metrics.set_gauges(
            "endpoint_slice_controller_services_count_by_traffic_distribution",
            "Number of Services using some specific trafficDistribution",
            ["traffic_distribution"],
            counts.into_iter().map(|(distribution, count)| ([distribution], count as f64)),
        );
    });
}

/// The Service of a slice that this controller manages.
fn service_key(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let service = labels.get(SERVICE_NAME).filter(|_| ours)?;
    Some(format!("{}/{service}", slice.metadata.namespace()))
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(service) = self.services.get(key) else {
            // The garbage collector removes the slices with their owner.
            self.expectations.forget(key);
            return Ok(Requeue::Never);
        };
        let external = service.spec.as_ref().and_then(|spec| spec.type_.as_deref()) == Some("ExternalName");
        if external || selector(&service).is_none() || service.metadata.deletion_timestamp.is_some() {
            return Ok(Requeue::Never);
        }
        if !self.expectations.satisfied(key) {
            self.synced("stale");
            return Ok(Requeue::Never);
        }
        let present = self.slices.by_index(BY_SERVICE, key);
        let zones = match spreads_by_zone(&service) {
            true => Zones::of(self.nodes.list().iter().map(|node| &**node)),
            false => Zones::default(),
        };
        let pods = selected(&self.pods, &service);
        let plan = plan(&service, &pods, &present, |name| self.nodes.get(name), &zones);
        let (changes, slices) = (plan.changes(&present), plan.create.len() + plan.update.len() + plan.delete.len());
        let done = self.carry_out(key, &service, plan).await;
        if done.is_ok() {
            self.note(&changes, slices, &service);
        }
        self.synced(if done.is_ok() { "success" } else { "error" });
        match done {
            Ok(()) => Ok(Requeue::Never),
            Err(error) if error.is_namespace_terminating() => Ok(Requeue::Never),
            Err(error) => {
                if !error.is_conflict() {
                    let message = format!("Error updating Endpoint Slices for Service {key}: {error}");
                    self.recorder.warning(&client::reference(&*service), "FailedToUpdateEndpointSlices", message);
                }
                Err(Error::from(error))
            }
        }
    }

    async fn carry_out(&self, key: &str, service: &Service, plan: Plan) -> Result<(), client::Error> {
        let api = self.client.namespaced::<EndpointSlice>(service.metadata.namespace());
        if !plan.create.is_empty() {
            self.expectations.expect_creations(key, plan.create.len());
        }
        for (done, slice) in plan.create.iter().enumerate() {
            if let Err(error) = api.create(slice).await {
                self.expectations.creations_observed(key, plan.create.len() - done);
                return Err(error);
            }
            self.changed("create");
        }
        for slice in &plan.update {
            api.update(slice).await?;
            self.changed("update");
        }
        for name in &plan.delete {
            match api.delete(name, &DeleteParams::default()).await {
                Err(error) if !error.is_not_found() => return Err(error),
                _ => self.changed("delete"),
            }
        }
        Ok(())
    }

    fn synced(&self, result: &str) {
        self.metrics.counter("endpoint_slice_controller_syncs", "Syncs of Services", &[("result", result)]).inc();
    }

    fn note(&self, changes: &Changes, slices: usize, service: &Service) {
        let distribution = traffic_distribution(service).unwrap_or_default();
        let topology = if spreads_by_zone(service) { "Auto" } else { "Disabled" };
        let labels = [("topology", topology), ("traffic_distribution", distribution)];
        for (name, help, bounds, labels, count) in [
            (
                "endpoint_slice_controller_endpoints_added_per_sync",
                "Number of endpoints added on each Service sync",
                &COUNT_BOUNDS[..],
                &labels[..0],
                changes.added,
            ),
            (
                "endpoint_slice_controller_endpoints_removed_per_sync",
                "Number of endpoints removed on each Service sync",
                &COUNT_BOUNDS,
                &labels[..0],
                changes.removed,
            ),
            (
                "endpoint_slice_controller_endpointslices_changed_per_sync",
                "Number of EndpointSlices changed on each Service sync",
                &SLICE_BOUNDS,
                &labels[..],
                slices,
            ),
        ] {
            self.metrics.histogram(name, help, bounds, labels).observe(count as f64);
        }
    }

    fn changed(&self, operation: &str) {
        let labels = [("operation", operation)];
        self.metrics.counter("endpoint_slice_controller_changes", "Changes of EndpointSlices", &labels).inc();
    }
}

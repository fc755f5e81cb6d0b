//! EndpointSlices: the endpoints of a Service in pieces of a hundred.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use client::metrics::{Metrics, exponential};
use client::{Client, DeleteParams, Event, EventRecorder, Expectations, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::slice_plan::{CAPACITY, MANAGED_BY, MANAGER, Plan, SERVICE_NAME, plan};
use super::{selected, selector, watch};
use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};

/// Slices by the Service they belong to.
const BY_SERVICE: &str = "service";
static COUNT_BOUNDS: [f64; 15] = exponential(2.0, 2.0);

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
    let expectations = Arc::new(Expectations::new());
    let slices = {
        let expectations = expectations.clone();
        context.on::<EndpointSlice, _>(move |event| {
            let key = service_key(event.object())?;
            if let Event::Added(_) = event {
                expectations.creation_observed(&key);
            }
            Some(key)
        })
    };
    slices.add_index(BY_SERVICE, |slice| service_key(slice).into_iter().collect());
    count_when_asked(&context.config.metrics, &slices);
    let nodes = context.informer::<Node>();
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

/// What there is of slices is counted when somebody asks.
fn count_when_asked(metrics: &Metrics, slices: &Informer<EndpointSlice>) {
    let gauge = |name, help| metrics.gauge(name, help, &[]);
    let endpoints = gauge("endpoint_slice_controller_endpoints_desired", "Number of endpoints desired");
    let present = gauge("endpoint_slice_controller_num_endpoint_slices", "Number of EndpointSlices");
    let fewest = gauge(
        "endpoint_slice_controller_desired_endpoint_slices",
        "Number of EndpointSlices that would exist with perfect endpoint allocation",
    );
    let slices = slices.clone();
    metrics.on_render(move || {
        let ours: Vec<_> = slices.list().into_iter().filter(|slice| service_key(slice).is_some()).collect();
        let mut groups: HashMap<_, usize> = HashMap::new();
        for slice in &ours {
            let ports = serde_json::to_string(&slice.ports).unwrap_or_default();
            let count = slice.endpoints.as_ref().map_or(0, Vec::len);
            *groups.entry((service_key(slice), slice.address_type.clone(), ports)).or_default() += count;
        }
        present.set(ours.len() as f64);
        endpoints.set(groups.values().sum::<usize>() as f64);
        fewest.set(groups.values().map(|count| count.div_ceil(CAPACITY).max(1)).sum::<usize>() as f64);
    });
}

/// How much a sync changes.
struct Changes {
    added: usize,
    removed: usize,
    slices: usize,
}

impl Changes {
    fn of(plan: &Plan, present: &[Arc<EndpointSlice>]) -> Changes {
        let addresses = |slice: &EndpointSlice| {
            let endpoints = slice.endpoints.clone().unwrap_or_default();
            endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect::<Vec<_>>()
        };
        let is_replaced = |slice: &&Arc<EndpointSlice>| {
            let name = &slice.metadata.name;
            plan.update.iter().any(|other| other.metadata.name == *name)
                || plan.delete.iter().any(|other| Some(other) == name.as_ref())
        };
        let before: HashSet<String> = present.iter().filter(is_replaced).flat_map(|slice| addresses(slice)).collect();
        let after: HashSet<String> = plan.create.iter().chain(&plan.update).flat_map(addresses).collect();
        Changes {
            added: after.difference(&before).count(),
            removed: before.difference(&after).count(),
            slices: plan.create.len() + plan.update.len() + plan.delete.len(),
        }
    }
}

/// The Service of a slice that this controller manages.
fn service_key(slice: &EndpointSlice) -> Option<String> {
    let labels = slice.metadata.labels.as_ref()?;
    let ours = labels.get(MANAGED_BY).is_some_and(|manager| manager == MANAGER);
    let service = labels.get(SERVICE_NAME).filter(|_| ours)?;
    Some(format!("{}/{service}", slice.metadata.namespace.as_deref().unwrap_or_default()))
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
        if external
            || selector(&service).is_none()
            || service.metadata.deletion_timestamp.is_some()
            || !self.expectations.satisfied(key)
        {
            return Ok(Requeue::Never);
        }
        let present = self.slices.by_index(BY_SERVICE, key);
        let plan = plan(&service, &selected(&self.pods, &service), &present, |name| self.nodes.get(name));
        let changes = Changes::of(&plan, &present);
        let done = self.carry_out(key, &service, plan).await;
        if done.is_ok() {
            self.note(&changes, &service);
        }
        let result = if done.is_ok() { "success" } else { "error" };
        self.metrics.counter("endpoint_slice_controller_syncs", "Syncs of Services", &[("result", result)]).inc();
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
        let api = self.client.namespaced::<EndpointSlice>(service.metadata.namespace.as_deref().unwrap_or_default());
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

    fn note(&self, changes: &Changes, service: &Service) {
        let spec = service.spec.as_ref();
        let distribution = spec.and_then(|spec| spec.traffic_distribution.as_deref()).unwrap_or_default();
        let labels = [("topology", "Disabled"), ("traffic_distribution", distribution)];
        for (name, help, labels, count) in [
            (
                "endpoint_slice_controller_endpoints_added_per_sync",
                "Number of endpoints added on each Service sync",
                &labels[..0],
                changes.added,
            ),
            (
                "endpoint_slice_controller_endpoints_removed_per_sync",
                "Number of endpoints removed on each Service sync",
                &labels[..0],
                changes.removed,
            ),
            (
                "endpoint_slice_controller_endpointslices_changed_per_sync",
                "Number of EndpointSlices changed on each Service sync",
                &labels[..],
                changes.slices,
            ),
        ] {
            self.metrics.histogram(name, help, &COUNT_BOUNDS, labels).observe(count as f64);
        }
    }

    fn changed(&self, operation: &str) {
        let labels = [("operation", operation)];
        self.metrics.counter("endpoint_slice_controller_changes", "Changes of EndpointSlices", &labels).inc();
    }
}

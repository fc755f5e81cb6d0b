//! EndpointSlices: the endpoints of a Service in pieces of a hundred.

use std::sync::Arc;

use client::metrics::Metrics;
use client::{Client, DeleteParams, Event, EventRecorder, Expectations, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::slice_plan::{MANAGED_BY, MANAGER, SERVICE_NAME, plan};
use super::{selected, selector, watch};
use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};

/// Slices by the Service they belong to.
const BY_SERVICE: &str = "service";

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
        let plan = plan(&service, &selected(&self.pods, &service), &self.slices.by_index(BY_SERVICE, key), |name| {
            self.nodes.get(name)
        });
        let done = self.carry_out(key, &service, plan).await;
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

    async fn carry_out(
        &self,
        key: &str,
        service: &Service,
        plan: super::slice_plan::Plan,
    ) -> Result<(), client::Error> {
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

    fn changed(&self, operation: &str) {
        let labels = [("operation", operation)];
        self.metrics.counter("endpoint_slice_controller_changes", "Changes of EndpointSlices", &labels).inc();
    }
}

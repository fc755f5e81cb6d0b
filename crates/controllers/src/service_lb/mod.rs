//! Service load balancer: a `type: LoadBalancer` Service is given the addresses of the nodes, where the proxy answers for it.

mod plan;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use api::cidr::Cidr;
use api::endpoint::service_key;
use client::{Client, Event, EventRecorder, Gvr, Informer, ListParams};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{LoadBalancerStatus, Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;

use crate::cidr_set::Range;
use crate::config::LoadBalancing;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::endpoints::services_of_slice;
use crate::{Error, pods};

pub use plan::CLASS as LOAD_BALANCER_CLASS;

const GATEWAY_API: &str = "gateway.networking.k8s.io";
/// A Gateway that goes leaves ports behind, which nobody tells us of.
const RETRY_INTERVAL: Duration = Duration::from_secs(30);

struct Controller {
    client: Client,
    recorder: EventRecorder,
    settings: LoadBalancing,
    /// The ranges of pods and services.
    inside: Vec<Cidr>,
    services: Informer<Service>,
    nodes: Informer<Node>,
    slices: Informer<EndpointSlice>,
    ingresses: Informer<Ingress>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let services = {
        let source = context.informer::<Service>();
        let (all, queue) = (source.shared(), context.queue.clone());
        source.wakes(move |event| {
            queue.add(pods::key(&**event.object()));
            // A port that is free again may be what another waits for.
            if gives_up_ports(event) {
                waiting(&all).for_each(|key| queue.add(key));
            }
        })
    };
    let nodes = {
        let services = services.clone();
        context.on::<Node, _>(move |event| match event {
            Event::Modified { old, new } if plan::facts(old) == plan::facts(new) => Vec::new(),
            _ => balanced(&services).map(|service| pods::key(&*service)).collect(),
        })
    };
    let slices = {
        let services = services.clone();
        context.on::<EndpointSlice, _>(move |event| {
            let mut keys = services_of_slice(event, service_key);
            keys.retain(|key| {
                services.get(key).is_some_and(|service| plan::is_wanted(&service) && plan::is_local(&service))
            });
            keys
        })
    };
    let ingresses = {
        let services = services.clone();
        context.on::<Ingress, _>(move |_| waiting(&services).collect::<Vec<_>>())
    };
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        settings: context.config.load_balancing.clone(),
        inside: context
            .config
            .cluster_cidrs
            .iter()
            .map(Range::cidr)
            .chain(context.config.service_cidrs.iter().filter_map(|range| range.parse().ok()))
            .collect(),
        services,
        nodes,
        slices,
        ingresses,
    })
}

fn balanced(services: &Informer<Service>) -> impl Iterator<Item = Arc<Service>> + use<> {
    services.list().into_iter().filter(|service| plan::is_wanted(service))
}

/// The keys of services that have no addresses yet.
fn waiting(services: &Informer<Service>) -> impl Iterator<Item = String> + use<> {
    balanced(services).filter(|service| !plan::has_addresses(service)).map(|service| pods::key(&*service))
}

fn gives_up_ports(event: &Event<Service>) -> bool {
    let held = |service: &Service| match plan::is_wanted(service) {
        true => plan::claims(service),
        false => BTreeSet::new(),
    };
    match event {
        Event::Added(_) => false,
        Event::Modified { old, new } => {
            !held(old).is_subset(&held(new)) || (plan::has_addresses(old) && !plan::has_addresses(new))
        }
        Event::Deleted(old) => !held(old).is_empty(),
    }
}

impl Controller {
    /// The ports of the nodes that Gateways have. Who was granted its ports keeps them, so only who wants others has to know.
    async fn ports_of_gateways(&self, service: &Service) -> Result<BTreeSet<u16>, Error> {
        if self.settings.gateway_ports.is_none() || plan::is_granted(service) {
            return Ok(BTreeSet::new());
        }
        let mut found = Vec::new();
        for plural in ["gatewayclasses", "gateways"] {
            let api = self.client.dynamic(&Gvr::new(GATEWAY_API, "v1", plural), None);
            match api.list(&ListParams::default()).await {
                Ok(list) => found.push(list.items),
                // The cluster does not have the kind.
                Err(error) if error.is_not_found() => return Ok(BTreeSet::new()),
                Err(error) => return Err(error.into()),
            }
        }
        let [classes, gateways] = found.as_slice() else { return Ok(BTreeSet::new()) };
        let nodes = self.nodes.list();
        let nodes = nodes.iter().map(|node| &**node);
        Ok(plan::ports_of_gateways(classes, gateways, self.settings.gateway_controller, nodes))
    }

    /// The status that the service is to have, or why it cannot be served.
    fn wanted(
        &self,
        service: &Service,
        key: &str,
        of_gateways: BTreeSet<u16>,
    ) -> Result<LoadBalancerStatus, plan::PortTaken> {
        let ingresses = self.ingresses.list();
        let gateway = self.settings.gateway_ports;
        let of_ingresses = gateway.map(|ports| plan::gateway_ports(ports, ingresses.iter().map(|ingress| &**ingress)));
        let mut gateway = of_ingresses.unwrap_or_default();
        gateway.extend(of_gateways);
        let reserved = plan::Reserved { ports: self.settings.reserved_ports.clone(), gateway };
        let services = self.services.list();
        if let Some(refusal) = plan::refusal(service, services.iter().map(|service| &**service), &reserved) {
            return Err(refusal);
        }
        let (nodes, slices) =
            (self.nodes.list(), if plan::is_local(service) { self.slices.list() } else { Vec::new() });
        let own = slices.iter().filter(|slice| service_key(slice).as_deref() == Some(key));
        Ok(plan::status(service, nodes.iter().map(|node| &**node), own.map(|slice| &**slice), &self.inside))
    }
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(service) = self.services.get(key) else { return Ok(Requeue::Never) };
            if !plan::is_ours(&service) {
                return Ok(Requeue::Never);
            }
            let is_wanted = plan::is_wanted(&service);
            let mut refusal = None;
            let wanted = match is_wanted {
                true => {
                    let of_gateways = self.ports_of_gateways(&service).await?;
                    self.wanted(&service, key, of_gateways).unwrap_or_else(|why| {
                        refusal = Some(why);
                        LoadBalancerStatus::default()
                    })
                }
                false => LoadBalancerStatus::default(),
            };
            let present = service.status.as_ref().and_then(|status| status.load_balancer.clone()).unwrap_or_default();
            let is_served = wanted.ingress.is_some();
            if present != wanted {
                let mut changed = Service::clone(&service);
                changed.status.get_or_insert_default().load_balancer = Some(wanted);
                self.client.all::<Service>().update_status(&changed).await?;
                if is_served {
                    self.recorder.normal(&client::reference(&*service), "EnsuredLoadBalancer", "Ensured load balancer");
                }
            }
            if let Some(refusal) = refusal {
                let message = format!("Error syncing load balancer: failed to ensure load balancer: {refusal}");
                self.recorder.warning(&client::reference(&*service), "SyncLoadBalancerFailed", &message);
                return Ok(self.settings.gateway_ports.map(|_| RETRY_INTERVAL).into());
            }
            Ok(Requeue::Never)
        })
    }
}

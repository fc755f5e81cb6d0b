//! Service load balancer: a `type: LoadBalancer` Service is given the addresses of the nodes, where the proxy answers for it.

use std::sync::Arc;

use client::{Client, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{LoadBalancerIngress, LoadBalancerStatus, Node, Service};

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::pods;

const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    services: Informer<Service>,
    nodes: Informer<Node>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let services = context.on_self::<Service>();
    let nodes = {
        let services = services.clone();
        context.on::<Node, _>(move |event| {
            if let Event::Modified { old, new } = event
                && address(old) == address(new)
            {
                return Vec::new();
            }
            services
                .list()
                .iter()
                .filter(|service| wants_balancer(service))
                .map(|service| pods::key(&**service))
                .collect()
        })
    };
    Arc::new(Controller { client: context.client.clone(), recorder: context.recorder.clone(), services, nodes })
}

/// Services of another class belong to another implementation.
fn wants_balancer(service: &Service) -> bool {
    service
        .spec
        .as_ref()
        .is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none())
        && service.metadata.deletion_timestamp.is_none()
}

/// The address of a node that takes traffic from outside.
fn address(node: &Node) -> Option<String> {
    let excluded = node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED));
    let status = node.status.as_ref().filter(|_| !excluded)?;
    let ready =
        status.conditions.iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let of = |kind: &str| {
        status.addresses.iter().flatten().find(|address| address.type_ == kind).map(|address| address.address.clone())
    };
    of("ExternalIP").or_else(|| of("InternalIP")).filter(|_| ready)
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(service) = self.services.get(key) else { return Ok(Requeue::Never) };
            let present = service.status.as_ref().and_then(|status| status.load_balancer.clone()).unwrap_or_default();
            let ours = service.spec.as_ref().is_none_or(|spec| spec.load_balancer_class.is_none());
            let wanted = if wants_balancer(&service) {
                let mut addresses: Vec<String> = self.nodes.list().iter().filter_map(|node| address(node)).collect();
                addresses.sort();
                addresses.dedup();
                let ingress: Vec<_> = addresses
                    .into_iter()
                    .map(|ip| LoadBalancerIngress {
                        ip: Some(ip),
                        ip_mode: Some("VIP".into()),
                        ..LoadBalancerIngress::default()
                    })
                    .collect();
                LoadBalancerStatus { ingress: (!ingress.is_empty()).then_some(ingress) }
            } else if ours {
                LoadBalancerStatus::default()
            } else {
                return Ok(Requeue::Never);
            };
            if present == wanted {
                return Ok(Requeue::Never);
            }
            let mut changed = Service::clone(&service);
            changed.status.get_or_insert_default().load_balancer = Some(wanted);
            self.client.all::<Service>().update_status(&changed).await?;
            if wants_balancer(&service) {
                self.recorder.normal(&client::reference(&*service), "EnsuredLoadBalancer", "Ensured load balancer");
            }
            Ok(Requeue::Never)
        })
    }
}

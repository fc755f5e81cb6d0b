//! The server without a cluster or a network around it: some objects and a packet in, a packet out.

use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;

use crate::index::{Index, cluster_ips, service_key};
use crate::metrics::ServerMetrics;
use crate::plan::{Flags, InvalidDomain, Plan};
use crate::responder::{Reaction, Responder};
use crate::zone::endpoint_addresses;

/// A cluster that does not change.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub namespaces: Vec<String>,
    pub services: Vec<Arc<Service>>,
    pub slices: Vec<Arc<EndpointSlice>>,
    /// Namespaces and addresses of pods.
    pub pods: Vec<(String, IpAddr)>,
}

impl Index for Objects {
    fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.iter().any(|known| known == namespace)
    }

    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        let is_it = |s: &&Arc<Service>| {
            s.metadata.name.as_deref() == Some(name) && s.metadata.namespace.as_deref() == Some(namespace)
        };
        self.services.iter().find(is_it).cloned()
    }

    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        let key = format!("{namespace}/{service}");
        self.slices.iter().filter(|slice| service_key(slice).as_ref() == Some(&key)).cloned().collect()
    }

    fn services_at(&self, addr: IpAddr) -> Vec<Arc<Service>> {
        self.services.iter().filter(|service| cluster_ips(service).contains(&addr)).cloned().collect()
    }

    fn slices_at(&self, addr: IpAddr) -> Vec<Arc<EndpointSlice>> {
        let has = |slice: &&Arc<EndpointSlice>| {
            slice.endpoints.iter().flatten().any(|endpoint| endpoint_addresses(endpoint).contains(&addr))
        };
        self.slices.iter().filter(has).cloned().collect()
    }

    fn has_pod(&self, namespace: &str, addr: IpAddr) -> bool {
        self.pods.iter().any(|(of, pod)| of == namespace && *pod == addr)
    }

    fn namespace_of_pod(&self, addr: IpAddr) -> Option<String> {
        self.pods.iter().find(|(_, pod)| *pod == addr).map(|(namespace, _)| namespace.clone())
    }

    fn all_services(&self) -> Vec<Arc<Service>> {
        self.services.clone()
    }

    fn serial(&self) -> u32 {
        1
    }
}

/// Answers packets about a cluster that does not change, and asks nobody else.
pub struct Offline(Responder);

impl Offline {
    pub fn new(domain: &str, objects: Objects) -> Result<Self, InvalidDomain> {
        let plan = Plan::of_flags(&Flags {
            domain,
            ttl: 30,
            upstreams: &[],
            stub_domains: &[],
            ranges: &[],
            search: &[],
            own: vec![],
        })?;
        Ok(Self(Responder::new(plan, Arc::new(objects), ServerMetrics::new(domain))))
    }

    /// None where a server stays silent, or would have to ask others.
    pub fn respond(&self, packet: &[u8], over_udp: bool) -> Option<Vec<u8>> {
        match self.0.react(packet, over_udp, None) {
            Reaction::Answer(answer) => Some(answer.bytes),
            Reaction::Forward(_) | Reaction::Transfer(_) | Reaction::Ignore => None,
        }
    }
}

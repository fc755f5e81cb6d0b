//! Where a service is reached that this server asks: a webhook, an aggregated API server, the backend of a proxy.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::watch_cache::{Caches, Entry, Unreadable};

/// Finds the services of the cluster.
#[derive(Clone)]
pub(crate) struct Services {
    caches: Arc<Caches>,
    /// `--enable-aggregator-routing`.
    is_routed: bool,
}

impl Services {
    pub(crate) fn new(caches: &Arc<Caches>, is_routed: bool) -> Self {
        Self { caches: caches.clone(), is_routed }
    }
}

/// Why a service leads nowhere.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoAddress {
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    #[error("service {0:?} not found")]
    NoService(String),
    #[error("unsupported service type {0:?}")]
    Type(String),
    #[error("cannot route to service with ClusterIP {0:?}")]
    NoClusterIp(String),
    #[error("no service port {port} found for service {name:?}")]
    NoPort { name: String, port: u16 },
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
}

/// The address behind a service port: its cluster IP, or the name an ExternalName service stands for. With
/// `--enable-aggregator-routing`, one of its endpoints.
pub(crate) fn resolve(services: &Services, namespace: &str, name: &str, port: u16) -> Result<(String, u16), NoAddress> {
    let service = services
        .caches
        .objects()
        .get::<Service>(namespace, name)?
        .ok_or_else(|| NoAddress::NoService(name.to_owned()))?;
    let spec = service.spec.clone().unwrap_or_default();
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    let is_routed = services.is_routed;
    match kind {
        "ExternalName" if !is_routed => return Ok((spec.external_name.unwrap_or_default(), port)),
        "ClusterIP" | "NodePort" | "LoadBalancer" => {}
        other => return Err(NoAddress::Type(other.to_owned())),
    }
    let address = spec.cluster_ip.unwrap_or_default();
    if !is_routed && (address.is_empty() || address == "None") {
        return Err(NoAddress::NoClusterIp(address));
    }
    let declared = spec.ports.iter().flatten().find(|declared| declared.port == i32::from(port));
    let declared = declared.ok_or_else(|| NoAddress::NoPort { name: name.to_owned(), port })?;
    if !is_routed {
        return Ok((address, port));
    }
    ready_endpoint(services, namespace, name, declared.name.as_deref().unwrap_or_default(), |_, _| Ok(true))?
        .ok_or_else(|| NoAddress::NoEndpoints(name.to_owned()))
}

/// The slices of a service, as they are in the cache.
pub(crate) fn entries(services: &Services, namespace: &str, service: &str) -> Vec<Arc<Entry>> {
    let Some(cache) = services.caches.get("endpointslices") else { return Vec::new() };
    let is_of = |entry: &Entry| entry.labels().get("kubernetes.io/service-name").is_some_and(|owner| owner == service);
    // A slice whose service cannot be told leads nowhere: to refuse all services of the namespace would help nobody.
    cache.snapshot().range(Some(namespace), None).filter(|entry| is_of(entry)).cloned().collect()
}

/// The slices of a service.
pub(crate) fn slices(
    services: &Services,
    namespace: &str,
    service: &str,
) -> Result<Vec<Arc<EndpointSlice>>, Unreadable> {
    entries(services, namespace, service).iter().map(|entry| entry.read()).collect()
}

/// One of the endpoints of a service that are ready, with the number of the named port; `fits` sees each with its address.
pub(crate) fn ready_endpoint(
    services: &Services,
    namespace: &str,
    service: &str,
    port: &str,
    fits: impl Fn(&Endpoint, &str) -> Result<bool, Unreadable>,
) -> Result<Option<(String, u16)>, Unreadable> {
    let mut candidates = Vec::new();
    for slice in slices(services, namespace, service)? {
        let named = slice.ports.iter().flatten().find(|found| found.name.as_deref().unwrap_or_default() == port);
        let Some(number) = named.and_then(|port| u16::try_from(port.port?).ok()) else { continue };
        let ready = slice.endpoints.iter().flatten().filter(|endpoint| api::endpoint::is_ready(endpoint));
        for (endpoint, address) in ready.filter_map(|endpoint| Some((endpoint, endpoint.addresses.first()?))) {
            if fits(endpoint, address)? {
                candidates.push((address.clone(), number));
            }
        }
    }
    if candidates.is_empty() {
        return Ok(None);
    }
    Ok(Some(candidates.swap_remove(rand::random_range(0..candidates.len()))))
}

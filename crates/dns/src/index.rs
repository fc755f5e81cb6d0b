//! What the zone looks up. The real index is the informers' own; tests bring a small one.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use api::cached::Pod;
pub(crate) use api::endpoint::service_key;
use api::sort::CompactSort as _;
use client::{Clock, Informer, InformerFactory};
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use tokio_util::sync::CancellationToken;

const BY_SERVICE: &str = "service";
const BY_ADDRESS: &str = "address";

pub(crate) trait Index: Send + Sync {
    fn has_namespace(&self, namespace: &str) -> bool;
    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>>;
    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>>;
    fn services_at(&self, addr: IpAddr) -> Vec<Arc<Service>>;
    fn slices_at(&self, addr: IpAddr) -> Vec<Arc<EndpointSlice>>;
    /// Whether a pod of the namespace has the address. Known only where somebody has asked for pods.
    fn has_pod(&self, namespace: &str, addr: IpAddr) -> bool;
    /// Where the pod with an address is, with the same reservation.
    fn namespace_of_pod(&self, addr: IpAddr) -> Option<String>;
    /// All services, in the order of their names.
    fn all_services(&self) -> Vec<Arc<Service>>;
    /// A number that grows with every change, for those who copy zones.
    fn serial(&self) -> u32;
}

pub(crate) struct Informers {
    namespaces: Informer<Namespace>,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    /// There once a configuration asks for pods: they are many, and change often.
    pods: OnceLock<Informer<Pod>>,
    changes: Arc<Changes>,
}

/// Changes of any of them.
#[derive(Default)]
struct Changes {
    count: AtomicU64,
    /// When the last one was heard of, in seconds: the same scale on every node, and after a restart.
    last: AtomicU32,
}

impl Changes {
    fn add(&self) {
        self.count.fetch_add(1, Ordering::Release);
        let now = u32::try_from(Clock::default().now().as_second()).unwrap_or_default();
        self.last.fetch_max(now, Ordering::Release);
    }
}

impl Informers {
    pub(crate) fn new(factory: &InformerFactory) -> Self {
        let (namespaces, services, slices) = (factory.informer(), factory.informer(), factory.informer());
        let informers = Self { namespaces, services, slices, pods: OnceLock::new(), changes: Arc::default() };
        let changed = || {
            let changes = informers.changes.clone();
            move || changes.add()
        };
        let (namespace, service, slice) = (changed(), changed(), changed());
        informers.namespaces.subscribe(move |_| namespace());
        informers.services.subscribe(move |event| {
            service();
            live(&client::object_key(&**event.object()));
        });
        let services = informers.services.clone();
        informers.slices.subscribe(move |event| {
            slice();
            // Endpoints have names of their own only where the service has no address.
            let key = service_key(event.object());
            let of = key.as_deref().and_then(|key| services.get(key));
            if let (Some(key), true) = (key, of.is_some_and(|service| cluster_ips(&service).is_empty())) {
                live(&key);
            }
        });
        informers
            .services
            .add_index(BY_ADDRESS, |service| cluster_ips(service).iter().map(IpAddr::to_string).collect());
        informers.slices.add_index(BY_SERVICE, |slice| service_key(slice).into_iter().collect());
        informers.slices.add_index(BY_ADDRESS, |slice| {
            slice.endpoints.iter().flatten().flat_map(|endpoint| endpoint.addresses.iter().cloned()).collect()
        });
        informers
    }

    pub(crate) async fn synced(&self) {
        self.namespaces.synced().await;
        self.services.synced().await;
        self.slices.synced().await;
    }

    /// Follows pods, too, and returns when they are known.
    pub(crate) async fn follow_pods(&self, client: &client::Client, stop: CancellationToken) {
        let pods = self.pods.get_or_init(|| {
            let factory = InformerFactory::new(client.clone());
            let pods = factory.informer::<Pod>();
            let changes = self.changes.clone();
            pods.subscribe(move |event| {
                let is_same = matches!(event, client::Event::Modified { old, new } if pod_ips(old) == pod_ips(new));
                if !is_same {
                    changes.add();
                }
            });
            pods.add_index(BY_ADDRESS, pod_ips);
            factory.start(stop);
            pods
        });
        pods.synced().await;
    }

    /// What was answered before is not to be answered again.
    pub(crate) fn touch(&self) {
        self.changes.add();
    }

    /// Another number whenever something has changed.
    pub(crate) fn generation(&self) -> u64 {
        self.changes.count.load(Ordering::Acquire)
    }

    pub(crate) fn has_synced(&self) -> bool {
        self.namespaces.has_synced() && self.services.has_synced() && self.slices.has_synced()
    }
}

impl Index for Informers {
    fn has_namespace(&self, namespace: &str) -> bool {
        self.namespaces.get(namespace).is_some()
    }

    fn service(&self, namespace: &str, name: &str) -> Option<Arc<Service>> {
        self.services.get(&format!("{namespace}/{name}"))
    }

    fn slices(&self, namespace: &str, service: &str) -> Vec<Arc<EndpointSlice>> {
        self.slices.by_index(BY_SERVICE, &format!("{namespace}/{service}"))
    }

    fn services_at(&self, addr: IpAddr) -> Vec<Arc<Service>> {
        self.services.by_index(BY_ADDRESS, &addr.to_string())
    }

    fn slices_at(&self, addr: IpAddr) -> Vec<Arc<EndpointSlice>> {
        self.slices.by_index(BY_ADDRESS, &addr.to_string())
    }

    fn has_pod(&self, namespace: &str, addr: IpAddr) -> bool {
        let at = |pods: &Informer<Pod>| pods.by_index(BY_ADDRESS, &addr.to_string());
        let pods = self.pods.get().map(at).unwrap_or_default();
        pods.iter().any(|pod| pod.metadata.namespace.as_deref() == Some(namespace))
    }

    fn namespace_of_pod(&self, addr: IpAddr) -> Option<String> {
        let pods = self.pods.get()?.by_index(BY_ADDRESS, &addr.to_canonical().to_string());
        pods.first()?.metadata.namespace.clone()
    }

    fn all_services(&self) -> Vec<Arc<Service>> {
        let mut services = self.services.list();
        services.compact_sort_by_cached_key(|service| client::object_key(&**service));
        services
    }

    fn serial(&self) -> u32 {
        self.changes.last.load(Ordering::Acquire)
    }
}

/// The addresses of a pod that runs in a network of its own.
fn pod_ips(pod: &Pod) -> Vec<String> {
    let status = pod.status.as_ref();
    let is_over = api::pod::is_terminal(pod);
    let ips = status.into_iter().flat_map(|status| status.pod_ips.iter().flatten());
    let ips = ips.filter_map(|ip| ip.ip.parse::<IpAddr>().ok().map(|ip| ip.to_string()));
    ips.filter(|_| !is_over).collect()
}

/// From now on answers show what changed; the trace is told.
fn live(service: &str) {
    trace::current().instant(trace::Stage::Dns, "dns", format_args!("services/{service}"));
}

/// The service's own addresses; none when it is headless.
pub(crate) fn cluster_ips(service: &Service) -> Vec<IpAddr> {
    let Some(spec) = &service.spec else { return Vec::new() };
    let listed = spec.cluster_ips.as_deref().unwrap_or_default();
    let texts = if listed.is_empty() { spec.cluster_ip.as_slice() } else { listed };
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

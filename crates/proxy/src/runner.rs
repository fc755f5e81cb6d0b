//! The loop: what changed -> what each changed Service now contributes -> one transaction.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use api::endpoint::service_key;
use api::sort::CompactSort as _;
use client::metrics::panics;
use client::metrics::slis::Slis;
use client::{Informer, InformerFactory, ListParams, object_key};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node as NodeObject, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use trace::{Context, Stage, Work};

use crate::backend::Backend;
use crate::error::{Error, Result};
use crate::health::HealthChecks;
use crate::metrics::ProxyMetrics;
use crate::own_health::{OwnHealth, TO_BE_DELETED};
use crate::services::{self, Node, ServicePort, UdpTargets};
use crate::settings::{Pods, Settings};
use crate::{Config, DetectLocal, Mode, conntrack, iptables, nftables, sysctl};

const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
/// When the pod or service changed that made the endpoint controller write a slice.
const TRIGGER_ANNOTATION: &str = "endpoints.kubernetes.io/last-change-trigger-time";
const BY_SERVICE: &str = "service";
/// Between looks at whether the rules are still there: whoever reloads those of a machine from a file removes all others.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Keeps the node's rules in step with the API until `stop`. The rules stay behind, so that a restart interrupts nobody.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    match config.mode {
        Mode::Nftables => Box::pin(run_mode::<nftables::Program>(config, stop)),
        Mode::Iptables => Box::pin(run_mode::<iptables::Program>(config, stop)),
    }
}

/// Removes what the other mode left: it would still be obeyed.
async fn remove_leftovers(mode: Mode) {
    let removed = match mode {
        Mode::Nftables => iptables::remove().await,
        Mode::Iptables => nftables::remove().await,
    };
    if let Err(error) = removed {
        // Its programs may not even be installed.
        tracing::debug!(%error, "cannot look for rules of the other mode");
    }
}

async fn run_mode<B: Backend>(mut config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let mut settings = Settings {
        cluster_cidrs: config.cluster_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
        pods: pods_of(&config, &NodeObject::default()),
        node_port_addresses: node_port_addresses(&config, &NodeObject::default()),
        localhost_node_ports: config.localhost_node_ports,
        masquerade_all: config.masquerade_all,
        masquerade_bit: config.masquerade_bit,
    };
    let conntrack = config.conntrack.clone();
    settings = tokio::task::spawn_blocking(move || {
        sysctl::prepare(&mut settings);
        conntrack.apply();
        settings
    })
    .await?;
    let dirty = Arc::new(Dirty {
        changes: Mutex::default(),
        notify: Notify::new(),
        metrics: ProxyMetrics::new(&families(&settings), config.mode.failures()),
        health: Arc::new(OwnHealth::new(config.resync_period.saturating_mul(2))),
    });
    config.client = config.client.with_metrics(dirty.metrics.registry());
    let informers = InformerFactory::new(config.client.clone());
    let mut proxy = Proxy::<B>::new(config, settings, &informers, dirty.clone());
    informers.start(stop.child_token());
    let mut servers = JoinSet::new();
    serve_status(&mut servers, &proxy.config, &dirty).await;
    tokio::select! {
        () = proxy.synced() => {}
        () = stop.cancelled() => return Ok(()),
    }
    let mut failures = 0;
    let mut fresh_at = Instant::now();
    // Once our own rules are there: until then services go by those of the other mode.
    let mut other_mode = Some(remove_leftovers(proxy.config.mode));
    loop {
        if Instant::now() >= fresh_at {
            proxy.programmed = None;
            fresh_at = Instant::now() + proxy.config.resync_period;
        }
        let changes = dirty.take();
        let keys = changes.keys.clone();
        let synced = panics::catch_future("proxy", proxy.sync(changes)).await;
        match synced.unwrap_or_else(|| {
            // Everything is looked at again, on account of these as well.
            dirty.put_back(keys);
            Err(Error::Panicked)
        }) {
            Ok(()) => {
                failures = 0;
                if let Some(removed) = other_mode.take() {
                    servers.spawn(FutureExt::boxed(removed));
                }
            }
            Err(error) => {
                // The transaction did nothing, and what is in the kernel may not be what we think: begin afresh.
                tracing::error!(%error, "programming the rules failed");
                dirty.metrics.failed();
                failures += 1;
                proxy.programmed = None;
                let delay = client::backoff::exponential(RETRY.0, RETRY.1, failures);
                tokio::select! {
                    () = tokio::time::sleep(delay) => continue,
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
        tokio::select! {
            () = dirty.notify.notified() => {}
            () = tokio::time::sleep_until(fresh_at) => {}
            () = gone::<B>() => {
                tracing::error!("somebody has removed the rules of services; they are programmed afresh");
                proxy.programmed = None;
            }
            () = stop.cancelled() => return Ok(()),
        }
        if !proxy.config.min_sync_period.is_zero() {
            tokio::time::sleep(proxy.config.min_sync_period).await;
        }
    }
}

/// Returns when rules are gone that were there.
async fn gone<B: Backend>() {
    loop {
        tokio::time::sleep(LOOK_INTERVAL).await;
        if !B::is_there().await {
            return;
        }
    }
}

/// Nothing is known of a service that nobody foresaw; the others go on.
fn panicked<T>(service: &str) -> Option<T> {
    tracing::error!(service, "working out the rules panicked");
    None
}

/// The families that the cluster has addresses of.
fn families(settings: &Settings) -> Vec<&'static str> {
    let ranges: Vec<String> = settings.cluster_cidrs.iter().chain(&settings.service_cidrs).cloned().collect();
    let has = |is_v6: bool| settings.of_family(&ranges, is_v6).next().is_some();
    match (has(false), has(true)) {
        (false, true) => vec!["IPv6"],
        (true, true) => vec!["IPv4", "IPv6"],
        _ => vec!["IPv4"],
    }
}

/// Opens what the operator wants to look at. A port that is taken is no reason not to program services.
async fn serve_status(servers: &mut JoinSet<()>, config: &Config, dirty: &Arc<Dirty>) {
    if let Some(listener) = listen(config.healthz_bind_address, "health").await {
        let dirty = dirty.clone();
        servers.spawn(FutureExt::boxed(client::plain_http::serve(listener, move |path| {
            let answer = dirty.health.answer(path);
            if answer.0 != 404 {
                dirty.metrics.asked(path, answer.0);
            }
            answer
        })));
    }
    if let Some(listener) = listen(config.metrics_bind_address, "metrics").await {
        let (dirty, mode, more) = (dirty.clone(), config.mode, config.more_metrics.clone());
        let slis = Slis::default();
        servers.spawn(FutureExt::boxed(client::plain_http::serve(listener, move |path| match path {
            "/metrics" => {
                let more = more.as_ref().map(|more| more.render()).unwrap_or_default();
                (200, dirty.metrics.render() + &more)
            }
            "/metrics/slis" => (200, slis.render()),
            "/healthz" => {
                slis.note("healthz", "ping", true);
                (200, "ok".into())
            }
            "/proxyMode" => (200, mode.name().into()),
            _ => (404, "404 page not found\n".into()),
        })));
    }
}

async fn listen(address: Option<SocketAddr>, what: &str) -> Option<TcpListener> {
    let address = address?;
    match TcpListener::bind(address).await {
        Ok(listener) => Some(listener),
        Err(error) => {
            tracing::error!(%address, %error, "cannot serve {what}");
            None
        }
    }
}

/// Services to look at again, and whoever wants to know that there are some.
struct Dirty {
    changes: Mutex<Changes>,
    notify: Notify,
    metrics: ProxyMetrics,
    health: Arc<OwnHealth>,
}

#[derive(Default)]
struct Changes {
    /// Services, with what changed them.
    keys: BTreeMap<String, Context>,
    /// When that happened which changed endpoints.
    triggers: Vec<Timestamp>,
}

impl Dirty {
    fn add(&self, key: String, trigger: Option<Timestamp>) {
        self.health.queued();
        let mut changes = self.changes.lock();
        changes.keys.entry(key).or_default().merge(trace::current());
        changes.triggers.extend(trigger);
        drop(changes);
        self.notify.notify_one();
    }

    /// These changes were not made: what is programmed next answers to their causes as well.
    fn put_back(&self, keys: BTreeMap<String, Context>) {
        let mut changes = self.changes.lock();
        for (key, context) in keys {
            changes.keys.entry(key).or_default().merge(context);
        }
    }

    fn take(&self) -> Changes {
        self.metrics.taken();
        std::mem::take(&mut self.changes.lock())
    }
}

fn trigger_of(slice: &EndpointSlice) -> Option<Timestamp> {
    slice.metadata.annotations.as_ref()?.get(TRIGGER_ANNOTATION)?.parse().ok()
}

struct Proxy<B: Backend> {
    config: Config,
    settings: Settings,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<NodeObject>,
    /// Ranges of services, added and removed while the cluster runs.
    ranges: Informer<ServiceCIDR>,
    dirty: Arc<Dirty>,
    /// `None`: the kernel's state is unknown and everything is programmed afresh.
    programmed: Option<B>,
    /// Where UDP flows may lead now, of services that have UDP ports.
    udp: HashMap<String, UdpTargets>,
    /// Services that a Local policy leaves without endpoints here: inside, outside.
    without_local: HashMap<String, [usize; 2]>,
    node: Node,
    checks: HealthChecks,
}

impl<B: Backend> Proxy<B> {
    fn new(config: Config, settings: Settings, informers: &InformerFactory, dirty: Arc<Dirty>) -> Self {
        let services: Informer<Service> = informers.informer();
        let slices: Informer<EndpointSlice> = informers.informer();
        let own = ListParams::fields(format!("metadata.name={}", config.node_name));
        let nodes: Informer<NodeObject> = informers.filtered(own);
        // Not waited for: a cluster may not have them, or not show them to us.
        let ranges: Informer<ServiceCIDR> = informers.informer();
        ranges.subscribe({
            let dirty = dirty.clone();
            move |_| dirty.notify.notify_one()
        });
        slices.add_index(BY_SERVICE, |slice| service_key(slice).into_iter().collect());
        services.subscribe({
            let dirty = dirty.clone();
            move |event| {
                dirty.metrics.service_changed();
                dirty.add(object_key(&**event.object()), None);
            }
        });
        slices.subscribe({
            let dirty = dirty.clone();
            move |event| {
                dirty.metrics.endpoints_changed();
                // A slice that changes its label leaves one service for another.
                if let client::Event::Modified { old, .. } = event {
                    service_key(old).into_iter().for_each(|key| dirty.add(key, None));
                }
                let slice = event.object();
                service_key(slice).into_iter().for_each(|key| dirty.add(key, trigger_of(slice)));
            }
        });
        nodes.subscribe({
            let dirty = dirty.clone();
            move |event| {
                let node = event.object();
                let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
                let is_marked = taints.into_iter().flatten().any(|taint| taint.key == TO_BE_DELETED);
                dirty.health.set_leaving(is_marked || node.metadata.deletion_timestamp.is_some());
                dirty.notify.notify_one();
            }
        });
        let checks = HealthChecks::new(dirty.health.clone());
        Self {
            config,
            settings,
            services,
            slices,
            nodes,
            ranges,
            dirty,
            programmed: None,
            udp: HashMap::new(),
            without_local: HashMap::new(),
            node: Node::default(),
            checks,
        }
    }

    async fn synced(&self) {
        self.services.synced().await;
        self.slices.synced().await;
        self.nodes.synced().await;
    }

    /// Programs what changed, and tells the trace about each service.
    async fn sync(&mut self, changes: Changes) -> Result<()> {
        let traced = |(key, context): (&String, &Context)| {
            let work = Work::caused(context, Stage::Rules, "kube-proxy", format_args!("services/{key}"));
            work.with_detail(&self.config.node_name)
        };
        let works: Vec<Work> = changes.keys.iter().map(traced).filter(Work::is_recorded).collect();
        let causes: BTreeMap<String, Context> = match works.is_empty() {
            true => BTreeMap::new(),
            false => changes.keys.clone(),
        };
        let synced = self.program(changes).await;
        works.into_iter().for_each(|work| work.end_with(&synced));
        if synced.is_err() {
            self.dirty.put_back(causes);
        }
        synced
    }

    async fn program(&mut self, changes: Changes) -> Result<()> {
        let began = Instant::now();
        self.observe_node();
        self.observe_ranges();
        let is_full = self.programmed.is_none();
        let stale = match self.programmed.take() {
            None => self.program_all().await?,
            Some(program) => self.program_changes(program, changes.keys.into_keys()).await?,
        };
        let metrics = &self.dirty.metrics;
        metrics.synced(is_full, began.elapsed());
        let now = Timestamp::now();
        for trigger in changes.triggers {
            metrics.programmed(Duration::try_from(now.duration_since(trigger)).unwrap_or_default());
        }
        let counts = self.without_local.values().fold([0, 0], |sum, count| [sum[0] + count[0], sum[1] + count[1]]);
        metrics.without_local(counts);
        self.dirty.health.updated();
        self.forget(stale).await;
        Ok(())
    }

    async fn program_changes(&mut self, mut program: B, keys: impl Iterator<Item = String>) -> Result<UdpTargets> {
        let mut changes = Vec::new();
        let mut stale = UdpTargets::new();
        for key in keys {
            let contribution = panics::catch_future("proxy", self.contribution(&key, &mut stale)).await;
            // What cannot be worked out stays as it is.
            let Some(fragment) = contribution.or_else(|| panicked(&key)) else { continue };
            if program.present(&key) != fragment.as_ref() {
                changes.push((key, fragment));
            }
        }
        let count = changes.len();
        let transaction = program.update(changes);
        if !B::is_empty(&transaction) {
            let began = Instant::now();
            B::apply(&transaction).await?;
            tracing::debug!(services = count, elapsed = ?began.elapsed(), "programmed");
        }
        self.programmed = Some(program);
        Ok(stale)
    }

    async fn program_all(&mut self) -> Result<UdpTargets> {
        let began = Instant::now();
        let mut fragments = HashMap::new();
        let mut stale = UdpTargets::new();
        self.udp.clear();
        self.without_local.clear();
        for service in self.services.list() {
            let key = object_key(&*service);
            let contribution = panics::catch_future("proxy", self.contribution(&key, &mut stale)).await;
            if let Some(Some(fragment)) = contribution.or_else(|| panicked(&key)) {
                fragments.insert(key, fragment);
            }
        }
        let (program, transaction) = B::from_scratch(&self.settings, fragments).await?;
        B::apply(&transaction).await?;
        tracing::info!(services = program.len(), elapsed = ?began.elapsed(), "programmed afresh");
        self.programmed = Some(program);
        Ok(stale)
    }

    /// What a Service contributes now; notes what else follows from it.
    async fn contribution(&mut self, key: &str, stale: &mut UdpTargets) -> Option<B::Fragment> {
        let service = self.services.get(key);
        let slices = self.slices.by_index(BY_SERVICE, key);
        let ports = service.as_ref().map(|service| services::ports(service, &slices, &self.node)).unwrap_or_default();
        let check = service.as_ref().and_then(|service| services::health_check(service, &ports));
        self.checks.set(key, check).await;
        let udp = services::udp_targets(&ports);
        note_stale_udp(self.udp.get(key), &udp, stale);
        match udp.is_empty() {
            true => drop(self.udp.remove(key)),
            false => drop(self.udp.insert(key.to_owned(), udp)),
        }
        match without_local(&ports) {
            [0, 0] => drop(self.without_local.remove(key)),
            counts => drop(self.without_local.insert(key.to_owned(), counts)),
        }
        (!ports.is_empty()).then(|| B::fragment(&ports, &self.settings))
    }

    /// What rules depend on, as the Node object has it now; when it has changed, all of them are made anew.
    fn observe_node(&mut self) {
        let object = self.nodes.get(&self.config.node_name).unwrap_or_default();
        let zone = object.metadata.labels.as_ref().and_then(|labels| labels.get(ZONE_LABEL).cloned());
        let node = Node { name: self.config.node_name.clone(), zone };
        let pods = pods_of(&self.config, &object);
        let addresses = node_port_addresses(&self.config, &object);
        let known = (&self.node, &self.settings.pods, &self.settings.node_port_addresses);
        if known != (&node, &pods, &addresses) {
            self.node = node;
            self.settings.pods = pods;
            self.settings.node_port_addresses = addresses;
            self.programmed = None;
        }
    }

    /// The ranges of services that flags name and those that the cluster has now; when they have changed, all rules are
    /// made anew.
    fn observe_ranges(&mut self) {
        let known = self.ranges.list();
        let added = known.iter().flat_map(|range| range.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten()));
        let mut ranges = services::without_nested(self.config.service_cidrs.iter().chain(added).cloned().collect());
        ranges.compact_sort();
        if self.settings.service_cidrs != ranges {
            self.settings.service_cidrs = ranges;
            self.programmed = None;
        }
    }

    async fn forget(&self, stale: UdpTargets) {
        if stale.is_empty() {
            return;
        }
        let began = Instant::now();
        match tokio::task::spawn_blocking(move || conntrack::forget(&stale)).await {
            Ok(Ok(flows)) => {
                self.dirty.metrics.forgot(flows, began.elapsed());
                tracing::debug!(flows, "forgot stale UDP flows");
            }
            Ok(Err(error)) => tracing::warn!(%error, "cannot forget stale UDP flows"),
            Err(error) => tracing::warn!(%error, "cannot forget stale UDP flows"),
        }
    }
}

fn pods_of(config: &Config, node: &NodeObject) -> Pods {
    match &config.detect_local {
        DetectLocal::ClusterCidr => Pods::Ranges(config.cluster_cidrs.clone()),
        DetectLocal::NodeCidr => {
            Pods::Ranges(node.spec.as_ref().and_then(|spec| spec.pod_cidrs.clone()).unwrap_or_default())
        }
        DetectLocal::BridgeInterface(name) => Pods::Interface(name.clone()),
        DetectLocal::InterfaceNamePrefix(prefix) => Pods::Interfaces(prefix.clone()),
    }
}

/// With `primary` spelled out.
fn node_port_addresses(config: &Config, node: &NodeObject) -> Vec<String> {
    let addresses = node.status.iter().flat_map(|status| status.addresses.iter().flatten());
    let internal = addresses.filter(|address| address.type_ == "InternalIP");
    let ranges = internal.map(|address| match address.address.contains(':') {
        true => format!("{}/128", address.address),
        false => format!("{}/32", address.address),
    });
    let mut primary: Vec<String> = ranges.collect();
    let mut all = Vec::new();
    for range in &config.node_port_addresses {
        match range.as_str() {
            "primary" => all.append(&mut primary),
            _ => all.push(range.clone()),
        }
    }
    all
}

/// Ports with endpoints that a Local policy forbids here: inside, outside.
fn without_local(ports: &[ServicePort]) -> [usize; 2] {
    let missing = ports.iter().filter(|port| port.local.is_empty() && !port.cluster.is_empty());
    let is_outside = |port: &ServicePort| port.external_local && port.node_port.is_some();
    missing.fold([0, 0], |[inside, outside], port| {
        [inside + usize::from(port.internal_local), outside + usize::from(is_outside(port))]
    })
}

/// UDP frontends whose endpoints changed, and those that are gone.
fn note_stale_udp(before: Option<&UdpTargets>, now: &UdpTargets, stale: &mut UdpTargets) {
    let empty = BTreeMap::new();
    let before = before.unwrap_or(&empty);
    for frontend in before.keys().filter(|frontend| !now.contains_key(frontend)) {
        stale.insert(*frontend, Vec::new());
    }
    for (frontend, targets) in now.iter().filter(|(frontend, targets)| before.get(frontend) != Some(targets)) {
        stale.insert(*frontend, targets.clone());
    }
}

//! The loop: what changed -> what each changed Service now contributes -> one transaction.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use client::{Informer, InformerFactory, ListParams, object_key};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node as NodeObject, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::health::{self, HealthChecks};
use crate::nftables::{self, Fragment, Program, Settings};
use crate::services::{self, Node};
use crate::{Config, conntrack, sysctl};

const SERVICE_LABEL: &str = "kubernetes.io/service-name";
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
const BY_SERVICE: &str = "service";
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

/// Keeps the node's rules in step with the API until `stop`. The rules stay behind, so that a restart interrupts nobody.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let informers = InformerFactory::new(config.client.clone());
    let services: Informer<Service> = informers.informer();
    let slices: Informer<EndpointSlice> = informers.informer();
    let nodes: Informer<NodeObject> = informers.filtered(ListParams {
        field_selector: Some(format!("metadata.name={}", config.node_name)),
        ..ListParams::default()
    });
    slices.add_index(BY_SERVICE, |slice| service_of(slice).into_iter().collect());
    let dirty = Arc::new(Dirty::default());
    services.subscribe({
        let dirty = dirty.clone();
        move |event| dirty.add(object_key(&**event.object()))
    });
    slices.subscribe({
        let dirty = dirty.clone();
        move |event| {
            // A slice that changes its label leaves one service for another.
            if let client::Event::Modified { old, .. } = event {
                service_of(old).into_iter().for_each(|key| dirty.add(key));
            }
            service_of(event.object()).into_iter().for_each(|key| dirty.add(key));
        }
    });
    nodes.subscribe({
        let dirty = dirty.clone();
        move |_| dirty.notify.notify_one()
    });
    informers.start(stop.child_token());

    let mut settings = Settings {
        cluster_cidrs: config.cluster_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
        node_port_addresses: config.node_port_addresses.clone(),
        localhost_node_ports: config.localhost_node_ports,
        masquerade_all: config.masquerade_all,
        masquerade_bit: config.masquerade_bit,
    };
    settings = tokio::task::spawn_blocking(move || {
        sysctl::prepare(&mut settings);
        settings
    })
    .await?;
    let last_sync = Arc::new(Mutex::new(None));
    let mut servers = JoinSet::new();
    if let Some(address) = config.healthz_bind_address {
        let listener = tokio::net::TcpListener::bind(address).await?;
        let last_sync = last_sync.clone();
        servers.spawn(health::serve(listener, move |path| own_health(path, *last_sync.lock())));
    }
    let synced = async {
        services.synced().await;
        slices.synced().await;
        nodes.synced().await;
    };
    tokio::select! {
        () = synced => {}
        () = stop.cancelled() => return Ok(()),
    }
    let mut proxy = Proxy {
        config,
        settings,
        services,
        slices,
        nodes,
        programmed: None,
        node: Node::default(),
        checks: HealthChecks::default(),
    };
    let mut failures = 0;
    let mut fresh_at = Instant::now();
    loop {
        if Instant::now() >= fresh_at {
            proxy.programmed = None;
            fresh_at = Instant::now() + proxy.config.resync_period;
        }
        match proxy.sync(dirty.take()).await {
            Ok(()) => {
                failures = 0;
                *last_sync.lock() = Some(std::time::SystemTime::now());
            }
            Err(error) => {
                // The transaction did nothing, and what is in the kernel may not be what we think: begin afresh.
                tracing::error!(error, "programming the rules failed");
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
            () = stop.cancelled() => return Ok(()),
        }
        if !proxy.config.min_sync_period.is_zero() {
            tokio::time::sleep(proxy.config.min_sync_period).await;
        }
    }
}

/// Services to look at again.
#[derive(Default)]
struct Dirty {
    keys: Mutex<BTreeSet<String>>,
    notify: Notify,
}

impl Dirty {
    fn add(&self, key: String) {
        self.keys.lock().insert(key);
        self.notify.notify_one();
    }

    fn take(&self) -> BTreeSet<String> {
        std::mem::take(&mut self.keys.lock())
    }
}

fn service_of(slice: &EndpointSlice) -> Option<String> {
    let name = slice.metadata.labels.as_ref()?.get(SERVICE_LABEL)?;
    Some(format!("{}/{name}", slice.metadata.namespace.as_deref()?))
}

struct Proxy {
    config: Config,
    settings: Settings,
    services: Informer<Service>,
    slices: Informer<EndpointSlice>,
    nodes: Informer<NodeObject>,
    /// `None`: the kernel's state is unknown and everything is programmed afresh.
    programmed: Option<Program>,
    node: Node,
    checks: HealthChecks,
}

impl Proxy {
    async fn sync(&mut self, dirty: BTreeSet<String>) -> Result<(), String> {
        let node = self.observe_node();
        if node != self.node {
            self.node = node;
            self.programmed = None;
        }
        match self.programmed.take() {
            None => self.program_all().await,
            Some(mut program) => {
                let mut changes = Vec::new();
                let mut stale = BTreeMap::new();
                for key in dirty {
                    let fragment = self.contribution(&key).await;
                    let before = program.fragment(&key);
                    note_stale_udp(before, fragment.as_ref(), &mut stale);
                    if before != fragment.as_ref() {
                        changes.push((key, fragment));
                    }
                }
                let count = changes.len();
                let transaction = program.update(changes);
                if !transaction.is_empty() {
                    let began = Instant::now();
                    nftables::apply(&transaction).await?;
                    tracing::debug!(services = count, elapsed = ?began.elapsed(), "programmed");
                }
                self.programmed = Some(program);
                forget(stale).await;
                Ok(())
            }
        }
    }

    async fn program_all(&mut self) -> Result<(), String> {
        let began = Instant::now();
        let mut fragments = HashMap::new();
        let mut stale = BTreeMap::new();
        for service in self.services.list() {
            let key = object_key(&*service);
            if let Some(fragment) = self.contribution(&key).await {
                note_stale_udp(None, Some(&fragment), &mut stale);
                fragments.insert(key, fragment);
            }
        }
        let (program, transaction) = Program::from_scratch(&self.settings, fragments);
        nftables::apply(&transaction).await?;
        tracing::info!(services = program.service_keys().count(), elapsed = ?began.elapsed(), "programmed afresh");
        self.programmed = Some(program);
        forget(stale).await;
        Ok(())
    }

    async fn contribution(&mut self, key: &str) -> Option<Fragment> {
        let service = self.services.get(key);
        let slices = self.slices.by_index(BY_SERVICE, key);
        let ports = service.as_ref().map(|service| services::ports(service, &slices, &self.node)).unwrap_or_default();
        let check = service.as_ref().and_then(|service| services::health_check(service, &ports));
        self.checks.set(key, check).await;
        (!ports.is_empty()).then(|| nftables::fragment(&ports, &self.settings))
    }

    fn observe_node(&self) -> Node {
        let node = self.nodes.get(&self.config.node_name);
        let zone = node.and_then(|node| node.metadata.labels.as_ref()?.get(ZONE_LABEL).cloned());
        Node { name: self.config.node_name.clone(), zone }
    }
}

/// UDP frontends whose endpoints changed, and those that are gone.
fn note_stale_udp(
    before: Option<&Fragment>,
    now: Option<&Fragment>,
    stale: &mut BTreeMap<nftables::Frontend, Vec<services::Target>>,
) {
    let empty = BTreeMap::new();
    let before = before.map_or(&empty, |fragment| &fragment.udp);
    let now = now.map_or(&empty, |fragment| &fragment.udp);
    for frontend in before.keys().filter(|frontend| !now.contains_key(frontend)) {
        stale.insert(*frontend, Vec::new());
    }
    for (frontend, targets) in now.iter().filter(|(frontend, targets)| before.get(frontend) != Some(targets)) {
        stale.insert(*frontend, targets.clone());
    }
}

async fn forget(stale: BTreeMap<nftables::Frontend, Vec<services::Target>>) {
    if stale.is_empty() {
        return;
    }
    match tokio::task::spawn_blocking(move || conntrack::forget(&stale)).await {
        Ok(Ok(0)) => {}
        Ok(Ok(flows)) => tracing::debug!(flows, "forgot stale UDP flows"),
        Ok(Err(error)) => tracing::warn!(%error, "cannot forget stale UDP flows"),
        Err(error) => tracing::warn!(%error, "cannot forget stale UDP flows"),
    }
}

fn own_health(path: &str, last_sync: Option<std::time::SystemTime>) -> (u16, String) {
    match (path, last_sync) {
        ("/healthz" | "/livez", Some(at)) => {
            let seconds = at.elapsed().unwrap_or_default().as_secs();
            (200, format!("{{\"secondsSinceLastUpdate\":{seconds},\"nodeEligible\":true}}"))
        }
        ("/healthz" | "/livez", None) => (503, "not synced yet".into()),
        _ => (404, "404 page not found\n".into()),
    }
}

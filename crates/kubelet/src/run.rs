//! Assembles the parts and runs them until stopped.

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context;
use api::quantity::{Format, Quantity};
use client::kubeconfig::Kubeconfig;
use client::{Client, Clock, Event, EventRecorder, Informer, InformerFactory, ListParams};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::storage::v1::CSIDriver;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::cgroups::{AllPods, Cgroups};
use crate::config::{Args, Config, Settings, SummarySlot};
use crate::cpu_manager::CpuManager;
use crate::eviction::Eviction;
use crate::housekeeping::Housekeeping;
use crate::images::Images;
use crate::kubelet::Kubelet;
use crate::node::machine::{Machine, max_processes};
use crate::node::{NodeAgent, status as node_status};
use crate::objects::{Objects, Wake};
use crate::parts::Parts;
use crate::plugins::Plugins;
use crate::probes::Prober;
use crate::process::Systemd;
use crate::resources::milli_cpu_to_shares;
use crate::runtime::Runtime;
use crate::server::Server;
use crate::shutdown;
use crate::shutdown_state::Shutdown;
use crate::static_pods::{self, Source, StaticPods};
use crate::status_writer::StatusWriter;
use crate::volumes::csi::{self as csi_volumes, Csi};
use crate::volumes::kernel::Linux;
use crate::volumes::{Iscsi, IscsiParts, LocalDevices, Tokens, Volumes, blocking, mounts};
use crate::worker::Workers;
use crate::{certificates, cpu_sets, dns, gc, pleg, state};

/// `cox kubelet`. A renewed client certificate starts the kubelet afresh in the same process; containers go on.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    crate::process::prepare(&settings)?;
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), serve(&args, settings, stop)).await
}

async fn serve(args: &Args, settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    let clock = Clock::default();
    while !stop.is_cancelled() {
        if let (Some(kubeconfig), Some(first)) = (&args.kubeconfig, &args.bootstrap_kubeconfig) {
            let bootstrap = certificates::bootstrap(kubeconfig, first, &settings.cert_dir, &settings.node_name, &clock);
            tokio::select! {
                result = bootstrap => result.context("getting a client certificate")?,
                () = stop.cancelled() => return Ok(()),
            }
        }
        let kubeconfig = Kubeconfig::load(args.kubeconfig.as_deref()).context("reading the kubeconfig")?;
        let client = certificates::client_of(&kubeconfig)?;
        let client = settings.api_rate.map_or(client.clone(), |(qps, burst)| client.with_rate_limit(qps, burst));
        let until = stop.child_token();
        let client_of_kubelet = client.traced_remotely(state::ACTOR);
        let config = Config { client: client_of_kubelet, settings: settings.clone(), summaries: Arc::default() };
        let exporting = export(&config, until.clone());
        let running = run(config, until.clone());
        let renewed = async {
            match settings.rotate_certificates {
                true => {
                    let renewed = || certificates::renewed(&client, &settings.cert_dir, &settings.node_name, &clock);
                    if client::outlive_panics("kubelet certificates", "", &until, renewed).await.is_none() {
                        std::future::pending().await
                    }
                }
                false => std::future::pending().await,
            }
        };
        tokio::pin!(running);
        tokio::select! {
            result = &mut running => {
                until.cancel();
                exporting.await;
                return result;
            }
            () = renewed => {
                tracing::info!("starting afresh with the client certificate of now");
                until.cancel();
                running.await?;
                exporting.await;
            }
        }
    }
    Ok(())
}

/// Sends the spans of this process to a collector, if there is one, until `stop`.
fn export(config: &Config, stop: CancellationToken) -> impl Future<Output = ()> + use<> {
    let tracing = config.settings.tracing.clone();
    let task = tracing.zip(config.client.recorder()).map(|(tracing, recorder)| {
        let exporting = recorder.export(tracing.rate());
        tokio::spawn(FutureExt::boxed(otlp::run(exporting, tracing, config.settings.node_name.clone(), stop)))
    });
    async move {
        if let Some(task) = task {
            // It ends with `stop`, and nothing depends on it.
            let _ = task.await;
        }
    }
}

/// Makes a directory, and those above it that are missing, that not every user of the machine can enter.
fn make_directory(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)
}

fn close_to_others(dir: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(dir)?.permissions().mode();
    match mode & 0o007 {
        0 => Ok(()),
        _ => std::fs::set_permissions(dir, std::fs::Permissions::from_mode(mode & 0o7770)),
    }
}

/// Runs a kubelet until `stop` fires. Containers go on.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let root = &config.settings.root_dir;
    // Drivers mount these into their pods, and ask for directories.
    let own = ["pods", "plugins", "plugins_registry"].map(|name| root.join(name));
    for dir in own.iter().chain([&config.settings.cert_dir, &config.settings.pod_logs_dir]) {
        make_directory(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    // Whoever made them before: secrets of pods are in one, and in both, where volumes are mounted or staged, files that
    // containers may have given any mode and owner.
    for dir in &own[..2] {
        close_to_others(dir).with_context(|| format!("closing {}", dir.display()))?;
    }
    mounts::make_shared(&Linux, root).with_context(|| format!("sharing what is mounted below {}", root.display()))?;
    let Some(runtime) = connect(&config.settings.cri_endpoint, &stop).await else { return Ok(()) };
    let settings = &config.settings;
    let machine = Machine::read(&settings.root_dir, &settings.node_ips).context("looking at the machine")?;
    let running = Running::assemble(config, runtime, &machine, &stop).await?;
    let port = running.serve().await?;
    running.start_parts(machine, port)?;
    running.follow_own_node();
    running.informers.factory.start(stop.clone());
    let Kubelet { settings, runtime, .. } = &*running.kubelet;
    if let Some(cidr) = settings.pod_cidr.as_deref() {
        runtime.set_pod_cidr(cidr).await.context("giving the pod range to the runtime")?;
    }
    let (mirrors, all_read) = running.read_static_pods();
    // Environment variables of services must be complete before the first container starts, and the node's own rules known.
    tokio::select! {
        () = running.informers.synced() => {
            running.follow_pods(mirrors, all_read);
            // Also where no pod is left whose pass would do it.
            running.kubelet.update_burstable().await;
            stop.cancelled().await;
        }
        () = stop.cancelled() => {}
    }
    running.finish().await;
    Ok(())
}

/// What the kubelet follows in the API.
struct Informers {
    factory: InformerFactory,
    services: Informer<Service>,
    csi_drivers: Informer<CSIDriver>,
    pods: Informer<Pod>,
    own_node: Informer<Node>,
}

impl Informers {
    fn new(client: &Client, node_name: &str) -> Self {
        let factory = InformerFactory::new(client.clone());
        Informers {
            services: factory.informer(),
            csi_drivers: factory.informer(),
            pods: factory.filtered(ListParams::fields(format!("spec.nodeName={node_name}"))),
            own_node: factory.filtered(ListParams::fields(format!("metadata.name={node_name}"))),
            factory,
        }
    }

    async fn synced(&self) {
        tokio::join!(self.services.synced(), self.pods.synced(), self.own_node.synced(), self.csi_drivers.synced());
    }
}

/// The cgroups of the node's pods, if it has any.
async fn open_cgroups(settings: &Settings, runtime: &Runtime, machine: &Machine) -> anyhow::Result<Option<Cgroups>> {
    let all = all_pods(settings, machine, max_processes())?;
    if !settings.cgroups_per_qos {
        return Ok(None);
    }
    // The runtime puts containers below our cgroups: both must be made by the same driver.
    let driver = runtime.cgroup_driver().await?.unwrap_or(settings.cgroup_driver);
    let (wanted, huge_pages) = (settings.clone(), machine.huge_pages.clone());
    let cgroups = blocking(move || Cgroups::detect(&wanted, driver, huge_pages)).await;
    let cgroups = cgroups.map_err(|error| anyhow::anyhow!("finding cgroups: {error}"))?;
    let made = cgroups.clone();
    blocking(move || made.ensure_qos(all)).await.map_err(|error| anyhow::anyhow!("making QoS cgroups: {error}"))?;
    Ok(Some(cgroups))
}

/// What all pods together get: what the node has without what is reserved (`enforceNodeAllocatableCgroups`, v1.36).
fn all_pods(settings: &Settings, machine: &Machine, max_processes: Option<u64>) -> anyhow::Result<AllPods> {
    let reserved = |name: &str| {
        let text = settings.reserved.get(name).map_or("0", String::as_str);
        text.parse::<Quantity>().map_err(|error| anyhow::anyhow!("reserved {name}: {error}"))
    };
    let (cpu, memory, pids) = (reserved("cpu")?, reserved("memory")?, reserved("pid")?);
    let amount = |value: u64| Quantity::new(i64::try_from(value).unwrap_or(i64::MAX), Format::DecimalSI);
    let (cpus, bytes) = (amount(machine.cpus), amount(machine.memory));
    for (name, reserved, capacity) in [("cpu", &cpu, &cpus), ("memory", &memory, &bytes)] {
        anyhow::ensure!(
            reserved <= capacity,
            "invalid Node Allocatable configuration. Resource {name:?} has a reservation of {reserved} but capacity of \
             {capacity}. Expected capacity >= reservation."
        );
    }
    if !settings.enforce_allocatable {
        return Ok(AllPods { cpu_shares: milli_cpu_to_shares(cpus.milli_value()), memory: None, pids: None });
    }
    let pids = match pids.value() {
        reserved @ 1.. => {
            let capacity = max_processes.context("the kernel does not say how many processes there can be")?;
            // systemd knows no limit of zero.
            Some(amount(capacity).value().saturating_sub(reserved).max(1))
        }
        _ => None,
    };
    Ok(AllPods {
        cpu_shares: milli_cpu_to_shares(cpus.milli_value() - cpu.milli_value().max(0)),
        // Where nothing is left, pods that request no memory still come, and have no limit: so upstream.
        memory: Some(bytes.value() - memory.value().max(0)).filter(|left| *left > 0 && memory.value() > 0),
        pids,
    })
}

/// A kubelet with its workers, and what its parts share.
struct Running {
    kubelet: Arc<Kubelet>,
    workers: Arc<Workers>,
    informers: Informers,
    wake: Wake,
    /// The node's status is to be shown now.
    changed: Arc<Notify>,
    parts: Parts,
    tasks: TaskTracker,
    summaries: SummarySlot,
}

impl Running {
    async fn assemble(
        config: Config,
        runtime: Runtime,
        machine: &Machine,
        stop: &CancellationToken,
    ) -> anyhow::Result<Self> {
        let Config { client, settings, summaries } = config;
        let client = client.with_metrics(runtime.metrics.all());
        let tasks = TaskTracker::new();
        let to_events = settings.event_rate.map_or(client.clone(), |(qps, burst)| client.with_rate_limit(qps, burst));
        let recorder = EventRecorder::new(to_events, "kubelet", &settings.node_name);
        let cgroups = open_cgroups(&settings, &runtime, machine).await?;

        // Workers need the kubelet and the kubelet's parts wake workers: the circle closes here.
        let late: Arc<OnceLock<Weak<Workers>>> = Arc::default();
        let to_wake = late.clone();
        let wake: Wake = Arc::new(move |uid: &str| {
            if let Some(workers) = to_wake.get().and_then(Weak::upgrade) {
                workers.wake(uid);
            }
        });

        let informers = Informers::new(&client, &settings.node_name);
        let changed = Arc::new(Notify::new());
        let clock = Clock::default();
        let csi = Csi::open(csi_volumes::Parts {
            root: settings.root_dir.clone(),
            node_name: settings.node_name.clone(),
            client: client.clone(),
            clock: clock.clone(),
            recorder: recorder.clone(),
            objects: informers.csi_drivers.clone(),
            own_node: informers.own_node.clone(),
            call_timeout: settings.volume_call_timeout,
            changed: changed.clone(),
            metrics: runtime.metrics.clone(),
            tasks: tasks.clone(),
            stop: stop.clone(),
        });
        let iscsi = Iscsi::open(IscsiParts {
            root: settings.root_dir.clone(),
            in_use: csi.attached.in_use.clone(),
            call_timeout: settings.volume_call_timeout,
            tasks: tasks.clone(),
            stop: stop.clone(),
        });
        let prober =
            Prober::new(clock.clone(), runtime.clone(), recorder.clone(), wake.clone(), stop.clone(), tasks.clone());
        let kubelet = Arc::new(Kubelet {
            clock: clock.clone(),
            images: Images::new(runtime.clone(), recorder.clone(), &settings),
            volumes: Volumes {
                clock: clock.clone(),
                root: settings.root_dir.clone(),
                usual_root: settings.usual_root.clone(),
                client: client.clone(),
                config_maps: Arc::new(Objects::new(client.clone(), wake.clone(), stop.clone(), tasks.clone())),
                secrets: Arc::new(Objects::new(client.clone(), wake.clone(), stop.clone(), tasks.clone())),
                tokens: Tokens::new(client.clone(), clock.clone()),
                csi,
                nfs: Default::default(),
                iscsi,
                local_devices: LocalDevices::new(settings.root_dir.clone()),
                file_systems: Default::default(),
                claimed: Default::default(),
                call_timeout: settings.volume_call_timeout,
                metrics: runtime.metrics.clone(),
            },
            cgroups,
            cpu_manager: CpuManager::open(&settings).context("starting the CPU manager")?,
            prober: Arc::new(prober),
            status: StatusWriter::new(client.clone()),
            recorder,
            restarts: Backoff::new(
                settings.max_container_restart_period.min(Duration::from_secs(10)),
                settings.max_container_restart_period,
            ),
            services: informers.services.clone(),
            node: informers.own_node.clone(),
            allocatable: node_status::allocatable(&settings, machine),
            admitted: Default::default(),
            deferred: Default::default(),
            freed: Default::default(),
            pressure: Default::default(),
            shutdown: Arc::new(Shutdown::open(&settings.root_dir)),
            node_memory: machine.memory as i64,
            huge_pages: machine.huge_pages.clone(),
            host_ips: machine.ips.iter().map(ToString::to_string).collect(),
            dns: dns::Node {
                cluster_dns: settings.cluster_dns.clone(),
                cluster_domain: settings.cluster_domain.clone(),
                resolv_conf: settings.resolv_conf.clone(),
                host_ips: machine.ips.iter().map(ToString::to_string).collect(),
            },
            runtime,
            client,
            settings,
        });
        let workers = Workers::new(kubelet.clone(), tasks.clone(), stop.clone());
        // Set once, right here.
        let _ = late.set(Arc::downgrade(&workers));
        let parts = Parts::new(tasks.clone(), stop.clone());
        Ok(Running { kubelet, workers, informers, wake, changed, parts, tasks, summaries })
    }

    /// Starts the kubelet's own API; the port that it is served on.
    async fn serve(&self) -> anyhow::Result<u16> {
        let settings = &self.kubelet.settings;
        let listener = tokio::net::TcpListener::bind((settings.address, settings.port))
            .await
            .with_context(|| format!("listening on {}:{}", settings.address, settings.port))?;
        let port = listener.local_addr()?.port();
        let server = Server::new(self.kubelet.clone(), self.workers.clone())?;
        *self.summaries.lock() = Some(server.summaries());
        if settings.server_tls_bootstrap {
            let renewing = server.clone();
            self.parts.spawn("kubelet certificates", move |stop| renewing.clone().renew_certificate(stop));
        }
        if let Some(systemd) = Systemd::from_env(|name| std::env::var(name).ok()).context("systemd's watchdog")? {
            let watched = server.clone();
            self.parts.spawn("kubelet watchdog", move |stop| {
                let watched = watched.clone();
                systemd.clone().run(move || watched.is_healthy(), stop)
            });
        }
        let listener = Arc::new(listener);
        self.parts.spawn("kubelet server", move |stop| server.clone().run(listener.clone(), stop));
        if let Some(address) = settings.healthz {
            self.parts.spawn("kubelet health", move |stop| crate::process::serve_health(address, stop));
        }
        Ok(port)
    }

    /// Starts what works by itself: the node's status, eviction, collection of what nobody needs, plug-ins.
    fn start_parts(&self, machine: Machine, port: u16) -> anyhow::Result<()> {
        let Running { kubelet, workers, changed, parts, .. } = self;
        let Kubelet { settings, client, runtime, recorder, .. } = &**kubelet;
        let csi = &kubelet.volumes.csi;
        let agent = Arc::new(NodeAgent {
            clock: kubelet.clock.clone(),
            client: client.clone(),
            settings: settings.clone(),
            runtime: runtime.clone(),
            machine,
            port,
            pressure: kubelet.pressure.clone(),
            shutdown: kubelet.shutdown.clone(),
            changed: changed.clone(),
            in_use: csi.attached.in_use.clone(),
            recorder: recorder.clone(),
            own_node: self.informers.own_node.clone(),
            uid: Default::default(),
        });
        let eviction = Eviction::new(kubelet.clone(), workers.clone(), changed.clone());
        let eviction = Arc::new(eviction.context("reading eviction thresholds")?);
        parts.spawn("kubelet eviction", move |stop| eviction.clone().run(stop));
        let (shared, all, changed) = (kubelet.clone(), workers.clone(), changed.clone());
        let shutdowns = Arc::new(shutdown::Manager { kubelet: shared, workers: all, changed });
        parts.spawn("kubelet shutdown", move |stop| shutdowns.clone().run(stop));
        let shared = kubelet.clone();
        parts.spawn("kubelet garbage collection", move |stop| gc::run(shared.clone(), stop));
        let shared = kubelet.clone();
        parts.spawn("kubelet CPU manager", move |stop| cpu_sets::run(shared.clone(), stop));
        parts.spawn("kubelet node", move |stop| agent.clone().run(stop));
        let status = kubelet.status.clone();
        parts.spawn("kubelet status", move |stop| status.clone().run(stop));
        let (listed, clock, wake) = (runtime.clone(), kubelet.clock.clone(), self.wake.clone());
        parts.spawn("kubelet pod lifecycle events", move |stop| {
            pleg::run(listed.clone(), clock.clone(), wake.clone(), stop)
        });
        let announced = csi.clone();
        parts.spawn("kubelet CSI node", move |_| {
            let announced = announced.clone();
            async move { announced.announce().await }
        });
        let (measured, period) = (csi.clone(), settings.volume_stats_period);
        parts.spawn("kubelet volume stats", move |_| measured.clone().watch_stats(period));
        let file_systems = self.kubelet.volumes.file_systems.clone();
        parts.spawn("kubelet file system stats", move |stop| file_systems.clone().watch(period, stop));
        let plugins = Arc::new(Plugins {
            csi: csi.clone(),
            root: settings.root_dir.clone(),
            usual_root: settings.usual_root.clone(),
            node_name: settings.node_name.clone(),
            recorder: recorder.clone(),
            call_timeout: settings.volume_call_timeout,
            tasks: self.tasks.clone(),
            turn: Default::default(),
        });
        parts.spawn("kubelet plug-ins", move |stop| plugins.clone().run(stop));
        Ok(())
    }

    /// Gives the runtime the pod range that the node gets, and pods what others write into its capacity.
    fn follow_own_node(&self) {
        let (runtime, tasks, changed) = (self.kubelet.runtime.clone(), self.tasks.clone(), self.changed.clone());
        self.informers.own_node.subscribe(move |event| {
            let cidr = |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
            let extended = |node: &Node| node.status.as_ref().map(node_status::extended).unwrap_or_default();
            if let Event::Modified { new, .. } = event
                && !extended(new).is_empty()
            {
                changed.notify_one();
            }
            let new = match event {
                Event::Added(node) => cidr(node),
                Event::Modified { old, new } if cidr(old) != cidr(new) => cidr(new),
                _ => None,
            };
            if let Some(cidr) = new {
                let (runtime, changed) = (runtime.clone(), changed.clone());
                tasks.spawn(FutureExt::boxed(async move {
                    if let Err(error) = runtime.set_pod_cidr(&cidr).await {
                        tracing::warn!(%error, cidr, "pod range not given to the runtime");
                    }
                    changed.notify_one();
                }));
            }
        });
    }

    /// Starts static pods. Returns what to notify when a mirror pod changes, and what is cancelled once every source was
    /// read.
    fn read_static_pods(&self) -> (Arc<Notify>, CancellationToken) {
        let settings = &self.kubelet.settings;
        let (mirrors, all_read) = (Arc::new(Notify::new()), CancellationToken::new());
        let path = settings.static_pod_path.clone().map(Source::path);
        let (headers, period) = (settings.static_pod_url_headers.clone(), settings.http_check_frequency);
        let url = settings.static_pod_url.clone().map(|url| Source::url(url, headers, period));
        let source = Arc::new(StaticPods {
            sources: static_pods::unread(path.into_iter().chain(url).collect()),
            all_read: all_read.clone(),
            node: settings.node_name.clone(),
            client: self.kubelet.client.clone(),
            workers: self.workers.clone(),
            pods: self.informers.pods.clone(),
            changed: mirrors.clone(),
        });
        self.parts.spawn("kubelet static pods", move |stop| source.clone().run(stop));
        (mirrors, all_read)
    }

    /// Hands the node's pods to their workers, and ends what no source knows.
    fn follow_pods(&self, mirrors: Arc<Notify>, all_read: CancellationToken) {
        let (updates, pods) = (self.workers.clone(), self.informers.pods.clone());
        // A worker may be at its pod before the others have theirs.
        let listed = pods.list();
        self.kubelet.count_started(&listed);
        let some_left = Arc::new(Notify::new());
        let (gone, statuses) = (some_left.clone(), self.kubelet.status.clone());
        pods.subscribe(move |event| match event {
            event if static_pods::is_mirror(event.object()) => {
                if let Event::Modified { new, .. } = event {
                    statuses.seen(new);
                }
                mirrors.notify_one();
            }
            Event::Added(pod) => updates.update(pod.clone(), None),
            Event::Modified { old, new } => {
                if state::uid(old) != state::uid(new) {
                    updates.removed(state::uid(old));
                }
                statuses.seen(new);
                updates.update(new.clone(), None);
            }
            Event::Deleted(pod) => {
                updates.removed(state::uid(pod));
                gone.notify_one();
            }
        });
        // Whoever went meanwhile, or was refused for its name, has no worker that would give back what it holds.
        let without_worker = listed.iter().map(|pod| state::uid(pod)).filter(|uid| !self.workers.has(uid));
        without_worker.for_each(|uid| self.kubelet.uncount(uid));
        let (kubelet, workers) = (self.kubelet.clone(), self.workers.clone());
        let keeper = Arc::new(Housekeeping { kubelet, workers, pods, all_read, some_left });
        self.parts.spawn("kubelet housekeeping", move |stop| keeper.clone().run(stop));
    }

    /// Waits for all that was started.
    async fn finish(self) {
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Waits for the runtime to answer; `None` when stopped meanwhile.
async fn connect(endpoint: &std::path::Path, stop: &CancellationToken) -> Option<Runtime> {
    let clients = cri::Clients::lazy(endpoint);
    let mut retry = client::backoff::Backoff::new(Duration::from_millis(50), Duration::from_secs(2));
    loop {
        match Runtime::open(clients.clone()).await {
            Ok(runtime) => return Some(runtime),
            Err(error) => tracing::info!(endpoint = %endpoint.display(), %error, "waiting for the runtime"),
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            () = tokio::time::sleep(retry.next_delay()) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_pods_together_get_what_is_not_reserved() {
        let machine = Machine { cpus: 2, memory: 100, ..Default::default() };
        for (reserved, enforce_allocatable, expected) in [
            ("", true, Some((2048, None, None))),
            ("cpu=500m memory=40 pid=100", true, Some((1536, Some(60), Some(900)))),
            ("cpu=500m memory=40 pid=100", false, Some((2048, None, None))),
            ("cpu=2 memory=100 pid=1001", true, Some((2, None, Some(1)))),
            ("memory=101", true, None),
            ("memory=101", false, None),
            ("cpu=2001m", true, None),
        ] {
            let mut settings = Settings::new("n");
            settings.enforce_allocatable = enforce_allocatable;
            let pairs = reserved.split_whitespace().filter_map(|pair| pair.split_once('='));
            settings.reserved.extend(pairs.map(|(name, amount)| (name.to_owned(), amount.to_owned())));
            let all = all_pods(&settings, &machine, Some(1000)).ok();
            assert_eq!(all.map(|all| (all.cpu_shares, all.memory, all.pids)), expected, "{reserved}");
        }
        let mut settings = Settings::new("n");
        settings.reserved.insert("pid".into(), "1".into());
        assert!(all_pods(&settings, &machine, None).is_err());
    }

    /// What pods have in their volumes is not for every user of the machine: secrets, and files that are root's and run as
    /// root whoever starts them (CVE-2021-41103).
    #[test]
    fn security_volumes_of_pods_are_not_for_other_users() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        let pods = dir.path().join("kubelet/pods");
        make_directory(&pods).unwrap();
        assert_eq!((mode(&pods) & 0o007, mode(&dir.path().join("kubelet")) & 0o007), (0, 0));
        for (before, after) in [(0o755, 0o750), (0o700, 0o700), (0o2775, 0o2770)] {
            std::fs::set_permissions(&pods, std::fs::Permissions::from_mode(before)).unwrap();
            close_to_others(&pods).unwrap();
            assert_eq!(mode(&pods), after, "{before:o}");
        }
    }
}

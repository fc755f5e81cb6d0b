//! Assembles the parts and runs them until stopped.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use anyhow::Context;
use client::kubeconfig::Kubeconfig;
use client::{Event, EventRecorder, InformerFactory, ListParams};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Node, Pod, PodSpec, Service};
use k8s_openapi::api::storage::v1::CSIDriver;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::backoff::Backoff;
use crate::cgroups::Cgroups;
use crate::config::{Args, Config, Settings};
use crate::cpu_manager::CpuManager;
use crate::eviction::Eviction;
use crate::images::Images;
use crate::kubelet::Kubelet;
use crate::node::machine::Machine;
use crate::node::{NodeAgent, status as node_status};
use crate::objects::{Objects, Wake};
use crate::parts::Parts;
use crate::plugins::Plugins;
use crate::probes::Prober;
use crate::runtime::{self, Runtime};
use crate::server::Server;
use crate::shutdown::{self, Shutdown};
use crate::state::annotation;
use crate::static_pods::{self, Source, StaticPods};
use crate::status_writer::StatusWriter;
use crate::volumes::csi::{self as csi_volumes, Csi};
use crate::volumes::{Tokens, Volumes, blocking};
use crate::worker::Workers;
use crate::{certificates, cpu_manager, dns, gc, pleg, state};

/// How often leftovers of pods nobody knows are looked for, after a first look at start: while there are some or a pod has just
/// gone, and when there were none.
const HOUSEKEEPING: Duration = Duration::from_secs(2);
const ALL_CLEAN: Duration = Duration::from_secs(30);

/// `cox kubelet`. A renewed client certificate starts the kubelet afresh in the same process; containers go on.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let settings = args.settings()?;
    crate::process::prepare(&settings)?;
    let stop = CancellationToken::new();
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let on_signal = stop.clone();
    let signals = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        on_signal.cancel();
        std::future::pending().await
    };
    tokio::select! {
        result = serve(&args, settings, stop) => result,
        () = signals => Ok(()),
    }
}

async fn serve(args: &Args, settings: Settings, stop: CancellationToken) -> anyhow::Result<()> {
    while !stop.is_cancelled() {
        if let (Some(kubeconfig), Some(first)) = (&args.kubeconfig, &args.bootstrap_kubeconfig) {
            let bootstrap = certificates::bootstrap(kubeconfig, first, &settings.cert_dir, &settings.node_name);
            tokio::select! {
                result = bootstrap => result.context("getting a client certificate")?,
                () = stop.cancelled() => return Ok(()),
            }
        }
        let kubeconfig = Kubeconfig::load(args.kubeconfig.as_deref()).context("reading the kubeconfig")?;
        let client = certificates::client_of(&kubeconfig)?;
        let client = settings.api_rate.map_or(client.clone(), |(qps, burst)| client.with_rate_limit(qps, burst));
        let until = stop.child_token();
        let config = Config { client: client.traced_remotely(state::ACTOR), settings: settings.clone() };
        let running = run(config, until.clone());
        let renewed = async {
            match settings.rotate_certificates {
                true => {
                    let renewed = || certificates::renewed(&client, &settings.cert_dir, &settings.node_name);
                    if client::outlive_panics("kubelet certificates", "", &until, renewed).await.is_none() {
                        std::future::pending().await
                    }
                }
                false => std::future::pending().await,
            }
        };
        tokio::pin!(running);
        tokio::select! {
            result = &mut running => return result,
            () = renewed => {
                tracing::info!("starting afresh with the client certificate of now");
                until.cancel();
                running.await?;
            }
        }
    }
    Ok(())
}

/// Runs a kubelet until `stop` fires. Containers go on.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let Config { client, settings } = config;
    let tasks = TaskTracker::new();
    for dir in [&settings.root_dir, &settings.cert_dir, &settings.pod_logs_dir] {
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
    }
    let Some(runtime) = connect(&settings.cri_endpoint, &stop).await else { return Ok(()) };
    let machine = Machine::read(&settings.root_dir, &settings.node_ips).context("looking at the machine")?;
    let to_events = settings.event_rate.map_or(client.clone(), |(qps, burst)| client.with_rate_limit(qps, burst));
    let recorder = EventRecorder::new(to_events, "kubelet", &settings.node_name);

    let cgroups = if settings.cgroups_per_qos {
        // The runtime puts containers below our cgroups: both must be made by the same driver.
        let driver = runtime.cgroup_driver().await?.unwrap_or(settings.cgroup_driver);
        let (wanted, chosen) = (settings.clone(), driver);
        let cgroups = blocking(move || Cgroups::detect(&wanted, chosen)).await;
        let cgroups = cgroups.map_err(|error| anyhow::anyhow!("finding cgroups: {error}"))?;
        let made = cgroups.clone();
        blocking(move || made.ensure_qos()).await.map_err(|error| anyhow::anyhow!("making QoS cgroups: {error}"))?;
        Some(cgroups)
    } else {
        None
    };

    // Workers need the kubelet and the kubelet's parts wake workers: the circle closes here.
    let workers: Arc<OnceLock<Weak<Workers>>> = Arc::default();
    let to_wake = workers.clone();
    let wake: Wake = Arc::new(move |uid: &str| {
        if let Some(workers) = to_wake.get().and_then(Weak::upgrade) {
            workers.wake(uid);
        }
    });

    let informers = InformerFactory::new(client.clone());
    let services = informers.informer::<Service>();
    let csi_drivers = informers.informer::<CSIDriver>();
    let pods = informers.filtered::<Pod>(ListParams::fields(format!("spec.nodeName={}", settings.node_name)));
    let own_node = informers.filtered::<Node>(ListParams::fields(format!("metadata.name={}", settings.node_name)));

    let changed = Arc::new(Notify::new());
    let csi = Csi::open(csi_volumes::Parts {
        root: settings.root_dir.clone(),
        node_name: settings.node_name.clone(),
        client: client.clone(),
        recorder: recorder.clone(),
        objects: csi_drivers.clone(),
        call_timeout: settings.volume_call_timeout,
        changed: changed.clone(),
        tasks: tasks.clone(),
        stop: stop.clone(),
    })
    .context("reading what volumes of CSI drivers are in use")?;
    let prober = Arc::new(Prober::new(runtime.clone(), recorder.clone(), wake.clone(), stop.clone(), tasks.clone()));
    let status = StatusWriter::new(client.clone());
    let parallel = if settings.serialize_image_pulls { 1 } else { settings.max_parallel_image_pulls };
    let kubelet = Arc::new(Kubelet {
        images: Images::new(runtime.clone(), recorder.clone(), parallel, &settings.root_dir),
        volumes: Volumes {
            root: settings.root_dir.clone(),
            client: client.clone(),
            config_maps: Arc::new(Objects::new(client.clone(), wake.clone(), stop.clone(), tasks.clone())),
            secrets: Arc::new(Objects::new(client.clone(), wake.clone(), stop.clone(), tasks.clone())),
            tokens: Tokens::new(client.clone()),
            csi: csi.clone(),
            nfs: Default::default(),
            call_timeout: settings.volume_call_timeout,
        },
        cgroups,
        cpu_manager: CpuManager::open(&settings).context("starting the CPU manager")?,
        prober,
        status: status.clone(),
        recorder: recorder.clone(),
        restarts: Backoff::new(
            settings.max_container_restart_period.min(Duration::from_secs(10)),
            settings.max_container_restart_period,
        ),
        services: services.clone(),
        node: own_node.clone(),
        allocatable: node_status::allocatable(&settings, &machine),
        admitted: Default::default(),
        freed: Default::default(),
        pressure: Default::default(),
        shutdown: Arc::new(Shutdown::open(&settings.root_dir)),
        node_memory: machine.memory as i64,
        host_ips: machine.ips.iter().map(ToString::to_string).collect(),
        dns: dns::Node {
            cluster_dns: settings.cluster_dns.clone(),
            cluster_domain: settings.cluster_domain.clone(),
            resolv_conf: settings.resolv_conf.clone(),
            host_ips: machine.ips.iter().map(ToString::to_string).collect(),
        },
        runtime: runtime.clone(),
        client: client.clone(),
        settings: settings.clone(),
    });
    let all = Workers::new(kubelet.clone(), tasks.clone(), stop.clone());
    // Set once, right here.
    let _ = workers.set(Arc::downgrade(&all));

    let listener = tokio::net::TcpListener::bind((settings.address, settings.port))
        .await
        .with_context(|| format!("listening on {}:{}", settings.address, settings.port))?;
    let port = listener.local_addr()?.port();
    let parts = Parts::new(tasks.clone(), stop.clone());
    let server = Server::new(kubelet.clone(), all.clone())?;
    if settings.server_tls_bootstrap {
        let renewing = server.clone();
        parts.spawn("kubelet certificates", move |stop| renewing.clone().renew_certificate(stop));
    }
    let listener = Arc::new(listener);
    parts.spawn("kubelet server", move |stop| server.clone().run(listener.clone(), stop));

    if let Some(address) = settings.healthz {
        parts.spawn("kubelet health", move |stop| crate::process::serve_health(address, stop));
    }
    let agent = Arc::new(NodeAgent {
        client: client.clone(),
        settings: settings.clone(),
        runtime: runtime.clone(),
        machine,
        port,
        pressure: kubelet.pressure.clone(),
        shutdown: kubelet.shutdown.clone(),
        changed: changed.clone(),
        in_use: csi.in_use.clone(),
        recorder: recorder.clone(),
    });
    let eviction =
        Eviction::new(kubelet.clone(), all.clone(), changed.clone()).context("reading eviction thresholds")?;
    let eviction = Arc::new(eviction);
    parts.spawn("kubelet eviction", move |stop| eviction.clone().run(stop));
    let shutdowns =
        Arc::new(shutdown::Manager { kubelet: kubelet.clone(), workers: all.clone(), changed: changed.clone() });
    parts.spawn("kubelet shutdown", move |stop| shutdowns.clone().run(stop));
    let shared = kubelet.clone();
    parts.spawn("kubelet garbage collection", move |stop| gc::run(shared.clone(), stop));
    let shared = kubelet.clone();
    parts.spawn("kubelet CPU manager", move |stop| cpu_manager::run(shared.clone(), stop));
    parts.spawn("kubelet node", move |stop| agent.clone().run(stop));
    parts.spawn("kubelet status", move |stop| status.clone().run(stop));
    let listed = runtime.clone();
    parts.spawn("kubelet pod lifecycle events", move |stop| pleg::run(listed.clone(), wake.clone(), stop));
    let announced = csi.clone();
    parts.spawn("kubelet CSI node", move |_| {
        let announced = announced.clone();
        async move { announced.announce().await }
    });
    let (measured, period) = (csi.clone(), settings.volume_stats_period);
    parts.spawn("kubelet volume stats", move |_| measured.clone().watch_stats(period));
    let registries =
        std::iter::once(settings.root_dir.join("plugins_registry")).chain(settings.plugin_registries.clone());
    let mut directories: Vec<_> = registries
        .map(|directory| (directory.clone(), directory.parent().map_or(directory.clone(), Into::into)))
        .collect();
    directories.dedup();
    let plugins = Arc::new(Plugins {
        csi: csi.clone(),
        directories,
        root: settings.root_dir.clone(),
        node_name: settings.node_name.clone(),
        recorder,
        call_timeout: settings.volume_call_timeout,
        tasks: tasks.clone(),
    });
    parts.spawn("kubelet plug-ins", move |stop| plugins.clone().run(stop));

    let cidr_runtime = runtime.clone();
    let (cidr_tasks, cidr_changed) = (tasks.clone(), changed.clone());
    own_node.subscribe(move |event| {
        let cidr = |node: &Node| node.spec.as_ref().and_then(|spec| spec.pod_cidr.clone());
        let new = match event {
            Event::Added(node) => cidr(node),
            Event::Modified { old, new } if cidr(old) != cidr(new) => cidr(new),
            _ => None,
        };
        if let Some(cidr) = new {
            let (runtime, changed) = (cidr_runtime.clone(), cidr_changed.clone());
            cidr_tasks.spawn(async move {
                if let Err(error) = runtime.set_pod_cidr(&cidr).await {
                    tracing::warn!(%error, cidr, "pod range not given to the runtime");
                }
                changed.notify_one();
            });
        }
    });
    informers.start(stop.clone());
    if let Some(cidr) = settings.pod_cidr.as_deref() {
        runtime.set_pod_cidr(cidr).await.context("giving the pod range to the runtime")?;
    }

    let mirrors = Arc::new(Notify::new());
    let all_read = CancellationToken::new();
    let path = settings.static_pod_path.clone().map(Source::Path);
    let url = settings.static_pod_url.clone();
    let url = url.map(|url| Source::url(url, settings.static_pod_url_headers.clone(), settings.http_check_frequency));
    let sources: Vec<Source> = path.into_iter().chain(url).collect();
    let source = Arc::new(StaticPods {
        sources: static_pods::unread(sources),
        all_read: all_read.clone(),
        node: settings.node_name.clone(),
        client: client.clone(),
        workers: all.clone(),
        pods: pods.clone(),
        changed: mirrors.clone(),
    });
    parts.spawn("kubelet static pods", move |stop| source.clone().run(stop));

    // Environment variables of services must be complete before the first container starts, and the node's own rules known.
    tokio::select! {
        () = async { tokio::join!(services.synced(), pods.synced(), own_node.synced(), csi_drivers.synced()); } => {}
        () = stop.cancelled() => return finish(tasks).await,
    }
    let updates = all.clone();
    let mirror_changed = mirrors.clone();
    let some_left = Arc::new(Notify::new());
    let gone = some_left.clone();
    pods.subscribe(move |event| match event {
        event if static_pods::is_mirror(event.object()) => mirror_changed.notify_one(),
        Event::Added(pod) => updates.update(pod.clone(), None),
        Event::Modified { old, new } => {
            if state::uid(old) != state::uid(new) {
                updates.removed(state::uid(old));
            }
            updates.update(new.clone(), None);
        }
        Event::Deleted(pod) => {
            updates.removed(state::uid(pod));
            gone.notify_one();
        }
    });

    let keeper = Arc::new(Housekeeping { kubelet, workers: all, pods, all_read, some_left });
    parts.spawn("kubelet housekeeping", move |stop| keeper.clone().run(stop));
    stop.cancelled().await;
    finish(tasks).await
}

async fn finish(tasks: TaskTracker) -> anyhow::Result<()> {
    tasks.close();
    tasks.wait().await;
    Ok(())
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

/// Looks for what is left of pods that nobody knows.
struct Housekeeping {
    kubelet: Arc<Kubelet>,
    workers: Arc<Workers>,
    pods: client::Informer<Pod>,
    /// Every source was read.
    all_read: CancellationToken,
    /// A pod is gone from the API.
    some_left: Arc<Notify>,
}

impl Housekeeping {
    async fn run(self: Arc<Self>, stop: CancellationToken) {
        // A pod may be in a source that was not read yet.
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.all_read.cancelled() => {}
        }
        loop {
            let is_clean = clean_orphans(&self.kubelet, &self.workers, &self.pods).await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(if is_clean { ALL_CLEAN } else { HOUSEKEEPING }) => continue,
                () = self.some_left.notified() => {}
            }
            // What a pod leaves behind goes with its worker, a moment later.
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(HOUSEKEEPING) => {}
            }
        }
    }
}

/// Ends pods that run here but are in no source, and removes what dead ones left behind. Says whether nothing was found.
async fn clean_orphans(kubelet: &Arc<Kubelet>, workers: &Arc<Workers>, pods: &client::Informer<Pod>) -> bool {
    let sandboxes = match kubelet.runtime.sandboxes(None).await {
        Ok(sandboxes) => sandboxes,
        Err(error) => {
            tracing::warn!(%error, "sandboxes not listed");
            return false;
        }
    };
    let wanted: std::collections::HashSet<String> =
        pods.list().iter().filter(|pod| !static_pods::is_mirror(pod)).map(|pod| state::uid(pod).to_string()).collect();
    let running = runtime::known_pods(&sandboxes);
    let mut is_clean = true;
    for (uid, (namespace, name)) in &running {
        if wanted.contains(uid) || workers.has(uid) {
            continue;
        }
        is_clean = false;
        // All that is left of its spec is what its containers carry.
        let containers = match kubelet.runtime.containers(Some(uid)).await {
            Ok(containers) => containers,
            Err(error) => {
                tracing::warn!(uid, %error, "containers of a pod in no source not listed, it stays until they are");
                continue;
            }
        };
        let grace = containers.iter().find_map(|container| container.annotations.get(annotation::POD_GRACE_PERIOD));
        let spec = PodSpec {
            termination_grace_period_seconds: grace.and_then(|seconds| seconds.parse().ok()),
            ..Default::default()
        };
        tracing::info!(pod = format!("{namespace}/{name}"), uid, "ending a pod that is in no source");
        workers.end_orphan(Pod {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                uid: Some(uid.clone()),
                ..Default::default()
            },
            spec: Some(spec),
            ..Default::default()
        });
    }
    let mut left: Vec<String> = kubelet.volumes.pods_on_disk();
    left.extend(kubelet.cgroups.iter().flat_map(Cgroups::pods));
    left.extend(kubelet.cpu_manager.iter().flat_map(CpuManager::pods));
    left.sort();
    left.dedup();
    left.retain(|uid| !wanted.contains(uid) && !workers.has(uid) && !running.contains_key(uid));
    is_clean &= left.is_empty();
    // Side by side: a storage driver that does not answer holds up its own pods only.
    let releases = left.iter().map(|uid| async move {
        if let Err(error) = kubelet.release(uid).await {
            tracing::warn!(uid, %error, "leftovers of a pod not removed");
        }
    });
    futures_util::future::join_all(releases).await;
    is_clean & kubelet.volumes.csi.unstage_unused().await
}

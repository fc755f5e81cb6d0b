//! The process that runs a cluster: every component, in order, until it is told to stop.
//!
//! Each component starts as soon as what it needs is there; nothing sleeps. A component that ends by itself ends the
//! process, with its error: a service manager starts it again, and the containers do not notice.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::UserInfo;
use client::{Client, InformerFactory, ListParams};
use k8s_openapi::api::core::v1::Node;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::kubeconfig::Access;
use crate::lock::Lock;
use crate::options::{Options, Shape};
use crate::pki::{Pki, private_dir};
use crate::progress::Progress;
use crate::{dns_service, node_network, storage_class};

/// How long components may take to end once they are told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// Runs the cluster until SIGTERM or SIGINT. Progress goes to standard output.
pub(crate) async fn run(options: Options, shape: Shape) -> Result<()> {
    private_dir(&options.data_dir)?;
    private_dir(&options.run_dir)?;
    let _lock = match Lock::take(&options.lock_file())? {
        Ok(lock) => lock,
        Err(holder) => bail!("process {} runs this cluster already", holder.pid),
    };
    let stop = CancellationToken::new();
    let mut components = Components { tasks: JoinSet::new(), running: Vec::new(), stop: stop.clone() };
    let ended = tokio::select! {
        ended = async {
            start(&options, &shape, &mut components).await?;
            components.until_stopped().await
        } => ended,
        result = interrupted() => result,
    };
    stop.cancel();
    // Teardown goes on whatever was first; its own errors matter only if nothing else went wrong.
    let finished = components.finish().await;
    ended.and(finished)
}

/// Starts everything and returns when the node is Ready and DNS answers.
async fn start(options: &Options, shape: &Shape, components: &mut Components) -> Result<()> {
    let mut progress = Progress::default();
    let (node_name, node_ip) = (shape.node_name()?, shape.node_ip()?);
    let api_address = IpAddr::V4(shape.service_address(1)?);
    let dns_address = IpAddr::V4(shape.service_address(10)?);
    // Before anything uses them: addresses of the cluster end on this machine.
    node_network::seal(options, shape, node_ip)?;
    let pki = prepare_keys(options, shape, &node_name, node_ip, api_address)?;
    progress.done("keys", &options.pki_dir().display().to_string());

    let server = apiserver::Server::new(apiserver_config(options, shape, &pki, node_ip)?).await?;
    let handler = server.handler();
    components.spawn("apiserver", {
        let stop = components.stop.clone();
        async move { server.serve(stop).await }
    });
    let as_user = |name: &str, groups: &[&str]| Client::in_process(handler.clone(), user(name, groups));
    let admin = as_user("kubernetes-admin", &["system:masters", "system:authenticated"]);
    progress.done("api server", &format!("https://{node_ip}:{}", shape.secure_port));

    let controllers = controllers::Config::new(as_user("system:kube-controller-manager", &["system:authenticated"]));
    let mut controllers = controllers.with_cluster_cidr(&shape.cluster_cidr)?;
    controllers.root_ca = Some(read(&pki.certificate("ca"))?);
    controllers.signer = Some((read(&pki.certificate("ca"))?, read(&pki.key("ca"))?));
    controllers.service_account_key = Some(read(&pki.key("sa"))?);
    controllers.controllers =
        ["*", "bootstrap-signer-controller", "token-cleaner-controller"].map(str::to_owned).into();
    // Every node of this cluster is on this machine.
    controllers.local_path = controllers::LocalPath { root: options.data_dir.join("local-path"), removes: true };
    components.spawn("controllers", controllers::run(controllers, components.stop.clone()));
    let scheduler = scheduler::Config {
        client: as_user("system:kube-scheduler", &["system:authenticated"]),
        scheduler_name: "default-scheduler".into(),
    };
    components.spawn("scheduler", scheduler::run(scheduler, components.stop.clone()));
    progress.done("control loops", "controllers, scheduler");

    node_network::install_plugins(options)?;
    components
        .spawn("runtime", runtime::run(runtime_config(options, Some(&shape.registries)), components.stop.clone()));
    let node_user = as_user(&format!("system:node:{node_name}"), &["system:nodes", "system:authenticated"]);
    let kubelet = kubelet_config(options, shape, &pki, node_user, &node_name, node_ip, dns_address);
    components.spawn("kubelet", kubelet::run(kubelet, components.stop.clone()));
    let range = components.until(node_network::pod_range(&admin, &node_name)).await?;
    let gateway = node_network::ensure_bridge(range)?;
    node_network::write_config(options, range)?;
    progress.done("node", &format!("{node_name}, pods in {}", shape.cluster_cidr));

    let mut proxy = proxy::Config::new(as_user("system:kube-proxy", &["system:authenticated"]), &node_name);
    proxy.cluster_cidrs = vec![shape.cluster_cidr.clone()];
    proxy.service_cidrs = vec![shape.service_cidr.clone()];
    components.spawn("proxy", proxy::run(proxy, components.stop.clone()));
    components.until(storage_class::ensure(&admin)).await?;
    components.until(dns_service::ensure_role(&admin)).await?;
    let service_account = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
    let dns = dns_config(shape, as_user(dns_service::USER, &service_account), gateway)?;
    components.spawn("dns", dns::run(dns, components.stop.clone()));
    components.until(dns_service::ensure(&admin, dns_address, gateway)).await?;
    progress.done("network", &format!("proxy, DNS at {dns_address}"));

    components.until(node_ready(&admin, &node_name)).await?;
    components.until(dns_service::answers(gateway, api_address, &shape.cluster_domain)).await?;
    progress.ready();
    Ok(())
}

/// The running parts of the cluster. Each is awaited; the first to end ends all.
struct Components {
    tasks: JoinSet<(&'static str, Result<()>)>,
    running: Vec<&'static str>,
    stop: CancellationToken,
}

impl Components {
    fn spawn(&mut self, name: &'static str, component: impl Future<Output = Result<()>> + Send + 'static) {
        self.running.push(name);
        self.tasks.spawn(async move { (name, component.await) });
    }

    /// Waits for `event`, but not past the end of a component: it might never come then.
    async fn until<T>(&mut self, event: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            result = event => result,
            error = Self::first_end(&mut self.tasks) => Err(error),
        }
    }

    async fn until_stopped(&mut self) -> Result<()> {
        Err(Self::first_end(&mut self.tasks).await)
    }

    async fn first_end(tasks: &mut JoinSet<(&'static str, Result<()>)>) -> anyhow::Error {
        match tasks.join_next().await {
            Some(Ok((name, Ok(())))) => anyhow!("{name} ended"),
            Some(Ok((name, Err(error)))) => error.context(format!("{name} failed")),
            Some(Err(panic)) => anyhow!("a component panicked: {panic}"),
            None => std::future::pending().await,
        }
    }

    /// Waits for all to end, though not for ever: a restart must not hang on one that does not.
    async fn finish(mut self) -> Result<()> {
        let deadline = tokio::time::Instant::now() + STOP_DEADLINE;
        let mut errors = Vec::new();
        loop {
            match tokio::time::timeout_at(deadline, self.tasks.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok((name, Ok(()))))) => self.running.retain(|running| *running != name),
                Ok(Some(Ok((name, Err(error))))) => {
                    self.running.retain(|running| *running != name);
                    errors.push(format!("{name}: {error:#}"));
                }
                Ok(Some(Err(panic))) => errors.push(panic.to_string()),
                Err(_) => {
                    errors.push(format!("still running after {STOP_DEADLINE:?}: {}", self.running.join(", ")));
                    break;
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\n")) }
    }
}

async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    Ok(())
}

fn prepare_keys(options: &Options, shape: &Shape, node: &str, node_ip: IpAddr, api: IpAddr) -> Result<Pki> {
    let domain = &shape.cluster_domain;
    let hosts = [
        "localhost".to_owned(),
        node.to_owned(),
        "kubernetes".to_owned(),
        "kubernetes.default".to_owned(),
        "kubernetes.default.svc".to_owned(),
        format!("kubernetes.default.svc.{domain}"),
    ];
    let addresses = [IpAddr::from([127, 0, 0, 1]), node_ip, api];
    let pki = Pki::prepare(&options.pki_dir(), node, &hosts, &addresses)?;
    let server = format!("https://127.0.0.1:{}", shape.secure_port);
    Access::admin(&options.name, &server, &pki)?.merge_into(&options.admin_kubeconfig())?;
    Ok(pki)
}

fn apiserver_config(options: &Options, shape: &Shape, pki: &Pki, node_ip: IpAddr) -> Result<apiserver::Config> {
    let storage = apiserver::Storage::Embedded(options.data_dir.join("store"));
    let mut config = apiserver::Config::new(storage);
    config.bind = (IpAddr::from([0, 0, 0, 0]), shape.secure_port).into();
    config.advertise_address = Some(node_ip);
    config.tls_cert_file = Some(pki.certificate("apiserver"));
    config.tls_private_key_file = Some(pki.key("apiserver"));
    config.client_ca_file = Some(pki.certificate("ca"));
    config.requestheader_client_ca_file = Some(pki.certificate("front-proxy-ca"));
    config.requestheader_allowed_names = vec!["front-proxy-client".into()];
    config.enable_bootstrap_token_auth = true;
    config.service_account_key_files = vec![pki.service_account_public_key()];
    config.service_account_signing_key_file = Some(pki.key("sa"));
    config.service_account_issuers = vec![format!("https://kubernetes.default.svc.{}", shape.cluster_domain)];
    config.service_cluster_ip_ranges =
        vec![shape.service_cidr.parse().map_err(|error| anyhow!("{}: {error}", shape.service_cidr))?];
    config.authorization_modes = vec!["Node".into(), "RBAC".into()];
    config.kubelet_client_certificate = Some(pki.certificate("apiserver-kubelet-client"));
    config.kubelet_client_key = Some(pki.key("apiserver-kubelet-client"));
    config.kubelet_certificate_authority = Some(pki.certificate("ca"));
    Ok(config)
}

fn kubelet_config(
    options: &Options,
    shape: &Shape,
    pki: &Pki,
    client: Client,
    node_name: &str,
    node_ip: IpAddr,
    dns: IpAddr,
) -> kubelet::Config {
    let mut settings = kubelet::Settings::new(node_name);
    settings.node_ips = vec![node_ip];
    settings.cri_endpoint = options.cri_socket();
    settings.root_dir = options.data_dir.join("kubelet");
    settings.cert_dir = options.pki_dir();
    settings.pod_logs_dir = options.data_dir.join("logs/pods");
    settings.cgroup_root = options.cgroup();
    // A machine that is also used for other things is often rather full: keep pods off it only when it really is.
    for signal in ["nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"] {
        settings.eviction_hard.insert(signal.into(), "1%".into());
    }
    settings.image_gc_high = 99;
    settings.image_gc_low = 98;
    settings.cluster_dns = vec![dns.to_string()];
    settings.cluster_domain = shape.cluster_domain.clone();
    settings.port = shape.kubelet_port;
    settings.client_ca_file = Some(pki.certificate("ca"));
    settings.tls_cert_file = Some(pki.certificate("kubelet"));
    settings.tls_private_key_file = Some(pki.key("kubelet"));
    kubelet::Config { client, settings }
}

fn dns_config(shape: &Shape, client: Client, gateway: IpAddr) -> Result<dns::Config> {
    let mut config = dns::Config::new(client, vec![(gateway, dns_service::PORT).into()]);
    config.domain = shape.cluster_domain.clone();
    config.upstreams = dns::resolvers(Path::new("/etc/resolv.conf"))?;
    config.ranges = vec![shape.cluster_cidr.clone(), shape.service_cidr.clone()];
    Ok(config)
}

/// The runtime's part of the cluster; also started alone, to take pods away.
pub(crate) fn runtime_config(options: &Options, registries: Option<&Path>) -> runtime::Config {
    let (root, state) = (options.data_dir.join("runtime"), options.run_dir.join("runtime"));
    let mut config = runtime::Config::new(root, state, options.cri_socket());
    config.cni_conf_dir = options.cni_conf_dir();
    config.cni_bin_dirs = vec![options.cni_bin_dir()];
    config.cni_cache_dir = Some(options.data_dir.join("cni/cache"));
    config.images_dir = Some(options.data_dir.join("images"));
    config.registries = registries.filter(|path| path.exists()).map(Path::to_owned);
    config
}

async fn node_ready(client: &Client, name: &str) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let nodes = informers.filtered::<Node>(ListParams::fields(format!("metadata.name={name}")));
    let (sender, mut ready) = watch::channel(false);
    nodes.subscribe(move |event| {
        let conditions = event.object().status.as_ref().and_then(|status| status.conditions.as_ref());
        let is_ready =
            conditions.is_some_and(|conditions| conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True"));
        sender.send_replace(is_ready);
    });
    let stop = CancellationToken::new();
    let _stop_on_return = stop.clone().drop_guard();
    informers.start(stop);
    ready.wait_for(|ready| *ready).await.context("the watch of the node ended")?;
    Ok(())
}

fn user(name: &str, groups: &[&str]) -> UserInfo {
    let groups = groups.iter().map(|group| (*group).to_owned()).collect();
    UserInfo { name: name.to_owned(), groups, ..UserInfo::default() }
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

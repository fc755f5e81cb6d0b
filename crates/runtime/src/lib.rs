//! `cox cri`: a container runtime that speaks CRI v1.
//!
//! Flow: kubelet -> `service` (gRPC) -> `engine` -> `sandbox`, `container`, `image` -> one `shim` process per pod, under which
//! the containers live. The runtime may be killed and restarted at any time: records on disk and the shims carry on.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod blocking;
mod bounds;
mod capabilities;
mod cgroup;
mod container;
mod container_spec;
mod device_filter;
mod disk_usage;
mod engine;
mod error;
mod exec;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod image;
pub mod image_cli;
mod names;
mod network;
mod pod_config;
mod record;
mod rooted;
mod sandbox;
mod seccomp;
mod service;
pub mod shim;
mod signal;
mod spec;
mod stats;
mod streaming;
mod sys;
mod unpack;
mod user;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use futures_util::future::BoxFuture;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use error::Error;
pub use shim::pause;
pub use tls::descriptors::started_with as descriptors_started_with;

/// Flags of `cox cri`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Socket to serve CRI on
    #[arg(long, default_value = "/run/cox/cri.sock", value_name = "PATH")]
    pub listen: PathBuf,
    /// Directory for images and containers
    #[arg(long, default_value = "/var/lib/cox/runtime", value_name = "DIR")]
    pub root: PathBuf,
    /// Directory for sockets and other files of this boot
    #[arg(long, default_value = "/run/cox/runtime", value_name = "DIR")]
    pub state: PathBuf,
    /// Directory of CNI configurations
    #[arg(long, default_value = "/etc/cni/net.d", value_name = "DIR")]
    pub cni_conf_dir: PathBuf,
    /// Directories of CNI plug-ins, in order
    #[arg(long, value_delimiter = ',', default_value = "/opt/cni/bin,/usr/lib/cni", value_name = "DIRS")]
    pub cni_bin_dir: Vec<PathBuf>,
    /// Directory for results of CNI calls
    #[arg(long, default_value = "/var/lib/cni", value_name = "DIR")]
    pub cni_cache_dir: PathBuf,
    /// Directory of image archives that are imported at start
    #[arg(long, default_value = "/var/lib/cox/images", value_name = "DIR")]
    pub images_dir: PathBuf,
    /// Additional RuntimeClass handlers: external OCI runtimes (runc, crun) by path
    #[arg(long, value_delimiter = ',', value_parser = oci_runtime, value_name = "HANDLER=PATH")]
    pub oci_runtime: Vec<(String, PathBuf)>,
    /// Tell the kubelet to use the systemd cgroup driver: pods become slices, containers become scopes
    #[arg(long)]
    pub systemd_cgroup: bool,
    /// Mirrors and credentials of registries, in k3s' format
    #[arg(long, default_value = "/etc/cox/registries.yaml", value_name = "FILE")]
    pub registries: PathBuf,
    /// Directory of <host>/hosts.toml files, in containerd's format
    #[arg(long, default_value = "/etc/containerd/certs.d", value_name = "DIR")]
    pub registry_hosts: PathBuf,
}

/// `crun=/usr/bin/crun`.
fn oci_runtime(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && path.starts_with('/') => Ok((name.into(), path.into())),
        _ => Err("not HANDLER=/PATH".into()),
    }
}

/// What [`run`] needs to know. Every path can be chosen, so that several runtimes can live on one machine.
#[derive(Clone, Debug)]
pub struct Config {
    pub listen: PathBuf,
    pub root: PathBuf,
    pub state: PathBuf,
    pub cni_conf_dir: PathBuf,
    pub cni_bin_dirs: Vec<PathBuf>,
    /// Where results of CNI calls are kept; none is the usual place of all runtimes.
    pub cni_cache_dir: Option<PathBuf>,
    /// Archives imported at start.
    pub images_dir: Option<PathBuf>,
    pub registries: Option<PathBuf>,
    pub registry_hosts: Option<PathBuf>,
    /// Programs that run containers of the RuntimeClass handler they stand under.
    pub oci_runtimes: BTreeMap<String, PathBuf>,
    /// Pods are slices of systemd and containers its scopes.
    pub systemd_cgroup: bool,
    /// The program that shims are started from, as `PROGRAM shim …`; none is the running one.
    pub executable: Option<PathBuf>,
    /// Where images are pulled, if not here: on threads that are in another network than the node's, say.
    pub pulls: Option<tokio::runtime::Handle>,
    /// Told once, when clients can connect.
    pub listening: Arc<Notify>,
}

impl Config {
    /// The usual places below a directory for what lasts and one for what does not.
    pub fn new(root: impl Into<PathBuf>, state: impl Into<PathBuf>, listen: impl Into<PathBuf>) -> Self {
        Self {
            listen: listen.into(),
            root: root.into(),
            state: state.into(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            cni_cache_dir: None,
            images_dir: None,
            registries: Some("/etc/cox/registries.yaml".into()),
            registry_hosts: Some("/etc/containerd/certs.d".into()),
            oci_runtimes: BTreeMap::new(),
            systemd_cgroup: false,
            executable: None,
            pulls: None,
            listening: Arc::default(),
        }
    }

    /// Names that a RuntimeClass may use for us; the empty one is the default.
    fn handlers(&self) -> impl Iterator<Item = &str> {
        let ours = ["", "cox", "runc"].into_iter().filter(|name| !self.oci_runtimes.contains_key(*name));
        ours.chain(self.oci_runtimes.keys().map(String::as_str))
    }

    fn is_handler(&self, name: &str) -> bool {
        self.handlers().any(|known| known == name)
    }
}

impl From<Args> for Config {
    fn from(args: Args) -> Self {
        Self {
            cni_conf_dir: args.cni_conf_dir,
            cni_bin_dirs: args.cni_bin_dir,
            cni_cache_dir: Some(args.cni_cache_dir),
            images_dir: Some(args.images_dir),
            oci_runtimes: args.oci_runtime.into_iter().collect(),
            systemd_cgroup: args.systemd_cgroup,
            registries: Some(args.registries),
            registry_hosts: Some(args.registry_hosts),
            ..Self::new(args.root, args.state, args.listen)
        }
    }
}

/// `cox cri`: serves until a signal asks it to end. Containers keep running.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let on_signal = stop.clone();
    let signals = async move {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        on_signal.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(run(args.into(), stop), signals)?;
    Ok(())
}

/// Serves CRI until `stop` fires.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let (listen, listening) = (config.listen.clone(), config.listening.clone());
    let engine = engine::Engine::open(config, stop.child_token()).await.context("opening the runtime")?;
    sandbox::remove_unfinished(&engine).await;
    if let Some(directory) = engine.config.images_dir.clone() {
        for failure in image::archive::import_directory(&engine.images, &directory).await {
            tracing::warn!(failure, "image archive was not imported");
        }
    }
    tracing::info!(
        socket = %listen.display(),
        sandboxes = engine.sandboxes.lock().len(),
        containers = engine.containers.lock().len(),
        "serving CRI"
    );
    engine.start_sweeping();
    let streaming = streaming::Server::start(&engine).await.context("starting the streaming server")?;
    let runtime = service::Runtime { engine: engine.clone(), streaming };
    let images = service::Images { engine: engine.clone() };
    let socket = cri::Socket::bind(&listen)?;
    listening.notify_one();
    if let Err(error) = sys::release_program_pages() {
        tracing::debug!(%error, "pages that only the start needed stay");
    }
    let served = cri::serve(socket, runtime, images, stop).await;
    engine.close().await;
    served.context("serving CRI")
}

//! `cox node run`: the process of a further node, started by the cluster's process inside the node's namespace.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use cni::netns::Netns;
use cri::v1::{ListPodSandboxRequest, PodSandboxState, RemovePodSandboxRequest, StopPodSandboxRequest};
use futures_util::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::keys;
use super::parts::{Node, runtime_config, start_dns};
use crate::components::{Components, interrupted};
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::{Pki, private_dir};
use crate::settings::Settings;

/// Run one further node of a cluster, inside its network namespace
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// The network namespace of the machine, through which images are pulled
    #[arg(long)]
    host_network: Option<PathBuf>,
    /// Instead of running the node: end its pods, or remove them
    #[arg(long)]
    chore: Option<Chore>,
}

/// What is left to do for a node that no longer runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Chore {
    StopPods,
    RemovePods,
}

pub(crate) async fn main(args: Args) -> Result<()> {
    let options = &args.options;
    private_dir(&options.data_dir)?;
    private_dir(&options.run_dir)?;
    match Lock::take(&options.lock_file())? {
        Ok(lock) => lock.keep(),
        Err(holder) => bail!("process {} runs this node already", holder.pid),
    }
    if let Some(chore) = args.chore {
        return clear_pods(options, chore).await;
    }
    let mut components = Components::new();
    let ended = tokio::select! {
        ended = async {
            start(options, args.host_network.as_deref(), &mut components).await?;
            components.until_stopped().await
        } => ended,
        result = interrupted() => result,
    };
    let finished = components.finish().await;
    ended.and(finished)
}

async fn start(options: &Options, host_network: Option<&Path>, components: &mut Components) -> Result<()> {
    let path = settings_file(options);
    let settings: Settings = serde_json::from_slice(&fs::read(&path).with_context(|| path.display().to_string())?)?;
    let pulls = host_network.map(Pulls::through).transpose()?;
    let clients = keys::clients(&options.data_dir)?;
    let node = Node {
        options,
        settings: &settings,
        pki: &Pki::open(&options.pki_dir()),
        clients: clients.clone(),
        pulls: pulls.as_ref().map(Pulls::handle),
        summaries: Default::default(),
    };
    let gateway = node.start(components).await?;
    start_dns(&settings, clients, gateway, components)?;
    if let Some(pulls) = pulls {
        let stop = components.stop.clone();
        components.spawn("pulls", async move {
            stop.cancelled().await;
            drop(pulls);
            Ok(())
        });
    }
    Ok(())
}

/// Where the cluster's process leaves the node's settings.
pub(super) fn settings_file(options: &Options) -> PathBuf {
    options.data_dir.join("settings.json")
}

/// Threads in the machine's own network: a registry on its loopback, its resolvers and its routes serve every node.
struct Pulls(Option<tokio::runtime::Runtime>);

impl Pulls {
    fn through(path: &Path) -> Result<Pulls> {
        let host = Netns::open(path).with_context(|| path.display().to_string())?;
        // Found out here rather than on a thread that has nobody to tell.
        host.enter(|| ()).context("entering the machine's network")?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("pulls")
            .on_thread_start(move || host.enter_for_good().expect("this process can enter it: it just did"))
            .enable_all()
            .build()?;
        Ok(Pulls(Some(runtime)))
    }

    fn handle(&self) -> tokio::runtime::Handle {
        self.0.as_ref().expect("there until dropped").handle().clone()
    }
}

impl Drop for Pulls {
    fn drop(&mut self) {
        // Waiting for its threads is not possible from a task, and nothing of theirs must be finished.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// Starts the runtime once more, on its own, and has it end or remove every pod: it alone knows what belongs to one.
pub(crate) async fn clear_pods(options: &Options, chore: Chore) -> Result<()> {
    if !options.data_dir.join("runtime").exists() {
        return Ok(());
    }
    let stop = CancellationToken::new();
    let config = runtime_config(options, None);
    let listening = config.listening.clone();
    let mut runtime = tokio::spawn(FutureExt::boxed(runtime::run(config, stop.clone())));
    tokio::select! {
        () = listening.notified() => {}
        ended = &mut runtime => {
            ended.context("the runtime panicked")?.context("starting the runtime")?;
            bail!("the runtime ended as it started");
        }
    }
    let cleared = async {
        let mut client = cri::connect(options.cri_socket()).await?;
        let sandboxes = client.runtime.list_pod_sandbox(ListPodSandboxRequest::default()).await?.into_inner().items;
        let mut pods = JoinSet::new();
        for sandbox in sandboxes {
            let mut runtime = client.runtime.clone();
            pods.spawn(FutureExt::boxed(async move {
                let pod_sandbox_id = sandbox.id;
                if sandbox.state == PodSandboxState::SandboxReady as i32 || chore == Chore::RemovePods {
                    runtime.stop_pod_sandbox(StopPodSandboxRequest { pod_sandbox_id: pod_sandbox_id.clone() }).await?;
                }
                if chore == Chore::RemovePods {
                    runtime.remove_pod_sandbox(RemovePodSandboxRequest { pod_sandbox_id }).await?;
                }
                anyhow::Ok(())
            }));
        }
        let mut results = pods.join_all().await.into_iter();
        results.find(Result::is_err).unwrap_or(Ok(()))
    }
    .await;
    stop.cancel();
    let ended = runtime.await.context("the runtime panicked")?;
    cleared.and(ended)
}

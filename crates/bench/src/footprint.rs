//! The memory of a whole control plane with thousands of pods on hollow nodes: once all of them run, and again after minutes in
//! which pods were deleted and replaced.
//!
//! Ours runs as processes of its own and as `cox up`; the peer is upstream's three programs over an etcd of one member, if
//! they are named. The load comes from this program in a further process (`--inside`), so that the server's figures are the server's
//! alone. It says when a stage is reached, and waits for a word before the next.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Api, Client, DeleteParams, Gvr, ListParams, Patch};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Namespace, Node, Service};
use serde_json::json;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::controllers::{NAMESPACE, deployment};
use crate::report::{self, Better};
use crate::{Args, machines, up};

const PODS: usize = 20_000;
/// Pods of a deployment, and of a node.
const REPLICAS: usize = 100;
const PER_NODE: usize = 40;
const NODE_PREFIX: &str = "coxbench-";
/// Pods that are deleted in a second, while some are.
const CHURN: f64 = 10.0;
/// What follows the last change of a stage.
const SETTLING: Duration = Duration::from_secs(30);
const FILL_TIMEOUT: Duration = Duration::from_secs(1200);
/// How long no further pod may become available.
const STALL_TIMEOUT: Duration = Duration::from_secs(180);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Far above what either side reaches: how fast a client may ask is not what is measured.
const RATE: [&str; 2] = ["--kube-api-qps=5000", "--kube-api-burst=10000"];

/// What one side takes at each stage, in bytes by process.
type Figures = [Vec<(String, u64)>; 2];
const STAGES: [&str; 2] = ["filled", "churned"];

pub(crate) async fn run(args: &Args) -> Result<()> {
    let cox = machines::cox(args.cox.as_deref())?;
    let upstream = Programs::peer(args);
    if upstream.is_none() {
        eprintln!("--kube-apiserver, --kube-controller-manager and --kube-scheduler compare with upstream's programs");
    }
    // Ours come first, so that their figures are there even if the peer fails.
    let ours = [
        ("processes", Side::processes(&args.dir, &Programs::ours(&cox), &cox)?.measure("processes", args)?),
        ("up", Side::up(&args.dir, cox.clone())?.measure("up", args)?),
    ];
    let measure = |programs: Programs| Side::processes(&args.dir, &programs, &cox)?.measure("upstream", args);
    let peer = upstream.map(measure).transpose();
    for (shape, figures) in &ours {
        print(shape, args, figures, peer.as_ref().ok().and_then(Option::as_ref));
    }
    peer.context("upstream's control plane").map(drop)
}

fn pods(args: &Args) -> usize {
    args.pods.unwrap_or(if args.quick { 200 } else { PODS })
}

fn minutes(args: &Args) -> u64 {
    if args.quick { 0 } else { args.minutes }
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn print(shape: &str, args: &Args, ours: &Figures, peer: Option<&Figures>) {
    let sum = |figures: &[(String, u64)]| mib(figures.iter().map(|(_, bytes)| bytes).sum());
    for (at, stage) in STAGES.iter().enumerate() {
        let parameters = format!("pods={} as={shape} stage={stage} minutes={}", pods(args), minutes(args));
        report::line("control-plane", parameters, "MiB", sum(&ours[at]), peer.map(|peer| sum(&peer[at])), Better::Less);
    }
}

/// The programs of a control plane, each with what it is given before the flags that all have.
struct Programs {
    etcd: Option<PathBuf>,
    server: (PathBuf, Vec<&'static str>),
    manager: (PathBuf, Vec<&'static str>),
    scheduler: (PathBuf, Vec<&'static str>),
}

impl Programs {
    fn ours(cox: &Path) -> Programs {
        let part = |name| (cox.to_owned(), vec![name]);
        Programs {
            etcd: None,
            server: part("apiserver"),
            manager: part("controller-manager"),
            scheduler: part("scheduler"),
        }
    }

    fn peer(args: &Args) -> Option<Programs> {
        // Nobody else is to learn of the server, and it has no address that others could reach.
        let alone = vec!["--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"];
        Some(Programs {
            etcd: Some(args.etcd_binary.clone().unwrap_or_else(|| "etcd".into())),
            server: (args.kube_apiserver.clone()?, alone),
            manager: (args.kube_controller_manager.clone()?, Vec::new()),
            scheduler: (args.kube_scheduler.clone()?, Vec::new()),
        })
    }
}

/// A control plane that runs.
struct Side {
    kubeconfig: PathBuf,
    kind: Kind,
    dir: tempfile::TempDir,
}

enum Kind {
    Processes(Vec<(String, Process)>),
    Up(up::Cluster),
}

/// Ended when dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Side {
    fn processes(below: &Path, programs: &Programs, cox: &Path) -> Result<Side> {
        let dir = tempfile::Builder::new().prefix("coxbench-").tempdir_in(below)?;
        testkit::keys::write(dir.path());
        let file = |name: &str| dir.path().join(name).display().to_string();
        let mut running = Vec::new();
        let mut start = |name: &str, program: &Path, words: Vec<String>| -> Result<()> {
            let log = File::create(dir.path().join(format!("{name}.log")))?;
            let mut command = Command::new(program);
            command.args(words).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
            let child = command.spawn().with_context(|| format!("starting {}", program.display()))?;
            running.push((name.to_owned(), Process(child)));
            Ok(())
        };
        let store = match &programs.etcd {
            None => format!("--data-dir={}", file("store")),
            Some(etcd) => {
                let (clients, peers) =
                    (format!("http://127.0.0.1:{}", free_port()?), format!("http://127.0.0.1:{}", free_port()?));
                let words = vec![
                    "--name=m0".to_owned(),
                    "--log-level=error".to_owned(),
                    "--quota-backend-bytes=8589934592".to_owned(),
                    format!("--data-dir={}", file("etcd")),
                    format!("--listen-client-urls={clients}"),
                    format!("--advertise-client-urls={clients}"),
                    format!("--listen-peer-urls={peers}"),
                    format!("--initial-advertise-peer-urls={peers}"),
                    format!("--initial-cluster=m0={peers}"),
                ];
                start("etcd", etcd, words)?;
                format!("--etcd-servers={clients}")
            }
        };
        let given = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let port = free_port()?;
        let mut words = given(&programs.server.1);
        words.extend([
            store,
            "--bind-address=127.0.0.1".to_owned(),
            format!("--secure-port={port}"),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            "--service-cluster-ip-range=10.96.0.0/16".to_owned(),
            "--authorization-mode=Node,RBAC".to_owned(),
        ]);
        words.extend(machines::key_flags(dir.path()));
        start("apiserver", &programs.server.0, words)?;
        let kubeconfig = dir.path().join("kubeconfig");
        std::fs::write(
            &kubeconfig,
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: b\n\
                 clusters:\n- name: b\n  cluster: {{server: 'https://127.0.0.1:{port}', certificate-authority: '{}'}}\n\
                 users:\n- name: b\n  user: {{client-certificate: '{}', client-key: '{}'}}\n\
                 contexts:\n- name: b\n  context: {{cluster: b, user: b}}\n",
                file("ca.crt"),
                file("admin.crt"),
                file("admin.key")
            ),
        )?;
        let component = |words: &[&str]| {
            let mut words = given(words);
            words.extend(given(&RATE));
            words.extend([format!("--kubeconfig={}", file("kubeconfig")), "--leader-elect=false".to_owned()]);
            words.push("--secure-port=0".to_owned());
            words
        };
        let mut words = component(&programs.manager.1);
        words.push(format!("--service-account-private-key-file={}", file("sa.key")));
        words.push(format!("--root-ca-file={}", file("ca.crt")));
        // Components that find no server which is ready end.
        until_ready(cox, &kubeconfig).with_context(|| last_lines(dir.path()))?;
        start("controller-manager", &programs.manager.0, words)?;
        start("scheduler", &programs.scheduler.0, component(&programs.scheduler.1))?;
        Ok(Side { kubeconfig, kind: Kind::Processes(running), dir })
    }

    fn up(below: &Path, cox: PathBuf) -> Result<Side> {
        let cluster = up::Cluster::new(below, cox)?;
        cluster.up()?;
        let dir = tempfile::tempdir_in(below)?;
        Ok(Side { kubeconfig: cluster.kubeconfig(), kind: Kind::Up(cluster), dir })
    }

    /// Puts the load on it and measures at each stage.
    fn measure(mut self, shape: &str, args: &Args) -> Result<Figures> {
        let mut command = match &self.kind {
            Kind::Processes(_) => Command::new(std::env::current_exe()?),
            Kind::Up(cluster) => cluster.inside(std::env::current_exe()?),
        };
        command.arg("memory").arg("--inside").arg(self.dir.path()).arg("--kubeconfig").arg(&self.kubeconfig);
        command.arg(format!("--pods={}", pods(args))).arg(format!("--minutes={}", minutes(args)));
        let started = Instant::now();
        let mut load = Load::start(&mut command)?;
        let mut figures = Figures::default();
        for (stage, figures) in STAGES.iter().zip(&mut figures) {
            load.until(stage).with_context(|| self.last_words()).with_context(|| shape.to_owned())?;
            eprintln!("# {shape}: {stage} after {}s", started.elapsed().as_secs());
            std::thread::sleep(if args.quick { Duration::from_secs(1) } else { SETTLING });
            *figures = self.memory()?;
            for (name, bytes) in &*figures {
                println!("# {shape} {stage} {name} {:.0}MiB", mib(*bytes));
            }
            load.go_on()?;
        }
        Ok(figures)
    }

    fn memory(&mut self) -> Result<Vec<(String, u64)>> {
        match &mut self.kind {
            Kind::Processes(running) => running
                .iter_mut()
                .map(|(name, process)| {
                    ensure!(process.0.try_wait()?.is_none(), "{name} has ended");
                    Ok((name.clone(), report::resident(process.0.id())?))
                })
                .collect(),
            Kind::Up(cluster) => {
                cluster.processes()?.into_iter().map(|pid| Ok(("cox".to_owned(), report::resident(pid)?))).collect()
            }
        }
    }

    /// Which of its processes have ended, and what all of them said last.
    fn last_words(&mut self) -> String {
        let Kind::Processes(running) = &mut self.kind else { return "cox up".to_owned() };
        let mut words = String::new();
        for (name, process) in running {
            if let Ok(Some(status)) = process.0.try_wait() {
                words.push_str(&format!("{name} has ended: {status}\n"));
            }
        }
        words + &last_lines(self.dir.path())
    }
}

/// The end of every log in `dir`.
fn last_lines(dir: &Path) -> String {
    let logs = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut logs: Vec<PathBuf> = logs.filter(|path| path.extension().is_some_and(|is| is == "log")).collect();
    logs.sort();
    let last = |path: &PathBuf| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(5).collect();
        format!("{}: {}", path.display(), lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
    };
    logs.iter().map(last).collect::<Vec<_>>().join("\n")
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

fn until_ready(cox: &Path, kubeconfig: &Path) -> Result<()> {
    for _ in 0..600 {
        let mut asked = Command::new(cox);
        asked.args(["kubectl", "get", "--raw=/readyz", "--kubeconfig"]).arg(kubeconfig);
        if asked.stdin(Stdio::null()).output()?.status.success() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bail!("the server of {} does not become ready", kubeconfig.display())
}

/// The process that puts the load on a control plane, as its parent sees it.
struct Load {
    process: Process,
    says: BufReader<ChildStdout>,
    hears: ChildStdin,
}

impl Load {
    fn start(command: &mut Command) -> Result<Load> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (says, hears) = (child.stdout.take(), child.stdin.take());
        let (says, hears) = says.zip(hears).context("no pipes to the load")?;
        Ok(Load { process: Process(child), says: BufReader::new(says), hears })
    }

    fn until(&mut self, stage: &str) -> Result<()> {
        let mut line = String::new();
        self.says.read_line(&mut line)?;
        ensure!(line.trim() == stage, "the load was not {stage}: {:?}, {line:?}", self.process.0.try_wait()?);
        Ok(())
    }

    fn go_on(&mut self) -> Result<()> {
        Ok(writeln!(self.hears, "go on")?)
    }
}

/// The load itself.
pub(crate) async fn load(args: &Args, kubeconfig: &Path) -> Result<()> {
    let client = Client::from_kubeconfig(&Kubeconfig::load(Some(kubeconfig))?, &Overrides::default())?;
    machines::until_serving(&client).await?;
    cordon_others(&client).await?;
    let wanted = pods(args);
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    let mut config = sim::Config::new(client.clone(), wanted.div_ceil(PER_NODE));
    config.name_prefix = NODE_PREFIX.into();
    let mut nodes = tokio::spawn(sim::run(config, stop.clone()));
    let namespace = json!({ "metadata": { "name": NAMESPACE } });
    client.all::<Namespace>().create(&serde_json::from_value(namespace)?).await.context("creating the namespace")?;
    let (deployments, services) = (client.namespaced::<Deployment>(NAMESPACE), client.namespaced::<Service>(NAMESPACE));
    for index in 0..wanted.div_ceil(REPLICAS) {
        let name = format!("web-{index}");
        let service =
            json!({ "metadata": { "name": name }, "spec": { "selector": { "app": name }, "ports": [{ "port": 80 }] } });
        services.create(&serde_json::from_value(service)?).await.context("creating a service")?;
        let replicas = REPLICAS.min(wanted - index * REPLICAS);
        deployments.create(&deployment(index, i32::try_from(replicas)?)?).await.context("creating a deployment")?;
    }
    let work = async {
        until_available(&deployments, wanted).await?;
        say(STAGES[0]).await?;
        churn(&client, Duration::from_secs(args.minutes * 60)).await?;
        say(STAGES[1]).await
    };
    tokio::select! {
        // Without nodes, pods would be waited for in vain.
        ended = &mut nodes => {
            ended?.context("the hollow nodes")?;
            bail!("the hollow nodes have ended")
        }
        worked = work => worked?,
    }
    stop.cancel();
    nodes.await?
}

/// Waits for all pods, and says from time to time how many there are.
async fn until_available(deployments: &Api<Deployment>, wanted: usize) -> Result<()> {
    let started = Instant::now();
    let (mut most, mut grew, mut reported) = (0, started, started);
    loop {
        let all = deployments.list(&ListParams::default()).await?.items;
        let available = all.iter().filter_map(|deployment| deployment.status.as_ref()?.available_replicas).sum::<i32>();
        let available = usize::try_from(available)?;
        if available >= wanted {
            return Ok(());
        }
        let now = Instant::now();
        if available > most {
            (most, grew) = (available, now);
        }
        let state = format!("{available} of {wanted} pods are available after {}s", (now - started).as_secs());
        ensure!(now - grew < STALL_TIMEOUT, "{state}, and none came in {}s", STALL_TIMEOUT.as_secs());
        ensure!(now - started < FILL_TIMEOUT, "{state}");
        if now - reported >= PROGRESS_INTERVAL {
            eprintln!("# {state}");
            reported = now;
        }
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
}

/// Tells of a stage, and waits until it was measured.
async fn say(stage: &'static str) -> Result<()> {
    let reported = tokio::task::spawn_blocking(move || {
        println!("{stage}");
        std::io::stdin().read_line(&mut String::new())
    });
    ensure!(reported.await?? > 0, "nobody measures any more");
    Ok(())
}

/// Real nodes would try to run what only hollow ones can.
async fn cordon_others(client: &Client) -> Result<()> {
    let nodes = client.all::<Node>();
    for node in nodes.list(&ListParams::default()).await?.items {
        let name = node.metadata.name.unwrap_or_default();
        nodes.patch(&name, &Patch::merge(json!({ "spec": { "unschedulable": true } }))).await?;
    }
    Ok(())
}

/// Deletes pods one after another; their controllers replace them.
async fn churn(client: &Client, time: Duration) -> Result<()> {
    let pods = Gvr::new("", "v1", "pods");
    let (api, deadline) = (client.metadata(&pods, Some(NAMESPACE)), Instant::now() + time);
    let mut ticks = tokio::time::interval(Duration::from_secs_f64(1.0 / CHURN));
    while Instant::now() < deadline {
        for pod in api.list(&ListParams::default()).await?.items {
            ticks.tick().await;
            if Instant::now() >= deadline {
                break;
            }
            match api.delete(pod.metadata.name.as_deref().unwrap_or_default(), &DeleteParams::default()).await {
                Err(error) if !error.is_not_found() => return Err(error).context("deleting a pod"),
                _ => {}
            }
        }
    }
    Ok(())
}

//! Our runtime beside containerd with runc, driven by the same CRI client, in one run and in turns.
//!
//! A pod is one sandbox and one container that sleeps; its time is from RunPodSandbox to the answer of
//! StartContainer. `network=bridge` gives each pod an address, ours by our own plug-ins and the peer by the standard
//! ones; `network=host` leaves CNI out. Memory of a pod is all that it costs beside its program: shim and pause.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use cri::v1;
use futures_util::future::try_join_all;
use testkit::runtimes;

use crate::Args;
use crate::report::{Better, Times, line, resident};

const IMAGE: &str = "localhost/busybox:1";

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    // Pods get addresses here, and bridges and mounts are made: none may reach the machine's own.
    if let Some(code) = testkit::suite::in_namespaces() {
        ensure!(code == std::process::ExitCode::SUCCESS, "the benchmark failed");
        return Ok(());
    }
    ensure!(
        Command::new("ip").args(["link", "set", "lo", "up"]).status()?.success(),
        "no ip: apt-get install iproute2"
    );
    let dir = tempfile::Builder::new().prefix("coxbn").tempdir_in(&args.dir)?;
    let ours = Runtime::ours(&dir.path().join("o")).await?;
    let peer = Runtime::containerd(&dir.path().join("p")).await?;
    let (in_a_row, at_once) = if args.quick { (3, 3) } else { (50, 20) };
    let idle = (resident(ours.pid())?, resident(peer.pid())?);
    if args.wants("start serial") || args.wants("memory") {
        for network in [Network::Host, Network::Bridge] {
            serial(&args, &ours, &peer, network, in_a_row).await?;
        }
    }
    if args.wants("memory") {
        memory(&ours, &peer, idle, 2 * in_a_row)?;
    }
    ours.remove_all().await?;
    peer.remove_all().await?;
    if args.wants("start parallel") {
        for network in [Network::Host, Network::Bridge] {
            let mut totals = Vec::new();
            for runtime in [&ours, &peer] {
                let started = Instant::now();
                try_join_all((0..at_once).map(|number| runtime.start_pod(format!("p{number}"), network))).await?;
                totals.push(started.elapsed().as_secs_f64() * 1e3);
                runtime.remove_all().await?;
            }
            let parameters = format!("network={} pods={at_once}", network.name());
            line("start parallel", parameters, "ms", totals[0], totals[1], Better::Less);
        }
    }
    Ok(())
}

/// Pods one after the other, ours and the peer's in turns, so that what else the machine does hits both.
async fn serial(args: &Args, ours: &Runtime, peer: &Runtime, network: Network, pods: usize) -> anyhow::Result<()> {
    let mut times = [Times::default(), Times::default()];
    let mut cpu = [0.0, 0.0];
    for number in 0..pods {
        for ((runtime, times), cpu) in [ours, peer].into_iter().zip(&mut times).zip(&mut cpu) {
            let before = runtime.cpu_seconds()?;
            let started = Instant::now();
            runtime.start_pod(format!("s{}-{number}", network.name()), network).await?;
            times.add(started.elapsed());
            *cpu += runtime.cpu_seconds()? - before;
        }
    }
    if args.wants("start serial") {
        let parameters = |what: &str| format!("network={} pods={pods} {what}", network.name());
        let [ours, peer] = &mut times;
        for percent in [50, 90] {
            let what = format!("p{percent}");
            line(
                "start serial",
                parameters(&what),
                "ms",
                ours.percentile(percent),
                peer.percentile(percent),
                Better::Less,
            );
        }
        let [ours, peer] = cpu.map(|seconds| seconds * 1e3 / pods as f64);
        line("start serial", parameters("cpu"), "ms", ours, peer, Better::Less);
    }
    Ok(())
}

fn memory(ours: &Runtime, peer: &Runtime, idle: (u64, u64), pods: usize) -> anyhow::Result<()> {
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let per_pod = |runtime: &Runtime| anyhow::Ok(mib(runtime.pod_memory()?) / pods as f64);
    let parameters = format!("pods={pods}");
    line("memory", format!("{parameters} per-pod"), "MiB", per_pod(ours)?, per_pod(peer)?, Better::Less);
    line("memory", "pods=0 daemon", "MiB", mib(idle.0), mib(idle.1), Better::Less);
    let daemon = |runtime: &Runtime| anyhow::Ok(mib(resident(runtime.pid())?));
    line("memory", format!("{parameters} daemon"), "MiB", daemon(ours)?, daemon(peer)?, Better::Less);
    Ok(())
}

#[derive(Clone, Copy, PartialEq)]
enum Network {
    Host,
    Bridge,
}

impl Network {
    fn name(self) -> &'static str {
        match self {
            Network::Host => "host",
            Network::Bridge => "bridge",
        }
    }
}

/// A runtime of its own directories, in cgroups of its own by which its work is counted.
struct Runtime {
    dir: PathBuf,
    process: Child,
    cgroup: Cgroup,
    cri: cri::Clients,
}

impl Runtime {
    async fn ours(dir: &Path) -> anyhow::Result<Runtime> {
        let cox = std::env::current_exe()?.with_file_name("cox");
        ensure!(cox.exists(), "no {}: build it beside this program with: cargo build --profile dist", cox.display());
        runtimes::prepare(dir, "coxb0", "10.88.0.0/16");
        std::fs::write(dir.join("archives/busybox.tar"), testkit::images::busybox_image().docker_archive(IMAGE))?;
        let mut command = runtimes::ours(&cox, dir, &runtimes::link_plugins(&cox, dir));
        command.env("COX_LOG", "warn");
        Runtime::start(dir, "coxbench-ours", command).await
    }

    async fn containerd(dir: &Path) -> anyhow::Result<Runtime> {
        runtimes::prepare(dir, "coxb1", "10.89.0.0/16");
        let runtime =
            Runtime::start(dir, "coxbench-peer", runtimes::containerd(dir, Path::new("/usr/lib/cni"))).await?;
        runtimes::import_pause(dir);
        runtimes::import(dir, IMAGE, &testkit::images::busybox_image());
        Ok(runtime)
    }

    async fn start(dir: &Path, name: &str, mut command: Command) -> anyhow::Result<Runtime> {
        let log = std::fs::File::create(dir.join("log"))?;
        let program = command.get_program().to_owned();
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().with_context(|| {
            format!(
                "no {} to compare with; install it with: apt-get install containerd runc containernetworking-plugins",
                program.display()
            )
        })?;
        let cgroup = Cgroup::create(&format!("{name}-{}", std::process::id()), process.id())?;
        let deadline = Instant::now() + Duration::from_secs(60);
        let cri = loop {
            match cri::connect(runtimes::socket(dir)).await {
                Ok(clients) if clients.runtime.clone().version(v1::VersionRequest::default()).await.is_ok() => {
                    break clients;
                }
                _ if Instant::now() > deadline => bail!("{} does not answer", program.display()),
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        Ok(Runtime { dir: dir.into(), process, cgroup, cri })
    }

    fn pid(&self) -> u32 {
        self.process.id()
    }

    /// What daemon, shims and plug-ins have used; not the containers, which are in cgroups of their own.
    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        self.cgroup.cpu_seconds()
    }

    async fn start_pod(&self, name: String, network: Network) -> anyhow::Result<()> {
        let pod = self.pod_config(&name, network);
        let mut runtime = self.cri.runtime.clone();
        let request = v1::RunPodSandboxRequest { config: Some(pod.clone()), runtime_handler: String::new() };
        let pod_sandbox_id = runtime.run_pod_sandbox(request).await?.into_inner().pod_sandbox_id;
        let options = pod.linux.as_ref().and_then(|l| l.security_context.as_ref()?.namespace_options.clone());
        let config = v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: "c".into(), attempt: 0 }),
            image: Some(v1::ImageSpec { image: IMAGE.into(), ..Default::default() }),
            command: vec!["sleep".into(), "1000000".into()],
            log_path: "c.log".into(),
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: options,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = v1::CreateContainerRequest { pod_sandbox_id, config: Some(config), sandbox_config: Some(pod) };
        let container_id = runtime.create_container(request).await?.into_inner().container_id;
        runtime.start_container(v1::StartContainerRequest { container_id }).await?;
        Ok(())
    }

    fn pod_config(&self, name: &str, network: Network) -> v1::PodSandboxConfig {
        let (network, hostname) = match network {
            // The node's network comes with the node's name.
            Network::Host => (v1::NamespaceMode::Node, String::new()),
            Network::Bridge => (v1::NamespaceMode::Pod, name.to_string()),
        };
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname,
            log_directory: self.dir.join("logs").join(name).display().to_string(),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", self.cgroup.pods),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        network: network.into(),
                        pid: v1::NamespaceMode::Container.into(),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    async fn remove_all(&self) -> anyhow::Result<()> {
        let mut runtime = self.cri.runtime.clone();
        let pods = runtime.list_pod_sandbox(v1::ListPodSandboxRequest::default()).await?.into_inner().items;
        for pod in pods {
            runtime.stop_pod_sandbox(v1::StopPodSandboxRequest { pod_sandbox_id: pod.id.clone() }).await?;
            runtime.remove_pod_sandbox(v1::RemovePodSandboxRequest { pod_sandbox_id: pod.id }).await?;
        }
        Ok(())
    }

    /// Proportional memory of all shims and pauses, in bytes.
    fn pod_memory(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for pid in self.cgroup.processes(&self.cgroup.daemon) {
            sum += if pid == self.pid() { 0 } else { proportional(pid)? };
        }
        for pod in self.cgroup.children(&self.cgroup.pods) {
            for leaf in self.cgroup.children(&pod) {
                for pid in self.cgroup.processes(&leaf) {
                    // The container's own program is the same on both sides, and no cost of the runtime.
                    let is_workload = std::fs::read_to_string(format!("/proc/{pid}/cmdline"))?.starts_with("sleep\0");
                    sum += if is_workload { 0 } else { proportional(pid)? };
                }
            }
        }
        Ok(sum)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        // A run that failed leaves pods: all of them are in our cgroups.
        let pods = self.cgroup.children(&self.cgroup.pods);
        let leaves = pods.iter().flat_map(|pod| self.cgroup.children(pod));
        let pids = leaves.flat_map(|leaf| self.cgroup.processes(&leaf));
        for pid in pids.chain(self.cgroup.processes(&self.cgroup.daemon)) {
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).stderr(Stdio::null()).status();
        }
        let _ = self.process.wait();
        self.cgroup.remove();
    }
}

/// The cgroups of one runtime: one for the daemon and all it starts, one that pods are put below.
struct Cgroup {
    trees: cgroup::Hierarchies,
    /// The tree that counts the work of processes.
    root: PathBuf,
    daemon: String,
    pods: String,
}

impl Cgroup {
    fn create(name: &str, pid: u32) -> anyhow::Result<Cgroup> {
        let trees = cgroup::Hierarchies::detect()?;
        let root = trees.directory("cpuacct", "/").context("no cgroups count the work of processes")?;
        let cgroup = Cgroup { trees, root, daemon: format!("/{name}"), pods: format!("/{name}-pods") };
        let daemon = cgroup.path(&cgroup.daemon);
        std::fs::create_dir_all(&daemon)?;
        std::fs::write(daemon.join("cgroup.procs"), pid.to_string()).context("moving the runtime into its cgroup")?;
        Ok(cgroup)
    }

    fn path(&self, cgroup: &str) -> PathBuf {
        self.root.join(cgroup.trim_start_matches('/'))
    }

    fn cpu_seconds(&self) -> anyhow::Result<f64> {
        let daemon = self.path(&self.daemon);
        if let Ok(nanoseconds) = std::fs::read_to_string(daemon.join("cpuacct.usage")) {
            return Ok(nanoseconds.trim().parse::<f64>()? / 1e9);
        }
        let stat = std::fs::read_to_string(daemon.join("cpu.stat"))?;
        let usage = stat.lines().find_map(|line| line.strip_prefix("usage_usec ")).context("cpu.stat has no usage")?;
        Ok(usage.trim().parse::<f64>()? / 1e6)
    }

    fn processes(&self, cgroup: &str) -> Vec<u32> {
        let procs = std::fs::read_to_string(self.path(cgroup).join("cgroup.procs")).unwrap_or_default();
        procs.lines().filter_map(|pid| pid.parse().ok()).collect()
    }

    fn children(&self, cgroup: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.path(cgroup)).into_iter().flatten().flatten();
        let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        directories.map(|entry| format!("{cgroup}/{}", entry.file_name().display())).collect()
    }

    fn remove(&self) {
        for name in [&self.daemon, &self.pods] {
            if let Err(error) = self.trees.remove(name) {
                eprintln!("removing the cgroup {name}: {error}");
            }
        }
    }
}

/// Memory of a process, pages shared with others divided among them, in bytes.
fn proportional(pid: u32) -> anyhow::Result<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    Ok(kilobytes.with_context(|| format!("process {pid} has no Pss"))? * 1024)
}

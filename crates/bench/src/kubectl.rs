//! Our kubectl beside Debian's: start to exit of the same command lines against one server, which runs in this process.
//!
//! Cases: `version` (start-up alone), `get warm` (discovery in its cache), `get cold` (no cache, 100 custom groups),
//! `apply 100` (100 new objects in one file), `get all` (`get pods -A` of thousands that run, with what the server had to do for it). Sides take turns, so that both meet the same noise. Memory is measured in two
//! ways, both at its peak: `resident` counts the pages of the program's file that the kernel maps around those in use, as
//! GNU time reports it (asking the kernel from here would count this process too, from which the child is cloned before it
//! becomes kubectl); `charged` is what the process takes from the machine beyond its file in the page cache, by cgroup.
//! It is measured of `cox` by the name of kubectl and, where it was built, of the program that is kubectl alone.
//! How much `resident` is for the same program depends on how its file came into the page cache, and on the order of its
//! functions: `scripts/order` builds with those of kubectl side by side.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use apiserver::{Config, Server, Storage};
use client::Client;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use tokio_util::sync::CancellationToken;

use crate::Args;
use crate::report::{Better, Times, line};

/// Custom groups that a cold start has to learn about.
const GROUPS: usize = 100;
/// Pods of `get all`.
const PODS: usize = 20_000;
/// Objects of `apply 100`.
const OBJECTS: usize = 100;

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let dir = tempfile::tempdir_in(&args.dir)?;
    let cluster = Cluster::start(dir.path()).await?;
    let sides = Sides { ours: Side::ours(dir.path())?, peer: Side::peer(dir.path())? };
    println!("# peer: {}", sides.peer.version()?);
    cluster.fill(&sides.ours)?;
    let runs = if args.quick { 3 } else { 40 };
    if args.wants("version") {
        sides.race("version", "--client", runs, |side, _| side.run(&["version", "--client"]))?;
    }
    if args.wants("get warm") {
        let get = ["get", "pods", "-n", "bench"];
        // The first run of each fills its cache.
        sides.ours.run(&get)?;
        sides.peer.run(&get)?;
        sides.race("get warm", "pods=10", runs, |side, _| side.run(&get))?;
        let alone = Side::alone(dir.path())?;
        if let Some(alone) = &alone {
            alone.run(&get)?;
        }
        sides.memory("get warm", "", &get, alone.as_ref())?;
    }
    if args.wants("get cold") {
        let parameters = format!("groups={GROUPS}");
        sides.race("get cold", parameters, runs.min(10), |side, _| {
            side.forget()?;
            side.run(&["get", "pods", "-n", "bench"])
        })?;
    }
    if args.wants("apply 100") {
        let file = dir.path().join("objects.yaml");
        std::fs::write(&file, objects())?;
        let file = file.display().to_string();
        for side in [&sides.ours, &sides.peer] {
            for run in 0..runs.min(5) {
                side.run(&["create", "namespace", &side.namespace(run)])?;
            }
        }
        sides.race("apply 100", format!("objects={OBJECTS}"), runs.min(5), |side, run| {
            side.run(&["apply", "-n", &side.namespace(run), "-f", &file])
        })?;
    }
    if args.wants("get all") {
        let pods = args.pods.unwrap_or(if args.quick { 500 } else { PODS });
        cluster.fill_with_pods(pods).await?;
        let (get, parameters) = (["get", "pods", "-A"], format!("pods={pods}"));
        for side in [&sides.ours, &sides.peer] {
            let (shown, _) = side.output(&get)?;
            let lines = shown.iter().filter(|byte| **byte == b'\n').count();
            anyhow::ensure!(lines > pods, "{} shows {lines} lines of {pods} pods", side.name);
        }
        sides.race("get all", &parameters, runs.min(5), |side, _| side.run(&get))?;
        sides.memory("get all", &format!("{parameters} "), &get, Side::alone(dir.path())?.as_ref())?;
    }
    cluster.stop.cancel();
    Ok(())
}

fn objects() -> String {
    let one = |i: usize| {
        format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: object-{i}\n  labels:\n    app: bench\ndata:\n  key: value-{i}\n"
        )
    };
    (0..OBJECTS).map(one).collect::<Vec<_>>().join("---\n")
}

struct Sides {
    ours: Side,
    peer: Side,
}

impl Sides {
    fn race(
        &self,
        case: &str,
        parameters: impl std::fmt::Display,
        runs: usize,
        work: impl Fn(&Side, usize) -> anyhow::Result<Duration>,
    ) -> anyhow::Result<()> {
        let (mut ours, mut peer) = (Times::default(), Times::default());
        for run in 0..runs {
            ours.add(work(&self.ours, run)?);
            peer.add(work(&self.peer, run)?);
        }
        line(case, parameters, "ms", ours.percentile(50), peer.percentile(50), Better::Less);
        Ok(())
    }
}

impl Sides {
    /// What a command line takes at its peak, in both ways of counting.
    fn memory(&self, case: &str, parameters: &str, command: &[&str], alone: Option<&Side>) -> anyhow::Result<()> {
        type Measure = fn(&Side, &[&str]) -> anyhow::Result<f64>;
        for (kind, of) in [("resident", Side::resident as Measure), ("charged", Side::charged as Measure)] {
            let peer = of(&self.peer, command)?;
            for (program, side) in [("cox", Some(&self.ours)), ("kubectl", alone)] {
                let Some(side) = side else { continue };
                let parameters = format!("{parameters}memory={kind} program={program}");
                line(case, parameters, "MiB", of(side, command)?, peer, Better::Less);
            }
        }
        Ok(())
    }
}

/// A kubectl with a home of its own.
struct Side {
    name: &'static str,
    program: PathBuf,
    home: PathBuf,
}

impl Side {
    /// `cox` beside this program under the name `kubectl`, as people use it; else kubectl alone.
    fn ours(dir: &Path) -> anyhow::Result<Side> {
        let here = std::env::current_exe()?;
        let cox = here.with_file_name("cox");
        if cox.exists() {
            let link = dir.join("kubectl");
            std::os::unix::fs::symlink(cox, &link)?;
            return Side::new(dir, "ours", link);
        }
        let hint =
            || format!("no kubectl of ours beside {}; build it with: cargo build --profile dist", here.display());
        Side::alone(dir)?.with_context(hint)
    }

    /// The program that is kubectl and nothing else, for machines that only need a client (`cargo build --profile dist -p kubectl`).
    fn alone(dir: &Path) -> anyhow::Result<Option<Side>> {
        let program = std::env::current_exe()?.with_file_name("kubectl");
        program.exists().then(|| Side::new(dir, "alone", program)).transpose()
    }

    fn peer(dir: &Path) -> anyhow::Result<Side> {
        Side::new(dir, "peer", testkit::peers::kubectl())
    }

    fn new(dir: &Path, name: &'static str, program: PathBuf) -> anyhow::Result<Side> {
        let home = dir.join(name);
        std::fs::create_dir_all(home.join(".kube"))?;
        std::fs::copy(dir.join("kubeconfig"), home.join(".kube/config"))?;
        Ok(Side { name, program, home })
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(args).env("HOME", &self.home).env_remove("KUBECONFIG").stdin(Stdio::null());
        command
    }

    fn version(&self) -> anyhow::Result<String> {
        let output = self.command(&["version", "--client", "-o", "json"]).output();
        let output = output.context("no kubectl to compare with; install it with: scripts/deps")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split("\"gitVersion\": \"").nth(1).and_then(|t| t.split('"').next()).unwrap_or("unknown").to_owned())
    }

    /// Start to exit.
    fn run(&self, args: &[&str]) -> anyhow::Result<Duration> {
        self.output(args).map(|(_, took)| took)
    }

    /// What it says, and how long that took from start to exit.
    fn output(&self, args: &[&str]) -> anyhow::Result<(Vec<u8>, Duration)> {
        let mut command = self.command(args);
        let started = Instant::now();
        let output = command.output().with_context(|| format!("starting {}", self.program.display()))?;
        let took = started.elapsed();
        if !output.status.success() {
            bail!("{} {args:?}: {}", self.program.display(), String::from_utf8_lossy(&output.stderr));
        }
        Ok((output.stdout, took))
    }

    /// MiB resident at most.
    fn resident(&self, args: &[&str]) -> anyhow::Result<f64> {
        let report = self.home.join("memory");
        let mut command = Command::new("time");
        command.args(["-f", "%M", "-o"]).arg(&report).arg(&self.program).args(args);
        command.env("HOME", &self.home).env_remove("KUBECONFIG").stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().context("no GNU time; install it with: scripts/deps")?;
        let text = std::fs::read_to_string(&report)?;
        let kib: f64 =
            text.trim().parse().with_context(|| format!("time, which ended with {status}, says {text:?}"))?;
        Ok(kib / 1024.0)
    }

    /// MiB charged at most, to a cgroup in which nothing else runs. Its file is in the page cache by now, on nobody's bill.
    fn charged(&self, args: &[&str]) -> anyhow::Result<f64> {
        let trees = cgroup::Hierarchies::detect()?;
        let peak = match trees.version() {
            cgroup::Version::V1 => "memory.max_usage_in_bytes",
            cgroup::Version::V2 => "memory.peak",
        };
        let name = format!("coxbench-{}-{}", self.name, std::process::id());
        let cgroup = trees.directory("memory", &name).context("no cgroups count memory")?;
        trees.make(&name)?;
        let mut enter = Command::new("sh");
        enter.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.join("cgroup.procs"));
        enter.arg(&self.program).args(args).stdin(Stdio::null()).stdout(Stdio::null());
        enter.env("HOME", &self.home).env_remove("KUBECONFIG");
        let charged = enter.status().context("starting sh").and_then(|status| {
            let bytes = std::fs::read_to_string(cgroup.join(peak))?;
            anyhow::ensure!(
                status.success(),
                "{} {args:?} in {} ended with {status}",
                self.program.display(),
                cgroup.display()
            );
            Ok(bytes.trim().parse::<f64>()? / f64::from(1 << 20))
        });
        trees.remove_empty(&name)?;
        charged
    }

    fn forget(&self) -> anyhow::Result<()> {
        let cache = self.home.join(".kube/cache");
        if cache.exists() {
            std::fs::remove_dir_all(cache)?;
        }
        Ok(())
    }

    fn namespace(&self, run: usize) -> String {
        format!("{}-{run}", self.name)
    }
}

/// Our API server over TLS on a free port.
struct Cluster {
    client: Client,
    stop: CancellationToken,
}

impl Cluster {
    async fn start(dir: &Path) -> anyhow::Result<Cluster> {
        testkit::keys::write(dir);
        let file = |name: &str| Some(dir.join(name));
        let mut config = Config::new(Storage::Embedded(dir.join("store")));
        config.bind = "127.0.0.1:0".parse()?;
        config.tls_cert_file = file("server.crt");
        config.tls_private_key_file = file("server.key");
        config.client_ca_file = file("ca.crt");
        config.disable_admission_plugins = vec!["ServiceAccount".to_owned()];
        let server = Server::new(config).await?;
        let path = |name: &str| dir.join(name).display().to_string();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: b\nclusters:\n- name: b\n  cluster:\n    server: https://{}\n    certificate-authority: {}\n\
             users:\n- name: b\n  user:\n    client-certificate: {}\n    client-key: {}\ncontexts:\n- name: b\n  context:\n    cluster: b\n    user: b\n",
            server.address(),
            path("ca.crt"),
            path("admin.crt"),
            path("admin.key")
        );
        std::fs::write(dir.join("kubeconfig"), kubeconfig)?;
        let stop = CancellationToken::new();
        let client = Client::in_process(server.handler(), api::UserInfo::new("admin", &[api::user::MASTERS]));
        // Ends with the token, at the end of the comparison.
        tokio::spawn(server.serve(stop.clone()));
        Ok(Cluster { client, stop })
    }

    /// Pods that run, so that each has all that a row shows.
    async fn fill_with_pods(&self, count: usize) -> anyhow::Result<()> {
        const WRITERS: usize = 32;
        let pods = self.client.namespaced::<Pod>("default");
        let all = futures_util::stream::iter(0..count).map(|at| {
            let pods = pods.clone();
            async move {
                let mut pod: Pod = serde_json::from_value(crate::memory::running_pod(at))?;
                (pod.metadata.resource_version, pod.metadata.uid, pod.metadata.managed_fields) = (None, None, None);
                let status = pod.status.take();
                let mut made = pods.create(&pod).await?;
                made.status = status;
                pods.update_status(&made).await?;
                anyhow::Ok(())
            }
        });
        all.buffer_unordered(WRITERS).try_collect().await
    }

    /// Ten pods, and custom groups for discovery to tell about.
    fn fill(&self, side: &Side) -> anyhow::Result<()> {
        let mut text = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: bench\n".to_owned();
        for i in 0..10 {
            text.push_str(&format!("---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: pod-{i}\n  namespace: bench\nspec:\n  containers:\n  - name: c\n    image: nginx\n"));
        }
        for i in 0..GROUPS {
            text.push_str(&format!(
                "---\napiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata:\n  name: widgets.group{i}.example.com\nspec:\n  group: group{i}.example.com\n  scope: Namespaced\n  names: {{plural: widgets, singular: widget, kind: Widget}}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema:\n      openAPIV3Schema: {{type: object}}\n"
            ));
        }
        let file = side.home.join("fill.yaml");
        std::fs::write(&file, text)?;
        side.run(&["apply", "-f", &file.display().to_string()]).map(|_| ())
    }
}

//! `cox up` as a person meets it: time to Ready and DNS, memory, idle CPU, size of the binary.
//!
//! The cluster runs in a network namespace of its own with no way out. There is no peer that can be had from a package
//! registry: the figures stand beside what we aim for, and the ratio says how much better than that they are.

use crate::Args;
use crate::report::{self, Better, line, median};
use anyhow::{Context, bail};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

const AIM_READY_SECONDS: f64 = 2.0;
const AIM_MEMORY_MB: f64 = 100.0;
const AIM_IDLE_PERCENT: f64 = 0.5;
const AIM_BINARY_MB: f64 = 40.0;
/// What a fresh cluster still has to do before it is idle.
const SETTLING: Duration = Duration::from_secs(15);

pub(crate) async fn run(args: Args) -> anyhow::Result<()> {
    let rounds = if args.quick { 1 } else { 5 };
    let idle = Duration::from_secs(if args.quick { 5 } else { 60 });
    let program = std::env::current_exe()?.with_file_name("cox");
    let size = std::fs::metadata(&program)
        .with_context(|| format!("{} is not there: cargo build --profile dist", program.display()))?
        .len();
    line("binary", "aim=peer", "MB", size as f64 / 1e6, AIM_BINARY_MB, Better::Less);

    let mut first = Vec::new();
    let mut again = Vec::new();
    for round in 0..rounds {
        let cluster = Cluster::new(&args.dir, program.clone())?;
        first.push(cluster.up()?);
        if round + 1 < rounds {
            cluster.cox(&["down"])?;
            again.push(cluster.up()?);
            continue;
        }
        std::thread::sleep(if args.quick { Duration::from_secs(1) } else { SETTLING });
        let processes = cluster.processes()?;
        let (resident, proportional) = memory(&processes)?;
        let parameters = format!("processes={} aim=peer", processes.len());
        line("memory-rss", &parameters, "MB", resident / 1e6, AIM_MEMORY_MB, Better::Less);
        line("memory-pss", &parameters, "MB", proportional / 1e6, AIM_MEMORY_MB, Better::Less);
        let before = cpu_seconds(&processes)?;
        std::thread::sleep(idle);
        let used = (cpu_seconds(&processes)? - before) / idle.as_secs_f64() * 100.0;
        line("idle-cpu", format!("seconds={} aim=peer", idle.as_secs()), "%", used, AIM_IDLE_PERCENT, Better::Less);
    }
    line("ready", format!("rounds={rounds} aim=peer"), "s", median(first), AIM_READY_SECONDS, Better::Less);
    if !again.is_empty() {
        line("resume", format!("rounds={} aim=peer", again.len()), "s", median(again), AIM_READY_SECONDS, Better::Less);
    }
    Ok(())
}

/// A cluster in a namespace of its own; deleted at the end.
pub(crate) struct Cluster {
    program: PathBuf,
    namespace: String,
    dir: tempfile::TempDir,
}

impl Cluster {
    pub(crate) fn new(dir: &Path, program: PathBuf) -> anyhow::Result<Cluster> {
        let dir = tempfile::Builder::new().prefix("coxbench-").tempdir_in(dir)?;
        let namespace = format!("coxbench-{}", std::process::id());
        run_command(Command::new("ip").args(["netns", "add", &namespace]))?;
        let cluster = Cluster { program, namespace, dir };
        for words in testkit::host::ISOLATED {
            run_command(cluster.inside("ip").args(words.split(' ')))?;
        }
        Ok(cluster)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }

    /// A program in the cluster's network.
    pub(crate) fn inside(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.namespace)).arg("--").arg(program.as_ref());
        command
    }

    fn cox(&self, words: &[&str]) -> anyhow::Result<Output> {
        let path = |name: &str| self.dir.path().join(name);
        let mut command = self.inside(&self.program);
        command.args(words).env("COX_NAME", &self.namespace).env("HOME", self.dir.path());
        command.env("COX_DATA_DIR", path("data")).env("COX_RUN_DIR", path("run"));
        command.env("KUBECONFIG", self.kubeconfig());
        run_command(&mut command)
    }

    /// Seconds until `cox up` returns: the node is Ready and DNS answers.
    pub(crate) fn up(&self) -> anyhow::Result<f64> {
        let started = Instant::now();
        self.cox(&["up", "--node-name=node-1"])?;
        Ok(started.elapsed().as_secs_f64())
    }

    /// The process that runs the cluster, and all it started.
    pub(crate) fn processes(&self) -> anyhow::Result<Vec<u32>> {
        let file = self.dir.path().join("data/lock");
        let main: u32 = std::fs::read_to_string(&file)?.trim().parse().context("the lock holds no process id")?;
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            if let Some(parent) = stat(pid).and_then(|fields| fields.get(1)?.parse().ok()) {
                children.entry(parent).or_default().push(pid);
            }
        }
        let mut all = vec![main];
        let mut at = 0;
        while let Some(pid) = all.get(at) {
            all.extend(children.remove(pid).into_iter().flatten());
            at += 1;
        }
        Ok(all)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for result in [self.cox(&["delete"]), run_command(Command::new("ip").args(["netns", "del", &self.namespace]))] {
            if let Err(error) = result {
                eprintln!("coxbench: cleaning up: {error:#}");
            }
        }
    }
}

fn run_command(command: &mut Command) -> anyhow::Result<Output> {
    let output = command.output().with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    Ok(output)
}

/// The fields of `/proc/<pid>/stat` after the name: state, parent, …
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    Some(fields.split_whitespace().map(str::to_owned).collect())
}

/// Resident and proportional bytes.
fn memory(processes: &[u32]) -> anyhow::Result<(f64, f64)> {
    let (mut resident, mut proportional) = (0, 0);
    for pid in processes {
        resident += report::resident(*pid)?;
        let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
        let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
        proportional += kilobytes.with_context(|| format!("process {pid} has no Pss"))? * 1024;
    }
    Ok((resident as f64, proportional as f64))
}

fn cpu_seconds(processes: &[u32]) -> anyhow::Result<f64> {
    /// Ticks per second of every Linux port that we run on.
    const TICKS: f64 = 100.0;
    let mut ticks = 0.0;
    for pid in processes {
        let fields = stat(*pid).with_context(|| format!("process {pid} has ended"))?;
        for field in [11, 12] {
            ticks += fields.get(field).and_then(|text| text.parse::<f64>().ok()).context("an odd /proc/stat")?;
        }
    }
    Ok(ticks / TICKS)
}

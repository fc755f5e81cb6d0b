//! What a cluster has on its machine: processes, mounts, links, rules and cgroups. Two looks at it say whether anything leaked,
//! and the first is what a power cut takes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use crate::harness::{Cluster, mounts_below, run};

/// Everything that pods leave traces in, as counts and names that two looks can be compared by.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Leftovers {
    /// Shims, pauses and whatever runs inside pods, by name.
    processes: BTreeMap<String, usize>,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    /// By network: how many links, and the rules without their counters.
    networks: BTreeMap<String, (usize, Vec<String>)>,
}

impl Leftovers {
    pub(crate) fn of(cluster: &Cluster) -> Leftovers {
        let mut processes = BTreeMap::new();
        for (pid, _) in processes_of(cluster) {
            let what = Some(name(pid)).filter(|name| ["cox-shim", "pause"].contains(&name.as_str()));
            if let Some(what) = what.or_else(|| is_in_pod(cluster, pid).then(|| "container".to_owned())) {
                *processes.entry(what).or_default() += 1;
            }
        }
        let mounts = ["data", "run"].iter().flat_map(|dir| mounts_below(&cluster.path(dir)));
        // The fifth field is where it is mounted; the first ones are numbers that change.
        let mounts = mounts.filter_map(|line| line.split(' ').nth(4).map(str::to_owned)).collect();
        let mut networks = BTreeMap::from([("the machine".to_owned(), network(&mut cluster.host.command("sh")))]);
        for node in cluster.nodes() {
            let mut inside = Command::new("nsenter");
            inside.arg(format!("--net={}", cluster.path(&format!("run/nodes/{node}/netns")).display())).arg("sh");
            networks.insert(node, network(&mut inside));
        }
        Leftovers { processes, mounts, cgroups: cgroups(cluster.name()), networks }
    }
}

fn network(shell: &mut Command) -> (usize, Vec<String>) {
    let script = "ip -o link | wc -l; nft list ruleset 2>/dev/null | sed 's/counter packets [0-9]* bytes [0-9]*//'";
    let output = shell.args(["-c", script]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines = text.lines();
    let links = lines.next().and_then(|count| count.trim().parse().ok()).unwrap_or_default();
    let mut rules: Vec<String> = lines.map(|line| line.trim().to_owned()).collect();
    rules.sort();
    (links, rules)
}

/// The cluster's cgroups of every hierarchy.
pub(crate) fn cgroups(name: &str) -> BTreeSet<String> {
    fn walk(dir: &Path, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten().filter(|entry| entry.path().is_dir()) {
            walk(&entry.path(), found);
            found.insert(entry.path().display().to_string());
        }
    }
    let mut found = BTreeSet::new();
    for root in std::fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        walk(&root.path().join(name), &mut found);
    }
    found
}

fn is_in_pod(cluster: &Cluster, pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| line.contains(&format!(":/{}/", cluster.name())))
}

/// Every process of the cluster, with its command line: those that were told its directory, and those in its cgroups.
pub(crate) fn processes_of(cluster: &Cluster) -> Vec<(u32, String)> {
    let dir = cluster.path("").display().to_string();
    let dir = dir.trim_end_matches('/');
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let read = |pid: u32, what: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\0', " ")
    };
    let found = pids.filter_map(|pid| {
        let command = read(pid, "cmdline");
        // One that has ended and is not reaped yet has no command line.
        let ours = !command.is_empty()
            && (command.contains(dir) || read(pid, "environ").contains(dir) || is_in_pod(cluster, pid));
        // The registry is not the cluster's, nor are the commands of the test itself.
        (ours && !command.contains("docker-registry") && pid != std::process::id()).then_some((pid, command))
    });
    found.collect()
}

/// What a process calls itself. Command lines do not tell a pause from the shim that made it.
fn name(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default().trim_end().to_owned()
}

/// The processes of the cluster that call themselves so: `pause`, `cox-shim`.
pub(crate) fn named(cluster: &Cluster, wanted: &str) -> Vec<u32> {
    processes_of(cluster).into_iter().map(|(pid, _)| pid).filter(|pid| name(*pid) == wanted).collect()
}

/// Who started a process, if both are there.
pub(crate) fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may contain anything; state and parent come after it.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// Kills processes and returns when they are gone.
pub(crate) fn kill(cluster: &Cluster, pids: &[u32]) {
    for pid in pids {
        // It may have ended with another one.
        let _ = Command::new("kill").args(["-9", &pid.to_string()]).output().unwrap();
    }
    let is_gone = |pid: &u32| {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        state.is_empty() || state.contains(") Z ")
    };
    cluster.wait("the end of the processes", || pids.iter().all(is_gone).then_some(()));
}

/// Kills all there is of the cluster, containers included, until nothing starts anything any more.
pub(crate) fn kill_everything(cluster: &Cluster) {
    loop {
        let pids: Vec<u32> = processes_of(cluster).into_iter().map(|(pid, _)| pid).collect();
        if pids.is_empty() {
            return;
        }
        kill(cluster, &pids);
    }
}

/// Takes away what would not be there after the machine was switched on again: mounts, run files, cgroups, links and rules.
pub(crate) fn forget_like_a_reboot(cluster: &Cluster) {
    for dir in ["data", "run"] {
        let mut mounts = mounts_below(&cluster.path(dir));
        mounts.reverse();
        for mount in mounts {
            run(Command::new("umount").args(["-l", mount.split(' ').nth(4).unwrap()]));
        }
    }
    std::fs::remove_dir_all(cluster.path("run")).unwrap();
    for cgroup in cgroups(cluster.name()) {
        // Deepest first would be tidier; a parent that is not empty yet goes in a later pass.
        let _ = std::fs::remove_dir(cgroup);
    }
    for cgroup in cgroups(cluster.name()).into_iter().rev() {
        let _ = std::fs::remove_dir(cgroup);
    }
    let script = "nft flush ruleset; ip -o link | sed 's/^[0-9]*: //; s/[@:].*//' | grep -vx -e lo -e eth0 -e out0 \
                  | while read link; do ip link del $link 2>/dev/null; done; true";
    run(cluster.host.command("sh").args(["-c", script]));
}

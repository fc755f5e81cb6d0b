//! `/stats/summary`: what the node, its pods and their containers use, in the shape of stats/v1alpha1.
//!
//! Most of its cost is a walk through the folders of every pod. Who does not need that says so (`Extent`).

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use cgroup::CpuRates;
use client::{Body, Clock};
use cri::v1;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::cadvisor::{self, Interface, Pressure, Pressures, Stall, SystemContainer};
use super::{Server, json as answer, text};
use crate::kubelet::Kubelet;
use crate::node::machine::{disk, max_processes, running_processes};
use crate::node::memory::NodeMemory;
use crate::state::{self, label};
use crate::usage::{self, PodUsage, Space};
use crate::volumes::blocking;
use crate::volumes::csi::Stats;

/// Under which the node's CPU time is known beside that of containers.
pub(super) const NODE: &str = "/";

/// How much of the summary is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Extent {
    All,
    /// Nothing that has to be looked for in folders: logs, volumes and writable layers. `without_files=true` is our own;
    /// other kubelets answer in full.
    WithoutFiles,
    /// Upstream's `only_cpu_and_memory=true`.
    CpuAndMemory,
}

impl Extent {
    fn of(query: &str) -> Self {
        if is_set(query, "only_cpu_and_memory") {
            Self::CpuAndMemory
        } else if is_set(query, "without_files") {
            Self::WithoutFiles
        } else {
            Self::All
        }
    }
}

/// No other word than `true` counts upstream.
fn is_set(query: &str, option: &str) -> bool {
    query.split('&').any(|pair| pair.split_once('=') == Some((option, "true")))
}

/// The resources whose pressure is told. `without_pressure=true` is our own: API servers ask again and again, and only
/// for what is used.
fn wanted_pressures(query: &str) -> &'static [&'static str] {
    match Extent::of(query) {
        _ if is_set(query, "without_pressure") => &[],
        Extent::All => &["cpu", "io", "memory"],
        Extent::WithoutFiles => &[],
        Extent::CpuAndMemory => &["cpu", "memory"],
    }
}

/// Whether upstream's answer is wanted, and not one of the shorter ones that are our own.
fn is_for_others(query: &str) -> bool {
    Extent::of(query) != Extent::WithoutFiles && !is_set(query, "without_pressure")
}

pub(super) fn number(value: &Option<v1::UInt64Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.value)
}

/// When numbers were taken, to the second.
fn second_of(clock: &Clock) -> String {
    Timestamp::from_second(clock.now().as_second()).unwrap_or_default().to_string()
}

/// The interface of the default route in the texts of `/proc/net/route` and `/proc/net/ipv6_route`.
fn default_interface<'t>(routes: &'t str, routes_v6: &'t str) -> Option<&'t str> {
    let words = |line: &'t str| line.split_whitespace().collect::<Vec<_>>();
    let v4 = routes.lines().skip(1).map(words).find(|words| words.get(1) == Some(&"00000000"));
    let is_default = |words: &Vec<&str>| {
        let is_everything = |destination: &&str| destination.bytes().all(|digit| digit == b'0');
        words.first().is_some_and(is_everything) && words.get(1) == Some(&"00") && words.last() != Some(&"lo")
    };
    let v6 = || routes_v6.lines().map(words).find(is_default)?.last().copied();
    v4.and_then(|words| words.first().copied()).or_else(v6)
}

/// What came and went through the interfaces of the node, and through that of the default route.
fn node_network(now: &str, default: Option<&str>, interfaces: &str) -> Option<Value> {
    let counts = |interface: &Interface| {
        let (received, sent) = (&interface.received, &interface.sent);
        json!({
            "name": interface.name, "rxBytes": received.bytes, "rxErrors": received.errors,
            "txBytes": sent.bytes, "txErrors": sent.errors,
        })
    };
    let is_default = |interface: &&Interface| Some(interface.name.as_str()) == default;
    let all = cadvisor::all_interfaces(interfaces);
    let told: Vec<Value> =
        all.iter().filter(|interface| !interface.is_ignored() || is_default(interface)).map(counts).collect();
    if told.is_empty() {
        return None;
    }
    let mut value = all.iter().find(is_default).map_or_else(|| json!({"name": ""}), counts);
    value["time"] = json!(now);
    value["interfaces"] = json!(told);
    Some(value)
}

/// Nanoseconds so far.
pub(super) fn cpu_of(stat: &v1::ContainerStats) -> u64 {
    stat.cpu.as_ref().map_or(0, |cpu| number(&cpu.usage_core_nano_seconds))
}

/// Billionths of a core; none as long as there is nothing to compare with. Runtimes need not know it.
fn rate_of(stat: &v1::ContainerStats, rates: &CpuRates) -> Option<u64> {
    let known = stat.cpu.as_ref().and_then(|cpu| cpu.usage_nano_cores.as_ref()).map(|rate| rate.value);
    known.or_else(|| rates.rate(&stat.attributes.as_ref()?.id, Instant::now(), cpu_of(stat), None))
}

/// Working set, usage, resident.
pub(super) fn memory_of(stat: &v1::ContainerStats) -> (u64, u64, u64) {
    stat.memory.as_ref().map_or((0, 0, 0), |memory| {
        (number(&memory.working_set_bytes), number(&memory.usage_bytes), number(&memory.rss_bytes))
    })
}

fn cpu_json(now: &str, nanos: u64, nano_cores: Option<u64>) -> Value {
    let mut value = json!({"time": now, "usageCoreNanoSeconds": nanos});
    if let Some(nano_cores) = nano_cores {
        value["usageNanoCores"] = json!(nano_cores);
    }
    value
}

fn swap_json(now: &str, used: u64, available: Option<u64>) -> Value {
    let mut value = json!({"time": now, "swapUsageBytes": used});
    if let Some(available) = available {
        value["swapAvailableBytes"] = json!(available);
    }
    value
}

/// Of containers whose runtime counts it, together.
fn swap_of(now: &str, stats: &[&v1::ContainerStats]) -> Option<Value> {
    let all: Vec<&v1::SwapUsage> = stats.iter().filter_map(|stat| stat.swap.as_ref()).collect();
    if all.is_empty() {
        return None;
    }
    let available: Vec<u64> =
        all.iter().filter_map(|swap| swap.swap_available_bytes.as_ref()).map(|bytes| bytes.value).collect();
    let available = (!available.is_empty()).then(|| available.iter().sum());
    Some(swap_json(now, all.iter().map(|swap| number(&swap.swap_usage_bytes)).sum(), available))
}

/// How many processes there can be, and are.
fn rlimit_json(now: &str, (most, running): (Option<u64>, Option<u64>)) -> Value {
    let mut value = json!({"time": now});
    for (field, amount) in [("maxpid", most), ("curproc", running)] {
        if let Some(amount) = amount {
            value[field] = json!(amount);
        }
    }
    value
}

/// Of what the kubelet or all pods use. `started` is when it began, if that is known better than by its cgroup.
fn system_container_json(now: &str, of: &SystemContainer, started: Option<Timestamp>, rate: Option<u64>) -> Value {
    let made = || of.made.and_then(|seconds| Timestamp::from_second(seconds).ok());
    let mut memory = json!({"time": now});
    for (field, amount) in [
        ("availableBytes", of.available),
        ("usageBytes", of.usage),
        ("workingSetBytes", of.working_set),
        ("rssBytes", of.rss),
        ("pageFaults", of.page_faults),
        ("majorPageFaults", of.major_page_faults),
    ] {
        if let Some(amount) = amount {
            memory[field] = json!(amount);
        }
    }
    let mut value = json!({
        "name": of.name,
        "startTime": started.or_else(made).map(|time| time.to_string()),
        "cpu": cpu_json(now, of.cpu.unwrap_or_default(), rate),
        "memory": memory,
    });
    if let Some(swap) = of.swap {
        value["swap"] = swap_json(now, swap, None);
    }
    value
}

fn node_memory_json(now: &str, memory: &NodeMemory) -> Value {
    let mut value = json!({
        "time": now, "availableBytes": memory.available, "usageBytes": memory.usage,
        "workingSetBytes": memory.working_set,
    });
    for (field, amount) in
        [("rssBytes", memory.rss), ("pageFaults", memory.page_faults), ("majorPageFaults", memory.major_page_faults)]
    {
        if let Some(amount) = amount {
            value[field] = json!(amount);
        }
    }
    value
}

fn memory_json(now: &str, (working, usage, rss): (u64, u64, u64), stat: Option<&v1::MemoryUsage>) -> Value {
    let mut value = json!({"time": now, "workingSetBytes": working, "usageBytes": usage, "rssBytes": rss});
    for (field, amount) in [
        ("availableBytes", stat.and_then(|memory| memory.available_bytes)),
        ("pageFaults", stat.and_then(|memory| memory.page_faults)),
        ("majorPageFaults", stat.and_then(|memory| memory.major_page_faults)),
    ] {
        if let Some(amount) = amount {
            value[field] = json!(amount.value);
        }
    }
    value
}

/// A file system and the part of it that is used by something.
fn fs_json(now: &str, path: &std::path::Path, used: Space) -> Value {
    let (capacity, available) = disk(path).unwrap_or_default();
    let stat = nix::sys::statvfs::statvfs(path).ok();
    let (inodes, free) = stat.map_or((0, 0), |stat| (stat.files(), stat.files_available()));
    json!({
        "time": now, "capacityBytes": capacity, "availableBytes": available, "usedBytes": used.bytes,
        "inodes": inodes, "inodesFree": free, "inodesUsed": used.inodes,
    })
}

fn network_json(now: &str, network: &v1::NetworkUsage) -> Value {
    let interface = |of: &v1::NetworkInterfaceUsage| {
        json!({
            "name": of.name, "rxBytes": number(&of.rx_bytes), "rxErrors": number(&of.rx_errors),
            "txBytes": number(&of.tx_bytes), "txErrors": number(&of.tx_errors),
        })
    };
    let mut value = network.default_interface.as_ref().map_or_else(|| json!({}), interface);
    value["time"] = json!(now);
    let all = network.default_interface.iter().chain(&network.interfaces);
    value["interfaces"] = all.map(interface).collect();
    value
}

pub(super) async fn serve(server: &Server, query: &str) -> Response<Body> {
    match summarize(server, query).await {
        Ok(summary) => answer(StatusCode::OK, &summary),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

pub(super) async fn summarize(server: &Server, query: &str) -> io::Result<Value> {
    let extent = Extent::of(query);
    let kubelet = &server.kubelet;
    let now = second_of(&kubelet.clock);
    let stats = kubelet.runtime.container_stats().await.map_err(io::Error::other)?;
    let sandboxes = if extent == Extent::CpuAndMemory { Vec::new() } else { sandbox_stats(server).await };
    let sandboxes: HashMap<String, v1::LinuxPodSandboxStats> =
        sandboxes.into_iter().filter_map(|stat| Some((stat.attributes?.metadata?.uid, stat.linux?))).collect();
    let mut by_pod: HashMap<&str, Vec<&v1::ContainerStats>> = HashMap::new();
    for stat in stats.iter().filter(|stat| stat.cpu.is_some()) {
        let uid = stat.attributes.as_ref().and_then(|attributes| attributes.labels.get(label::POD_UID));
        by_pod.entry(uid.map(String::as_str).unwrap_or_default()).or_default().push(stat);
    }
    // The others are pods of which nothing runs.
    let running = |pod: Arc<Pod>| by_pod.remove(state::uid(&pod)).map(|own| (pod, own));
    let running: Vec<Running<'_>> = server.workers.pods().into_iter().filter_map(running).collect();
    let pressures = pressures(kubelet, wanted_pressures(query), &running).await?;
    let mut pods = Vec::new();
    for (pod, own) in &running {
        let files = match extent {
            Extent::All => Some(usage::of_pod(kubelet, pod, &stats).await?),
            Extent::WithoutFiles | Extent::CpuAndMemory => None,
        };
        let sandbox = sandboxes.get(state::uid(pod));
        pods.push(pod_json(server, &now, pod, own, sandbox, files.as_ref(), &pressures));
    }
    let ids: HashSet<&str> =
        stats.iter().filter_map(|stat| stat.attributes.as_ref()).map(|attributes| attributes.id.as_str()).collect();
    // Those of the node and of system containers begin with a slash.
    server.cpu_rates.retain(|of| of.starts_with(NODE) || ids.contains(of));
    let figures = cadvisor::figures(kubelet).await;
    let figures = figures.ok_or_else(|| io::Error::other("the kernel does not say what the node uses"))?;
    let rate = server.cpu_rates.rate(NODE, Instant::now(), figures.cpu, None);
    let booted = figures.booted.and_then(|seconds| Timestamp::from_second(seconds).ok()).unwrap_or(server.started);
    let mut node = json!({
        "nodeName": kubelet.settings.node_name,
        "startTime": booted.to_string(),
        "cpu": cpu_json(&now, figures.cpu, rate),
        "memory": node_memory_json(&now, &figures.memory),
    });
    if let Some(swap) = figures.swap {
        node["swap"] = swap_json(&now, swap, figures.swap_free);
    }
    if is_for_others(query) {
        node["systemContainers"] = system_containers(server, &now, extent, &node).await?;
    }
    add_pressure(&mut node, &now, pressures.get("/"));
    if extent != Extent::CpuAndMemory {
        let root = &kubelet.settings.root_dir;
        let (capacity, free) = disk(root).unwrap_or_default();
        let stat = nix::sys::statvfs::statvfs(root).ok();
        let inodes = stat.map_or(0, |stat| stat.files().saturating_sub(stat.files_available()));
        node["fs"] = fs_json(&now, root, Space { bytes: capacity.saturating_sub(free), inodes });
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let (v4, v6) = (read("/proc/net/route"), read("/proc/net/ipv6_route"));
        if let Some(network) = node_network(&now, default_interface(&v4, &v6), &read("/proc/net/dev")) {
            node["network"] = network;
        }
    }
    if extent == Extent::All {
        let info = kubelet.runtime.image_fs().await.map_err(io::Error::other)?;
        let fs = |list: &[v1::FilesystemUsage]| {
            let place = list.first()?.fs_id.as_ref()?.mountpoint.clone();
            let bytes = list.iter().map(|fs| number(&fs.used_bytes)).sum();
            let inodes = list.iter().map(|fs| number(&fs.inodes_used)).sum();
            Some(fs_json(&now, std::path::Path::new(&place), Space { bytes, inodes }))
        };
        let images = fs(&info.image_filesystems);
        let containers = fs(&info.container_filesystems).or_else(|| images.clone());
        node["runtime"] = json!({"imageFs": images, "containerFs": containers});
        node["rlimit"] = rlimit_json(&now, (max_processes(), running_processes()));
    }
    Ok(json!({"node": node, "pods": pods}))
}

/// What the kubelet and all pods together use. Where pods have no cgroups, they are all over the node, as upstream.
async fn system_containers(server: &Server, now: &str, extent: Extent, node: &Value) -> io::Result<Value> {
    let Some(cgroups) = server.kubelet.cgroups.clone() else {
        let [started, cpu, memory] = ["startTime", "cpu", "memory"].map(|field| &node[field]);
        return Ok(json!([{"name": "pods", "startTime": started, "cpu": cpu, "memory": memory}]));
    };
    let found = blocking(move || Ok(cadvisor::system_containers(&cgroups))).await?;
    let shown = found.into_iter().map(|of| {
        let rate = of.cpu.and_then(|cpu| server.cpu_rates.rate(&of.path, Instant::now(), cpu, None));
        let started = (of.name == "kubelet").then_some(server.started);
        let mut value = system_container_json(now, &of, started, rate);
        let mut pressure = of.pressure;
        pressure.retain(|resource, _| extent == Extent::All || *resource != "io");
        add_pressure(&mut value, now, Some(&pressure));
        value
    });
    Ok(shown.collect())
}

/// A pod, and those of its containers that run.
type Running<'a> = (Arc<Pod>, Vec<&'a v1::ContainerStats>);

/// What is waited for, as [`cadvisor::pressures`] has it.
async fn pressures(
    kubelet: &Kubelet,
    resources: &'static [&'static str],
    running: &[Running<'_>],
) -> io::Result<HashMap<String, Pressures>> {
    let cgroups = kubelet.cgroups.as_ref().filter(|cgroups| cgroups.is_v2() && !resources.is_empty());
    let Some(cgroups) = cgroups.cloned() else { return Ok(HashMap::new()) };
    let id = |stat: &&v1::ContainerStats| stat.attributes.as_ref().map(|attributes| attributes.id.clone());
    let pods: Vec<(String, Vec<String>)> =
        running.iter().map(|(pod, own)| (cgroups.pod_path(pod), own.iter().filter_map(id).collect())).collect();
    blocking(move || Ok(cadvisor::pressures(&cgroups, resources, &pods))).await
}

/// Adds what is waited for to what is used.
fn add_pressure(value: &mut Value, now: &str, pressures: Option<&Pressures>) {
    for (resource, pressure) in pressures.into_iter().flatten() {
        if value[*resource].is_null() {
            value[*resource] = json!({"time": now});
        }
        value[*resource]["psi"] = pressure_json(pressure);
    }
}

fn pressure_json(pressure: &Pressure) -> Value {
    // Millionths of a second, as the kernel counts: upstream hands them on like that.
    let stall = |of: &Stall| json!({"total": of.total, "avg10": of.avg10, "avg60": of.avg60, "avg300": of.avg300});
    json!({"full": stall(&pressure.full), "some": stall(&pressure.some)})
}

/// Numbers per sandbox. A runtime fails them all when one sandbox is on its way out: they are left out then, and not zero.
pub(super) async fn sandbox_stats(server: &Server) -> Vec<v1::PodSandboxStats> {
    server.kubelet.runtime.sandbox_stats().await.unwrap_or_else(|error| {
        tracing::warn!(%error, "sandboxes not counted");
        Vec::new()
    })
}

/// A volume of a CSI driver; what the driver does not say is left out.
fn volume_json(now: &str, stats: &Stats) -> Value {
    let mut value = json!({"time": now, "name": stats.volume});
    if let Some((namespace, name)) = &stats.claim {
        value["pvcRef"] = json!({"name": name, "namespace": namespace});
    }
    for (field, number) in [
        ("capacityBytes", stats.capacity),
        ("availableBytes", stats.available),
        ("usedBytes", stats.used),
        ("inodes", stats.inodes),
        ("inodesFree", stats.inodes_free),
        ("inodesUsed", stats.inodes_used),
    ] {
        if let Some(number) = number {
            value[field] = json!(number);
        }
    }
    if let Some(is_abnormal) = stats.is_abnormal {
        value["volumeHealthStats"] = json!({"abnormal": is_abnormal});
    }
    value
}

/// A pod of which `own` runs, with its files if they were looked for.
fn pod_json(
    server: &Server,
    now: &str,
    pod: &Pod,
    own: &[&v1::ContainerStats],
    sandbox: Option<&v1::LinuxPodSandboxStats>,
    files: Option<&PodUsage>,
    pressures: &HashMap<String, Pressures>,
) -> Value {
    let kubelet = &server.kubelet;
    let status = kubelet.status.latest(state::uid(pod)).or_else(|| pod.status.clone()).unwrap_or_default();
    let started = |name: &str| {
        let all = status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
        let mut named = all.filter(|status| status.name == name);
        named.find_map(|status| status.state.as_ref()?.running.as_ref()?.started_at.clone())
    };
    let root = &kubelet.settings.root_dir;
    let (mut cpu, mut rate, mut memory) = (0, Some(0), (0, 0, 0));
    let containers: Vec<Value> = own
        .iter()
        .map(|stat| {
            let name = stat.attributes.as_ref().and_then(|attributes| attributes.labels.get(label::CONTAINER_NAME));
            let name = name.map(String::as_str).unwrap_or_default();
            let (c, r, m) = (cpu_of(stat), rate_of(stat, &server.cpu_rates), memory_of(stat));
            cpu += c;
            rate = rate.zip(r).map(|(sum, rate)| sum + rate);
            memory = (memory.0 + m.0, memory.1 + m.1, memory.2 + m.2);
            let mut value = json!({
                "name": name, "startTime": started(name), "cpu": cpu_json(now, c, r),
                "memory": memory_json(now, m, stat.memory.as_ref()),
            });
            add_pressure(&mut value, now, stat.attributes.as_ref().and_then(|of| pressures.get(&of.id)));
            if let Some(swap) = swap_of(now, &[*stat]) {
                value["swap"] = swap;
            }
            if let Some(files) = files {
                let used = files.containers.iter().find(|used| used.name == name).cloned().unwrap_or_default();
                value["rootfs"] = fs_json(now, root, used.root);
                value["logs"] = fs_json(now, &kubelet.settings.pod_logs_dir, used.logs);
            }
            value
        })
        .collect();
    // The pod's own cgroup counts what belongs to no container, too.
    if let Some(of_pod) = sandbox.and_then(|sandbox| sandbox.cpu.as_ref()) {
        cpu = number(&of_pod.usage_core_nano_seconds);
        rate = of_pod.usage_nano_cores.as_ref().map_or(rate, |rate| Some(rate.value));
    }
    if let Some(of_pod) = sandbox.and_then(|sandbox| sandbox.memory.as_ref()) {
        memory = (number(&of_pod.working_set_bytes), number(&of_pod.usage_bytes), number(&of_pod.rss_bytes));
    }
    let mut value = json!({
        "podRef": {"name": state::name(pod), "namespace": state::namespace(pod), "uid": state::uid(pod)},
        "startTime": status.start_time,
        "cpu": cpu_json(now, cpu, rate), "memory": memory_json(now, memory, sandbox.and_then(|sandbox| sandbox.memory.as_ref())),
        "containers": containers,
    });
    if let Some(swap) = swap_of(now, own) {
        value["swap"] = swap;
    }
    let path = kubelet.cgroups.as_ref().map(|cgroups| cgroups.pod_path(pod));
    add_pressure(&mut value, now, path.and_then(|path| pressures.get(&path)));
    if let Some(files) = files {
        let own = files.volumes.iter().map(|volume| {
            json!({
                "time": now, "name": volume.name, "capacityBytes": volume.capacity,
                "availableBytes": volume.available, "usedBytes": volume.used.bytes, "inodesUsed": volume.used.inodes,
            })
        });
        let (of_drivers, uid) = (&kubelet.volumes.csi, state::uid(pod));
        let measured = of_drivers.stats_of(uid).into_iter().chain(kubelet.volumes.file_systems.stats_of(uid));
        let volumes: Vec<Value> = own.chain(measured.map(|stats| volume_json(now, &stats))).collect();
        value["volume"] = json!(volumes);
        value["ephemeral-storage"] = fs_json(now, root, files.ephemeral());
    }
    if let Some(network) = sandbox.and_then(|sandbox| sandbox.network.as_ref()) {
        value["network"] = network_json(now, network);
    }
    if let Some(processes) = sandbox.and_then(|sandbox| sandbox.process.as_ref()) {
        value["process_stats"] = json!({"process_count": number(&processes.process_count)});
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_needs_less_is_told_less() {
        for (query, expected) in [
            ("", Extent::All),
            ("only_cpu_and_memory=false", Extent::All),
            ("only_cpu_and_memory", Extent::All),
            ("other=true&without_files=true", Extent::WithoutFiles),
            ("without_files=1", Extent::All),
            ("without_files=true&only_cpu_and_memory=true", Extent::CpuAndMemory),
        ] {
            assert_eq!(Extent::of(query), expected, "{query}");
        }
        for (query, expected) in [
            ("", "cpu io memory"),
            ("only_cpu_and_memory=true", "cpu memory"),
            ("without_files=true", ""),
            ("only_cpu_and_memory=true&without_pressure=true", ""),
        ] {
            assert_eq!(wanted_pressures(query).join(" "), expected, "{query}");
        }
        for (query, expected) in [
            ("", true),
            ("only_cpu_and_memory=true", true),
            ("without_files=true", false),
            ("only_cpu_and_memory=true&without_pressure=true", false),
        ] {
            assert_eq!(is_for_others(query), expected, "{query}");
        }
    }

    #[test]
    fn what_is_not_counted_is_left_out() {
        let value = |value| Some(v1::UInt64Value { value });
        let stat = |used: Option<u64>, available: Option<u64>| v1::ContainerStats {
            swap: used.map(|used| v1::SwapUsage {
                timestamp: 0,
                swap_usage_bytes: value(used),
                swap_available_bytes: available.and_then(value),
            }),
            ..Default::default()
        };
        for (stats, expected) in [
            (vec![stat(None, None)], None),
            (vec![stat(Some(1), None)], Some(json!({"time": "t", "swapUsageBytes": 1}))),
            (
                vec![stat(Some(1), None), stat(None, None), stat(Some(2), Some(5))],
                Some(json!({"time": "t", "swapUsageBytes": 3, "swapAvailableBytes": 5})),
            ),
        ] {
            assert_eq!(swap_of("t", &stats.iter().collect::<Vec<_>>()), expected);
        }
        assert_eq!(rlimit_json("t", (Some(9), None)), json!({"time": "t", "maxpid": 9}));
        let all = SystemContainer { name: "pods", made: Some(0), cpu: Some(5), rss: Some(7), ..Default::default() };
        let expected = json!({
            "name": "pods", "startTime": "1970-01-01T00:00:00Z",
            "cpu": {"time": "t", "usageCoreNanoSeconds": 5}, "memory": {"time": "t", "rssBytes": 7},
        });
        assert_eq!(system_container_json("t", &all, None, None), expected);
        let later = system_container_json("t", &all, Timestamp::from_second(60).ok(), Some(1));
        assert_eq!((&later["startTime"], &later["cpu"]["usageNanoCores"]), (&json!("1970-01-01T00:01:00Z"), &json!(1)));
    }

    #[test]
    fn what_is_waited_for_is_told_beside_what_is_used() {
        let some = Stall { total: 7, avg10: 1.5, avg60: 0.5, avg300: 0.25 };
        let cpu = Pressure { some, full: Stall::default() };
        let pressures = Pressures::from([("cpu", cpu), ("io", Pressure::default())]);
        let mut value = json!({"cpu": {"time": "t", "usageNanoCores": 1}, "memory": {"time": "t"}});
        add_pressure(&mut value, "t", Some(&pressures));
        let none = json!({"total": 0, "avg10": 0.0, "avg60": 0.0, "avg300": 0.0});
        let some = json!({"total": 7, "avg10": 1.5, "avg60": 0.5, "avg300": 0.25});
        let expected = json!({
            "cpu": {"time": "t", "usageNanoCores": 1, "psi": {"full": none, "some": some}},
            "memory": {"time": "t"},
            "io": {"time": "t", "psi": {"full": none, "some": none}},
        });
        assert_eq!(value, expected);
        add_pressure(&mut value, "t", None);
        assert_eq!(value, expected);
    }

    #[test]
    fn the_network_of_a_node_is_that_of_its_default_route() {
        let routes = "Iface Destination Gateway Flags\nlo 0000007F 0 1\neth0 00000000 0101A8C0 0003\n";
        let zero = "0".repeat(32);
        let routes_v6 = format!(
            "fe800000000000000000000000000000 40 {zero} 00 {zero} 00000100 0 0 00000001 eth1\n\
             {zero} 00 {zero} 00 {zero} ffffffff 0 0 00200200 lo\n{zero} 00 {zero} 00 {zero} 00000400 0 0 00000003 eth1\n"
        );
        for (v4, v6, expected) in [
            (routes, "", Some("eth0")),
            (routes, &*routes_v6, Some("eth0")),
            ("Iface Destination\n", &routes_v6, Some("eth1")),
            ("Iface Destination\n", "", None),
        ] {
            assert_eq!(default_interface(v4, v6), expected);
        }
        let interfaces = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  \
                          eth0: 500 4 3 0 0 0 0 0 700 6 5 0 0 0 0 0\n  veth9: 7 7 0 0 0 0 0 0 7 7 0 0 0 0 0 0\n \
                          eth1: 50 4 3 0 0 0 0 0 70 6 5 0 0 0 0 0\n";
        let names = |found: &Value| -> Vec<String> {
            let all = found["interfaces"].as_array().unwrap().iter();
            all.map(|interface| interface["name"].as_str().unwrap().to_owned()).collect()
        };
        let found = node_network("now", Some("eth0"), interfaces).unwrap();
        assert_eq!((&found["name"], &found["rxBytes"], &found["txBytes"]), (&json!("eth0"), &json!(500), &json!(700)));
        assert_eq!(found["interfaces"][0]["txErrors"], 5);
        assert_eq!(names(&found), ["eth0", "eth1"]);
        let found = node_network("now", Some("veth9"), interfaces).unwrap();
        assert_eq!((&found["rxBytes"], names(&found).len()), (&json!(7), 3));
        let found = node_network("now", None, interfaces).unwrap();
        assert_eq!((&found["rxBytes"], names(&found)), (&Value::Null, vec!["eth0".to_owned(), "eth1".to_owned()]));
        assert_eq!(node_network("now", None, "nothing"), None);
    }

    #[test]
    fn rates_of_the_runtime_come_first_and_none_is_made_up() {
        let value = |value| Some(v1::UInt64Value { value });
        let stat = |total, rate: Option<u64>| v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: "a".to_owned(), ..Default::default() }),
            cpu: Some(v1::CpuUsage {
                usage_core_nano_seconds: value(total),
                usage_nano_cores: rate.and_then(value),
                ..Default::default()
            }),
            ..Default::default()
        };
        let rates = CpuRates::default();
        assert_eq!(rate_of(&stat(1, Some(7)), &rates), Some(7));
        assert_eq!(rate_of(&stat(1, None), &rates), None);
        assert_eq!(cpu_json("t", 5, None), json!({"time": "t", "usageCoreNanoSeconds": 5}));
        assert_eq!(cpu_json("t", 5, Some(0))["usageNanoCores"], 0);
    }
}

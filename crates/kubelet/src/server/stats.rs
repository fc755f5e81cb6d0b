//! Numbers about the node and its pods: `/stats/summary` and Prometheus text.

use std::collections::BTreeMap;
use std::fmt::Write;

use client::Body;
use cri::v1;
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{Server, json as answer, text};
use crate::node::machine::{disk, meminfo_bytes};
use crate::state::label;

fn number(value: &Option<v1::UInt64Value>) -> u64 {
    value.as_ref().map_or(0, |value| value.value)
}

fn now() -> String {
    Timestamp::from_second(Timestamp::now().as_second()).unwrap_or_default().to_string()
}

/// Seconds of cpu the whole machine has used, in nanoseconds.
fn node_cpu_nanos() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let ticks: u64 = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .enumerate()
        // idle and iowait are not use.
        .filter(|(index, _)| *index != 3 && *index != 4)
        .filter_map(|(_, value)| value.parse::<u64>().ok())
        .sum();
    ticks * 10_000_000
}

fn node_memory() -> (u64, u64) {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = meminfo_bytes(&meminfo, "MemTotal");
    (total, meminfo_bytes(&meminfo, "MemAvailable"))
}

/// Containers of one pod: name and stats.
type PodStats<'a> = BTreeMap<(&'a str, &'a str, &'a str), Vec<(&'a str, &'a v1::ContainerStats)>>;

fn by_pod(stats: &[v1::ContainerStats]) -> PodStats<'_> {
    let mut pods = PodStats::new();
    for stat in stats {
        let Some(labels) = stat.attributes.as_ref().map(|attributes| &attributes.labels) else { continue };
        let get = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
        pods.entry((get(label::POD_NAMESPACE), get(label::POD_NAME), get(label::POD_UID)))
            .or_default()
            .push((get(label::CONTAINER_NAME), stat));
    }
    pods
}

fn cpu_json(nanos: u64, nano_cores: u64) -> Value {
    json!({"time": now(), "usageCoreNanoSeconds": nanos, "usageNanoCores": nano_cores})
}

fn container_cpu(stat: &v1::ContainerStats) -> (u64, u64) {
    stat.cpu.as_ref().map_or((0, 0), |cpu| (number(&cpu.usage_core_nano_seconds), number(&cpu.usage_nano_cores)))
}

fn container_memory(stat: &v1::ContainerStats) -> (u64, u64, u64) {
    stat.memory.as_ref().map_or((0, 0, 0), |memory| {
        (number(&memory.working_set_bytes), number(&memory.usage_bytes), number(&memory.rss_bytes))
    })
}

pub(super) async fn summary(server: &Server) -> Response<Body> {
    let kubelet = &server.kubelet;
    let stats = match kubelet.runtime.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let pods: Vec<Value> = by_pod(&stats)
        .into_iter()
        .map(|((namespace, name, uid), containers)| {
            let (mut cpu, mut cores, mut working, mut usage, mut rss) = (0, 0, 0, 0, 0);
            let list: Vec<Value> = containers
                .iter()
                .map(|(container, stat)| {
                    let (nanos, nano_cores) = container_cpu(stat);
                    let (w, u, r) = container_memory(stat);
                    (cpu, cores, working, usage, rss) = (cpu + nanos, cores + nano_cores, working + w, usage + u, rss + r);
                    let layer = stat.writable_layer.as_ref();
                    json!({
                        "name": container,
                        "cpu": cpu_json(nanos, nano_cores),
                        "memory": {"time": now(), "workingSetBytes": w, "usageBytes": u, "rssBytes": r},
                        "rootfs": {"time": now(), "usedBytes": layer.map_or(0, |layer| number(&layer.used_bytes)), "inodesUsed": layer.map_or(0, |layer| number(&layer.inodes_used))},
                    })
                })
                .collect();
            json!({
                "podRef": {"name": name, "namespace": namespace, "uid": uid},
                "cpu": cpu_json(cpu, cores),
                "memory": {"time": now(), "workingSetBytes": working, "usageBytes": usage, "rssBytes": rss},
                "containers": list,
            })
        })
        .collect();
    let (total, available) = node_memory();
    let (capacity, free) = disk(&kubelet.settings.root_dir).unwrap_or_default();
    let image_fs = kubelet.runtime.image_fs().await.ok();
    let image_used: u64 =
        image_fs.iter().flat_map(|info| &info.image_filesystems).map(|fs| number(&fs.used_bytes)).sum();
    answer(
        StatusCode::OK,
        &json!({
            "node": {
                "nodeName": kubelet.settings.node_name,
                "cpu": cpu_json(node_cpu_nanos(), 0),
                "memory": {"time": now(), "availableBytes": available, "usageBytes": total - available, "workingSetBytes": total - available},
                "fs": {"time": now(), "capacityBytes": capacity, "availableBytes": free, "usedBytes": capacity - free},
                "runtime": {"imageFs": {"time": now(), "usedBytes": image_used, "capacityBytes": capacity, "availableBytes": free}},
            },
            "pods": pods,
        }),
    )
}

/// The kubelet's own state.
pub(super) async fn metrics(server: &Server) -> Response<Body> {
    let containers = match server.kubelet.runtime.containers(None).await {
        Ok(containers) => containers,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut states: BTreeMap<&str, u32> =
        BTreeMap::from([("created", 0), ("running", 0), ("exited", 0), ("unknown", 0)]);
    for container in &containers {
        let name = match v1::ContainerState::try_from(container.state) {
            Ok(v1::ContainerState::ContainerCreated) => "created",
            Ok(v1::ContainerState::ContainerRunning) => "running",
            Ok(v1::ContainerState::ContainerExited) => "exited",
            _ => "unknown",
        };
        *states.entry(name).or_default() += 1;
    }
    let mut out = String::new();
    let node = &server.kubelet.settings.node_name;
    metric(
        &mut out,
        "kubelet_node_name",
        "gauge",
        "The node's name. The count is always 1.",
        &[(format!("node=\"{node}\""), 1.0)],
    );
    let pods = server.workers.pods().len() as f64;
    metric(
        &mut out,
        "kubelet_working_pods",
        "gauge",
        "Number of pods the kubelet is actually running.",
        &[(String::new(), pods)],
    );
    metric(
        &mut out,
        "kubelet_running_pods",
        "gauge",
        "Number of pods that have a running pod sandbox",
        &[(String::new(), pods)],
    );
    let rows: Vec<(String, f64)> =
        states.into_iter().map(|(name, count)| (format!("container_state=\"{name}\""), f64::from(count))).collect();
    metric(&mut out, "kubelet_running_containers", "gauge", "Number of containers currently running", &rows);
    prometheus(out)
}

pub(super) async fn resource_metrics(server: &Server) -> Response<Body> {
    let stats = match server.kubelet.runtime.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let (mut cpu, mut memory, mut pod_cpu, mut pod_memory) = (vec![], vec![], vec![], vec![]);
    for ((namespace, pod, _), containers) in by_pod(&stats) {
        let (mut sum_cpu, mut sum_memory) = (0.0, 0.0);
        for (container, stat) in containers {
            let labels = format!("container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"");
            let seconds = container_cpu(stat).0 as f64 / 1e9;
            let bytes = container_memory(stat).0 as f64;
            (sum_cpu, sum_memory) = (sum_cpu + seconds, sum_memory + bytes);
            cpu.push((labels.clone(), seconds));
            memory.push((labels, bytes));
        }
        let labels = format!("namespace=\"{namespace}\",pod=\"{pod}\"");
        pod_cpu.push((labels.clone(), sum_cpu));
        pod_memory.push((labels, sum_memory));
    }
    let (total, available) = node_memory();
    let mut out = String::new();
    metric(
        &mut out,
        "container_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the container in core-seconds",
        &cpu,
    );
    metric(
        &mut out,
        "container_memory_working_set_bytes",
        "gauge",
        "Current working set of the container in bytes",
        &memory,
    );
    metric(
        &mut out,
        "pod_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the pod in core-seconds",
        &pod_cpu,
    );
    metric(&mut out, "pod_memory_working_set_bytes", "gauge", "Current working set of the pod in bytes", &pod_memory);
    metric(
        &mut out,
        "node_cpu_usage_seconds_total",
        "counter",
        "Cumulative cpu time consumed by the node in core-seconds",
        &[(String::new(), node_cpu_nanos() as f64 / 1e9)],
    );
    metric(
        &mut out,
        "node_memory_working_set_bytes",
        "gauge",
        "Current working set of the node in bytes",
        &[(String::new(), (total - available) as f64)],
    );
    prometheus(out)
}

fn metric(out: &mut String, name: &str, kind: &str, help: &str, rows: &[(String, f64)]) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    for (labels, value) in rows {
        let _ = if labels.is_empty() {
            writeln!(out, "{name} {value}")
        } else {
            writeln!(out, "{name}{{{labels}}} {value}")
        };
    }
}

fn prometheus(body: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, body);
    response
        .headers_mut()
        .insert("content-type", http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8"));
    response
}

//! Numbers as Prometheus text: `/metrics` (the kubelet itself), `/metrics/resource` and `/metrics/cadvisor` (containers).

use std::collections::BTreeMap;
use std::fmt::Write;

use client::Body;
use cri::v1;
use http::{Response, StatusCode};

use super::summary::{cpu_of, memory_of, node_cpu_nanos, number, sandbox_stats};
use super::{Server, text};
use crate::node::machine::node_memory;
use crate::state::label;
use crate::status_writer::Ending;
use crate::volumes::csi::Stats;

/// One metric: name, kind, help, and a value per set of labels.
struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    rows: Vec<(String, f64)>,
}

impl Metric {
    fn new(name: &'static str, kind: &'static str, help: &'static str) -> Self {
        Metric { name, kind, help, rows: Vec::new() }
    }

    fn with(mut self, labels: impl Into<String>, value: f64) -> Self {
        self.rows.push((labels.into(), value));
        self
    }
}

fn answer(metrics: &[Metric]) -> Response<Body> {
    let mut response = text(StatusCode::OK, render(metrics));
    let kind = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert("content-type", kind);
    response
}

fn render(metrics: &[Metric]) -> String {
    let mut out = String::new();
    for metric in metrics {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP {0} {1}\n# TYPE {0} {2}", metric.name, metric.help, metric.kind);
        for (labels, value) in &metric.rows {
            let _ = match labels.is_empty() {
                true => writeln!(out, "{} {value}", metric.name),
                false => writeln!(out, "{}{{{labels}}} {value}", metric.name),
            };
        }
    }
    out
}

fn failed(error: &dyn std::fmt::Display) -> Response<Body> {
    text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

/// The kubelet's own state.
pub(super) async fn own(server: &Server) -> Response<Body> {
    let (containers, sandboxes) =
        match tokio::try_join!(server.kubelet.runtime.containers(None), server.kubelet.runtime.sandboxes(None)) {
            Ok(both) => both,
            Err(error) => return failed(&error),
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
    let ready = sandboxes.iter().filter(|sandbox| sandbox.state == v1::PodSandboxState::SandboxReady as i32).count();
    let node = &server.kubelet.settings.node_name;
    let mut running = Metric::new("kubelet_running_containers", "gauge", "Number of containers currently running");
    for (name, count) in states {
        running = running.with(format!("container_state=\"{name}\""), f64::from(count));
    }
    let mut panics =
        Metric::new("cox_panics_total", "counter", "Pieces of work that ended in a panic, by who worked on them");
    for (worker, count) in client::metrics::panics::counts() {
        panics = panics.with(format!("worker=\"{worker}\""), count as f64);
    }
    let shutdown = server.kubelet.shutdown.last();
    let seconds = |time: Option<jiff::Timestamp>| time.map_or(0.0, |time| time.as_millisecond() as f64 / 1e3);
    let mut metrics = vec![
        Metric::new(
            "kubelet_graceful_shutdown_start_time_seconds",
            "gauge",
            "Last graceful shutdown start time since unix epoch in seconds",
        )
        .with("", seconds(shutdown.start_time)),
        Metric::new(
            "kubelet_graceful_shutdown_end_time_seconds",
            "gauge",
            "Last graceful shutdown end time since unix epoch in seconds",
        )
        .with("", seconds(shutdown.end_time)),
        Metric::new("kubelet_node_name", "gauge", "The node's name. The count is always 1.")
            .with(format!("node=\"{node}\""), 1.0),
        Metric::new("kubelet_desired_pods", "gauge", "The number of pods the kubelet is being instructed to run.")
            .with("", server.workers.pods().len() as f64),
        Metric::new("kubelet_running_pods", "gauge", "Number of pods that have a running pod sandbox")
            .with("", ready as f64),
        panics,
        running,
        terminated_containers(&server.kubelet.status.endings()),
    ];
    metrics.extend(volumes(&server.kubelet.volumes.csi.claim_stats()));
    answer(&metrics)
}

/// What drivers say of the volumes of claims.
fn volumes(all: &[Stats]) -> Vec<Metric> {
    type Field = fn(&Stats) -> Option<u64>;
    let fields: [(&'static str, &'static str, Field); 7] = [
        ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |s| s.capacity),
        ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |s| s.available),
        ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |s| s.used),
        ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |s| s.inodes),
        ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |s| s.inodes_free),
        ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |s| s.inodes_used),
        (
            "kubelet_volume_stats_health_status_abnormal",
            "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy",
            |s| s.is_abnormal.map(u64::from),
        ),
    ];
    let metrics = fields.into_iter().map(|(name, help, field)| {
        all.iter().fold(Metric::new(name, "gauge", help), |metric, stats| match (&stats.claim, field(stats)) {
            (Some((namespace, claim)), Some(value)) => {
                metric.with(format!("namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\""), value as f64)
            }
            _ => metric,
        })
    });
    // A metric without values is not told.
    metrics.filter(|metric| !metric.rows.is_empty()).collect()
}

fn terminated_containers(endings: &BTreeMap<Ending, u64>) -> Metric {
    let mut metric = Metric::new(
        "kubelet_terminated_containers_total",
        "counter",
        "[ALPHA] Number of containers that ended, by kind, exit code and reason",
    );
    for (Ending { container_type, exit_code, reason }, count) in endings {
        // The reason is the runtime's word.
        let reason = reason.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n");
        let labels = format!("container_type=\"{container_type}\",exit_code=\"{exit_code}\",reason=\"{reason}\"");
        metric = metric.with(labels, *count as f64);
    }
    metric
}

/// Containers by pod: name and stats.
type Pods<'a> = BTreeMap<(&'a str, &'a str), Vec<(&'a str, &'a v1::ContainerStats)>>;

fn by_pod(stats: &[v1::ContainerStats]) -> Pods<'_> {
    let mut pods = Pods::new();
    for stat in stats.iter().filter(|stat| stat.cpu.is_some()) {
        let Some(labels) = stat.attributes.as_ref().map(|attributes| &attributes.labels) else { continue };
        let get = |name: &str| labels.get(name).map(String::as_str).unwrap_or_default();
        let pod = pods.entry((get(label::POD_NAMESPACE), get(label::POD_NAME))).or_default();
        pod.push((get(label::CONTAINER_NAME), stat));
    }
    pods
}

pub(super) async fn resource(server: &Server) -> Response<Body> {
    let stats = match server.kubelet.runtime.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return failed(&error),
    };
    let counter = |name, help| Metric::new(name, "counter", help);
    let gauge = |name, help| Metric::new(name, "gauge", help);
    let mut cpu = counter(
        "container_cpu_usage_seconds_total",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
    );
    let mut memory =
        gauge("container_memory_working_set_bytes", "[STABLE] Current working set of the container in bytes");
    let mut started =
        gauge("container_start_time_seconds", "[STABLE] Start time of the container since unix epoch in seconds");
    let mut pod_cpu =
        counter("pod_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds");
    let mut pod_memory = gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
    let starts = match start_times(server).await {
        Ok(starts) => starts,
        Err(error) => return failed(&error),
    };
    for ((namespace, pod), containers) in by_pod(&stats) {
        let (mut sum_cpu, mut sum_memory) = (0.0, 0.0);
        for (container, stat) in containers {
            let labels = format!("container=\"{container}\",namespace=\"{namespace}\",pod=\"{pod}\"");
            let (seconds, bytes) = (cpu_of(stat).0 as f64 / 1e9, memory_of(stat).0 as f64);
            (sum_cpu, sum_memory) = (sum_cpu + seconds, sum_memory + bytes);
            if let Some(at) = stat.attributes.as_ref().and_then(|attributes| starts.get(&attributes.id)) {
                started = started.with(labels.clone(), *at);
            }
            cpu = cpu.with(labels.clone(), seconds);
            memory = memory.with(labels, bytes);
        }
        let labels = format!("namespace=\"{namespace}\",pod=\"{pod}\"");
        pod_cpu = pod_cpu.with(labels.clone(), sum_cpu);
        pod_memory = pod_memory.with(labels, sum_memory);
    }
    let (Some((total, available)), Some(node_cpu)) = (node_memory(), node_cpu_nanos()) else {
        return failed(&"the kernel does not say what the node uses");
    };
    answer(&[
        cpu,
        memory,
        started,
        counter("node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds")
            .with("", node_cpu as f64 / 1e9),
        gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes")
            .with("", (total - available) as f64),
        pod_cpu,
        pod_memory,
        gauge("resource_scrape_error", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
            .with("", 0.0),
    ])
}

/// When running containers started, in seconds, by id.
async fn start_times(server: &Server) -> crate::runtime::Result<BTreeMap<String, f64>> {
    let mut times = BTreeMap::new();
    for container in server.kubelet.runtime.containers(None).await? {
        if container.state != v1::ContainerState::ContainerRunning as i32 {
            continue;
        }
        match server.kubelet.runtime.container_status(&container.id).await {
            Ok(status) => drop(times.insert(container.id, status.started_at as f64 / 1e9)),
            // Removed since it was listed.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(times)
}

/// What cAdvisor is asked for most, from the same source.
pub(super) async fn cadvisor(server: &Server) -> Response<Body> {
    let runtime = &server.kubelet.runtime;
    let stats = match runtime.container_stats().await {
        Ok(stats) => stats,
        Err(error) => return failed(&error),
    };
    let sandboxes = sandbox_stats(server).await;
    let mut cpu =
        Metric::new("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds.");
    let mut usage = Metric::new("container_memory_usage_bytes", "gauge", "Current memory usage in bytes.");
    let mut working = Metric::new("container_memory_working_set_bytes", "gauge", "Current working set in bytes.");
    let mut rss = Metric::new("container_memory_rss", "gauge", "Size of RSS in bytes.");
    let mut fs = Metric::new("container_fs_usage_bytes", "gauge", "Number of bytes used by the container.");
    for ((namespace, pod), containers) in by_pod(&stats) {
        for (container, stat) in containers {
            let id = stat.attributes.as_ref().map(|attributes| attributes.id.as_str()).unwrap_or_default();
            let labels =
                format!("container=\"{container}\",id=\"{id}\",name=\"{id}\",namespace=\"{namespace}\",pod=\"{pod}\"");
            let (working_set, used, resident) = memory_of(stat);
            cpu = cpu.with(format!("{labels},cpu=\"total\""), cpu_of(stat).0 as f64 / 1e9);
            usage = usage.with(labels.clone(), used as f64);
            working = working.with(labels.clone(), working_set as f64);
            rss = rss.with(labels.clone(), resident as f64);
            let layer = stat.writable_layer.as_ref().map_or(0, |layer| number(&layer.used_bytes));
            fs = fs.with(labels, layer as f64);
        }
    }
    let mut received =
        Metric::new("container_network_receive_bytes_total", "counter", "Cumulative count of bytes received");
    let mut sent =
        Metric::new("container_network_transmit_bytes_total", "counter", "Cumulative count of bytes transmitted");
    for sandbox in &sandboxes {
        let (Some(metadata), Some(network)) = (
            sandbox.attributes.as_ref().and_then(|attributes| attributes.metadata.as_ref()),
            sandbox.linux.as_ref().and_then(|linux| linux.network.as_ref()),
        ) else {
            continue;
        };
        for interface in network.default_interface.iter().chain(&network.interfaces) {
            let labels = format!(
                "interface=\"{}\",namespace=\"{}\",pod=\"{}\"",
                interface.name, metadata.namespace, metadata.name
            );
            received = received.with(labels.clone(), number(&interface.rx_bytes) as f64);
            sent = sent.with(labels, number(&interface.tx_bytes) as f64);
        }
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let Some((memory, _)) = node_memory() else { return failed(&"the kernel does not say what the node has") };
    answer(&[
        cpu,
        fs,
        rss,
        usage,
        working,
        received,
        sent,
        Metric::new("machine_cpu_cores", "gauge", "Number of logical CPU cores.").with("", cpus as f64),
        Metric::new("machine_memory_bytes", "gauge", "Amount of memory installed on the machine.")
            .with("", memory as f64),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_containers_are_told_by_kind_code_and_reason() {
        let ending =
            |container_type, exit_code, reason: &str| Ending { container_type, exit_code, reason: reason.into() };
        let endings =
            BTreeMap::from([(ending("container", 139, "Error"), 2), (ending("init_container", 0, "a\"b\n"), 1)]);
        let text = render(&[terminated_containers(&endings)]);
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                r#"kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2"#,
                r#"kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="a\"b\n"} 1"#,
            ]
        );
    }

    #[test]
    fn text_format() {
        let metric = Metric::new("m", "gauge", "Help.").with("", 1.0).with("a=\"b\"", 2.5);
        assert_eq!(render(&[metric]), "# HELP m Help.\n# TYPE m gauge\nm 1\nm{a=\"b\"} 2.5\n");
    }
}

//! Numbers as Prometheus text: `/metrics` (the kubelet itself) and `/metrics/resource` (containers, as autoscalers ask).
//! Not here: `/metrics/cadvisor` (`cadvisor`).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use client::Body;
use client::metrics::{Kind, Metrics};
use cri::v1;
use http::{Response, StatusCode};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::cadvisor::{self, NodeFigures};
use super::summary::{cpu_of, memory_of, number};
use super::{Server, text};
use crate::certificates::{RENEWALS_FAILED, Store};
use crate::state::label;
use crate::static_pods;
use crate::status_writer::Ending;
use crate::volumes::csi::Stats;

pub(super) fn answer(metrics: &Metrics) -> Response<Body> {
    plain(metrics.render())
}

pub(super) fn plain(shown: String) -> Response<Body> {
    let mut response = text(StatusCode::OK, shown);
    let kind = http::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert("content-type", kind);
    response
}

pub(super) fn failed(error: &dyn std::fmt::Display) -> Response<Body> {
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
    let metrics = server.kubelet.runtime.metrics.all();
    let set = |name, help, value: f64| metrics.gauge(name, help, &[]).set(value);
    let name = "kubelet_running_containers";
    metrics.set_rows(Kind::Gauge, name, "[ALPHA] Number of containers currently running", |all| {
        for (name, count) in states {
            all.add(&[("container_state", name)], f64::from(count));
        }
    });
    let shutdown = server.kubelet.shutdown.last();
    let seconds = |time: Option<jiff::Timestamp>| time.map_or(0.0, |time| time.as_millisecond() as f64 / 1e3);
    let help = "[ALPHA] Last graceful shutdown start time since unix epoch in seconds";
    set("kubelet_graceful_shutdown_start_time_seconds", help, seconds(shutdown.start_time));
    let help = "[ALPHA] Last graceful shutdown end time since unix epoch in seconds";
    set("kubelet_graceful_shutdown_end_time_seconds", help, seconds(shutdown.end_time));
    let labels = [("node", server.kubelet.settings.node_name.as_str())];
    metrics.gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.", &labels).set(1.0);
    pods(server, metrics);
    set("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox", ready as f64);
    terminated_containers(metrics, &server.kubelet.status.endings());
    let own = &server.kubelet.volumes;
    volumes(metrics, &[own.csi.claim_stats(), own.file_systems.claim_stats()].concat());
    // One pod's directory that cannot be read keeps nobody from all other figures.
    if let Err(error) = count_volumes(server, metrics).await {
        tracing::warn!(%error, "volumes not counted");
    }
    certificates(server, metrics);
    answer(metrics)
}

/// Pods as their sources want them, by where they come from.
fn pods(server: &Server, metrics: &Metrics) {
    let of = |pods: &[Arc<Pod>]| {
        let is_static = |pod: &&Arc<Pod>| static_pods::is_static(pod);
        let count = pods.iter().filter(is_static).count();
        [("true", count), ("", pods.len() - count)]
    };
    let (desired, active) = (of(&server.workers.pods()), of(&server.workers.active_pods()));
    let mirrors = desired[0].1 as f64;
    for (name, help, counts) in [
        ("kubelet_desired_pods", "[ALPHA] The number of pods the kubelet is being instructed to run.", desired),
        (
            "kubelet_active_pods",
            "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.",
            active,
        ),
    ] {
        metrics.set_rows(Kind::Gauge, name, help, |all| {
            counts.iter().for_each(|(is_static, count)| all.add(&[("static", is_static)], *count as f64));
        });
    }
    let help = "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)";
    metrics.gauge("kubelet_mirror_pods", help, &[]).set(mirrors);
}

/// What drivers say of the volumes of claims.
fn volumes(metrics: &Metrics, all: &[Stats]) {
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
    for (name, help, field) in fields {
        metrics.set_rows(Kind::Gauge, name, help, |rows| {
            for stats in all {
                if let (Some((namespace, claim)), Some(value)) = (&stats.claim, field(stats)) {
                    rows.add(&[("namespace", namespace), ("persistentvolumeclaim", claim)], value as f64);
                }
            }
        });
    }
}

/// Volumes as pods want them and as they are.
async fn count_volumes(server: &Server, metrics: &Metrics) -> std::io::Result<()> {
    let (kubelet, pods) = (server.kubelet.clone(), server.workers.active_pods());
    let counted = tokio::task::spawn_blocking(move || kubelet.volumes.count(&pods)).await;
    let counts = counted.map_err(std::io::Error::other)??;
    let help = "[ALPHA] Number of volumes in Volume Manager";
    let rows = counts.into_iter().map(|((plugin, state), count)| ([plugin, state.to_owned()], count as f64));
    metrics.set_gauges("volume_manager_total_volumes", help, ["plugin_name", "state"], rows);
    Ok(())
}

fn terminated_containers(metrics: &Metrics, endings: &BTreeMap<Ending, u64>) {
    let help = "[ALPHA] Number of containers that ended, by kind, exit code and reason";
    metrics.set_rows(Kind::Counter, "kubelet_terminated_containers_total", help, |rows| {
        for (Ending { container_type, exit_code, reason }, count) in endings {
            let code = exit_code.to_string();
            // The reason is the runtime's word.
            let labels = [("container_type", *container_type), ("exit_code", &code), ("reason", reason)];
            rows.add(&labels, *count as f64);
        }
    });
}

/// How long the certificates are good for; infinite where there is none to renew.
fn certificates(server: &Server, metrics: &Metrics) {
    for (name, file, help) in [
        (
            "kubelet_certificate_manager_client_ttl_seconds",
            "kubelet-client",
            "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate.",
        ),
        (
            "kubelet_certificate_manager_server_ttl_seconds",
            "kubelet-server",
            "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate.",
        ),
    ] {
        let certificate = Store::new(&server.kubelet.settings.cert_dir, file).load();
        let left = |until: Timestamp| until.duration_since(server.kubelet.clock.now()).as_secs_f64();
        let ttl = certificate.map_or(f64::INFINITY, |certificate| left(certificate.not_after));
        metrics.gauge(name, help, &[]).set(ttl);
    }
    for (name, failed) in [
        ("kubelet_certificate_manager_client_expiration_renew_errors", &RENEWALS_FAILED.client),
        ("kubelet_server_expiration_renew_errors", &RENEWALS_FAILED.server),
    ] {
        metrics.set_rows(Kind::Counter, name, "Renewals of a certificate that failed.", |rows| {
            rows.add(&[], failed.load(Ordering::Relaxed) as f64);
        });
    }
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
    let starts = match start_times(server, &stats).await {
        Ok(starts) => starts,
        Err(error) => return failed(&error),
    };
    let Some(node) = cadvisor::figures(&server.kubelet).await else {
        return failed(&"the kernel does not say what the node uses");
    };
    answer(&resource_families(&by_pod(&stats), &starts, &node))
}

/// A family with one number a container.
type OfContainer<'a> = (Kind, &'static str, &'static str, &'a dyn Fn(&v1::ContainerStats) -> Option<f64>);

fn resource_families(pods: &Pods<'_>, starts: &BTreeMap<String, f64>, node: &NodeFigures) -> Metrics {
    let metrics = Metrics::new();
    let seconds = |stat: &v1::ContainerStats| Some(cpu_of(stat) as f64 / 1e9);
    let bytes = |stat: &v1::ContainerStats| Some(memory_of(stat).0 as f64);
    let swap = |stat: &v1::ContainerStats| Some(number(&stat.swap.as_ref()?.swap_usage_bytes) as f64);
    let started = |stat: &v1::ContainerStats| starts.get(&stat.attributes.as_ref()?.id).copied();
    let families: [OfContainer<'_>; 4] = [
        (
            Kind::Counter,
            "container_cpu_usage_seconds_total",
            "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
            &seconds,
        ),
        (
            Kind::Gauge,
            "container_memory_working_set_bytes",
            "[STABLE] Current working set of the container in bytes",
            &bytes,
        ),
        (
            Kind::Gauge,
            "container_swap_usage_bytes",
            "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
            &swap,
        ),
        (
            Kind::Gauge,
            "container_start_time_seconds",
            "[STABLE] Start time of the container since unix epoch in seconds",
            &started,
        ),
    ];
    for (kind, name, help, value) in families {
        metrics.set_rows(kind, name, help, |all| {
            for ((namespace, pod), containers) in pods {
                for (container, stat) in containers {
                    let labels = [("container", *container), ("namespace", namespace), ("pod", pod)];
                    value(stat).into_iter().for_each(|value| all.add(&labels, value));
                }
            }
        });
    }
    let families: [OfContainer<'_>; 3] = [
        (
            Kind::Counter,
            "pod_cpu_usage_seconds_total",
            "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
            &seconds,
        ),
        (Kind::Gauge, "pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes", &bytes),
        (
            Kind::Gauge,
            "pod_swap_usage_bytes",
            "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
            &swap,
        ),
    ];
    for (kind, name, help, value) in families {
        metrics.set_rows(kind, name, help, |all| {
            for ((namespace, pod), containers) in pods {
                let values: Vec<f64> = containers.iter().filter_map(|(_, stat)| value(stat)).collect();
                if !values.is_empty() {
                    all.add(&[("namespace", namespace), ("pod", pod)], values.iter().sum());
                }
            }
        });
    }
    let (name, help) =
        ("node_cpu_usage_seconds_total", "[STABLE] Cumulative cpu time consumed by the node in core-seconds");
    metrics.set_rows(Kind::Counter, name, help, |all| all.add(&[], node.cpu as f64 / 1e9));
    let set = |name, help, value: f64| metrics.gauge(name, help, &[]).set(value);
    let help = "[STABLE] Current working set of the node in bytes";
    set("node_memory_working_set_bytes", help, node.memory.working_set as f64);
    if let Some(swap) = node.swap {
        let help = "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems";
        set("node_swap_usage_bytes", help, swap as f64);
    }
    let help = "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise";
    set("resource_scrape_error", help, 0.0);
    metrics
}

/// When running containers started, in seconds, by id. Each starts once, so the runtime is asked once for each.
async fn start_times(server: &Server, stats: &[v1::ContainerStats]) -> crate::runtime::Result<BTreeMap<String, f64>> {
    let known = server.starts.lock().clone();
    let mut times = BTreeMap::new();
    let running = stats.iter().filter(|stat| stat.cpu.is_some());
    for id in running.filter_map(|stat| Some(&stat.attributes.as_ref()?.id)) {
        if let Some(time) = known.get(id) {
            times.insert(id.clone(), *time);
            continue;
        }
        match server.kubelet.runtime.container_status(id).await {
            // It has not begun yet.
            Ok(status) if status.started_at <= 0 => {}
            Ok(status) => drop(times.insert(id.clone(), status.started_at as f64 / 1e9)),
            // Removed since it was measured.
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    *server.starts.lock() = times.clone();
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::memory::NodeMemory;

    #[test]
    fn ends_of_containers_are_told_by_kind_code_and_reason() {
        let ending =
            |container_type, exit_code, reason: &str| Ending { container_type, exit_code, reason: reason.into() };
        let endings =
            BTreeMap::from([(ending("container", 139, "Error"), 2), (ending("init_container", 0, "a\"b\n"), 1)]);
        let metrics = Metrics::new();
        terminated_containers(&metrics, &endings);
        let text = metrics.render();
        let rows: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rows,
            [
                r#"kubelet_terminated_containers_total{container_type="container",exit_code="139",reason="Error"} 2"#,
                r#"kubelet_terminated_containers_total{container_type="init_container",exit_code="0",reason="a\"b\n"} 1"#,
            ]
        );
    }

    fn stat(container: &str, nanos: u64, bytes: u64) -> v1::ContainerStats {
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let labels = [
            label(label::POD_NAMESPACE, "default"),
            label(label::POD_NAME, "p"),
            label(label::CONTAINER_NAME, container),
        ];
        let value = |value| Some(v1::UInt64Value { value });
        v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: format!("id-of-{container}"),
                labels: labels.into_iter().collect(),
                ..Default::default()
            }),
            cpu: Some(v1::CpuUsage { usage_core_nano_seconds: value(nanos), ..Default::default() }),
            memory: Some(v1::MemoryUsage { working_set_bytes: value(bytes), ..Default::default() }),
            ..Default::default()
        }
    }

    #[test]
    fn pods_are_the_sum_of_their_containers() {
        let stats = [stat("a", 1_500_000_000, 10), stat("b", 500_000_000, 20)];
        let starts = BTreeMap::from([("id-of-a".to_owned(), 1.25)]);
        let memory = NodeMemory {
            capacity: 500,
            usage: 200,
            working_set: 100,
            available: 400,
            rss: None,
            page_faults: None,
            major_page_faults: None,
        };
        let node = NodeFigures { cpu: 3_000_000_000, memory, swap: Some(7), swap_free: None, booted: None };
        let text = resource_families(&by_pod(&stats), &starts, &node).render();
        for row in [
            "container_cpu_usage_seconds_total{container=\"a\",namespace=\"default\",pod=\"p\"} 1.5\n",
            "container_start_time_seconds{container=\"a\",namespace=\"default\",pod=\"p\"} 1.25\n",
            "pod_cpu_usage_seconds_total{namespace=\"default\",pod=\"p\"} 2\n",
            "pod_memory_working_set_bytes{namespace=\"default\",pod=\"p\"} 30\n",
            "# TYPE node_cpu_usage_seconds_total counter\nnode_cpu_usage_seconds_total 3\n",
            "node_memory_working_set_bytes 100\n",
            "node_swap_usage_bytes 7\n",
            "resource_scrape_error 0\n",
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
        assert!(!text.contains("swap_usage_bytes{"), "{text}");
        use client::metrics::upstream::{Component, problems};
        assert_eq!(problems(Component::KubeletResources, &text), Vec::<String>::new());
    }
}

//! What the kubelet counts of its own work, under upstream's names.
//!
//! Flow: runtime calls, relists, workers, probes, evictions and requests to the server -> here -> `/metrics` and
//! `/metrics/probes`. Labels come from fixed lists or from pods of this node, and series of pods end with them: nobody can
//! fill the memory with names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use client::metrics::{Gauge, Histogram, Metrics};
use parking_lot::Mutex;

/// Bounds that client libraries begin with.
const DEFAULT: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const RUNTIME: &[f64] = &[
    0.005,
    0.0125,
    0.03125,
    0.078125,
    0.1953125,
    0.48828125,
    1.220703125,
    3.0517578125,
    7.62939453125,
    19.073486328125,
    47.6837158203125,
    119.20928955078125,
    298.0232238769531,
    745.0580596923828,
];
const POD_START: &[f64] = &[
    0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 20.0, 30.0, 45.0, 60.0, 120.0, 180.0, 240.0, 300.0, 360.0, 480.0,
    600.0, 900.0, 1200.0, 1800.0, 2700.0, 3600.0,
];

const STORAGE: &[f64] = &[0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0];

#[derive(Clone)]
pub(crate) struct KubeletMetrics {
    /// `/metrics`.
    all: Metrics,
    /// `/metrics/probes`.
    probes: Metrics,
    /// When the runtime was last looked at.
    relisted: Arc<Mutex<Option<Instant>>>,
}

/// Upstream's series of images that are volumes: asked for, mounted, not mounted.
const IMAGE_VOLUMES: [(&str, &str); 3] = [
    ("kubelet_image_volume_requested_total", "[BETA] Number of requested image volumes."),
    ("kubelet_image_volume_mounted_succeed_total", "[BETA] Number of successful image volume mounts."),
    ("kubelet_image_volume_mounted_errors_total", "[BETA] Number of failed image volume mounts."),
];
/// What messages of runtimes begin with that could not mount one.
const IMAGE_VOLUME_FAILED: &str = "ImageVolumeMountFailed";

/// What is probed.
pub(crate) struct Probing<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) uid: &'a str,
    pub(crate) container: &'a str,
    /// `Liveness`, `Readiness` or `Startup`.
    pub(crate) kind: &'a str,
}

/// How a probe went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Probed {
    Successful,
    Failed,
    Unknown,
}

impl KubeletMetrics {
    pub(crate) fn new() -> Self {
        let all = Metrics::new().with_process(api::version::GIT).with_features(api::features::all());
        for (name, help) in IMAGE_VOLUMES {
            all.counter(name, help, &[]);
        }
        Self { all, probes: Metrics::new(), relisted: Arc::default() }
    }

    pub(crate) fn all(&self) -> &Metrics {
        &self.all
    }

    pub(crate) fn probes(&self) -> &Metrics {
        &self.probes
    }

    /// A container was made, or not, that mounts images as volumes.
    pub(crate) fn images_mounted(&self, count: usize, error: Option<&str>) {
        let [requested, succeeded, failed] = IMAGE_VOLUMES.map(|(name, help)| self.all.counter(name, help, &[]));
        requested.add(count);
        match error.is_some_and(|message| message.starts_with(IMAGE_VOLUME_FAILED)) {
            true => failed.add(count),
            false => succeeded.add(count),
        }
    }

    /// One look at everything the runtime has.
    pub(crate) fn relisted(&self, took: Duration, now: jiff::Timestamp) {
        let help = "[ALPHA] Duration in seconds for relisting pods in PLEG.";
        self.all.histogram("kubelet_pleg_relist_duration_seconds", help, DEFAULT, &[]).observe_duration(took);
        if let Some(before) = self.relisted.lock().replace(Instant::now()) {
            let help = "[ALPHA] Interval in seconds between relisting in PLEG.";
            let intervals = self.all.histogram("kubelet_pleg_relist_interval_seconds", help, DEFAULT, &[]);
            intervals.observe_duration(before.elapsed());
        }
        let help = "[ALPHA] Timestamp in seconds when PLEG was last seen active.";
        self.all.gauge("kubelet_pleg_last_seen_seconds", help, &[]).set(now.as_second() as f64);
    }

    /// How long ago that was; none before the first time.
    pub(crate) fn since_relist(&self) -> Option<Duration> {
        let last: Option<Instant> = *self.relisted.lock();
        last.map(|last| last.elapsed())
    }

    /// One pass of a pod's worker. `operation` is `create`, `sync`, `terminating` or `terminated`.
    pub(crate) fn worked(&self, operation: &str, took: Duration) {
        let help =
            "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync";
        let labels = [("operation_type", operation)];
        self.all.histogram("kubelet_pod_worker_duration_seconds", help, DEFAULT, &labels).observe_duration(took);
    }

    /// From the kubelet's first sight of a pod until its containers ran.
    pub(crate) fn pod_started(&self, took: Duration) {
        let help =
            "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run";
        self.all.histogram("kubelet_pod_start_duration_seconds", help, POD_START, &[]).observe_duration(took);
    }

    pub(crate) fn pod_start_attempted(&self, error: bool) {
        let help = "[ALPHA] Cumulative number of pods started";
        self.all.counter("kubelet_started_pods_total", help, &[]).inc();
        let help = "[ALPHA] Cumulative number of errors when starting pods";
        let errors = self.all.counter("kubelet_started_pods_errors_total", help, &[]);
        if error {
            errors.inc();
        }
    }

    pub(crate) fn container_start_attempted(&self, kind: &str, error: Option<&str>) {
        let help = "[ALPHA] Cumulative number of containers started";
        self.all.counter("kubelet_started_containers_total", help, &[("container_type", kind)]).inc();
        if let Some(code) = error {
            let help = "[ALPHA] Cumulative number of errors when starting containers";
            let labels = [("code", code), ("container_type", kind)];
            self.all.counter("kubelet_started_containers_errors_total", help, &labels).inc();
        }
    }

    /// Work on the cgroup of a pod. `operation` is `create`, `update` or `destroy`.
    pub(crate) fn cgroup_changed(&self, operation: &str, took: Duration) {
        let help = "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.";
        let labels = [("operation_type", operation)];
        self.all.histogram("kubelet_cgroup_manager_duration_seconds", help, DEFAULT, &labels).observe_duration(took);
    }

    /// A volume was made ready or taken down, or could not be. `plugin` is `kubernetes.io/empty-dir` and the like.
    pub(crate) fn volume_changed(&self, operation: &str, plugin: &str, volume: Outcome, took: Duration) {
        let status = if volume.is_ok { "success" } else { "fail-unknown" };
        let migrated = if volume.is_migrated { "true" } else { "false" };
        let labels =
            [("migrated", migrated), ("operation_name", operation), ("status", status), ("volume_plugin", plugin)];
        let help = "[ALPHA] Storage operation duration";
        self.all.histogram("storage_operation_duration_seconds", help, STORAGE, &labels).observe_duration(took);
    }

    /// A driver of volumes answered. `method` is the name that the protocol gives the call, with its service.
    pub(crate) fn driver_called(
        &self,
        driver: &str,
        method: &str,
        code: csi::tonic::Code,
        is_migrated: bool,
        took: Duration,
    ) {
        let labels = [
            ("driver_name", driver),
            ("grpc_status_code", &code_name(code)),
            ("method_name", method),
            ("migrated", if is_migrated { "true" } else { "false" }),
        ];
        let help = "[ALPHA] Container Storage Interface operation duration with gRPC error code status total";
        self.all.histogram("csi_operations_seconds", help, STORAGE, &labels).observe_duration(took);
    }

    pub(crate) fn evicted(&self, signal: &str) {
        let help = "[ALPHA] Cumulative number of pod evictions by eviction signal";
        self.all.counter("kubelet_evictions", help, &[("eviction_signal", signal)]).inc();
    }

    /// A pod gave its place to a critical one. `signal` is the resource that was short.
    pub(crate) fn preempted(&self, signal: &str) {
        let help = "[ALPHA] Cumulative number of pod preemptions by preemption resource";
        self.all.counter("kubelet_preemptions", help, &[("preemption_signal", signal)]).inc();
    }

    /// A request to the kubelet's server: counted at once, its time when it ends.
    pub(crate) fn request(&self, method: &http::Method, path: &'static str) -> Serving {
        let long_running = if is_long_running(path) { "true" } else { "false" };
        let method = known_method(method);
        let labels = [("long_running", long_running), ("method", method), ("path", path), ("server_type", "readwrite")];
        let help = "[ALPHA] Number of the http requests received since the server started";
        self.all.counter("kubelet_http_requests_total", help, &labels).inc();
        let help = "[ALPHA] Number of the inflight http requests";
        let inflight = self.all.gauge("kubelet_http_inflight_requests", help, &labels);
        inflight.add(1.0);
        let help = "[ALPHA] Duration in seconds to serve http requests";
        let duration = self.all.histogram("kubelet_http_requests_duration_seconds", help, DEFAULT, &labels);
        Serving { inflight, duration, began: Instant::now() }
    }

    pub(crate) fn probed(&self, target: &Probing<'_>, outcome: Probed, took: Duration) {
        let Probing { namespace, pod: name, uid, container, kind } = *target;
        let result = match outcome {
            Probed::Successful => "successful",
            Probed::Failed => "failed",
            Probed::Unknown => "unknown",
        };
        let labels =
            [("container", container), ("namespace", namespace), ("pod", name), ("pod_uid", uid), ("probe_type", kind)];
        let with_result: Vec<_> = labels.into_iter().chain([("result", result)]).collect();
        let help = "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.";
        self.probes.counter("prober_probe_total", help, &with_result).inc();
        let labels = [("container", container), ("namespace", namespace), ("pod", name), ("probe_type", kind)];
        let help = "[ALPHA] Duration in seconds for a probe response.";
        self.probes.histogram("prober_probe_duration_seconds", help, DEFAULT, &labels).observe_duration(took);
    }

    /// Ends the series of a pod that is gone.
    pub(crate) fn forget(&self, namespace: &str, pod: &str) {
        let of_pod = [("namespace", namespace), ("pod", pod)];
        self.probes.forget("prober_probe_total", &of_pod);
        self.probes.forget("prober_probe_duration_seconds", &of_pod);
    }
}

impl cri::Observer for KubeletMetrics {
    fn trace_context(&self) -> Option<String> {
        trace::trace_context().map(|context| context.to_string())
    }

    fn called(&self, method: &str, took: Duration, is_error: bool) {
        let operation = operation_type(method);
        let labels = [("operation_type", operation.as_str())];
        let help = "[ALPHA] Cumulative number of runtime operations by operation type.";
        self.all.counter("kubelet_runtime_operations_total", help, &labels).inc();
        let help = "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.";
        self.all
            .histogram("kubelet_runtime_operations_duration_seconds", help, RUNTIME, &labels)
            .observe_duration(took);
        // Shown as zero before the first error, so that a rate over it has something to begin from.
        let help = "[ALPHA] Cumulative number of runtime operation errors by operation type.";
        let errors = self.all.counter("kubelet_runtime_operations_errors_total", help, &labels);
        if is_error {
            errors.inc();
        }
    }
}

/// How work on a volume ended.
#[derive(Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) is_ok: bool,
    /// It is the volume of a driver that was part of Kubernetes once.
    pub(crate) is_migrated: bool,
}

/// As Go's gRPC calls it.
fn code_name(code: csi::tonic::Code) -> String {
    use csi::tonic::Code;
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        other => format!("{other:?}"),
    }
}

/// A request that is being served.
pub(crate) struct Serving {
    inflight: Gauge,
    duration: Histogram,
    began: Instant,
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.inflight.add(-1.0);
        self.duration.observe_duration(self.began.elapsed());
    }
}

fn is_long_running(path: &str) -> bool {
    matches!(path, "exec" | "attach" | "portForward" | "debug")
}

/// Methods that a client invents count as one.
fn known_method(method: &http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "PATCH" => "PATCH",
        "DELETE" => "DELETE",
        "OPTIONS" => "OPTIONS",
        _ => "other",
    }
}

/// The path that a request counts as: one of the server's own, never a client's invention.
pub(crate) fn known_path(path: &str) -> &'static str {
    const KNOWN: &[&str] = &[
        "attach",
        "checkpoint",
        "configz",
        "containerLogs",
        "debug",
        "exec",
        "flagz",
        "healthz",
        "logs",
        "metrics",
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "metrics/slis",
        "pods",
        "portForward",
        "run",
        "runningpods",
        "stats",
        "statusz",
    ];
    let path = path.trim_matches('/');
    let first = path.split('/').next().unwrap_or_default();
    let known = KNOWN.iter().find(|known| **known == path).or_else(|| KNOWN.iter().find(|known| **known == first));
    known.copied().unwrap_or("other")
}

/// Upstream's word for a call: `RunPodSandbox` is `run_podsandbox`.
fn operation_type(method: &str) -> String {
    const SPECIAL: &[(&str, &str)] = &[
        ("RunPodSandbox", "run_podsandbox"),
        ("StopPodSandbox", "stop_podsandbox"),
        ("RemovePodSandbox", "remove_podsandbox"),
        ("PodSandboxStatus", "podsandbox_status"),
        ("ListPodSandbox", "list_podsandbox"),
        ("PodSandboxStats", "podsandbox_stats"),
        ("ListPodSandboxStats", "list_podsandbox_stats"),
        ("ImageFsInfo", "image_fs_info"),
        ("PortForward", "port_forward"),
        ("UpdateRuntimeConfig", "update_runtime_config"),
        ("ReopenContainerLog", "reopen_container_log"),
    ];
    if let Some((_, name)) = SPECIAL.iter().find(|(known, _)| *known == method) {
        return (*name).to_owned();
    }
    let mut name = String::with_capacity(method.len() + 4);
    for (at, letter) in method.chars().enumerate() {
        if letter.is_ascii_uppercase() && at > 0 {
            name.push('_');
        }
        name.push(letter.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use cri::Observer as _;

    #[test]
    fn calls_have_upstreams_words() {
        for (method, word) in [
            ("RunPodSandbox", "run_podsandbox"),
            ("CreateContainer", "create_container"),
            ("Version", "version"),
            ("ExecSync", "exec_sync"),
            ("ListContainers", "list_containers"),
            ("PullImage", "pull_image"),
        ] {
            assert_eq!(operation_type(method), word);
        }
    }

    #[test]
    fn security_a_client_invents_no_series() {
        assert_eq!(known_path("/exec/ns/pod/c"), "exec");
        assert_eq!(known_path("/metrics/cadvisor"), "metrics/cadvisor");
        assert_eq!(known_path("/stats/summary"), "stats");
        assert_eq!(known_path("/\"made up\"\n"), "other");
        assert_eq!(known_method(&http::Method::from_bytes(b"MADEUP").unwrap()), "other");
    }

    #[test]
    fn series_of_a_pod_end_with_it() {
        let metrics = KubeletMetrics::new();
        for name in ["a", "b"] {
            let target = Probing { namespace: "default", pod: name, uid: name, container: "c", kind: "Liveness" };
            metrics.probed(&target, Probed::Failed, Duration::from_millis(3));
        }
        let text = metrics.probes().render();
        let row = r#"prober_probe_total{container="c",namespace="default",pod="a",pod_uid="a",probe_type="Liveness",result="failed"} 1"#;
        assert!(text.contains(row), "{text}");
        use client::metrics::upstream::{Component, problems};
        assert_eq!(problems(Component::KubeletProbes, &text), Vec::<String>::new());
        metrics.forget("default", "a");
        let text = metrics.probes().render();
        assert!(!text.contains("pod=\"a\"") && text.contains("pod=\"b\""), "{text}");
    }

    #[test]
    fn images_that_are_volumes_are_counted() {
        let metrics = KubeletMetrics::new();
        metrics.images_mounted(2, None);
        metrics.images_mounted(1, Some("ImageVolumeMountFailed: no such path"));
        metrics.images_mounted(1, Some("another reason"));
        let text = metrics.all().render();
        for row in ["requested_total 4", "mounted_succeed_total 3", "mounted_errors_total 1"] {
            assert!(text.contains(&format!("\nkubelet_image_volume_{row}\n")), "{row}\n{text}");
        }
    }

    #[test]
    fn volumes_and_cgroups_are_timed() {
        let metrics = KubeletMetrics::new();
        let took = Duration::from_millis(20);
        let outcome = |is_ok| Outcome { is_ok, is_migrated: false };
        metrics.volume_changed("volume_mount", "kubernetes.io/secret", outcome(true), took);
        metrics.volume_changed("volume_mount", "kubernetes.io/secret", outcome(false), took);
        metrics.driver_called("d", "/csi.v1.Node/NodePublishVolume", csi::tonic::Code::Ok, true, took);
        metrics.driver_called("d", "/csi.v1.Node/NodePublishVolume", csi::tonic::Code::DeadlineExceeded, false, took);
        metrics.cgroup_changed("create", took);
        let text = metrics.all().render();
        for row in [
            r#"storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="success",volume_plugin="kubernetes.io/secret"} 1"#,
            r#"storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/secret"} 1"#,
            r#"csi_operations_seconds_count{driver_name="d",grpc_status_code="OK",method_name="/csi.v1.Node/NodePublishVolume",migrated="true"} 1"#,
            r#"csi_operations_seconds_count{driver_name="d",grpc_status_code="DeadlineExceeded",method_name="/csi.v1.Node/NodePublishVolume",migrated="false"} 1"#,
            r#"kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1"#,
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }

    #[test]
    fn errors_are_counted_beside_calls() {
        let metrics = KubeletMetrics::new();
        metrics.called("PullImage", Duration::from_millis(20), true);
        metrics.called("PullImage", Duration::from_millis(20), false);
        let text = metrics.all().render();
        for row in [
            r#"kubelet_runtime_operations_total{operation_type="pull_image"} 2"#,
            r#"kubelet_runtime_operations_errors_total{operation_type="pull_image"} 1"#,
            r#"kubelet_runtime_operations_duration_seconds_count{operation_type="pull_image"} 2"#,
        ] {
            assert!(text.contains(row), "{row}\n{text}");
        }
    }
}

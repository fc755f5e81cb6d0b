//! What a kubelet is told: flags, the `KubeletConfiguration` file, and the settings both end in.

mod answers;
mod check;
mod file;
mod flags;
mod shutdown;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use client::Client;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Taint;
use parking_lot::Mutex;

pub use flags::Args;
pub use shutdown::ShutdownPeriod;

/// A kubelet ready to run.
#[derive(Clone)]
pub struct Config {
    pub client: Client,
    pub settings: Settings,
    /// Where it leaves how others in this process get its summary.
    pub summaries: SummarySlot,
}

/// `/stats/summary` by a call, given the query. None once the kubelet has ended, or if it cannot tell.
pub type Summaries = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Bytes>> + Send + Sync>;

/// Filled as soon as there is a kubelet.
pub type SummarySlot = Arc<Mutex<Option<Summaries>>>;

/// Everything that is configurable, with upstream's defaults, except where `docs/components.md` says why not.
#[derive(Clone, Debug)]
pub struct Settings {
    pub node_name: String,
    /// Found out from the default route when empty.
    pub node_ips: Vec<IpAddr>,
    pub cri_endpoint: PathBuf,
    pub root_dir: PathBuf,
    pub cert_dir: PathBuf,
    pub pod_logs_dir: PathBuf,
    pub cluster_dns: Vec<String>,
    pub cluster_domain: String,
    pub resolv_conf: PathBuf,
    pub address: IpAddr,
    /// Zero: any free one.
    pub port: u16,
    /// The API server's and users' certificates are checked against this.
    pub client_ca_file: Option<PathBuf>,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    /// Also delegate bearer tokens to the API server.
    pub token_webhook: bool,
    pub anonymous_auth: bool,
    /// Ask the API server for every request; otherwise any authenticated caller may do all.
    pub authorization_webhook: bool,
    pub register_node: bool,
    pub node_labels: BTreeMap<String, String>,
    pub register_with_taints: Vec<Taint>,
    pub max_pods: u32,
    /// How many processes a pod may have; -1: as many as the node can.
    pub pod_pids_limit: i64,
    pub cgroups_per_qos: bool,
    pub cgroup_root: String,
    /// Who makes cgroups, unless the runtime says who does.
    pub cgroup_driver: CgroupDriver,
    pub pod_cidr: Option<String>,
    /// A directory of pods, or one file.
    pub static_pod_path: Option<PathBuf>,
    /// Where more pods are, asked this often and with these headers.
    pub static_pod_url: Option<String>,
    pub static_pod_url_headers: Vec<(String, String)>,
    pub http_check_frequency: Duration,
    pub allowed_unsafe_sysctls: Vec<String>,
    /// Containers that name no seccomp profile get the runtime's.
    pub seccomp_default: bool,
    /// Where anyone on the machine may ask whether the kubelet is well.
    pub healthz: Option<SocketAddr>,
    pub oom_score_adj: Option<i32>,
    pub max_open_files: Option<u64>,
    /// Refuse to start where the kernel is not set up as a node's should be.
    pub protect_kernel_defaults: bool,
    /// Refuse to start where the machine swaps.
    pub fail_swap_on: bool,
    /// Refuse to start where control groups are of version 1.
    pub fail_cgroup_v1: bool,
    /// Requests per second to the API server and at once; None: no limit but the server's.
    pub api_rate: Option<(f64, u32)>,
    /// The same for events.
    pub event_rate: Option<(f64, u32)>,
    /// The same for pulls of images, which fail beyond it; None: as many as run side by side.
    pub pull_rate: Option<(f64, u32)>,
    /// Serve exec, attach, port-forward, run and logs.
    pub debugging_handlers: bool,
    /// Whether profiles of the process are served.
    pub profiling_handler: bool,
    /// The collector that traces are sent to, if any.
    pub tracing: Option<otlp::TracingConfiguration>,
    /// Zero: unused images may stay.
    pub image_maximum_gc_age: Duration,
    /// Images that the node's status shows; negative: all.
    pub node_status_max_images: i32,
    pub node_status_report_frequency: Duration,
    /// Zero: only `max_pods` counts.
    pub pods_per_core: u32,
    pub container_log_monitor_interval: Duration,
    /// The longest wait before a container that crashes is started again.
    pub max_container_restart_period: Duration,
    pub serialize_image_pulls: bool,
    /// Whether `/logs/` serves the node's `/var/log`.
    pub system_log_handler: bool,
    pub max_parallel_image_pulls: usize,
    pub node_status_update_frequency: Duration,
    pub node_lease_duration: Duration,
    /// Percentages of the image file system.
    pub image_gc_high: u64,
    pub image_gc_low: u64,
    pub image_minimum_gc_age: Duration,
    pub container_log_max_size: u64,
    pub container_log_max_files: u32,
    /// Signals (`memory.available`, `nodefs.available`, …) and the amount or percentage below which pods are evicted.
    pub eviction_hard: BTreeMap<String, String>,
    /// The same, once a signal has been short for its grace period.
    pub eviction_soft: BTreeMap<String, String>,
    pub eviction_soft_grace_period: BTreeMap<String, Duration>,
    pub eviction_minimum_reclaim: BTreeMap<String, String>,
    /// Seconds that pods get which are evicted softly.
    pub eviction_max_pod_grace_period: i64,
    pub eviction_pressure_transition_period: Duration,
    pub reserved: BTreeMap<String, String>,
    /// Keep all pods together out of what is reserved: CPU, memory and processes.
    pub enforce_allocatable: bool,
    pub provider_id: Option<String>,
    /// Ask for a certificate to serve with through the API, and for a new one before it ends.
    pub server_tls_bootstrap: bool,
    /// Ask for a new client certificate before the one in use ends.
    pub rotate_certificates: bool,
    pub cpu_manager_policy: CpuManagerPolicy,
    /// Between two looks of the CPU manager at what containers may run on.
    pub cpu_manager_reconcile_period: Duration,
    /// Never given away exclusively, in the kernel's list format; none: as many as are reserved.
    pub reserved_system_cpus: String,
    /// How long pods get when the node shuts down, by rising priority. None: a shutdown is not held up.
    pub shutdown_periods: Vec<ShutdownPeriod>,
    /// The socket of the bus that logind and systemd are on.
    pub system_bus: PathBuf,
    /// What pods and plug-ins know `root_dir` as, wherever it is: manifests of drivers name upstream's place.
    pub usual_root: PathBuf,
    /// How long a storage driver has for one call, and an attacher to attach.
    pub volume_call_timeout: Duration,
    /// How often volumes of storage drivers are measured.
    pub volume_stats_period: Duration,
}

/// Who makes the cgroups of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CgroupDriver {
    /// The kubelet, as directories.
    #[default]
    Cgroupfs,
    /// systemd, as slices.
    Systemd,
}

impl CgroupDriver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            CgroupDriver::Cgroupfs => "cgroupfs",
            CgroupDriver::Systemd => "systemd",
        }
    }
}

/// How containers are spread over processors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuManagerPolicy {
    /// All share all.
    #[default]
    None,
    /// Guaranteed pods that ask for whole processors get them for themselves.
    Static,
}

/// Upstream sets no limit: one pod could take every process id of its node from the others.
const DEFAULT_POD_PIDS_LIMIT: i64 = 4096;

/// Upstream's defaults.
const EVICTION_HARD: &[(&str, &str)] = &[
    ("memory.available", "100Mi"),
    ("nodefs.available", "10%"),
    ("nodefs.inodesFree", "5%"),
    ("imagefs.available", "15%"),
    ("imagefs.inodesFree", "5%"),
];

/// Where upstream's kubelet keeps its files.
pub const USUAL_ROOT: &str = "/var/lib/kubelet";

impl Settings {
    /// Those of a `KubeletConfiguration`, and the usual ones where it says nothing.
    pub fn configured(node_name: &str, configuration: serde_json::Value) -> anyhow::Result<Self> {
        let mut settings = Self::new(node_name);
        file::FileConfig::parse(configuration)?.apply(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }

    pub fn new(node_name: impl Into<String>) -> Self {
        let root_dir = PathBuf::from(USUAL_ROOT);
        Settings {
            node_name: node_name.into(),
            node_ips: Vec::new(),
            cri_endpoint: PathBuf::from("/run/cox/cri.sock"),
            cert_dir: root_dir.join("pki"),
            root_dir,
            pod_logs_dir: PathBuf::from("/var/log/pods"),
            cluster_dns: Vec::new(),
            cluster_domain: "cluster.local".into(),
            resolv_conf: PathBuf::from("/etc/resolv.conf"),
            address: IpAddr::from([0, 0, 0, 0]),
            port: 10250,
            client_ca_file: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            token_webhook: true,
            anonymous_auth: false,
            authorization_webhook: true,
            register_node: true,
            node_labels: BTreeMap::new(),
            register_with_taints: Vec::new(),
            max_pods: 110,
            pod_pids_limit: DEFAULT_POD_PIDS_LIMIT,
            cgroups_per_qos: true,
            cgroup_root: "/".into(),
            cgroup_driver: CgroupDriver::Cgroupfs,
            pod_cidr: None,
            static_pod_path: None,
            static_pod_url: None,
            static_pod_url_headers: Vec::new(),
            http_check_frequency: Duration::from_secs(20),
            allowed_unsafe_sysctls: Vec::new(),
            seccomp_default: false,
            healthz: None,
            oom_score_adj: None,
            max_open_files: None,
            protect_kernel_defaults: false,
            fail_swap_on: false,
            fail_cgroup_v1: false,
            api_rate: None,
            event_rate: None,
            pull_rate: None,
            debugging_handlers: true,
            profiling_handler: true,
            tracing: None,
            image_maximum_gc_age: Duration::ZERO,
            node_status_max_images: 50,
            node_status_report_frequency: Duration::from_secs(300),
            pods_per_core: 0,
            container_log_monitor_interval: Duration::from_secs(10),
            max_container_restart_period: Duration::from_secs(300),
            serialize_image_pulls: true,
            system_log_handler: true,
            max_parallel_image_pulls: 5,
            node_status_update_frequency: Duration::from_secs(10),
            node_lease_duration: Duration::from_secs(40),
            image_gc_high: 85,
            image_gc_low: 80,
            image_minimum_gc_age: Duration::from_secs(120),
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            eviction_hard: EVICTION_HARD.iter().map(|(signal, amount)| ((*signal).into(), (*amount).into())).collect(),
            eviction_soft: BTreeMap::new(),
            eviction_soft_grace_period: BTreeMap::new(),
            eviction_minimum_reclaim: BTreeMap::new(),
            eviction_max_pod_grace_period: 0,
            eviction_pressure_transition_period: Duration::from_secs(300),
            reserved: BTreeMap::new(),
            enforce_allocatable: true,
            provider_id: None,
            server_tls_bootstrap: false,
            rotate_certificates: true,
            cpu_manager_policy: CpuManagerPolicy::None,
            cpu_manager_reconcile_period: Duration::from_secs(10),
            reserved_system_cpus: String::new(),
            shutdown_periods: Vec::new(),
            system_bus: dbus::system_bus(),
            usual_root: PathBuf::from(USUAL_ROOT),
            volume_call_timeout: csi::CALL_TIMEOUT,
            volume_stats_period: Duration::from_secs(60),
        }
    }
}

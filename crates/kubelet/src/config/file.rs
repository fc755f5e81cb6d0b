//! The `KubeletConfiguration` file.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use api::quantity::Quantity;
use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

use serde_json::Value;

use super::answers::{self, FieldFlags};
use super::shutdown::{self, ShutdownPeriod as Period};
use super::{CgroupDriver, CpuManagerPolicy, Settings};

/// `KubeletConfiguration`, kubelet.config.k8s.io/v1beta1: the fields this kubelet acts on. All others of upstream are
/// answered before (`answers`), and what upstream does not have either is refused.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
pub(super) struct FileConfig {
    api_version: String,
    kind: String,
    healthz_port: Option<u16>,
    healthz_bind_address: Option<String>,
    oom_score_adj: Option<i32>,
    max_open_files: Option<u64>,
    protect_kernel_defaults: Option<bool>,
    fail_swap_on: Option<bool>,
    #[serde(rename = "failCgroupV1")]
    fail_cgroup_v1: Option<bool>,
    #[serde(rename = "kubeAPIQPS")]
    kube_api_qps: Option<i32>,
    #[serde(rename = "kubeAPIBurst")]
    kube_api_burst: Option<u32>,
    #[serde(rename = "eventRecordQPS")]
    event_record_qps: Option<i32>,
    event_burst: Option<u32>,
    #[serde(rename = "registryPullQPS")]
    registry_pull_qps: Option<i32>,
    registry_burst: Option<u32>,
    enable_debugging_handlers: Option<bool>,
    enable_profiling_handler: Option<bool>,
    #[serde(rename = "imageMaximumGCAge")]
    image_maximum_gc_age: Option<String>,
    node_status_max_images: Option<i32>,
    node_status_report_frequency: Option<String>,
    pods_per_core: Option<u32>,
    container_log_monitor_interval: Option<String>,
    crash_loop_back_off: CrashLoopBackOff,
    merge_default_eviction_settings: Option<bool>,
    address: Option<IpAddr>,
    port: Option<u16>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<String>,
    cluster_domain: Option<String>,
    resolv_conf: Option<PathBuf>,
    static_pod_path: Option<PathBuf>,
    max_pods: Option<u32>,
    pod_pids_limit: Option<i64>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    cgroup_root: Option<String>,
    cgroup_driver: Option<String>,
    #[serde(rename = "staticPodURL")]
    static_pod_url: Option<String>,
    #[serde(rename = "staticPodURLHeader")]
    static_pod_url_header: BTreeMap<String, Vec<String>>,
    http_check_frequency: Option<String>,
    shutdown_grace_period: Option<String>,
    shutdown_grace_period_critical_pods: Option<String>,
    shutdown_grace_period_by_pod_priority: Vec<ShutdownPeriod>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    container_runtime_endpoint: Option<String>,
    pod_logs_dir: Option<PathBuf>,
    allowed_unsafe_sysctls: Vec<String>,
    serialize_image_pulls: Option<bool>,
    enable_system_log_handler: Option<bool>,
    max_parallel_image_pulls: Option<usize>,
    #[serde(rename = "imageGCHighThresholdPercent")]
    image_gc_high: Option<u64>,
    #[serde(rename = "imageGCLowThresholdPercent")]
    image_gc_low: Option<u64>,
    container_log_max_files: Option<u32>,
    container_log_max_size: Option<String>,
    tls_cert_file: Option<PathBuf>,
    tls_private_key_file: Option<PathBuf>,
    register_node: Option<bool>,
    register_with_taints: Vec<Taint>,
    authentication: Authentication,
    authorization: Authorization,
    enforce_node_allocatable: Option<Vec<String>>,
    pub(super) system_reserved: BTreeMap<String, String>,
    pub(super) kube_reserved: BTreeMap<String, String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
    #[serde(rename = "serverTLSBootstrap")]
    server_tls_bootstrap: Option<bool>,
    rotate_certificates: Option<bool>,
    cpu_manager_policy: Option<String>,
    cpu_manager_reconcile_period: Option<String>,
    #[serde(rename = "reservedSystemCPUs")]
    reserved_system_cpus: Option<String>,
    eviction_hard: Option<BTreeMap<String, String>>,
    eviction_soft: BTreeMap<String, String>,
    eviction_soft_grace_period: BTreeMap<String, String>,
    eviction_minimum_reclaim: BTreeMap<String, String>,
    eviction_max_pod_grace_period: Option<i64>,
    eviction_pressure_transition_period: Option<String>,
    #[serde(rename = "imageMinimumGCAge")]
    image_minimum_gc_age: Option<String>,
    seccomp_default: Option<bool>,
    node_status_update_frequency: Option<String>,
    node_lease_duration_seconds: Option<u64>,
    tracing: Option<otlp::TracingConfiguration>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct CrashLoopBackOff {
    max_container_restart_period: Option<String>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct ShutdownPeriod {
    priority: i32,
    shutdown_grace_period_seconds: i64,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, deny_unknown_fields)]
struct Authentication {
    x509: X509,
    webhook: Enabled,
    anonymous: Enabled,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default, deny_unknown_fields)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, deny_unknown_fields)]
struct Enabled {
    enabled: Option<bool>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default, deny_unknown_fields)]
struct Authorization {
    mode: Option<String>,
}

/// Whether callers are reviewed by the API server.
pub(super) fn asks_server(authorization_mode: &str) -> anyhow::Result<bool> {
    match authorization_mode {
        "AlwaysAllow" => Ok(false),
        "Webhook" => Ok(true),
        other => bail!("unknown authorization-mode {other}"),
    }
}

/// Of those that limits can be enforced on, the pods are ours: the processes of the system are left where they are.
fn enforces_pods(parts: &[String]) -> anyhow::Result<bool> {
    if let Some(other) = parts.iter().find(|part| !matches!(part.as_str(), "" | "none" | "pods")) {
        bail!("enforceNodeAllocatable: {other:?} is not supported: processes of the system are left where they are");
    }
    Ok(parts.iter().any(|part| part == "pods"))
}

impl FileConfig {
    /// The file, what is in the directory beside it in the order of names, and flags; later ones win.
    pub(super) fn read(file: Option<&Path>, dir: Option<&Path>, flags: &FieldFlags) -> anyhow::Result<Self> {
        let mut paths: Vec<PathBuf> = file.into_iter().map(Path::to_path_buf).collect();
        if let Some(dir) = dir {
            let entries = std::fs::read_dir(dir).with_context(|| format!("reading {}", dir.display()))?;
            let mut found = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
            found.retain(|path| path.extension().is_some_and(|extension| extension == "conf"));
            found.compact_sort();
            paths.extend(found);
        }
        let mut config = Value::Object(Default::default());
        for path in paths {
            let text = std::fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
            let part = yaml_serde::from_str(&text).with_context(|| format!("parsing {}", path.display()))?;
            merge(&mut config, part);
        }
        flags.apply(&mut config);
        Self::parse(config).context("the kubelet's configuration")
    }

    pub(super) fn parse(mut config: Value) -> anyhow::Result<Self> {
        api::flags::settle(&mut config, answers::FIELDS).map_err(anyhow::Error::msg)?;
        // Empty words stand for the default, except where none is something else.
        if let Value::Object(fields) = &mut config {
            fields.retain(|name, value| name == "resolvConf" || value.as_str() != Some(""));
        }
        let file: FileConfig = serde_json::from_value(config)?;
        if !matches!(file.kind.as_str(), "" | "KubeletConfiguration")
            || !matches!(file.api_version.as_str(), "" | "kubelet.config.k8s.io/v1beta1")
        {
            bail!("no kind {:?} is registered for version {:?}", file.kind, file.api_version);
        }
        Ok(file)
    }

    pub(super) fn apply(self, settings: &mut Settings) -> anyhow::Result<()> {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut settings.address, self.address);
        set(&mut settings.port, self.port.filter(|port| *port != 0));
        set(&mut settings.cluster_domain, self.cluster_domain);
        set(&mut settings.resolv_conf, self.resolv_conf);
        set(&mut settings.max_pods, self.max_pods.filter(|pods| *pods != 0));
        set(&mut settings.pod_pids_limit, self.pod_pids_limit);
        set(&mut settings.cgroups_per_qos, self.cgroups_per_qos);
        set(&mut settings.cgroup_root, self.cgroup_root);
        if let Some(name) = &self.cgroup_driver {
            settings.cgroup_driver = cgroup_driver(name)?;
        }
        settings.shutdown_periods = shutdown_periods(
            self.shutdown_grace_period.as_deref(),
            self.shutdown_grace_period_critical_pods.as_deref(),
            &self.shutdown_grace_period_by_pod_priority,
        )?;
        settings.static_pod_url = self.static_pod_url.filter(|url| !url.is_empty());
        settings.static_pod_url_headers = self
            .static_pod_url_header
            .into_iter()
            .flat_map(|(name, values)| values.into_iter().map(move |value| (name.clone(), value)))
            .collect();
        set(&mut settings.pod_logs_dir, self.pod_logs_dir);
        if let Some(port) = self.healthz_port {
            settings.healthz = settings.healthz.filter(|_| port != 0).map(|at| SocketAddr::new(at.ip(), port));
        }
        if let (Some(at), Some(address)) = (&mut settings.healthz, self.healthz_bind_address.filter(|a| !a.is_empty()))
        {
            at.set_ip(address.parse().with_context(|| format!("healthzBindAddress {address:?}"))?);
        }
        settings.oom_score_adj = self.oom_score_adj.or(settings.oom_score_adj);
        settings.max_open_files = self.max_open_files.filter(|count| *count > 0).or(settings.max_open_files);
        set(&mut settings.protect_kernel_defaults, self.protect_kernel_defaults);
        set(&mut settings.fail_swap_on, self.fail_swap_on);
        set(&mut settings.fail_cgroup_v1, self.fail_cgroup_v1);
        for (name, qps) in [
            ("kubeAPIQPS (--kube-api-qps)", self.kube_api_qps),
            ("eventRecordQPS (--event-qps)", self.event_record_qps),
            ("registryPullQPS (--registry-qps)", self.registry_pull_qps),
        ] {
            if let Some(qps) = qps.filter(|qps| *qps < 0) {
                bail!("invalid configuration: {name} {qps} must not be a negative number");
            }
        }
        settings.api_rate = rate(self.kube_api_qps, self.kube_api_burst, 100);
        settings.event_rate = rate(self.event_record_qps, self.event_burst, 100);
        settings.pull_rate = rate(self.registry_pull_qps, self.registry_burst, 10);
        set(&mut settings.debugging_handlers, self.enable_debugging_handlers);
        set(&mut settings.profiling_handler, self.enable_profiling_handler);
        if let Some(tracing) = self.tracing {
            let errors = tracing.validate("tracing.");
            if !errors.is_empty() {
                bail!("{errors}");
            }
            settings.tracing = Some(tracing);
        }
        set(&mut settings.node_status_max_images, self.node_status_max_images);
        set(&mut settings.pods_per_core, self.pods_per_core);
        set(&mut settings.seccomp_default, self.seccomp_default);
        set(
            &mut settings.serialize_image_pulls,
            serializes(self.serialize_image_pulls, self.max_parallel_image_pulls)?,
        );
        set(&mut settings.system_log_handler, self.enable_system_log_handler);
        set(&mut settings.max_parallel_image_pulls, self.max_parallel_image_pulls);
        set(&mut settings.image_gc_high, self.image_gc_high);
        set(&mut settings.image_gc_low, self.image_gc_low);
        set(&mut settings.container_log_max_files, self.container_log_max_files);
        set(&mut settings.register_node, self.register_node);
        set(&mut settings.token_webhook, self.authentication.webhook.enabled);
        set(&mut settings.anonymous_auth, self.authentication.anonymous.enabled);
        set(
            &mut settings.cri_endpoint,
            self.container_runtime_endpoint.filter(|text| !text.is_empty()).map(|text| endpoint(&text)),
        );
        if let Some(mode) = self.authorization.mode.filter(|mode| !mode.is_empty()) {
            settings.authorization_webhook = asks_server(&mode)?;
        }
        if let Some(size) = self.container_log_max_size {
            let size: Quantity = size.parse().map_err(|error| anyhow::anyhow!("containerLogMaxSize: {error}"))?;
            // A negative size is none.
            settings.container_log_max_size = u64::try_from(size.value()).unwrap_or(u64::MAX);
        }
        settings.cluster_dns = self.cluster_dns;
        settings.allowed_unsafe_sysctls = self.allowed_unsafe_sysctls;
        settings.register_with_taints = self.register_with_taints;
        settings.static_pod_path = self.static_pod_path;
        settings.pod_cidr = self.pod_cidr;
        settings.tls_cert_file = self.tls_cert_file;
        settings.tls_private_key_file = self.tls_private_key_file;
        settings.client_ca_file = self.authentication.x509.client_ca_file.filter(|path| !path.as_os_str().is_empty());
        settings.provider_id = self.provider_id;
        if let Some(parts) = &self.enforce_node_allocatable {
            settings.enforce_allocatable = enforces_pods(parts)?;
        }
        for (name, amount) in self.system_reserved.iter().chain(&self.kube_reserved) {
            add_reserved(&mut settings.reserved, name, amount)?;
        }
        set(&mut settings.server_tls_bootstrap, self.server_tls_bootstrap);
        set(&mut settings.rotate_certificates, self.rotate_certificates);
        set(&mut settings.reserved_system_cpus, self.reserved_system_cpus);
        if let Some(policy) = self.cpu_manager_policy {
            settings.cpu_manager_policy = cpu_manager_policy(&policy)?;
        }
        if let Some(own) = self.eviction_hard {
            if self.merge_default_eviction_settings != Some(true) {
                settings.eviction_hard.clear();
            }
            settings.eviction_hard.extend(own);
        }
        settings.eviction_soft = self.eviction_soft;
        for (signal, grace) in self.eviction_soft_grace_period {
            settings.eviction_soft_grace_period.insert(signal, duration(&grace)?);
        }
        settings.eviction_minimum_reclaim = self.eviction_minimum_reclaim;
        set(&mut settings.eviction_max_pod_grace_period, self.eviction_max_pod_grace_period);
        let lease_duration = self.node_lease_duration_seconds.filter(|seconds| *seconds != 0);
        set(&mut settings.node_lease_duration, lease_duration.map(Duration::from_secs));
        let given = |text: &Option<String>| {
            anyhow::Ok(text.as_deref().map(duration).transpose()?.filter(|given| !given.is_zero()))
        };
        // Who says how often the status is looked at, and no more, says how often it is reported.
        if let (Some(update), None) =
            (given(&self.node_status_update_frequency)?, given(&self.node_status_report_frequency)?)
        {
            settings.node_status_report_frequency = update;
        }
        for (to, from) in [
            (&mut settings.cpu_manager_reconcile_period, self.cpu_manager_reconcile_period),
            (&mut settings.eviction_pressure_transition_period, self.eviction_pressure_transition_period),
            (&mut settings.image_minimum_gc_age, self.image_minimum_gc_age),
            (&mut settings.image_maximum_gc_age, self.image_maximum_gc_age),
            (&mut settings.node_status_report_frequency, self.node_status_report_frequency),
            (&mut settings.container_log_monitor_interval, self.container_log_monitor_interval),
            (&mut settings.max_container_restart_period, self.crash_loop_back_off.max_container_restart_period),
            (&mut settings.http_check_frequency, self.http_check_frequency),
            (&mut settings.node_status_update_frequency, self.node_status_update_frequency),
        ] {
            // Zero stands for the default.
            if let Some(value) = from.map(|text| duration(&text)).transpose()?.filter(|value| !value.is_zero()) {
                *to = value;
            }
        }
        Ok(())
    }
}

/// Whether images are pulled one after the other, if anything is said of it: a number says so as well.
fn serializes(serialize: Option<bool>, parallel: Option<usize>) -> anyhow::Result<Option<bool>> {
    match (serialize, parallel) {
        (_, Some(0)) => bail!("maxParallelImagePulls: Invalid value: 0: must be a positive number"),
        (Some(true), Some(2..)) => {
            bail!("maxParallelImagePulls cannot be larger than 1 unless serializeImagePulls is set to false")
        }
        (None, Some(parallel)) => Ok(Some(parallel < 2)),
        (serialize, _) => Ok(serialize),
    }
}

/// Objects are merged, all else is replaced.
fn merge(to: &mut Value, from: Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (name, value) in from {
                merge(to.entry(name).or_insert(Value::Null), value);
            }
        }
        (to, from) => *to = from,
    }
}

/// A limit if there is a rate.
fn rate(qps: Option<i32>, burst: Option<u32>, default_burst: u32) -> Option<(f64, u32)> {
    let qps = qps.filter(|qps| *qps > 0)?;
    Some((f64::from(qps), burst.filter(|burst| *burst > 0).unwrap_or(default_burst)))
}

/// A socket's path, with or without its scheme.
pub(super) fn endpoint(text: &str) -> PathBuf {
    PathBuf::from(text.strip_prefix("unix://").unwrap_or(text))
}

fn duration(text: &str) -> anyhow::Result<Duration> {
    api::duration::parse(text).map_err(anyhow::Error::msg)
}

pub(super) fn cpu_manager_policy(name: &str) -> anyhow::Result<CpuManagerPolicy> {
    match name {
        "" | "none" => Ok(CpuManagerPolicy::None),
        "static" => Ok(CpuManagerPolicy::Static),
        other => bail!("unknown policy: \"{other}\""),
    }
}

pub(super) fn cgroup_driver(name: &str) -> anyhow::Result<CgroupDriver> {
    match name {
        "" | "cgroupfs" => Ok(CgroupDriver::Cgroupfs),
        "systemd" => Ok(CgroupDriver::Systemd),
        other => bail!("unknown cgroup driver \"{other}\": cgroupfs or systemd"),
    }
}

/// One form or the other says how long pods get at a shutdown.
fn shutdown_periods(
    all: Option<&str>,
    critical: Option<&str>,
    by_priority: &[ShutdownPeriod],
) -> anyhow::Result<Vec<Period>> {
    let parse = |text: Option<&str>| text.map_or(Ok(Duration::ZERO), duration);
    let (all, critical) = (parse(all)?, parse(critical)?);
    for (name, value) in [("shutdownGracePeriod", all), ("shutdownGracePeriodCriticalPods", critical)] {
        if !value.is_zero() && value < Duration::from_secs(1) {
            bail!("invalid configuration: {name} {value:?} must be either zero or otherwise >= 1 sec");
        }
    }
    if critical > all {
        bail!(
            "invalid configuration: shutdownGracePeriodCriticalPods {critical:?} must be <= shutdownGracePeriod {all:?}"
        );
    }
    if by_priority.is_empty() {
        return Ok(shutdown::of_two(all, critical));
    }
    if !all.is_zero() || !critical.is_zero() {
        bail!(
            "invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at the same time"
        );
    }
    let periods = by_priority.iter();
    let mut periods: Vec<Period> = periods
        .map(|period| Period { priority: period.priority, seconds: period.shutdown_grace_period_seconds })
        .collect();
    periods.compact_sort_by_key(|period| period.priority);
    Ok(periods)
}

/// Adds to what is held back from pods.
fn add_reserved(reserved: &mut BTreeMap<String, String>, name: &str, amount: &str) -> anyhow::Result<()> {
    let parse = |text: &str| text.parse::<Quantity>().map_err(|error| anyhow::anyhow!("{name}: {error}"));
    if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name) {
        bail!("cannot reserve {name:?} resource");
    }
    let mut sum = parse(amount)?;
    if sum.is_negative() {
        bail!("resource quantity for {name:?} cannot be negative: {amount}");
    }
    if let Some(other) = reserved.get(name) {
        sum.add(&parse(other)?);
    }
    reserved.insert(name.into(), sum.to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> anyhow::Result<FileConfig> {
        FileConfig::parse(yaml_serde::from_str(text)?)
    }

    #[test]
    fn zeros_and_empty_words_stand_for_defaults_and_some_follow_others() {
        let read = |text: &str| {
            let mut settings = Settings::new("n");
            parse(text)?.apply(&mut settings)?;
            anyhow::Ok(settings)
        };
        let usual = Settings::new("n");
        let zeros = "address: \"\"\nport: 0\nmaxPods: 0\nnodeLeaseDurationSeconds: 0\ncontainerLogMaxSize: \"\"\n\
            cgroupDriver: \"\"\nresolvConf: \"\"\nauthentication: {x509: {clientCAFile: \"\"}}\n";
        let settings = read(zeros).unwrap();
        assert_eq!((settings.address, settings.port, settings.max_pods), (usual.address, usual.port, usual.max_pods));
        assert_eq!(settings.node_lease_duration, usual.node_lease_duration);
        assert_eq!(settings.container_log_max_size, usual.container_log_max_size);
        assert_eq!(settings.client_ca_file, None);
        assert_eq!(settings.resolv_conf, PathBuf::new(), "none is something else");

        assert!(!read("maxParallelImagePulls: 3").unwrap().serialize_image_pulls);
        assert!(read("maxParallelImagePulls: 1").unwrap().serialize_image_pulls);
        assert!(!read("serializeImagePulls: false").unwrap().serialize_image_pulls);
        assert!(read("maxParallelImagePulls: 0").is_err());
        assert!(read("maxParallelImagePulls: 3\nserializeImagePulls: true").is_err());

        let pulls = |text: &str| read(text).unwrap().pull_rate;
        assert_eq!((pulls("{}"), pulls("registryPullQPS: 0"), pulls("registryBurst: 3")), (None, None, None));
        assert_eq!(pulls("registryPullQPS: 2"), Some((2.0, 10)));
        assert_eq!(pulls("registryPullQPS: 2\nregistryBurst: 3"), Some((2.0, 3)));
        assert!(read("registryPullQPS: -1").is_err());

        let report = |text: &str| read(text).unwrap().node_status_report_frequency;
        assert_eq!(report("nodeStatusUpdateFrequency: 7s"), Duration::from_secs(7));
        assert_eq!(report("nodeStatusUpdateFrequency: 7s\nnodeStatusReportFrequency: 9s"), Duration::from_secs(9));
        assert_eq!(report("nodeStatusUpdateFrequency: 0s"), usual.node_status_report_frequency);
    }

    #[test]
    fn fields_nobody_has_are_refused() {
        for text in ["unknownFuture: 1", "authentication: {x509: {unknown: 1}}", "kind: Pod", "swap: true"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn reservations_are_checked_in_upstreams_words() {
        for (reserved, expected) in [
            ("{pid: '100', ephemeral-storage: 1Gi}", None),
            ("{gpu: '1'}", Some("cannot reserve \"gpu\" resource")),
            ("{memory: -1Gi}", Some("resource quantity for \"memory\" cannot be negative: -1Gi")),
        ] {
            let config = parse(&format!("systemReserved: {reserved}")).unwrap();
            let refused = config.apply(&mut Settings::new("n")).err().map(|error| error.to_string());
            assert_eq!(refused.as_deref(), expected);
        }
    }

    #[test]
    fn tracing_is_checked_in_upstreams_words() {
        let apply = |text: &str| -> anyhow::Result<Settings> {
            let mut settings = Settings::new("n");
            parse(text)?.apply(&mut settings)?;
            Ok(settings)
        };
        let settings = apply("tracing: {endpoint: 'c:4317', samplingRatePerMillion: 7}\nenableProfilingHandler: false");
        let settings = settings.unwrap();
        assert_eq!(settings.tracing.map(|tracing| tracing.rate()), Some(7));
        assert!(!settings.profiling_handler);
        let error = apply("tracing: {samplingRatePerMillion: -7}").unwrap_err().to_string();
        assert_eq!(error, "tracing.samplingRatePerMillion: Invalid value: -7: sampling rate must be positive");
    }

    #[test]
    fn files_of_a_directory_are_merged() {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("20.conf", "maxPods: 7\nevictionHard: {memory.available: 1Gi}\nmergeDefaultEvictionSettings: true"),
            ("10.conf", "maxPods: 5\npodsPerCore: 3"),
            ("30.yaml", "maxPods: 9"),
        ] {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let mut settings = Settings::new("n");
        let read = FileConfig::read(None, Some(dir.path()), &FieldFlags::default()).unwrap();
        read.apply(&mut settings).unwrap();
        assert_eq!((settings.max_pods, settings.pods_per_core), (7, 3));
        assert_eq!(settings.eviction_hard.len(), 5);
    }

    #[test]
    fn the_file_is_read() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 10260\nclusterDNS: [10.43.0.10]\n\
            maxPods: 50\ncontainerLogMaxSize: 5Mi\nauthentication:\n  x509: {clientCAFile: /ca.crt}\n  anonymous: {enabled: false}\n\
            authorization: {mode: AlwaysAllow}\nsystemReserved: {memory: 1Gi}\nkubeReserved: {memory: 1Gi, cpu: 100m}\n\
            evictionHard: {memory.available: 1Gi}\nevictionSoft: {nodefs.available: 20%}\nevictionSoftGracePeriod: {nodefs.available: 1m30s}\n\
            imageMinimumGCAge: 5m\npodPidsLimit: 100\nseccompDefault: true\ncpuManagerPolicy: static\nserverTLSBootstrap: true\nevictionPressureTransitionPeriod: 0s\n";
        let mut settings = Settings::new("n");
        parse(text).unwrap().apply(&mut settings).unwrap();
        assert_eq!((settings.port, settings.max_pods, settings.pod_pids_limit), (10260, 50, 100));
        assert_eq!(settings.cluster_dns, ["10.43.0.10"]);
        assert_eq!(settings.container_log_max_size, 5 << 20);
        assert_eq!(settings.client_ca_file.as_deref(), Some(Path::new("/ca.crt")));
        assert!(!settings.authorization_webhook);
        assert_eq!(settings.reserved.get("memory").map(String::as_str), Some("2Gi"));
        assert_eq!(settings.eviction_hard.len(), 1);
        assert_eq!(settings.eviction_soft_grace_period["nodefs.available"], Duration::from_secs(90));
        assert_eq!(settings.eviction_pressure_transition_period, Duration::from_secs(300));
        assert_eq!(settings.cpu_manager_policy, CpuManagerPolicy::Static);
        assert!(settings.server_tls_bootstrap && settings.seccomp_default);
        assert_eq!(settings.image_minimum_gc_age, Duration::from_secs(300));
        assert_eq!(settings.cgroup_driver, CgroupDriver::Cgroupfs);
    }

    #[test]
    fn shutdown_is_said_in_one_of_two_ways() {
        let read = |text: &str| {
            let mut settings = Settings::new("n");
            parse(text).unwrap().apply(&mut settings)?;
            let periods = settings.shutdown_periods.iter().map(|period| (period.priority, period.seconds));
            anyhow::Ok(periods.collect::<Vec<_>>())
        };
        let by_priority = "shutdownGracePeriodByPodPriority: [{priority: 10, shutdownGracePeriodSeconds: 5}, {priority: 0, shutdownGracePeriodSeconds: 7}]";
        assert!(read("port: 1").unwrap().is_empty());
        assert_eq!(
            read("shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s").unwrap(),
            [(0, 20), (2_000_000_000, 10)]
        );
        assert_eq!(read(by_priority).unwrap(), [(0, 7), (10, 5)]);
        for refused in [
            "shutdownGracePeriod: 10s\nshutdownGracePeriodCriticalPods: 30s".to_string(),
            "shutdownGracePeriod: 10ms".to_string(),
            format!("shutdownGracePeriod: 10s\n{by_priority}"),
            "cgroupDriver: nonsense".to_string(),
        ] {
            assert!(read(&refused).is_err(), "{refused}");
        }
    }

    #[test]
    fn pods_may_come_from_a_url() {
        let text = "staticPodURL: http://x/pods\nstaticPodURLHeader: {A: [b, c]}\nhttpCheckFrequency: 5s\ncgroupDriver: systemd";
        let mut settings = Settings::new("n");
        parse(text).unwrap().apply(&mut settings).unwrap();
        assert_eq!(settings.static_pod_url.as_deref(), Some("http://x/pods"));
        assert_eq!(settings.static_pod_url_headers, [("A".into(), "b".into()), ("A".into(), "c".into())]);
        assert_eq!(settings.http_check_frequency, Duration::from_secs(5));
        assert_eq!(settings.cgroup_driver, CgroupDriver::Systemd);
    }
}

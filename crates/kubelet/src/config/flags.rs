//! The command line of `cox kubelet`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use anyhow::{Context, bail};
use k8s_openapi::api::core::v1::Taint;

use super::Settings;
use super::answers::{FieldFlags, Unused};
use super::file::{self, FileConfig};

/// Upstream's defaults for a kubelet that is a process of its own.
const HEALTHZ_PORT: u16 = 10248;
const OOM_SCORE: i32 = -999;

/// `cox kubelet`, with upstream's flag names.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Path to a kubeconfig file, specifying how to connect to the API server
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// Path to a kubeconfig file that will be used to get a client certificate for the kubelet
    #[arg(long)]
    pub bootstrap_kubeconfig: Option<PathBuf>,
    /// Auto rotate the kubelet client certificates by requesting new ones when they are about to expire
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rotate_certificates: Option<bool>,
    /// Auto-request and rotate the kubelet serving certificates
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub rotate_server_certificates: Option<bool>,
    /// CPU Manager policy to use: none or static
    #[arg(long)]
    pub cpu_manager_policy: Option<String>,
    /// A comma-separated list of CPUs or CPU ranges that are reserved for system and kubernetes usage
    #[arg(long)]
    pub reserved_cpus: Option<String>,
    /// Resources reserved for the system, e.g. cpu=200m,memory=500Mi
    #[arg(long, value_delimiter = ',')]
    pub system_reserved: Vec<String>,
    /// Resources reserved for Kubernetes components, e.g. cpu=200m,memory=500Mi
    #[arg(long, value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
    /// Thresholds below which pods are evicted, e.g. memory.available<1Gi
    #[arg(long, value_delimiter = ',')]
    pub eviction_hard: Vec<String>,
    /// Enable the use of `RuntimeDefault` as the default seccomp profile for all workloads
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub seccomp_default: Option<bool>,
    /// The kubelet will load its initial configuration from this file
    #[arg(long)]
    pub config: Option<PathBuf>,
    /// Path to a directory of further configuration files (*.conf), merged in the order of their names
    #[arg(long)]
    pub config_dir: Option<PathBuf>,
    /// If non-empty, will use this string as identification instead of the actual hostname
    #[arg(long)]
    pub hostname_override: Option<String>,
    /// IP address (or comma-separated dual-stack IP addresses) of the node
    #[arg(long, value_delimiter = ',')]
    pub node_ip: Vec<IpAddr>,
    /// The endpoint of container runtime service
    #[arg(long)]
    pub container_runtime_endpoint: Option<String>,
    /// Directory path for managing kubelet files
    #[arg(long)]
    pub root_dir: Option<PathBuf>,
    /// The directory where the TLS certs are located
    #[arg(long)]
    pub cert_dir: Option<PathBuf>,
    /// Root directory for pod logs
    #[arg(long)]
    pub pod_logs_dir: Option<PathBuf>,
    /// Comma-separated list of DNS server IP address
    #[arg(long, value_delimiter = ',')]
    pub cluster_dns: Vec<String>,
    /// Domain for this cluster
    #[arg(long)]
    pub cluster_domain: Option<String>,
    /// Resolver configuration file used as the basis for the container DNS resolution configuration
    #[arg(long)]
    pub resolv_conf: Option<PathBuf>,
    /// The IP address for the Kubelet to serve on
    #[arg(long)]
    pub address: Option<IpAddr>,
    /// The port for the Kubelet to serve on
    #[arg(long)]
    pub port: Option<u16>,
    /// Requests presenting a client certificate signed by one of the authorities in this file are authenticated
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// File containing x509 Certificate used for serving HTTPS
    #[arg(long)]
    pub tls_cert_file: Option<PathBuf>,
    /// File containing x509 private key matching --tls-cert-file
    #[arg(long)]
    pub tls_private_key_file: Option<PathBuf>,
    /// Authorization mode for Kubelet server: AlwaysAllow or Webhook
    #[arg(long)]
    pub authorization_mode: Option<String>,
    /// Enables anonymous requests to the Kubelet server
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// Register the node with the apiserver
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub register_node: Option<bool>,
    /// Labels to add when registering the node in the cluster, key=value pairs separated by ','
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Register the node with the given list of taints (comma separated "<key>=<value>:<effect>")
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Number of Pods that can run on this Kubelet
    #[arg(long)]
    pub max_pods: Option<u32>,
    /// Set the maximum number of processes per pod; -1 for no limit
    #[arg(long, allow_negative_numbers = true)]
    pub pod_max_pids: Option<i64>,
    /// Enable creation of QoS cgroup hierarchy
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub cgroups_per_qos: Option<bool>,
    /// Optional root cgroup to use for pods
    #[arg(long)]
    pub cgroup_root: Option<String>,
    /// Driver that the kubelet uses to manipulate cgroups on the host: cgroupfs or systemd
    #[arg(long)]
    pub cgroup_driver: Option<String>,
    /// URL for accessing additional Pod specifications to run
    #[arg(long)]
    pub manifest_url: Option<String>,
    /// Comma-separated list of HTTP headers to use when accessing --manifest-url, e.g. a:hello,b:again
    #[arg(long, value_delimiter = ',')]
    pub manifest_url_header: Vec<String>,
    /// The CIDR to use for pod IP addresses
    #[arg(long)]
    pub pod_cidr: Option<String>,
    /// Path to the directory containing static pod files to run
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Comma-separated whitelist of unsafe sysctls or unsafe sysctl patterns (ending in *)
    #[arg(long, value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
    #[command(flatten)]
    pub fields: FieldFlags,
    #[command(flatten)]
    pub others: api::flags::Others<Unused>,
}

impl Args {
    /// Reads the file and lets flags win.
    pub(crate) fn settings(&self) -> anyhow::Result<Settings> {
        let node_name = match &self.hostname_override {
            Some(name) => name.to_lowercase(),
            None => nix::unistd::gethostname()?.to_string_lossy().to_lowercase(),
        };
        let mut settings = Settings::new(node_name);
        if let Some(root) = &self.root_dir {
            settings.root_dir = root.clone();
            settings.cert_dir = root.join("pki");
        }
        settings.healthz = Some((Ipv4Addr::LOCALHOST, HEALTHZ_PORT).into());
        settings.oom_score_adj = Some(OOM_SCORE);
        let mut config = FileConfig::read(self.config.as_deref(), self.config_dir.as_deref(), &self.fields)?;
        reserve(&self.system_reserved, &mut config.system_reserved)?;
        reserve(&self.kube_reserved, &mut config.kube_reserved)?;
        config.apply(&mut settings)?;
        self.apply(&mut settings)?;
        settings.check()?;
        Ok(settings)
    }

    fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(value) = from {
                *to = value.clone();
            }
        }
        set(&mut settings.cert_dir, &self.cert_dir);
        set(&mut settings.pod_logs_dir, &self.pod_logs_dir);
        set(&mut settings.cluster_domain, &self.cluster_domain);
        set(&mut settings.resolv_conf, &self.resolv_conf);
        set(&mut settings.address, &self.address);
        set(&mut settings.port, &self.port);
        set(&mut settings.anonymous_auth, &self.anonymous_auth);
        set(&mut settings.register_node, &self.register_node);
        set(&mut settings.seccomp_default, &self.seccomp_default);
        set(&mut settings.max_pods, &self.max_pods);
        set(&mut settings.pod_pids_limit, &self.pod_max_pids);
        set(&mut settings.cgroups_per_qos, &self.cgroups_per_qos);
        set(&mut settings.cgroup_root, &self.cgroup_root);
        if let Some(name) = &self.cgroup_driver {
            settings.cgroup_driver = file::cgroup_driver(name)?;
        }
        if self.manifest_url.is_some() {
            settings.static_pod_url = self.manifest_url.clone();
        }
        for header in &self.manifest_url_header {
            let (name, value) = header.split_once(':').with_context(|| format!("{header:?} is not name:value"))?;
            settings.static_pod_url_headers.push((name.trim().into(), value.trim().into()));
        }
        if let Some(endpoint) = &self.container_runtime_endpoint {
            settings.cri_endpoint = file::endpoint(endpoint);
        }
        if !self.node_ip.is_empty() {
            settings.node_ips = self.node_ip.clone();
        }
        if !self.cluster_dns.is_empty() {
            settings.cluster_dns = self.cluster_dns.clone();
        }
        if !self.allowed_unsafe_sysctls.is_empty() {
            settings.allowed_unsafe_sysctls = self.allowed_unsafe_sysctls.clone();
        }
        set(&mut settings.rotate_certificates, &self.rotate_certificates);
        set(&mut settings.server_tls_bootstrap, &self.rotate_server_certificates);
        set(&mut settings.reserved_system_cpus, &self.reserved_cpus);
        if let Some(policy) = &self.cpu_manager_policy {
            settings.cpu_manager_policy = file::cpu_manager_policy(policy)?;
        }
        if !self.eviction_hard.is_empty() {
            settings.eviction_hard.clear();
        }
        for threshold in self.eviction_hard.iter().filter(|threshold| !threshold.is_empty()) {
            let (signal, amount) =
                threshold.split_once('<').with_context(|| format!("{threshold:?} is not signal<amount"))?;
            settings.eviction_hard.insert(signal.into(), amount.into());
        }
        if let Some(mode) = &self.authorization_mode {
            settings.authorization_webhook = super::file::asks_server(mode)?;
        }
        for (to, from) in [
            (&mut settings.client_ca_file, &self.client_ca_file),
            (&mut settings.tls_cert_file, &self.tls_cert_file),
            (&mut settings.tls_private_key_file, &self.tls_private_key_file),
            (&mut settings.static_pod_path, &self.pod_manifest_path),
        ] {
            if from.is_some() {
                *to = from.clone();
            }
        }
        if self.pod_cidr.is_some() {
            settings.pod_cidr = self.pod_cidr.clone();
        }
        settings.register(&self.node_labels, &self.register_with_taints)
    }
}

impl Settings {
    /// Labels (`key=value`) and taints (`key=value:effect`) that the node is to have when it registers.
    pub fn register(&mut self, labels: &[String], taints: &[String]) -> anyhow::Result<()> {
        for label in labels.iter().filter(|label| !label.is_empty()) {
            let (key, value) =
                label.split_once('=').with_context(|| format!("node label {label:?} is not key=value"))?;
            self.node_labels.insert(key.into(), value.into());
        }
        for taint in taints.iter().filter(|taint| !taint.is_empty()) {
            self.register_with_taints.push(parse_taint(taint)?);
        }
        Ok(())
    }
}

fn parse_taint(text: &str) -> anyhow::Result<Taint> {
    let (key, effect) = text.rsplit_once(':').with_context(|| format!("taint {text:?} has no effect"))?;
    let (key, value) = match key.split_once('=') {
        Some((key, value)) => (key, Some(value.to_string())),
        None => (key, None),
    };
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        bail!("invalid taint effect: {effect}, unsupported taint effect");
    }
    Ok(Taint { key: key.into(), value, effect: effect.into(), time_added: None })
}

/// What a flag reserves takes the place of all that the file reserves under the same name.
fn reserve(pairs: &[String], reserved: &mut BTreeMap<String, String>) -> anyhow::Result<()> {
    if !pairs.is_empty() {
        reserved.clear();
    }
    for pair in pairs {
        let (name, amount) = pair.split_once('=').with_context(|| format!("{pair:?} is not resource=amount"))?;
        reserved.insert(name.to_owned(), amount.to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flag_reserves_takes_the_place_of_the_files() {
        let text = "systemReserved: {memory: 1Gi, pid: \"9\"}\nkubeReserved: {memory: 1Gi, cpu: 100m}\n";
        let mut config = FileConfig::parse(yaml_serde::from_str(text).unwrap()).unwrap();
        reserve(&["memory=2Gi".to_owned(), "cpu=1".to_owned()], &mut config.system_reserved).unwrap();
        reserve(&[], &mut config.kube_reserved).unwrap();
        let mut settings = Settings::new("n");
        config.apply(&mut settings).unwrap();
        let reserved: Vec<_> =
            settings.reserved.iter().map(|(name, amount)| (name.as_str(), amount.as_str())).collect();
        assert_eq!(reserved, [("cpu", "1100m"), ("memory", "3Gi")]);
    }

    #[test]
    fn taints() {
        for (text, expected) in [
            ("a=b:NoSchedule", Some(("a", Some("b"), "NoSchedule"))),
            ("a:NoExecute", Some(("a", None, "NoExecute"))),
            ("a", None),
            ("a:Sometimes", None),
        ] {
            let taint = parse_taint(text).ok();
            let told = taint.as_ref().map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str()));
            assert_eq!(told, expected);
        }
    }
}

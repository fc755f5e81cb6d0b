//! What a kubelet is told: flags, the `KubeletConfiguration` file, and the settings both end in.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use client::Client;
use client::kubeconfig::{Kubeconfig, Overrides};
use k8s_openapi::api::core::v1::Taint;
use serde::Deserialize;

/// A kubelet ready to run.
pub struct Config {
    pub client: Client,
    pub settings: Settings,
}

/// Everything that is configurable, with upstream's defaults.
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
    pub cgroups_per_qos: bool,
    pub cgroup_root: String,
    pub pod_cidr: Option<String>,
    pub static_pod_path: Option<PathBuf>,
    pub allowed_unsafe_sysctls: Vec<String>,
    pub serialize_image_pulls: bool,
    pub max_parallel_image_pulls: usize,
    pub node_status_update_frequency: Duration,
    pub node_lease_duration: Duration,
    /// Percentages of the image file system.
    pub image_gc_high: u64,
    pub image_gc_low: u64,
    pub image_minimum_gc_age: Duration,
    pub container_log_max_size: u64,
    pub container_log_max_files: u32,
    /// Bytes of memory below which pods are evicted, and held back from allocatable.
    pub eviction_memory_available: u64,
    /// Percentages of disk below which pods are evicted.
    pub eviction_nodefs_available: u64,
    pub eviction_imagefs_available: u64,
    pub reserved: BTreeMap<String, String>,
    pub provider_id: Option<String>,
}

impl Settings {
    pub fn new(node_name: impl Into<String>) -> Self {
        let root_dir = PathBuf::from("/var/lib/kubelet");
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
            cgroups_per_qos: true,
            cgroup_root: "/".into(),
            pod_cidr: None,
            static_pod_path: None,
            allowed_unsafe_sysctls: Vec::new(),
            serialize_image_pulls: true,
            max_parallel_image_pulls: 5,
            node_status_update_frequency: Duration::from_secs(10),
            node_lease_duration: Duration::from_secs(40),
            image_gc_high: 85,
            image_gc_low: 80,
            image_minimum_gc_age: Duration::from_secs(120),
            container_log_max_size: 10 << 20,
            container_log_max_files: 5,
            eviction_memory_available: 100 << 20,
            eviction_nodefs_available: 10,
            eviction_imagefs_available: 15,
            reserved: BTreeMap::new(),
            provider_id: None,
        }
    }
}

/// `cox kubelet`, with upstream's flag names.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Path to a kubeconfig file, specifying how to connect to the API server
    #[arg(long)]
    pub kubeconfig: Option<PathBuf>,
    /// The kubelet will load its initial configuration from this file
    #[arg(long)]
    pub config: Option<PathBuf>,
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
    #[arg(long)]
    pub anonymous_auth: Option<bool>,
    /// Register the node with the apiserver
    #[arg(long)]
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
    /// Enable creation of QoS cgroup hierarchy
    #[arg(long)]
    pub cgroups_per_qos: Option<bool>,
    /// Optional root cgroup to use for pods
    #[arg(long)]
    pub cgroup_root: Option<String>,
    /// The CIDR to use for pod IP addresses
    #[arg(long)]
    pub pod_cidr: Option<String>,
    /// Path to the directory containing static pod files to run
    #[arg(long)]
    pub pod_manifest_path: Option<PathBuf>,
    /// Comma-separated whitelist of unsafe sysctls or unsafe sysctl patterns (ending in *)
    #[arg(long, value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
}

impl Args {
    /// Reads the file, lets flags win, and connects.
    pub fn into_config(self) -> anyhow::Result<Config> {
        let node_name = match &self.hostname_override {
            Some(name) => name.to_lowercase(),
            None => nix::unistd::gethostname()?.to_string_lossy().to_lowercase(),
        };
        let mut settings = Settings::new(node_name);
        if let Some(root) = &self.root_dir {
            settings.root_dir = root.clone();
            settings.cert_dir = root.join("pki");
        }
        if let Some(path) = &self.config {
            FileConfig::read(path)?.apply(&mut settings)?;
        }
        self.apply(&mut settings)?;
        let path = self.kubeconfig.as_deref();
        let kubeconfig = Kubeconfig::load(path).context("reading the kubeconfig")?;
        let client = Client::from_kubeconfig(&kubeconfig, &Overrides::default())?.with_user_agent("kubelet/v1.36")?;
        Ok(Config { client, settings })
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
        set(&mut settings.max_pods, &self.max_pods);
        set(&mut settings.cgroups_per_qos, &self.cgroups_per_qos);
        set(&mut settings.cgroup_root, &self.cgroup_root);
        if let Some(endpoint) = &self.container_runtime_endpoint {
            settings.cri_endpoint = PathBuf::from(endpoint);
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
        if let Some(mode) = &self.authorization_mode {
            settings.authorization_webhook = mode != "AlwaysAllow";
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
        for label in &self.node_labels {
            let (key, value) =
                label.split_once('=').with_context(|| format!("node label {label:?} is not key=value"))?;
            settings.node_labels.insert(key.into(), value.into());
        }
        for taint in &self.register_with_taints {
            settings.register_with_taints.push(parse_taint(taint)?);
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
    Ok(Taint { key: key.into(), value, effect: effect.into(), time_added: None })
}

/// `KubeletConfiguration`, kubelet.config.k8s.io/v1beta1: the fields this kubelet acts on. Others are accepted.
#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct FileConfig {
    address: Option<IpAddr>,
    port: Option<u16>,
    #[serde(rename = "clusterDNS")]
    cluster_dns: Vec<String>,
    cluster_domain: Option<String>,
    resolv_conf: Option<PathBuf>,
    static_pod_path: Option<PathBuf>,
    max_pods: Option<u32>,
    #[serde(rename = "cgroupsPerQOS")]
    cgroups_per_qos: Option<bool>,
    cgroup_root: Option<String>,
    #[serde(rename = "podCIDR")]
    pod_cidr: Option<String>,
    container_runtime_endpoint: Option<String>,
    pod_logs_dir: Option<PathBuf>,
    allowed_unsafe_sysctls: Vec<String>,
    serialize_image_pulls: Option<bool>,
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
    system_reserved: BTreeMap<String, String>,
    kube_reserved: BTreeMap<String, String>,
    #[serde(rename = "providerID")]
    provider_id: Option<String>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Authentication {
    x509: X509,
    webhook: Enabled,
    anonymous: Enabled,
}

#[derive(Deserialize, Debug, Default)]
#[serde(rename_all = "camelCase", default)]
struct X509 {
    #[serde(rename = "clientCAFile")]
    client_ca_file: Option<PathBuf>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Enabled {
    enabled: Option<bool>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(default)]
struct Authorization {
    mode: Option<String>,
}

impl FileConfig {
    fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        yaml_serde::from_str(&text).with_context(|| format!("parsing {}", path.display()))
    }

    fn apply(self, settings: &mut Settings) -> anyhow::Result<()> {
        fn set<T>(to: &mut T, from: Option<T>) {
            if let Some(value) = from {
                *to = value;
            }
        }
        set(&mut settings.address, self.address);
        set(&mut settings.port, self.port);
        set(&mut settings.cluster_domain, self.cluster_domain);
        set(&mut settings.resolv_conf, self.resolv_conf);
        set(&mut settings.max_pods, self.max_pods);
        set(&mut settings.cgroups_per_qos, self.cgroups_per_qos);
        set(&mut settings.cgroup_root, self.cgroup_root);
        set(&mut settings.pod_logs_dir, self.pod_logs_dir);
        set(&mut settings.serialize_image_pulls, self.serialize_image_pulls);
        set(&mut settings.max_parallel_image_pulls, self.max_parallel_image_pulls);
        set(&mut settings.image_gc_high, self.image_gc_high);
        set(&mut settings.image_gc_low, self.image_gc_low);
        set(&mut settings.container_log_max_files, self.container_log_max_files);
        set(&mut settings.register_node, self.register_node);
        set(&mut settings.token_webhook, self.authentication.webhook.enabled);
        set(&mut settings.anonymous_auth, self.authentication.anonymous.enabled);
        set(&mut settings.cri_endpoint, self.container_runtime_endpoint.map(PathBuf::from));
        set(&mut settings.authorization_webhook, self.authorization.mode.map(|mode| mode != "AlwaysAllow"));
        if let Some(size) = self.container_log_max_size {
            let size: api::quantity::Quantity =
                size.parse().map_err(|error| anyhow::anyhow!("containerLogMaxSize: {error}"))?;
            settings.container_log_max_size = size.value().max(0) as u64;
        }
        settings.cluster_dns = self.cluster_dns;
        settings.allowed_unsafe_sysctls = self.allowed_unsafe_sysctls;
        settings.register_with_taints = self.register_with_taints;
        settings.static_pod_path = self.static_pod_path;
        settings.pod_cidr = self.pod_cidr;
        settings.tls_cert_file = self.tls_cert_file;
        settings.tls_private_key_file = self.tls_private_key_file;
        settings.client_ca_file = self.authentication.x509.client_ca_file;
        settings.provider_id = self.provider_id;
        settings.reserved = self.system_reserved;
        for (name, amount) in self.kube_reserved {
            let sum = match settings.reserved.get(&name) {
                None => amount,
                Some(other) => {
                    let parse = |text: &str| {
                        text.parse::<api::quantity::Quantity>().map_err(|error| anyhow::anyhow!("{name}: {error}"))
                    };
                    let mut sum = parse(other)?;
                    sum.add(&parse(&amount)?);
                    sum.to_string()
                }
            };
            settings.reserved.insert(name, sum);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_read() {
        let text = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nport: 10260\nclusterDNS: [10.43.0.10]\n\
            maxPods: 50\ncontainerLogMaxSize: 5Mi\nauthentication:\n  x509: {clientCAFile: /ca.crt}\n  anonymous: {enabled: false}\n\
            authorization: {mode: AlwaysAllow}\nsystemReserved: {memory: 1Gi}\nkubeReserved: {memory: 1Gi, cpu: 100m}\nunknownFuture: 1\n";
        let mut settings = Settings::new("n");
        yaml_serde::from_str::<FileConfig>(text).unwrap().apply(&mut settings).unwrap();
        assert_eq!((settings.port, settings.max_pods), (10260, 50));
        assert_eq!(settings.cluster_dns, ["10.43.0.10"]);
        assert_eq!(settings.container_log_max_size, 5 << 20);
        assert_eq!(settings.client_ca_file.as_deref(), Some(Path::new("/ca.crt")));
        assert!(!settings.authorization_webhook);
        assert_eq!(settings.reserved.get("memory").map(String::as_str), Some("2Gi"));
    }

    #[test]
    fn taints() {
        for (text, expected) in [
            ("a=b:NoSchedule", Some(("a", Some("b"), "NoSchedule"))),
            ("a:NoExecute", Some(("a", None, "NoExecute"))),
            ("a", None),
        ] {
            let taint = parse_taint(text).ok();
            let told = taint.as_ref().map(|t| (t.key.as_str(), t.value.as_deref(), t.effect.as_str()));
            assert_eq!(told, expected);
        }
    }
}

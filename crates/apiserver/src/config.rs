//! What a server is made of, and upstream's flags for it.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::cidr::Cidr;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use registry::RuntimeConfig;

/// A server that takes values by Prometheus' remote write.
#[derive(Clone, Debug)]
pub enum RemoteWrite {
    Url(String),
    /// A kubeconfig file: where the server is, whom to trust, and with which credentials to write.
    File(PathBuf),
}

/// Everything [`Server::new`](crate::Server::new) needs. Start from [`Config::new`] and set what differs.
#[derive(Clone)]
pub struct Config {
    pub storage: Storage,
    /// What the keys of an etcd begin with; other clusters may be beside it.
    pub etcd_prefix: String,
    /// Where to listen; port 0 picks a free one (see [`Server::address`](crate::Server::address)).
    pub bind: SocketAddr,
    /// The address other members of the cluster use: the endpoint of the `kubernetes` service.
    pub advertise_address: Option<IpAddr>,
    /// What others are told instead of an address, with or without a port.
    pub external_hostname: Option<String>,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    /// Where a certificate that no file is named for is made and found again.
    pub cert_dir: PathBuf,
    pub client_ca_file: Option<PathBuf>,
    pub token_auth_file: Option<PathBuf>,
    pub basic_auth_file: Option<PathBuf>,
    pub oidc: Option<OidcConfig>,
    pub token_webhook: Option<TokenWebhookConfig>,
    /// Shows metrics that v1.36 hides because they are deprecated.
    pub show_hidden_metrics: bool,
    /// Whether who says nothing about themselves is let in as anonymous: everybody is, unless this or the file says otherwise.
    pub anonymous_auth: Option<bool>,
    /// Issuers of tokens and anonymous access; followed while the server runs.
    pub authentication_config_file: Option<PathBuf>,
    pub enable_bootstrap_token_auth: bool,
    pub requestheader_client_ca_file: Option<PathBuf>,
    pub requestheader_allowed_names: Vec<String>,
    pub requestheader_username_headers: Vec<String>,
    pub requestheader_uid_headers: Vec<String>,
    pub requestheader_group_headers: Vec<String>,
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Who this server is to aggregated API servers.
    pub proxy_client_cert_file: Option<PathBuf>,
    pub proxy_client_key_file: Option<PathBuf>,
    /// Services that this server asks are reached at one of their endpoints rather than at their cluster IP.
    pub enable_aggregator_routing: bool,
    /// Aggregated API servers may not send clients elsewhere.
    pub aggregator_reject_forwarding_redirect: bool,
    /// Public (or private) keys that verify service-account tokens.
    pub service_account_key_files: Vec<PathBuf>,
    /// The key that signs them; without it no tokens are issued.
    pub service_account_signing_key_file: Option<PathBuf>,
    /// The socket of a program that signs them instead.
    pub service_account_signing_endpoint: Option<String>,
    pub service_account_issuers: Vec<String>,
    pub service_account_jwks_uri: Option<String>,
    pub api_audiences: Vec<String>,
    pub service_cluster_ip_ranges: Vec<Cidr>,
    pub service_node_port_range: (u16, u16),
    /// In order: the first that allows or denies decides.
    pub authorizers: Vec<Authorizer>,
    pub authorization_policy_file: Option<PathBuf>,
    /// Where [`Config::authorizers`] come from, if it is a file; followed while the server runs.
    pub authorization_config_file: Option<PathBuf>,
    pub audit: AuditConfig,
    pub cors_allowed_origins: Vec<String>,
    /// Requests that are not long-running end after this long.
    pub request_timeout: Duration,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    /// How long pods tolerate a node that is not ready, or cannot be reached, if they do not say.
    pub default_not_ready_toleration_seconds: i64,
    pub default_unreachable_toleration_seconds: i64,
    /// Settings of single admission plug-ins.
    pub admission_control_config_file: Option<PathBuf>,
    pub runtime_config: RuntimeConfig,
    pub kubelet_client_certificate: Option<PathBuf>,
    pub kubelet_client_key: Option<PathBuf>,
    pub kubelet_certificate_authority: Option<PathBuf>,
    pub kubelet_preferred_address_types: Vec<String>,
    /// Whether requests share their seats by level and flow; if not, reads and writes have so many each.
    pub enable_priority_and_fairness: bool,
    pub max_requests_inflight: usize,
    pub max_mutating_requests_inflight: usize,
    /// Watches, logs, execs and the like; zero is no limit.
    pub max_long_running_requests: usize,
    /// Tokens live at most this long.
    pub service_account_max_token_expiration: Option<Duration>,
    /// Tokens of pods outlive what was asked for by a year, and those who rely on that are noted.
    pub service_account_extend_token_expiration: bool,
    pub event_ttl: Duration,
    /// History older than this is dropped from the store.
    pub compaction_interval: Duration,
    /// How much of the trace is kept, in bytes; 0 records nothing.
    pub trace_bytes: usize,
    /// Whether profiles of the process are served, below `/debug/pprof`.
    pub profiling: bool,
    /// The collector that traces are sent to, if any.
    pub tracing: Option<otlp::TracingConfiguration>,
    /// Where the last hours of figures are kept; without a file they are not.
    pub history_file: Option<PathBuf>,
    /// Where else those figures go, by Prometheus' remote write.
    pub history_remote_write: Option<RemoteWrite>,
    /// Programs for the machines of the cluster, each named by its SHA-256; without a directory there are none.
    pub programs_dir: Option<PathBuf>,
    /// What is encrypted in the store, and with what; without one, nothing.
    pub encryption: Option<EncryptionFile>,
    /// How many connections the port takes; without a word, a share of the descriptors of this process.
    pub connections: Option<tls::Limits>,
    /// The kubelet in this process, if there is one.
    pub local_kubelet: Option<LocalKubelet>,
}

/// A kubelet that is asked by a call for what its node uses.
#[derive(Clone)]
pub struct LocalKubelet {
    pub node: String,
    /// Its `/stats/summary`, given the query; nothing while there is none.
    pub summaries: Arc<Mutex<Option<Summaries>>>,
}

pub type Summaries = Arc<dyn Fn(&str) -> BoxFuture<'static, Option<Bytes>> + Send + Sync>;

/// Where objects live.
#[derive(Clone)]
pub enum Storage {
    /// The embedded store in this directory.
    Embedded(PathBuf),
    /// A real etcd cluster.
    Etcd(store::etcd::Options),
    /// A store that is already open.
    Open(Arc<dyn store::Store>),
}

/// A file with an `EncryptionConfiguration`.
#[derive(Clone, Debug)]
pub struct EncryptionFile {
    pub path: PathBuf,
    /// Whether a change of the file takes effect while the server runs.
    pub automatic_reload: bool,
}

/// One way to decide what is allowed.
#[derive(Clone, Debug)]
pub enum Authorizer {
    AlwaysAllow,
    AlwaysDeny,
    /// Policies in [`Config::authorization_policy_file`].
    Abac,
    Rbac,
    Node,
    Webhook(WebhookConfig),
}

impl std::str::FromStr for Authorizer {
    type Err = anyhow::Error;

    /// Upstream's names. A webhook needs more than its name.
    fn from_str(name: &str) -> anyhow::Result<Self> {
        Ok(match name {
            "AlwaysAllow" => Self::AlwaysAllow,
            "AlwaysDeny" => Self::AlwaysDeny,
            "ABAC" => Self::Abac,
            "RBAC" => Self::Rbac,
            "Node" => Self::Node,
            other => anyhow::bail!("authorization-mode {other:?} is not a valid mode"),
        })
    }
}

/// How to ask an authorization webhook, and what to make of the answers.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    pub name: String,
    /// A kubeconfig file that names the server and our credentials for it.
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    pub authorized_ttl: Duration,
    pub unauthorized_ttl: Duration,
    pub timeout: Duration,
    pub failure_policy: FailurePolicy,
    /// Expressions in CEL that must all be true for the webhook to be asked.
    pub match_conditions: Vec<String>,
}

/// What no answer means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    NoOpinion,
    Deny,
}

/// An OpenID Connect issuer whose ID tokens are accepted.
#[derive(Clone, Debug)]
pub struct OidcConfig {
    pub issuer_url: String,
    pub client_id: String,
    pub username_claim: String,
    /// `None` is upstream's default; `-` is no prefix.
    pub username_prefix: Option<String>,
    pub groups_claim: Option<String>,
    pub groups_prefix: String,
    pub signing_algorithms: Vec<String>,
    pub required_claims: Vec<(String, String)>,
    /// Authorities for the issuer's certificate; the system's if `None`.
    pub ca_file: Option<PathBuf>,
}

impl Default for OidcConfig {
    fn default() -> Self {
        Self {
            issuer_url: String::new(),
            client_id: String::new(),
            username_claim: "sub".to_owned(),
            username_prefix: None,
            groups_claim: None,
            groups_prefix: String::new(),
            signing_algorithms: vec!["RS256".to_owned()],
            required_claims: Vec::new(),
            ca_file: None,
        }
    }
}

/// A server that knows tokens.
#[derive(Clone, Debug)]
pub struct TokenWebhookConfig {
    /// A kubeconfig file that names the server.
    pub config_file: PathBuf,
    /// `v1` or `v1beta1`.
    pub version: String,
    pub cache_ttl: Duration,
}

/// What is recorded, and where. Nothing without a log or a webhook.
#[derive(Clone, Debug, Default)]
pub struct AuditConfig {
    /// Without one, who did what is recorded, without bodies.
    pub policy_file: Option<PathBuf>,
    pub log: Option<(LogConfig, Mode)>,
    pub log_truncation: Option<Truncation>,
    /// A kubeconfig file that names the collector.
    pub webhook: Option<(PathBuf, Mode)>,
    pub webhook_truncation: Option<Truncation>,
}

/// Where the audit log is written and how much of it is kept; zeros mean no limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogConfig {
    /// `-` is standard output.
    pub path: PathBuf,
    pub max_age: Duration,
    pub max_backups: usize,
    pub max_bytes: u64,
}

/// When audit events are handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Batch(Batching),
    /// The request waits until its events are stored.
    Blocking,
    /// And fails if its first one cannot be.
    BlockingStrict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Batching {
    pub buffer: usize,
    pub max_size: usize,
    pub max_wait: Duration,
    pub throttle: Option<Throttle>,
}

/// How often batches are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Throttle {
    /// Between batches, on average.
    pub interval: Duration,
    /// So many at once after a quiet time.
    pub burst: u32,
}

impl Default for Batching {
    fn default() -> Self {
        Self { buffer: 10_000, max_size: 400, max_wait: Duration::from_secs(30), throttle: None }
    }
}

/// What one sink of audit events takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    pub max_event: usize,
    pub max_batch: usize,
}

pub(crate) const DEFAULT_ETCD_PREFIX: &str = "/registry";
pub(crate) const DEFAULT_TOLERATION_SECONDS: i64 = 300;
pub(crate) const DEFAULT_CERT_DIR: &str = "/var/run/kubernetes";
pub(crate) const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// What keys begin with in an etcd with this `--etcd-prefix`: slashes at both ends, as upstream has it.
pub fn etcd_root(prefix: &str) -> String {
    let parts: Vec<&str> = prefix.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.is_empty() { "/".to_owned() } else { format!("/{}/", parts.join("/")) }
}

impl Config {
    /// Whether whoever is authenticated may do anything.
    pub(crate) fn allows_everything(&self) -> bool {
        self.authorizers.iter().any(|authorizer| matches!(authorizer, Authorizer::AlwaysAllow))
    }

    pub fn new(storage: Storage) -> Self {
        let text = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        Self {
            storage,
            etcd_prefix: DEFAULT_ETCD_PREFIX.to_owned(),
            bind: SocketAddr::from(([0, 0, 0, 0], 6443)),
            advertise_address: None,
            external_hostname: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            cert_dir: DEFAULT_CERT_DIR.into(),
            client_ca_file: None,
            token_auth_file: None,
            basic_auth_file: None,
            oidc: None,
            token_webhook: None,
            show_hidden_metrics: false,
            anonymous_auth: None,
            authentication_config_file: None,
            enable_bootstrap_token_auth: false,
            requestheader_client_ca_file: None,
            requestheader_allowed_names: Vec::new(),
            requestheader_username_headers: text(&["x-remote-user"]),
            requestheader_uid_headers: text(&["x-remote-uid"]),
            requestheader_group_headers: text(&["x-remote-group"]),
            requestheader_extra_headers_prefix: text(&["x-remote-extra-"]),
            proxy_client_cert_file: None,
            proxy_client_key_file: None,
            enable_aggregator_routing: false,
            aggregator_reject_forwarding_redirect: true,
            service_account_key_files: Vec::new(),
            service_account_signing_key_file: None,
            service_account_signing_endpoint: None,
            service_account_issuers: text(&[DEFAULT_ISSUER]),
            service_account_jwks_uri: None,
            api_audiences: Vec::new(),
            service_cluster_ip_ranges: vec!["10.43.0.0/16".parse().expect("a valid range")],
            service_node_port_range: (30000, 32767),
            authorizers: vec![Authorizer::AlwaysAllow],
            authorization_policy_file: None,
            authorization_config_file: None,
            audit: AuditConfig::default(),
            cors_allowed_origins: Vec::new(),
            request_timeout: Duration::from_secs(60),
            enable_admission_plugins: Vec::new(),
            disable_admission_plugins: Vec::new(),
            default_not_ready_toleration_seconds: DEFAULT_TOLERATION_SECONDS,
            default_unreachable_toleration_seconds: DEFAULT_TOLERATION_SECONDS,
            admission_control_config_file: None,
            runtime_config: RuntimeConfig::default(),
            kubelet_client_certificate: None,
            kubelet_client_key: None,
            kubelet_certificate_authority: None,
            // Upstream puts Hostname first, which only works where node names resolve.
            kubelet_preferred_address_types: text(&[
                "InternalIP",
                "Hostname",
                "InternalDNS",
                "ExternalDNS",
                "ExternalIP",
            ]),
            enable_priority_and_fairness: true,
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            max_long_running_requests: 10_000,
            service_account_max_token_expiration: None,
            service_account_extend_token_expiration: true,
            event_ttl: Duration::from_secs(3600),
            compaction_interval: Duration::from_secs(300),
            trace_bytes: trace::Recorder::DEFAULT_BYTES,
            profiling: true,
            tracing: None,
            history_file: None,
            history_remote_write: None,
            programs_dir: None,
            encryption: None,
            connections: None,
            local_kubelet: None,
        }
    }

    /// `<address>:<port>` as discovery tells clients.
    pub(crate) fn advertised(&self) -> String {
        let address = self.advertise_address.unwrap_or(self.bind.ip());
        self.external().unwrap_or_else(|| SocketAddr::new(address, self.bind.port()).to_string())
    }

    /// Where the keys are that verify tokens of this issuer.
    pub(crate) fn jwks_uri(&self, issuer: &str) -> String {
        match (&self.service_account_jwks_uri, self.external()) {
            (Some(uri), _) => uri.clone(),
            (None, Some(address)) => format!("https://{address}/openid/v1/jwks"),
            (None, None) => format!("{}/openid/v1/jwks", issuer.trim_end_matches('/')),
        }
    }

    fn external(&self) -> Option<String> {
        let host = self.external_hostname.as_deref()?;
        let port = self.bind.port();
        Some(match host.parse::<Ipv6Addr>() {
            Ok(address) => SocketAddr::from((address, port)).to_string(),
            Err(_) if host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']')) => host.to_owned(),
            Err(_) => format!("{host}:{port}"),
        })
    }

    pub(crate) fn audiences(&self) -> Vec<String> {
        if self.api_audiences.is_empty() { self.service_account_issuers.clone() } else { self.api_audiences.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn others_are_told_the_external_hostname() {
        let mut config = Config::new(Storage::Embedded(PathBuf::new()));
        for (host, expected) in [
            (None, "0.0.0.0:6443"),
            (Some("k8s.example"), "k8s.example:6443"),
            (Some("k8s.example:443"), "k8s.example:443"),
            (Some("fd00::1"), "[fd00::1]:6443"),
            (Some("[fd00::1]"), "[fd00::1]:6443"),
            (Some("[fd00::1]:443"), "[fd00::1]:443"),
        ] {
            config.external_hostname = host.map(str::to_owned);
            assert_eq!(config.advertised(), expected, "{host:?}");
        }
        assert_eq!(config.jwks_uri("https://issuer/"), "https://[fd00::1]:443/openid/v1/jwks");
        config.service_account_jwks_uri = Some("https://keys".to_owned());
        assert_eq!(config.jwks_uri("https://issuer/"), "https://keys");
        (config.external_hostname, config.service_account_jwks_uri) = (None, None);
        assert_eq!(config.jwks_uri("https://issuer/"), "https://issuer/openid/v1/jwks");
    }

    #[test]
    fn an_etcd_prefix_is_a_path() {
        for (given, expected) in
            [("/registry", "/registry/"), ("registry/", "/registry/"), ("", "/"), ("/a//b/", "/a/b/"), ("/", "/")]
        {
            assert_eq!(etcd_root(given), expected, "{given:?}");
        }
    }
}

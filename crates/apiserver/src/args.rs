//! The command line of `cox apiserver`: upstream's flags, and what they make of a [`Config`].

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use api::cidr::Cidr;
use registry::RuntimeConfig;

use crate::config::{
    AuditConfig, Authorizer, Batching, Config, DEFAULT_ISSUER, EncryptionFile, FailurePolicy, LogConfig, Mode,
    OidcConfig, RemoteWrite, Storage, Throttle, TokenWebhookConfig, Truncation, WebhookConfig,
};

/// `cox apiserver`: upstream's flags, and `--data-dir` for the embedded store.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the embedded store.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cox/store")]
    pub data_dir: PathBuf,
    /// The file with the configuration of what is encrypted in the store, and with what.
    #[arg(long, value_name = "FILE")]
    pub encryption_provider_config: Option<PathBuf>,
    /// Whether a change of that file takes effect without a restart.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub encryption_provider_config_automatic_reload: bool,
    /// List of etcd servers to connect with (scheme://ip:port), comma separated.
    #[arg(long, value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// Certificate authority of the etcd servers.
    #[arg(long, value_name = "FILE")]
    pub etcd_cafile: Option<PathBuf>,
    /// Client certificate for etcd.
    #[arg(long, value_name = "FILE")]
    pub etcd_certfile: Option<PathBuf>,
    /// Client key for etcd.
    #[arg(long, value_name = "FILE")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The prefix to prepend to all resource paths in etcd.
    #[arg(long, default_value = crate::config::DEFAULT_ETCD_PREFIX)]
    pub etcd_prefix: String,
    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port on which to serve HTTPS with authentication and authorization.
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// The IP address on which to advertise the apiserver to members of the cluster.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// The hostname to use in addresses that are told to others: in discovery, and for the JSON Web Key Set.
    #[arg(long)]
    pub external_hostname: Option<String>,
    /// File containing the x509 certificate for HTTPS, followed by intermediates.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// File containing the x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// The directory where the TLS certs are located. If --tls-cert-file and --tls-private-key-file are provided, this
    /// flag will be ignored.
    #[arg(long, value_name = "DIRECTORY", default_value = crate::config::DEFAULT_CERT_DIR)]
    pub cert_dir: PathBuf,
    /// Requests with a client certificate signed by one of these authorities are authenticated by its CommonName.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// File used to secure the secure port of the API server via token authentication.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// File of passwords: password,user,uid,"group1,group2" per line.
    #[arg(long, value_name = "FILE")]
    pub basic_auth_file: Option<PathBuf>,
    #[command(flatten)]
    pub oidc: OidcArgs,
    /// File with webhook configuration for token authentication, in kubeconfig format.
    #[arg(long, value_name = "FILE")]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// The duration to cache responses from the webhook token authenticator.
    #[arg(long, default_value = "2m", value_parser = api::duration::parse)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// The version of TokenReview to send to the webhook: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1")]
    pub authentication_token_webhook_version: String,
    /// The previous version for which you want to show hidden metrics, such as 1.35.
    #[arg(long, value_name = "VERSION", value_parser = |version: &str| api::flags::check_show_hidden_metrics(version).map(|()| !version.is_empty()))]
    pub show_hidden_metrics_for_version: Option<bool>,
    /// Enable profiling via web interface host:port/debug/pprof/
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub profiling: bool,
    /// File with apiserver tracing configuration.
    #[arg(long, value_name = "FILE")]
    pub tracing_config_file: Option<PathBuf>,
    /// Keeps the last hours of CPU, memory, network and API figures in this file, and serves them at /cox/history.
    #[arg(long, value_name = "FILE")]
    pub history_file: Option<PathBuf>,
    /// Where a Prometheus takes those figures by remote write, such as http://prometheus:9090/api/v1/write.
    #[arg(long, value_name = "URL", requires = "history_file", conflicts_with = "history_remote_write_config_file")]
    pub history_remote_write_url: Option<String>,
    /// File with the place of that Prometheus, the authorities that vouch for it, and credentials, in kubeconfig format.
    #[arg(long, value_name = "FILE", requires = "history_file")]
    pub history_remote_write_config_file: Option<PathBuf>,
    /// Enables anonymous requests to the secure port of the API server, but not if --authorization-mode has AlwaysAllow.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// File with the issuers of tokens that are accepted, what their claims mean, and where requests may be anonymous.
    #[arg(long, value_name = "FILE", conflicts_with = "oidc_issuer_url")]
    pub authentication_config: Option<PathBuf>,
    /// Allow secrets of type 'bootstrap.kubernetes.io/token' in kube-system to be used for authentication.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_bootstrap_token_auth: bool,
    /// Root certificate bundle that verifies client certificates of front proxies.
    #[arg(long, value_name = "FILE")]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Client certificate common names allowed to provide user names in headers; empty allows any.
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Request headers to inspect for user names.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-user")]
    pub requestheader_username_headers: Vec<String>,
    /// Request headers to inspect for user uids.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-uid")]
    pub requestheader_uid_headers: Vec<String>,
    /// Request headers to inspect for groups.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-group")]
    pub requestheader_group_headers: Vec<String>,
    /// Request header prefixes to inspect for extra user information.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Client certificate that says who this server is to aggregated API servers.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_cert_file: Option<PathBuf>,
    /// Private key of the client certificate for aggregated API servers.
    #[arg(long, value_name = "FILE")]
    pub proxy_client_key_file: Option<PathBuf>,
    /// Turns on routing of requests to the endpoints of a service rather than to its cluster IP.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_aggregator_routing: bool,
    /// Redirects of aggregated API servers are not passed on to clients.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub aggregator_reject_forwarding_redirect: bool,
    /// File with keys used to verify ServiceAccount tokens; may be given several times.
    #[arg(long = "service-account-key-file", value_name = "FILE")]
    pub service_account_key_files: Vec<PathBuf>,
    /// File with the private key that signs ServiceAccount tokens.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// Socket of a program that signs ServiceAccount tokens and says which keys verify them, instead of key files.
    #[arg(long, value_name = "SOCKET")]
    pub service_account_signing_endpoint: Option<String>,
    /// Identifier of the service account token issuer; the first signs, all are accepted.
    #[arg(long = "service-account-issuer", default_value = DEFAULT_ISSUER)]
    pub service_account_issuers: Vec<String>,
    /// Overrides the URI for the JSON Web Key Set in the discovery document.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// Identifiers of the API that tokens must be meant for; defaults to the issuer.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,
    /// CIDR ranges from which service cluster IPs are assigned.
    #[arg(long, value_delimiter = ',', default_value = "10.43.0.0/16")]
    pub service_cluster_ip_range: Vec<Cidr>,
    /// Ports reserved for services with NodePort visibility, such as 30000-32767.
    #[arg(long, default_value = "30000-32767", value_parser = port_range)]
    pub service_node_port_range: (u16, u16),
    /// The longest life of a token that clients may ask for.
    #[arg(long, value_parser = api::duration::parse)]
    pub service_account_max_token_expiration: Option<Duration>,
    /// Lets tokens of pods live for a year while noting who uses them beyond the life that was asked for.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub service_account_extend_token_expiration: bool,
    #[command(flatten)]
    pub authorization: AuthorizationArgs,
    #[command(flatten)]
    pub audit: AuditArgs,
    /// Allowed origins for CORS: regular expressions, comma separated.
    #[arg(long, value_delimiter = ',')]
    pub cors_allowed_origins: Vec<String>,
    /// How long a request may take before it is ended, except for long-running ones.
    #[arg(long, default_value = "1m", value_parser = api::duration::parse)]
    pub request_timeout: Duration,
    /// Admission plugins that should be enabled in addition to the default ones.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins that should be disabled although they are on by default.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
    /// How long pods tolerate a node that is not ready if they do not say, in seconds.
    #[arg(long, default_value_t = crate::config::DEFAULT_TOLERATION_SECONDS, allow_negative_numbers = true)]
    pub default_not_ready_toleration_seconds: i64,
    /// How long pods tolerate a node that cannot be reached if they do not say, in seconds.
    #[arg(long, default_value_t = crate::config::DEFAULT_TOLERATION_SECONDS, allow_negative_numbers = true)]
    pub default_unreachable_toleration_seconds: i64,
    /// File with admission control configuration.
    #[arg(long, value_name = "FILE")]
    pub admission_control_config_file: Option<PathBuf>,
    /// Key=value pairs that turn API versions on or off, such as api/all=true.
    #[arg(long, default_value = "", value_parser = RuntimeConfig::parse)]
    pub runtime_config: RuntimeConfig,
    /// Client certificate for TLS to kubelets.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_certificate: Option<PathBuf>,
    /// Client key for TLS to kubelets.
    #[arg(long, value_name = "FILE")]
    pub kubelet_client_key: Option<PathBuf>,
    /// Certificate authority that kubelet serving certificates are checked against.
    #[arg(long, value_name = "FILE")]
    pub kubelet_certificate_authority: Option<PathBuf>,
    /// Preferred node address types for kubelet connections.
    #[arg(long, value_delimiter = ',', default_value = "InternalIP,Hostname,InternalDNS,ExternalDNS,ExternalIP")]
    pub kubelet_preferred_address_types: Vec<String>,
    /// Serve requests by their priority level and fairly among flows, with as many at once as the two limits below allow
    /// together.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub enable_priority_and_fairness: bool,
    /// The maximum number of non-mutating requests in flight; zero is no limit.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// The maximum number of mutating requests in flight; zero is no limit.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// The maximum number of long-running requests (watch, log, exec) in flight; zero is no limit.
    #[arg(long, default_value_t = 10_000)]
    pub max_long_running_requests: usize,
    /// Amount of time to retain events.
    #[arg(long, default_value = "1h", value_parser = api::duration::parse)]
    pub event_ttl: Duration,
    /// The interval of compaction requests.
    #[arg(long, default_value = "5m", value_parser = api::duration::parse)]
    pub etcd_compaction_interval: Duration,
    /// How much of the trace is kept, in bytes; zero records nothing.
    #[arg(long, default_value_t = trace::Recorder::DEFAULT_BYTES)]
    pub trace_buffer_bytes: usize,
    #[command(flatten)]
    pub others: api::flags::Others<crate::answers::Unused>,
}

/// `--oidc-*`.
#[derive(Clone, Debug, clap::Args)]
pub struct OidcArgs {
    /// The URL of the OpenID issuer; only the https scheme is accepted.
    #[arg(long)]
    pub oidc_issuer_url: Option<String>,
    /// The client ID for the OpenID Connect client.
    #[arg(long, default_value = "")]
    pub oidc_client_id: String,
    /// The claim to use as the user name.
    #[arg(long, default_value = "sub")]
    pub oidc_username_claim: String,
    /// Prepended to user names; '-' for nothing, the issuer's URL if not given.
    #[arg(long)]
    pub oidc_username_prefix: Option<String>,
    /// The claim that holds the user's groups.
    #[arg(long)]
    pub oidc_groups_claim: Option<String>,
    /// Prepended to groups.
    #[arg(long, default_value = "")]
    pub oidc_groups_prefix: String,
    /// Accepted signing algorithms.
    #[arg(long, value_delimiter = ',', default_value = "RS256")]
    pub oidc_signing_algs: Vec<String>,
    /// A key=value pair that must be among the claims; may be given several times.
    #[arg(long)]
    pub oidc_required_claim: Vec<String>,
    /// Authorities for the issuer's certificate; the host's if not given.
    #[arg(long, value_name = "FILE")]
    pub oidc_ca_file: Option<PathBuf>,
}

impl OidcArgs {
    fn config(self) -> anyhow::Result<Option<OidcConfig>> {
        let Some(issuer_url) = self.oidc_issuer_url else { return Ok(None) };
        let pair = |text: &String| {
            let (key, value) = text.split_once('=').with_context(|| format!("--oidc-required-claim {text:?}"))?;
            anyhow::Ok((key.to_owned(), value.to_owned()))
        };
        Ok(Some(OidcConfig {
            issuer_url,
            client_id: self.oidc_client_id,
            username_claim: self.oidc_username_claim,
            username_prefix: self.oidc_username_prefix,
            groups_claim: self.oidc_groups_claim,
            groups_prefix: self.oidc_groups_prefix,
            signing_algorithms: self.oidc_signing_algs,
            required_claims: self.oidc_required_claim.iter().map(pair).collect::<Result<_, _>>()?,
            ca_file: self.oidc_ca_file,
        }))
    }
}

/// `--authorization-*`.
#[derive(Clone, Debug, clap::Args)]
pub struct AuthorizationArgs {
    /// Ordered list of authorizers: AlwaysAllow, AlwaysDeny, ABAC, Webhook, RBAC, Node.
    #[arg(long, value_delimiter = ',', default_value = "AlwaysAllow")]
    pub authorization_mode: Vec<String>,
    /// File that configures the authorizers in order, instead of --authorization-mode.
    #[arg(long, value_name = "FILE", conflicts_with = "authorization_mode")]
    pub authorization_config: Option<PathBuf>,
    /// File with authorization policy in json line by line format, for ABAC.
    #[arg(long, value_name = "FILE")]
    pub authorization_policy_file: Option<PathBuf>,
    /// File with webhook configuration in kubeconfig format.
    #[arg(long, value_name = "FILE")]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// The version of SubjectAccessReview to send to the webhook: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1")]
    pub authorization_webhook_version: String,
    /// The duration to cache 'authorized' responses from the webhook.
    #[arg(long, default_value = "5m", value_parser = api::duration::parse)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// The duration to cache 'unauthorized' responses from the webhook.
    #[arg(long, default_value = "30s", value_parser = api::duration::parse)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
}

impl AuthorizationArgs {
    fn authorizers(&self) -> anyhow::Result<Vec<Authorizer>> {
        if let Some(path) = &self.authorization_config {
            return crate::authz::config_file::load(path);
        }
        let mode = |name: &String| {
            if name != "Webhook" {
                return name.parse();
            }
            let config_file = self.authorization_webhook_config_file.clone();
            Ok(Authorizer::Webhook(WebhookConfig {
                name: "default".to_owned(),
                config_file: config_file
                    .context("authorization-mode Webhook's authorization config file not passed")?,
                version: self.authorization_webhook_version.clone(),
                authorized_ttl: self.authorization_webhook_cache_authorized_ttl,
                unauthorized_ttl: self.authorization_webhook_cache_unauthorized_ttl,
                timeout: Duration::from_secs(30),
                failure_policy: FailurePolicy::NoOpinion,
                match_conditions: Vec::new(),
            }))
        };
        self.authorization_mode.iter().map(mode).collect()
    }
}

/// A lower rate than this is no rate of anything.
const MAX_THROTTLE_INTERVAL: Duration = Duration::from_secs(3600);

/// `--audit-*`.
#[derive(Clone, Debug, clap::Args)]
pub struct AuditArgs {
    /// File that defines what is recorded; without it, metadata of every request.
    #[arg(long, value_name = "FILE")]
    pub audit_policy_file: Option<PathBuf>,
    /// All requests coming to the apiserver are recorded in this file; '-' is standard output.
    #[arg(long, value_name = "FILE")]
    pub audit_log_path: Option<PathBuf>,
    /// The maximum number of days to keep old audit log files; zero is no limit.
    #[arg(long, default_value_t = 366)]
    pub audit_log_maxage: u64,
    /// The maximum number of old audit log files to keep; zero is no limit.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxbackup: usize,
    /// The maximum size in megabytes of the audit log file before it is rotated; zero is no limit.
    #[arg(long, default_value_t = 100)]
    pub audit_log_maxsize: u64,
    /// When events are written: batch, blocking or blocking-strict.
    #[arg(long, default_value = "blocking")]
    pub audit_log_mode: String,
    /// The number of events kept for batches. Only used in batch mode.
    #[arg(long, default_value_t = 10_000)]
    pub audit_log_batch_buffer_size: usize,
    /// The maximum size of a batch. Only used in batch mode.
    #[arg(long, default_value_t = 1)]
    pub audit_log_batch_max_size: usize,
    /// The time to wait before writing a batch that is not full. Only used in batch mode.
    #[arg(long, default_value = "0s", value_parser = api::duration::parse)]
    pub audit_log_batch_max_wait: Duration,
    /// Whether the rate of batches is limited. Only used in batch mode.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_batch_throttle_enable: bool,
    /// The maximum average number of batches per second. Only used in batch mode.
    #[arg(long, default_value_t = 0.0)]
    pub audit_log_batch_throttle_qps: f64,
    /// The maximum number of batches written at the same moment, if the rate was not used before. Only used in batch mode.
    #[arg(long, default_value_t = 0)]
    pub audit_log_batch_throttle_burst: u32,
    /// Whether events and batches that are too large are shortened.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_log_truncate_enabled: bool,
    /// The maximum size in bytes of a batch; a larger one is split.
    #[arg(long, default_value_t = 10 << 20)]
    pub audit_log_truncate_max_batch_size: usize,
    /// The maximum size in bytes of an event; of a larger one the bodies are left out.
    #[arg(long, default_value_t = 100 << 10)]
    pub audit_log_truncate_max_event_size: usize,
    /// File in kubeconfig format that names the audit webhook.
    #[arg(long, value_name = "FILE")]
    pub audit_webhook_config_file: Option<PathBuf>,
    /// When events are sent: batch, blocking or blocking-strict.
    #[arg(long, default_value = "batch")]
    pub audit_webhook_mode: String,
    /// The number of events kept for batches.
    #[arg(long, default_value_t = 10_000)]
    pub audit_webhook_batch_buffer_size: usize,
    /// The maximum size of a batch.
    #[arg(long, default_value_t = 400)]
    pub audit_webhook_batch_max_size: usize,
    /// The time to wait before sending a batch that is not full.
    #[arg(long, default_value = "30s", value_parser = api::duration::parse)]
    pub audit_webhook_batch_max_wait: Duration,
    /// Whether the rate of batches is limited.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_batch_throttle_enable: bool,
    /// The maximum average number of batches per second.
    #[arg(long, default_value_t = 10.0)]
    pub audit_webhook_batch_throttle_qps: f64,
    /// The maximum number of batches sent at the same moment, if the rate was not used before.
    #[arg(long, default_value_t = 15)]
    pub audit_webhook_batch_throttle_burst: u32,
    /// Whether events and batches that are too large are shortened.
    #[arg(long, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub audit_webhook_truncate_enabled: bool,
    /// The maximum size in bytes of a batch; a larger one is split.
    #[arg(long, default_value_t = 10 << 20)]
    pub audit_webhook_truncate_max_batch_size: usize,
    /// The maximum size in bytes of an event; of a larger one the bodies are left out.
    #[arg(long, default_value_t = 100 << 10)]
    pub audit_webhook_truncate_max_event_size: usize,
}

/// What is said of one sink of audit events.
struct AuditSink<'a> {
    /// As upstream's messages call it.
    name: &'a str,
    mode: &'a str,
    batching: BatchFlags,
    truncates: bool,
    max_event: usize,
    max_batch: usize,
}

struct BatchFlags {
    buffer: usize,
    max_size: usize,
    max_wait: Duration,
    throttles: bool,
    qps: f64,
    burst: u32,
}

impl AuditSink<'_> {
    /// Flags of batches say nothing in other modes, and are not looked at there.
    fn mode(&self) -> anyhow::Result<Mode> {
        let name = self.name;
        match self.mode {
            "batch" => Ok(Mode::Batch(self.batching.check(name)?)),
            "blocking" => Ok(Mode::Blocking),
            "blocking-strict" => Ok(Mode::BlockingStrict),
            other => {
                anyhow::bail!("invalid audit {name} mode {other}, allowed modes are \"batch,blocking,blocking-strict\"")
            }
        }
    }

    fn truncation(&self) -> anyhow::Result<Option<Truncation>> {
        let Self { name, max_event, max_batch, .. } = *self;
        anyhow::ensure!(
            max_event > 0,
            "invalid audit truncate {name} max event size {max_event}, must be a positive number"
        );
        anyhow::ensure!(
            max_batch >= max_event,
            "invalid audit truncate {name} max batch size {max_batch}, must be greater than max event size ({max_event})"
        );
        Ok(self.truncates.then_some(Truncation { max_event, max_batch }))
    }
}

impl BatchFlags {
    fn check(&self, name: &str) -> anyhow::Result<Batching> {
        let Self { buffer, max_size, max_wait, .. } = *self;
        anyhow::ensure!(buffer > 0, "invalid audit batch {name} buffer size {buffer}, must be a positive number");
        anyhow::ensure!(
            max_size > 0,
            "invalid audit batch {name} max batch size {max_size}, must be a positive number"
        );
        Ok(Batching { buffer, max_size, max_wait, throttle: self.throttle(name)? })
    }

    fn throttle(&self, name: &str) -> anyhow::Result<Option<Throttle>> {
        if !self.throttles {
            return Ok(None);
        }
        let (qps, burst) = (self.qps, self.burst);
        let interval = (qps > 0.0).then(|| Duration::try_from_secs_f64(1.0 / qps).ok()).flatten();
        let interval = interval.map(|interval| interval.min(MAX_THROTTLE_INTERVAL));
        let interval = interval
            .with_context(|| format!("invalid audit batch {name} throttle QPS {qps}, must be a positive number"))?;
        anyhow::ensure!(burst > 0, "invalid audit batch {name} throttle burst {burst}, must be a positive number");
        Ok(Some(Throttle { interval, burst }))
    }
}

impl AuditArgs {
    /// What is said of a sink is looked at only where there is one, as upstream.
    fn config(self) -> anyhow::Result<AuditConfig> {
        let log_sink = AuditSink {
            name: "log",
            mode: &self.audit_log_mode,
            batching: BatchFlags {
                buffer: self.audit_log_batch_buffer_size,
                max_size: self.audit_log_batch_max_size,
                max_wait: self.audit_log_batch_max_wait,
                throttles: self.audit_log_batch_throttle_enable,
                qps: self.audit_log_batch_throttle_qps,
                burst: self.audit_log_batch_throttle_burst,
            },
            truncates: self.audit_log_truncate_enabled,
            max_event: self.audit_log_truncate_max_event_size,
            max_batch: self.audit_log_truncate_max_batch_size,
        };
        let webhook_sink = AuditSink {
            name: "webhook",
            mode: &self.audit_webhook_mode,
            batching: BatchFlags {
                buffer: self.audit_webhook_batch_buffer_size,
                max_size: self.audit_webhook_batch_max_size,
                max_wait: self.audit_webhook_batch_max_wait,
                throttles: self.audit_webhook_batch_throttle_enable,
                qps: self.audit_webhook_batch_throttle_qps,
                burst: self.audit_webhook_batch_throttle_burst,
            },
            truncates: self.audit_webhook_truncate_enabled,
            max_event: self.audit_webhook_truncate_max_event_size,
            max_batch: self.audit_webhook_truncate_max_batch_size,
        };
        let mut config = AuditConfig { policy_file: self.audit_policy_file, ..AuditConfig::default() };
        if let Some(path) = self.audit_log_path {
            let log = LogConfig {
                path,
                max_age: Duration::from_secs(self.audit_log_maxage.saturating_mul(86_400)),
                max_backups: self.audit_log_maxbackup,
                max_bytes: self.audit_log_maxsize.saturating_mul(1 << 20),
            };
            config.log = Some((log, log_sink.mode()?));
            config.log_truncation = log_sink.truncation()?;
        }
        if let Some(path) = self.audit_webhook_config_file {
            config.webhook = Some((path, webhook_sink.mode()?));
            config.webhook_truncation = webhook_sink.truncation()?;
        }
        Ok(config)
    }
}

impl TryFrom<Args> for Config {
    type Error = anyhow::Error;

    fn try_from(args: Args) -> anyhow::Result<Self> {
        let storage = if args.etcd_servers.is_empty() {
            Storage::Embedded(args.data_dir)
        } else {
            let mut options = store::etcd::Options::new(args.etcd_servers);
            if let Some(ca) = args.etcd_cafile {
                let identity = args.etcd_certfile.zip(args.etcd_keyfile);
                options.tls = Some(store::etcd::Tls { ca, identity });
            }
            Storage::Etcd(options)
        };
        if let Some(endpoint) = args.service_account_signing_endpoint.as_deref().filter(|text| !text.is_empty()) {
            anyhow::ensure!(
                args.service_account_signing_key_file.is_none() && args.service_account_key_files.is_empty(),
                "can't set `--service-account-signing-key-file` and/or `--service-account-key-file` with \
                 `--service-account-signing-endpoint` (They are mutually exclusive)"
            );
            anyhow::ensure!(
                crate::authn::is_endpoint(endpoint),
                "invalid value {endpoint:?} passed for `--service-account-signing-endpoint`, when prefixed with @ must be a valid \
                 abstract socket name"
            );
        }
        let remote_write = args.history_remote_write_config_file.map(RemoteWrite::File);
        let remote_write = remote_write.or(args.history_remote_write_url.map(RemoteWrite::Url));
        Ok(Config {
            storage,
            etcd_prefix: args.etcd_prefix,
            bind: SocketAddr::new(args.bind_address, args.secure_port),
            advertise_address: args.advertise_address,
            external_hostname: args.external_hostname.filter(|host| !host.is_empty()),
            tls_cert_file: args.tls_cert_file,
            tls_private_key_file: args.tls_private_key_file,
            cert_dir: args.cert_dir,
            client_ca_file: args.client_ca_file,
            token_auth_file: args.token_auth_file,
            basic_auth_file: args.basic_auth_file,
            oidc: args.oidc.config()?,
            token_webhook: args.authentication_token_webhook_config_file.map(|config_file| TokenWebhookConfig {
                config_file,
                version: args.authentication_token_webhook_version,
                cache_ttl: args.authentication_token_webhook_cache_ttl,
            }),
            show_hidden_metrics: args.show_hidden_metrics_for_version.unwrap_or_default(),
            anonymous_auth: args.anonymous_auth,
            authentication_config_file: args.authentication_config,
            enable_bootstrap_token_auth: args.enable_bootstrap_token_auth,
            requestheader_client_ca_file: args.requestheader_client_ca_file,
            requestheader_allowed_names: args.requestheader_allowed_names,
            requestheader_username_headers: args.requestheader_username_headers,
            requestheader_uid_headers: args.requestheader_uid_headers,
            requestheader_group_headers: args.requestheader_group_headers,
            requestheader_extra_headers_prefix: args.requestheader_extra_headers_prefix,
            proxy_client_cert_file: args.proxy_client_cert_file,
            proxy_client_key_file: args.proxy_client_key_file,
            enable_aggregator_routing: args.enable_aggregator_routing,
            aggregator_reject_forwarding_redirect: args.aggregator_reject_forwarding_redirect,
            service_account_key_files: args.service_account_key_files,
            service_account_signing_key_file: args.service_account_signing_key_file,
            service_account_signing_endpoint: args.service_account_signing_endpoint.filter(|text| !text.is_empty()),
            service_account_issuers: args.service_account_issuers,
            service_account_jwks_uri: args.service_account_jwks_uri,
            api_audiences: args.api_audiences,
            service_cluster_ip_ranges: args.service_cluster_ip_range.iter().map(Cidr::network).collect(),
            service_node_port_range: args.service_node_port_range,
            authorizers: args.authorization.authorizers()?,
            authorization_config_file: args.authorization.authorization_config.clone(),
            authorization_policy_file: args.authorization.authorization_policy_file,
            audit: args.audit.config()?,
            cors_allowed_origins: args.cors_allowed_origins,
            request_timeout: args.request_timeout,
            enable_admission_plugins: args.enable_admission_plugins,
            disable_admission_plugins: args.disable_admission_plugins,
            default_not_ready_toleration_seconds: args.default_not_ready_toleration_seconds,
            default_unreachable_toleration_seconds: args.default_unreachable_toleration_seconds,
            admission_control_config_file: args.admission_control_config_file,
            runtime_config: args.runtime_config,
            kubelet_client_certificate: args.kubelet_client_certificate,
            kubelet_client_key: args.kubelet_client_key,
            kubelet_certificate_authority: args.kubelet_certificate_authority,
            kubelet_preferred_address_types: args.kubelet_preferred_address_types,
            enable_priority_and_fairness: args.enable_priority_and_fairness,
            max_requests_inflight: args.max_requests_inflight,
            max_mutating_requests_inflight: args.max_mutating_requests_inflight,
            max_long_running_requests: args.max_long_running_requests,
            service_account_max_token_expiration: args.service_account_max_token_expiration,
            service_account_extend_token_expiration: args.service_account_extend_token_expiration,
            event_ttl: args.event_ttl,
            compaction_interval: args.etcd_compaction_interval,
            encryption: args.encryption_provider_config.map(|path| EncryptionFile {
                path,
                automatic_reload: args.encryption_provider_config_automatic_reload,
            }),
            trace_bytes: args.trace_buffer_bytes,
            profiling: args.profiling,
            tracing: match args.tracing_config_file.filter(|path| !path.as_os_str().is_empty()) {
                Some(path) => Some(otlp::TracingConfiguration::load(&path)?),
                None => None,
            },
            history_file: args.history_file,
            history_remote_write: remote_write,
            programs_dir: None,
            connections: None,
            local_kubelet: None,
        })
    }
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a valid port range")]
struct BadPortRange(String);

fn port_range(text: &str) -> Result<(u16, u16), BadPortRange> {
    let bad = || BadPortRange(text.to_owned());
    let (low, high) = match text.split_once('-') {
        Some((low, high)) => (low.parse::<u16>().map_err(|_| bad())?, high.parse::<u16>().map_err(|_| bad())?),
        None => {
            let (base, size) = text.split_once('+').ok_or_else(bad)?;
            let base: u16 = base.parse().map_err(|_| bad())?;
            (base, base.checked_add(size.parse().map_err(|_| bad())?).ok_or_else(bad)?)
        }
    };
    if low > high { Err(bad()) } else { Ok((low, high)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn config(flags: &[&str]) -> anyhow::Result<Config> {
        let line = Line::try_parse_from(std::iter::once(&"apiserver").chain(flags))?;
        Config::try_from(line.args)
    }

    #[test]
    fn flags_make_a_configuration() {
        let config = config(&[
            "--authorization-mode=Node,RBAC,Webhook",
            "--authorization-webhook-config-file=/w",
            "--audit-log-path=/a.log",
            "--audit-log-maxsize=2",
            "--oidc-issuer-url=https://i",
            "--oidc-client-id=c",
            "--oidc-required-claim=a=b",
            "--request-timeout=5s",
        ])
        .unwrap();
        assert!(matches!(config.authorizers.as_slice(), [Authorizer::Node, Authorizer::Rbac, Authorizer::Webhook(_)]));
        let (log, mode) = config.audit.log.unwrap();
        assert_eq!((log.max_bytes, mode), (2 << 20, Mode::Blocking));
        assert_eq!(config.oidc.unwrap().required_claims, [("a".to_owned(), "b".to_owned())]);
        assert_eq!(config.request_timeout, Duration::from_secs(5));
    }

    #[test]
    fn mistakes_are_refused() {
        for flags in [
            &["--authorization-mode=Nobody"][..],
            &["--authorization-mode=Webhook"],
            &["--audit-log-path=/a", "--audit-log-mode=sometimes"],
            &["--audit-log-path=/a", "--audit-log-truncate-max-event-size=0"],
            &["--audit-webhook-config-file=/w", "--audit-webhook-truncate-max-batch-size=10"],
            &["--audit-log-path=/a", "--audit-log-mode=batch", "--audit-log-batch-max-size=0"],
            &["--audit-log-path=/a", "--audit-log-mode=batch", "--audit-log-batch-throttle-enable"],
            &["--audit-webhook-config-file=/w", "--audit-webhook-batch-throttle-qps=0"],
            &["--audit-webhook-config-file=/w", "--audit-webhook-batch-throttle-qps=NaN"],
            &["--audit-webhook-config-file=/w", "--audit-webhook-batch-buffer-size=0"],
            &["--oidc-issuer-url=https://i", "--oidc-required-claim=a"],
            &["--authorization-config=/x", "--authorization-mode=RBAC"],
        ] {
            assert!(config(flags).is_err(), "{flags:?}");
        }
    }

    #[test]
    fn flags_of_sinks_that_are_not_there_say_nothing() {
        for flags in [
            &["--audit-webhook-batch-throttle-qps=0"][..],
            &["--audit-webhook-mode=sometimes", "--audit-log-mode=sometimes"],
            &[
                "--audit-webhook-config-file=/w",
                "--audit-webhook-mode=blocking",
                "--audit-webhook-batch-throttle-qps=0",
            ],
            &["--audit-log-path=/a", "--audit-log-batch-max-size=0"],
        ] {
            assert!(config(flags).is_ok(), "{flags:?}");
        }
    }

    #[test]
    fn the_log_can_be_written_in_batches_and_numbers_of_any_size_are_numbers() {
        let flags = [
            "--audit-log-path=/a",
            "--audit-log-mode=batch",
            "--audit-log-batch-max-size=7",
            "--audit-log-batch-max-wait=2s",
            "--audit-log-batch-throttle-enable",
            "--audit-log-batch-throttle-qps=4",
            "--audit-log-batch-throttle-burst=2",
            "--audit-log-maxage=18446744073709551615",
            "--audit-log-maxsize=18446744073709551615",
        ];
        let (log, mode) = config(&flags).unwrap().audit.log.unwrap();
        assert_eq!((log.max_age, log.max_bytes), (Duration::from_secs(u64::MAX), u64::MAX));
        let throttle = Some(Throttle { interval: Duration::from_millis(250), burst: 2 });
        let batching = Batching { buffer: 10_000, max_size: 7, max_wait: Duration::from_secs(2), throttle };
        assert_eq!(mode, Mode::Batch(batching));
        let (log, _) = config(&["--audit-log-path=/a"]).unwrap().audit.log.unwrap();
        assert_eq!((log.max_age, log.max_backups), (Duration::from_secs(366 * 86_400), 100));
    }

    #[test]
    fn port_ranges_parse_as_upstream() {
        assert_eq!(port_range("30000-32767"), Ok((30000, 32767)));
        assert_eq!(port_range("30000+10"), Ok((30000, 30010)));
        assert!(port_range("2-1").is_err());
    }
}

//! What a server is made of, and upstream's flags for it.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::registry::RuntimeConfig;
use crate::registry::core::service_allocation::Cidr;

/// Everything [`Server::new`](crate::Server::new) needs. Start from [`Config::new`] and set what differs.
#[derive(Clone)]
pub struct Config {
    pub storage: Storage,
    /// Where to listen; port 0 picks a free one (see [`Server::address`](crate::Server::address)).
    pub bind: SocketAddr,
    /// The address other members of the cluster use: the endpoint of the `kubernetes` service.
    pub advertise_address: Option<IpAddr>,
    pub tls_cert_file: Option<PathBuf>,
    pub tls_private_key_file: Option<PathBuf>,
    pub client_ca_file: Option<PathBuf>,
    pub token_auth_file: Option<PathBuf>,
    pub anonymous_auth: bool,
    pub enable_bootstrap_token_auth: bool,
    pub requestheader_client_ca_file: Option<PathBuf>,
    pub requestheader_allowed_names: Vec<String>,
    pub requestheader_username_headers: Vec<String>,
    pub requestheader_group_headers: Vec<String>,
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// Public (or private) keys that verify service-account tokens.
    pub service_account_key_files: Vec<PathBuf>,
    /// The key that signs them; without it no tokens are issued.
    pub service_account_signing_key_file: Option<PathBuf>,
    pub service_account_issuers: Vec<String>,
    pub service_account_jwks_uri: Option<String>,
    pub api_audiences: Vec<String>,
    pub service_cluster_ip_ranges: Vec<Cidr>,
    pub service_node_port_range: (u16, u16),
    pub authorization_modes: Vec<String>,
    pub enable_admission_plugins: Vec<String>,
    pub disable_admission_plugins: Vec<String>,
    pub runtime_config: RuntimeConfig,
    pub kubelet_client_certificate: Option<PathBuf>,
    pub kubelet_client_key: Option<PathBuf>,
    pub kubelet_certificate_authority: Option<PathBuf>,
    pub kubelet_preferred_address_types: Vec<String>,
    pub max_requests_inflight: usize,
    pub max_mutating_requests_inflight: usize,
    pub event_ttl: Duration,
    /// History older than this is dropped from the store.
    pub compaction_interval: Duration,
}

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

pub(crate) const DEFAULT_ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

impl Config {
    pub fn new(storage: Storage) -> Self {
        let text = |items: &[&str]| items.iter().map(|item| (*item).to_owned()).collect::<Vec<_>>();
        Self {
            storage,
            bind: SocketAddr::from(([0, 0, 0, 0], 6443)),
            advertise_address: None,
            tls_cert_file: None,
            tls_private_key_file: None,
            client_ca_file: None,
            token_auth_file: None,
            anonymous_auth: true,
            enable_bootstrap_token_auth: false,
            requestheader_client_ca_file: None,
            requestheader_allowed_names: Vec::new(),
            requestheader_username_headers: text(&["x-remote-user"]),
            requestheader_group_headers: text(&["x-remote-group"]),
            requestheader_extra_headers_prefix: text(&["x-remote-extra-"]),
            service_account_key_files: Vec::new(),
            service_account_signing_key_file: None,
            service_account_issuers: text(&[DEFAULT_ISSUER]),
            service_account_jwks_uri: None,
            api_audiences: Vec::new(),
            service_cluster_ip_ranges: vec!["10.43.0.0/16".parse().expect("a valid range")],
            service_node_port_range: (30000, 32767),
            authorization_modes: text(&["AlwaysAllow"]),
            enable_admission_plugins: Vec::new(),
            disable_admission_plugins: Vec::new(),
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
            max_requests_inflight: 400,
            max_mutating_requests_inflight: 200,
            event_ttl: Duration::from_secs(3600),
            compaction_interval: Duration::from_secs(300),
        }
    }

    /// `<address>:<port>` as discovery tells clients.
    pub(crate) fn advertised(&self) -> String {
        let address = self.advertise_address.unwrap_or(self.bind.ip());
        SocketAddr::new(address, self.bind.port()).to_string()
    }

    pub(crate) fn audiences(&self) -> Vec<String> {
        if self.api_audiences.is_empty() { self.service_account_issuers.clone() } else { self.api_audiences.clone() }
    }
}

/// `cox apiserver`: upstream's flags, and `--data-dir` for the embedded store.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Directory of the embedded store.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/cox/store")]
    pub data_dir: PathBuf,
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
    /// The IP address on which to listen for the --secure-port port.
    #[arg(long, default_value = "0.0.0.0")]
    pub bind_address: IpAddr,
    /// The port on which to serve HTTPS with authentication and authorization.
    #[arg(long, default_value_t = 6443)]
    pub secure_port: u16,
    /// The IP address on which to advertise the apiserver to members of the cluster.
    #[arg(long)]
    pub advertise_address: Option<IpAddr>,
    /// File containing the x509 certificate for HTTPS, followed by intermediates.
    #[arg(long, value_name = "FILE")]
    pub tls_cert_file: Option<PathBuf>,
    /// File containing the x509 private key matching --tls-cert-file.
    #[arg(long, value_name = "FILE")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Requests with a client certificate signed by one of these authorities are authenticated by its CommonName.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// File used to secure the secure port of the API server via token authentication.
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Enables anonymous requests to the secure port of the API server.
    #[arg(long, default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    pub anonymous_auth: bool,
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
    /// Request headers to inspect for groups.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-group")]
    pub requestheader_group_headers: Vec<String>,
    /// Request header prefixes to inspect for extra user information.
    #[arg(long, value_delimiter = ',', default_value = "x-remote-extra-")]
    pub requestheader_extra_headers_prefix: Vec<String>,
    /// File with keys used to verify ServiceAccount tokens; may be given several times.
    #[arg(long = "service-account-key-file", value_name = "FILE")]
    pub service_account_key_files: Vec<PathBuf>,
    /// File with the private key that signs ServiceAccount tokens.
    #[arg(long, value_name = "FILE")]
    pub service_account_signing_key_file: Option<PathBuf>,
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
    /// Ordered list of authorizers: AlwaysAllow, AlwaysDeny, RBAC, Node.
    #[arg(long, value_delimiter = ',', default_value = "AlwaysAllow")]
    pub authorization_mode: Vec<String>,
    /// Admission plugins that should be enabled in addition to the default ones.
    #[arg(long, value_delimiter = ',')]
    pub enable_admission_plugins: Vec<String>,
    /// Admission plugins that should be disabled although they are on by default.
    #[arg(long, value_delimiter = ',')]
    pub disable_admission_plugins: Vec<String>,
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
    /// The maximum number of non-mutating requests in flight; zero is no limit.
    #[arg(long, default_value_t = 400)]
    pub max_requests_inflight: usize,
    /// The maximum number of mutating requests in flight; zero is no limit.
    #[arg(long, default_value_t = 200)]
    pub max_mutating_requests_inflight: usize,
    /// Amount of time to retain events.
    #[arg(long, default_value = "1h", value_parser = duration)]
    pub event_ttl: Duration,
    /// The interval of compaction requests.
    #[arg(long, default_value = "5m", value_parser = duration)]
    pub etcd_compaction_interval: Duration,
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let bad = || format!("{text} is not a valid port range");
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

/// Parses Go's durations: `1h30m`, `300s`, `0`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let bad = || format!("time: invalid duration {text:?}");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut total = 0f64;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|character: char| !character.is_ascii_digit() && character != '.').ok_or_else(bad)?;
        let value: f64 = rest[..digits].parse().map_err(|_| bad())?;
        rest = &rest[digits..];
        let unit = rest.find(|character: char| character.is_ascii_digit() || character == '.').unwrap_or(rest.len());
        total += value
            * match &rest[..unit] {
                "h" => 3600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 1e-3,
                "us" => 1e-6,
                _ => return Err(bad()),
            };
        rest = &rest[unit..];
    }
    Ok(Duration::from_secs_f64(total))
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
        Ok(Config {
            storage,
            bind: SocketAddr::new(args.bind_address, args.secure_port),
            advertise_address: args.advertise_address,
            tls_cert_file: args.tls_cert_file,
            tls_private_key_file: args.tls_private_key_file,
            client_ca_file: args.client_ca_file,
            token_auth_file: args.token_auth_file,
            anonymous_auth: args.anonymous_auth,
            enable_bootstrap_token_auth: args.enable_bootstrap_token_auth,
            requestheader_client_ca_file: args.requestheader_client_ca_file,
            requestheader_allowed_names: args.requestheader_allowed_names,
            requestheader_username_headers: args.requestheader_username_headers,
            requestheader_group_headers: args.requestheader_group_headers,
            requestheader_extra_headers_prefix: args.requestheader_extra_headers_prefix,
            service_account_key_files: args.service_account_key_files,
            service_account_signing_key_file: args.service_account_signing_key_file,
            service_account_issuers: args.service_account_issuers,
            service_account_jwks_uri: args.service_account_jwks_uri,
            api_audiences: args.api_audiences,
            service_cluster_ip_ranges: args.service_cluster_ip_range,
            service_node_port_range: args.service_node_port_range,
            authorization_modes: args.authorization_mode,
            enable_admission_plugins: args.enable_admission_plugins,
            disable_admission_plugins: args.disable_admission_plugins,
            runtime_config: args.runtime_config,
            kubelet_client_certificate: args.kubelet_client_certificate,
            kubelet_client_key: args.kubelet_client_key,
            kubelet_certificate_authority: args.kubelet_certificate_authority,
            kubelet_preferred_address_types: args.kubelet_preferred_address_types,
            max_requests_inflight: args.max_requests_inflight,
            max_mutating_requests_inflight: args.max_mutating_requests_inflight,
            event_ttl: args.event_ttl,
            compaction_interval: args.etcd_compaction_interval,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_parse_as_upstream() {
        for (text, seconds) in [("1h", 3600), ("1h30m", 5400), ("90s", 90), ("0", 0)] {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        assert!(duration("5").is_err() && duration("x").is_err());
        assert_eq!(port_range("30000-32767"), Ok((30000, 32767)));
        assert_eq!(port_range("30000+10"), Ok((30000, 30010)));
        assert!(port_range("2-1").is_err());
    }
}

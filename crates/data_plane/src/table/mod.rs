//! The routing table: what the data plane knows, made anew and swapped as a whole whenever anything changes.
//!
//! A request finds its [`Port`] by the socket, its [`Listener`] by the host, its [`Rule`] by host and then path, method, headers and
//! query, and from there a [`Route`]: what is to be done with it.

mod cors;
mod rules;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactCollect as _;
use http::{HeaderName, HeaderValue, StatusCode};
use rustls::RootCertStore;
use rustls::sign::CertifiedKey;
use rustls_pki_types::ServerName;

pub use cors::{Cors, Listed, Origin};
pub use rules::{Asked, Found, Headers, PathMatch, Rank, Rule, Rules, TextMatch, pattern};

use crate::hostname::{Hosts, Pattern};
use crate::metrics::RouteMetrics;

/// Everything, by where clients come in.
#[derive(Clone, Default)]
pub struct Table {
    pub ports: BTreeMap<Bind, Arc<Port>>,
    /// The addresses that single Gateways have for themselves, with the uids of those.
    pub owners: BTreeMap<IpAddr, String>,
    /// All that routes lead to.
    pub endpoints: HashSet<SocketAddr>,
    /// The ways in which they are spoken to over TLS, by [`BackendTls::id`].
    pub tls: HashSet<u64>,
}

impl Table {
    /// The addresses that single Gateways have for themselves, as far as anything is served there.
    pub fn own_addresses(&self) -> BTreeSet<IpAddr> {
        self.ports.keys().filter_map(|bind| bind.address).compact_collect()
    }

    /// The Gateway that alone has a port's address.
    pub fn owner(&self, bind: &Bind) -> Option<&String> {
        bind.address.and_then(|address| self.owners.get(&address))
    }

    /// The names of all routes.
    pub fn route_names(&self) -> BTreeSet<&str> {
        let listeners = self.ports.values().flat_map(|port| port.listeners.values());
        let routes = listeners.flat_map(|listener| {
            let streams = listener.streams.values().map(|stream| &stream.route);
            listener.hosts.values().flat_map(Rules::routes).chain(streams)
        });
        routes.map(|route| route.name.as_str()).compact_collect()
    }
}

/// A port of the addresses that Ingresses and Gateways share, or of an address that one Gateway has for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bind {
    /// None: those that are shared.
    pub address: Option<IpAddr>,
    pub port: u16,
}

impl Bind {
    pub fn shared(port: u16) -> Self {
        Self { address: None, port }
    }
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.address {
            Some(address) => write!(f, "{}", SocketAddr::new(address, self.port)),
            None => write!(f, ":{}", self.port),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Http,
    /// HTTPS, and other protocols over TLS.
    Tls,
}

/// What is served on one port.
pub struct Port {
    pub protocol: Protocol,
    pub listeners: Hosts<Arc<Listener>>,
    /// For clients that name no host, or none that is known.
    pub default_certificate: Option<Arc<CertifiedKey>>,
}

impl Port {
    /// Whether the client's first words decide what becomes of the connection.
    pub fn has_streams(&self) -> bool {
        self.listeners.values().any(|listener| !listener.streams.is_empty())
    }

    /// Where the bytes of a connection for a host go, if they are not requests of HTTP.
    pub fn stream(&self, name: &str) -> Option<&StreamRoute> {
        self.listeners.best(name)?.streams.best(name)
    }

    /// Whether a client that no stream is for can be answered: a listener that has streams only has nothing to say to others.
    pub fn is_answered(&self, name: Option<&str>) -> bool {
        self.named(name).is_some_and(|listener| !listener.hosts.is_empty() || listener.streams.is_empty())
    }

    /// The listener that a TLS client means; one that names no host means the listener of all hosts.
    pub fn named(&self, name: Option<&str>) -> Option<&Arc<Listener>> {
        match name {
            Some(name) => self.listeners.best(name),
            None => self.listeners.get(&Pattern::Any),
        }
    }

    /// What a TLS client is shown: only the certificate of the listener whose routes will answer it. Another's would vouch for
    /// backends that are not its owner's.
    pub fn certificate(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let listener = self.named(name)?;
        let is_of_all = self.listeners.get(&Pattern::Any).is_some_and(|of_all| Arc::ptr_eq(of_all, listener));
        let named = name.and_then(|name| listener.certificates.best(name));
        named.or_else(|| self.default_certificate.as_ref().filter(|_| is_of_all))
    }
}

/// A set of hosts of a port. Routes of one are not those of another.
#[derive(Default)]
pub struct Listener {
    pub hosts: Hosts<Rules>,
    pub certificates: Hosts<Arc<CertifiedKey>>,
    /// Connections that are not for requests of HTTP.
    pub streams: Hosts<StreamRoute>,
}

/// Where the bytes of a connection with TLS go.
#[derive(Clone)]
pub struct StreamRoute {
    pub route: Arc<Route>,
    /// Whether TLS ends here and the backend gets what was in it. Otherwise it is the backend's own.
    pub is_terminated: bool,
}

/// What is done with a request.
pub struct Route {
    /// The object and the place in it, for people and metrics.
    pub name: String,
    pub filters: Vec<Filter>,
    pub action: Action,
    /// For the whole exchange, and for the time until the backend begins to answer.
    pub timeout: Option<Duration>,
    pub backend_timeout: Option<Duration>,
    /// Of all that have this name.
    pub metrics: Arc<RouteMetrics>,
}

pub enum Action {
    Forward(Vec<Weighted>),
    Redirect(Redirect),
    /// The route cannot be followed.
    Refuse(StatusCode),
}

/// One of several backends, with its share of the requests.
pub struct Weighted {
    pub weight: u32,
    /// None: the reference leads nowhere, and its share of the requests fails.
    pub backend: Option<Arc<Backend>>,
    pub filters: Vec<Filter>,
}

/// One port of a Service.
#[derive(Debug, PartialEq, Eq)]
pub struct Backend {
    pub name: String,
    pub protocol: BackendProtocol,
    /// Whether it is to be spoken to over TLS, whoever begins that.
    pub wants_tls: bool,
    /// How the gateway does it.
    pub tls: Option<Arc<BackendTls>>,
    pub endpoints: Vec<SocketAddr>,
}

/// Whom to trust behind a Service.
#[derive(Debug)]
pub struct BackendTls {
    /// The same for all who trust the same: they share connections.
    pub id: u64,
    /// The name that is asked for, and that the certificate has to have unless `names` or `uris` say otherwise.
    pub name: ServerName<'static>,
    pub names: Vec<ServerName<'static>>,
    pub uris: Vec<String>,
    pub roots: Roots,
}

impl PartialEq for BackendTls {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for BackendTls {}

/// Authorities.
#[derive(Clone, Debug)]
pub enum Roots {
    /// Those of this machine.
    System,
    Of(Vec<Arc<RootCertStore>>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BackendProtocol {
    Http1,
    Http2,
}

pub enum Filter {
    RequestHeaders(HeaderEdits),
    ResponseHeaders(HeaderEdits),
    Rewrite {
        hostname: Option<HeaderValue>,
        path: Option<PathEdit>,
    },
    /// A copy of some requests, whose answers nobody reads.
    Mirror {
        backend: Arc<Backend>,
        share: (u32, u32),
    },
    Cors(Cors),
}

impl Filter {
    pub fn cors(&self) -> Option<&Cors> {
        match self {
            Self::Cors(cors) => Some(cors),
            _ => None,
        }
    }
}

#[derive(Clone, Debug, Default)]
pub struct HeaderEdits {
    pub set: Vec<(HeaderName, HeaderValue)>,
    pub add: Vec<(HeaderName, HeaderValue)>,
    pub remove: Vec<HeaderName>,
}

#[derive(Clone, Debug)]
pub enum PathEdit {
    Full(String),
    /// Instead of the prefix that matched.
    Prefix(String),
}

impl PathEdit {
    /// The path that takes the place of one whose first `matched` bytes are the prefix that the rule asks for.
    pub fn apply(&self, path: &str, matched: usize) -> String {
        match self {
            Self::Full(new) => new.clone(),
            Self::Prefix(new) => {
                let rest = path.get(matched..).unwrap_or_default();
                let new = new.strip_suffix('/').unwrap_or(new);
                match (new.is_empty() && rest.is_empty(), rest.is_empty() || rest.starts_with('/')) {
                    (true, _) => "/".to_owned(),
                    (false, true) => format!("{new}{rest}"),
                    (false, false) => format!("{new}/{rest}"),
                }
            }
        }
    }
}

#[derive(Clone, Debug)]
pub struct Redirect {
    pub scheme: Option<&'static str>,
    pub hostname: Option<String>,
    pub path: Option<PathEdit>,
    pub port: Option<u16>,
    pub code: StatusCode,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_replaced_by_elements() {
        for (path, matched, new, expected) in [
            ("/foo/bar", 4, "/xyz", "/xyz/bar"),
            ("/foo/bar", 4, "/xyz/", "/xyz/bar"),
            ("/foo/", 4, "/xyz", "/xyz/"),
            ("/foo", 4, "/xyz", "/xyz"),
            ("/foo/bar", 4, "/", "/bar"),
            ("/foo/bar", 4, "", "/bar"),
            ("/foo", 4, "/", "/"),
            ("/foo/", 4, "/", "/"),
            ("/bar", 0, "/xyz", "/xyz/bar"),
        ] {
            assert_eq!(PathEdit::Prefix(new.into()).apply(path, matched), expected, "{path} {new}");
        }
        assert_eq!(PathEdit::Full("/one".into()).apply("/two/three", 4), "/one");
    }
}

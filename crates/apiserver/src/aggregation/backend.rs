//! An aggregated API server: where it is, whom to trust there, and how requests are passed on to it.

use std::sync::Arc;
use std::time::Duration;

use api::UserInfo;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::upgrade::OnUpgrade;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::{APIService, APIServiceSpec};
use parking_lot::RwLock;
use registry::priority::Priority;
use registry::unset::or_empty;
use tls::Reloading;
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::backends::Aggregation;
use super::condition;
use super::remote_discovery::Discovered;
use crate::body::response;
use crate::body::{self, Body};
use crate::config::Config;
use crate::remote::passage;
use crate::remote::proxied_answer::{Links, pass};
use crate::remote::service::{self, NoAddress};
use crate::remote::{ConnectError, Connections, Lost, Problem, Sender, Services, dial};
use crate::request_info::RequestInfo;
use crate::watch_cache::Caches;

/// The documents that clients need to find their way come soon or not at all.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(5);
const EXTRA: &str = "x-remote-extra-";

/// What of this server a request that is passed on has to do with.
pub(crate) struct Forwarding<'a> {
    pub(crate) aggregation: &'a Aggregation,
    pub(crate) services: &'a Services,
    pub(crate) caches: &'a Caches,
    pub(crate) config: &'a Config,
    pub(crate) stop: &'a CancellationToken,
}

/// One version of a group that another server serves.
pub(crate) struct Backend {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) priority: Priority,
    /// Namespace, name and port of its service.
    pub(crate) service: (String, String, u16),
    /// What this was made from.
    spec: APIServiceSpec,
    tls: Result<Reloading<TlsConnector>, Arc<anyhow::Error>>,
    connections: Connections,
    discovered: RwLock<Arc<Discovered>>,
}

impl Backend {
    /// The backend of a registration; nothing if this server is meant.
    pub(crate) fn new(config: &Config, registered: &APIService) -> Option<Self> {
        let spec = registered.spec.clone()?;
        let reference = spec.service.as_ref()?;
        let (namespace, name) = (or_empty(&reference.namespace), or_empty(&reference.name));
        let port = u16::try_from(reference.port.unwrap_or(443)).unwrap_or(443);
        Some(Self {
            group: or_empty(&spec.group).to_owned(),
            version: or_empty(&spec.version).to_owned(),
            priority: Priority { group: spec.group_priority_minimum, version: spec.version_priority },
            service: (namespace.to_owned(), name.to_owned(), port),
            tls: trust(config, &spec).map_err(Arc::new),
            connections: Connections::default(),
            discovered: RwLock::default(),
            spec,
        })
    }

    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.version, self.group)
    }

    /// Whether a registration still says what this was made from.
    pub(crate) fn is_of(&self, registered: &APIService) -> bool {
        registered.spec.as_ref() == Some(&self.spec)
    }

    pub(crate) fn is_like(&self, other: &Backend) -> bool {
        self.group == other.group && self.version == other.version
    }

    /// Whether its registration says so, as everybody can read it at this moment: who has seen there that the server
    /// can be used finds that it can. While it cannot be read, the server shows by itself whether it is there.
    fn is_available(&self, caches: &Caches) -> bool {
        let registered = caches.objects().get::<APIService>("", &self.name());
        let says_so = |service: Arc<APIService>| condition(&service).is_some_and(|found| found.status == "True");
        match registered {
            Ok(service) => service.is_some_and(says_so),
            Err(_) => true,
        }
    }

    pub(crate) fn discovered(&self) -> Arc<Discovered> {
        self.discovered.read().clone()
    }

    /// Remembers what the server offers; returns whether that is news.
    pub(crate) fn learn(&self, found: Arc<Discovered>) -> bool {
        let mut known = self.discovered.write();
        let is_news = *known != found;
        *known = found;
        is_news
    }

    /// Where the version is described, which every API server answers.
    pub(crate) fn path(&self) -> String {
        if self.group.is_empty() {
            format!("/api/{}", self.version)
        } else {
            format!("/apis/{}/{}", self.group, self.version)
        }
    }

    /// Where a connection would lead now.
    pub(crate) fn address(&self, services: &Services) -> Result<(String, u16), NoAddress> {
        let (namespace, name, port) = &self.service;
        service::resolve(services, namespace, name, *port)
    }

    async fn connect(&self, services: &Services) -> Result<Sender, ConnectError> {
        let tls = self.tls.as_ref().map_err(|error| ConnectError::Trust(error.clone()))?;
        let (host, port) = self.address(services)?;
        let (namespace, name, _) = &self.service;
        dial(&host, port, Some((&tls.get(), &format!("{name}.{namespace}.svc")))).await
    }

    /// A question of the server itself.
    pub(crate) async fn ask(&self, services: &Services, path: &str, accept: &str) -> Result<Response<Bytes>, Problem> {
        let user = UserInfo::new("system:kube-aggregator", &[api::user::MASTERS]);
        let mut headers = HeaderMap::new();
        if let Ok(accept) = HeaderValue::from_str(accept) {
            headers.insert(header::ACCEPT, accept);
        }
        introduce(&mut headers, &user)?;
        let request = self.request(Method::GET, path, headers, Bytes::new())?;
        let asking = self.connections.exchange(request, || self.connect(services));
        tokio::time::timeout(DISCOVERY_TIMEOUT, asking).await.map_err(|_| Problem::Late)?
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Request<Full<Bytes>>, http::Error> {
        let mut request = Request::builder().method(method).uri(path).body(Full::new(body))?;
        *request.headers_mut() = headers;
        let (namespace, name, _) = &self.service;
        let host = HeaderValue::from_str(&format!("{name}.{namespace}.svc"))?;
        request.headers_mut().insert(header::HOST, host);
        Ok(request)
    }

    /// Passes on a request of somebody who may make it. Problems are told as upstream tells them, in plain text.
    pub(crate) async fn forward(
        &self,
        server: &Forwarding<'_>,
        info: &RequestInfo,
        user: &UserInfo,
        parts: http::request::Parts,
        body: Bytes,
    ) -> Response<Body> {
        let deadline = (!info.is_resource).then(|| tokio::time::Instant::now() + DISCOVERY_TIMEOUT);
        let passing = self.exchange(server, info, user, parts, body);
        let outcome = match deadline {
            None => passing.await,
            Some(deadline) => match tokio::time::timeout_at(deadline, passing).await {
                Ok(outcome) => outcome.map(|answer| answer.map(|body| body::by(body, deadline))),
                Err(_) => Err((StatusCode::SERVICE_UNAVAILABLE, "context deadline exceeded".to_owned())),
            },
        };
        outcome.unwrap_or_else(|(code, text)| {
            let mut answer = response(code, "text/plain; charset=utf-8", format!("{text}\n").into());
            answer.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
            answer
        })
    }

    async fn exchange(
        &self,
        server: &Forwarding<'_>,
        info: &RequestInfo,
        user: &UserInfo,
        mut parts: http::request::Parts,
        body: Bytes,
    ) -> Result<Response<Body>, (StatusCode, String)> {
        let unavailable = |text: String| (StatusCode::SERVICE_UNAVAILABLE, text);
        let failed = |text: String| (StatusCode::INTERNAL_SERVER_ERROR, text);
        if !self.is_available(server.caches) {
            return Err(unavailable("service unavailable".to_owned()));
        }
        self.tls.as_ref().map_err(|error| failed(format!("{error:#}")))?;
        self.address(server.services).map_err(|error| {
            tracing::warn!(service = self.name(), "resolving an aggregated API server: {error}");
            unavailable("service unavailable".to_owned())
        })?;
        let upgrade = parts.extensions.remove::<OnUpgrade>().filter(|_| parts.headers.contains_key(header::UPGRADE));
        let mut headers = passage::headers(&parts.headers, upgrade.is_some());
        introduce(&mut headers, user).map_err(|error| failed(error.to_string()))?;
        crate::trace_context::pass_on(&mut headers);
        if !server.aggregation.sign(&mut headers) {
            return Err((StatusCode::LOOP_DETECTED, format!("{} leads back to this server", self.name())));
        }
        let path = match info.raw_query.is_empty() {
            true => info.path.clone(),
            false => format!("{}?{}", info.path, info.raw_query),
        };
        let request = self.request(parts.method, &path, headers, body).map_err(|error| failed(error.to_string()))?;
        // A write is never made twice.
        let lost = if request.method().is_safe() { Lost::Repeat } else { Lost::Tell };
        let reached = match &upgrade {
            // A connection that becomes a tunnel is nobody else's.
            Some(_) => Connections::default().open(request, lost, || self.connect(server.services)).await,
            None => self.connections.open(request, lost, || self.connect(server.services)).await,
        };
        let (sender, mut answer) = reached.map_err(|problem| unavailable(problem.to_string()))?;
        if answer.status() == StatusCode::SWITCHING_PROTOCOLS {
            let Some(client) = upgrade else {
                return Err(unavailable("backend switched protocols without being asked".to_owned()));
            };
            return Ok(passage::tunnel(answer, client, server.stop.clone()));
        }
        if upgrade.is_none() {
            self.connections.keep(sender);
        }
        passage::came_back(&mut answer);
        answer.headers_mut().insert(api::AGGREGATED_HEADER, HeaderValue::from_static("true"));
        let leads_away = answer.status().is_redirection() && answer.headers().contains_key(header::LOCATION);
        if leads_away && server.config.aggregator_reject_forwarding_redirect {
            let text = "the backend attempted to redirect this request, which is not permitted";
            return Err((StatusCode::BAD_GATEWAY, text.to_owned()));
        }
        let requested = parts.headers.get(header::HOST).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let (namespace, name, _) = &self.service;
        let backend = format!("{name}.{namespace}.svc");
        let links = Links { prefix: "", backend: &backend, requested };
        let answer = pass(&links, answer).await.map_err(|status| unavailable(status.message))?;
        // Streams end with the server, as its own watches do.
        let stop = info.is_long_running().then(|| server.stop.clone());
        Ok(answer.map(|body| match stop {
            Some(stop) => body::until(body, stop.cancelled_owned()),
            None => body,
        }))
    }
}

/// Whom to believe at the other end, and who we are there. The certificate is read again when its file changes.
fn trust(config: &Config, spec: &APIServiceSpec) -> anyhow::Result<Reloading<TlsConnector>> {
    let identity = config.proxy_client_cert_file.clone().zip(config.proxy_client_key_file.clone());
    let files = identity.iter().flat_map(|(certificate, key)| [certificate.clone(), key.clone()]).collect();
    let is_insecure = spec.insecure_skip_tls_verify == Some(true);
    let authorities = spec.ca_bundle.as_ref().map(|bundle| bundle.0.clone()).unwrap_or_default();
    Reloading::new(files, move |_| {
        let verified = match is_insecure {
            true => {
                let anyone = Arc::new(tls::AnyCertificate::default());
                tls::client_builder().dangerous().with_custom_certificate_verifier(anyone)
            }
            false => {
                let roots = crate::remote::webhook::roots(&authorities)?;
                tls::client_builder().with_root_certificates(roots)
            }
        };
        let mut client = match &identity {
            Some((certificate, key)) => {
                verified.with_client_auth_cert(tls::load_certificates(certificate)?, tls::load_key(key)?)?
            }
            None => verified.with_no_client_auth(),
        };
        client.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsConnector::from(Arc::new(client)))
    })
}

/// Says in the headers who asks, and takes out what the client itself may have said about that. Whoever cannot be named
/// there is refused: a request without its user would be the work of the proxy.
fn introduce(headers: &mut HeaderMap, user: &UserInfo) -> Result<(), http::Error> {
    let claimed = |name: &HeaderName| {
        matches!(name.as_str(), "x-remote-user" | "x-remote-uid" | "x-remote-group") || name.as_str().starts_with(EXTRA)
    };
    let claims: Vec<HeaderName> = headers.keys().filter(|name| claimed(name)).cloned().collect();
    claims.iter().for_each(|name| drop(headers.remove(name)));
    let mut add = |name: &str, value: &str| {
        headers.append(name.parse::<HeaderName>()?, HeaderValue::from_bytes(value.as_bytes())?);
        Ok::<_, http::Error>(())
    };
    add("x-remote-user", &user.name)?;
    if !user.uid.is_empty() {
        add("x-remote-uid", &user.uid)?;
    }
    user.groups.iter().try_for_each(|group| add("x-remote-group", group))?;
    for (key, values) in &user.extra {
        let name = format!("{EXTRA}{}", escaped(key));
        values.iter().try_for_each(|value| add(&name, value))?;
    }
    Ok(())
}

/// A key as part of the name of a header: what may not stand there is percent-encoded.
fn escaped(key: &str) -> String {
    api::percent::encode_except(key, |byte| byte.is_ascii_alphanumeric() || b"!#$&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_we_say_who_asks() {
        let mut headers = HeaderMap::new();
        for name in ["x-remote-user", "x-remote-uid", "x-remote-group", "x-remote-extra-scopes", "accept"] {
            headers.insert(HeaderName::from_static(name), HeaderValue::from_static("forged"));
        }
        let mut user = UserInfo::new("ann", &["dev", "ops"]);
        user.extra.insert("example.com/a b%".to_owned(), vec!["one".to_owned(), "two".to_owned()]);
        introduce(&mut headers, &user).unwrap();
        let all = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(all("x-remote-user"), ["ann"]);
        assert_eq!(all("x-remote-group"), ["dev", "ops"]);
        assert_eq!(all("x-remote-extra-example.com%2fa%20b%25"), ["one", "two"]);
        assert_eq!((all("x-remote-uid").len(), all("x-remote-extra-scopes").len()), (0, 0));
        assert_eq!(all("accept"), ["forged"]);
        for (name, is_said) in [("zoë", true), ("a\nb", false)] {
            assert_eq!(introduce(&mut HeaderMap::new(), &UserInfo::new(name, &["dev"])).is_ok(), is_said, "{name:?}");
        }
    }
}

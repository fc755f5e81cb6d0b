//! Calls to admission webhooks: one JSON document posted over TLS, one answered, within a deadline.
//!
//! Flow: an admission plug-in -> [`WebhookClient::post`] -> a kept or new connection -> the answer's bytes. The server on
//! the other side is not trusted: its certificate is checked against the configured authority, redirects are refused like
//! any other answer that is not a success, and the deadline covers everything from the name lookup to the last byte.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use bytes::Bytes;
use http::{HeaderValue, Request, header};
use http_body_util::Full;
use k8s_openapi::api::admissionregistration::v1::WebhookClientConfig;
use tokio_rustls::TlsConnector;

use super::{ConnectError, Connections, Identities, Sender, Services, dial, service};

/// Where a webhook listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// Host and port as they stand in the URL: `sample.default.svc:443`.
    pub(crate) authority: String,
    pub(crate) path: String,
    /// The name the certificate must carry.
    pub(crate) server_name: String,
    pub(crate) dial: Dial,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Dial {
    Host {
        name: String,
        port: u16,
    },
    /// Looked up for every connection, so that a service may move.
    Service {
        namespace: String,
        name: String,
        port: u16,
    },
}

/// Why a webhook cannot be called, whoever asks.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum NoClient {
    #[error("Unparsable URL: {0}")]
    Url(String),
    #[error("webhooks are called over https, not at {0:?}")]
    Scheme(String),
    #[error("webhook configuration must have either service or URL")]
    NoTarget,
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    NoRoots,
    /// Our own credentials there cannot be used.
    #[error("{0:#}")]
    Credentials(Arc<anyhow::Error>),
    #[error(transparent)]
    Config(Arc<serde_json::Error>),
}

impl Target {
    /// Reads `https://host[:port][/path]`.
    pub(crate) fn parse(url: &str) -> Result<Self, NoClient> {
        let uri: http::Uri = url.parse().map_err(|error: http::uri::InvalidUri| NoClient::Url(error.to_string()))?;
        if uri.scheme_str() != Some("https") {
            return Err(NoClient::Scheme(url.to_owned()));
        }
        let host = uri.host().ok_or_else(|| NoClient::Url(format!("{url:?} has no host")))?;
        let name = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(443);
        let authority = uri.authority().map(|authority| authority.as_str().to_owned()).unwrap_or_default();
        Ok(Self { authority, path: uri.path().to_owned(), server_name: name.clone(), dial: Dial::Host { name, port } })
    }

    pub(crate) fn service(namespace: &str, name: &str, port: u16, path: &str) -> Self {
        let server_name = format!("{name}.{namespace}.svc");
        Self {
            authority: format!("{server_name}:{port}"),
            path: if path.starts_with('/') { path.to_owned() } else { format!("/{path}") },
            server_name,
            dial: Dial::Service { namespace: namespace.to_owned(), name: name.to_owned(), port },
        }
    }

    /// What credentials are configured for.
    fn host_and_port(&self) -> String {
        let port = match &self.dial {
            Dial::Host { port, .. } | Dial::Service { port, .. } => *port,
        };
        let name = &self.server_name;
        if name.contains(':') { format!("[{name}]:{port}") } else { format!("{name}:{port}") }
    }

    fn url(&self, query: &str) -> String {
        let mark = if query.is_empty() { "" } else { "?" };
        format!("https://{}{}{mark}{query}", self.authority, self.path)
    }
}

/// Why a call brought no usable answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The server answered, but not with success.
    Answered(Status),
    /// There was no answer. The text is that of Go's HTTP client, which people and tests know.
    Failed(String),
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CallError::Answered(status) => f.write_str(&status.message),
            CallError::Failed(message) => f.write_str(message),
        }
    }
}

pub(crate) struct WebhookClient {
    target: Target,
    tls: TlsConnector,
    authorization: Option<HeaderValue>,
    connections: Connections,
}

impl WebhookClient {
    /// A client for what an object of the API names.
    pub(crate) fn configured(config: &WebhookClientConfig, identities: &Identities) -> Result<Self, NoClient> {
        let target = match (&config.service, &config.url) {
            (Some(service), _) => {
                let port = service.port.and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
                Target::service(&service.namespace, &service.name, port, service.path.as_deref().unwrap_or_default())
            }
            (None, Some(url)) => Target::parse(url)?,
            (None, None) => return Err(NoClient::NoTarget),
        };
        let authorities = config.ca_bundle.as_ref().map(|bundle| bundle.0.as_slice()).unwrap_or_default();
        Self::new(target, authorities, identities)
    }

    /// `authorities` is PEM; empty means the system's.
    pub(crate) fn new(target: Target, authorities: &[u8], identities: &Identities) -> Result<Self, NoClient> {
        let credentials = identities.credentials(&target.host_and_port());
        let credentials = credentials.map_err(|error| NoClient::Credentials(Arc::new(error)))?;
        let verified = tls::client_builder().with_root_certificates(roots(authorities)?);
        let config = credentials.complete(verified).map_err(|error| NoClient::Credentials(Arc::new(error.into())))?;
        let tls = Arc::new(config).into();
        Ok(Self { target, tls, authorization: credentials.authorization, connections: Connections::default() })
    }

    /// Posts `body` and returns the answer's body.
    pub(crate) async fn post(
        &self,
        services: &Services,
        query: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let url = self.target.url(query);
        let failed = |problem: &dyn std::fmt::Display| CallError::Failed(format!("Post {url:?}: {problem}"));
        let mut request = self.request(query, body).map_err(|error| failed(&error))?;
        crate::trace_context::pass_on(request.headers_mut());
        let exchange = self.connections.exchange(request, || self.connect(services));
        let outcome = tokio::time::timeout(timeout, exchange).await;
        let outcome = outcome.map_err(|_| failed(&"context deadline exceeded"))?;
        let (parts, answer) = outcome.map_err(|problem| failed(&problem))?.into_parts();
        let code = parts.status.as_u16();
        if (200..=206).contains(&code) {
            return Ok(answer);
        }
        let status = serde_json::from_slice::<Status>(&answer).ok().filter(|status| status.is_failure());
        let text = String::from_utf8_lossy(&answer[..answer.len().min(2048)]).into_owned();
        Err(CallError::Answered(status.unwrap_or_else(|| Status::from_code(code, &text))))
    }

    fn request(&self, query: &str, body: Bytes) -> http::Result<Request<Full<Bytes>>> {
        let mark = if query.is_empty() { "" } else { "?" };
        let mut request = Request::post(format!("{}{mark}{query}", self.target.path))
            .header(header::HOST, &self.target.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission");
        if let Some(value) = &self.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        request.body(Full::new(body))
    }

    async fn connect(&self, services: &Services) -> Result<Sender, ConnectError> {
        let (host, port) = match &self.target.dial {
            Dial::Host { name, port } => (name.clone(), *port),
            Dial::Service { namespace, name, port } => service::resolve(services, namespace, name, *port)?,
        };
        dial(&host, port, Some((&self.tls, &self.target.server_name))).await
    }
}

/// The authorities of a bundle; the system's if it is empty.
pub(crate) fn roots(authorities: &[u8]) -> Result<rustls::RootCertStore, NoClient> {
    let mut roots = rustls::RootCertStore::empty();
    match authorities {
        [] => roots = tls::system_roots(),
        // One odd certificate in a bundle must not make all the others useless.
        pem => drop(roots.add_parsable_certificates(tls::certificates(pem).unwrap_or_default())),
    }
    if roots.is_empty() {
        return Err(NoClient::NoRoots);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_become_targets() {
        for (url, host, port, shown) in [
            ("https://127.0.0.1:8443/x", "127.0.0.1", 8443, "https://127.0.0.1:8443/x?timeout=1s"),
            ("https://hooks.example.com", "hooks.example.com", 443, "https://hooks.example.com/?timeout=1s"),
            ("https://[::1]:80/a/b", "::1", 80, "https://[::1]:80/a/b?timeout=1s"),
        ] {
            let target = Target::parse(url).unwrap();
            assert_eq!(target.dial, Dial::Host { name: host.to_owned(), port }, "{url}");
            assert_eq!(target.url("timeout=1s"), shown);
        }
        assert!(Target::parse("/only/a/path").is_err() && Target::parse("http://plain").is_err());
        let service = Target::service("ns", "svc", 443, "hook");
        assert_eq!(service.url(""), "https://svc.ns.svc:443/hook");
        assert_eq!(service.server_name, "svc.ns.svc");
    }
}

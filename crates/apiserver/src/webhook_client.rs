//! Calls to webhooks: one JSON document posted over TLS, one answered, within a deadline.
//!
//! Flow: an admission plug-in (or another part that asks an outside server) -> [`WebhookClient::post`] -> a kept or new
//! connection -> the answer's bytes. The server on the other side is not trusted: its certificate is checked against
//! the configured authority, redirects are refused like any other answer that is not a success, the answer's size is
//! bounded, and the deadline covers everything from the name lookup to the last byte.

use std::sync::Arc;
use std::time::Duration;

use api::Status;
use bytes::{Bytes, BytesMut};
use http::{Request, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Service;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::state::State;

/// Answers larger than this are refused: more than twice what any object may have.
const MAX_ANSWER: usize = 8 << 20;
/// Connections kept open per webhook; more are closed after use.
const MAX_IDLE: usize = 16;
/// Where Debian and most others keep the authorities that a webhook without `caBundle` is checked against.
const SYSTEM_ROOTS: &str = "/etc/ssl/certs/ca-certificates.crt";

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

impl Target {
    /// Reads `https://host[:port][/path]`.
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        let uri: http::Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        if uri.scheme_str() != Some("https") {
            return Err(format!("webhooks are called over https, not at {url:?}"));
        }
        let host = uri.host().ok_or_else(|| format!("Unparsable URL: {url:?} has no host"))?;
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
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl WebhookClient {
    /// `authorities` is PEM; empty means the system's.
    pub(crate) fn new(target: Target, authorities: &[u8]) -> Result<Self, String> {
        Ok(Self { target, tls: connector(authorities)?, idle: Mutex::new(Vec::new()) })
    }

    /// Posts `body` and returns the answer's body.
    pub(crate) async fn post(
        &self,
        state: &State,
        query: &str,
        body: Bytes,
        timeout: Duration,
    ) -> Result<Bytes, CallError> {
        let url = self.target.url(query);
        let failed = |problem: &dyn std::fmt::Display| CallError::Failed(format!("Post {url:?}: {problem}"));
        let exchange = async {
            // A kept connection may have been closed by the other side just now: then a new one is made, once.
            let kept = self.take_idle();
            let reused = kept.is_some();
            let sender = match kept {
                Some(sender) => sender,
                None => self.connect(state).await.map_err(|problem| failed(&problem))?,
            };
            let outcome = self.send(sender, query, body.clone()).await;
            match outcome {
                Err(Broken { unsent: true, .. }) if reused => {
                    let sender = self.connect(state).await.map_err(|problem| failed(&problem))?;
                    self.send(sender, query, body).await.map_err(|broken| failed(&broken.problem))
                }
                other => other.map_err(|broken| failed(&broken.problem)),
            }
        };
        let (code, answer) =
            tokio::time::timeout(timeout, exchange).await.map_err(|_| failed(&"context deadline exceeded"))??;
        if (200..=206).contains(&code) {
            return Ok(answer);
        }
        let status = serde_json::from_slice::<Status>(&answer).ok().filter(|status| status.is_failure());
        let text = String::from_utf8_lossy(&answer[..answer.len().min(2048)]).into_owned();
        Err(CallError::Answered(status.unwrap_or_else(|| Status::from_code(code, &text))))
    }

    fn take_idle(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        while let Some(sender) = idle.pop() {
            if sender.is_ready() {
                return Some(sender);
            }
        }
        None
    }

    async fn send(
        &self,
        mut sender: SendRequest<Full<Bytes>>,
        query: &str,
        body: Bytes,
    ) -> Result<(u16, Bytes), Broken> {
        let mark = if query.is_empty() { "" } else { "?" };
        let request = Request::post(format!("{}{mark}{query}", self.target.path))
            .header(header::HOST, &self.target.authority)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json, */*")
            .header(header::USER_AGENT, "kube-apiserver-admission")
            .body(Full::new(body))
            .map_err(|error| Broken { unsent: false, problem: error.to_string() })?;
        let response = sender.send_request(request).await.map_err(|error| Broken {
            unsent: error.is_canceled() || error.is_closed() || error.is_incomplete_message(),
            problem: text(&error),
        })?;
        let code = response.status().as_u16();
        let answer = read(response.into_body()).await.map_err(|problem| Broken { unsent: false, problem })?;
        let mut idle = self.idle.lock();
        if idle.len() < MAX_IDLE && sender.is_ready() {
            idle.push(sender);
        }
        Ok((code, answer))
    }

    async fn connect(&self, state: &State) -> Result<SendRequest<Full<Bytes>>, String> {
        let (host, port) = match &self.target.dial {
            Dial::Host { name, port } => (name.clone(), *port),
            Dial::Service { namespace, name, port } => resolve(state, namespace, name, *port)?,
        };
        let tcp = TcpStream::connect((host.as_str(), port))
            .await
            .map_err(|error| format!("dial tcp {host}:{port}: connect: {}", io_text(&error)))?;
        tcp.set_nodelay(true).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(self.target.server_name.clone()).map_err(|error| error.to_string())?;
        let tls = self.tls.connect(name, tcp).await.map_err(|error| format!("tls: {error}"))?;
        handshake(TokioIo::new(tls), state.stop.clone()).await
    }
}

/// A request that failed, and whether the server cannot have acted on it.
struct Broken {
    unsent: bool,
    problem: String,
}

async fn handshake(
    io: TokioIo<TlsStream<TcpStream>>,
    stop: tokio_util::sync::CancellationToken,
) -> Result<SendRequest<Full<Bytes>>, String> {
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await.map_err(|error| text(&error))?;
    tokio::spawn(async move {
        // Ends with the last sender or the server; errors surface on the request itself.
        tokio::select! {
            _ = connection => {}
            () = stop.cancelled() => {}
        }
    });
    Ok(sender)
}

async fn read(mut body: Incoming) -> Result<Bytes, String> {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| text(&error))?;
        let Some(data) = frame.data_ref() else { continue };
        if kept.len() + data.len() > MAX_ANSWER {
            return Err(format!("the response is larger than {MAX_ANSWER} bytes"));
        }
        kept.extend_from_slice(data);
    }
    Ok(kept.freeze())
}

/// An error with what caused it; hyper's own text often says only half.
fn text(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn io_text(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connection refused".to_owned(),
        std::io::ErrorKind::TimedOut => "connection timed out".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "network is unreachable".to_owned(),
        std::io::ErrorKind::HostUnreachable => "no route to host".to_owned(),
        _ => error.to_string(),
    }
}

/// The address behind a service port: its cluster IP, or the name an ExternalName service stands for.
fn resolve(state: &State, namespace: &str, name: &str, port: u16) -> Result<(String, u16), String> {
    let service: Service = state
        .peek("services/specs", &format!("{namespace}/{name}"))
        .ok_or_else(|| format!("service {name:?} not found"))?;
    let spec = service.spec.unwrap_or_default();
    let kind = spec.type_.as_deref().unwrap_or("ClusterIP");
    match kind {
        "ExternalName" => return Ok((spec.external_name.unwrap_or_default(), port)),
        "ClusterIP" | "NodePort" | "LoadBalancer" => {}
        other => return Err(format!("unsupported service type {other:?}")),
    }
    let address = spec.cluster_ip.unwrap_or_default();
    if address.is_empty() || address == "None" {
        return Err(format!("cannot route to service with ClusterIP {address:?}"));
    }
    if !spec.ports.iter().flatten().any(|declared| declared.port == i32::from(port)) {
        return Err(format!("no service port {port} found for service {name:?}"));
    }
    Ok((address, port))
}

fn connector(authorities: &[u8]) -> Result<TlsConnector, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let pem = match authorities {
        [] => std::fs::read(SYSTEM_ROOTS).unwrap_or_default(),
        given => given.to_vec(),
    };
    let mut roots = rustls::RootCertStore::empty();
    let blocks = x509_parser::pem::Pem::iter_from_buffer(&pem).filter_map(Result::ok);
    // One odd certificate among the system's must not make all the others useless.
    roots.add_parsable_certificates(blocks.map(|block| CertificateDer::from(block.contents)));
    if roots.is_empty() {
        return Err("unable to load root certificates: unable to parse bytes as PEM block".to_owned());
    }
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
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

//! Servers that this one asks: admission, token and authorization webhooks, OIDC issuers, audit collectors, aggregated
//! API servers.
//!
//! A [`Remote`] is an HTTPS endpoint with its trust and its credentials, mostly from a kubeconfig file; a
//! [`webhook::WebhookClient`] is one that an object in the API names. Both talk through `connection`. Every question has a
//! deadline, answers are bounded, and redirects are never followed: who answers is who was configured. [`service`] finds
//! the address of a service, and [`passage`] passes on requests of clients.

mod connection;
mod kubeconfig;
mod kubelet;
pub(crate) mod passage;
pub(crate) mod proxied_answer;
pub(crate) mod service;
pub(crate) mod webhook;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::Full;
use serde_json::Value;
use tls::Reloading;
use tokio_rustls::TlsConnector;

pub(crate) use connection::{ConnectError, Connections, Lost, Problem, Sender, dial};
pub(crate) use kubeconfig::Identities;
use kubeconfig::Kubeconfig;
pub(crate) use kubelet::{FOR_KUBELET, KubeletClient, Place};
pub(crate) use service::Services;

/// How often a question is put when the other side is in trouble, and the pause after the first time (upstream's
/// `DefaultRetryBackoff`).
const ATTEMPTS: u32 = 5;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(500);

pub(crate) struct Remote {
    endpoint: Reloading<Endpoint>,
    connections: Connections,
}

/// Where to ask, whom to trust, and how to say who we are.
struct Endpoint {
    url: Uri,
    tls: TlsConnector,
    server_name: Option<String>,
    authorization: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error(transparent)]
    Unreachable(Problem),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("answered {0}")]
    Refused(StatusCode),
    #[error("answer is not what was asked for: {0}")]
    Garbage(String),
}

impl From<Problem> for RemoteError {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Unreachable(_) | Problem::Broken(_) | Problem::Late => RemoteError::Unreachable(problem),
            Problem::Request(_) | Problem::Cut(_) | Problem::Large(_) => RemoteError::Garbage(problem.to_string()),
        }
    }
}

impl RemoteError {
    /// Whether asking again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            RemoteError::Unreachable(_) => true,
            RemoteError::Refused(code) => code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS,
            RemoteError::Late(_) | RemoteError::Garbage(_) => false,
        }
    }
}

/// Authorities that vouch for a server.
#[derive(Clone, Debug)]
pub(crate) enum Trust {
    File(PathBuf),
    /// Certificates in PEM.
    Pem(String),
}

impl Remote {
    /// The current context of a kubeconfig file, as webhooks are configured.
    pub(crate) fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let files = Kubeconfig::load(path)?.files(path);
        let load = |files: &[PathBuf]| {
            let path = files.first().context("a kubeconfig file is needed")?;
            Kubeconfig::load(path)?.endpoint(path)
        };
        Ok(Self { endpoint: Reloading::new(files, load)?, connections: Connections::default() })
    }

    /// A server known by its URL, trusted through the given authorities or the system's.
    pub(crate) fn from_url(url: &str, authorities: Option<&Trust>) -> anyhow::Result<Self> {
        let authority = url.split_once("://").map_or(url, |(_, rest)| rest).split(['/', '?']).next();
        let has_credentials = authority.is_some_and(|authority| authority.contains('@'));
        anyhow::ensure!(!has_credentials, "a URL must not contain credentials");
        // What cannot be read may hold a password all the same: it is not told.
        let url: Uri = url.parse().context("that is not a URL")?;
        anyhow::ensure!(url.authority().is_none_or(has_sound_port), "that is not a URL");
        let (files, given) = match authorities {
            None => (Vec::new(), None),
            Some(Trust::File(path)) => (vec![path.clone()], None),
            Some(Trust::Pem(text)) => {
                let mut roots = rustls::RootCertStore::empty();
                for certificate in tls::certificates(text.as_bytes())? {
                    roots.add(certificate)?;
                }
                (Vec::new(), Some(roots))
            }
        };
        let load = move |files: &[PathBuf]| {
            let roots = match (&given, files.first()) {
                (Some(roots), _) => roots.clone(),
                (None, Some(path)) => tls::load_roots(path)?,
                (None, None) => tls::system_roots(),
            };
            let config = tls::client_builder().with_root_certificates(roots).with_no_client_auth();
            Ok(Endpoint { url: url.clone(), tls: Arc::new(config).into(), server_name: None, authorization: None })
        };
        Ok(Self { endpoint: Reloading::new(files, load)?, connections: Connections::default() })
    }

    /// Posts an object to the configured URL and reads one back.
    pub(crate) async fn ask(&self, question: &Value, limit: Duration) -> Result<Value, RemoteError> {
        let answer = self.deliver(Bytes::from(question.to_string()), limit).await?;
        serde_json::from_slice(&answer).map_err(|error| RemoteError::Garbage(error.to_string()))
    }

    /// Posts JSON; what is answered does not matter as long as it is a success.
    pub(crate) async fn post(&self, body: Bytes, limit: Duration) -> Result<(), RemoteError> {
        self.deliver(body, limit).await.map(drop)
    }

    /// Posts; tries again while the other side is in trouble and time is left.
    async fn deliver(&self, body: Bytes, limit: Duration) -> Result<Bytes, RemoteError> {
        let asking = async {
            let mut pause = FIRST_RETRY_DELAY;
            let mut attempt = 1;
            loop {
                match self.send(Method::POST, None, body.clone()).await {
                    Err(error) if error.is_passing() && attempt < ATTEMPTS => {
                        tracing::debug!(%error, attempt, "webhook failed; trying again");
                    }
                    other => return other,
                }
                attempt += 1;
                tokio::time::sleep(pause.mul_f64(rand::random_range(1.0..1.2))).await;
                pause = pause.mul_f64(1.5);
            }
        };
        tokio::time::timeout(limit, asking).await.map_err(|_| RemoteError::Late(limit))?
    }

    /// Fetches a JSON document; `path` replaces the configured one. Asked once.
    pub(crate) async fn fetch(&self, path: &str, limit: Duration) -> Result<Value, RemoteError> {
        let asking = self.send(Method::GET, Some(path), Bytes::new());
        let answer = tokio::time::timeout(limit, asking).await.map_err(|_| RemoteError::Late(limit))??;
        serde_json::from_slice(&answer).map_err(|error| RemoteError::Garbage(error.to_string()))
    }

    /// Posts once, with these headers instead of those of JSON.
    pub(crate) async fn write(
        &self,
        headers: &'static [(&'static str, &'static str)],
        body: Bytes,
        limit: Duration,
    ) -> Result<(), RemoteError> {
        let writing = self.send_with(Method::POST, None, body, headers);
        tokio::time::timeout(limit, writing).await.map_err(|_| RemoteError::Late(limit))?.map(drop)
    }

    async fn send(&self, method: Method, path: Option<&str>, body: Bytes) -> Result<Bytes, RemoteError> {
        let json = &[("accept", "application/json"), ("content-type", "application/json")];
        self.send_with(method, path, body, json).await
    }

    async fn send_with(
        &self,
        method: Method,
        path: Option<&str>,
        body: Bytes,
        headers: &[(&'static str, &'static str)],
    ) -> Result<Bytes, RemoteError> {
        let endpoint = self.endpoint.get();
        let path = path.or(endpoint.url.path_and_query().map(|path| path.as_str())).unwrap_or("/");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, endpoint.host())
            .header(header::USER_AGENT, concat!("cox-apiserver/", env!("CARGO_PKG_VERSION")));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(value) = &endpoint.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let mut request = request.body(Full::new(body)).map_err(|error| RemoteError::Garbage(error.to_string()))?;
        crate::trace_context::pass_on(request.headers_mut());
        let answer = self.connections.exchange(request, || endpoint.connect()).await?;
        if answer.status().is_success() { Ok(answer.into_body()) } else { Err(RemoteError::Refused(answer.status())) }
    }
}

/// The type takes any text for a port.
fn has_sound_port(authority: &Authority) -> bool {
    let after_host = authority.as_str().rsplit(']').next().unwrap_or_default();
    authority.port().is_some() || !after_host.contains(':')
}

impl Endpoint {
    /// Without what may stand before it in a URL: that is nobody's business.
    fn host(&self) -> &str {
        let authority = self.url.authority().map(|authority| authority.as_str()).unwrap_or_default();
        authority.rsplit_once('@').map_or(authority, |(_, host)| host)
    }

    async fn connect(&self) -> Result<Sender, ConnectError> {
        let host = self.url.host().unwrap_or_default().trim_matches(['[', ']']);
        let secure = self.url.scheme_str() != Some("http");
        let port = self.url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let name = self.server_name.as_deref().unwrap_or(host);
        dial(host, port, secure.then_some((&self.tls, name))).await
    }
}

//! Servers that this one asks: token and authorization webhooks, OIDC issuers, audit collectors.
//!
//! A [`Remote`] is an HTTPS endpoint with its trust and its credentials, mostly from a kubeconfig file. Every question has
//! a deadline, answers are bounded, and redirects are never followed: who answers is who was configured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::{PrivateKeyDer, ServerName, pem::PemObject};
use serde::Deserialize;
use serde_json::Value;
use tls::Reloading;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// An answer larger than this is refused.
const MAX_ANSWER: usize = 4 << 20;
/// Connections kept for the next question.
const IDLE: usize = 8;
/// How often a question is put when the other side is in trouble, and the pause after the first time (upstream's
/// `DefaultRetryBackoff`).
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);

pub(crate) struct Remote {
    target: Reloading<Target>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

/// Where to ask, whom to trust, and how to say who we are.
struct Target {
    url: Uri,
    tls: TlsConnector,
    server_name: Option<String>,
    authorization: Option<HeaderValue>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RemoteError {
    #[error("{0}")]
    Unreachable(String),
    #[error("no answer within {0:?}")]
    Late(Duration),
    #[error("answered {0}")]
    Refused(StatusCode),
    #[error("answer is not what was asked for: {0}")]
    Garbage(String),
}

impl RemoteError {
    /// Whether asking again may help.
    fn is_passing(&self) -> bool {
        match self {
            RemoteError::Unreachable(_) => true,
            RemoteError::Refused(code) => code.is_server_error() || *code == StatusCode::TOO_MANY_REQUESTS,
            RemoteError::Late(_) | RemoteError::Garbage(_) => false,
        }
    }
}

impl Remote {
    /// The current context of a kubeconfig file, as webhooks are configured.
    pub(crate) fn from_kubeconfig(path: &Path) -> anyhow::Result<Self> {
        let files = Kubeconfig::load(path)?.files(path);
        let load = |files: &[PathBuf]| {
            let path = files.first().context("a kubeconfig file is needed")?;
            Kubeconfig::load(path)?.target(path)
        };
        Ok(Self { target: Reloading::new(files, load)?, idle: Mutex::new(Vec::new()) })
    }

    /// A server known by its URL, trusted through the given authorities or the system's.
    pub(crate) fn from_url(url: &str, authorities: Option<&Path>) -> anyhow::Result<Self> {
        let url: Uri = url.parse().with_context(|| format!("{url:?} is not a URL"))?;
        let load = move |files: &[PathBuf]| {
            let roots = match files.first() {
                Some(path) => tls::load_roots(path)?,
                None => system_roots(),
            };
            let config = tls::client_builder().with_root_certificates(roots).with_no_client_auth();
            Ok(Target { url: url.clone(), tls: Arc::new(config).into(), server_name: None, authorization: None })
        };
        let files = authorities.map(Path::to_owned).into_iter().collect();
        Ok(Self { target: Reloading::new(files, load)?, idle: Mutex::new(Vec::new()) })
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
            let mut pause = FIRST_PAUSE;
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

    async fn send(&self, method: Method, path: Option<&str>, body: Bytes) -> Result<Bytes, RemoteError> {
        let target = self.target.get();
        let path = path.or(target.url.path_and_query().map(|path| path.as_str())).unwrap_or("/");
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, target.url.authority().map(|name| name.as_str()).unwrap_or_default())
            .header(header::USER_AGENT, concat!("cox-apiserver/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(value) = &target.authorization {
            request = request.header(header::AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| RemoteError::Garbage(error.to_string()))?;
        let unreachable = |error: hyper::Error| RemoteError::Unreachable(error.to_string());
        let (mut sender, response) = match self.kept() {
            // A kept connection may have been closed meanwhile: then a new one decides.
            Some(mut sender) => match sender.send_request(request.clone()).await {
                Ok(response) => (sender, response),
                Err(_) => self.send_anew(&target, request).await?,
            },
            None => self.send_anew(&target, request).await?,
        };
        let status = response.status();
        let bytes = Limited::new(response.into_body(), MAX_ANSWER)
            .collect()
            .await
            .map_err(|error| RemoteError::Garbage(error.to_string()))?
            .to_bytes();
        if sender.ready().await.map_err(unreachable).is_ok() {
            let mut idle = self.idle.lock();
            if idle.len() < IDLE {
                idle.push(sender);
            }
        }
        if status.is_success() { Ok(bytes) } else { Err(RemoteError::Refused(status)) }
    }

    fn kept(&self) -> Option<SendRequest<Full<Bytes>>> {
        let mut idle = self.idle.lock();
        idle.retain(|sender| !sender.is_closed());
        idle.pop()
    }

    async fn send_anew(
        &self,
        target: &Target,
        request: Request<Full<Bytes>>,
    ) -> Result<(SendRequest<Full<Bytes>>, http::Response<hyper::body::Incoming>), RemoteError> {
        let failed = |error: &dyn std::fmt::Display| RemoteError::Unreachable(error.to_string());
        let host = target.url.host().unwrap_or_default().trim_matches(['[', ']']);
        let secure = target.url.scheme_str() != Some("http");
        let port = target.url.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let tcp = TcpStream::connect((host, port)).await.map_err(|error| failed(&error))?;
        let mut sender = if secure {
            let name = target.server_name.clone().unwrap_or_else(|| host.to_owned());
            let name = ServerName::try_from(name).map_err(|error| failed(&error))?;
            let tls = target.tls.connect(name, tcp).await.map_err(|error| failed(&error))?;
            handshake(tls).await
        } else {
            handshake(tcp).await
        }
        .map_err(|error| failed(&error))?;
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        Ok((sender, response))
    }
}

async fn handshake(
    io: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
) -> hyper::Result<SendRequest<Full<Bytes>>> {
    let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await?;
    // Ends when the sender is dropped or the other side closes; errors surface on the request.
    tokio::spawn(connection);
    Ok(sender)
}

fn system_roots() -> rustls::RootCertStore {
    let mut roots = rustls::RootCertStore::empty();
    for path in ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"] {
        let certificates = tls::load_certificates(Path::new(path)).unwrap_or_default();
        // System bundles carry old certificates that rustls does not read; the rest is still good.
        roots.add_parsable_certificates(certificates);
    }
    roots
}

/// The parts of a kubeconfig file that a webhook needs.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Kubeconfig {
    clusters: Vec<NamedCluster>,
    users: Vec<NamedUser>,
    contexts: Vec<NamedContext>,
    current_context: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedCluster {
    name: String,
    cluster: Cluster,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedUser {
    name: String,
    user: User,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct NamedContext {
    name: String,
    context: ContextNames,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ContextNames {
    cluster: String,
    user: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct Cluster {
    server: String,
    tls_server_name: Option<String>,
    insecure_skip_tls_verify: bool,
    certificate_authority: Option<PathBuf>,
    certificate_authority_data: Option<String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
struct User {
    client_certificate: Option<PathBuf>,
    client_certificate_data: Option<String>,
    client_key: Option<PathBuf>,
    client_key_data: Option<String>,
    token: Option<String>,
    #[serde(rename = "tokenFile")]
    token_file: Option<PathBuf>,
    username: Option<String>,
    password: Option<String>,
}

impl Kubeconfig {
    fn load(path: &Path) -> anyhow::Result<Self> {
        let named = || format!("kubeconfig file {}", path.display());
        let decoded = api::codec::from_yaml(&std::fs::read(path).with_context(named)?).with_context(named)?;
        serde_json::from_value(decoded.value).with_context(named)
    }

    /// Cluster and user of the current context; with only one of each, a context is not needed.
    fn current(&self) -> (Cluster, User) {
        let context = self.contexts.iter().find(|context| context.name == self.current_context);
        let cluster = match context {
            Some(named) => self.clusters.iter().find(|cluster| cluster.name == named.context.cluster),
            None => self.clusters.first(),
        };
        let user = match context {
            Some(named) => self.users.iter().find(|user| user.name == named.context.user),
            None => self.users.first(),
        };
        let cluster = cluster.map(|named| named.cluster.clone());
        (cluster.unwrap_or_default(), user.map(|named| named.user.clone()).unwrap_or_default())
    }

    /// The file itself and every file it names.
    fn files(&self, path: &Path) -> Vec<PathBuf> {
        let (cluster, user) = self.current();
        let named = [cluster.certificate_authority, user.client_certificate, user.client_key, user.token_file];
        std::iter::once(path.to_owned()).chain(named.into_iter().flatten().map(|file| beside(path, &file))).collect()
    }

    fn target(&self, path: &Path) -> anyhow::Result<Target> {
        let named = || format!("kubeconfig file {}", path.display());
        let (cluster, user) = self.current();
        anyhow::ensure!(!cluster.server.is_empty(), "{} names no server", named());
        let url: Uri = cluster.server.parse().with_context(named)?;
        let bytes = |data: &Option<String>, file: &Option<PathBuf>| -> anyhow::Result<Option<Vec<u8>>> {
            match (data, file) {
                (Some(data), _) => Ok(Some(STANDARD.decode(data.trim()).with_context(named)?)),
                (None, Some(file)) => Ok(Some(std::fs::read(beside(path, file)).with_context(named)?)),
                (None, None) => Ok(None),
            }
        };
        let verified = if cluster.insecure_skip_tls_verify {
            let anyone = Arc::new(tls::AnyCertificate::default());
            tls::client_builder().dangerous().with_custom_certificate_verifier(anyone)
        } else {
            let authorities = bytes(&cluster.certificate_authority_data, &cluster.certificate_authority)?;
            let mut roots = rustls::RootCertStore::empty();
            match authorities {
                Some(pem) => {
                    for certificate in tls::certificates(&pem).with_context(named)? {
                        roots.add(certificate).with_context(named)?;
                    }
                }
                None => roots = system_roots(),
            }
            tls::client_builder().with_root_certificates(roots)
        };
        let chain = bytes(&user.client_certificate_data, &user.client_certificate)?;
        let key = bytes(&user.client_key_data, &user.client_key)?;
        let mut config = match (chain, key) {
            (Some(chain), Some(key)) => verified
                .with_client_auth_cert(tls::certificates(&chain)?, PrivateKeyDer::from_pem_slice(&key)?)
                .with_context(named)?,
            _ => verified.with_no_client_auth(),
        };
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let token = match (&user.token, &user.token_file) {
            (Some(token), _) => Some(token.clone()),
            (None, Some(file)) => Some(std::fs::read_to_string(beside(path, file)).with_context(named)?),
            (None, None) => None,
        };
        let basic = user.username.as_ref().map(|name| {
            let pair = format!("{name}:{}", user.password.as_deref().unwrap_or_default());
            format!("Basic {}", STANDARD.encode(pair))
        });
        let value = token.map(|token| format!("Bearer {}", token.trim())).or(basic);
        let authorization = value.map(|value| HeaderValue::from_str(&value)).transpose().with_context(named)?;
        Ok(Target { url, tls: Arc::new(config).into(), server_name: cluster.tls_server_name, authorization })
    }
}

/// A file named in another: relative to it.
fn beside(path: &Path, file: &Path) -> PathBuf {
    path.parent().map_or_else(|| file.to_owned(), |directory| directory.join(file))
}

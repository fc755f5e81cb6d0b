//! The network transport: a pool of HTTP/2 (else HTTP/1.1) connections to one server.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::tls::Gathered;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::uri::Scheme;
use http::{HeaderValue, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::RwLock;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::auth::Auth;
use super::proxy::Proxy;
use super::{failure, tls};
use crate::kubeconfig::{AuthInfo, Cluster, Resolved};
use crate::{Body, BoxError, Error};

/// A connection that is no longer HTTP: read and write bytes.
pub type Upgraded = TokioIo<hyper::upgrade::Upgraded>;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// A dead server is noticed by an unanswered ping, also while only watches are open. Sooner than upstream's 30 and 15 s: when a
/// server stands still, kubelets must have renewed their leases with another before their nodes count as lost, after 40 s.
const PING_INTERVAL: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// Lists come in few frames.
const FRAME: u32 = 256 * 1024;
/// What is taken from the kernel at once. Lists are long, and rustls by itself asks for 4 KiB at a time.
const RECEIVED: usize = 64 * 1024;

pub(super) struct Https {
    base: Uri,
    pool: RwLock<Pool>,
    connector: Connector,
}

/// Connections, and the client certificate that they show.
#[derive(Clone)]
struct Pool {
    connections: legacy::Client<Connector, Full<Bytes>>,
    shows: Option<tls::Identity>,
}

impl Https {
    pub(super) fn new(resolved: Resolved) -> Result<Self, Error> {
        let server = resolved.cluster.server.as_deref().unwrap_or_default();
        let base: Uri = server.parse().map_err(|error| Error::config(format!("server {server:?}: {error}")))?;
        if base.host().is_none() {
            return Err(Error::config(format!("server {server:?} has no host")));
        }
        let auth = Auth::new(&resolved.user, server)?;
        let (cluster, user) = (resolved.cluster, resolved.user);
        if base.scheme() != Some(&Scheme::HTTP) {
            // Unreadable certificates are reported here, not at the first request.
            tls::config(&cluster, tls::identity(&user)?, true)?;
        }
        let proxy = Proxy::choose(cluster.proxy_url.as_deref(), &base)?;
        Ok(Self::with_target(base, Target { cluster, user, auth, proxy }))
    }

    /// The same server, with these credentials and no client certificate. Connections are not shared: a certificate
    /// shown on one would decide who is asking.
    pub(super) fn with_auth(&self, auth: Auth) -> Self {
        let (cluster, proxy) = (self.connector.0.cluster.clone(), self.connector.0.proxy.clone());
        Self::with_target(self.base.clone(), Target { cluster, user: AuthInfo::default(), auth, proxy })
    }

    fn with_target(base: Uri, target: Target) -> Self {
        let connector = Connector(Arc::new(target));
        // Unreadable files are told of when a connection needs them.
        let shows = tls::identity(&connector.0.user).ok().flatten();
        let pool = Pool { connections: Self::connections(&connector), shows };
        Self { base, pool: RwLock::new(pool), connector }
    }

    fn connections(connector: &Connector) -> legacy::Client<Connector, Full<Bytes>> {
        legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(90))
            .http2_keep_alive_interval(PING_INTERVAL)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_max_frame_size(Some(FRAME))
            .http2_initial_stream_window_size(4 << 20)
            .http2_initial_connection_window_size(16 << 20)
            .build(connector.clone())
    }

    /// The server refused: if there is another certificate to show by now, the next requests are sent on connections that
    /// show it. What goes on on the old ones (watches, streams) is left to its end.
    fn shows_another(&self) -> bool {
        let Ok(found) = tls::identity(&self.connector.0.user) else { return false };
        let mut pool = self.pool.write();
        if found.is_none() || pool.shows == found {
            return false;
        }
        *pool = Pool { connections: Self::connections(&self.connector), shows: found };
        true
    }

    pub(super) fn server(&self) -> String {
        self.base.to_string().trim_end_matches('/').to_owned()
    }

    pub(super) async fn endpoint(&self) -> Result<Endpoint, Error> {
        let (host, port) = address(&self.base);
        let target = &self.connector.0;
        let (tls, name) = target.tls(host.clone(), true).await.map_err(|error| Error::config(error.to_string()))?;
        Ok(Endpoint { host, port, name, tls, authorization: target.auth.header().await? })
    }

    pub(super) async fn send(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let response = self.send_as(request.clone()).await?;
        // A rotated token or certificate, or an expired plug-in credential, deserves one more try.
        if response.status() == StatusCode::UNAUTHORIZED
            && (self.connector.0.auth.refused().await || self.shows_another())
        {
            return self.send_as(request).await;
        }
        Ok(response)
    }

    async fn send_as(&self, request: Request<Bytes>) -> Result<Response<Body>, Error> {
        let request = self.prepare(request).await?;
        let (method, uri) = (request.method().clone(), request.uri().to_string());
        let connections = self.pool.read().connections.clone();
        match connections.request(request.map(Full::new)).await {
            Ok(response) => Ok(response.map(|body| body.map_err(|error| Box::new(error) as BoxError).boxed_unsync())),
            Err(error) => Err(Error::Transport { method, uri, source: root_cause(error) }),
        }
    }

    /// Puts the server in front of the path and the credentials into the headers.
    async fn prepare(&self, mut request: Request<Bytes>) -> Result<Request<Bytes>, Error> {
        let prefix = self.base.path().trim_end_matches('/');
        let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
        let uri = Uri::builder()
            .scheme(self.base.scheme().cloned().unwrap_or(Scheme::HTTPS))
            .authority(self.base.authority().cloned().ok_or_else(|| Error::config("the server has no host"))?)
            .path_and_query(format!("{prefix}{path}"))
            .build()
            .map_err(|error| Error::Encode(error.to_string()))?;
        *request.uri_mut() = uri;
        if !request.headers().contains_key(header::AUTHORIZATION)
            && let Some(value) = self.connector.0.auth.header().await?
        {
            request.headers_mut().insert(header::AUTHORIZATION, value);
        }
        Ok(request)
    }

    pub(super) async fn upgrade(&self, request: Request<Bytes>) -> Result<(Response<()>, Upgraded), Error> {
        let mut request = self.prepare(request).await?;
        let (method, full) = (request.method().clone(), request.uri().clone());
        let transport = |source: BoxError| Error::Transport { method: method.clone(), uri: full.to_string(), source };
        let stream = self.connector.0.connect(&full, false).await.map_err(transport)?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| transport(error.into()))?;
        // Ends with the exchange: once upgraded the stream belongs to the caller, otherwise it is closed.
        tokio::spawn(FutureExt::boxed(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "connection for an upgrade ended");
            }
        }));
        if let Some(authority) = full.authority() {
            let host = authority.as_str().parse().map_err(|_| Error::config("server host is not a header value"))?;
            request.headers_mut().insert(header::HOST, host);
        }
        *request.uri_mut() = full.path_and_query().map_or("/", |path| path.as_str()).parse().unwrap_or_default();
        let response = sender.send_request(request.map(Full::new)).await.map_err(|error| transport(error.into()))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let response = response.map(|body| body.map_err(|error| Box::new(error) as BoxError).boxed_unsync());
            return Err(failure(response, method, full.to_string()).await);
        }
        let (parts, body) = response.into_parts();
        let upgraded = hyper::upgrade::on(Response::from_parts(parts.clone(), body))
            .await
            .map_err(|error| Error::Upgrade(error.to_string()))?;
        Ok((Response::from_parts(parts, ()), TokioIo::new(upgraded)))
    }
}

/// hyper says "client error (Connect)"; people need the reason beneath it.
fn root_cause(error: legacy::Error) -> BoxError {
    let mut cause: &dyn std::error::Error = &error;
    while let Some(next) = cause.source() {
        cause = next;
    }
    cause.to_string().into()
}

/// Where connections go and what they show.
struct Target {
    cluster: Cluster,
    user: AuthInfo,
    auth: Auth,
    proxy: Option<Proxy>,
}

impl Target {
    async fn connect(&self, uri: &Uri, http2: bool) -> Result<Stream, BoxError> {
        tokio::time::timeout(CONNECT_TIMEOUT, self.connect_now(uri, http2)).await?
    }

    async fn connect_now(&self, uri: &Uri, http2: bool) -> Result<Stream, BoxError> {
        let plain = uri.scheme() == Some(&Scheme::HTTP);
        let (host, port) = address(uri);
        let tcp = match &self.proxy {
            Some(proxy) => proxy.connect(&host, port).await?,
            None => TcpStream::connect((host.as_str(), port))
                .await
                .map_err(|error| format!("dial tcp {host}:{port}: {error}"))?,
        };
        tcp.set_nodelay(true)?;
        if plain {
            return Ok(Stream::Plain(tcp));
        }
        let (config, name) = self.tls(host, http2).await?;
        let tcp = BufReader::with_capacity(RECEIVED, tcp);
        let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
        Ok(match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Stream::Http2(Box::new(Gathered::new(stream))),
            _ => Stream::Tls(Box::new(stream)),
        })
    }

    /// What is shown to the server, and the name that it must show.
    async fn tls(&self, host: String, http2: bool) -> Result<(ClientConfig, ServerName<'static>), BoxError> {
        let identity = match &self.auth {
            Auth::Exec(plugin) => {
                let credential = plugin.credential().await?;
                credential
                    .client_certificate_data
                    .zip(credential.client_key_data)
                    .map(|(chain, key)| (chain.into_bytes(), key.into_bytes()))
            }
            _ => tls::identity(&self.user)?,
        };
        let name = self.cluster.tls_server_name.clone().unwrap_or(host);
        Ok((tls::config(&self.cluster, identity, http2)?, ServerName::try_from(name)?))
    }
}

fn address(uri: &Uri) -> (String, u16) {
    let host = uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']').to_owned();
    (host, uri.port_u16().unwrap_or(if uri.scheme() == Some(&Scheme::HTTP) { 80 } else { 443 }))
}

/// A server and who asks it, for those who have an HTTP/2 of their own.
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// What the server's certificate must be for.
    pub name: ServerName<'static>,
    pub tls: ClientConfig,
    /// The header with the credentials, unless a certificate is all of them.
    pub authorization: Option<HeaderValue>,
}

#[derive(Clone)]
struct Connector(Arc<Target>);

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let target = self.0.clone();
        Box::pin(async move { target.connect(&uri, true).await.map(TokioIo::new) })
    }
}

/// A TCP connection, with TLS on it unless the server's URL is plain HTTP.
enum Stream {
    Plain(TcpStream),
    Tls(Box<Encrypted>),
    Http2(Box<Gathered<Encrypted>>),
}

type Encrypted = TlsStream<BufReader<TcpStream>>;

impl Connection for Stream {
    fn connected(&self) -> Connected {
        match self {
            Stream::Http2(_) => Connected::new().negotiated_h2(),
            _ => Connected::new(),
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Http2(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, data: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, data),
            Stream::Tls(stream) => Pin::new(stream).poll_write(context, data),
            Stream::Http2(stream) => Pin::new(stream).poll_write(context, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(context),
            Stream::Http2(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            Stream::Http2(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

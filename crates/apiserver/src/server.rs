//! The server: assembled from a [`Config`], reached through TLS or in process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use k8s_openapi::api::core::v1::Service;
use rustls::crypto::CryptoProvider;
use store::etcd::EtcdStore;
use store::{EmbeddedStore, Revision, Store};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::authn::{self, Authenticators, CertificateAuthority, FrontProxy, Peer, PublicKeys, TokenFile, TokenIssuer};
use crate::authz::Authorizers;
use crate::body::Body;
use crate::chain::{self, InFlight};
use crate::config::{Config, Storage};
use crate::discovery::Documents;
use crate::registry::Registry;
use crate::registry::core::service_allocation::Allocators;
use crate::state::State;
use crate::verbs::{EventLeases, KubeletClient};
use crate::watch_cache;

/// Bodies larger than this are refused (upstream's `MaxRequestBodyBytes`).
const MAX_BODY: usize = 3 * 1024 * 1024;
/// Open requests get this long to finish when the server stops.
const DRAIN: Duration = Duration::from_secs(5);
/// A client that does not finish its TLS handshake is dropped.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Takes requests of one process without sockets. The identity travels as a `UserInfo` extension.
pub type Handler = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

pub struct Server {
    state: Arc<State>,
    listener: TcpListener,
    acceptor: TlsAcceptor,
    client_ca: Option<Arc<CertificateAuthority>>,
    proxy_ca: Option<Arc<CertificateAuthority>>,
    dispatcher: tokio::task::JoinHandle<Result<(), watch_cache::DispatchError>>,
    stop: CancellationToken,
}

impl Server {
    /// Opens the store, fills the caches, makes the objects every cluster has, and binds the port. The in-process
    /// handler works from here on; the port answers once [`Server::serve`] runs.
    pub fn new(config: Config) -> BoxFuture<'static, anyhow::Result<Self>> {
        Box::pin(Self::open(config))
    }

    async fn open(mut config: Config) -> anyhow::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let listener = TcpListener::bind(config.bind).await.with_context(|| format!("listening on {}", config.bind))?;
        config.bind = listener.local_addr()?;
        let acceptor = acceptor(&config, &provider)?;
        let authority = |path: &Option<std::path::PathBuf>| -> anyhow::Result<Option<Arc<CertificateAuthority>>> {
            path.as_deref().map(|path| CertificateAuthority::load(path, provider.clone()).map(Arc::new)).transpose()
        };
        let client_ca = authority(&config.client_ca_file)?;
        let proxy_ca = authority(&config.requestheader_client_ca_file)?;

        let store = open(&config).await?;
        let registry = Registry::new(&config.runtime_config);
        let caches = watch_cache::start(store, &registry.prefixes()).await?;
        let stop = CancellationToken::new();
        let dispatcher = tokio::spawn(watch_cache::run(caches.clone(), stop.clone()));

        let audiences = config.audiences();
        let tokens = match (&config.service_account_signing_key_file, config.service_account_issuers.first()) {
            (Some(key), Some(issuer)) => Some(TokenIssuer::load(key, issuer, audiences.clone())?),
            _ => None,
        };
        let mut state = State {
            authn: authenticators(&config, &proxy_ca)?,
            authz: Authorizers::new(&config.authorization_modes)?,
            admission: admission::Chain::new(&config.enable_admission_plugins, &config.disable_admission_plugins)?,
            allocators: Allocators::new(Vec::new(), config.service_node_port_range, &[]),
            in_flight: InFlight::new(config.max_mutating_requests_inflight, config.max_requests_inflight),
            kubelet: kubelet_client(&config, &provider)?,
            documents: Documents::new(&registry),
            event_leases: EventLeases::new(config.event_ttl),
            bootstrapped: Default::default(),
            stop: stop.clone(),
            tokens,
            registry,
            caches,
            config,
        };
        let services: Vec<Service> = state.peek_all("services/specs", None);
        state.allocators = Allocators::new(
            state.config.service_cluster_ip_ranges.clone(),
            state.config.service_node_port_range,
            &services,
        );
        let state = Arc::new(state);
        crate::bootstrap::run(&state).await.context("making the first objects")?;
        Ok(Self { state, listener, acceptor, client_ca, proxy_ca, dispatcher, stop })
    }

    /// Where the server listens; useful when the configured port was 0.
    pub fn address(&self) -> SocketAddr {
        self.state.config.bind
    }

    /// The in-process door. It trusts the `UserInfo` extension of a request, so it must only be handed to code that
    /// says the truth about who it is.
    pub fn handler(&self) -> Handler {
        let state = self.state.clone();
        Arc::new(move |request| {
            let peer = Peer { in_process: true, ..Default::default() };
            Box::pin(chain::serve(state.clone(), request, peer))
        })
    }

    /// Serves HTTPS until `stop` fires, then lets open requests finish. Watches end at once.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Server { state, listener, acceptor, client_ca, proxy_ca, mut dispatcher, stop: inner } = self;
        let graceful = GracefulShutdown::new();
        let mut connections = tokio::task::JoinSet::new();
        let compactor = compact(state.clone());
        tokio::pin!(compactor);
        let outcome = loop {
            tokio::select! {
                () = stop.cancelled() => break Ok(()),
                ended = &mut dispatcher => {
                    break match ended {
                        Ok(Ok(())) => Ok(()),
                        Ok(Err(error)) => Err(anyhow::Error::from(error)),
                        Err(error) => Err(anyhow::Error::from(error)),
                    };
                }
                () = &mut compactor => {}
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    let Ok((tcp, _)) = accepted else {
                        // Out of file descriptors, most likely: give others a moment to close theirs.
                        tokio::time::sleep(Duration::from_millis(50)).await;
                        continue;
                    };
                    let (state, acceptor) = (state.clone(), acceptor.clone());
                    let (client_ca, proxy_ca) = (client_ca.clone(), proxy_ca.clone());
                    let watcher = graceful.watcher();
                    connections.spawn(async move {
                        let _ = tcp.set_nodelay(true);
                        let Ok(Ok(tls)) = tokio::time::timeout(HANDSHAKE, acceptor.accept(tcp)).await else { return };
                        let peer = identify(&tls, client_ca.as_deref(), proxy_ca.as_deref());
                        serve_connection(state, tls, peer, watcher).await;
                    });
                }
            }
        };
        inner.cancel();
        drop(listener);
        if tokio::time::timeout(DRAIN, graceful.shutdown()).await.is_err() {
            tracing::info!("requests still open after {DRAIN:?}; closing");
        }
        connections.shutdown().await;
        outcome
    }
}

async fn serve_connection(
    state: Arc<State>,
    tls: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    peer: Peer,
    watcher: hyper_util::server::graceful::Watcher,
) {
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (state, peer) = (state.clone(), peer.clone());
        async move { Ok::<_, std::convert::Infallible>(receive(state, request, peer).await) }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder
        .http2()
        .max_concurrent_streams(1000)
        .initial_stream_window_size(1 << 20)
        .initial_connection_window_size(4 << 20);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    // An error here is the client's: it went away or does not speak HTTP.
    let _ = watcher.watch(connection.into_owned()).await;
}

/// Reads the body, within limits, and sends the request down the chain.
async fn receive(state: Arc<State>, request: Request<Incoming>, peer: Peer) -> Response<Body> {
    let (mut parts, body) = request.into_parts();
    // Nothing on the wire can set this, but nothing should depend on that either.
    parts.extensions.remove::<api::UserInfo>();
    let bytes = match read_body(body).await {
        Ok(bytes) => bytes,
        Err(status) => return crate::status::response(&status),
    };
    chain::serve(state, Request::from_parts(parts, bytes), peer).await
}

/// The whole body, or 413. The rest of a body that is too large is read and dropped, within reason: a client that is
/// still sending when the answer comes often fails to see it.
async fn read_body(mut body: Incoming) -> Result<Bytes, api::Status> {
    let mut kept = BytesMut::new();
    let mut total = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| api::Status::bad_request(error.to_string()))?;
        let Some(data) = frame.data_ref() else { continue };
        total += data.len();
        if total > 8 * MAX_BODY {
            break;
        }
        if total <= MAX_BODY {
            kept.extend_from_slice(data);
        }
    }
    if total > MAX_BODY {
        return Err(api::Status::request_too_large(format!("limit is {MAX_BODY}")));
    }
    Ok(kept.freeze())
}

/// What the client's certificate says, found out once per connection.
fn identify(
    tls: &tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    client_ca: Option<&CertificateAuthority>,
    proxy_ca: Option<&CertificateAuthority>,
) -> Peer {
    let Some(chain) = tls.get_ref().1.peer_certificates() else { return Peer::default() };
    let proxy = proxy_ca.and_then(|authority| authority.common_name(chain));
    let client = client_ca.map(|authority| authority.user(chain));
    // A proxy's certificate need not be one of a user.
    let client = if proxy.is_some() { client.filter(Result::is_ok) } else { client };
    Peer { in_process: false, client, proxy }
}

async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    match &config.storage {
        Storage::Open(store) => Ok(store.clone()),
        Storage::Etcd(options) => Ok(Arc::new(EtcdStore::connect(options.clone()).await?)),
        Storage::Embedded(dir) => {
            let dir = dir.clone();
            let store = tokio::task::spawn_blocking(move || EmbeddedStore::open(dir, Default::default())).await??;
            Ok(Arc::new(store))
        }
    }
}

/// Forgets old history now and then, as upstream's compactor: what was current one interval ago stays readable.
async fn compact(state: Arc<State>) {
    let mut previous: Option<Revision> = None;
    loop {
        tokio::time::sleep(state.config.compaction_interval).await;
        if let Some(revision) = previous.filter(|revision| *revision != Revision::ZERO)
            && let Err(error) = state.store().compact(revision).await
        {
            tracing::warn!(%error, "compaction failed");
        }
        previous = state.store().current_revision().await.ok();
    }
}

fn acceptor(config: &Config, provider: &Arc<CryptoProvider>) -> anyhow::Result<TlsAcceptor> {
    let (Some(certificate), Some(key)) = (&config.tls_cert_file, &config.tls_private_key_file) else {
        anyhow::bail!("--tls-cert-file and --tls-private-key-file are required");
    };
    let mut tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(Arc::new(authn::AcceptAny(provider.clone())))
        .with_single_cert(authn::load_certificates(certificate)?, authn::load_key(key)?)?;
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(tls).into())
}

fn authenticators(config: &Config, proxy_ca: &Option<Arc<CertificateAuthority>>) -> anyhow::Result<Authenticators> {
    let mut key_files = config.service_account_key_files.clone();
    if key_files.is_empty() {
        key_files.extend(config.service_account_signing_key_file.clone());
    }
    let service_accounts = match key_files.is_empty() {
        true => None,
        false => Some(PublicKeys::load(&key_files, config.service_account_issuers.clone(), config.audiences())?),
    };
    Ok(Authenticators {
        anonymous: config.anonymous_auth,
        token_file: config.token_auth_file.as_deref().map(TokenFile::load).transpose()?,
        service_accounts,
        bootstrap_tokens: config.enable_bootstrap_token_auth,
        front_proxy: proxy_ca.as_ref().map(|_| FrontProxy {
            allowed_names: config.requestheader_allowed_names.clone(),
            username_headers: config.requestheader_username_headers.clone(),
            group_headers: config.requestheader_group_headers.clone(),
            extra_prefixes: config.requestheader_extra_headers_prefix.clone(),
        }),
    })
}

fn kubelet_client(config: &Config, provider: &Arc<CryptoProvider>) -> anyhow::Result<KubeletClient> {
    let builder = || {
        anyhow::Ok(rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?)
    };
    let no_verification = || Arc::new(authn::NoVerification(provider.clone()));
    let verified = match &config.kubelet_certificate_authority {
        Some(path) => {
            let mut roots = rustls::RootCertStore::empty();
            for certificate in authn::load_certificates(path)? {
                roots.add(certificate)?;
            }
            builder()?.with_root_certificates(roots)
        }
        None => builder()?.dangerous().with_custom_certificate_verifier(no_verification()),
    };
    let kubelet = match (&config.kubelet_client_certificate, &config.kubelet_client_key) {
        (Some(certificate), Some(key)) => {
            verified.with_client_auth_cert(authn::load_certificates(certificate)?, authn::load_key(key)?)?
        }
        _ => verified.with_no_client_auth(),
    };
    let unverified = builder()?.dangerous().with_custom_certificate_verifier(no_verification()).with_no_client_auth();
    Ok(KubeletClient::new(kubelet, unverified, config.kubelet_preferred_address_types.clone()))
}

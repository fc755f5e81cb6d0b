//! The server: assembled from a [`Config`], reached through TLS or in process.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use registry::{Registry, Serving};
use store::etcd::EtcdStore;
use store::{EmbeddedStore, Relocated, Revision, Store, StoreError};
use tls::{Answered, Connections, Limits, Reloading, Stream};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::{TlsAcceptor, TlsConnector};
use tokio_util::sync::CancellationToken;

use crate::admission;
use crate::allocation;
use crate::audit::Audit;
use crate::authn::{Authenticators, ExternalSigner, Peer, PeerCertificates, TokenIssuer};
use crate::authz::Authorizers;
use crate::body::{Body, RequestBody};
use crate::chain;
use crate::cluster::Cluster;
use crate::config::{Config, EncryptionFile, RemoteWrite, Storage, etcd_root};
use crate::cors::Cors;
use crate::discovery::Documents;
use crate::event_leases::EventLeases;
use crate::flow_control::FlowControl;
use crate::history::History;
use crate::in_flight::InFlight;
use crate::metrics::{RequestMetrics, Timed};
use crate::remote::{KubeletClient, Remote, Services};
use crate::seal::{Foreign, Sealed, Seals};
use crate::serving_certificate;
use crate::state::State;
use crate::subresources::Own;
use crate::watch_cache;

/// Open requests get this long to finish when the server stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Connections: a quarter of the descriptors, so that there are enough for the store and for what we connect to.
const PART_OF_DESCRIPTORS: usize = 4;
const MAX_CONNECTIONS: usize = 16 * 1024;
/// The first objects are tried again after this long.
const BEGIN_INTERVAL: Duration = Duration::from_secs(1);

/// Takes requests of one process without sockets. The identity travels as a `UserInfo` extension.
pub type Handler = Arc<dyn Fn(Request<Bytes>) -> BoxFuture<'static, Response<Body>> + Send + Sync>;

pub struct Server {
    state: Arc<State>,
    listener: TcpListener,
    acceptor: Arc<Reloading<TlsAcceptor>>,
    /// What sends audit events in batches; ends when `audit_stop` fires and everything has been sent.
    audit_tasks: JoinSet<()>,
    audit_stop: CancellationToken,
    dispatcher: tokio::task::JoinHandle<Result<(), watch_cache::DispatchError>>,
    /// Work besides requests. All of it has the store open, so the server has not ended before it has.
    housekeeping: JoinSet<()>,
    stop: CancellationToken,
}

impl Server {
    /// Opens the store, fills the caches, makes the objects every cluster has, and binds the port. The in-process
    /// handler works from here on; the port answers once [`Server::serve`] runs.
    pub fn new(config: Config) -> BoxFuture<'static, anyhow::Result<Self>> {
        Box::pin(Self::open(config))
    }

    async fn open(mut config: Config) -> anyhow::Result<Self> {
        let listener = TcpListener::bind(config.bind).await.with_context(|| format!("listening on {}", config.bind))?;
        config.bind = listener.local_addr()?;
        let acceptor = Arc::new(acceptor(&config)?);
        admission::warnings(&config).iter().for_each(|warning| tracing::warn!("{warning}"));
        let (mut audit_tasks, audit_stop) = (JoinSet::new(), CancellationToken::new());
        let audit = Audit::new(&config.audit, &mut audit_tasks, &audit_stop)?;

        let registry = Registry::new(&config.runtime_config);
        let metrics = RequestMetrics::new(config.show_hidden_metrics);
        let timed = Timed::new(open(&config).await?, metrics.all(), registry.table().rows().iter());
        let (store, sealed) = seal(&config, &registry, Arc::new(timed)).await?;
        let caches = watch_cache::start(store, &registry.prefixes()).await?;
        let stop = CancellationToken::new();
        // Who tries again has the caches once.
        let stop_unless_open = stop.clone().drop_guard();
        let dispatcher = tokio::spawn(FutureExt::boxed(watch_cache::run(caches.clone(), stop.clone())));

        let audiences = config.audiences();
        let signer = external_signer(&mut config, metrics.all()).await?;
        let tokens = match (&config.service_account_signing_key_file, config.service_account_issuers.first()) {
            (Some(key), Some(issuer)) => Some(TokenIssuer::load(key, issuer, audiences.clone())?),
            (None, Some(issuer)) => {
                signer.clone().map(|signer| TokenIssuer::external(signer, issuer, audiences.clone()))
            }
            (_, None) => None,
        };
        let (mutating, read_only) = (config.max_mutating_requests_inflight, config.max_requests_inflight);
        // Either the seats are shared by levels, or writes and reads have so many each.
        let (seats, in_flight) = match config.enable_priority_and_fairness {
            true => (mutating + read_only, InFlight::new(0, 0, config.max_long_running_requests)),
            false => (0, InFlight::new(mutating, read_only, config.max_long_running_requests)),
        };
        let cluster = Cluster {
            authz: Authorizers::new(&config, &caches)?,
            services: Services::new(&caches, config.enable_aggregator_routing),
            stop: stop.clone(),
            own: Default::default(),
            registry,
            caches,
            sealed,
            config,
        };
        let config = &cluster.config;
        let state = State {
            authn: Authenticators::new(config, signer.as_ref())?,
            admission: admission::Chain::new(
                &config.enable_admission_plugins,
                &config.disable_admission_plugins,
                config.admission_control_config_file.as_deref(),
            )?,
            in_flight,
            flow_control: FlowControl::new(seats, config.request_timeout, metrics.all()),
            metrics,
            started: jiff::Timestamp::now(),
            holder: crate::stamp::unique_id(),
            history: History::open(config.history_file.clone()),
            cors: Cors::new(&config.cors_allowed_origins)?,
            audit,
            kubelet: kubelet_client(config)?,
            documents: parking_lot::RwLock::new(Arc::new(Documents::new(cluster.registry.table(), Arc::new([])))),
            definitions: Default::default(),
            published: Default::default(),
            aggregation: Default::default(),
            resource_metrics: Default::default(),
            event_leases: EventLeases::new(config.event_ttl),
            trace: trace::Recorder::new(config.trace_bytes),
            bootstrapped: Default::default(),
            writes: Default::default(),
            tokens,
            cluster: Arc::new(cluster),
        };
        let state = Arc::new(state);
        drop(state.own.set(Box::new(Own(Arc::downgrade(&state)))));
        let mut housekeeping = JoinSet::new();
        keep(&mut housekeeping, &state, "definitions", |state| crate::custom::run(state).boxed());
        keep(&mut housekeeping, &state, "integrity", |state| crate::integrity::run(state).boxed());
        if let Some(tracing) = state.config.tracing.clone() {
            let exporting = state.trace.export(tracing.rate());
            let instance = state.config.advertise_address.map_or_else(String::new, |address| address.to_string());
            keep(&mut housekeeping, &state, "traces", move |state| {
                otlp::run(exporting.clone(), tracing.clone(), instance.clone(), state.stop.clone())
            });
        }
        match &state.config.history_remote_write {
            Some(RemoteWrite::Url(url)) => {
                let remote = Arc::new(Remote::from_url(url, None).context("--history-remote-write-url")?);
                keep(&mut housekeeping, &state, "remote write", move |state| {
                    crate::sampler::write_remotely(state, remote.clone()).boxed()
                });
            }
            Some(RemoteWrite::File(path)) => {
                let path = path.clone();
                keep(&mut housekeeping, &state, "remote write", move |state| {
                    crate::sampler::write_by_file(state, path.clone()).boxed()
                });
            }
            None => {}
        }
        keep(&mut housekeeping, &state, "history", |state| crate::sampler::run(state).boxed());
        if let Some(signer) = signer {
            keep(&mut housekeeping, &state, "external signer", move |state| {
                signer.clone().follow(state.stop.clone()).boxed()
            });
        }
        keep(&mut housekeeping, &state, "encryption", |state| {
            crate::seal::run(state.sealed.clone(), state.caches.clone(), state.stop.clone()).boxed()
        });
        begin(&state, &mut housekeeping).await?;
        keep(&mut housekeeping, &state, "local API services", |state| crate::api_services::local::run(state).boxed());
        keep(&mut housekeeping, &state, "API services", |state| crate::api_services::run(state).boxed());
        keep(&mut housekeeping, &state, "front proxy", |state| crate::api_services::trust::run(state).boxed());
        keep(&mut housekeeping, &state, "flow control", |state| crate::bootstrap::flow_control::run(state).boxed());
        keep(&mut housekeeping, &state, "legacy tokens", |state| crate::bootstrap::legacy_tokens::run(state).boxed());
        keep(&mut housekeeping, &state, "type checks", |state| {
            crate::admission::check_types(state.cluster.clone()).boxed()
        });
        stop_unless_open.disarm();
        Ok(Self { state, listener, acceptor, audit_tasks, audit_stop, dispatcher, housekeeping, stop })
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
            Box::pin(chain::serve(state.clone(), request.map(RequestBody::Whole), peer))
        })
    }

    /// SHA-256 of the EncryptionConfiguration that is in force, if there can be one, and of those that come after it.
    pub fn encryption_in_force(&self) -> Option<watch::Receiver<[u8; 32]>> {
        self.state.cluster.sealed.as_ref().map(|sealed| sealed.seals.in_force())
    }

    /// Where components of this process put their spans.
    pub fn trace(&self) -> Arc<trace::Recorder> {
        self.state.trace.clone()
    }

    /// Serves HTTPS until `stop` fires, then lets open requests finish. Watches end at once.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
        Box::pin(self.serve_until(stop))
    }

    async fn serve_until(self, stop: CancellationToken) -> anyhow::Result<()> {
        let Server {
            state,
            listener,
            acceptor,
            audit_tasks,
            audit_stop,
            mut dispatcher,
            mut housekeeping,
            stop: inner,
        } = self;
        let limits = state.config.connections;
        let places = Connections::new(|| limits.unwrap_or_else(|| Limits::share(PART_OF_DESCRIPTORS, MAX_CONNECTIONS)));
        let closing = CancellationToken::new();
        let mut connections = JoinSet::new();
        keep(&mut housekeeping, &state, "compaction", |state| compact(state).boxed());
        keep(&mut housekeeping, &state, "allocation repair", |state| {
            allocation::repair::run(state.cluster.clone(), state.stop.clone()).boxed()
        });
        let serving = stop.child_token();
        let lease = |worker, run: fn(Arc<State>, CancellationToken) -> BoxFuture<'static, ()>| {
            let (state, serving) = (state.clone(), serving.clone());
            tokio::spawn(kept(worker, serving.clone(), Box::new(move || run(state.clone(), serving.clone()))))
        };
        let leases = lease("server lease", |state, serving| crate::server_leases::run(state, serving).boxed());
        let identity = lease("identity lease", |state, serving| crate::identity_lease::run(state, serving).boxed());
        keep(&mut housekeeping, &state, "admission", |state| state.admission.background(&state.cluster));
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
                Some(_) = connections.join_next() => {}
                (tcp, address) = places.accept(&listener) => {
                    let (state, acceptor, closing) = (state.clone(), acceptor.clone(), closing.clone());
                    // Not boxed: what serves its requests is.
                    connections.spawn(async move {
                        let place = tcp.place();
                        let Ok(tls) = place.handshake(acceptor.get().accept(tcp)).await else { return };
                        let certificates = tls.get_ref().1.peer_certificates().map(PeerCertificates::new);
                        let certificates = certificates.map(Arc::new);
                        let peer = Peer { in_process: false, address: Some(address), certificates };
                        let stream: Box<dyn Stream> = match tls.get_ref().1.alpn_protocol() {
                            Some(b"h2") => Box::new(tls::Gathered::new(tls)),
                            _ => Box::new(tls),
                        };
                        // On the heap: on its way into a task of its own a future is moved again and again.
                        let answer = move |request: Request<Incoming>| -> Answered {
                            Box::pin(receive(state.clone(), request, peer.clone()))
                        };
                        // An error here is the client's: it went away or does not speak HTTP.
                        let _ = place.serve_any(stream, &closing, Box::new(answer)).await;
                    });
                }
            }
        };
        // Before the door closes: nobody is to be sent here any more.
        serving.cancel();
        if tokio::time::timeout(DRAIN_TIMEOUT, leases).await.is_err() {
            tracing::warn!("this server may still be among the endpoints of the cluster");
        }
        if tokio::time::timeout(DRAIN_TIMEOUT, identity).await.is_err() {
            tracing::warn!("the identity lease of this server may stay until it runs out");
        }
        inner.cancel();
        drop(listener);
        closing.cancel();
        let drained = async { while connections.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, drained).await.is_err() {
            tracing::info!("requests still open after {DRAIN_TIMEOUT:?}; closing");
        }
        connections.shutdown().await;
        state.writes.close();
        if tokio::time::timeout(DRAIN_TIMEOUT, state.writes.wait()).await.is_err() {
            tracing::warn!("writes still running after {DRAIN_TIMEOUT:?} are left to the repair");
        }
        housekeeping.shutdown().await;
        let kept = state.clone();
        if tokio::task::spawn_blocking(move || kept.history.save()).await.is_err() {
            tracing::warn!("the history of figures is not kept");
        }
        // Unless it is what ended the server.
        if !dispatcher.is_finished() && tokio::time::timeout(DRAIN_TIMEOUT, dispatcher).await.is_err() {
            tracing::warn!("the caches still read from the store after {DRAIN_TIMEOUT:?}");
        }
        audit_stop.cancel();
        if tokio::time::timeout(DRAIN_TIMEOUT, audit_tasks.join_all()).await.is_err() {
            tracing::warn!("audit events not sent after {DRAIN_TIMEOUT:?} are lost");
        }
        outcome
    }
}

/// Sends a request down the chain.
async fn receive(state: Arc<State>, mut request: Request<Incoming>, peer: Peer) -> Response<Body> {
    // Nothing on the wire can set this, but nothing should depend on that either.
    request.extensions_mut().remove::<api::UserInfo>();
    chain::serve(state, request.map(RequestBody::Incoming), peer).await
}

async fn open(config: &Config) -> anyhow::Result<Arc<dyn Store>> {
    match &config.storage {
        Storage::Open(store) => Ok(store.clone()),
        Storage::Etcd(options) => {
            let store = Arc::new(EtcdStore::connect(options.clone()).await?);
            let (root, answers_progress) = (etcd_root(&config.etcd_prefix), store.answers_progress_requests());
            let place = Relocated::new(store.clone(), watch_cache::ROOT, root.clone());
            Ok(match answers_progress {
                true if root == watch_cache::ROOT => store,
                true => Arc::new(place),
                // Others may use the same etcd.
                false => Arc::new(place.seeing_others()),
            })
        }
        Storage::Embedded(dir) => {
            let dir = dir.clone();
            let store = tokio::task::spawn_blocking(move || EmbeddedStore::open(dir, Default::default())).await??;
            Ok(Arc::new(store))
        }
    }
}

/// Who signs service-account tokens instead of this server, if anybody does; no token lives longer than that allows.
async fn external_signer(
    config: &mut Config,
    metrics: &::metrics::Metrics,
) -> anyhow::Result<Option<Arc<ExternalSigner>>> {
    let Some(endpoint) = config.service_account_signing_endpoint.clone() else { return Ok(None) };
    let signer = ExternalSigner::connect(&endpoint, metrics).await.context("while setting up external-jwt-signer")?;
    let (longest, asked) = (signer.max_life(), config.service_account_max_token_expiration);
    if let Some(asked) = asked.filter(|asked| *asked > longest) {
        anyhow::bail!(
            "service-account-max-token-expiration cannot be set longer than the token expiration supported by \
             service-account-signing-endpoint: {asked:?} > {longest:?}"
        );
    }
    config.service_account_max_token_expiration = Some(asked.unwrap_or(longest));
    Ok(Some(Arc::new(signer)))
}

/// Puts what seals before a store, if something is to be sealed or upstream may have written there.
async fn seal(
    config: &Config,
    registry: &Registry,
    store: Arc<dyn Store>,
) -> anyhow::Result<(Arc<dyn Store>, Option<Sealed>)> {
    if config.encryption.is_none() && matches!(config.storage, Storage::Embedded(_)) {
        return Ok((store, None));
    }
    let (path, automatic_reload) = match &config.encryption {
        Some(EncryptionFile { path, automatic_reload }) => (Some(path.clone()), *automatic_reload),
        None => (None, false),
    };
    let table = registry.table();
    let stored = table.rows().iter().filter(|row| row.serving == Serving::Stored);
    let resources = stored.map(|row| (&*row.store_prefix, &*row.plural, &*row.group));
    let seals = Seals::new(resources, path, automatic_reload).await?;
    let mut sealed = Sealed::new(store, seals, Foreign::new(&table));
    if matches!(config.storage, Storage::Etcd(_)) {
        sealed = sealed.below(etcd_root(&config.etcd_prefix));
    }
    Ok((Arc::new(sealed.clone()), Some(sealed)))
}

/// The embedded store keeps history in memory, that of two intervals at most. When it has grown by a quarter of what all
/// objects take, within these bounds, an interval ends early: the next page of a list that began before is then refused
/// with 410, as after any compaction.
const MIN_HISTORY: u64 = 16 << 20;
const MAX_HISTORY: u64 = 64 << 20;
/// How often what a burst of changes left in the watch caches is looked for.
const FORGET_INTERVAL: Duration = Duration::from_secs(30);

/// Makes what every cluster has. Where a stored object that cannot be read is in the way, the server starts all the
/// same, so that it can be removed; until then it is not ready.
async fn begin(state: &Arc<State>, housekeeping: &mut JoinSet<()>) -> anyhow::Result<()> {
    let Err(error) = make_first_objects(state).await else { return Ok(()) };
    if state.caches.unreadable().is_empty() {
        return Err(error);
    }
    tracing::error!("{error:#}");
    keep(housekeeping, state, "first objects", |state| begin_late(state).boxed());
    Ok(())
}

async fn begin_late(state: Arc<State>) {
    while !state.stop.is_cancelled() {
        tokio::time::sleep(BEGIN_INTERVAL).await;
        match make_first_objects(&state).await {
            Ok(()) => return,
            Err(error) => tracing::warn!("{error:#}"),
        }
    }
}

async fn make_first_objects(state: &Arc<State>) -> anyhow::Result<()> {
    let repaired = allocation::repair::once(&state.cluster, &mut Default::default()).await;
    crate::bootstrap::run(state).await.context("making the first objects")?;
    Ok(repaired?)
}

/// Starts work beside requests that goes on for as long as the server does: a panic ends one try, and it begins anew.
fn keep(
    tasks: &mut JoinSet<()>,
    state: &Arc<State>,
    worker: &'static str,
    work: impl Fn(Arc<State>) -> BoxFuture<'static, ()> + Send + Sync + 'static,
) {
    let shared = state.clone();
    tasks.spawn(kept(worker, state.stop.clone(), Box::new(move || work(shared.clone()))));
}

/// Work that outlives its panics, until `stop`.
fn kept(
    worker: &'static str,
    stop: CancellationToken,
    work: Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>,
) -> BoxFuture<'static, ()> {
    async move {
        let _ended = ::metrics::outlive_panics(worker, "", &stop, work).await;
    }
    .boxed()
}

/// Forgets old history now and then, as upstream's compactor: what was current one interval ago stays readable. An
/// interval ends after its time, or when it has made enough history.
async fn compact(state: Arc<State>) {
    let in_memory = !matches!(state.config.storage, Storage::Etcd(_));
    let mut previous: Option<Revision> = None;
    loop {
        let mut interval = std::pin::pin!(tokio::time::sleep(state.config.compaction_interval));
        let enough = (state.caches.live() as u64 / 4).clamp(MIN_HISTORY, MAX_HISTORY);
        let mut retires = std::pin::pin!(state.caches.retires(enough));
        loop {
            tokio::select! {
                () = &mut interval => break,
                () = &mut retires, if in_memory => break,
                () = tokio::time::sleep(FORGET_INTERVAL) => state.caches.forget_old(),
            }
        }
        if let Some(revision) = previous.filter(|revision| *revision != Revision::ZERO) {
            match state.store().compact(revision).await {
                // Nothing was written in the last interval, or another API server was faster.
                Ok(()) | Err(StoreError::Compacted { .. }) => {}
                Err(error) => tracing::warn!(%error, "compaction failed"),
            }
        }
        previous = state.store().current_revision().await.ok();
        state.caches.forget_old();
    }
}

/// Clients are told whose certificates they may show; the files of those authorities may change.
fn acceptor(config: &Config) -> anyhow::Result<Reloading<TlsAcceptor>> {
    let (certificate, key) = serving_certificate::files(config)?;
    let resolver = Arc::new(tls::ServingCertificate::load(&certificate, &key)?);
    let authorities = [&config.client_ca_file, &config.requestheader_client_ca_file];
    let load = move |files: &[std::path::PathBuf]| {
        let mut roots = rustls::RootCertStore::empty();
        for file in files {
            roots.add_parsable_certificates(tls::load_certificates(file)?);
        }
        let mut tls = tls::server_builder()
            .with_client_cert_verifier(Arc::new(tls::AnyCertificate::of(roots.subjects())))
            .with_cert_resolver(resolver.clone());
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        tls.ignore_client_order = true;
        Ok(TlsAcceptor::from(Arc::new(tls)))
    };
    Reloading::new(authorities.into_iter().flatten().cloned().collect(), load)
}

/// How kubelets are reached; the certificate shown to them and the authority of theirs are read again when they change.
fn kubelet_client(config: &Config) -> anyhow::Result<KubeletClient> {
    let authority = config.kubelet_certificate_authority.clone();
    let identity = config.kubelet_client_certificate.clone().zip(config.kubelet_client_key.clone());
    let files = authority.iter().chain(identity.iter().flat_map(|(certificate, key)| [certificate, key])).cloned();
    let files: Vec<std::path::PathBuf> = files.collect();
    let load = move |_: &[std::path::PathBuf]| {
        let verified = match &authority {
            Some(path) => tls::client_builder().with_root_certificates(tls::load_roots(path)?),
            None => {
                let anyone = Arc::new(tls::AnyCertificate::default());
                tls::client_builder().dangerous().with_custom_certificate_verifier(anyone)
            }
        };
        let kubelet = match &identity {
            Some((certificate, key)) => {
                verified.with_client_auth_cert(tls::load_certificates(certificate)?, tls::load_key(key)?)?
            }
            None => verified.with_no_client_auth(),
        };
        Ok(TlsConnector::from(Arc::new(kubelet)))
    };
    Ok(KubeletClient::new(Reloading::new(files, load)?, config.kubelet_preferred_address_types.clone()))
}

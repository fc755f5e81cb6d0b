//! The kubelet's own API on :10250: logs of containers and of the node, exec, attach,
//! port-forward, pods, stats, metrics.
//!
//! Flow: API server (on behalf of users) or a scraper -> TLS -> `auth` (who, and may they) -> the routes below.
//! Streams (exec, attach, port-forward) are handed through to the runtime's streaming server byte by byte.

mod auth;
mod cadvisor;
mod logs;
mod metrics;
mod stream;
mod summary;
mod system_logs;
mod tls;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ::tls::{Connections, Limits};
use api::zpages::{self, About};
use bytes::Bytes;
use cgroup::CpuRates;
use client::Body;
use client::metrics::panics;
use client::metrics::slis::Slis;
use futures_util::FutureExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::{Body as _, Incoming};
use jiff::Timestamp;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::certificates::{self, Purpose};
use crate::cgroups::Cgroups;
use crate::config::Summaries;
use crate::kubelet::Kubelet;
use crate::state;
use crate::worker::Workers;

/// Connections: few clients know this port, and each stream of theirs takes some descriptors more.
const PART_OF_DESCRIPTORS: usize = 16;
const MAX_CONNECTIONS: usize = 1024;

pub(crate) struct Server {
    pub(crate) kubelet: Arc<Kubelet>,
    pub(crate) workers: Arc<Workers>,
    auth: auth::Auth,
    tls: Arc<rustls::ServerConfig>,
    served: Arc<tls::Served>,
    started: Timestamp,
    /// Of health checks.
    slis: Slis,
    /// When the containers that ran at the last scrape had started, in seconds, by id.
    starts: Mutex<BTreeMap<String, f64>>,
    /// Of the node, and of containers whose runtime does not say them.
    cpu_rates: CpuRates,
}

/// What `/healthz` looks at. Who is answered is well, but may have stopped looking at its pods.
const CHECKS: [&str; 3] = ["ping", "log", SYNC_LOOP];
const SYNC_LOOP: &str = "syncloop";
/// A look at what runs that is over for longer than this was the last one.
const MAX_SYNC_LOOP_AGE: Duration = Duration::from_secs(300);

/// Who sent a request, as the certificate says; nobody without one.
#[derive(Clone, Default)]
pub(crate) struct Peer(pub(crate) Option<api::UserInfo>);

impl Server {
    pub(crate) fn new(kubelet: Arc<Kubelet>, workers: Arc<Workers>) -> anyhow::Result<Arc<Self>> {
        let served: Arc<tls::Served> = Arc::default();
        let tls = tls::server_config(&kubelet.settings, &kubelet.host_ips, served.clone())?;
        let auth = auth::Auth::new(kubelet.client.clone(), &kubelet.settings);
        let started = Timestamp::from_second(kubelet.clock.now().as_second())?;
        let cpu_rates = CpuRates::default();
        if let Some(node) = cadvisor::read_node(kubelet.cgroups.as_ref()) {
            // The first who asks has a rate, too.
            cpu_rates.rate(summary::NODE, Instant::now(), node.cpu, None);
        }
        Ok(Arc::new(Server {
            kubelet,
            workers,
            auth,
            tls,
            served,
            started,
            slis: Slis::default(),
            starts: Mutex::default(),
            cpu_rates,
        }))
    }

    /// What `/stats/summary` says, for others in this process. They are not asked who they are: they are us.
    pub(crate) fn summaries(self: &Arc<Self>) -> Summaries {
        let server = Arc::downgrade(self);
        Arc::new(move |query: &str| {
            let (server, query) = (server.upgrade(), query.to_owned());
            Box::pin(async move {
                let server = server?;
                let summary = summary::summarize(&server, &query).await;
                let summary = summary.inspect_err(|error| tracing::debug!(%error, "no summary")).ok()?;
                serde_json::to_vec(&summary).ok().map(Bytes::from)
            })
        })
    }

    /// Gets the certificate to serve with from the API, and a new one in time, until stopped.
    pub(crate) async fn renew_certificate(self: Arc<Self>, stop: CancellationToken) {
        let settings = &self.kubelet.settings;
        let store = certificates::serving_store(&settings.cert_dir);
        let mut names = vec![settings.node_name.clone()];
        names.extend(self.kubelet.host_ips.iter().cloned());
        let renewing = async {
            let (mut retries, mut jitter) = (certificates::retries(), rand::random());
            loop {
                let current = store.load().filter(|certificate| certificate.not_after > self.kubelet.clock.now());
                let pause = match &current {
                    None => Duration::ZERO,
                    Some(certificate) => {
                        if let Err(error) = self.served.set(&certificate.pem) {
                            tracing::warn!(error = format!("{error:#}"), "serving certificate not usable");
                        }
                        certificates::until_renewal(certificate, self.kubelet.clock.now(), jitter)
                    }
                };
                store.until_due(pause).await;
                let purpose = Purpose::serving(&settings.node_name, names.clone());
                let issued = certificates::request(&self.kubelet.client, &purpose).await;
                match issued.and_then(|issued| Ok(store.save(&issued, self.kubelet.clock.now())?)) {
                    Ok(_) => {
                        retries.reset();
                        jitter = rand::random();
                    }
                    Err(error) => {
                        certificates::RENEWALS_FAILED.server.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        tracing::warn!(error = format!("{error:#}"), "no certificate to serve with, will retry");
                        tokio::time::sleep(retries.next_delay()).await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = renewing => {}
        }
    }

    /// Serves until stopped.
    pub(crate) async fn run(self: Arc<Self>, listener: Arc<TcpListener>, stop: CancellationToken) {
        // The API server's streams all come from one address.
        let places = Connections::new(|| {
            let shared = Limits::share(PART_OF_DESCRIPTORS, MAX_CONNECTIONS);
            Limits { per_address: shared.total, ..shared }
        });
        let connections = TaskTracker::new();
        let acceptor = tokio_rustls::TlsAcceptor::from(self.tls.clone());
        loop {
            let (stream, from) = tokio::select! {
                accepted = places.accept(&listener) => accepted,
                () = stop.cancelled() => break,
            };
            let (server, acceptor, stop) = (self.clone(), acceptor.clone(), stop.clone());
            connections.spawn(FutureExt::boxed(async move {
                let place = stream.place();
                let stream = match place.handshake(acceptor.accept(stream)).await {
                    Ok(stream) => stream,
                    Err(error) => {
                        tracing::debug!(%from, %error, "TLS handshake failed");
                        return;
                    }
                };
                let peer = Peer(stream.get_ref().1.peer_certificates().and_then(|chain| tls::user_of(chain.first()?)));
                let answer = |mut request: Request<Incoming>| {
                    request.extensions_mut().insert(peer.clone());
                    let server = server.clone();
                    Box::pin(async move { server.answer(request).await })
                };
                tokio::select! {
                    result = place.serve_boxed(stream, &stop, answer) => if let Err(error) = result {
                        tracing::debug!(%from, %error, "connection ended");
                    },
                    () = stop.cancelled() => {}
                }
            }));
        }
        connections.close();
        connections.wait().await;
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let is_head = request.method() == Method::HEAD;
        let metrics = &self.kubelet.runtime.metrics;
        let _serving = metrics.request(request.method(), crate::metrics::known_path(request.uri().path()));
        // Other requests of the connection are not to blame.
        let routed = panics::catch_future("kubelet server", self.route(request)).await;
        let response = routed.unwrap_or_else(|| {
            text(
                StatusCode::INTERNAL_SERVER_ERROR,
                "This request caused the kubelet to panic. Look in the logs for details.",
            )
        });
        if is_head { without_body(response) } else { response }
    }

    /// Whether all that `/healthz` looks at is well.
    pub(crate) fn is_healthy(&self) -> bool {
        checks(None, self.kubelet.runtime.metrics.since_relist()).iter().all(|(_, is_ok)| *is_ok)
    }

    async fn route(&self, request: Request<Incoming>) -> Response<Body> {
        let path = request.uri().path().to_string();
        let method = request.method().clone();
        if let Err(refused) = self.auth.check(&request, &self.kubelet.settings.node_name).await {
            return refused;
        }
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        if !self.kubelet.settings.debugging_handlers
            && (matches!(parts[0], "containerLogs" | "exec" | "attach" | "portForward" | "run" | "runningpods")
                || parts.starts_with(&["debug", "pprof"]))
        {
            return text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.");
        }
        match (&method, parts.as_slice()) {
            (_, ["healthz", ..]) if parts.len() < 3 && parts.get(1).is_none_or(|check| CHECKS.contains(check)) => {
                let checks = checks(parts.get(1).copied(), self.kubelet.runtime.metrics.since_relist());
                checks.iter().for_each(|(check, is_ok)| self.slis.note("healthz", check, *is_ok));
                let (code, message) = health(parts.len() > 1, &checks);
                text(code, message)
            }
            (_, ["pods"]) => self.pods(false),
            (_, ["runningpods"]) => self.pods(true),
            (&Method::GET, ["containerLogs", namespace, pod, container]) => {
                logs::serve(self, namespace, pod, container, request.uri().query().unwrap_or_default()).await
            }
            (_, ["exec", rest @ ..]) => stream::exec(self, rest, request).await,
            (_, ["attach", rest @ ..]) => stream::attach(self, rest, request).await,
            (_, ["portForward", rest @ ..]) => stream::port_forward(self, rest, request).await,
            (&Method::POST, ["run", rest @ ..]) => {
                stream::run_once(self, rest, request.uri().query().unwrap_or_default()).await
            }
            (_, ["stats", "summary"]) => summary::serve(self, request.uri().query().unwrap_or_default()).await,
            (_, ["metrics"]) => metrics::own(self).await,
            (_, ["metrics", "resource"]) => metrics::resource(self).await,
            (_, ["metrics", "probes"]) => metrics::answer(self.kubelet.runtime.metrics.probes()),
            (_, ["metrics", "cadvisor"]) => cadvisor::serve(self).await,
            (_, ["metrics", "slis"]) => metrics::plain(self.slis.render()),
            (&Method::GET | &Method::HEAD, ["statusz" | "flagz"]) => self.zpage(parts[0], request.headers()),
            (_, ["logs", ..]) if !self.kubelet.settings.system_log_handler => {
                text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n")
            }
            (&Method::GET | &Method::HEAD, ["logs", ..]) => {
                system_logs::serve(system_logs::ROOT, path.trim_start_matches('/').trim_start_matches("logs")).await
            }
            (_, ["debug", "pprof", ..]) if !self.kubelet.settings.profiling_handler => {
                text(StatusCode::METHOD_NOT_ALLOWED, "profiling endpoint is disabled.")
            }
            (&Method::GET, ["debug", "pprof", page @ ..]) => {
                let made = profile::serve(&page.join("/"), request.uri().query().unwrap_or_default()).await;
                let mut response = Response::new(boxed(made.body));
                *response.status_mut() = StatusCode::from_u16(made.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                response.headers_mut().insert("content-type", http::HeaderValue::from_static(made.content_type));
                response
            }
            (_, ["configz"]) => json(StatusCode::OK, &serde_json::json!({"kubeletconfig": self.configz()})),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        }
    }

    /// What the kubelet says of itself to people.
    fn zpage(&self, page: &str, headers: &http::HeaderMap) -> Response<Body> {
        const COMPONENT: &str = "kubelet";
        let accept = headers.get(http::header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let page = if page == "flagz" {
            zpages::flagz(COMPONENT, zpages::flags(), accept)
        } else {
            let paths = ["configz", "flagz", "healthz", "metrics", "pods", "runningpods", "stats", "statusz"];
            let about =
                About { component: COMPONENT, started: self.started, now: self.kubelet.clock.now(), paths: &paths };
            zpages::statusz(&about, accept)
        };
        let Some((media, shown)) = page else {
            return text(StatusCode::NOT_ACCEPTABLE, api::Status::not_acceptable(zpages::OFFERED).message);
        };
        let mut response = text(StatusCode::OK, shown);
        response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(media));
        response
    }

    /// The pods of this node with their newest statuses.
    fn pods(&self, running_only: bool) -> Response<Body> {
        let items: Vec<Pod> = self
            .workers
            .pods()
            .into_iter()
            .map(|pod| {
                let mut pod = pod.as_ref().clone();
                if let Some(status) = self.kubelet.status.latest(state::uid(&pod)) {
                    pod.status = Some(status);
                }
                pod
            })
            .filter(|pod| {
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                !running_only || phase == Some("Running")
            })
            .collect();
        json(StatusCode::OK, &List { items, metadata: Default::default() })
    }

    /// The pod of that name, if it is here.
    pub(crate) fn pod(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        self.workers.pods().into_iter().find(|pod| state::namespace(pod) == namespace && state::name(pod) == name)
    }

    fn configz(&self) -> serde_json::Value {
        let settings = &self.kubelet.settings;
        serde_json::json!({
            "kind": "KubeletConfiguration",
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "address": settings.address,
            "port": settings.port,
            "clusterDNS": settings.cluster_dns,
            "clusterDomain": settings.cluster_domain,
            "resolvConf": settings.resolv_conf,
            "maxPods": settings.max_pods,
            "cgroupsPerQOS": settings.cgroups_per_qos,
            "cgroupRoot": settings.cgroup_root,
            "cgroupDriver": self.kubelet.cgroups.as_ref().map_or(settings.cgroup_driver, Cgroups::driver).name(),
            "staticPodPath": settings.static_pod_path,
            "staticPodURL": settings.static_pod_url,
            "serializeImagePulls": settings.serialize_image_pulls,
            "containerRuntimeEndpoint": settings.cri_endpoint,
            "podLogsDir": settings.pod_logs_dir,
            "imageGCHighThresholdPercent": settings.image_gc_high,
            "imageGCLowThresholdPercent": settings.image_gc_low,
            "nodeStatusUpdateFrequency": format!("{}s", settings.node_status_update_frequency.as_secs()),
            "nodeLeaseDurationSeconds": settings.node_lease_duration.as_secs(),
            "registerNode": settings.register_node,
            "enableSystemLogHandler": settings.system_log_handler,
        })
    }
}

fn boxed(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed_unsync()
}

/// The answer to HEAD: the headers that GET would bring. HTTP/2 would send a body as well, which clients take for a broken stream.
fn without_body(mut response: Response<Body>) -> Response<Body> {
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().entry(http::header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    *response.body_mut() = boxed(Bytes::new());
    response
}

/// How all checks come out, or the one that is asked for.
fn checks(only: Option<&str>, since_relist: Option<Duration>) -> Vec<(&'static str, bool)> {
    let is_stuck = since_relist.is_some_and(|since| since > MAX_SYNC_LOOP_AGE);
    let made = CHECKS.into_iter().filter(|check| only.is_none_or(|only| only == *check));
    made.map(|check| (check, check != SYNC_LOOP || !is_stuck)).collect()
}

/// What is said about them, in upstream's words.
fn health(is_one: bool, checks: &[(&'static str, bool)]) -> (StatusCode, String) {
    if checks.iter().all(|(_, is_ok)| *is_ok) {
        return (StatusCode::OK, "ok".to_owned());
    }
    if is_one {
        let message = "internal server error: sync Loop took longer than expected\n";
        return (StatusCode::INTERNAL_SERVER_ERROR, message.to_owned());
    }
    let mut message = String::new();
    for (check, is_ok) in checks {
        message += &match is_ok {
            true => format!("[+]{check} ok\n"),
            false => format!("[-]{check} failed: reason withheld\n"),
        };
    }
    (StatusCode::INTERNAL_SERVER_ERROR, message + "healthz check failed\n")
}

pub(crate) fn text(code: StatusCode, message: impl Into<String>) -> Response<Body> {
    let mut response = Response::new(boxed(message.into()));
    *response.status_mut() = code;
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain; charset=utf-8"));
    response
}

pub(crate) fn json(code: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(bytes) => {
            let mut response = Response::new(boxed(bytes));
            *response.status_mut() = code;
            response.headers_mut().insert("content-type", http::HeaderValue::from_static("application/json"));
            response
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

/// Values of a query parameter, decoded.
pub(crate) fn query<'a>(query: &'a str, name: &'a str) -> impl Iterator<Item = String> + 'a {
    query
        .split('&')
        .filter_map(|pair| pair.split_once('=').or(Some((pair, ""))))
        .filter(move |(key, _)| *key == name)
        .map(|(_, value)| api::percent::decode(value, true).into_owned())
}

pub(crate) fn flag(text: &str, name: &str) -> bool {
    query(text, name).next().is_some_and(|value| value == "1" || value == "true")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn head_gets_the_headers_alone() {
        let response = without_body(text(StatusCode::OK, "ok"));
        assert_eq!(response.headers()["content-length"], "2");
        assert_eq!(response.headers()["content-type"], "text/plain; charset=utf-8");
        assert!(response.body().is_end_stream());
    }

    #[test]
    fn who_no_longer_looks_at_its_pods_is_not_well() {
        let of = |only: Option<&str>, seconds: Option<u64>| {
            let (code, message) = health(only.is_some(), &checks(only, seconds.map(Duration::from_secs)));
            (code.as_u16(), message)
        };
        for (only, seconds) in
            [(None, None), (None, Some(300)), (Some("syncloop"), Some(61)), (Some("ping"), Some(301))]
        {
            assert_eq!(of(only, seconds), (200, "ok".to_owned()), "{only:?} {seconds:?}");
        }
        let all = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
        assert_eq!(of(None, Some(301)), (500, all.to_owned()));
        let one = "internal server error: sync Loop took longer than expected\n";
        assert_eq!(of(Some("syncloop"), Some(301)), (500, one.to_owned()));
    }

    #[test]
    fn queries() {
        let text = "command=sh&command=-c&command=echo%20a%2Bb+c&tty=1&follow=true&bad=%zz";
        assert_eq!(query(text, "command").collect::<Vec<_>>(), ["sh", "-c", "echo a+b c"]);
        assert!(flag(text, "tty") && flag(text, "follow") && !flag(text, "input"));
        assert_eq!(query(text, "bad").next().as_deref(), Some("%zz"));
    }
}

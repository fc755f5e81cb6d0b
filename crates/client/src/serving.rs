//! The own port of a component: is it well, and what has it done.
//!
//! `/healthz`, `/livez` and `/readyz` answer anyone; everything else, `/metrics` above all, needs permission: who asks is
//! decided by the API server (TokenReview), and so is whether they may (SubjectAccessReview).

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use api::zpages::{self, About};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::Incoming;
use rustls_pki_types::PrivatePkcs8KeyDer;
use tls::{Connections, Limits, ServingCertificate};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::metrics::Metrics;
use crate::metrics::slis::Slis;
use crate::review::{self, Access, Reviews};

/// Connections: probes and scrapers.
const PART_OF_DESCRIPTORS: usize = 64;
const MAX_CONNECTIONS: usize = 256;
const PROFILES: &str = "debug/pprof";
const PROFILES_BELOW: &str = "debug/pprof/";

/// Where to listen and what to show.
#[derive(Debug, Clone)]
pub struct Serving {
    /// Port 0 picks a free one.
    pub bind: SocketAddr,
    /// Certificate and key in PEM files, which may be exchanged; without them a certificate is made that nobody knows.
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Whether profiles of the process are served, below `/debug/pprof`.
    pub profiling: bool,
    /// Another program may have the port: the component works all the same, and says so.
    pub is_optional: bool,
}

/// A failing check: its name and why.
pub type Unhealthy = (&'static str, String);

/// Writes a page when it is asked for.
pub type Page = Box<dyn Fn() -> String + Send + Sync>;

/// What the port shows.
pub struct Routes {
    /// As upstream calls it.
    pub component: &'static str,
    /// Reviews tokens and permissions of callers.
    pub reviews: Reviews,
    pub metrics: Metrics,
    /// Further pages of text, by path, for those who may read them.
    pub pages: Vec<(&'static str, Page)>,
    /// The checks of `/healthz`: their names, and what is wrong.
    pub checks: Vec<&'static str>,
    pub unhealthy: Box<dyn Fn() -> Vec<Unhealthy> + Send + Sync>,
}

/// A bound port, not answering yet.
pub struct Port {
    listener: TcpListener,
    tls: TlsAcceptor,
    profiling: bool,
}

impl Port {
    pub async fn bind(serving: &Serving) -> Result<Self, Error> {
        let listener = TcpListener::bind(serving.bind)
            .await
            .map_err(|error| Error::config(format!("listening on {}: {error}", serving.bind)))?;
        Ok(Self { listener, tls: acceptor(serving.tls.as_ref())?, profiling: serving.profiling })
    }

    /// The port of a component, if it is to have one and can.
    pub async fn open(serving: Option<&Serving>) -> Result<Option<Self>, Error> {
        let Some(serving) = serving else { return Ok(None) };
        match Self::bind(serving).await {
            Err(error) if serving.is_optional => {
                tracing::warn!(%error, "health and metrics are not served");
                Ok(None)
            }
            bound => bound.map(Some),
        }
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `stop`. Boxed: what an `async fn` does is compiled again by every crate that waits for it.
    pub fn run(self, routes: Routes, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.serve(routes, stop))
    }

    async fn serve(self, routes: Routes, stop: CancellationToken) {
        let (started, profiling) = (jiff::Timestamp::now(), self.profiling);
        let routes = Arc::new(Served { routes, started, profiling, slis: Slis::default() });
        let places = Connections::new(|| Limits::share(PART_OF_DESCRIPTORS, MAX_CONNECTIONS));
        let connections = TaskTracker::new();
        loop {
            let (tcp, _) = tokio::select! {
                () = stop.cancelled() => break,
                accepted = places.accept(&self.listener) => accepted,
            };
            let (tls, routes, stop) = (self.tls.clone(), routes.clone(), stop.clone());
            connections.spawn(FutureExt::boxed(async move {
                let serve = async {
                    let place = tcp.place();
                    let stream = place.handshake(tls.accept(tcp)).await?;
                    let answer = |request| {
                        let routes = routes.clone();
                        async move {
                            let mut response = routes.answer(&request).await;
                            // HTTP/2 would send a body to HEAD as well, which clients take for a broken stream.
                            if request.method() == http::Method::HEAD {
                                *response.body_mut() = Full::default();
                            }
                            response
                        }
                    };
                    place.serve_boxed(stream, &stop, answer).await
                };
                tokio::select! {
                    () = stop.cancelled() => {}
                    served = serve => if let Err(error) = served {
                        tracing::debug!(%error, "connection ended");
                    }
                }
            }));
        }
        connections.close();
        connections.wait().await;
    }
}

/// Speaks TLS with the certificate that is in the files at the time, or with one that nobody knows.
fn acceptor(files: Option<&(PathBuf, PathBuf)>) -> Result<TlsAcceptor, Error> {
    let builder = tls::server_builder().with_no_client_auth();
    let mut config = match files {
        Some((certificate, key)) => {
            let shown = ServingCertificate::load(certificate, key);
            builder.with_cert_resolver(Arc::new(shown.map_err(|error| Error::config(format!("{error:#}")))?))
        }
        None => {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).map_err(Error::config)?;
            let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
            builder.with_single_cert(vec![made.cert.der().clone()], key.into()).map_err(Error::config)?
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What is served, and since when.
struct Served {
    routes: Routes,
    started: jiff::Timestamp,
    profiling: bool,
    slis: Slis,
}

impl Served {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let path = request.uri().path();
        let verbose =
            request.uri().query().is_some_and(|query| query.split('&').any(|pair| pair.starts_with("verbose")));
        let endpoint = path.trim_matches('/');
        if matches!(endpoint, "healthz" | "livez" | "readyz") {
            let (checks, unhealthy) = (&self.routes.checks, (self.routes.unhealthy)());
            for check in checks {
                self.slis.note(endpoint, check, !unhealthy.iter().any(|(name, _)| name == check));
            }
            return health(endpoint, checks, &unhealthy, verbose);
        }
        match self.routes.may(request).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => return refusal(&status),
            Err(error) => return refusal(&api::Status::internal(error.to_string())),
        }
        let page = self.routes.pages.iter().find(|(path, _)| *path == endpoint);
        match (request.method(), endpoint, page) {
            (&Method::GET, "metrics", _) => plain(StatusCode::OK, self.routes.metrics.render()),
            (&Method::GET, _, _)
                if self.profiling && (endpoint == PROFILES || endpoint.starts_with(PROFILES_BELOW)) =>
            {
                let page = endpoint.strip_prefix(PROFILES).unwrap_or_default();
                let made = profile::serve(page, request.uri().query().unwrap_or_default()).await;
                let mut response = Response::new(Full::new(Bytes::from(made.body)));
                *response.status_mut() = StatusCode::from_u16(made.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                let kind = header::HeaderValue::from_static(made.content_type);
                response.headers_mut().insert(header::CONTENT_TYPE, kind);
                response
            }
            (&Method::GET, "metrics/slis", _) => plain(StatusCode::OK, self.slis.render()),
            (&Method::GET, "statusz" | "flagz", _) => self.zpage(endpoint, request),
            (&Method::GET, _, Some((_, page))) => plain(StatusCode::OK, page()),
            _ => plain(StatusCode::NOT_FOUND, "404 page not found\n".into()),
        }
    }

    fn zpage(&self, endpoint: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let component = self.routes.component;
        let page = if endpoint == "flagz" {
            zpages::flagz(component, zpages::flags(), accept)
        } else {
            let own = ["flagz", "healthz", "livez", "metrics", "metrics/slis", "readyz", "statusz"];
            let paths: Vec<&str> = own.into_iter().chain(self.routes.pages.iter().map(|(path, _)| *path)).collect();
            let about = About { component, started: self.started, now: jiff::Timestamp::now(), paths: &paths };
            zpages::statusz(&about, accept)
        };
        match page {
            Some((media, text)) => respond(StatusCode::OK, media, text),
            None => refusal(&api::Status::not_acceptable(zpages::OFFERED)),
        }
    }
}

impl Routes {
    /// The refusal, if the caller is unknown or may not.
    async fn may(&self, request: &Request<Incoming>) -> Result<Result<(), api::Status>, Error> {
        let user = match review::bearer_token(request.headers()) {
            None => api::UserInfo::anonymous(),
            Some(token) => match self.reviews.user(&token).await? {
                None => return Ok(Err(api::Status::unauthorized("Unauthorized"))),
                Some(user) => user,
            },
        };
        let (verb, path) = (request.method().as_str().to_lowercase(), request.uri().path().to_owned());
        if self.reviews.allows(&user, &Access::Path { verb: verb.clone(), path: path.clone() }).await? {
            return Ok(Ok(()));
        }
        let message = format!("forbidden: User {:?} cannot {verb} path {path:?}", user.name);
        Ok(Err(api::Status::from_code(403, &message)))
    }
}

/// `ok`, or every check with its state.
fn health(endpoint: &str, checks: &[&str], unhealthy: &[Unhealthy], verbose: bool) -> Response<Full<Bytes>> {
    if unhealthy.is_empty() && !verbose {
        return plain(StatusCode::OK, "ok".into());
    }
    let failing = |check: &str| unhealthy.iter().any(|(name, _)| *name == check);
    let mut text = String::new();
    for check in checks {
        text.push_str(&if failing(check) {
            format!("[-]{check} failed: reason withheld\n")
        } else {
            format!("[+]{check} ok\n")
        });
    }
    if unhealthy.is_empty() {
        return plain(StatusCode::OK, format!("{text}{endpoint} check passed\n"));
    }
    for (check, why) in unhealthy {
        tracing::warn!(check, why, "unhealthy");
    }
    plain(StatusCode::INTERNAL_SERVER_ERROR, format!("{text}{endpoint} check failed\n"))
}

fn plain(code: StatusCode, text: String) -> Response<Full<Bytes>> {
    respond(code, "text/plain; charset=utf-8", text)
}

fn refusal(status: &api::Status) -> Response<Full<Bytes>> {
    let code = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    respond(code, "application/json", serde_json::to_string(status).unwrap_or_default())
}

fn respond(code: StatusCode, kind: &'static str, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(kind));
    response
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::ServerName;

    use super::*;

    #[tokio::test]
    async fn a_component_shows_the_certificate_that_is_there_now() {
        let dir = tempfile::tempdir().unwrap();
        let files = (dir.path().join("tls.crt"), dir.path().join("tls.key"));
        let put = |path: &PathBuf, text: String| {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), path).unwrap();
        };
        let exchange = || {
            let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
            put(&files.1, made.signing_key.serialize_pem());
            put(&files.0, made.cert.pem());
            made.cert.der().to_vec()
        };
        let mut expected = exchange();
        let acceptor = acceptor(Some(&files)).unwrap();
        for _ in 0..2 {
            let (near, far) = tokio::io::duplex(1 << 14);
            let connector = tokio_rustls::TlsConnector::from(Arc::new(tls::unverified_client()));
            let name = ServerName::try_from("localhost").unwrap();
            let (client, server) = tokio::join!(connector.connect(name, near), acceptor.accept(far));
            let (client, _server) = (client.unwrap(), server.unwrap());
            assert_eq!(client.get_ref().1.peer_certificates().unwrap()[0].to_vec(), expected);
            expected = exchange();
        }
    }

    #[test]
    fn health_names_the_checks_that_fail() {
        let checks = ["ping", "leaderElection"];
        for (unhealthy, verbose, code) in
            [(vec![], false, 200), (vec![], true, 200), (vec![("leaderElection", "stale".to_owned())], false, 500)]
        {
            assert_eq!(health("healthz", &checks, &unhealthy, verbose).status().as_u16(), code, "{unhealthy:?}");
        }
    }
}

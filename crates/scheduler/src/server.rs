//! Health and metrics over HTTPS. Health is for everybody; metrics are for those whom the API server allows.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use bytes::Bytes;
use client::Client;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use k8s_openapi::api::authorization::v1::{NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// Where to serve, and with which certificate; without one it signs its own.
#[derive(Clone)]
pub struct Serving {
    pub address: SocketAddr,
    pub certificate: Option<(PathBuf, PathBuf)>,
    /// Asked about callers, if it is not the API server that the scheduler works for.
    pub reviewer: Option<Client>,
}

pub(crate) struct Server {
    pub(crate) client: Client,
    /// The text of all metrics.
    pub(crate) metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// Caches are filled and, where there is an election, it may be somebody else who leads.
    pub(crate) is_ready: Arc<AtomicBool>,
}

impl Server {
    pub(crate) async fn serve(self, serving: Serving, stop: CancellationToken) -> Result<()> {
        let acceptor = TlsAcceptor::from(Arc::new(tls(&serving)?));
        let listener = TcpListener::bind(serving.address).await.with_context(|| format!("{}", serving.address))?;
        let server = Arc::new(self);
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(_) = connections.join_next() => {}
                accepted = listener.accept() => {
                    let (socket, _) = accepted?;
                    let (acceptor, server) = (acceptor.clone(), server.clone());
                    connections.spawn(async move {
                        let Ok(stream) = acceptor.accept(socket).await else { return };
                        let answer = service_fn(move |request| {
                            let server = server.clone();
                            async move { Ok::<_, Infallible>(server.answer(request).await) }
                        });
                        // A client that goes away is no error of ours.
                        let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer).await;
                    });
                }
            }
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (status, body) = match request.uri().path() {
            "/healthz" | "/livez" => (StatusCode::OK, "ok".to_owned()),
            "/readyz" if self.is_ready.load(Ordering::Relaxed) => (StatusCode::OK, "ok".to_owned()),
            "/readyz" => (StatusCode::INTERNAL_SERVER_ERROR, "informers are not synced yet".to_owned()),
            "/metrics" => match self.authorize(&request, "/metrics").await {
                Ok(()) => (StatusCode::OK, (self.metrics)()),
                Err(status) => (status, status.canonical_reason().unwrap_or_default().to_owned()),
            },
            _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        };
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = status;
        response
            .headers_mut()
            .insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("text/plain; charset=utf-8"));
        response
    }

    /// Asks the API server who the caller is, and whether it may read the path.
    async fn authorize(&self, request: &Request<Incoming>, path: &str) -> Result<(), StatusCode> {
        let header = request.headers().get(http::header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).ok_or(StatusCode::UNAUTHORIZED)?;
        let review = TokenReview {
            spec: TokenReviewSpec { token: token.to_owned(), audiences: None },
            ..TokenReview::default()
        };
        let failed = |error: client::Error| {
            tracing::warn!(%error, "caller not reviewed");
            StatusCode::INTERNAL_SERVER_ERROR
        };
        let review = self.client.all::<TokenReview>().create(&review).await.map_err(failed)?;
        let status = review.status.filter(|status| status.authenticated == Some(true));
        let user = status.and_then(|status| status.user).ok_or(StatusCode::UNAUTHORIZED)?;
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: user.username,
                groups: user.groups,
                uid: user.uid,
                non_resource_attributes: Some(NonResourceAttributes {
                    path: Some(path.to_owned()),
                    verb: Some("get".to_owned()),
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let review = self.client.all::<SubjectAccessReview>().create(&review).await.map_err(failed)?;
        if review.status.is_some_and(|status| status.allowed) { Ok(()) } else { Err(StatusCode::FORBIDDEN) }
    }
}

fn tls(serving: &Serving) -> Result<rustls::ServerConfig> {
    let (chain, key) = match &serving.certificate {
        Some((certificate, key)) => {
            let chain = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
            let chain: Vec<CertificateDer<'static>> = chain.with_context(|| format!("{}", certificate.display()))?;
            (chain, PrivateKeyDer::from_pem_file(key).with_context(|| format!("{}", key.display()))?)
        }
        None => {
            let made =
                rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), serving.address.ip().to_string()])?;
            let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(anyhow::Error::msg)?;
            (vec![made.cert.der().clone()], key)
        }
    };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(builder.with_no_client_auth().with_single_cert(chain, key)?)
}

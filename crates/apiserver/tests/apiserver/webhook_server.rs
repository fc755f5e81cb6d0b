//! A real webhook server on loopback: TLS with a certificate of its own, and an answer per path.

use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// What a webhook does with a question.
pub(crate) enum Reply {
    Allow,
    Deny(Value),
    /// The whole `response`, to which the request's uid is added unless it has one.
    Response(Value),
    Raw(u16, String),
    Redirect(String),
    Hang,
}

pub(crate) type Answer = Arc<dyn Fn(&http::HeaderMap, &str, &Value) -> Reply + Send + Sync>;

pub(crate) struct WebhookServer {
    pub(crate) address: SocketAddr,
    /// The authority, as `caBundle` wants it.
    pub(crate) authority: String,
    /// Paths and `request`s, in the order they came.
    pub(crate) seen: Arc<Mutex<Vec<(String, Value)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for WebhookServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WebhookServer {
    pub(crate) async fn start(answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static) -> Self {
        Self::start_at("127.0.0.1:0", &["127.0.0.1"], answer).await
    }

    /// The answer may depend on the headers of the request.
    pub(crate) async fn start_with_headers(
        answer: impl Fn(&http::HeaderMap, &str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::serve_at("127.0.0.1:0", &["127.0.0.1"], Arc::new(answer)).await
    }

    /// `names` are what the certificate is for.
    pub(crate) async fn start_at(
        bind: &str,
        names: &[&str],
        answer: impl Fn(&str, &Value) -> Reply + Send + Sync + 'static,
    ) -> Self {
        Self::serve_at(
            bind,
            names,
            Arc::new(move |_: &http::HeaderMap, path: &str, question: &Value| answer(path, question)),
        )
        .await
    }

    async fn serve_at(bind: &str, names: &[&str], answer: Answer) -> Self {
        let listener = TcpListener::bind(bind).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (config, pem) = tls(names);
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let seen: Arc<Mutex<Vec<(String, Value)>>> = Arc::default();
        let log = seen.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((tcp, _)) = listener.accept().await {
                let (acceptor, answer, log) = (acceptor.clone(), answer.clone(), log.clone());
                connections.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let service =
                        hyper::service::service_fn(move |request| serve(request, answer.clone(), log.clone()));
                    let _ =
                        hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(tls), service).await;
                });
            }
        });
        Self { address, authority: STANDARD.encode(pem), seen, task }
    }

    pub(crate) fn client_config(&self, path: &str) -> Value {
        json!({"url": format!("https://{}{path}", self.address), "caBundle": self.authority})
    }

    /// Takes what was asked since the last time.
    pub(crate) fn take(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut *self.seen.lock())
    }
}

async fn serve(
    request: Request<Incoming>,
    answer: Answer,
    log: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    let headers = request.headers().clone();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let review: Value = serde_json::from_slice(&body).unwrap_or_default();
    // Reviews of admission carry a request, all others a spec.
    let mut question = if review["request"].is_null() { review["spec"].clone() } else { review["request"].clone() };
    question["query"] = query.into();
    question["reviewVersion"] = review["apiVersion"].clone();
    log.lock().push((path.clone(), question.clone()));
    let respond = |mut response: Value| {
        if response.get("uid").is_none() {
            response["uid"] = question["uid"].clone();
        }
        let review = json!({"kind": "AdmissionReview", "apiVersion": review["apiVersion"], "response": response});
        Response::new(Full::new(Bytes::from(review.to_string())))
    };
    let plain = |code: u16, body: String| {
        let mut response = Response::new(Full::new(Bytes::from(body)));
        *response.status_mut() = code.try_into().unwrap();
        response
    };
    Ok(match answer(&headers, &path, &question) {
        Reply::Allow => respond(json!({"allowed": true})),
        Reply::Deny(status) => respond(json!({"allowed": false, "status": status})),
        Reply::Response(response) => respond(response),
        Reply::Raw(code, body) => plain(code, body),
        Reply::Redirect(to) => {
            let mut response = plain(307, String::new());
            response.headers_mut().insert("location", to.parse().unwrap());
            response
        }
        Reply::Hang => std::future::pending().await,
    })
}

/// A JSON patch as a response carries it.
pub(crate) fn patched(patch: &Value) -> Reply {
    Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": STANDARD.encode(patch.to_string())}))
}

fn tls(names: &[&str]) -> (rustls::ServerConfig, String) {
    let authority_key = KeyPair::generate().unwrap();
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "webhooks");
    let pem = authority.self_signed(&authority_key).unwrap().pem();
    let issuer = Issuer::new(authority, authority_key);
    let key = KeyPair::generate().unwrap();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let certificate = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let config = rustls::ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    (config, pem)
}

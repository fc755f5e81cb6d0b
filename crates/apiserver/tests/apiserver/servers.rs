//! Servers that the API server asks, on loopback with TLS: as real as those it would meet.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpListener;

/// What a server answers: a status, a body, and whether it answers at all.
pub(crate) enum Answer {
    Json(u16, Value),
    Text(u16, &'static str),
    Redirect(String),
    /// Keeps the connection open and says nothing.
    Silence,
}

type Handler = dyn Fn(&str, &Value) -> Answer + Send + Sync;

/// A server that answers with `handler`, given path and body.
pub(crate) struct Server {
    /// Every request: path and body.
    pub(crate) seen: Arc<Mutex<Vec<(String, Value)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Serves on `listener` with the certificate of `server.crt`, which names loopback.
    pub(crate) fn on(
        listener: TcpListener,
        dir: &Path,
        handler: impl Fn(&str, &Value) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let handler: Arc<Handler> = Arc::new(handler);
        let certificate = tls::ServingCertificate::load(&dir.join("server.crt"), &dir.join("server.key")).unwrap();
        let config = tls::server_builder().with_no_client_auth().with_cert_resolver(Arc::new(certificate));
        let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = seen.clone();
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, handler, log) = (acceptor.clone(), handler.clone(), log.clone());
                connections.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let service =
                        hyper::service::service_fn(move |request| serve(request, handler.clone(), log.clone()));
                    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                    let _ = builder.serve_connection(TokioIo::new(tls), service).await;
                });
            }
        });
        Self { seen, task }
    }

    pub(crate) fn count(&self) -> usize {
        self.seen.lock().len()
    }
}

async fn serve(
    request: Request<Incoming>,
    handler: Arc<Handler>,
    log: Arc<Mutex<Vec<(String, Value)>>>,
) -> Result<Response<Full<Bytes>>, std::convert::Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    log.lock().push((path.clone(), body.clone()));
    let respond = |code: u16, body: String| Response::builder().status(code).body(Full::from(body)).unwrap();
    Ok(match handler(&path, &body) {
        Answer::Json(code, value) => respond(code, value.to_string()),
        Answer::Text(code, text) => respond(code, text.to_owned()),
        Answer::Redirect(to) => Response::builder().status(307).header("location", to).body(Full::default()).unwrap(),
        Answer::Silence => std::future::pending().await,
    })
}

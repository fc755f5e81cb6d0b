//! Health over HTTP: of the proxy itself, and of each Service whose load balancer asks which nodes have endpoints.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::services::HealthCheck;

/// A request is a line and some headers; more is not for us.
const REQUEST_LIMIT: usize = 8 * 1024;
const DEADLINE: std::time::Duration = std::time::Duration::from_secs(10);

/// One listener per Service; the answer follows the number of local endpoints.
#[derive(Default)]
pub(crate) struct HealthChecks {
    open: BTreeMap<String, Listener>,
}

struct Listener {
    port: u16,
    local_endpoints: Arc<Mutex<usize>>,
    _task: JoinSet<()>,
}

impl HealthChecks {
    pub(crate) async fn set(&mut self, service: &str, check: Option<HealthCheck>) {
        let Some(check) = check else {
            self.open.remove(service);
            return;
        };
        if let Some(listener) = self.open.get(service).filter(|listener| listener.port == check.port) {
            *listener.local_endpoints.lock() = check.local_endpoints;
            return;
        }
        self.open.remove(service);
        let listener = match TcpListener::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, check.port))).await {
            Ok(listener) => Ok(listener),
            Err(_) => TcpListener::bind(("0.0.0.0", check.port)).await,
        };
        match listener {
            Ok(socket) => {
                let local_endpoints = Arc::new(Mutex::new(check.local_endpoints));
                let (counter, name) = (local_endpoints.clone(), service.to_owned());
                let mut task = JoinSet::new();
                task.spawn(serve(socket, move |_| answer(&name, *counter.lock())));
                self.open.insert(service.to_owned(), Listener { port: check.port, local_endpoints, _task: task });
            }
            Err(error) => tracing::error!(service, port = check.port, %error, "cannot open the health check node port"),
        }
    }
}

fn answer(service: &str, local_endpoints: usize) -> (u16, String) {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": true,
    });
    (if local_endpoints > 0 { 200 } else { 503 }, body.to_string())
}

/// Answers every request by its path until dropped.
pub(crate) async fn serve(listener: TcpListener, answer: impl Fn(&str) -> (u16, String) + Send + Sync + 'static) {
    let answer = Arc::new(answer);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    let answer = answer.clone();
                    connections.spawn(async move {
                        // A client that goes away or dawdles has no one to tell.
                        let _ = tokio::time::timeout(DEADLINE, respond(stream, &*answer)).await;
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "health: accept");
                    tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn respond(mut stream: TcpStream, answer: &(impl Fn(&str) -> (u16, String) + ?Sized)) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut chunk = [0; 1024];
    while !request.windows(4).any(|window| window == b"\r\n\r\n") && request.len() < REQUEST_LIMIT {
        match stream.read(&mut chunk).await? {
            0 => return Ok(()),
            n => request.extend_from_slice(&chunk[..n]),
        }
    }
    let line = String::from_utf8_lossy(request.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    let path = line.split(' ').nth(1).unwrap_or("/").split('?').next().unwrap_or("/").to_owned();
    let (code, body) = answer(&path);
    let reason = match code {
        200 => "OK",
        404 => "Not Found",
        _ => "Service Unavailable",
    };
    let kind = if body.starts_with('{') { "application/json" } else { "text/plain; charset=utf-8" };
    let head = format!(
        "HTTP/1.1 {code} {reason}\r\nContent-Type: {kind}\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

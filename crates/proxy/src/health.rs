//! Health of each Service whose load balancer asks, over HTTP, which nodes have endpoints.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::services::HealthCheck;

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
                task.spawn(FutureExt::boxed(client::plain_http::serve(socket, move |_| {
                    answer(&name, *counter.lock())
                })));
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

//! Health of each Service whose load balancer asks, over HTTP, which nodes have endpoints.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr};
use std::sync::Arc;

use client::plain_http::Answer;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::own_health::OwnHealth;
use crate::services::HealthCheck;

/// How many endpoints a node has, for load balancers that share requests out by that.
const WEIGHT: &str = "X-Load-Balancing-Endpoint-Weight";

/// One listener per Service; the answer follows the number of local endpoints, as long as the proxy itself is well.
pub(crate) struct HealthChecks {
    proxy: Arc<OwnHealth>,
    open: BTreeMap<String, Listener>,
}

struct Listener {
    port: u16,
    local_endpoints: Arc<Mutex<usize>>,
    _task: JoinSet<()>,
}

impl HealthChecks {
    pub(crate) fn new(proxy: Arc<OwnHealth>) -> Self {
        Self { proxy, open: BTreeMap::new() }
    }

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
                let (counter, name, proxy) = (local_endpoints.clone(), service.to_owned(), self.proxy.clone());
                let mut task = JoinSet::new();
                task.spawn(FutureExt::boxed(client::plain_http::serve_answers(socket, move |_| {
                    answer(&name, *counter.lock(), proxy.is_serving())
                })));
                self.open.insert(service.to_owned(), Listener { port: check.port, local_endpoints, _task: task });
            }
            Err(error) => tracing::error!(service, port = check.port, %error, "cannot open the health check node port"),
        }
    }
}

fn answer(service: &str, local_endpoints: usize, is_proxy_well: bool) -> Answer {
    let (namespace, name) = service.split_once('/').unwrap_or(("", service));
    let body = serde_json::json!({
        "service": {"namespace": namespace, "name": name},
        "localEndpoints": local_endpoints,
        "serviceProxyHealthy": is_proxy_well,
    });
    Answer {
        code: if local_endpoints > 0 && is_proxy_well { 200 } else { 503 },
        body: body.to_string(),
        header: Some((WEIGHT, local_endpoints.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_balancer_goes_where_there_are_endpoints_behind_a_proxy_that_is_well() {
        for (local_endpoints, is_proxy_well, code) in [(2, true, 200), (0, true, 503), (2, false, 503)] {
            let answer = answer("default/web", local_endpoints, is_proxy_well);
            assert_eq!(answer.code, code, "{local_endpoints} {is_proxy_well}");
            assert_eq!(answer.header, Some((WEIGHT, local_endpoints.to_string())));
            assert!(answer.body.contains(&format!("\"serviceProxyHealthy\":{is_proxy_well}")), "{}", answer.body);
        }
    }
}

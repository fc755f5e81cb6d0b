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
    /// Those whose port was in use. It may be that of a service whose own change comes later.
    refused: BTreeMap<String, HealthCheck>,
}

struct Listener {
    port: u16,
    local_endpoints: Arc<Mutex<usize>>,
    task: JoinSet<()>,
}

impl HealthChecks {
    pub(crate) fn new(proxy: Arc<OwnHealth>) -> Self {
        Self { proxy, open: BTreeMap::new(), refused: BTreeMap::new() }
    }

    pub(crate) async fn set(&mut self, service: &str, check: Option<HealthCheck>) {
        self.refused.remove(service);
        if let Some(check) = &check
            && let Some(listener) = self.open.get(service).filter(|listener| listener.port == check.port)
        {
            *listener.local_endpoints.lock() = check.local_endpoints;
            return;
        }
        if let Some(mut listener) = self.open.remove(service) {
            // Until its task has ended, nobody else can have the port.
            listener.task.shutdown().await;
            for (service, check) in std::mem::take(&mut self.refused) {
                self.listen(&service, check).await;
            }
        }
        if let Some(check) = check {
            self.listen(service, check).await;
        }
    }

    async fn listen(&mut self, service: &str, check: HealthCheck) {
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
                self.open.insert(service.to_owned(), Listener { port: check.port, local_endpoints, task });
            }
            Err(error) => {
                tracing::error!(service, port = check.port, %error, "cannot open the health check node port");
                self.refused.insert(service.to_owned(), check);
            }
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
    use std::time::Duration;

    use nix::sched::{CloneFlags, unshare};

    use super::*;

    /// Services and their ports, 0 for none.
    type Checks = &'static [(&'static str, u16)];

    /// Changes of several services come in any order.
    #[test]
    fn a_port_goes_from_one_service_to_another() {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut checks = HealthChecks::new(Arc::new(OwnHealth::new(Duration::from_secs(60))));
                let rows: [(Checks, Checks); 5] = [
                    (&[("b", 30001)], &[("b", 30001)]),
                    // The new service of the port comes before the old one goes.
                    (&[("a", 30001), ("b", 0)], &[("a", 30001)]),
                    // Closed and opened again at once, and two that exchange their ports.
                    (&[("a", 0), ("a", 30001), ("b", 30002)], &[("a", 30001), ("b", 30002)]),
                    (&[("a", 30002), ("b", 30001)], &[("a", 30002), ("b", 30001)]),
                    // Who does not want it any more does not get it.
                    (&[("c", 30001), ("c", 0), ("b", 0)], &[("a", 30002)]),
                ];
                for (changes, expected) in rows {
                    for (service, port) in changes {
                        let check = HealthCheck { port: *port, local_endpoints: 1 };
                        checks.set(service, (*port != 0).then_some(check)).await;
                    }
                    let open: Vec<(&str, u16)> =
                        checks.open.iter().map(|(service, listener)| (service.as_str(), listener.port)).collect();
                    assert_eq!(open, expected);
                    assert!(checks.refused.is_empty());
                }
            });
        };
        std::thread::spawn(inside).join().unwrap();
    }

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

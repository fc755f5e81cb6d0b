//! How kubelets are reached.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::Full;
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use tls::Reloading;
use tokio_rustls::TlsConnector;

use super::connection::{Connections, Lost, Problem, dial};

/// A kubelet that was not asked for so long is connected to anew.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Kubelets that connections are kept to; others are connected to for each question.
const MAX_KEPT: usize = 2048;

/// How this server reaches kubelets.
pub(crate) struct KubeletClient {
    pub(crate) tls: Reloading<TlsConnector>,
    /// For `https:` proxies to pods and services, whose certificates nobody can know.
    pub(crate) unverified: TlsConnector,
    address_types: Vec<String>,
    kept: Mutex<Kept>,
}

/// Connections to kubelets that are asked again and again, by address: a handshake costs more than question and answer.
struct Kept {
    by_address: HashMap<(String, u16), (Instant, Connections)>,
    /// When those were last let go that nobody used.
    swept: Instant,
    /// The certificates that they were made with: with others this server would be somebody else, and trust others.
    made_with: Option<Arc<TlsConnector>>,
}

impl Kept {
    fn of(&mut self, host: &str, port: u16, tls: &Arc<TlsConnector>, now: Instant) -> Connections {
        if !self.made_with.as_ref().is_some_and(|made_with| Arc::ptr_eq(made_with, tls)) {
            self.by_address.clear();
            self.made_with = Some(tls.clone());
        }
        if now.duration_since(self.swept) > IDLE_TIMEOUT / 4 {
            self.swept = now;
            self.by_address.retain(|_, (asked, _)| now.duration_since(*asked) < IDLE_TIMEOUT);
        }
        let address = (host.to_owned(), port);
        if self.by_address.len() >= MAX_KEPT && !self.by_address.contains_key(&address) {
            return Connections::default();
        }
        let (asked, connections) = self.by_address.entry(address).or_insert_with(|| (now, Connections::default()));
        *asked = now;
        connections.clone()
    }
}

impl KubeletClient {
    pub(crate) fn new(tls: Reloading<TlsConnector>, address_types: Vec<String>) -> Self {
        let kept = Kept { by_address: HashMap::new(), swept: Instant::now(), made_with: None };
        Self { tls, unverified: Arc::new(tls::unverified_client()).into(), address_types, kept: Mutex::new(kept) }
    }

    /// Asks a kubelet for a page of its own.
    pub(crate) async fn ask(&self, host: &str, port: u16, path: &str) -> Result<Response<Incoming>, Problem> {
        let tls = self.tls.get();
        let connections = self.kept.lock().of(host, port, &tls, Instant::now());
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let request = Request::get(path).header(header::HOST, name).body(Full::<Bytes>::default())?;
        let connect = || dial(host, port, Some((&*tls, host)));
        let (sender, response) = connections.open(request, Lost::Repeat, connect).await?;
        connections.keep(sender);
        Ok(response)
    }

    /// Host and port of a node's kubelet, by the preferred kind of address.
    pub(crate) fn address(&self, node: &Node) -> Option<(String, u16)> {
        let status = node.status.as_ref()?;
        let addresses = status.addresses.as_deref().unwrap_or_default();
        let host =
            self.address_types.iter().find_map(|kind| addresses.iter().find(|address| address.type_ == *kind))?;
        let port = status
            .daemon_endpoints
            .as_ref()
            .and_then(|ends| ends.kubelet_endpoint.as_ref())
            .map_or(10250, |end| end.port);
        Some((host.address.clone(), u16::try_from(port).unwrap_or(10250)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_kept_to_those_who_are_asked() {
        let start = Instant::now();
        let mut kept = Kept { by_address: HashMap::new(), swept: start, made_with: None };
        let connector = || Arc::new(TlsConnector::from(Arc::new(tls::unverified_client())));
        let (ours, renewed) = (connector(), connector());
        let after = |seconds| start + Duration::from_secs(seconds);
        for (host, seconds) in [("a", 0), ("b", 0), ("a", 60), ("a", 120)] {
            kept.of(host, 10250, &ours, after(seconds));
        }
        let hosts: Vec<&str> = kept.by_address.keys().map(|(host, _)| host.as_str()).collect();
        assert_eq!(hosts, ["a"], "nobody asks the other any more");
        for node in 0..MAX_KEPT + 10 {
            kept.of(&format!("node-{node}"), 10250, &ours, after(121));
        }
        assert_eq!(kept.by_address.len(), MAX_KEPT);
        kept.of("a", 10250, &renewed, after(122));
        assert_eq!(kept.by_address.len(), 1, "none is kept that was made with other certificates");
    }
}

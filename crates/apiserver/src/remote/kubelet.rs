//! How kubelets are reached.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderName, Request, Response, header};
use http_body_util::Full;
use k8s_openapi::api::core::v1::{NodeAddress, NodeCondition, NodeDaemonEndpoints};
use parking_lot::Mutex;
use serde::Deserialize;
use tls::Reloading;
use tokio_rustls::TlsConnector;

use super::connection::{Connections, Problem, dial};

/// A kubelet that was not asked for so long is connected to anew.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// Kubelets that connections are kept to; others are connected to for each question.
const MAX_KEPT: usize = 2048;
/// More than the summary of a node with a thousand pods, with all volumes. Many nodes are asked at a time.
const MAX_PAGE: usize = 16 << 20;

/// Marks what is sent to a kubelet in the name of this server. Nodes say where their kubelets are: led to an API server, a request
/// would be served there with the rights of this one.
pub(crate) const FOR_KUBELET: HeaderName = HeaderName::from_static("x-cox-for-kubelet");

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

/// All that matters of a Node to those who ask its kubelet. Most of the rest is a list of images.
#[derive(Deserialize)]
pub(crate) struct Place {
    status: Option<PlaceStatus>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PlaceStatus {
    addresses: Option<Vec<NodeAddress>>,
    conditions: Option<Vec<NodeCondition>>,
    daemon_endpoints: Option<NodeDaemonEndpoints>,
}

impl Place {
    pub(crate) fn addresses(&self) -> &[NodeAddress] {
        self.status.as_ref().and_then(|status| status.addresses.as_deref()).unwrap_or_default()
    }

    /// Whether its kubelet says that it works.
    pub(crate) fn is_ready(&self) -> bool {
        let mut conditions = self.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }
}

impl KubeletClient {
    pub(crate) fn new(tls: Reloading<TlsConnector>, address_types: Vec<String>) -> Self {
        let kept = Kept { by_address: HashMap::new(), swept: Instant::now(), made_with: None };
        Self { tls, unverified: Arc::new(tls::unverified_client()).into(), address_types, kept: Mutex::new(kept) }
    }

    /// Asks a kubelet for a page of its own.
    pub(crate) async fn ask(&self, host: &str, port: u16, path: &str) -> Result<Response<Bytes>, Problem> {
        let tls = self.tls.get();
        let connections = self.kept.lock().of(host, port, &tls, Instant::now());
        let name = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let request = Request::get(path).header(header::HOST, name).header(FOR_KUBELET, "true");
        let request = request.body(Full::<Bytes>::default())?;
        let connect = || dial(host, port, Some((&*tls, host)));
        connections.exchange_up_to(MAX_PAGE, request, connect).await
    }

    /// Host and port of a node's kubelet, by the preferred kind of address.
    pub(crate) fn address(&self, node: &Place) -> Option<(String, u16)> {
        let addresses = node.addresses();
        let host =
            self.address_types.iter().find_map(|kind| addresses.iter().find(|address| address.type_ == *kind))?;
        let ends = node.status.as_ref().and_then(|status| status.daemon_endpoints.as_ref());
        let port = ends.and_then(|ends| ends.kubelet_endpoint.as_ref()).map_or(10250, |end| end.port);
        Some((host.address.clone(), u16::try_from(port).unwrap_or(10250)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn nodes_are_ready_and_have_places_by_the_preferred_kind_of_address() {
        let types = ["Hostname", "InternalIP"].map(str::to_owned).to_vec();
        let load = |_: &[std::path::PathBuf]| Ok(TlsConnector::from(Arc::new(tls::unverified_client())));
        let client = KubeletClient::new(Reloading::new(Vec::new(), load).unwrap(), types);
        let address = |kind: &str, address: &str| json!({"type": kind, "address": address});
        let ready =
            |status: &str| json!([{"type": "DiskPressure", "status": "False"}, {"type": "Ready", "status": status}]);
        let both = json!([address("InternalIP", "10.0.0.1"), address("Hostname", "one")]);
        for (node, place, is_ready) in [
            (json!({}), None, false),
            (json!({"status": {"conditions": ready("True")}}), None, true),
            (json!({"status": {"addresses": both, "conditions": ready("Unknown")}}), Some(("one", 10250)), false),
            (
                json!({"status": {"addresses": [address("InternalIP", "10.0.0.1")],
                    "daemonEndpoints": {"kubeletEndpoint": {"Port": 7}}, "images": [{"names": ["a"]}]}}),
                Some(("10.0.0.1", 7)),
                false,
            ),
        ] {
            let node: Place = serde_json::from_value(node).unwrap();
            let found = client.address(&node);
            assert_eq!(found, place.map(|(host, port)| (host.to_owned(), port)));
            assert_eq!(node.is_ready(), is_ready);
        }
    }

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

//! How kubelets are reached.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tls::Reloading;
use tokio_rustls::TlsConnector;

/// How this server reaches kubelets.
pub(crate) struct KubeletClient {
    pub(crate) tls: Reloading<TlsConnector>,
    /// For `https:` proxies to pods and services, whose certificates nobody can know.
    pub(crate) unverified: TlsConnector,
    address_types: Vec<String>,
}

impl KubeletClient {
    pub(crate) fn new(tls: Reloading<TlsConnector>, address_types: Vec<String>) -> Self {
        Self { tls, unverified: Arc::new(tls::unverified_client()).into(), address_types }
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

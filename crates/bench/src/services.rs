//! A cluster's worth of services behind a real API server, for those who serve them.

use crate::control_plane::{ControlPlane, Transport};
use anyhow::Context;
use client::{Client, Patch};
use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::json;
use std::path::Path;

/// Writes on their way at a time.
const PARALLEL: usize = 64;

/// Services `svc-0` … with three endpoints each, in the namespace `default`.
pub(crate) struct Services {
    pub(crate) client: Client,
    pub(crate) count: usize,
    /// Ends with this.
    _server: ControlPlane,
}

impl Services {
    /// An API server in this process, with its data in `dir`.
    pub(crate) async fn start(dir: &Path) -> anyhow::Result<Services> {
        std::fs::create_dir_all(dir)?;
        let server = ControlPlane::start(dir, Transport::Call).await?;
        Ok(Services { client: server.client.clone(), count: 0, _server: server })
    }

    /// Adds services until there are `count`.
    pub(crate) async fn grow(&mut self, count: usize) -> anyhow::Result<()> {
        let missing = self.count..count;
        let mut writes = futures_util::stream::iter(missing).map(|i| self.add(i)).buffer_unordered(PARALLEL);
        while let Some(done) = writes.next().await {
            done?;
        }
        drop(writes);
        self.count = count;
        Ok(())
    }

    async fn add(&self, i: usize) -> anyhow::Result<()> {
        let service: Service = serde_json::from_value(json!({
            "metadata": {"name": format!("svc-{i}"), "namespace": "default"},
            "spec": {"clusterIP": cluster_ip(i), "ports": [{"port": 80}]},
        }))?;
        self.client.namespaced::<Service>("default").create(&service).await.with_context(|| format!("service {i}"))?;
        let slice: EndpointSlice = serde_json::from_value(json!({
            "metadata": {"name": format!("svc-{i}"), "namespace": "default",
                "labels": {"kubernetes.io/service-name": format!("svc-{i}")}},
            "addressType": "IPv4",
            "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
            "endpoints": endpoints(&[2, 3, 4]),
        }))?;
        self.client
            .namespaced::<EndpointSlice>("default")
            .create(&slice)
            .await
            .with_context(|| format!("slice {i}"))?;
        Ok(())
    }

    /// Lets a service lead to these endpoints and no others.
    pub(crate) async fn lead(&self, i: usize, to: &[u8]) -> anyhow::Result<()> {
        let patch = Patch::merge(json!({"endpoints": endpoints(to)}));
        self.client.namespaced::<EndpointSlice>("default").patch(&format!("svc-{i}"), &patch).await?;
        Ok(())
    }
}

/// The address of service `i`.
pub(crate) fn cluster_ip(i: usize) -> String {
    let number = i + 256;
    format!("10.43.{}.{}", number / 256, number % 256)
}

fn endpoints(last_bytes: &[u8]) -> serde_json::Value {
    let endpoint = |last: &u8| json!({"addresses": [format!("10.42.0.{last}")], "conditions": {"ready": true}});
    last_bytes.iter().map(endpoint).collect()
}

//! `local.cox`: our own CSI driver. A volume is a folder of one node, made and removed by the node that owns it.
//!
//! Flow: [`run`] serves the driver on a socket where the kubelet finds it like any other (`driver`), and carries out what
//! the control plane asks of this node's folders (`requests`). Which claims get volumes, and where, is decided there, and the
//! objects are written there: a node sees its own requests and nothing else.

mod counts;
mod driver;
mod mounts;
mod quota;
mod requests;
mod store;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use client::Client;
use csi::registration::RegistrationServer;
use futures_util::future::BoxFuture;
use k8s_openapi::api::storage::v1::CSIDriver;
use tokio_util::sync::CancellationToken;

pub use driver::Driver;

/// The driver's name, and that of its provisioner.
pub const NAME: &str = api::node_volumes::DRIVER;

/// What the cluster is told about the driver.
pub fn object() -> serde_json::Result<CSIDriver> {
    api::codec::from_value(&serde_json::json!({"metadata": {"name": NAME}, "spec": {
        "attachRequired": false, "podInfoOnMount": false, "storageCapacity": true, "fsGroupPolicy": "File",
        "volumeLifecycleModes": ["Persistent"],
    }}))
}

#[derive(Clone)]
pub struct Config {
    pub node_name: String,
    /// Holds the volumes.
    pub dir: PathBuf,
    /// Where the kubelet looks for plug-ins.
    pub registry: PathBuf,
    /// The node's own: may see and answer what this node is asked.
    pub client: Client,
}

/// Serves the driver and does what this node is asked until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    let driver = Arc::new(Driver::open(&config.node_name, &config.dir).context("opening the directory of volumes")?);
    let socket = csi::Socket::bind(config.registry.join(format!("{NAME}.sock")))?;
    let services = csi::router(driver.clone()).add_service(RegistrationServer::new(driver.clone()));
    let counting = driver.keep_counting(stop.clone());
    let working = requests::run(config.client, config.node_name, driver.clone(), stop.clone());
    let (served, (), ()) = tokio::join!(socket.serve(services, stop), working, counting);
    Ok(served?)
}

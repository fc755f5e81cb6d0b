//! A node's own way to the API servers: a port on loopback that leads to whichever of them answers.
//!
//! Flow: clients of this machine -> the port -> the servers in turn, whichever takes the connection. Which servers there are,
//! the `kubernetes` service says ([`Balancer::follow`]); they are written down, so that a node that starts finds the others
//! when the one it joined is gone. TLS passes through: certificates are the clients' to check.
//! Connections to a server that is no longer among them end, and so do those to one that has fallen silent; clients
//! connect again and find another.

use std::collections::BTreeSet;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use client::kubeconfig::Kubeconfig;
use client::{Client, Informer, ListParams};
use futures_util::FutureExt;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::pki::write_private;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// What a server does not acknowledge for so long, it never got.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(10);
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Each takes two descriptors of a process that pods depend on.
const MAX_CONNECTIONS: usize = 1024;
/// In the certificate of every API server, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";

pub(crate) struct Balancer {
    /// `host:port` of every server; never empty.
    servers: watch::Sender<Vec<String>>,
    /// The place among them where the next connection begins to look: one that accepts and never answers is left by whoever
    /// connects again.
    next: AtomicUsize,
    address: SocketAddr,
    /// Where the servers are written down.
    file: PathBuf,
    /// The task that serves; it ends with this.
    _serving: JoinSet<()>,
}

impl Balancer {
    /// Serves from here on. `first` is a server that is known, as `https://host:port`.
    pub(crate) async fn start(file: PathBuf, first: &str) -> Result<Arc<Balancer>> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("a port for the way to the servers")?;
        let address = listener.local_addr()?;
        let servers = known(&file, first)?;
        // Nodes begin with different servers.
        let next = AtomicUsize::new(rand::random_range(0..servers.len()));
        let mut serving = JoinSet::new();
        Ok(Arc::new_cyclic(|this: &std::sync::Weak<Balancer>| {
            let this = this.clone();
            serving.spawn(FutureExt::boxed(async move {
                let mut connections = JoinSet::new();
                loop {
                    let accepted = tokio::select! {
                        accepted = listener.accept() => accepted,
                        Some(_) = connections.join_next() => continue,
                    };
                    match (accepted, this.upgrade()) {
                        (_, None) => return,
                        // Dropped: a node has few clients, and they share their connections.
                        (Ok(_), Some(_)) if connections.len() >= MAX_CONNECTIONS => {}
                        (Ok((client, _)), Some(balancer)) => {
                            drop(connections.spawn(FutureExt::boxed(balancer.carry(client))))
                        }
                        (Err(error), _) => {
                            tracing::warn!(%error, "connection not accepted");
                            tokio::time::sleep(ACCEPT_RETRY_INTERVAL).await;
                        }
                    }
                }
            }));
            Balancer { servers: watch::Sender::new(servers), next, address, file, _serving: serving }
        }))
    }

    /// The same credentials, by way of this port.
    pub(crate) fn redirect(&self, config: Kubeconfig) -> Kubeconfig {
        by_way_of(config, &self.address.to_string())
    }

    /// Keeps to the servers that the cluster has, until `stop`.
    pub(crate) async fn follow(self: Arc<Self>, client: Client, stop: CancellationToken) -> Result<()> {
        follow_servers(&client, stop, |servers| self.lead_to(servers)).await;
        Ok(())
    }

    /// None at all cannot be: who said so is a server.
    fn lead_to(&self, servers: Vec<String>) {
        if servers.is_empty() || *self.servers.borrow() == servers {
            return;
        }
        tracing::info!(servers = servers.join(","), "API servers");
        let written = serde_json::to_vec(&servers).map_err(anyhow::Error::from);
        if let Err(error) = written.and_then(|text| write_private(&self.file, &text)) {
            tracing::warn!("the API servers are not written down: {error:#}");
        }
        self.servers.send_replace(servers);
    }

    async fn carry(self: Arc<Self>, mut client: TcpStream) {
        let Some((name, mut server)) = self.connect().await else { return };
        let mut servers = self.servers.subscribe();
        // Gone with the last clone, or from the list: either way this is no server to talk to any more.
        let gone = async { drop(servers.wait_for(|servers| !servers.contains(&name)).await) };
        drop(self);
        tokio::select! {
            // How it ended is the ends' to know.
            _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
            () = gone => {}
        }
    }

    /// The next server that takes a connection; none if no one does.
    async fn connect(&self) -> Option<(String, TcpStream)> {
        let servers = self.servers.borrow().clone();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % servers.len().max(1);
        for turn in 0..servers.len() {
            let at = (first + turn) % servers.len();
            let name = &servers[at];
            match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(name.as_str())).await {
                Ok(Ok(stream)) => {
                    let silence = u32::try_from(UNACKNOWLEDGED_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
                    if let Err(error) = setsockopt(&stream, sockopt::TcpUserTimeout, &silence) {
                        tracing::debug!(%error, "a server that falls silent is noticed late");
                    }
                    drop(stream.set_nodelay(true));
                    return Some((name.clone(), stream));
                }
                Ok(Err(error)) => tracing::debug!(server = name, %error, "not this server"),
                Err(_) => tracing::debug!(server = name, "no answer from this server"),
            }
        }
        None
    }
}

/// Calls `on_change` with all servers of the cluster, as `host:port`, whenever they change, until `stop`.
pub(crate) async fn follow_servers(client: &Client, stop: CancellationToken, mut on_change: impl FnMut(Vec<String>)) {
    // The API servers' own: anybody who may write slices can label one.
    let named = ListParams::fields("metadata.name=kubernetes");
    let slices: Informer<EndpointSlice> = Informer::new(client.namespaced("default"), named);
    let (changed, mut changes) = watch::channel(());
    slices.subscribe(move |_| changed.send_replace(()));
    let following = async {
        while changes.changed().await.is_ok() {
            on_change(addresses(&slices.list()));
        }
    };
    tokio::select! {
        () = slices.run(stop) => {}
        () = following => {}
    }
}

fn addresses(slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let mut found = BTreeSet::new();
    for slice in slices {
        let port = slice.ports.iter().flatten().find_map(|port| u16::try_from(port.port?).ok());
        let Some(port) = port else { continue };
        for endpoint in slice.endpoints.iter().flatten() {
            let parsed = endpoint.addresses.iter().filter_map(|address| address.parse().ok());
            found.extend(parsed.map(|address| SocketAddr::new(address, port).to_string()));
        }
    }
    found.into_iter().collect()
}

/// The same credentials, by way of an address that leads to a server.
pub(crate) fn by_way_of(mut config: Kubeconfig, address: &str) -> Kubeconfig {
    for named in &mut config.clusters {
        named.cluster.server = Some(format!("https://{address}"));
        named.cluster.tls_server_name.get_or_insert_with(|| SERVER_NAME.to_owned());
    }
    config
}

/// The servers that were written down, and the one that was given.
pub(crate) fn known(file: &Path, first: &str) -> Result<Vec<String>> {
    let mut servers: Vec<String> = match fs::read(file) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| file.display().to_string())?,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).with_context(|| file.display().to_string()),
    };
    let first = first.strip_prefix("https://").unwrap_or(first).trim_end_matches('/').to_owned();
    if !servers.contains(&first) {
        servers.push(first);
    }
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A server that says its name to everybody and keeps the connection.
    async fn server(name: u8) -> (String, JoinSet<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let mut open = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_u8(name).await.unwrap();
                open.push(stream);
            }
        });
        (address, task)
    }

    async fn ask(balancer: &Balancer) -> Option<(u8, TcpStream)> {
        let mut stream = TcpStream::connect(balancer.address).await.unwrap();
        let name = stream.read_u8().await.ok()?;
        Some((name, stream))
    }

    #[tokio::test]
    async fn connections_go_to_a_server_that_answers() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("servers.json");
        let ((one, first), (two, _second)) = (server(1).await, server(2).await);
        let balancer = Balancer::start(file.clone(), &format!("https://{one}")).await.unwrap();
        let (name, mut held) = ask(&balancer).await.unwrap();
        assert_eq!(name, 1);

        // A second server joins: what is open stays.
        balancer.lead_to(vec![one.clone(), two.clone()]);
        let mut asked = [ask(&balancer).await.unwrap().0, ask(&balancer).await.unwrap().0];
        asked.sort();
        assert_eq!(asked, [1, 2], "in turn");
        // The first dies: its connections end, and the next one is somebody else's.
        drop(first);
        assert!(held.read_u8().await.is_err());
        let (name, mut held) = ask(&balancer).await.unwrap();
        assert_eq!(name, 2);
        // A server that is no member any more is left, though it answers.
        let (three, _third) = server(3).await;
        balancer.lead_to(vec![three.clone()]);
        assert!(held.read_u8().await.is_err());
        assert_eq!(ask(&balancer).await.unwrap().0, 3);
        // Nothing is not a list of servers.
        balancer.lead_to(Vec::new());
        assert_eq!(ask(&balancer).await.unwrap().0, 3);
        drop(balancer);

        // After a restart, the one that was joined is only one of those to try.
        let again = Balancer::start(file, &format!("https://{one}")).await.unwrap();
        assert_eq!(*again.servers.borrow(), [three, one]);
        assert_eq!(ask(&again).await.unwrap().0, 3);
    }

    #[test]
    fn servers_are_the_endpoints_of_their_service() {
        let slice: EndpointSlice = serde_json::from_value(serde_json::json!({
            "metadata": {"name": "kubernetes"}, "addressType": "IPv4",
            "endpoints": [{"addresses": ["192.0.2.2"]}, {"addresses": ["192.0.2.1"]}],
            "ports": [{"name": "https", "port": 6443, "protocol": "TCP"}],
        }))
        .unwrap();
        assert_eq!(addresses(&[Arc::new(slice)]), ["192.0.2.1:6443", "192.0.2.2:6443"]);
    }
}

//! Whether somebody still writes where the objects were read: what comes after our reading would be lost.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::StreamExt;
use store::{Revision, Store, Watch, WatchEvent};
use tokio::net::TcpStream;
use tokio::time::Instant;

use super::found::{Found, Objects};
use super::plan::{Facts, ROOT};

/// This machine answers its own addresses at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Why nothing can be taken over now, as far as it can be seen at once.
pub(super) async fn seen(found: &Found, facts: &Facts, is_confirmed: bool) -> Result<Option<String>> {
    Ok(match &found.objects {
        Objects::Kine(path) => store::foreign::kine_holder(path)?.map(|pid| {
            format!(
                "process {pid} has {} open: stop k3s first ('systemctl stop k3s'), its containers run on",
                path.display()
            )
        }),
        // Of a snapshot everybody knows that it is from before.
        Objects::Snapshot(_) => None,
        Objects::Etcd(_) => {
            let stop = "stop all of them first (move the manifest of kube-apiserver away; of k3s with its own etcd write a \
                        snapshot, stop k3s, and give --etcd-snapshot)";
            if let Some(server) = facts.servers.first() {
                return Ok(Some(format!("the API server at {server} runs, or did some seconds ago: {stop}")));
            }
            if let Some(address) = found.listens
                && answers(address).await
            {
                return Ok(Some(format!("an API server answers at {address}: {stop}")));
            }
            found.silent.filter(|_| !is_confirmed).map(|flags| {
                format!("with {flags}, API servers write down nowhere that they run: when all are stopped, say --servers-stopped")
            })
        }
    })
}

async fn answers(address: SocketAddr) -> bool {
    matches!(tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await, Ok(Ok(_)))
}

/// Whether somebody writes after a revision, for as long as `time`: an API server that runs renews a lease every ten seconds, and
/// nodes have it renew theirs. What is deleted does not count: events and leases of servers that were stopped end by themselves.
pub(super) async fn written(store: &dyn Store, after: Revision, time: Duration) -> Result<Option<String>> {
    let deadline = Instant::now() + time;
    let watch = Watch::prefix(ROOT).from(Revision(after.0 + 1));
    let mut changes = store.watch(watch).await.context("watching for writes")?;
    loop {
        match tokio::time::timeout_at(deadline, changes.next()).await {
            Err(_) => return Ok(None),
            Ok(None) => bail!("the store ended the watch for writes"),
            Ok(Some(Err(error))) => return Err(error).context("watching for writes"),
            Ok(Some(Ok(WatchEvent::Put { kv, .. }))) => {
                return Ok(Some(format!("somebody still writes there ({}): stop all API servers first", kv.key)));
            }
            Ok(Some(Ok(WatchEvent::Delete { .. } | WatchEvent::Progress(_)))) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use store::{EmbeddedStore, Op, Txn};

    use super::*;

    #[tokio::test]
    async fn an_api_server_without_a_lease_is_known_by_what_it_writes() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(dir.path(), Default::default()).unwrap());
        store.put("/registry/events/a", "1").await.unwrap();
        store.put("/elsewhere/a", "1").await.unwrap();
        let read = store.current_revision().await.unwrap();
        // What ends by itself, and what is another cluster's.
        store.txn(Txn::new().then(Op::delete("/registry/events/a"))).await.unwrap();
        store.put("/elsewhere/a", "2").await.unwrap();
        assert_eq!(written(&*store, read, Duration::from_millis(1)).await.unwrap(), None);
        store.put("/registry/leases/kube-node-lease/n", "2").await.unwrap();
        // Also what was written before anybody looked.
        let reason = written(&*store, read, Duration::from_secs(3600)).await.unwrap().unwrap();
        assert!(reason.contains("/registry/leases/kube-node-lease/n"), "{reason}");
    }

    #[tokio::test]
    async fn an_api_server_that_listens_is_seen() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(answers(address).await);
        // Bound, and nobody listens: one that listened is still open in children that are just being started.
        let silent = tokio::net::TcpSocket::new_v4().unwrap();
        silent.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert!(!answers(silent.local_addr().unwrap()).await);
    }
}

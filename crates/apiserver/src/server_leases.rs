//! Which API servers are alive: each keeps a key in the store for as long as it serves, and the `kubernetes` service leads to
//! all that have one.
//!
//! Flow: a lease of the store's, kept alive -> the keys of all servers -> Endpoints and EndpointSlice. Whoever comes past
//! writes the same, so nobody has to lead. A server that ends takes its key away; one that dies is forgotten with its lease.
//! Only for stores that several servers can share: whoever has a store to itself is the only endpoint.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactCollect as _;
use serde_json::json;
use store::{LeaseId, Op, Range, StoreError, Txn};
use tokio_util::sync::CancellationToken;

use crate::Storage;
use crate::bootstrap::write_endpoints;
use crate::state::State;

/// Where upstream keeps them.
const PREFIX: &str = "/registry/masterleases/";
/// A server that is silent for so long is no endpoint any more (`DefaultEndpointReconcilerTTL`, v1.36).
const TTL: Duration = Duration::from_secs(15);
/// How often a server renews its lease and looks at the others.
const INTERVAL: Duration = Duration::from_secs(10);
/// After a failure: what is not renewed once must not have ended by the next time.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Keeps this server's lease, and the endpoints equal to the servers that have one, until `stop`.
pub(crate) async fn run(state: Arc<State>, stop: CancellationToken) {
    let Some(address) = state.endpoint().filter(|_| matches!(state.config.storage, Storage::Etcd(_))) else { return };
    let mut held = None;
    loop {
        let interval = match renew(&state, address, &mut held).await {
            Ok(()) => INTERVAL,
            Err(error) => {
                tracing::warn!(error = format!("{error:#}"), "the lease of this server was not renewed");
                RETRY_INTERVAL
            }
        };
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(interval) => {}
        }
    }
    if let Some(lease) = held
        && let Err(error) = state.store().revoke_lease(lease).await
    {
        tracing::warn!(%error, "the lease of this server was not given back; it runs out by itself");
        return;
    }
    // The last to leave turns off nothing: an empty list would only replace one error of clients by another.
    let left = async {
        let others = alive(&state, address).await?;
        if others.is_empty() { Ok(()) } else { write_endpoints(&state, &others).await }
    };
    if let Err(error) = left.await {
        tracing::warn!(error = format!("{error:#}"), "this server is still among the endpoints");
    }
}

async fn renew(state: &Arc<State>, address: IpAddr, held: &mut Option<LeaseId>) -> anyhow::Result<()> {
    if let Some(lease) = *held {
        match state.store().keep_alive(lease).await {
            Ok(_) => {}
            Err(StoreError::LeaseNotFound(_)) => *held = None,
            Err(error) => return Err(error.into()),
        }
    }
    if held.is_none() {
        let lease = state.store().grant_lease(TTL).await?;
        let value = json!({"kind": "Endpoints", "apiVersion": "v1", "metadata": {},
            "subsets": [{"addresses": [{"ip": address.to_string()}]}]});
        let put = Op::put_with_lease(format!("{PREFIX}{address}"), serde_json::to_vec(&value)?, lease);
        state.store().txn(Txn::new().then(put)).await?;
        *held = Some(lease);
    }
    let alive = alive(state, address).await?;
    if !alive.contains(&address) {
        // It was taken away, or a put that was late has tied it to a lease from before, which has ended. The lease that is
        // held says nothing about it.
        *held = None;
        anyhow::bail!("the key of this server is gone, and is written again");
    }
    write_endpoints(state, &alive).await
}

/// The servers that have a lease, as far as they are of the family of `own`: endpoints do not mix families.
async fn alive(state: &Arc<State>, own: IpAddr) -> anyhow::Result<BTreeSet<IpAddr>> {
    let found = state.store().range(Range::prefix(PREFIX).keys_only()).await?;
    let addresses = found.kvs.iter().filter_map(|kv| kv.key.strip_prefix(PREFIX)?.parse().ok());
    Ok(addresses.filter(|address: &IpAddr| address.is_ipv4() == own.is_ipv4()).compact_collect())
}

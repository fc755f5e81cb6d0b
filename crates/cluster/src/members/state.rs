//! Asking the members who and how they are.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use api::sort::CompactSort as _;
use futures_util::future::join_all;
use store::Store;
use store::etcd::{EtcdStore, Member, Members, Options as EtcdOptions, Status};

use super::flags::peer_url;
use super::plan::{self, NoAnswer, State};
use crate::etcd::Etcd;
use crate::shape::Flags;

/// For one member: it may be gone.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(3);
/// A server that goes does not wait longer for the others to let it go.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(15);

/// The way to one member alone.
pub(super) fn only(etcd: &Etcd, url: &str, timeout: Duration) -> EtcdOptions {
    let mut options = etcd.options();
    options.endpoints = vec![url.to_owned()];
    options.timeout = timeout;
    options
}

/// All members, each with what it says of itself.
pub(super) async fn states(etcd: &Etcd) -> Result<Vec<State>> {
    let members = Members::new(&etcd.options())?.list().await.context("asking etcd for its members")?;
    let mut states = join_all(members.into_iter().map(|member| state(etcd, member))).await;
    states.compact_sort_by(|one, other| one.member.name.cmp(&other.member.name));
    Ok(states)
}

async fn state(etcd: &Etcd, member: Member) -> State {
    let asked = async {
        let url = member.client_urls.first().ok_or_else(|| anyhow!("it has not started yet"))?;
        let options = only(etcd, url, MEMBER_TIMEOUT);
        let status = Members::new(&options)?.status().await?;
        // Answered only by one that has the others behind it.
        let agreed = match member.is_learner {
            true => Ok(()),
            false => EtcdStore::connect(options).await.map(drop),
        };
        Ok::<(Status, bool), anyhow::Error>((status, agreed.is_ok()))
    };
    match asked.await {
        Ok((status, agrees)) => {
            let is_healthy = agrees && status.leader != 0 && status.errors.is_empty();
            State { member, status: Ok(status), is_healthy }
        }
        Err(error) => State { member, status: Err(NoAnswer(format!("{error:#}"))), is_healthy: false },
    }
}

/// Takes a member out; it may be the one that leads.
pub(super) async fn remove(etcd: &Etcd, name: &str) -> Result<()> {
    let states = states(etcd).await?;
    let removal = plan::removal(&states, name)?;
    if let Some(next) = removal.hand_over_to {
        hand_over(etcd, &states, next).await?;
    }
    Members::new(&etcd.options())?.remove(removal.id).await.with_context(|| format!("removing the member {name}"))
}

/// Has `next` lead in place of whoever does.
pub(super) async fn hand_over(etcd: &Etcd, states: &[State], next: u64) -> Result<()> {
    let leader = states.iter().find(|state| state.is_leader()).context("no member leads")?;
    let url = leader.member.client_urls.first().context("the member that leads has no address")?;
    let moved = Members::new(&only(etcd, url, MEMBER_TIMEOUT))?.hand_over_to(next).await;
    moved.with_context(|| format!("having another member lead than {}", leader.member.name))
}

/// Fails if the cluster could not bear the loss of one more member, so that this server must not be stopped.
pub(crate) async fn require_healthy(etcd: &Etcd) -> Result<()> {
    match states(etcd).await?.iter().find(|state| !state.is_healthy) {
        None => Ok(()),
        Some(sick) => bail!("the server {} is not healthy: mend it first", sick.name()),
    }
}

/// Takes this server's member out of a cluster that goes on without it; says what is left to do where that fails.
pub(crate) async fn leave(flags: &Flags) -> Option<String> {
    let name = flags.machine.node_name.clone()?;
    if !flags.ha.ha {
        return None;
    }
    let left = async {
        match Members::new(&flags.etcd.options())?.list().await?.len() {
            0 | 1 => Ok(()),
            _ => remove(&flags.etcd, &name).await,
        }
    };
    let left = match tokio::time::timeout(LEAVE_TIMEOUT, left).await {
        Ok(left) => left,
        Err(_) => Err(anyhow!("etcd does not answer")),
    };
    left.err().map(|error| {
        let address = flags.shape().and_then(|shape| shape.node_ip()).map(peer_url);
        let or_address = match address.as_deref().unwrap_or_default().rsplit_once("://") {
            Some((_, address)) => format!(", or 'cox server rm {address}' if it has never started"),
            None => String::new(),
        };
        format!(
            "{name} may still be a member of etcd ({error:#}): 'cox server rm {name}' elsewhere removes it{or_address}"
        )
    })
}

/// Whether the others say that this server is no member any more. That nobody answers says nothing.
pub(super) async fn is_removed(etcd: &Etcd, own_client_url: &str, peer_url: &str) -> bool {
    let mut options = etcd.options();
    options.endpoints.retain(|url| url != own_client_url);
    if options.endpoints.is_empty() {
        return false;
    }
    let listed = async { Members::new(&options)?.list().await };
    match listed.await {
        Ok(members) => !members.iter().any(|member| member.peer_urls.iter().any(|url| url == peer_url)),
        Err(_) => false,
    }
}

/// A store that is asked through one member alone.
pub(super) async fn store_of(etcd: &Etcd, url: &str, timeout: Duration) -> Result<EtcdStore> {
    let store = EtcdStore::connect(only(etcd, url, timeout)).await?;
    if store.current_revision().await?.0 == 0 {
        bail!("{url} does not tell its revision");
    }
    Ok(store)
}

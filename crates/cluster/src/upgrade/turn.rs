//! One server at a time: whoever replaces its program holds a Lease of the cluster, and begins only while all others serve.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::{Client, Clock, ListParams};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use super::skew;

const NAMESPACE: &str = "kube-system";
const NAME: &str = "cox-upgrade";

/// It is the turn of another server.
#[derive(Debug, thiserror::Error)]
#[error("{0} is being upgraded: one server after the other")]
pub(super) struct Taken(String);

/// Takes the turn for as long as `longest`, or says whose it is.
pub(super) async fn take(client: &Client, own: &str, longest: Duration, clock: &Clock) -> Result<()> {
    let leases = client.namespaced::<Lease>(NAMESPACE);
    let spec = LeaseSpec {
        holder_identity: Some(own.to_owned()),
        lease_duration_seconds: Some(i32::try_from(longest.as_secs()).unwrap_or(i32::MAX)),
        renew_time: Some(MicroTime(clock.now())),
        ..LeaseSpec::default()
    };
    let taken = match leases.get_opt(NAME).await.context("asking whose turn it is")? {
        None => {
            let mut lease = Lease { spec: Some(spec), ..Lease::default() };
            lease.metadata.name = Some(NAME.to_owned());
            leases.create(&lease).await
        }
        Some(mut lease) => {
            if let Some(other) = holder(lease.spec.as_ref(), own, clock.now()) {
                return Err(Taken(other.to_owned()).into());
            }
            lease.spec = Some(spec);
            leases.update(&lease).await
        }
    };
    match taken {
        Ok(_) => Ok(()),
        Err(error) if error.is_conflict() || error.is_already_exists() => {
            Err(Taken("another server".to_owned()).into())
        }
        Err(error) => Err(error).context("saying that this server is upgraded"),
    }
}

/// Gives the turn to others, if this server has it.
pub(super) async fn give_back(client: &Client, own: &str) -> Result<()> {
    let leases = client.namespaced::<Lease>(NAMESPACE);
    let Some(mut lease) = leases.get_opt(NAME).await? else { return Ok(()) };
    let spec = lease.spec.get_or_insert_default();
    if spec.holder_identity.as_deref() == Some(own) {
        spec.holder_identity = None;
        leases.update(&lease).await?;
    }
    Ok(())
}

/// Who else has the turn.
fn holder<'a>(lease: Option<&'a LeaseSpec>, own: &str, now: Timestamp) -> Option<&'a str> {
    let lease = lease?;
    let holder = lease.holder_identity.as_deref().filter(|holder| !holder.is_empty() && *holder != own)?;
    let lasts = SignedDuration::from_secs(lease.lease_duration_seconds.unwrap_or_default().into());
    // One that was killed half-way does not hold up the others for ever.
    let is_over = lease.renew_time.as_ref().is_none_or(|taken| now.duration_since(taken.0) > lasts);
    (!is_over).then_some(holder)
}

/// All nodes of the cluster, those of its servers among them.
pub(super) async fn nodes(client: &Client) -> Result<Vec<Node>> {
    Ok(client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")?.items)
}

/// Fails unless all other servers are there to go on.
pub(super) fn require_others(nodes: &[Node], own: &str) -> Result<()> {
    match missing(nodes, own) {
        None => Ok(()),
        Some(other) => bail!("the server {other} is not Ready: mend it first, or delete its node"),
    }
}

fn missing<'a>(nodes: &'a [Node], own: &str) -> Option<&'a str> {
    let others =
        nodes.iter().filter(|node| skew::is_server(node)).filter(|node| node.metadata.name.as_deref() != Some(own));
    others.filter(|node| !api::node::is_ready(node)).find_map(|node| node.metadata.name.as_deref())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::node_roles::CONTROL_PLANE;

    #[test]
    fn one_server_after_the_other() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lease = |holder: Option<&str>| LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: Some(100),
            renew_time: Some(MicroTime(at(1000))),
            ..LeaseSpec::default()
        };
        for (held_by, now, expected) in [
            (None, 1001, None),
            (Some(""), 1001, None),
            (Some("own"), 1001, None),
            (Some("other"), 1001, Some("other")),
            (Some("other"), 1100, Some("other")),
            (Some("other"), 1101, None),
        ] {
            assert_eq!(holder(Some(&lease(held_by)), "own", at(now)), expected, "{held_by:?} at {now}");
        }
        assert_eq!(holder(None, "own", at(0)), None);
    }

    #[test]
    fn no_server_goes_while_another_is_away() {
        let node = |name: &str, is_server: bool, ready: &str| -> Node {
            let labels = if is_server { json!({CONTROL_PLANE: ""}) } else { json!({}) };
            let conditions = json!([{"type": "Ready", "status": ready}]);
            serde_json::from_value(
                json!({"metadata": {"name": name, "labels": labels}, "status": {"conditions": conditions}}),
            )
            .unwrap()
        };
        let with = |ready| [node("own", true, "True"), node("other", true, ready), node("worker", false, "Unknown")];
        assert_eq!(missing(&with("True"), "own"), None);
        assert_eq!(missing(&with("Unknown"), "own"), Some("other"));
        assert_eq!(missing(&[node("own", true, "False")], "own"), None, "this one may be what the new program mends");
    }
}

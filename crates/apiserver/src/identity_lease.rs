//! Who the API servers are: each keeps a Lease in `kube-system` while it serves, named after its host as upstream names it.
//! What a server that died has left is removed by those that live.
//!
//! Not here: which servers clients are sent to. That is decided by keys of the store (`server_leases`).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use api::meta::Meta as _;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::loopback::send;
use crate::stamp::now;
use crate::state::State;

const NAMESPACE: &str = "kube-system";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const COMPONENT: &str = "kube-apiserver";
/// The label that tells identities from other leases.
const IDENTITY: &str = "apiserver.kubernetes.io/identity";
const HOST: &str = "kubernetes.io/hostname";
/// A server that is silent for so long is gone (`IdentityLeaseDurationSeconds`, v1.36).
const DURATION_SECONDS: u32 = 3600;
/// Upstream renews every ten seconds. Readers go by the duration, of which this is little, and each renewal is a write.
const RENEW_INTERVAL: Duration = Duration::from_secs(60);
/// After a renewal that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// How often leases of others are looked at (`IdentityLeaseGCPeriod`, v1.36).
const COLLECT_INTERVAL: Duration = Duration::from_secs(3600);

/// Says for the first time who this server is. It is tried again later: that it fails is no reason not to serve.
pub(crate) async fn begin(state: &Arc<State>) {
    if let Err(error) = renew(state).await {
        tracing::warn!("the identity lease of this server is not written yet: {error:#}");
    }
}

/// Renews the lease until `stop` fires, then takes it away.
pub(crate) async fn run(state: Arc<State>, stop: CancellationToken) {
    let mut interval = RENEW_INTERVAL;
    let mut collected: Option<Instant> = None;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            () = tokio::time::sleep(interval) => {}
        }
        interval = match renew(&state).await {
            Ok(()) => RENEW_INTERVAL,
            Err(error) => {
                tracing::warn!("the identity lease of this server is not renewed: {error:#}");
                RETRY_INTERVAL
            }
        };
        if collected.is_none_or(|at| at.elapsed() >= COLLECT_INTERVAL) {
            collected = Some(Instant::now());
            if let Err(error) = collect(&state).await {
                tracing::warn!("identity leases of servers that are gone: {error:#}");
            }
        }
    }
    if let Err(error) = give_back(&state).await {
        tracing::warn!("the identity lease of this server stays until it runs out: {error:#}");
    }
}

fn host() -> anyhow::Result<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/hostname").context("the name of this host")?;
    Ok(text.trim_end().to_owned())
}

/// `apiserver-` and a digest of the host and of what runs there, each with its length before it.
fn name(host: &str) -> String {
    let mut text = Vec::new();
    for part in [host, COMPONENT] {
        text.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        text.extend_from_slice(part.as_bytes());
    }
    format!("apiserver-{}", base32(&digest(&SHA256, &text).as_ref()[..16]))
}

/// In lower case and without padding.
fn base32(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| byte >> (7 - at % 8) & 1);
    let character = |first: usize| (first..first + 5).fold(0, |value, at| value << 1 | usize::from(bit(at)));
    (0..bytes.len() * 8).step_by(5).map(|first| char::from(ALPHABET[character(first)])).collect()
}

async fn renew(state: &Arc<State>) -> anyhow::Result<()> {
    let host = host()?;
    let name = name(&host);
    let lease = lease(&host, &format!("{name}_{}", state.holder), now());
    let url = format!("{LEASES}/{name}");
    let (mut code, mut answer) = send(state, Method::PATCH, &url, &lease).await?;
    if code == 404 {
        let mut new = lease;
        new["metadata"]["name"] = name.into();
        (code, answer) = send(state, Method::POST, LEASES, &new).await?;
    }
    anyhow::ensure!(code < 300, "{url}: {}", answer["message"]);
    Ok(())
}

/// What a server says of itself. A name of a host that cannot be a label is left out.
fn lease(host: &str, holder: &str, now: Timestamp) -> Value {
    let mut labels = json!({IDENTITY: COMPONENT});
    if api::validation::label_value(host).is_empty() {
        labels[HOST] = host.into();
    }
    json!({"metadata": {"labels": labels}, "spec": {"holderIdentity": holder,
        "leaseDurationSeconds": DURATION_SECONDS, "renewTime": MicroTime(now)}})
}

/// Whether a server that has this lease is gone. One that was never renewed is of nobody.
fn is_over(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return true };
    let (Some(renewed), Some(seconds)) = (&spec.renew_time, spec.lease_duration_seconds) else { return true };
    now.duration_since(renewed.0).as_secs() >= i64::from(seconds.max(0))
}

/// Removes the leases of servers that are gone.
async fn collect(state: &Arc<State>) -> anyhow::Result<()> {
    for lease in state.objects().list::<Lease>(Some(NAMESPACE))? {
        let labels = lease.metadata.labels.as_ref();
        let is_identity =
            labels.and_then(|labels| labels.get(IDENTITY)).is_some_and(|component| component == COMPONENT);
        if is_identity && is_over(&lease, now()) {
            remove(state, &lease).await?;
        }
    }
    Ok(())
}

/// Takes the lease of this server away, unless another server of this host has taken it over.
async fn give_back(state: &Arc<State>) -> anyhow::Result<()> {
    // The last renewal may be a moment old. Where the cache does not show it, nothing is removed.
    let _ = state.caches.settled().await;
    let Some(lease) = state.objects().get::<Lease>(NAMESPACE, &name(&host()?))? else { return Ok(()) };
    let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
    match holder.is_some_and(|holder| holder.ends_with(&state.holder)) {
        true => remove(state, &lease).await,
        false => Ok(()),
    }
}

/// Removes a lease as it was seen; one that was renewed since stays.
async fn remove(state: &Arc<State>, lease: &Lease) -> anyhow::Result<()> {
    let url = format!("{LEASES}/{}", lease.metadata.name());
    let seen = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions":
        {"uid": lease.metadata.uid, "resourceVersion": lease.metadata.resource_version}});
    let (code, answer) = send(state, Method::DELETE, &url, &seen).await?;
    anyhow::ensure!(code < 300 || code == 404 || code == 409, "{url}: {}", answer["message"]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn servers_are_named_as_upstream_names_them() {
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        assert_eq!(base32(&[0xff; 16]), "77777777777777777777777774");
        assert_eq!(name("server-1"), "apiserver-ivcd3cgyhcasg77bedm3gpsjua");
    }

    #[test]
    fn a_lease_says_who_and_until_when() {
        let value = lease("server-1", "apiserver-x_y", at(1));
        assert_eq!(value["metadata"]["labels"], json!({IDENTITY: "kube-apiserver", HOST: "server-1"}));
        assert_eq!(value["spec"]["renewTime"], "1970-01-01T00:00:01.000000Z");
        let typed: Lease = serde_json::from_value(value).unwrap();
        assert!(!is_over(&typed, at(3600)) && is_over(&typed, at(3601)));
        assert_eq!(lease("no label!", "h", at(1))["metadata"]["labels"], json!({IDENTITY: "kube-apiserver"}));
    }

    #[test]
    fn a_lease_lasts_from_its_last_renewal() {
        for (renewed, lasts, now, expected) in [
            (Some(0), Some(10), 9, false),
            (Some(0), Some(10), 10, true),
            (Some(5), Some(10), 0, false),
            (Some(0), Some(-1), 0, true),
            (None, Some(10), 0, true),
            (Some(0), None, 0, true),
        ] {
            let spec = LeaseSpec {
                renew_time: renewed.map(|second| MicroTime(at(second))),
                lease_duration_seconds: lasts,
                ..LeaseSpec::default()
            };
            let lease = Lease { spec: Some(spec), ..Lease::default() };
            assert_eq!(is_over(&lease, at(now)), expected, "{renewed:?} {lasts:?} {now}");
        }
        assert!(is_over(&Lease::default(), at(0)));
    }
}

//! Lease garbage collector: the identity leases of API servers that are gone are removed.
//!
//! Leases of nodes go with their Node, those of leaders are taken over; only identities are nobody's after a crash.

use std::sync::Arc;
use std::time::Duration;

use client::{Client, Clock, DeleteParams, Informer, ListParams};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::pods::key;

const NAMESPACE: &str = "kube-system";
const IDENTITIES: &str = "apiserver.kubernetes.io/identity=kube-apiserver";
/// A lease that has just run out may still be renewed late.
const RECHECK_INTERVAL: Duration = Duration::from_secs(60);

struct Controller {
    client: Client,
    clock: Clock,
    leases: Informer<Lease>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let leases = context.namespaced::<Lease>(NAMESPACE, ListParams::labels(IDENTITIES));
    let queue = context.queue.clone();
    let leases = leases.wakes(move |event| queue.add_after(key(&**event.object()), RECHECK_INTERVAL));
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), leases })
}

/// How long until a lease runs out; zero once it has. One that was never renewed has.
fn time_left(lease: &Lease, now: Timestamp) -> Duration {
    let Some(spec) = &lease.spec else { return Duration::ZERO };
    let (Some(renewed), Some(seconds)) = (&spec.renew_time, spec.lease_duration_seconds) else { return Duration::ZERO };
    let age = Duration::try_from(now.duration_since(renewed.0)).unwrap_or_default();
    Duration::from_secs(seconds.max(0).unsigned_abs().into()).saturating_sub(age)
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(lease) = self.leases.get(key) else { return Ok(Requeue::Never) };
            let left = time_left(&lease, self.clock.now());
            if !left.is_zero() {
                return Ok(Requeue::After(left + RECHECK_INTERVAL));
            }
            let (_, name) = client::split_key(key);
            let api = self.client.namespaced::<Lease>(NAMESPACE);
            let Some(live) = api.get_opt(name).await? else { return Ok(Requeue::Never) };
            if !time_left(&live, self.clock.now()).is_zero() {
                return Ok(Requeue::Never); // its event is on its way
            }
            let params = DeleteParams {
                uid: live.metadata.uid,
                resource_version: live.metadata.resource_version,
                ..DeleteParams::default()
            };
            if_unchanged(api.delete(name, &params).await)?;
            Ok(Requeue::Never)
        })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    use super::*;
    use crate::pods::tests::at;

    #[test]
    fn a_lease_lasts_from_its_last_renewal() {
        for (renewed, lasts, now, expected) in [
            (Some(0), Some(10), 4, 6),
            (Some(0), Some(10), 10, 0),
            (Some(0), Some(10), 99, 0),
            (None, Some(10), 0, 0),
            (Some(0), None, 0, 0),
        ] {
            let spec = LeaseSpec {
                renew_time: renewed.map(|seconds| MicroTime(at(seconds))),
                lease_duration_seconds: lasts,
                ..LeaseSpec::default()
            };
            let lease = Lease { spec: Some(spec), ..Lease::default() };
            assert_eq!(time_left(&lease, at(now)), Duration::from_secs(expected), "{renewed:?} {lasts:?} {now}");
        }
    }
}

//! ServiceCIDR: a range is ready once it is protected, and goes away only when no address of it is in use.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::cidr::Cidr;
use client::{Client, Clock, Informer, ListParams};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

use crate::controller::{Context, Outcome, Reconcile, Requeue};

const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
const READY: &str = "Ready";
/// How many objects the server is asked for at a time.
const PAGE: u32 = 500;
/// An address that the cache does not show may go without an event: after this the server is asked again.
const RECHECK_INTERVAL: Duration = Duration::from_secs(30);

struct Controller {
    client: Client,
    clock: Clock,
    ranges: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let ranges = context.on_self::<ServiceCIDR>();
    let addresses = context.informer::<IPAddress>();
    // The addresses of a range that is to go, and a range that covers another, bring the waiting ones back.
    let (all, queue) = (ranges.clone(), context.queue.clone());
    let look_again = move || {
        let leaving = all.list().into_iter().filter(|range| range.metadata.deletion_timestamp.is_some());
        leaving.filter_map(|range| range.metadata.name.clone()).for_each(|name| queue.add(name));
    };
    let again = look_again.clone();
    let addresses = addresses.wakes(move |_| again());
    ranges.subscribe(move |_| look_again());
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), ranges, addresses })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(range) = self.ranges.get(key) else { return Ok(Requeue::Never) };
            let api = self.client.all::<ServiceCIDR>();
            let now = self.clock.now();
            let mut step = plan(&range, &self.ranges.list(), &self.addresses.list(), now);
            let mut requeue = Requeue::Never;
            if range.metadata.deletion_timestamp.is_some() && matches!(step, Step::Update(_)) {
                // Letting a range go cannot be taken back, so the server is asked: the caches may not show the latest Service.
                let ranges = shared(api.list_all(&ListParams::default(), PAGE).await?.items);
                let addresses = self.client.all::<IPAddress>().list_all(&ListParams::default(), PAGE).await?;
                step = plan(&range, &ranges, &shared(addresses.items), now);
                if !matches!(step, Step::Update(_)) {
                    requeue = Requeue::After(RECHECK_INTERVAL);
                }
            }
            let written = match step {
                Step::Nothing => return Ok(requeue),
                Step::Update(new) => api.update(&new).await,
                Step::UpdateStatus(new) => api.update_status(&new).await,
            };
            match written {
                Ok(_) => Ok(requeue),
                Err(error) if error.is_not_found() => Ok(Requeue::Never),
                Err(error) => Err(error.into()),
            }
        })
    }
}

fn shared<K>(items: Vec<K>) -> Vec<Arc<K>> {
    items.into_iter().map(Arc::new).collect()
}

#[derive(Debug, PartialEq)]
enum Step {
    Nothing,
    Update(Box<ServiceCIDR>),
    UpdateStatus(Box<ServiceCIDR>),
}

/// One step at a time: the write comes back as an event.
fn plan(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>], now: Timestamp) -> Step {
    let finalizers = range.metadata.finalizers.clone().unwrap_or_default();
    let protected = finalizers.iter().any(|name| name == FINALIZER);
    if range.metadata.deletion_timestamp.is_some() {
        if !protected {
            return Step::Nothing;
        }
        if in_use(range, all, addresses) {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
            return set_ready(range, "False", "Terminating", message, now);
        }
        let mut new = range.clone();
        let left: Vec<String> = finalizers.into_iter().filter(|name| name != FINALIZER).collect();
        new.metadata.finalizers = (!left.is_empty()).then_some(left);
        return Step::Update(Box::new(new));
    }
    if !protected {
        let mut new = range.clone();
        new.metadata.finalizers.get_or_insert_default().push(FINALIZER.to_owned());
        return Step::Update(Box::new(new));
    }
    set_ready(range, "True", "", "Kubernetes Service CIDR is ready", now)
}

fn set_ready(range: &ServiceCIDR, status: &str, reason: &str, message: &str, now: Timestamp) -> Step {
    let mut new = range.clone();
    let conditions = new.status.get_or_insert_default().conditions.get_or_insert_default();
    let present = conditions.iter_mut().find(|condition| condition.type_ == READY);
    match present {
        // Whatever else it says: that of the cluster's own range is written by the API server.
        Some(condition) if condition.status == status => return Step::Nothing,
        Some(condition) => {
            condition.status = status.to_owned();
            condition.reason = reason.to_owned();
            condition.message = message.to_owned();
            condition.last_transition_time = Time(now);
        }
        None => conditions.push(Condition {
            type_: READY.to_owned(),
            status: status.to_owned(),
            reason: reason.to_owned(),
            message: message.to_owned(),
            last_transition_time: Time(now),
            observed_generation: None,
        }),
    }
    Step::UpdateStatus(Box::new(new))
}

/// Whether an address belongs to this range and to no other one that stays.
fn in_use(range: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let ours = cidrs(range);
    let others: Vec<&str> = all
        .iter()
        .filter(|other| other.metadata.name != range.metadata.name && other.metadata.deletion_timestamp.is_none())
        .flat_map(|other| cidrs(other))
        .collect();
    addresses.iter().filter_map(|address| address.metadata.name.as_deref()?.parse::<IpAddr>().ok()).any(|address| {
        let within = |cidr: &&str| contains(cidr, address);
        ours.iter().any(within) && !others.iter().any(within)
    })
}

fn cidrs(range: &ServiceCIDR) -> Vec<&str> {
    let cidrs = range.spec.as_ref().and_then(|spec| spec.cidrs.as_ref());
    cidrs.into_iter().flatten().map(String::as_str).collect()
}

fn contains(cidr: &str, address: IpAddr) -> bool {
    cidr.parse::<Cidr>().is_ok_and(|cidr| cidr.contains(address))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn range(name: &str, cidr: &str, change: impl FnOnce(&mut serde_json::Value)) -> ServiceCIDR {
        let mut value = json!({"metadata": {"name": name}, "spec": {"cidrs": [cidr]}});
        change(&mut value);
        serde_json::from_value(value).unwrap()
    }

    fn address(name: &str) -> Arc<IPAddress> {
        let value = json!({"metadata": {"name": name}, "spec": {"parentRef": {"resource": "services", "name": "s"}}});
        Arc::new(serde_json::from_value(value).unwrap())
    }

    #[test]
    fn ranges_are_protected_then_ready_then_kept_while_used() {
        let now = Timestamp::UNIX_EPOCH;
        let fresh = range("a", "10.1.0.0/24", |_| {});
        let Step::Update(protected) = plan(&fresh, &[], &[], now) else { panic!("not protected") };
        assert_eq!(protected.metadata.finalizers.as_deref(), Some(&[FINALIZER.to_owned()][..]));
        let Step::UpdateStatus(ready) = plan(&protected, &[], &[], now) else { panic!("not ready") };
        assert_eq!(ready.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].status, "True");
        assert_eq!(plan(&ready, &[], &[], now), Step::Nothing);

        let mut leaving = *ready;
        leaving.metadata.deletion_timestamp = Some(Time(now));
        let used = [address("10.1.0.7")];
        let Step::UpdateStatus(waiting) = plan(&leaving, &[], &used, now) else { panic!("not kept") };
        assert_eq!(waiting.status.as_ref().unwrap().conditions.as_ref().unwrap()[0].reason, "Terminating");
        assert_eq!(plan(&waiting, &[], &used, now), Step::Nothing);
        let wider = [Arc::new(range("b", "10.1.0.0/16", |_| {}))];
        for (others, addresses) in [(&wider[..], &used[..]), (&[], &[address("10.2.0.7")])] {
            let Step::Update(free) = plan(&waiting, others, addresses, now) else { panic!("not let go") };
            assert_eq!(free.metadata.finalizers, None);
        }
    }
}

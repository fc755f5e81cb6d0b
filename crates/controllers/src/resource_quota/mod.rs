//! ResourceQuota: keeps `status.used` true. Admission counts up as objects are created; this counts again when they go.
//!
//! Pods, services and claims come from shared informers, and so do quotas. Other kinds that a quota counts are watched, by metadata
//! only and only from the first quota that names them.
//!
//! None of these caches knows what another has seen. So every change of an object wakes the quotas of its namespace, and what is
//! used is compared with what the server has now. Admission has counted what is new, and others with it that are not written yet:
//! counting what is there would forget those and let too many in. So what comes may only raise a count (key `added/<quota>`),
//! and what goes or changes may lower it (key `<quota>`).

mod usage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::quota::{
    DEVICES_SUFFIX, is_terminating, of_pod, of_resource_claim, of_service, of_volume_claim, volume_attributes_classes,
};
use client::{ApiResource, Client, Clock, Event, Gvr, Informer, ListParams, Owned, WorkQueue};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::api::resource::v1::ResourceClaim;
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::controller::{Context, Outcome, Reconcile, Requeue, gather};
use crate::{Error, pods};
use usage::{Usage, charged_until, of_pod_at, selects_claim, selects_pod, sum};

/// Admission counts before an object is written, and a write can still fail: what is used drifts, and is counted anew.
const RECOUNT_INTERVAL: Duration = Duration::from_secs(300);
/// A kind that could not be counted is asked for again after this: no event tells that somebody serves it now.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(30);
/// Before the namespace and name of a quota whose count may only be raised.
const ADDED: &str = "added/";
/// A server that lists a kind for the first time gets this long.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

struct Controller {
    client: Client,
    waker: Waker,
    clock: Clock,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    counted: Mutex<HashMap<Gvr, Counted>>,
    /// From the first quota on that counts devices.
    device_claims: Mutex<Option<Informer<ResourceClaim>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// The objects of a kind that quotas count.
#[derive(Clone)]
struct Counted {
    informer: Informer<Owned>,
    /// Nobody waits longer for what the server has: with one that never says it, each count would take as long.
    until: Instant,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Whether the status repeats what the specification says.
fn hard_is_true(quota: &ResourceQuota) -> bool {
    let wanted = quota.spec.as_ref().and_then(|spec| spec.hard.as_ref());
    quota.status.as_ref().is_some_and(|status| status.hard.is_some() && status.hard.as_ref() == wanted)
}

/// Whether a count may go down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lower {
    Yes,
    No,
}

/// Of each amount the larger one.
fn raise(used: &mut Usage, last: Usage) {
    for (name, amount) in last {
        if let Some(used) = used.get_mut(&name).filter(|used| **used < amount) {
            *used = amount;
        }
    }
}

/// How many objects of a kind there are.
enum Count {
    Known(api::quantity::Quantity),
    /// The server of the kind cannot be asked at present: what was counted last still holds.
    Unknown,
    /// It is counted elsewhere.
    Elsewhere,
    /// Nobody serves the kind at present.
    NotServed,
}

/// What an event says about the quotas of its namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Change {
    /// Nothing that a quota counts.
    None,
    /// There is more than before.
    More,
    /// There may be less.
    Less,
}

impl Change {
    /// For objects that count as one each, whatever they say.
    fn of_number<K>(event: &Event<K>) -> Self {
        match event {
            Event::Added(_) => Change::More,
            Event::Modified { .. } => Change::None,
            Event::Deleted(_) => Change::Less,
        }
    }

    /// For objects that use amounts.
    fn of_usage<K, S: PartialEq>(event: &Event<K>, spec: fn(&K) -> &S, usage: fn(&K) -> Usage) -> Self {
        match event {
            Event::Modified { old, new } if spec(old) != spec(new) && usage(old) != usage(new) => Change::Less,
            _ => Change::of_number(event),
        }
    }

    fn of_pod(event: &Event<Pod>) -> Self {
        match event {
            // What ends counts for nothing, and what gets a deadline counts for other quotas.
            Event::Modified { old, new }
                if pods::is_finished(old) != pods::is_finished(new) || is_terminating(old) != is_terminating(new) =>
            {
                Change::Less
            }
            _ => Change::of_usage(event, |pod| &pod.spec, of_pod),
        }
    }

    fn of_volume_claim(event: &Event<PersistentVolumeClaim>) -> Self {
        match event {
            Event::Modified { old, new }
                if volume_attributes_classes(old) != volume_attributes_classes(new)
                    || of_volume_claim(old) != of_volume_claim(new) =>
            {
                Change::Less
            }
            _ => Change::of_number(event),
        }
    }
}

/// How long until a pod that is being deleted is charged no more; none when that was so before.
fn overdue_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    // Times have whole seconds: a little later rather than a little early.
    let left = Duration::try_from(charged_until(pod)?.duration_since(now)).ok()?;
    Some(left + Duration::from_secs(1))
}

/// The pod, if it is to be charged until another time than before.
fn begins_to_go(event: &Event<Pod>) -> Option<&Arc<Pod>> {
    match event {
        Event::Added(pod) => Some(pod),
        Event::Modified { old, new } if charged_until(old) != charged_until(new) => Some(new),
        _ => None,
    }
}

/// Wakes the quotas that count a kind, for each of its objects that comes, goes or changes.
#[derive(Clone)]
struct Waker {
    quotas: Informer<ResourceQuota>,
    queue: WorkQueue<String>,
}

impl Waker {
    fn wake_in(&self, namespace: &str, delay: Duration) {
        for quota in self.quotas.by_namespace(namespace) {
            self.queue.add_after(pods::key(&*quota), delay);
        }
    }

    /// `count` says how many objects of the kind are looked at each time.
    fn wake<K: client::Object>(&self, event: &Event<K>, change: Change, count: usize) {
        if change == Change::None {
            return;
        }
        let namespace = event.object().meta().namespace();
        for quota in self.quotas.by_namespace(namespace) {
            let key = pods::key(&*quota);
            let key = if change == Change::More { format!("{ADDED}{key}") } else { key };
            self.queue.add_after(key, gather(count));
        }
    }
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let quotas = context.on::<ResourceQuota, _>(|event| match event {
        // Admission writes what is used; that alone is no reason to count again.
        Event::Modified { old, new } if old.spec == new.spec && hard_is_true(new) => None,
        _ => Some(pods::key(&**event.object())),
    });
    let waker = Waker { quotas, queue: context.queue.clone() };
    let pods = {
        let (pods, waker) = (context.informer::<Pod>(), waker.clone());
        let (all, clock) = (pods.shared(), context.config.clock.clone());
        pods.wakes(move |event| {
            waker.wake(event, Change::of_pod(event), all.len());
            if let Some(delay) = begins_to_go(event).and_then(|pod| overdue_in(pod, clock.now())) {
                waker.wake_in(event.object().metadata.namespace(), delay);
            }
        })
    };
    let services = {
        let waker = waker.clone();
        let change = |event: &Event<Service>| Change::of_usage(event, |service| &service.spec, of_service);
        context.informer::<Service>().wakes(move |event| waker.wake(event, change(event), 0))
    };
    let claims = {
        let waker = waker.clone();
        let change = Change::of_volume_claim;
        context.informer::<PersistentVolumeClaim>().wakes(move |event| waker.wake(event, change(event), 0))
    };
    Arc::new(Controller {
        client: context.client.clone(),
        clock: context.config.clock.clone(),
        waker,
        pods,
        services,
        claims,
        counted: Mutex::default(),
        device_claims: Mutex::default(),
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
    })
}

/// The resource that a name in `hard` counts, if it is not one of those handled by type.
fn counted_resource(name: &str) -> Option<(String, String)> {
    match name {
        "configmaps" | "secrets" | "replicationcontrollers" | "resourcequotas" => {
            return Some((name.to_owned(), String::new()));
        }
        "count/pods" | "count/services" | "count/persistentvolumeclaims" => return None,
        _ => {}
    }
    let counted = name.strip_prefix("count/")?;
    let (resource, group) = counted.split_once('.').unwrap_or((counted, ""));
    Some((resource.to_owned(), group.to_owned()))
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match key.strip_prefix(ADDED).filter(|quota| quota.contains('/')) {
                Some(quota) => self.sync(quota, Lower::No).await,
                None => self.sync(key, Lower::Yes).await,
            }
        })
    }

    fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(crate::controller::end_tasks(stop, &self.stop, &self.tasks)))
    }
}

impl Controller {
    async fn sync(&self, key: &str, lower: Lower) -> Outcome {
        // Admission and this controller both write what is used: the cached quota may be older than the event that led here.
        let (namespace, name) = client::split_key(key);
        let this = ListParams::fields(format!("metadata.name={name}"));
        let found = self.client.namespaced::<ResourceQuota>(namespace).list(&this).await?.items;
        let Some(quota) = found.into_iter().next() else { return Ok(Requeue::Never) };
        let spec = quota.spec.clone().unwrap_or_default();
        let hard = spec.hard.clone().unwrap_or_default();
        let scoped = spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) || spec.scope_selector.is_some();
        let (all, now) = (self.pods.by_namespace(namespace), self.clock.now());
        let mut parts: Vec<Usage> =
            all.iter().filter(|pod| selects_pod(&spec, pod)).map(|pod| of_pod_at(pod, now)).collect();
        let claims = self.claims.by_namespace(namespace);
        parts.extend(claims.iter().filter(|claim| selects_claim(&spec, claim)).map(|claim| of_volume_claim(claim)));
        let last = quota.status.as_ref().and_then(|status| status.used.as_ref());
        let mut recount = all.iter().filter_map(|pod| overdue_in(pod, now)).fold(RECOUNT_INTERVAL, Duration::min);
        if !scoped {
            parts.extend(self.services.by_namespace(namespace).iter().map(|service| of_service(service)));
            let devices = || hard.keys().filter(|name| name.ends_with(DEVICES_SUFFIX));
            if devices().next().is_some() {
                match self.device_claims(namespace).await {
                    Some(claims) => parts.extend(claims),
                    None => parts.extend(devices().filter_map(|name| {
                        let amount = last?.get(name)?.try_into().ok()?;
                        Some(Usage::from([(name.clone(), amount)]))
                    })),
                }
            }
            for name in hard.keys() {
                let known = match self.count(name, namespace).await? {
                    Count::Known(count) => Some(count),
                    Count::Elsewhere => None,
                    Count::NotServed => {
                        recount = recount.min(DISCOVERY_INTERVAL);
                        None
                    }
                    Count::Unknown => {
                        recount = recount.min(DISCOVERY_INTERVAL);
                        last.and_then(|used| used.get(name)).and_then(|amount| amount.try_into().ok())
                    }
                };
                parts.extend(known.map(|count| Usage::from([(name.clone(), count)])));
            }
        }
        let mut used = sum(hard.keys().cloned(), parts);
        if lower == Lower::No && hard_is_true(&quota) {
            let parse = |(name, amount)| Some((Clone::clone(name), api::quantity::Quantity::try_from(amount).ok()?));
            raise(&mut used, last.into_iter().flatten().filter_map(parse).collect());
        }
        let status = ResourceQuotaStatus {
            hard: Some(hard),
            used: Some(used.into_iter().map(|(name, amount)| (name, amount.into())).collect()),
        };
        if quota.status.as_ref() != Some(&status) {
            let changed = ResourceQuota { status: Some(status), ..quota };
            self.client.all::<ResourceQuota>().update_status(&changed).await?;
        }
        Ok(match lower {
            Lower::Yes => Requeue::After(recount),
            Lower::No => Requeue::Never,
        })
    }

    /// How many objects of a counted kind the namespace has.
    async fn count(&self, name: &str, namespace: &str) -> Result<Count, Error> {
        let Some((resource, group)) = counted_resource(name) else { return Ok(Count::Elsewhere) };
        let known = self
            .counted
            .lock()
            .iter()
            .find(|(gvr, _)| gvr.resource == resource && gvr.group == group)
            .map(|(_, counted)| counted.clone());
        let Counted { informer, until } = match known {
            Some(counted) => counted,
            None => {
                let (resources, failed) = self.client.discover().await?;
                let found =
                    resources.into_iter().find(|found| found.gvr.resource == resource && found.gvr.group == group);
                match found {
                    Some(found) => self.watch(&found),
                    None if failed.iter().any(|(path, _)| path.starts_with(&format!("/apis/{group}/"))) => {
                        return Ok(Count::Unknown);
                    }
                    None => return Ok(Count::NotServed),
                }
            }
        };
        tokio::select! {
            biased;
            () = informer.synced() => {}
            () = tokio::time::sleep_until(until) => return Ok(Count::Unknown),
            () = self.stop.cancelled() => return Ok(Count::Unknown),
        }
        let count = informer.by_namespace(namespace).len();
        Ok(Count::Known(api::quantity::Quantity::new(
            i64::try_from(count).unwrap_or(i64::MAX),
            api::quantity::Format::DecimalSI,
        )))
    }

    /// What claims use of devices, without their number, which is counted as that of any other kind. None where nobody can tell
    /// at present.
    async fn device_claims(&self, namespace: &str) -> Option<Vec<Usage>> {
        let informer = {
            let mut claims = self.device_claims.lock();
            let start = || {
                let informer = Informer::new(self.client.all::<ResourceClaim>(), ListParams::default());
                let waker = self.waker.clone();
                informer.subscribe(move |event| {
                    let change = Change::of_usage(event, |claim: &ResourceClaim| &claim.spec, of_resource_claim);
                    waker.wake(event, change, 0);
                });
                let (running, stop) = (informer.clone(), self.stop.clone());
                self.tasks.spawn(FutureExt::boxed(async move { running.run(stop).await }));
                informer
            };
            claims.get_or_insert_with(start).clone()
        };
        tokio::select! {
            () = informer.synced() => {}
            () = tokio::time::sleep(LIST_TIMEOUT) => return None,
            () = self.stop.cancelled() => return None,
        }
        let usage = |claim: &Arc<ResourceClaim>| {
            let mut usage = of_resource_claim(claim);
            usage.retain(|name, _| name.ends_with(DEVICES_SUFFIX));
            usage
        };
        Some(informer.by_namespace(namespace).iter().map(usage).collect())
    }

    fn watch(&self, resource: &ApiResource) -> Counted {
        let mut all = self.counted.lock();
        if let Some(counted) = all.get(&resource.gvr) {
            return counted.clone();
        }
        let informer: Informer<Owned> = Informer::new(self.client.owned(&resource.gvr, None), ListParams::default());
        let waker = self.waker.clone();
        informer.subscribe(move |event| waker.wake(event, Change::of_number(event), 0));
        let (running, stop) = (informer.clone(), self.stop.clone());
        self.tasks.spawn(FutureExt::boxed(async move { running.run(stop).await }));
        let counted = Counted { informer, until: Instant::now() + LIST_TIMEOUT };
        all.insert(resource.gvr.clone(), counted.clone());
        counted
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use http_body_util::{BodyExt, Full};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;

    use super::*;
    use crate::pods::tests::{Builder, at};

    #[tokio::test(start_paused = true)]
    async fn security_a_kind_that_cannot_be_read_is_waited_for_once() {
        let handler: client::Handler = Arc::new(|request: Request<bytes::Bytes>| {
            Box::pin(async move {
                let verbs = ["delete", "list", "watch"];
                let thing = json!({"name": "things", "singularName": "", "namespaced": true, "kind": "Thing",
                    "verbs": verbs});
                let version = json!({"groupVersion": "example.com/v1", "version": "v1"});
                let body = match request.uri().path() {
                    "/apis" => json!({"groups": [{"name": "example.com", "versions": [version]}]}),
                    "/api/v1" => json!({"groupVersion": "v1", "resources": []}),
                    "/apis/example.com/v1" => json!({"groupVersion": "example.com/v1", "resources": [thing]}),
                    _ => std::future::pending().await,
                };
                Response::new(Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync())
            })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let informers = client::InformerFactory::new(client.clone());
        let controller = Controller {
            client,
            waker: Waker { quotas: informers.informer(), queue: WorkQueue::new() },
            clock: Clock::default(),
            pods: informers.informer(),
            services: informers.informer(),
            claims: informers.informer(),
            counted: Mutex::default(),
            device_claims: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        };
        let began = Instant::now();
        for _ in 0..3 {
            assert!(matches!(controller.count("count/things.example.com", "n").await, Ok(Count::Unknown)));
        }
        assert!(began.elapsed() < LIST_TIMEOUT * 2, "{:?}", began.elapsed());
    }

    #[test]
    fn a_pod_that_is_to_go_sooner_is_looked_at_sooner() {
        let pod = |grace: Option<i64>| {
            let mut pod = Builder::new("a").0;
            pod.metadata.deletion_timestamp = grace.map(|_| Time(at(100)));
            pod.metadata.deletion_grace_period_seconds = grace;
            Arc::new(Pod::from(pod))
        };
        for (old, new, expected) in
            [(None, None, false), (None, Some(30), true), (Some(30), Some(30), false), (Some(30), Some(1), true)]
        {
            let event = Event::Modified { old: pod(old), new: pod(new) };
            assert_eq!(begins_to_go(&event).is_some(), expected, "{old:?} {new:?}");
        }
    }

    /// A deadline takes a pod from quotas of the scope NotTerminating to those of Terminating.
    #[test]
    fn a_pod_that_gets_a_deadline_is_counted_again() {
        let pod = |deadline: Option<i64>| {
            let mut pod = Builder::new("a").0;
            pod.spec.get_or_insert_default().active_deadline_seconds = deadline;
            Arc::new(Pod::from(pod))
        };
        for (old, new, expected) in
            [(None, Some(10), Change::Less), (Some(20), Some(10), Change::None), (None, None, Change::None)]
        {
            let event = Event::Modified { old: pod(old), new: pod(new) };
            assert_eq!(Change::of_pod(&event), expected, "{old:?} {new:?}");
        }
    }

    #[test]
    fn names_say_what_is_counted() {
        for (name, expected) in [
            ("pods", None),
            ("requests.cpu", None),
            ("secrets", Some(("secrets", ""))),
            ("count/pods", None),
            ("count/deployments.apps", Some(("deployments", "apps"))),
            ("count/widgets.example.com", Some(("widgets", "example.com"))),
            ("count/configmaps", Some(("configmaps", ""))),
        ] {
            assert_eq!(
                counted_resource(name),
                expected.map(|(resource, group)| (resource.to_owned(), group.to_owned())),
                "{name}"
            );
        }
    }
}

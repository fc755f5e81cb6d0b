//! ResourceQuota: keeps `status.used` true. Admission counts up as objects are created; this counts again when they go.
//!
//! Pods, services and claims come from shared informers. Other kinds that a quota counts are watched, by metadata only and only
//! from the first quota that names them.

mod usage;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use client::{ApiResource, Client, Event, Gvr, Informer, ListParams, PartialObject, WorkQueue};
use futures_util::future::BoxFuture;
use k8s_openapi::Metadata;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota, ResourceQuotaStatus, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};
use usage::{Usage, in_scope, of_claim, of_pod, of_service, sum};

/// Admission counts before an object is written, and a write can still fail: what is used drifts, and is counted anew.
const RECOUNT: Duration = Duration::from_secs(300);
/// A server that lists a kind for the first time gets this long.
const PATIENCE: Duration = Duration::from_secs(10);

struct Controller {
    client: Client,
    queue: WorkQueue<String>,
    quotas: Informer<ResourceQuota>,
    pods: Informer<Pod>,
    services: Informer<Service>,
    claims: Informer<PersistentVolumeClaim>,
    counted: Mutex<HashMap<Gvr, Informer<PartialObject>>>,
    stop: CancellationToken,
    tasks: TaskTracker,
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

fn keys(quotas: &Informer<ResourceQuota>, namespace: Option<&String>) -> Vec<String> {
    quotas
        .by_namespace(namespace.map(String::as_str).unwrap_or_default())
        .iter()
        .map(|quota| pods::key(&**quota))
        .collect()
}

/// How many objects of a kind there are.
enum Count {
    Known(api::quantity::Quantity),
    /// The server of the kind cannot be asked at present: what was counted last still holds.
    Unknown,
    /// Nobody serves the kind, or it is counted elsewhere.
    Elsewhere,
}

/// The quotas that an event concerns.
fn touched<K: Metadata<Ty = ObjectMeta>>(quotas: &Informer<ResourceQuota>, event: &Event<K>) -> Vec<String> {
    keys(quotas, event.object().metadata().namespace.as_ref())
}

/// The quotas to count again. Admission has counted what is new, and others that are not written yet with it: counting
/// what is there would forget those and let too many in. So only what goes or uses another amount is a reason.
fn changed<K: Metadata<Ty = ObjectMeta>, S: PartialEq>(
    quotas: &Informer<ResourceQuota>,
    event: &Event<K>,
    spec: fn(&K) -> &S,
    usage: fn(&K) -> Usage,
) -> Vec<String> {
    match event {
        Event::Added(_) => Vec::new(),
        Event::Modified { old, new } if spec(old) == spec(new) || usage(old) == usage(new) => Vec::new(),
        Event::Modified { .. } | Event::Deleted(_) => touched(quotas, event),
    }
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let quotas = context.on::<ResourceQuota, _>(|event| match event {
        // Admission writes what is used; that alone is no reason to count again.
        Event::Modified { old, new } if old.spec == new.spec && hard_is_true(new) => None,
        _ => Some(pods::key(&**event.object())),
    });
    let (on_pod, on_service, on_claim) = (quotas.clone(), quotas.clone(), quotas.clone());
    let pods = context.on::<Pod, _>(move |event| match event {
        Event::Modified { old, new } if pods::is_finished(old) != pods::is_finished(new) => touched(&on_pod, event),
        _ => changed(&on_pod, event, |pod| &pod.spec, of_pod),
    });
    let services =
        context.on::<Service, _>(move |event| changed(&on_service, event, |service| &service.spec, of_service));
    let claims =
        context.on::<PersistentVolumeClaim, _>(move |event| changed(&on_claim, event, |claim| &claim.spec, of_claim));
    Arc::new(Controller {
        client: context.client.clone(),
        queue: context.queue.clone(),
        quotas,
        pods,
        services,
        claims,
        counted: Mutex::default(),
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
        Box::pin(self.sync(key))
    }

    fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(crate::controller::end_tasks(stop, &self.stop, &self.tasks)))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(quota) = self.quotas.get(key) else { return Ok(Requeue::Never) };
        let namespace = quota.metadata.namespace.as_deref().unwrap_or_default();
        let spec = quota.spec.clone().unwrap_or_default();
        let hard = spec.hard.clone().unwrap_or_default();
        let scoped = spec.scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) || spec.scope_selector.is_some();
        let mut parts: Vec<Usage> = self
            .pods
            .by_namespace(namespace)
            .iter()
            .filter(|pod| in_scope(&spec, pod))
            .map(|pod| of_pod(pod))
            .collect();
        let last = quota.status.as_ref().and_then(|status| status.used.as_ref());
        if !scoped {
            parts.extend(self.services.by_namespace(namespace).iter().map(|service| of_service(service)));
            parts.extend(self.claims.by_namespace(namespace).iter().map(|claim| of_claim(claim)));
            for name in hard.keys() {
                let known = match self.count(name, namespace).await? {
                    Count::Known(count) => Some(count),
                    Count::Elsewhere => None,
                    Count::Unknown => last.and_then(|used| used.get(name)).and_then(|amount| amount.try_into().ok()),
                };
                parts.extend(known.map(|count| Usage::from([(name.clone(), count)])));
            }
        }
        let used = sum(hard.keys().cloned(), parts);
        let status = ResourceQuotaStatus {
            hard: Some(hard),
            used: Some(used.into_iter().map(|(name, amount)| (name, amount.into())).collect()),
        };
        if quota.status.as_ref() != Some(&status) {
            let changed = ResourceQuota { status: Some(status), ..ResourceQuota::clone(&quota) };
            self.client.all::<ResourceQuota>().update_status(&changed).await?;
        }
        Ok(Requeue::After(RECOUNT))
    }

    /// How many objects of a counted kind the namespace has.
    async fn count(&self, name: &str, namespace: &str) -> Result<Count, Error> {
        let Some((resource, group)) = counted_resource(name) else { return Ok(Count::Elsewhere) };
        let known = self
            .counted
            .lock()
            .iter()
            .find(|(gvr, _)| gvr.resource == resource && gvr.group == group)
            .map(|(_, informer)| informer.clone());
        let informer = match known {
            Some(informer) => informer,
            None => {
                let (resources, failed) = self.client.discover().await?;
                let found =
                    resources.into_iter().find(|found| found.gvr.resource == resource && found.gvr.group == group);
                match found {
                    Some(found) => self.watch(&found),
                    None if failed.iter().any(|(path, _)| path.starts_with(&format!("/apis/{group}/"))) => {
                        return Ok(Count::Unknown);
                    }
                    None => return Ok(Count::Elsewhere),
                }
            }
        };
        tokio::select! {
            () = informer.synced() => {}
            () = tokio::time::sleep(PATIENCE) => return Ok(Count::Unknown),
            () = self.stop.cancelled() => return Ok(Count::Unknown),
        }
        let count = informer.by_namespace(namespace).len();
        Ok(Count::Known(api::quantity::Quantity::new(
            i64::try_from(count).unwrap_or(i64::MAX),
            api::quantity::Format::DecimalSI,
        )))
    }

    fn watch(&self, resource: &ApiResource) -> Informer<PartialObject> {
        let mut counted = self.counted.lock();
        if let Some(informer) = counted.get(&resource.gvr) {
            return informer.clone();
        }
        let informer: Informer<PartialObject> =
            Informer::new(self.client.metadata(&resource.gvr, None), ListParams::default());
        let (quotas, queue) = (self.quotas.clone(), self.queue.clone());
        informer.subscribe(move |event| {
            if matches!(event, Event::Deleted(_)) {
                keys(&quotas, event.object().metadata.namespace.as_ref()).into_iter().for_each(|key| queue.add(key));
            }
        });
        let (running, stop) = (informer.clone(), self.stop.clone());
        self.tasks.spawn(async move { running.run(stop).await });
        counted.insert(resource.gvr.clone(), informer.clone());
        informer
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

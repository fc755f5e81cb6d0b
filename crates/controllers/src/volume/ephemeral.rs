//! Ephemeral volumes: a pod's own claim, made from the template in its spec and owned by it.

use std::sync::Arc;

use api::cached::Pod;
use api::meta::Meta as _;
use client::metrics::Counter;
use client::{Client, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::protection::{BY_CLAIM, claims_of};
use crate::controller::{CATCH_UP_TIMEOUT, Context, Outcome, Reconcile, Requeue};
use crate::owners::controller_reference;
use crate::{Error, pods};

struct Controller {
    client: Client,
    recorder: EventRecorder,
    pods: Informer<Pod>,
    claims: Informer<PersistentVolumeClaim>,
    /// Claims that were to be made, and those that could not be.
    attempts: Counter,
    failures: Counter,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let pods = context.on::<Pod, _>(|event| match event {
        Event::Deleted(_) => None,
        _ => {
            let pod = event.object();
            let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_ref());
            volumes.into_iter().flatten().any(|volume| volume.ephemeral.is_some()).then(|| pods::key(&**pod))
        }
    });
    pods.add_index(BY_CLAIM, claims_of);
    // A claim that somebody takes away from a pod is made again, and one of that name that was not the pod's made it wait.
    let claims = {
        let pods = pods.clone();
        context.on::<PersistentVolumeClaim, _>(move |event| match event {
            Event::Deleted(claim) => {
                let waiting = pods.by_index(BY_CLAIM, &pods::key(&**claim));
                waiting.iter().map(|pod| pods::key(&**pod)).collect::<Vec<_>>()
            }
            _ => Vec::new(),
        })
    };
    let counter = |name, help| context.config.metrics.counter(name, help, &[]);
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        pods,
        claims,
        attempts: counter(
            "ephemeral_volume_controller_create_total",
            "Number of PersistentVolumeClaim creation requests",
        ),
        failures: counter(
            "ephemeral_volume_controller_create_failures_total",
            "Number of PersistentVolumeClaim creation requests that failed",
        ),
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(pod) = self.pods.get(key).filter(|pod| !pods::is_terminating(pod)) else {
                return Ok(Requeue::Never);
            };
            let namespace = pod.metadata.namespace();
            let mut requeue = Requeue::Never;
            for volume in pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()) {
                let Some(template) = volume.ephemeral.as_ref().and_then(|source| source.volume_claim_template.as_ref())
                else {
                    continue;
                };
                let name = api::claim::made_for(pod.metadata.name(), &volume.name);
                if let Some(claim) = self.claims.get(&format!("{namespace}/{name}")) {
                    if !claim.metadata.is_controlled_by(pod.metadata.uid()) {
                        let why = format!("PVC {namespace}/{name} was not created for pod {key} (pod is not owner)");
                        self.report(&pod, &volume.name, &why);
                        return Err(Error::object(why));
                    }
                    continue;
                }
                let metadata = template.metadata.clone().unwrap_or_default();
                let claim = PersistentVolumeClaim {
                    metadata: ObjectMeta {
                        name: Some(name),
                        namespace: Some(namespace.into()),
                        labels: metadata.labels,
                        annotations: metadata.annotations,
                        owner_references: Some(vec![controller_reference(&*pod)]),
                        ..ObjectMeta::default()
                    },
                    spec: Some(template.spec.clone()),
                    status: None,
                };
                let created = self.client.all::<PersistentVolumeClaim>().create(&claim).await;
                self.attempts.inc();
                if created.is_err() {
                    self.failures.inc();
                }
                match created {
                    Ok(_) => {}
                    // Whose it is, the cache will show.
                    Err(error) if error.is_already_exists() => requeue = Requeue::After(CATCH_UP_TIMEOUT),
                    Err(error) if error.is_namespace_terminating() => {}
                    Err(error) => {
                        let name = claim.metadata.name();
                        self.report(&pod, &volume.name, &format!("create PVC {name}: {error}"));
                        return Err(error.into());
                    }
                }
            }
            Ok(requeue)
        })
    }
}

impl Controller {
    fn report(&self, pod: &Pod, volume: &str, why: &str) {
        let message = format!("ephemeral volume {volume}: {why}");
        self.recorder.warning(&client::reference(pod), "FailedBinding", message);
    }
}

//! Deployment: one ReplicaSet per pod template, sizes moved from the old to the new within bounds.
//!
//! Flow: Deployment, ReplicaSet and Pod events -> Deployment key -> claim ReplicaSets -> `plan` -> the API -> status.
//! Invariant: names of ReplicaSets follow from the template, and every update carries the version it was decided on, so a
//! stale cache leads to a conflict and a second look, never to a second ReplicaSet.

mod plan;
mod replica_sets;
mod status;

use std::sync::Arc;
use std::time::Duration;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use client::{Client, Clock, DeleteParams, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};

use crate::Error;
use crate::controller::{BATCH_INTERVAL, Context, Outcome, Reconcile, Requeue};
use crate::owners::{adopters, candidates, claim, controller_key, index_orphans};
use crate::pods;
use plan::plan;
pub(crate) use replica_sets::template_hash;
use replica_sets::{REVISION, same_template};

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    deployments: Informer<Packed<Deployment>>,
    sets: Informer<Packed<ReplicaSet>>,
    pods: Informer<Pod>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let deployments = context.on_self::<Packed<Deployment>>();
    let sets = context.informer::<Packed<ReplicaSet>>();
    index_orphans(&sets);
    let sets = {
        let (deployments, queue) = (deployments.clone(), context.queue.clone());
        sets.wakes(move |event| {
            let delay = if matches!(event, Event::Modified { .. }) { BATCH_INTERVAL } else { Duration::ZERO };
            set_keys(event, &deployments).into_iter().for_each(|key| queue.add_after(key, delay));
        })
    };
    // Recreate waits for the last old pod to be gone; other pod events reach the Deployment through its ReplicaSets.
    let pods = {
        let (deployments, sets) = (deployments.clone(), sets.clone());
        context.on::<Pod, _>(move |event| {
            let Event::Deleted(pod) = event else { return None };
            let set = sets.get(&controller_key(&pod.metadata, &sets)?)?;
            let key = controller_key(&set.metadata, &deployments)?;
            let deployment = deployments.get(&key)?.unpack();
            let recreates = deployment.spec.as_ref().is_some_and(|spec| !replica_sets::is_rolling(spec));
            recreates.then_some(key)
        })
    };
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        deployments,
        sets,
        pods,
    })
}

/// The Deployments that a change of a ReplicaSet concerns.
fn set_keys(event: &Event<Packed<ReplicaSet>>, deployments: &Informer<Packed<Deployment>>) -> Vec<String> {
    let set = event.object();
    let mut keys: Vec<String> = controller_key(&set.metadata, deployments).into_iter().collect();
    let mut orphan = !matches!(event, Event::Deleted(_));
    if let Event::Modified { old, new } = event {
        if old.metadata.controller() != new.metadata.controller() {
            keys.extend(controller_key(&old.metadata, deployments));
        } else {
            orphan &= old.metadata.labels != new.metadata.labels;
        }
    }
    if orphan {
        keys.extend(adopters(&set.metadata, deployments, |deployment| {
            pods::selector(deployment.part(&["spec", "selector"]).as_ref())
        }));
    }
    keys
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(deployment) = self.deployments.get(key) else { return Ok(Requeue::Never) };
        let deployment = deployment.unpack();
        let about = client::reference(&deployment);
        let selector = pods::selector(deployment.spec.as_ref().map(|spec| &spec.selector))?;
        if selector.is_empty() {
            self.recorder.warning(
                &about,
                "SelectingAll",
                "This deployment is selecting all pods. A non-empty selector is required.",
            );
            return Ok(Requeue::Never);
        }
        let sets =
            claim(&self.client, &deployment, &selector, candidates(&self.sets, &deployment.metadata), |_| true).await?;
        let sets: Vec<ReplicaSet> = sets.iter().map(|set| set.unpack()).collect();
        let now = self.clock.now();
        let mut plan = plan(&deployment, &sets, |old| self.old_pods_run(old), now);

        if let Some(set) = plan.create.take() {
            self.create(&deployment, &set, &mut plan).await?;
        }
        let api = self.client.namespaced::<ReplicaSet>(deployment.metadata.namespace());
        for set in &plan.update {
            api.update(set).await?;
        }
        for event in &plan.events {
            if event.warning {
                self.recorder.warning(&about, event.reason, event.message.clone());
            } else {
                self.recorder.normal(&about, event.reason, event.message.clone());
            }
        }
        for name in &plan.delete {
            match api.delete(name, &DeleteParams::background()).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => {}
            }
        }
        if let Some(rolled_back) = &plan.rollback {
            self.client.all::<Deployment>().update(rolled_back).await?;
            return Ok(Requeue::Never);
        }
        self.write_status(&deployment, &plan).await?;
        let spec = deployment.spec.clone().unwrap_or_default();
        Ok(status::recheck_in(&deployment, &spec, &plan.status, now).into())
    }

    /// Creates the ReplicaSet of the present template. One of that name with another template is a collision of hashes:
    /// the count in the status makes the next hash a different one.
    async fn create(&self, deployment: &Deployment, set: &ReplicaSet, plan: &mut plan::Plan) -> Result<(), Error> {
        let api = self.client.namespaced::<ReplicaSet>(deployment.metadata.namespace());
        let name = set.metadata.name();
        let error = match api.create(set).await {
            Ok(_) => return Ok(()),
            Err(error) => error,
        };
        plan.events.clear();
        if error.is_already_exists() {
            let existing = api.get(name).await?;
            let template = existing.spec.as_ref().and_then(|spec| spec.template.as_ref());
            let wanted = set.spec.as_ref().and_then(|spec| spec.template.as_ref());
            let ours = existing.metadata.is_controlled_by(deployment.metadata.uid());
            if ours && template.zip(wanted).is_some_and(|(template, wanted)| same_template(template, wanted)) {
                return Ok(()); // the cache is behind: its event brings the next pass
            }
            let mut changed = deployment.clone();
            let status = changed.status.get_or_insert_default();
            status.collision_count = Some(status.collision_count.unwrap_or_default() + 1);
            self.client.all::<Deployment>().update_status(&changed).await?;
        } else if !error.is_namespace_terminating() {
            let message = format!("Failed to create new replica set \"{name}\": {error}");
            self.recorder.warning(&client::reference(deployment), "ReplicaSetCreateError", message.clone());
            let mut changed = deployment.clone();
            if status::has_deadline(&deployment.spec.clone().unwrap_or_default()) {
                let status = changed.status.get_or_insert_default();
                status::set(status, "Progressing", "False", "ReplicaSetCreateError", message, self.clock.now());
                self.client.all::<Deployment>().update_status(&changed).await?;
            }
        }
        Err(error.into())
    }

    /// The revision annotation travels with the status, as upstream's status strategy lets it; where the server keeps
    /// metadata out of status updates it is written on its own.
    async fn write_status(&self, deployment: &Deployment, plan: &plan::Plan) -> Result<(), Error> {
        let annotated = |deployment: &Deployment| {
            plan.revision.is_none()
                || replica_sets::annotation(&deployment.metadata, REVISION) == plan.revision.as_deref()
        };
        let mut changed = deployment.clone();
        changed.status = Some(plan.status.clone());
        if let Some(revision) = &plan.revision {
            changed.metadata.annotations.get_or_insert_default().insert(REVISION.into(), revision.clone());
        }
        if deployment.status.as_ref() == Some(&plan.status) && annotated(deployment) {
            return Ok(());
        }
        let api = self.client.all::<Deployment>();
        let mut written = api.update_status(&changed).await?;
        if !annotated(&written) {
            written.metadata.annotations.clone_from(&changed.metadata.annotations);
            api.update(&written).await?;
        }
        Ok(())
    }

    fn old_pods_run(&self, old: &[ReplicaSet]) -> bool {
        old.iter().any(|set| {
            replica_sets::actual(set) > 0
                || self.pods.by_owner(set.metadata.uid()).iter().any(|pod| !pods::is_finished(pod))
        })
    }
}

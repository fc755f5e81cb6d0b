//! ReplicaSet and ReplicationController: keep a number of pods that match a selector.
//!
//! Flow: pod and owner events -> owner key -> claim pods -> `plan` -> create or delete -> status.
//! Invariant: nothing is created or deleted while an earlier creation or deletion has not come back through the
//! pod informer (`Expectations`), so a stale cache never makes a duplicate.

mod plan;
mod replicated;

use std::sync::Arc;
use std::time::Duration;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use client::metrics::{Histogram, exponential};
use client::{Client, Clock, Event, EventRecorder, Expectations, Informer, WorkQueue};
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::ReplicationController;

use crate::controller::{Context, Outcome, Reconcile, Requeue, Source, gather};
use crate::owners::{adopters, candidates, claim, controller_key, controller_reference, index_orphans};
use crate::{pods, slow_start};
use plan::{Action, Failure, age_ratios, next_available, plan, status};
use replicated::Replicated;

pub(crate) fn build_replica_sets(context: &Context) -> Arc<dyn Reconcile> {
    build::<ReplicaSet>(context)
}

pub(crate) fn build_replication_controllers(context: &Context) -> Arc<dyn Reconcile> {
    build::<ReplicationController>(context)
}

static AGE_BOUNDS: [f64; 6] = exponential(0.25, 2.0);

struct Controller<K> {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    owners: Informer<Packed<K>>,
    pods: Informer<Pod>,
    expectations: Arc<Expectations>,
    /// How old surplus pods are, compared with the youngest.
    ages: Histogram,
}

fn build<K: Replicated>(context: &Context) -> Arc<dyn Reconcile> {
    let expectations = context.expectations();
    let owners = {
        let expectations = expectations.clone();
        context.on::<Packed<K>, _>(move |event| {
            let key = pods::key(&**event.object());
            if let Event::Deleted(_) = event {
                expectations.forget(&key);
            }
            [key]
        })
    };
    let pods = context.informer::<Pod>();
    index_orphans(&pods);
    let pods = subscribe(pods, owners.clone(), expectations.clone(), context.queue.clone());
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        owners,
        pods,
        expectations,
        ages: context.config.metrics.histogram(
            "replicaset_controller_sorting_deletion_age_ratio",
            "The ratio of chosen deleted pod's ages to the current youngest pod's age",
            &AGE_BOUNDS,
            &[],
        ),
    })
}

/// Maps pod events to owners and tells the expectations what came back.
fn subscribe<K: Replicated>(
    pods: Source<Pod>,
    owners: Informer<Packed<K>>,
    expectations: Arc<Expectations>,
    queue: WorkQueue<String>,
) -> Informer<Pod> {
    let look_soon = {
        let (owners, queue) = (owners.clone(), queue.clone());
        move |key: String| {
            // Every event of a pod comes by here: the owner is not unpacked for it.
            let count: Option<i32> = owners.get(&key).and_then(|owner| owner.part(&["spec", "replicas"]));
            queue.add_after(key, gather(count.and_then(|count| usize::try_from(count).ok()).unwrap_or_default()));
        }
    };
    let gone = {
        let (owners, expectations, look_soon) = (owners.clone(), expectations.clone(), look_soon.clone());
        move |pod: &Pod| {
            if let Some(key) = controller_key(&pod.metadata, &owners) {
                expectations.deletion_observed(&key, &pods::key(pod));
                look_soon(key);
            }
        }
    };
    pods.wakes(move |event| match event {
        // A restart may first see a pod when it is already being deleted.
        Event::Added(pod) if pods::is_terminating(pod) => gone(pod),
        Event::Added(pod) => match controller_key(&pod.metadata, &owners) {
            Some(key) => {
                expectations.creation_observed(&key);
                // The last one asked for: the next batch can begin.
                if expectations.satisfied(&key) { queue.add(key) } else { look_soon(key) }
            }
            None => adopters(&pod.metadata, &owners, K::packed_selector).into_iter().for_each(|key| queue.add(key)),
        },
        Event::Modified { old, new } => {
            let (before, after) = (old.metadata.controller(), new.metadata.controller());
            if before != after
                && let Some(key) = controller_key(&old.metadata, &owners)
            {
                queue.add(key);
            }
            if pods::is_terminating(new) {
                gone(new);
                return;
            }
            match controller_key(&new.metadata, &owners) {
                Some(key) => look_soon(key),
                None if before.is_some() || old.metadata.labels != new.metadata.labels => {
                    adopters(&new.metadata, &owners, K::packed_selector).into_iter().for_each(|key| queue.add(key));
                }
                None => {}
            }
        }
        Event::Deleted(pod) => gone(pod),
    })
}

impl<K: Replicated> Reconcile for Controller<K> {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl<K: Replicated> Controller<K> {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(owner) = self.owners.get(key) else {
            self.expectations.forget(key);
            return Ok(Requeue::Never);
        };
        let owner = owner.unpack();
        // Read before the pods: what is observed in between only makes the answer more cautious.
        let settled = self.expectations.satisfied(key);
        let selector = owner.pod_selector()?;
        let all = candidates(&self.pods, owner.metadata());
        let terminating = all.iter().filter(|pod| {
            pods::is_terminating(pod) && !pods::is_finished(pod) && pod.metadata.is_controlled_by(owner.uid())
        });
        let terminating = i32::try_from(terminating.count()).unwrap_or(i32::MAX);
        let active: Vec<_> = all.into_iter().filter(|pod| pods::is_active(pod)).collect();
        let mine = claim(&self.client, &owner, &selector, active, |_| true).await?;

        let mut failure = None;
        if settled && owner.metadata().deletion_timestamp.is_none() {
            failure = self.act(key, &owner, &mine).await;
        }
        let now = self.clock.now();
        let new =
            status(&owner, &mine, terminating, failure.as_ref().filter(|failure| !failure.error.is_conflict()), now);
        let mut updated = None;
        if new != owner.replica_status() {
            let api = self.client.namespaced::<K>(owner.metadata().namespace());
            updated = Some(api.update_status(&owner.with_replica_status(new.clone())).await?);
        }
        drop(updated);
        if let Some(Failure { error, .. }) = failure {
            return Err(error);
        }
        let pending = new.ready != new.available && new.replicas == owner.replicas();
        let delay = next_available(&mine, owner.min_ready_seconds(), now).filter(|_| pending);
        // Times have whole seconds: look a little later rather than a little early.
        Ok(delay.map(|delay| delay + Duration::from_secs(1)).into())
    }

    async fn act(&self, key: &str, owner: &K, mine: &[Arc<Pod>]) -> Option<Failure> {
        let about = client::reference(owner);
        match plan(owner.replicas(), mine, || self.related(owner), self.clock.now()) {
            Action::Nothing => None,
            Action::Create(count) => {
                let template = owner.template()?;
                let namespace = owner.metadata().namespace();
                let name = owner.metadata().name();
                let pod = pods::from_template(template, namespace, name, controller_reference(owner));
                self.expectations.expect_creations(key, count);
                let (created, failed) = slow_start::batches(count, |_| async {
                    match pods::create(&self.client, &self.recorder, &about, &pod).await {
                        Ok(_) => Ok(()),
                        // Nobody can create there any more: as good as done.
                        Err(error) if error.is_namespace_terminating() => {
                            self.expectations.creation_observed(key);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                })
                .await;
                // What was never created will never come back.
                self.expectations.creations_observed(key, count - created);
                failed.map(|error| Failure { reason: "FailedCreate", error: error.into() })
            }
            Action::Delete(surplus) => {
                if surplus.len() < mine.len() {
                    age_ratios(mine, &surplus, self.clock.now()).for_each(|ratio| self.ages.observe(ratio));
                }
                self.expectations.expect_deletions(key, surplus.iter().map(|pod| pods::key(&**pod)));
                let deletions = surplus.iter().map(|pod| async {
                    let deleted = pods::delete(&self.client, &self.recorder, &about, pod).await;
                    if deleted.is_err() || self.pods.get(&pods::key(&**pod)).is_none() {
                        self.expectations.deletion_observed(key, &pods::key(&**pod));
                    }
                    deleted
                });
                let failed = join_all(deletions).await.into_iter().find_map(Result::err);
                failed.map(|error| Failure { reason: "FailedDelete", error: error.into() })
            }
        }
    }

    /// The pods of every set that shares this one's controller (all revisions of a Deployment): together they crowd nodes.
    fn related(&self, owner: &K) -> Vec<Arc<Pod>> {
        let siblings = match owner.metadata().controller() {
            Some(reference) => self.owners.by_owner(&reference.uid),
            None => self.owners.get(&pods::key(owner)).into_iter().collect(),
        };
        let uid = |sibling: &Packed<K>| sibling.metadata.uid().to_owned();
        siblings.iter().flat_map(|sibling| self.pods.by_owner(&uid(sibling))).collect()
    }
}

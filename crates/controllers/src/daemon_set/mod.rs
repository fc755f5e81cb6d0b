//! DaemonSet: one pod on every node that takes it.
//!
//! Flow: set, node and pod events -> set key -> claim pods -> record the template as a revision -> `plan` -> create, delete -> status.
//! Pods are pinned to their node by affinity and placed by the scheduler, like any other.

mod plan;

use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::selector::Selector;
use client::{Client, Clock, Event, EventRecorder, Expectations, Informer, RateLimiter};
use futures_util::future::{BoxFuture, join_all};
use k8s_openapi::api::apps::v1::{ControllerRevision, DaemonSet};
use k8s_openapi::api::core::v1::{Node, Pod as NewPod};
use parking_lot::Mutex;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::owners::{
    adopters, candidates, claim, controller_key, controller_reference, former_controller, index_orphans,
};
use crate::{Error, history, pods, slow_start};
use plan::{placement, plan, tolerations};

/// How long a node that fails its daemon again and again waits for the next.
const FAILED: RateLimiter = RateLimiter { base: Duration::from_secs(1), cap: Duration::from_secs(15 * 60) };

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    sets: Informer<DaemonSet>,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    revisions: Informer<ControllerRevision>,
    expectations: Arc<Expectations>,
    /// Failures per set and node, and when the last was.
    failures: Mutex<std::collections::HashMap<String, (u32, tokio::time::Instant)>>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let expectations = context.expectations();
    let sets = {
        let expectations = expectations.clone();
        context.on::<DaemonSet, _>(move |event| {
            let key = pods::key(&**event.object());
            if let Event::Deleted(_) = event {
                expectations.forget(&key);
            }
            [key]
        })
    };
    let nodes = {
        let sets = sets.clone();
        context.on::<Node, Vec<String>>(move |event| {
            // The status of a node changes every few seconds; daemons go by its labels and taints.
            if let Event::Modified { old, new } = event
                && old.spec == new.spec
                && old.metadata.labels == new.metadata.labels
            {
                return Vec::new();
            }
            let all = sets.list();
            let concerned = all.iter().filter(|set| match event {
                Event::Added(_) | Event::Deleted(_) => true,
                Event::Modified { old, new } => {
                    let spec = set.spec.as_ref().and_then(|spec| spec.template.spec.clone()).unwrap_or_default();
                    placement(&spec, old) != placement(&spec, new)
                }
            });
            concerned.map(|set| pods::key(&**set)).collect()
        })
    };
    let pods = {
        let (sets, expectations) = (sets.clone(), expectations.clone());
        context.on::<Pod, _>(move |event| {
            let pod = event.object();
            let key = controller_key(&pod.metadata, &sets);
            if let Some(key) = &key {
                match event {
                    Event::Added(pod) if !pods::is_terminating(pod) => expectations.creation_observed(key),
                    Event::Modified { new, .. } if !pods::is_terminating(new) => {}
                    _ => expectations.deletion_observed(key, &pods::key(&**pod)),
                }
            }
            let mut keys: Vec<String> = key.into_iter().chain(former_controller(event, &sets)).collect();
            if !matches!(event, Event::Deleted(_)) {
                keys.extend(adopters(&pod.metadata, &sets, selector));
            }
            keys
        })
    };
    index_orphans(&pods);
    // A revision that someone takes away is recorded again.
    let revisions = {
        let sets = sets.clone();
        context.on::<ControllerRevision, _>(move |event| history::keys(event, &sets))
    };
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        sets,
        nodes,
        pods,
        revisions,
        expectations,
        failures: Mutex::default(),
    })
}

fn selector(set: &DaemonSet) -> Result<Selector, Error> {
    pods::selector(set.spec.as_ref().map(|spec| &spec.selector))
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(set) = self.sets.get(key) else {
            self.expectations.forget(key);
            let own = format!("{key}/");
            self.failures.lock().retain(|of, _| !of.starts_with(&own));
            return Ok(Requeue::Never);
        };
        let Some(spec) = &set.spec else { return Ok(Requeue::Never) };
        if set.metadata.deletion_timestamp.is_some() {
            return Ok(Requeue::Never);
        }
        let settled = self.expectations.satisfied(key);
        let recorded = history::of(&self.revisions, &*set);
        let collisions = set.status.as_ref().and_then(|status| status.collision_count);
        let present = history::record(&self.client, &*set, &spec.template, &recorded, collisions).await?;
        let hash = present
            .metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(history::REVISION_LABEL))
            .cloned()
            .unwrap_or_default();
        let mine =
            claim(&self.client, &*set, &selector(&set)?, candidates(&self.pods, &set.metadata), |_| true).await?;
        let mut plan = plan(&set, &self.nodes.list(), &mine, &hash, self.clock.now());
        let mut recheck = plan.recheck.map(|delay| delay + Duration::from_secs(1));
        let mut failure = None;
        if settled {
            for pod in std::mem::take(&mut plan.failed) {
                match self.failed_before(key, &pod) {
                    Some(wait) => recheck = Some(recheck.map_or(wait, |other| other.min(wait))),
                    None => plan.delete.push(pod),
                }
            }
            failure = self.carry_out(key, &set, &plan, &hash).await;
        }
        if set.status.as_ref() != Some(&plan.status) {
            let changed = DaemonSet { status: Some(plan.status.clone()), ..DaemonSet::clone(&set) };
            self.client.all::<DaemonSet>().update_status(&changed).await?;
        }
        let used: Vec<&String> =
            mine.iter().filter_map(|pod| pod.metadata.labels.as_ref()?.get(history::REVISION_LABEL)).collect();
        let is_live =
            |name: &str| name == history::name(&present) || used.iter().any(|hash| name.ends_with(&format!("-{hash}")));
        history::truncate(&self.client, &recorded, is_live, spec.revision_history_limit.unwrap_or(10)).await?;
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(recheck.into()),
        }
    }

    /// How long a failed pod stays before it is replaced; `None` when its time has come.
    fn failed_before(&self, key: &str, pod: &Pod) -> Option<Duration> {
        let mut failures = self.failures.lock();
        let (count, last) =
            failures.entry(format!("{key}/{}", pods::node_name(pod))).or_insert((0, tokio::time::Instant::now()));
        let delay = client::backoff::exponential(FAILED.base, FAILED.cap, count.saturating_sub(1));
        let wait = if *count == 0 { Duration::ZERO } else { delay.saturating_sub(last.elapsed()) };
        if !wait.is_zero() {
            return Some(wait);
        }
        *count = if last.elapsed() > 2 * FAILED.cap { 1 } else { *count + 1 };
        *last = tokio::time::Instant::now();
        None
    }

    async fn carry_out(&self, key: &str, set: &DaemonSet, plan: &plan::Plan, hash: &str) -> Option<client::Error> {
        if plan.create.is_empty() && plan.delete.is_empty() {
            return None;
        }
        let about = client::reference(set);
        self.expectations.expect(key, plan.create.len(), plan.delete.iter().map(|pod| pods::key(&**pod)));
        let (created, failed) = slow_start::batches(plan.create.len(), |number| {
            let pod = new_pod(set, &plan.create[number], hash);
            let about = &about;
            async move { pods::create(&self.client, &self.recorder, about, &pod).await }
        })
        .await;
        self.expectations.creations_observed(key, plan.create.len() - created);
        let deletions = join_all(plan.delete.iter().map(|pod| async {
            if pods::phase(pod) == "Failed" {
                let message = format!(
                    "Found failed daemon pod {} on node {}, will try to kill it",
                    pods::key(&**pod),
                    pods::node_name(pod)
                );
                self.recorder.warning(&about, "FailedDaemonPod", message);
            }
            let deleted = pods::delete(&self.client, &self.recorder, &about, pod).await;
            if deleted.is_err() || self.pods.get(&pods::key(&**pod)).is_none() {
                self.expectations.deletion_observed(key, &pods::key(&**pod));
            }
            deleted
        }))
        .await;
        failed.filter(|error| !error.is_namespace_terminating()).or_else(|| deletions.into_iter().find_map(Result::err))
    }
}

fn new_pod(set: &DaemonSet, node: &str, hash: &str) -> NewPod {
    let template = set.spec.clone().unwrap_or_default().template;
    let (namespace, name) = (set.metadata.namespace(), set.metadata.name());
    let mut pod = pods::from_template(&template, namespace, name, controller_reference(set));
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(history::REVISION_LABEL.into(), hash.into());
    let counted = set.metadata.annotations.as_ref().and_then(|all| all.get("deprecated.daemonset.template.generation"));
    if let Some(generation) = counted {
        labels.insert("pod-template-generation".into(), generation.clone());
    }
    let spec = pod.spec.get_or_insert_default();
    let missing = tolerations(spec.host_network == Some(true));
    let present = spec.tolerations.get_or_insert_default();
    present.extend(missing.into_iter().filter(|toleration| !present.contains(toleration)).collect::<Vec<_>>());
    plan::pin(spec, node);
    pod
}

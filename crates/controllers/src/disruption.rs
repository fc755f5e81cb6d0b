//! Disruption: how many pods of a PodDisruptionBudget may be evicted now. The eviction API spends what this computes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use api::cached::{Packed, Pod};
use api::meta::Meta as _;
use api::selector::Selector;
use api::sort::CompactCollect as _;
use client::{Client, Clock, Event, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::autoscaling::v1::Scale as AnyScale;
use k8s_openapi::api::core::v1::ReplicationController;
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, OwnerReference, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::json;

use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::horizontal_pod_autoscaler::{self, Resources};
use crate::int_or_percent::{Round, resolve};
use crate::pods;

/// An eviction that was granted but whose pod was not deleted after this is taken back.
const DELETION_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// An announced disruption that has not happened by then is called off.
const STALE_AFTER: Duration = Duration::from_secs(2 * 60);
const TARGET: &str = "DisruptionTarget";
/// Keys of pods rather than of budgets, which have no empty part.
const POD: &str = "pod//";

/// Why nobody can say how many pods there should be.
#[derive(Debug, thiserror::Error)]
enum Uncountable {
    /// A pod whose controller is not there, or cannot be scaled.
    #[error("found no controllers for pod {0:?}")]
    NoController(String),
    #[error(transparent)]
    Target(#[from] horizontal_pod_autoscaler::Error),
}

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    deployments: Informer<Packed<Deployment>>,
    sets: Informer<Packed<ReplicaSet>>,
    stateful_sets: Informer<StatefulSet>,
    controllers: Informer<Packed<ReplicationController>>,
    /// Of kinds that others define, and that can be scaled.
    resources: Resources,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let budgets = context.on_self::<PodDisruptionBudget>();
    let pods = {
        let (budgets, clock) = (budgets.clone(), context.config.clock.clone());
        context.on::<Pod, _>(move |event| {
            let mut keys = budgets_of(&budgets, event.object());
            if !matches!(event, Event::Deleted(_)) && stale_in(event.object(), clock.now()).is_some() {
                keys.push(format!("{POD}{}", pods::key(&**event.object())));
            }
            if let Event::Modified { old, new } = event {
                let same = |pod: &Pod| {
                    (
                        pods::is_ready(pod),
                        pods::is_terminating(pod),
                        pods::phase(pod).to_owned(),
                        pod.metadata.labels.clone(),
                        // How many pods are expected is the word of their controllers.
                        pod.metadata.controller().map(|owner| owner.uid.clone()),
                    )
                };
                if same(old) == same(new) {
                    keys.retain(|key| key.starts_with(POD));
                    return keys;
                }
                keys.extend(budgets_of(&budgets, old));
            }
            keys
        })
    };
    // A change of scale changes how many pods are expected.
    let all = |budgets: &Informer<PodDisruptionBudget>, namespace: Option<&String>| -> Vec<String> {
        budgets
            .by_namespace(namespace.map(String::as_str).unwrap_or_default())
            .iter()
            .map(|budget| pods::key(&**budget))
            .collect()
    };
    macro_rules! scales {
        ($kind:ty, $replicas:expr) => {{
            let (budgets, replicas) = (budgets.clone(), $replicas);
            context.on::<$kind, _>(move |event| match event {
                Event::Modified { old, new }
                    if replicas(old) == replicas(new) && old.metadata.controller() == new.metadata.controller() =>
                {
                    Vec::new()
                }
                _ => all(&budgets, event.object().metadata.namespace.as_ref()),
            })
        }};
    }
    let deployments = scales!(Packed<Deployment>, packed_replicas::<Deployment>);
    let sets = scales!(Packed<ReplicaSet>, packed_replicas::<ReplicaSet>);
    let stateful_sets = scales!(StatefulSet, |set: &StatefulSet| set.spec.as_ref().and_then(|spec| spec.replicas));
    let controllers = scales!(Packed<ReplicationController>, packed_replicas::<ReplicationController>);
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        budgets,
        pods,
        deployments,
        sets,
        stateful_sets,
        controllers,
        resources: Resources::default(),
    })
}

fn packed_replicas<K>(object: &Packed<K>) -> Option<i32> {
    object.part(&["spec", "replicas"])
}

fn selector(budget: &PodDisruptionBudget) -> Result<Selector, Error> {
    pods::selector(budget.spec.as_ref().and_then(|spec| spec.selector.as_ref()))
}

fn budgets_of(budgets: &Informer<PodDisruptionBudget>, pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace();
    let matching = budgets
        .by_namespace(namespace)
        .into_iter()
        .filter(|budget| selector(budget).is_ok_and(|selector| selector.matches(pod.metadata.labels.as_ref())));
    matching.map(|budget| pods::key(&*budget)).collect()
}

/// Counts of a budget: expected, healthy, and healthy ones that must remain.
#[derive(Debug, PartialEq, Eq)]
struct Counts {
    expected: i32,
    healthy: i32,
    desired: i32,
}

/// `scale` is the size that the pods' controllers want together.
fn counts(spec: &PodDisruptionBudgetSpec, pods: usize, scale: i32, healthy: i32) -> Counts {
    let pods = i32::try_from(pods).unwrap_or(i32::MAX);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(limit), _) => (scale, scale.saturating_sub(resolve(limit, scale, Round::Up)).max(0)),
        (None, Some(IntOrString::Int(limit))) => (pods, *limit),
        (None, Some(limit)) => (scale, resolve(limit, scale, Round::Up)),
        (None, None) => (0, 0),
    };
    Counts { expected, healthy, desired }
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            match key.strip_prefix(POD) {
                Some(pod) => self.clear_stale(pod).await,
                None => self.sync(key).await,
            }
        })
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(budget) = self.budgets.get(key) else { return Ok(Requeue::Never) };
        let spec = budget.spec.clone().unwrap_or_default();
        let namespace = budget.metadata.namespace();
        let selector = selector(&budget)?;
        let pods: Vec<Arc<Pod>> = self
            .pods
            .by_namespace(namespace)
            .into_iter()
            .filter(|pod| selector.matches(pod.metadata.labels.as_ref()))
            .collect();
        if pods.is_empty() {
            self.recorder.normal(&client::reference(&*budget), "NoPods", "No matching pods found");
        }
        let now = self.clock.now();
        let (disrupted, recheck) = still_disrupted(&budget, &pods, now);
        let healthy = pods.iter().filter(|pod| {
            pods::is_ready(pod) && !pods::is_terminating(pod) && !disrupted.contains_key(pod.metadata.name())
        });
        let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
        let old = budget.status.clone().unwrap_or_default();
        let scale = if needs_scale(&spec) { self.scale(&pods).await } else { Ok(Scale::default()) };
        let scale = match scale {
            Ok(scale) => scale,
            Err(why) => return self.fail_safe(&budget, &why.to_string(), now).await,
        };
        if scale.has_unmanaged {
            self.recorder.warning(&client::reference(&*budget), "UnmanagedPods", unmanaged(&selector));
        }
        let counts = counts(&spec, pods.len(), scale.replicas, healthy);
        let allowed = if counts.expected > 0 { (counts.healthy - counts.desired).max(0) } else { 0 };
        let condition = match allowed {
            0 => ("False", "InsufficientPods", ""),
            _ => ("True", "SufficientPods", ""),
        };
        let status = PodDisruptionBudgetStatus {
            disruptions_allowed: Some(allowed),
            current_healthy: Some(counts.healthy),
            desired_healthy: Some(counts.desired),
            expected_pods: Some(counts.expected),
            disrupted_pods: (!disrupted.is_empty()).then_some(disrupted),
            observed_generation: budget.metadata.generation,
            conditions: Some(with_condition(
                old.conditions.clone().unwrap_or_default(),
                condition,
                budget.metadata.generation,
                now,
            )),
        };
        if budget.status.as_ref() != Some(&status) {
            let changed = PodDisruptionBudget { status: Some(status), ..PodDisruptionBudget::clone(&budget) };
            self.client.all::<PodDisruptionBudget>().update_status(&changed).await?;
        }
        Ok(recheck.into())
    }

    /// Nobody can be counted on, so nobody may be evicted; everything else stays as it was last known.
    async fn fail_safe(&self, budget: &PodDisruptionBudget, why: &str, now: Timestamp) -> Outcome {
        let message = format!("Failed to calculate the number of expected pods: {why}");
        self.recorder.warning(&client::reference(budget), "CalculateExpectedPodCountFailed", message);
        let mut status = budget.status.clone().unwrap_or_default();
        status.disruptions_allowed = Some(0);
        let conditions = status.conditions.take().unwrap_or_default();
        let condition = ("False", "SyncFailed", why);
        status.conditions = Some(with_condition(conditions, condition, status.observed_generation, now));
        if budget.status.as_ref() != Some(&status) {
            let changed = PodDisruptionBudget { status: Some(status), ..budget.clone() };
            self.client.all::<PodDisruptionBudget>().update_status(&changed).await?;
        }
        Err(Error::object(why))
    }

    /// The sizes of all controllers of these pods together, or the pod whose controller cannot be scaled.
    async fn scale(&self, pods: &[Arc<Pod>]) -> Result<Scale, Uncountable> {
        let mut scale = Scale::default();
        let mut sizes: BTreeMap<String, i32> = BTreeMap::new();
        let mut asked: BTreeSet<&String> = BTreeSet::new();
        for pod in pods {
            let Some(owner) = pod.metadata.controller() else {
                scale.has_unmanaged = true;
                continue;
            };
            if !asked.insert(&owner.uid) {
                continue;
            }
            let namespace = pod.metadata.namespace();
            let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
            let mut size = match (group, owner.kind.as_str()) {
                ("apps", "ReplicaSet" | "StatefulSet") | ("", "ReplicationController") => {
                    self.size_of(owner, namespace)
                }
                _ => None,
            };
            if size.is_none() {
                // Also of a ReplicaSet whose Deployment is gone, and of what the caches do not show yet.
                size = self.size_of_other(owner, namespace).await?;
            }
            let Some((uid, replicas)) = size else {
                let name = pod.metadata.name();
                return Err(Uncountable::NoController(name.to_owned()));
            };
            sizes.insert(uid, replicas);
        }
        scale.replicas = sizes.values().fold(0, |sum: i32, size| sum.saturating_add(*size));
        Ok(scale)
    }

    /// Uid and size of what scales the pods of a controller, as the caches have it; none if it is not there, or only
    /// another of its name is.
    fn size_of(&self, owner: &OwnerReference, namespace: &str) -> Option<(String, i32)> {
        let key = format!("{namespace}/{}", owner.name);
        let replicas = match owner.kind.as_str() {
            "ReplicaSet" => {
                let set = self.sets.get(&key).filter(|set| set.metadata.uid() == owner.uid)?;
                if let Some(above) = set.metadata.controller().filter(|above| above.kind == "Deployment") {
                    let deployment = self.deployments.get(&format!("{namespace}/{}", above.name));
                    let deployment = deployment.filter(|deployment| deployment.metadata.uid() == above.uid)?;
                    return Some((above.uid.clone(), packed_replicas(&*deployment).unwrap_or(1)));
                }
                packed_replicas(&*set)
            }
            "StatefulSet" => {
                let set = self.stateful_sets.get(&key).filter(|set| set.metadata.uid() == owner.uid)?;
                set.spec.as_ref()?.replicas
            }
            "ReplicationController" => {
                let controller = self.controllers.get(&key).filter(|found| found.metadata.uid() == owner.uid)?;
                packed_replicas(&*controller)
            }
            _ => return None,
        };
        Some((owner.uid.clone(), replicas.unwrap_or(1)))
    }

    /// Uid and size of a controller of any kind that can be scaled, as the server has it.
    async fn size_of_other(
        &self,
        owner: &OwnerReference,
        namespace: &str,
    ) -> Result<Option<(String, i32)>, Uncountable> {
        let found = self.resources.find(&self.client, &owner.api_version, &owner.kind).await?;
        let api = self.client.dynamic(&found.gvr, Some(namespace));
        let scale: AnyScale = match api.get_subresource(&owner.name, "scale").await {
            Ok(scale) => scale,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(horizontal_pod_autoscaler::Error::from(error).into()),
        };
        let is_its = scale.metadata.uid.as_ref() == Some(&owner.uid);
        let replicas = scale.spec.and_then(|spec| spec.replicas).unwrap_or_default();
        Ok(is_its.then(|| (owner.uid.clone(), replicas)))
    }

    /// A pod that was to be disrupted but lives on is not about to be disrupted any more.
    async fn clear_stale(&self, key: &str) -> Outcome {
        let Some(pod) = self.pods.get(key) else { return Ok(Requeue::Never) };
        let now = self.clock.now();
        match stale_in(&pod, now) {
            None => return Ok(Requeue::Never),
            Some(left) if !left.is_zero() => return Ok(Requeue::After(left)),
            Some(_) => {}
        }
        let condition = json!({
            "type": TARGET, "status": "False",
            "lastTransitionTime": api::time::rfc3339(now),
        });
        let patch = Patch::strategic(
            json!({ "metadata": { "uid": pod.metadata.uid }, "status": { "conditions": [condition] } }),
        );
        let (namespace, name) = client::split_key(key);
        match self.client.namespaced::<Pod>(namespace).patch_status(name, &patch).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(Requeue::Never),
        }
    }
}

/// How long until the announced disruption of a pod counts as called off; `None` if none is announced. What the kubelet
/// announces may take any time.
fn stale_in(pod: &Pod, now: Timestamp) -> Option<Duration> {
    let target = pods::condition(pod, TARGET).filter(|target| target.status == "True")?;
    if pods::is_terminating(pod) || pods::is_finished(pod) || target.reason.as_deref() == Some("TerminationByKubelet") {
        return None;
    }
    let since = target.last_transition_time.as_ref().map_or(now, |time| time.0);
    Some(STALE_AFTER.saturating_sub(Duration::try_from(now.duration_since(since)).unwrap_or_default()))
}

/// The size that the pods' controllers want together, and whether some pods have none.
#[derive(Debug, Default)]
struct Scale {
    replicas: i32,
    has_unmanaged: bool,
}

/// Whether the budget is a share of what controllers want, rather than of the pods there are.
fn needs_scale(spec: &PodDisruptionBudgetSpec) -> bool {
    spec.max_unavailable.is_some() || matches!(spec.min_available, Some(IntOrString::String(_)))
}

fn unmanaged(selector: &Selector) -> String {
    format!(
        "Pods selected by this PodDisruptionBudget (selector: {selector}) were found to be unmanaged. As a result, the status of \
         the PDB cannot be calculated correctly, which may result in undefined behavior. To account for these pods please set \
         \".spec.minAvailable\" field of the PDB to an integer value."
    )
}

/// Evictions that were granted and whose pods are still on their way out.
fn still_disrupted(
    budget: &PodDisruptionBudget,
    pods: &[Arc<Pod>],
    now: Timestamp,
) -> (BTreeMap<String, Time>, Option<Duration>) {
    let granted = budget.status.as_ref().and_then(|status| status.disrupted_pods.clone()).unwrap_or_default();
    let mut recheck = None;
    let kept = granted.into_iter().filter(|(name, time)| {
        let Some(pod) = pods.iter().find(|pod| pod.metadata.name.as_ref() == Some(name)) else { return false };
        if pods::is_terminating(pod) {
            return false; // it is not counted as healthy any more anyway
        }
        let left = DELETION_TIMEOUT.saturating_sub(Duration::try_from(now.duration_since(time.0)).unwrap_or_default());
        if !left.is_zero() {
            recheck = Some(recheck.map_or(left, |other: Duration| other.min(left)));
        }
        !left.is_zero()
    });
    (kept.compact_collect(), recheck)
}

fn with_condition(
    mut conditions: Vec<Condition>,
    (status, reason, message): (&str, &str, &str),
    generation: Option<i64>,
    now: Timestamp,
) -> Vec<Condition> {
    let old =
        conditions.iter().position(|condition| condition.type_ == "DisruptionAllowed").map(|at| conditions.remove(at));
    let since = old.filter(|old| old.status == status).map_or(Time(now), |old| old.last_transition_time);
    conditions.push(Condition {
        type_: "DisruptionAllowed".into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: generation,
        last_transition_time: since,
    });
    conditions
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::PodCondition;

    use super::*;
    use crate::pods::tests::{Builder, at};

    #[test]
    fn budgets_in_numbers_and_percents() {
        let number = IntOrString::Int;
        let percent = |text: &str| IntOrString::String(text.into());
        for (min, max, pods, scale, healthy, expected) in [
            (Some(number(2)), None, 3, 0, 3, (3, 2)),
            (Some(percent("50%")), None, 3, 3, 3, (3, 2)),
            (None, Some(number(1)), 3, 5, 3, (5, 4)),
            (None, Some(percent("40%")), 5, 5, 5, (5, 3)),
            (None, Some(number(9)), 5, 5, 5, (5, 0)),
            (None, Some(number(1)), 2, 0, 2, (0, 0)),
            (None, Some(number(i32::MAX)), 2, i32::MIN, 2, (i32::MIN, 0)),
            (None, None, 5, 0, 5, (0, 0)),
        ] {
            let spec = PodDisruptionBudgetSpec {
                min_available: min.clone(),
                max_unavailable: max.clone(),
                ..PodDisruptionBudgetSpec::default()
            };
            let seen = counts(&spec, pods, scale, healthy);
            assert_eq!((seen.expected, seen.desired), expected, "{min:?} {max:?}");
        }
    }

    #[test]
    fn an_announced_disruption_is_called_off_in_time() {
        let announced = |reason: &str, status: &str| {
            let mut pod = Builder::new("a").ready(at(0)).0;
            pod.status.get_or_insert_default().conditions.get_or_insert_default().push(PodCondition {
                type_: TARGET.into(),
                status: status.into(),
                reason: Some(reason.into()),
                last_transition_time: Some(Time(at(0))),
                ..PodCondition::default()
            });
            Pod::from(pod)
        };
        for (pod, now, expected) in [
            (announced("EvictionByEvictionAPI", "True"), 20, Some(100)),
            (announced("EvictionByEvictionAPI", "True"), 500, Some(0)),
            (announced("EvictionByEvictionAPI", "False"), 500, None),
            (announced("TerminationByKubelet", "True"), 500, None),
            (Builder::new("a").build().as_ref().clone(), 500, None),
        ] {
            assert_eq!(stale_in(&pod, at(now)).map(|left| left.as_secs()), expected, "{:?} at {now}", pod.status);
        }
    }
}

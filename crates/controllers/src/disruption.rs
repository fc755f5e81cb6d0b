//! Disruption: how many pods of a PodDisruptionBudget may be evicted now. The eviction API spends what this computes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use api::selector::Selector;
use client::{Client, Event, EventRecorder, Informer};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, ReplicationController};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec, PodDisruptionBudgetStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::int_or_percent::{Round, resolve};
use crate::owners::controller_of;
use crate::pods;

/// An eviction that was granted but whose pod was not deleted after this is taken back.
const DELETION_TIMEOUT: Duration = Duration::from_secs(2 * 60);

struct Controller {
    client: Client,
    recorder: EventRecorder,
    budgets: Informer<PodDisruptionBudget>,
    pods: Informer<Pod>,
    deployments: Informer<Deployment>,
    sets: Informer<ReplicaSet>,
    stateful_sets: Informer<StatefulSet>,
    controllers: Informer<ReplicationController>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let budgets = context.on_self::<PodDisruptionBudget>();
    let pods = {
        let budgets = budgets.clone();
        context.on::<Pod, _>(move |event| {
            let mut keys = budgets_of(&budgets, event.object());
            if let Event::Modified { old, new } = event {
                let same = |pod: &Pod| {
                    (
                        pods::is_ready(pod),
                        pods::is_terminating(pod),
                        pods::phase(pod).to_owned(),
                        pod.metadata.labels.clone(),
                    )
                };
                if same(old) == same(new) {
                    return Vec::new();
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
        ($kind:ty) => {{
            let budgets = budgets.clone();
            context.on::<$kind, _>(move |event| match event {
                Event::Modified { old, new }
                    if old.spec.as_ref().map(|spec| spec.replicas) == new.spec.as_ref().map(|spec| spec.replicas) =>
                {
                    Vec::new()
                }
                _ => all(&budgets, event.object().metadata.namespace.as_ref()),
            })
        }};
    }
    let (deployments, sets) = (scales!(Deployment), scales!(ReplicaSet));
    let (stateful_sets, controllers) = (scales!(StatefulSet), scales!(ReplicationController));
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        budgets,
        pods,
        deployments,
        sets,
        stateful_sets,
        controllers,
    })
}

fn selector(budget: &PodDisruptionBudget) -> Result<Selector, Error> {
    let selector = budget.spec.as_ref().and_then(|spec| spec.selector.as_ref());
    Selector::from_label_selector(selector).map_err(|error| Error::object(error.to_string()))
}

fn budgets_of(budgets: &Informer<PodDisruptionBudget>, pod: &Pod) -> Vec<String> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
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
fn counts(spec: &PodDisruptionBudgetSpec, pods: usize, scale: Option<i32>, healthy: i32) -> Option<Counts> {
    let pods = i32::try_from(pods).unwrap_or(i32::MAX);
    let (expected, desired) = match (&spec.max_unavailable, &spec.min_available) {
        (Some(limit), _) => {
            let expected = scale?;
            (expected, (expected - resolve(limit, expected, Round::Up)).max(0))
        }
        (None, Some(IntOrString::Int(limit))) => (pods, *limit),
        (None, Some(limit)) => {
            let expected = scale?;
            (expected, resolve(limit, expected, Round::Up))
        }
        (None, None) => (pods, 0),
    };
    Some(Counts { expected, healthy, desired })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(budget) = self.budgets.get(key) else { return Ok(Requeue::Never) };
        let spec = budget.spec.clone().unwrap_or_default();
        let namespace = budget.metadata.namespace.as_deref().unwrap_or_default();
        let selector = selector(&budget)?;
        let pods: Vec<Arc<Pod>> = self
            .pods
            .by_namespace(namespace)
            .into_iter()
            .filter(|pod| selector.matches(pod.metadata.labels.as_ref()) && !pods::is_finished(pod))
            .collect();
        if pods.is_empty() {
            self.recorder.normal(&client::reference(&*budget), "NoPods", "No matching pods found");
        }
        let now = Timestamp::now();
        let (disrupted, recheck) = still_disrupted(&budget, &pods, now);
        let healthy = pods.iter().filter(|pod| {
            pods::is_ready(pod)
                && !pods::is_terminating(pod)
                && !disrupted.contains_key(pod.metadata.name.as_deref().unwrap_or_default())
        });
        let healthy = i32::try_from(healthy.count()).unwrap_or(i32::MAX);
        let counts = counts(&spec, pods.len(), self.scale(&pods), healthy);
        let old = budget.status.clone().unwrap_or_default();
        let (allowed, condition, counts) = match counts {
            Some(counts) => {
                let allowed = if counts.expected > 0 { (counts.healthy - counts.desired).max(0) } else { 0 };
                let condition = match allowed {
                    0 => ("False", "InsufficientPods", ""),
                    _ => ("True", "SufficientPods", ""),
                };
                (allowed, condition, counts)
            }
            None => {
                let message = "found no controllers for pods, which maxUnavailable and percentages need";
                self.recorder.warning(
                    &client::reference(&*budget),
                    "CalculateExpectedPodCountFailed",
                    format!("Failed to calculate the number of expected pods: {message}"),
                );
                (0, ("False", "SyncFailed", message), Counts { expected: 0, healthy, desired: 0 })
            }
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

    /// The sizes of all controllers of these pods; `None` if a pod has none that can be scaled.
    fn scale(&self, pods: &[Arc<Pod>]) -> Option<i32> {
        let mut scales: BTreeMap<String, i32> = BTreeMap::new();
        for pod in pods {
            let owner = controller_of(&pod.metadata)?;
            let key = format!("{}/{}", pod.metadata.namespace.as_deref().unwrap_or_default(), owner.name);
            let (uid, replicas) = match owner.kind.as_str() {
                "ReplicaSet" => {
                    let set = self.sets.get(&key)?;
                    let deployment = controller_of(&set.metadata).filter(|owner| owner.kind == "Deployment");
                    let deployment = deployment.and_then(|owner| {
                        self.deployments.get(&format!(
                            "{}/{}",
                            set.metadata.namespace.as_deref().unwrap_or_default(),
                            owner.name
                        ))
                    });
                    match deployment {
                        Some(deployment) => (deployment.metadata.uid.clone(), deployment.spec.as_ref()?.replicas),
                        None => (set.metadata.uid.clone(), set.spec.as_ref()?.replicas),
                    }
                }
                "StatefulSet" => {
                    let set = self.stateful_sets.get(&key)?;
                    (set.metadata.uid.clone(), set.spec.as_ref()?.replicas)
                }
                "ReplicationController" => {
                    let controller = self.controllers.get(&key)?;
                    (controller.metadata.uid.clone(), controller.spec.as_ref()?.replicas)
                }
                _ => return None,
            };
            scales.insert(uid.unwrap_or_default(), replicas.unwrap_or(1));
        }
        Some(scales.values().sum())
    }
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
    (kept.collect(), recheck)
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
    use super::*;

    #[test]
    fn budgets_in_numbers_and_percents() {
        let number = IntOrString::Int;
        let percent = |text: &str| IntOrString::String(text.into());
        for (min, max, pods, scale, healthy, expected) in [
            (Some(number(2)), None, 3, None, 3, Some((3, 2))),
            (Some(percent("50%")), None, 3, Some(3), 3, Some((3, 2))),
            (Some(percent("50%")), None, 3, None, 3, None),
            (None, Some(number(1)), 3, Some(5), 3, Some((5, 4))),
            (None, Some(percent("40%")), 5, Some(5), 5, Some((5, 3))),
            (None, Some(number(9)), 5, Some(5), 5, Some((5, 0))),
            (None, None, 5, None, 5, Some((5, 0))),
        ] {
            let spec = PodDisruptionBudgetSpec {
                min_available: min.clone(),
                max_unavailable: max.clone(),
                ..PodDisruptionBudgetSpec::default()
            };
            let seen = counts(&spec, pods, scale, healthy).map(|counts| (counts.expected, counts.desired));
            assert_eq!(seen, expected, "{min:?} {max:?}");
        }
    }
}

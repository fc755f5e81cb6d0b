//! What a set of replicas needs, decided from its pods alone.

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::replicated::{Condition, Replicated, Status};
use crate::{Error, pods};

/// At most so many creations or deletions in one pass (`BurstReplicas`, v1.36).
const BURST: usize = 500;

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    Nothing,
    Create(usize),
    Delete(Vec<Arc<Pod>>),
}

/// A creation or deletion that the API refused.
pub(super) struct Failure {
    pub(super) reason: &'static str,
    pub(super) error: Error,
}

/// Decides, never awaits. `pods` are the active ones; they may be stale, but not by anything this controller did.
/// `related` are asked for only when some must go.
pub(super) fn plan(
    replicas: i32,
    pods: &[Arc<Pod>],
    related: impl FnOnce() -> Vec<Arc<Pod>>,
    now: Timestamp,
) -> Action {
    let wanted = usize::try_from(replicas).unwrap_or_default();
    match pods.len().cmp(&wanted) {
        Ordering::Less => Action::Create((wanted - pods.len()).min(BURST)),
        Ordering::Equal => Action::Nothing,
        Ordering::Greater => {
            let count = (pods.len() - wanted).min(BURST);
            Action::Delete(pods::surplus(pods.to_vec(), &related(), count, now))
        }
    }
}

/// The ages of those that go, of the ready ones, as multiples of the youngest's: 1 or little more if the youngest go first.
pub(super) fn age_ratios(pods: &[Arc<Pod>], going: &[Arc<Pod>], now: Timestamp) -> impl Iterator<Item = f64> {
    let age = move |pod: &Arc<Pod>| {
        let created = pod.metadata.creation_timestamp.as_ref().filter(|_| pods::is_ready(pod))?;
        Some(now.duration_since(created.0).as_secs_f64())
    };
    let youngest = pods.iter().filter_map(age).fold(f64::INFINITY, f64::min);
    going.iter().filter_map(age).map(move |age| age / youngest).filter(|ratio| ratio.is_finite())
}

pub(super) fn status<K: Replicated>(
    owner: &K,
    pods: &[Arc<Pod>],
    terminating: i32,
    failure: Option<&Failure>,
    now: Timestamp,
) -> Status {
    let count = |matches: &dyn Fn(&Pod) -> bool| {
        i32::try_from(pods.iter().filter(|pod| matches(pod)).count()).unwrap_or(i32::MAX)
    };
    let template_labels = owner
        .template()
        .and_then(|template| template.metadata.as_ref())
        .and_then(|meta| meta.labels.clone())
        .unwrap_or_default();
    let old = owner.replica_status();
    Status {
        replicas: count(&|_| true),
        fully_labeled: count(&|pod| {
            let labels = pod.metadata.labels.as_ref();
            template_labels.iter().all(|(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value))
        }),
        ready: count(&pods::is_ready),
        available: count(&|pod| pods::is_available(pod, owner.min_ready_seconds(), now)),
        terminating: (K::KIND == "ReplicaSet").then_some(terminating),
        observed_generation: owner.metadata().generation.unwrap_or_default(),
        conditions: conditions(old.conditions, failure, now),
    }
}

/// `ReplicaFailure` stands while creations or deletions are refused.
fn conditions(mut conditions: Vec<Condition>, failure: Option<&Failure>, now: Timestamp) -> Vec<Condition> {
    let standing = conditions.iter().any(|condition| condition.kind == "ReplicaFailure");
    match failure {
        Some(failure) if !standing => conditions.push(Condition {
            kind: "ReplicaFailure".into(),
            status: "True".into(),
            reason: Some(failure.reason.into()),
            message: Some(failure.error.to_string()),
            since: Some(Time(now)),
        }),
        Some(_) => {}
        None => conditions.retain(|condition| condition.kind != "ReplicaFailure"),
    }
    conditions
}

/// When the next ready pod becomes available, if one is waiting for that.
pub(super) fn next_available(pods: &[Arc<Pod>], min_ready_seconds: i32, now: Timestamp) -> Option<Duration> {
    if min_ready_seconds == 0 {
        return None;
    }
    pods.iter().filter_map(|pod| pods::available_in(pod, min_ready_seconds, now)).filter(|delay| !delay.is_zero()).min()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::{ReplicaSet, ReplicaSetSpec};

    use super::*;
    use crate::pods::tests::{Builder, at};

    fn pods(count: usize) -> Vec<Arc<Pod>> {
        (0..count).map(|number| Builder::new(&format!("p{number}")).on("n").ready(at(0)).build()).collect()
    }

    #[test]
    fn creates_what_is_missing_and_deletes_what_is_too_much() {
        for (replicas, present, expected) in [
            (3, 3, Action::Nothing),
            (3, 0, Action::Create(3)),
            (0, 0, Action::Nothing),
            (5000, 10, Action::Create(500)),
            (-1, 0, Action::Nothing),
        ] {
            let pods = pods(present);
            assert_eq!(plan(replicas, &pods, || pods.clone(), at(1)), expected, "{replicas} wanted, {present} present");
        }
        let pods = pods(5);
        assert!(matches!(plan(2, &pods, || pods.clone(), at(1)), Action::Delete(surplus) if surplus.len() == 3));
    }

    #[test]
    fn ages_are_compared_with_the_youngest() {
        let pod = |name: &str, created: i64| {
            let mut pod = Pod::clone(&Builder::new(name).ready(at(created)).build());
            pod.metadata.creation_timestamp = Some(Time(at(created)));
            Arc::new(pod)
        };
        let all = [pod("old", 0), pod("older", -100), pod("young", 50)];
        let ratios: Vec<f64> = age_ratios(&all, &all[..2], at(100)).collect();
        assert_eq!(ratios, [2.0, 4.0]);
        assert_eq!(age_ratios(&[Builder::new("unready").build()], &[], at(100)).count(), 0);
    }

    #[test]
    fn status_counts_and_failures() {
        let mut owner = ReplicaSet {
            spec: Some(ReplicaSetSpec { min_ready_seconds: Some(10), ..Default::default() }),
            ..Default::default()
        };
        owner.metadata.generation = Some(4);
        let pods = vec![
            Builder::new("a").ready(at(0)).build(),
            Builder::new("b").ready(at(95)).build(),
            Builder::new("c").build(),
        ];
        let failure = Failure { reason: "FailedCreate", error: Error::object("quota") };
        let seen = status(&owner, &pods, 2, Some(&failure), at(100));
        assert_eq!(
            (seen.replicas, seen.ready, seen.available, seen.terminating, seen.observed_generation),
            (3, 2, 1, Some(2), 4)
        );
        assert_eq!(seen.conditions[0].reason.as_deref(), Some("FailedCreate"));
        assert_eq!(next_available(&pods, 10, at(100)), Some(Duration::from_secs(5)));
        let owner = owner.with_replica_status(seen);
        assert!(status(&owner, &pods, 0, None, at(100)).conditions.is_empty());
    }
}

//! Tables for the Deployment's decisions.

use k8s_openapi::api::apps::v1::{DeploymentStrategy, ReplicaSetSpec, ReplicaSetStatus, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{Container, PodSpec, PodTemplateSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::*;
use crate::deployment::replica_sets::{DESIRED_REPLICAS, MAX_REPLICAS, REVISION};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn template(image: &str) -> PodTemplateSpec {
    let container = Container { image: Some(image.into()), ..Container::default() };
    PodTemplateSpec { metadata: None, spec: Some(PodSpec { containers: vec![container], ..PodSpec::default() }) }
}

fn deployment(replicas: i32, surge: IntOrString, unavailable: IntOrString) -> Deployment {
    let rolling = RollingUpdateDeployment { max_surge: Some(surge), max_unavailable: Some(unavailable) };
    Deployment {
        metadata: ObjectMeta {
            name: Some("web".into()),
            namespace: Some("default".into()),
            uid: Some("u".into()),
            generation: Some(1),
            ..ObjectMeta::default()
        },
        spec: Some(DeploymentSpec {
            replicas: Some(replicas),
            template: template("new"),
            strategy: Some(DeploymentStrategy { type_: Some("RollingUpdate".into()), rolling_update: Some(rolling) }),
            progress_deadline_seconds: Some(600),
            revision_history_limit: Some(10),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn number(value: i32) -> IntOrString {
    IntOrString::Int(value)
}

fn percent(value: i32) -> IntOrString {
    IntOrString::String(format!("{value}%"))
}

/// A ReplicaSet of `image` with `size` wanted and `available` working pods, scaled when the Deployment had `desired`.
fn set(image: &str, revision: i64, size: i32, available: i32, (desired, max): (i32, i32)) -> ReplicaSet {
    ReplicaSet {
        metadata: ObjectMeta {
            name: Some(format!("web-{image}")),
            annotations: Some(
                [(REVISION, revision), (DESIRED_REPLICAS, desired.into()), (MAX_REPLICAS, max.into())]
                    .map(|(key, value): (&str, i64)| (key.to_owned(), value.to_string()))
                    .into(),
            ),
            creation_timestamp: Some(Time(at(revision))),
            ..ObjectMeta::default()
        },
        spec: Some(ReplicaSetSpec {
            replicas: Some(size),
            template: Some(template(image)),
            ..ReplicaSetSpec::default()
        }),
        status: Some(ReplicaSetStatus {
            replicas: size,
            available_replicas: Some(available),
            ready_replicas: Some(available),
            ..ReplicaSetStatus::default()
        }),
    }
}

fn sizes(sets: &[ReplicaSet], plan: &Plan) -> Vec<i32> {
    sets.iter()
        .map(|set| size(plan.update.iter().find(|update| update.metadata.name == set.metadata.name).unwrap_or(set)))
        .collect()
}

#[test]
fn the_first_pass_creates_the_replica_set_in_full() {
    let plan = plan(&deployment(3, percent(25), percent(25)), &[], |_| false, at(0));
    let created = plan.create.unwrap();
    assert_eq!(size(&created), 3);
    assert_eq!(revision(&created), 1);
    assert_eq!(plan.revision.as_deref(), Some("1"));
    assert!(created.metadata.name.as_deref().unwrap().starts_with("web-"));
    let hash = created.metadata.labels.as_ref().unwrap()["pod-template-hash"].clone();
    assert_eq!(created.spec.as_ref().unwrap().selector.match_labels.as_ref().unwrap()["pod-template-hash"], hash);
    assert_eq!(plan.events[0].message, format!("Scaled up replica set web-{hash} from 0 to 3"));
    let reasons: Vec<_> =
        plan.status.conditions.iter().flatten().map(|condition| condition.reason.clone().unwrap()).collect();
    assert_eq!(reasons, ["NewReplicaSetCreated", "MinimumReplicasUnavailable"]);
}

#[test]
fn security_numbers_of_a_deployment_may_be_at_their_ends() {
    const MAX: i32 = i32::MAX;
    for (replicas, surge, unavailable) in [
        (MAX, percent(25), percent(25)),
        (MAX, number(MAX), number(0)),
        (MAX, number(1), percent(100)),
        (1, number(MAX), percent(100)),
        (0, number(MAX), number(MAX)),
    ] {
        let created = plan(&deployment(replicas, surge.clone(), unavailable.clone()), &[], |_| false, at(0)).create;
        assert_eq!(created.as_ref().map(size), Some(replicas));
        for (old, new) in [((MAX, MAX), (MAX, 0)), ((MAX, 0), (1, MAX)), ((0, MAX), (0, 0)), ((1, 1), (2, MAX))] {
            for annotations in [(replicas, MAX), (5, -1), (5, 1), (5, 0)] {
                let mut sets = [set("old", 1, old.0, old.1, annotations), set("new", 2, new.0, new.1, annotations)];
                let notes = sets[0].metadata.annotations.get_or_insert_default();
                notes.insert(REVISION.to_owned(), i64::MAX.to_string());
                let deployment = deployment(replicas, surge.clone(), unavailable.clone());
                let plan = plan(&deployment, &sets, |_| false, at(100));
                assert_eq!(plan.revision, Some(i64::MAX.to_string()));
            }
        }
    }
}

#[test]
fn rolling_moves_within_the_bounds() {
    // replicas, surge, unavailable, old (size, available), new (size, available) -> old, new
    for (replicas, surge, unavailable, old, new, expected) in [
        (10, number(3), number(2), (10, 10), (0, 0), (10, 3)),
        (10, number(3), number(2), (10, 10), (3, 0), (8, 3)),
        (10, number(3), number(2), (8, 8), (3, 0), (8, 5)),
        (10, number(3), number(2), (8, 8), (5, 0), (8, 5)),
        (10, number(3), number(2), (8, 8), (5, 5), (3, 5)),
        (10, number(3), number(2), (3, 3), (5, 5), (3, 10)),
        (10, number(3), number(2), (3, 3), (10, 10), (0, 10)),
        (10, number(0), number(1), (10, 10), (0, 0), (9, 0)),
        (10, number(0), number(1), (9, 9), (0, 0), (9, 1)),
        (10, number(1), number(0), (10, 10), (1, 0), (10, 1)),
        (10, number(1), number(0), (10, 10), (1, 1), (9, 1)),
        (3, percent(25), percent(25), (3, 3), (0, 0), (3, 1)),
        (3, percent(25), percent(25), (3, 3), (1, 1), (2, 1)),
        (1, percent(0), percent(0), (1, 1), (0, 0), (0, 0)),
        // Broken old pods go without waiting.
        (10, number(3), number(2), (10, 5), (3, 0), (8, 3)),
        (10, number(0), number(2), (10, 7), (0, 0), (8, 0)),
        (10, percent(100), percent(100), (10, 10), (0, 0), (10, 10)),
    ] {
        let (surge_now, unavailable_now) =
            surge_and_unavailable(deployment(replicas, surge.clone(), unavailable.clone()).spec.as_ref().unwrap());
        let annotations = (replicas, replicas + surge_now);
        let sets = [set("old", 1, old.0, old.1, annotations), set("new", 2, new.0, new.1, annotations)];
        let plan = plan(&deployment(replicas, surge.clone(), unavailable.clone()), &sets, |_| false, at(100));
        let result = sizes(&sets, &plan);
        assert_eq!((result[0], result[1]), expected, "{replicas} +{surge:?} -{unavailable:?} old {old:?} new {new:?}");
        assert!(result.iter().sum::<i32>() <= (replicas + surge_now).max(old.0 + new.0));
        assert!(result[0].min(old.1) + result[1].min(new.1) >= (replicas - unavailable_now).min(old.1 + new.1));
    }
}

#[test]
fn scaling_in_the_middle_of_a_rollout_is_proportional() {
    // old size, new size, desired and max before; replicas and surge now -> old, new
    for (old, new, before, replicas, surge, expected) in [
        (8, 5, (10, 13), 15, 3, (11, 7)),
        (5, 5, (10, 10), 20, 0, (10, 10)),
        (8, 2, (10, 10), 5, 0, (4, 1)),
        (6, 4, (10, 10), 0, 0, (0, 0)),
        (10, 0, (10, 13), 5, 3, (5, 0)),
    ] {
        let sets = [set("old", 1, old, old, before), set("new", 2, new, 0, before)];
        let plan = plan(&deployment(replicas, number(surge), number(1)), &sets, |_| false, at(100));
        let result = sizes(&sets, &plan);
        assert_eq!((result[0], result[1]), expected, "{old}+{new} of {before:?} to {replicas}");
    }
}

#[test]
fn recreate_waits_for_the_old_pods() {
    let mut recreate = deployment(3, number(0), number(0));
    recreate.spec.as_mut().unwrap().strategy =
        Some(DeploymentStrategy { type_: Some("Recreate".into()), rolling_update: None });
    let running = [set("old", 1, 3, 3, (3, 3))];
    let shrinking = plan(&recreate, &running, |_| true, at(0));
    assert_eq!((sizes(&running, &shrinking), shrinking.create), (vec![0], None));
    let stopping = [set("old", 1, 0, 0, (3, 3))];
    assert!(plan(&recreate, &stopping, |_| true, at(0)).create.is_none());
    assert_eq!(plan(&recreate, &stopping, |_| false, at(0)).create.map(|created| size(&created)), Some(3));
}

#[test]
fn a_paused_deployment_scales_but_does_not_roll() {
    let mut paused = deployment(5, number(1), number(1));
    paused.spec.as_mut().unwrap().paused = Some(true);
    let sets = [set("old", 1, 3, 3, (3, 4))];
    let plan = plan(&paused, &sets, |_| false, at(0));
    assert_eq!((sizes(&sets, &plan), plan.create), (vec![5], None));
    assert_eq!(status::condition(&plan.status, "Progressing").unwrap().reason.as_deref(), Some("DeploymentPaused"));
}

#[test]
fn a_rollback_takes_the_template_and_the_next_revision() {
    let sets = [set("old", 1, 0, 0, (3, 4)), set("new", 2, 3, 3, (3, 4))];
    let mut back = deployment(3, number(1), number(0));
    back.metadata.annotations = Some([(ROLLBACK_TO.to_owned(), "0".to_owned())].into());
    let rolled = plan(&back, &sets, |_| false, at(0)).rollback.unwrap();
    assert!(same_template(&rolled.spec.as_ref().unwrap().template, &template("old")));
    assert!(!rolled.metadata.annotations.as_ref().unwrap().contains_key(ROLLBACK_TO));
    // The old set is current again and gets a new number.
    let mut undone = deployment(3, number(1), number(0));
    undone.spec.as_mut().unwrap().template = template("old");
    let plan = plan(&undone, &sets, |_| false, at(0));
    assert_eq!(plan.revision.as_deref(), Some("3"));
    let old = plan.update.iter().find(|update| update.metadata.name.as_deref() == Some("web-old")).unwrap();
    assert_eq!(annotation(&old.metadata, "deployment.kubernetes.io/revision-history"), Some("1"));
}

#[test]
fn history_beyond_the_limit_is_deleted_oldest_first() {
    let mut done = deployment(1, number(1), number(0));
    done.spec.as_mut().unwrap().revision_history_limit = Some(1);
    let sets =
        [set("a", 1, 0, 0, (1, 2)), set("b", 2, 0, 0, (1, 2)), set("c", 3, 0, 0, (1, 2)), set("new", 4, 1, 1, (1, 2))];
    let first = plan(&done, &sets, |_| false, at(0));
    assert!(first.delete.is_empty(), "not before the rollout is seen to be complete");
    done.status = Some(first.status);
    let second = plan(&done, &sets, |_| false, at(1));
    assert_eq!(second.delete, ["web-a", "web-b"]);
}

#[test]
fn a_rollout_that_stands_still_times_out() {
    let sets = [set("old", 1, 3, 3, (3, 4)), set("new", 2, 1, 0, (3, 4))];
    let mut stuck = deployment(3, number(1), number(0));
    let first = plan(&stuck, &sets, |_| false, at(0));
    stuck.status = Some(first.status);
    for (now, expected) in [(10, "True"), (599, "True"), (601, "False")] {
        let seen = plan(&stuck, &sets, |_| false, at(now)).status;
        assert_eq!(status::condition(&seen, "Progressing").unwrap().status, expected, "after {now} s");
    }
    let spec = stuck.spec.clone().unwrap();
    let recheck = status::recheck_in(&stuck, &spec, stuck.status.as_ref().unwrap(), at(100)).unwrap();
    assert_eq!(recheck.as_secs(), 501);
}

#[test]
fn running_twice_changes_nothing() {
    let mut quiet = deployment(3, number(1), number(0));
    let sets = [set("new", 1, 3, 3, (3, 4))];
    quiet.status = Some(plan(&quiet, &sets, |_| false, at(0)).status);
    let again = plan(&quiet, &sets, |_| false, at(50));
    assert!(again.create.is_none() && again.update.is_empty() && again.delete.is_empty() && again.events.is_empty());
    assert_eq!(Some(again.status), quiet.status);
}

//! The fast algorithm against a slow one that reads like the specification, on random clusters and pods.
//!
//! Every case is a cluster with a history: pods and nodes come and go, and in between the same kinds of pods are judged
//! again, so that everything that is remembered from one decision to the next is put to the test as well.
//! `SCHEDULER_CASES=100000 cargo test -p scheduler --release equivalence` runs many more than the default.

mod generate;
mod naive;

use std::sync::Arc;

use api::cached::Pod;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::json;

use crate::config::Configuration;
use crate::cycle::Failure;
use crate::framework::Point;
use crate::offline::Offline;
use crate::pod::{OwnerKind, PodInfo};
use generate::Generator;
use naive::World;

/// Enough to meet every plug-in many times, in a few seconds.
const CASES: u64 = 250;
const STEPS: usize = 12;

/// Scorers of the default profile, each compared alone as well.
const SCORERS: &[&str] = &[
    "TaintToleration",
    "NodeAffinity",
    "NodeResourcesFit",
    "PodTopologySpread",
    "InterPodAffinity",
    "NodeResourcesBalancedAllocation",
    "ImageLocality",
];

#[test]
fn the_fast_algorithm_agrees_with_the_specification() {
    let cases = std::env::var("SCHEDULER_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(CASES);
    let (mut judged, mut rejected) = (0, 0);
    for seed in 0..cases {
        let mut case = Case::new(seed);
        for _ in 0..STEPS {
            case.change();
            let pod = case.generator.pod();
            let (nodes, refused) = case.compare(&pod);
            judged += nodes;
            rejected += refused;
        }
    }
    assert!(rejected * 20 > judged && rejected < judged, "{rejected} of {judged}: the cases are too easy or too hard");
}

struct Case {
    seed: u64,
    generator: Generator,
    world: World,
    offline: Offline,
}

impl Case {
    fn new(seed: u64) -> Case {
        let mut configuration = Configuration::default();
        configuration.percentage_of_nodes_to_score = Some(100);
        // The default profile, and one for each scorer alone.
        let alone = SCORERS.iter().map(|scorer| {
            serde_json::from_value(json!({"schedulerName": scorer, "plugins": {"score": {
                "disabled": [{"name": "*"}], "enabled": [{"name": scorer, "weight": 1}]}}}))
            .unwrap()
        });
        configuration.profiles.extend(alone);
        let mut case = Case {
            seed,
            generator: Generator::new(StdRng::seed_from_u64(seed)),
            world: World::default(),
            offline: Offline::new(&configuration, seed).unwrap(),
        };
        for (name, labels) in case.generator.namespaces() {
            case.offline.cluster.set_namespace(&name, Some(labels.clone()));
            case.world.namespaces.insert(name, labels);
        }
        case.add_storage();
        let nodes = case.generator.dice.random_range(1..9);
        (0..nodes).for_each(|_| case.set_node());
        case
    }

    fn add_storage(&mut self) {
        let (claims, volumes, classes) = self.generator.storage();
        for class in classes {
            self.offline.cluster.volumes.set_class(class.metadata.name.as_deref().unwrap(), Some(class.clone()));
            self.world.classes.push(class);
        }
        for volume in volumes {
            self.offline.cluster.volumes.set_volume(volume.metadata.name.as_deref().unwrap(), Some(volume.clone()));
            self.world.volumes.push(volume);
        }
        for claim in claims {
            self.offline.cluster.volumes.set_claim(&client::object_key(&*claim), Some(claim.clone()));
            self.world.claims.push(claim);
        }
    }

    fn set_node(&mut self) {
        let node = Arc::new(self.generator.node());
        self.world.nodes.retain(|other| other.metadata.name != node.metadata.name);
        self.world.nodes.push(node.clone());
        self.offline.set_node(node);
    }

    /// Something happens.
    fn change(&mut self) {
        for _ in 0..self.generator.dice.random_range(0..4) {
            match self.generator.dice.random_range(0..10) {
                0 => self.set_node(),
                1 if self.world.nodes.len() > 1 => {
                    let at = self.generator.dice.random_range(0..self.world.nodes.len());
                    let node = self.world.nodes.remove(at);
                    self.offline.remove_node(node.metadata.name.as_deref().unwrap());
                }
                2 if !self.world.pods.is_empty() => {
                    let at = self.generator.dice.random_range(0..self.world.pods.len());
                    let pod = self.world.pods.remove(at);
                    self.offline.remove_pod(pod.metadata.uid.as_deref().unwrap());
                }
                3 => {
                    let (namespace, name, selector) = self.generator.service();
                    self.offline.cluster.owners.set_service(&namespace, &name, Some(&selector));
                    self.world.services.insert((namespace, name), selector);
                }
                4 => {
                    let (namespace, name, selector) = self.generator.replica_set();
                    let parsed = crate::cluster::workload_selector(Some(&selector));
                    self.offline.cluster.owners.set_workload(OwnerKind::ReplicaSet, &namespace, &name, parsed);
                    self.world.replica_sets.insert((namespace, name), selector);
                }
                _ => self.place_pod(),
            }
        }
    }

    fn place_pod(&mut self) {
        let mut pod = self.generator.pod();
        let node = &self.world.nodes[self.generator.dice.random_range(0..self.world.nodes.len())];
        pod.spec.as_mut().unwrap().node_name = node.metadata.name.clone();
        if self.generator.dice.random_bool(0.1) {
            pod.metadata.deletion_timestamp = Some(serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap());
        }
        let pod = Arc::new(pod);
        self.offline.set_pod(&pod);
        self.world.pods.push(pod);
    }

    /// Compares every verdict and every score for a pod. Returns how many nodes there were, and how many rejected it.
    fn compare(&mut self, pod: &Pod) -> (usize, usize) {
        let info = Arc::new(PodInfo::pending(Arc::new(pod.clone()), &self.offline.cluster.catalogue));
        let expected = self.world.filter(pod);
        let profile = self.offline.profiles.of(pod).unwrap().clone();
        let context = || format!("seed {}, pod {}", self.seed, serde_json::to_string(&pod.complete()).unwrap());
        let mut attempt = match self.offline.decider.attempt(&mut self.offline.cluster, &profile, &info) {
            Ok(attempt) => attempt,
            Err(Failure::Unfit(diagnosis)) => {
                let said = diagnosis.pre_filter.unwrap().reasons.join(", ");
                assert_eq!(Err(said), expected, "{}", context());
                return (self.world.nodes.len(), self.world.nodes.len());
            }
            Err(failure) => panic!("{failure}: {}", context()),
        };
        let expected = expected.unwrap_or_else(|error| panic!("not refused: {error}: {}", context()));
        let mut found = attempt.find();
        let feasible = std::mem::take(&mut found.feasible);
        let diagnosis = attempt.diagnose(found);
        let name = |node| attempt.cluster.row(node).name.to_string();
        let mut verdicts: Vec<(String, String)> = diagnosis
            .rejected
            .iter()
            .map(|(node, at)| (name(*node), diagnosis.rejections[usize::from(*at)].reasons.join(", ")))
            .collect();
        verdicts.extend(feasible.iter().map(|node| (name(*node), String::new())));
        verdicts.sort();
        let mut expected: Vec<(String, String)> = expected.into_iter().collect();
        if !expected.is_empty() && diagnosis.absent.is_some() {
            // Nodes that the pod's affinity does not name are not looked at.
            expected.retain(|(node, _)| verdicts.iter().any(|(other, _)| other == node));
        }
        assert_eq!(verdicts, expected, "{}", context());
        let names: Vec<String> = feasible.iter().map(|node| name(*node)).collect();
        let mut total = vec![0; names.len()];
        for scorer in SCORERS {
            let expected = self.world.score(scorer, pod, &names);
            let mut alone = pod.clone();
            alone.spec.as_mut().unwrap().scheduler_name = Some((*scorer).to_owned());
            let profile = self.offline.profiles.of(&alone).unwrap().clone();
            assert!(profile.has(Point::Score, scorer));
            let mut attempt = self.offline.decider.attempt(&mut self.offline.cluster, &profile, &info).unwrap();
            let mut scores = attempt.rank(&feasible);
            if expected.iter().all(|score| *score == expected[0]) && scores.iter().all(|score| *score == scores[0]) {
                // A score that is the same everywhere decides nothing: it may be left out.
                scores.clone_from(&expected);
            }
            assert_eq!(scores, expected, "{scorer} on {names:?}: {}", context());
            let weight = crate::plugins::PLUGINS.iter().find(|(name, ..)| name == scorer).unwrap().1;
            total.iter_mut().zip(&expected).for_each(|(total, score)| *total += weight * score);
        }
        let mut attempt = self.offline.decider.attempt(&mut self.offline.cluster, &profile, &info).unwrap();
        let ranked = attempt.rank(&feasible);
        let offsets: Vec<i64> = ranked.iter().zip(&total).map(|(one, other)| other - one).collect();
        assert!(offsets.iter().all(|offset| *offset == offsets[0]), "{ranked:?} and {total:?}: {}", context());
        (self.world.nodes.len(), self.world.nodes.len() - feasible.len())
    }
}

//! Decisions without an API: nodes and pods in, nodes out. For measuring the algorithm alone, and for tests.

use std::sync::Arc;

use api::cached::Pod;
use k8s_openapi::api::core::v1::Node;
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::cluster::Cluster;
use crate::config::{self, Configuration, ConfigurationError, Profiles};
use crate::cycle::{Decider, Failure};
use crate::framework::Candidate;
use crate::plugins::{Context, default_preemption};
use crate::pod::PodInfo;

/// A scheduler that only thinks.
pub struct Offline {
    pub(crate) cluster: Cluster,
    pub(crate) decider: Decider,
    pub(crate) profiles: Profiles,
}

/// What became of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Placed {
        node: String,
    },
    /// It would fit if these pods (by uid) left the node.
    Preempts {
        node: String,
        victims: Vec<String>,
    },
    Unplaced {
        message: String,
    },
}

impl Offline {
    /// The same seed makes the same choices.
    pub fn new(configuration: &Configuration, seed: u64) -> Result<Offline, ConfigurationError> {
        let cluster = Cluster::default();
        let context = Context {
            catalogue: cluster.catalogue.clone(),
            client: None,
            volumes: None,
            ignored_resources: Vec::new(),
        };
        let percentage = configuration.percentage_of_nodes_to_score.unwrap_or(0);
        Ok(Offline {
            profiles: config::build(configuration, &context)?,
            decider: Decider::new(percentage, StdRng::seed_from_u64(seed)),
            cluster,
        })
    }

    pub fn set_node(&mut self, node: Arc<Node>) {
        self.cluster.set_node(node);
    }

    pub fn remove_node(&mut self, name: &str) {
        self.cluster.remove_node(name);
    }

    /// A pod that has a node.
    pub fn set_pod(&mut self, pod: &Arc<Pod>) {
        self.cluster.observe(pod);
    }

    pub fn remove_pod(&mut self, uid: &str) {
        self.cluster.forget(uid);
    }

    /// Chooses a node for a pod, and counts the pod there from now on.
    pub fn schedule(&mut self, pod: Arc<Pod>) -> Outcome {
        let pod = Arc::new(PodInfo::pending(pod, &self.cluster.catalogue));
        let outcome = self.consider(&pod);
        if let Outcome::Placed { node } = &outcome {
            self.cluster.assume(pod, node);
        }
        outcome
    }

    fn consider(&mut self, pod: &Arc<PodInfo>) -> Outcome {
        let Some(profile) = self.profiles.of(&pod.pod).cloned() else {
            return Outcome::Unplaced { message: "the pod is for another scheduler".into() };
        };
        let mut diagnosis = match self.decider.decide(&mut self.cluster, &profile, pod) {
            Ok(node) => return Outcome::Placed { node: self.cluster.row(node).name.to_string() },
            Err(Failure::Unfit(diagnosis)) => diagnosis,
            Err(failure) => return Outcome::Unplaced { message: failure.to_string() },
        };
        let room = match self.decider.attempt(&mut self.cluster, &profile, pod) {
            Ok(mut attempt) => attempt.post_filter(&diagnosis),
            Err(_) => default_preemption::not_helpful(pod, diagnosis.nodes),
        };
        diagnosis.post_filter = room.message;
        match default_preemption::choose(room.candidates) {
            Some(Candidate { node, victims, .. }) => Outcome::Preempts {
                node: node.to_string(),
                victims: victims.iter().map(|victim| victim.uid.to_string()).collect(),
            },
            None => Outcome::Unplaced { message: diagnosis.to_string() },
        }
    }
}

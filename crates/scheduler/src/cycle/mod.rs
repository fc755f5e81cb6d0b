//! One scheduling decision: filter, score, choose. The same cluster and the same dice give the same node.

mod attempt;
mod diagnosis;
mod memory;
mod retreats;
mod trial;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;

pub(crate) use attempt::Attempt;
pub(crate) use diagnosis::{Diagnosis, EXTENDER};
pub(crate) use retreats::Retreat;
pub(crate) use trial::Trial;

use crate::cluster::{Cluster, NodeId};
use crate::framework::Profile;
use crate::pod::PodInfo;
use memory::Memory;

/// Makes decisions, and remembers what they have in common.
pub(crate) struct Decider {
    memory: Memory,
    /// Where the next search for nodes begins, so that all nodes get their turn.
    start: usize,
    dice: StdRng,
    /// How many nodes are looked at, of a hundred; 0 to let their number decide.
    percentage_of_nodes: i32,
}

/// A node that was chosen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    pub(crate) node: NodeId,
    /// How long it took to find out what plug-ins look at, to find nodes, and to compare them.
    pub(crate) preparing: Duration,
    pub(crate) filtering: Duration,
    pub(crate) scoring: Duration,
}

/// Why there is no choice.
#[derive(Debug)]
pub(crate) enum Failure {
    NoNodes,
    Unfit(Box<Diagnosis>),
    /// Something went wrong; trying again may help.
    Error(String),
}

impl Failure {
    /// Whether the pod as such cannot be scheduled now, rather than that something went wrong.
    pub(crate) fn is_unschedulable(&self) -> bool {
        !matches!(self, Failure::Error(_))
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::NoNodes => write!(out, "no nodes available to schedule pods"),
            Failure::Unfit(diagnosis) => write!(out, "{diagnosis}"),
            Failure::Error(message) => write!(out, "{message}"),
        }
    }
}

impl Decider {
    pub(crate) fn new(percentage_of_nodes: i32, dice: StdRng) -> Decider {
        Decider { memory: Memory::default(), start: 0, dice, percentage_of_nodes }
    }

    /// The best node for the pod.
    pub(crate) fn decide(
        &mut self,
        cluster: &mut Cluster,
        profile: &Profile,
        pod: &Arc<PodInfo>,
    ) -> Result<Choice, Failure> {
        let start = Instant::now();
        let mut attempt = self.attempt(cluster, profile, pod)?;
        let began = Instant::now();
        let found = attempt.find();
        let filtering = began.elapsed();
        let node = match found.feasible.as_slice() {
            [] => return Err(Failure::Unfit(Box::new(attempt.diagnose(found)))),
            [only] => *only,
            feasible => {
                let totals = attempt.rank(feasible);
                feasible[attempt.pick(&totals)]
            }
        };
        Ok(Choice { node, preparing: began - start, filtering, scoring: began.elapsed() - filtering })
    }

    /// A decision step by step, for callers that ask others in between.
    pub(crate) fn attempt<'a>(
        &'a mut self,
        cluster: &'a mut Cluster,
        profile: &'a Profile,
        pod: &'a Arc<PodInfo>,
    ) -> Result<Attempt<'a>, Failure> {
        Attempt::new(self, cluster, profile, pod)
    }
}

#[cfg(test)]
mod tests;

//! One scheduling decision: filter, score, choose. The same cluster and the same dice give the same node.

mod attempt;
mod memory;
mod preemptions;

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;

pub(crate) use attempt::Attempt;

use crate::cluster::{Cluster, NodeId};
use crate::framework::{Diagnosis, Profile, Samples};
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
    /// How long plug-ins take.
    pub(crate) samples: Samples,
    /// How long the steps of the last decision took.
    pub(crate) times: Times,
}

/// How long it took to find out what plug-ins look at, to find nodes, and to compare them; as far as it came to that.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Times {
    pub(crate) preparing: Duration,
    pub(crate) filtering: Option<Duration>,
    pub(crate) scoring: Option<Duration>,
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
        let (memory, samples, times) = (Memory::default(), Samples::default(), Times::default());
        Decider { memory, start: 0, dice, percentage_of_nodes, samples, times }
    }

    /// Times the plug-ins of one attempt in so many.
    pub(crate) fn sampling(self, one_in: u32) -> Decider {
        Decider { samples: Samples::one_in(one_in), ..self }
    }

    /// The best node for the pod.
    pub(crate) fn decide(
        &mut self,
        cluster: &mut Cluster,
        profile: &Profile,
        pod: &Arc<PodInfo>,
    ) -> Result<NodeId, Failure> {
        let mut times = Times::default();
        let decision = self.decide_timed(cluster, profile, pod, &mut times);
        self.times = times;
        decision
    }

    fn decide_timed(
        &mut self,
        cluster: &mut Cluster,
        profile: &Profile,
        pod: &Arc<PodInfo>,
        times: &mut Times,
    ) -> Result<NodeId, Failure> {
        let start = Instant::now();
        let attempt = self.attempt(cluster, profile, pod);
        times.preparing = start.elapsed();
        let mut attempt = attempt?;
        let began = Instant::now();
        let found = attempt.find();
        times.filtering = Some(began.elapsed());
        match found.feasible.as_slice() {
            [] => Err(Failure::Unfit(Box::new(attempt.diagnose(found)))),
            [only] => Ok(*only),
            feasible => {
                let began = Instant::now();
                let totals = attempt.rank(feasible);
                let best = feasible[attempt.pick(&totals)];
                times.scoring = Some(began.elapsed());
                Ok(best)
            }
        }
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

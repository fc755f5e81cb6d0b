//! The seams of scheduling: what a plug-in can say, and at which points it is asked.
//!
//! Order for one pod: PreEnqueue and QueueSort (in `queue`); PreFilter, Filter, PostFilter, PreScore, Score and
//! NormalizeScore (in `cycle`); Reserve and Permit; PreBind, Bind and PostBind (in `binding`).
//!
//! Two kinds of plug-in judge nodes. Some look at one node at a time: their `filter` and `score` are asked again only when
//! that node changes, and the answers serve every pod of the same class. The others look across nodes, or at volumes: they
//! `prepare` a [`State`] (PreFilter and PreScore in one), which follows what happens in the cluster and judges in their place.

mod diagnosis;
mod evaluations;
mod event;
mod profile;
mod trial;

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

pub(crate) use diagnosis::{Diagnosis, EXTENDER};
pub(crate) use evaluations::{SUCCESS, Samples};
pub(crate) use event::{Event, NodeChange, PodChange};
pub(crate) use profile::{Profile, Scorer, Stateful};
pub(crate) use trial::Trial;

use crate::cluster::{Cluster, NodeId, View};
use crate::pod::{Class, PodInfo};

pub(crate) const MAX_SCORE: i64 = 100;

/// Where a plug-in can be asked, as configuration names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Point {
    PreEnqueue,
    QueueSort,
    PreFilter,
    Filter,
    PostFilter,
    PreScore,
    Score,
    Reserve,
    Permit,
    PreBind,
    Bind,
    PostBind,
}

impl Point {
    /// As metrics name it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Point::PreEnqueue => "PreEnqueue",
            Point::QueueSort => "QueueSort",
            Point::PreFilter => "PreFilter",
            Point::Filter => "Filter",
            Point::PostFilter => "PostFilter",
            Point::PreScore => "PreScore",
            Point::Score => "Score",
            Point::Reserve => "Reserve",
            Point::Permit => "Permit",
            Point::PreBind => "PreBind",
            Point::Bind => "Bind",
            Point::PostBind => "PostBind",
        }
    }
}

/// Why a node does not take a pod, in upstream's words: they are counted in the event and the condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rejection {
    pub(crate) plugin: &'static str,
    pub(crate) reasons: Vec<Cow<'static, str>>,
    /// Removing pods from the node cannot help.
    pub(crate) is_unresolvable: bool,
}

impl Rejection {
    pub(crate) fn new(plugin: &'static str, reason: impl Into<Cow<'static, str>>) -> Rejection {
        Rejection { plugin, reasons: vec![reason.into()], is_unresolvable: false }
    }

    /// As metrics call it.
    pub(crate) fn status(&self) -> &'static str {
        if self.is_unresolvable { "UnschedulableAndUnresolvable" } else { "Unschedulable" }
    }

    pub(crate) fn unresolvable(mut self) -> Rejection {
        self.is_unresolvable = true;
        self
    }
}

/// What a plug-in's judgement of one node depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The node object alone.
    Object,
    /// Also the pods on the node.
    Usage,
    /// More than one node, or volumes: a [`State`] judges in the plug-in's place.
    Cluster,
}

/// How scores of single nodes become scores from 0 to 100.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// They are that already.
    Absolute,
    /// In proportion to the largest among the nodes that are compared.
    ToLargest,
    /// As `ToLargest`, but less is better.
    ToLargestReversed,
}

/// What a permit says.
#[cfg_attr(not(test), expect(dead_code, reason = "no plug-in of the table holds pods back yet"))]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Permit {
    Allow,
    /// The pod waits until somebody allows or rejects it, at most this long.
    Wait(Duration),
    Reject(Rejection),
}

/// What came of looking for a way to make room.
#[derive(Debug, Default)]
pub(crate) struct PostFilter {
    /// Nodes that could be made to take the pod. One of them is chosen, after extenders had their say.
    pub(crate) candidates: Vec<Candidate>,
    /// A node kept for the pod earlier is given up.
    pub(crate) gives_up: bool,
    /// Said at the end of the event and the condition.
    pub(crate) message: String,
}

/// A node and the pods that would have to leave it, the most important first.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) node: Arc<str>,
    pub(crate) victims: Arc<[Arc<PodInfo>]>,
    /// How many victims a disruption budget wants to keep.
    pub(crate) violations: usize,
}

/// A node that could be made to take the pod, or why it could not.
pub(crate) type Preemption = Result<Candidate, Rejection>;

/// An attempt that found no node, for a plug-in that looks for a way to make room.
pub(crate) trait FailedAttempt {
    fn pod(&self) -> &Arc<PodInfo>;

    fn cluster(&self) -> &Cluster;

    /// A number below `bound`, by the attempt's dice.
    fn draw(&mut self, bound: usize) -> usize;

    /// Whether a node that is not as it is would take the pod, also once the pods have come that it is kept for.
    fn judge(&mut self, trial: &Trial) -> Result<(), Rejection>;

    /// As if a pod came to a node (`sign` 1) or left it (-1).
    fn suppose(&mut self, node: NodeId, pod: &PodInfo, sign: i64);

    /// What making room on a node would take, as `find_out` says: nodes that did not change since another pod of the same
    /// kind asked are not asked about again.
    fn preemption(&mut self, node: NodeId, find_out: fn(&mut dyn FailedAttempt, NodeId) -> Preemption) -> &Preemption;
}

/// A pod on its way to a node.
pub(crate) struct Placement {
    pub(crate) pod: Arc<PodInfo>,
    pub(crate) node: Arc<str>,
}

/// Why a plug-in could not do its part for a pod that has a node: each plug-in has errors of its own.
pub(crate) type PluginError = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type Outcome<'a> = BoxFuture<'a, Result<(), PluginError>>;

/// Every method has a default that has nothing to say; `points` lists those that do.
pub(crate) trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    fn points(&self) -> &'static [Point];

    /// May the pod be tried at all?
    fn pre_enqueue(&self, _pod: &PodInfo) -> Result<(), Rejection> {
        Ok(())
    }

    /// Which of two waiting pods is tried first; equals by age.
    fn compare(&self, _one: &PodInfo, _other: &PodInfo) -> Ordering {
        Ordering::Equal
    }

    fn basis(&self) -> Basis {
        Basis::Object
    }

    /// The only nodes worth looking at, where the pod names them.
    fn candidates<'a>(&self, _class: &'a Class) -> Result<Option<&'a BTreeSet<String>>, Rejection> {
        Ok(None)
    }

    fn filter(&self, _class: &Class, _node: &View<'_>) -> Result<(), Rejection> {
        Ok(())
    }

    /// How the plug-in scores pods of this class; None if it has nothing to say on them.
    fn scale(&self, _class: &Class) -> Option<Scale> {
        None
    }

    fn score(&self, _class: &Class, _node: &View<'_>) -> i64 {
        0
    }

    /// Work across nodes, done once for many decisions: see [`State`]. None if there is nothing to say on this pod now; a
    /// rejection if no node at all can take it.
    fn prepare(&self, _pod: &PodInfo, _cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        Ok(None)
    }

    /// No node takes the pod: can something be done about it? None to leave it to the next plug-in.
    fn post_filter(&self, _attempt: &mut dyn FailedAttempt, _diagnosis: &Diagnosis) -> Option<PostFilter> {
        None
    }

    fn reserve(&self, _placement: &Placement, _cluster: &mut Cluster) -> Result<(), PluginError> {
        Ok(())
    }

    fn unreserve(&self, _placement: &Placement, _cluster: &mut Cluster) {}

    fn permit(&self, _placement: &Placement) -> Permit {
        Permit::Allow
    }

    fn pre_bind<'a>(&'a self, _placement: &'a Placement) -> Outcome<'a> {
        Box::pin(async { Ok(()) })
    }

    /// None if the plug-in leaves binding this pod to the next one.
    fn bind<'a>(&'a self, _placement: &'a Placement) -> Option<Outcome<'a>> {
        None
    }

    fn post_bind(&self, _placement: &Placement) {}

    /// Whether an event may let a pod be scheduled that this plug-in rejected.
    fn may_help(&self, _pod: &PodInfo, _event: &Event) -> bool {
        false
    }
}

/// What a plug-in worked out across nodes for pods of one kind.
pub(crate) trait State: Send {
    /// Takes in what happened since; false if it has to be prepared anew.
    fn refresh(&mut self, cluster: &mut Cluster) -> bool;

    /// As if a pod came to a node (`sign` 1) or left it (-1). Taken back by the opposite.
    fn suppose(&mut self, _cluster: &mut Cluster, _node: NodeId, _pod: &PodInfo, _sign: i64) {}

    /// False if it only scores, whatever happens: then `filter` is not asked.
    fn can_reject(&self) -> bool {
        true
    }

    /// 0 if the node takes the pod, else a number for `explain`.
    fn filter(&self, _cluster: &Cluster, _node: &View<'_>) -> u8 {
        0
    }

    /// The words behind a number that `filter` returned. States that reject nothing have nothing to explain.
    fn explain(&self, _code: u8) -> Rejection {
        Rejection::new("", "")
    }

    /// Scores from 0 to 100 of nodes that passed the filters; false if they are all the same.
    fn score(&self, _cluster: &Cluster, _nodes: &[NodeId], _scores: &mut Vec<i64>) -> bool {
        false
    }
}

/// Brings raw scores to 0..=100 by the largest of them; reversed, the smallest raw score becomes the best.
pub(crate) fn normalize(scores: &mut [i64], is_reversed: bool) {
    let max = scores.iter().copied().max().unwrap_or(0).max(0);
    for score in scores {
        *score = match (max, is_reversed) {
            (0, false) => *score,
            (0, true) => MAX_SCORE,
            (max, false) => MAX_SCORE * *score / max,
            (max, true) => MAX_SCORE - MAX_SCORE * *score / max,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_brought_to_a_hundred() {
        for (raw, reverse, expected) in [
            (vec![1, 2, 4], false, vec![25, 50, 100]),
            (vec![1, 2, 4], true, vec![75, 50, 0]),
            (vec![0, 0], false, vec![0, 0]),
            (vec![0, 0], true, vec![100, 100]),
        ] {
            let mut scores = raw.clone();
            normalize(&mut scores, reverse);
            assert_eq!(scores, expected, "{raw:?} reversed: {reverse}");
        }
    }
}

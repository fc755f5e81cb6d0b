//! Making room: when no node takes a pod, pods of lower priority may have to go.
//!
//! For each node that could help, all pods of lower priority are taken away in thought; if the pod then fits, as many as
//! possible are spared again, the most important first. The node whose victims matter least is chosen.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use api::cached::Pod;
use jiff::Timestamp;

use crate::cluster::{Cluster, NodeId};
use crate::framework::{Candidate, Diagnosis, FailedAttempt, Plugin, Point, PostFilter, Preemption, Rejection, Trial};
use crate::pod::PodInfo;

const NAME: &str = "DefaultPreemption";
const NO_VICTIMS: &str = "No preemption victims found for incoming pod";
const NOT_HELPFUL: &str = "Preemption is not helpful for scheduling";

pub(crate) struct DefaultPreemption {
    /// Candidates are looked for on this part of the nodes, but on no fewer than `min_absolute`.
    pub(crate) min_percentage: usize,
    pub(crate) min_absolute: usize,
}

impl Plugin for DefaultPreemption {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PostFilter]
    }

    fn post_filter(&self, attempt: &mut dyn FailedAttempt, diagnosis: &Diagnosis) -> Option<PostFilter> {
        if let Err(reason) = is_eligible(attempt, diagnosis) {
            return Some(PostFilter { message: format!("preemption: {reason}"), ..PostFilter::default() });
        }
        let nodes = diagnosis.resolvable(attempt.cluster().order());
        let mut said = Diagnosis {
            nodes: attempt.cluster().len(),
            absent: Some(Rejection::new(NAME, NOT_HELPFUL).unresolvable()),
            ..Diagnosis::default()
        };
        let candidates = self.candidates(attempt, &nodes, &mut said);
        if candidates.is_empty() {
            return Some(PostFilter {
                gives_up: true,
                message: format!("preemption: {said}"),
                ..PostFilter::default()
            });
        }
        Some(PostFilter { candidates, ..PostFilter::default() })
    }
}

/// What is said when the pod was rejected before any node was looked at: taking pods away from nodes cannot help then.
pub(crate) fn not_helpful(pod: &PodInfo, nodes: usize) -> PostFilter {
    if let Err(reason) = may_preempt(pod) {
        return PostFilter { message: format!("preemption: {reason}"), ..PostFilter::default() };
    }
    let absent = Some(Rejection::new(NAME, NOT_HELPFUL).unresolvable());
    let said = Diagnosis { nodes, absent, ..Diagnosis::default() };
    PostFilter { gives_up: true, message: format!("preemption: {said}"), ..PostFilter::default() }
}

impl DefaultPreemption {
    /// Nodes that could be made to take the pod, beginning anywhere, and no more than enough of them.
    fn candidates(&self, attempt: &mut dyn FailedAttempt, nodes: &[NodeId], said: &mut Diagnosis) -> Vec<Candidate> {
        let enough = (nodes.len() * self.min_percentage / 100).max(self.min_absolute).min(nodes.len());
        let (mut sparing, mut violating) = (Vec::new(), Vec::new());
        let offset = attempt.draw(nodes.len());
        let nobody = Rejection::new(NAME, NO_VICTIMS).unresolvable();
        for node in nodes.iter().cycle().skip(offset).take(nodes.len()) {
            if attempt.cluster().lowest_priority(*node) >= attempt.pod().priority {
                said.add(*node, &nobody);
                continue;
            }
            match attempt.preemption(*node, victims_on) {
                Err(rejection) => said.add(*node, rejection),
                Ok(candidate) if candidate.violations == 0 => sparing.push(candidate.clone()),
                Ok(candidate) => violating.push(candidate.clone()),
            }
            if !sparing.is_empty() && sparing.len() + violating.len() >= enough {
                break;
            }
        }
        sparing.truncate(enough);
        violating.truncate(enough);
        sparing.append(&mut violating);
        sparing
    }
}

/// Whether the pod may drive others out, and does not wait for pods that it drove out already.
fn is_eligible(attempt: &dyn FailedAttempt, diagnosis: &Diagnosis) -> Result<(), &'static str> {
    let pod = attempt.pod();
    may_preempt(pod)?;
    let Some(node) = pod.nominated_node().and_then(|name| attempt.cluster().node(name)) else { return Ok(()) };
    if diagnosis.of(node).or(diagnosis.pre_filter.as_ref()).is_some_and(|rejection| rejection.is_unresolvable) {
        return Ok(());
    }
    let mut pods = attempt.cluster().row(node).pods.iter();
    if pods.any(|other| other.priority < pod.priority && is_leaving_by_preemption(&other.pod)) {
        return Err("not eligible due to a terminating pod on the nominated node.");
    }
    Ok(())
}

fn may_preempt(pod: &PodInfo) -> Result<(), &'static str> {
    match pod.pod.spec.as_ref().and_then(|spec| spec.preemption_policy.as_deref()) {
        Some("Never") => Err("not eligible due to preemptionPolicy=Never."),
        _ => Ok(()),
    }
}

fn is_leaving_by_preemption(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let disrupted = conditions.into_iter().find(|condition| condition.type_ == "DisruptionTarget");
    pod.metadata.deletion_timestamp.is_some()
        && disrupted.is_some_and(|condition| {
            condition.status == "True" && condition.reason.as_deref() == Some("PreemptionByScheduler")
        })
}

/// The smallest set of pods that would have to leave the node, or why that would not help.
fn victims_on(attempt: &mut dyn FailedAttempt, node: NodeId) -> Preemption {
    let priority = attempt.pod().priority;
    let mut lower: Vec<Arc<PodInfo>> =
        attempt.cluster().row(node).pods.iter().filter(|other| other.priority < priority).cloned().collect();
    let mut trial = Trial::of(attempt.cluster(), node);
    lower.iter().for_each(|other| trial.remove(attempt, other));
    let fits = attempt.judge(&trial);
    if let Err(rejection) = fits {
        lower.into_iter().for_each(|other| trial.add(attempt, other));
        return Err(rejection);
    }
    lower.sort_by_key(|other| importance(other));
    let (guarded, free) = split_by_budget(lower, attempt.cluster());
    let is_mixed = !guarded.is_empty() && !free.is_empty();
    let (mut victims, mut violations) = (Vec::new(), 0);
    for (others, is_guarded) in [(guarded, true), (free, false)] {
        for other in others {
            trial.add(attempt, other.clone());
            if attempt.judge(&trial).is_err() {
                trial.remove(attempt, &other);
                violations += usize::from(is_guarded);
                victims.push(other);
            }
        }
    }
    // Only in thought: what plug-ins counted is put back.
    victims.iter().for_each(|victim| trial.add(attempt, victim.clone()));
    if is_mixed {
        victims.sort_by_key(|victim| importance(victim));
    }
    if victims.is_empty() {
        return Err(Rejection::new(NAME, NO_VICTIMS).unresolvable());
    }
    Ok(Candidate { node: attempt.cluster().row(node).name.clone(), victims: victims.into(), violations })
}

/// The more important, the smaller: high priority, then long running.
fn importance(pod: &PodInfo) -> (Reverse<i32>, Timestamp) {
    (Reverse(pod.priority), pod.started())
}

/// Those whose going a budget forbids, and the rest. Each pod that goes uses up what its budgets allow.
fn split_by_budget(pods: Vec<Arc<PodInfo>>, cluster: &Cluster) -> (Vec<Arc<PodInfo>>, Vec<Arc<PodInfo>>) {
    let budgets = &cluster.budgets;
    if budgets.is_empty() {
        return (Vec::new(), pods);
    }
    let mut gone: HashMap<&(String, String), i32> = HashMap::new();
    pods.into_iter().partition(|pod| {
        let mut is_forbidden = false;
        for (key, budget) in budgets.in_namespace(pod.namespace()).filter(|(_, budget)| budget.covers(pod)) {
            let gone = gone.entry(key).or_default();
            *gone += 1;
            is_forbidden |= *gone > budget.allowed;
        }
        is_forbidden
    })
}

/// The candidate whose victims matter least (`pickOneNodeForPreemption`, v1.36); of equals, the first.
pub(crate) fn choose(candidates: Vec<Candidate>) -> Option<Candidate> {
    candidates.into_iter().min_by_key(|candidate| {
        let highest = candidate.victims.iter().map(|victim| victim.priority).max().unwrap_or(i32::MIN);
        // Shifted so that a pod of negative priority still counts as a loss.
        let shifted = |victim: &Arc<PodInfo>| i64::from(victim.priority) + i64::from(i32::MAX) + 1;
        let sum: i64 = candidate.victims.iter().map(shifted).sum();
        let important = candidate.victims.iter().filter(|victim| victim.priority == highest);
        let earliest_start = important.map(|victim| victim.started()).min();
        (candidate.violations, highest, sum, candidate.victims.len(), Reverse(earliest_start))
    })
}

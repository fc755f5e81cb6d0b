//! The steps of one decision.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use rand::Rng;
use rand::rngs::StdRng;

use super::memory::{Judgements, States};
use super::{Decider, Failure};
use crate::cluster::{Cluster, NodeId, View};
use crate::framework::{
    Diagnosis, FailedAttempt, Plugin, Point, PostFilter, Preemption, Profile, Rejection, SUCCESS, Samples, Scale,
    State, Stateful, Trial, normalize,
};
use crate::pod::{Class, PodInfo};

/// However many nodes there are, no fewer are looked at than this, if there are as many.
const MIN_FEASIBLE: usize = 100;
const MIN_PERCENTAGE: usize = 5;

pub(crate) struct Attempt<'a> {
    pub(crate) cluster: &'a mut Cluster,
    pub(crate) profile: &'a Profile,
    pub(crate) pod: &'a Arc<PodInfo>,
    judgements: &'a mut Judgements,
    states: &'a mut States,
    /// Which of the states filter here.
    filtering: Vec<usize>,
    /// How long plug-ins take, where it is measured.
    samples: &'a mut Samples,
    start: &'a mut usize,
    dice: &'a mut StdRng,
    percentage_of_nodes: i32,
    /// The only nodes worth looking at, and which plug-in says so.
    named: Option<(Vec<NodeId>, &'static str)>,
    /// Nodes on which room is kept for pods that come before this one, in order.
    kept: Vec<NodeId>,
    /// The rejections of those that did not take the pod: they were judged on their own.
    singular: Vec<Rejection>,
    /// What making room takes, where it is not remembered.
    passing: Option<Preemption>,
}

/// The nodes that take a pod, and those that do not.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) feasible: Vec<NodeId>,
    rejected: Vec<(NodeId, Verdict)>,
}

impl Found {
    fn evaluated(&self) -> usize {
        self.feasible.len() + self.rejected.len()
    }
}

/// Who rejected a node, and in which of its ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verdict {
    Node(u16),
    State(u8, u8),
    Singular(u16),
}

impl<'a> Attempt<'a> {
    pub(super) fn new(
        decider: &'a mut Decider,
        cluster: &'a mut Cluster,
        profile: &'a Profile,
        pod: &'a Arc<PodInfo>,
    ) -> Result<Attempt<'a>, Failure> {
        cluster.refresh_order();
        if cluster.len() == 0 {
            return Err(Failure::NoNodes);
        }
        profile.evaluations.pre_filter.fetch_add(1, Ordering::Relaxed);
        let named = candidates(profile, &pod.class, cluster).map_err(|rejection| rejected(rejection, cluster))?;
        let Decider { memory, start, dice, percentage_of_nodes, samples, .. } = decider;
        samples.begin();
        let (judgements, states) = memory.of(profile, &pod.class, pod.group.id);
        judgements.cover(cluster.places());
        let mut filtering = Vec::with_capacity(states.len());
        for (at, (Stateful { plugin, filters, .. }, state)) in
            profile.stateful.iter().zip(states.iter_mut()).enumerate()
        {
            let prepare = || {
                let is_current = state.as_mut().is_some_and(|state| state.refresh(cluster));
                if !is_current {
                    *state = plugin.prepare(pod, cluster)?;
                }
                Ok(())
            };
            let prepared = samples.time_as(plugin.name(), Point::PreFilter.name(), prepare, |prepared| {
                prepared.as_ref().map_or_else(Rejection::status, |()| SUCCESS)
            });
            prepared.map_err(|rejection| rejected(rejection, cluster))?;
            if *filters && state.as_ref().is_some_and(|state| state.can_reject()) {
                filtering.push(at);
            }
        }
        Ok(Attempt {
            percentage_of_nodes: profile.percentage_of_nodes.unwrap_or(*percentage_of_nodes),
            kept: kept_for_others(cluster, pod),
            cluster,
            profile,
            pod,
            judgements,
            states,
            filtering,
            samples,
            start,
            dice,
            named,
            singular: Vec::new(),
            passing: None,
        })
    }

    /// Nodes that take the pod: enough of them, not all.
    pub(crate) fn find(&mut self) -> Found {
        let mut found = Found::default();
        // Where others made room for the pod is most likely the only place.
        if let Some(node) = self.pod.nominated_node().and_then(|name| self.cluster.node(name))
            && self.verdict(node).is_none()
        {
            found.feasible.push(node);
            self.count(&found);
            return found;
        }
        let named = self.named.take();
        let total = named.as_ref().map_or(self.cluster.len(), |(nodes, _)| nodes.len());
        let enough = feasible_to_find(self.percentage_of_nodes, total);
        for step in 0..total {
            let at = (*self.start + step) % total;
            let node = named.as_ref().map_or_else(|| self.cluster.order()[at], |(nodes, _)| nodes[at]);
            match self.verdict(node) {
                Some(verdict) => found.rejected.push((node, verdict)),
                None => {
                    found.feasible.push(node);
                    if found.feasible.len() == enough {
                        break;
                    }
                }
            }
        }
        self.named = named;
        *self.start = (*self.start + found.evaluated()) % self.cluster.len();
        self.count(&found);
        found
    }

    /// How many nodes each state filtered: those that no plug-in before it rejected. Nodes kept for others were judged on
    /// their own, and that is counted there.
    fn count(&self, found: &Found) {
        if self.filtering.is_empty() {
            return;
        }
        let is_kept = |node: &&NodeId| self.is_kept(**node);
        let kept = if self.kept.is_empty() { 0 } else { found.feasible.iter().filter(is_kept).count() };
        let mut asked = found.feasible.len() - kept;
        for at in self.filtering.iter().rev() {
            let by_it =
                |(_, verdict): &&(NodeId, Verdict)| matches!(verdict, Verdict::State(by, _) if usize::from(*by) == *at);
            asked += found.rejected.iter().filter(by_it).count();
            self.profile.evaluations.filtered[*at].fetch_add(asked, Ordering::Relaxed);
        }
    }

    /// Why the node does not take the pod; None if it does.
    fn verdict(&mut self, node: NodeId) -> Option<Verdict> {
        if self.is_kept(node) {
            let trial = Trial::of(self.cluster, node);
            let rejection = self.judge(&trial).err()?;
            self.singular.push(rejection);
            return Some(Verdict::Singular(self.singular.len() as u16 - 1));
        }
        match self.judgements.verdict(self.profile, &self.pod.class, self.cluster, node, self.samples) {
            0 => {}
            verdict => return Some(Verdict::Node(verdict)),
        }
        let view = self.cluster.view(node);
        for at in &self.filtering {
            let Some(state) = &self.states[*at] else { continue };
            let code = match self.samples.is_on() {
                false => state.filter(self.cluster, &view),
                true => sampled(self.samples, self.profile.stateful[*at].plugin.name(), &**state, self.cluster, &view),
            };
            if code != 0 {
                return Some(Verdict::State(*at as u8, code));
            }
        }
        None
    }

    fn is_kept(&self, node: NodeId) -> bool {
        self.kept.binary_search(&node).is_ok()
    }

    fn filter(&mut self, trial: &Trial) -> Result<(), Rejection> {
        let view = trial.view(self.cluster);
        let (profile, class) = (self.profile, &self.pod.class);
        profile.object_filters.ask(class, &view, self.samples)?;
        profile.usage_filters.ask(class, &view, self.samples)?;
        for at in &self.filtering {
            let Some(state) = &self.states[*at] else { continue };
            profile.evaluations.filtered[*at].fetch_add(1, Ordering::Relaxed);
            match sampled(self.samples, profile.stateful[*at].plugin.name(), &**state, self.cluster, &view) {
                0 => {}
                code => return Err(state.explain(code)),
            }
        }
        Ok(())
    }

    /// The total scores of nodes that `find` returned.
    pub(crate) fn rank(&mut self, nodes: &[NodeId]) -> Vec<i64> {
        self.profile.evaluations.pre_score.fetch_add(1, Ordering::Relaxed);
        // Nodes that are kept for others were judged on their own; their scores may be of an earlier state.
        for node in nodes {
            self.judgements.verdict(self.profile, &self.pod.class, self.cluster, *node, self.samples);
        }
        let mut totals: Vec<i64> = nodes.iter().map(|node| self.judgements.score(*node)).collect();
        let mut scores = Vec::with_capacity(nodes.len());
        for (at, (scorer, scale)) in self.judgements.scaled.iter().enumerate() {
            scores.clear();
            scores.extend(nodes.iter().map(|node| self.judgements.raw(*node, at)));
            let is_reversed = *scale == Scale::ToLargestReversed;
            let name = scorer.plugin.name();
            self.samples.time(name, "ScoreExtensionNormalize", || normalize(&mut scores, is_reversed));
            add(&mut totals, &scores, scorer.weight);
        }
        for (at, Stateful { plugin, weight, .. }) in self.profile.stateful.iter().enumerate() {
            let (Some(state), Some(weight)) = (&self.states[at], *weight) else { continue };
            let score = || state.score(self.cluster, nodes, &mut scores);
            if self.samples.time(plugin.name(), Point::Score.name(), score) {
                self.profile.evaluations.scored[at].fetch_add(nodes.len(), Ordering::Relaxed);
                add(&mut totals, &scores, weight);
            }
        }
        totals
    }

    /// The highest total; equals are drawn by lot, each with the same chance. There must be one.
    pub(crate) fn pick(&mut self, totals: &[i64]) -> usize {
        let best = totals.iter().max().copied().unwrap_or(0);
        let equals: Vec<usize> = (0..totals.len()).filter(|at| totals[*at] == best).collect();
        equals[self.dice.random_range(0..equals.len())]
    }

    /// The reasons behind what `find` rejected.
    pub(crate) fn diagnose(&self, found: Found) -> Diagnosis {
        let mut diagnosis = Diagnosis { nodes: self.cluster.len(), ..Diagnosis::default() };
        // Many nodes, few different verdicts.
        let mut known: Vec<(Verdict, u16)> = Vec::new();
        for (node, verdict) in found.rejected {
            if let Some((_, at)) = known.iter().find(|(other, _)| *other == verdict) {
                diagnosis.rejected.push((node, *at));
                continue;
            }
            diagnosis.add(node, &self.explain(verdict));
            known.extend(diagnosis.rejected.last().map(|(_, at)| (verdict, *at)));
        }
        diagnosis.absent = self.named.as_ref().map(|(_, plugin)| {
            Rejection::new(plugin, format!("node(s) didn't satisfy plugin(s) [{plugin}]")).unresolvable()
        });
        diagnosis
    }

    fn explain(&self, verdict: Verdict) -> Rejection {
        match verdict {
            Verdict::Node(verdict) => self.judgements.rejection(verdict).clone(),
            Verdict::Singular(at) => self.singular[usize::from(at)].clone(),
            Verdict::State(at, code) => match &self.states[usize::from(at)] {
                Some(state) => state.explain(code),
                None => Rejection::new("", "").unresolvable(),
            },
        }
    }

    /// Asks the plug-ins of the profile, one after the other, whether something can be done.
    pub(crate) fn post_filter(&mut self, diagnosis: &Diagnosis) -> PostFilter {
        let plugins: Vec<_> = self.profile.at(Point::PostFilter).cloned().collect();
        let ask = |plugin: &Arc<dyn Plugin>| {
            let began = Instant::now();
            let room = plugin.post_filter(self, diagnosis);
            let is_success = room.as_ref().is_some_and(|room| !room.candidates.is_empty());
            let status = if is_success { SUCCESS } else { "Unschedulable" };
            self.samples.add(plugin.name(), Point::PostFilter.name(), status, began.elapsed());
            room
        };
        plugins.iter().find_map(ask).unwrap_or_default()
    }
}

impl FailedAttempt for Attempt<'_> {
    fn pod(&self) -> &Arc<PodInfo> {
        self.pod
    }

    fn cluster(&self) -> &Cluster {
        self.cluster
    }

    fn draw(&mut self, bound: usize) -> usize {
        self.dice.random_range(0..bound.max(1))
    }

    fn judge(&mut self, trial: &Trial) -> Result<(), Rejection> {
        if self.is_kept(trial.node) {
            let nominated = self.cluster.nominated.on(&self.cluster.row(trial.node).name).iter();
            let ahead: Vec<_> = nominated.filter(|other| is_ahead(other, self.pod)).cloned().collect();
            let mut crowded = trial.clone();
            ahead.iter().for_each(|pod| crowded.add(self, pod.clone()));
            let verdict = self.filter(&crowded);
            ahead.iter().for_each(|pod| self.suppose(trial.node, pod, -1));
            verdict?;
        }
        self.filter(trial)
    }

    fn suppose(&mut self, node: NodeId, pod: &PodInfo, sign: i64) {
        let point = if sign > 0 { "PreFilterExtensionAddPod" } else { "PreFilterExtensionRemovePod" };
        for (state, Stateful { plugin, .. }) in self.states.iter_mut().zip(&self.profile.stateful) {
            let Some(state) = state else { continue };
            self.samples.time(plugin.name(), point, || state.suppose(self.cluster, node, pod, sign));
        }
    }

    fn preemption(&mut self, node: NodeId, find_out: fn(&mut dyn FailedAttempt, NodeId) -> Preemption) -> &Preemption {
        // What other nodes hold, or who else wants this one, is not in its stamp.
        if !self.filtering.is_empty() || self.is_kept(node) {
            let preemption = find_out(self, node);
            return self.passing.insert(preemption);
        }
        self.judgements.preemptions.refresh(self.cluster, self.pod.priority);
        if !self.judgements.preemptions.knows(self.cluster, node) {
            let preemption = find_out(self, node);
            self.judgements.preemptions.set(self.cluster, node, preemption);
        }
        self.judgements.preemptions.of(node)
    }
}

/// As `State::filter`, and timed if need be.
fn sampled(samples: &mut Samples, plugin: &'static str, state: &dyn State, cluster: &Cluster, view: &View<'_>) -> u8 {
    samples.time_as(
        plugin,
        Point::Filter.name(),
        || state.filter(cluster, view),
        |code| match code {
            0 => SUCCESS,
            code => state.explain(*code).status(),
        },
    )
}

/// Whether room that is kept for `other` is not for `pod`.
fn is_ahead(other: &PodInfo, pod: &PodInfo) -> bool {
    other.priority >= pod.priority && other.uid != pod.uid
}

fn kept_for_others(cluster: &Cluster, pod: &PodInfo) -> Vec<NodeId> {
    let kept = cluster.nominated.by_node().filter(|(_, others)| others.iter().any(|other| is_ahead(other, pod)));
    let mut nodes: Vec<NodeId> = kept.filter_map(|(name, _)| cluster.node(name)).collect();
    nodes.sort_unstable();
    nodes
}

fn rejected(rejection: Rejection, cluster: &Cluster) -> Failure {
    let diagnosis = Diagnosis { nodes: cluster.len(), pre_filter: Some(rejection), ..Diagnosis::default() };
    Failure::Unfit(Box::new(diagnosis))
}

type Named = Option<(Vec<NodeId>, &'static str)>;

/// The nodes that a plug-in says are the only ones, as far as they exist.
fn candidates(profile: &Profile, class: &Class, cluster: &Cluster) -> Result<Named, Rejection> {
    for plugin in profile.at(Point::PreFilter) {
        if let Some(names) = plugin.candidates(class)? {
            let nodes = names.iter().filter_map(|name| cluster.node(name)).collect();
            return Ok(Some((nodes, plugin.name())));
        }
    }
    Ok(None)
}

fn add(totals: &mut [i64], scores: &[i64], weight: i64) {
    for (total, score) in totals.iter_mut().zip(scores) {
        *total += score * weight;
    }
}

/// How many nodes are enough: all of few, and an ever smaller part of many (`numFeasibleNodesToFind`, v1.36).
fn feasible_to_find(percentage: i32, nodes: usize) -> usize {
    if nodes < MIN_FEASIBLE {
        return nodes.max(1);
    }
    let percentage = match percentage {
        0 => 50_usize.saturating_sub(nodes / 125).max(MIN_PERCENTAGE),
        chosen => chosen.unsigned_abs() as usize,
    };
    (nodes * percentage / 100).max(MIN_FEASIBLE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fewer_nodes_are_looked_at_the_more_there_are() {
        for (percentage, nodes, expected) in [
            (0, 10, 10),
            (0, 100, 100),
            (0, 1000, 420),
            (0, 5000, 500),
            (0, 6000, 300),
            (0, 100_000, 5000),
            (40, 1000, 400),
            (40, 200, 100),
            (100, 5000, 5000),
        ] {
            assert_eq!(feasible_to_find(percentage, nodes), expected, "{percentage} of {nodes}");
        }
    }
}

//! Spreads pods evenly over the values of a topology (hosts, zones …), as far as constraints ask.
//!
//! A pod without constraints of its own gets the profile's defaults, for the pods that its services and its controller select.

use std::collections::HashMap;
use std::sync::Arc;

use api::selector::Selector;
use k8s_openapi::api::core::v1::{Node, TopologySpreadConstraint};

use super::taint_toleration::has_untolerated;
use crate::cluster::{Change, Cluster, ColumnId, NO_VALUE, NodeId, View};
use crate::framework::{Basis, Event, MAX_SCORE, Plugin, Point, Rejection, State};
use crate::pod::{Class, Group, GroupId, PodInfo, Spread};

const NAME: &str = "PodTopologySpread";
const HOSTNAME: &str = "kubernetes.io/hostname";
const MISMATCH: &str = "node(s) didn't match pod topology spread constraints";
const UNLABELLED: &str = "node(s) didn't match pod topology spread constraints (missing required label)";
/// Groups for which it is remembered which constraints count them.
const REMEMBERED: usize = 1 << 16;

pub(crate) struct PodTopologySpread {
    pub(crate) defaults: Vec<TopologySpreadConstraint>,
    /// The defaults are the built-in ones: nodes without a zone still take part in spreading over hosts.
    pub(crate) is_system_default: bool,
}

impl PodTopologySpread {
    pub(crate) fn system_defaults() -> PodTopologySpread {
        let constraint = |key: &str, max_skew| TopologySpreadConstraint {
            topology_key: key.into(),
            when_unsatisfiable: "ScheduleAnyway".into(),
            max_skew,
            ..TopologySpreadConstraint::default()
        };
        PodTopologySpread {
            defaults: vec![constraint(HOSTNAME, 3), constraint("topology.kubernetes.io/zone", 5)],
            is_system_default: true,
        }
    }

    fn default_constraints(&self, group: &Group, selector: &Selector) -> Vec<Spread> {
        if selector.is_empty() {
            return Vec::new();
        }
        let all = self.defaults.iter().map(|constraint| Spread::new(constraint, group.labels.as_ref()));
        all.map(|spread| Spread { selector: selector.clone(), ..spread }).collect()
    }

    /// The hard constraints of a pod that has its own; which those of other pods are depends on the cluster.
    fn hard(group: &Group) -> impl Iterator<Item = &Spread> {
        group.spread.iter().flatten().filter(|spread| spread.is_hard)
    }
}

impl Plugin for PodTopologySpread {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::PreScore, Point::Score]
    }

    fn basis(&self) -> Basis {
        Basis::Cluster
    }

    fn prepare(&self, pod: &PodInfo, cluster: &mut Cluster) -> Result<Option<Box<dyn State>>, Rejection> {
        let (spreads, default) = match &pod.group.spread {
            Some(own) => (own.clone(), None),
            None if self.defaults.is_empty() => return Ok(None),
            None => {
                let selector = cluster.owners.selector_for(&pod.group);
                let spreads = self.default_constraints(&pod.group, &selector);
                (spreads, Some(Default { selector, generation: cluster.owners.generation() }))
            }
        };
        let requires_all = default.is_none() || !self.is_system_default;
        Ok(Some(Box::new(Spreads::new(pod, spreads, default, requires_all, cluster))))
    }

    fn may_help(&self, pod: &PodInfo, event: &Event) -> bool {
        let (me, is_related) = (&pod.group, |other: &PodInfo| other.group.namespace == pod.group.namespace);
        let is_counted = |other: &PodInfo| {
            // Defaults may be hard as well, but nothing is at hand here to tell whom they count.
            me.spread.is_none() || Self::hard(me).any(|spread| spread.selector.matches(other.group.labels.as_ref()))
        };
        let has_keys = |node: &Node| {
            Self::hard(me).all(|spread| {
                node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(&spread.topology_key))
            })
        };
        match event {
            Event::SelfChanged { change, .. } => {
                change.labels || change.tolerations && Self::hard(me).any(|spread| spread.honours_taints)
            }
            Event::PodAdded(other) | Event::PodDeleted(other) => is_related(other) && is_counted(other),
            Event::PodChanged { old, new, change } => {
                change.labels && is_related(new) && (is_counted(old) != is_counted(new) || me.spread.is_none())
            }
            Event::NodeAdded(node) | Event::NodeDeleted(node) => has_keys(node),
            Event::NodeChanged { old, new, change } => {
                let value = |node: &Node, key: &String| {
                    node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).cloned()
                };
                let moved = Self::hard(me).any(|s| value(old, &s.topology_key) != value(new, &s.topology_key));
                has_keys(old) != has_keys(new) || has_keys(new) && (moved || change.taints)
            }
            _ => false,
        }
    }
}

/// Whom default constraints count, and as of when.
struct Default {
    selector: Selector,
    generation: u64,
}

/// The constraints of pods of one kind, with the pods that they count.
struct Spreads {
    me: Arc<Group>,
    default: Option<Default>,
    hard: Vec<Counted>,
    soft: Vec<Counted>,
    /// Nodes that lack one of the soft constraints' keys do not take part.
    requires_all: bool,
    /// Which constraints count a group's pods: first the hard ones, then the soft ones.
    counted: HashMap<GroupId, u64>,
    layout: u64,
    position: u64,
}

struct Counted {
    spread: Spread,
    column: ColumnId,
    /// Pods by topology value, on eligible nodes only.
    counts: Vec<i64>,
    /// Eligible nodes by topology value: those with one or more are the domains.
    nodes: Vec<u32>,
    is_eligible: Vec<bool>,
    domains: usize,
    /// The smallest count of a domain, and how many domains have it.
    min: i64,
    at_min: usize,
    /// Pods by node, where the topology is the host itself: then its own pods count, whatever its label says.
    by_node: Option<Vec<i64>>,
    /// The new pod counts itself.
    own: i64,
}

impl Spreads {
    fn new(
        pod: &PodInfo,
        spreads: Vec<Spread>,
        default: Option<Default>,
        requires_all: bool,
        cluster: &mut Cluster,
    ) -> Spreads {
        let (hard, soft): (Vec<_>, Vec<_>) = spreads.into_iter().partition(|spread| spread.is_hard);
        let count = |spreads: Vec<Spread>, is_hard: bool, cluster: &mut Cluster| -> Vec<Counted> {
            let columns: Vec<ColumnId> = spreads.iter().map(|spread| cluster.column(&spread.topology_key)).collect();
            let required = if is_hard || requires_all { columns.as_slice() } else { &[] };
            let each = spreads.into_iter().zip(&columns);
            each.map(|(spread, column)| Counted::new(spread, *column, required, pod, cluster)).collect()
        };
        let mut state = Spreads {
            me: pod.group.clone(),
            default,
            hard: count(hard, true, cluster),
            soft: count(soft, false, cluster),
            requires_all,
            counted: HashMap::new(),
            layout: cluster.layout(),
            position: cluster.groups.position(),
        };
        if !state.is_empty() {
            let placed: Vec<_> = cluster.groups.in_namespace(&pod.group.namespace).collect();
            for placed in placed {
                let counted = state.counted_by(&placed.group);
                if counted != 0 {
                    placed.nodes.iter().for_each(|(node, count)| state.add(cluster, counted, *node, count.live));
                }
            }
            state.hard.iter_mut().for_each(Counted::find_min);
        }
        state
    }

    fn is_empty(&self) -> bool {
        self.hard.is_empty() && self.soft.is_empty()
    }

    fn counted_by(&mut self, group: &Group) -> u64 {
        if group.namespace != self.me.namespace {
            return 0;
        }
        if let Some(known) = self.counted.get(&group.id) {
            return *known;
        }
        if self.counted.len() >= REMEMBERED {
            self.counted.clear();
        }
        let mut counted = 0;
        for (at, constraint) in self.hard.iter().chain(&self.soft).enumerate() {
            let selector = &constraint.spread.selector;
            // Upstream counts nobody for a selector without requirements.
            if !selector.is_empty() && selector.matches(group.labels.as_ref()) {
                counted |= 1 << at;
            }
        }
        self.counted.insert(group.id, counted);
        counted
    }

    fn add(&mut self, cluster: &Cluster, counted: u64, node: NodeId, amount: i64) {
        for (at, constraint) in self.hard.iter_mut().chain(&mut self.soft).enumerate() {
            if counted & (1 << at) != 0 {
                constraint.add(cluster, node, amount);
            }
        }
    }
}

impl Counted {
    fn new(spread: Spread, column: ColumnId, required: &[ColumnId], pod: &PodInfo, cluster: &Cluster) -> Counted {
        let size = cluster.topology().size(column);
        let mut counted = Counted {
            own: i64::from(spread.selector.matches(pod.group.labels.as_ref())),
            by_node: (!spread.is_hard && spread.topology_key == HOSTNAME).then(|| vec![0; cluster.places()]),
            // One more, for nodes without the label where they take part.
            counts: vec![0; size + 1],
            nodes: vec![0; size + 1],
            is_eligible: vec![false; cluster.places()],
            domains: 0,
            min: 0,
            at_min: 0,
            spread,
            column,
        };
        for node in cluster.order() {
            let has_all = required.iter().all(|column| cluster.topology().value(*column, *node) != NO_VALUE);
            if has_all && counted.includes(&pod.class, cluster, *node) {
                counted.is_eligible[node.at()] = true;
                let at = counted.slot(cluster, *node);
                counted.nodes[at] += 1;
            }
        }
        counted.domains = counted.nodes.iter().filter(|nodes| **nodes > 0).count();
        counted
    }

    fn includes(&self, class: &Class, cluster: &Cluster, node: NodeId) -> bool {
        let row = cluster.row(node);
        (!self.spread.honours_affinity || class.admits(&row.name, row.labels()))
            && !(self.spread.honours_taints && has_untolerated(class, row.taints()))
    }

    /// Where the node's value is counted. Nodes without the label share the last place.
    fn slot(&self, cluster: &Cluster, node: NodeId) -> usize {
        (cluster.topology().value(self.column, node) as usize).min(self.counts.len() - 1)
    }

    fn add(&mut self, cluster: &Cluster, node: NodeId, amount: i64) {
        if let Some(by_node) = &mut self.by_node
            && let Some(count) = by_node.get_mut(node.at())
        {
            *count += amount;
        }
        if !self.is_eligible.get(node.at()).copied().unwrap_or(false) || amount == 0 {
            return;
        }
        let at = self.slot(cluster, node);
        let before = self.counts[at];
        self.counts[at] += amount;
        let after = self.counts[at];
        if after < self.min {
            (self.min, self.at_min) = (after, 1);
        } else if after == self.min {
            self.at_min += 1;
        } else if before == self.min {
            self.at_min = self.at_min.saturating_sub(1);
            if self.at_min == 0 {
                self.find_min();
            }
        }
    }

    fn find_min(&mut self) {
        let counts = || self.counts.iter().zip(&self.nodes).filter(|(_, nodes)| **nodes > 0).map(|(count, _)| *count);
        self.min = counts().min().unwrap_or(0);
        self.at_min = counts().filter(|count| *count == self.min).count();
    }

    fn verdict(&self, cluster: &Cluster, node: NodeId) -> u8 {
        let value = cluster.topology().value(self.column, node);
        if value == NO_VALUE {
            return 1;
        }
        let there = self.counts.get(value as usize).copied().unwrap_or(0);
        // With fewer domains than wanted, one that has none yet is taken to exist.
        let min = if (self.domains as i64) < self.spread.min_domains { 0 } else { self.min };
        if there + self.own - min > self.spread.max_skew { 2 } else { 0 }
    }
}

impl State for Spreads {
    fn refresh(&mut self, cluster: &mut Cluster) -> bool {
        if let Some(default) = &mut self.default
            && default.generation != cluster.owners.generation()
        {
            if default.selector != cluster.owners.selector_for(&self.me) {
                return false;
            }
            default.generation = cluster.owners.generation();
        }
        if self.is_empty() {
            return true;
        }
        if self.layout != cluster.layout() {
            return false;
        }
        let Some(changes) = cluster.groups.since(self.position) else { return false };
        let changes: Vec<Change> = changes.cloned().collect();
        self.position = cluster.groups.position();
        for change in changes {
            let counted = self.counted_by(&change.group);
            if counted != 0 {
                self.add(cluster, counted, change.node, change.count.live);
            }
        }
        true
    }

    fn suppose(&mut self, cluster: &mut Cluster, node: NodeId, pod: &PodInfo, sign: i64) {
        let counted = self.counted_by(&pod.group);
        if counted != 0 && !pod.is_terminating {
            self.add(cluster, counted, node, sign);
        }
    }

    fn can_reject(&self) -> bool {
        !self.hard.is_empty()
    }

    fn filter(&self, cluster: &Cluster, node: &View<'_>) -> u8 {
        let verdicts = self.hard.iter().map(|constraint| constraint.verdict(cluster, node.id));
        verdicts.into_iter().find(|verdict| *verdict != 0).unwrap_or(0)
    }

    fn explain(&self, code: u8) -> Rejection {
        match code {
            1 => Rejection::new(NAME, UNLABELLED).unresolvable(),
            _ => Rejection::new(NAME, MISMATCH),
        }
    }

    fn score(&self, cluster: &Cluster, nodes: &[NodeId], scores: &mut Vec<i64>) -> bool {
        if self.soft.is_empty() {
            return false;
        }
        let has_all = |node: NodeId| {
            let mut values = self.soft.iter().map(|constraint| cluster.topology().value(constraint.column, node));
            values.all(|value| value != NO_VALUE)
        };
        let is_ignored: Vec<bool> = nodes.iter().map(|node| self.requires_all && !has_all(*node)).collect();
        let taking_part = is_ignored.iter().filter(|ignored| !**ignored).count();
        let mut sums = vec![0.0; nodes.len()];
        for constraint in &self.soft {
            let values = cluster.topology().values(constraint.column);
            let size = match constraint.by_node {
                Some(_) => taking_part,
                None => constraint.values_among(cluster, nodes, &is_ignored),
            };
            // A topology with many values counts more, or its small counts would drown.
            let weight = (size as f64 + 2.0).ln();
            for ((sum, node), ignored) in sums.iter_mut().zip(nodes).zip(&is_ignored) {
                let value = values[node.at()];
                if *ignored || value == NO_VALUE {
                    continue;
                }
                let count = match &constraint.by_node {
                    Some(by_node) => by_node[node.at()],
                    None => constraint.counts[value as usize],
                };
                *sum += count as f64 * weight + (constraint.spread.max_skew - 1) as f64;
            }
        }
        scores.clear();
        scores.extend(sums.iter().map(|sum| sum.round() as i64));
        let valid = || scores.iter().zip(&is_ignored).filter(|(_, ignored)| !**ignored).map(|(score, _)| *score);
        let (min, max) = (valid().min().unwrap_or(i64::MAX), valid().max().unwrap_or(0).max(0));
        // Fewer is better; a node outside the topology is worst.
        for (score, ignored) in scores.iter_mut().zip(&is_ignored) {
            *score = match (*ignored, max) {
                (true, _) => 0,
                (false, 0) => MAX_SCORE,
                (false, max) => MAX_SCORE * (max + min - *score) / max,
            };
        }
        true
    }
}

impl Counted {
    /// How many values of the topology the nodes have that take part.
    fn values_among(&self, cluster: &Cluster, nodes: &[NodeId], is_ignored: &[bool]) -> usize {
        let mut seen = vec![false; self.counts.len()];
        let taking_part = nodes.iter().zip(is_ignored).filter(|(_, ignored)| !**ignored);
        taking_part.for_each(|(node, _)| seen[self.slot(cluster, *node)] = true);
        seen.iter().filter(|seen| **seen).count()
    }
}

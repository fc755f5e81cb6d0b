//! What was found out for pods of one kind, kept for the next of them.
//!
//! A class remembers each node's verdict and scores with the stamp of the node; only nodes that changed since are judged
//! again. Pods of one class and group also share the states that plug-ins prepared. Both are bounded: what was not used for
//! longest is forgotten first.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::Ordering;

use super::preemptions::PreemptionCache;
use crate::cluster::{Cluster, NodeId, View};
use crate::framework::{Basis, Point, Profile, Rejection, Samples, Scale, Scorer, State};
use crate::pod::{Class, ClassId, GroupId};

/// Classes and kinds kept. At 100,000 nodes a class takes about 3 MB.
const KEPT: usize = 64;

#[derive(Default)]
pub(crate) struct Memory {
    classes: Kept<(usize, ClassId), Judgements>,
    kinds: Kept<(usize, GroupId, ClassId), States>,
}

/// One place for each of a profile's stateful plug-ins.
pub(super) type States = Vec<Option<Box<dyn State>>>;

impl Memory {
    /// The judgements of a class, and the states of a kind.
    pub(crate) fn of(&mut self, profile: &Profile, class: &Class, group: GroupId) -> (&mut Judgements, &mut States) {
        let key = (profile.index, class.id);
        let (known, kept) = (self.classes.entries.contains_key(&key), self.classes.entries.len());
        let evaluations = &profile.evaluations;
        let count = if known { &evaluations.remembered } else { &evaluations.unknown };
        count.fetch_add(1, Ordering::Relaxed);
        if !known && kept >= KEPT {
            evaluations.forgotten.fetch_add(1, Ordering::Relaxed);
        }
        let judgements = self.classes.get(key, || Judgements::new(profile, class));
        let kind = (profile.index, group, class.id);
        let states = self.kinds.get(kind, || profile.stateful.iter().map(|_| None).collect());
        (judgements, states)
    }
}

/// A map that forgets what was not used for longest.
struct Kept<K, V> {
    entries: HashMap<K, (u64, V)>,
    uses: u64,
}

impl<K, V> Default for Kept<K, V> {
    fn default() -> Self {
        Kept { entries: HashMap::new(), uses: 0 }
    }
}

impl<K: Copy + Eq + Hash, V> Kept<K, V> {
    fn get(&mut self, key: K, make: impl FnOnce() -> V) -> &mut V {
        self.uses += 1;
        if self.entries.len() >= KEPT && !self.entries.contains_key(&key) {
            let oldest = self.entries.iter().min_by_key(|(_, (used, _))| *used).map(|(key, _)| *key);
            oldest.and_then(|key| self.entries.remove(&key));
        }
        let (used, value) = self.entries.entry(key).or_insert_with(|| (0, make()));
        *used = self.uses;
        value
    }
}

/// What the plug-ins that look at one node at a time said of each node, for pods of one class.
pub(crate) struct Judgements {
    nodes: Vec<Judgement>,
    /// Scores that are compared with those of other nodes before they count: `scaled.len()` for each node.
    raw: Vec<i32>,
    absolute: Vec<Scorer>,
    pub(crate) scaled: Vec<(Scorer, Scale)>,
    /// The different ways in which nodes rejected the class; few, however many nodes there are.
    rejections: Vec<Rejection>,
    /// Who would have to make way.
    pub(super) preemptions: PreemptionCache,
}

/// One node, as of its stamp.
#[derive(Debug, Clone, Copy, Default)]
struct Judgement {
    object: u32,
    usage: u32,
    /// 0 if the node takes the class, else one more than the index of the rejection.
    by_object: u16,
    by_usage: u16,
    /// The weighed sum of scores that need no comparison.
    score: i32,
}

impl Judgements {
    fn new(profile: &Profile, class: &Class) -> Judgements {
        let scales = profile.scorers.iter().filter_map(|scorer| Some((scorer.clone(), scorer.plugin.scale(class)?)));
        let (absolute, scaled): (Vec<_>, Vec<_>) = scales.partition(|(_, scale)| *scale == Scale::Absolute);
        Judgements {
            nodes: Vec::new(),
            raw: Vec::new(),
            absolute: absolute.into_iter().map(|(scorer, _)| scorer).collect(),
            scaled,
            rejections: Vec::new(),
            preemptions: PreemptionCache::default(),
        }
    }

    /// Makes room for nodes that came since.
    pub(crate) fn cover(&mut self, places: usize) {
        if self.nodes.len() < places {
            self.nodes.resize(places, Judgement::default());
            self.raw.resize(places * self.scaled.len(), 0);
        }
    }

    /// 0 if the node takes the class, else one more than the index for `rejection`. `cover` must have been called.
    pub(crate) fn verdict(
        &mut self,
        profile: &Profile,
        class: &Class,
        cluster: &Cluster,
        node: NodeId,
        samples: &mut Samples,
    ) -> u16 {
        let (stamp, held) = (cluster.stamp(node), self.nodes[node.at()]);
        if held.usage == stamp.usage {
            return held.by_object.max(held.by_usage);
        }
        self.judge(profile, class, &cluster.view(node), held.object != stamp.object, samples);
        let judgement = &mut self.nodes[node.at()];
        (judgement.object, judgement.usage) = (stamp.object, stamp.usage);
        judgement.by_object.max(judgement.by_usage)
    }

    fn judge(&mut self, profile: &Profile, class: &Class, node: &View<'_>, is_new_object: bool, samples: &mut Samples) {
        let at = node.id.at();
        if is_new_object {
            let rejected = profile.object_filters.ask(class, node, samples);
            self.nodes[at].by_object = self.note(rejected);
        }
        if self.nodes[at].by_object != 0 {
            self.nodes[at].by_usage = 0;
            return;
        }
        let rejected = profile.usage_filters.ask(class, node, samples);
        self.nodes[at].by_usage = self.note(rejected);
        let mut score = |scorer: &Scorer| {
            profile.evaluations.scores[scorer.at].fetch_add(1, Ordering::Relaxed);
            samples.time(scorer.plugin.name(), Point::Score.name(), || scorer.plugin.score(class, node))
        };
        let scores = self.absolute.iter().map(|scorer| scorer.weight * score(scorer));
        self.nodes[at].score = scores.sum::<i64>() as i32;
        let from = at * self.scaled.len();
        for ((scorer, _), raw) in self.scaled.iter().zip(&mut self.raw[from..]) {
            if is_new_object || scorer.plugin.basis() == Basis::Usage {
                *raw = score(scorer) as i32;
            }
        }
    }

    fn note(&mut self, verdict: Result<(), Rejection>) -> u16 {
        let Err(rejection) = verdict else { return 0 };
        let known = self.rejections.iter().position(|known| *known == rejection);
        let at = known.unwrap_or_else(|| {
            self.rejections.push(rejection);
            self.rejections.len() - 1
        });
        at as u16 + 1
    }

    pub(crate) fn rejection(&self, verdict: u16) -> &Rejection {
        &self.rejections[usize::from(verdict) - 1]
    }

    /// Of a node that took the class.
    pub(crate) fn score(&self, node: NodeId) -> i64 {
        self.nodes[node.at()].score.into()
    }

    /// The score by one of `scaled`, not yet compared.
    pub(crate) fn raw(&self, node: NodeId, scorer: usize) -> i64 {
        self.raw[node.at() * self.scaled.len() + scorer].into()
    }
}

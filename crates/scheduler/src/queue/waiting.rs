//! The pods that wait, each in its place, found by uid, by turn or by time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use tokio::time::Instant;

use super::{Advice, Counts, Queued};
use crate::pod::{self, PodInfo};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Active,
    /// `is_strict`: not even if nothing else is to be done.
    Backoff {
        until: Instant,
        is_strict: bool,
    },
    /// Until then, if nothing happens.
    Unschedulable(Instant),
    Gated,
}

pub(super) struct Waiting {
    advice: Arc<dyn Advice>,
    pods: HashMap<Arc<str>, Entry>,
    /// Entries of the heaps are tickets: one is worth nothing unless the pod still holds it.
    active: BinaryHeap<Turn>,
    backoff: BinaryHeap<Reverse<(Instant, u64, Arc<str>)>>,
    unschedulable: HashSet<Arc<str>>,
    /// Unschedulable pods in the order in which they are tried again even if nothing happens, which is that in which they came.
    deadlines: VecDeque<(Instant, u64, Arc<str>)>,
    next_ticket: u64,
    counts: Counts,
}

struct Entry {
    queued: Queued,
    plugins: BTreeSet<&'static str>,
    place: Place,
    ticket: u64,
}

struct Turn {
    pod: Arc<PodInfo>,
    since: Instant,
    ticket: u64,
    advice: Arc<dyn Advice>,
}

impl Waiting {
    pub(super) fn new(advice: Arc<dyn Advice>) -> Waiting {
        Waiting {
            advice,
            pods: HashMap::new(),
            active: BinaryHeap::new(),
            backoff: BinaryHeap::new(),
            unschedulable: HashSet::new(),
            deadlines: VecDeque::new(),
            next_ticket: 0,
            counts: Counts::default(),
        }
    }

    /// Puts a pod in its place. It must not be waiting already under the same uid, or it takes that one's place.
    pub(super) fn put(&mut self, queued: Queued, plugins: BTreeSet<&'static str>, place: Place) {
        self.take(&queued.pod.uid.clone());
        self.next_ticket += 1;
        let (uid, ticket) = (queued.pod.uid.clone(), self.next_ticket);
        match place {
            Place::Active => self.active.push(Turn {
                pod: queued.pod.clone(),
                since: queued.since,
                ticket,
                advice: self.advice.clone(),
            }),
            Place::Backoff { until, .. } => self.backoff.push(Reverse((until, ticket, uid.clone()))),
            Place::Unschedulable(until) => {
                self.unschedulable.insert(uid.clone());
                self.deadlines.push_back((until, ticket, uid.clone()));
            }
            Place::Gated => {}
        }
        *self.count(place) += 1;
        self.pods.insert(uid, Entry { queued, plugins, place, ticket });
    }

    pub(super) fn take(&mut self, uid: &str) -> Option<(Queued, BTreeSet<&'static str>, Place)> {
        let entry = self.pods.remove(uid)?;
        *self.count(entry.place) -= 1;
        self.unschedulable.remove(uid);
        Some((entry.queued, entry.plugins, entry.place))
    }

    fn count(&mut self, place: Place) -> &mut usize {
        match place {
            Place::Active => &mut self.counts.active,
            Place::Backoff { .. } => &mut self.counts.backoff,
            Place::Unschedulable(_) => &mut self.counts.unschedulable,
            Place::Gated => &mut self.counts.gated,
        }
    }

    /// The pod whose turn it is. Pods whose back-off has passed have their turn among the active ones; one whose back-off
    /// has not passed is taken if nothing else is to be done.
    pub(super) fn pop(&mut self, now: Instant) -> Option<Queued> {
        while let Some(Reverse((until, ticket, uid))) = self.backoff.peek() {
            if *until > now && self.holds(uid, *ticket) {
                break;
            }
            let Some(Reverse((_, ticket, uid))) = self.backoff.pop() else { break };
            if self.holds(&uid, ticket)
                && let Some((queued, plugins, _)) = self.take(&uid)
            {
                self.put(queued, plugins, Place::Active);
            }
        }
        while let Some(turn) = self.active.pop() {
            if self.holds(&turn.pod.uid, turn.ticket) {
                return self.take(&turn.pod.uid).map(|(queued, ..)| queued);
            }
        }
        let mut strict = Vec::new();
        let mut found = None;
        while let Some(Reverse((until, ticket, uid))) = self.backoff.pop() {
            match self.pods.get(&uid).filter(|entry| entry.ticket == ticket).map(|entry| entry.place) {
                Some(Place::Backoff { is_strict: false, .. }) => {
                    found = self.take(&uid).map(|(queued, ..)| queued);
                    break;
                }
                Some(_) => strict.push(Reverse((until, ticket, uid))),
                None => {}
            }
        }
        self.backoff.extend(strict);
        found
    }

    fn holds(&self, uid: &str, ticket: u64) -> bool {
        self.pods.get(uid).is_some_and(|entry| entry.ticket == ticket)
    }

    /// Pods that waited too long, taken out.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<(Queued, BTreeSet<&'static str>)> {
        let mut due = Vec::new();
        while let Some((until, ticket, uid)) = self.deadlines.front() {
            if !self.holds(uid, *ticket) {
                self.deadlines.pop_front();
                continue;
            }
            if *until > now {
                break;
            }
            let uid = uid.clone();
            due.extend(self.take(&uid).map(|(queued, plugins, _)| (queued, plugins)));
        }
        due
    }

    /// When the next pod's time has come, should nothing happen.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let backoff = self.backoff.peek().map(|Reverse((until, ..))| *until);
        let deadline = self.deadlines.front().map(|(until, ..)| *until);
        deadline.into_iter().chain(backoff).min()
    }

    /// Unschedulable pods that `wanted` wants.
    pub(super) fn unschedulable(&self, wanted: impl Fn(&Queued, &BTreeSet<&'static str>) -> bool) -> Vec<Arc<str>> {
        let entries = self.unschedulable.iter().filter_map(|uid| Some((uid, self.pods.get(uid)?)));
        entries.filter(|(_, entry)| wanted(&entry.queued, &entry.plugins)).map(|(uid, _)| uid.clone()).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counts
    }

    pub(super) fn rejected_by(&self) -> BTreeMap<(&'static str, String), usize> {
        let mut counts = BTreeMap::new();
        for entry in self.pods.values() {
            let scheduler = pod::scheduler_name(&entry.queued.pod.pod);
            for plugin in &entry.plugins {
                *counts.entry((*plugin, scheduler.to_owned())).or_default() += 1;
            }
        }
        counts
    }
}

impl Ord for Turn {
    /// The greatest has the next turn.
    fn cmp(&self, other: &Turn) -> Ordering {
        let by_plugin = self.advice.compare(&self.pod, &other.pod).reverse();
        by_plugin.then_with(|| other.since.cmp(&self.since)).then_with(|| other.ticket.cmp(&self.ticket))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Turn) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Turn {
    fn eq(&self, other: &Turn) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Turn {}

//! How often plug-ins are asked, and how long some of them take. Decisions count here with as little as they can; the metrics
//! are told from time to time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::{Plugin, Point, Rejection};
use crate::cluster::View;
use crate::pod::Class;

/// Filters that are asked one after the other until one rejects.
pub(crate) struct Filters {
    plugins: Vec<Arc<dyn Plugin>>,
    /// How often so many of them were asked: one addition for a node, not one for each plug-in.
    asked: Vec<AtomicUsize>,
}

impl Filters {
    pub(super) fn new(plugins: Vec<Arc<dyn Plugin>>) -> Filters {
        let asked = (0..=plugins.len()).map(|_| AtomicUsize::new(0)).collect();
        Filters { plugins, asked }
    }

    pub(crate) fn ask(&self, class: &Class, node: &View<'_>, samples: &mut Samples) -> Result<(), Rejection> {
        for (at, plugin) in self.plugins.iter().enumerate() {
            let verdict = match samples.is_on() {
                false => plugin.filter(class, node),
                true => samples.filter(plugin.name(), || plugin.filter(class, node)),
            };
            if verdict.is_err() {
                self.asked[at + 1].fetch_add(1, Ordering::Relaxed);
                return verdict;
            }
        }
        self.asked[self.plugins.len()].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// How often each was asked. Begins anew.
    fn take(&self) -> Vec<(&'static str, usize)> {
        let counts: Vec<usize> = self.asked.iter().map(take).collect();
        let asked = |at: usize| counts[at + 1..].iter().sum();
        self.plugins.iter().enumerate().map(|(at, plugin)| (plugin.name(), asked(at))).collect()
    }
}

fn take(count: &AtomicUsize) -> usize {
    count.swap(0, Ordering::Relaxed)
}

/// What happened in a profile since somebody last asked.
pub(crate) struct Evaluations {
    /// Attempts that came to look at nodes, and to compare them.
    pub(crate) pre_filter: AtomicUsize,
    pub(crate) pre_score: AtomicUsize,
    /// By the places of stateful plug-ins: nodes that their states filtered and scored.
    pub(crate) filtered: Vec<AtomicUsize>,
    pub(crate) scored: Vec<AtomicUsize>,
    /// By the places of scorers that look at one node at a time.
    pub(crate) scores: Vec<AtomicUsize>,
    /// Attempts for which judgements of an earlier pod of the class were at hand, and those for which none were.
    pub(crate) remembered: AtomicUsize,
    pub(crate) unknown: AtomicUsize,
    /// Judgements that had to make way for those of another class.
    pub(crate) forgotten: AtomicUsize,
}

impl Evaluations {
    pub(super) fn new(stateful: usize, scorers: usize) -> Evaluations {
        let zeros = |count: usize| (0..count).map(|_| AtomicUsize::new(0)).collect();
        Evaluations {
            pre_filter: AtomicUsize::new(0),
            pre_score: AtomicUsize::new(0),
            filtered: zeros(stateful),
            scored: zeros(stateful),
            scores: zeros(scorers),
            remembered: AtomicUsize::new(0),
            unknown: AtomicUsize::new(0),
            forgotten: AtomicUsize::new(0),
        }
    }
}

/// How often plug-ins were asked: point, name, count.
pub(crate) type Asked = Vec<(Point, &'static str, usize)>;

impl super::Profile {
    /// How often plug-ins were asked since the last time.
    pub(crate) fn take_asked(&self) -> Asked {
        let Evaluations { pre_filter, pre_score, filtered, scored, scores, .. } = &self.evaluations;
        let mut asked = Asked::new();
        for (point, attempts) in [(Point::PreFilter, take(pre_filter)), (Point::PreScore, take(pre_score))] {
            asked.extend(self.at(point).map(|plugin| (point, plugin.name(), attempts)));
        }
        let filters = self.object_filters.take().into_iter().chain(self.usage_filters.take());
        asked.extend(filters.map(|(name, count)| (Point::Filter, name, count)));
        let scorers = self.scorers.iter().zip(scores).map(|(scorer, count)| (scorer.plugin.name(), take(count)));
        asked.extend(scorers.map(|(name, count)| (Point::Score, name, count)));
        for (at, state) in self.stateful.iter().enumerate() {
            asked.push((Point::Filter, state.plugin.name(), take(&filtered[at])));
            asked.push((Point::Score, state.plugin.name(), take(&scored[at])));
        }
        asked.retain(|(.., count)| *count > 0);
        asked
    }

    /// How often equivalent pods were decided together, by what upstream calls the result, and judgements forgotten.
    pub(crate) fn take_batches(&self) -> ([(&'static str, usize); 2], usize) {
        let Evaluations { remembered, unknown, forgotten, .. } = &self.evaluations;
        ([("hint_used", take(remembered)), ("no_hint", take(unknown))], take(forgotten))
    }
}

/// One call of a plug-in that was timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) plugin: &'static str,
    pub(crate) point: &'static str,
    pub(crate) status: &'static str,
    pub(crate) time: Duration,
}

/// Of one attempt in so many, how long plug-ins take. All of them would cost more than the plug-ins do.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// 0 for none at all.
    every: u32,
    attempts: u32,
    is_on: bool,
    taken: Vec<Sample>,
}

/// More of one attempt say no more: the rest is not timed.
const ENOUGH: usize = 256;
pub(crate) const SUCCESS: &str = "Success";

impl Samples {
    pub(crate) fn one_in(every: u32) -> Samples {
        Samples { every, ..Samples::default() }
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self) {
        self.is_on = self.every > 0 && self.attempts.is_multiple_of(self.every);
        self.attempts = self.attempts.wrapping_add(1);
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on && self.taken.len() < ENOUGH
    }

    /// Calls a plug-in, and times it if this attempt is one of those.
    pub(crate) fn time<T>(&mut self, plugin: &'static str, point: &'static str, call: impl FnOnce() -> T) -> T {
        self.time_as(plugin, point, call, |_| SUCCESS)
    }

    pub(crate) fn filter(
        &mut self,
        plugin: &'static str,
        call: impl FnOnce() -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        self.time_as(plugin, Point::Filter.name(), call, |verdict| {
            verdict.as_ref().map_or_else(Rejection::status, |()| SUCCESS)
        })
    }

    pub(crate) fn time_as<T>(
        &mut self,
        plugin: &'static str,
        point: &'static str,
        call: impl FnOnce() -> T,
        status: impl FnOnce(&T) -> &'static str,
    ) -> T {
        if !self.is_on() {
            return call();
        }
        let began = Instant::now();
        let answer = call();
        let time = began.elapsed();
        self.taken.push(Sample { plugin, point, status: status(&answer), time });
        answer
    }

    /// A call that was timed elsewhere: those that are rare are told all.
    pub(crate) fn add(&mut self, plugin: &'static str, point: &'static str, status: &'static str, time: Duration) {
        if self.every > 0 {
            self.taken.push(Sample { plugin, point, status, time });
        }
    }

    /// What was timed since the last time.
    pub(crate) fn drain(&mut self) -> impl Iterator<Item = Sample> {
        self.taken.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_attempt_in_so_many_is_timed() {
        for (every, attempts, expected) in [(0, 10, 0), (1, 3, 3), (4, 9, 3)] {
            let mut samples = Samples::one_in(every);
            for _ in 0..attempts {
                samples.begin();
                assert_eq!(samples.time("P", "Score", || 7), 7);
            }
            assert_eq!(samples.drain().count(), expected, "one in {every} of {attempts}");
        }
        let mut samples = Samples::one_in(1);
        samples.begin();
        (0..ENOUGH + 5).for_each(|_| drop(samples.filter("P", || Err(Rejection::new("P", "no").unresolvable()))));
        let taken: Vec<Sample> = samples.drain().collect();
        assert_eq!((taken.len(), taken[0].status), (ENOUGH, "UnschedulableAndUnresolvable"));
    }
}

//! CPU rates between readings, which come whenever somebody asks.
//!
//! Invariant: however often and by however many is asked, a rate is that of a window of [`WINDOW`] to [`MAX_WINDOW`], unless less is
//! known, or nobody asked meanwhile; nothing is read for it in between.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// As long as cAdvisor's usual interval (`defaultHousekeepingInterval`): less says little about a load that comes and goes.
const WINDOW: Duration = Duration::from_secs(10);
/// A rate of more says little about the present, if there is a shorter one.
const MAX_WINDOW: Duration = Duration::from_secs(90);
/// Whoever asks more seldom than that is told nothing at first.
const LONGEST: Duration = Duration::from_secs(600);
/// The kernel counts some CPU time in ticks of 10 ms: a rate of less than this would be made of few of them.
const SHORTEST: Duration = Duration::from_millis(100);
/// Of what is older, the rate since its beginning says nothing about the present.
const YOUNG: Duration = Duration::from_secs(120);

/// A reading: when, and nanoseconds of CPU so far.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    total: u64,
}

/// Where the windows of one cgroup begin.
#[derive(Debug)]
struct Track {
    /// The beginning of the present window; none as long as that is `next`.
    start: Option<Reading>,
    /// The beginning of the window after it.
    next: Reading,
    /// What was said last.
    rate: Option<u64>,
}

/// Readings of all that is measured, by name.
#[derive(Debug, Default)]
pub struct CpuRates(Mutex<HashMap<String, Track>>);

impl CpuRates {
    /// Takes a reading; the rate, in billionths of a core, in a window that ends now. None for the first reading, except of what
    /// is younger than two minutes by its `age`: it began with nothing. A count that began anew begins a new window, and so does one
    /// that nobody asked for in [`MAX_WINDOW`].
    pub fn rate(&self, of: &str, now: Instant, total: u64, age: Option<Duration>) -> Option<u64> {
        let mut all = self.0.lock();
        let new = Reading { at: now, total };
        let since = |reading: Reading| now.saturating_duration_since(reading.at);
        let Some(track) = all.get_mut(of).filter(|track| track.next.total <= total) else {
            let began = age.filter(|age| *age < YOUNG).and_then(|age| now.checked_sub(age));
            let began = began.map(|at| Reading { at, total: 0 }).filter(|_| !all.contains_key(of));
            let rate = began.and_then(|began| rate(began, new));
            let (start, next) = match began {
                Some(began) if since(began) >= WINDOW => (Some(began), new),
                _ => (None, began.unwrap_or(new)),
            };
            all.insert(of.to_owned(), Track { start, next, rate });
            return rate;
        };
        if since(track.next) > MAX_WINDOW {
            let rate = rate(track.next, new).filter(|_| since(track.next) <= LONGEST);
            *track = Track { start: None, next: new, rate };
            return rate;
        }
        if since(track.next) >= WINDOW {
            track.start = Some(std::mem::replace(&mut track.next, new));
        }
        track.start = track.start.filter(|start| since(*start) <= MAX_WINDOW);
        track.rate = rate(track.start.unwrap_or(track.next), new).or(track.rate);
        track.rate
    }

    pub fn forget(&self, of: &str) {
        self.0.lock().remove(of);
    }

    /// Forgets all but those.
    pub fn retain(&self, is_there: impl Fn(&str) -> bool) {
        self.0.lock().retain(|of, _| is_there(of));
    }
}

fn rate(old: Reading, new: Reading) -> Option<u64> {
    let elapsed = new.at.checked_duration_since(old.at).filter(|elapsed| *elapsed >= SHORTEST)?;
    let used = u128::from(new.total.checked_sub(old.total)?);
    u64::try_from(used * 1_000_000_000 / elapsed.as_nanos()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rates of readings, each at a time in milliseconds with a total of milliseconds of CPU, in thousandths of a core.
    fn rates(readings: &[(u64, u64)], age: Option<Duration>) -> Vec<Option<u64>> {
        let (rates, start) = (CpuRates::default(), Instant::now() + YOUNG);
        let rate = |(at, total): &(u64, u64)| {
            let rate = rates.rate("a", start + Duration::from_millis(*at), total * 1_000_000, age)?;
            Some(rate / 1_000_000)
        };
        readings.iter().map(rate).collect()
    }

    #[test]
    fn rates_are_those_of_a_window() {
        for (what, age, readings, expected) in [
            ("two readings", None, vec![(0, 5), (2000, 1005)], vec![None, Some(500)]),
            ("many that ask", None, vec![(0, 0), (9000, 900), (9001, 1000)], vec![None, Some(100), Some(111)]),
            (
                "the window goes on",
                None,
                vec![(0, 0), (10_000, 10_000), (15_000, 10_000), (20_000, 10_000), (25_000, 10_000)],
                vec![None, Some(1000), Some(666), Some(0), Some(0)],
            ),
            ("too soon", None, vec![(0, 0), (50, 50), (200, 50), (220, 70)], vec![None, None, Some(250), Some(318)]),
            ("began anew", None, vec![(0, 1000), (1000, 10), (2000, 510)], vec![None, None, Some(500)]),
            ("young", Some(Duration::from_secs(4)), vec![(0, 1000), (4000, 3000)], vec![Some(250), Some(375)]),
            ("just begun", Some(Duration::ZERO), vec![(0, 0), (1000, 500)], vec![None, Some(500)]),
            ("nearly old", Some(Duration::from_secs(100)), vec![(0, 1000), (1000, 1500)], vec![Some(10), Some(500)]),
            (
                "nobody asked for a day",
                None,
                vec![(0, 0), (1000, 500), (86_400_000, 1000), (86_401_000, 1500)],
                vec![None, Some(500), None, Some(500)],
            ),
            (
                "every two minutes",
                None,
                vec![(0, 0), (120_000, 12_000), (240_000, 48_000), (841_000, 50_000)],
                vec![None, Some(100), Some(300), None],
            ),
            ("too long", None, vec![(0, 0), (85_000, 8500), (91_000, 11_500)], vec![None, Some(100), Some(500)]),
            ("old", Some(YOUNG), vec![(0, 1000), (1000, 1100)], vec![None, Some(100)]),
        ] {
            assert_eq!(rates(&readings, age), expected, "{what}");
        }
    }

    #[test]
    fn what_is_gone_is_forgotten() {
        let rates = CpuRates::default();
        let now = Instant::now();
        for of in ["a", "b", "c"] {
            rates.rate(of, now, 1, None);
        }
        rates.forget("a");
        rates.retain(|of| of != "b");
        assert_eq!(rates.0.lock().keys().collect::<Vec<_>>(), ["c"]);
    }
}

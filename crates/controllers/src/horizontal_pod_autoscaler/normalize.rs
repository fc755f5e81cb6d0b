//! From what the metrics ask for to what is done now: stabilization windows, rates and bounds.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};
use parking_lot::Mutex;

/// The size to go to, and what became of the recommendation on its way there.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Normalized {
    pub(super) replicas: i32,
    /// Reason and message of `AbleToScale`, which is true.
    pub(super) able: (&'static str, &'static str),
    /// Whether a bound or rate changed the size, with the reason and message of `ScalingLimited`.
    pub(super) limited: (bool, &'static str, &'static str),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) min: i32,
    pub(super) max: i32,
}

const READY: (&str, &str) = ("ReadyForNewScale", "recommended size matches current size");
const UP_STABILIZED: (&str, &str) = (
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const DOWN_STABILIZED: (&str, &str) = (
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const UP_LIMIT: (&str, &str) =
    ("ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: (&str, &str) =
    ("ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");
const TOO_MANY: (&str, &str) = ("TooManyReplicas", "the desired replica count is more than the maximum replica count");
const TOO_FEW: (&str, &str) = ("TooFewReplicas", "the desired replica count is less than the minimum replica count");
const WITHIN: (&str, &str) = ("DesiredWithinRange", "the desired count is within the acceptable range");

/// Whether a target of size zero may grow: only if an autoscaler made it so small. Others are left alone: somebody has
/// switched them off (`shouldComputeMetricsForZeroReplicas`, v1.36).
pub(super) fn can_wake(was_scaled_to_zero: bool, bounds: Bounds, reads_idle_targets: bool) -> bool {
    was_scaled_to_zero && (bounds.min != 0 || reads_idle_targets)
}

/// Whether `ScaledToZero` becomes false when a target does not go to zero, by what the condition says so far: with every
/// change of size, as upstream, and as soon as a target has a size again. Autoscalers that never go to zero do not have it.
pub(super) fn is_not_scaled_to_zero(recorded: Option<bool>, bounds: Bounds, current: i32, rescales: bool) -> bool {
    match recorded {
        Some(true) => rescales || current > 0,
        Some(false) => rescales,
        None => rescales && bounds.min == 0,
    }
}

#[derive(Debug, Clone, Copy)]
struct Dated {
    at: Timestamp,
    replicas: i32,
}

/// What an autoscaler recommended and did of late.
#[derive(Debug, Default)]
struct Past {
    /// Each size once, with the latest time: windows ask for the highest and the lowest.
    recommendations: Vec<Dated>,
    ups: Vec<Dated>,
    downs: Vec<Dated>,
}

impl Past {
    /// However often an autoscaler changes and is looked at, there are no more of these than sizes.
    fn recommend(&mut self, replicas: i32, now: Timestamp) {
        match self.recommendations.iter_mut().find(|old| old.replicas == replicas) {
            Some(same) => same.at = same.at.max(now),
            None => self.recommendations.push(Dated { at: now, replicas }),
        }
    }
}

/// The past of all autoscalers, by key. A restart forgets it: the present size then counts as recommended.
#[derive(Debug, Default)]
pub(super) struct Memory(Mutex<HashMap<String, Past>>);

fn ago(now: Timestamp, seconds: i32) -> Timestamp {
    now.checked_sub(Duration::from_secs(seconds.max(0).unsigned_abs().into())).unwrap_or(Timestamp::MIN)
}

impl Memory {
    pub(super) fn forget(&self, key: &str) {
        self.0.lock().remove(key);
    }

    /// The first thing that is known of an autoscaler is the size of its target.
    pub(super) fn begin(&self, key: &str, replicas: i32, now: Timestamp) {
        let mut all = self.0.lock();
        let past = all.entry(key.to_owned()).or_default();
        if past.recommendations.is_empty() {
            past.recommend(replicas, now);
        }
    }

    /// Remembers a change of size for as long as the policies look back.
    pub(super) fn changed(
        &self,
        key: &str,
        behavior: &HorizontalPodAutoscalerBehavior,
        from: i32,
        to: i32,
        now: Timestamp,
    ) {
        let mut all = self.0.lock();
        let past = all.entry(key.to_owned()).or_default();
        let (events, rules) = match to > from {
            true => (&mut past.ups, &behavior.scale_up),
            false => (&mut past.downs, &behavior.scale_down),
        };
        let policies = rules.iter().flat_map(|rules| rules.policies.iter().flatten());
        let longest = ago(now, policies.map(|policy| policy.period_seconds).max().unwrap_or(0));
        events.retain(|event| event.at > longest);
        events.push(Dated { at: now, replicas: to.abs_diff(from).try_into().unwrap_or(i32::MAX) });
    }

    /// Without `spec.behavior`: the highest recommendation of `window` counts, and growth at most doubles.
    pub(super) fn plain(
        &self,
        key: &str,
        window: Duration,
        current: i32,
        wanted: i32,
        bounds: Bounds,
        now: Timestamp,
    ) -> Normalized {
        let stable = {
            let mut all = self.0.lock();
            let past = all.entry(key.to_owned()).or_default();
            let cutoff = now.checked_sub(window).unwrap_or(Timestamp::MIN);
            past.recommendations.retain(|old| old.at > cutoff);
            let stable = past.recommendations.iter().map(|old| old.replicas).max().unwrap_or(wanted).max(wanted);
            past.recommend(wanted, now);
            stable
        };
        let fastest = current.saturating_mul(2).max(4);
        let (most, why) = if bounds.max > fastest { (fastest, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
        let (replicas, why) = if stable < bounds.min {
            (bounds.min, TOO_FEW)
        } else if stable > most {
            (most, why)
        } else {
            (stable, WITHIN)
        };
        let able = if stable == wanted { READY } else { DOWN_STABILIZED };
        Normalized { replicas, able, limited: (replicas != stable, why.0, why.1) }
    }

    /// With `spec.behavior`: windows and policies for each direction.
    pub(super) fn ruled(
        &self,
        key: &str,
        behavior: &HorizontalPodAutoscalerBehavior,
        default_window: Duration,
        (current, wanted): (i32, i32),
        bounds: Bounds,
        now: Timestamp,
    ) -> Normalized {
        let (up, down) =
            (behavior.scale_up.clone().unwrap_or_default(), behavior.scale_down.clone().unwrap_or_default());
        let up_window = up.stabilization_window_seconds.unwrap_or(0);
        let default_window = i32::try_from(default_window.as_secs()).unwrap_or(i32::MAX);
        let down_window = down.stabilization_window_seconds.unwrap_or(default_window);
        let mut all = self.0.lock();
        let past = all.entry(key.to_owned()).or_default();
        let (up_cutoff, down_cutoff) = (ago(now, up_window), ago(now, down_window));
        past.recommendations.retain(|old| old.at > up_cutoff.min(down_cutoff));
        let since = |cutoff| past.recommendations.iter().filter(move |old| old.at > cutoff).map(|old| old.replicas);
        let lowest = since(up_cutoff).fold(wanted, i32::min);
        let highest = since(down_cutoff).fold(wanted, i32::max);
        past.recommend(wanted, now);
        let stable = current.max(lowest).min(highest);
        let able = match (stable == wanted, wanted >= current) {
            (true, _) => READY,
            (false, true) => UP_STABILIZED,
            (false, false) => DOWN_STABILIZED,
        };
        let (replicas, why) = if stable > current {
            let limit = limit(&up, current, past, now, Direction::Up).max(current);
            let (most, why) = if bounds.max > limit { (limit, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
            if stable > most { (most, why) } else { (stable, WITHIN) }
        } else if stable < current {
            let limit = limit(&down, current, past, now, Direction::Down).min(current);
            let (least, why) = if bounds.min < limit { (limit, DOWN_LIMIT) } else { (bounds.min, TOO_FEW) };
            if stable < least { (least, why) } else { (stable, WITHIN) }
        } else {
            (stable, WITHIN)
        };
        Normalized { replicas, able, limited: (replicas != stable, why.0, why.1) }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

/// The size that the policies allow now. `Max` of the policies means the largest change, `Min` the smallest.
fn limit(rules: &HPAScalingRules, current: i32, past: &Past, now: Timestamp, direction: Direction) -> i32 {
    let select = rules.select_policy.as_deref().unwrap_or("Max");
    if select == "Disabled" {
        return current;
    }
    let within = |events: &[Dated], seconds| {
        let cutoff = ago(now, seconds);
        events.iter().filter(|event| event.at > cutoff).fold(0_i32, |sum, event| sum.saturating_add(event.replicas))
    };
    let sizes = rules.policies.iter().flatten().map(|policy| {
        let start = current
            .saturating_sub(within(&past.ups, policy.period_seconds))
            .saturating_add(within(&past.downs, policy.period_seconds));
        let share = f64::from(policy.value) / 100.0;
        match (direction, policy.type_.as_str()) {
            (Direction::Up, "Pods") => start.saturating_add(policy.value),
            (Direction::Up, _) => (f64::from(start) * (1.0 + share)).ceil() as i32,
            (Direction::Down, "Pods") => start.saturating_sub(policy.value),
            (Direction::Down, _) => (f64::from(start) * (1.0 - share)) as i32,
        }
    });
    let largest = (select == "Min") == (direction == Direction::Down);
    if largest { sizes.max().unwrap_or(current) } else { sizes.min().unwrap_or(current) }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::autoscaling::v2::HPAScalingPolicy;

    use super::*;
    use crate::pods::tests::at;

    const WINDOW: Duration = Duration::from_secs(300);
    const BOUNDS: Bounds = Bounds { min: 1, max: 100 };

    #[test]
    fn a_target_that_is_not_at_zero_is_not_recorded_as_such() {
        let (from_one, from_zero) = (BOUNDS, Bounds { min: 0, max: 100 });
        for (what, recorded, bounds, current, rescales, expected) in [
            ("never at zero", None, from_one, 3, true, false),
            ("may go to zero", None, from_zero, 3, true, true),
            ("stays as it is", None, from_zero, 3, false, false),
            ("wakes up", Some(true), from_zero, 0, true, true),
            ("sleeps on", Some(true), from_zero, 0, false, false),
            ("was scaled up by somebody", Some(true), from_zero, 3, false, true),
            ("another size", Some(false), from_one, 3, true, true),
            ("switched off", Some(false), from_zero, 0, false, false),
        ] {
            assert_eq!(is_not_scaled_to_zero(recorded, bounds, current, rescales), expected, "{what}");
        }
    }

    #[test]
    fn without_behavior() {
        for (what, before, current, wanted, bounds, replicas, able, limited) in [
            ("as asked", vec![], 3, 5, BOUNDS, 5, READY, (false, WITHIN)),
            ("at most double", vec![], 3, 50, BOUNDS, 6, READY, (true, UP_LIMIT)),
            ("but four at once", vec![], 1, 50, BOUNDS, 4, READY, (true, UP_LIMIT)),
            ("not above the maximum", vec![], 3, 9, Bounds { min: 1, max: 5 }, 5, READY, (true, TOO_MANY)),
            ("not below the minimum", vec![], 3, 1, Bounds { min: 2, max: 5 }, 2, READY, (true, TOO_FEW)),
            ("held by a recent one", vec![(900, 3)], 3, 1, BOUNDS, 3, DOWN_STABILIZED, (false, WITHIN)),
            ("not by an old one", vec![(600, 3)], 3, 1, BOUNDS, 1, READY, (false, WITHIN)),
            ("to zero, where that is the minimum", vec![], 1, 0, Bounds { min: 0, max: 10 }, 0, READY, (false, WITHIN)),
            ("the maximum is nearer", vec![], 20, 1000, Bounds { min: 1, max: 10 }, 10, READY, (true, TOO_MANY)),
        ] {
            let memory = Memory::default();
            for (time, replicas) in before {
                memory.begin("a", replicas, at(time));
            }
            let found = memory.plain("a", WINDOW, current, wanted, bounds, at(1000));
            let expected = Normalized { replicas, able, limited: (limited.0, limited.1.0, limited.1.1) };
            assert_eq!(found, expected, "{what}");
        }
    }

    #[test]
    fn the_past_does_not_grow_with_looks() {
        let memory = Memory::default();
        for time in 0..1000 {
            memory.plain("a", WINDOW, 3, 2 + i32::from(time % 2 == 0), BOUNDS, at(1000));
        }
        assert_eq!(memory.0.lock()["a"].recommendations.len(), 2);
        assert_eq!(memory.plain("a", WINDOW, 3, 1, BOUNDS, at(1200)).replicas, 3, "still within the window");
        assert_eq!(memory.plain("a", WINDOW, 3, 1, BOUNDS, at(1301)).replicas, 1);
    }

    #[test]
    fn who_was_switched_off_stays_so() {
        for (was_scaled, min, reads_idle_targets, expected) in [
            (false, 0, true, false),
            (false, 1, true, false),
            (true, 0, true, true),
            (true, 0, false, false),
            (true, 1, false, true),
        ] {
            let bounds = Bounds { min, max: 5 };
            let what = format!("{was_scaled} {min} {reads_idle_targets}");
            assert_eq!(can_wake(was_scaled, bounds, reads_idle_targets), expected, "{what}");
        }
    }

    fn rules(select: &str, window: i32, policies: &[(&str, i32, i32)]) -> Option<HPAScalingRules> {
        let policy = |&(kind, value, period_seconds): &(&str, i32, i32)| HPAScalingPolicy {
            type_: kind.into(),
            value,
            period_seconds,
        };
        Some(HPAScalingRules {
            select_policy: Some(select.into()),
            stabilization_window_seconds: Some(window),
            policies: Some(policies.iter().map(policy).collect()),
            ..HPAScalingRules::default()
        })
    }

    #[test]
    fn policies_limit_the_rate() {
        let both = [("Pods", 4, 60), ("Percent", 50, 60)];
        for (what, select, current, wanted, replicas, why) in [
            ("the larger growth", "Max", 10, 90, 15, UP_LIMIT),
            ("the smaller growth", "Min", 10, 90, 14, UP_LIMIT),
            ("no growth", "Disabled", 10, 90, 10, UP_LIMIT),
            ("the larger shrink", "Max", 10, 1, 5, DOWN_LIMIT),
            ("the smaller shrink", "Min", 10, 1, 6, DOWN_LIMIT),
            ("no shrink", "Disabled", 10, 1, 10, DOWN_LIMIT),
            ("within", "Max", 10, 12, 12, WITHIN),
        ] {
            let behavior = HorizontalPodAutoscalerBehavior {
                scale_up: rules(select, 0, &both),
                scale_down: rules(select, 0, &both),
            };
            let memory = Memory::default();
            let found = memory.ruled("a", &behavior, WINDOW, (current, wanted), BOUNDS, at(1000));
            assert_eq!((found.replicas, found.limited.1), (replicas, why.0), "{what}");
        }
    }

    #[test]
    fn a_period_counts_what_was_done_in_it() {
        let behavior = HorizontalPodAutoscalerBehavior {
            scale_up: rules("Max", 0, &[("Pods", 4, 60)]),
            scale_down: rules("Max", 0, &[("Pods", 4, 60)]),
        };
        let memory = Memory::default();
        memory.changed("a", &behavior, 10, 13, at(990));
        let up = |now| memory.ruled("a", &behavior, WINDOW, (13, 90), BOUNDS, at(now)).replicas;
        assert_eq!(up(1000), 14, "three of four were added ten seconds ago");
        assert_eq!(up(1051), 17, "and do not count any more");
        memory.changed("a", &behavior, 13, 11, at(1052));
        assert_eq!(memory.ruled("a", &behavior, WINDOW, (11, 90), BOUNDS, at(1053)).replicas, 17);
    }

    #[test]
    fn windows_hold_both_ways() {
        let behavior = HorizontalPodAutoscalerBehavior {
            scale_up: rules("Max", 60, &[("Pods", 100, 15)]),
            scale_down: rules("Max", 120, &[("Pods", 100, 15)]),
        };
        let memory = Memory::default();
        let step = |current, wanted, now| {
            let found = memory.ruled("a", &behavior, WINDOW, (current, wanted), BOUNDS, at(now));
            (found.replicas, found.able.0)
        };
        assert_eq!(step(10, 10, 1000), (10, READY.0));
        assert_eq!(step(10, 20, 1010), (10, UP_STABILIZED.0), "the lowest of the last minute");
        assert_eq!(step(10, 20, 1061), (20, READY.0));
        assert_eq!(step(20, 5, 1070), (20, DOWN_STABILIZED.0), "the highest of the last two minutes");
        assert_eq!(step(20, 5, 1190), (5, READY.0));
    }

    /// What, ups and downs of two minutes, policies, least and most, from and to which size, what comes of it and why.
    type Case = (
        &'static str,
        &'static [i32],
        &'static [i32],
        &'static [(&'static str, i32, i32)],
        (i32, i32),
        (i32, i32),
        i32,
        (&'static str, &'static str),
    );

    /// As the API server completes rules that say nothing.
    const UP: &[(&str, i32, i32)] = &[("Pods", 4, 15), ("Percent", 100, 15)];
    const DOWN: &[(&str, i32, i32)] = &[("Percent", 100, 15)];

    /// Upstream's published cases (`TestScalingWithRules`, v1.36).
    const RULED: &[Case] = &[
        ("grows as asked", &[], &[], UP, (3, 8), (5, 7), 7, WITHIN),
        ("not below the least", &[], &[], DOWN, (2, 8), (3, 1), 2, TOO_FEW),
        ("to zero", &[], &[], DOWN, (0, 10), (1, 0), 0, WITHIN),
        ("more there than may be", &[], &[], UP, (1, 10), (20, 1000), 10, TOO_MANY),
        ("not above the most", &[], &[], UP, (100, 150), (100, 1000), 150, TOO_MANY),
        ("a percent is rounded up", &[], &[], &[("Percent", 1, 60)], (1, 2000), (3, 1000), 4, UP_LIMIT),
        ("twenty fewer", &[], &[], &[("Pods", 20, 60)], (3, 2000), (1000, 3), 980, DOWN_LIMIT),
        ("doubles unless told otherwise", &[], &[], UP, (1, 1000), (10, 50), 20, UP_LIMIT),
        ("pods are more", &[], &[], &[("Pods", 100, 60), ("Percent", 100, 60)], (1, 1000), (10, 500), 110, UP_LIMIT),
        ("percents are more", &[], &[], &[("Pods", 2, 60), ("Percent", 100, 60)], (1, 1000), (10, 500), 20, UP_LIMIT),
        ("less than allowed", &[], &[], &[("Pods", 100, 60)], (1, 1000), (10, 50), 50, WITHIN),
        ("far less than allowed", &[], &[], &[("Pods", 10000, 60)], (1, 1000), (10, 50), 50, WITHIN),
        ("thirty more", &[], &[], &[("Pods", 30, 60)], (1, 1000), (10, 50), 40, UP_LIMIT),
        ("three times", &[], &[], &[("Percent", 200, 60)], (1, 1000), (10, 50), 30, UP_LIMIT),
        ("pods are most", &[], &[], &[("Pods", 20, 60), ("Percent", 1, 60)], (1, 1000), (100, 2), 80, DOWN_LIMIT),
        ("two or one percent", &[], &[], &[("Pods", 2, 60), ("Percent", 1, 60)], (1, 1000), (100, 2), 98, DOWN_LIMIT),
        ("more than there are", &[], &[], &[("Pods", 100, 60)], (1, 1000), (10, 0), 1, TOO_FEW),
        ("all but the least", &[], &[], &[("Percent", 100, 60)], (5, 1000), (10, 2), 5, TOO_FEW),
        ("five fewer", &[], &[], &[("Pods", 5, 60)], (1, 1000), (10, 2), 5, DOWN_LIMIT),
        ("just half", &[], &[], &[("Percent", 50, 60)], (1, 1000), (10, 5), 5, WITHIN),
        ("room after growth", &[1, 5, 9], &[], &[("Pods", 300, 60)], (1, 200), (100, 500), 200, TOO_MANY),
        ("much room", &[1, 5, 9], &[], &[("Percent", 10000, 60)], (1, 200), (100, 500), 200, TOO_MANY),
        ("grew more than allowed", &[1, 5, 9], &[], &[("Pods", 5, 120)], (1, 1000), (100, 500), 100, UP_LIMIT),
        ("pods since then", &[1, 5, 9], &[], &[("Pods", 150, 120)], (1, 1000), (100, 500), 235, UP_LIMIT),
        ("percents since then", &[1, 5, 9], &[], &[("Percent", 200, 120)], (1, 1000), (100, 500), 255, UP_LIMIT),
        ("up after both", &[4], &[2], &[("Percent", 300, 300)], (1, 1000), (6, 24), 16, UP_LIMIT),
        ("shrank before the period", &[], &[1, 5, 9], DOWN, (1, 1000), (10, 5), 5, WITHIN),
        ("to the least", &[], &[1, 5, 9], &[("Pods", 115, 120)], (1, 1000), (100, 0), 1, TOO_FEW),
        ("to a least of five", &[], &[1, 5, 9], &[("Pods", 130, 120)], (5, 1000), (100, 0), 5, TOO_FEW),
        ("all of them", &[], &[1, 5, 9], &[("Percent", 100, 120)], (5, 1000), (100, 2), 5, TOO_FEW),
        ("shrank by more than allowed", &[], &[1, 5, 9], &[("Pods", 5, 120)], (1, 1000), (100, 2), 100, DOWN_LIMIT),
        ("half of what there was", &[], &[2, 4, 6], &[("Percent", 50, 120)], (1, 1000), (100, 0), 56, DOWN_LIMIT),
        ("down after both", &[2], &[4], &[("Percent", 50, 180)], (1, 1000), (10, 1), 6, DOWN_LIMIT),
        ("a tenth is gone", &[], &[10, 10, 10], &[("Percent", 10, 120)], (1, 1000), (100, 0), 100, DOWN_LIMIT),
        ("ten times all", &[], &[10, 10, 10], &[("Percent", 1000, 120)], (1, 1000), (10, 5), 5, WITHIN),
        ("one period up", &[8, 12, 9, 11], &[], &[("Pods", 1000, 60)], (1, 1000), (100, 200), 200, WITHIN),
        ("one period down", &[], &[8, 12, 9, 11], &[("Pods", 1000, 60)], (1, 1000), (100, 5), 5, WITHIN),
    ];

    /// In equal steps over two minutes, the last of them half a step ago.
    fn spread(changes: &[i32]) -> Vec<Dated> {
        let step = 120 / i64::try_from(changes.len().max(1)).unwrap();
        let dated = |(index, replicas): (i64, i32)| Dated { at: at(880 + step * index + step / 2), replicas };
        (0..).zip(changes.iter().copied()).map(dated).collect()
    }

    #[test]
    fn rates_are_those_of_the_published_cases() {
        for &(what, ups, downs, policies, (min, max), sizes, replicas, why) in RULED {
            let rules = || rules("Max", 0, policies);
            let behavior = HorizontalPodAutoscalerBehavior { scale_up: rules(), scale_down: rules() };
            let memory = Memory::default();
            let past = Past { ups: spread(ups), downs: spread(downs), ..Past::default() };
            memory.0.lock().insert("a".to_owned(), past);
            let found = memory.ruled("a", &behavior, WINDOW, sizes, Bounds { min, max }, at(1000));
            assert_eq!((found.replicas, found.limited.1), (replicas, why.0), "{what}");
        }
        let least = rules("Min", 300, &[("Pods", 2, 60), ("Percent", 50, 60)]).unwrap();
        assert_eq!(limit(&least, 1, &Past::default(), at(1000), Direction::Up), 2);
        assert_eq!(limit(&least, 5, &Past::default(), at(1000), Direction::Down), 3);
    }

    /// Sizes, and how many seconds ago they were recommended.
    fn recommended(before: &[(i32, i64)]) -> Memory {
        let memory = Memory::default();
        let dated = |&(replicas, ago): &(i32, i64)| Dated { at: at(10_000 - ago), replicas };
        let past = Past { recommendations: before.iter().map(dated).collect(), ..Past::default() };
        memory.0.lock().insert("a".to_owned(), past);
        memory
    }

    /// Upstream's published cases (`TestNormalizeDesiredReplicas` and `…WithBehavior`, v1.36).
    #[test]
    fn windows_are_those_of_the_published_cases() {
        let none: &[(i32, i64)] = &[];
        let old: &[(i32, i64)] = &[(10, 600), (9, 540)];
        let mixed: &[(i32, i64)] = &[(10, 600), (4, 60), (5, 120), (9, 540)];
        let low: &[(i32, i64)] = &[(1, 120), (2, 60)];
        let some: &[(i32, i64)] = &[(4, 120), (5, 60)];
        let more: &[(i32, i64)] = &[(2, 6000), (3, 180)];
        let less: &[(i32, i64)] = &[(2, 6000), (1, 180)];
        let far: &[(i32, i64)] = &[(10, 6000), (6, 60), (5, 120), (9, 180)];
        for (what, before, (up, down), current, wanted, expected) in [
            ("nothing known", none, (0, 0), 100, 5, 5),
            ("the highest holds", some, (0, 180), 100, 3, 5),
            ("the lowest holds", some, (300, 0), 1, 7, 4),
            ("nothing higher", low, (300, 0), 100, 3, 3),
            ("nothing lower", some, (0, 300), 1, 3, 3),
            ("down, all too old", old, (0, 0), 100, 3, 3),
            ("up, all too old", old, (0, 0), 1, 100, 100),
            ("down, some too old", mixed, (0, 180), 100, 3, 5),
            ("up, some too old", far, (300, 0), 1, 100, 5),
            ("no growth while less is asked for", more, (300, 300), 2, 1, 2),
            ("no shrink while more is asked for", less, (300, 300), 2, 3, 2),
        ] {
            let all = [("Pods", 1000, 15)];
            let behavior = HorizontalPodAutoscalerBehavior {
                scale_up: rules("Max", up, &all),
                scale_down: rules("Max", down, &all),
            };
            let found = recommended(before).ruled("a", &behavior, WINDOW, (current, wanted), BOUNDS, at(10_000));
            assert_eq!(found.replicas, expected, "{what}");
        }
        for (before, wanted, expected) in [(none, 5, 5), (some, 3, 5), (low, 3, 3), (old, 3, 3), (mixed, 3, 5)] {
            let found = recommended(before).plain("a", WINDOW, 5, wanted, BOUNDS, at(10_000));
            assert_eq!(found.replicas, expected, "{before:?}");
        }
    }
}

//! How long pods get when the node shuts down.

use std::time::Duration;

/// `system-cluster-critical`, and what is above it.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;

/// Pods of this priority and above, up to the next entry, get this long (`shutdownGracePeriodByPodPriority`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownPeriod {
    pub priority: i32,
    pub seconds: i64,
}

/// The two groups of `shutdownGracePeriod` and `shutdownGracePeriodCriticalPods`; none without a grace period.
pub(super) fn of_two(all: Duration, critical: Duration) -> Vec<ShutdownPeriod> {
    if all.is_zero() || critical > all {
        return Vec::new();
    }
    vec![
        ShutdownPeriod { priority: 0, seconds: (all - critical).as_secs() as i64 },
        ShutdownPeriod { priority: SYSTEM_CRITICAL, seconds: critical.as_secs() as i64 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_periods_share_the_time() {
        let seconds = Duration::from_secs;
        for (all, critical, expected) in [
            (0, 0, vec![]),
            (30, 10, vec![(0, 20), (SYSTEM_CRITICAL, 10)]),
            (30, 0, vec![(0, 30), (SYSTEM_CRITICAL, 0)]),
            (10, 30, vec![]),
        ] {
            let found: Vec<(i32, i64)> = of_two(seconds(all), seconds(critical))
                .iter()
                .map(|period| (period.priority, period.seconds))
                .collect();
            assert_eq!(found, expected, "{all} {critical}");
        }
    }
}

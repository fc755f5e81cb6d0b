//! Which times of a schedule are due.

use api::cron::Schedule;
use jiff::Timestamp;
use jiff::tz::TimeZone;

/// What is due at `now`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Due {
    /// The latest time that should have happened and was not yet handled.
    pub(super) missed: Option<Timestamp>,
    pub(super) too_many: bool,
    pub(super) next: Option<Timestamp>,
}

/// Looks from `earliest` (exclusive) to `now` (inclusive).
pub(super) fn due(schedule: &Schedule, zone: &TimeZone, earliest: Timestamp, now: Timestamp) -> Due {
    let mut missed = None;
    let mut count = 0;
    let mut next = schedule.next(earliest, zone);
    while let Some(time) = next.filter(|time| *time <= now) {
        missed = Some(time);
        count += 1;
        if count > 100 {
            // After a long absence, count from shortly before now instead.
            let near = Timestamp::from_second(now.as_second() - 86_400 * 2).unwrap_or(earliest).max(time);
            next = schedule.next(near, zone);
            if count > 10_000 {
                break;
            }
            continue;
        }
        next = schedule.next(time, zone);
    }
    Due { missed, too_many: count > 100, next: schedule.next(now, zone) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_day_that_no_month_has_is_never_due() {
        let schedule = Schedule::parse("59 23 31 2 *").unwrap();
        let due = due(&schedule, &TimeZone::UTC, time("2026-01-01T00:00:00Z"), time("2026-06-01T00:00:00Z"));
        assert_eq!((due.missed, due.next), (None, None));
    }

    #[test]
    fn only_the_latest_missed_time_counts() {
        let schedule = Schedule::parse("*/10 * * * *").unwrap();
        let start = time("2026-01-01T00:00:00Z");
        for (now, missed, too_many) in [
            ("2026-01-01T00:09:00Z", None, false),
            ("2026-01-01T00:10:00Z", Some("2026-01-01T00:10:00Z"), false),
            ("2026-01-01T01:05:00Z", Some("2026-01-01T01:00:00Z"), false),
            ("2026-02-01T01:05:00Z", Some("2026-02-01T01:00:00Z"), true),
        ] {
            let due = due(&schedule, &TimeZone::UTC, start, time(now));
            assert_eq!((due.missed, due.too_many), (missed.map(time), too_many), "{now}");
        }
    }
}

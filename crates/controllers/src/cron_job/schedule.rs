//! Cron expressions, on the clock of a time zone.
//!
//! Wall-clock times that a daylight-saving change skips do not happen; those that it repeats happen twice, as with upstream's
//! library (`robfig/cron` v3).

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// Give up looking for a next time beyond this: `0 0 30 2 *` never comes.
const YEARS: i16 = 5;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Schedule {
    Fields(Box<Fields>),
    Every(i64),
}

/// Bit sets of the allowed values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fields {
    minute: u64,
    hour: u64,
    day: u64,
    month: u64,
    weekday: u64,
    /// A day matches both fields if one of them is `*`, and either if both are restricted.
    any_day: bool,
    any_weekday: bool,
}

impl Schedule {
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let fields = match text {
            "@yearly" | "@annually" => "0 0 1 1 *",
            "@monthly" => "0 0 1 * *",
            "@weekly" => "0 0 * * 0",
            "@daily" | "@midnight" => "0 0 * * *",
            "@hourly" => "0 * * * *",
            _ => match text.strip_prefix("@every ") {
                Some(period) => return every(period),
                None => text,
            },
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [minute, hour, day, month, weekday] = fields.as_slice() else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
        const DAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
        let is_any = |field: &str| field.starts_with('*') || field.starts_with('?');
        let mut weekdays = parse_field(weekday, 0, 7, &DAYS)?;
        if weekdays & (1 << 7) != 0 {
            weekdays |= 1; // seven is Sunday too
        }
        Ok(Self::Fields(Box::new(Fields {
            minute: parse_field(minute, 0, 59, &[])?,
            hour: parse_field(hour, 0, 23, &[])?,
            day: parse_field(day, 1, 31, &[])?,
            month: parse_field(month, 1, 12, &MONTHS)?,
            weekday: weekdays,
            any_day: is_any(day),
            any_weekday: is_any(weekday),
        })))
    }

    /// The first time strictly after `after`.
    pub(super) fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Schedule::Every(seconds) => Timestamp::from_second(after.as_second() + seconds).ok(),
            Schedule::Fields(fields) => fields.next(after, zone),
        }
    }
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minute = after.as_second().div_euclid(60) + 1;
        let mut at: Zoned = Timestamp::from_second(minute * 60).ok()?.to_zoned(zone.clone());
        let last_year = at.year() + YEARS;
        while at.year() <= last_year {
            if !has(self.month, at.month()) || !self.matches_day(&at) {
                at = at.tomorrow().ok()?.start_of_day().ok()?;
            } else if !has(self.hour, at.hour()) {
                // Elapsed time, not wall time: the hour after a change of clocks is not skipped or doubled by arithmetic.
                at = at.checked_add((60 - i64::from(at.minute())).minutes()).ok()?;
            } else if !has(self.minute, at.minute()) {
                at = at.checked_add(1.minute()).ok()?;
            } else {
                return Some(at.timestamp());
            }
        }
        None
    }

    fn matches_day(&self, at: &Zoned) -> bool {
        let (day, weekday) = (has(self.day, at.day()), has(self.weekday, at.weekday().to_sunday_zero_offset()));
        if self.any_day || self.any_weekday { day && weekday } else { day || weekday }
    }
}

fn has(set: u64, value: i8) -> bool {
    u32::try_from(value).is_ok_and(|value| set & (1 << value) != 0)
}

fn every(period: &str) -> Result<Schedule, String> {
    let mut seconds = 0;
    let mut number = String::new();
    for character in period.trim().chars() {
        let unit = match character {
            'h' => 3600,
            'm' => 60,
            's' => 1,
            digit if digit.is_ascii_digit() => {
                number.push(digit);
                continue;
            }
            _ => return Err(format!("failed to parse duration @every {period}")),
        };
        seconds += number.parse::<i64>().map_err(|error| error.to_string())? * unit;
        number.clear();
    }
    if seconds < 1 || !number.is_empty() {
        Err(format!("failed to parse duration @every {period}"))
    } else {
        Ok(Schedule::Every(seconds))
    }
}

/// `*`, `?`, `a`, `a-b`, any of them with `/step`, and lists of those.
fn parse_field(text: &str, low: u32, high: u32, names: &[&str]) -> Result<u64, String> {
    let value = |text: &str| -> Result<u32, String> {
        if let Some(at) = names.iter().position(|name| text.eq_ignore_ascii_case(name)) {
            // Months are named from one, weekdays from zero.
            return Ok(u32::try_from(at).unwrap_or_default() + low);
        }
        text.parse().map_err(|_| format!("failed to parse int from {text}"))
    };
    let mut set = 0;
    for part in text.split(',') {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => {
                (range, Some(step.parse::<u32>().map_err(|_| format!("failed to parse int from {step}"))?))
            }
            None => (part, None),
        };
        let (first, last) = match range {
            "*" | "?" => (low, high.min(if high == 7 { 6 } else { high })),
            _ => match range.split_once('-') {
                Some((first, last)) => (value(first)?, value(last)?),
                None => {
                    let first = value(range)?;
                    (first, if step.is_some() { high } else { first })
                }
            },
        };
        if first < low || last > high || first > last || step == Some(0) {
            return Err(format!("invalid range in field: {part}"));
        }
        for value in (first..=last).step_by(usize::try_from(step.unwrap_or(1)).unwrap_or(1)) {
            set |= 1 << value;
        }
    }
    Ok(set)
}

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

    fn fields_next(expression: &str, zone: &str, after: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let next = Schedule::parse(expression).unwrap().next(time(after), &zone)?;
        Some(next.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
    }

    #[test]
    fn a_day_that_no_month_has_is_never_due() {
        let schedule = Schedule::parse("59 23 31 2 *").unwrap();
        let due = due(&schedule, &TimeZone::UTC, time("2026-01-01T00:00:00Z"), time("2026-06-01T00:00:00Z"));
        assert_eq!((due.missed, due.next), (None, None));
    }

    #[test]
    fn next_times() {
        for (expression, after, expected) in [
            ("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00+00:00"),
            ("*/15 * * * *", "2026-01-01T00:14:59Z", "2026-01-01T00:15:00+00:00"),
            ("0 0 * * *", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00+00:00"),
            ("30 4 1,15 * 5", "2026-01-01T05:00:00Z", "2026-01-02T04:30:00+00:00"),
            ("0 12 * jan mon-fri", "2026-01-30T13:00:00Z", "2027-01-01T12:00:00+00:00"),
            ("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00+00:00"),
            ("0 0 * * 7", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00+00:00"),
            ("@hourly", "2026-01-01T00:30:00Z", "2026-01-01T01:00:00+00:00"),
            ("@every 90s", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30+00:00"),
            ("5/20 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:25:00+00:00"),
        ] {
            assert_eq!(fields_next(expression, "UTC", after).as_deref(), Some(expected), "{expression}");
        }
        assert_eq!(fields_next("0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
    }

    #[test]
    fn changes_of_clocks() {
        // Spring forward in New York: 02:00 to 03:00 on 8 March 2026 does not exist. Fall back: 01:30 on 1 November comes twice.
        for (expression, after, expected) in [
            ("30 2 * * *", "2026-03-08T05:00:00Z", "2026-03-09T02:30:00-04:00"),
            ("0 * * * *", "2026-03-08T06:30:00Z", "2026-03-08T03:00:00-04:00"),
            ("30 1 * * *", "2026-11-01T05:00:00Z", "2026-11-01T01:30:00-04:00"),
            ("30 1 * * *", "2026-11-01T05:30:00Z", "2026-11-01T01:30:00-05:00"),
            ("0 9 * * *", "2026-11-01T05:30:00Z", "2026-11-01T09:00:00-05:00"),
        ] {
            assert_eq!(fields_next(expression, "America/New_York", after).as_deref(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for text in [
            "",
            "* * * *",
            "* * * * * *",
            "60 * * * *",
            "* 24 * * *",
            "* * 0 * *",
            "* * * 13 *",
            "* * * * 8",
            "*/0 * * * *",
            "5-1 * * * *",
            "x * * * *",
            "@often",
            "@every 0s",
        ] {
            assert!(Schedule::parse(text).is_err(), "{text:?}");
        }
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

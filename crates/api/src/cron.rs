//! Schedules of CronJobs: five fields, or a word such as `@daily` or `@every 90s`, on the clock of a time zone.
//!
//! Syntax, messages and answers are those of upstream's library (`robfig/cron` v3). Wall-clock times that a change of the
//! clock skips do not happen; those that it repeats happen twice.

use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan, Zoned};

/// No next time is looked for beyond this: `0 0 30 2 *` never comes.
const MAX_YEARS: i16 = 5;

/// Why a text is no schedule, in upstream's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadSchedule {
    #[error("empty spec string")]
    Empty,
    /// Nobody knows the time zone that the text names.
    #[error("provided bad location {0}: unknown time zone {0}")]
    Zone(String),
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    Fields(Vec<String>),
    #[error("unrecognized descriptor: {0}")]
    Word(String),
    #[error("failed to parse duration {text}: {why}")]
    Duration { text: String, why: crate::duration::DurationError },
    #[error("failed to parse int from {0}: strconv.Atoi: parsing {0:?}: invalid syntax")]
    Number(String),
    #[error("negative number ({0}) not allowed: {0}")]
    Negative(i64),
    #[error("too many hyphens: {0}")]
    Hyphens(String),
    #[error("too many slashes: {0}")]
    Slashes(String),
    #[error("beginning of range ({start}) below minimum ({low}): {part}")]
    Low { start: u64, low: u32, part: String },
    #[error("end of range ({end}) above maximum ({high}): {part}")]
    High { end: u64, high: u32, part: String },
    #[error("beginning of range ({start}) beyond end of range ({end}): {part}")]
    Backward { start: u64, end: u64, part: String },
    #[error("step of range should be a positive number: {0}")]
    Step(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The time zone that the text itself names, before all else: only CronJobs of long ago have one.
    pub zone: Option<String>,
    times: Times,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Times {
    Fields(Box<Fields>),
    EverySeconds(i64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Fields {
    minute: Field,
    hour: Field,
    day: Field,
    month: Field,
    weekday: Field,
}

/// The values that a field allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Field {
    values: u64,
    /// It says `*` or `?`, without a step. A day must match both of its fields if one of them says so, and either if neither does.
    is_any: bool,
}

impl Schedule {
    pub fn parse(text: &str) -> Result<Self, BadSchedule> {
        if text.is_empty() {
            return Err(BadSchedule::Empty);
        }
        let (zone, text) = match text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
            Some(rest) => {
                let (zone, times) = rest.split_once(' ').unwrap_or((rest, ""));
                (Some(zone.to_owned()), times.trim())
            }
            None => (None, text),
        };
        Ok(Schedule { zone, times: times(text)? })
    }

    /// The first time strictly after `after`.
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match &self.times {
            Times::EverySeconds(seconds) => Timestamp::from_second(after.as_second().checked_add(*seconds)?).ok(),
            Times::Fields(fields) => fields.next(after, zone),
        }
    }
}

fn times(text: &str) -> Result<Times, BadSchedule> {
    let text = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => match text.strip_prefix("@every ") {
            Some(period) => return every(period),
            None if text.starts_with('@') => return Err(BadSchedule::Word(text.to_owned())),
            None => text,
        },
    };
    const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let fields: Vec<&str> = text.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields.as_slice() else {
        return Err(BadSchedule::Fields(fields.into_iter().map(str::to_owned).collect()));
    };
    Ok(Times::Fields(Box::new(Fields {
        minute: Bounds { low: 0, high: 59, names: &[] }.field(minute)?,
        hour: Bounds { low: 0, high: 23, names: &[] }.field(hour)?,
        day: Bounds { low: 1, high: 31, names: &[] }.field(day)?,
        month: Bounds { low: 1, high: 12, names: MONTHS }.field(month)?,
        weekday: Bounds { low: 0, high: 6, names: DAYS }.field(weekday)?,
    })))
}

/// Whole seconds, and no less than one.
fn every(period: &str) -> Result<Times, BadSchedule> {
    let nanos = crate::duration::parse_signed(period)
        .map_err(|why| BadSchedule::Duration { text: format!("@every {period}"), why })?;
    Ok(Times::EverySeconds((nanos / 1_000_000_000).max(1)))
}

impl Fields {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let minute = after.as_second().div_euclid(60) + 1;
        let mut at: Zoned = Timestamp::from_second(minute * 60).ok()?.to_zoned(zone.clone());
        let last_year = at.year() + MAX_YEARS;
        while at.year() <= last_year {
            if !self.month.has(at.month()) || !self.matches_day(&at) {
                at = at.tomorrow().ok()?.start_of_day().ok()?;
            } else if !self.hour.has(at.hour()) {
                // Elapsed time, not wall time: the hour after a change of clocks is not skipped or doubled by arithmetic.
                at = at.checked_add((60 - i64::from(at.minute())).minutes()).ok()?;
            } else if !self.minute.has(at.minute()) {
                at = at.checked_add(1.minute()).ok()?;
            } else {
                return Some(at.timestamp());
            }
        }
        None
    }

    fn matches_day(&self, at: &Zoned) -> bool {
        let (day, weekday) = (self.day.has(at.day()), self.weekday.has(at.weekday().to_sunday_zero_offset()));
        if self.day.is_any || self.weekday.is_any { day && weekday } else { day || weekday }
    }
}

impl Field {
    fn has(self, value: i8) -> bool {
        u32::try_from(value).is_ok_and(|value| self.values & (1 << value) != 0)
    }
}

/// What a field may say.
struct Bounds {
    low: u32,
    high: u32,
    /// Of the values from the lowest on.
    names: &'static [&'static str],
}

impl Bounds {
    /// `*`, `?`, `a`, `a-b`, any of them with `/step`, and lists of those.
    fn field(&self, text: &str) -> Result<Field, BadSchedule> {
        let mut field = Field::default();
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let one = self.range(part)?;
            field = Field { values: field.values | one.values, is_any: field.is_any || one.is_any };
        }
        Ok(field)
    }

    fn range(&self, part: &str) -> Result<Field, BadSchedule> {
        let (range, step) = part.split_once('/').map_or((part, None), |(range, step)| (range, Some(step)));
        let (first, last) = range.split_once('-').map_or((range, None), |(first, last)| (first, Some(last)));
        let is_any = matches!(first, "*" | "?");
        let (start, end) = match last {
            _ if is_any => (u64::from(self.low), u64::from(self.high)),
            None => {
                let start = self.value(first)?;
                // From there on, where there is a step.
                (start, if step.is_some() { u64::from(self.high) } else { start })
            }
            Some(last) => {
                let start = self.value(first)?;
                if last.contains('-') {
                    return Err(BadSchedule::Hyphens(part.to_owned()));
                }
                (start, self.value(last)?)
            }
        };
        let step = match step {
            None => 1,
            Some(step) if step.contains('/') => return Err(BadSchedule::Slashes(part.to_owned())),
            Some(step) => number(step)?,
        };
        let part = || part.to_owned();
        if start < u64::from(self.low) {
            return Err(BadSchedule::Low { start, low: self.low, part: part() });
        }
        if end > u64::from(self.high) {
            return Err(BadSchedule::High { end, high: self.high, part: part() });
        }
        if start > end {
            return Err(BadSchedule::Backward { start, end, part: part() });
        }
        let every = usize::try_from(step).ok().filter(|step| *step > 0).ok_or_else(|| BadSchedule::Step(part()))?;
        let values = (start..=end).step_by(every).fold(0, |values, value| values | 1 << value);
        Ok(Field { values, is_any: is_any && step == 1 })
    }

    fn value(&self, text: &str) -> Result<u64, BadSchedule> {
        match self.names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            Some(at) => Ok(at as u64 + u64::from(self.low)),
            None => number(text),
        }
    }
}

fn number(text: &str) -> Result<u64, BadSchedule> {
    let number: i64 = text.parse().map_err(|_| BadSchedule::Number(text.to_owned()))?;
    u64::try_from(number).map_err(|_| BadSchedule::Negative(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(expression: &str, zone: &str, after: &str) -> Option<String> {
        let zone = TimeZone::get(zone).unwrap();
        let next = Schedule::parse(expression).unwrap().next(after.parse().unwrap(), &zone)?;
        Some(next.to_zoned(zone).strftime("%Y-%m-%dT%H:%M:%S%:z").to_string())
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
            // A field with a step restricts: either of the two is enough.
            ("0 0 */10 * mon", "2026-01-02T00:00:00Z", "2026-01-05T00:00:00+00:00"),
            ("0 0 */1 * mon", "2026-01-02T00:00:00Z", "2026-01-05T00:00:00+00:00"),
            ("0 0 */10 * ?", "2026-01-02T00:00:00Z", "2026-01-11T00:00:00+00:00"),
            ("@hourly", "2026-01-01T00:30:00Z", "2026-01-01T01:00:00+00:00"),
            ("@every 90s", "2026-01-01T00:00:00Z", "2026-01-01T00:01:30+00:00"),
            ("@every 1h0.5m2500ms", "2026-01-01T00:00:00Z", "2026-01-01T01:00:32+00:00"),
            ("@every 1ms", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01+00:00"),
            ("5/20 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:25:00+00:00"),
            ("5,,7 * * * *", "2026-01-01T00:06:00Z", "2026-01-01T00:07:00+00:00"),
        ] {
            assert_eq!(next(expression, "UTC", after).as_deref(), Some(expected), "{expression}");
        }
        assert_eq!(next("0 0 30 2 *", "UTC", "2026-01-01T00:00:00Z"), None);
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
            assert_eq!(next(expression, "America/New_York", after).as_deref(), Some(expected), "{expression}");
        }
    }

    #[test]
    fn a_text_may_name_its_zone() {
        for text in ["TZ=Asia/Tokyo 0 0 * * *", "CRON_TZ=Asia/Tokyo   @daily"] {
            assert_eq!(Schedule::parse(text).unwrap().zone.as_deref(), Some("Asia/Tokyo"), "{text}");
        }
        assert_eq!(Schedule::parse("@daily").unwrap().zone, None);
    }

    #[test]
    fn nonsense_is_refused_in_upstreams_words() {
        for (text, error) in [
            ("", "empty spec string"),
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]"),
            ("TZ=UTC", "expected exactly 5 fields, found 0: []"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* 24 * * *", "end of range (24) above maximum (23): 24"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("* * * 13 *", "end of range (13) above maximum (12): 13"),
            ("0 0 * * 7", "end of range (7) above maximum (6): 7"),
            ("*/0 * * * *", "step of range should be a positive number: */0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
            ("1/2/3 * * * *", "too many slashes: 1/2/3"),
            ("1/-2 * * * *", "negative number (-2) not allowed: -2"),
            ("x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("*/x * * * *", "failed to parse int from x: strconv.Atoi: parsing \"x\": invalid syntax"),
            ("@often", "unrecognized descriptor: @often"),
            ("@every x", "failed to parse duration @every x: time: invalid duration \"x\""),
            ("@every 1", "failed to parse duration @every 1: time: missing unit in duration \"1\""),
        ] {
            assert_eq!(Schedule::parse(text).unwrap_err().to_string(), error, "{text:?}");
        }
    }
}

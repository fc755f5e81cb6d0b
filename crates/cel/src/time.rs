//! Texts of times and durations, as Go and protobuf write them.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimeParser;
use jiff::tz::TimeZone;

use crate::error::Error;

const SECOND: i64 = 1_000_000_000;

/// RFC 3339, in UTC, with no more digits than there are.
pub(crate) fn timestamp_text(at: Timestamp) -> String {
    at.to_string()
}

pub(crate) fn timestamp(text: &str) -> Option<Timestamp> {
    // Stricter than jiff: date, `T`, time and an offset must all be there.
    let bytes = text.as_bytes();
    let is_complete = bytes.len() >= 20 && matches!(bytes.get(10), Some(b'T' | b't')) && bytes.get(13) == Some(&b':');
    if !is_complete || text.contains('[') {
        return None;
    }
    let at = DateTimeParser::new().parse_timestamp(text).ok()?;
    (at.as_second() >= -62_135_596_800).then_some(at)
}

/// Nanoseconds of a duration as Go writes it: `1h30m`, `-1.5s`.
pub(crate) fn duration(text: &str) -> Option<i64> {
    api::duration::parse_signed(text).ok()
}

/// Seconds with as many digits as there are, and an `s`.
pub(crate) fn duration_text(nanos: i64) -> String {
    let sign = if nanos < 0 { "-" } else { "" };
    let nanos = nanos.unsigned_abs();
    let (seconds, fraction) = (nanos / SECOND as u64, nanos % SECOND as u64);
    if fraction == 0 {
        return format!("{sign}{seconds}s");
    }
    let fraction = format!("{fraction:09}");
    format!("{sign}{seconds}.{}s", fraction.trim_end_matches('0'))
}

pub(crate) fn zone(name: &str) -> Result<TimeZone, Error> {
    let refused = || Error::new(format!("unknown time zone {name}"));
    if name.is_empty() || name == "UTC" {
        return Ok(TimeZone::UTC);
    }
    if let Some((hours, minutes)) = name.split_once(':') {
        let negative = hours.starts_with('-');
        let hours: i32 = hours.trim_start_matches(['+', '-']).parse().map_err(|_| refused())?;
        let minutes: i32 = minutes.parse().map_err(|_| refused())?;
        // Numbers of 32 bits cannot overflow here.
        let seconds = i64::from(hours) * 3600 + i64::from(minutes) * 60;
        let seconds = i32::try_from(if negative { -seconds } else { seconds }).map_err(|_| refused())?;
        return jiff::tz::Offset::from_seconds(seconds).map(TimeZone::fixed).map_err(|_| refused());
    }
    TimeZone::get(name).map_err(|_| refused())
}

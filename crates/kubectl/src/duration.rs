//! Durations in flags, and ages in tables.

use std::time::Duration;

use api::duration::DurationError;
pub(crate) use api::duration::human;

/// Parses as Go's `time.ParseDuration`; negative values become zero, which is how kubectl's callers use them.
pub(crate) fn parse(text: &str) -> Result<Duration, DurationError> {
    api::duration::parse_signed(text).map(|nanos| Duration::from_nanos(u64::try_from(nanos).unwrap_or(0)))
}

/// The age of an RFC 3339 timestamp, or `<unknown>`.
pub(crate) fn age(timestamp: Option<&str>, now: jiff::Timestamp) -> String {
    match timestamp.and_then(|t| t.parse::<jiff::Timestamp>().ok()) {
        Some(t) => human(now.as_second() - t.as_second()),
        None => "<unknown>".to_owned(),
    }
}

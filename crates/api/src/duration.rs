//! Durations as Go writes them (`1h2m3.5s`), in flags, configuration files and queries; and as people read them (`3d4h`).

use std::time::Duration;

/// Why a text is no duration, in Go's words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    #[error("time: invalid duration {0:?}")]
    Invalid(String),
    #[error("time: missing unit in duration {0:?}")]
    MissingUnit(String),
    #[error("time: unknown unit {unit:?} in duration {text:?}")]
    UnknownUnit { unit: String, text: String },
    #[error("duration {0:?} is negative")]
    Negative(String),
}

/// Units from the longest to the shortest, with their nanoseconds. `µ` has two code points.
const UNITS: [(&str, u64); 8] = [
    ("h", 3_600_000_000_000),
    ("m", 60_000_000_000),
    ("s", 1_000_000_000),
    ("ms", 1_000_000),
    ("us", 1_000),
    ("µs", 1_000),
    ("μs", 1_000),
    ("ns", 1),
];

/// Parses as Go's `time.ParseDuration`, and refuses what is negative.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let nanos = parse_signed(text)?;
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| DurationError::Negative(text.to_owned()))
}

/// Parses as Go's `time.ParseDuration`, into nanoseconds.
pub fn parse_signed(text: &str) -> Result<i64, DurationError> {
    let invalid = || DurationError::Invalid(text.to_owned());
    let (is_negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i64 = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, after) = rest.split_at(digits);
        let unit = &after[..after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len())];
        let nanos = UNITS.iter().find(|(name, _)| *name == unit).map(|(_, nanos)| *nanos);
        let nanos = match nanos {
            _ if !number.bytes().any(|byte| byte.is_ascii_digit()) => return Err(invalid()),
            Some(nanos) => nanos,
            None if unit.is_empty() => return Err(DurationError::MissingUnit(text.to_owned())),
            None => return Err(DurationError::UnknownUnit { unit: unit.to_owned(), text: text.to_owned() }),
        };
        let sum = scaled(number, nanos).and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(invalid)?;
        rest = &after[unit.len()..];
    }
    Ok(if is_negative { -total } else { total })
}

/// `number`, which may have a fraction, times `unit`; None if it is no number or too large.
fn scaled(number: &str, unit: u64) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u64>().ok() };
    // No unit has more digits than this: what follows is below a nanosecond.
    let fraction = &fraction[..fraction.len().min(15)];
    let part = u128::from(digits(fraction)?) * u128::from(unit) / 10_u128.pow(fraction.len() as u32);
    let total = u128::from(digits(whole)?) * u128::from(unit) + part;
    i64::try_from(total).ok()
}

/// Writes as Go's `Duration.String`.
pub fn format(duration: Duration) -> String {
    let nanos = duration.as_nanos();
    let fraction = |value: u128, unit: u128, name: &str| {
        let digits = unit.ilog10() as usize;
        let text = format!("{}.{:0digits$}", value / unit, value % unit);
        format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    match nanos {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{nanos}ns"),
        1_000..1_000_000 => return fraction(nanos, 1_000, "µs"),
        1_000_000..1_000_000_000 => return fraction(nanos, 1_000_000, "ms"),
        _ => {}
    }
    let total = duration.as_secs();
    let (hours, minutes) = (total / 3600, total / 60 % 60);
    let seconds = fraction(nanos % 60_000_000_000, 1_000_000_000, "s");
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// A time as kubectl shows it (apimachinery's `HumanDuration`): two units at most, coarser as time goes on.
pub fn human(seconds: i64) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24 * HOUR;
    const YEAR: i64 = 365 * DAY;
    let pair = |high: i64, high_unit: &str, low: i64, low_unit: &str| {
        if low == 0 { format!("{high}{high_unit}") } else { format!("{high}{high_unit}{low}{low_unit}") }
    };
    match seconds {
        i64::MIN..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        120..600 => pair(seconds / MINUTE, "m", seconds % MINUTE, "s"),
        600..10_800 => format!("{}m", seconds / MINUTE),
        10_800..28_800 => pair(seconds / HOUR, "h", (seconds / MINUTE) % 60, "m"),
        28_800..172_800 => format!("{}h", seconds / HOUR),
        _ if seconds < 8 * DAY => pair(seconds / DAY, "d", (seconds / HOUR) % 24, "h"),
        _ if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        _ if seconds < 8 * YEAR => pair(seconds / YEAR, "y", (seconds / DAY) % 365, "d"),
        _ => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_written_as_go_does() {
        for (text, nanos, written) in [
            ("0", 0, "0s"),
            ("0s", 0, "0s"),
            ("7ns", 7, "7ns"),
            ("1.5us", 1_500, "1.5µs"),
            ("1.5µs", 1_500, "1.5µs"),
            ("250ms", 250_000_000, "250ms"),
            (".5s", 500_000_000, "500ms"),
            ("30s", 30_000_000_000, "30s"),
            ("+15s", 15_000_000_000, "15s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("1h", 3_600_000_000_000, "1h0m0s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("5m0s", 300_000_000_000, "5m0s"),
            ("1m1.500s", 61_500_000_000, "1m1.5s"),
            ("0.1s", 100_000_000, "100ms"),
        ] {
            let duration = parse(text).unwrap();
            assert_eq!((duration.as_nanos(), format(duration)), (nanos, written.to_owned()), "{text}");
        }
        assert_eq!(parse_signed("-1.5s"), Ok(-1_500_000_000));
    }

    #[test]
    fn what_is_no_duration_is_refused_in_gos_words() {
        for (text, expected) in [
            ("", "time: invalid duration \"\""),
            ("x", "time: invalid duration \"x\""),
            ("s", "time: invalid duration \"s\""),
            (".s", "time: invalid duration \".s\""),
            ("1.2.3s", "time: invalid duration \"1.2.3s\""),
            ("3000000h", "time: invalid duration \"3000000h\""),
            ("5", "time: missing unit in duration \"5\""),
            ("1x", "time: unknown unit \"x\" in duration \"1x\""),
            ("-1s", "duration \"-1s\" is negative"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), expected);
        }
    }

    #[test]
    fn human_uses_at_most_two_units() {
        const H: i64 = 3600;
        for (seconds, expected) in [
            (-5, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60, "179m"),
            (3 * H, "3h"),
            (3 * H + 120, "3h2m"),
            (8 * H + 120, "8h"),
            (47 * H, "47h"),
            (48 * H, "2d"),
            (49 * H, "2d1h"),
            (8 * 24 * H, "8d"),
            (700 * 24 * H, "700d"),
            (2 * 365 * 24 * H, "2y"),
            (2 * 365 * 24 * H + 24 * H, "2y1d"),
            (9 * 365 * 24 * H, "9y"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }
}

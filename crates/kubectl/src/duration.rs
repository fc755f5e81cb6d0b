//! Go's duration syntax (`1h2m3.5s`) and kubectl's short ages (`3d4h`).

use std::time::Duration;

/// Parses as Go's `time.ParseDuration`; negative values become zero, which is how kubectl's callers use them.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    signed_nanos(text).map(|n| Duration::from_nanos(u64::try_from(n).unwrap_or(0)))
}

pub(crate) fn signed_nanos(text: &str) -> Result<i128, String> {
    let invalid = || format!("time: invalid duration \"{text}\"");
    let (negative, mut rest) = match text.as_bytes().first() {
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
    let mut total: f64 = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number: f64 = rest[..digits].parse().map_err(|_| invalid())?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let unit = &rest[..unit_end];
        let scale = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            "" => return Err(format!("time: missing unit in duration \"{text}\"")),
            _ => return Err(format!("time: unknown unit \"{unit}\" in duration \"{text}\"")),
        };
        total += number * scale;
        rest = &rest[unit_end..];
    }
    Ok(if negative { -(total as i128) } else { total as i128 })
}

/// Go's `Duration.String`.
pub(crate) fn go_string(d: Duration) -> String {
    let nanos = d.as_nanos();
    if nanos == 0 {
        return "0s".to_owned();
    }
    let fraction = |value: f64, unit: &str| {
        let text = format!("{value:.9}");
        format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
    };
    if nanos < 1_000 {
        return format!("{nanos}ns");
    }
    if nanos < 1_000_000 {
        return fraction(nanos as f64 / 1e3, "µs");
    }
    if nanos < 1_000_000_000 {
        return fraction(nanos as f64 / 1e6, "ms");
    }
    let total = d.as_secs();
    let (h, m) = (total / 3600, total / 60 % 60);
    let s = (total % 60) as f64 + f64::from(d.subsec_nanos()) / 1e9;
    match (h, m) {
        (0, 0) => fraction(s, "s"),
        (0, m) => format!("{m}m{}", fraction(s, "s")),
        (h, m) => format!("{h}h{m}m{}", fraction(s, "s")),
    }
}

/// `HumanDuration` of apimachinery: at most two units, few digits.
pub(crate) fn human(seconds: i64) -> String {
    if seconds < -1 {
        return "<invalid>".to_owned();
    }
    if seconds < 0 {
        return "0s".to_owned();
    }
    let minutes = seconds / 60;
    let hours = seconds / 3600;
    let pair = |a: i64, au: &str, b: i64, bu: &str| {
        if b == 0 { format!("{a}{au}") } else { format!("{a}{au}{b}{bu}") }
    };
    if seconds < 120 {
        format!("{seconds}s")
    } else if minutes < 10 {
        pair(minutes, "m", seconds % 60, "s")
    } else if minutes < 180 {
        format!("{minutes}m")
    } else if hours < 8 {
        pair(hours, "h", minutes % 60, "m")
    } else if hours < 48 {
        format!("{hours}h")
    } else if hours < 24 * 8 {
        pair(hours / 24, "d", hours % 24, "h")
    } else if hours < 24 * 365 * 2 {
        format!("{}d", hours / 24)
    } else if hours < 24 * 365 * 8 {
        pair(hours / 24 / 365, "y", hours / 24 % 365, "d")
    } else {
        format!("{}y", hours / 24 / 365)
    }
}

/// The age of an RFC 3339 timestamp, or `<unknown>`.
pub(crate) fn age(timestamp: Option<&str>, now: jiff::Timestamp) -> String {
    match timestamp.and_then(|t| t.parse::<jiff::Timestamp>().ok()) {
        Some(t) => human(now.as_second() - t.as_second()),
        None => "<unknown>".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn go_durations_round_trip() {
        for (text, nanos, shown) in [
            ("0", 0, "0s"),
            ("1m30s", 90_000_000_000, "1m30s"),
            ("1.5h", 5_400_000_000_000, "1h30m0s"),
            ("250ms", 250_000_000, "250ms"),
            ("30s", 30_000_000_000, "30s"),
        ] {
            let d = parse(text).unwrap();
            assert_eq!(d.as_nanos(), nanos);
            assert_eq!(go_string(d), shown);
        }
        assert_eq!(parse("5").unwrap_err(), "time: missing unit in duration \"5\"");
        assert_eq!(parse("x").unwrap_err(), "time: invalid duration \"x\"");
    }
}

//! Cron schedules, checked as upstream's parser reads them.

/// Whether `text` is a five-field cron schedule or one of the `@` words. The error is upstream's sentence.
pub(super) fn check(text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err("empty spec string".to_owned());
    }
    // A time zone may come first.
    let text = match text.strip_prefix("TZ=").or_else(|| text.strip_prefix("CRON_TZ=")) {
        Some(rest) => rest.split_once(' ').map_or("", |(_, schedule)| schedule).trim(),
        None => text,
    };
    if let Some(word) = text.strip_prefix('@') {
        return match word {
            "yearly" | "annually" | "monthly" | "weekly" | "daily" | "midnight" | "hourly" => Ok(()),
            _ if word.starts_with("every ") => Ok(()),
            _ => Err(format!("unrecognized descriptor: @{word}")),
        };
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    if fields.len() != 5 {
        return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
    }
    const MONTHS: &[&str] = &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
    const DAYS: &[&str] = &["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
    let ranges: [(u32, u32, &[&str]); 5] = [(0, 59, &[]), (0, 23, &[]), (1, 31, &[]), (1, 12, MONTHS), (0, 6, DAYS)];
    for (field, (low, high, names)) in fields.iter().zip(ranges) {
        for part in field.split(',') {
            check_part(part, low, high, names)?;
        }
    }
    Ok(())
}

fn check_part(part: &str, low: u32, high: u32, names: &[&str]) -> Result<(), String> {
    let (range, step) = match part.split_once('/') {
        Some((range, step)) => (range, Some(step)),
        None => (part, None),
    };
    if step.is_some_and(|step| step.contains('/')) {
        return Err(format!("too many slashes: {part}"));
    }
    if let Some(step) = step {
        match step.parse::<u32>() {
            Err(_) => {
                return Err(format!("failed to parse int from {step}: strconv.Atoi: parsing {step:?}: invalid syntax"));
            }
            Ok(0) => return Err(format!("step of range should be a positive number: {part}")),
            Ok(_) => {}
        }
    }
    if matches!(range, "*" | "?") {
        return Ok(());
    }
    let number =
        |text: &str| {
            let named = names.iter().position(|name| name.eq_ignore_ascii_case(text));
            named.and_then(|at| u32::try_from(at).ok()).map(|at| at + low).or_else(|| text.parse().ok()).ok_or_else(
                || format!("failed to parse int from {text}: strconv.Atoi: parsing {text:?}: invalid syntax"),
            )
        };
    let (start, end) = match range.split_once('-') {
        None => (number(range)?, number(range)?),
        Some((_, end)) if end.contains('-') => return Err(format!("too many hyphens: {part}")),
        Some((start, end)) => (number(start)?, number(end)?),
    };
    if start < low {
        return Err(format!("beginning of range ({start}) below minimum ({low}): {part}"));
    }
    if end > high {
        return Err(format!("end of range ({end}) above maximum ({high}): {part}"));
    }
    if start > end {
        return Err(format!("beginning of range ({start}) beyond end of range ({end}): {part}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schedules() {
        for ok in ["* * * * *", "*/5 0-6 1,15 jan-mar mon", "@hourly", "@every 1h", "0 0 1 1 0", "TZ=UTC * * * * *"] {
            assert_eq!(check(ok), Ok(()), "{ok}");
        }
        for (bad, error) in [
            ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
            ("60 * * * *", "end of range (60) above maximum (59): 60"),
            ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
            ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
            ("@never", "unrecognized descriptor: @never"),
        ] {
            assert_eq!(check(bad).unwrap_err(), error, "{bad}");
        }
        assert!(check("x * * * *").is_err() && check("*/0 * * * *").is_err());
    }
}

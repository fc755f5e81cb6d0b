//! Formats of strings that have a meaning. Others are hints for readers.

use base64::Engine;

#[derive(Clone, Copy)]
pub(super) struct Format {
    pub(super) name: &'static str,
    pub(super) fits: fn(&str) -> bool,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

const fn format(name: &'static str, fits: fn(&str) -> bool) -> Format {
    Format { name, fits }
}

const FORMATS: &[Format] = &[
    format("byte", |text| base64::engine::general_purpose::STANDARD.decode(text).is_ok()),
    format("cidr", is_cidr),
    format("date", |text| text.len() == 10 && text.parse::<jiff::civil::Date>().is_ok()),
    format("date-time", |text| text.parse::<jiff::Timestamp>().is_ok()),
    format("datetime", |text| text.parse::<jiff::Timestamp>().is_ok()),
    format("duration", is_duration),
    format("email", |text| {
        text.split_once('@').is_some_and(|(name, host)| !name.is_empty() && !host.is_empty() && !host.contains('@'))
            && !text.contains(char::is_whitespace)
    }),
    format("hostname", |text| api::validation::dns1123_subdomain(&text.to_lowercase()).is_empty()),
    format("ipv4", |text| text.parse::<std::net::Ipv4Addr>().is_ok()),
    format("ipv6", |text| text.parse::<std::net::Ipv6Addr>().is_ok()),
    format("k8s-long-name", |text| api::validation::dns1123_subdomain(text).is_empty()),
    format("k8s-short-name", |text| api::validation::dns1123_label(text).is_empty()),
    format("mac", is_mac),
    format("uri", |text| text.parse::<http::Uri>().is_ok_and(|uri| uri.scheme().is_some() || text.starts_with('/'))),
    format("uuid", |text| uuid::Uuid::try_parse(text).is_ok()),
    format("uuid3", |text| is_uuid(text, 3)),
    format("uuid4", |text| is_uuid(text, 4)),
    format("uuid5", |text| is_uuid(text, 5)),
];

pub(super) fn find(name: &str) -> Option<Format> {
    FORMATS.iter().find(|format| format.name == name).copied()
}

fn is_cidr(text: &str) -> bool {
    text.parse::<api::cidr::Cidr>().is_ok()
}

/// `1h30m`, `22 ns`, `3 days`.
fn is_duration(text: &str) -> bool {
    let mut rest = text.trim_start_matches(['+', '-']);
    if rest == "0" {
        return true;
    }
    const UNITS: &[&str] = &[
        "ns",
        "us",
        "µs",
        "ms",
        "s",
        "m",
        "h",
        "d",
        "w",
        "nanosecond",
        "microsecond",
        "millisecond",
        "second",
        "sec",
        "minute",
        "min",
        "hour",
        "hr",
        "day",
        "week",
        "wk",
    ];
    let mut parts = 0;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        if digits == 0 {
            return false;
        }
        rest = rest[digits..].trim_start();
        let end = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let (unit, after) = rest.split_at(end);
        if !UNITS.contains(&unit) && !unit.strip_suffix('s').is_some_and(|unit| UNITS.contains(&unit)) {
            return false;
        }
        rest = after.trim_start();
        parts += 1;
    }
    parts > 0
}

fn is_mac(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '-']).collect();
    matches!(parts.len(), 6 | 8 | 20)
        && parts.iter().all(|part| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn is_uuid(text: &str, version: usize) -> bool {
    uuid::Uuid::try_parse(text).is_ok_and(|uuid| uuid.get_version_num() == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_tell_values_apart() {
        for (name, good, bad) in [
            ("byte", "aGk=", "a"),
            ("cidr", "10.0.0.0/8", "10.0.0.0/33"),
            ("date", "2024-02-29", "2023-02-29"),
            ("date-time", "2024-01-01T10:00:00Z", "2024-01-01"),
            ("duration", "1h30m", "soon"),
            ("email", "a@example.com", "a"),
            ("hostname", "a.example.com", "a_b"),
            ("ipv4", "10.1.2.3", "::1"),
            ("ipv6", "::1", "10.1.2.3"),
            ("mac", "01:23:45:67:89:ab", "01:23"),
            ("uri", "https://example.com/a", "not a uri"),
            ("uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8", "6ba7b810"),
        ] {
            let format = find(name).unwrap();
            assert!((format.fits)(good) && !(format.fits)(bad), "{name}");
        }
        assert!(find("colour").is_none());
    }
}

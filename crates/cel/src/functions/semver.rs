//! Semantic versions.

use std::cmp::Ordering;

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::extension::Extension;
use crate::value::Value;

#[derive(Debug)]
pub struct Semver {
    numbers: [u64; 3],
    /// Parts of what is before the release.
    pre: Vec<String>,
}

pub(super) const TABLE: &[Row] = &[
    ("semver", "(string) kubernetes.Semver; (string, bool) kubernetes.Semver", |_, values| match parsed(values)? {
        Ok(version) => Ok(Value::extension(Extension::Semver(version))),
        Err(why) => Err(Error::new(why)),
    }),
    ("isSemver", "(string) bool; (string, bool) bool", |_, values| Ok(Value::Bool(parsed(values)?.is_ok()))),
    ("major", ".(kubernetes.Semver) int", |_, values| number(values, 0)),
    ("minor", ".(kubernetes.Semver) int", |_, values| number(values, 1)),
    ("patch", ".(kubernetes.Semver) int", |_, values| number(values, 2)),
];

fn parsed(values: &[Value]) -> Result<Result<Semver, String>, Error> {
    match values {
        [Value::String(text)] => Ok(Semver::parse(text)),
        [Value::String(text), Value::Bool(false)] => Ok(Semver::parse(text)),
        [Value::String(text), Value::Bool(true)] => Ok(Semver::parse(&normalized(text))),
        _ => Err(Error::no_such_overload()),
    }
}

fn of(value: &Value) -> Option<&Semver> {
    match value {
        Value::Extension(extension) => match &**extension {
            Extension::Semver(version) => Some(version),
            _ => None,
        },
        _ => None,
    }
}

fn number(values: &[Value], at: usize) -> Result<Value, Error> {
    match values.first().and_then(of) {
        Some(version) => Ok(Value::Int(version.numbers[at] as i64)),
        None => no_such_overload(),
    }
}

pub(super) fn compare(values: &[Value]) -> Result<Ordering, Error> {
    match values {
        [one, other] => match (of(one), of(other)) {
            (Some(one), Some(other)) => Ok(one.compare(other)),
            _ => Err(Error::no_such_overload()),
        },
        _ => Err(Error::no_such_overload()),
    }
}

impl Semver {
    fn parse(text: &str) -> Result<Self, String> {
        let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
        let (numbers, pre) = rest.split_once('-').map_or((rest, None), |(rest, pre)| (rest, Some(pre)));
        let parts: Vec<&str> = numbers.split('.').collect();
        let [major, minor, patch] = parts.as_slice() else {
            return Err("No Major.Minor.Patch elements found".to_owned());
        };
        let number = |part: &str| {
            if part.is_empty() || !part.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(format!("Invalid character(s) found in number {part:?}"));
            }
            if part.len() > 1 && part.starts_with('0') {
                return Err(format!("Version number must not contain leading zeroes {part:?}"));
            }
            part.parse::<u64>().map_err(|error| error.to_string())
        };
        let fits =
            |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        let pre: Vec<String> = pre.iter().flat_map(|pre| pre.split('.')).map(str::to_owned).collect();
        let mut parts = pre.iter().map(String::as_str).chain(build.iter().flat_map(|build| build.split('.')));
        if let Some(wrong) = parts.find(|part| !fits(part)) {
            return Err(format!("Invalid character(s) found in prerelease {wrong:?}"));
        }
        Ok(Self { numbers: [number(major)?, number(minor)?, number(patch)?], pre })
    }

    pub(crate) fn compare(&self, other: &Self) -> Ordering {
        let before = |one: &String, other: &String| match (one.parse::<u64>(), other.parse::<u64>()) {
            (Ok(one), Ok(other)) => one.cmp(&other),
            (Ok(_), Err(_)) => Ordering::Less,
            (Err(_), Ok(_)) => Ordering::Greater,
            _ => one.cmp(other),
        };
        self.numbers.cmp(&other.numbers).then_with(|| match (self.pre.is_empty(), other.pre.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => {
                let pairs = self.pre.iter().zip(&other.pre);
                let first = pairs.map(|(one, other)| before(one, other)).find(|order| order.is_ne());
                first.unwrap_or_else(|| self.pre.len().cmp(&other.pre.len()))
            }
        })
    }
}

/// Without a `v`, with all three numbers, without leading zeros.
fn normalized(text: &str) -> String {
    let text = text.strip_prefix('v').unwrap_or(text);
    let end = text.find(['-', '+']).unwrap_or(text.len());
    let (numbers, rest) = text.split_at(end);
    let mut parts: Vec<&str> = numbers.split('.').collect();
    parts.resize(parts.len().max(3), "0");
    let parts: Vec<&str> = parts
        .into_iter()
        .map(|part| match part.trim_start_matches('0') {
            "" if !part.is_empty() => "0",
            trimmed => trimmed,
        })
        .collect();
    format!("{}{rest}", parts.join("."))
}

//! Semantic versions.

use std::cmp::Ordering;

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::extension::{Extension, Semver};
use crate::value::Value;

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

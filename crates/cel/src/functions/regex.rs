//! Regular expressions: `matches`, `find`, `findAll`.

use regex_automata::meta::Regex;

use super::{Row, no_such_overload, text, texts};
use crate::budget::Budget;
use crate::error::Error;
use crate::regex;
use crate::value::Value;

pub(super) const TABLE: &[Row] = &[
    ("matches", "(string, string) bool; .(string, string) bool", |budget, values| dynamic(budget, "matches", values)),
    ("find", ".(string, string) string", |budget, values| dynamic(budget, "find", values)),
    ("findAll", ".(string, string) list(string); .(string, string, int) list(string)", |budget, values| {
        dynamic(budget, "findAll", values)
    }),
];

/// So much of a program that is made of a pattern is a step.
const BYTES_PER_STEP: usize = 64;

/// With a pattern that is known only now. Making it costs much more than using it: a few letters can become a megabyte.
fn dynamic(budget: &mut Budget, function: &str, values: &[Value]) -> Result<Value, Error> {
    let Some(Value::String(pattern)) = values.get(1) else { return no_such_overload() };
    budget.spend(100 + 10 * pattern.len() as u64)?;
    let made = regex::compile(pattern);
    let size = made.as_ref().map_or_else(regex::BadPattern::size, Regex::memory_usage);
    budget.spend((size / BYTES_PER_STEP) as u64)?;
    let regex = made.map_err(|bad| Error::new(bad.to_string()))?;
    with(&regex, budget, function, values)
}

pub(crate) fn with(regex: &Regex, budget: &mut Budget, function: &str, values: &[Value]) -> Result<Value, Error> {
    let (Some(Value::String(subject)), Some(Value::String(pattern))) = (values.first(), values.get(1)) else {
        return no_such_overload();
    };
    budget.cross(subject.len() + 1, pattern.len())?;
    match (function, values.get(2)) {
        ("matches", None) => Ok(Value::Bool(regex.is_match(&**subject))),
        ("find", None) => text(regex.find(&**subject).map_or("", |found| &subject[found.range()])),
        ("findAll", limit) => {
            let limit = match limit {
                None => usize::MAX,
                Some(Value::Int(limit)) => usize::try_from(*limit).unwrap_or(usize::MAX),
                _ => return no_such_overload(),
            };
            Ok(texts(regex.find_iter(&**subject).take(limit).map(|found| &subject[found.range()])))
        }
        _ => no_such_overload(),
    }
}

//! Operators, sizes, types, and the sets library.

use super::{Row, no_such_overload};
use crate::budget::Budget;
use crate::error::Error;
use crate::operators;
use crate::value::Value;

const ORDERED: &str = "(bool, bool) bool; (int, int) bool; (int, uint) bool; (int, double) bool; (uint, uint) bool; \
    (uint, int) bool; (uint, double) bool; (double, double) bool; (double, int) bool; (double, uint) bool; \
    (string, string) bool; (bytes, bytes) bool; (timestamp, timestamp) bool; (duration, duration) bool";

pub(super) const TABLE: &[Row] = &[
    ("_==_", "(A, A) bool", |budget, values| operators::equality(budget, values, true)),
    ("_!=_", "(A, A) bool", |budget, values| operators::equality(budget, values, false)),
    ("_<_", ORDERED, |budget, values| operators::relation(budget, values, |order| order.is_lt())),
    ("_<=_", ORDERED, |budget, values| operators::relation(budget, values, |order| order.is_le())),
    ("_>_", ORDERED, |budget, values| operators::relation(budget, values, |order| order.is_gt())),
    ("_>=_", ORDERED, |budget, values| operators::relation(budget, values, |order| order.is_ge())),
    (
        "_+_",
        "(int, int) int; (uint, uint) uint; (double, double) double; (string, string) string; (bytes, bytes) bytes; \
         (list(A), list(A)) list(A); (duration, duration) duration; (timestamp, duration) timestamp; \
         (duration, timestamp) timestamp",
        |budget, values| match values {
            [one, other] => operators::add(budget, one, other),
            _ => no_such_overload(),
        },
    ),
    (
        "_-_",
        "(int, int) int; (uint, uint) uint; (double, double) double; (duration, duration) duration; \
         (timestamp, duration) timestamp; (timestamp, timestamp) duration",
        |_, values| two(values, operators::subtract),
    ),
    ("_*_", "(int, int) int; (uint, uint) uint; (double, double) double", |_, values| two(values, operators::multiply)),
    ("_/_", "(int, int) int; (uint, uint) uint; (double, double) double", |_, values| two(values, operators::divide)),
    ("_%_", "(int, int) int; (uint, uint) uint", |_, values| two(values, operators::remainder)),
    ("-_", "(int) int; (double) double; (duration) duration", |_, values| match values {
        [value] => operators::negate(value),
        _ => no_such_overload(),
    }),
    ("!_", "(bool) bool", |_, values| match values {
        [Value::Bool(value)] => Ok(Value::Bool(!value)),
        _ => no_such_overload(),
    }),
    ("@in", "(A, list(A)) bool; (A, map(A, B)) bool", |budget, values| match values {
        [item, range] => operators::contains(budget, item, range),
        _ => no_such_overload(),
    }),
    (
        "_[_]",
        "(list(A), int) A; (map(A, B), A) B; (optional(list(A)), int) optional(A); \
         (optional(map(A, B)), A) optional(B)",
        |_, values| two(values, operators::index),
    ),
    (
        "_[?_]",
        "(list(A), int) optional(A); (map(A, B), A) optional(B); (optional(list(A)), int) optional(A); \
         (optional(map(A, B)), A) optional(B)",
        |_, values| two(values, operators::optional_index),
    ),
    (
        "size",
        "(string) int; (bytes) int; (list(A)) int; (map(A, B)) int; .(string) int; .(bytes) int; .(list(A)) int; \
         .(map(A, B)) int",
        |budget, values| {
            let size = match values {
                [Value::String(text)] => {
                    budget.walk(text.len())?;
                    text.chars().count()
                }
                [Value::Bytes(bytes)] => bytes.len(),
                [Value::List(items)] => items.len(),
                [Value::Map(map)] => map.len(),
                _ => return no_such_overload(),
            };
            Ok(Value::Int(size as i64))
        },
    ),
    ("type", "(A) type(A)", |_, values| match values {
        [value] => Ok(Value::Type(value.type_name().into())),
        _ => no_such_overload(),
    }),
    ("dyn", "(A) dyn", |_, values| values.first().cloned().ok_or_else(Error::no_such_overload)),
    ("sets.contains", "(list(A), list(A)) bool", |budget, values| {
        let (one, other) = lists(budget, values)?;
        Ok(Value::Bool(other.iter().all(|wanted| one.iter().any(|item| item.equals(wanted)))))
    }),
    ("sets.equivalent", "(list(A), list(A)) bool", |budget, values| {
        let (one, other) = lists(budget, values)?;
        let holds =
            |one: &[Value], other: &[Value]| other.iter().all(|wanted| one.iter().any(|item| item.equals(wanted)));
        Ok(Value::Bool(holds(one, other) && holds(other, one)))
    }),
    ("sets.intersects", "(list(A), list(A)) bool", |budget, values| {
        let (one, other) = lists(budget, values)?;
        Ok(Value::Bool(one.iter().any(|item| other.iter().any(|wanted| item.equals(wanted)))))
    }),
    ("jsonpatch.escapeKey", "(string) string", |budget, values| match values {
        [Value::String(key)] => {
            budget.walk(key.len())?;
            super::text(key.replace('~', "~0").replace('/', "~1"))
        }
        _ => no_such_overload(),
    }),
];

fn two(values: &[Value], run: fn(&Value, &Value) -> Result<Value, Error>) -> Result<Value, Error> {
    match values {
        [one, other] => run(one, other),
        _ => no_such_overload(),
    }
}

/// Both lists; every element of one may be held against every element of the other.
fn lists<'a>(budget: &mut Budget, values: &'a [Value]) -> Result<(&'a [Value], &'a [Value]), Error> {
    let [Value::List(one), Value::List(other)] = values else { return Err(Error::no_such_overload()) };
    let pairs = (one.len() as u64).saturating_mul(other.len() as u64);
    budget.spend(pairs)?;
    budget.walk(values[0].size(budget.most()).saturating_mul(other.len().max(1)))?;
    Ok((one, other))
}

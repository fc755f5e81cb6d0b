//! Arithmetic, comparison, indexing: what operators do with values.

use std::cmp::Ordering;
use std::sync::Arc;

use api::sort::CompactSort as _;
use jiff::{SignedDuration, Timestamp};

use crate::budget::Budget;
use crate::error::Error;
use crate::value::{Key, Value};

type Evaluated = Result<Value, Error>;

/// The first second of the year 1 and the last of 9999.
const TIMES: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;

fn overflow(of: &str) -> Error {
    Error::new(format!("{of} overflow"))
}

pub(crate) fn optional(value: Option<Value>) -> Value {
    match value {
        // What is optional already stays as it is.
        Some(value @ Value::Optional(_)) => value,
        Some(value) => Value::some(value),
        None => Value::NONE,
    }
}

pub(crate) fn add(budget: &mut Budget, one: &Value, other: &Value) -> Evaluated {
    match (one, other) {
        (Value::Int(a), Value::Int(b)) => a.checked_add(*b).map(Value::Int).ok_or_else(|| overflow("integer")),
        (Value::Uint(a), Value::Uint(b)) => {
            a.checked_add(*b).map(Value::Uint).ok_or_else(|| overflow("unsigned integer"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a + b)),
        (Value::String(a), Value::String(b)) => {
            budget.walk(a.len() + b.len())?;
            Ok(Value::String(format!("{a}{b}").into()))
        }
        (Value::Bytes(a), Value::Bytes(b)) => {
            budget.walk(a.len() + b.len())?;
            Ok(Value::Bytes([&**a, &**b].concat().into()))
        }
        (Value::List(a), Value::List(b)) => {
            // Upstream's list only refers to the two, and costs nothing. Ours is a list of its own.
            budget.spend((a.len() + b.len()) as u64)?;
            Ok(Value::list(a.iter().chain(b.iter()).cloned().collect()))
        }
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_add(*b).map(Value::Duration).ok_or_else(|| overflow("duration"))
        }
        (Value::Timestamp(at), Value::Duration(by)) | (Value::Duration(by), Value::Timestamp(at)) => shifted(*at, *by),
        _ => Err(Error::no_such_overload()),
    }
}

fn shifted(at: Timestamp, by: i64) -> Evaluated {
    let moved = at.checked_add(SignedDuration::from_nanos(by)).ok();
    let moved = moved.filter(|moved| TIMES.contains(&moved.as_second()));
    moved.map(Value::Timestamp).ok_or_else(|| overflow("timestamp"))
}

pub(crate) fn subtract(one: &Value, other: &Value) -> Evaluated {
    match (one, other) {
        (Value::Int(a), Value::Int(b)) => a.checked_sub(*b).map(Value::Int).ok_or_else(|| overflow("integer")),
        (Value::Uint(a), Value::Uint(b)) => {
            a.checked_sub(*b).map(Value::Uint).ok_or_else(|| overflow("unsigned integer"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a - b)),
        (Value::Duration(a), Value::Duration(b)) => {
            a.checked_sub(*b).map(Value::Duration).ok_or_else(|| overflow("duration"))
        }
        (Value::Timestamp(at), Value::Duration(by)) => {
            shifted(*at, by.checked_neg().ok_or_else(|| overflow("timestamp"))?)
        }
        (Value::Timestamp(a), Value::Timestamp(b)) => {
            let nanos = i64::try_from(a.as_nanosecond() - b.as_nanosecond());
            nanos.map(Value::Duration).map_err(|_| overflow("duration"))
        }
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn multiply(one: &Value, other: &Value) -> Evaluated {
    match (one, other) {
        (Value::Int(a), Value::Int(b)) => a.checked_mul(*b).map(Value::Int).ok_or_else(|| overflow("integer")),
        (Value::Uint(a), Value::Uint(b)) => {
            a.checked_mul(*b).map(Value::Uint).ok_or_else(|| overflow("unsigned integer"))
        }
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a * b)),
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn divide(one: &Value, other: &Value) -> Evaluated {
    match (one, other) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(Error::new("division by zero")),
        (Value::Int(a), Value::Int(b)) => a.checked_div(*b).map(Value::Int).ok_or_else(|| overflow("integer")),
        (Value::Uint(a), Value::Uint(b)) => Ok(Value::Uint(a / b)),
        (Value::Double(a), Value::Double(b)) => Ok(Value::Double(a / b)),
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn remainder(one: &Value, other: &Value) -> Evaluated {
    match (one, other) {
        (Value::Int(_), Value::Int(0)) | (Value::Uint(_), Value::Uint(0)) => Err(Error::new("modulus by zero")),
        (Value::Int(a), Value::Int(b)) => a.checked_rem(*b).map(Value::Int).ok_or_else(|| overflow("integer")),
        (Value::Uint(a), Value::Uint(b)) => Ok(Value::Uint(a % b)),
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn negate(value: &Value) -> Evaluated {
    match value {
        Value::Int(value) => value.checked_neg().map(Value::Int).ok_or_else(|| overflow("integer")),
        Value::Double(value) => Ok(Value::Double(-value)),
        Value::Duration(value) => value.checked_neg().map(Value::Duration).ok_or_else(|| overflow("duration")),
        _ => Err(Error::no_such_overload()),
    }
}

/// The order of two values that have one.
pub(crate) fn compare(one: &Value, other: &Value) -> Result<Ordering, Error> {
    match (one, other) {
        (Value::Bool(a), Value::Bool(b)) => Ok(a.cmp(b)),
        (Value::String(a), Value::String(b)) => Ok(a.cmp(b)),
        (Value::Bytes(a), Value::Bytes(b)) => Ok(a.cmp(b)),
        (Value::Timestamp(a), Value::Timestamp(b)) => Ok(a.cmp(b)),
        (Value::Duration(a), Value::Duration(b)) => Ok(a.cmp(b)),
        (a, b) if a.is_number() && b.is_number() => {
            a.compare_numbers(b).ok_or_else(|| Error::new("NaN values cannot be ordered"))
        }
        _ => Err(Error::no_such_overload()),
    }
}

pub(crate) fn relation(budget: &mut Budget, values: &[Value], holds: fn(Ordering) -> bool) -> Evaluated {
    let [one, other] = values else { return Err(Error::no_such_overload()) };
    budget.walk(one.smaller_size(other, budget.most()))?;
    compare(one, other).map(|order| Value::Bool(holds(order)))
}

pub(crate) fn equality(budget: &mut Budget, values: &[Value], wanted: bool) -> Evaluated {
    let [one, other] = values else { return Err(Error::no_such_overload()) };
    budget.walk(one.smaller_size(other, budget.most()))?;
    Ok(Value::Bool(one.equals(other) == wanted))
}

pub(crate) fn contains(budget: &mut Budget, item: &Value, range: &Value) -> Evaluated {
    match range {
        Value::List(items) => {
            budget.spend(items.len() as u64)?;
            let mut found = false;
            for candidate in items.iter() {
                budget.walk(candidate.smaller_size(item, budget.most()).saturating_sub(1))?;
                found = found || candidate.equals(item);
            }
            Ok(Value::Bool(found))
        }
        Value::Map(map) | Value::Struct(_, map) => {
            Ok(Value::Bool(item.key().is_some_and(|key| map.contains_key(&key))))
        }
        _ => Err(Error::no_such_overload()),
    }
}

/// `a[b]`.
pub(crate) fn index(operand: &Value, at: &Value) -> Evaluated {
    match operand {
        Value::Optional(None) => Ok(Value::NONE),
        Value::Optional(Some(inner)) => lookup(inner, at).map(optional),
        other => match lookup(other, at)? {
            Some(found) => Ok(found),
            None => Err(missing(other, at)),
        },
    }
}

/// `a[?b]`.
pub(crate) fn optional_index(operand: &Value, at: &Value) -> Evaluated {
    match operand {
        Value::Optional(None) => Ok(Value::NONE),
        Value::Optional(Some(inner)) => lookup(inner, at).map(optional),
        other => lookup(other, at).map(optional),
    }
}

fn lookup(operand: &Value, at: &Value) -> Result<Option<Value>, Error> {
    match operand {
        Value::List(items) => match at.key() {
            Some(Key::Int(at)) => Ok(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned()),
            Some(Key::Uint(at)) => Ok(usize::try_from(at).ok().and_then(|at| items.get(at)).cloned()),
            _ => Err(Error::new(format!("unsupported index type '{}' in list", at.type_name()))),
        },
        Value::Map(map) | Value::Struct(_, map) => Ok(at.key().and_then(|key| map.get(&key)).cloned()),
        _ => Err(Error::no_such_overload()),
    }
}

fn missing(operand: &Value, at: &Value) -> Error {
    let shown = at.text().unwrap_or_else(|_| Arc::from(at.type_name()));
    Error::new(match operand {
        Value::List(_) => format!("index out of bounds: {shown}"),
        _ => format!("no such key: {shown}"),
    })
}

/// The items in the order of their keys, which must all be of one type.
pub(crate) fn sorted_by(items: Vec<Value>, keys: Vec<Value>) -> Evaluated {
    if let Some(first) = keys.first() {
        for key in &keys {
            if key.type_name() != first.type_name() {
                return Err(Error::new("list elements must have the same type"));
            }
            compare(first, key).map_err(|_| Error::new("list elements must be comparable"))?;
        }
    }
    let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
    pairs.compact_sort_by(|(one, _), (other, _)| compare(one, other).unwrap_or(Ordering::Equal));
    Ok(Value::list(pairs.into_iter().map(|(_, item)| item).collect()))
}

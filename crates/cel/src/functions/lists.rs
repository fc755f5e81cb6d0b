//! Functions of lists.

use std::cmp::Ordering;

use super::{Row, no_such_overload};
use crate::budget::Budget;
use crate::error::Error;
use crate::operators;
use crate::value::Value;

const COMPARABLE: &str = ".(list(int)) int; .(list(uint)) uint; .(list(double)) double; .(list(bool)) bool; \
    .(list(duration)) duration; .(list(timestamp)) timestamp; .(list(string)) string; .(list(bytes)) bytes";

pub(super) const TABLE: &[Row] = &[
    (
        "isSorted",
        ".(list(int)) bool; .(list(uint)) bool; .(list(double)) bool; .(list(bool)) bool; .(list(duration)) bool; \
         .(list(timestamp)) bool; .(list(string)) bool; .(list(bytes)) bool",
        |budget, values| {
            let items = list(budget, values)?;
            for pair in items.windows(2) {
                if operators::compare(&pair[0], &pair[1])?.is_gt() {
                    return Ok(Value::Bool(false));
                }
            }
            Ok(Value::Bool(true))
        },
    ),
    (
        "sum",
        ".(list(int)) int; .(list(uint)) uint; .(list(double)) double; .(list(duration)) duration",
        |budget, values| {
            let items = list(budget, values)?;
            let Some((first, rest)) = items.split_first() else { return Ok(Value::Int(0)) };
            rest.iter().try_fold(first.clone(), |sum, item| operators::add(budget, &sum, item))
        },
    ),
    ("min", COMPARABLE, |budget, values| extreme(budget, values, "min", Ordering::Less)),
    ("max", COMPARABLE, |budget, values| extreme(budget, values, "max", Ordering::Greater)),
    ("slice", ".(list(A), int, int) list(A)", |budget, values| {
        let [Value::List(items), Value::Int(start), Value::Int(end)] = values else { return no_such_overload() };
        let refused = |why: String| Err(Error::new(format!("cannot slice({start}, {end}), {why}")));
        if *start < 0 || *end < 0 {
            return refused("negative indexes not supported".to_owned());
        }
        if start > end {
            return refused("start index must be less than or equal to end index".to_owned());
        }
        if *end > items.len() as i64 {
            return refused(format!("list is length {}", items.len()));
        }
        let part = &items[*start as usize..*end as usize];
        budget.spend(part.len() as u64)?;
        Ok(Value::list(part.to_vec()))
    }),
    ("flatten", ".(list(list(A))) list(A); .(list(dyn), int) list(dyn)", |budget, values| {
        let (items, depth) = match values {
            [Value::List(items)] => (items, 1),
            [Value::List(items), Value::Int(depth)] if *depth >= 0 => (items, *depth),
            [Value::List(_), Value::Int(_)] => return Err(Error::new("level must be non-negative")),
            _ => return no_such_overload(),
        };
        let mut out = Vec::new();
        flatten(budget, items, depth, &mut out)?;
        Ok(Value::list(out))
    }),
    ("sort", ".(list(A)) list(A)", |budget, values| {
        let items = list(budget, values)?;
        budget.spend((items.len() * 2) as u64)?;
        operators::sorted_by(items.to_vec(), items.to_vec())
    }),
    ("distinct", ".(list(A)) list(A)", |budget, values| {
        let items = list(budget, values)?;
        let mut found: Vec<Value> = Vec::new();
        for item in items {
            budget.spend(found.len() as u64)?;
            // It may be like each of them up to its last part. Of texts many letters are compared at once.
            let size = item.size(budget.most());
            let parts = match item {
                Value::String(_) | Value::Bytes(_) => size / 16,
                _ => size.saturating_sub(1),
            };
            budget.walk(parts.saturating_mul(found.len()))?;
            if !found.iter().any(|known| known.equals(item)) {
                found.push(item.clone());
            }
        }
        Ok(Value::list(found))
    }),
    ("first", ".(list(A)) optional(A)", |_, values| match values {
        [Value::List(items)] => Ok(items.first().cloned().map_or(Value::NONE, Value::some)),
        _ => no_such_overload(),
    }),
    ("last", ".(list(A)) optional(A)", |_, values| match values {
        [Value::List(items)] => Ok(items.last().cloned().map_or(Value::NONE, Value::some)),
        _ => no_such_overload(),
    }),
    ("lists.range", "(int) list(int)", |budget, values| match values {
        [Value::Int(count)] => {
            budget.spend(u64::try_from(*count).unwrap_or(0))?;
            Ok(Value::list((0..*count).map(Value::Int).collect()))
        }
        _ => no_such_overload(),
    }),
];

fn list<'a>(budget: &mut Budget, values: &'a [Value]) -> Result<&'a [Value], Error> {
    let [Value::List(items)] = values else { return Err(Error::no_such_overload()) };
    budget.spend(items.len() as u64)?;
    budget.walk(values[0].size(budget.most()))?;
    Ok(items)
}

fn extreme(budget: &mut Budget, values: &[Value], name: &str, wanted: Ordering) -> Result<Value, Error> {
    let items = list(budget, values)?;
    let Some((first, rest)) = items.split_first() else {
        return Err(Error::new(format!("{name} called on empty list")));
    };
    let mut best = first;
    for item in rest {
        if operators::compare(item, best)? == wanted {
            best = item;
        }
    }
    Ok(best.clone())
}

fn flatten(budget: &mut Budget, items: &[Value], depth: i64, out: &mut Vec<Value>) -> Result<(), Error> {
    budget.spend(items.len() as u64)?;
    for item in items {
        match item {
            Value::List(inner) if depth > 0 => flatten(budget, inner, depth - 1, out)?,
            other => out.push(other.clone()),
        }
    }
    Ok(())
}

//! Optional values.

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::value::Value;

pub(super) const TABLE: &[Row] = &[
    ("optional.of", "(A) optional(A)", |_, values| match values {
        [value] => Ok(Value::some(value.clone())),
        _ => no_such_overload(),
    }),
    ("optional.ofNonZeroValue", "(A) optional(A)", |_, values| match values {
        [value] if value.is_zero() => Ok(Value::NONE),
        [value] => Ok(Value::some(value.clone())),
        _ => no_such_overload(),
    }),
    ("optional.none", "() optional(A)", |_, _| Ok(Value::NONE)),
    ("hasValue", ".(optional(A)) bool", |_, values| match values {
        [Value::Optional(inner)] => Ok(Value::Bool(inner.is_some())),
        _ => no_such_overload(),
    }),
    ("value", ".(optional(A)) A", |_, values| match values {
        [Value::Optional(Some(inner))] => Ok((**inner).clone()),
        [Value::Optional(None)] => Err(Error::new("optional.none() dereference")),
        _ => no_such_overload(),
    }),
    ("or", ".(optional(A), optional(A)) optional(A)", |_, values| match values {
        [Value::Optional(None), other @ Value::Optional(_)] => Ok(other.clone()),
        [one @ Value::Optional(Some(_)), _] => Ok(one.clone()),
        _ => no_such_overload(),
    }),
    ("orValue", ".(optional(A), A) A", |_, values| match values {
        [Value::Optional(None), other] => Ok(other.clone()),
        [Value::Optional(Some(inner)), _] => Ok((**inner).clone()),
        _ => no_such_overload(),
    }),
    ("optional.unwrap", "(list(optional(A))) list(A)", |budget, values| unwrap(budget, values)),
    ("unwrapOpt", ".(list(optional(A))) list(A)", |budget, values| unwrap(budget, values)),
];

fn unwrap(budget: &mut crate::Budget, values: &[Value]) -> Result<Value, Error> {
    let [Value::List(items)] = values else { return no_such_overload() };
    budget.walk(items.len())?;
    let mut found = Vec::new();
    for item in items.iter() {
        match item {
            Value::Optional(inner) => found.extend(inner.iter().map(|inner| (**inner).clone())),
            _ => return no_such_overload(),
        }
    }
    Ok(Value::list(found))
}

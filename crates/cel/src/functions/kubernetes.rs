//! Quantities: `quantity('1Gi')` and what can be done with them.

use std::cmp::Ordering;

use api::quantity::{Format, Quantity};

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::extension::Extension;
use crate::value::Value;

const COMPARES: &str = ".(kubernetes.Quantity, kubernetes.Quantity) bool; .(kubernetes.Semver, kubernetes.Semver) bool";

pub(super) const TABLE: &[Row] = &[
    ("quantity", "(string) kubernetes.Quantity", |_, values| match values {
        [Value::String(text)] => match Quantity::parse(text) {
            Ok(quantity) => Ok(Value::extension(Extension::Quantity(quantity))),
            Err(error) => Err(Error::new(error.to_string())),
        },
        _ => no_such_overload(),
    }),
    ("isQuantity", "(string) bool", |_, values| match values {
        [Value::String(text)] => Ok(Value::Bool(Quantity::parse(text).is_ok())),
        _ => no_such_overload(),
    }),
    ("sign", ".(kubernetes.Quantity) int", |_, values| {
        let quantity = one(values)?;
        Ok(Value::Int(match (quantity.is_zero(), quantity.is_negative()) {
            (true, _) => 0,
            (_, true) => -1,
            _ => 1,
        }))
    }),
    ("isGreaterThan", COMPARES, |_, values| Ok(Value::Bool(compare(values)?.is_gt()))),
    ("isLessThan", COMPARES, |_, values| Ok(Value::Bool(compare(values)?.is_lt()))),
    (
        "compareTo",
        ".(kubernetes.Quantity, kubernetes.Quantity) int; .(kubernetes.Semver, kubernetes.Semver) int",
        |_, values| Ok(Value::Int(compare(values)? as i64)),
    ),
    ("asApproximateFloat", ".(kubernetes.Quantity) double", |_, values| Ok(Value::Double(one(values)?.as_f64()))),
    ("asInteger", ".(kubernetes.Quantity) int", |_, values| {
        let quantity = one(values)?;
        match quantity.is_integer() {
            true => Ok(Value::Int(quantity.value())),
            false => Err(Error::new("cannot convert value to integer")),
        }
    }),
    ("isInteger", ".(kubernetes.Quantity) bool", |_, values| Ok(Value::Bool(one(values)?.is_integer()))),
    ("add", ARITHMETIC, |_, values| arithmetic(values, Quantity::add)),
    ("sub", ARITHMETIC, |_, values| arithmetic(values, Quantity::sub)),
];

const ARITHMETIC: &str = ".(kubernetes.Quantity, kubernetes.Quantity) kubernetes.Quantity; \
    .(kubernetes.Quantity, int) kubernetes.Quantity";

fn quantity(value: &Value) -> Option<&Quantity> {
    match value {
        Value::Extension(extension) => match &**extension {
            Extension::Quantity(quantity) => Some(quantity),
            _ => None,
        },
        _ => None,
    }
}

fn one(values: &[Value]) -> Result<&Quantity, Error> {
    values.first().and_then(quantity).ok_or_else(Error::no_such_overload)
}

fn compare(values: &[Value]) -> Result<Ordering, Error> {
    if let [one, other] = values
        && let (Some(one), Some(other)) = (quantity(one), quantity(other))
    {
        return Ok(one.cmp(other));
    }
    super::semver::compare(values)
}

fn arithmetic(values: &[Value], run: fn(&mut Quantity, &Quantity)) -> Result<Value, Error> {
    let [one, other] = values else { return no_such_overload() };
    let mut result = quantity(one).cloned().ok_or_else(Error::no_such_overload)?;
    match other {
        Value::Int(other) => run(&mut result, &Quantity::new(*other, Format::DecimalSI)),
        other => run(&mut result, quantity(other).ok_or_else(Error::no_such_overload)?),
    }
    Ok(Value::extension(Extension::Quantity(result)))
}

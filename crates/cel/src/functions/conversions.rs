//! Conversions between types: `int('3')`, `string(3)`.

use super::{Row, no_such_overload};
use crate::budget::Budget;
use crate::error::Error;
use crate::time;
use crate::value::Value;

pub(super) const TABLE: &[Row] = &[
    ("bool", "(bool) bool; (string) bool", |_, values| match values {
        [Value::Bool(value)] => Ok(Value::Bool(*value)),
        [Value::String(text)] => match &**text {
            "true" | "True" | "TRUE" | "t" | "T" | "1" => Ok(Value::Bool(true)),
            "false" | "False" | "FALSE" | "f" | "F" | "0" => Ok(Value::Bool(false)),
            _ => Err(Error::new(format!("type conversion error from 'string' to 'bool': {text}"))),
        },
        _ => no_such_overload(),
    }),
    ("int", "(int) int; (uint) int; (double) int; (string) int; (timestamp) int", |budget, values| {
        let overflow = || Error::new("integer overflow");
        Ok(Value::Int(match values {
            [Value::Int(value)] => *value,
            [Value::Uint(value)] => i64::try_from(*value).map_err(|_| overflow())?,
            [Value::Double(value)] if value.abs() < 9_223_372_036_854_775_807.0 => *value as i64,
            [Value::Double(_)] => return Err(overflow()),
            [Value::String(text)] => {
                budget.walk(text.len())?;
                text.parse()
                    .map_err(|_| Error::new(format!("strconv.ParseInt: parsing {:?}: invalid syntax", &**text)))?
            }
            [Value::Timestamp(at)] => at.as_second(),
            _ => return no_such_overload(),
        }))
    }),
    ("uint", "(uint) uint; (int) uint; (double) uint; (string) uint", |budget, values| {
        let overflow = || Error::new("unsigned integer overflow");
        Ok(Value::Uint(match values {
            [Value::Uint(value)] => *value,
            [Value::Int(value)] => u64::try_from(*value).map_err(|_| overflow())?,
            [Value::Double(value)] if (0.0..18_446_744_073_709_551_615.0).contains(value) => *value as u64,
            [Value::Double(_)] => return Err(overflow()),
            [Value::String(text)] => {
                budget.walk(text.len())?;
                text.parse()
                    .map_err(|_| Error::new(format!("strconv.ParseUint: parsing {:?}: invalid syntax", &**text)))?
            }
            _ => return no_such_overload(),
        }))
    }),
    ("double", "(double) double; (int) double; (uint) double; (string) double", |budget, values| {
        Ok(Value::Double(match values {
            [Value::Double(value)] => *value,
            [Value::Int(value)] => *value as f64,
            [Value::Uint(value)] => *value as f64,
            [Value::String(text)] => {
                budget.walk(text.len())?;
                text.parse()
                    .map_err(|_| Error::new(format!("strconv.ParseFloat: parsing {:?}: invalid syntax", &**text)))?
            }
            _ => return no_such_overload(),
        }))
    }),
    (
        "string",
        "(string) string; (bool) string; (int) string; (uint) string; (double) string; (bytes) string; \
         (timestamp) string; (duration) string; (net.IP) string; (net.CIDR) string",
        |budget, values| {
            let [value] = values else { return no_such_overload() };
            budget.walk(value.size(budget.most()))?;
            if matches!(value, Value::Type(_)) {
                return no_such_overload();
            }
            value.text().map(Value::String)
        },
    ),
    ("bytes", "(bytes) bytes; (string) bytes", |budget, values| match values {
        [Value::Bytes(bytes)] => Ok(Value::Bytes(bytes.clone())),
        [Value::String(text)] => {
            budget.walk(text.len())?;
            Ok(Value::Bytes(text.as_bytes().into()))
        }
        _ => no_such_overload(),
    }),
    ("timestamp", "(timestamp) timestamp; (string) timestamp; (int) timestamp", |_, values| match values {
        [Value::Timestamp(at)] => Ok(Value::Timestamp(*at)),
        [Value::Int(seconds)] => match jiff::Timestamp::from_second(*seconds) {
            Ok(at) => Ok(Value::Timestamp(at)),
            Err(_) => Err(Error::new("timestamp overflow")),
        },
        [Value::String(text)] => match time::timestamp(text) {
            Some(at) => Ok(Value::Timestamp(at)),
            None => Err(Error::new(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \"2006\""
            ))),
        },
        _ => no_such_overload(),
    }),
    ("duration", "(duration) duration; (string) duration; (int) duration", duration),
];

fn duration(_: &mut Budget, values: &[Value]) -> Result<Value, Error> {
    match values {
        [Value::Duration(nanos)] => Ok(Value::Duration(*nanos)),
        [Value::Int(nanos)] => Ok(Value::Duration(*nanos)),
        [Value::String(text)] => match time::duration(text) {
            Some(nanos) => Ok(Value::Duration(nanos)),
            None => Err(Error::new(format!("time: invalid duration {text:?}"))),
        },
        _ => no_such_overload(),
    }
}

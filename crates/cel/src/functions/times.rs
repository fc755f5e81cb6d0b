//! Parts of times and durations.

use jiff::Zoned;

use super::{Row, no_such_overload};
use crate::error::Error;
use crate::time;
use crate::value::Value;

const PART: &str = ".(timestamp) int; .(timestamp, string) int";
const BOTH: &str = ".(timestamp) int; .(timestamp, string) int; .(duration) int";
const SECOND: i64 = 1_000_000_000;

pub(super) const TABLE: &[Row] = &[
    ("getFullYear", PART, |_, values| part(values, |at| i64::from(at.year()), None)),
    ("getMonth", PART, |_, values| part(values, |at| i64::from(at.month()) - 1, None)),
    ("getDayOfYear", PART, |_, values| part(values, |at| i64::from(at.day_of_year()) - 1, None)),
    ("getDayOfMonth", PART, |_, values| part(values, |at| i64::from(at.day()) - 1, None)),
    ("getDate", PART, |_, values| part(values, |at| i64::from(at.day()), None)),
    ("getDayOfWeek", PART, |_, values| part(values, |at| i64::from(at.weekday().to_sunday_zero_offset()), None)),
    ("getHours", BOTH, |_, values| part(values, |at| i64::from(at.hour()), Some(3600 * SECOND))),
    ("getMinutes", BOTH, |_, values| part(values, |at| i64::from(at.minute()), Some(60 * SECOND))),
    ("getSeconds", BOTH, |_, values| part(values, |at| i64::from(at.second()), Some(SECOND))),
    ("getMilliseconds", BOTH, |_, values| part(values, |at| i64::from(at.millisecond()), Some(SECOND / 1000))),
];

/// A part of a time in a zone, or a whole duration in a unit.
fn part(values: &[Value], of: fn(&Zoned) -> i64, unit: Option<i64>) -> Result<Value, Error> {
    match (values, unit) {
        ([Value::Timestamp(at)], _) => Ok(Value::Int(of(&at.to_zoned(jiff::tz::TimeZone::UTC)))),
        ([Value::Timestamp(at), Value::String(zone)], _) => Ok(Value::Int(of(&at.to_zoned(time::zone(zone)?)))),
        ([Value::Duration(nanos)], Some(unit)) => Ok(Value::Int(nanos / unit)),
        _ => no_such_overload(),
    }
}

//! Values of expressions: dynamic, cheap to clone, compared as CEL compares.

use std::any::Any;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

use crate::budget::Budget;
use crate::error::Error;
use crate::extension::Extension;
use crate::time;

#[derive(Clone, Debug)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(Arc<str>),
    Bytes(Arc<[u8]>),
    List(Arc<Vec<Value>>),
    Map(Arc<Map>),
    /// A map made as a named type: `Object.spec{...}`.
    Struct(Arc<str>, Arc<Map>),
    Timestamp(Timestamp),
    /// In nanoseconds.
    Duration(i64),
    /// The name of a type.
    Type(Arc<str>),
    Optional(Option<Arc<Value>>),
    Extension(Arc<Extension>),
    Opaque(Arc<dyn Opaque>),
}

pub type Map = BTreeMap<Key, Value>;

/// As many letters, bytes and values as a request may have bytes.
const MAX_WRITTEN: usize = 3 << 20;

/// What may be a key of a map. An int and a uint of the same number are the same key.
#[derive(Clone, Debug)]
pub enum Key {
    Bool(bool),
    Int(i64),
    Uint(u64),
    String(Arc<str>),
}

/// An object whose insides are not values: an authorizer, variables that are computed on use.
pub trait Opaque: Send + Sync + fmt::Debug + 'static {
    /// The name of its type.
    fn type_name(&self) -> &'static str;

    /// A field of it.
    fn field(&self, _name: &str, _budget: &mut Budget) -> Option<Result<Value, Error>> {
        None
    }

    /// A method of it.
    fn call(&self, _function: &str, _arguments: &[Value]) -> Option<Result<Value, Error>> {
        None
    }

    fn as_any(&self) -> &dyn Any;
}

impl Key {
    fn rank(&self) -> u8 {
        match self {
            Key::Bool(_) => 0,
            Key::Int(_) | Key::Uint(_) => 1,
            Key::String(_) => 2,
        }
    }

    /// How much there is to read in it.
    fn size(&self) -> usize {
        match self {
            Key::String(text) => text.len().max(1),
            _ => 1,
        }
    }

    fn number(&self) -> i128 {
        match self {
            Key::Bool(value) => i128::from(*value),
            Key::Int(value) => i128::from(*value),
            Key::Uint(value) => i128::from(*value),
            Key::String(_) => 0,
        }
    }

    pub(crate) fn value(&self) -> Value {
        match self {
            Key::Bool(value) => Value::Bool(*value),
            Key::Int(value) => Value::Int(*value),
            Key::Uint(value) => Value::Uint(*value),
            Key::String(value) => Value::String(value.clone()),
        }
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Key::String(one), Key::String(other)) => one.cmp(other),
            _ => self.rank().cmp(&other.rank()).then_with(|| self.number().cmp(&other.number())),
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Key {}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Key::String(text.into())
    }
}

impl Value {
    pub fn list(items: Vec<Value>) -> Self {
        Value::List(Arc::new(items))
    }

    pub fn map(map: Map) -> Self {
        Value::Map(Arc::new(map))
    }

    pub fn some(value: Value) -> Self {
        Value::Optional(Some(Arc::new(value)))
    }

    pub const NONE: Value = Value::Optional(None);

    pub(crate) fn extension(extension: Extension) -> Self {
        Value::Extension(Arc::new(extension))
    }

    /// The value as a key of a map.
    pub(crate) fn key(&self) -> Option<Key> {
        match self {
            Value::Bool(value) => Some(Key::Bool(*value)),
            Value::Int(value) => Some(Key::Int(*value)),
            Value::Uint(value) => Some(Key::Uint(*value)),
            Value::String(value) => Some(Key::String(value.clone())),
            // A whole number finds what is kept under it.
            Value::Double(value) if value.fract() == 0.0 && value.abs() < 9.2e18 => Some(Key::Int(*value as i64)),
            _ => None,
        }
    }

    pub fn type_name(&self) -> &str {
        match self {
            Value::Null => "null_type",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Uint(_) => "uint",
            Value::Double(_) => "double",
            Value::String(_) => "string",
            Value::Bytes(_) => "bytes",
            Value::List(_) => "list",
            Value::Map(_) => "map",
            Value::Struct(name, _) => name,
            Value::Timestamp(_) => "google.protobuf.Timestamp",
            Value::Duration(_) => "google.protobuf.Duration",
            Value::Type(_) => "type",
            Value::Optional(_) => "optional_type",
            Value::Extension(extension) => extension.type_name(),
            Value::Opaque(object) => object.type_name(),
        }
    }

    /// Whether this is what a field has that nobody set.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Value::Null | Value::Optional(None) => true,
            Value::Bool(value) => !value,
            Value::Int(value) => *value == 0,
            Value::Uint(value) => *value == 0,
            Value::Double(value) => *value == 0.0,
            Value::String(value) => value.is_empty(),
            Value::Bytes(value) => value.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Map(map) | Value::Struct(_, map) => map.is_empty(),
            Value::Duration(value) => *value == 0,
            Value::Timestamp(value) => *value == Timestamp::UNIX_EPOCH,
            Value::Type(_) | Value::Optional(_) | Value::Extension(_) | Value::Opaque(_) => false,
        }
    }

    /// How much there is to read in this value; what searching costs. More than `most` is not counted to its end: what is shared counts
    /// wherever it is, and a short expression can have more such places than anybody could count.
    pub(crate) fn size(&self, most: usize) -> usize {
        match self {
            Value::String(text) => text.len(),
            Value::Bytes(bytes) => bytes.len(),
            Value::List(items) => size_of_all(items.iter().map(|item| (0, item)), most),
            Value::Map(map) | Value::Struct(_, map) => {
                size_of_all(map.iter().map(|(key, value)| (key.size(), value)), most)
            }
            Value::Optional(Some(value)) => value.size(most),
            _ => 1,
        }
    }

    /// The size of the smaller one of two values; what equality costs. Counting takes as long as that is large, however large the
    /// other one is.
    pub(crate) fn smaller_size(&self, other: &Value, most: usize) -> usize {
        let mut bound = most.min(64);
        loop {
            let size = self.size(bound).min(other.size(bound));
            if size <= bound || bound == most {
                return size;
            }
            bound = bound.saturating_mul(8).min(most);
        }
    }

    /// Plain JSON as a value: whole numbers are ints.
    pub fn from_json(json: &serde_json::Value) -> Self {
        match json {
            serde_json::Value::Null => Value::Null,
            serde_json::Value::Bool(value) => Value::Bool(*value),
            serde_json::Value::Number(number) => match number.as_i64() {
                Some(number) => Value::Int(number),
                None => Value::Double(number.as_f64().unwrap_or(f64::NAN)),
            },
            serde_json::Value::String(text) => Value::String(text.as_str().into()),
            serde_json::Value::Array(items) => Value::list(items.iter().map(Value::from_json).collect()),
            serde_json::Value::Object(object) => {
                Value::map(object.iter().map(|(key, value)| (key.as_str().into(), Value::from_json(value))).collect())
            }
        }
    }

    /// Refuses what would be larger than any object, written out: what is shared is written wherever it is.
    pub fn check_size(&self) -> Result<(), Error> {
        if self.size(MAX_WRITTEN) > MAX_WRITTEN { Err(Error::cost()) } else { Ok(()) }
    }

    /// The value as JSON, if it has a form there. What nobody has looked at may be shared, and larger than memory: [`Self::check_size`].
    pub fn to_json(&self) -> Result<serde_json::Value, Error> {
        use base64::Engine;
        Ok(match self {
            Value::Null => serde_json::Value::Null,
            Value::Bool(value) => (*value).into(),
            Value::Int(value) => (*value).into(),
            Value::Uint(value) => (*value).into(),
            Value::Double(value) => match whole(*value) {
                Some(whole) => whole.into(),
                None => (*value).into(),
            },
            Value::String(text) => text.to_string().into(),
            Value::Bytes(bytes) => base64::engine::general_purpose::STANDARD.encode(bytes).into(),
            Value::List(items) => serde_json::Value::Array(items.iter().map(Value::to_json).collect::<Result<_, _>>()?),
            Value::Map(map) | Value::Struct(_, map) => {
                let mut object = serde_json::Map::new();
                for (key, value) in map.iter() {
                    object.insert(key.value().text()?.to_string(), value.to_json()?);
                }
                serde_json::Value::Object(object)
            }
            Value::Timestamp(_) | Value::Duration(_) => self.text()?.to_string().into(),
            Value::Optional(Some(value)) => value.to_json()?,
            other => return Err(Error::new(format!("type '{}' has no JSON form", other.type_name()))),
        })
    }

    /// What `string()` makes of the value.
    pub(crate) fn text(&self) -> Result<Arc<str>, Error> {
        Ok(match self {
            Value::Bool(value) => value.to_string().into(),
            Value::Int(value) => value.to_string().into(),
            Value::Uint(value) => value.to_string().into(),
            Value::Double(value) => double_text(*value).into(),
            Value::String(text) => text.clone(),
            Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.into(),
                Err(_) => return Err(Error::new("invalid UTF-8 in bytes, cannot convert to string")),
            },
            Value::Timestamp(at) => time::timestamp_text(*at).into(),
            Value::Duration(nanos) => time::duration_text(*nanos).into(),
            Value::Type(name) => name.clone(),
            Value::Extension(extension) => extension.text().ok_or_else(Error::no_such_overload)?,
            _ => return Err(Error::no_such_overload()),
        })
    }

    /// Equality as CEL has it: numbers of different types are compared by value, anything else of different types differs.
    pub fn equals(&self, other: &Value) -> bool {
        match (self, other) {
            (Value::Null, Value::Null) => true,
            (Value::Bool(one), Value::Bool(other)) => one == other,
            (Value::String(one), Value::String(other)) => one == other,
            (Value::Bytes(one), Value::Bytes(other)) => one == other,
            (Value::List(one), Value::List(other)) => {
                one.len() == other.len() && one.iter().zip(other.iter()).all(|(one, other)| one.equals(other))
            }
            (Value::Map(one) | Value::Struct(_, one), Value::Map(other) | Value::Struct(_, other)) => {
                one.len() == other.len()
                    && one.iter().all(|(key, value)| other.get(key).is_some_and(|other| value.equals(other)))
            }
            (Value::Timestamp(one), Value::Timestamp(other)) => one == other,
            (Value::Duration(one), Value::Duration(other)) => one == other,
            (Value::Type(one), Value::Type(other)) => one == other,
            (Value::Optional(one), Value::Optional(other)) => match (one, other) {
                (None, None) => true,
                (Some(one), Some(other)) => one.equals(other),
                _ => false,
            },
            (Value::Extension(one), Value::Extension(other)) => one.equals(other),
            (Value::Opaque(one), Value::Opaque(other)) => Arc::ptr_eq(one, other),
            _ => self.is_number() && other.is_number() && self.compare_numbers(other) == Some(Ordering::Equal),
        }
    }

    pub(crate) fn is_number(&self) -> bool {
        matches!(self, Value::Int(_) | Value::Uint(_) | Value::Double(_))
    }

    /// None for what is no number, or cannot be ordered.
    pub(crate) fn compare_numbers(&self, other: &Value) -> Option<Ordering> {
        let whole = |value: &Value| match value {
            Value::Int(value) => Some(i128::from(*value)),
            Value::Uint(value) => Some(i128::from(*value)),
            _ => None,
        };
        match (self, other) {
            (Value::Double(one), Value::Double(other)) => one.partial_cmp(other),
            (Value::Double(one), other) => compare_mixed(*one, whole(other)?),
            (one, Value::Double(other)) => compare_mixed(*other, whole(one)?).map(Ordering::reverse),
            (one, other) => Some(whole(one)?.cmp(&whole(other)?)),
        }
    }
}

/// A text with a format of OpenAPI's as the value that it stands for.
pub fn typed_text(format: &str, text: &str) -> Option<Value> {
    use base64::Engine;
    match format {
        "byte" => Some(Value::Bytes(base64::engine::general_purpose::STANDARD.decode(text).ok()?.into())),
        "date" => time::timestamp(&format!("{text}T00:00:00Z")).map(Value::Timestamp),
        "date-time" | "datetime" => time::timestamp(text).map(Value::Timestamp),
        "duration" => time::duration(text).map(Value::Duration),
        _ => None,
    }
}

/// Parts, and what each counts besides itself.
fn size_of_all<'a>(parts: impl Iterator<Item = (usize, &'a Value)>, most: usize) -> usize {
    let mut sum: usize = 1;
    for (key, part) in parts {
        sum = sum.saturating_add(key);
        if sum > most {
            break;
        }
        sum = sum.saturating_add(part.size(most - sum));
    }
    sum
}

fn compare_mixed(double: f64, whole: i128) -> Option<Ordering> {
    if double.is_nan() {
        return None;
    }
    // Beyond 2^64 no whole number reaches; within, truncating is exact.
    let limit = 2f64.powi(65);
    if double >= limit {
        return Some(Ordering::Greater);
    }
    if double <= -limit {
        return Some(Ordering::Less);
    }
    let floor = double.floor();
    Some((floor as i128).cmp(&whole).then(if double > floor { Ordering::Greater } else { Ordering::Equal }))
}

/// A number without a fraction that JSON would show as whole.
fn whole(value: f64) -> Option<i64> {
    (value.fract() == 0.0 && value.abs() < 9_007_199_254_740_992.0).then_some(value as i64)
}

/// As Go prints a double with the shortest digits: exponents below -4 and from 21 on.
pub(crate) fn double_text(value: f64) -> String {
    if value.is_nan() {
        return "NaN".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "+Inf" } else { "-Inf" }.to_owned();
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if (-4..21).contains(&exponent) {
        return format!("{value}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

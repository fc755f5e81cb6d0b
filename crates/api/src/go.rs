//! How Go's decoders speak of values and of where they stand.

use serde_json::Value;

/// What a value is called.
pub fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Joins a field name or an index with the path below it.
pub(crate) fn join_path(head: &str, rest: &str) -> String {
    match (head.is_empty(), rest.is_empty()) {
        (true, _) => rest.to_owned(),
        (_, true) => head.to_owned(),
        _ if rest.starts_with('[') => format!("{head}{rest}"),
        _ => format!("{head}.{rest}"),
    }
}

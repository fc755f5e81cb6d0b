//! `--sort-by`: a stable order by one field, numbers and quantities and times as what they are.

use std::cmp::Ordering;

use api::quantity::Quantity;
use api::sort::merge_sorted;
use serde_json::Value;

use super::jsonpath::{JsonPath, JsonPathError};

/// Why a list cannot be sorted; in upstream's words.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SortError {
    #[error("couldn't find any field with path \"{0}\" in the list of objects")]
    NoField(String),
    #[error(transparent)]
    Path(#[from] JsonPathError),
}

pub(crate) fn sort_objects(objects: &mut [Value], field: &str) -> Result<(), SortError> {
    sort_by(objects, field, |o| o)
}

/// Rows of a Table, by the objects they carry.
pub(crate) fn sort_rows(rows: &mut [Value], field: &str) -> Result<(), SortError> {
    sort_by(rows, field, |row| &row["object"])
}

fn sort_by(items: &mut [Value], field: &str, object: fn(&Value) -> &Value) -> Result<(), SortError> {
    let path = JsonPath::parse_relaxed(field)?.allow_missing(true);
    let mut keyed = Vec::with_capacity(items.len());
    let mut any = false;
    for item in items.iter() {
        let key = path.find(object(item))?.into_iter().next().map(|v| v.into_owned());
        any |= key.is_some();
        keyed.push((key, item.clone()));
    }
    if !any && !items.is_empty() {
        return Err(SortError::NoField(super::jsonpath::relaxed(field)?));
    }
    // Those without the field come first, the last of them before the others: so upstream's sort leaves them.
    let mut sorted = merge_sorted(&keyed.iter().collect::<Vec<_>>(), &|a: &(Option<Value>, Value), b| {
        order(a.0.as_ref(), b.0.as_ref())
    });
    let missing = sorted.iter().take_while(|(key, _)| key.is_none()).count();
    sorted[..missing].reverse();
    for (slot, (_, item)) in items.iter_mut().zip(sorted) {
        slot.clone_from(item);
    }
    Ok(())
}

/// Quantities and other texts among each other go in circles (`200`, `1k`, `1z`).
fn order(a: Option<&Value>, b: Option<&Value>) -> Ordering {
    match (a, b) {
        (None | Some(Value::Null), None | Some(Value::Null)) => Ordering::Equal,
        (None | Some(Value::Null), _) => Ordering::Less,
        (_, None | Some(Value::Null)) => Ordering::Greater,
        (Some(Value::Number(a)), Some(Value::Number(b))) => {
            a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(Ordering::Equal)
        }
        (Some(Value::String(a)), Some(Value::String(b))) => match (Quantity::parse(a), Quantity::parse(b)) {
            // Both sides must read as quantities to be compared so (`9Gi` < `10Gi`).
            (Ok(x), Ok(y)) => x.cmp(&y),
            _ => a.cmp(b),
        },
        (Some(Value::Bool(a)), Some(Value::Bool(b))) => a.cmp(b),
        (Some(a), Some(b)) => a.to_string().cmp(&b.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn fields_sort_as_what_they_are() {
        for (values, expected) in [
            (json!([3, 1, 2]), json!([1, 2, 3])),
            (json!(["b", "a"]), json!(["a", "b"])),
            (json!(["pod-9", "pod-10"]), json!(["pod-10", "pod-9"])),
            (json!(["10Gi", "9Gi", "1Ti"]), json!(["9Gi", "10Gi", "1Ti"])),
            (
                json!(["2024-02-01T00:00:00Z", "2023-02-01T00:00:00Z"]),
                json!(["2023-02-01T00:00:00Z", "2024-02-01T00:00:00Z"]),
            ),
            (json!([2, null, 1]), json!([null, 1, 2])),
        ] {
            let mut objects: Vec<Value> = values.as_array().unwrap().iter().map(|v| json!({"a": {"b": v}})).collect();
            sort_objects(&mut objects, ".a.b").unwrap();
            let sorted: Vec<&Value> = objects.iter().map(|o| &o["a"]["b"]).collect();
            assert_eq!(json!(sorted), expected);
        }
        assert_eq!(
            sort_objects(&mut [json!({})], "x").unwrap_err().to_string(),
            "couldn't find any field with path \"{.x}\" in the list of objects"
        );
    }
}

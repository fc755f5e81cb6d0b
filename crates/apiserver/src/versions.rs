//! Objects between the version that a row serves and the one that is stored.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use registry::{AnyObject, Resource};
use serde_json::Value;

use crate::json;
use crate::watch_cache::Entry;

/// The stored form of an object in the version this row serves.
pub(crate) fn served_value(resource: &Resource, stored: &[u8]) -> Result<Value, Status> {
    let mut value: Value = serde_json::from_slice(stored).map_err(Status::internal)?;
    resource.from_storage(&mut value);
    Ok(value)
}

/// Converts a served value to the stored version and type; unknown fields are taken out and reported.
pub(crate) fn decode_checked(
    resource: &Resource,
    mut value: Value,
    problems: &mut Vec<String>,
) -> Result<AnyObject, Status> {
    let refuse = |error: &dyn std::fmt::Display| {
        Status::bad_request(format!(
            "{} in version {} cannot be handled as a {}: {error}",
            resource.kind,
            api::field::quote(&resource.version),
            resource.kind
        ))
    };
    if resource.initializers {
        crate::initializers::lift(&mut value);
    }
    if let Some(schema) = resource.own_schema {
        let mut known = value.clone();
        let unknown = api::schema::check(&mut known, &schema()).map_err(|error| refuse(&error))?;
        if !unknown.is_empty() {
            // The stored version may have fields of these names.
            drop_unknown(&mut value, &known);
        }
        problems.extend(unknown.into_iter().map(|path| format!("unknown field {}", api::field::quote(&path))));
    }
    resource.to_storage(&mut value);
    let unknown = resource.strategy.normalize(&mut value).map_err(|error| refuse(&error))?;
    problems.extend(unknown.into_iter().map(|path| format!("unknown field {}", api::field::quote(&path))));
    resource.strategy.decode_value(value).map_err(|error| refuse(&error))
}

/// Takes out what is not in `known`, which is the same value after a check.
fn drop_unknown(value: &mut Value, known: &Value) {
    match (value, known) {
        (Value::Object(fields), Value::Object(known)) => {
            fields.retain(|name, _| known.contains_key(name));
            for (name, value) in fields.iter_mut() {
                drop_unknown(value, known.get(name).unwrap_or(&Value::Null));
            }
        }
        (Value::Array(items), Value::Array(known)) => {
            items.iter_mut().zip(known).for_each(|(item, known)| drop_unknown(item, known));
        }
        _ => {}
    }
}

/// Whether an encoded object is in a version.
pub(crate) fn is_in(object: &[u8], version: &str) -> bool {
    json::find(object, &["apiVersion"]).is_some_and(|at| json::text(&object[at]) == version)
}

/// What is stored, in the version of the row.
pub(crate) async fn entries(resource: &Resource, mut entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
    let Some(converter) = &resource.converter else { return Ok(entries) };
    let wanted = resource.api_version();
    let foreign = entries.iter_mut().filter(|entry| !is_in(&entry.stored, &wanted));
    let foreign: Vec<&mut Arc<Entry>> = foreign.collect();
    if foreign.is_empty() {
        return Ok(entries);
    }
    let read = |entry: &&mut Arc<Entry>| {
        serde_json::from_slice(&entry.readable()?.stored).map_err(|error| entry.refuse(&error))
    };
    let objects: Vec<Value> = foreign.iter().map(read).collect::<Result<_, _>>()?;
    let converted = converter.convert(&resource.kind, objects, &wanted).await?;
    for (entry, object) in foreign.into_iter().zip(converted) {
        let stored = encoded(resource, &object, &wanted)?;
        *entry = Arc::new(Entry::new(&entry.prefix, entry.key.clone(), &stored, entry.revision));
    }
    Ok(entries)
}

/// What a converter has made, as it is stored.
pub(crate) fn encoded(resource: &Resource, object: &Value, version: &str) -> Result<Bytes, Status> {
    let raw = serde_json::to_vec(object).map_err(Status::internal)?;
    let canonical = json::canonical(raw, &resource.kind, version, None);
    canonical.map(Bytes::from).ok_or_else(|| Status::internal("a converted object has no metadata"))
}

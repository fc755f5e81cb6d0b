//! Objects that are stored in one version and asked for in another, where only somebody else can convert them.
//!
//! Flow: before a verb looks at what is stored, [`entries`] brings it into the version of the request; before a verb
//! writes, [`to_storage`] brings the result into the stored version. Rows without a converter pay one comparison.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use registry::Resource;
use serde_json::Value;

use crate::json;
use crate::state::Operation;
use crate::watch_cache::Entry;

/// Whether an encoded object is in a version.
fn is_in(object: &[u8], version: &str) -> bool {
    json::find(object, &["apiVersion"]).is_some_and(|at| json::text(&object[at]) == version)
}

/// What is stored, in the version of the request.
pub(super) async fn entries(operation: &Operation, mut entries: Vec<Arc<Entry>>) -> Result<Vec<Arc<Entry>>, Status> {
    let resource = &operation.resource;
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

/// One stored object, in the version of the request.
pub(super) async fn entry(operation: &Operation, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
    entry.readable()?;
    if operation.resource.converter.is_none() {
        return Ok(entry);
    }
    let mut converted = entries(operation, vec![entry]).await?;
    converted.pop().ok_or_else(|| Status::internal("a conversion lost an object"))
}

/// An object that was worked on in the version of the request, in the stored version.
pub(super) async fn to_storage(operation: &Operation, object: &Bytes) -> Result<Bytes, Status> {
    let (resource, object) = (&operation.resource, object.clone());
    let wanted = &resource.storage_version;
    let Some(converter) = resource.converter.as_ref().filter(|_| !is_in(&object, wanted)) else { return Ok(object) };
    let value = serde_json::from_slice(&object).map_err(Status::internal)?;
    let converted = converter.convert(&resource.kind, vec![value], wanted).await?;
    encoded(resource, converted.first().unwrap_or(&Value::Null), wanted)
}

fn encoded(resource: &Resource, object: &Value, version: &str) -> Result<Bytes, Status> {
    let raw = serde_json::to_vec(object).map_err(Status::internal)?;
    let canonical = json::canonical(raw, &resource.kind, version, None);
    canonical.map(Bytes::from).ok_or_else(|| Status::internal("a converted object has no metadata"))
}

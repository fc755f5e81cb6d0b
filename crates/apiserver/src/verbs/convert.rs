//! Objects that are stored in one version and asked for in another, where only somebody else can convert them.
//!
//! Flow: before a verb looks at what is stored, [`entries`] brings it into the version of the request; before a verb
//! writes, [`to_storage`] brings the result into the stored version. Rows without a converter pay one comparison.

use std::sync::Arc;

use api::Status;
use bytes::Bytes;
use serde_json::Value;

use crate::state::Operation;
use crate::versions::{encoded, entries, is_in};
use crate::watch_cache::Entry;

/// One stored object, in the version of the request.
pub(super) async fn entry(operation: &Operation, entry: Arc<Entry>) -> Result<Arc<Entry>, Status> {
    entry.readable()?;
    if operation.resource.converter.is_none() {
        return Ok(entry);
    }
    let mut converted = Box::pin(entries(&operation.resource, vec![entry])).await?;
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

//! The table representation: rows of cells that kubectl prints as they are.
//!
//! Written as text from encoded objects: a table of thousands never exists as values.

use api::Status;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::accept::{Accept, Encoding, encode, partial_object};
use crate::state::Operation;
use crate::versions::served_value;

/// A table over encoded objects, in JSON. `with_columns` is false for the later events of a watch.
pub(crate) fn table(
    operation: &Operation,
    objects: impl Iterator<Item = Bytes>,
    metadata: &Value,
    with_columns: bool,
) -> Result<Bytes, Status> {
    let strategy = &operation.resource.strategy;
    let include = operation.info.query.get("includeObject").unwrap_or("Metadata");
    // Null, not empty, for the rows of a watch after the first: what Go makes of a list that nobody set.
    let columns = json!(with_columns.then(|| strategy.column_definitions()));
    let version = operation.accept.meta_version;
    let mut out = format!(
        "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/{version}\",\"metadata\":{metadata},\"columnDefinitions\":{columns},\"rows\":["
    )
    .into_bytes();
    for (at, stored) in objects.enumerate() {
        out.extend_from_slice(if at == 0 { b"{\"cells\":" } else { b",{\"cells\":" });
        let cells = strategy.cells_of(&stored, operation.now).map_err(Status::internal)?;
        serde_json::to_writer(&mut out, &cells).map_err(Status::internal)?;
        if include != "None" {
            out.extend_from_slice(b",\"object\":");
            match include {
                "Object" if operation.resource.conversion.is_none() => out.extend_from_slice(&stored),
                "Object" => {
                    let object = served_value(&operation.resource, &stored)?;
                    serde_json::to_writer(&mut out, &object).map_err(Status::internal)?;
                }
                _ => out.extend_from_slice(&partial_object(&operation.accept, &stored, "PartialObjectMetadata")),
            }
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}");
    Ok(out.into())
}

/// A table in the encoding that was asked for.
pub(crate) fn encoded(accept: &Accept, table: Bytes) -> Result<Bytes, Status> {
    if accept.encoding == Encoding::Json && !accept.pretty {
        return Ok(table);
    }
    encode(accept, &serde_json::from_slice(&table).map_err(Status::internal)?)
}

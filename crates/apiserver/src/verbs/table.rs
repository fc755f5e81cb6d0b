//! The table representation: rows of cells that kubectl prints as they are.

use api::Status;
use bytes::Bytes;
use serde_json::{Value, json};

use crate::accept::partial_object;
use crate::state::Operation;
use crate::versions::served_value;

/// A table over encoded objects. `with_columns` is false for the later events of a watch.
pub(crate) fn table(
    operation: &Operation,
    objects: impl Iterator<Item = Bytes>,
    metadata: Value,
    with_columns: bool,
) -> Result<Value, Status> {
    let strategy = &operation.resource.strategy;
    let include = operation.info.query.get("includeObject").unwrap_or("Metadata");
    let mut rows = Vec::new();
    for stored in objects {
        let object = strategy.decode(&stored).map_err(Status::internal)?;
        let cells = strategy.cells(&*object, operation.now);
        let mut row = json!({"cells": cells});
        match include {
            "None" => {}
            "Object" => row["object"] = served_value(&operation.resource, &stored)?,
            _ => {
                let partial = partial_object(&operation.accept, &stored, "PartialObjectMetadata");
                row["object"] = serde_json::from_slice(&partial).map_err(Status::internal)?;
            }
        }
        rows.push(row);
    }
    // Null, not empty, for the rows of a watch after the first: what Go makes of a list that nobody set.
    let columns = with_columns.then(|| strategy.column_definitions());
    Ok(json!({
        "kind": "Table",
        "apiVersion": format!("meta.k8s.io/{}", operation.accept.meta_version),
        "metadata": metadata,
        "columnDefinitions": columns,
        "rows": rows,
    }))
}

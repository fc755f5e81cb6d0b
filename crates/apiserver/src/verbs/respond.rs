//! Objects as answers, in the form that the client asked for.

use api::Status;
use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::{Value, json};

use crate::accept::{Encoding, Shape, encode, partial_object, respond_encoded};
use crate::body::Body;
use crate::json;
use crate::state::Operation;
use crate::versions::served_value;

/// One object, encoded as asked for.
pub(crate) fn render(operation: &Operation, stored: &Bytes) -> Result<Bytes, Status> {
    let accept = &operation.accept;
    let value = match accept.shape {
        Shape::Object => {
            if accept.is_plain(&operation.resource) {
                return Ok(stored.clone());
            }
            served_value(&operation.resource, stored)?
        }
        Shape::Partial => {
            let partial = partial_object(accept, stored, "PartialObjectMetadata");
            if accept.encoding == Encoding::Json && !accept.pretty {
                return Ok(Bytes::from(partial));
            }
            serde_json::from_slice(&partial).map_err(Status::internal)?
        }
        Shape::Table => {
            let version = json::find(stored, &["metadata", "resourceVersion"]).map(|range| json::text(&stored[range]));
            let meta = json!({"resourceVersion": version.unwrap_or_default()});
            let table = super::table::table(operation, std::iter::once(stored.clone()), &meta, true)?;
            return super::table::encoded(accept, table);
        }
    };
    encode(accept, &value)
}

/// Responds with one object.
pub(crate) fn respond(operation: &Operation, code: StatusCode, stored: &Bytes) -> Result<Response<Body>, Status> {
    Ok(respond_encoded(&operation.accept, code, render(operation, stored)?))
}

/// Responds with a value that is not a stored object (a review, a scale).
pub(crate) fn respond_value(operation: &Operation, code: StatusCode, value: &Value) -> Result<Response<Body>, Status> {
    Ok(respond_encoded(&operation.accept, code, encode(&operation.accept, value)?))
}

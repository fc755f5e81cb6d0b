//! What the server says about itself: groups, versions and resources, version, health, metrics, OpenAPI, token issuer.
//!
//! Everything here is made from the resource table and what aggregated API servers offer, once for each state of them, and
//! sent as it is.

mod groups;
mod in_order;
pub(crate) mod openapi;
mod openapi_corrections;
mod openapi_groups;
mod openapi_paths;
mod openapi_proto;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

pub(crate) use groups::{Documents, resource_list};
pub(crate) use in_order::InOrder;

use crate::body::{Body, empty, response};

/// The version clients see; `gitVersion` decides which features kubectl expects.
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": api::version::GIT,
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "rust",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

/// A document with an ETag; 304 when the client already has it.
pub(crate) fn tagged(
    parts: &http::request::Parts,
    (body, etag): (Bytes, String),
    content_type: &'static str,
) -> Response<Body> {
    let known = parts.headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let mut answer = response(StatusCode::OK, content_type, body);
    if known {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        *answer.body_mut() = empty();
    }
    let headers = answer.headers_mut();
    if let Ok(value) = HeaderValue::from_str(&etag) {
        headers.insert(header::ETAG, value);
    }
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    answer
}

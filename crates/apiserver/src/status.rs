//! Errors of the layers below, as the Kubernetes `Status` a client sees. The only such place.

use api::Status;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use store::StoreError;

use crate::body::{Body, full};
use crate::watch_cache::{Behind, NotFresh, TooOld, Unreadable};

pub(crate) fn from_store(error: StoreError) -> Status {
    let message = error.to_string();
    match error {
        // The verbs turn conflicts into their own answers; one that gets here has no object to name.
        StoreError::Conflict { .. } => Status::conflict(&api::GroupResource::default(), "", api::status::MODIFIED),
        StoreError::Compacted { .. } => Status::expired("The provided resource version is too old."),
        StoreError::FutureRevision { asked, current } => Behind { asked: asked.0, applied: current.0 }.into(),
        StoreError::Invalid(_) => Status::bad_request(message),
        StoreError::Full { .. } => {
            Status::service_unavailable(format!("etcdserver: mvcc: database space exceeded: {message}"))
        }
        StoreError::Unavailable(_)
        | StoreError::Denied(_)
        | StoreError::LeaseNotFound(_)
        | StoreError::Corrupt { .. }
        | StoreError::Locked { .. }
        | StoreError::Foreign { .. }
        | StoreError::NewerFormat { .. }
        | StoreError::Io { .. } => Status::internal(message),
    }
}

impl From<Unreadable> for Status {
    fn from(unreadable: Unreadable) -> Self {
        Status::internal(unreadable)
    }
}

/// A revision that the caches did not reach in time.
impl From<Behind> for Status {
    fn from(behind: Behind) -> Self {
        let message = format!("Too large resource version: {}, current: {}", behind.asked, behind.applied);
        Status::timeout(message, 1).with_cause("ResourceVersionTooLarge", "Too large resource version", "")
    }
}

impl From<NotFresh> for Status {
    fn from(error: NotFresh) -> Self {
        match error {
            NotFresh::Store(error) => from_store(error),
            NotFresh::Behind(behind) => behind.into(),
            NotFresh::WentBack(error) => Status::internal(error),
        }
    }
}

pub(crate) fn too_old(asked: u64, error: &TooOld) -> Status {
    Status::expired(format!("too old resource version: {asked} ({})", error.horizon))
}

/// The response that carries a status to a client that reads nothing but protobuf.
pub(crate) fn protobuf_response(status: &Status) -> Response<Body> {
    let mut response = response(status);
    let encoded = serde_json::to_value(status).ok().and_then(|value| crate::protobuf::encode(&value));
    if let Some(encoded) = encoded {
        *response.body_mut() = full(Bytes::from(encoded));
        let content_type = HeaderValue::from_static(crate::protobuf::CONTENT_TYPE);
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    }
    response
}

/// The response that carries a status.
pub(crate) fn response(status: &Status) -> Response<Body> {
    let body = serde_json::to_vec(status).unwrap_or_default();
    let mut response = Response::new(full(Bytes::from(body)));
    // For those who look at the answer on its way out.
    response.extensions_mut().insert(status.clone());
    *response.status_mut() = StatusCode::from_u16(status.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(seconds) = status.retry_after_seconds().filter(|seconds| *seconds > 0) {
        headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

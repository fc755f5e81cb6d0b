//! What EndpointSlices and their endpoints are to everybody alike.

use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use crate::meta::Meta as _;

/// The label of a slice that names its Service.
pub const SERVICE_LABEL: &str = "kubernetes.io/service-name";

/// `namespace/name` of the Service that a slice belongs to.
pub fn service_key(slice: &EndpointSlice) -> Option<String> {
    Some(format!("{}/{}", slice.metadata.namespace(), slice.metadata.label(SERVICE_LABEL)?))
}

/// Whether it takes requests; one that does not say does.
pub fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

//! What an endpoint of an EndpointSlice is to everybody alike.

use k8s_openapi::api::discovery::v1::Endpoint;

/// Whether it takes requests; one that does not say does.
pub fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

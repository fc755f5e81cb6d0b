//! What the server says about itself: groups, versions and resources, version, health, metrics, OpenAPI, token issuer.
//!
//! Everything here is made from the resource table and what aggregated API servers offer, once for each state of them, and
//! sent as it is.

mod groups;
mod openapi;
mod openapi_corrections;
mod openapi_groups;
mod openapi_paths;
mod openapi_proto;

use std::sync::Arc;

use api::{Status, UserInfo};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

pub(crate) use groups::Documents;

use crate::body::{Body, empty};
use crate::chain::RequestInfo;
use crate::state::State;
use crate::verbs::{Accept, encode, response};

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

/// Makes the documents anew, when kinds or backends came or went.
pub(crate) fn publish(state: &State) {
    let _publishing = state.aggregation.publishing.lock();
    let documents = Documents::new(state.registry.table(), state.aggregation.backends());
    *state.documents.write() = Arc::new(documents);
}

/// Serves a request that is not about a resource.
pub(crate) async fn serve(
    state: &Arc<State>,
    info: &RequestInfo,
    parts: http::request::Parts,
    user: &UserInfo,
) -> Result<Response<Body>, Status> {
    let path = info.path.trim_end_matches('/');
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match segments.as_slice() {
        ["healthz" | "livez" | "readyz", ..] => return crate::health::serve(state, info).await,
        _ if !matches!(info.verb, "get" | "head") => return Err(method_not_allowed(state, path)),
        _ => {}
    }
    if let ["openapi", "v3", "apis", group, version] = segments.as_slice()
        && let Some(backend) = state.aggregation.find(group, version)
    {
        return Ok(backend.forward(state, info, user, parts, Bytes::new()).await);
    }
    let documents = state.documents.read().clone();
    let parts = &parts;
    match segments.as_slice() {
        [""] => json_response(parts, info, &documents.root_paths()),
        ["version"] => json_response(parts, info, &version()),
        ["metrics"] => Ok(response(StatusCode::OK, "text/plain; version=0.0.4", crate::metrics::render(state).into())),
        ["debug", "api_priority_and_fairness", _] => match state.flow_control.dump(path) {
            Some(text) => Ok(response(StatusCode::OK, "text/plain; charset=utf-8", text.into())),
            None => Err(Status::no_such_path()),
        },
        ["api" | "apis"] => {
            if let Some(version) = aggregated(parts) {
                let body = if path == "/api" { &documents.core } else { &documents.groups };
                return Ok(tagged(parts, body.with_version(version), aggregated_type(version)));
            }
            let value = if path == "/api" { documents.api_versions(state) } else { documents.group_list() };
            json_response(parts, info, &value)
        }
        ["api", version] => resource_list(&documents, parts, info, "", version),
        ["apis", group] => match documents.group(group) {
            Some(value) => json_response(parts, info, &value),
            None => Err(Status::no_such_path()),
        },
        ["apis", group, version] => resource_list(&documents, parts, info, group, version),
        ["openapi", "v2"] => Ok(openapi::v2(&documents, parts)),
        ["openapi", "v3"] => json_response(parts, info, &openapi::v3_index(&documents)),
        ["openapi", "v3", rest @ ..] => openapi::v3(&documents, parts, &rest.join("/")),
        [".well-known", "openid-configuration"] => openid_configuration(state, parts, info),
        ["openid", "v1", "jwks"] => match &state.authn.service_accounts {
            Some(keys) => {
                let body = serde_json::to_vec(&keys.jwks()).map_err(Status::internal)?;
                Ok(response(StatusCode::OK, "application/jwk-set+json", body.into()))
            }
            None => Err(Status::no_such_path()),
        },
        _ => Err(Status::no_such_path()),
    }
}

fn method_not_allowed(state: &State, path: &str) -> Status {
    let known = path.is_empty()
        || state.documents.read().root_paths()["paths"]
            .as_array()
            .is_some_and(|paths| paths.iter().any(|known| known == path));
    if known { Status::method_not_allowed() } else { Status::no_such_path() }
}

fn resource_list(
    documents: &Documents,
    parts: &http::request::Parts,
    info: &RequestInfo,
    group: &str,
    version: &str,
) -> Result<Response<Body>, Status> {
    if !documents.table.has_version(group, version) {
        return Err(Status::no_such_path());
    }
    json_response(parts, info, &groups::resource_list(&documents.table, group, version))
}

fn openid_configuration(
    state: &State,
    parts: &http::request::Parts,
    info: &RequestInfo,
) -> Result<Response<Body>, Status> {
    let Some(issuer) = state.config.service_account_issuers.first() else { return Err(Status::no_such_path()) };
    let keys = state.config.service_account_jwks_uri.clone();
    let value = json!({
        "issuer": issuer,
        "jwks_uri": keys.unwrap_or_else(|| format!("{}/openid/v1/jwks", issuer.trim_end_matches('/'))),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256", "ES256"],
    });
    json_response(parts, info, &value)
}

fn json_response(parts: &http::request::Parts, info: &RequestInfo, value: &Value) -> Result<Response<Body>, Status> {
    let accept = Accept::parse(&parts.headers, info)?;
    Ok(response(StatusCode::OK, accept.content_type(), encode(&accept, value)?))
}

/// The version of aggregated discovery the client asks for, if it does.
fn aggregated(parts: &http::request::Parts) -> Option<&'static str> {
    let accept = parts.headers.get(header::ACCEPT)?.to_str().ok()?;
    accept.split(',').find_map(|clause| {
        let wants = clause.contains("as=APIGroupDiscoveryList") && clause.contains("g=apidiscovery.k8s.io");
        let json = clause.trim_start().starts_with("application/json");
        if !wants || !json {
            return None;
        }
        if clause.contains("v=v2beta1") {
            return Some("v2beta1");
        }
        clause.contains("v=v2").then_some("v2")
    })
}

fn aggregated_type(version: &str) -> &'static str {
    if version == "v2" {
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    } else {
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"
    }
}

/// A document with an ETag; 304 when the client already has it.
fn tagged(parts: &http::request::Parts, (body, etag): (Bytes, String), content_type: &'static str) -> Response<Body> {
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

//! Requests that are not about a resource: what the server says about itself.

use std::sync::Arc;
use std::time::Duration;

use api::zpages::{self, About};
use api::{Status, UserInfo};
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use registry::Verb;
use serde_json::{Value, json};

use crate::accept::{Accept, encode_as};
use crate::body::{Body, response};
use crate::discovery::{self, Documents, openapi};
use crate::request_info::RequestInfo;
use crate::stamp::now;
use crate::state::State;

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
        _ if !matches!(info.verb, Verb::Get | Verb::Head) => return Err(method_not_allowed(state, path)),
        _ => {}
    }
    if let ["openapi", "v3", "apis", group, version] = segments.as_slice()
        && let Some(backend) = state.aggregation.find(group, version)
    {
        return Ok(backend.forward(&state.forwarding(), info, user, parts, Bytes::new()).await);
    }
    if let ["apis" | "openapi", ..] = segments.as_slice() {
        crate::custom::discoverable(state).await;
    }
    let documents = state.documents.read().clone();
    let parts = &parts;
    match segments.as_slice() {
        [""] => json_response(parts, info, &documents.root_paths()),
        ["version"] => json_response(parts, info, &discovery::version()),
        ["metrics"] => {
            Ok(response(StatusCode::OK, "text/plain; version=0.0.4", crate::metrics_page::render(state).await.into()))
        }
        ["metrics", "slis"] => {
            Ok(response(StatusCode::OK, "text/plain; version=0.0.4", crate::health::slis(state).await.into()))
        }
        ["statusz"] | ["flagz"] => zpage(state, path, parts, &documents),
        ["debug", "pprof", page @ ..] if state.config.profiling => {
            let made = profile::serve(&page.join("/"), &info.raw_query).await;
            let code = StatusCode::from_u16(made.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok(response(code, made.content_type, made.body.into()))
        }
        ["debug", "api_priority_and_fairness", _] => match state.flow_control.dump(path) {
            Some(text) => Ok(response(StatusCode::OK, "text/plain; charset=utf-8", text.into())),
            None => Err(Status::no_such_path()),
        },
        ["api" | "apis"] => {
            if let Some(version) = aggregated(parts) {
                let body = if path == "/api" { &documents.core } else { &documents.groups };
                return Ok(discovery::tagged(parts, body.with_version(version), aggregated_type(version)));
            }
            let value = if path == "/api" {
                documents.api_versions(&state.config.advertised())
            } else {
                documents.group_list()
            };
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
                kept_for(keys.max_age(), response(StatusCode::OK, "application/jwk-set+json", body.into()))
            }
            None => Err(Status::no_such_path()),
        },
        _ => Err(Status::no_such_path()),
    }
}

/// What the server says of itself to people.
fn zpage(
    state: &State,
    path: &str,
    parts: &http::request::Parts,
    documents: &Documents,
) -> Result<Response<Body>, Status> {
    const COMPONENT: &str = "kube-apiserver";
    let accept = parts.headers.get(header::ACCEPT).and_then(|accept| accept.to_str().ok()).unwrap_or_default();
    let page = if path == "/flagz" {
        zpages::flagz(COMPONENT, zpages::flags(), accept)
    } else {
        let root = documents.root_paths();
        let paths: Vec<&str> = root["paths"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let about = About { component: COMPONENT, started: state.started, now: now(), paths: &paths };
        zpages::statusz(&about, accept)
    };
    let (media, text) = page.ok_or_else(|| Status::not_acceptable(zpages::OFFERED))?;
    Ok(response(StatusCode::OK, media, text.into()))
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
    json_response(parts, info, &discovery::resource_list(&documents.table, group, version))
}

fn openid_configuration(
    state: &State,
    parts: &http::request::Parts,
    info: &RequestInfo,
) -> Result<Response<Body>, Status> {
    let Some(issuer) = state.config.service_account_issuers.first() else { return Err(Status::no_such_path()) };
    let Some(keys) = &state.authn.service_accounts else { return Err(Status::no_such_path()) };
    let value = json!({
        "issuer": issuer,
        "jwks_uri": state.config.jwks_uri(issuer),
        "response_types_supported": ["id_token"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": keys.algorithms(),
    });
    kept_for(keys.max_age(), json_response(parts, info, &value)?)
}

/// An answer that others may keep for a while.
fn kept_for(age: Duration, mut answer: Response<Body>) -> Result<Response<Body>, Status> {
    let value = HeaderValue::try_from(format!("public, max-age={}", age.as_secs())).map_err(Status::internal)?;
    answer.headers_mut().insert(header::CACHE_CONTROL, value);
    Ok(answer)
}

fn json_response(parts: &http::request::Parts, info: &RequestInfo, value: &Value) -> Result<Response<Body>, Status> {
    let accept = Accept::parse(&parts.headers, info)?;
    Ok(response(StatusCode::OK, accept.content_type(), encode_as(&accept, value, &discovery::InOrder(value))?))
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

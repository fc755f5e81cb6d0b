//! Requests of the server to itself, through the chain like everybody's.

use std::sync::Arc;
use std::time::Instant;

use ::metrics::rest_client;
use anyhow::Context;
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::BodyExt;
use serde_json::Value;

use crate::authn::Peer;
use crate::body::RequestBody;
use crate::cluster::own_user;
use crate::state::State;

/// Sends one; returns the code and the document of the answer. The body of a PATCH is a merge patch.
pub(crate) async fn send(state: &Arc<State>, method: Method, path: &str, body: &Value) -> anyhow::Result<(u16, Value)> {
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(serde_json::to_vec(body)?) };
    let content_type = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type)
        .header("user-agent", "kube-apiserver")
        .body(body)?;
    request.extensions_mut().insert(own_user());
    let peer = Peer { in_process: true, ..Default::default() };
    let (method, began) = (request.method().clone(), Instant::now());
    let response = crate::chain::serve(state.clone(), request.map(RequestBody::Whole), peer).await;
    let code = response.status().as_u16();
    let (metrics, took) = (state.metrics.all(), began.elapsed());
    rest_client::answered(metrics, rest_client::IN_PROCESS, method.as_str(), Some(code), took);
    let bytes = response.into_body().collect().await.map_err(|error| anyhow::anyhow!(error))?.to_bytes();
    Ok((code, serde_json::from_slice(&bytes).context("answer is not JSON")?))
}

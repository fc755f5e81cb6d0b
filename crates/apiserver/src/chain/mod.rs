//! The handler chain: what every request passes before a verb runs, in the order of upstream's `DefaultBuildHandlerChain`.

mod impersonate;
mod in_flight;
mod request_info;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use api::{Status, UserInfo};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response};

pub(crate) use in_flight::InFlight;
pub(crate) use request_info::RequestInfo;

use crate::authn::Peer;
use crate::body::Body;
use crate::state::{Operation, State, now};
use crate::verbs::Accept;

/// Requests that are not long-running end after this long (`--request-timeout`).
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// Serves one request. Whatever happens inside, the answer is a response.
pub(crate) async fn serve(state: Arc<State>, request: Request<Bytes>, peer: Peer) -> Response<Body> {
    let info = RequestInfo::new(request.method(), request.uri());
    let started = std::time::Instant::now();
    let labels = (info.verb, info.resource.clone());
    let audit_id = audit_id(&request);
    let head = request.method() == Method::HEAD;
    let long_running = info.is_long_running();
    let work = AssertUnwindSafe(pass(state.clone(), info, request, peer)).catch_unwind();
    let outcome = if long_running {
        work.await
    } else {
        match tokio::time::timeout(REQUEST_TIMEOUT, work).await {
            Ok(outcome) => outcome,
            Err(_) => Ok(Err(Status::timeout("request did not complete within the allotted timeout", 0))),
        }
    };
    let mut response = match outcome {
        Ok(Ok(response)) => response,
        Ok(Err(status)) => crate::status::response(&status),
        Err(_) => {
            tracing::error!(audit_id = ?audit_id, "request handler panicked");
            crate::status::response(&Status::internal(
                "this request caused apiserver to panic. Look in the logs for details.",
            ))
        }
    };
    response.headers_mut().insert(AUDIT_ID, audit_id);
    if head {
        *response.body_mut() = crate::body::empty();
    }
    crate::metrics::observe(labels.0, &labels.1, response.status(), started.elapsed());
    response
}

/// The stages in order. Order is security: authorization must see the impersonated user.
async fn pass(
    state: Arc<State>,
    info: RequestInfo,
    request: Request<Bytes>,
    peer: Peer,
) -> Result<Response<Body>, Status> {
    let (mut parts, body) = request.into_parts();
    let user = authenticate(&state, &mut parts, &peer)?;
    let user = impersonate::impersonate(&state, user, &mut parts.headers)?;
    let place = state.in_flight.enter(&info, &user)?;
    if state.authz.authorize(&state, &user, &info).is_err() {
        // A right that was given by a finished write counts at once.
        state.caches.fresh().await?;
        state.authz.authorize(&state, &user, &info)?;
    }
    let response = dispatch(state, info, user, parts, body).await;
    drop(place);
    response
}

/// Finds out who asks. The in-process door brings an identity along; nobody else's word for it is taken.
fn authenticate(state: &State, parts: &mut http::request::Parts, peer: &Peer) -> Result<UserInfo, Status> {
    if peer.in_process
        && let Some(user) = parts.extensions.remove::<UserInfo>()
    {
        let mut user = user;
        if !user.in_group(api::user::AUTHENTICATED) {
            user.groups.push(api::user::AUTHENTICATED.to_owned());
        }
        return Ok(user);
    }
    state.authn.authenticate(state, &mut parts.headers, peer)
}

/// Hands the request to the verb, or to one of the server's own documents.
async fn dispatch(
    state: Arc<State>,
    info: RequestInfo,
    user: UserInfo,
    mut parts: http::request::Parts,
    body: Bytes,
) -> Result<Response<Body>, Status> {
    if !info.is_resource {
        return crate::discovery::serve(&state, &info, &parts, &user).await;
    }
    let Some(resource) = state.registry.find(&info.group, &info.version, &info.resource).cloned() else {
        return Err(Status::no_such_path());
    };
    if resource.is_namespaced()
        && info.namespace.is_empty()
        && !matches!(info.verb, "list" | "watch" | "deletecollection")
    {
        return Err(Status::no_such_path());
    }
    if info.verb == "create" && !info.name.is_empty() && info.subresource.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if info.verb.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if let Some(query) = parts.uri.query().and_then(|query| HeaderValue::from_str(query).ok()) {
        parts.headers.insert(crate::verbs::ORIGINAL_QUERY, query);
    }
    let accept = if info.is_long_running() && info.verb != "watch" {
        // What is passed on is in the backend's form, not ours.
        Accept::parse(&http::HeaderMap::new(), &info)?
    } else {
        Accept::parse(&parts.headers, &info)?
    };
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let warnings = Arc::new(parking_lot::Mutex::new(Vec::new()));
    let operation = Operation {
        state,
        info,
        resource,
        user,
        method: parts.method,
        headers: parts.headers,
        body,
        now: now(),
        accept,
        warnings: warnings.clone(),
    };
    let mut response = match crate::verbs::run(operation, upgrade).await {
        Ok(response) => response,
        Err(status) => crate::status::response(&status),
    };
    for warning in warnings.lock().iter() {
        let text = format!("299 - {}", api::field::quote(warning));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(http::header::WARNING, value);
        }
    }
    Ok(response)
}

/// The client's audit id, or a new one.
fn audit_id(request: &Request<Bytes>) -> HeaderValue {
    request.headers().get(AUDIT_ID).cloned().unwrap_or_else(|| {
        let id = uuid::Uuid::new_v4().to_string();
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static(""))
    })
}

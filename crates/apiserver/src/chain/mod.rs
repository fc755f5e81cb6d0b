//! The handler chain: what every request passes before a verb runs, in the order of upstream's `DefaultBuildHandlerChain`.
//!
//! panic recovery -> deadline -> CORS -> authentication -> audit -> impersonation -> limits -> authorization -> verb. The
//! body stays on the wire until authorization has passed. A client that leaves drops the whole future, wherever it is.

mod impersonate;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use api::{Status, UserInfo};
use bytes::Bytes;
use futures_util::FutureExt;
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, header};
use registry::{Resource, Verb};
use trace::{Name, Stage};

use crate::accept::Accept;
use crate::audit::Trail;
use crate::authn::Peer;
use crate::authz::Attributes;
use crate::body::{Body, RequestBody, empty, guarded};
use crate::cors;
use crate::elsewhere::{Elsewhere, spent_elsewhere};
use crate::flow_control::Flow;
use crate::metrics::{Labels, Serving, Took};
use crate::remote::FOR_KUBELET;
use crate::request_info::{RequestInfo, Warnings};
use crate::stamp::{now, unique_id};
use crate::state::{Operation, Place, State};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// What became known of a request on its way, told with its answer and counted.
struct Seen<'a> {
    labels: Labels,
    /// Nothing once the answer that stays open has it.
    serving: Option<Serving>,
    flow: Option<Arc<Flow>>,
    /// On its way to the operation.
    place: Option<Place>,
    /// Whether the client may do what it asks for.
    authorized: &'a AtomicBool,
}

/// Serves one request. Whatever happens inside, the answer is a response.
pub(crate) async fn serve(state: Arc<State>, mut request: Request<RequestBody>, peer: Peer) -> Response<Body> {
    let started = Instant::now();
    let info = RequestInfo::new(request.method(), request.uri());
    let long_running = info.is_long_running();
    let authorized = AtomicBool::new(false);
    let (labels, serving) = (Labels::unknown(&info, request.headers()), state.metrics.serving(&info));
    let mut seen = Seen { labels, serving, flow: None, place: None, authorized: &authorized };
    let is_head = request.method() == Method::HEAD;
    let audit_id = audit_id(&request);
    let id = audit_id.to_str().unwrap_or_default();
    let trail = Trail::open(state.audit.as_ref(), id, request.uri(), request.headers(), peer.address);
    let deadline = deadline(&info, state.config.request_timeout);
    let cors = state.cors.headers(request.headers());
    let is_preflight = cors.is_some() && cors::is_preflight(request.method());
    if !state.aggregation.is_idle() {
        // Servers behind this one record the same request under the same name.
        request.headers_mut().insert(AUDIT_ID, audit_id.clone());
    }
    let wants_protobuf = Accept::is_protobuf(request.headers());
    let mut served = crate::walk::open(&state, &info, request.method(), request.headers(), &authorized);
    served.work.attribute("audit-id", id);
    let counted = state.clone();

    // On the heap: a request is a deep stack of futures, and each layer would hold all those below it.
    let work = Box::pin(async {
        if is_preflight {
            return Ok(no_content());
        }
        pass(state, info, request, peer, &trail, &mut seen).await
    });
    let elsewhere = Elsewhere::default();
    let outcome = served.work.run(elsewhere.of(recover(within(deadline, work)))).await;
    if let Ok(Err(status)) = &outcome
        && matches!(status.code(), 429 | 504)
    {
        counted.metrics.terminated(&seen.labels, status.code());
    }

    let mut response = match outcome {
        Ok(Ok(response)) => trail.answered(response, long_running).await,
        Ok(Err(status)) if wants_protobuf => trail.answered(crate::status::protobuf_response(&status), false).await,
        Ok(Err(status)) => trail.answered(crate::status::response(&status), false).await,
        Err(Panicked) => {
            tracing::error!(id, "request handler panicked");
            trail.panicked().await;
            let text = "this request caused apiserver to panic. Look in the logs for details.";
            crate::status::response(&Status::internal(text))
        }
    };
    let headers = response.headers_mut();
    headers.insert(AUDIT_ID, audit_id);
    if let Some(flow) = &seen.flow {
        let shown = [(FLOW_SCHEMA, &flow.schema_uid), (PRIORITY_LEVEL, &flow.level_uid)];
        headers.extend(shown.into_iter().filter_map(|(name, uid)| Some((name, uid.clone()?))));
    }
    headers.extend(cors.into_iter().flatten().filter_map(|(name, value)| Some((name?, value))));
    if is_head {
        *response.body_mut() = empty();
    }
    crate::walk::close(served, response.status());
    let took = Took { all: started.elapsed(), elsewhere: elsewhere.total() };
    let size = http_body::Body::size_hint(response.body()).exact();
    counted.metrics.observe(&seen.labels, response.status(), took, size);
    response
}

/// Everything between CORS and the answer of the verb.
async fn pass(
    state: Arc<State>,
    info: RequestInfo,
    request: Request<RequestBody>,
    peer: Peer,
    trail: &Trail,
    seen: &mut Seen<'_>,
) -> Result<Response<Body>, Status> {
    let (mut parts, body) = request.into_parts();
    let (user, place, row) = match Box::pin(admit(&state, &info, &mut parts, &peer, trail, seen)).await {
        Ok(admitted) => admitted,
        Err(status) => {
            body.discard().await;
            return Err(status);
        }
    };
    seen.authorized.store(true, Ordering::Relaxed);
    let body = body.read().await?;
    let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    trail.request_body(content_type.unwrap_or_default(), &body);
    if trail.wants_response_body() {
        // What is recorded is not compressed.
        parts.headers.remove(header::ACCEPT_ENCODING);
    }
    let kept = match info.is_long_running() {
        true => Some(place),
        false => {
            seen.place = Some(place);
            None
        }
    };
    let answer = trail.follow(Box::pin(dispatch(state, info, row, user, parts, body, seen))).await;
    seen.place = None;
    let response = answer?;
    // A watch keeps its place as long as it lasts, but not its seat.
    let kept = kept.map(|place| (place.open, seen.serving.take()));
    Ok(if let Some(kept) = kept { response.map(|body| guarded(body, kept)) } else { response })
}

/// The stages that decide whether a request is served, and for whom. Order is security: authorization must see the
/// impersonated user.
async fn admit(
    state: &State,
    info: &RequestInfo,
    parts: &mut http::request::Parts,
    peer: &Peer,
    trail: &Trail,
    seen: &mut Seen<'_>,
) -> Result<(UserInfo, Place, Option<Arc<Resource>>), Status> {
    let attributes = Attributes::from(info);
    // Who was let in or shut out by a finished write of this server is so at once. What is late counts as it is shown;
    // health and discovery do not wait for it.
    if info.is_resource {
        let _ = state.caches.settled().await;
    }
    let user = match trail.follow(Box::pin(authenticate(state, parts, peer))).await {
        Ok(user) => user,
        Err(status) => {
            trace::lap_failed(Stage::Authentication, Name::NONE);
            trail.received(None, &attributes).await?;
            return Err(status);
        }
    };
    trace::lap(Stage::Authentication);
    crate::trace_context::join(&parts.headers, &user);
    trail.received(Some(&user), &attributes).await?;
    trace::lap(Stage::Audit);
    if parts.headers.contains_key(FOR_KUBELET) {
        return Err(Status::from_code(403, "a request to a kubelet was led to an API server"));
    }
    info.check()?;
    if info.goes_beyond() && state.aggregation.of(info).is_none() {
        return Err(Status::no_such_path());
    }
    let user = match impersonate::impersonate(&state.authz, &user, &mut parts.headers, &attributes).await? {
        None => user,
        Some(other) => {
            trail.impersonated(&other.user, other.constraint);
            other.user
        }
    };
    trace::lap(Stage::Impersonation);
    let open = state.in_flight.enter(info, &user)?;
    let seat = match info.verb != Verb::Watch && info.is_long_running() {
        // What is passed on to a kubelet or a pod takes its time there.
        true => None,
        false => {
            let waiting = Instant::now();
            let seat = state.flow_control.enter(info, &user, &mut seen.flow).await;
            spent_elsewhere(waiting.elapsed());
            seat?
        }
    };
    let place = Place { open, _seat: seat };
    trace::lap(Stage::Limits);
    // The namespace that authorization is about to see must be that of the resource.
    let row = row(state, info).await;
    if let Ok(Some(row)) = &row
        && !info.fits_scope(row.is_namespaced())
    {
        return Err(Status::no_such_path());
    }
    if let Err(status) = authorize(state, &user, &attributes, trail).await {
        trace::lap_failed(Stage::Authorization, Name::NONE);
        return Err(status);
    }
    trace::lap(Stage::Authorization);
    Ok((user, place, row?))
}

/// The row of the table that a request is about; none if another server serves it, or nobody.
async fn row(state: &State, info: &RequestInfo) -> Result<Option<Arc<Resource>>, Status> {
    if !info.is_resource || state.aggregation.of(info).is_some() {
        return Ok(None);
    }
    let (group, version, plural) = (&info.group, &info.version, &info.resource);
    match state.registry.find(group, version, plural) {
        Some(row) => Ok(Some(row)),
        None => Ok(Box::pin(crate::custom::served(state, group, version, plural)).await?),
    }
}

/// The handler died.
struct Panicked;

async fn recover<T>(work: impl Future<Output = T>) -> Result<T, Panicked> {
    AssertUnwindSafe(work).catch_unwind().await.map_err(|_| Panicked)
}

/// Ends the work when its time is over. `None` is no limit.
async fn within<T>(
    deadline: Result<Option<Duration>, Status>,
    work: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match deadline? {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::timeout("request did not complete within the allotted timeout", 0)),
        },
    }
}

/// How long a request may take: the server's limit, or less if the client says so (`timeout=10s`).
fn deadline(info: &RequestInfo, limit: Duration) -> Result<Option<Duration>, Status> {
    if info.is_long_running() {
        return Ok(None);
    }
    let Some(text) = info.query.get("timeout") else { return Ok(Some(limit)) };
    let asked = api::duration::parse(text)
        .map_err(|error| Status::bad_request(format!("invalid timeout specified in the request URL - {error}")))?;
    Ok(Some(if asked.is_zero() { limit } else { asked.min(limit) }))
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

/// Finds out who asks. The in-process door brings an identity along; nobody else's word for it is taken.
async fn authenticate(state: &State, parts: &mut http::request::Parts, peer: &Peer) -> Result<UserInfo, Status> {
    if peer.in_process
        && let Some(mut user) = parts.extensions.remove::<UserInfo>()
    {
        if !user.in_group(api::user::AUTHENTICATED) {
            user.groups.push(api::user::AUTHENTICATED.to_owned());
        }
        state.metrics.access.authenticated(Some(&user.name), None, Duration::ZERO);
        return Ok(user);
    }
    let began = Instant::now();
    let found = state.authn.authenticate(&state.caches, parts.uri.path(), &mut parts.headers, peer).await;
    let user = found.as_ref().ok().map(|(user, _)| user.name.as_str());
    let left = found.as_ref().ok().and_then(|(_, left)| *left);
    state.metrics.access.authenticated(user, left, began.elapsed());
    found.map(|(user, _)| user)
}

async fn authorize(state: &State, user: &UserInfo, attributes: &Attributes, trail: &Trail) -> Result<(), Status> {
    let began = Instant::now();
    let outcome = state.authz.require_fresh(&state.caches, user, attributes).await;
    let by = outcome.as_ref().ok().and_then(|decision| decision.by);
    state.metrics.access.authorized(outcome.is_ok(), by, began.elapsed());
    let (decision, reason) = match &outcome {
        Ok(decision) => ("allow", decision.reason.clone()),
        Err(status) => ("forbid", status.message.clone()),
    };
    trail.annotate("authorization.k8s.io/decision", decision.to_owned());
    trail.annotate("authorization.k8s.io/reason", reason);
    outcome.map(drop)
}

/// Hands the request to the verb, or to one of the server's own documents.
async fn dispatch(
    state: Arc<State>,
    info: RequestInfo,
    row: Option<Arc<Resource>>,
    user: UserInfo,
    mut parts: http::request::Parts,
    body: Bytes,
    seen: &mut Seen<'_>,
) -> Result<Response<Body>, Status> {
    if info.is_long_running() {
        seen.serving = Some(state.metrics.open(&seen.labels));
    }
    if crate::walk::is_ours(&info) {
        return crate::walk::serve(&state, &info, &body);
    }
    if let Some(backend) = state.aggregation.of(&info) {
        return Ok(Box::pin(backend.forward(&state.forwarding(), &info, &user, parts, body)).await);
    }
    if !info.is_resource {
        return Box::pin(crate::endpoints::serve(&state, &info, parts, &user)).await;
    }
    let resource = row.ok_or_else(Status::no_such_path)?;
    if info.subresource.is_empty() || resource.subresource(&info.subresource).is_some() {
        seen.labels = Labels::of(&info, &parts.headers, resource.is_custom);
        if info.is_long_running() {
            seen.serving = Some(state.metrics.open(&seen.labels));
        }
    }
    if resource.is_namespaced() && info.namespace.is_empty() && !matches!(info.verb, Verb::List | Verb::Watch) {
        // All namespaces together can be read, where the resource can be listed at all. Upstream routes custom
        // resources by scope, and so finds nothing where others refuse the method.
        let is_collection = info.name.is_empty() || info.verb == Verb::DeleteCollection;
        let is_read_here = is_collection && resource.has_verb(&Verb::List) && !resource.is_custom;
        return Err(if is_read_here { Status::method_not_allowed() } else { Status::no_such_path() });
    }
    if info.verb == Verb::Create && !info.name.is_empty() && info.subresource.is_empty() {
        return Err(Status::method_not_allowed());
    }
    if matches!(info.verb, Verb::Update | Verb::Patch) && info.name.is_empty() {
        return Err(Status::method_not_allowed());
    }
    // The word in the path makes it a watch for who decides about it, whatever the method: that only GET is served.
    if info.verb == Verb::Watch && parts.method != http::Method::GET {
        return Err(Status::method_not_allowed());
    }
    // OPTIONS and the like are for what is behind the proxy.
    if info.verb == Verb::NONE && info.subresource != "proxy" {
        return Err(Status::method_not_allowed());
    }
    let accept = if info.is_long_running() && info.verb != Verb::Watch {
        // What is passed on is in the backend's form, not ours.
        Accept::parse(&http::HeaderMap::new(), &info)?
    } else {
        Accept::parse(&parts.headers, &info)?
    };
    let wants_protobuf = Accept::is_protobuf(&parts.headers);
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let warnings = Arc::new(Warnings::default());
    // On the heap: it goes through several futures, and each would hold it twice.
    let operation = Box::new(Operation {
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
        _place: seen.place.take(),
    });
    let mut response = match Box::pin(run(operation, upgrade)).await {
        Ok(response) => response,
        Err(status) if wants_protobuf => crate::status::protobuf_response(&status),
        Err(status) => crate::status::response(&status),
    };
    for warning in warnings.all() {
        let text = format!("299 - {}", api::field::quote(&warning));
        if let Ok(value) = HeaderValue::from_str(&text) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
    Ok(response)
}

/// Most resources are stored; what is not is answered by whoever knows.
async fn run(operation: Box<Operation>, upgrade: Option<hyper::upgrade::OnUpgrade>) -> Result<Response<Body>, Status> {
    let is_read = operation.info.subresource.is_empty() && matches!(operation.info.verb, Verb::Get | Verb::List);
    match operation.resource.serving {
        registry::Serving::ComponentStatuses if is_read => {
            Box::pin(crate::health::component_statuses(&operation)).await
        }
        registry::Serving::Metrics(of) if is_read => Box::pin(crate::resource_metrics::serve(&operation, of)).await,
        _ => crate::subresources::run(operation, upgrade).await,
    }
}

/// The client's audit id, or a new one.
fn audit_id(request: &Request<RequestBody>) -> HeaderValue {
    request.headers().get(AUDIT_ID).cloned().unwrap_or_else(|| {
        let id = unique_id();
        HeaderValue::from_str(&id).unwrap_or(HeaderValue::from_static(""))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let outcome = recover(async { panic!("on purpose") }).await;
        let _: () = if let Ok(()) = outcome {
            unreachable!("it panicked")
        };
        assert!(recover(async { 7 }).await.is_ok_and(|seven| seven == 7));
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_with_its_time() {
        let limit = Ok(Some(Duration::from_secs(60)));
        let late = within::<()>(limit.clone(), std::future::pending()).await.unwrap_err();
        assert_eq!(late.code(), 504);
        assert_eq!(within(limit, async { Ok(7) }).await.unwrap(), 7);
        assert_eq!(within(Ok(None), async { Ok(7) }).await.unwrap(), 7);
    }

    #[test]
    fn clients_may_shorten_the_limit_but_not_lengthen_it() {
        let minute = Duration::from_secs(60);
        for (url, expected) in [
            ("/api/v1/pods", Ok(Some(minute))),
            ("/api/v1/pods?timeout=5s", Ok(Some(Duration::from_secs(5)))),
            ("/api/v1/pods?timeout=1h", Ok(Some(minute))),
            ("/api/v1/pods?timeout=0", Ok(Some(minute))),
            ("/api/v1/pods?timeout=soon", Err(400)),
            ("/api/v1/pods?watch=1", Ok(None)),
            ("/api/v1/namespaces/a/pods/p/exec", Ok(None)),
        ] {
            let info = RequestInfo::new(&Method::GET, &url.parse().unwrap());
            assert_eq!(deadline(&info, minute).map_err(|status| status.code()), expected, "{url}");
        }
    }
}

//! One request: its route, its backend, its answer.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri, Version, header, request};
use http_body::Body;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

use super::access_log::Entry;
use super::body::{AnswerBody, Broken, RequestBody};
use super::headers::{Forwarded, edit, join_cookies, remove_of_connection, unclear_end, wanted_upgrade};
use super::pool::{ConnectError, Failure, Lease};
use super::request::{Refusal, Target, check};
use super::workers::Turn;
use super::{DataPlane, streams};
use crate::metrics::count_unrouted;
use crate::table::{
    Action, Asked, Backend, BackendProtocol, Bind, Cors, Filter, Found, PathEdit, Port, Redirect, Route, Table,
    Weighted,
};

/// Endpoints that are tried, as long as none was sent anything.
const ATTEMPTS: usize = 3;
/// Bodies up to here are copied for a mirror; larger ones are not mirrored.
const MAX_MIRRORED: u64 = 64 << 10;
const MIRROR_TIMEOUT: Duration = Duration::from_secs(30);

/// What is said in place of a backend.
pub(super) const TIMED_OUT: Refusal = (StatusCode::GATEWAY_TIMEOUT, "the backend did not answer in time");
pub(super) const UNANSWERED: Refusal = (StatusCode::BAD_GATEWAY, "the backend did not answer");
pub(super) const UNASKED: Refusal = (StatusCode::BAD_GATEWAY, "the backend answered what was not asked");

/// The connection that a request came on.
#[derive(Clone)]
pub(crate) struct Arrival {
    pub(crate) client: SocketAddr,
    pub(crate) bind: Bind,
    /// Of the worker that has it.
    pub(crate) turn: Arc<Turn>,
    pub(crate) is_secure: bool,
    /// What the client asked for before there was a request.
    pub(crate) server_name: Option<Arc<str>>,
    pub(crate) forwarded: Forwarded,
}

/// An answer of our own.
pub(crate) fn text(code: StatusCode, text: &str) -> Response<AnswerBody> {
    let mut response = Response::new(AnswerBody::Text(Full::new(Bytes::from(format!("{text}\n")))));
    *response.status_mut() = code;
    let kind = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Why no endpoint answered.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("the backend has no endpoints")]
    NoEndpoints,
    #[error("{0}: {1}")]
    Connect(SocketAddr, ConnectError),
    #[error("{0}: {1}")]
    Exchange(SocketAddr, hyper::Error),
}

/// What is known once a route was found.
struct Exchange<'a> {
    plane: &'a Arc<DataPlane>,
    arrival: &'a Arrival,
    route: &'a Route,
    target: Target,
    /// How much of the path the rule's prefix takes.
    matched: usize,
    deadline: Option<Instant>,
}

impl DataPlane {
    pub(crate) async fn answer(
        self: &Arc<Self>,
        arrival: &Arrival,
        request: Request<Incoming>,
    ) -> Response<AnswerBody> {
        let began = Instant::now();
        let (mut parts, body) = request.into_parts();
        let is_head = parts.method == http::Method::HEAD;
        let checked = check(&parts);
        // What is used up on the way.
        let logged = self.log.is_on().then(|| {
            let (host, path) = match &checked {
                Ok(target) => (target.host.clone(), target.path.clone()),
                Err(_) => (String::new(), parts.uri.path().to_owned()),
            };
            (parts.method.clone(), host, path, parts.headers.get(header::USER_AGENT).cloned())
        });
        let mut found_route = None;
        let mut response = match checked {
            Err((code, why)) => closing(text(code, why)),
            Ok(target) => match self.find(arrival, &target, &parts) {
                Err((code, why)) => text(code, why),
                Ok((route, matched)) => {
                    let route = &**found_route.insert(route);
                    let deadline = route.timeout.map(|timeout| began + timeout);
                    let exchange = Exchange { plane: self, arrival, route, target, matched, deadline };
                    exchange.run(&mut parts, body).await
                }
            },
        };
        if is_head && matches!(response.body(), AnswerBody::Text(_)) {
            *response.body_mut() = AnswerBody::Text(Full::default());
        }
        let (code, took) = (response.status().as_u16(), began.elapsed());
        match &found_route {
            Some(route) => route.metrics.count(&self.metrics, &route.name, code, took),
            None => count_unrouted(&self.metrics, code),
        }
        if let Some((method, host, path, agent)) = &logged {
            let route = found_route.as_ref().map_or("", |route| route.name.as_str());
            let agent = agent.as_ref().map_or(&b""[..], HeaderValue::as_bytes);
            let (client, seconds) = (arrival.client, took.as_secs_f64());
            self.log.write(&Entry { client, method, host, path, agent, route, code, seconds });
        }
        response
    }

    /// The route of a request, and how much of the path its prefix takes. What else is in the table is let go of: a request may
    /// outlive many tables.
    fn find(&self, arrival: &Arrival, target: &Target, parts: &request::Parts) -> Result<(Arc<Route>, usize), Refusal> {
        let table = self.table.load();
        let (path, query, method, headers) = (&target.path, parts.uri.query(), &parts.method, &parts.headers);
        let asked = Asked { path, query, method, headers };
        find(&table, arrival, &target.host, &asked).map(|found| (found.route.clone(), found.matched))
    }
}

/// What a connection is no longer trusted after.
fn closing(mut response: Response<AnswerBody>) -> Response<AnswerBody> {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// What the table has for a request.
pub(super) fn find<'a>(
    table: &'a Table,
    arrival: &Arrival,
    host: &str,
    asked: &Asked<'_>,
) -> Result<Found<'a>, Refusal> {
    const NOWHERE: (StatusCode, &str) = (StatusCode::NOT_FOUND, "no route for this host and path");
    let port: &Port = table.ports.get(&arrival.bind).ok_or(NOWHERE)?;
    let listener = port.listeners.best(host).ok_or(NOWHERE)?;
    // A connection that was made for one listener's hosts says nothing about another's.
    if arrival.is_secure && port.named(arrival.server_name.as_deref()).is_none_or(|named| !Arc::ptr_eq(named, listener))
    {
        return Err((StatusCode::MISDIRECTED_REQUEST, "this host is served on another connection"));
    }
    listener.hosts.matching(host).find_map(|rules| rules.find(asked)).ok_or(NOWHERE)
}

impl Exchange<'_> {
    async fn run(self, parts: &mut request::Parts, body: Incoming) -> Response<AnswerBody> {
        let cors = self.route.filters.iter().find_map(Filter::cors);
        let origin = cors.and_then(|_| parts.headers.get(header::ORIGIN).cloned());
        if let Some(cors) = cors.filter(|_| Cors::is_preflight(&parts.method, &parts.headers)) {
            let mut response = Response::new(AnswerBody::Text(Full::default()));
            *response.status_mut() = StatusCode::NO_CONTENT;
            *response.headers_mut() = cors.preflight(&parts.headers);
            return response;
        }
        let mut response = match &self.route.action {
            Action::Refuse(code) => text(*code, "this route leads nowhere"),
            Action::Redirect(redirect) => self.redirect(redirect, parts),
            Action::Forward(backends) => match choose(backends) {
                None => text(StatusCode::INTERNAL_SERVER_ERROR, "this route leads nowhere"),
                Some(Weighted { backend: None, .. }) => {
                    text(StatusCode::INTERNAL_SERVER_ERROR, "this backend does not exist")
                }
                Some(Weighted { backend: Some(backend), filters, .. }) => {
                    let mut response = self.forward(parts, body, backend, filters).await;
                    edit_response(&mut response, filters);
                    response
                }
            },
        };
        edit_response(&mut response, &self.route.filters);
        if let Some(cors) = cors {
            cors.apply(origin.as_ref(), response.headers_mut());
        }
        response
    }

    fn redirect(&self, redirect: &Redirect, parts: &request::Parts) -> Response<AnswerBody> {
        let scheme = redirect.scheme.unwrap_or(if self.arrival.is_secure { "https" } else { "http" });
        let host = redirect.hostname.as_deref().unwrap_or(&self.target.host);
        let usual = if scheme == "https" { 443 } else { 80 };
        let port = match (redirect.port, redirect.scheme) {
            (Some(port), _) => port,
            (None, Some(_)) => usual,
            (None, None) => self.arrival.bind.port,
        };
        let port = if port == usual { String::new() } else { format!(":{port}") };
        let path = redirect
            .path
            .as_ref()
            .map_or_else(|| parts.uri.path().to_owned(), |edit| edit.apply(&self.target.path, self.matched));
        let query = parts.uri.query().map(|query| format!("?{query}")).unwrap_or_default();
        let mut response = text(redirect.code, "moved");
        match HeaderValue::from_str(&format!("{scheme}://{host}{port}{path}{query}")) {
            Ok(location) => response.headers_mut().insert(header::LOCATION, location),
            Err(_) => return text(StatusCode::INTERNAL_SERVER_ERROR, "this route leads nowhere"),
        };
        response
    }

    async fn forward(
        &self,
        parts: &mut request::Parts,
        body: Incoming,
        backend: &Arc<Backend>,
        filters: &[Filter],
    ) -> Response<AnswerBody> {
        if backend.endpoints.is_empty() {
            return text(StatusCode::SERVICE_UNAVAILABLE, "no endpoints available");
        }
        let limits = &self.plane.limits;
        if limits.max_body.is_some_and(|limit| body.size_hint().lower() > limit) {
            return closing(text(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large"));
        }
        let upgrade = match parts.version {
            Version::HTTP_11 if backend.protocol == BackendProtocol::Http1 => wanted_upgrade(&parts.headers),
            _ => None,
        };
        let client_upgrade = upgrade.as_ref().and_then(|_| parts.extensions.remove::<OnUpgrade>());
        let mut body = RequestBody::new(body, limits.max_body, limits.body_silence);
        let all_filters = || self.route.filters.iter().chain(filters);
        if all_filters().any(|filter| matches!(filter, Filter::Mirror { .. })) && upgrade.is_none() {
            body = match self.mirror(parts, body, all_filters()).await {
                Ok(body) => body,
                Err(broken) => return refused(broken),
            };
        }
        let headers = std::mem::take(&mut parts.headers);
        let head = match self.head(parts, headers, backend, upgrade.clone(), all_filters()) {
            Some(head) => head,
            None => return text(StatusCode::INTERNAL_SERVER_ERROR, "this route leads nowhere"),
        };
        let request = Request::from_parts(head, body.clone());
        let timeout = self.route.backend_timeout.unwrap_or(limits.answer);
        let until = Instant::now() + timeout;
        let until = self.deadline.map_or(until, |deadline| deadline.min(until));
        let sent = tokio::time::timeout_at(until, self.send(backend, request)).await;
        let (response, lease) = match sent {
            Err(_) => return text(TIMED_OUT.0, TIMED_OUT.1),
            Ok(Err(why)) => {
                if let Some(broken) = body.broken() {
                    return refused(broken);
                }
                tracing::debug!(route = self.route.name, backend = backend.name, %why, "no answer from a backend");
                return text(UNANSWERED.0, UNANSWERED.1);
            }
            Ok(Ok(sent)) => sent,
        };
        self.respond(response, lease, upgrade.zip(client_upgrade))
    }

    /// The request as the backend gets it.
    fn head<'f>(
        &self,
        parts: &request::Parts,
        headers: HeaderMap,
        backend: &Backend,
        upgrade: Option<HeaderValue>,
        filters: impl Iterator<Item = &'f Filter>,
    ) -> Option<request::Parts> {
        let (mut head, ()) = Request::new(()).into_parts();
        head.method = parts.method.clone();
        head.headers = headers;
        let headers = &mut head.headers;
        remove_of_connection(headers);
        let given = headers.get(header::HOST).filter(|_| parts.uri.authority().is_none()).cloned();
        let mut host = given.or_else(|| HeaderValue::from_str(&self.target.authority).ok())?;
        self.arrival.forwarded.set(headers, &host);
        let mut target = parts.uri.path_and_query().cloned()?;
        for filter in filters {
            match filter {
                Filter::RequestHeaders(edits) => edit(headers, edits),
                Filter::Rewrite { hostname, path } => {
                    if let Some(hostname) = hostname {
                        host = hostname.clone();
                    }
                    if let Some(path) = path {
                        target = self.rewritten(path, parts.uri.query())?;
                    }
                }
                Filter::ResponseHeaders(_) | Filter::Mirror { .. } | Filter::Cors(_) => {}
            }
        }
        match backend.protocol {
            BackendProtocol::Http1 => {
                head.version = Version::HTTP_11;
                head.uri = target.into();
                headers.remove(header::TE);
                join_cookies(headers);
                if let Some(protocol) = upgrade {
                    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                    headers.insert(header::UPGRADE, protocol);
                }
                headers.insert(header::HOST, host);
            }
            BackendProtocol::Http2 => {
                head.version = Version::HTTP_2;
                headers.remove(header::HOST);
                let authority = match host.is_empty() {
                    true => "localhost",
                    false => host.to_str().ok()?,
                };
                let scheme = if backend.tls.is_some() { "https" } else { "http" };
                head.uri = Uri::builder().scheme(scheme).authority(authority).path_and_query(target).build().ok()?;
            }
        }
        Some(head)
    }

    fn rewritten(&self, edit: &PathEdit, query: Option<&str>) -> Option<PathAndQuery> {
        let path = edit.apply(&self.target.path, self.matched);
        let path = if path.starts_with('/') { path } else { format!("/{path}") };
        query.map_or_else(|| path.clone(), |query| format!("{path}?{query}")).parse().ok()
    }

    /// Goes from endpoint to endpoint while nothing was sent to any.
    async fn send(
        &self,
        backend: &Backend,
        mut request: Request<RequestBody>,
    ) -> Result<(Response<Incoming>, Option<Lease>), NoAnswer> {
        let mut why = NoAnswer::NoEndpoints;
        for endpoint in attempts(&backend.endpoints) {
            match self.plane.pool(self.arrival.turn.worker).send(endpoint, backend, request).await {
                Ok(sent) => return Ok(sent),
                Err(Failure::Exchange(error)) => return Err(NoAnswer::Exchange(endpoint, error)),
                Err(Failure::Connect(unsent, error)) => {
                    tracing::debug!(%endpoint, backend = backend.name, %error, "endpoint not reached");
                    why = NoAnswer::Connect(endpoint, error);
                    if unsent.body().has_begun() {
                        break;
                    }
                    request = *unsent;
                }
            }
        }
        Err(why)
    }

    fn respond(
        &self,
        mut response: Response<Incoming>,
        lease: Option<Lease>,
        upgrade: Option<(HeaderValue, OnUpgrade)>,
    ) -> Response<AnswerBody> {
        let is_switch = response.status() == StatusCode::SWITCHING_PROTOCOLS;
        match (is_switch, upgrade) {
            (true, Some((protocol, client))) => {
                let backend = hyper::upgrade::on(&mut response);
                let (stop, turn) = (self.plane.stop.clone(), self.arrival.turn.clone());
                // The connection is not one of requests any more.
                drop(lease);
                self.plane.tasks.spawn(FutureExt::boxed(async move {
                    tokio::select! {
                        () = join(client, backend) => {}
                        () = stop.cancelled() => {}
                    }
                    drop(turn);
                }));
                let headers = response.headers_mut();
                remove_of_connection(headers);
                headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
                headers.insert(header::UPGRADE, protocol);
                response.map(|body| AnswerBody::backend(body, None, None))
            }
            (true, None) => text(UNASKED.0, UNASKED.1),
            (false, _) => {
                if let Some(why) = unclear_end(response.headers()) {
                    tracing::debug!(route = self.route.name, why, "no answer from a backend");
                    return text(UNANSWERED.0, UNANSWERED.1);
                }
                remove_of_connection(response.headers_mut());
                response.headers_mut().remove(header::TE);
                *response.version_mut() = Version::default();
                response.map(|body| AnswerBody::backend(body, lease, self.deadline))
            }
        }
    }

    /// Sends copies of a request with a small body; the body comes back.
    async fn mirror<'f>(
        &self,
        parts: &request::Parts,
        body: RequestBody,
        filters: impl Iterator<Item = &'f Filter> + Clone,
    ) -> Result<RequestBody, Broken> {
        if body.size_hint().upper().is_none_or(|length| length > MAX_MIRRORED) {
            return Ok(body);
        }
        let bytes = body.collect().await?.to_bytes();
        let mirrors = filters.clone().filter_map(|filter| match filter {
            Filter::Mirror { backend, share: (part, of) } => Some((backend, *part, *of)),
            _ => None,
        });
        for (backend, part, of) in mirrors {
            if rand::random_range(0..of.max(1)) >= part || backend.endpoints.is_empty() {
                continue;
            }
            let headers = parts.headers.clone();
            let Some(head) = self.head(parts, headers, backend, None, filters.clone()) else { continue };
            let request = Request::from_parts(head, RequestBody::whole(bytes.clone()));
            let (plane, backend, worker) = (self.plane.clone(), backend.clone(), self.arrival.turn.worker);
            self.plane.tasks.spawn(FutureExt::boxed(async move {
                let endpoint = backend.endpoints[rand::random_range(0..backend.endpoints.len())];
                let exchange = async {
                    if let Ok((response, lease)) = plane.pool(worker).send(endpoint, &backend, request).await {
                        let mut body = AnswerBody::backend(response.into_body(), lease, None);
                        while let Some(Ok(_)) = body.frame().await {}
                    }
                };
                let _ = tokio::time::timeout(MIRROR_TIMEOUT, exchange).await;
            }));
        }
        Ok(RequestBody::whole(bytes))
    }
}

fn edit_response(response: &mut Response<AnswerBody>, filters: &[Filter]) {
    for filter in filters {
        if let Filter::ResponseHeaders(edits) = filter {
            edit(response.headers_mut(), edits);
        }
    }
}

fn refused(broken: Broken) -> Response<AnswerBody> {
    let (code, why) = broken.refusal();
    closing(text(code, why))
}

/// The endpoints that are tried for a request, in this order: one at random, and others if it is not reached.
pub(super) fn attempts(endpoints: &[SocketAddr]) -> impl Iterator<Item = SocketAddr> {
    let count = endpoints.len();
    let first = if count == 0 { 0 } else { rand::random_range(0..count) };
    (first..first + ATTEMPTS.min(count.max(2))).filter_map(move |at| endpoints.get(at.checked_rem(count)?).copied())
}

/// By weight; none if none has any.
pub(crate) fn choose(backends: &[Weighted]) -> Option<&Weighted> {
    if let [only] = backends {
        return Some(only).filter(|only| only.weight > 0);
    }
    let total: u64 = backends.iter().map(|backend| u64::from(backend.weight)).sum();
    if total == 0 {
        return None;
    }
    let mut at = rand::random_range(0..total);
    backends.iter().find(|backend| match at.checked_sub(u64::from(backend.weight)) {
        Some(left) => {
            at = left;
            false
        }
        None => true,
    })
}

/// Joins both ends until one of them is done.
async fn join(client: OnUpgrade, backend: OnUpgrade) {
    let (client, backend): (Result<Upgraded, _>, Result<Upgraded, _>) = tokio::join!(client, backend);
    match (client, backend) {
        (Ok(client), Ok(backend)) => streams::copy(TokioIo::new(client), TokioIo::new(backend)).await,
        (Err(error), _) | (_, Err(error)) => tracing::debug!(%error, "upgrade failed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_shared_by_weight() {
        let backend = |weight| Weighted { weight, backend: None, filters: Vec::new() };
        assert!(choose(&[]).is_none());
        assert!(choose(&[backend(0)]).is_none());
        assert!(choose(&[backend(0), backend(0)]).is_none());
        let backends = [backend(1), backend(0), backend(3)];
        let mut counts = [0; 4];
        for _ in 0..4000 {
            counts[choose(&backends).unwrap().weight as usize] += 1;
        }
        assert_eq!(counts[0] + counts[2], 0);
        assert!((700..1300).contains(&counts[1]), "{counts:?}");
    }
}

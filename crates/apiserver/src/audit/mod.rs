//! Audit: who asked for what, and what came of it.
//!
//! Flow: the chain opens a [`Trail`] per request -> the policy says how much to record -> events at each stage -> sinks.
//! Whatever ends a request (an answer, a refusal, a panic, a client that leaves) ends its trail with an event.

mod event;
mod log;
mod policy;
mod sink;
mod truncate;

use std::net::SocketAddr;
use std::sync::Arc;

use api::{Status, UserInfo};
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use http::{HeaderMap, Response, header};
use http_body_util::BodyExt;
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::Value;
use tls::Reloading;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use event::{AuthenticationMetadata, Event, ObjectRef, ResponseStatus, without_managed_fields};
use policy::{Level, Policy, Stage, Verdict};
use sink::{Backend, Sink};

use crate::authz::Attributes;
use crate::body::{Body, full, guarded, stream};
use crate::config::AuditConfig;

/// User agents longer than this are cut.
const MAX_AGENT: usize = 1024;
/// Answers longer than this are not recorded: an aggregated server may send more than there is room for, and never end.
const MAX_ANSWER: usize = 16 << 20;

pub(crate) struct Audit {
    policy: Reloading<Policy>,
    sinks: Vec<Sink>,
}

impl Audit {
    /// `None` if nothing is to be recorded. Batches are sent by `tasks` until `stop` fires.
    pub(crate) fn new(
        config: &AuditConfig,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> anyhow::Result<Option<Arc<Self>>> {
        let mut sinks = Vec::new();
        if let Some((log, mode)) = &config.log {
            let backend = Backend::Log(log::Log::open(log.clone())?);
            sinks.push(Sink::new(backend, *mode, config.log_truncation, tasks, stop));
        }
        if let Some((path, mode)) = &config.webhook {
            let remote = crate::remote::Remote::from_kubeconfig(path)?;
            sinks.push(Sink::new(Backend::Webhook(remote), *mode, config.webhook_truncation, tasks, stop));
        }
        let policy = Reloading::new(config.policy_file.iter().cloned().collect(), policy::load)?;
        Ok((!sinks.is_empty()).then(|| Arc::new(Self { policy, sinks })))
    }
}

/// Events that were lost because a sink had no room or failed, by plug-in.
pub(crate) fn lost() -> [(&'static str, u64); 2] {
    sink::lost()
}

/// The trail of one request; does nothing where nothing is recorded.
#[derive(Clone)]
pub(crate) struct Trail(Option<Arc<Open>>);

struct Open {
    audit: Arc<Audit>,
    state: Mutex<Recording>,
}

struct Recording {
    event: Event,
    /// Set once the policy was asked; nothing is recorded before.
    verdict: Option<Verdict>,
    is_over: bool,
}

tokio::task_local! {
    static CURRENT: Trail;
}

/// Adds a note to the event of the request that is being served; the first one under a key stays.
pub(crate) fn annotate(key: &str, value: impl Into<String>) {
    let _ = CURRENT.try_with(|trail| trail.annotate(key, value.into()));
}

/// Work that another task does for the request that is being served: its notes belong to that request's event.
pub(crate) fn carried<T>(work: BoxFuture<'_, T>) -> impl Future<Output = T> {
    let trail = CURRENT.try_with(Clone::clone).unwrap_or(Trail(None));
    async move { trail.follow(work).await }
}

impl Trail {
    pub(crate) fn open(
        audit: Option<&Arc<Audit>>,
        id: &str,
        uri: &http::Uri,
        headers: &HeaderMap,
        peer: Option<SocketAddr>,
    ) -> Self {
        let Some(audit) = audit else { return Self(None) };
        let now = Timestamp::now();
        let event = Event {
            kind: "Event",
            api_version: "audit.k8s.io/v1",
            level: Level::None,
            audit_id: id.to_owned(),
            stage: Stage::RequestReceived,
            request_uri: uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
            verb: registry::Verb::NONE,
            user: UserInfo::default(),
            impersonated_user: None,
            authentication_metadata: None,
            source_ips: source_ips(headers, peer),
            user_agent: user_agent(headers),
            object_ref: None,
            response_status: None,
            request_object: None,
            response_object: None,
            request_received_timestamp: now,
            stage_timestamp: now,
            annotations: Default::default(),
        };
        let state = Mutex::new(Recording { event, verdict: None, is_over: false });
        Self(Some(Arc::new(Open { audit: audit.clone(), state })))
    }

    /// Runs a future whose [`annotate`] calls belong to this trail.
    pub(crate) async fn follow<T>(&self, work: BoxFuture<'_, T>) -> T {
        match self.0 {
            None => work.await,
            Some(_) => CURRENT.scope(self.clone(), work).await,
        }
    }

    /// Asks the policy and records that a request came in. `user` is `None` if nobody could be made out.
    pub(crate) async fn received(&self, user: Option<&UserInfo>, request: &Attributes) -> Result<(), Status> {
        let Some(open) = &self.0 else { return Ok(()) };
        let verdict = open.audit.policy.get().judge(user, request);
        {
            let mut state = open.state.lock();
            state.event.level = verdict.level;
            state.event.verb = request.verb.clone();
            state.event.user = user.cloned().unwrap_or_default();
            state.event.object_ref = request.is_resource.then(|| ObjectRef::from(request));
            state.verdict = Some(verdict);
        }
        let Some(line) = open.line(Stage::RequestReceived) else { return Ok(()) };
        for sink in &open.audit.sinks {
            if sink.accept(line.clone()).await.is_err() && sink.is_strict() {
                return Err(Status::internal("failed to store audit event"));
            }
        }
        Ok(())
    }

    /// The request is somebody else's from here on, by this constrained right if it took one.
    pub(crate) fn impersonated(&self, user: &UserInfo, constraint: Option<String>) {
        self.change(Level::Metadata, |event, _| {
            event.impersonated_user = Some(user.clone());
            event.authentication_metadata =
                constraint.map(|constraint| AuthenticationMetadata { impersonation_constraint: constraint });
        });
    }

    pub(crate) fn annotate(&self, key: &str, value: String) {
        if let Some(open) = &self.0 {
            open.state.lock().event.annotations.entry(key.to_owned()).or_insert(value);
        }
    }

    /// Records what was sent.
    pub(crate) fn request_body(&self, content_type: &str, body: &Bytes) {
        if body.is_empty() {
            return;
        }
        self.change(Level::Metadata, |event, verdict| {
            let wants_name = event.object_ref.as_ref().is_some_and(|object| object.name.is_empty());
            if verdict.level < Level::Request && !wants_name {
                return;
            }
            let Some(mut value) = decode(content_type, body) else { return };
            if let Some(object) = &mut event.object_ref {
                object.complete(&value);
            }
            if verdict.level >= Level::Request {
                if verdict.omit_managed_fields {
                    without_managed_fields(&mut value);
                }
                event.request_object = Some(value);
            }
        });
    }

    pub(crate) fn wants_response_body(&self) -> bool {
        let verdict = self.0.as_ref().and_then(|open| open.state.lock().verdict.clone());
        verdict.is_some_and(|verdict| verdict.level >= Level::RequestResponse)
    }

    /// Records the answer. A long-running one is recorded again when its body has ended.
    pub(crate) async fn answered(&self, response: Response<Body>, long_running: bool) -> Response<Body> {
        match &self.0 {
            None => response,
            Some(open) => Box::pin(open.answered(response, long_running)).await,
        }
    }

    /// Records that serving the request went wrong beyond an answer.
    pub(crate) async fn panicked(&self) {
        let Some(open) = &self.0 else { return };
        open.state.lock().event.response_status =
            Some(ResponseStatus::new(500, Some(&Status::internal("APIServer panic'd"))));
        Box::pin(open.emit(Stage::Panic)).await;
        open.state.lock().is_over = true;
    }

    fn change(&self, level: Level, change: impl FnOnce(&mut Event, &Verdict)) {
        let Some(open) = &self.0 else { return };
        let mut state = open.state.lock();
        let Recording { event, verdict, .. } = &mut *state;
        if let Some(verdict) = verdict.as_ref().filter(|verdict| verdict.level >= level) {
            change(event, verdict);
        }
    }
}

/// Ends the trail of a long-running request with its body.
struct Finish(Trail);

impl Drop for Finish {
    fn drop(&mut self) {
        if let Some(open) = &self.0.0 {
            open.finish_now();
        }
    }
}

impl Open {
    async fn answered(self: &Arc<Self>, response: Response<Body>, long_running: bool) -> Response<Body> {
        let Some(verdict) = self.state.lock().verdict.clone() else { return response };
        let status = ResponseStatus::new(response.status().as_u16(), response.extensions().get::<Status>());
        self.state.lock().event.response_status = Some(status);
        if long_running {
            self.emit(Stage::ResponseStarted).await;
            let trail = Trail(Some(self.clone()));
            return response.map(|body| guarded(body, Finish(trail)));
        }
        let response = if verdict.level >= Level::RequestResponse {
            self.keep_body(response, verdict.omit_managed_fields).await
        } else {
            response
        };
        self.finish().await;
        response
    }

    /// The event at a stage as a line, if the policy wants it.
    fn line(&self, stage: Stage) -> Option<Bytes> {
        let mut state = self.state.lock();
        let verdict = state.verdict.as_ref()?;
        if state.is_over || verdict.level == Level::None || verdict.omit_stages.contains(&stage) {
            return None;
        }
        state.event.stage = stage;
        let now = Timestamp::now();
        state.event.stage_timestamp =
            if stage == Stage::RequestReceived { state.event.request_received_timestamp } else { now };
        serde_json::to_vec(&state.event).ok().map(Bytes::from)
    }

    async fn emit(&self, stage: Stage) {
        let Some(line) = self.line(stage) else { return };
        for sink in &self.audit.sinks {
            // Reported and counted by the sink; the answer is out already.
            let _ = sink.accept(line.clone()).await;
        }
    }

    async fn finish(&self) {
        self.emit(Stage::ResponseComplete).await;
        self.state.lock().is_over = true;
    }

    fn finish_now(&self) {
        if let Some(line) = self.line(Stage::ResponseComplete) {
            self.audit.sinks.iter().for_each(|sink| sink.accept_now(line.clone()));
        }
        self.state.lock().is_over = true;
    }

    async fn keep_body(&self, response: Response<Body>, omit_managed_fields: bool) -> Response<Body> {
        let (parts, body) = response.into_parts();
        let (kept, body) = kept(body, MAX_ANSWER).await;
        let content_type = parts.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let value = match kept {
            Kept::Whole(bytes) => decode(content_type.unwrap_or_default(), &bytes),
            Kept::CutOff => None,
            Kept::TooLong => {
                let mut state = self.state.lock();
                state.event.annotations.insert("audit.k8s.io/truncated".to_owned(), "true".to_owned());
                None
            }
        };
        if let Some(mut value) = value {
            if omit_managed_fields {
                without_managed_fields(&mut value);
            }
            self.state.lock().event.response_object = Some(value);
        }
        Response::from_parts(parts, body)
    }
}

impl Drop for Open {
    /// The client left, or the time was over, before there was an answer.
    fn drop(&mut self) {
        let is_open = {
            let mut state = self.state.lock();
            let is_open = state.verdict.is_some() && !state.is_over;
            if is_open && state.event.response_status.is_none() {
                let mut status = ResponseStatus::new(200, None);
                status.status = "Success".to_owned();
                status.message = "Connection closed early".to_owned();
                state.event.response_status = Some(status);
            }
            is_open
        };
        if is_open {
            self.finish_now();
        }
    }
}

/// What there is of a body to record.
#[derive(Debug, PartialEq)]
enum Kept {
    Whole(Bytes),
    CutOff,
    TooLong,
}

/// A body for the event, and again for the client, who sees one that was cut off cut off, and of a long one all that comes.
async fn kept(mut body: Body, limit: usize) -> (Kept, Body) {
    let mut kept = BytesMut::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => {
                if let Ok(piece) = frame.into_data() {
                    kept.extend_from_slice(&piece);
                }
            }
            Err(error) => {
                let sent = [Ok(kept.freeze()), Err(error)];
                return (Kept::CutOff, stream(futures_util::stream::iter(sent)));
            }
        }
        if kept.len() > limit {
            let sent = futures_util::stream::iter([Ok(kept.freeze())]);
            return (Kept::TooLong, stream(sent.chain(body.into_data_stream())));
        }
    }
    let kept = kept.freeze();
    (Kept::Whole(kept.clone()), full(kept))
}

/// A body as a value; `None` for what is not an object in a form we know.
fn decode(content_type: &str, body: &[u8]) -> Option<Value> {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    match media {
        "application/yaml" | "application/apply-patch+yaml" => {
            api::codec::from_yaml(body).ok().map(|found| found.value)
        }
        crate::protobuf::CONTENT_TYPE => crate::protobuf::decode(body).ok(),
        "" | "application/json" => serde_json::from_slice(body).ok(),
        patch if patch.ends_with("+json") => serde_json::from_slice(body).ok(),
        _ => None,
    }
}

/// Where a request came from: what proxies say first, the connection last.
fn source_ips(headers: &HeaderMap, peer: Option<SocketAddr>) -> Vec<String> {
    let values = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let mut found: Vec<String> = values("x-forwarded-for")
        .split(',')
        .chain(values("x-real-ip").split(','))
        .filter_map(|text| text.trim().parse::<std::net::IpAddr>().ok())
        .map(|ip| ip.to_string())
        .collect();
    found.push(peer.map_or_else(|| "127.0.0.1".to_owned(), |address| address.ip().to_string()));
    found.dedup();
    found
}

fn user_agent(headers: &HeaderMap) -> String {
    let mut agent =
        headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    if agent.len() > MAX_AGENT {
        let end = (0..=MAX_AGENT).rev().find(|end| agent.is_char_boundary(*end)).unwrap_or(0);
        agent.truncate(end);
        agent.push_str("...TRUNCATED");
    }
    agent
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_was_cut_off_is_not_sent_as_an_empty_one() {
        let pieces = [Ok(Bytes::from_static(b"{")), Err(crate::body::BodyError::from("reset by peer"))];
        let (found, body) = kept(stream(futures_util::stream::iter(pieces)), 100).await;
        assert!(found == Kept::CutOff && body.collect().await.is_err());
        let (found, body) = kept(full("{}"), 100).await;
        assert_eq!(found, Kept::Whole(Bytes::from_static(b"{}")));
        assert_eq!(&body.collect().await.unwrap().to_bytes()[..], b"{}");
    }

    #[tokio::test]
    async fn security_answers_without_end_are_passed_on_and_not_recorded() {
        let endless = stream(futures_util::stream::repeat_with(|| Ok(Bytes::from_static(b"0123456789"))));
        let (found, body) = kept(endless, 100).await;
        assert_eq!(found, Kept::TooLong);
        let first = body.into_data_stream().take(3).map(|piece| piece.unwrap().len()).collect::<Vec<_>>().await;
        assert_eq!(first, [110, 10, 10]);
    }
}

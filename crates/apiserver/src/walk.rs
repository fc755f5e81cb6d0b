//! The trace at the API server: spans of requests and commits, and the door through which spans come in and go out.
//!
//! A request's span is caused by what its header names. Its filters, plug-ins and checks are laps of it; the commit has a
//! span of its own, named by the resource version, so that a watch event is enough to know its cause.
//! `GET /cox/trace?object=deploy/web[&namespace=…][&watch=true]` tells an object's walk; `POST /cox/trace` takes the
//! spans of components in other processes; `/cox/ui/` is the page. All are non-resource URLs, authorized like any other.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::Status;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use registry::{Resource, Verb};
use serde::Deserialize;
use trace::{Causes, Outcome, Recorder, Span, Stage, Walk, Work};

use crate::body::{Body, BodyError, response, stream};
use crate::request_info::RequestInfo;
use crate::state::State;

const ACTOR: &str = "kube-apiserver";
const CAUSE: HeaderName = HeaderName::from_static(trace::CAUSE_HEADER);
const CLIENT: HeaderName = HeaderName::from_static(trace::CLIENT_HEADER);
/// Spans come in quick succession; whoever follows a walk gets them together.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
/// How far back a client's clock is believed.
const LONGEST_COMMAND: u64 = 600_000_000_000;
/// What a command may say of itself, and how many spans a component may send at a time.
const MAX_COMMAND: usize = 16 << 10;
const MAX_BATCH: usize = 5000;

/// A request under way, and what its client says of the command that sent it. Nothing of either is remembered before
/// the request is authorized: the trace is a ring, and a stranger could have it forget.
pub(crate) struct Served<'a> {
    pub(crate) work: Work,
    command: Option<(Arc<Recorder>, HeaderValue)>,
    authorized: &'a AtomicBool,
}

impl Drop for Served<'_> {
    /// Also for a client that leaves while it is still being asked who it is.
    fn drop(&mut self) {
        if !self.authorized.load(Ordering::Relaxed) {
            std::mem::replace(&mut self.work, Work::nobodys()).discard();
        }
    }
}

/// The span of a request that changes something, or that belongs to something that does.
pub(crate) fn open<'a>(
    state: &State,
    info: &RequestInfo,
    method: &Method,
    headers: &HeaderMap,
    authorized: &'a AtomicBool,
) -> Served<'a> {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    let (causes, client) = (text(CAUSE), text(CLIENT));
    let writes = matches!(info.verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection);
    // What a command reads on its way is in its own span.
    let belongs = causes.is_some() && client.is_none() && !info.is_long_running();
    let is_kept = info.is_resource && (writes || belongs) && !is_noise(info) && state.config.trace_bytes > 0;
    let is_exported = state.trace.exporting().is_some();
    if !is_kept && !is_exported {
        return Served { work: Work::nobodys(), command: None, authorized };
    }
    let causes = causes.map(Causes::parse).unwrap_or_default();
    let slash = if info.namespace.is_empty() { "" } else { "/" };
    let object = format_args!("{}/{}{slash}{}", info.resource, info.namespace, info.name);
    let mut work = match info.is_resource {
        true => Work::root(&state.trace, &causes, Stage::Request, ACTOR, object),
        false => Work::root(&state.trace, &causes, Stage::Request, ACTOR, ""),
    };
    work.detail(info.verb.as_str());
    if is_exported {
        describe_request(&mut work, info, method, headers);
    }
    if !is_kept {
        work.only_export();
    }
    if !info.subresource.is_empty() {
        work.append_detail(&info.subresource);
    }
    let shown = headers.get(CLIENT).filter(|shown| is_kept && shown.len() <= MAX_COMMAND);
    let command = shown.map(|shown| (state.trace.clone(), shown.clone()));
    Served { work, command, authorized }
}

/// What a collector is told of a request, in the names that upstream gives it.
fn describe_request(work: &mut Work, info: &RequestInfo, method: &Method, headers: &HeaderMap) {
    match info.is_resource {
        true => {
            let prefix = if info.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", info.group) };
            let namespace = if info.namespace.is_empty() { "" } else { "/namespaces/{:namespace}" };
            let name = if info.name.is_empty() { "" } else { "/{:name}" };
            let slash = if info.subresource.is_empty() { "" } else { "/" };
            let (version, resource, subresource) = (&info.version, &info.resource, &info.subresource);
            work.title(format_args!("{method} {prefix}/{version}{namespace}/{resource}{name}{slash}{subresource}"));
        }
        false => work.title(method),
    }
    work.attribute("http.method", method);
    let mark = if info.raw_query.is_empty() { "" } else { "?" };
    work.attribute("http.target", format_args!("{}{mark}{}", info.path, info.raw_query));
    if let Some(agent) = headers.get(header::USER_AGENT).and_then(|agent| agent.to_str().ok()) {
        work.attribute("http.user_agent", agent);
    }
}

/// Heartbeats, reports for people and questions about rights: many, and nothing follows from them.
fn is_noise(info: &RequestInfo) -> bool {
    matches!(info.resource.as_str(), "leases" | "events")
        || info.resource.ends_with("reviews")
        || (info.resource == "nodes" && info.subresource == "status")
        || info.subresource == "token"
}

/// A command tells about itself in each request, so no further one is needed. Its word on the time is taken where it makes
/// sense.
fn command(text: &str, now: u64) -> Option<Span> {
    let command: Span = serde_json::from_str(text).ok().filter(|command: &Span| !command.id.is_commit())?;
    let mut command = command.received(now);
    command.stage = Stage::Command;
    command.causes.clear();
    command.start = command.start.clamp(now.saturating_sub(LONGEST_COMMAND), now);
    command.duration = now - command.start;
    command.outcome = Outcome::Running;
    command.laps.retain(|lap| lap.start >= command.start && lap.start + lap.duration <= now);
    Some(command)
}

/// Ends the span of a request with its answer.
pub(crate) fn close(mut served: Served<'_>, code: StatusCode) {
    if !served.authorized.load(Ordering::Relaxed) {
        return;
    }
    let mut work = std::mem::replace(&mut served.work, Work::nobodys());
    let command = served
        .command
        .take()
        .and_then(|(recorder, shown)| Some((recorder, self::command(shown.to_str().ok()?, work.started_at())?)));
    let outcome = match code.is_client_error() || code.is_server_error() {
        true => Outcome::Failed,
        false => Outcome::Ok,
    };
    work.append_detail(code.as_str());
    work.attribute("http.status_code", code.as_str());
    work.finish(outcome);
    if let Some((recorder, mut command)) = command {
        command.finish(outcome);
        recorder.record(&command);
    }
}

pub(crate) fn is_ours(info: &RequestInfo) -> bool {
    !info.is_resource && info.path.starts_with("/cox/")
}

pub(crate) fn serve(state: &Arc<State>, info: &RequestInfo, body: &Bytes) -> Result<Response<Body>, Status> {
    if let Some(file) = info.path.strip_prefix("/cox/ui") {
        return page(info, file);
    }
    if info.path.trim_end_matches('/') == crate::history::PATH {
        return crate::history::serve(&state.history, info);
    }
    if info.path.starts_with(crate::programs::PATH) {
        return crate::programs::serve(state.config.programs_dir.as_deref(), info);
    }
    if info.path.trim_end_matches('/') != trace::PATH {
        return Err(Status::no_such_path());
    }
    match info.verb {
        Verb::Post => receive(state, body),
        Verb::Get => {
            let object = wanted(state, info)?;
            match info.query.flag("watch") {
                true => Ok(follow(state, object)),
                false => describe(state, &object),
            }
        }
        _ => Err(Status::method_not_allowed()),
    }
}

/// The page that shows the cluster and its walks. It asks the API for everything, as whoever looks at it.
fn page(info: &RequestInfo, file: &str) -> Result<Response<Body>, Status> {
    if !matches!(info.verb, Verb::Get | Verb::Head) {
        return Err(Status::method_not_allowed());
    }
    let Some(file) = file.strip_prefix('/') else {
        let mut answer = response(StatusCode::MOVED_PERMANENTLY, "text/plain", Bytes::new());
        answer.headers_mut().insert(header::LOCATION, HeaderValue::from_static("/cox/ui/"));
        return Ok(answer);
    };
    let (_, media, content) =
        trace::ui::FILES.iter().find(|(name, ..)| *name == file).ok_or_else(Status::no_such_path)?;
    let mut answer = response(StatusCode::OK, media, Bytes::from_static(content.as_bytes()));
    let headers = answer.headers_mut();
    // Nothing from elsewhere, and nobody puts it into a page of theirs.
    let policy = "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'";
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    Ok(answer)
}

/// What components in other processes send.
#[derive(Deserialize)]
struct Batch {
    spans: Vec<Span>,
    /// Their process sends them to a collector itself.
    #[serde(default)]
    exported: bool,
}

fn receive(state: &State, body: &Bytes) -> Result<Response<Body>, Status> {
    let batch: Batch = serde_json::from_slice(body).map_err(|error| Status::bad_request(error.to_string()))?;
    if batch.spans.len() > MAX_BATCH {
        return Err(Status::request_too_large(format!("limit is {MAX_BATCH} spans")));
    }
    let now = trace::now();
    for span in batch.spans {
        // Commits are ours to tell about.
        if span.id.is_commit() {
            continue;
        }
        match batch.exported {
            true => state.trace.record_exported(&span.received(now)),
            false => state.trace.record(&span.received(now)),
        }
    }
    Ok(response(StatusCode::OK, "application/json", "{}".into()))
}

/// `deploy/web`, `deployments.apps/web`, `deployments/default/web` -> `deployments/default/web`.
fn wanted(state: &State, info: &RequestInfo) -> Result<String, Status> {
    let text = info.query.get("object").ok_or_else(|| {
        Status::bad_request("object is required, like ?object=deployments/default/web or ?object=deploy/web")
    })?;
    let mut words = text.split('/');
    let (kind, rest) = (words.next().unwrap_or_default(), words.collect::<Vec<_>>());
    let (plural, group) = kind.split_once('.').map_or((kind, None), |(plural, group)| (plural, Some(group)));
    let is_meant = |row: &&Arc<Resource>| {
        group.is_none_or(|group| *row.group == *group)
            && (*row.plural == *plural
                || *row.singular == *plural
                || row.short_names.iter().any(|short| **short == *plural)
                || row.kind.eq_ignore_ascii_case(plural))
    };
    let table = state.registry.table();
    let Some(row) = table.rows().iter().find(is_meant) else {
        return Err(Status::bad_request(format!("the server doesn't have a resource type {kind:?}")));
    };
    let namespace = info.query.get("namespace").unwrap_or("default");
    match (row.is_namespaced(), rest.as_slice()) {
        (true, [name]) => Ok(format!("{}/{namespace}/{name}", row.plural)),
        (true, [namespace, name]) => Ok(format!("{}/{namespace}/{name}", row.plural)),
        (false, [name]) => Ok(format!("{}/{name}", row.plural)),
        _ => Err(Status::bad_request(format!("{text:?} does not name one object"))),
    }
}

fn describe(state: &State, object: &str) -> Result<Response<Body>, Status> {
    let walk = Walk::of(object, state.trace.spans()).ok_or_else(|| {
        let mut status = Status::no_such_path();
        status.message = format!("no change of {object} is remembered: the trace holds only the latest of the cluster");
        status
    })?;
    let body = serde_json::to_vec(&walk).map_err(Status::internal)?;
    Ok(response(StatusCode::OK, "application/json", body.into()))
}

/// The walk as it goes: a line with a walk of new or changed spans, whenever there are some.
fn follow(state: &Arc<State>, object: String) -> Response<Body> {
    let stop = state.stop.clone();
    let followed = Followed { recorder: state.trace.clone(), object, seen: 0, shown: HashMap::new() };
    let lines = futures_util::stream::unfold((followed, stop), |(mut followed, stop)| async move {
        tokio::select! {
            line = followed.next() => Some((Ok::<Bytes, BodyError>(line), (followed, stop))),
            () = stop.cancelled() => None,
        }
    });
    let mut response = Response::new(stream(lines));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

struct Followed {
    recorder: Arc<Recorder>,
    object: String,
    /// How many spans had been recorded at the last look.
    seen: u64,
    /// Spans that were sent, with what may change about them.
    shown: HashMap<String, (String, bool)>,
}

impl Followed {
    async fn next(&mut self) -> Bytes {
        loop {
            self.recorder.more_than(self.seen).await;
            tokio::time::sleep(BATCH_INTERVAL).await;
            self.seen = self.recorder.count();
            let Some(mut walk) = Walk::of(&self.object, self.recorder.spans()) else { continue };
            walk.spans.retain(|step| {
                let state = (step.outcome.clone(), step.critical);
                self.shown.insert(step.id.clone(), state.clone()) != Some(state)
            });
            if let Some(mut line) = serde_json::to_vec(&walk).ok().filter(|_| !walk.spans.is_empty()) {
                line.push(b'\n');
                return line.into();
            }
        }
    }
}

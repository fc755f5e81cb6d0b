//! A watch as kubectl uses it: events one by one, for as long as it takes. What a server does in its life (it ends watches, is
//! restarted, is busy, forgets old versions) does not end a wait, as it does not end upstream's informers: the watch is opened
//! again from the last version, and when that is too old, the collection is listed and what changed meanwhile is told as events.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use client::Body;
use client::backoff::Backoff;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::context::Context;
use crate::failure::{Failure, Result};
use crate::objects::text;
use crate::request::Request;
use crate::resources::items;

/// A watch that ends sooner than this is opened again only after a pause.
const SHORT_WATCH: Duration = Duration::from_secs(1);

pub(crate) struct Event {
    pub(crate) kind: String,
    pub(crate) object: Value,
}

type Open<'a> = Box<dyn Fn() -> Request + 'a>;

pub(crate) struct Watch<'a> {
    cx: &'a Context,
    /// The request for the collection.
    collection: Open<'a>,
    /// The one object that is watched, if it is only one.
    name: Option<String>,
    version: String,
    body: Option<Body>,
    opened: Instant,
    buffer: Vec<u8>,
    ready: VecDeque<Event>,
    /// The latest state of what has been told or listed: what a new list is compared with.
    known: HashMap<String, Value>,
    backoff: Backoff,
}

/// The time for one request (`--request-timeout`) is the time for a watch that a person looks at, and its end is no
/// failure.
pub(crate) async fn in_time(cx: &Context, watching: impl Future<Output = Result<()>>) -> Result<()> {
    let Some(limit) = cx.request_timeout()? else { return watching.await };
    match tokio::time::timeout(limit, watching).await {
        Ok(ended) => ended,
        Err(_) => {
            let why = "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
            cx.trace(5, "streamwatcher.go:127", &format!("Unable to decode an event from the watch stream: {why}"));
            Ok(())
        }
    }
}

impl<'a> Watch<'a> {
    /// `collection` makes the request that lists what is watched; nothing is sent before the first `next`.
    pub(crate) fn open(cx: &'a Context, collection: impl Fn() -> Request + 'a, version: String) -> Watch<'a> {
        Watch {
            cx,
            collection: Box::new(collection),
            name: None,
            version,
            body: None,
            opened: Instant::now(),
            buffer: Vec::new(),
            ready: VecDeque::new(),
            known: HashMap::new(),
            backoff: pauses(),
        }
    }

    /// Events of one object.
    pub(crate) fn object(cx: &'a Context, collection: String, name: &str, version: &str) -> Watch<'a> {
        let selector = format!("metadata.name={name}");
        let open = move || Request::get(collection.clone()).query("fieldSelector", selector.clone());
        Watch { name: Some(name.to_owned()), ..Watch::open(cx, open, version.to_owned()) }
    }

    /// What was listed at the version that the watch begins with, as a list, a table or the object itself.
    pub(crate) fn knowing(mut self, listed: &Value) -> Watch<'a> {
        for object in separate(listed) {
            self.known.insert(key(&object), object);
        }
        self
    }

    pub(crate) async fn next(&mut self) -> Result<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                match event.kind.as_str() {
                    "BOOKMARK" => self.remember_version(&event.object),
                    "ERROR" => self.recover(Failure::Status(Box::new(event.object))).await?,
                    _ => {
                        self.backoff.reset();
                        self.remember(&event);
                        return Ok(event);
                    }
                }
                continue;
            }
            let Some(body) = &mut self.body else {
                let request = (self.collection)().query("watch", "true").query("resourceVersion", self.version.clone());
                match request.stream(self.cx).await {
                    Ok(body) => {
                        self.buffer.clear();
                        self.body = Some(body);
                        self.opened = Instant::now();
                    }
                    Err(failure) => self.recover(failure).await?,
                }
                continue;
            };
            match body.frame().await {
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        self.buffer.extend_from_slice(data);
                        self.take_lines();
                    }
                }
                // Ended, or broke: go on from where we were.
                Some(Err(_)) | None => {
                    self.body = None;
                    match self.opened.elapsed() < SHORT_WATCH {
                        true => tokio::time::sleep(self.backoff.next_delay()).await,
                        false => self.backoff.reset(),
                    }
                }
            }
        }
    }

    /// Gets the watch going again, unless the failure is one that trying again does not cure.
    async fn recover(&mut self, failure: Failure) -> Result<()> {
        self.body = None;
        self.ready.clear();
        if failure.is_expired() {
            let listed = persist(async || (self.collection)().value(self.cx).await).await?;
            self.compare(&listed);
            return Ok(());
        }
        if !failure.is_transient() {
            return Err(failure);
        }
        tokio::time::sleep(self.backoff.next_delay()).await;
        Ok(())
    }

    /// Tells what has changed between what is known and a new list.
    fn compare(&mut self, listed: &Value) {
        let mut gone = std::mem::take(&mut self.known);
        for object in separate(listed) {
            let key = key(&object);
            let kind = match gone.remove(&key) {
                None => "ADDED",
                Some(old) if version(&old) != version(&object) => "MODIFIED",
                Some(same) => {
                    self.known.insert(key, same);
                    continue;
                }
            };
            self.ready.push_back(Event { kind: kind.to_owned(), object });
        }
        // Of one object it is known that it was there.
        if let Some(name) = self.name.as_deref().filter(|_| gone.is_empty() && separate(listed).is_empty()) {
            gone.insert(String::new(), json!({ "metadata": { "name": name } }));
        }
        self.ready.extend(gone.into_values().map(|object| Event { kind: "DELETED".to_owned(), object }));
        // Opening from a version that an event carries would bring later events of the list again.
        let version = text(listed, "/metadata/resourceVersion").to_owned();
        self.ready.push_back(Event {
            kind: "BOOKMARK".to_owned(),
            object: json!({ "metadata": { "resourceVersion": version } }),
        });
    }

    fn take_lines(&mut self) {
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            if let Ok(mut value) = serde_json::from_slice::<Value>(&line) {
                let kind = value["type"].as_str().unwrap_or("").to_owned();
                self.ready.push_back(Event { kind, object: value["object"].take() });
            }
        }
    }

    fn remember(&mut self, event: &Event) {
        self.remember_version(&event.object);
        match event.kind.as_str() {
            "DELETED" => drop(self.known.remove(&key(&event.object))),
            _ => drop(self.known.insert(key(&event.object), event.object.clone())),
        }
    }

    fn remember_version(&mut self, object: &Value) {
        let version = version(object);
        if !version.is_empty() {
            self.version = version.to_owned();
        }
    }
}

/// Asks again while the server cannot answer.
pub(crate) async fn persist<T>(ask: impl AsyncFn() -> Result<T>) -> Result<T> {
    let mut backoff = pauses();
    loop {
        match ask().await {
            Err(failure) if failure.is_transient() => tokio::time::sleep(backoff.next_delay()).await,
            answer => return answer,
        }
    }
}

fn pauses() -> Backoff {
    Backoff::new(Duration::from_millis(200), Duration::from_secs(5)).with_jitter(0.5)
}

/// The objects of a list; of a table, a table for each row, as a watch sends them; else the object itself.
fn separate(listed: &Value) -> Vec<Value> {
    if let Some(rows) = listed["rows"].as_array() {
        let mut head = listed.as_object().cloned().unwrap_or_default();
        head.remove("rows");
        let single = |row: &Value| {
            let mut table = head.clone();
            table.insert("rows".to_owned(), json!([row]));
            Value::Object(table)
        };
        return rows.iter().map(single).collect();
    }
    match listed["items"].is_array() {
        true => items(listed),
        false => vec![listed.clone()],
    }
}

fn metadata(object: &Value) -> &Value {
    object.pointer("/rows/0/object/metadata").unwrap_or(&object["metadata"])
}

fn key(object: &Value) -> String {
    let field = |name: &str| metadata(object)[name].as_str().unwrap_or_default();
    format!("{}/{}/{}", field("namespace"), field("name"), field("uid"))
}

/// The version of an object, of the one row of a table, or of a bookmark of either.
fn version(object: &Value) -> &str {
    let own = metadata(object)["resourceVersion"].as_str().unwrap_or_default();
    if own.is_empty() { text(object, "/metadata/resourceVersion") } else { own }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use client::BoxError;
    use http::Response;
    use http_body_util::StreamBody;

    use super::*;

    fn pod(name: &str, version: u32) -> Value {
        json!({ "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": version.to_string() } })
    }

    fn list(version: u32, pods: &[Value]) -> Value {
        json!({ "kind": "PodList", "metadata": { "resourceVersion": version.to_string() }, "items": pods })
    }

    fn table(version: u32, pods: &[Value]) -> Value {
        let rows: Vec<Value> = pods.iter().map(|pod| json!({ "cells": ["x"], "object": pod })).collect();
        json!({ "kind": "Table", "metadata": { "resourceVersion": version.to_string() }, "rows": rows })
    }

    fn event(kind: &str, object: Value) -> Value {
        json!({ "type": kind, "object": object })
    }

    fn status(code: u16, reason: &str) -> Value {
        json!({ "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": "too old" })
    }

    /// What the server does with one request.
    enum Answer {
        /// A watch with these events; then it ends.
        Watch(Vec<Value>),
        List(Value),
        Refuse(u16, &'static str),
        /// No answer: nobody listens, or the connection breaks.
        Break(&'static str),
    }

    /// A command line whose server gives these answers in turn and notes what it was asked for.
    fn scripted(script: Vec<Answer>) -> (Context, Arc<Mutex<Vec<String>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (script, requests) = (Arc::new(Mutex::new(VecDeque::from(script))), asked.clone());
        let send: client::Handler = Arc::new(move |request: http::Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap_or_default();
            let what = if query.contains("watch=true") { format!("watch {version}") } else { "list".to_owned() };
            let answer = script.lock().unwrap().pop_front();
            requests.lock().unwrap().push(what);
            Box::pin(async move {
                let whole = |value: Value, code: u16| {
                    let body = http_body_util::Full::new(value.to_string().into());
                    let mut response = Response::new(body.map_err(|never| match never {}).boxed_unsync());
                    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                    response
                };
                match answer {
                    Some(Answer::Watch(events)) => {
                        let frames = events.into_iter().map(|event| {
                            Ok::<_, BoxError>(hyper::body::Frame::data(bytes::Bytes::from(format!("{event}\n"))))
                        });
                        Response::new(StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync())
                    }
                    Some(Answer::List(list)) => whole(list, 200),
                    Some(Answer::Refuse(code, reason)) => whole(status(code, reason), code),
                    Some(Answer::Break(cause)) => {
                        let broken = futures_util::stream::once(async move { Err(BoxError::from(cause)) });
                        Response::new(StreamBody::new(broken).boxed_unsync())
                    }
                    None => std::future::pending().await,
                }
            })
        });
        (Context::for_tests(client::Client::in_process(send, api::UserInfo::default())), asked)
    }

    /// The events of a watch of pods until the server has no more answers.
    async fn events(name: Option<&str>, listed: &Value, script: Vec<Answer>) -> (Vec<String>, Vec<String>) {
        let answers = script.len();
        let (cx, asked) = scripted(script);
        let path = "/api/v1/namespaces/n/pods";
        let watch = match name {
            Some(name) => Watch::object(&cx, path.to_owned(), name, "5"),
            None => Watch::open(&cx, || Request::get(path), "5".to_owned()),
        };
        let mut watch = watch.knowing(listed);
        let mut command_span = Vec::new();
        // Time is virtual: it passes only when there is nothing left to do.
        while let Ok(event) = tokio::time::timeout(Duration::from_secs(600), watch.next()).await {
            let Event { kind, object } = event.unwrap();
            command_span.push(format!("{kind} {} {}", text(metadata(&object), "/name"), version(&object)));
        }
        let mut asked = asked.lock().unwrap().clone();
        asked.truncate(answers);
        (command_span, asked)
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_that_is_too_old_is_listed_anew() {
        let expired = || Answer::Watch(vec![event("ERROR", status(410, "Expired"))]);
        for wrap in [list, table] {
            let first = wrap(5, &[pod("a", 1), pod("b", 2)]);
            let now = wrap(20, &[pod("a", 9), pod("c", 12)]);
            let later = |kind, pod: Value| match wrap(0, &[])["rows"].is_array() {
                true => event(kind, table(0, &[pod])),
                false => event(kind, pod),
            };
            let (command_span, asked) = events(
                None,
                &first,
                vec![
                    expired(),
                    Answer::List(now.clone()),
                    Answer::Watch(vec![later("MODIFIED", pod("c", 21))]),
                    Answer::Refuse(410, "Gone"),
                    Answer::List(wrap(30, &[pod("a", 9), pod("c", 21)])),
                ],
            )
            .await;
            assert_eq!(command_span, ["MODIFIED a 9", "ADDED c 12", "DELETED b 2", "MODIFIED c 21"]);
            assert_eq!(asked, ["watch 5", "list", "watch 20", "watch 21", "list"]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn one_object_that_is_not_listed_any_more_is_gone() {
        let script = vec![Answer::Watch(vec![event("ERROR", status(410, "Expired"))]), Answer::List(list(20, &[]))];
        let (command_span, _) = events(Some("a"), &list(5, &[]), script).await;
        assert_eq!(command_span, ["DELETED a "]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_away_is_waited_for() {
        let script = vec![
            Answer::Break("connection reset"),
            Answer::Refuse(429, "TooManyRequests"),
            Answer::Refuse(503, "ServiceUnavailable"),
            Answer::Watch(vec![event("ERROR", status(500, "InternalError"))]),
            Answer::Watch(vec![event("MODIFIED", pod("a", 6))]),
            Answer::Watch(vec![event("ERROR", status(410, "Expired"))]),
            Answer::Refuse(500, "InternalError"),
            Answer::Break("connection reset"),
            Answer::List(list(20, &[pod("a", 7)])),
        ];
        let (command_span, asked) = events(Some("a"), &list(5, &[]), script).await;
        assert_eq!(command_span, ["MODIFIED a 6", "MODIFIED a 7"]);
        assert_eq!(asked, ["watch 5", "watch 5", "watch 5", "watch 5", "watch 5", "watch 6", "list", "list", "list"]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forbidden_stays_forbidden() {
        let (cx, _) = scripted(vec![Answer::Refuse(403, "Forbidden")]);
        let mut watch = Watch::object(&cx, "/api/v1/namespaces/n/pods".to_owned(), "a", "5");
        assert_eq!(watch.next().await.err().map(|failure| failure.code()), Some(403));
    }

    #[test]
    fn some_failures_pass() {
        let connect = |cause: &str| Failure::Connect {
            host: "h".to_owned(),
            cause: cause.to_owned(),
            refused: cause.contains("refused"),
            config: String::new(),
        };
        let answer = |code, reason| Failure::Status(Box::new(status(code, reason)));
        for (failure, expected) in [
            (connect("connection refused"), true),
            (connect("connection reset by peer"), true),
            (connect("invalid peer certificate: UnknownIssuer"), false),
            (answer(429, "TooManyRequests"), true),
            (answer(502, ""), true),
            (answer(403, "Forbidden"), false),
            (answer(410, "Expired"), false),
            (Failure::message("no"), false),
        ] {
            assert_eq!(failure.is_transient(), expected, "{failure:?}");
        }
    }
}

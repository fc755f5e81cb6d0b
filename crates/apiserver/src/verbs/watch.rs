//! `watch`: a stream of changes to what a client may see.
//!
//! A watcher is a cursor into the resource's ring plus a filter; the writer wakes it. In the common form (JSON objects)
//! the frames it sends are shared by all watchers.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::Status;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt, stream};
use http::{HeaderValue, Response, header};
use serde_json::json;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::list::{filter, parse_revision, validate_watch_options};
use super::respond::render;
use super::websocket;
use crate::accept::{Encoding, Shape, encode};
use crate::body::{Body, BodyError, stream as stream_body};
use crate::metrics::WatchCounts;
use crate::state::Operation;
use crate::watch_cache::{Cache, Change, Cursor, Entry, Event, Filter, TooOld, frame};

/// Frames that are ready together are sent together, up to about this size.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_EVENTS: usize = 128;
/// How often an idle watcher that asked for bookmarks gets one.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Without `timeoutSeconds` a watch ends after this long, and up to as long again (`--min-request-timeout`).
const MIN_TIMEOUT: u64 = 1800;

/// Nobody waits longer than a century, and clocks count no further.
const MAX_TIMEOUT: u64 = 100 * 365 * 24 * 3600;

/// A number as upstream reads it, with its words for what is none.
fn parse_seconds(text: &str) -> Result<i64, Status> {
    text.parse().map_err(|error: std::num::ParseIntError| {
        let problem = match error.kind() {
            std::num::IntErrorKind::PosOverflow | std::num::IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        };
        Status::bad_request(format!("strconv.ParseInt: parsing {}: {problem}", api::field::quote(text)))
    })
}

pub(crate) async fn watch(
    operation: Operation,
    upgrade: Option<hyper::upgrade::OnUpgrade>,
) -> Result<Response<Body>, Status> {
    let began = Instant::now();
    let query = &operation.info.query;
    let filter = filter(&operation)?;
    let revision = parse_revision(query.get("resourceVersion").unwrap_or_default())?;
    validate_watch_options(&operation, revision)?;
    let timeout = match query.get("timeoutSeconds") {
        Some(text) => parse_seconds(text)?,
        None => 0,
    };
    let timeout = match timeout {
        0 => rand::random_range(MIN_TIMEOUT..MIN_TIMEOUT * 2),
        seconds => u64::try_from(seconds).unwrap_or(0).min(MAX_TIMEOUT),
    };
    let initial_events = query.get("sendInitialEvents").map(|_| query.flag("sendInitialEvents"));
    let bookmarks = query.flag("allowWatchBookmarks");
    let cache = operation.state.cache(&operation.resource)?;
    let changes = cache.subscribe();

    match revision {
        None => drop(operation.state.caches.fresh().await?),
        Some(0) => {}
        Some(revision) => operation.state.caches.reach(revision).await?,
    }
    // Without a revision to go on from, the current state comes first as ADDED events, unless that is declined.
    let from_state = initial_events.unwrap_or(revision.is_none_or(|revision| revision == 0));
    let applied = operation.state.caches.applied();
    // What the initial events show. What comes while they are sent follows them, so their bookmark must not speak for it.
    let mut shown = applied;
    let (initial, place) = if from_state {
        let (snapshot, cursor) = cache.snapshot_and_cursor();
        shown = shown.max(snapshot.revision);
        let entries = snapshot.range(filter.namespace.as_deref(), None);
        let entries = if operation.resource.converter.is_none() {
            let mut selected = Vec::new();
            for entry in entries {
                if filter.takes(entry)? {
                    selected.push(entry.clone());
                }
            }
            selected
        } else {
            let entries: Vec<Arc<Entry>> = entries.cloned().collect();
            entries.iter().filter(|entry| filter.covers(entry)).try_for_each(|entry| entry.readable().map(drop))?;
            let mut converted = crate::versions::entries(&operation.resource, entries).await?;
            converted.retain(|entry| filter.selects(entry));
            converted
        };
        (entries, Ok(cursor))
    } else {
        let revision = revision.filter(|revision| *revision > 0).unwrap_or(applied);
        (Vec::new(), cache.cursor_after(revision).map_err(|error| crate::status::too_old(revision, &error)))
    };
    let (cursor, failure) = match place {
        Ok(cursor) => (cursor, None),
        Err(status) => (cache.snapshot_and_cursor().1, Some(status)),
    };
    let content_type = match operation.accept.encoding {
        Encoding::Protobuf => crate::protobuf::WATCH_CONTENT_TYPE,
        _ => operation.accept.content_type(),
    };
    let deadline = Instant::now() + Duration::from_secs(timeout);
    let counts = WatchCounts::new(operation.state.metrics.all(), &operation.resource);
    counts.began(initial.len());
    let watcher = Watcher {
        counts,
        plain: operation.accept.is_plain(&operation.resource),
        deadline,
        timer: Box::pin(tokio::time::sleep_until(deadline.min(Instant::now() + BOOKMARK_INTERVAL))),
        stopped: Box::pin(operation.state.stop.clone().cancelled_owned()),
        mark_initial_end: (initial_events == Some(true) && bookmarks).then_some((began, shown)),
        initial: initial.into_iter(),
        bookmarks,
        cache,
        changes,
        cursor,
        filter,
        failure,
        table_started: false,
        ended: false,
        operation,
    };
    let stop = watcher.operation.state.stop.clone();
    let socket = websocket::key(&watcher.operation.headers).cloned();
    let frames = stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((chunk, watcher))
    });
    if let (Some(key), Some(upgrade)) = (socket, upgrade) {
        return Ok(websocket::accept(&key, websocket::Content::Events, upgrade, frames, stop));
    }
    let frames = frames.map(Ok::<Bytes, BodyError>);
    let mut response = Response::new(stream_body(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(response)
}

struct Watcher {
    operation: Operation,
    cache: Arc<Cache>,
    changes: tokio::sync::watch::Receiver<u64>,
    cursor: Cursor,
    counts: WatchCounts,
    filter: Filter,
    initial: std::vec::IntoIter<Arc<Entry>>,
    /// A bookmark must follow the initial events, which show this revision, of a request that came then.
    mark_initial_end: Option<(Instant, u64)>,
    bookmarks: bool,
    /// Shared frames can be sent.
    plain: bool,
    /// The first table of a watch carries the columns.
    table_started: bool,
    failure: Option<Status>,
    deadline: Instant,
    /// Fires for the next bookmark or the end. Kept, as is `stopped`: waiting anew for each event costs more.
    timer: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    ended: bool,
}

impl Watcher {
    /// The next piece of the stream, or `None` at its end.
    async fn next(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if let Some(status) = self.failure.take() {
            return Some(self.fail(&status));
        }
        if let Some(chunk) = self.initial_events() {
            return Some(chunk);
        }
        if let Some((began, shown)) = self.mark_initial_end.take() {
            self.counts.listed(&self.operation.info, began.elapsed());
            return Some(self.bookmark_at(shown, true));
        }
        loop {
            self.changes.mark_unchanged();
            // Read before the events: what a bookmark promises has then been looked at.
            let applied = self.operation.state.caches.applied();
            match self.events().await {
                Err(error) => {
                    self.counts.terminated();
                    let status = crate::status::too_old(applied, &error);
                    return Some(self.fail(&status));
                }
                Ok(Some(chunk)) => return Some(chunk),
                Ok(None) if self.cache.is_closed() => return None,
                Ok(None) => {}
            }
            tokio::select! {
                changed = self.changes.changed() => {
                    if changed.is_err() {
                        return None;
                    }
                }
                () = self.timer.as_mut() => {
                    let now = Instant::now();
                    self.ended = now >= self.deadline;
                    self.timer.as_mut().reset(self.deadline.min(now + BOOKMARK_INTERVAL));
                    if self.bookmarks {
                        // Nothing up to `applied` was left unread, or an event would have been sent.
                        if !self.cache_has_news() {
                            return Some(self.bookmark_at(applied, false));
                        }
                    } else if self.ended {
                        return None;
                    }
                    if self.ended {
                        return None;
                    }
                }
                () = self.stopped.as_mut() => return None,
            }
        }
    }

    fn cache_has_news(&self) -> bool {
        self.changes.has_changed().unwrap_or(false)
    }

    fn initial_events(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while let Some(entry) = self.initial.next() {
            let before = out.len();
            if self.plain {
                entry.write_frame(Change::Added.as_str(), entry.revision, &mut out);
            } else {
                match self.encode(Change::Added, &entry.json()) {
                    Ok(frame) => out.extend_from_slice(&frame),
                    Err(status) => {
                        out.extend_from_slice(&self.fail(&status));
                        break;
                    }
                }
            }
            self.counts.sent(out.len() - before);
            if out.len() >= BATCH_BYTES {
                break;
            }
        }
        (!out.is_empty()).then(|| out.into())
    }

    /// Frames for the events that are ready. One event is sent as it is; several are put together.
    async fn events(&mut self) -> Result<Option<Bytes>, TooOld> {
        loop {
            let events = self.cache.read(&mut self.cursor, BATCH_EVENTS)?;
            if events.is_empty() {
                return Ok(None);
            }
            let mut frames: Vec<Bytes> = Vec::new();
            for event in &events {
                let frame = if self.plain {
                    match event.change(&self.filter) {
                        Ok(None) => continue,
                        Ok(Some(change)) => Ok(event.frame(change)),
                        Err(unreadable) => Err(unreadable.into()),
                    }
                } else {
                    match self.shown(event).await {
                        Ok(None) => continue,
                        Ok(Some((change, object))) => self.encode(change, &object),
                        Err(status) => Err(status),
                    }
                };
                match frame {
                    Ok(frame) => {
                        self.counts.sent(frame.len());
                        frames.push(frame);
                    }
                    Err(status) => {
                        frames.push(self.fail(&status));
                        break;
                    }
                }
            }
            match frames.len() {
                0 => continue,
                1 => return Ok(frames.pop()),
                _ => {
                    let mut out = BytesMut::with_capacity(frames.iter().map(Bytes::len).sum());
                    frames.iter().for_each(|frame| out.extend_from_slice(frame));
                    return Ok(Some(out.freeze()));
                }
            }
        }
    }

    /// What an event shows to this watcher, in its version.
    async fn shown(&self, event: &Event) -> Result<Option<(Change, Bytes)>, Status> {
        let seen = |event: &Event| -> Result<Option<(Change, Bytes)>, Status> {
            Ok(event.change(&self.filter)?.map(|change| (change, event.object(change))))
        };
        let is_affected = |entry: &Option<Arc<Entry>>| entry.as_ref().is_some_and(|entry| entry.is_unreadable());
        if self.operation.resource.converter.is_none() || is_affected(&event.new) || is_affected(&event.old) {
            return seen(event);
        }
        let present = event.new.iter().chain(&event.old).cloned().collect();
        let mut converted = crate::versions::entries(&self.operation.resource, present).await?.into_iter();
        let new = event.new.as_ref().and_then(|_| converted.next());
        seen(&event.shown_as(new, converted.next()))
    }

    /// A frame in the form this watcher asked for.
    fn encode(&mut self, change: Change, object: &Bytes) -> Result<Bytes, Status> {
        let body = if self.operation.accept.shape == Shape::Table {
            self.table(object)?
        } else {
            render(&self.operation, object)?
        };
        Ok(self.frame(change.as_str(), &body))
    }

    /// A table of one row; the first of a watch says what its columns are.
    fn table(&mut self, object: &Bytes) -> Result<Bytes, Status> {
        let version = crate::json::find(object, &["metadata", "resourceVersion"]);
        let version = version.map(|range| crate::json::text(&object[range]).into_owned()).unwrap_or_default();
        let meta = json!({"resourceVersion": version});
        let table = super::table::table(&self.operation, std::iter::once(object.clone()), &meta, !self.table_started)?;
        self.table_started = true;
        Ok(table)
    }

    /// A frame around an object in the form this watcher asked for.
    fn frame(&self, change: &str, object: &[u8]) -> Bytes {
        match self.operation.accept.encoding {
            Encoding::Protobuf => crate::protobuf::frame(change, object).into(),
            Encoding::Json | Encoding::Yaml => frame(change, object),
        }
    }

    fn bookmark_at(&mut self, revision: u64, initial_end: bool) -> Bytes {
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if initial_end {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let resource = &self.operation.resource;
        let (kind, api_version) = match self.operation.accept.shape {
            Shape::Object => (resource.kind.to_string(), resource.api_version()),
            Shape::Partial => {
                ("PartialObjectMetadata".to_owned(), format!("meta.k8s.io/{}", self.operation.accept.meta_version))
            }
            // An object of which nothing is known but its metadata is a row as any other.
            Shape::Table => {
                return match self.table(&json!({"metadata": metadata}).to_string().into()) {
                    Ok(table) => self.frame("BOOKMARK", &table),
                    Err(status) => self.fail(&status),
                };
            }
        };
        let object = json!({"kind": kind, "apiVersion": api_version, "metadata": metadata});
        self.own_frame("BOOKMARK", &object)
    }

    /// The last frame: an error the client acts on.
    fn fail(&mut self, status: &Status) -> Bytes {
        self.ended = true;
        self.own_frame("ERROR", &serde_json::to_value(status).unwrap_or_default())
    }

    /// A frame around what is no stored object. In YAML, too, it is JSON.
    fn own_frame(&self, change: &str, value: &serde_json::Value) -> Bytes {
        let accept = &self.operation.accept;
        let body = match accept.encoding {
            Encoding::Protobuf => encode(accept, value).unwrap_or_default(),
            Encoding::Json | Encoding::Yaml => value.to_string().into(),
        };
        self.frame(change, &body)
    }
}

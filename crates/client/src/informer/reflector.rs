//! The reflector: keeps an informer's cache equal to the server's collection.
//!
//! First choice is a watch-list (`sendInitialEvents`): one stream that begins with what exists. A server
//! that does not know it is listed and then watched. A watch that ends is resumed from the last version seen; only a
//! version that is too old (410) costs a new list.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::read::{self, Fields, Reader};
use futures_util::future::{BoxFuture, poll_fn};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::erased::Erased;
use super::held::{Held, ReadHeld};
use super::key_of;
use crate::api_client::Pages;
use crate::backoff::Backoff;
use crate::room::Room;
use crate::watch::{self, Lines, Undecoded};
use crate::{Error, ListParams, WatchEvent};

/// A server that ignores `sendInitialEvents` never marks their end; after this silence it is asked for a list.
const WATCH_LIST_TIMEOUT: Duration = Duration::from_secs(3);
const PAGE: u32 = 500;
/// A watch that ends sooner than this is treated as a failure, so a server that hangs up at once is not hammered.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// A watch that was open for this long shows that the server is well: what went wrong before is forgotten.
const LONG_WATCH: Duration = Duration::from_secs(10);

/// Whether a list may be answered where a watch-list was refused: a server whose store cannot report progress says so with
/// 500, before the stream or within it. Who may not read, asks too often or comes too late is told the same by a list.
fn is_about_watch_lists(error: &Error) -> bool {
    error.code().is_some_and(|code| !matches!(code, 401 | 403 | 404 | 410 | 429 | 502..=504))
}

/// Where the reflector is between two requests.
#[derive(Default)]
struct Progress {
    /// The last version seen, while it can be resumed from.
    resume: Option<String>,
    /// Whether the server showed that it does not answer watch-lists.
    is_only_listed: bool,
    /// When the last watch was opened; none if it never was.
    opened: Option<Instant>,
    /// What the objects of the last list have taken, and what events have taken since.
    _listed: Room,
    since: Room,
}

impl Progress {
    /// What was listed is held now, instead of what was before.
    fn holds(&mut self, listed: Room) {
        self.since = listed.another();
        self._listed = listed;
    }

    /// Begins with a list again.
    fn forget(&mut self) {
        self.resume = None;
        self.since.clear();
    }
}

/// What a watch-list brings, each object once.
#[derive(Default)]
struct Initial {
    objects: Vec<Option<Arc<Held>>>,
    places: HashMap<String, usize>,
}

impl Initial {
    fn put(&mut self, object: Arc<Held>) {
        let next = self.objects.len();
        match *self.places.entry(key_of(object.object_meta())).or_insert(next) {
            place if place == next => self.objects.push(Some(object)),
            place => self.objects[place] = Some(object),
        }
    }

    fn remove(&mut self, object: &Held) {
        if let Some(place) = self.places.remove(&key_of(object.object_meta())) {
            self.objects[place] = None;
        }
    }
}

/// What lists bring.
struct Listed {
    objects: Vec<Arc<Held>>,
    read: ReadHeld,
}

impl Pages for Listed {
    fn add(&mut self, page: &[u8], room: &mut Room) -> serde_json::Result<ListMeta> {
        let mut page_of_list = Page { metadata: ListMeta::default(), listed: self, room };
        read::from_slice_by(page, |from| from.object(&mut page_of_list))?;
        Ok(page_of_list.metadata)
    }

    fn forget(&mut self) {
        self.objects.clear();
    }
}

struct Page<'a> {
    metadata: ListMeta,
    listed: &'a mut Listed,
    room: &'a mut Room,
}

impl Fields for Page<'_> {
    fn name(&self) -> &'static str {
        "List"
    }

    fn read_field(&mut self, name: &str, from: &mut Reader<'_>) -> serde_json::Result<()> {
        match name {
            "metadata" => from.field(&mut self.metadata),
            "items" => {
                // Some servers send `null` for an empty list.
                if from.is_null()? {
                    return Ok(());
                }
                let Self { listed: Listed { objects, read }, room, .. } = self;
                from.items(&mut |from| {
                    room.take_object()?;
                    objects.push(room.read(from, |from| read(from, false))?);
                    Ok(())
                })
            }
            _ => from.skip(),
        }
    }
}

/// The events of a watch.
struct Events {
    lines: Lines,
    read: ReadHeld,
}

impl Events {
    /// The next event, which takes some of the room.
    async fn next(&mut self, room: &mut Room) -> Option<Result<WatchEvent<Arc<Held>>, Error>> {
        let line = poll_fn(|context| self.lines.poll_line(context)).await?;
        Some(line.and_then(|line| {
            room.take(line.len()).map_err(watch::broken)?;
            room.take_object().map_err(watch::failed)?;
            self.event(&line, room)
        }))
    }

    fn event(&self, line: &[u8], room: &mut Room) -> Result<WatchEvent<Arc<Held>>, Error> {
        Ok(match watch::undecoded(line, true)? {
            Undecoded::Added(added) => WatchEvent::Added(self.object(&added, false, room)?),
            Undecoded::Modified(modified) => WatchEvent::Modified(self.object(&modified, false, room)?),
            Undecoded::Deleted(deleted) => WatchEvent::Deleted(self.object(&deleted, true, room)?),
            Undecoded::Bookmark { resource_version, initial_events_end } => {
                WatchEvent::Bookmark { resource_version, initial_events_end }
            }
        })
    }

    fn object(&self, text: &[u8], is_last: bool, room: &mut Room) -> Result<Arc<Held>, Error> {
        read::from_slice_by(text, |from| room.read(from, |from| (self.read)(from, is_last))).map_err(watch::failed)
    }
}

impl Erased {
    /// Follows the server until `stop`. Boxed, because what an `async fn` does is compiled again by every crate that
    /// waits for it.
    pub(super) fn follow(&self, stop: CancellationToken) -> BoxFuture<'_, ()> {
        Box::pin(self.follow_until(stop))
    }

    async fn follow_until(&self, stop: CancellationToken) {
        let kind = self.kind.name;
        let mut progress = Progress::default();
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30)).with_jitter(1.0);
        loop {
            let began = Instant::now();
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.follow_once(&mut progress) => ended,
            };
            match ended {
                Ok(()) if began.elapsed() >= SHORT_WATCH => {
                    backoff.reset();
                    continue;
                }
                Ok(()) => {}
                Err(error) if error.is_expired() => {
                    tracing::debug!(kind, %error, "watch expired: listing again");
                    // A watcher that fell behind once is not made to wait as well.
                    if progress.resume.take().is_some() && began.elapsed() >= SHORT_WATCH {
                        continue;
                    }
                }
                Err(error) => {
                    tracing::warn!(kind, resource = self.collection.plural(), %error, "watch failed: retrying");
                }
            }
            if progress.opened.take().is_some_and(|opened| opened.elapsed() >= LONG_WATCH) {
                backoff.reset();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    /// One watch, preceded by a list if there is nothing to resume from.
    async fn follow_once(&self, progress: &mut Progress) -> Result<(), Error> {
        let mut events = match &progress.resume {
            Some(version) => self.watch_from(version, &mut progress.since).await?,
            None if !progress.is_only_listed => match self.watch_list(progress).await? {
                Some(events) => events,
                None => {
                    progress.is_only_listed = true;
                    self.list_then_watch(progress).await?
                }
            },
            None => self.list_then_watch(progress).await?,
        };
        progress.opened = Some(Instant::now());
        while let Some(event) = events.next(&mut progress.since).await {
            if progress.since.is_full() {
                // What is held has grown as much, or only changed often: a list shows which.
                progress.forget();
                return Ok(());
            }
            let version = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.object_meta().resource_version.clone();
                    self.apply(object);
                    version
                }
                WatchEvent::Deleted(object) => {
                    let version = object.object_meta().resource_version.clone();
                    self.remove(object);
                    version
                }
                WatchEvent::Bookmark { resource_version, .. } => Some(resource_version),
            };
            if version.is_some() {
                progress.resume = version;
            }
        }
        if progress.since.is_crowded() {
            progress.forget();
        }
        Ok(())
    }

    /// Streams the present objects and goes on watching; `None` if the server does not do that.
    async fn watch_list(&self, progress: &mut Progress) -> Result<Option<Events>, Error> {
        let params = ListParams {
            send_initial_events: true,
            resource_version_match: Some("NotOlderThan".into()),
            ..self.watch_params()
        };
        let mut room = Room::default();
        let mut events = match self.collection.watch(&params, "").await {
            Ok(answer) => self.events(answer, &mut room),
            Err(error) if is_about_watch_lists(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut initial = Initial::default();
        loop {
            match tokio::time::timeout(WATCH_LIST_TIMEOUT, events.next(&mut room)).await {
                Err(_) | Ok(None) => return Ok(None),
                Ok(Some(Err(error))) if is_about_watch_lists(&error) => return Ok(None),
                Ok(Some(event)) => match event? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => initial.put(object),
                    WatchEvent::Deleted(object) => initial.remove(&*object),
                    WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                        self.replace(initial.objects.into_iter().flatten().collect());
                        progress.holds(room);
                        progress.resume = Some(resource_version);
                        return Ok(Some(events));
                    }
                    WatchEvent::Bookmark { .. } => {}
                },
            }
        }
    }

    async fn list_then_watch(&self, progress: &mut Progress) -> Result<Events, Error> {
        let mut listed = Listed { objects: Vec::new(), read: self.kind.read };
        let mut room = Room::default();
        let metadata = self.collection.list_all(&self.params, PAGE, &mut listed, &mut room).await?;
        let version = metadata.resource_version.unwrap_or_default();
        self.replace(listed.objects);
        progress.holds(room);
        let events = self.watch_from(&version, &mut progress.since).await;
        progress.resume = Some(version);
        events
    }

    async fn watch_from(&self, version: &str, room: &mut Room) -> Result<Events, Error> {
        self.collection.watch(&self.watch_params(), version).await.map(|answer| self.events(answer, room))
    }

    fn events(&self, answer: http::Response<crate::Body>, room: &mut Room) -> Events {
        room.bound_by(answer.headers());
        Events { lines: Lines::new(answer.into_body()), read: self.kind.read }
    }

    /// The server ends each watch after five to ten minutes, so that connections spread over servers.
    fn watch_params(&self) -> ListParams {
        let timeout = 300 + rand::random::<u32>() % 300;
        ListParams { allow_bookmarks: true, timeout_seconds: Some(timeout), ..self.params.clone() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Arc;

    use futures_util::StreamExt;
    use http::{Request, Response};
    use http_body_util::{BodyExt, StreamBody};
    use k8s_openapi::api::core::v1::ConfigMap;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    use super::super::held::Kind;
    use super::*;
    use crate::{Body, BoxError, Client, Event, Informer};

    fn map(name: &str, version: &str) -> Value {
        json!({ "metadata": { "name": name, "namespace": "n", "uid": name, "resourceVersion": version } })
    }

    fn event(kind: &str, object: Value) -> Value {
        json!({ "type": kind, "object": object })
    }

    fn bookmark(version: &str) -> Value {
        let annotations = json!({ "k8s.io/initial-events-end": "true" });
        event("BOOKMARK", json!({ "metadata": { "resourceVersion": version, "annotations": annotations } }))
    }

    fn expired() -> Value {
        event(
            "ERROR",
            json!({ "kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old" }),
        )
    }

    /// The answers a server gives in turn: to a watch its events, after which it hangs up; to a list its objects.
    enum Answer {
        Watch(Vec<Value>),
        /// A watch whose connection breaks after a while.
        Break(Vec<Value>, Duration),
        List(Value),
        Refuse(u16),
    }

    /// Follows scripted answers and returns the requests made and the events told.
    async fn follow(script: Vec<Answer>) -> (Vec<String>, Vec<String>) {
        let (asked, told) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(Vec::new())));
        let done = CancellationToken::new();
        let script = Arc::new(Mutex::new(VecDeque::from(script)));
        let (requests, over) = (asked.clone(), done.clone());
        let handler: crate::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (answer, over) = (script.lock().pop_front(), over.clone());
            if answer.is_some() {
                let kind = if query.contains("sendInitialEvents") {
                    "watch-list".to_owned()
                } else if query.contains("watch=true") {
                    let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
                    format!("watch {}", version.unwrap_or_default())
                } else {
                    "list".to_owned()
                };
                requests.lock().push(kind);
            }
            Box::pin(async move {
                let text = |value: Value, code: u16| {
                    let mut response = Response::new(
                        http_body_util::Full::new(value.to_string().into())
                            .map_err(|never| match never {})
                            .boxed_unsync(),
                    );
                    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
                    response
                };
                match answer {
                    Some(Answer::Watch(events)) => {
                        let frames = events.into_iter().map(|event| {
                            Ok::<_, BoxError>(http_body::Frame::data(bytes::Bytes::from(format!("{event}\n"))))
                        });
                        let body: Body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
                        Response::new(body)
                    }
                    Some(Answer::Break(events, after)) => {
                        let frame = |event: Value| http_body::Frame::data(bytes::Bytes::from(format!("{event}\n")));
                        let frames =
                            futures_util::stream::iter(events).map(move |event| Ok::<_, BoxError>(frame(event)));
                        let end = futures_util::stream::once(async move {
                            tokio::time::sleep(after).await;
                            Err(BoxError::from("connection reset"))
                        });
                        Response::new(StreamBody::new(frames.chain(end)).boxed_unsync())
                    }
                    Some(Answer::List(list)) => text(list, 200),
                    Some(Answer::Refuse(code)) => {
                        text(json!({ "kind": "Status", "status": "Failure", "code": code }), code)
                    }
                    None => {
                        over.cancel();
                        std::future::pending().await
                    }
                }
            })
        });
        let client = Client::in_process(handler, api::UserInfo::default());
        let informer: Informer<ConfigMap> = Informer::new(client.all(), ListParams::default());
        let events = told.clone();
        informer.subscribe(move |event| {
            let sign = match event {
                Event::Added(_) => '+',
                Event::Modified { .. } => '~',
                Event::Deleted(_) => '-',
            };
            events.lock().push(format!("{sign}{}", event.object().metadata.name.clone().unwrap()));
        });
        informer.run(done).await;

        (asked.lock().clone(), told.lock().clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_resumes_and_an_expired_one_reports_what_vanished() {
        let (asked, told) = follow(vec![
            Answer::Watch(vec![event("ADDED", map("a", "1")), event("ADDED", map("b", "2")), bookmark("5")]),
            Answer::Watch(vec![event("MODIFIED", map("a", "6"))]),
            Answer::Watch(vec![expired()]),
            // While nobody watched, b went away and c came.
            Answer::Watch(vec![event("ADDED", map("a", "6")), event("ADDED", map("c", "9")), bookmark("9")]),
            Answer::Refuse(410),
            Answer::Watch(vec![event("ADDED", map("a", "6")), bookmark("12")]),
        ])
        .await;
        assert_eq!(asked, ["watch-list", "watch 5", "watch 6", "watch-list", "watch 9", "watch-list"]);
        assert_eq!(told, ["+a", "+b", "~a", "-b", "+c", "-c"]);
    }

    /// A server that dies now and then is found again as soon as it is back, however often it died.
    #[tokio::test(start_paused = true)]
    async fn watches_that_lasted_leave_no_grudge() {
        let (lasts, times) = (Duration::from_secs(20), 12);
        let began = Instant::now();
        follow((0..times).map(|_| Answer::Break(vec![bookmark("5")], lasts)).collect()).await;
        let longest_pause = Duration::from_millis(1600);
        assert!(began.elapsed() <= (lasts + longest_pause) * times, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_without_watch_lists_is_listed() {
        let list = |names: &[(&str, &str)], version: &str| {
            let items: Vec<Value> = names.iter().map(|(name, version)| map(name, version)).collect();
            Answer::List(json!({ "metadata": { "resourceVersion": version }, "items": items }))
        };
        let failed = json!({ "type": "ERROR", "object": { "kind": "Status", "status": "Failure", "code": 500 } });
        for refusal in [Answer::Refuse(500), Answer::Watch(vec![failed])] {
            let (asked, told) = follow(vec![refusal, list(&[("a", "1")], "5")]).await;
            assert_eq!(
                (asked.as_slice(), told.as_slice()),
                (["watch-list".into(), "list".into()].as_slice(), ["+a".into()].as_slice())
            );
        }
        let (asked, told) = follow(vec![
            Answer::Refuse(422),
            list(&[("a", "1"), ("b", "2")], "5"),
            Answer::Watch(vec![event("DELETED", map("a", "6")), expired()]),
            list(&[("b", "7")], "8"),
            Answer::Watch(vec![event("ADDED", map("c", "9"))]),
        ])
        .await;
        assert_eq!(asked, ["watch-list", "list", "watch 5", "list", "watch 8"]);
        assert_eq!(told.iter().filter(|told| told.ends_with('a')).count(), 2, "{told:?}");
        assert_eq!(told[2..], ["-a", "~b", "+c"]);
    }

    /// An aggregated server may send events for ever, before it says that these are all objects and after that.
    #[tokio::test(start_paused = true)]
    async fn security_events_without_end_are_not_held() {
        for (first, has_objects) in [(Vec::new(), false), (vec![event("ADDED", map("a", "1")), bookmark("5")], true)] {
            let (asked, done) = (Arc::new(Mutex::new(Vec::new())), CancellationToken::new());
            let (requests, over) = (asked.clone(), done.clone());
            let handler: crate::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
                requests.lock().push(request.uri().query().is_some_and(|query| query.contains("sendInitialEvents")));
                let (is_over, over) = (requests.lock().len() == 2, over.clone());
                let endless = (0_u64..).map(|number| event("ADDED", map(&number.to_string(), "6")));
                let frame = |event: Value| http_body::Frame::data(bytes::Bytes::from(format!("{event}\n")));
                let frames = first.clone().into_iter().chain(endless).map(move |event| Ok::<_, BoxError>(frame(event)));
                let body: Body = StreamBody::new(futures_util::stream::iter(frames)).boxed_unsync();
                let answer = Response::builder().header(api::AGGREGATED_HEADER, "true").body(body).unwrap();
                Box::pin(async move {
                    if is_over {
                        over.cancel();
                        std::future::pending::<()>().await;
                    }
                    answer
                })
            });
            let client = Client::in_process(handler, api::UserInfo::default());
            let informer: Informer<ConfigMap> = Informer::new(client.all(), ListParams::default());
            informer.run(done).await;
            assert_eq!(*asked.lock(), [true, true], "everything is listed anew");
            assert_eq!((informer.has_synced(), informer.is_empty()), (has_objects, !has_objects));
            assert!(informer.len() < 10_000, "{}", informer.len());
        }
    }

    /// What an object has in lists of its own may take much more memory than text, too.
    #[tokio::test]
    async fn security_objects_take_room_for_what_is_in_them() {
        let mut large = map("a", "1");
        large["metadata"]["ownerReferences"] = vec![json!({}); 100_000].into();
        let read = Kind::of::<ConfigMap>().read;
        for is_aggregated in [false, true] {
            let mut headers = http::HeaderMap::new();
            if is_aggregated {
                headers.insert(api::AGGREGATED_HEADER, http::HeaderValue::from_static("true"));
            }
            let mut listing = Room::default();
            listing.bound_by(&headers);
            let mut watching = listing.another();
            let page = json!({ "metadata": {}, "items": [large] }).to_string();
            let listed = Listed { objects: Vec::new(), read }.add(page.as_bytes(), &mut listing);
            assert_eq!((listed.is_err(), listing.is_full()), (is_aggregated, is_aggregated));
            let line = bytes::Bytes::from(event("ADDED", large.clone()).to_string());
            let body = http_body_util::Full::new(line).map_err(|never| match never {}).boxed_unsync();
            let event = Events { lines: Lines::new(body), read }.next(&mut watching).await.unwrap();
            assert_eq!((event.is_err(), watching.is_full()), (is_aggregated, is_aggregated));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn pages_of_a_version_that_was_forgotten_are_listed_at_once() {
        let page = json!({ "metadata": { "resourceVersion": "5", "continue": "next" }, "items": [map("a", "1")] });
        let whole = json!({ "metadata": { "resourceVersion": "8" }, "items": [map("b", "7"), map("c", "8")] });
        let (asked, mut told) = follow(vec![
            Answer::Refuse(422),
            Answer::List(page),
            Answer::Refuse(410),
            Answer::List(whole),
            Answer::Watch(vec![event("ADDED", map("d", "9"))]),
        ])
        .await;
        assert_eq!(asked, ["watch-list", "list", "list", "list", "watch 8"]);
        told[..2].sort();
        assert_eq!(told, ["+b", "+c", "+d"]);
    }
}

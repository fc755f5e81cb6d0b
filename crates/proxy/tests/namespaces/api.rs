//! An API server of a few lines: lists and watches of whatever the test puts in.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;

#[derive(Clone)]
pub(crate) struct FakeApi {
    state: Arc<Mutex<State>>,
    events: broadcast::Sender<(u64, String, Value)>,
}

#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<(String, String), Value>,
    history: Vec<(u64, String, Value)>,
}

impl Default for FakeApi {
    fn default() -> Self {
        Self { state: Arc::default(), events: broadcast::channel(1024).0 }
    }
}

impl FakeApi {
    pub(crate) fn put(&self, plural: &str, mut object: Value) {
        let mut state = self.state.lock();
        state.revision += 1;
        object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let old = state.objects.insert((plural.to_owned(), name), object.clone());
        let kind = if old.is_some() { "MODIFIED" } else { "ADDED" };
        self.tell(&mut state, plural, json!({"type": kind, "object": object}));
    }

    #[allow(dead_code, reason = "not every test that includes this file deletes")]
    pub(crate) fn delete(&self, plural: &str, name: &str) {
        let mut state = self.state.lock();
        state.revision += 1;
        if let Some(mut object) = state.objects.remove(&(plural.to_owned(), name.to_owned())) {
            object["metadata"]["resourceVersion"] = json!(state.revision.to_string());
            self.tell(&mut state, plural, json!({"type": "DELETED", "object": object}));
        }
    }

    fn tell(&self, state: &mut State, plural: &str, event: Value) {
        let event = (state.revision, plural.to_owned(), event);
        state.history.push(event.clone());
        let _ = self.events.send(event);
    }

    pub(crate) fn client(&self) -> client::Client {
        let api = self.clone();
        let handler: client::Handler = Arc::new(move |request| {
            let response = api.answer(request.uri());
            Box::pin(async move { response })
        });
        client::Client::in_process(handler, api::UserInfo::default())
    }

    fn answer(&self, uri: &http::Uri) -> http::Response<client::Body> {
        let plural = uri.path().rsplit('/').next().unwrap().to_owned();
        let query = uri.query().unwrap_or_default();
        let parameter = |name: &str| {
            query
                .split('&')
                .find_map(|pair| pair.split_once('=').filter(|(key, _)| *key == name))
                .map(|(_, value)| value)
        };
        let response = http::Response::builder().header("content-type", "application/json");
        if parameter("watch").is_some_and(|watch| watch == "1" || watch == "true") {
            let from: u64 = parameter("resourceVersion").and_then(|text| text.parse().ok()).unwrap_or(0);
            let state = self.state.lock();
            let receiver = self.events.subscribe();
            let past: Vec<_> = state.history.iter().filter(|event| event.0 > from).cloned().collect();
            drop(state);
            let live =
                stream::unfold(
                    receiver,
                    |mut receiver| async move { receiver.recv().await.ok().map(|e| (e, receiver)) },
                );
            let frames = stream::iter(past)
                .chain(live)
                .filter(move |event| std::future::ready(event.1 == plural))
                .map(|event| Ok::<_, client::BoxError>(Frame::data(Bytes::from(format!("{}\n", event.2)))));
            return response.body(StreamBody::new(frames).boxed_unsync()).unwrap();
        }
        let state = self.state.lock();
        let items: Vec<&Value> =
            state.objects.iter().filter(|((p, _), _)| *p == plural).map(|(_, value)| value).collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.revision.to_string()}, "items": items});
        response.body(Full::new(Bytes::from(list.to_string())).map_err(|never| match never {}).boxed_unsync()).unwrap()
    }
}

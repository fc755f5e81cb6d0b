//! A small API server in memory: enough of the verbs for one kubelet, no validation, no admission.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use client::{Body, BoxError, Client, Handler};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::broadcast;
use tokio_stream::StreamExt;

#[derive(Clone)]
pub struct FakeApi(Arc<Inner>);

struct Inner {
    objects: Mutex<(u64, BTreeMap<String, Value>)>,
    changes: broadcast::Sender<(u64, &'static str, String, Value)>,
}

impl FakeApi {
    pub fn new() -> Self {
        let (changes, _) = broadcast::channel(4096);
        FakeApi(Arc::new(Inner { objects: Mutex::default(), changes }))
    }

    pub fn client(&self) -> Client {
        let api = self.clone();
        let handler: Handler = Arc::new(move |request| {
            let api = api.clone();
            Box::pin(async move { api.answer(request) })
        });
        Client::in_process(handler, api::UserInfo { name: "system:node:test".into(), ..Default::default() })
    }

    pub fn events(&self) -> Vec<Event> {
        self.list("events/").into_iter().filter_map(|value| serde_json::from_value(value).ok()).collect()
    }

    fn list(&self, prefix: &str) -> Vec<Value> {
        let objects = self.0.objects.lock();
        objects.1.iter().filter(|(key, _)| key.starts_with(prefix)).map(|(_, value)| value.clone()).collect()
    }

    fn put(&self, kind: &'static str, key: &str, mut value: Value) -> Value {
        let mut objects = self.0.objects.lock();
        objects.0 += 1;
        let revision = objects.0;
        value["metadata"]["resourceVersion"] = json!(revision.to_string());
        if kind == "DELETED" {
            objects.1.remove(key);
        } else {
            objects.1.insert(key.to_string(), value.clone());
        }
        let _ = self.0.changes.send((revision, kind, key.to_string(), value.clone()));
        value
    }

    fn answer(&self, request: Request<Bytes>) -> Response<Body> {
        let path = request.uri().path().to_string();
        let query = request.uri().query().unwrap_or_default().to_string();
        let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
        // /api/v1/… or /apis/<group>/<version>/…
        let rest = if parts[0] == "api" { &parts[2..] } else { &parts[3..] };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, tail @ ..] if !tail.is_empty() => (Some(*namespace), tail),
            rest => (None, rest),
        };
        let (resource, name, sub) = (rest[0], rest.get(1).copied(), rest.get(2).copied());
        let prefix = match namespace {
            Some(namespace) => format!("{resource}/{namespace}/"),
            None => format!("{resource}/"),
        };
        let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        if sub == Some("token") {
            let mut answer = body;
            answer["status"] = json!({"token": "a-token", "expirationTimestamp": "2099-01-01T00:00:00Z"});
            return reply(201, &answer);
        }
        match (request.method(), name) {
            (&Method::GET, None) => {
                let selector = form(&query, "fieldSelector");
                if query.contains("watch=") {
                    return self.watch(&prefix, selector, form(&query, "resourceVersion"));
                }
                let objects = self.0.objects.lock();
                let items: Vec<&Value> =
                    objects.1.iter().filter(|(key, value)| key.starts_with(&prefix) && selected(value, &selector)).map(|(_, v)| v).collect();
                reply(200, &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": objects.0.to_string()}, "items": items}))
            }
            (&Method::GET, Some(name)) => match self.0.objects.lock().1.get(&format!("{prefix}{name}")) {
                Some(value) => reply(200, value),
                None => missing(resource, name),
            },
            (&Method::POST, None) => {
                let mut value = body;
                let name = value["metadata"]["name"].as_str().map(String::from);
                let name = name.unwrap_or_else(|| format!("{}{:x}", value["metadata"]["generateName"].as_str().unwrap_or("x"), rand::random::<u32>()));
                value["metadata"]["name"] = json!(name);
                value["metadata"]["uid"] = json!(format!("{:08x}-{:08x}", rand::random::<u32>(), rand::random::<u32>()));
                value["metadata"]["creationTimestamp"] = json!("2026-11-15T00:00:00Z");
                if let Some(namespace) = namespace {
                    value["metadata"]["namespace"] = json!(namespace);
                }
                reply(201, &self.put("ADDED", &format!("{prefix}{name}"), value))
            }
            (&Method::PUT, Some(name)) => reply(200, &self.put("MODIFIED", &format!("{prefix}{name}"), body)),
            (&Method::PATCH, Some(name)) => {
                let key = format!("{prefix}{name}");
                let Some(mut value) = self.0.objects.lock().1.get(&key).cloned() else { return missing(resource, name) };
                let kind = request.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
                let schema = match resource {
                    "nodes" => api::schema::of::<Node>(),
                    "events" => api::schema::of::<Event>(),
                    _ => api::schema::of::<Pod>(),
                };
                let done = if kind.contains("strategic") { api::patch::strategic::apply(&mut value, &body, &schema) } else { api::patch::merge::apply(&mut value, &body) };
                match done {
                    Ok(()) => reply(200, &self.put("MODIFIED", &key, value)),
                    Err(error) => reply(422, &json!({"kind": "Status", "status": "Failure", "message": error.to_string(), "code": 422})),
                }
            }
            (&Method::DELETE, Some(name)) => {
                let key = format!("{prefix}{name}");
                let Some(mut value) = self.0.objects.lock().1.get(&key).cloned() else { return missing(resource, name) };
                let grace = body["gracePeriodSeconds"].as_i64().or_else(|| value["spec"]["terminationGracePeriodSeconds"].as_i64());
                if resource == "pods" && grace != Some(0) {
                    value["metadata"]["deletionTimestamp"] = json!("2026-11-15T00:00:00Z");
                    value["metadata"]["deletionGracePeriodSeconds"] = json!(grace.unwrap_or(30));
                    return reply(200, &self.put("MODIFIED", &key, value));
                }
                reply(200, &self.put("DELETED", &key, value))
            }
            _ => reply(405, &json!({"kind": "Status", "status": "Failure", "message": "not here", "code": 405})),
        }
    }

    fn watch(&self, prefix: &str, selector: Option<String>, from: Option<String>) -> Response<Body> {
        let from: u64 = from.and_then(|from| from.parse().ok()).unwrap_or(0);
        let objects = self.0.objects.lock();
        let receiver = self.0.changes.subscribe();
        // What changed between the list and this call.
        let missed: Vec<Bytes> = objects
            .1
            .iter()
            .filter(|(key, value)| key.starts_with(prefix) && selected(value, &selector))
            .filter(|(_, value)| value["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) > from)
            .map(|(_, value)| line("MODIFIED", value))
            .collect();
        drop(objects);
        let prefix = prefix.to_string();
        let live = tokio_stream::wrappers::BroadcastStream::new(receiver).filter_map(move |change| {
            let (_, kind, key, value) = change.ok()?;
            (key.starts_with(&prefix) && selected(&value, &selector)).then(|| line(kind, &value))
        });
        let stream = tokio_stream::iter(missed).chain(live).map(|bytes| Ok::<_, BoxError>(Frame::data(bytes)));
        Response::new(StreamBody::new(stream).boxed_unsync())
    }
}

fn line(kind: &str, value: &Value) -> Bytes {
    let mut text = json!({"type": kind, "object": value}).to_string();
    text.push('\n');
    text.into()
}

fn form(query: &str, name: &str) -> Option<String> {
    query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).map(|value| value.replace("%3D", "=").replace("%2F", "/"))
}

fn selected(value: &Value, selector: &Option<String>) -> bool {
    let Some((path, wanted)) = selector.as_deref().and_then(|selector| selector.split_once('=')) else { return true };
    let found = path.split('.').fold(value, |at, part| &at[part]);
    found.as_str() == Some(wanted)
}

fn missing(resource: &str, name: &str) -> Response<Body> {
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
        "message": format!("{resource} {name:?} not found")});
    reply(404, &status)
}

fn reply(code: u16, value: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(value.to_string())).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = http::StatusCode::from_u16(code).unwrap();
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

//! A small API server in memory, for these tests only: collections, versions, watches, patches, finalizers, and faults on demand.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use client::{Body, BoxError, Client, Handler};
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Full, StreamBody};
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tokio::sync::watch;

/// `/apis/apps/v1/deployments`, then namespace and name.
type Key = (String, String, String);

pub(crate) struct Fake {
    state: Mutex<State>,
    revision: watch::Sender<u64>,
}

struct State {
    objects: BTreeMap<Key, Value>,
    log: Vec<(u64, String, &'static str, Value)>,
    revision: u64,
    /// One write in so many fails, some of them after they took effect.
    fault_every: u32,
    /// What is created in this collection goes at once, and no watch shows it.
    fleeting: Option<&'static str>,
    random: StdRng,
}

const RESOURCES: &[(&str, &str, &str, bool)] = &[
    ("/api/v1", "pods", "Pod", true),
    ("/api/v1", "namespaces", "Namespace", false),
    ("/api/v1", "services", "Service", true),
    ("/api/v1", "configmaps", "ConfigMap", true),
    ("/apis/apps/v1", "deployments", "Deployment", true),
    ("/apis/apps/v1", "replicasets", "ReplicaSet", true),
    ("/apis/apps/v1", "statefulsets", "StatefulSet", true),
    ("/apis/apps/v1", "controllerrevisions", "ControllerRevision", true),
    ("/apis/batch/v1", "jobs", "Job", true),
    ("/apis/discovery.k8s.io/v1", "endpointslices", "EndpointSlice", true),
];

impl Fake {
    pub(crate) fn new(seed: u64) -> Arc<Self> {
        let state = State {
            objects: BTreeMap::new(),
            log: Vec::new(),
            revision: 1,
            fault_every: 0,
            fleeting: None,
            random: StdRng::seed_from_u64(seed),
        };
        Arc::new(Self { state: Mutex::new(state), revision: watch::channel(1).0 })
    }

    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let fake = self.clone();
        let handler: Handler = Arc::new(move |request| {
            let fake = fake.clone();
            Box::pin(async move { answer(&fake, request) })
        });
        Client::in_process(handler, api::UserInfo::default())
    }

    pub(crate) fn set_faults(&self, one_in: u32) {
        self.state.lock().fault_every = one_in;
    }

    pub(crate) fn set_fleeting(&self, collection: Option<&'static str>) {
        self.state.lock().fleeting = collection;
    }

    /// All objects of a collection.
    pub(crate) fn all(&self, collection: &str) -> Vec<Value> {
        self.state
            .lock()
            .objects
            .iter()
            .filter(|((name, ..), _)| name == collection)
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// Changes an object behind the API's back, as a kubelet or a user would; `None` removes it.
    pub(crate) fn change(&self, collection: &str, name: &str, change: impl FnOnce(&mut Value) -> bool) {
        let mut state = self.state.lock();
        let Some(key) = state.objects.keys().find(|key| key.0 == collection && key.2 == name).cloned() else { return };
        let mut object = state.objects[&key].clone();
        if change(&mut object) {
            state.put(key, object);
        } else {
            state.remove(&key);
        }
        self.revision.send_replace(state.revision);
    }

    fn list(&self, collection: &str, namespace: &str) -> Response<Body> {
        let state = self.state.lock();
        reply(
            200,
            &json!({ "metadata": { "resourceVersion": state.revision.to_string() }, "items": state.select(collection, namespace) }),
        )
    }

    fn create(&self, collection: String, namespace: &str, body: &[u8]) -> Response<Body> {
        let mut state = self.state.lock();
        let mut object: Value = serde_json::from_slice(body).unwrap();
        if object["metadata"]["name"].is_null() {
            let suffix: u32 = state.random.random_range(0..100_000_000);
            object["metadata"]["name"] =
                json!(format!("{}{suffix:08}", object["metadata"]["generateName"].as_str().unwrap_or_default()));
        }
        if !namespace.is_empty() {
            object["metadata"]["namespace"] = json!(namespace);
        }
        let key = (collection, namespace.to_owned(), object["metadata"]["name"].as_str().unwrap().to_owned());
        if state.objects.contains_key(&key) {
            return failure(409, "AlreadyExists");
        }
        let fault = state.fault();
        if fault == Fault::Before {
            return failure(500, "InternalError");
        }
        let uid = format!("uid-{}-{}", state.revision, key.2);
        object["metadata"]["uid"] = json!(uid);
        object["metadata"]["generation"] = json!(1);
        object["metadata"]["creationTimestamp"] = json!(
            jiff::Timestamp::from_second(1_700_000_000 + i64::try_from(state.revision).unwrap()).unwrap().to_string()
        );
        if state.fleeting == Some(key.0.as_str()) {
            return reply(201, &object);
        }
        let stored = state.put(key, object);
        self.revision.send_replace(state.revision);
        if fault == Fault::After { failure(500, "InternalError") } else { reply(201, &stored) }
    }

    fn act_on(&self, key: Key, subresource: Option<&str>, request: &Request<Bytes>) -> Response<Body> {
        let mut state = self.state.lock();
        let Some(old) = state.objects.get(&key).cloned() else { return failure(404, "NotFound") };
        if request.method() == Method::GET {
            return reply(200, &old);
        }
        let fault = state.fault();
        match fault {
            Fault::Before => return failure(500, "InternalError"),
            Fault::Conflict => return failure(409, "Conflict"),
            _ => {}
        }
        let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
        let new = match *request.method() {
            Method::DELETE => {
                let uid = body.pointer("/preconditions/uid").and_then(Value::as_str);
                if uid.is_some_and(|uid| old["metadata"]["uid"] != uid) {
                    return failure(409, "Conflict");
                }
                delete(&key, old, &body)
            }
            Method::PUT => {
                let version = &body["metadata"]["resourceVersion"];
                if !version.is_null() && *version != old["metadata"]["resourceVersion"] {
                    return failure(409, "Conflict");
                }
                Some(replaced(old, body, subresource))
            }
            _ => {
                let mut new = old.clone();
                let version = body.pointer("/metadata/resourceVersion");
                if version.is_some_and(|version| *version != old["metadata"]["resourceVersion"]) {
                    return failure(409, "Conflict");
                }
                patch(&mut new, &body);
                Some(new)
            }
        };
        let answer = match new {
            Some(new) if !is_released(&new) => state.put(key, new),
            Some(new) => {
                state.remove(&key);
                new
            }
            None => {
                state.remove(&key);
                json!({ "kind": "Status", "status": "Success" })
            }
        };
        self.revision.send_replace(state.revision);
        if fault == Fault::After { failure(500, "InternalError") } else { reply(200, &answer) }
    }
}

/// Routes a request.
fn answer(fake: &Arc<Fake>, request: Request<Bytes>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default().to_owned();
    if let Some(discovered) = discovery(&path) {
        return reply(200, &discovered);
    }
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let prefix = if segments[0] == "api" { 2 } else { 3 };
    let (group, rest) = (format!("/{}", segments[..prefix].join("/")), &segments[prefix..]);
    let (namespace, rest) = match rest {
        ["namespaces", namespace, plural, ..] if !["status", "finalize"].contains(plural) => (*namespace, &rest[2..]),
        _ => ("", rest),
    };
    let collection = format!("{group}/{}", rest[0]);
    let Some(name) = rest.get(1) else {
        return match *request.method() {
            Method::POST => fake.create(collection, namespace, request.body()),
            _ if query.contains("watch=true") => watch_from(fake, &collection, namespace, &query),
            _ => fake.list(&collection, namespace),
        };
    };
    fake.act_on((collection, namespace.to_owned(), (*name).to_owned()), rest.get(2).copied(), &request)
}

/// What exists, if asked for, and then every change after `resourceVersion`.
fn watch_from(fake: &Arc<Fake>, collection: &str, namespace: &str, query: &str) -> Response<Body> {
    let parameter =
        |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(&format!("{name}="))).map(str::to_owned);
    let mut first = Vec::new();
    let mut from: u64;
    {
        let state = fake.state.lock();
        from = parameter("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(state.revision);
        if query.contains("sendInitialEvents=true") {
            first.extend(state.select(collection, namespace).into_iter().map(|object| line("ADDED", &object)));
            let metadata = json!({ "resourceVersion": state.revision.to_string(), "annotations": { "k8s.io/initial-events-end": "true" } });
            first.push(line("BOOKMARK", &json!({ "metadata": metadata })));
            from = state.revision;
        }
    }
    let (fake, collection, namespace, receiver) =
        (Arc::downgrade(fake), collection.to_owned(), namespace.to_owned(), fake.revision.subscribe());
    let state = (fake, collection, namespace, receiver, from, std::collections::VecDeque::from(first));
    let stream = futures_util::stream::unfold(
        state,
        |(fake, collection, namespace, mut receiver, mut from, mut pending)| async move {
            loop {
                if let Some(line) = pending.pop_front() {
                    return Some((
                        Ok::<_, BoxError>(Frame::data(line)),
                        (fake, collection, namespace, receiver, from, pending),
                    ));
                }
                receiver.borrow_and_update();
                {
                    let fake = fake.upgrade()?;
                    let state = fake.state.lock();
                    let start = state.log.partition_point(|(revision, ..)| *revision <= from);
                    for (_, _, kind, object) in state.log[start..].iter().filter(|(_, name, ..)| *name == collection) {
                        if namespace.is_empty() || object["metadata"]["namespace"] == namespace.as_str() {
                            pending.push_back(line(kind, object));
                        }
                    }
                    from = state.revision;
                }
                if pending.is_empty() {
                    receiver.changed().await.ok()?;
                }
            }
        },
    );
    Response::new(StreamBody::new(stream).boxed_unsync())
}

#[derive(PartialEq, Clone, Copy)]
enum Fault {
    None,
    Before,
    After,
    Conflict,
}

impl State {
    fn fault(&mut self) -> Fault {
        if self.fault_every == 0 || self.random.random_range(0..self.fault_every) != 0 {
            return Fault::None;
        }
        [Fault::Before, Fault::After, Fault::Conflict][self.random.random_range(0..3)]
    }

    fn select(&self, collection: &str, namespace: &str) -> Vec<Value> {
        let matching = self
            .objects
            .iter()
            .filter(|((name, space, _), _)| name == collection && (namespace.is_empty() || space == namespace));
        matching.map(|(_, object)| object.clone()).collect()
    }

    fn put(&mut self, key: Key, mut object: Value) -> Value {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let kind = if self.objects.contains_key(&key) { "MODIFIED" } else { "ADDED" };
        self.log.push((self.revision, key.0.clone(), kind, object.clone()));
        self.objects.insert(key, object.clone());
        object
    }

    fn remove(&mut self, key: &Key) {
        if let Some(mut object) = self.objects.remove(key) {
            self.revision += 1;
            object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
            self.log.push((self.revision, key.0.clone(), "DELETED", object));
        }
    }
}

/// An object that is being deleted and has no finalizer left is gone; a pod also waits for its kubelet.
fn is_released(object: &Value) -> bool {
    let finalizers = object["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    let is_pod = object["kind"] == "Pod" && !object["spec"]["nodeName"].is_null();
    !object["metadata"]["deletionTimestamp"].is_null() && finalizers == 0 && !is_pod
}

fn delete(key: &Key, mut object: Value, options: &Value) -> Option<Value> {
    let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    match options["propagationPolicy"].as_str() {
        Some("Foreground") => finalizers.push(json!("foregroundDeletion")),
        Some("Orphan") => finalizers.push(json!("orphan")),
        _ => {}
    }
    let runs = key.0.ends_with("/pods") && !object["spec"]["nodeName"].is_null();
    if finalizers.is_empty() && !runs {
        return None;
    }
    object["metadata"]["finalizers"] = json!(finalizers);
    if object["metadata"]["deletionTimestamp"].is_null() {
        object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    Some(object)
}

fn replaced(mut old: Value, mut new: Value, subresource: Option<&str>) -> Value {
    if subresource == Some("status") {
        old["status"] = new["status"].take();
        return old;
    }
    new["status"] = old["status"].take();
    for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation"] {
        new["metadata"][field] = old["metadata"][field].take();
    }
    if new["spec"] != old["spec"] {
        new["metadata"]["generation"] = json!(new["metadata"]["generation"].as_i64().unwrap_or(1) + 1);
    }
    new
}

/// A merge patch, with the two directives of strategic patches that controllers use.
fn patch(object: &mut Value, patch: &Value) {
    let Some(fields) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    for (name, value) in fields {
        if let Some(list) = name.strip_prefix("$deleteFromPrimitiveList/") {
            let gone = value.as_array().cloned().unwrap_or_default();
            if let Some(present) = object[list].as_array_mut() {
                present.retain(|item| !gone.contains(item));
            }
        } else if name == "ownerReferences"
            && value.as_array().is_some_and(|owners| owners.iter().any(|owner| owner["$patch"] == "delete"))
        {
            let gone: Vec<&Value> = value.as_array().into_iter().flatten().map(|owner| &owner["uid"]).collect();
            if let Some(present) = object[name].as_array_mut() {
                present.retain(|owner| !gone.contains(&&owner["uid"]));
            }
        } else if value.is_null() {
            object.as_object_mut().map(|object| object.remove(name));
        } else {
            if !object.is_object() {
                *object = json!({});
            }
            self::patch(&mut object[name], value);
        }
    }
}

fn discovery(path: &str) -> Option<Value> {
    if path == "/apis" {
        let mut groups: Vec<&str> = RESOURCES.iter().filter_map(|(group, ..)| group.strip_prefix("/apis/")).collect();
        groups.dedup();
        let group = |group: &&str| {
            let name = group.split('/').next().unwrap();
            json!({ "name": name, "versions": [{ "groupVersion": group, "version": "v1" }], "preferredVersion": { "groupVersion": group, "version": "v1" } })
        };
        return Some(json!({ "groups": groups.iter().map(group).collect::<Vec<_>>() }));
    }
    let resources: Vec<Value> = RESOURCES
        .iter()
        .filter(|(group, ..)| *group == path)
        .map(|(_, name, kind, namespaced)| {
            json!({ "name": name, "singularName": "", "kind": kind, "namespaced": namespaced, "verbs": ["get", "list", "watch", "create", "update", "patch", "delete"] })
        })
        .collect();
    (!resources.is_empty()).then(|| json!({ "groupVersion": path, "resources": resources }))
}

fn line(kind: &str, object: &Value) -> Bytes {
    Bytes::from(format!("{}\n", json!({ "type": kind, "object": object })))
}

fn reply(code: u16, body: &Value) -> Response<Body> {
    let body = Full::new(Bytes::from(body.to_string())).map_err(|never| match never {});
    Response::builder().status(code).body(body.boxed_unsync()).unwrap()
}

fn failure(code: u16, reason: &str) -> Response<Body> {
    reply(
        code,
        &json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason, "message": reason }),
    )
}

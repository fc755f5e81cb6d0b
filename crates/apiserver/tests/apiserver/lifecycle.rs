//! The life that conformance tests lead every kind through: found in discovery, created, read, listed, watched, patched,
//! updated, its status written apart, deleted alone and as a collection.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const STRATEGIC: &str = "application/strategic-merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// A kind and an object of it.
pub(crate) struct Life<'a> {
    /// `v1` or `apps/v1`.
    pub(crate) api_version: &'a str,
    pub(crate) plural: &'a str,
    pub(crate) namespaced: bool,
    /// Without `kind` and `apiVersion`; the name and a label are added.
    pub(crate) body: Value,
    /// The name, where it is not free to choose.
    pub(crate) name: &'a str,
    /// What to write to `/status`, for kinds that have one.
    pub(crate) status: Option<Value>,
}

impl Life<'_> {
    fn base(&self) -> String {
        if self.api_version.contains('/') {
            format!("/apis/{}", self.api_version)
        } else {
            format!("/api/{}", self.api_version)
        }
    }

    pub(crate) fn collection(&self) -> String {
        let place = if self.namespaced { "/namespaces/default" } else { "" };
        format!("{}{place}/{}", self.base(), self.plural)
    }

    pub(crate) fn object(&self, name: &str) -> Value {
        let mut body = self.body.clone();
        body["metadata"] = json!({"name": name, "labels": {"life": "1"}});
        body
    }

    /// Runs the whole life, and leaves nothing behind.
    pub(crate) async fn run(&self, cluster: &Cluster) {
        self.discover(cluster).await;
        let (path, label) = (self.collection(), "labelSelector=life%3D1");
        let (code, before) = cluster.send("GET", &format!("{path}?{label}"), Value::Null).await;
        assert_eq!(code, 200, "{before}");
        let version = before["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let mut events = Events::open(cluster, &format!("{path}?watch=true&{label}&resourceVersion={version}")).await;

        let strict = format!("{path}?fieldValidation=Strict");
        let (code, created) = cluster.send("POST", &strict, self.object(self.name)).await;
        assert_eq!(code, 201, "{created}");
        assert_eq!(events.next().await["type"], "ADDED");
        let (code, status) = cluster.send("POST", &path, self.object(self.name)).await;
        assert_eq!((code, status["reason"].as_str()), (409, Some("AlreadyExists")), "{status}");

        let url = format!("{path}/{}", self.name);
        let (code, read) = cluster.send("GET", &url, Value::Null).await;
        assert_eq!((code, &read), (200, &created));
        for list in [path.clone(), format!("{}/{}", self.base(), self.plural)] {
            let (_, found) = cluster.send("GET", &format!("{list}?{label}"), Value::Null).await;
            assert_eq!(found["items"].as_array().map(Vec::len), Some(1), "{list}: {found}");
        }
        self.change(cluster, &url, &mut events, &created).await;
        if let Some(status) = &self.status {
            self.write_status(cluster, &url, status).await;
        }
        let (code, gone) = cluster.send("DELETE", &format!("{url}?gracePeriodSeconds=0"), Value::Null).await;
        assert_eq!(code, 200, "{gone}");
        let last = events.until("DELETED").await;
        assert_eq!(last["object"]["metadata"]["name"], self.name);
        assert_eq!(cluster.send("GET", &url, Value::Null).await.0, 404);
        self.delete_collection(cluster).await;
    }

    async fn discover(&self, cluster: &Cluster) {
        let (_, list) = cluster.send("GET", &self.base(), Value::Null).await;
        let names: Vec<&str> =
            list["resources"].as_array().unwrap().iter().filter_map(|row| row["name"].as_str()).collect();
        assert!(names.contains(&self.plural), "{} in {names:?}", self.plural);
        if self.status.is_some() {
            assert!(names.contains(&&*format!("{}/status", self.plural)), "{names:?}");
        }
        if let Some((group, version)) = self.api_version.split_once('/') {
            let (_, groups) = cluster.send("GET", "/apis", Value::Null).await;
            let found = groups["groups"].as_array().unwrap().iter().find(|row| row["name"] == group).unwrap();
            assert!(found["versions"].as_array().unwrap().iter().any(|row| row["version"] == version), "{found}");
        }
    }

    /// Patches of every kind and an update; each moves the version on and is seen by the watcher.
    async fn change(&self, cluster: &Cluster, url: &str, events: &mut Events, created: &Value) {
        let number = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u128>().unwrap();
        let mut last = number(created);
        let patches = [
            (MERGE, json!({"metadata": {"annotations": {"merge": "1"}}})),
            (STRATEGIC, json!({"metadata": {"annotations": {"strategic": "1"}}})),
            (JSON_PATCH, json!([{"op": "add", "path": "/metadata/annotations/json", "value": "1"}])),
            (
                APPLY,
                json!({"apiVersion": self.api_version, "kind": created["kind"],
                    "metadata": {"name": self.name, "annotations": {"apply": "1"}}}),
            ),
        ];
        for (content_type, patch) in patches {
            let url =
                if content_type == APPLY { format!("{url}?fieldManager=test&force=true") } else { url.to_owned() };
            let (code, patched) = cluster.send_raw("PATCH", &url, content_type, patch).await;
            let patched: Value = serde_json::from_slice(&patched).unwrap();
            assert_eq!(code, 200, "{content_type}: {patched}");
            assert!(number(&patched) > last, "{patched}");
            last = number(&patched);
            let event = events.next().await;
            assert_eq!((&event["type"], &event["object"]), (&json!("MODIFIED"), &patched));
        }
        let (_, mut object) = cluster.send("GET", url, Value::Null).await;
        let annotations = object["metadata"]["annotations"].as_object().unwrap();
        assert!(["merge", "strategic", "json", "apply"].iter().all(|key| annotations.contains_key(*key)), "{object}");
        object["metadata"]["annotations"]["update"] = "1".into();
        let (code, updated) = cluster.send("PUT", url, object.clone()).await;
        assert_eq!(code, 200, "{updated}");
        assert_eq!(events.next().await["object"]["metadata"]["annotations"]["update"], "1");
        object["metadata"]["annotations"]["update"] = "2".into();
        let (code, stale) = cluster.send("PUT", url, object).await;
        assert_eq!((code, stale["reason"].as_str()), (409, Some("Conflict")), "{stale}");
    }

    async fn write_status(&self, cluster: &Cluster, url: &str, status: &Value) {
        let (_, main) = cluster.send("GET", url, Value::Null).await;
        let status_url = format!("{url}/status");
        let (code, read) = cluster.send("GET", &status_url, Value::Null).await;
        assert_eq!((code, &read["kind"], &read["apiVersion"]), (200, &main["kind"], &main["apiVersion"]));
        let patch = json!({"metadata": {"annotations": {"status": "1"}}, "status": status});
        let (code, patched) = cluster.send_raw("PATCH", &status_url, MERGE, patch).await;
        let patched: Value = serde_json::from_slice(&patched).unwrap();
        assert_eq!(code, 200, "{patched}");
        contains(&patched["status"], status);
        assert_eq!(patched["spec"], main["spec"]);
        let (code, updated) = cluster.send("PUT", &status_url, patched).await;
        assert_eq!(code, 200, "{updated}");
        // Through the main resource the status does not change.
        let (_, mut object) = cluster.send("GET", url, Value::Null).await;
        let kept = object["status"].clone();
        object["status"] = Value::Null;
        let (code, after) = cluster.send("PUT", url, object).await;
        assert_eq!((code, &after["status"]), (200, &kept), "{after}");
    }

    async fn delete_collection(&self, cluster: &Cluster) {
        let path = self.collection();
        let (code, _) = cluster.send("POST", &path, self.object(self.name)).await;
        assert_eq!(code, 201);
        let (code, status) =
            cluster.send("DELETE", &format!("{path}?labelSelector=life%3D1&gracePeriodSeconds=0"), Value::Null).await;
        assert_eq!(code, 200, "{status}");
        let (_, left) = cluster.send("GET", &format!("{path}?labelSelector=life%3D1"), Value::Null).await;
        assert_eq!(left["items"], json!([]));
    }
}

/// Everything that `part` says must stand in `whole`.
pub(crate) fn contains(whole: &Value, part: &Value) {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, value) in part {
                contains(whole.get(key).unwrap_or_else(|| panic!("{key} is missing")), value);
            }
        }
        // Conditions have times, set or not.
        (Value::Array(whole), Value::Array(part)) if whole.len() == part.len() => {
            whole.iter().zip(part).for_each(|(whole, part)| contains(whole, part));
        }
        _ => assert_eq!(whole, part),
    }
}

/// Reads a watch event by event.
pub(crate) struct Events {
    body: apiserver::Body,
    buffer: Vec<u8>,
}

impl Events {
    pub(crate) async fn open(cluster: &Cluster, url: &str) -> Self {
        let response =
            cluster.request("GET", url, "application/json", Bytes::new(), "admin", &["system:masters"]).await;
        assert_eq!(response.status(), 200, "{url}");
        Self { body: response.into_body(), buffer: Vec::new() }
    }

    /// The next event, or a panic when it does not come in time.
    pub(crate) async fn next(&mut self) -> Value {
        self.maybe_next().await.expect("the watch goes on")
    }

    /// `None` at the end of the watch.
    pub(crate) async fn maybe_next(&mut self) -> Option<Value> {
        let wait = async {
            loop {
                if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = self.buffer.drain(..=end).collect();
                    return Some(serde_json::from_slice(&line).unwrap());
                }
                let frame = self.body.frame().await?.unwrap();
                self.buffer.extend_from_slice(frame.data_ref().unwrap());
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), wait).await.expect("an event in time")
    }

    /// The first event of this type.
    pub(crate) async fn until(&mut self, kind: &str) -> Value {
        loop {
            let event = self.next().await;
            if event["type"] == kind {
                return event;
            }
        }
    }
}

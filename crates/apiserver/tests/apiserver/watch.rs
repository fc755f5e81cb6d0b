//! Watches: resume, selectors, bookmarks, expiry.

use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::Events;

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Reads a watch of ConfigMaps event by event.
struct Maps(Events);

impl Maps {
    async fn open(cluster: &Cluster, query: &str) -> Self {
        Self(Events::open(cluster, &format!("{MAPS}?watch=true&{query}")).await)
    }

    async fn expect(&mut self, kind: &str, name: &str) -> Value {
        let event = self.0.next().await;
        assert_eq!(
            (event["type"].as_str(), event["object"]["metadata"]["name"].as_str()),
            (Some(kind), Some(name)),
            "{event}"
        );
        event
    }
}

fn map(name: &str, label: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"l": label}}})
}

#[tokio::test]
async fn a_watch_starts_with_the_state_and_follows_changes() {
    let cluster = Cluster::start().await;
    cluster.send("POST", MAPS, map("a", "x")).await;
    let mut events = Maps::open(&cluster, "labelSelector=l%3Dx").await;
    events.expect("ADDED", "a").await;
    cluster.send("POST", MAPS, map("b", "y")).await;
    cluster.send("PUT", &format!("{MAPS}/a"), map("a", "y")).await;
    events.expect("DELETED", "a").await;
    cluster.send("PUT", &format!("{MAPS}/b"), map("b", "x")).await;
    let added = events.expect("ADDED", "b").await;
    cluster.send("DELETE", &format!("{MAPS}/b"), Value::Null).await;
    let deleted = events.expect("DELETED", "b").await;
    let version =
        |event: &Value| event["object"]["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&deleted) > version(&added));
}

#[tokio::test]
async fn a_watch_resumes_after_a_version() {
    let cluster = Cluster::start().await;
    let (_, first) = cluster.send("POST", MAPS, map("a", "x")).await;
    cluster.send("POST", MAPS, map("b", "x")).await;
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = Maps::open(&cluster, &format!("resourceVersion={version}&timeoutSeconds=1")).await;
    events.expect("ADDED", "b").await;
    assert!(events.0.maybe_next().await.is_none(), "the watch ends at its timeout");
}

#[tokio::test]
async fn streaming_lists_end_with_a_bookmark() {
    let cluster = Cluster::start().await;
    cluster.send("POST", MAPS, map("a", "x")).await;
    let query = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    let mut events = Maps::open(&cluster, query).await;
    events.expect("ADDED", "a").await;
    let mark = events.0.next().await;
    assert_eq!(mark["type"], "BOOKMARK");
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
}

/// Whoever goes on from the bookmark must get what happened while the initial events were sent.
#[tokio::test]
async fn the_bookmark_after_initial_events_speaks_for_no_others() {
    let cluster = Cluster::start().await;
    let (_, first) = cluster.send("POST", MAPS, map("a", "x")).await;
    let query = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan";
    // Nothing is read yet, so nothing is sent.
    let mut events = Maps::open(&cluster, query).await;
    cluster.send("POST", MAPS, map("b", "x")).await;
    let (_, list) = cluster.send("GET", MAPS, Value::Null).await;
    assert!(list["items"].as_array().unwrap().iter().any(|item| item["metadata"]["name"] == "b"), "{list}");
    events.expect("ADDED", "a").await;
    let mark = events.0.next().await;
    assert_eq!(mark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true", "{mark}");
    let added = events.expect("ADDED", "b").await;
    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
    assert!(version(&mark["object"]) >= version(&first), "{mark}");
    assert!(version(&mark["object"]) < version(&added["object"]), "{mark} {added}");
    let resumed = format!("resourceVersion={}&timeoutSeconds=1", version(&mark["object"]));
    Maps::open(&cluster, &resumed).await.expect("ADDED", "b").await;
}

#[tokio::test]
async fn versions_from_the_future_are_refused() {
    let cluster = Cluster::start().await;
    let (code, status) = cluster.send("GET", &format!("{MAPS}?resourceVersion=999999999"), Value::Null).await;
    assert_eq!((code, status["reason"].as_str()), (504, Some("Timeout")), "{status}");
}

/// Columns come with the first event; after it they are null, as Go writes a list that nobody set.
#[tokio::test]
async fn tables_of_a_watch_tell_their_columns_once() {
    let cluster = Cluster::start().await;
    for name in ["a", "b"] {
        cluster.send("POST", MAPS, map(name, "x")).await;
    }
    let mut request = http::Request::builder()
        .uri(format!("{MAPS}?watch=true&labelSelector=l%3Dx&timeoutSeconds=1&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(bytes::Bytes::new())
        .unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let response = (cluster.handler)(request).await;
    let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
    let events: Vec<Value> =
        serde_json::Deserializer::from_slice(&bytes).into_iter().collect::<Result<_, _>>().unwrap();
    assert_eq!(events[0]["object"]["columnDefinitions"][0]["name"], "Name", "{events:?}");
    assert_eq!(events[1]["object"].get("columnDefinitions"), Some(&Value::Null), "{events:?}");
    assert_eq!(events[1]["object"]["rows"][0]["cells"][0], "b", "{events:?}");
    // A bookmark is a row, too, of an object that has only metadata.
    let (mark, kind) = (&events[2]["object"], &events[2]["type"]);
    assert_eq!((kind.as_str(), mark["kind"].as_str()), (Some("BOOKMARK"), Some("Table")), "{events:?}");
    assert_eq!(mark["columnDefinitions"], Value::Null);
    let [row] = &mark["rows"].as_array().unwrap()[..] else { panic!("{mark}") };
    assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(row["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(row["object"]["metadata"]["resourceVersion"], mark["metadata"]["resourceVersion"]);
}

//! Answers for clients that accept nothing but protobuf.

use bytes::{Buf, Bytes};
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

async fn ask(cluster: &Cluster, method: &str, path: &str, accept: &str) -> http::Response<apiserver::Body> {
    let request = Request::builder().method(method).uri(path).header("accept", accept);
    let mut request = request.body(Bytes::new()).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    cluster.handle(request).await
}

/// Code, content type and body.
async fn read(cluster: &Cluster, path: &str, accept: &str) -> (u16, String, Bytes) {
    let response = ask(cluster, "GET", path, accept).await;
    let code = response.status().as_u16();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    (code, content_type, response.into_body().collect().await.unwrap().to_bytes())
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes.get_u8();
        value |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 {
            return value;
        }
    }
}

/// The texts and messages of a message, by number.
fn fields(mut bytes: &[u8]) -> Vec<(u64, &[u8])> {
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        match tag & 7 {
            0 => _ = varint(&mut bytes),
            1 => bytes.advance(8),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (field, rest) = bytes.split_at(length);
                found.push((tag >> 3, field));
                bytes = rest;
            }
            other => panic!("wire type {other}"),
        }
    }
    found
}

fn field(bytes: &[u8], number: u64) -> &[u8] {
    fields(bytes).into_iter().find(|(found, _)| *found == number).map_or(&[], |(_, field)| field)
}

/// API version, kind and message of an envelope.
fn open(body: &[u8]) -> (&str, &str, &[u8]) {
    let envelope = body.strip_prefix(b"k8s\0").unwrap_or_else(|| panic!("no envelope: {body:?}"));
    let meta = field(envelope, 1);
    let text = |number| std::str::from_utf8(field(meta, number)).unwrap();
    (text(1), text(2), field(envelope, 2))
}

/// The name in the metadata of an object.
fn name(message: &[u8]) -> &str {
    std::str::from_utf8(field(field(message, 1), 1)).unwrap()
}

#[tokio::test]
async fn objects_lists_and_errors_in_protobuf() {
    let cluster = Cluster::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b"] {
        let body = json!({"metadata": {"name": name}, "data": {"k": "v"}});
        assert_eq!(cluster.send("POST", maps, body).await.0, 201);
    }
    let (code, content_type, body) = read(&cluster, &format!("{maps}/a"), PROTOBUF).await;
    assert_eq!((code, content_type.as_str()), (200, PROTOBUF));
    let (version, kind, message) = open(&body);
    assert_eq!((version, kind, name(message)), ("v1", "ConfigMap", "a"));
    let entry = field(message, 2);
    assert_eq!((field(entry, 1), field(entry, 2)), (&b"k"[..], &b"v"[..]));

    let (code, _, body) = read(&cluster, &format!("{maps}?limit=1"), PROTOBUF).await;
    let (version, kind, message) = open(&body);
    assert_eq!((code, version, kind), (200, "v1", "ConfigMapList"));
    let items: Vec<&str> = fields(message).into_iter().filter(|(n, _)| *n == 2).map(|(_, item)| name(item)).collect();
    assert_eq!(items, ["a"]);
    assert!(!field(field(message, 1), 2).is_empty() && !field(field(message, 1), 3).is_empty(), "version and token");

    let partial = format!("{PROTOBUF};as=PartialObjectMetadata;g=meta.k8s.io;v=v1");
    let (code, _, body) = read(&cluster, &format!("{maps}/a"), &partial).await;
    let (version, kind, message) = open(&body);
    assert_eq!((code, version, kind, name(message)), (200, "meta.k8s.io/v1", "PartialObjectMetadata", "a"));

    let (code, content_type, body) = read(&cluster, &format!("{maps}/none"), PROTOBUF).await;
    let (version, kind, message) = open(&body);
    assert_eq!((code, content_type.as_str(), version, kind), (404, PROTOBUF, "v1", "Status"));
    assert_eq!(field(message, 3), b"configmaps \"none\" not found");

    // Every client in use names JSON as well, and gets what lies ready.
    let (code, content_type, _) = read(&cluster, &format!("{maps}/a"), &format!("{PROTOBUF},application/json")).await;
    assert_eq!((code, content_type.as_str()), (200, "application/json"));
    let table = format!("{PROTOBUF};as=Table;g=meta.k8s.io;v=v1");
    assert_eq!(read(&cluster, maps, &table).await.0, 406);

    let response = ask(&cluster, "DELETE", &format!("{maps}/b"), PROTOBUF).await;
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(open(&body).1, "Status");
}

#[tokio::test]
async fn every_built_in_kind_can_be_listed_in_protobuf() {
    let cluster = Cluster::start().await;
    let (_, groups) = cluster.send("GET", "/apis", Value::Null).await;
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array().unwrap());
    let versions = versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
    let mut listed = 0;
    for path in std::iter::once("/api/v1".to_owned()).chain(versions) {
        let (_, resources) = cluster.send("GET", &path, Value::Null).await;
        for resource in resources["resources"].as_array().unwrap() {
            let name = resource["name"].as_str().unwrap();
            let verbs = resource["verbs"].to_string();
            if name.contains('/') || !verbs.contains("\"list\"") {
                continue;
            }
            let (code, _, body) = read(&cluster, &format!("{path}/{name}"), PROTOBUF).await;
            // Versions of the table's future, and a kind that is ours alone.
            if code == 406 {
                let is_old = path.ends_with("/v1") && name != "initializerconfigurations";
                assert!(!is_old, "{path}/{name} has no protobuf form");
                continue;
            }
            assert_eq!(code, 200, "{path}/{name}");
            assert!(open(&body).1.ends_with("List"), "{path}/{name}");
            listed += 1;
        }
    }
    assert!(listed > 45, "{listed}");
}

#[tokio::test]
async fn watches_in_protobuf() {
    let cluster = Cluster::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    let body = json!({"metadata": {"name": "a"}, "data": {"k": "v"}});
    assert_eq!(cluster.send("POST", maps, body).await.0, 201);
    let path = format!("{maps}?watch=true&fieldSelector=metadata.name=a&timeoutSeconds=1");
    let response = ask(&cluster, "GET", &path, PROTOBUF).await;
    assert_eq!(response.headers()["content-type"], "application/vnd.kubernetes.protobuf;stream=watch");
    let mut body = response.into_body().collect().await.unwrap().to_bytes();
    let length = body.get_u32() as usize;
    let event = body.split_to(length);
    assert_eq!(field(&event, 1), b"ADDED");
    let (version, kind, message) = open(field(field(&event, 2), 1));
    assert_eq!((version, kind, name(message)), ("v1", "ConfigMap", "a"));
    assert!(body.is_empty(), "one event");
}

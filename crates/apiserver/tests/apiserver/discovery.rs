//! Conformance area 1: discovery, version, content negotiation.

use bytes::Bytes;
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

async fn get(cluster: &Cluster, path: &str, accept: &str) -> (u16, String, Value) {
    let mut request = Request::builder().uri(path).header("accept", accept).body(Bytes::new()).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let response = (cluster.handler)(request).await;
    let code = response.status().as_u16();
    let content_type = response.headers()["content-type"].to_str().unwrap().to_owned();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (code, content_type, serde_json::from_slice(&body).unwrap())
}

#[tokio::test]
async fn aggregated_discovery_names_every_group() {
    let cluster = Cluster::start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
        application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    let (code, content_type, groups) = get(&cluster, "/apis", accept).await;
    assert_eq!(code, 200);
    assert!(content_type.contains("as=APIGroupDiscoveryList") && content_type.contains("v=v2"), "{content_type}");
    let names: Vec<&str> =
        groups["items"].as_array().unwrap().iter().map(|row| row["metadata"]["name"].as_str().unwrap()).collect();
    for group in [
        "admissionregistration.k8s.io",
        "apiextensions.k8s.io",
        "apiregistration.k8s.io",
        "apps",
        "authentication.k8s.io",
        "authorization.k8s.io",
        "autoscaling",
        "batch",
        "certificates.k8s.io",
        "coordination.k8s.io",
        "discovery.k8s.io",
        "events.k8s.io",
        "networking.k8s.io",
        "node.k8s.io",
        "policy",
        "scheduling.k8s.io",
        "storage.k8s.io",
    ] {
        assert!(names.contains(&group), "{group} in {names:?}");
    }
    let autoscaling = groups["items"].as_array().unwrap().iter().find(|row| row["metadata"]["name"] == "autoscaling");
    let versions: Vec<&Value> =
        autoscaling.unwrap()["versions"].as_array().unwrap().iter().map(|row| &row["version"]).collect();
    assert_eq!(versions, ["v2", "v1"]);
    let (_, _, core) = get(&cluster, "/api", accept).await;
    assert_eq!(core["items"][0]["versions"][0]["version"], "v1");
}

#[tokio::test]
async fn every_group_has_a_preferred_version_that_it_serves() {
    let cluster = Cluster::start().await;
    let (_, groups) = cluster.send("GET", "/apis/", Value::Null).await;
    for group in groups["groups"].as_array().unwrap() {
        let name = group["name"].as_str().unwrap();
        let (code, found) = cluster.send("GET", &format!("/apis/{name}/"), Value::Null).await;
        assert_eq!(code, 200, "{name}");
        let versions = found["versions"].as_array().unwrap();
        assert!(versions.contains(&found["preferredVersion"]), "{found}");
        for version in versions {
            let version = version["groupVersion"].as_str().unwrap();
            let (code, list) = cluster.send("GET", &format!("/apis/{version}"), Value::Null).await;
            assert_eq!((code, list["groupVersion"].as_str()), (200, Some(version)));
        }
    }
}

#[tokio::test]
async fn the_version_is_of_digits() {
    let cluster = Cluster::start().await;
    let (_, version) = cluster.send("GET", "/version", Value::Null).await;
    let digits = |key: &str| version[key].as_str().unwrap().trim_end_matches('+').parse::<u32>().unwrap();
    assert_eq!((digits("major"), digits("minor")), (1, 36));
}

#[tokio::test]
async fn what_cannot_be_a_table_is_not_acceptable_as_one() {
    let cluster = Cluster::start().await;
    let body = json!({"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let mut request = Request::builder()
        .method("POST")
        .uri("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews")
        .header("accept", table)
        .header("content-type", "application/json")
        .body(Bytes::from(body.to_string()))
        .unwrap();
    request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
    let response = (cluster.handler)(request).await;
    assert_eq!(response.status(), 406);
    let (code, _, pods) = get(&cluster, "/api/v1/namespaces/default/pods", table).await;
    assert_eq!((code, &pods["kind"]), (200, &json!("Table")));
    let (_, _, nodes) = get(&cluster, "/api/v1/nodes", &format!("{table},application/json")).await;
    assert_eq!(nodes["columnDefinitions"][0]["name"], "Name");
}

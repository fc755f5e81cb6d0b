//! Conformance area 3: custom resources, from their definition to their end.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::APPLY;
use crate::policies::{bind, rules};
use crate::webhook_server::{Reply, WebhookServer};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CRONS: &str = "/apis/example.com/v1/namespaces/default/crons";
const MERGE: &str = "application/merge-patch+json";

impl Cluster {
    async fn get(&self, url: &str) -> (u16, Value) {
        self.send("GET", url, Value::Null).await
    }

    async fn post(&self, url: &str, body: &Value) -> (u16, Value) {
        self.send("POST", url, body.clone()).await
    }

    async fn put(&self, url: &str, body: &Value) -> (u16, Value) {
        self.send("PUT", url, body.clone()).await
    }

    async fn delete(&self, url: &str) -> (u16, Value) {
        self.send("DELETE", url, Value::Null).await
    }

    async fn patch(&self, url: &str, content_type: &str, body: Value) -> (u16, Value) {
        let (code, body) = self.send_raw("PATCH", url, content_type, body).await;
        (code, serde_json::from_slice(&body).unwrap())
    }
}

fn definition(plural: &str, kind: &str, versions: Value) -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.example.com")},
        "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind},
            "versions": versions}})
}

fn version(name: &str, is_stored: bool, properties: Value) -> Value {
    json!({"name": name, "served": true, "storage": is_stored,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}}})
}

/// The kind most tests use.
fn crons() -> Value {
    let mut v1 = version(
        "v1",
        true,
        json!({
        "spec": {"type": "object", "required": ["schedule"], "properties": {
            "schedule": {"type": "string", "pattern": "^\\S+( \\S+){4}$"},
            "replicas": {"type": "integer", "minimum": 0, "default": 1},
            "image": {"type": "string"},
            "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port"],
                "items": {"type": "object", "required": ["port"], "properties": {"port": {"type": "integer"}, "name": {"type": "string"}}}}}},
        "status": {"type": "object", "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}}}}),
    );
    v1["subresources"] = json!({"status": {}, "scale": {"specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas", "labelSelectorPath": ".status.selector"}});
    v1["additionalPrinterColumns"] = json!([
        {"name": "Schedule", "type": "string", "jsonPath": ".spec.schedule"},
        {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas"}]);
    v1["selectableFields"] = json!([{"jsonPath": ".spec.image"}]);
    let mut definition = definition("crons", "Cron", json!([v1]));
    definition["spec"]["names"]["shortNames"] = json!(["crn"]);
    definition["spec"]["names"]["categories"] = json!(["all"]);
    definition
}

fn cron(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Cron", "metadata": {"name": name}, "spec": spec})
}

fn condition<'a>(definition: &'a Value, kind: &str) -> &'a Value {
    let conditions = definition["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// Makes a definition and waits until it says what became of its names.
pub(crate) async fn define(cluster: &Cluster, definition: &Value) -> Value {
    let (code, made) = cluster.post(DEFINITIONS, definition).await;
    assert_eq!(code, 201, "{made}");
    let name = definition["metadata"]["name"].as_str().unwrap();
    until(cluster, &format!("{DEFINITIONS}/{name}"), |made| !condition(made, "Established").is_null()).await
}

/// Asks again and again until the answer is as wanted.
async fn until(cluster: &Cluster, url: &str, is_done: impl Fn(&Value) -> bool) -> Value {
    loop {
        let (_, found) = cluster.get(url).await;
        if is_done(&found) {
            return found;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_definition_is_established_and_serves_objects() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.get(CRONS).await.0, 404);
    let made = define(&cluster, &crons()).await;
    assert_eq!(condition(&made, "NamesAccepted")["reason"], "NoConflicts");
    assert_eq!(condition(&made, "Established")["status"], "True");
    assert_eq!(made["status"]["acceptedNames"]["singular"], "cron");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));

    let (code, created) = cluster.post(CRONS, &cron("a", json!({"schedule": "* * * * *", "unknown": 1}))).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"], json!({"schedule": "* * * * *", "replicas": 1}));
    assert_eq!((&created["metadata"]["generation"], &created["kind"]), (&json!(1), &json!("Cron")));
    let (_, list) = cluster.get(CRONS).await;
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("CronList"), 1));

    let (code, status) = cluster.post(CRONS, &cron("b", json!({"replicas": -1, "image": 5}))).await;
    assert_eq!(code, 422);
    let message = status["message"].as_str().unwrap();
    for expected in [
        r#"spec.image: Invalid value: "integer": spec.image in body must be of type string: "integer""#,
        "spec.replicas: Invalid value: -1: spec.replicas in body should be greater than or equal to 0",
        "spec.schedule: Required value",
    ] {
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn names_belong_to_who_asked_first() {
    let cluster = Cluster::start().await;
    define(&cluster, &crons()).await;
    let second = define(&cluster, &definition("others", "Cron", json!([version("v1", true, json!({}))]))).await;
    assert_eq!(condition(&second, "NamesAccepted")["reason"], "ListKindConflict");
    assert_eq!(condition(&second, "Established")["status"], "False");
    assert_eq!(cluster.get("/apis/example.com/v1/others").await.0, 404);
    // When the first is gone, the second gets its names.
    assert_eq!(cluster.delete(&format!("{DEFINITIONS}/crons.example.com")).await.0, 200);
    let url = format!("{DEFINITIONS}/others.example.com");
    until(&cluster, &url, |made| condition(made, "Established")["status"] == "True").await;
    assert_eq!(cluster.get("/apis/example.com/v1/others").await.0, 200);
}

#[tokio::test]
async fn writes_keep_spec_and_status_apart_and_count_generations() {
    let cluster = Cluster::start().await;
    define(&cluster, &crons()).await;
    let mut object = cron("a", json!({"schedule": "* * * * *"}));
    object["status"] = json!({"replicas": 9});
    let (_, created) = cluster.post(CRONS, &object).await;
    assert_eq!(created["status"], Value::Null);
    let url = format!("{CRONS}/a");
    let (code, patched) = cluster.patch(&url, MERGE, json!({"spec": {"image": "i"}, "status": {"replicas": 5}})).await;
    assert_eq!((code, &patched["metadata"]["generation"], &patched["status"]), (200, &json!(2), &Value::Null));
    let body = json!({"spec": {"image": "j"}, "status": {"replicas": 5, "selector": "a=b"}});
    let (_, patched) = cluster.patch(&format!("{url}/status"), MERGE, body).await;
    assert_eq!((&patched["spec"]["image"], &patched["status"]["replicas"]), (&json!("i"), &json!(5)));
    assert_eq!(patched["metadata"]["generation"], 2);

    let (_, scale) = cluster.get(&format!("{url}/scale")).await;
    assert_eq!((&scale["kind"], &scale["spec"]["replicas"]), (&json!("Scale"), &json!(1)));
    assert_eq!(scale["status"], json!({"replicas": 5, "selector": "a=b"}));
    let (code, _) = cluster.patch(&format!("{url}/scale"), MERGE, json!({"spec": {"replicas": 4}})).await;
    assert_eq!((code, &cluster.get(&url).await.1["spec"]["replicas"]), (200, &json!(4)));

    let (code, _) = cluster.patch(&url, "application/strategic-merge-patch+json", json!({"spec": {}})).await;
    assert_eq!(code, 415);
    let operations = json!([{"op": "replace", "path": "/spec/image", "value": "k"}]);
    let (_, patched) = cluster.patch(&url, "application/json-patch+json", operations).await;
    assert_eq!(patched["spec"]["image"], "k");
    let (code, _) = cluster.put(&url, &cron("a", json!({"schedule": "0 * * * *"}))).await;
    assert_eq!(code, 422, "an update names the version it is about");
    let mut whole = cluster.get(&url).await.1;
    whole["spec"]["schedule"] = json!("0 * * * *");
    assert_eq!(cluster.put(&url, &whole).await.0, 200);

    let (_, chosen) = cluster.get(&format!("{CRONS}?fieldSelector=spec.image%3Dk")).await;
    assert_eq!(chosen["items"].as_array().unwrap().len(), 1);
    let (_, chosen) = cluster.get(&format!("{CRONS}?fieldSelector=spec.image%3Dx")).await;
    assert_eq!(chosen["items"].as_array().unwrap().len(), 0);
    assert_eq!(cluster.get(&format!("{CRONS}?fieldSelector=spec.schedule%3Dx")).await.0, 400);
}

#[tokio::test]
async fn applies_merge_by_the_schema_and_name_what_it_does_not_know() {
    let cluster = Cluster::start().await;
    define(&cluster, &crons()).await;
    let apply = |spec: Value, manager: &'static str| {
        let body = Bytes::from(cron("a", spec).to_string());
        let url = format!("{CRONS}/a?fieldManager={manager}");
        let cluster = &cluster;
        async move {
            let response = cluster.request("PATCH", &url, APPLY, body, "admin", &["system:masters"]).await;
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (code, serde_json::from_slice::<Value>(&body).unwrap())
        }
    };
    let (code, made) = apply(json!({"schedule": "* * * * *", "ports": [{"port": 1, "name": "x"}]}), "one").await;
    assert_eq!(code, 201, "{made}");
    let (code, made) = apply(json!({"ports": [{"port": 2, "name": "y"}]}), "two").await;
    assert_eq!(code, 200, "{made}");
    assert_eq!(made["spec"]["ports"], json!([{"port": 1, "name": "x"}, {"port": 2, "name": "y"}]));
    let owned = &made["metadata"]["managedFields"][1]["fieldsV1"]["f:spec"]["f:ports"];
    assert_eq!(owned, &json!({"k:{\"port\":2}": {".": {}, "f:name": {}, "f:port": {}}}));
    let (code, status) = apply(json!({"ports": [{"port": 1, "name": "z"}]}), "two").await;
    assert_eq!(code, 409, "{status}");
    let (code, status) = apply(json!({"nothing": 1}), "two").await;
    assert_eq!(code, 500);
    assert!(status["message"].as_str().unwrap().contains(".spec.nothing: field not declared in schema"), "{status}");
}

#[tokio::test]
async fn versions_show_the_same_objects() {
    let cluster = Cluster::start().await;
    let properties = json!({"spec": {"type": "object", "properties": {"a": {"type": "string"}}}});
    let mut second = properties.clone();
    second["spec"]["properties"]["b"] = json!({"type": "string", "default": "B"});
    define(
        &cluster,
        &definition("twins", "Twin", json!([version("v1", true, properties), version("v2", false, second)])),
    )
    .await;
    let (v1, v2) = ("/apis/example.com/v1/namespaces/default/twins", "/apis/example.com/v2/namespaces/default/twins");
    let twin = |version: &str| json!({"apiVersion": format!("example.com/{version}"), "kind": "Twin", "metadata": {"name": version}, "spec": {"a": "x"}});
    let (code, made) = cluster.post(v2, &twin("v2")).await;
    assert_eq!((code, &made["apiVersion"], &made["spec"]["b"]), (201, &json!("example.com/v2"), &json!("B")));
    cluster.post(v1, &twin("v1")).await;
    for (url, version, b) in [(v1, "example.com/v1", Value::Null), (v2, "example.com/v2", json!("B"))] {
        for name in ["v1", "v2"] {
            let (_, found) = cluster.get(&format!("{url}/{name}")).await;
            assert_eq!((&found["apiVersion"], &found["spec"]["a"]), (&json!(version), &json!("x")));
            assert!(version != "example.com/v2" || found["spec"]["b"] == b, "{found}");
        }
    }
    // A default that comes later shows in objects that were there before.
    let url = format!("{DEFINITIONS}/twins.example.com");
    let later = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/c",
        "value": {"type": "integer", "default": 7}}]);
    assert_eq!(cluster.patch(&url, "application/json-patch+json", later).await.0, 200);
    until(&cluster, &format!("{v1}/v1"), |found| found["spec"]["c"] == 7).await;
    // A version that is no longer served is gone.
    let unserved = json!([{"op": "replace", "path": "/spec/versions/1/served", "value": false}]);
    assert_eq!(cluster.patch(&url, "application/json-patch+json", unserved).await.0, 200);
    until(&cluster, v2, |found| found["code"] == 404).await;
}

#[tokio::test]
async fn discovery_and_openapi_follow_the_definitions() {
    let cluster = Cluster::start().await;
    let index = |documents: &Value| documents["paths"]["apis/example.com/v1"]["serverRelativeURL"].clone();
    assert!(index(&cluster.get("/openapi/v3").await.1).is_null());
    define(&cluster, &crons()).await;
    let (_, groups) = cluster.get("/apis").await;
    assert!(groups["groups"].as_array().unwrap().iter().any(|group| group["name"] == "example.com"));
    let (_, resources) = cluster.get("/apis/example.com/v1").await;
    let names: Vec<&str> =
        resources["resources"].as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["crons", "crons/scale", "crons/status"]);
    assert_eq!(resources["resources"][0]["shortNames"], json!(["crn"]));
    let (_, documents) = cluster.get("/openapi/v3").await;
    let before = index(&documents);
    let (_, document) = cluster.get(before.as_str().unwrap()).await;
    let schema = &document["components"]["schemas"]["com.example.v1.Cron"];
    assert_eq!(schema["properties"]["spec"]["properties"]["schedule"]["type"], "string");
    let kind = json!([{"group": "example.com", "version": "v1", "kind": "Cron"}]);
    assert_eq!(schema["x-kubernetes-group-version-kind"], kind);
    // Clients choose how to patch by what is offered here.
    let patch = &document["paths"]["/apis/example.com/v1/namespaces/{namespace}/crons/{name}"]["patch"];
    let offered: Vec<&String> = patch["requestBody"]["content"].as_object().unwrap().keys().collect();
    let expected = ["application/apply-patch+yaml", "application/json-patch+json", "application/merge-patch+json"];
    assert!(offered.len() == 3 && expected.iter().all(|media| offered.iter().any(|found| found == media)), "{patch}");
    let (_, document) = cluster.get("/openapi/v2").await;
    assert_eq!(document["definitions"]["com.example.v1.Cron"]["x-kubernetes-group-version-kind"], kind);

    let url = format!("{DEFINITIONS}/crons.example.com");
    let change =
        json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "Changed."}]);
    assert_eq!(cluster.patch(&url, "application/json-patch+json", change).await.0, 200);
    until(&cluster, "/openapi/v3", |documents| index(documents) != before).await;
    assert_eq!(cluster.delete(&url).await.0, 200);
    until(&cluster, "/apis/example.com/v1", |found| found["code"] == 404).await;
    assert!(index(&cluster.get("/openapi/v3").await.1).is_null());
}

/// Upstream's tests create a definition, wait for its kind in discovery, then read the definition and update it.
#[tokio::test]
async fn a_kind_in_discovery_has_a_definition_that_is_established() {
    let cluster = Cluster::start().await;
    for round in 0..10 {
        let group = format!("g{round}.example.com");
        let mut definition = crons();
        definition["metadata"]["name"] = json!(format!("crons.{group}"));
        definition["spec"]["group"] = json!(group);
        assert_eq!(cluster.post(DEFINITIONS, &definition).await.0, 201);
        until(&cluster, &format!("/apis/{group}/v1"), |found| found["code"] != 404).await;
        let (_, made) = cluster.get(&format!("{DEFINITIONS}/crons.{group}")).await;
        assert!(!condition(&made, "Established").is_null(), "{made}");
    }
}

#[tokio::test]
async fn objects_go_before_their_definition() {
    let cluster = Cluster::start().await;
    define(&cluster, &crons()).await;
    let mut held = cron("held", json!({"schedule": "* * * * *"}));
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.post(CRONS, &held).await;
    cluster.post(CRONS, &cron("free", json!({"schedule": "* * * * *"}))).await;
    let url = format!("{DEFINITIONS}/crons.example.com");
    let (_, marked) = cluster.delete(&url).await;
    assert_eq!(marked["metadata"]["finalizers"], json!(["customresourcecleanup.apiextensions.k8s.io"]));
    until(&cluster, &format!("{CRONS}/free"), |found| found["code"] == 404).await;
    let (_, definition) = cluster.get(&url).await;
    assert_eq!(condition(&definition, "Terminating")["status"], "True");
    let open = json!({"metadata": {"finalizers": null}});
    assert_eq!(cluster.patch(&format!("{CRONS}/held"), MERGE, open).await.0, 200);
    until(&cluster, &url, |found| found["code"] == 404).await;
    until(&cluster, CRONS, |found| found["code"] == 404).await;
    // The same again finds nothing of what was.
    define(&cluster, &crons()).await;
    assert_eq!(cluster.get(CRONS).await.1["items"], json!([]));
}

#[tokio::test]
async fn fields_are_validated_as_asked() {
    let cluster = Cluster::start().await;
    define(&cluster, &crons()).await;
    let body = r#"{"apiVersion":"example.com/v1","kind":"Cron","metadata":{"name":"a","odd":1},"spec":{"schedule":"* * * * *","image":"i","image":"j","x":1}}"#;
    let url = |validation: &str| format!("{CRONS}?fieldValidation={validation}&dryRun=All");
    let post = async |validation: &str| {
        let response = cluster
            .request("POST", &url(validation), "application/json", Bytes::from(body), "admin", &["system:masters"])
            .await;
        let warnings = response.headers().get_all("warning").iter().count();
        let code = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (code, warnings, serde_json::from_slice::<Value>(&body).unwrap())
    };
    let (code, _, status) = post("Strict").await;
    assert_eq!(code, 400);
    let expected =
        r#"strict decoding error: unknown field "metadata.odd", unknown field "spec.x", duplicate field "spec.image""#;
    assert!(status["message"].as_str().unwrap().contains(expected), "{status}");
    let (code, warnings, _) = post("Warn").await;
    assert_eq!((code, warnings), (201, 3));
    let (code, warnings, _) = post("Ignore").await;
    assert_eq!((code, warnings), (201, 0));
}

/// Whoever uses a version that will go is told, whatever they do with it.
#[tokio::test]
async fn deprecated_versions_say_so_with_every_answer() {
    let cluster = Cluster::start().await;
    let mut old = crons();
    old["spec"]["versions"][0]["deprecated"] = true.into();
    define(&cluster, &old).await;
    let warnings = async |url: &str| -> Vec<String> {
        let answer = cluster.request("GET", url, "application/json", Bytes::new(), "admin", &["system:masters"]).await;
        answer.headers().get_all("warning").iter().map(|value| value.to_str().unwrap().to_owned()).collect()
    };
    assert_eq!(warnings(CRONS).await, [r#"299 - "example.com/v1 Cron is deprecated""#]);
    let endpoints = r#"299 - "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice""#;
    assert_eq!(warnings("/api/v1/namespaces/default/endpoints").await, [endpoints]);
    assert!(warnings("/api/v1/namespaces/default/services").await.is_empty());
}

#[tokio::test]
async fn kubectl_works_with_custom_kinds() {
    let cluster = Cluster::start().await;
    cluster.kubectl_with(&["apply", "-f", "-"], &crons().to_string()).await.unwrap();
    cluster.kubectl(&["wait", "--for=condition=Established", "crd/crons.example.com"]).await.unwrap();
    let object = cron("a", json!({"schedule": "* * * * *", "image": "i"})).to_string();
    cluster.kubectl_with(&["apply", "-f", "-"], &object).await.unwrap();
    let table = cluster.kubectl(&["get", "crn"]).await.unwrap();
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines, [vec!["NAME", "SCHEDULE", "WANTED"], vec!["a", "*", "*", "*", "*", "*", "1"]]);
    let explained = cluster.kubectl(&["explain", "crons.spec.schedule"]).await.unwrap();
    assert!(explained.contains("FIELD: schedule <string>"), "{explained}");
    cluster.kubectl(&["scale", "cron/a", "--replicas=3"]).await.unwrap();
    let replicas = cluster.kubectl(&["get", "cron", "a", "-o", "jsonpath={.spec.replicas}"]).await.unwrap();
    assert_eq!(replicas, "3");
    cluster.kubectl(&["delete", "crd", "crons.example.com"]).await.unwrap();
    // Its rows go when the server has seen that it is gone.
    let gone = async { while cluster.kubectl(&["get", "crn"]).await.is_ok() {} };
    tokio::time::timeout(std::time::Duration::from_secs(60), gone).await.expect("the kind is gone");
}

/// v1 says `host` and `port` apart, v2 together.
fn convert(question: &Value) -> Value {
    let wanted = question["desiredAPIVersion"].as_str().unwrap();
    let convert = |object: &Value| {
        let mut new = object.clone();
        new["apiVersion"] = wanted.into();
        let spec = &object["spec"];
        new["spec"] = if wanted.ends_with("v2") {
            json!({"address": format!("{}:{}", spec["host"].as_str().unwrap(), spec["port"].as_str().unwrap())})
        } else {
            let (host, port) = spec["address"].as_str().unwrap().split_once(':').unwrap();
            json!({"host": host, "port": port})
        };
        new
    };
    let objects: Vec<Value> = question["objects"].as_array().unwrap().iter().map(convert).collect();
    json!({"convertedObjects": objects, "result": {"status": "Success"}})
}

#[tokio::test]
async fn a_webhook_converts_between_versions() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|path, question| match path {
        "/convert" => Reply::Response(convert(question)),
        _ => Reply::Response(json!({"convertedObjects": [], "result": {"status": "Failure", "message": "no way"}})),
    })
    .await;
    let text = json!({"type": "string"});
    let first = json!({"spec": {"type": "object", "properties": {"host": text, "port": text}}});
    let second = json!({"spec": {"type": "object", "properties": {"address": text}}});
    let (first, mut second) = (version("v1", true, first), version("v2", false, second));
    second["selectableFields"] = json!([{"jsonPath": ".spec.address"}]);
    let mut hosts = definition("hosts", "Host", json!([first, second]));
    hosts["spec"]["conversion"] = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": server.client_config("/convert"), "conversionReviewVersions": ["v1"]}});
    define(&cluster, &hosts).await;
    let (v1, v2) = ("/apis/example.com/v1/namespaces/default/hosts", "/apis/example.com/v2/namespaces/default/hosts");
    let one = json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": "one"}, "spec": {"host": "a", "port": "1"}});
    let two = json!({"apiVersion": "example.com/v2", "kind": "Host", "metadata": {"name": "two"}, "spec": {"address": "b:2"}});
    assert_eq!(cluster.post(v1, &one).await.0, 201);
    let (code, made) = cluster.post(v2, &two).await;
    assert_eq!((code, &made["spec"]), (201, &json!({"address": "b:2"})), "{made}");
    assert_eq!(cluster.get(&format!("{v1}/two")).await.1["spec"], json!({"host": "b", "port": "2"}));
    let (_, chosen) = cluster.get(&format!("{v2}?fieldSelector=spec.address%3Da:1")).await;
    assert_eq!(chosen["items"].as_array().unwrap().len(), 1, "{chosen}");
    // Objects that are stored in both versions, when the stored version moves.
    let url = format!("{DEFINITIONS}/hosts.example.com");
    let moved = json!([{"op": "replace", "path": "/spec/versions/0/storage", "value": false},
        {"op": "replace", "path": "/spec/versions/1/storage", "value": true}]);
    let (code, made) = cluster.patch(&url, "application/json-patch+json", moved).await;
    assert_eq!((code, &made["status"]["storedVersions"]), (200, &json!(["v1", "v2"])));
    let three = json!({"apiVersion": "example.com/v1", "kind": "Host", "metadata": {"name": "three"}, "spec": {"host": "c", "port": "3"}});
    assert_eq!(cluster.post(v1, &three).await.0, 201);
    for (url, specs) in [
        (v1, json!([{"host": "a", "port": "1"}, {"host": "c", "port": "3"}, {"host": "b", "port": "2"}])),
        (v2, json!([{"address": "a:1"}, {"address": "c:3"}, {"address": "b:2"}])),
    ] {
        let (_, list) = cluster.get(url).await;
        let found: Vec<Value> = list["items"].as_array().unwrap().iter().map(|item| item["spec"].clone()).collect();
        assert_eq!(Value::Array(found), specs);
    }
    let (code, patched) = cluster.patch(&format!("{v2}/one"), MERGE, json!({"spec": {"address": "z:9"}})).await;
    assert_eq!((code, &patched["spec"]), (200, &json!({"address": "z:9"})));
    assert_eq!(cluster.get(&format!("{v1}/one")).await.1["spec"], json!({"host": "z", "port": "9"}));
    assert!(server.take().iter().all(|(_, question)| question["reviewVersion"] == "apiextensions.k8s.io/v1"));
    // A webhook that refuses.
    let refusing = json!({"spec": {"conversion": {"webhook": {"clientConfig": server.client_config("/refuse")}}}});
    assert_eq!(cluster.patch(&url, MERGE, refusing).await.0, 200);
    let wanted = "conversion webhook for Host failed: no way";
    until(&cluster, &format!("{v2}/two"), |found| {
        found["code"] == 500 && found["message"].as_str().unwrap().contains(wanted)
    })
    .await;
}

/// Whoever writes an object in a version of their choice is judged by it as it is in the version that a policy or webhook means.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_version_does_not_hide_an_object_from_policies_and_webhooks() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|path, question| match path {
        "/convert" => Reply::Response(convert(question)),
        _ if question["object"]["spec"]["host"] == "denied" => Reply::Deny(json!({"message": "that host"})),
        _ => Reply::Allow,
    })
    .await;
    let text = json!({"type": "string"});
    let first = json!({"spec": {"type": "object", "properties": {"host": text, "port": text}}});
    let second = json!({"spec": {"type": "object", "properties": {"address": text}}});
    let versions = json!([version("v1", true, first), version("v2", false, second)]);
    let mut hosts = definition("hosts", "Host", versions);
    hosts["spec"]["conversion"] = json!({"strategy": "Webhook",
        "webhook": {"clientConfig": server.client_config("/convert"), "conversionReviewVersions": ["v1"]}});
    define(&cluster, &hosts).await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let hook = json!({"name": "w.example.com", "clientConfig": server.client_config("/judge"), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "rules": [{"operations": ["*"], "apiGroups": ["example.com"],
            "apiVersions": ["v1"], "resources": ["hosts"]}]});
    let hook = json!({"metadata": {"name": "w"}, "webhooks": [hook]});
    assert_eq!(cluster.post(&format!("{group}/validatingwebhookconfigurations"), &hook).await.0, 201);
    let absent_is_fine = "!has(object.spec.host) || object.spec.host != params.data.host";
    let spec = json!({"matchConstraints": rules("example.com", "hosts"), "validations": [{"expression": absent_is_fine}],
        "paramKind": {"apiVersion": "v1", "kind": "ConfigMap"}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let parameters = json!({"metadata": {"name": "evil"}, "data": {"host": "evil"}});
    assert_eq!(cluster.post(maps, &parameters).await.0, 201);
    let binding =
        json!({"validationActions": ["Deny"], "paramRef": {"name": "evil", "parameterNotFoundAction": "Deny"}});
    bind(&cluster, "validating", "v", spec, binding).await;
    let patch = "[JSONPatch{op: 'replace', path: '/spec/port', value: '9'}]";
    let moved = json!([{"name": "moved", "expression": "has(object.spec.host) && object.spec.host == 'moved'"}]);
    let spec = json!({"matchConstraints": rules("example.com", "hosts"), "reinvocationPolicy": "Never", "matchConditions": moved,
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": patch}}]});
    bind(&cluster, "mutating", "m", spec, json!({})).await;

    let v2 = "/apis/example.com/v2/namespaces/default/hosts";
    let host = |name: &str, address: &str| {
        json!({"apiVersion": "example.com/v2", "kind": "Host",
        "metadata": {"name": name}, "spec": {"address": address}})
    };
    for (name, address, expected) in [("evil", "evil:1", 422), ("denied", "denied:1", 400), ("fine", "fine:1", 201)] {
        let (code, answer) = cluster.post(v2, &host(name, address)).await;
        assert_eq!(code, expected, "{answer}");
    }
    let (code, answer) = cluster.patch(&format!("{v2}/fine"), MERGE, json!({"spec": {"address": "evil:2"}})).await;
    assert_eq!(code, 422, "{answer}");
    // What is changed in one version is changed in the other.
    let (code, moved) = cluster.post(v2, &host("moved", "moved:1")).await;
    assert_eq!(
        (code, &moved["spec"], &moved["apiVersion"]),
        (201, &json!({"address": "moved:9"}), &json!("example.com/v2"))
    );
    assert_eq!(cluster.get(&format!("{v2}/moved")).await.1["spec"], json!({"address": "moved:9"}));
    let judged = server.take().into_iter().filter(|(path, _)| path == "/judge");
    assert!(
        judged.clone().count() >= 3
            && judged.clone().all(|(_, asked)| asked["object"]["apiVersion"] == "example.com/v1")
    );
}

/// Versions that differ in name only lose nothing on their way to a policy of another version and back.
#[tokio::test]
async fn policies_of_another_version_take_nothing_away() {
    let cluster = Cluster::start().await;
    let text = json!({"type": "string"});
    let first = json!({"spec": {"type": "object", "properties": {"a": text}}});
    let second = json!({"spec": {"type": "object", "properties": {"a": text, "b": text}}});
    let versions = json!([version("v1", true, first), version("v2", false, second)]);
    define(&cluster, &definition("pairs", "Pair", versions)).await;
    let spec = json!({"matchConstraints": rules("example.com", "pairs"), "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression":
            "[JSONPatch{op: 'replace', path: '/spec/a', value: object.apiVersion}]"}}]});
    bind(&cluster, "mutating", "m", spec, json!({})).await;
    let pair = json!({"apiVersion": "example.com/v2", "kind": "Pair", "metadata": {"name": "p"}, "spec": {"a": "x", "b": "y"}});
    let (code, made) = cluster.post("/apis/example.com/v2/namespaces/default/pairs", &pair).await;
    let expected = json!({"a": "example.com/v1", "b": "y"});
    assert_eq!((code, &made["spec"], &made["apiVersion"]), (201, &expected, &json!("example.com/v2")), "{made}");
}

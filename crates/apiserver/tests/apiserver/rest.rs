//! The verbs, their status codes and their corner cases.

use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::lifecycle::MERGE;

fn config_map(name: &str) -> Value {
    json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": {"a": "b"}})
}

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Walk 2.6.
/// Who asks for a hook by upstream's name finds it.
#[tokio::test]
async fn health_lists_the_hooks_by_name() {
    let cluster = Cluster::start().await;
    for endpoint in ["healthz", "livez", "readyz"] {
        let (code, text) = cluster.send_raw("GET", &format!("/{endpoint}?verbose"), "text/plain", Value::Null).await;
        let text = String::from_utf8(text.to_vec()).unwrap();
        assert_eq!(code, 200, "{text}");
        for hook in [
            "rbac/bootstrap-roles",
            "scheduling/bootstrap-system-priority-classes",
            "start-apiextensions-controllers",
            "crd-informer-synced",
            "bootstrap-controller",
            "storage-readiness",
            "start-service-ip-repair-controllers",
            "apiservice-registration-controller",
        ] {
            assert!(text.contains(&format!("[+]poststarthook/{hook} ok\n")), "{endpoint} lacks {hook}: {text}");
        }
        let path = format!("/{endpoint}/poststarthook/crd-informer-synced");
        assert_eq!(cluster.send_raw("GET", &path, "text/plain", Value::Null).await.0, 200);
    }
}

#[tokio::test]
async fn objects_are_created_read_and_refused() {
    let cluster = Cluster::start().await;
    let (code, created) = cluster.send("POST", MAPS, config_map("c")).await;
    assert_eq!(code, 201, "{created}");
    assert!(created["metadata"]["uid"].is_string() && created["metadata"]["creationTimestamp"].is_string());
    let (code, read) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!((code, &read), (200, &created));
    for (method, path, body, code, reason) in [
        ("POST", MAPS.to_owned(), config_map("c"), 409, "AlreadyExists"),
        ("GET", format!("{MAPS}/none"), Value::Null, 404, "NotFound"),
        ("POST", MAPS.to_owned(), config_map("Not_A_Name"), 422, "Invalid"),
        ("POST", MAPS.to_owned(), json!({"kind": "Secret", "apiVersion": "v1"}), 400, "BadRequest"),
        ("POST", MAPS.to_owned(), json!({"kind": "ConfigMap", "apiVersion": "v2"}), 400, "BadRequest"),
        ("POST", MAPS.to_owned(), json!([]), 400, "BadRequest"),
        ("GET", "/api/v1/nothings".to_owned(), Value::Null, 404, "NotFound"),
        ("PUT", format!("{MAPS}/other"), config_map("c"), 400, "BadRequest"),
        ("GET", format!("{MAPS}?labelSelector=a%20b%20c"), Value::Null, 400, "BadRequest"),
        ("GET", format!("{MAPS}?fieldSelector=data.a%3Db"), Value::Null, 400, "BadRequest"),
    ] {
        let (found, status) = cluster.send(method, &path, body).await;
        assert_eq!((found, status["reason"].as_str()), (code, Some(reason)), "{method} {path}: {status}");
    }
}

/// As upstream writes them: every status that a kind has, and no list or map that is empty.
#[tokio::test]
async fn statuses_are_always_there_and_empty_maps_never() {
    let cluster = Cluster::start().await;
    let template = json!({"metadata": {"labels": {"a": "b"}, "annotations": {}}, "spec": {
        "containers": [{"name": "c", "image": "i", "env": []}], "volumes": [{"name": "v", "emptyDir": {}}]}});
    let deployment = json!({"metadata": {"name": "d", "annotations": {}, "finalizers": []},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let (code, deployment) = cluster.send("POST", "/apis/apps/v1/namespaces/default/deployments", deployment).await;
    assert_eq!((code, &deployment["status"]), (201, &json!({})), "{deployment}");
    let has = |pointer: &str| deployment.pointer(pointer).is_some();
    assert!(!has("/metadata/annotations") && !has("/metadata/finalizers"), "{deployment}");
    assert!(!has("/spec/template/metadata/annotations") && has("/spec/template/metadata/labels"), "{deployment}");
    let pod = &deployment["spec"]["template"]["spec"];
    assert!(pod["containers"][0].get("env").is_none(), "{pod}");
    assert_eq!(pod["volumes"][0]["emptyDir"], json!({}));

    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let (code, service) = cluster.send("POST", "/api/v1/namespaces/default/services", service).await;
    assert_eq!((code, &service["status"]), (201, &json!({"loadBalancer": {}})), "{service}");
    let slice = json!({"metadata": {"name": "e"}, "addressType": "IPv4", "endpoints": [], "ports": []});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let (code, slice) = cluster.send("POST", slices, slice).await;
    assert_eq!((code, &slice["endpoints"], &slice["ports"]), (201, &json!(null), &json!(null)), "{slice}");

    // The last annotation takes the map along, whoever removes it.
    let mut map = config_map("c");
    map["metadata"]["annotations"] = json!({"x": "y"});
    cluster.send("POST", MAPS, map.clone()).await;
    map["metadata"]["annotations"] = json!({});
    let (code, written) = cluster.send("PUT", &format!("{MAPS}/c"), map).await;
    assert_eq!((code, written["metadata"].get("annotations")), (200, None), "{written}");
}

#[tokio::test]
async fn versions_guard_updates() {
    let cluster = Cluster::start().await;
    let (_, mut map) = cluster.send("POST", MAPS, config_map("c")).await;
    let stale = map.clone();
    map["data"]["a"] = "c".into();
    let (code, updated) = cluster.send("PUT", &format!("{MAPS}/c"), map).await;
    assert_eq!((code, updated["data"]["a"].as_str()), (200, Some("c")));
    let (code, status) = cluster.send("PUT", &format!("{MAPS}/c"), stale).await;
    assert_eq!((code, status["reason"].as_str()), (409, Some("Conflict")));
    // Writing the same again changes nothing, not even the version.
    let (_, again) = cluster.send("PUT", &format!("{MAPS}/c"), updated.clone()).await;
    assert_eq!(again["metadata"]["resourceVersion"], updated["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn lists_come_in_consistent_pages() {
    let cluster = Cluster::start().await;
    cluster.send("POST", "/api/v1/namespaces", json!({"metadata": {"name": "p"}})).await;
    let maps = "/api/v1/namespaces/p/configmaps";
    for index in 0..7 {
        cluster.send("POST", maps, config_map(&format!("c{index}"))).await;
    }
    let (_, first) = cluster.send("GET", &format!("{maps}?limit=3"), Value::Null).await;
    assert_eq!(first["items"].as_array().unwrap().len(), 3);
    assert_eq!(first["metadata"]["remainingItemCount"], 4);
    cluster.send("DELETE", &format!("{maps}/c5"), Value::Null).await;
    let mut names: Vec<String> = Vec::new();
    let mut page = first.clone();
    loop {
        names.extend(
            page["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        let Some(token) = page["metadata"]["continue"].as_str() else { break };
        let (code, next) = cluster.send("GET", &format!("{maps}?limit=3&continue={token}"), Value::Null).await;
        assert_eq!(code, 200, "{next}");
        page = next;
    }
    assert_eq!(names, ["c0", "c1", "c2", "c3", "c4", "c5", "c6"]);
    let (_, now) = cluster.send("GET", maps, Value::Null).await;
    assert_eq!(now["items"].as_array().unwrap().len(), 6);
    assert_eq!(now["items"][0].get("kind"), None);
    let version = first["metadata"]["resourceVersion"].as_str().unwrap();
    let (_, then) =
        cluster.send("GET", &format!("{maps}?resourceVersion={version}&resourceVersionMatch=Exact"), Value::Null).await;
    assert_eq!(then["items"].as_array().unwrap().len(), 7);
}

#[tokio::test]
async fn patches_of_three_kinds() {
    let cluster = Cluster::start().await;
    cluster.send("POST", MAPS, config_map("c")).await;
    let path = format!("{MAPS}/c");
    for (content_type, patch, expected) in [
        ("application/json-patch+json", json!([{"op": "add", "path": "/data/x", "value": "1"}]), 200),
        ("application/merge-patch+json", json!({"data": {"x": null, "y": "2"}}), 200),
        ("application/strategic-merge-patch+json", json!({"metadata": {"labels": {"l": "v"}}}), 200),
        ("application/json-patch+json", json!([{"op": "test", "path": "/data/y", "value": "no"}]), 422),
        ("application/merge-patch+json", json!({"metadata": {"name": "other"}}), 400),
        ("text/plain", json!({}), 415),
    ] {
        let (code, body) = cluster.send_raw("PATCH", &path, content_type, patch).await;
        assert_eq!(code, expected, "{content_type}: {}", String::from_utf8_lossy(&body));
    }
    let (_, map) = cluster.send("GET", &path, Value::Null).await;
    assert_eq!(map["data"], json!({"a": "b", "y": "2"}));
    assert_eq!(map["metadata"]["labels"], json!({"l": "v"}));
}

#[tokio::test]
async fn finalizers_hold_an_object_back() {
    let cluster = Cluster::start().await;
    let mut map = config_map("c");
    map["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.send("POST", MAPS, map).await;
    let (code, marked) = cluster.send("DELETE", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(code, 200);
    assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{marked}");
    let (code, _) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(code, 200);
    let (code, _) = cluster
        .send_raw(
            "PATCH",
            &format!("{MAPS}/c"),
            "application/merge-patch+json",
            json!({"metadata": {"finalizers": null}}),
        )
        .await;
    assert_eq!(code, 200);
    let (code, _) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(code, 404);
}

#[tokio::test]
async fn dry_runs_and_generated_names() {
    let cluster = Cluster::start().await;
    let (code, _) = cluster.send("POST", &format!("{MAPS}?dryRun=All"), config_map("c")).await;
    assert_eq!(code, 201);
    let (code, _) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(code, 404);
    let (code, map) = cluster.send("POST", MAPS, json!({"metadata": {"generateName": "g-"}})).await;
    assert_eq!(code, 201);
    assert!(map["metadata"]["name"].as_str().unwrap().starts_with("g-"));
}

#[tokio::test]
async fn pods_are_bound_once() {
    let cluster = Cluster::start().await;
    let pods = "/api/v1/namespaces/default/pods";
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "nginx"}]}});
    let (code, created) = cluster.send("POST", pods, pod).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(created["spec"]["serviceAccountName"], "default");
    let binding = json!({"kind": "Binding", "apiVersion": "v1", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}});
    let (code, answer) = cluster.send("POST", &format!("{pods}/p/binding"), binding.clone()).await;
    assert_eq!(code, 201, "{answer}");
    let (code, answer) = cluster.send("POST", &format!("{pods}/p/binding"), binding).await;
    assert_eq!((code, answer["reason"].as_str()), (409, Some("Conflict")));
    let (_, bound) = cluster.send("GET", &format!("{pods}/p"), Value::Null).await;
    assert_eq!(bound["spec"]["nodeName"], "n");
    let (_, list) = cluster.send("GET", "/api/v1/pods?fieldSelector=spec.nodeName%3Dn", Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 1, "{list}");
}

#[tokio::test]
async fn scale_and_events_speak_two_versions() {
    let cluster = Cluster::start().await;
    let sets = "/apis/apps/v1/namespaces/default/replicasets";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let set = json!({"metadata": {"name": "s"}, "spec": {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}});
    let (code, answer) = cluster.send("POST", sets, set).await;
    assert_eq!(code, 201, "{answer}");
    let (code, scale) = cluster.send("GET", &format!("{sets}/s/scale"), Value::Null).await;
    assert_eq!((code, &scale["spec"]["replicas"], &scale["status"]["selector"]), (200, &json!(2), &json!("a=b")));
    let (code, scale) = cluster
        .send_raw("PATCH", &format!("{sets}/s/scale"), "application/merge-patch+json", json!({"spec": {"replicas": 4}}))
        .await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&scale));
    let event = json!({"metadata": {"name": "e"}, "involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}, "message": "hello", "reason": "R", "type": "Normal"});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/events", event).await;
    assert_eq!(code, 201, "{answer}");
    let (_, new) = cluster.send("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e", Value::Null).await;
    assert_eq!((new["note"].as_str(), new["apiVersion"].as_str()), (Some("hello"), Some("events.k8s.io/v1")));
}

#[tokio::test]
async fn state_survives_a_restart() {
    let cluster = Cluster::start().await;
    cluster.send("POST", MAPS, config_map("c")).await;
    let (_, before) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    let dir = cluster.stop().await;
    let store = dir.path().join("store");
    let again = Cluster::with(|config| config.storage = apiserver::Storage::Embedded(store)).await;
    let (_, after) = again.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(before, after);
}

#[tokio::test]
async fn apply_on_the_server_keeps_owners_apart() {
    let cluster = Cluster::start().await;
    let path = |manager: &str, force: bool| format!("{MAPS}/c?fieldManager={manager}&force={force}");
    let config =
        |value: &str| json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "c"}, "data": {"k": value}});
    let apply = |manager: &'static str, value: &'static str, force: bool| {
        let cluster = &cluster;
        async move {
            cluster.send_raw("PATCH", &path(manager, force), "application/apply-patch+yaml", config(value)).await.0
        }
    };
    assert_eq!(apply("one", "1", false).await, 201);
    assert_eq!(apply("one", "2", false).await, 200);
    assert_eq!(apply("two", "3", false).await, 409);
    assert_eq!(apply("two", "3", true).await, 200);
    let (_, map) = cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await;
    assert_eq!(map["data"]["k"], "3");
    let managers: Vec<&str> = map["metadata"]["managedFields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["manager"].as_str().unwrap())
        .collect();
    assert_eq!(managers, ["two"], "{map}");
    let (code, _) = cluster.send_raw("PATCH", &format!("{MAPS}/c"), "application/apply-patch+yaml", config("x")).await;
    assert_eq!(code, 422);
}

#[tokio::test]
async fn what_is_wrong_beside_recorded_fields_is_seen() {
    let cluster = Cluster::start().await;
    let (_, map) = cluster.send("POST", MAPS, config_map("c")).await;
    let (version, recorded) = (&map["metadata"]["resourceVersion"], &map["metadata"]["managedFields"]);
    let put = async |metadata: String, expected: &str| {
        let body = format!("{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",\"metadata\":{{{metadata}}}}}");
        let url = format!("{MAPS}/c?fieldValidation=Strict");
        let text = body.clone().into();
        let response = cluster.request("PUT", &url, "application/json", text, "admin", &["system:masters"]).await;
        let code = response.status().as_u16();
        let answer = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let message = answer["message"].as_str().unwrap_or_default();
        assert!((code == 200) == expected.is_empty() && message.contains(expected), "{body}: {code} {message}");
    };
    let (named, fields) =
        (format!("\"name\":\"c\",\"resourceVersion\":{version}"), format!("\"managedFields\":{recorded}"));
    put(format!("{named},{fields},\"managedFields\":[]"), "duplicate field \"metadata.managedFields\"").await;
    put(format!("{named} {fields}"), "expected `,` or `}`").await;
    put(format!(",{fields},{named}"), "key must be a string").await;
    put(format!("{named},{fields}"), "").await;
}

#[tokio::test]
async fn names_of_managers_are_checked() {
    let cluster = Cluster::start().await;
    let url = |name: &str, manager: &str| format!("{MAPS}{name}?fieldManager={manager}");
    let (long, longest) = ("m".repeat(129), "m".repeat(128));
    for (manager, problem) in [
        (long.as_str(), "fieldManager: Too long: may not be more than 128 bytes"),
        ("a%07b", "fieldManager: Invalid value: \"a\\ab\": invalid character U+0007 (at position 1)"),
    ] {
        let text = format!(" \"\" is invalid: {problem}");
        let (code, status) = cluster.send("POST", &url("", manager), config_map("c")).await;
        assert_eq!((code, status["message"].as_str()), (422, Some(&*format!("CreateOptions.meta.k8s.io{text}"))));
        let apply = "application/apply-patch+yaml";
        let (code, status) = cluster.send_raw("PATCH", &url("/c", manager), apply, config_map("c")).await;
        let status: Value = serde_json::from_slice(&status).unwrap();
        assert_eq!((code, status["message"].as_str()), (422, Some(&*format!("PatchOptions.meta.k8s.io{text}"))));
    }
    assert_eq!(cluster.send("GET", &format!("{MAPS}/c"), Value::Null).await.0, 404);
    for (name, manager, expected) in [("c", longest.as_str(), longest.as_str()), ("d", "", "unknown")] {
        let (code, map) = cluster.send("POST", &url("", manager), config_map(name)).await;
        assert_eq!((code, &map["metadata"]["managedFields"][0]["manager"]), (201, &json!(expected)), "{map}");
    }
}

#[tokio::test]
async fn unknown_fields_warn_or_fail() {
    let cluster = Cluster::start().await;
    let mut map = config_map("c");
    map["datta"] = json!({});
    let (code, status) = cluster.send("POST", &format!("{MAPS}?fieldValidation=Strict"), map.clone()).await;
    assert_eq!(code, 400);
    assert!(status["message"].as_str().unwrap().contains("strict decoding error: unknown field \"datta\""), "{status}");
    let body = map.to_string().into();
    let response = cluster.request("POST", MAPS, "application/json", body, "admin", &["system:masters"]).await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["warning"], "299 - \"unknown field \\\"datta\\\"\"");
}

#[tokio::test]
async fn tables_and_partial_objects() {
    let cluster = Cluster::start().await;
    cluster.send("POST", MAPS, config_map("c")).await;
    for (accept, kind) in [
        ("application/json;as=Table;v=v1;g=meta.k8s.io", "Table"),
        ("application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io", "PartialObjectMetadataList"),
    ] {
        let mut request =
            http::Request::builder().uri(MAPS).header("accept", accept).body(bytes::Bytes::new()).unwrap();
        request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
        let response = (cluster.handler)(request).await;
        let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["kind"], kind, "{value}");
    }
}

/// Groups of neighbours are kept compressed: what is read must be what is there, whatever came, went or changed in between.
#[tokio::test]
async fn a_compressed_list_shows_what_a_plain_one_does() {
    let cluster = Cluster::start().await;
    for n in 0..150 {
        let mut map = config_map(&format!("map-{n:03}"));
        map["metadata"]["labels"] = json!({"even": (n % 2 == 0).to_string()});
        map["data"] = json!({"text": format!("{n} ").repeat(600)});
        assert_eq!(cluster.send("POST", MAPS, map).await.0, 201);
    }
    let both_agree = async |query: &str, accept: &str, count: usize| {
        let mut lists = Vec::new();
        for coding in ["identity", "gzip"] {
            let request = http::Request::builder().uri(format!("{MAPS}{query}")).header("accept", accept);
            let mut request = request.header("accept-encoding", coding).body(bytes::Bytes::new()).unwrap();
            request.extensions_mut().insert(api::UserInfo::new("admin", &["system:masters"]));
            let response = (cluster.handler)(request).await;
            let is_compressed = response.headers().get("content-encoding").is_some_and(|coding| coding == "gzip");
            assert_eq!(is_compressed, coding == "gzip");
            let bytes = http_body_util::BodyExt::collect(response.into_body()).await.unwrap().to_bytes();
            let mut text = bytes.to_vec();
            if is_compressed {
                text.clear();
                std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
            }
            let mut list: Value = serde_json::from_slice(&text).unwrap();
            list["metadata"] = Value::Null;
            lists.push(list);
        }
        assert_eq!(lists[0]["items"].as_array().unwrap().len(), count);
        assert!(lists[0] == lists[1], "{query} {accept}");
    };
    let partial = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    for count in [150, 149] {
        // The second time from what was kept.
        for _ in 0..2 {
            both_agree("", "application/json", count).await;
            both_agree("?labelSelector=even%3Dtrue", "application/json", 75).await;
            both_agree("", partial, count).await;
        }
        both_agree("?limit=140", "application/json", 140).await;
        let change = json!({"data": {"text": "x".repeat(2000)}});
        assert_eq!(cluster.send_raw("PATCH", &format!("{MAPS}/map-070"), MERGE, change).await.0, 200);
        if count == 150 {
            assert_eq!(cluster.send("DELETE", &format!("{MAPS}/map-031"), Value::Null).await.0, 200);
        }
    }
}

#[tokio::test]
async fn a_pods_generation_counts_changes_of_its_specification() {
    let cluster = Cluster::start().await;
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "g"}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}}}]}});
    let (code, created) = cluster.send("POST", pods, pod).await;
    assert_eq!((code, &created["metadata"]["generation"]), (201, &json!(1)), "{created}");
    let debugger = json!({"spec": {"ephemeralContainers": [{"name": "d", "image": "i"}]}});
    let larger = json!({"spec": {"containers": [{"name": "c", "resources":
        {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}}]}});
    for (part, patch, generation) in [
        ("ephemeralcontainers", &debugger, 2),
        ("ephemeralcontainers", &debugger, 2),
        ("resize", &larger, 3),
        ("status", &json!({"status": {"message": "m"}}), 3),
    ] {
        let path = format!("{pods}/g/{part}");
        let (code, patched) =
            cluster.send_raw("PATCH", &path, "application/strategic-merge-patch+json", patch.clone()).await;
        let patched: Value = serde_json::from_slice(&patched).unwrap();
        assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(generation)), "{part}: {patched}");
    }
}

/// Habits of single kinds that clients have come to rely on.
#[tokio::test]
async fn kinds_keep_their_old_ways() {
    let cluster = Cluster::unprotected().await;
    let template = json!({"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let selector = json!({"matchLabels": {"app": "a"}});
    let apps = |plural: &str| format!("/apis/apps/v1/namespaces/default/{plural}");
    let meta = json!({"name": "a"});

    // Dependents of the oldest kinds stay unless the delete says otherwise.
    let controllers = "/api/v1/namespaces/default/replicationcontrollers".to_owned();
    let jobs = "/apis/batch/v1/namespaces/default/jobs".to_owned();
    let mut once = template.clone();
    once["spec"]["restartPolicy"] = "Never".into();
    for (path, spec) in [(controllers, json!({"template": template})), (jobs, json!({"template": once}))] {
        let (code, made) = cluster.send("POST", &path, json!({"metadata": meta, "spec": spec})).await;
        assert_eq!(code, 201, "{made}");
        let (code, marked) = cluster.send("DELETE", &format!("{path}/a"), Value::Null).await;
        assert_eq!((code, &marked["metadata"]["finalizers"]), (200, &json!(["orphan"])), "{path}: {marked}");
    }

    // An annotation is news to whoever watches the generation of a Deployment, and of no other workload.
    let spec = json!({"selector": selector, "template": template});
    for (plural, generation) in [("deployments", 2), ("replicasets", 1), ("statefulsets", 1), ("daemonsets", 1)] {
        let path = apps(plural);
        cluster.send("POST", &path, json!({"metadata": meta, "spec": spec})).await;
        let patch = json!({"metadata": {"annotations": {"new": "yes"}}});
        let (code, patched) = cluster.send_raw("PATCH", &format!("{path}/a"), MERGE, patch).await;
        let patched: Value = serde_json::from_slice(&patched).unwrap();
        assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(generation)), "{plural}");
    }
    let counted = "deprecated.daemonset.template.generation";
    for (image, count) in [("i", "1"), ("j", "2")] {
        let patch = json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": image}]}}}});
        let (_, set) = cluster.send_raw("PATCH", &format!("{}/a", apps("daemonsets")), MERGE, patch).await;
        let set: Value = serde_json::from_slice(&set).unwrap();
        assert_eq!(set["metadata"]["annotations"][counted], count);
    }

    // Without a template or a selector, the errors are about what has to be said.
    let (code, refused) =
        cluster.send("POST", &apps("deployments"), json!({"metadata": {"name": "b"}, "spec": {}})).await;
    let fields: Vec<&str> =
        refused["details"]["causes"].as_array().unwrap().iter().filter_map(|cause| cause["field"].as_str()).collect();
    assert_eq!(code, 422);
    assert_eq!(fields, ["spec.selector", "spec.template.metadata.labels", "spec.template.spec.containers"]);

    // Some kinds are not overwritten blindly.
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    let class = json!({"metadata": meta, "handler": "h"});
    cluster.send("POST", classes, class.clone()).await;
    let (code, refused) = cluster.send("PUT", &format!("{classes}/a"), class).await;
    let message = "runtimeclasses.node.k8s.io \"a\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update";
    assert_eq!((code, refused["message"].as_str()), (422, Some(message)));

    // A pod that goes at once is shown as one that had no time.
    let pods = "/api/v1/namespaces/default/pods";
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    cluster.send("POST", pods, json!({"metadata": meta, "spec": template["spec"]})).await;
    let (code, gone) = cluster.send("DELETE", &format!("{pods}/a?gracePeriodSeconds=0"), Value::Null).await;
    assert_eq!((code, &gone["metadata"]["deletionGracePeriodSeconds"]), (200, &json!(0)), "{gone}");
    assert!(gone["metadata"]["deletionTimestamp"].is_string());
}

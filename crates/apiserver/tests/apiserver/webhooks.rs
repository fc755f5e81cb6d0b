//! Admission webhooks: real servers on loopback with TLS, behaving well and badly.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::webhook_server::{Reply, WebhookServer, patched};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations";

/// A webhook about creates of config maps; `more` overrides its fields.
fn hook(name: &str, client: Value, more: Value) -> Value {
    let mut hook = json!({
        "name": name,
        "clientConfig": client,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
    });
    hook.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    hook
}

/// Creates a configuration and waits until the server knows it.
async fn configure(cluster: &Cluster, path: &str, name: &str, hooks: Vec<Value>) {
    let (code, answer) = cluster.send("POST", path, json!({"metadata": {"name": name}, "webhooks": hooks})).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(cluster.send("GET", &format!("{path}/{name}"), Value::Null).await.0, 200);
}

async fn remove(cluster: &Cluster, path: &str, name: &str) {
    assert_eq!(cluster.send("DELETE", &format!("{path}/{name}"), Value::Null).await.0, 200);
    assert_eq!(cluster.send("GET", &format!("{path}/{name}"), Value::Null).await.0, 404);
}

fn map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "1"}})
}

fn misbehave(path: &str, _: &Value) -> Reply {
    match path {
        "/allow" => Reply::Allow,
        "/deny" => Reply::Deny(json!({"message": "no such thing here", "code": 403, "reason": "Forbidden"})),
        "/deny-silently" => Reply::Response(json!({"allowed": false})),
        "/hang" => Reply::Hang,
        "/garbage" => Reply::Raw(200, "<html>".to_owned()),
        "/empty" => {
            Reply::Raw(200, json!({"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}).to_string())
        }
        "/wrong-uid" => Reply::Response(json!({"uid": "other", "allowed": true})),
        "/patch-from-validating" => patched(&json!([])),
        "/error" => Reply::Raw(500, "out of order".to_owned()),
        "/missing" => Reply::Raw(404, String::new()),
        "/redirect" => Reply::Redirect("/allow".to_owned()),
        "/huge" => Reply::Raw(200, " ".repeat(9 << 20)),
        _ => Reply::Raw(404, String::new()),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_that_refuse_or_fail_are_bounded() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(misbehave).await;
    let other = WebhookServer::start(misbehave).await;
    let url = |path: &str| server.client_config(path);
    let mut stranger = url("/allow");
    stranger["caBundle"] = other.authority.clone().into();
    let nobody = json!({"url": "https://127.0.0.1:1/x", "caBundle": server.authority});
    let missing_service =
        json!({"service": {"namespace": "default", "name": "nowhere", "path": "/x"}, "caBundle": server.authority});
    let strict = json!({});
    let lenient = json!({"failurePolicy": "Ignore"});
    let hurried = json!({"timeoutSeconds": 1});
    let hurried_lenient = json!({"timeoutSeconds": 1, "failurePolicy": "Ignore"});
    for (client, more, code, text) in [
        (url("/allow"), &strict, 201, ""),
        (url("/deny"), &strict, 403, "admission webhook \"w.example.com\" denied the request: no such thing here"),
        (url("/deny"), &lenient, 403, "no such thing here"),
        (url("/deny-silently"), &strict, 400, "denied the request without explanation"),
        (url("/hang"), &hurried, 500, "/hang?timeout=1s\": context deadline exceeded"),
        (url("/hang"), &hurried_lenient, 201, ""),
        (url("/garbage"), &strict, 500, "failed calling webhook \"w.example.com\": received invalid webhook response"),
        (url("/garbage"), &lenient, 201, ""),
        (url("/empty"), &strict, 500, "webhook response was absent"),
        (url("/wrong-uid"), &strict, 500, "expected response.uid="),
        (url("/patch-from-validating"), &strict, 500, "validating webhook may not return response.patch"),
        (
            url("/error"),
            &strict,
            500,
            "an error on the server (\"out of order\") has prevented the request from succeeding",
        ),
        (url("/missing"), &strict, 500, "the server could not find the requested resource"),
        (url("/redirect"), &strict, 500, "the server responded with the status code 307"),
        (url("/huge"), &strict, 500, "the response is larger than"),
        (stranger, &strict, 500, "failed to call webhook: Post"),
        (nobody.clone(), &strict, 500, "connect: connection refused"),
        (nobody, &lenient, 201, ""),
        (
            missing_service,
            &strict,
            500,
            "https://nowhere.default.svc:443/x?timeout=10s\": service \"nowhere\" not found",
        ),
    ] {
        configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", client.clone(), more.clone())]).await;
        let (found, answer) = cluster.send("POST", MAPS, map("m")).await;
        assert_eq!(found, code, "{client} {more}: {answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.contains(text), "{client} {more}: {message}");
        let (exists, _) = cluster.send("GET", &format!("{MAPS}/m"), Value::Null).await;
        assert_eq!(exists == 200, code == 201, "{client} {more}");
        remove(&cluster, VALIDATING, "v").await;
        cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await;
    }
    // The redirect to it was not followed: only the first row asked there.
    assert_eq!(server.take().iter().filter(|(path, _)| path == "/allow").count(), 1);
}

/// What judges every object may itself run in the cluster, and cannot answer before that is there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_starts_while_a_webhook_about_its_own_objects_is_away() {
    const TRACKING: &str =
        "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking";
    let cluster = Cluster::start().await;
    let nobody = json!({"url": "https://127.0.0.1:1/x"});
    configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", nobody, json!({}))]).await;
    assert_eq!(cluster.send("DELETE", TRACKING, Value::Null).await.0, 200);
    let dir = cluster.stop().await;
    let store = dir.path().join("store");
    let again = Cluster::with(|config| config.storage = apiserver::Storage::Embedded(store)).await;
    assert_eq!(again.send("GET", TRACKING, Value::Null).await.0, 404);
    assert_eq!(again.send("POST", MAPS, map("m")).await.0, 500);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_are_asked_about_what_they_select() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|_, _| Reply::Allow).await;
    let rule = |operations: Value, groups: Value, versions: Value, resources: Value| json!({"operations": operations, "apiGroups": groups, "apiVersions": versions, "resources": resources});
    let create_maps = || rule(json!(["CREATE"]), json!([""]), json!(["v1"]), json!(["configmaps"]));
    let mut namespaced = create_maps();
    namespaced["scope"] = "Namespaced".into();
    let mut cluster_wide = create_maps();
    cluster_wide["scope"] = "Cluster".into();
    let old_event = |policy: &str| json!({"matchPolicy": policy, "rules": [rule(json!(["*"]), json!([""]), json!(["v1"]), json!(["events"]))]});
    let (code, _) =
        cluster.send("POST", "/api/v1/namespaces", json!({"metadata": {"name": "t", "labels": {"team": "t"}}})).await;
    assert_eq!(code, 201);
    let labelled = json!({"metadata": {"name": "m", "labels": {"x": "y"}}});
    let event = json!({"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "namespace": "default", "name": "p"}, "note": "n",
        "reason": "R", "action": "A", "type": "Normal", "reportingController": "c", "reportingInstance": "i",
        "eventTime": "2026-01-01T00:00:00.000000Z"});
    let in_t = "/api/v1/namespaces/t/configmaps";
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    for (more, path, object, asked) in [
        (json!({"rules": [create_maps()]}), MAPS, map("m"), true),
        (
            json!({"rules": [rule(json!(["UPDATE"]), json!([""]), json!(["v1"]), json!(["configmaps"]))]}),
            MAPS,
            map("m"),
            false,
        ),
        (json!({"rules": [rule(json!(["*"]), json!(["apps"]), json!(["*"]), json!(["*"]))]}), MAPS, map("m"), false),
        (json!({"rules": [rule(json!(["*"]), json!(["*"]), json!(["*"]), json!(["*"]))]}), MAPS, map("m"), true),
        (
            json!({"rules": [rule(json!(["*"]), json!(["*"]), json!(["*"]), json!(["*/status"]))]}),
            MAPS,
            map("m"),
            false,
        ),
        (json!({"rules": [namespaced]}), MAPS, map("m"), true),
        (json!({"rules": [cluster_wide]}), MAPS, map("m"), false),
        (json!({"namespaceSelector": {"matchLabels": {"team": "t"}}}), MAPS, map("m"), false),
        (json!({"namespaceSelector": {"matchLabels": {"team": "t"}}}), in_t, map("m"), true),
        (json!({"objectSelector": {"matchLabels": {"x": "y"}}}), MAPS, map("m"), false),
        (json!({"objectSelector": {"matchLabels": {"x": "y"}}}), MAPS, labelled, true),
        (old_event("Equivalent"), events, event.clone(), true),
        (old_event("Exact"), events, event, false),
    ] {
        configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", server.client_config("/"), more.clone())])
            .await;
        let (code, answer) = cluster.send("POST", path, object.clone()).await;
        assert_eq!(code, 201, "{answer}");
        let seen = server.take();
        assert_eq!(!seen.is_empty(), asked, "{more} {path} {object}");
        if let (Some((_, question)), true) = (seen.first(), path == events) {
            // Asked in the version the rule names, told what the request was.
            assert_eq!(question["kind"], json!({"group": "", "version": "v1", "kind": "Event"}));
            assert_eq!(question["requestKind"], json!({"group": "events.k8s.io", "version": "v1", "kind": "Event"}));
            assert_eq!(question["object"]["involvedObject"]["name"], "p", "{question}");
        }
        remove(&cluster, VALIDATING, "v").await;
        let name = object["metadata"]["name"].as_str().unwrap();
        assert_eq!(cluster.send("DELETE", &format!("{path}/{name}"), Value::Null).await.0, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_say_everything_about_the_request() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|path, question| match (path, question["operation"].as_str()) {
        (_, Some("DELETE")) if question["oldObject"]["data"]["keep"] == "me" => {
            Reply::Deny(json!({"message": "must be kept"}))
        }
        (_, Some("CONNECT")) => Reply::Deny(json!({"message": "attaching to pod 'p' is not allowed"})),
        _ => {
            Reply::Response(json!({"allowed": true, "warnings": ["think twice"], "auditAnnotations": {"seen": "yes"}}))
        }
    })
    .await;
    let everything = json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"],
        "resources": ["configmaps", "pods/*", "deployments/*"]}]});
    configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", server.client_config("/"), everything)]).await;
    // Creates, with the options of the request and the warnings of the webhook.
    let response = cluster
        .request(
            "POST",
            &format!("{MAPS}?fieldManager=me&dryRun=All"),
            "application/json",
            Bytes::from(map("m").to_string()),
            "ann",
            &["dev", "system:masters"],
        )
        .await;
    assert_eq!(response.status(), 201);
    assert_eq!(response.headers()["warning"], "299 - \"think twice\"");
    response.into_body().collect().await.unwrap();
    let (_, question) = server.take().remove(0);
    assert_eq!(question["operation"], "CREATE");
    assert_eq!((&question["name"], &question["namespace"]), (&json!("m"), &json!("default")));
    assert_eq!(question["resource"], json!({"group": "", "version": "v1", "resource": "configmaps"}));
    assert_eq!(question["userInfo"]["username"], "ann");
    assert_eq!(question["userInfo"]["groups"], json!(["dev", "system:masters", "system:authenticated"]));
    assert_eq!(question["dryRun"], true);
    assert_eq!(
        question["options"],
        json!({"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1", "fieldManager": "me", "dryRun": ["All"]})
    );
    assert_eq!(question["object"]["kind"], "ConfigMap");
    assert_eq!(question["oldObject"], Value::Null);
    assert_eq!(question["query"], "timeout=10s");
    assert_eq!(question["reviewVersion"], "admission.k8s.io/v1");
    // Deletes show the old object and can be refused.
    let (_, kept) = cluster.send("POST", MAPS, json!({"metadata": {"name": "k"}, "data": {"keep": "me"}})).await;
    server.take();
    let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 3});
    let (code, answer) = cluster.send("DELETE", &format!("{MAPS}/k"), options).await;
    assert_eq!(
        (code, &answer["message"]),
        (400, &json!("admission webhook \"w.example.com\" denied the request: must be kept"))
    );
    let (_, question) = server.take().remove(0);
    assert_eq!(question["object"], Value::Null);
    assert_eq!(question["oldObject"]["metadata"]["uid"], kept["metadata"]["uid"]);
    assert_eq!(question["options"]["gracePeriodSeconds"], 3);
    // Subresources carry objects of their own kinds.
    let labels = json!({"app": "d"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}}});
    let deployments = "/apis/apps/v1/namespaces/default/deployments";
    assert_eq!(cluster.send("POST", deployments, deployment).await.0, 201);
    server.take();
    let (code, _) = cluster
        .send_raw(
            "PATCH",
            &format!("{deployments}/d/scale"),
            "application/merge-patch+json",
            json!({"spec": {"replicas": 4}}),
        )
        .await;
    assert_eq!(code, 200);
    let (_, question) = server.take().remove(0);
    assert_eq!(question["kind"], json!({"group": "autoscaling", "version": "v1", "kind": "Scale"}));
    assert_eq!((&question["subResource"], &question["requestSubResource"]), (&json!("scale"), &json!("scale")));
    assert_eq!(
        (&question["object"]["spec"]["replicas"], &question["oldObject"]["spec"]["replicas"]),
        (&json!(4), &json!(1))
    );
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    assert_eq!(cluster.send("POST", pods, pod).await.0, 201);
    server.take();
    let binding = json!({"target": {"kind": "Node", "name": "n"}});
    assert_eq!(cluster.send("POST", &format!("{pods}/p/binding"), binding).await.0, 201);
    let (_, question) = server.take().remove(0);
    assert_eq!((&question["operation"], &question["object"]["kind"]), (&json!("CREATE"), &json!("Binding")));
    // Streams are asked about before anything is dialled.
    let (code, answer) = cluster.send("POST", &format!("{pods}/p/attach?container=c&stdin=true"), Value::Null).await;
    assert_eq!(code, 400, "{answer}");
    assert!(answer["message"].as_str().unwrap().contains("attaching to pod 'p' is not allowed"), "{answer}");
    let (_, question) = server.take().remove(0);
    assert_eq!(
        question["object"],
        json!({"kind": "PodAttachOptions", "apiVersion": "v1", "stdin": true, "container": "c"})
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_configurations_can_always_be_repaired() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|_, _| Reply::Deny(json!({"message": "no"}))).await;
    let all = json!({"rules": [{"operations": ["*"], "apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"]}]});
    configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", server.client_config("/"), all.clone())]).await;
    configure(&cluster, MUTATING, "m", vec![hook("w.example.com", server.client_config("/"), all)]).await;
    assert_eq!(cluster.send("POST", MAPS, map("m")).await.0, 400);
    assert_eq!(server.take().len(), 1);
    remove(&cluster, MUTATING, "m").await;
    remove(&cluster, VALIDATING, "v").await;
    assert!(server.take().is_empty());
    // One condition that is false keeps the webhook out; where one cannot be decided, the failure policy does.
    for (expressions, policy, code) in [
        (vec!["object.metadata.name == 'm'", "request.operation == 'CREATE'"], "Fail", 400),
        (vec!["object.metadata.name != 'm'"], "Fail", 201),
        (vec!["object.nope == 1", "request.userInfo.username == 'nobody'"], "Fail", 201),
        (vec!["object.nope == 1"], "Fail", 403),
        (vec!["object.nope == 1"], "Ignore", 201),
        (vec!["authorizer.group('').resource('pods').namespace('default').check('get').allowed()"], "Fail", 400),
        (vec!["!authorizer.requestResource.check('delete').allowed()"], "Fail", 201),
    ] {
        let named = |(i, expression): (usize, &&str)| json!({"name": format!("c{i}"), "expression": expression});
        let conditions: Vec<Value> = expressions.iter().enumerate().map(named).collect();
        let more = json!({"matchConditions": conditions, "failurePolicy": policy});
        configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", server.client_config("/"), more)]).await;
        assert_eq!(cluster.send("POST", MAPS, map("m")).await.0, code, "{expressions:?} {policy}");
        remove(&cluster, VALIDATING, "v").await;
        if code == 201 {
            assert_eq!(cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await.0, 200);
        }
    }
    let more = json!({"matchConditions": [{"name": "c", "expression": "... [] bad expression"}]});
    let hooks = vec![hook("w.example.com", server.client_config("/"), more)];
    let body = json!({"metadata": {"name": "v"}, "webhooks": hooks});
    for path in [VALIDATING, MUTATING] {
        let (code, answer) = cluster.send("POST", path, body.clone()).await;
        assert_eq!(code, 422, "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("compilation failed"), "{answer}");
    }
    // A webhook with side effects is not asked about a rehearsal.
    let more = json!({"sideEffects": "Some", "admissionReviewVersions": ["v1beta1"]});
    let (code, _) = cluster
        .send(
            "POST",
            VALIDATING,
            json!({"metadata": {"name": "v"}, "webhooks": [hook("w.example.com", server.client_config("/"), more)]}),
        )
        .await;
    assert_eq!(code, 422);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mutating_webhooks_change_objects_in_order() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|path, question| {
        let list = question["object"]["metadata"]["annotations"]["list"].as_str().unwrap_or_default().to_owned();
        match path {
            "/undecodable" => Reply::Response(json!({"allowed": true, "patchType": "JSONPatch", "patch": "eyI="})),
            "/inapplicable" => patched(&json!([{"op": "remove", "path": "/no/such"}])),
            "/break" => patched(&json!([{"op": "replace", "path": "/data", "value": 5}])),
            "/nothing" => Reply::Allow,
            "/init" => patched(
                &json!([{"op": "add", "path": "/spec/initContainers", "value": [{"name": "added", "image": "i"}]}]),
            ),
            "/once" if list.contains("/once") => Reply::Allow,
            name => patched(
                &json!([{"op": "add", "path": "/metadata/annotations", "value": {"list": format!("{list}{name}")}}]),
            ),
        }
    })
    .await;
    let named =
        |name: &str, path: &str, more: Value| hook(&format!("{name}.example.com"), server.client_config(path), more);
    let again = || json!({"reinvocationPolicy": "IfNeeded"});
    for (hooks, expected) in [
        // In the order of configurations by name, then as listed.
        (
            vec![
                ("b", vec![named("x", "/3", json!({}))]),
                ("a", vec![named("x", "/1", json!({})), named("y", "/2", json!({}))]),
            ],
            "/1/2/3",
        ),
        // Called again only if somebody else changed the object after it, and only once.
        (vec![("a", vec![named("x", "/1", again()), named("y", "/2", json!({}))])], "/1/2/1"),
        (vec![("a", vec![named("x", "/1", again())])], "/1"),
        (vec![("a", vec![named("x", "/1", again()), named("y", "/nothing", json!({}))])], "/1"),
        (vec![("a", vec![named("x", "/1", again()), named("y", "/2", again())])], "/1/2/1/2"),
        (vec![("a", vec![named("x", "/once", again()), named("y", "/2", json!({}))])], "/once/2"),
    ] {
        for (name, hooks) in &hooks {
            configure(&cluster, MUTATING, name, hooks.clone()).await;
        }
        let (code, answer) = cluster.send("POST", MAPS, map("m")).await;
        assert_eq!((code, &answer["metadata"]["annotations"]["list"]), (201, &json!(expected)), "{answer}");
        cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await;
        for (name, _) in &hooks {
            remove(&cluster, MUTATING, name).await;
        }
    }
    for (path, text) in [
        ("/undecodable", "received undecodable patch in webhook response"),
        ("/inapplicable", "Internal error occurred"),
        ("/break", "Internal error occurred"),
    ] {
        configure(&cluster, MUTATING, "a", vec![named("x", path, json!({}))]).await;
        let (code, answer) = cluster.send("POST", MAPS, map("m")).await;
        assert_eq!(code, 500, "{path}: {answer}");
        assert!(answer["message"].as_str().unwrap().contains(text), "{path}: {answer}");
        remove(&cluster, MUTATING, "a").await;
    }
    // What a webhook adds gets its defaults.
    let pods =
        json!({"rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}]});
    configure(&cluster, MUTATING, "a", vec![named("x", "/init", pods)]).await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(code, 201, "{answer}");
    let added = &answer["spec"]["initContainers"][0];
    assert_eq!(
        (&added["terminationMessagePolicy"], &added["imagePullPolicy"]),
        (&json!("File"), &json!("Always")),
        "{added}"
    );
    // The token is mounted into it as well: built-in plug-ins run again after a change.
    assert_eq!(added["volumeMounts"][0]["mountPath"], "/var/run/secrets/kubernetes.io/serviceaccount", "{answer}");
    let (_, question) = server.take().pop().unwrap();
    assert!(question.get("name").is_none() && question["object"]["metadata"].get("uid").is_none(), "{question}");
    // A delete has nothing to change.
    remove(&cluster, MUTATING, "a").await;
    let deletes = json!({"rules": [{"operations": ["DELETE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    configure(&cluster, MUTATING, "a", vec![named("x", "/1", deletes)]).await;
    assert_eq!(cluster.send("POST", MAPS, map("m")).await.0, 201);
    let (code, answer) = cluster.send("DELETE", &format!("{MAPS}/m"), Value::Null).await;
    assert_eq!(code, 500);
    assert!(
        answer["message"].as_str().unwrap().contains("attempted to modify the object, which is not supported"),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn services_are_reached_at_their_cluster_ip() {
    // The whole of 127/8 is this machine, so a cluster IP there needs no proxy.
    let cluster = Cluster::with(|config| {
        config.service_cluster_ip_ranges = vec!["127.77.0.0/16".parse().unwrap()];
    })
    .await;
    let server = WebhookServer::start_at("127.77.9.9:0", &["hooks.default.svc"], |_, _| {
        Reply::Deny(json!({"message": "reached"}))
    })
    .await;
    let port = server.address.port();
    let service =
        json!({"metadata": {"name": "hooks"}, "spec": {"clusterIP": "127.77.9.9", "ports": [{"port": port}]}});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/services", service).await;
    assert_eq!(code, 201, "{answer}");
    for (port, text) in [(port, "denied the request: reached"), (1, "no service port 1 found for service \"hooks\"")] {
        let client = json!({"service": {"namespace": "default", "name": "hooks", "path": "/x", "port": port}, "caBundle": server.authority});
        configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", client, json!({}))]).await;
        let (_, answer) = cluster.send("POST", MAPS, map("m")).await;
        assert!(answer["message"].as_str().unwrap().contains(text), "{answer}");
        remove(&cluster, VALIDATING, "v").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_that_calls_itself_ends() {
    const IN_FLIGHT: usize = 8;
    // With queues it would end as well, but only with the patience of those who wait.
    let cluster = Cluster::with(|config| {
        config.enable_priority_and_fairness = false;
        config.max_mutating_requests_inflight = IN_FLIGHT;
    })
    .await;
    let handler = cluster.handler.clone();
    // Every question makes the webhook write another object, which raises another question.
    let server = WebhookServer::start(move |_, _| {
        let handler = handler.clone();
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                let mut request = http::Request::post(MAPS)
                    .header("content-type", "application/json")
                    .body(Bytes::from(json!({"metadata": {"generateName": "loop-"}}).to_string()))
                    .unwrap();
                request.extensions_mut().insert(api::UserInfo::new("system:serviceaccount:default:hook", &[]));
                drop(handler(request).await);
            });
        });
        Reply::Allow
    })
    .await;
    configure(&cluster, VALIDATING, "v", vec![hook("w.example.com", server.client_config("/"), json!({}))]).await;
    let (code, answer) = cluster.send("POST", MAPS, map("m")).await;
    assert_eq!(code, 201, "{answer}");
    // The limit on requests in flight ended it: no deeper than that, and the server still answers others.
    let (code, list) = cluster.send("GET", MAPS, Value::Null).await;
    let looped = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|map| map["metadata"]["name"].as_str().unwrap().starts_with("loop-"));
    assert_eq!((code, looped.count()), (200, IN_FLIGHT));
}

/// A write of a Service goes on when its client leaves. Clients that leave at once must not have any number of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_write_that_goes_on_keeps_its_place() {
    let cluster = Cluster::with(|config| {
        config.authorizers = vec![apiserver::Authorizer::AlwaysAllow];
        config.enable_priority_and_fairness = false;
        config.max_mutating_requests_inflight = 1;
    })
    .await;
    let server = WebhookServer::start(|_, _| Reply::Hang).await;
    let services = json!({"timeoutSeconds": 30, "rules": [
        {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["services"]}]});
    configure(&cluster, VALIDATING, "v", vec![hook("s.example.com", server.client_config("/"), services)]).await;
    let post = async |path: &str, object: Value| {
        let body = Bytes::from(object.to_string());
        cluster.request("POST", path, "application/json", body, "ann", &[]).await.status().as_u16()
    };
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    let patience = std::time::Duration::from_secs(60);
    {
        let mut leaving = std::pin::pin!(post("/api/v1/namespaces/default/services", service));
        let asked = async {
            while server.seen.lock().is_empty() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            code = &mut leaving => panic!("answered with {code}"),
            asked = tokio::time::timeout(patience, asked) => asked.expect("the webhook is asked"),
        }
    }
    assert_eq!(post(MAPS, map("m")).await, 429);
    // Its end frees the place.
    drop(server);
    let freed = async {
        while post(MAPS, map("m")).await == 429 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(patience, freed).await.expect("the place is free again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn webhooks_see_who_owns_what_and_may_say_otherwise() {
    let cluster = Cluster::start().await;
    let server = WebhookServer::start(|path, request| match (path, request["operation"].as_str()) {
        ("/mutate", Some("CREATE")) => patched(&json!([{"op": "add", "path": "/data/hook", "value": "x"}])),
        ("/mutate", _) => {
            patched(&json!([{"op": "replace", "path": "/metadata/managedFields/0/manager", "value": "renamed"}]))
        }
        _ => Reply::Allow,
    })
    .await;
    let both = json!({"rules": [{"operations": ["CREATE", "UPDATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}]});
    let mutating = vec![hook("m.example.com", server.client_config("/mutate"), both.clone())];
    configure(&cluster, MUTATING, "m", mutating).await;
    configure(&cluster, VALIDATING, "v", vec![hook("v.example.com", server.client_config("/allow"), both)]).await;
    let manager = |object: &Value| object["metadata"]["managedFields"][0]["manager"].as_str().map(str::to_owned);
    let owned = |object: &Value| object["metadata"]["managedFields"][0]["fieldsV1"]["f:data"].clone();

    let (code, made) = cluster.send("POST", &format!("{MAPS}?fieldManager=me"), map("m")).await;
    assert_eq!((code, &made["data"]["hook"]), (201, &"x".into()), "{made}");
    assert_eq!((manager(&made).as_deref(), owned(&made)), (Some("me"), json!({".": {}, "f:a": {}})));
    let (path, mut changed) = (format!("{MAPS}/m?fieldManager=me"), made.clone());
    changed["data"]["b"] = "2".into();
    let (code, updated) = cluster.send("PUT", &path, changed).await;
    assert_eq!((code, manager(&updated).as_deref()), (200, Some("renamed")), "{updated}");

    let asked = server.take();
    let seen: Vec<_> = asked.iter().map(|(path, request)| (path.as_str(), manager(&request["object"]))).collect();
    let by = |name: &str| Some(name.to_owned());
    let expected = [("/mutate", by("me")), ("/allow", by("me")), ("/mutate", by("me")), ("/allow", by("renamed"))];
    assert_eq!(seen, expected);
    assert_eq!(manager(&asked[2].1["oldObject"]).as_deref(), Some("me"));
    assert_eq!(owned(&asked[2].1["object"]), json!({".": {}, "f:a": {}, "f:b": {}}));
}

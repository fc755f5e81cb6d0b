//! Values that Go's types cannot tell from nothing: what clients, expressions, managed fields and diffs see of them.

use serde_json::{Value, json};

use crate::harness::Cluster;

const PODS: &str = "/api/v1/namespaces/default/pods";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";

fn template() -> Value {
    json!({
        "hostNetwork": false, "hostIPC": false, "nodeName": "", "serviceAccountName": "",
        "containers": [{
            "name": "c", "image": "i", "stdin": false, "workingDir": "",
            "env": [{"name": "A", "value": ""}],
            "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": false, "subPath": ""}],
            "readinessProbe": {"initialDelaySeconds": 0, "tcpSocket": {"port": 80, "host": ""}},
        }],
        "volumes": [{"name": "v", "configMap": {"name": "m", "items": []}}],
    })
}

fn deployment(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "annotations": {}}, "spec": {
        "replicas": 0, "minReadySeconds": 0, "paused": false, "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": template()}}})
}

/// What a template is when it is stored, but for defaults.
fn check_template(spec: &Value) {
    for field in ["hostNetwork", "hostIPC", "nodeName"] {
        assert!(spec.get(field).is_none(), "{field} in {spec}");
    }
    let container = &spec["containers"][0];
    assert!(container.get("stdin").is_none() && container.get("workingDir").is_none(), "{container}");
    assert_eq!(container["env"], json!([{"name": "A"}]));
    assert_eq!(container["volumeMounts"][0], json!({"name": "v", "mountPath": "/v"}));
    assert_eq!(container["resources"], json!({}));
    assert!(container["readinessProbe"].get("initialDelaySeconds").is_none(), "{container}");
    assert_eq!(container["readinessProbe"]["tcpSocket"], json!({"port": 80}));
    assert_eq!(spec["volumes"][0]["configMap"], json!({"name": "m", "defaultMode": 420}));
}

async fn get(cluster: &Cluster, path: &str) -> Value {
    let (code, object) = cluster.send("GET", path, Value::Null).await;
    assert_eq!(code, 200, "{object}");
    object
}

#[tokio::test]
async fn zero_values_are_neither_stored_nor_owned() {
    let cluster = Cluster::start().await;
    let account = json!({"metadata": {"name": "default"}});
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
    let mut pod = json!({"metadata": {"name": "p"}, "spec": template()});
    pod["spec"]["automountServiceAccountToken"] = false.into();
    let (code, created) = cluster.send("POST", PODS, pod.clone()).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(get(&cluster, &format!("{PODS}/p")).await, created);
    let owned = |object: &Value| object["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"].clone();
    for object in [&created, &cluster.send("POST", DEPLOYMENTS, deployment("d")).await.1] {
        let is_pod = object["kind"] == "Pod";
        let mut spec = &object["spec"];
        let mut fields = owned(object);
        if !is_pod {
            assert!(spec.get("paused").is_none() && spec.get("minReadySeconds").is_none(), "{spec}");
            assert_eq!(spec["replicas"], 0, "a pointer");
            assert!(fields.get("f:paused").is_none() && fields.get("f:replicas").is_some(), "{fields}");
            spec = &spec["template"]["spec"];
            fields = fields["f:template"]["f:spec"].take();
        }
        check_template(spec);
        assert!(fields.get("f:hostNetwork").is_none() && fields.get("f:volumes").is_some(), "{fields}");
    }
    // Conditions have times, set or not.
    let status = json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": ""}]}});
    let path = format!("{PODS}/p/status");
    let (code, patched) = cluster.send_raw("PATCH", &path, "application/merge-patch+json", status).await;
    let patched: Value = serde_json::from_slice(&patched).unwrap();
    assert_eq!(code, 200, "{patched}");
    let expected = json!([{"type": "Ready", "status": "False", "lastProbeTime": null, "lastTransitionTime": null}]);
    assert_eq!(patched["status"]["conditions"], expected);
}

#[tokio::test]
async fn writing_zero_values_again_changes_nothing() {
    let cluster = Cluster::start().await;
    let path = format!("{DEPLOYMENTS}/d");
    let (code, created) = cluster.send("POST", DEPLOYMENTS, deployment("d")).await;
    assert_eq!(code, 201, "{created}");
    assert_eq!(cluster.send("PUT", &path, deployment("d")).await, (200, created.clone()), "an update");
    let patch = json!({"spec": {"paused": false, "minReadySeconds": 0, "template": {"spec": {"hostPID": false}}}});
    for media in ["application/merge-patch+json", "application/strategic-merge-patch+json"] {
        let (code, same) = cluster.send_raw("PATCH", &path, media, patch.clone()).await;
        let same: Value = serde_json::from_slice(&same).unwrap();
        assert_eq!((code, &same), (200, &created), "{media}");
    }
    let add = json!([{"op": "add", "path": "/spec/paused", "value": false}]);
    let (code, same) = cluster.send_raw("PATCH", &path, "application/json-patch+json", add).await;
    assert_eq!((code, serde_json::from_slice::<Value>(&same).unwrap()), (200, created));

    // Whoever applies a zero owns it, and applying it again is no change.
    let apply = async |name: &str, query: &str| {
        let path = format!("{DEPLOYMENTS}/{name}?{query}");
        let (code, answer) = cluster.send_raw("PATCH", &path, "application/apply-patch+yaml", deployment(name)).await;
        (code, serde_json::from_slice::<Value>(&answer).unwrap())
    };
    let (code, applied) = apply("a", "fieldManager=one").await;
    assert_eq!(code, 201, "{applied}");
    check_template(&applied["spec"]["template"]["spec"]);
    let fields = &applied["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"];
    assert!(fields.get("f:paused").is_some(), "{fields}");
    for _ in 0..2 {
        assert_eq!(apply("a", "fieldManager=one").await, (200, applied.clone()));
    }
}

#[tokio::test]
async fn lists_that_are_always_written_are_null_when_they_are_empty() {
    let cluster = Cluster::start().await;
    for (name, body) in [("absent", json!({})), ("null", json!({"rules": null})), ("empty", json!({"rules": []}))] {
        let mut role = json!({"metadata": {"name": name}});
        role.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        let (code, role) = cluster.send("POST", ROLES, role).await;
        assert_eq!(code, 201, "{role}");
        let stored = get(&cluster, &format!("{ROLES}/{name}")).await;
        assert_eq!(stored.as_object().unwrap().get("rules"), Some(&Value::Null), "{stored}");
        assert!(stored["metadata"]["managedFields"].is_null(), "nobody set anything: {stored}");
        // A list takes its place, by every kind of patch.
        let rules = json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]);
        let media = match name {
            "absent" => "application/merge-patch+json",
            "null" => "application/strategic-merge-patch+json",
            _ => "application/apply-patch+yaml",
        };
        let patch = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": name}, "rules": rules});
        let path = format!("{ROLES}/{name}?fieldManager=m");
        let (code, patched) = cluster.send_raw("PATCH", &path, media, patch).await;
        let patched: Value = serde_json::from_slice(&patched).unwrap();
        assert_eq!((code, &patched["rules"]), (200, &rules), "{patched}");
    }
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = json!({"metadata": {"name": "s"}, "addressType": "IPv4", "endpoints": []});
    let (code, slice) = cluster.send("POST", slices, slice).await;
    assert_eq!(code, 201, "{slice}");
    assert!(slice.as_object().unwrap().contains_key("endpoints") && slice["endpoints"].is_null(), "{slice}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_do_not_see_zero_values() {
    let cluster = Cluster::start().await;
    let group = "/apis/admissionregistration.k8s.io/v1";
    let rules = json!({"resourceRules": [{"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments"],
        "operations": ["CREATE", "UPDATE"]}]});
    let validations =
        json!([{"expression": "!has(object.spec.paused) && !has(object.spec.template.spec.hostNetwork)"}]);
    for (plural, spec) in [
        ("policies", json!({"matchConstraints": rules, "validations": validations})),
        ("policybindings", json!({"policyName": "zeros.example.com", "validationActions": ["Deny"]})),
    ] {
        let path = format!("{group}/validatingadmission{plural}");
        let body = json!({"metadata": {"name": "zeros.example.com"}, "spec": spec});
        let (code, answer) = cluster.send("POST", &path, body).await;
        assert_eq!(code, 201, "{answer}");
        get(&cluster, &format!("{path}/zeros.example.com")).await;
    }
    let (code, answer) = cluster.send("POST", DEPLOYMENTS, deployment("d")).await;
    assert_eq!(code, 201, "{answer}");
    let mut paused = deployment("p");
    paused["spec"]["paused"] = true.into();
    let (code, answer) = cluster.send("POST", DEPLOYMENTS, paused).await;
    assert_eq!(code, 422, "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_finds_no_difference_to_what_it_applied() {
    let cluster = Cluster::start().await;
    let manifest = deployment("d").to_string();
    cluster.kubectl_with(&["apply", "-f", "-"], &manifest).await.unwrap();
    let path = format!("{DEPLOYMENTS}/d");
    let applied = get(&cluster, &path).await;
    for args in [&["diff", "-f", "-"][..], &["diff", "--server-side", "-f", "-", "--force-conflicts"]] {
        let difference =
            cluster.kubectl_with(args, &manifest).await.unwrap_or_else(|difference| panic!("{difference}"));
        // Who manages what changes with the way of applying; nothing else does.
        let fields = |line: &&str| line.starts_with("+ ") || line.starts_with("- ");
        let changed: Vec<&str> = difference.lines().filter(fields).collect();
        assert!(changed.is_empty(), "{args:?}: {difference}");
    }
    // kubectl sends what it does not find; the object stays as it is.
    cluster.kubectl_with(&["apply", "-f", "-"], &manifest).await.unwrap();
    assert_eq!(get(&cluster, &path).await, applied);
}

//! A right is no other right: what one request leads to takes the rights to all of it.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::security::{NODE, ask, guarded};

const ANN: (&str, &[&str]) = ("ann", &["system:authenticated"]);

/// Gives `ann` what the rules say, in the whole cluster.
async fn allow(cluster: &Cluster, name: &str, rules: Value) {
    let group = "rbac.authorization.k8s.io";
    let role = json!({"metadata": {"name": name}, "rules": rules});
    let binding = json!({"metadata": {"name": name}, "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}]});
    for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
        let (code, answer) = cluster.send("POST", &format!("/apis/{group}/v1/{plural}"), object).await;
        assert_eq!(code, 201, "{answer}");
    }
}

/// Server-side apply, and an update of some kinds, make what is not there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_who_may_change_objects_may_not_make_them() {
    let cluster = Cluster::with(guarded).await;
    let changing = json!([{"apiGroups": [""], "resources": ["configmaps", "pods", "endpoints"],
        "verbs": ["get", "patch", "update"]}]);
    allow(&cluster, "changing", changing).await;
    let account = json!({"metadata": {"name": "default"}});
    assert_eq!(cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", account).await.0, 201);
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"},
        "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "v"}});
    let endpoints = json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "a"}});
    for (method, collection, object) in [
        ("PATCH", "/api/v1/namespaces/default/pods", pod),
        ("PATCH", "/api/v1/namespaces/default/configmaps", map),
        ("PUT", "/api/v1/namespaces/default/endpoints", endpoints),
    ] {
        let path = format!("{collection}/a?fieldManager=x");
        let media = if method == "PATCH" { "application/apply-patch+yaml" } else { "application/json" };
        let send = async || {
            let body = Bytes::from(object.to_string());
            let response = cluster.request(method, &path, media, body, ANN.0, ANN.1).await;
            let code = response.status().as_u16();
            let text = response.into_body().collect().await.unwrap().to_bytes();
            (code, String::from_utf8_lossy(&text).into_owned())
        };
        let (code, answer) = send().await;
        assert_eq!(code, 403, "{method} {path}: {answer}");
        assert!(answer.contains("cannot create resource"), "{answer}");
        let made = cluster.send("POST", collection, object.clone()).await;
        assert_eq!(made.0, 201, "{}", made.1);
        let (code, answer) = send().await;
        assert_eq!(code, 200, "{method} {path}: {answer}");
    }
}

/// A policy shows its parameters to whoever writes: who names them must be able to read them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_policies_see_what_their_authors_may_read() {
    let cluster = Cluster::with(guarded).await;
    let group = "admissionregistration.k8s.io";
    allow(&cluster, "policies", json!([{"apiGroups": [group], "resources": ["*"], "verbs": ["*"]}])).await;
    let path = |plural: &str| format!("/apis/{group}/v1/{plural}");
    let constraints = json!({"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"],
        "operations": ["CREATE"]}]});
    let policy = |name: &str, kind: Value| {
        json!({"metadata": {"name": name}, "spec": {"paramKind": kind, "matchConstraints": constraints,
            "validations": [{"expression": "false", "messageExpression": "string(params.data)"}]}})
    };
    let secrets = json!({"apiVersion": "v1", "kind": "Secret"});
    let maps = json!({"apiVersion": "v1", "kind": "ConfigMap"});
    let binding = |name: &str, policy: &str, reference: Value| {
        json!({"metadata": {"name": name}, "spec": {"policyName": policy, "validationActions": ["Deny"],
            "paramRef": reference}})
    };
    let named = |name: &str| json!({"namespace": "default", "name": name, "parameterNotFoundAction": "Deny"});
    let all = json!({"selector": {}, "parameterNotFoundAction": "Deny"});
    let (policies, bindings) = (path("validatingadmissionpolicies"), path("validatingadmissionpolicybindings"));
    let made = cluster.send("POST", &policies, policy("of-admin", secrets.clone())).await;
    assert_eq!(made.0, 201, "{}", made.1);
    let reading = json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["mine"], "verbs": ["get"]}]);
    allow(&cluster, "reading", reading).await;
    for (path, object, expected) in [
        (&policies, policy("a", secrets), 422),
        (&policies, policy("b", maps), 201),
        (&policies, policy("c", json!({"apiVersion": "example.com/v1", "kind": "Unknown"})), 422),
        (&bindings, binding("a", "of-admin", named("theirs")), 422),
        (&bindings, binding("b", "of-admin", all.clone()), 422),
        (&bindings, binding("c", "of-admin", named("mine")), 201),
        (&bindings, binding("d", "b", all), 201),
        (&bindings, binding("e", "not-there", named("mine")), 422),
    ] {
        let (code, answer) = ask(&cluster, ANN, "POST", path, &object).await;
        assert_eq!(code, expected, "{object}: {answer}");
    }
    // What is there may be changed elsewhere, but not led to something else.
    for (change, expected) in
        [(json!({"metadata": {"labels": {"a": "b"}}}), 200), (json!({"spec": {"paramRef": {"name": "theirs"}}}), 422)]
    {
        let (code, answer) = ask(&cluster, ANN, "PATCH", &format!("{bindings}/c"), &change).await;
        assert_eq!(code, expected, "{change}: {answer}");
    }
}

/// Certificates of pods and bundles of trust: who signs, who vouches, and which node sees what.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_signers_speak_for_themselves_and_nodes_see_their_own_requests() {
    let cluster = Cluster::with(|config| {
        guarded(config);
        config.runtime_config = apiserver::RuntimeConfig::parse("api/all=true").unwrap();
    })
    .await;
    let group = "/apis/certificates.k8s.io/v1beta1";
    let requests = format!("{group}/namespaces/default/podcertificaterequests");
    let asked = rcgen::CertificateParams::new(Vec::new()).unwrap();
    let asked = asked.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap();
    let asked = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, asked.der());
    let request = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"signerName": "example.com/signer", "podName": "p", "podUID": "u",
            "serviceAccountName": "default", "serviceAccountUID": "s", "nodeName": node, "nodeUID": "x",
            "stubPKCS10Request": asked}})
    };
    // A key that nobody proves to hold.
    let mut unproven = request("unproven", "n");
    unproven["spec"]["stubPKCS10Request"] = Value::Null;
    unproven["spec"]["pkixPublicKey"] = json!("AA==");
    unproven["spec"]["proofOfPossession"] = json!("AA==");
    let (code, answer) = cluster.send("POST", &requests, unproven).await;
    assert_eq!(code, 422, "{answer}");
    for (name, node) in [("own", "n"), ("other", "m")] {
        let (code, answer) = cluster.send("POST", &requests, request(name, node)).await;
        assert_eq!(code, 201, "{answer}");
    }
    for (path, expected) in [
        (format!("{requests}/own"), 200),
        (format!("{requests}/other"), 403),
        (requests.clone(), 403),
        (format!("{requests}?fieldSelector=spec.nodeName%3Dm"), 403),
        (format!("{requests}?fieldSelector=spec.nodeName%3Dn"), 200),
    ] {
        let (code, answer) = ask(&cluster, NODE, "GET", &path, &Value::Null).await;
        assert_eq!(code, expected, "{path}: {answer}");
        assert!(!answer.contains("\"nodeName\":\"m\""), "{path}: {answer}");
    }
    allow(
        &cluster,
        "writing",
        json!([{"apiGroups": ["certificates.k8s.io"], "verbs": ["*"], "resources":
        ["podcertificaterequests", "podcertificaterequests/status", "clustertrustbundles"]}]),
    )
    .await;
    let mut authority = rcgen::CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let authority = authority.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let named = |name: &str| {
        let name = format!("example.com:signer:{name}");
        json!({"metadata": {"name": name}, "spec": {"signerName": "example.com/signer", "trustBundle": authority}})
    };
    let bundle = named("trust");
    let denied = json!({"type": "Denied", "status": "True", "reason": "No", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let denied = json!({"status": {"conditions": [denied]}});
    let bundles = format!("{group}/clustertrustbundles");
    let retargeted = json!({"spec": {"signerName": "example.com/other"}});
    let (code, answer) = cluster.send("POST", &bundles, named("theirs")).await;
    assert_eq!(code, 201, "{answer}");
    // Pods choose bundles by their labels.
    for (change, expected) in [
        (json!({"metadata": {"labels": {"a": "b"}}}), 403),
        (json!({"metadata": {"finalizers": ["example.com/a"]}}), 200),
    ] {
        let (code, answer) =
            ask(&cluster, ANN, "PATCH", &format!("{bundles}/example.com:signer:theirs"), &change).await;
        assert_eq!(code, expected, "{change}: {answer}");
    }
    for may in [false, true] {
        let code = |allowed: u16| if may { allowed } else { 403 };
        let (found, answer) = ask(&cluster, ANN, "PATCH", &format!("{requests}/own/status"), &denied).await;
        assert_eq!(found, code(200), "{answer}");
        let (found, answer) = ask(&cluster, ANN, "POST", &bundles, &bundle).await;
        assert_eq!(found, code(201), "{answer}");
        if !may {
            let rule = json!([{"apiGroups": ["certificates.k8s.io"], "resources": ["signers"],
                "resourceNames": ["example.com/*"], "verbs": ["sign", "attest"]}]);
            allow(&cluster, "signing", rule).await;
        }
    }
    for path in [format!("{requests}/own"), format!("{bundles}/example.com:signer:trust")] {
        let (code, answer) = ask(&cluster, ANN, "PATCH", &path, &retargeted).await;
        assert!(matches!(code, 403 | 422), "{path}: {code} {answer}");
    }
}

/// Who gets a device is not for its driver to say, and how it is doing not for another's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_the_status_of_a_claim_is_written_by_whom_it_concerns() {
    let cluster = Cluster::with(guarded).await;
    let claims = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims";
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim = json!({"metadata": {"name": "a"}, "spec": {"devices": {"requests": [request]}}});
    let (code, answer) = cluster.send("POST", claims, claim).await;
    assert_eq!(code, 201, "{answer}");
    let group = "resource.k8s.io";
    let status = json!([{"apiGroups": [group], "resources": ["resourceclaims/status"], "verbs": ["patch"]}]);
    allow(&cluster, "status", status).await;
    let result = |driver: &str| json!({"request": "r", "driver": driver, "pool": "p", "device": "d"});
    let allocation = json!({"status": {"allocation": {"devices": {"results": [result("one.example.com")]}}}});
    let device = json!({"status": {"devices": [{"driver": "one.example.com", "pool": "p", "device": "d",
        "conditions": []}]}});
    let path = format!("{claims}/a/status");
    let patch = async |change: &Value| ask(&cluster, ANN, "PATCH", &path, change).await;
    let (code, answer) = patch(&allocation).await;
    assert_eq!(code, 422, "{answer}");
    assert!(answer.contains("resourceclaims/binding"), "{answer}");
    let rule = |resource: &str, verb: &str, names: Value| json!([{"apiGroups": [group], "resources": [resource], "verbs": [verb], "resourceNames": names}]);
    allow(&cluster, "binding", rule("resourceclaims/binding", "patch", json!([]))).await;
    let (code, answer) = patch(&allocation).await;
    assert_eq!(code, 200, "{answer}");
    allow(&cluster, "other", rule("resourceclaims/driver", "arbitrary-node:patch", json!(["two.example.com"]))).await;
    let (code, answer) = patch(&device).await;
    assert_eq!(code, 422, "{answer}");
    assert!(answer.contains("resourceclaims/driver"), "{answer}");
    allow(&cluster, "own", rule("resourceclaims/driver", "arbitrary-node:patch", json!(["one.example.com"]))).await;
    let (code, answer) = patch(&device).await;
    assert_eq!(code, 200, "{answer}");
}

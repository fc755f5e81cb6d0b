//! Conformance area 17: service accounts, tokens, reviews and certificate requests, as far as no container is needed.

use apiserver::Authorizer;
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use crate::harness::Cluster;

async fn start() -> Cluster {
    Cluster::with(|config| config.authorizers = vec![Authorizer::Node, Authorizer::Rbac]).await
}

async fn create(cluster: &Cluster, path: &str, body: Value) -> Value {
    let (code, answer) = cluster.send("POST", path, body).await;
    assert_eq!(code, 201, "{path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pods_token_says_which_pod_it_is_for() {
    let cluster = start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    let account = create(&cluster, accounts, json!({"metadata": {"name": "s"}})).await;
    assert!(account["secrets"].is_null(), "no account gets a secret of its own: {account}");
    let node = create(&cluster, "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "s", "nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}});
    let pod = create(&cluster, "/api/v1/namespaces/default/pods", pod).await;
    let spec = json!({"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "p"}, "expirationSeconds": 3600});
    let issued = create(&cluster, &format!("{accounts}/s/token"), json!({"spec": spec})).await;
    let token = issued["status"]["token"].as_str().unwrap();
    let review = json!({"spec": {"token": token}});
    let review = create(&cluster, "/apis/authentication.k8s.io/v1/tokenreviews", review).await;
    let user = &review["status"]["user"];
    assert_eq!(user["username"], "system:serviceaccount:default:s");
    let groups = json!(["system:serviceaccounts", "system:serviceaccounts:default", "system:authenticated"]);
    assert_eq!(user["groups"], groups);
    let extra = |name: &str| user["extra"][format!("authentication.kubernetes.io/{name}")].clone();
    assert_eq!(extra("pod-name"), json!(["p"]));
    assert_eq!(extra("pod-uid"), json!([pod["metadata"]["uid"]]));
    assert_eq!(extra("node-name"), json!(["n"]));
    assert_eq!(extra("node-uid"), json!([node["metadata"]["uid"]]));
    let id = extra("credential-id");
    assert!(id.as_array().is_some_and(|ids| ids.len() == 1) && id[0].as_str().unwrap().starts_with("JTI="), "{user}");

    // The issuer's document, which accounts may read, names the issuer of the token.
    let bearer = format!("Authorization: Bearer {token}");
    let (code, document) = cluster.curl("/.well-known/openid-configuration", &["-H", &bearer]).await;
    assert_eq!(code, 200, "{document}");
    let document: Value = serde_json::from_str(&document).unwrap();
    let claims: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap();
    assert_eq!(document["issuer"], claims["iss"]);
    assert_eq!(cluster.curl("/openid/v1/jwks", &["-H", &bearer]).await.0, 200);
    assert_eq!(cluster.curl("/openid/v1/jwks", &[]).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn automount_follows_the_pod_before_the_account() {
    let cluster = start().await;
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    for (account, setting) in [("nil", Value::Null), ("on", json!(true)), ("off", json!(false))] {
        let body = json!({"metadata": {"name": account}, "automountServiceAccountToken": setting});
        create(&cluster, accounts, body).await;
        for (pod, wanted) in [("nil", Value::Null), ("on", json!(true)), ("off", json!(false))] {
            let name = format!("{account}-{pod}");
            let body = json!({"metadata": {"name": name}, "spec": {"serviceAccountName": account,
                "automountServiceAccountToken": wanted, "containers": [{"name": "c", "image": "i"}]}});
            let made = create(&cluster, "/api/v1/namespaces/default/pods", body).await;
            let mounts = made["spec"]["containers"][0]["volumeMounts"].as_array().cloned().unwrap_or_default();
            let path = "/var/run/secrets/kubernetes.io/serviceaccount";
            let mounted = mounts.iter().any(|mount| mount["mountPath"] == path);
            let expected = wanted.as_bool().or(setting.as_bool()).unwrap_or(true);
            assert_eq!(mounted, expected, "{name}");
        }
    }
}

/// What the reviews say about a user is what happens to a request in that user's name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reviews_and_requests_agree() {
    let cluster = start().await;
    let base = "/apis/authorization.k8s.io/v1";
    let attributes = json!({"namespace": "default", "verb": "list", "resource": "configmaps"});
    let ask = async |user: &str| -> [bool; 3] {
        let spec = json!({"user": user, "groups": ["testers"], "resourceAttributes": attributes});
        let whole = create(&cluster, &format!("{base}/subjectaccessreviews"), json!({"spec": spec})).await;
        let local = format!("{base}/namespaces/default/localsubjectaccessreviews");
        let body = json!({"metadata": {"namespace": "default"}, "spec": spec});
        let local = create(&cluster, &local, body).await;
        let admin = format!("Authorization: Bearer {}", crate::harness::ADMIN_TOKEN);
        let user = format!("Impersonate-User: {user}");
        let list = ["-H", &admin, "-H", &user, "-H", "Impersonate-Group: testers", "-H", "Impersonate-Uid: 7"];
        let (code, _) = cluster.curl("/api/v1/namespaces/default/configmaps", &list).await;
        [whole["status"]["allowed"] == true, local["status"]["allowed"] == true, code == 200]
    };
    assert_eq!(ask("zoe").await, [false; 3]);
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role = json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["list"]}]});
    create(&cluster, &format!("{rbac}/roles"), role).await;
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "zoe"}]});
    create(&cluster, &format!("{rbac}/rolebindings"), binding).await;
    assert_eq!(ask("zoe").await, [true; 3]);
    assert_eq!(ask("yves").await, [false; 3]);
    let body = json!({"spec": {"resourceAttributes": attributes}});
    let own = create(&cluster, &format!("{base}/selfsubjectaccessreviews"), body).await;
    assert_eq!(own["status"]["allowed"], true, "the administrator asks: {own}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_requests_live_and_keep_their_conditions() {
    let cluster = start().await;
    let base = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = rcgen::CertificateParams::new(vec![]).unwrap().serialize_request(&key).unwrap().pem().unwrap();
    for name in ["a", "b", "c"] {
        let spec = json!({"request": STANDARD.encode(&pem), "signerName": "example.com/e2e-signer",
            "expirationSeconds": 3600, "usages": ["digital signature", "key encipherment", "server auth"]});
        let body = json!({"metadata": {"name": name, "labels": {"suite": "area-17"}}, "spec": spec});
        assert_eq!(create(&cluster, base, body).await["spec"]["expirationSeconds"], 3600);
    }
    let merge = "application/merge-patch+json";
    let path = format!("{base}/a");
    let (code, _) =
        cluster.send_raw("PATCH", &path, merge, json!({"metadata": {"annotations": {"patched": "yes"}}})).await;
    assert_eq!(code, 200);
    // A condition of our own by patch, then approval by update: both stay, in that order.
    let condition = json!({"type": "Custom", "status": "True", "reason": "r", "message": "m"});
    let (code, _) = cluster
        .send_raw(
            "PATCH",
            &format!("{path}/approval"),
            merge,
            json!({"metadata": {"annotations": {"a": "b"}},
            "status": {"conditions": [condition]}}),
        )
        .await;
    assert_eq!(code, 200);
    let (_, mut stored) = cluster.send("GET", &format!("{path}/approval"), Value::Null).await;
    assert_eq!(stored["metadata"]["annotations"], json!({"a": "b", "patched": "yes"}));
    let approved = json!({"type": "Approved", "status": "True", "reason": "r", "message": "m"});
    stored["status"]["conditions"].as_array_mut().unwrap().push(approved);
    let (code, stored) = cluster.send("PUT", &format!("{path}/approval"), stored).await;
    assert_eq!(code, 200, "{stored}");
    let kinds: Vec<&Value> = stored["status"]["conditions"].as_array().unwrap().iter().map(|c| &c["type"]).collect();
    assert_eq!(kinds, ["Custom", "Approved"]);
    // Then the signer: the certificate by a patch of the status.
    let certificate = std::fs::read_to_string(cluster.dir.path().join("server.crt")).unwrap();
    let patch = json!({"status": {"certificate": STANDARD.encode(&certificate)}});
    let (code, answer) = cluster.send_raw("PATCH", &format!("{path}/status"), merge, patch).await;
    assert_eq!(code, 200, "{}", String::from_utf8_lossy(&answer));
    let (_, signed) = cluster.send("GET", &path, Value::Null).await;
    assert_eq!(signed["status"]["certificate"], STANDARD.encode(&certificate));
    assert_eq!(signed["status"]["conditions"].as_array().unwrap().len(), 2);
    let selected = format!("{base}?labelSelector=suite%3Darea-17");
    assert_eq!(cluster.send("GET", &selected, Value::Null).await.1["items"].as_array().unwrap().len(), 3);
    assert_eq!(cluster.send("DELETE", &selected, Value::Null).await.0, 200);
    assert!(cluster.send("GET", &selected, Value::Null).await.1["items"].as_array().unwrap().is_empty());
}

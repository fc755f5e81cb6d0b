//! Attacks, each refused: forged and borrowed credentials, proxies that are none, nodes that look around, users that climb,
//! and paths that try to mean two things.

use apiserver::Authorizer;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http_body_util::BodyExt;
use rcgen::ExtendedKeyUsagePurpose;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::{ADMIN_TOKEN, Authority, Cluster};

fn rbac(config: &mut apiserver::Config) {
    config.authorizers = vec![Authorizer::Node, Authorizer::Rbac];
}

/// A service account `s` in `default`, and a token for it as asked.
async fn token(cluster: &Cluster, spec: Value) -> String {
    let accounts = "/api/v1/namespaces/default/serviceaccounts";
    cluster.send("POST", accounts, json!({"metadata": {"name": "s"}})).await;
    let (code, answer) = cluster.send("POST", &format!("{accounts}/s/token"), json!({"spec": spec})).await;
    assert_eq!(code, 201, "{answer}");
    answer["status"]["token"].as_str().unwrap().to_owned()
}

fn claims(token: &str) -> Value {
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(token.split('.').nth(1).unwrap()).unwrap()).unwrap()
}

/// The token with other parts: header and claims replaced, signature kept.
fn forged(token: &str, header: Option<Value>, claims: Option<Value>) -> String {
    let parts: Vec<&str> = token.split('.').collect();
    let part =
        |new: Option<Value>, old: &str| new.map_or(old.to_owned(), |new| URL_SAFE_NO_PAD.encode(new.to_string()));
    format!("{}.{}.{}", part(header, parts[0]), part(claims, parts[1]), parts[2])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn service_account_tokens_cannot_be_forged_or_bent() {
    let cluster = Cluster::with(rbac).await;
    let other = Cluster::with(rbac).await;
    let good = token(&cluster, json!({"expirationSeconds": 600})).await;
    let ask = async |token: &str| cluster.whoami(&["-H", &format!("Authorization: Bearer {token}")]).await;
    assert_eq!(ask(&good).await.unwrap()["username"], "system:serviceaccount:default:s");
    let changed = |change: Value| {
        let mut claims = claims(&good);
        claims.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        claims
    };
    let for_vault = token(&cluster, json!({"audiences": ["vault"]})).await;
    let elsewhere = token(&other, json!({})).await;
    let expired = changed(json!({"exp": 1_000_000_000}));
    for (what, token) in [
        ("for another audience", for_vault.clone()),
        ("of another cluster", elsewhere),
        ("with a longer life", forged(&good, None, Some(changed(json!({"exp": 9_999_999_999u64}))))),
        ("expired", forged(&good, None, Some(expired))),
        (
            "with another subject",
            forged(&good, None, Some(changed(json!({"sub": "system:serviceaccount:kube-system:x"})))),
        ),
        ("alg=none", forged(&good, Some(json!({"alg": "none"})), None)),
        (
            "alg=none, unsigned",
            format!("{}.", forged(&good, Some(json!({"alg": "none"})), None).rsplit_once('.').unwrap().0),
        ),
        ("alg=HS256 with the public key", forged(&good, Some(json!({"alg": "HS256"})), None)),
        ("with another key's name", forged(&good, Some(json!({"alg": "ES256", "kid": "x"})), None)),
        ("without a signature", good.rsplit_once('.').unwrap().0.to_owned()),
        ("with more behind it", format!("{good}.x")),
        ("cut short", good[..good.len() - 2].to_owned()),
        ("empty parts", "..".to_owned()),
    ] {
        assert_eq!(ask(&token).await, Err(401), "a token {what}");
    }
    // Reviews say so too: right for its audience, wrong for this server.
    let review = async |audiences: Value| {
        let body = json!({"spec": {"token": for_vault, "audiences": audiences}});
        cluster.send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body).await.1["status"].clone()
    };
    assert_eq!(review(json!(["vault", "x"])).await["audiences"], json!(["vault"]));
    assert_ne!(review(json!([])).await["authenticated"], json!(true));
    // A static token is meant for this server and for nobody else.
    let body = json!({"spec": {"token": ADMIN_TOKEN, "audiences": ["vault"]}});
    let (_, answer) = cluster.send("POST", "/apis/authentication.k8s.io/v1/tokenreviews", body).await;
    assert_ne!(answer["status"]["authenticated"], json!(true), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_tokens_die_with_what_they_are_bound_to() {
    let cluster = Cluster::with(rbac).await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "s"}})).await;
    cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": "n"}})).await;
    let pod = json!({"metadata": {"name": "p"}, "spec": {"serviceAccountName": "s", "nodeName": "n",
        "containers": [{"name": "c", "image": "i"}]}});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
    assert_eq!(code, 201, "{answer}");
    let secret = json!({"metadata": {"name": "k"}, "stringData": {"a": "b"}});
    cluster.send("POST", "/api/v1/namespaces/default/secrets", secret).await;
    let ask = async |token: &str| cluster.whoami(&["-H", &format!("Authorization: Bearer {token}")]).await;
    for (kind, name, path, extra) in [
        ("Secret", "k", "/api/v1/namespaces/default/secrets/k", "credential-id"),
        ("Pod", "p", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", "pod-name"),
        ("Node", "n", "/api/v1/nodes/n", "node-name"),
    ] {
        let reference = json!({"kind": kind, "apiVersion": "v1", "name": name});
        let bound = token(&cluster, json!({"boundObjectRef": reference})).await;
        let user = ask(&bound).await.unwrap();
        assert!(user["extra"][format!("authentication.kubernetes.io/{extra}")].is_array(), "{user}");
        let (code, answer) = cluster.send("DELETE", path, Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        assert_eq!(ask(&bound).await, Err(401), "{kind}");
    }
    let wrong = json!({"spec": {"boundObjectRef": {"kind": "Pod", "apiVersion": "v1", "name": "nobody"}}});
    assert_eq!(cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts/s/token", wrong).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_published_as_other_parties_expect_them() {
    let cluster = Cluster::with(rbac).await;
    let (code, document) = cluster.send("GET", "/.well-known/openid-configuration", Value::Null).await;
    assert_eq!(code, 200);
    assert!(document["jwks_uri"].as_str().unwrap().ends_with("/openid/v1/jwks"), "{document}");
    let (_, keys) = cluster.send("GET", "/openid/v1/jwks", Value::Null).await;
    let good = token(&cluster, json!({})).await;
    let header: Value =
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(good.split('.').next().unwrap()).unwrap()).unwrap();
    assert_eq!(keys["keys"][0]["kid"], header["kid"]);
    assert_eq!(document["id_token_signing_alg_values_supported"], json!([header["alg"]]), "those of the keys");
    assert_eq!((&keys["keys"][0]["kty"], &keys["keys"][0]["alg"]), (&json!("EC"), &header["alg"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_front_proxy_speaks_for_others() {
    let cluster = Cluster::with_files(|dir, config| {
        rbac(config);
        let proxies = Authority::new(dir, "proxy-ca");
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        proxies.sign(dir, "proxy", "front-proxy", None, client.clone());
        proxies.sign(dir, "impostor", "somebody", None, client.clone());
        proxies.sign_until(dir, "old-proxy", "front-proxy", None, client.clone(), 2020);
        Authority::new(dir, "their-ca").sign(dir, "stranger", "front-proxy", None, client);
        config.requestheader_client_ca_file = Some(dir.join("proxy-ca.crt"));
        config.requestheader_allowed_names = vec!["front-proxy".to_owned()];
    })
    .await;
    let file = |name: &str| cluster.dir.path().join(name).display().to_string();
    let forge = ["-H", "X-Remote-User: zoe", "-H", "X-Remote-Group: dev", "-H", "X-Remote-Extra-Scopes: a"];
    let ask = async |identity: Option<&str>| {
        let (certificate, key) =
            identity.map_or_else(Default::default, |name| (file(&format!("{name}.crt")), file(&format!("{name}.key"))));
        let mut args = forge.to_vec();
        if identity.is_some() {
            args.extend(["--cert", &certificate, "--key", &key]);
        }
        cluster.whoami(&args).await
    };
    let user = ask(Some("proxy")).await.unwrap();
    assert_eq!((&user["username"], &user["extra"]["scopes"]), (&json!("zoe"), &json!(["a"])));
    // A user's certificate is that user's, whatever the headers say; nobody is nobody.
    assert_eq!(ask(Some("ann")).await.unwrap()["username"], "ann");
    assert_eq!(ask(None).await, Err(403));
    for identity in ["impostor", "old-proxy", "stranger"] {
        assert_eq!(ask(Some(identity)).await, Err(401), "{identity}");
    }
    // A trusted proxy that names nobody is not itself a user.
    let (certificate, key) = (file("proxy.crt"), file("proxy.key"));
    assert_eq!(cluster.whoami(&["--cert", &certificate, "--key", &key]).await, Err(401));
}

/// A name or group that cannot be read is not passed over: the request would be another user's.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_headers_of_the_front_proxy_are_read_or_refused() {
    let cluster = Cluster::with_files(|dir, config| {
        rbac(config);
        let proxies = Authority::new(dir, "proxy-ca");
        proxies.sign(dir, "proxy", "front-proxy", None, ExtendedKeyUsagePurpose::ClientAuth);
        config.requestheader_client_ca_file = Some(dir.join("proxy-ca.crt"));
    })
    .await;
    for (header, code) in [
        (&b"x-remote-group: \xff\xfe"[..], "400"),
        (b"x-remote-extra-scopes: \xff", "400"),
        (b"x-remote-user: \xff", "400"),
        ("x-remote-group: \u{fc}nal".as_bytes(), "200"),
    ] {
        let mut tls = cluster.connect(Some("proxy")).await;
        let head = b"GET /version HTTP/1.1\r\nhost: a\r\nconnection: close\r\nx-remote-user: zoe\r\n";
        tls.write_all(&[&head[..], header, b"\r\n\r\n"].concat()).await.unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await.unwrap_or_default();
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{header:?}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_sees_its_own_and_no_more() {
    let cluster = Cluster::with(rbac).await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    for name in ["mine", "theirs"] {
        let secret = json!({"metadata": {"name": name}});
        cluster.send("POST", "/api/v1/namespaces/default/secrets", secret).await;
    }
    for (pod, node, secret) in [("p", "n", "mine"), ("q", "m", "theirs")] {
        cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": node}})).await;
        let pod = json!({"metadata": {"name": pod}, "spec": {"nodeName": node, "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"name": "v", "secret": {"secretName": secret}}]}});
        let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
        assert_eq!(code, 201, "{answer}");
    }
    let file = |name: &str| cluster.dir.path().join(name).display().to_string();
    let (certificate, key) = (file("node.crt"), file("node.key"));
    for (path, code) in [
        ("/api/v1/namespaces/default/secrets/mine", 200),
        ("/api/v1/namespaces/default/secrets/theirs", 403),
        ("/api/v1/namespaces/default/secrets", 403),
        ("/api/v1/secrets", 403),
        ("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dmine", 200),
        ("/api/v1/namespaces/default/secrets?fieldSelector=metadata.name%3Dtheirs", 403),
        ("/api/v1/namespaces/default/pods/p", 200),
        ("/api/v1/namespaces/default/pods/q", 403),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn", 200),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dm", 403),
        ("/api/v1/pods", 403),
        ("/api/v1/nodes/n", 200),
        ("/api/v1/nodes/m", 403),
        ("/api/v1/namespaces/default/serviceaccounts", 403),
    ] {
        let (found, answer) = cluster.curl(path, &["--cert", &certificate, "--key", &key]).await;
        assert_eq!(found, code, "{path}: {answer}");
    }
    // When the pod goes, so does the right.
    cluster.send("DELETE", "/api/v1/namespaces/default/pods/p?gracePeriodSeconds=0", Value::Null).await;
    let mine = "/api/v1/namespaces/default/secrets/mine";
    assert_eq!(cluster.curl(mine, &["--cert", &certificate, "--key", &key]).await.0, 403);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_climbs() {
    let cluster = Cluster::with(rbac).await;
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let grant = json!({"metadata": {"name": "manager"}, "rules": [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "create", "update", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}]});
    assert_eq!(cluster.send("POST", &format!("{base}/clusterroles"), grant).await.0, 201);
    let reference =
        |kind: &str, name: &str| json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name});
    let ann = json!([{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]);
    let binding = |name: &str, role: &str| json!({"metadata": {"name": name}, "roleRef": reference("ClusterRole", role), "subjects": ann});
    assert_eq!(cluster.send("POST", &format!("{base}/clusterrolebindings"), binding("b", "manager")).await.0, 201);
    let powerful = json!({"metadata": {"name": "powerful"}, "rules": [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["*"]}]});
    let (_, powerful) = cluster.send("POST", &format!("{base}/clusterroles"), powerful).await;
    let as_ann = async |method: &str, path: String, body: Value| {
        let response =
            cluster.request(method, &path, "application/json", Bytes::from(body.to_string()), "ann", &["dev"]).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    };
    let role = |name: &str, rules: Value| json!({"metadata": {"name": name}, "rules": rules});
    let labelled = {
        let mut role = powerful.clone();
        role["metadata"]["labels"] = json!({"rbac.authorization.k8s.io/aggregate-to-view": "true"});
        role
    };
    let aggregating = json!({"metadata": {"name": "all"}, "aggregationRule": {"clusterRoleSelectors": [{}]}});
    for (what, method, path, body, code) in [
        (
            "a role with her own rights",
            "POST",
            "clusterroles",
            role("own", json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]}])),
            201,
        ),
        (
            "a role with more",
            "POST",
            "clusterroles",
            role("more", json!([{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]}])),
            403,
        ),
        (
            "everything",
            "POST",
            "clusterroles",
            role("root", json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}])),
            403,
        ),
        (
            "a URL",
            "POST",
            "clusterroles",
            role("url", json!([{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}])),
            403,
        ),
        ("a role that gathers others", "POST", "clusterroles", aggregating, 403),
        ("a label that lets others gather a role", "PUT", "clusterroles/powerful", labelled, 403),
        ("a binding to more", "POST", "clusterrolebindings", binding("up", "cluster-admin"), 403),
        ("a binding to her own", "POST", "clusterrolebindings", binding("same", "own"), 201),
        ("a binding to nothing", "POST", "clusterrolebindings", binding("ghost", "nobody"), 404),
        ("a local binding to more", "POST", "namespaces/default/rolebindings", binding("up", "admin"), 403),
    ] {
        let (found, answer) = as_ann(method, format!("{base}/{path}"), body).await;
        assert_eq!(found, code, "{what}: {answer}");
        if found == 403 {
            let expected = ["not currently held", "must have cluster-admin privileges"];
            assert!(expected.iter().any(|text| answer.contains(text)), "{what}: {answer}");
        }
    }
    // Who may bind or escalate by name may do just that.
    let allowed = json!({"metadata": {"name": "binder"}, "rules": [
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["bind"], "resourceNames": ["view"]},
        {"apiGroups": ["rbac.authorization.k8s.io"], "resources": ["clusterroles"], "verbs": ["escalate"], "resourceNames": ["own"]}]});
    cluster.send("POST", &format!("{base}/clusterroles"), allowed).await;
    cluster.send("POST", &format!("{base}/clusterrolebindings"), binding("b2", "binder")).await;
    assert_eq!(as_ann("POST", format!("{base}/clusterrolebindings"), binding("v", "view")).await.0, 201);
    assert_eq!(as_ann("POST", format!("{base}/clusterrolebindings"), binding("e", "edit")).await.0, 403);
    let raised = role("own", json!([{"apiGroups": [""], "resources": ["pods"], "verbs": ["delete"]}]));
    assert_eq!(as_ann("PUT", format!("{base}/clusterroles/own"), raised).await.0, 200);
}

/// Sends a request line as it is: curl and hyper would tidy it.
async fn raw(cluster: &Cluster, token: &str, path: &str) -> u16 {
    let mut tls = cluster.connect(None).await;
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\nconnection: close\r\n\r\n");
    tls.write_all(request.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    tls.read_exact(&mut answer).await.unwrap();
    String::from_utf8(answer).unwrap()[9..].parse().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_mean_one_thing() {
    let cluster = Cluster::with(rbac).await;
    cluster.send("POST", "/api/v1/namespaces/default/secrets", json!({"metadata": {"name": "s"}})).await;
    // Bob reads what is public; none of these leads him to the secret.
    for path in [
        "/api/v1/namespaces/default/secrets/s",
        "//api/v1/namespaces/default/secrets/s",
        "/api/v1//namespaces/default/secrets/s",
        "/api/v1/namespaces//default/secrets/s",
        "/healthz/../api/v1/namespaces/default/secrets/s",
        "/healthz/%2e%2e/api/v1/namespaces/default/secrets/s",
        "/healthz%2F..%2Fapi/v1/secrets",
        "/version/../../api/v1/secrets",
        "/api/v1/namespaces/default/configmaps/../secrets/s",
        "/api/v1/namespaces/default/%73ecrets/s",
        "/api/v1/namespaces/default%2Fsecrets%2Fs",
        "/api/v1/namespaces/..%2Fdefault/secrets/s",
        "/api%2Fv1/namespaces/default/secrets/s",
        "/API/v1/namespaces/default/secrets/s",
        "/api/v1/watch/namespaces/default/secrets/s",
        "/api/v1/namespaces/default/secrets/s;/healthz",
        "/api/v1/namespaces/default/secrets/s%00",
    ] {
        let code = raw(&cluster, "bob-token", path).await;
        assert!([400, 403, 404].contains(&code), "{path}: {code}");
    }
    // And for who may read it, an odd path is the same object, or none.
    for (path, code) in [
        ("/api/v1/namespaces/default/secrets/s", 200),
        ("//api/v1/namespaces/default/secrets/s", 200),
        ("/api/v1/namespaces/default/%73ecrets/s", 200),
        ("/api/v1/namespaces/default/secrets/..%2Fsecrets%2Fs", 400),
        ("/api/v1/namespaces/default/secrets/..", 400),
        ("/api/v1/namespaces/default//secrets/s", 404),
        ("/api/v1/namespaces/default/secrets/s/status/x", 404),
    ] {
        assert_eq!(raw(&cluster, ADMIN_TOKEN, path).await, code, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impersonation_needs_a_right_for_every_part() {
    let cluster = Cluster::with(rbac).await;
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": "actor"}, "rules": [
        {"apiGroups": [""], "resources": ["users"], "verbs": ["impersonate"], "resourceNames": ["bob"]},
        {"apiGroups": [""], "resources": ["groups"], "verbs": ["impersonate"], "resourceNames": ["dev"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["uids"], "verbs": ["impersonate"], "resourceNames": ["7"]},
        {"apiGroups": ["authentication.k8s.io"], "resources": ["userextras/scopes"], "verbs": ["impersonate"], "resourceNames": ["view"]}]});
    cluster.send("POST", &format!("{base}/clusterroles"), role).await;
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "actor"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    cluster.send("POST", &format!("{base}/clusterrolebindings"), binding).await;
    for (headers, expected) in [
        (vec!["Impersonate-User: bob"], Ok("bob")),
        (vec!["Impersonate-User: bob", "Impersonate-Group: dev"], Ok("bob")),
        (vec!["Impersonate-User: bob", "Impersonate-Uid: 7", "Impersonate-Extra-Scopes: view"], Ok("bob")),
        (vec!["Impersonate-User: bob", "Impersonate-Extra-Scopes: edit"], Err(403)),
        (vec!["Impersonate-User: bob", "Impersonate-Extra-Other: view"], Err(403)),
        (vec!["Impersonate-User: bob", "Impersonate-Uid: 8"], Err(403)),
        (vec!["Impersonate-User: bob", "Impersonate-Group: dev", "Impersonate-Group: system:masters"], Err(403)),
        (vec!["Impersonate-User: admin"], Err(403)),
        (vec!["Impersonate-User: system:serviceaccount:kube-system:x"], Err(403)),
        (vec!["Impersonate-Group: dev"], Err(400)),
        (vec!["Impersonate-Uid: 7"], Err(400)),
    ] {
        let mut args = vec!["-H", "Authorization: Bearer ann-token"];
        headers.iter().for_each(|header| args.extend(["-H", header]));
        let found = cluster.whoami(&args).await;
        let found = found.as_ref().map(|user| user["username"].as_str().unwrap()).map_err(|code| *code);
        assert_eq!(found, expected, "{headers:?}");
    }
}

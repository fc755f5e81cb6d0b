//! Rights to be somebody of one kind, for some requests only (KEP-5284).

use serde_json::{Value, json};

use crate::harness::Cluster;

fn rbac(config: &mut apiserver::Config) {
    config.authorizers = vec![apiserver::Authorizer::Node, apiserver::Authorizer::Rbac];
}

/// Gives rights in the whole cluster.
async fn allow(cluster: &Cluster, user: &str, rules: Value) {
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let role = json!({"metadata": {"name": user}, "rules": rules});
    assert_eq!(cluster.send("POST", &format!("{base}/clusterroles"), role).await.0, 201);
    let binding = json!({"metadata": {"name": user},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": user}]});
    assert_eq!(cluster.send("POST", &format!("{base}/clusterrolebindings"), binding).await.0, 201);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_constrained_impersonation_takes_both_rights() {
    let cluster = Cluster::with(rbac).await;
    // Bob may do more than ann may do as bob.
    allow(
        &cluster,
        "bob",
        json!([{"apiGroups": [""], "resources": ["configmaps", "secrets"], "verbs": ["get", "list", "create"]}]),
    )
    .await;
    allow(
        &cluster,
        "ann",
        json!([
            {"apiGroups": ["authentication.k8s.io"], "resources": ["users"], "verbs": ["impersonate:user-info"], "resourceNames": ["bob"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["groups"], "verbs": ["impersonate:user-info"], "resourceNames": ["dev", "system:masters"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["serviceaccounts"], "verbs": ["impersonate:serviceaccount"], "resourceNames": ["robot"]},
            {"apiGroups": ["authentication.k8s.io"], "resources": ["nodes"], "verbs": ["impersonate:arbitrary-node"], "resourceNames": ["n1"]},
            {"apiGroups": [""], "resources": ["configmaps"],
             "verbs": ["impersonate-on:user-info:list", "impersonate-on:serviceaccount:list", "impersonate-on:arbitrary-node:list"]}]),
    )
    .await;
    let (maps, secrets) = ("/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/secrets");
    let on = |mode: &str, verb: &str, resource: &str| {
        format!("User \"ann\" cannot impersonate-on:{mode}:{verb} resource \"{resource}\"")
    };
    let to_be = |mode: &str, resource: &str| format!("User \"ann\" cannot impersonate:{mode} resource \"{resource}\"");
    for (path, headers, code, message) in [
        (maps, vec!["Impersonate-User: bob"], 200, String::new()),
        (maps, vec!["Impersonate-User: bob", "Impersonate-Group: dev"], 200, String::new()),
        // Bob may, ann as bob may not.
        (secrets, vec!["Impersonate-User: bob"], 403, on("user-info", "list", "secrets")),
        (
            "/api/v1/namespaces/default/configmaps/x",
            vec!["Impersonate-User: bob"],
            403,
            on("user-info", "get", "configmaps"),
        ),
        (maps, vec!["Impersonate-User: eve"], 403, to_be("user-info", "users")),
        (maps, vec!["Impersonate-User: bob", "Impersonate-Group: ops"], 403, to_be("user-info", "groups")),
        (maps, vec!["Impersonate-User: bob", "Impersonate-Uid: 7"], 403, to_be("user-info", "uids")),
        (
            maps,
            vec!["Impersonate-User: bob", "Impersonate-Group: system:masters"],
            403,
            "impersonating the system:masters group is not allowed".into(),
        ),
        (
            maps,
            vec!["Impersonate-User: bob", "Impersonate-Extra-Scopes: a"],
            403,
            "impersonating an invalid key in extra is not allowed".into(),
        ),
        // These may be impersonated, and may not list themselves.
        (
            maps,
            vec!["Impersonate-User: system:serviceaccount:default:robot"],
            403,
            "User \"system:serviceaccount:default:robot\" cannot list".into(),
        ),
        (
            maps,
            vec!["Impersonate-User: system:serviceaccount:default:other"],
            403,
            to_be("serviceaccount", "serviceaccounts"),
        ),
        // With groups it is no constrained request any more, and there is no other right.
        (
            maps,
            vec!["Impersonate-User: system:serviceaccount:default:robot", "Impersonate-Group: dev"],
            403,
            "User \"ann\" cannot impersonate resource \"serviceaccounts\"".into(),
        ),
        (maps, vec!["Impersonate-User: system:node:n1"], 403, "User \"system:node:n1\" cannot list".into()),
        (maps, vec!["Impersonate-User: system:node:n2"], 403, to_be("arbitrary-node", "nodes")),
    ] {
        let mut args = vec!["-H", "Authorization: Bearer ann-token"];
        headers.iter().for_each(|header| args.extend(["-H", header]));
        let (found, body) = cluster.curl(path, &args).await;
        assert_eq!(found, code, "{path} {headers:?}: {body}");
        assert!(body.to_string().replace("\\\"", "\"").contains(&message), "{path} {headers:?}: {body}\n{message}");
    }
}

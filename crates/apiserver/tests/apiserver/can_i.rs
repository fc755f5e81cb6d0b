//! What `kubectl auth` says about rights.

use apiserver::Authorizer;
use serde_json::json;

use crate::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_auth_tells_the_truth() {
    let cluster = Cluster::with(|config| config.authorizers = vec![Authorizer::Node, Authorizer::Rbac]).await;
    let run = |args: &'static [&'static str]| cluster.kubectl(args);
    let roles = "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: reader, namespace: default}\n\
        rules:\n- {apiGroups: [''], resources: [pods, pods/log], verbs: [get, list]}\n\
        - {apiGroups: [apps], resources: [deployments], resourceNames: [web], verbs: [patch]}\n---\n\
        apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: readers, namespace: default}\n\
        roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}\n\
        subjects:\n- {kind: Group, apiGroup: rbac.authorization.k8s.io, name: dev}\n";
    let reconciled = cluster.kubectl_with(&["auth", "reconcile", "-f", "-"], roles).await.unwrap();
    assert_eq!(
        reconciled,
        "role.rbac.authorization.k8s.io/reader reconciled\nrolebinding.rbac.authorization.k8s.io/readers reconciled\n"
    );
    for (question, answer) in [
        (&["auth", "can-i", "list", "pods", "--as=ann", "--as-group=dev"][..], true),
        (&["auth", "can-i", "get", "pods", "--subresource=log", "--as=ann", "--as-group=dev"], true),
        (&["auth", "can-i", "get", "pods", "--subresource=exec", "--as=ann", "--as-group=dev"], false),
        (&["auth", "can-i", "list", "pods", "--as=ann", "--as-group=dev", "-n", "kube-system"], false),
        (&["auth", "can-i", "delete", "pods", "--as=ann", "--as-group=dev"], false),
        (&["auth", "can-i", "patch", "deployments.apps/web", "--as=ann", "--as-group=dev"], true),
        (&["auth", "can-i", "patch", "deployments.apps/db", "--as=ann", "--as-group=dev"], false),
        (&["auth", "can-i", "get", "/healthz", "--as=ann"], true),
        (&["auth", "can-i", "get", "/metrics", "--as=ann"], false),
        (&["auth", "can-i", "*", "*"], true),
    ] {
        assert_eq!(cluster.kubectl(question).await.is_ok(), answer, "{question:?}");
    }
    let list = run(&["auth", "can-i", "--list", "--as=ann", "--as-group=dev"]).await.unwrap();
    let lines: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    for expected in [
        vec!["pods", "[]", "[]", "[get", "list]"],
        vec!["pods/log", "[]", "[]", "[get", "list]"],
        vec!["deployments.apps", "[]", "[web]", "[patch]"],
        vec!["selfsubjectaccessreviews.authorization.k8s.io", "[]", "[]", "[create]"],
        vec!["[/healthz]", "[]", "[get]"],
    ] {
        assert!(lines.contains(&expected), "{expected:?} in\n{list}");
    }
    let everything = run(&["auth", "can-i", "--list"]).await.unwrap();
    let lines: Vec<Vec<&str>> = everything.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(lines.contains(&vec!["*.*", "[]", "[]", "[*]"]), "{everything}");

    // What `kubectl auth whoami` shows; Debian's does not have it yet.
    let file = |name: &str| cluster.dir.path().join(name).display().to_string();
    let me = cluster.whoami(&["--cert", &file("admin.crt"), "--key", &file("admin.key")]).await.unwrap();
    assert_eq!(me["username"], "admin");
    assert_eq!(me["groups"], json!(["system:masters", "system:authenticated"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_follow_their_roles() {
    let cluster = Cluster::with(|config| config.authorizers = vec![Authorizer::Rbac]).await;
    let base = "/apis/rbac.authorization.k8s.io/v1";
    let may = async |resource: &str| {
        let body = json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": resource}}});
        let (_, review) = cluster.send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body).await;
        review["status"]["allowed"] == true
    };
    let role = |resource: &str| json!({"metadata": {"name": "r"}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]});
    let binding = |role: &str| {
        json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]})
    };
    assert!(!may("pods").await);
    cluster.send("POST", &format!("{base}/clusterroles"), role("pods")).await;
    cluster.send("POST", &format!("{base}/clusterrolebindings"), binding("r")).await;
    assert!(may("pods").await && !may("services").await);
    cluster.send("PUT", &format!("{base}/clusterroles/r"), role("services")).await;
    assert!(!may("pods").await && may("services").await);
    cluster.send("DELETE", &format!("{base}/clusterrolebindings/b"), json!({})).await;
    assert!(!may("services").await);
    // A binding to a role that is not there says so.
    cluster.send("POST", &format!("{base}/clusterrolebindings"), binding("gone")).await;
    let body = json!({"spec": {"user": "ann", "resourceAttributes": {"verb": "get", "resource": "pods"}}});
    let (_, review) = cluster.send("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body).await;
    assert_eq!(review["status"]["reason"], "RBAC: clusterrole.rbac.authorization.k8s.io \"gone\" not found");
}

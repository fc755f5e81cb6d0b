//! Ways to rights that were not given, each closed.

use apiserver::Authorizer;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

fn guarded(config: &mut apiserver::Config) {
    config.authorizers = vec![Authorizer::Node, Authorizer::Rbac];
    config.enable_admission_plugins = vec!["NodeRestriction".to_owned()];
}

/// A request of somebody; the code of the answer and its text.
async fn ask(cluster: &Cluster, user: (&str, &[&str]), method: &str, path: &str, body: &Value) -> (u16, String) {
    let content_type = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
    let response = cluster.request(method, path, content_type, body, user.0, user.1).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, String::from_utf8_lossy(&bytes).into_owned())
}

/// All that discovery lists: the path of the version, and the resource.
async fn resources(cluster: &Cluster) -> Vec<(String, Value)> {
    let (_, groups) = cluster.send("GET", "/apis", Value::Null).await;
    let versions = groups["groups"].as_array().unwrap().iter().flat_map(|group| group["versions"].as_array().unwrap());
    let versions = versions.map(|version| format!("/apis/{}", version["groupVersion"].as_str().unwrap()));
    let mut found = Vec::new();
    for version in std::iter::once("/api/v1".to_owned()).chain(versions) {
        let (code, list) = cluster.send("GET", &version, Value::Null).await;
        assert_eq!(code, 200, "{version}: {list}");
        found.extend(list["resources"].as_array().unwrap().iter().map(|row| (version.clone(), row.clone())));
    }
    found
}

async fn define(cluster: &Cluster, plural: &str, kind: &str, scope: &str) {
    let definition = json!({"metadata": {"name": format!("{plural}.example.com")}, "spec": {
        "group": "example.com", "scope": scope, "names": {"plural": plural, "kind": kind},
        "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, answer) = cluster.send("POST", path, definition).await;
    assert_eq!(code, 201, "{answer}");
    // Waits for definitions that were just written.
    assert_eq!(cluster.send("GET", &format!("/apis/example.com/v1/{plural}"), Value::Null).await.0, 200);
}

/// CVE-2019-11247 and its kin: who may do everything in one namespace has nothing of the cluster there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_no_row_of_the_cluster_is_served_in_a_namespace() {
    let cluster = Cluster::with(|config| {
        guarded(config);
        config.runtime_config = apiserver::registry::RuntimeConfig::parse("api/all=true").unwrap();
    })
    .await;
    define(&cluster, "widgets", "Widget", "Cluster").await;
    define(&cluster, "gadgets", "Gadget", "Namespaced").await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let role =
        json!({"metadata": {"name": "all"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    assert_eq!(cluster.send("POST", &format!("{rbac}/roles"), role).await.0, 201);
    let binding = json!({"metadata": {"name": "all"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "all"},
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]});
    assert_eq!(cluster.send("POST", &format!("{rbac}/rolebindings"), binding).await.0, 201);

    let (mut of_cluster, mut of_namespaces) = (0, 0);
    for (version, row) in resources(&cluster).await {
        let name = row["name"].as_str().unwrap();
        let (plural, rest) =
            name.split_once('/').map_or((name, String::new()), |(plural, sub)| (plural, format!("/{sub}")));
        let object = json!({"metadata": {"name": "x"}});
        if row["namespaced"] == false {
            of_cluster += 1;
            let inside = format!("{version}/namespaces/default/{plural}");
            let watch = format!("{version}/watch/namespaces/default/{plural}");
            let mut attacks = vec![
                ("GET", format!("{inside}/x{rest}")),
                ("PUT", format!("{inside}/x{rest}")),
                ("PATCH", format!("{inside}/x{rest}")),
                ("DELETE", format!("{inside}/x{rest}")),
                ("POST", format!("{inside}/x{rest}")),
            ];
            if rest.is_empty() {
                let more = [("GET", inside.clone()), ("GET", format!("{inside}?watch=1")), ("GET", watch)];
                attacks.extend(more);
                attacks.extend([("POST", inside.clone()), ("DELETE", inside.clone())]);
            }
            // Before authorization: also who may do nothing, and who may do everything, hears the same.
            for user in [("ann", &[][..]), ("bob", &[]), ("admin", &["system:masters"])] {
                for (method, path) in &attacks {
                    let (code, answer) = ask(&cluster, user, method, path, &object).await;
                    assert_eq!(code, 404, "{user:?} {method} {path}: {answer}");
                }
            }
        } else if rest.is_empty() {
            of_namespaces += 1;
            let is_custom = version.starts_with("/apis/example.com");
            let is_listed = row["verbs"].as_array().unwrap().contains(&json!("list"));
            let collection = if is_listed && !is_custom { 405 } else { 404 };
            for (method, path, expected) in [
                ("POST", format!("{version}/{plural}"), collection),
                ("DELETE", format!("{version}/{plural}"), collection),
                ("GET", format!("{version}/{plural}/x"), 404),
                ("PUT", format!("{version}/{plural}/x"), 404),
                ("DELETE", format!("{version}/{plural}/x"), 404),
            ] {
                let (code, answer) = ask(&cluster, ("admin", &["system:masters"]), method, &path, &object).await;
                assert_eq!(code, expected, "{method} {path}: {answer}");
                // Rights in one namespace are none in all of them.
                let (code, answer) = ask(&cluster, ("ann", &[]), method, &path, &object).await;
                assert_eq!(code, 403, "{method} {path}: {answer}");
            }
        }
    }
    assert!(of_cluster > 40 && of_namespaces > 30, "{of_cluster} {of_namespaces}");
    let (_, bindings) =
        cluster.send("GET", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/x", Value::Null).await;
    assert_eq!(bindings["reason"], "NotFound", "{bindings}");
    // What is her own still is.
    let map = json!({"metadata": {"name": "x"}});
    let (code, answer) = ask(&cluster, ("ann", &[]), "POST", "/api/v1/namespaces/default/configmaps", &map).await;
    assert_eq!(code, 201, "{answer}");
    let gadgets = "/apis/example.com/v1/namespaces/default/gadgets";
    let gadget = json!({"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "x"}});
    let (code, answer) = ask(&cluster, ("ann", &[]), "POST", gadgets, &gadget).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(ask(&cluster, ("ann", &[]), "GET", "/api/v1/namespaces/default", &Value::Null).await.0, 200);
}

const NODE: (&str, &[&str]) = ("system:node:n", &["system:nodes", "system:authenticated"]);

/// Nodes `n` and `m` with a pod each, `p` and `q`; the uids of node `n` and of both pods.
async fn two_nodes(cluster: &Cluster) -> (String, String, String) {
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let uid = |answer: &Value| answer["metadata"]["uid"].as_str().unwrap().to_owned();
    let mut uids = Vec::new();
    for node in ["n", "m"] {
        let (code, answer) = cluster.send("POST", "/api/v1/nodes", json!({"metadata": {"name": node}})).await;
        assert_eq!(code, 201, "{answer}");
        uids.push(uid(&answer));
    }
    for (pod, node) in [("p", "n"), ("q", "m")] {
        let pod = json!({"metadata": {"name": pod}, "spec": {"nodeName": node,
            "containers": [{"name": "c", "image": "i"}]}});
        let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/pods", pod).await;
        assert_eq!(code, 201, "{answer}");
        uids.push(uid(&answer));
    }
    (uids[0].clone(), uids[2].clone(), uids[3].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_nodes_credential_is_good_for_itself_only() {
    let cluster = Cluster::with(guarded).await;
    let (node, own_pod, other_pod) = two_nodes(&cluster).await;
    let privileged = json!({"metadata": {"name": "evil"}, "spec": {"nodeName": "n", "containers": [{"name": "c",
        "image": "i", "securityContext": {"privileged": true}, "volumeMounts": [{"name": "h", "mountPath": "/h"}]}],
        "volumes": [{"name": "h", "hostPath": {"path": "/"}}]}});
    let mirror = |name: &str, on: &str, owner: Value, spec: Value| {
        let mut pod = json!({"metadata": {"name": name, "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": on, "uid": node, "controller": true}]},
            "spec": {"nodeName": on, "containers": [{"name": "c", "image": "i"}]}});
        let reference = pod["metadata"]["ownerReferences"][0].as_object_mut().unwrap();
        reference.extend(owner.as_object().unwrap().clone());
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod
    };
    let bound = |pod: &str, uid: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": uid});
    let token =
        |reference: Value, audiences: Value| json!({"spec": {"boundObjectRef": reference, "audiences": audiences}});
    let pods = "/api/v1/namespaces/default/pods";
    let tokens = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let label = |key: &str| json!({"metadata": {"labels": {key: "x"}}});
    let slice = |name: &str, node: &str| {
        json!({"metadata": {"name": name}, "spec": {"driver": "d.example.com", "nodeName": node,
            "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}})
    };
    let lease = |name: &str| json!({"metadata": {"name": name}, "spec": {"holderIdentity": name}});
    let csi = |name: &str| json!({"metadata": {"name": name}, "spec": {"drivers": []}});
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    let status = json!({"status": {"phase": "Running"}});
    let nothing = Value::Null;
    let evict = |pod: &str| json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod}});
    let slices = "/apis/resource.k8s.io/v1/resourceslices";
    let leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";
    let csi_nodes = "/apis/storage.k8s.io/v1/csinodes";
    for (method, path, body, code, words) in [
        ("POST", pods.to_owned(), privileged, 403, "can only create mirror pods"),
        ("POST", pods.to_owned(), mirror("a", "m", json!({}), json!({})), 403, "spec.nodeName set to itself"),
        (
            "POST",
            pods.to_owned(),
            mirror("a", "n", json!({"name": "m"}), json!({})),
            403,
            "owner reference set to itself",
        ),
        ("POST", pods.to_owned(), mirror("a", "n", json!({"uid": "x"}), json!({})), 403, "UID mismatch"),
        (
            "POST",
            pods.to_owned(),
            mirror("a", "n", json!({"controller": false}), json!({})),
            403,
            "controller owner reference",
        ),
        (
            "POST",
            pods.to_owned(),
            mirror("a", "n", json!({}), json!({"serviceAccountName": "default"})),
            403,
            "serviceaccounts",
        ),
        (
            "POST",
            pods.to_owned(),
            mirror("a", "n", json!({}), json!({"volumes": [{"name": "s", "secret": {"secretName": "s"}}]})),
            403,
            "secrets",
        ),
        ("POST", pods.to_owned(), mirror("good", "n", json!({}), json!({})), 201, ""),
        (
            "PATCH",
            format!("{pods}/q/status"),
            status.clone(),
            403,
            "pod status for pods with spec.nodeName set to itself",
        ),
        ("PATCH", format!("{pods}/p/status"), label("app"), 403, "cannot update labels through pod status"),
        ("PATCH", format!("{pods}/p/status"), status, 200, ""),
        ("PATCH", format!("{pods}/p"), label("app"), 403, ""),
        ("PUT", format!("{pods}/p/ephemeralcontainers"), json!({}), 403, ""),
        ("POST", format!("{pods}/q/eviction"), evict("q"), 403, "can only evict pods with spec.nodeName set to itself"),
        ("DELETE", format!("{pods}/q"), nothing.clone(), 403, "can only delete pods with spec.nodeName set to itself"),
        ("DELETE", format!("{pods}/good?gracePeriodSeconds=0"), nothing.clone(), 200, ""),
        ("POST", tokens.to_owned(), json!({"spec": {}}), 403, "not bound to a pod"),
        ("POST", tokens.to_owned(), token(bound("q", &other_pod), json!([])), 403, "scheduled on a different node"),
        ("POST", tokens.to_owned(), token(bound("p", ""), json!([])), 403, "without a uid"),
        ("POST", tokens.to_owned(), token(bound("p", &other_pod), json!([])), 403, "does not match the UID in record"),
        (
            "POST",
            tokens.to_owned(),
            token(bound("p", &own_pod), json!(["vault"])),
            403,
            "audience \\\"vault\\\" not found",
        ),
        ("POST", tokens.to_owned(), token(bound("p", &own_pod), json!(["a", "b"])), 403, "0 or 1 audiences"),
        ("POST", tokens.to_owned(), token(bound("p", &own_pod), json!([])), 201, ""),
        (
            "POST",
            "/api/v1/nodes".to_owned(),
            json!({"metadata": {"name": "o"}}),
            403,
            "not allowed to modify node \\\"o\\\"",
        ),
        ("PATCH", "/api/v1/nodes/m".to_owned(), label("example.com/a"), 403, "not allowed to modify node \\\"m\\\""),
        ("PATCH", "/api/v1/nodes/m/status".to_owned(), ready.clone(), 403, "not allowed to modify node \\\"m\\\""),
        (
            "PATCH",
            "/api/v1/nodes/n".to_owned(),
            label("node-role.kubernetes.io/control-plane"),
            403,
            "not allowed to modify labels",
        ),
        (
            "PATCH",
            "/api/v1/nodes/n".to_owned(),
            label("node-restriction.kubernetes.io/a"),
            403,
            "not allowed to modify labels",
        ),
        (
            "PATCH",
            "/api/v1/nodes/n/status".to_owned(),
            label("node-restriction.kubernetes.io/a"),
            403,
            "not allowed to modify labels",
        ),
        ("PATCH", "/api/v1/nodes/n".to_owned(), json!({"spec": {"taints": []}}), 403, "not allowed to modify taints"),
        ("PATCH", "/api/v1/nodes/n".to_owned(), label("kubernetes.io/hostname"), 200, ""),
        ("PATCH", "/api/v1/nodes/n/status".to_owned(), ready, 200, ""),
        ("DELETE", "/api/v1/nodes/n".to_owned(), nothing.clone(), 403, ""),
        ("POST", leases.to_owned(), lease("m"), 403, "same name as the requesting node"),
        ("POST", leases.replace("kube-node-lease", "default"), lease("n"), 403, "kube-node-lease"),
        ("POST", leases.to_owned(), lease("n"), 201, ""),
        ("DELETE", format!("{leases}/m"), nothing.clone(), 403, ""),
        ("POST", csi_nodes.to_owned(), csi("m"), 403, "same name as the requesting node"),
        ("POST", csi_nodes.to_owned(), csi("n"), 201, ""),
        ("POST", slices.to_owned(), slice("a", "m"), 403, "same NodeName as the requesting node"),
        ("POST", slices.to_owned(), slice("b", "n"), 201, ""),
        ("DELETE", slices.to_owned(), nothing.clone(), 403, "nodeName field selector"),
        ("DELETE", format!("{slices}/b"), nothing.clone(), 200, ""),
        ("POST", "/api/v1/namespaces/default/secrets".to_owned(), json!({"metadata": {"name": "s"}}), 403, ""),
        ("PATCH", "/api/v1/namespaces/default/serviceaccounts/default".to_owned(), label("a"), 403, ""),
    ] {
        // The taint that every new node has went with no controller: the one here is the administrator's.
        if words.contains("taints") {
            let taint = json!({"spec": {"taints": [{"key": "own", "effect": "NoSchedule"}]}});
            assert_eq!(ask(&cluster, ("admin", &["system:masters"]), "PATCH", &path, &taint).await.0, 200);
        }
        let (found, answer) = ask(&cluster, NODE, method, &path, &body).await;
        assert_eq!(found, code, "{method} {path} {body}: {answer}");
        assert!(answer.contains(words), "{method} {path} {body}: {answer}");
    }
    // What was refused is not there.
    let (_, found) = cluster.send("GET", pods, Value::Null).await;
    let names: Vec<&str> =
        found["items"].as_array().unwrap().iter().map(|pod| pod["metadata"]["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["p", "q"]);
}

/// A node that is new may describe itself, and give itself nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_a_new_node_describes_itself_and_attracts_nothing() {
    let cluster = Cluster::with(guarded).await;
    let node = |labels: Value| json!({"metadata": {"name": "n", "labels": labels}});
    for (labels, code) in [
        (json!({"node-role.kubernetes.io/control-plane": ""}), 403),
        (json!({"node-restriction.kubernetes.io/a": "b"}), 403),
        (json!({"a.k8s.io/b": "c"}), 403),
        (
            json!({"kubernetes.io/hostname": "n", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", "example.com/a": "b"}),
            201,
        ),
    ] {
        let (found, answer) = ask(&cluster, NODE, "POST", "/api/v1/nodes", &node(labels)).await;
        assert_eq!(found, code, "{answer}");
    }
}

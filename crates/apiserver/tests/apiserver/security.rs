//! Ways to rights that were not given, each closed.

use apiserver::Authorizer;
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

pub(crate) fn guarded(config: &mut apiserver::Config) {
    config.authorizers = vec![Authorizer::Node, Authorizer::Rbac];
    config.enable_admission_plugins = vec!["NodeRestriction".to_owned()];
}

/// A request of somebody; the code of the answer and its text.
pub(crate) async fn ask(
    cluster: &Cluster,
    user: (&str, &[&str]),
    method: &str,
    path: &str,
    body: &Value,
) -> (u16, String) {
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
    let served = async {
        while cluster.send("GET", &format!("/apis/example.com/v1/{plural}"), Value::Null).await.0 != 200 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), served).await.expect("the definition is established");
}

/// CVE-2019-11247 and its kin: who may do everything in one namespace has nothing of the cluster there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_no_row_of_the_cluster_is_served_in_a_namespace() {
    let cluster = Cluster::with(|config| {
        guarded(config);
        config.runtime_config = apiserver::RuntimeConfig::parse("api/all=true").unwrap();
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

pub(crate) const NODE: (&str, &[&str]) = ("system:node:n", &["system:nodes", "system:authenticated"]);

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
        ("POST", tokens.to_owned(), json!({"spec": null}), 403, "not bound to a pod"),
        ("POST", tokens.to_owned(), json!({}), 403, "not bound to a pod"),
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
        ("PATCH", "/api/v1/nodes/n".to_owned(), json!({"spec": {"podCIDR": "0.0.0.0/0"}}), 403, "set podCIDR"),
        ("PATCH", "/api/v1/nodes/n".to_owned(), json!({"spec": {"podCIDRs": ["10.0.0.0/8"]}}), 403, "set podCIDR"),
        (
            "PATCH",
            format!("{pods}/p/status"),
            json!({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}),
            422,
            "may not add mirror pod annotation",
        ),
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
        // Other nodes would send it the packets of all.
        let mut routed = node(labels.clone());
        routed["spec"] = json!({"podCIDR": "0.0.0.0/0", "podCIDRs": ["0.0.0.0/0"]});
        let (found, answer) = ask(&cluster, NODE, "POST", "/api/v1/nodes", &routed).await;
        assert_eq!(found, 403, "{answer}");
        let (found, answer) = ask(&cluster, NODE, "POST", "/api/v1/nodes", &node(labels)).await;
        assert_eq!(found, code, "{answer}");
    }
}

/// CVE-class of names that become paths: what a part of a pod brings along is checked like the pod itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_parts_of_a_pod_are_checked_like_the_whole() {
    let cluster = Cluster::start().await;
    cluster.send("POST", "/api/v1/namespaces/default/serviceaccounts", json!({"metadata": {"name": "default"}})).await;
    let pods = "/api/v1/namespaces/default/pods";
    let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i",
        "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}]}});
    let (code, before) = cluster.send("POST", pods, pod).await;
    assert_eq!(code, 201, "{before}");
    let debugger = |change: Value| {
        let mut container = json!({"name": "d", "image": "i"});
        container.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        json!({"spec": {"ephemeralContainers": [container]}})
    };
    let resized = |resources: Value| {
        json!({"spec": {"containers": [{"name": "c", "image": "i", "resources": resources,
        "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "Always"}]}})
    };
    let amounts = |cpu: &str, limit: &str| json!({"requests": {"cpu": cpu}, "limits": {"cpu": limit}});
    for (part, patch, words) in [
        ("ephemeralcontainers", debugger(json!({"name": "/etc/cron.d"})), "a lowercase RFC 1123 label must consist of"),
        ("ephemeralcontainers", debugger(json!({"name": "../../x"})), "a lowercase RFC 1123 label must consist of"),
        ("ephemeralcontainers", debugger(json!({"name": ""})), "spec.ephemeralContainers[0].name: Required value"),
        ("ephemeralcontainers", debugger(json!({"name": "c"})), "spec.ephemeralContainers[0].name: Duplicate value"),
        ("ephemeralcontainers", debugger(json!({"image": ""})), "spec.ephemeralContainers[0].image: Required value"),
        (
            "ephemeralcontainers",
            debugger(json!({"volumeMounts": [{"name": "x", "mountPath": "/x"}]})),
            "spec.ephemeralContainers[0].volumeMounts[0].name: Not found",
        ),
        ("ephemeralcontainers", debugger(json!({"targetContainerName": "x"})), "targetContainerName: Not found"),
        (
            "ephemeralcontainers",
            debugger(json!({"ports": [{"containerPort": 80}]})),
            "cannot be set for an Ephemeral Container",
        ),
        (
            "ephemeralcontainers",
            debugger(json!({"securityContext": {"procMount": "Unmasked"}})),
            "`hostUsers` must be false to use `Unmasked`",
        ),
        ("resize", resized(amounts("3", "2")), "must be less than or equal to cpu limit of 2"),
        ("resize", resized(amounts("-1", "2")), "must be greater than or equal to 0"),
        (
            "resize",
            resized(json!({"requests": null, "limits": null})),
            "Pod QOS Class may not change as a result of resizing",
        ),
        (
            "resize",
            resized(json!({"requests": {"cpu": "1", "ephemeral-storage": "1Gi"}, "limits": {"cpu": "2"}})),
            "only cpu and memory resources are mutable",
        ),
        ("resize", resized(json!({"requests": {"cpu": "1"}, "limits": {}})), "resource limits cannot be removed"),
    ] {
        let path = format!("{pods}/p/{part}");
        let (code, answer) = ask(&cluster, ("admin", &["system:masters"]), "PATCH", &path, &patch).await;
        assert_eq!(code, 422, "{part} {patch}: {answer}");
        assert!(answer.replace("\\", "").contains(words), "{part} {patch}: {answer}");
    }
    let (_, after) = cluster.send("GET", &format!("{pods}/p"), Value::Null).await;
    assert_eq!(after["spec"], before["spec"]);
    for (part, patch) in [("ephemeralcontainers", debugger(json!({}))), ("resize", resized(amounts("1500m", "2")))] {
        let path = format!("{pods}/p/{part}");
        let (code, answer) = ask(&cluster, ("admin", &["system:masters"]), "PATCH", &path, &patch).await;
        assert_eq!(code, 200, "{part} {patch}: {answer}");
    }
    // What shows a static pod is changed by nobody.
    let mirror = json!({"metadata": {"name": "m", "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}});
    assert_eq!(cluster.send("POST", pods, mirror).await.0, 201);
    for (part, patch, words) in [
        ("ephemeralcontainers", debugger(json!({})), "static pods do not support ephemeral containers"),
        ("resize", resized(amounts("1", "2")), "static pods cannot be resized"),
    ] {
        let path = format!("{pods}/m/{part}");
        let (code, answer) = ask(&cluster, ("admin", &["system:masters"]), "PATCH", &path, &patch).await;
        assert_eq!(code, 422, "{part}: {answer}");
        assert!(answer.contains(words), "{part}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_user_namespaces_that_no_node_has_relax_nothing() {
    let cluster = Cluster::start().await;
    for level in ["baseline", "restricted", "default"] {
        let namespace = json!({"metadata": {"name": level, "labels": {"pod-security.kubernetes.io/enforce": level}}});
        if level != "default" {
            assert_eq!(cluster.send("POST", "/api/v1/namespaces", namespace).await.0, 201);
        }
        let accounts = format!("/api/v1/namespaces/{level}/serviceaccounts");
        cluster.send("POST", &accounts, json!({"metadata": {"name": "default"}})).await;
    }
    let pod = |spec: Value, security: Value| {
        let mut pod = json!({"metadata": {"generateName": "p-"}, "spec": {"containers": [{"name": "c", "image": "i",
            "securityContext": security}]}});
        pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
        pod
    };
    let hardened = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"}});
    let own = json!({"hostUsers": false});
    let unmasked = json!({"procMount": "Unmasked"});
    for (namespace, pod, code, words) in [
        ("baseline", pod(own.clone(), unmasked.clone()), 403, "procMount"),
        ("restricted", pod(own.clone(), hardened), 403, "runAsNonRoot != true"),
        ("default", pod(json!({}), unmasked), 422, "`hostUsers` must be false to use `Unmasked`"),
        ("default", pod(json!({"hostUsers": false, "hostNetwork": true}), json!({})), 422, "when `hostUsers` is false"),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        let (found, answer) = ask(&cluster, ("admin", &["system:masters"]), "POST", &path, &pod).await;
        assert_eq!(found, code, "{pod}: {answer}");
        assert!(answer.contains(words), "{pod}: {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_streams_take_more_than_the_right_to_read() {
    let cluster = Cluster::with(guarded).await;
    two_nodes(&cluster).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/default";
    let streams = json!(["pods/exec", "pods/attach", "pods/portforward"]);
    let give = async |name: &str, verbs: Value| {
        let role =
            json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": streams, "verbs": verbs}]});
        assert_eq!(cluster.send("POST", &format!("{rbac}/roles"), role).await.0, 201);
        let binding = json!({"metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}]});
        assert_eq!(cluster.send("POST", &format!("{rbac}/rolebindings"), binding).await.0, 201);
    };
    give("reader", json!(["get"])).await;
    give("writer", json!(["get", "create"])).await;
    for part in ["exec?command=ls&stdout=1", "attach?stdout=1", "portforward?ports=80"] {
        let path = format!("/api/v1/namespaces/default/pods/p/{part}");
        let (code, answer) = ask(&cluster, ("reader", &[]), "GET", &path, &Value::Null).await;
        assert_eq!(code, 403, "{part}: {answer}");
        assert!(answer.contains("cannot create resource"), "{part}: {answer}");
        // The node has no address, which is found out by whoever may ask.
        let (code, answer) = ask(&cluster, ("writer", &[]), "GET", &path, &Value::Null).await;
        assert!(code != 403 && answer.contains("no preferred addresses found"), "{part}: {code} {answer}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_headers_of_identity_are_read_or_refused() {
    let cluster = Cluster::with(guarded).await;
    let mut request = http::Request::builder().uri("/api/v1/namespaces/default/secrets").body(Bytes::new()).unwrap();
    request.extensions_mut().insert(api::UserInfo::new("proxy", &["system:masters"]));
    let value = http::HeaderValue::from_bytes(b"\xff").unwrap();
    request.headers_mut().insert("impersonate-user", value);
    assert_eq!((cluster.handler)(request).await.status().as_u16(), 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_proxies_lead_to_no_special_address() {
    let cluster = Cluster::start().await;
    two_nodes(&cluster).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let base = "/api/v1/namespaces/default";
    let admin = ("admin", &["system:masters"][..]);
    let address = |ip: &str| json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
    for ip in ["127.0.0.1", "169.254.169.254", "::1", "fe80::1", "224.0.0.1", "0.0.0.0"] {
        assert_eq!(ask(&cluster, admin, "PATCH", &format!("{base}/pods/p/status"), &address(ip)).await.0, 200);
        let (code, answer) = ask(&cluster, admin, "GET", &format!("{base}/pods/p:{port}/proxy/"), &Value::Null).await;
        assert_eq!(code, 400, "{ip}: {answer}");
        assert!(answer.contains("address not allowed"), "{ip}: {answer}");
    }
    let mapped = address("::ffff:127.0.0.1");
    assert_eq!(ask(&cluster, admin, "PATCH", &format!("{base}/pods/p/status"), &mapped).await.0, 422);
    // Also by the name of a node, at a port that is not its kubelet's.
    let node = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}]}});
    assert_eq!(ask(&cluster, admin, "PATCH", "/api/v1/nodes/n/status", &node).await.0, 200);
    let (code, answer) = ask(&cluster, admin, "GET", &format!("/api/v1/nodes/n:{port}/proxy/"), &Value::Null).await;
    assert_eq!(code, 400, "{answer}");
    // Endpoints that are no pods of this namespace are nobody's.
    let service = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    assert_eq!(cluster.send("POST", &format!("{base}/services"), service).await.0, 201);
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let slice = |name: &str, ip: &str| {
        json!({"metadata": {"name": name, "labels": {"kubernetes.io/service-name": "s"}},
        "addressType": if ip.contains(':') { "IPv6" } else { "IPv4" }, "endpoints": [{"addresses": [ip]}], "ports": [{"port": port}]})
    };
    assert_eq!(cluster.send("POST", slices, slice("far", "192.0.2.7")).await.0, 201);
    let (code, answer) = ask(&cluster, admin, "GET", &format!("{base}/services/s/proxy/"), &Value::Null).await;
    assert_eq!(code, 503, "{answer}");
    assert!(answer.contains("no endpoints available for service"), "{answer}");

    let endpoints = |ip: &str| json!({"metadata": {"name": "e"}, "subsets": [{"addresses": [{"ip": ip}], "ports": [{"port": 80}]}]});
    let external =
        |ip: &str| json!({"metadata": {"name": "x"}, "spec": {"ports": [{"port": 80}], "externalIPs": [ip]}});
    for (ip, words) in [
        ("169.254.169.254", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("fe80::1", "may not be in the link-local range (169.254.0.0/16, fe80::/10)"),
        ("127.0.0.1", "may not be in the loopback range (127.0.0.0/8, ::1/128)"),
        ("224.0.0.1", "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"),
        ("0.0.0.0", "may not be unspecified (0.0.0.0)"),
    ] {
        for (path, body) in [
            (slices.to_owned(), slice("special", ip)),
            (format!("{base}/endpoints"), endpoints(ip)),
            (format!("{base}/services"), external(ip)),
        ] {
            let (code, answer) = ask(&cluster, admin, "POST", &path, &body).await;
            assert_eq!(code, 422, "{path} {ip}: {answer}");
            assert!(answer.contains(words), "{path} {ip}: {answer}");
        }
    }
}

/// Numbers at their ends make no server panic and no object stay for ever.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_extreme_numbers_are_numbers() {
    let cluster = Cluster::start().await;
    two_nodes(&cluster).await;
    let pods = "/api/v1/namespaces/default/pods";
    let admin = ("admin", &["system:masters"][..]);
    let pod = |name: &str, grace: i64| {
        json!({"metadata": {"name": name}, "spec": {"nodeName": "n",
        "terminationGracePeriodSeconds": grace, "containers": [{"name": "c", "image": "i"}]}})
    };
    for (name, grace, stored) in [("long", i64::MAX, i64::MAX), ("short", i64::MIN, 1), ("less", -5, 1)] {
        let (code, answer) = cluster.send("POST", pods, pod(name, grace)).await;
        assert_eq!(code, 201, "{answer}");
        assert_eq!(answer["spec"]["terminationGracePeriodSeconds"], json!(stored), "{answer}");
        let (code, answer) = ask(&cluster, admin, "DELETE", &format!("{pods}/{name}"), &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        let marked: Value = serde_json::from_str(&answer).unwrap();
        assert!(marked["metadata"]["deletionTimestamp"].is_string(), "{answer}");
        // It can still be hurried, and then is gone.
        let (code, answer) =
            ask(&cluster, admin, "DELETE", &format!("{pods}/{name}?gracePeriodSeconds=-1"), &Value::Null).await;
        assert_eq!(code, 200, "{answer}");
        let marked: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(marked["metadata"]["deletionGracePeriodSeconds"], 1, "{answer}");
        assert_eq!(
            ask(&cluster, admin, "DELETE", &format!("{pods}/{name}?gracePeriodSeconds=0"), &Value::Null).await.0,
            200
        );
        assert_eq!(ask(&cluster, admin, "GET", &format!("{pods}/{name}"), &Value::Null).await.0, 404);
    }
    for (grace, code) in [(i64::MAX, 200), (i64::MIN, 200)] {
        assert_eq!(cluster.send("POST", pods, pod("asked", 30)).await.0, 201);
        let options = json!({"gracePeriodSeconds": grace});
        assert_eq!(ask(&cluster, admin, "DELETE", &format!("{pods}/asked"), &options).await.0, code);
        assert_eq!(
            ask(&cluster, admin, "DELETE", &format!("{pods}/asked?gracePeriodSeconds=0"), &Value::Null).await.0,
            200
        );
    }
    for (timeout, code) in [("18446744073709551615", 400), ("9223372036854775807", 200), ("-1", 200), ("x", 400)] {
        let path = format!("{pods}?watch=1&timeoutSeconds={timeout}");
        let response = cluster.request("GET", &path, "", Bytes::new(), "admin", &["system:masters"]).await;
        assert_eq!(response.status().as_u16(), code, "{timeout}");
    }
}

/// Issue of order: what plug-ins have to say comes before what the store would say.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_version_on_a_new_object_is_refused_after_admission() {
    let cluster = Cluster::with(|config| config.enable_admission_plugins.push("AlwaysDeny".to_owned())).await;
    let map = json!({"metadata": {"name": "m", "resourceVersion": "7"}});
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/configmaps", map.clone()).await;
    assert_eq!(code, 403, "{answer}");
    let cluster = Cluster::start().await;
    let (code, answer) = cluster.send("POST", "/api/v1/namespaces/default/configmaps", map).await;
    assert_eq!((code, &answer["message"]), (500, &json!("resourceVersion should not be set on objects to be created")));
    let map = json!({"metadata": {"name": "m", "resourceVersion": "0"}});
    assert_eq!(cluster.send("POST", "/api/v1/namespaces/default/configmaps", map).await.0, 201);
}

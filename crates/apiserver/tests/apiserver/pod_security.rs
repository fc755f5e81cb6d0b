//! PodSecurity through a real server: labels of namespaces, refusals, warnings, exemptions.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;

/// Code, warnings and body of one request.
async fn send(cluster: &Cluster, user: &str, method: &str, path: &str, body: Value) -> (u16, Vec<String>, Value) {
    let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let response = cluster.request(method, path, kind, Bytes::from(body.to_string()), user, &["system:masters"]).await;
    let code = response.status().as_u16();
    let warnings = response.headers().get_all("warning").iter();
    let warnings = warnings.map(|value| value.to_str().unwrap().to_owned()).collect();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, warnings, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn namespace(cluster: &Cluster, name: &str, labels: &[(&str, &str)]) {
    let labels: serde_json::Map<String, Value> =
        labels.iter().map(|(key, value)| (format!("pod-security.kubernetes.io/{key}"), (*value).into())).collect();
    let object = json!({"metadata": {"name": name, "labels": labels}});
    let (code, _, answer) = send(cluster, "admin", "POST", "/api/v1/namespaces", object).await;
    assert_eq!(code, 201, "{answer}");
    let accounts = format!("/api/v1/namespaces/{name}/serviceaccounts");
    let (code, ..) = send(cluster, "admin", "POST", &accounts, json!({"metadata": {"name": "default"}})).await;
    assert_eq!(code, 201);
}

fn pod(name: &str, spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

/// A pod that passes the restricted level.
fn hardened() -> Value {
    json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "image": "i:1", "securityContext":
            {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]})
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn levels_are_enforced_and_explained() {
    let cluster = Cluster::start().await;
    namespace(&cluster, "free", &[]).await;
    namespace(&cluster, "base", &[("enforce", "baseline")]).await;
    namespace(&cluster, "hard", &[("enforce", "restricted")]).await;
    namespace(&cluster, "old", &[("enforce", "restricted"), ("enforce-version", "v1.7")]).await;
    namespace(&cluster, "soft", &[("warn", "restricted"), ("audit", "baseline")]).await;
    let privileged = json!({"hostNetwork": true, "containers": [{"name": "c", "image": "i", "securityContext": {"privileged": true}}]});
    let plain_in_restricted = "violates PodSecurity \"restricted:latest\": allowPrivilegeEscalation != false (container \"c\" must set \
        securityContext.allowPrivilegeEscalation=false), unrestricted capabilities (container \"c\" must set \
        securityContext.capabilities.drop=[\"ALL\"]), runAsNonRoot != true (pod or container \"c\" must set \
        securityContext.runAsNonRoot=true), seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \
        \"RuntimeDefault\" or \"Localhost\")";
    for (namespace, spec, code, text) in [
        ("free", privileged.clone(), 201, ""),
        ("base", json!({}), 201, ""),
        (
            "base",
            privileged.clone(),
            403,
            "pods \"p\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostNetwork=true), \
             privileged (container \"c\" must not set securityContext.privileged=true)",
        ),
        ("hard", json!({}), 403, plain_in_restricted),
        ("hard", hardened(), 201, ""),
        // Older versions of the standards asked for less.
        (
            "old",
            json!({}),
            403,
            "violates PodSecurity \"restricted:v1.7\": runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
        ),
        ("old", json!({"securityContext": {"runAsNonRoot": true}}), 201, ""),
        ("soft", privileged, 201, ""),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        let (found, warnings, answer) = send(&cluster, "admin", "POST", &path, pod("p", spec.clone())).await;
        assert_eq!(found, code, "{namespace} {spec}: {answer}");
        let message = answer["message"].as_str().unwrap_or_default();
        assert!(message.ends_with(text), "{namespace} {spec}: {message}");
        assert_eq!(!warnings.is_empty(), namespace == "soft", "{namespace}: {warnings:?}");
    }
    // Workloads are only warned about, at the enforced level too.
    let labels = json!({"app": "d"});
    let deployment = json!({"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": {"hostPID": true, "containers": [{"name": "c", "image": "i"}]}}}});
    let path = "/apis/apps/v1/namespaces/base/deployments";
    let (code, warnings, answer) = send(&cluster, "admin", "POST", path, deployment).await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(
        warnings,
        ["299 - \"would violate PodSecurity \\\"baseline:latest\\\": host namespaces (hostPID=true)\""]
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_are_checked_and_tightening_warns() {
    let cluster = Cluster::start().await;
    namespace(&cluster, "n", &[]).await;
    let pods = "/api/v1/namespaces/n/pods";
    for (name, spec) in [("b", json!({"hostNetwork": true})), ("a", json!({"hostNetwork": true})), ("fine", json!({}))]
    {
        assert_eq!(send(&cluster, "admin", "POST", pods, pod(name, spec)).await.0, 201);
    }
    let label =
        |key: &str, value: &str| json!({"metadata": {"labels": {format!("pod-security.kubernetes.io/{key}"): value}}});
    let path = "/api/v1/namespaces/n";
    let (code, warnings, _) = send(&cluster, "admin", "PATCH", path, label("enforce", "baseline")).await;
    assert_eq!(code, 200);
    assert_eq!(
        warnings,
        [
            "299 - \"existing pods in namespace \\\"n\\\" violate the new PodSecurity enforce level \\\"baseline:latest\\\"\"",
            "299 - \"a (and 1 other pod): host namespaces\""
        ]
    );
    let (code, _, answer) = send(&cluster, "admin", "PATCH", path, label("warn", "loud")).await;
    assert_eq!(code, 422);
    assert!(
        answer["message"].as_str().unwrap().contains(
            "metadata.labels[pod-security.kubernetes.io/warn]: Invalid value: \"loud\": must be one of privileged, baseline, restricted"
        ),
        "{answer}"
    );
    // What runs keeps running, and an update that brings no new image is no new pod.
    let (code, _, answer) =
        send(&cluster, "admin", "PATCH", &format!("{pods}/a"), json!({"metadata": {"labels": {"x": "y"}}})).await;
    assert_eq!(code, 200, "{answer}");
    let image = json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}]);
    let (code, answer) = cluster.send_raw("PATCH", &format!("{pods}/a"), "application/json-patch+json", image).await;
    assert_eq!(code, 403, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_give_defaults_and_exempt() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admission.yaml");
    std::fs::write(
        &file,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: PodSecurity\n  configuration:\n    \
         apiVersion: pod-security.admission.config.k8s.io/v1\n    kind: PodSecurityConfiguration\n    defaults: {enforce: baseline}\n    \
         exemptions: {usernames: [robot], namespaces: [open], runtimeClasses: []}\n",
    )
    .unwrap();
    let cluster = Cluster::with(|config| config.admission_control_config_file = Some(file.clone())).await;
    namespace(&cluster, "shut", &[]).await;
    namespace(&cluster, "open", &[]).await;
    for (namespace, user, code) in [("shut", "ann", 403), ("shut", "robot", 201), ("open", "ann", 201)] {
        let path = format!("/api/v1/namespaces/{namespace}/pods?dryRun=All");
        let (found, _, answer) = send(&cluster, user, "POST", &path, pod("p", json!({"hostIPC": true}))).await;
        assert_eq!(found, code, "{namespace} {user}: {answer}");
    }
    let label = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
    let (_, warnings, _) = send(&cluster, "admin", "PATCH", "/api/v1/namespaces/open", label).await;
    assert_eq!(
        warnings,
        [
            "299 - \"namespace \\\"open\\\" is exempt from Pod Security, and the policy (enforce=restricted:latest) will be ignored\""
        ]
    );
}

//! Every built-in admission plug-in against a real server: what it lets pass, what it refuses, what it changes.

use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::{Value, json};

use crate::harness::Cluster;
use crate::webhook_server::{Reply, WebhookServer};

const PODS: &str = "/api/v1/namespaces/default/pods";

/// A server with these plug-ins on besides the default ones, and an account for pods to run as.
async fn with(plugins: &[&str], change: impl FnOnce(&mut apiserver::Config)) -> Cluster {
    let plugins: Vec<String> = plugins.iter().map(|name| (*name).to_owned()).collect();
    let cluster = Cluster::with(|config| {
        config.enable_admission_plugins = plugins;
        change(config);
    })
    .await;
    account(&cluster, "default").await;
    cluster
}

async fn account(cluster: &Cluster, namespace: &str) {
    let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
    assert_eq!(cluster.send("POST", &accounts, json!({"metadata": {"name": "default"}})).await.0, 201);
}

async fn make(cluster: &Cluster, path: &str, object: Value) -> Value {
    let (code, answer) = cluster.send("POST", path, object).await;
    assert_eq!(code, 201, "{path}: {answer}");
    // A read without a version waits until the server itself has seen the write.
    let name = answer["metadata"]["name"].as_str().unwrap();
    assert_eq!(cluster.send("GET", &format!("{path}/{name}"), Value::Null).await.0, 200);
    answer
}

/// One request and what its answer must say: rows of `(path, body, code, text)`, as a dry run so that they do not
/// disturb each other.
async fn check(cluster: &Cluster, rows: &[(&str, Value, u16, &str)]) {
    for (path, body, code, text) in rows {
        let path = format!("{path}?dryRun=All");
        let (found, answer) = cluster.send("POST", &path, body.clone()).await;
        assert_eq!(found, *code, "{body}: {answer}");
        assert!(answer.to_string().contains(text), "{body}: {answer}");
    }
}

/// A pod with one container; `spec` overrides its fields.
fn pod(spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}});
    pod["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    pod
}

async fn as_user(cluster: &Cluster, user: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
    let response = cluster.request(method, path, "application/json", Bytes::from(body.to_string()), user, &[]).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

/// Walk 2.5.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_are_restricted_and_completed() {
    let cluster = with(
        &[
            "LimitPodHardAntiAffinityTopology",
            "AlwaysPullImages",
            "ExtendedResourceToleration",
            "PodNodeSelector",
            "PodTolerationRestriction",
            "AlwaysAdmit",
        ],
        |_| {},
    )
    .await;
    let annotations = json!({
        "scheduler.alpha.kubernetes.io/node-selector": "zone=a",
        "scheduler.alpha.kubernetes.io/defaultTolerations": "[{\"key\":\"a\",\"operator\":\"Exists\"}]",
        "scheduler.alpha.kubernetes.io/tolerationsWhitelist":
            "[{\"key\":\"a\",\"operator\":\"Exists\"},{\"key\":\"node.kubernetes.io/not-ready\",\"operator\":\"Exists\"},\
              {\"key\":\"node.kubernetes.io/unreachable\",\"operator\":\"Exists\"}]",
    });
    make(&cluster, "/api/v1/namespaces", json!({"metadata": {"name": "held", "annotations": annotations}})).await;
    account(&cluster, "held").await;
    let held = "/api/v1/namespaces/held/pods";
    let away = |key: &str| {
        pod(json!({"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": key, "labelSelector": {}}]}}}))
    };
    let gpu = json!({"containers": [{"name": "c", "image": "i", "resources": {"limits": {"example.com/gpu": "1"}}}]});
    check(
        &cluster,
        &[
            (PODS, away("kubernetes.io/hostname"), 201, ""),
            (PODS, away("zone"), 403, "has TopologyKey zone but only key kubernetes.io/hostname is allowed"),
            (PODS, pod(json!({})), 201, "\"imagePullPolicy\":\"Always\""),
            (PODS, pod(gpu), 201, "{\"effect\":\"NoSchedule\",\"key\":\"example.com/gpu\",\"operator\":\"Exists\"}"),
            (held, pod(json!({})), 201, "\"nodeSelector\":{\"zone\":\"a\"}"),
            (
                held,
                pod(json!({"nodeSelector": {"zone": "b"}})),
                403,
                "conflicts with its namespace node label selector",
            ),
            (held, pod(json!({})), 201, "{\"key\":\"a\",\"operator\":\"Exists\"}"),
            (
                held,
                pod(json!({"tolerations": [{"key": "b", "operator": "Exists"}]})),
                403,
                "conflict with its namespace whitelist",
            ),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn classes_are_looked_up_and_defaulted() {
    let cluster = with(&["DenyServiceExternalIPs"], |_| {}).await;
    let classes = "/apis/node.k8s.io/v1/runtimeclasses";
    make(
        &cluster,
        classes,
        json!({"metadata": {"name": "vm"}, "handler": "vm", "overhead": {"podFixed": {"cpu": "10m", "memory": "1Mi"}},
            "scheduling": {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}}),
    )
    .await;
    let default = |key: &str| json!({key: "true"});
    make(
        &cluster,
        "/apis/storage.k8s.io/v1/storageclasses",
        json!({"metadata": {"name": "gold", "annotations": default("storageclass.kubernetes.io/is-default-class")},
            "provisioner": "p", "allowVolumeExpansion": true}),
    )
    .await;
    make(
        &cluster,
        "/apis/networking.k8s.io/v1/ingressclasses",
        json!({"metadata": {"name": "front", "annotations": default("ingressclass.kubernetes.io/is-default-class")},
            "spec": {"controller": "example.com/c"}}),
    )
    .await;
    make(&cluster, "/apis/scheduling.k8s.io/v1/priorityclasses", json!({"metadata": {"name": "high"}, "value": 100}))
        .await;
    make(
        &cluster,
        "/apis/scheduling.k8s.io/v1/priorityclasses",
        json!({"metadata": {"name": "usual"}, "value": 7, "globalDefault": true}),
    )
    .await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |class: Value| {
        json!({"metadata": {"name": "c"}, "spec": {"storageClassName": class, "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}}}})
    };
    let ingresses = "/apis/networking.k8s.io/v1/namespaces/default/ingresses";
    let backend = json!({"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}});
    let services = "/api/v1/namespaces/default/services";
    let service = |addresses: Value| json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}], "externalIPs": addresses}});
    check(
        &cluster,
        &[
            (PODS, pod(json!({"runtimeClassName": "none"})), 403, "pod rejected: RuntimeClass \\\"none\\\" not found"),
            (PODS, pod(json!({"runtimeClassName": "vm"})), 201, "\"overhead\":{\"cpu\":\"10m\",\"memory\":\"1Mi\"}"),
            (PODS, pod(json!({"runtimeClassName": "vm"})), 201, "\"nodeSelector\":{\"vm\":\"yes\"}"),
            (
                PODS,
                pod(json!({"runtimeClassName": "vm", "nodeSelector": {"vm": "no"}})),
                403,
                "conflict: runtimeClass.scheduling.nodeSelector[vm] = yes; pod.spec.nodeSelector[vm] = no",
            ),
            (PODS, pod(json!({"runtimeClassName": "vm", "overhead": {"cpu": "1"}})), 403, "doesn't match RuntimeClass"),
            (PODS, pod(json!({"overhead": {"cpu": "1"}})), 403, "Pod Overhead set without corresponding RuntimeClass"),
            (PODS, pod(json!({"priorityClassName": "high"})), 201, "\"priority\":100"),
            (PODS, pod(json!({})), 201, "\"priority\":7,\"priorityClassName\":\"usual\""),
            (PODS, pod(json!({"priorityClassName": "none"})), 403, "no PriorityClass with name none was found"),
            (PODS, pod(json!({"priority": 5})), 403, "the integer value of priority (5) must not be provided in pod spec"),
            (
                "/apis/scheduling.k8s.io/v1/priorityclasses",
                json!({"metadata": {"name": "other"}, "value": 1, "globalDefault": true}),
                403,
                "PriorityClass usual is already marked as default. Only one default can exist",
            ),
            (claims, claim(Value::Null), 201, "\"storageClassName\":\"gold\""),
            (claims, claim("".into()), 201, "\"storageClassName\":\"\""),
            (claims, claim(Value::Null), 201, "\"finalizers\":[\"kubernetes.io/pvc-protection\"]"),
            (ingresses, json!({"metadata": {"name": "i"}, "spec": backend}), 201, "\"ingressClassName\":\"front\""),
            (
                ingresses,
                json!({"metadata": {"name": "i", "annotations": {"kubernetes.io/ingress.class": "old"}}, "spec": backend}),
                201,
                "\"defaultBackend\"",
            ),
            (services, service(json!([])), 201, ""),
            (services, service(json!(["192.0.2.1"])), 403, "Use of external IPs is denied by admission control"),
        ],
    )
    .await;
    // Bound claims grow in a class that can.
    make(
        &cluster,
        "/apis/storage.k8s.io/v1/storageclasses",
        json!({"metadata": {"name": "stiff"}, "provisioner": "p"}),
    )
    .await;
    for (class, code, text) in [("gold", 200, ""), ("stiff", 403, "only dynamically provisioned pvc can be resized")] {
        let mut claim = claim(class.into());
        claim["metadata"]["name"] = class.into();
        make(&cluster, claims, claim).await;
        let patch = |path: String, change: Value| {
            let cluster = &cluster;
            async move { cluster.send_raw("PATCH", &path, "application/merge-patch+json", change).await }
        };
        let bound = json!({"status": {"phase": "Bound"}});
        assert_eq!(patch(format!("{claims}/{class}/status"), bound).await.0, 200);
        let grown = json!({"spec": {"resources": {"requests": {"storage": "2Gi"}}}});
        let (found, answer) = patch(format!("{claims}/{class}"), grown).await;
        assert_eq!(found, code, "{class}: {answer:?}");
        assert!(String::from_utf8_lossy(&answer).contains(text), "{class}: {answer:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_are_made_or_must_exist() {
    let map = json!({"metadata": {"name": "m"}});
    let strict = Cluster::start().await;
    let path = "/api/v1/namespaces/nowhere/configmaps";
    assert_eq!(strict.send("POST", path, map.clone()).await.0, 404);
    let (code, answer) = strict.send("DELETE", "/api/v1/namespaces/kube-system", Value::Null).await;
    assert_eq!((code, answer["message"].as_str().unwrap().contains("this namespace may not be deleted")), (403, true));
    let lax = Cluster::with(|config| {
        config.enable_admission_plugins = vec!["NamespaceExists".to_owned()];
        config.disable_admission_plugins = vec!["NamespaceLifecycle".to_owned()];
    })
    .await;
    let (code, answer) = lax.send("POST", path, map.clone()).await;
    assert_eq!((code, &answer["message"]), (404, &json!("namespaces \"nowhere\" not found")));
    let provisioning =
        Cluster::with(|config| config.enable_admission_plugins = vec!["NamespaceAutoProvision".to_owned()]).await;
    assert_eq!(provisioning.send("POST", path, map.clone()).await.0, 201);
    assert_eq!(provisioning.send("GET", "/api/v1/namespaces/nowhere", Value::Null).await.0, 200);
    let denying = Cluster::with(|config| config.enable_admission_plugins = vec!["AlwaysDeny".to_owned()]).await;
    let (code, answer) = denying.send("POST", "/api/v1/namespaces/default/configmaps", map).await;
    assert_eq!((code, answer["message"].as_str().unwrap().contains("denying all modifications")), (403, true));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rights_are_needed_for_owners_and_certificates() {
    let cluster = with(&["OwnerReferencesPermissionEnforcement"], |config| {
        config.authorizers = vec![apiserver::Authorizer::Rbac];
    })
    .await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let rules = json!([
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "update", "patch", "get"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["certificatesigningrequests/approval",
            "certificatesigningrequests/status", "certificatesigningrequests"], "verbs": ["*"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["example.com/mine"],
            "verbs": ["approve", "sign"]},
        {"apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "resourceNames": ["ours.com/*"],
            "verbs": ["approve"]}]);
    make(&cluster, &format!("{rbac}/clusterroles"), json!({"metadata": {"name": "r"}, "rules": rules})).await;
    make(
        &cluster,
        &format!("{rbac}/clusterrolebindings"),
        json!({"metadata": {"name": "b"}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}]}),
    )
    .await;
    let owner = |blocks: bool| json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1", "blockOwnerDeletion": blocks}]);
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = |name: &str, owners: Value| json!({"metadata": {"name": name, "ownerReferences": owners}});
    for (method, path, body, code, text) in [
        ("POST", maps.to_owned(), map("a", json!([])), 201, ""),
        ("POST", maps.to_owned(), map("b", owner(false)), 201, ""),
        ("POST", maps.to_owned(), map("c", owner(true)), 403, "refers to a resource you can't set finalizers on"),
        (
            "PUT",
            format!("{maps}/a"),
            map("a", owner(false)),
            403,
            "cannot set an ownerRef on a resource you can't delete",
        ),
        ("PUT", format!("{maps}/b"), map("b", owner(false)), 200, ""),
    ] {
        let (found, answer) = as_user(&cluster, "ann", method, &path, body.clone()).await;
        assert_eq!(found, code, "{method} {body}: {answer}");
        assert!(answer.to_string().contains(text), "{method} {body}: {answer}");
    }
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = |name: &str, signer: &str, organization: &str| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(rcgen::DnType::OrganizationName, organization);
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        use base64::Engine;
        let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
        json!({"metadata": {"name": name}, "spec": {"signerName": signer, "request": encoded, "usages": ["client auth"]}})
    };
    let client = "kubernetes.io/kube-apiserver-client";
    for (name, signer, organization, code) in [
        ("masters", client, "system:masters", 403),
        ("fine", client, "dev", 201),
        ("mine", "example.com/mine", "system:masters", 201),
        ("ours", "ours.com/x", "dev", 201),
        ("theirs", "example.com/theirs", "dev", 201),
        ("sign-mine", "example.com/mine", "dev", 201),
        ("sign-ours", "ours.com/x", "dev", 201),
    ] {
        let (found, answer) = cluster.send("POST", requests, request(name, signer, organization)).await;
        assert_eq!(found, code, "{name}: {answer}");
    }
    let approved =
        json!({"status": {"conditions": [{"type": "Approved", "status": "True", "reason": "r", "message": "m"}]}});
    let signed =
        json!({"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "r", "message": "m"}]}});
    for (name, subresource, change, code, text) in [
        ("mine", "approval", &approved, 200, ""),
        ("ours", "approval", &approved, 200, ""),
        ("theirs", "approval", &approved, 403, "user not permitted to approve requests with signerName"),
        ("sign-mine", "status", &signed, 200, ""),
        ("sign-ours", "status", &signed, 403, "user not permitted to sign requests with signerName"),
    ] {
        let path = format!("{requests}/{name}/{subresource}");
        let response = cluster
            .request("PATCH", &path, "application/merge-patch+json", Bytes::from(change.to_string()), "ann", &[])
            .await;
        let found = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = String::from_utf8_lossy(&body);
        assert_eq!(found, code, "{name}/{subresource}: {body}");
        assert!(body.contains(text), "{name}/{subresource}: {body}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_and_limits_hold() {
    let cluster = with(&[], |_| {}).await;
    let quotas = "/api/v1/namespaces/default/resourcequotas";
    let quota = |name: &str, spec: Value, used: Value| {
        let hard = spec["hard"].clone();
        (json!({"metadata": {"name": name}, "spec": spec}), json!({"status": {"hard": hard, "used": used}}))
    };
    let make_quota = |(quota, status): (Value, Value)| {
        let cluster = &cluster;
        async move {
            let name = quota["metadata"]["name"].as_str().unwrap().to_owned();
            make(cluster, quotas, quota).await;
            let path = format!("{quotas}/{name}/status");
            let (code, answer) = cluster.send_raw("PATCH", &path, "application/merge-patch+json", status).await;
            assert_eq!(code, 200, "{answer:?}");
            assert_eq!(cluster.send("GET", &format!("{quotas}/{name}"), Value::Null).await.0, 200);
        }
    };
    make_quota(quota(
        "objects",
        json!({"hard": {"configmaps": "10", "services.nodeports": "1"}}),
        json!({"configmaps": "0", "services.nodeports": "0"}),
    ))
    .await;
    make_quota(quota("short", json!({"hard": {"pods": "1"}, "scopes": ["Terminating"]}), json!({"pods": "0"}))).await;
    make_quota(quota(
        "cpu",
        json!({"hard": {"requests.cpu": "1"}, "scopes": ["NotBestEffort"]}),
        json!({"requests.cpu": "0"}),
    ))
    .await;
    // A hundred at once: exactly as many get in as there is room for.
    let maps = "/api/v1/namespaces/default/configmaps";
    let creates = (0..100).map(|i| cluster.send("POST", maps, json!({"metadata": {"name": format!("m{i}")}})));
    let answers = futures_util::future::join_all(creates).await;
    let admitted = answers.iter().filter(|(code, _)| *code == 201).count();
    let refused: Vec<&(u16, Value)> = answers.iter().filter(|(code, _)| *code != 201).collect();
    assert_eq!(admitted, 10);
    assert!(
        refused.iter().all(|(code, answer)| {
            let text = "exceeded quota: objects, requested: configmaps=1, used: configmaps=10, limited: configmaps=10";
            *code == 403 && answer["message"].as_str().unwrap().ends_with(text)
        }),
        "{:?}",
        refused[0]
    );
    let (_, list) = cluster.send("GET", maps, Value::Null).await;
    assert_eq!(list["items"].as_array().unwrap().len(), 10);
    let (_, used) = cluster.send("GET", &format!("{quotas}/objects"), Value::Null).await;
    assert_eq!(used["status"]["used"]["configmaps"], "10");
    // Scopes, containers that say nothing, and updates.
    let sized =
        |cpu: &str| json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]});
    let mut named = pod(json!({"activeDeadlineSeconds": 5}));
    named["metadata"]["name"] = "first".into();
    make(&cluster, PODS, named).await;
    let services = "/api/v1/namespaces/default/services";
    let memory_only =
        json!({"containers": [{"name": "c", "image": "i", "resources": {"requests": {"memory": "1Mi"}}}]});
    check(
        &cluster,
        &[
            (PODS, pod(json!({"activeDeadlineSeconds": 5})), 403, "exceeded quota: short, requested: pods=1, used: pods=1"),
            (PODS, pod(json!({})), 201, ""),
            (PODS, pod(sized("600m")), 201, ""),
            (PODS, pod(sized("2")), 403, "exceeded quota: cpu, requested: requests.cpu=2, used: requests.cpu=0"),
            (PODS, pod(memory_only), 403, "failed quota: cpu: must specify requests.cpu for: c"),
            (
                services,
                json!({"metadata": {"name": "s"}, "spec": {"type": "NodePort", "ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]}}),
                403,
                "exceeded quota: objects, requested: services.nodeports=2",
            ),
        ],
    )
    .await;
    make(
        &cluster,
        services,
        json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 1, "name": "a"}, {"port": 2, "name": "b"}]}}),
    )
    .await;
    let (code, answer) = cluster
        .send_raw(
            "PATCH",
            &format!("{services}/s"),
            "application/merge-patch+json",
            json!({"spec": {"type": "NodePort"}}),
        )
        .await;
    assert_eq!(code, 403, "{answer:?}");
    // Limit ranges complete and bound what pods ask for.
    let ranges = "/api/v1/namespaces/default/limitranges";
    make(
        &cluster,
        ranges,
        json!({"metadata": {"name": "r"}, "spec": {"limits": [{"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "500m"},
            "default": {"cpu": "300m"}, "defaultRequest": {"cpu": "200m"}}]}}),
    )
    .await;
    check(
        &cluster,
        &[
            (
                PODS,
                pod(json!({})),
                201,
                "\"resources\":{\"limits\":{\"cpu\":\"300m\"},\"requests\":{\"cpu\":\"200m\"}}",
            ),
            (
                PODS,
                pod(json!({})),
                201,
                "LimitRanger plugin set: cpu request for container c; cpu limit for container c",
            ),
            // What the defaults make of a pod decides its class.
            (PODS, pod(json!({})), 201, "\"qosClass\":\"Burstable\""),
            (PODS, pod(sized("50m")), 403, "minimum cpu usage per Container is 100m, but request is 50m"),
            (PODS, pod(sized("400m")), 422, "must be less than or equal to cpu limit"),
        ],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("admission.yaml");
    std::fs::write(
        &file,
        "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: EventRateLimit\n  configuration:\n    \
         apiVersion: eventratelimit.admission.k8s.io/v1alpha1\n    kind: Configuration\n    limits:\n    - {type: Namespace, qps: 1, burst: 3}\n",
    )
    .unwrap();
    let cluster = with(&["EventRateLimit"], |config| config.admission_control_config_file = Some(file.clone())).await;
    let event = |i: usize| json!({"metadata": {"name": format!("e{i}")}, "involvedObject": {"namespace": "default"}, "reason": "r", "message": "m"});
    // Together, so that the limit does not recover in between however slow the machine is.
    let sent = (0..100).map(|i| cluster.send("POST", "/api/v1/namespaces/default/events", event(i)));
    let answers = futures_util::future::join_all(sent).await;
    let refused = answers.iter().filter(|(code, _)| *code == 429);
    assert!(refused.clone().all(|(_, answer)| answer["message"] == "limit reached on type Namespace for key default"));
    let codes: Vec<u16> = answers.iter().map(|(code, _)| *code).collect();
    let accepted = codes.iter().filter(|code| **code == 201).count();
    assert!(accepted >= 3 && accepted + refused.count() == codes.len(), "{codes:?}");
    assert!(codes.contains(&429), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_asked_about() {
    let server = WebhookServer::start(|_, review| {
        let image = review["containers"][0]["image"].as_str().unwrap_or_default();
        let status = match image {
            "bad" => json!({"allowed": false, "reason": "not that one"}),
            "odd" => return Reply::Raw(200, "<html>".to_owned()),
            _ => json!({"allowed": true}),
        };
        Reply::Raw(
            200,
            json!({"kind": "ImageReview", "apiVersion": "imagepolicy.k8s.io/v1alpha1", "status": status}).to_string(),
        )
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let kubeconfig = dir.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters:\n- name: c\n  cluster:\n    server: https://{}/review\n    \
         certificate-authority-data: {}\ncontexts:\n- name: c\n  context: {{cluster: c, user: \"\"}}\n",
        server.address, server.authority
    );
    std::fs::write(&kubeconfig, text).unwrap();
    for (default_allow, odd) in [(false, 403), (true, 201)] {
        let file = dir.path().join(format!("admission-{default_allow}.yaml"));
        let text = format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ImagePolicyWebhook\n  configuration:\n    \
             imagePolicy: {{kubeConfigFile: {}, defaultAllow: {default_allow}}}\n",
            kubeconfig.display()
        );
        std::fs::write(&file, text).unwrap();
        let cluster = with(&["ImagePolicyWebhook"], |config| config.admission_control_config_file = Some(file)).await;
        let image = |image: &str| pod(json!({"containers": [{"name": "c", "image": image}]}));
        check(
            &cluster,
            &[
                (PODS, image("good"), 201, ""),
                (PODS, image("bad"), 403, "image policy webhook backend denied one or more images: not that one"),
                (PODS, image("odd"), odd, ""),
            ],
        )
        .await;
        // Remembered: the same question is not put twice.
        let before = server.seen.lock().len();
        check(&cluster, &[(PODS, image("good"), 201, ""), (PODS, image("bad"), 403, "not that one")]).await;
        assert_eq!(server.seen.lock().len(), before);
    }
}

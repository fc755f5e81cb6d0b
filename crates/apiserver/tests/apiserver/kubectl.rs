//! What a user does with kubectl.

use crate::harness::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_goes_through_its_life() {
    let cluster = Cluster::start().await;
    let run = |args: &'static [&'static str]| cluster.kubectl(args);
    assert_eq!(
        run(&["create", "deployment", "web", "--image=nginx", "--replicas=3"]).await.unwrap(),
        "deployment.apps/web created\n"
    );
    assert!(run(&["get", "deployments", "-o", "wide"]).await.unwrap().contains("web"));
    assert_eq!(run(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"]).await.unwrap(), "3");
    run(&["scale", "deployment/web", "--replicas=5"]).await.unwrap();
    assert_eq!(run(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas}"]).await.unwrap(), "5");
    run(&["set", "image", "deployment/web", "nginx=nginx:2"]).await.unwrap();
    run(&["label", "deployment", "web", "tier=front"]).await.unwrap();
    assert!(run(&["get", "deploy", "-l", "tier=front", "-o", "name"]).await.unwrap().contains("deployment.apps/web"));
    run(&["expose", "deployment", "web", "--port=80"]).await.unwrap();
    let address = run(&["get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}"]).await.unwrap();
    assert!(address.starts_with("10.43."), "{address}");
    run(&["delete", "deployment", "web"]).await.unwrap();
    assert!(run(&["get", "deploy", "web"]).await.unwrap_err().contains("NotFound"));
    run(&["get", "all", "-A"]).await.unwrap();
    run(&["api-resources"]).await.unwrap();
    assert!(run(&["version", "-o", "json"]).await.unwrap().contains("\"gitVersion\": \"v1.36"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apply_creates_changes_and_prunes_fields() {
    let cluster = Cluster::start().await;
    let manifest = |data: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata:\n{data}");
    let apply = |text: String| async move { text };
    for (data, expected) in [
        ("  a: \"1\"\n  b: \"2\"\n", "configmap/c created\n"),
        ("  a: \"3\"\n", "configmap/c configured\n"),
        ("  a: \"3\"\n", "configmap/c unchanged\n"),
    ] {
        let text = apply(manifest(data)).await;
        assert_eq!(cluster.kubectl_with(&["apply", "-f", "-"], &text).await.unwrap(), expected);
    }
    let data = cluster.kubectl(&["get", "cm", "c", "-o", "jsonpath={.data}"]).await.unwrap();
    assert_eq!(data, "{\"a\":\"3\"}");
    let wrong = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: d\ndatta: {}\n";
    assert!(cluster.kubectl_with(&["apply", "-f", "-"], wrong).await.unwrap_err().contains("datta"));
    let explained = cluster.kubectl(&["explain", "pod.spec.containers"]).await.unwrap();
    assert!(explained.contains("containers <[]"), "{explained}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_hold_what_is_in_them() {
    let cluster = Cluster::start().await;
    cluster.kubectl(&["create", "namespace", "n"]).await.unwrap();
    cluster.kubectl(&["-n", "n", "create", "configmap", "c", "--from-literal=a=b"]).await.unwrap();
    assert!(
        cluster
            .kubectl(&["-n", "missing", "create", "configmap", "c"])
            .await
            .unwrap_err()
            .contains("namespaces \"missing\" not found")
    );
    cluster.kubectl(&["delete", "namespace", "n", "--wait=false"]).await.unwrap();
    let refused = cluster.kubectl(&["-n", "n", "create", "configmap", "d"]).await.unwrap_err();
    assert!(refused.contains("because it is being terminated"), "{refused}");
    assert!(cluster.kubectl(&["delete", "namespace", "default"]).await.unwrap_err().contains("Forbidden"));
}

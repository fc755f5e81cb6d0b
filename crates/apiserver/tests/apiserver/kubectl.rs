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

/// kubectl first looks into OpenAPI whether the server knows `dryRun`, and refuses by itself if not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dry_runs_are_the_servers() {
    let cluster = Cluster::start().await;
    let manifest = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: c\ndata: {a: b}\n";
    let dry = cluster.kubectl_with(&["apply", "--dry-run=server", "-f", "-"], manifest).await.unwrap();
    assert_eq!(dry, "configmap/c created (server dry run)\n");
    let dry = cluster.kubectl(&["create", "deployment", "web", "--image=i", "--dry-run=server", "-o", "name"]).await;
    assert_eq!(dry.unwrap(), "deployment.apps/web\n");
    for gone in ["configmap/c", "deployment/web"] {
        assert!(cluster.kubectl(&["get", gone]).await.unwrap_err().contains("NotFound"), "{gone}");
    }
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

/// Everything that a manifest can be put through, with an object of every group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_every_group_are_made_changed_and_deleted() {
    let cluster = Cluster::unprotected().await;
    let manifest = include_str!("every_group.yaml");
    let count = manifest.matches("\nkind: ").count();
    let file = cluster.dir.path().join("all.yaml");
    std::fs::write(&file, manifest).unwrap();
    let file = file.to_str().unwrap();
    let run = async |args: &[&str]| cluster.kubectl(args).await.unwrap_or_else(|error| panic!("{args:?}: {error}"));

    let created = run(&["create", "-f", file, "--save-config", "--validate=true"]).await;
    assert_eq!(created.matches(" created\n").count(), count, "{created}");
    let shown = run(&["get", "-f", file, "-o", "wide"]).await;
    assert!(shown.contains("deployment.apps/sample") && shown.contains("CONTAINERS"), "{shown}");
    let applied = run(&["apply", "-f", file]).await;
    assert_eq!(applied.lines().count(), count, "{applied}");
    for name in ["configmap", "service", "pod", "deployment.apps", "job.batch", "ingress.networking.k8s.io"] {
        assert!(applied.contains(&format!("{name}/sample unchanged\n")), "{applied}");
    }
    let applied = run(&["apply", "--server-side", "--force-conflicts", "-f", file]).await;
    assert_eq!(applied.matches(" serverside-applied\n").count(), count, "{applied}");
    let annotated = run(&["annotate", "-f", file, "touched=yes"]).await;
    assert_eq!(annotated.matches(" annotated\n").count(), count, "{annotated}");
    assert_eq!(
        run(&["get", "-f", file, "-o", "jsonpath={.items[*].metadata.annotations.touched}"]).await.len(),
        4 * count - 1
    );

    // A difference is exit code 1 and a text; none is silence.
    let changed = manifest.replace("key: value", "key: changed");
    std::fs::write(cluster.dir.path().join("changed.yaml"), &changed).unwrap();
    let changed = cluster.dir.path().join("changed.yaml");
    let diff = cluster.kubectl_output(&["diff", "-f", changed.to_str().unwrap()], &[]).await;
    assert_eq!(diff.0, 1, "{diff:?}");
    assert!(diff.1.contains("+  key: changed"), "{diff:?}");

    for target in ["deployment/sample", "replicaset/sample", "statefulset/sample", "rc/sample"] {
        run(&["scale", target, "--replicas=4"]).await;
        assert_eq!(run(&["get", target, "-o", "jsonpath={.spec.replicas}"]).await, "4");
    }
    run(&["patch", "cm", "sample", "-p", r#"{"data":{"more":"1"}}"#]).await;
    run(&["patch", "cm", "sample", "--type=json", "-p", r#"[{"op":"remove","path":"/data/more"}]"#]).await;
    let edited = cluster.kubectl_output(&["edit", "cm", "sample"], &[("KUBE_EDITOR", "sed -i s/value/edited/")]).await;
    assert_eq!(edited.0, 0, "{edited:?}");
    assert_eq!(run(&["get", "cm", "sample", "-o", "jsonpath={.data.key}"]).await, "edited");
    for (field, expected) in [
        ("deployment.spec.strategy.rollingUpdate", "maxSurge"),
        ("ingress.spec.rules.http.paths", "pathType"),
        ("cronjob.spec.jobTemplate.spec", "backoffLimit"),
        ("poddisruptionbudget.spec", "minAvailable"),
        ("storageclass", "provisioner"),
        ("hpa.spec.metrics", "containerResource"),
    ] {
        let text = run(&["explain", field]).await;
        assert!(text.contains(expected), "{field}: {text}");
    }
    let deleted = run(&["delete", "-f", file, "--grace-period=0", "--force", "--timeout=30s"]).await;
    assert_eq!(deleted.matches("deleted").count(), count, "{deleted}");
}

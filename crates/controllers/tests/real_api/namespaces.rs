//! Namespaces (conformance area 9): what they begin with, in which order they end, and who may hold them up.

use client::{DeleteParams, Patch};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ResourceQuota};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use serde_json::json;

use crate::harness::{Cluster, template, until_no_conflict};

fn condition<'a>(namespace: &'a Namespace, kind: &str) -> Option<&'a str> {
    let conditions = namespace.status.as_ref()?.conditions.as_ref()?;
    conditions.iter().find(|condition| condition.type_ == kind).map(|condition| condition.status.as_str())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_go_first_and_one_with_a_finalizer_keeps_the_rest() {
    let cluster = Cluster::start(1).await;
    cluster.namespace("ordered").await;
    let mut pod = template("web", "nginx", "Always");
    pod["metadata"]["name"] = json!("held");
    pod["metadata"]["namespace"] = json!("ordered");
    pod["metadata"]["finalizers"] = json!(["example.com/hold"]);
    cluster.apply::<Pod>(pod).await;
    cluster.apply::<ConfigMap>(json!({ "metadata": { "name": "kept", "namespace": "ordered" } })).await;

    let namespaces = cluster.client.all::<Namespace>();
    namespaces.delete("ordered", &DeleteParams::default()).await.unwrap();
    cluster.until::<Pod>("ordered", "held", "deleted", |pod| pod.metadata.deletion_timestamp.is_some()).await;
    let namespace = cluster
        .until::<Namespace>("", "ordered", "held up by its content", |namespace| {
            condition(namespace, "NamespaceFinalizersRemaining") == Some("True")
        })
        .await;
    for kind in [
        "NamespaceDeletionDiscoveryFailure",
        "NamespaceDeletionGroupVersionParsingFailure",
        "NamespaceDeletionContentFailure",
    ] {
        assert_eq!(condition(&namespace, kind), Some("False"), "{kind}");
    }
    assert_eq!(condition(&namespace, "NamespaceContentRemaining"), Some("True"));
    assert_eq!(namespace.status.unwrap().phase.as_deref(), Some("Terminating"));
    assert!(cluster.client.namespaced::<ConfigMap>("ordered").get_opt("kept").await.unwrap().is_some());

    let free = Patch::merge(json!({ "metadata": { "finalizers": null } }));
    cluster.client.namespaced::<Pod>("ordered").patch("held", &free).await.unwrap();
    cluster.until_gone::<Namespace>("", "ordered").await;

    // The same name is a new namespace, with nothing of the old one.
    cluster.namespace("ordered").await;
    assert!(cluster.list::<Pod>("ordered").await.is_empty());
    assert!(cluster.client.namespaced::<ConfigMap>("ordered").get_opt("kept").await.unwrap().is_none());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_finalizer_of_its_own_holds_a_namespace_until_it_is_taken_back() {
    let cluster = Cluster::start(0).await;
    let made = cluster.namespace("held").await;
    assert_eq!(made.metadata.labels.as_ref().unwrap()["kubernetes.io/metadata.name"], "held");
    assert_eq!(made.spec.as_ref().unwrap().finalizers.as_deref(), Some(&["kubernetes".to_owned()][..]));
    assert_eq!(made.status.as_ref().unwrap().phase.as_deref(), Some("Active"));

    let api = cluster.client.all::<Namespace>();
    let held: Namespace = until_no_conflict(async || {
        let mut held = api.get("held").await?;
        held.spec.get_or_insert_default().finalizers.get_or_insert_default().push("example.com/hold".into());
        api.update_subresource("held", "finalize", &held).await
    })
    .await;
    assert_eq!(held.spec.unwrap().finalizers.unwrap().len(), 2);
    api.delete("held", &DeleteParams::default()).await.unwrap();
    cluster
        .until::<Namespace>("", "held", "empty", |namespace| {
            namespace.spec.as_ref().unwrap().finalizers.as_deref() == Some(&["example.com/hold".to_owned()][..])
        })
        .await;
    let _: Namespace = until_no_conflict(async || {
        let mut waiting = api.get("held").await?;
        waiting.spec.as_mut().unwrap().finalizers = None;
        api.update_subresource("held", "finalize", &waiting).await
    })
    .await;
    cluster.until_gone::<Namespace>("", "held").await;
    cluster.stop().await;
}

/// A server behind the API server is away: its group cannot be asked, and nobody knows whether the namespace is empty.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_whose_server_is_away_holds_up_its_namespace_and_nothing_else() {
    let cluster = Cluster::start(0).await;
    let service = json!({ "metadata": { "name": "v1.away.example.com" }, "spec": { "group": "away.example.com",
        "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10, "insecureSkipTLSVerify": true,
        "service": { "namespace": "default", "name": "away" } } });
    cluster.apply::<APIService>(service).await;
    cluster
        .until::<APIService>("", "v1.away.example.com", "unavailable", |service| {
            let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
            conditions.is_some_and(|list| list.iter().any(|condition| condition.status == "False"))
        })
        .await;
    cluster.namespace("half").await;
    let hard = json!({ "configmaps": "7", "count/things.away.example.com": "3" });
    cluster
        .apply::<ResourceQuota>(json!({ "metadata": { "name": "q", "namespace": "half" }, "spec": { "hard": hard } }))
        .await;
    cluster
        .until::<ResourceQuota>("half", "q", "counted", |quota| {
            quota.status.as_ref().is_some_and(|status| status.used.is_some())
        })
        .await;
    let owner = json!({ "metadata": { "name": "owner", "namespace": "half" } });
    let uid = cluster.apply::<ConfigMap>(owner).await.metadata.uid.unwrap();
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid });
    let owned = json!({ "metadata": { "name": "owned", "namespace": "half", "ownerReferences": [owner] } });
    cluster.apply::<ConfigMap>(owned).await;
    let maps = cluster.client.namespaced::<ConfigMap>("half");
    maps.delete("owner", &DeleteParams::background()).await.unwrap();
    cluster.until_gone::<ConfigMap>("half", "owned").await;

    cluster.apply::<ConfigMap>(json!({ "metadata": { "name": "rest", "namespace": "half" } })).await;
    cluster.client.all::<Namespace>().delete("half", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<ConfigMap>("half", "rest").await;
    cluster
        .until::<Namespace>("", "half", "held up by what cannot be asked", |namespace| {
            condition(namespace, "NamespaceDeletionDiscoveryFailure") == Some("True")
        })
        .await;
    cluster.client.all::<APIService>().delete("v1.away.example.com", &DeleteParams::default()).await.unwrap();
    cluster.until_gone::<Namespace>("", "half").await;
    cluster.stop().await;
}

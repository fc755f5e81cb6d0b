//! Disruption budgets and eviction (conformance area 22).

use client::{Gvr, Patch};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

use crate::harness::{Cluster, deployment, is_rolled_out, patiently, template};

fn status(budget: &PodDisruptionBudget) -> Option<(i32, i32, i32, i32)> {
    let status = budget.status.as_ref()?;
    (status.observed_generation == budget.metadata.generation).then_some(())?;
    Some((status.current_healthy?, status.desired_healthy?, status.expected_pods?, status.disruptions_allowed?))
}

async fn evict(cluster: &Cluster, pod: &str) -> Result<Value, client::Error> {
    let body =
        json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod, "namespace": "default" } });
    cluster.client.namespaced::<Pod>("default").create_subresource(pod, "eviction", &body).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_counts_and_holds_evictions_back() {
    let cluster = Cluster::start(2).await;
    cluster.apply::<Deployment>(deployment("web", 3)).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 3)).await;
    cluster
        .apply::<PodDisruptionBudget>(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": { "minAvailable": 3, "selector": { "matchLabels": { "app": "web" } } },
        }))
        .await;
    let until = async |what: &str, wanted: (i32, i32, i32, i32)| {
        cluster.until::<PodDisruptionBudget>("default", "web", what, |budget| status(budget) == Some(wanted)).await
    };
    let budget = until("counted", (3, 3, 3, 0)).await;
    let allowed = |budget: &PodDisruptionBudget| {
        let conditions = budget.status.clone().unwrap().conditions.unwrap();
        let found = conditions.into_iter().find(|condition| condition.type_ == "DisruptionAllowed").unwrap();
        (found.status, found.reason)
    };
    assert_eq!(allowed(&budget), ("False".into(), "InsufficientPods".into()));

    // Not while the budget is used up.
    let pods = cluster.list::<Pod>("default").await;
    let first = pods[0].metadata.name.clone().unwrap();
    let refused = evict(&cluster, &first).await.unwrap_err();
    assert_eq!(refused.code(), Some(429));
    assert!(refused.to_string().contains("disruption budget"), "{refused}");

    // Room for one.
    let api = cluster.client.namespaced::<PodDisruptionBudget>("default");
    api.patch("web", &Patch::merge(json!({ "spec": { "minAvailable": 2 } }))).await.unwrap();
    let budget = until("roomier", (3, 2, 3, 1)).await;
    assert_eq!(allowed(&budget), ("True".into(), "SufficientPods".into()));

    // A share of what controllers want: a pod that is adopted later counts from then on.
    let labels = json!({ "app": "lone" });
    let spec = template("lone", "nginx:1", "Always")["spec"].clone();
    let meta = json!({ "name": "lone", "namespace": "default", "labels": labels });
    cluster.apply::<Pod>(json!({ "metadata": meta, "spec": spec })).await;
    let until = async |what: &str, wanted: i32| {
        cluster
            .until::<PodDisruptionBudget>("default", "lone", what, |budget| {
                status(budget).is_some_and(|(healthy, _, expected, _)| (healthy, expected) == (1, wanted))
            })
            .await
    };
    cluster
        .apply::<PodDisruptionBudget>(json!({
            "metadata": { "name": "lone", "namespace": "default" },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels } },
        }))
        .await;
    until("without a controller", 0).await;
    cluster
        .apply::<ReplicaSet>(json!({
            "metadata": { "name": "lone", "namespace": "default" },
            "spec": { "replicas": 1, "selector": { "matchLabels": labels }, "template": template("lone", "nginx:1", "Always") },
        }))
        .await;
    until("adopted", 1).await;
    a_budget_of_a_kind_that_others_define(&cluster).await;
    cluster.stop().await;
}

/// Whatever can be scaled says how many pods there should be.
async fn a_budget_of_a_kind_that_others_define(cluster: &Cluster) {
    let schema = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let scale = json!({ "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas" });
    cluster
        .apply::<CustomResourceDefinition>(json!({
            "metadata": { "name": "crews.example.com" },
            "spec": { "group": "example.com", "scope": "Namespaced", "names": { "plural": "crews", "kind": "Crew" },
                "versions": [{ "name": "v1", "served": true, "storage": true, "subresources": { "scale": scale, "status": {} },
                    "schema": { "openAPIV3Schema": schema } }] },
        }))
        .await;
    let crews = cluster.client.dynamic(&Gvr::new("example.com", "v1", "crews"), Some("default"));
    let crew = json!({ "apiVersion": "example.com/v1", "kind": "Crew", "metadata": { "name": "crew" },
        "spec": { "replicas": 3 } });
    let crew = patiently(async || crews.create(&crew).await.ok()).await.expect("the kind is served");
    let owner = json!({ "apiVersion": "example.com/v1", "kind": "Crew", "name": "crew", "controller": true,
        "uid": crew["metadata"]["uid"] });
    let labels = json!({ "app": "crew" });
    cluster
        .apply::<Pod>(json!({
            "metadata": { "name": "crew-0", "namespace": "default", "labels": labels, "ownerReferences": [owner] },
            "spec": template("crew", "nginx:1", "Always")["spec"],
        }))
        .await;
    cluster
        .apply::<PodDisruptionBudget>(json!({
            "metadata": { "name": "crew", "namespace": "default" },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": labels } },
        }))
        .await;
    let is_counted = |budget: &PodDisruptionBudget| {
        status(budget).is_some_and(|(_, desired, expected, _)| (desired, expected) == (2, 3))
    };
    cluster.until::<PodDisruptionBudget>("default", "crew", "counted by its scale", is_counted).await;
}

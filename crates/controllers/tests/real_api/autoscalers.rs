//! Autoscalers find their targets and say what they see of them.

use client::{Gvr, Patch};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::json;

use crate::harness::{Cluster, deployment, patiently};

fn is(scaler: &HorizontalPodAutoscaler, kind: &str, reason: &str) -> bool {
    let conditions = scaler.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == kind && condition.reason.as_deref() == Some(reason))
}

/// The reference names a version that is not served any more; a target of size zero is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_target_is_found_in_any_version_and_old_values_go() {
    let cluster = Cluster::start(0).await;
    cluster.apply::<Deployment>(deployment("web", 0)).await;
    cluster
        .apply::<HorizontalPodAutoscaler>(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": { "scaleTargetRef": { "apiVersion": "apps/v1beta2", "kind": "Deployment", "name": "web" },
                "maxReplicas": 3 },
        }))
        .await;
    let is_disabled = |scaler: &HorizontalPodAutoscaler| {
        is(scaler, "AbleToScale", "SucceededGetScale") && is(scaler, "ScalingActive", "ScalingDisabled")
    };
    cluster.until::<HorizontalPodAutoscaler>("default", "web", "found its target", is_disabled).await;

    let api = cluster.client.namespaced::<HorizontalPodAutoscaler>("default");
    let value = json!([{ "type": "Resource",
        "resource": { "name": "cpu", "current": { "averageUtilization": 50, "averageValue": "5m" } } }]);
    api.patch_status("web", &Patch::merge(json!({ "status": { "currentMetrics": value } }))).await.unwrap();
    api.patch("web", &Patch::merge(json!({ "spec": { "maxReplicas": 4 } }))).await.unwrap();
    let is_empty = |scaler: &HorizontalPodAutoscaler| {
        scaler.status.as_ref().is_some_and(|status| status.current_metrics.as_ref().is_none_or(Vec::is_empty))
    };
    cluster.until::<HorizontalPodAutoscaler>("default", "web", "without old values", is_empty).await;
    cluster.stop().await;
}

/// Objects of a kind that anybody may write take the place of an adapter: what they say is no number until it is one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn security_an_adapter_that_talks_nonsense_scales_nothing() {
    let cluster = Cluster::start(0).await;
    let (group, version) = ("external.metrics.k8s.io", "v1beta1");
    cluster
        .apply::<CustomResourceDefinition>(json!({
            "metadata": { "name": format!("orders.{group}"),
                "annotations": { "api-approved.kubernetes.io": "unapproved, for a test" } },
            "spec": { "group": group, "scope": "Namespaced", "names": { "plural": "orders", "kind": "Order" },
                "versions": [{ "name": version, "served": true, "storage": true, "schema": { "openAPIV3Schema":
                    { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }] },
        }))
        .await;
    let orders = cluster.client.dynamic(&Gvr::new(group, version, "orders"), Some("default"));
    let nonsense = json!({ "apiVersion": format!("{group}/{version}"), "kind": "Order", "metadata": { "name": "a" },
        "value": "lots", "timestamp": "now", "metricName": "\"} 1\nevil 7" });
    let made = patiently(async || orders.create(&nonsense).await.ok());
    made.await.expect("the kind is served");
    cluster.apply::<Deployment>(deployment("web", 2)).await;
    cluster
        .until::<Deployment>("default", "web", "has pods", |web| {
            web.status.as_ref().is_some_and(|status| status.replicas == Some(2))
        })
        .await;
    let metric = json!({ "type": "External", "external": { "metric": { "name": "orders" },
        "target": { "type": "AverageValue", "averageValue": "1" } } });
    cluster
        .apply::<HorizontalPodAutoscaler>(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": { "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "web" },
                "minReplicas": 1, "maxReplicas": 10, "metrics": [metric] },
        }))
        .await;
    let failed = |scaler: &HorizontalPodAutoscaler| is(scaler, "ScalingActive", "FailedGetExternalMetric");
    cluster.until::<HorizontalPodAutoscaler>("default", "web", "has seen nonsense", failed).await;
    let scaler = cluster.client.namespaced::<HorizontalPodAutoscaler>("default").get("web").await.unwrap();
    let active = scaler.status.unwrap().conditions.unwrap().into_iter().find(|one| one.type_ == "ScalingActive");
    let message = active.and_then(|active| active.message).unwrap();
    let expected = "the HPA was unable to compute the replica count: unable to get external metric default/orders/nil: \
        unable to fetch metrics from external metrics API: ";
    assert!(message.starts_with(expected), "{message}");
    let web = cluster.client.namespaced::<Deployment>("default").get("web").await.unwrap();
    assert_eq!(web.spec.unwrap().replicas, Some(2));

    let sense = json!({ "value": "40", "timestamp": "2026-01-01T00:00:00Z" });
    orders.patch("a", &Patch::merge(sense)).await.unwrap();
    cluster
        .until::<Deployment>("default", "web", "grown", |web| {
            web.spec.as_ref().and_then(|spec| spec.replicas).is_some_and(|replicas| replicas > 2)
        })
        .await;

    // To zero and back: what is measured elsewhere says so while there is no pod. A change of the autoscaler is a look.
    let scalers = cluster.client.namespaced::<HorizontalPodAutoscaler>("default");
    orders.patch("a", &Patch::merge(json!({ "value": "0" }))).await.unwrap();
    let at_once = json!({ "scaleDown": { "stabilizationWindowSeconds": 0 } });
    scalers.patch("web", &Patch::merge(json!({ "spec": { "minReplicas": 0, "behavior": at_once } }))).await.unwrap();
    let replicas = |web: &Deployment| web.spec.as_ref().and_then(|spec| spec.replicas);
    cluster.until::<Deployment>("default", "web", "gone to zero", |web| replicas(web) == Some(0)).await;
    let told = |scaler: &HorizontalPodAutoscaler| is(scaler, "ScaledToZero", "ScaledToZero");
    cluster.until::<HorizontalPodAutoscaler>("default", "web", "said so", told).await;
    orders.patch("a", &Patch::merge(json!({ "value": "3" }))).await.unwrap();
    scalers.patch("web", &Patch::merge(json!({ "spec": { "maxReplicas": 9 } }))).await.unwrap();
    cluster.until::<Deployment>("default", "web", "come back", |web| replicas(web) == Some(3)).await;
    let told = |scaler: &HorizontalPodAutoscaler| is(scaler, "ScaledToZero", "NotScaledToZero");
    cluster.until::<HorizontalPodAutoscaler>("default", "web", "said so", told).await;
    cluster.stop().await;
}

//! Autoscalers find their targets and say what they see of them.

use client::Patch;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use serde_json::json;

use crate::harness::{Cluster, deployment};

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

//! Who may read `metrics.k8s.io`: everyone who may view pods, as where a metrics-server is installed.

use anyhow::{Context, Result};
use client::Client;
use k8s_openapi::api::rbac::v1::ClusterRole;
use serde_json::json;

/// Makes the role if it is not there; one that someone changed stays as it is.
pub(crate) async fn ensure(client: &Client) -> Result<()> {
    let role = json!({
        "metadata": {
            "name": "system:aggregated-metrics-reader",
            "labels": {
                "rbac.authorization.k8s.io/aggregate-to-admin": "true",
                "rbac.authorization.k8s.io/aggregate-to-edit": "true",
                "rbac.authorization.k8s.io/aggregate-to-view": "true",
            },
        },
        "rules": [{"apiGroups": ["metrics.k8s.io"], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}],
    });
    let role: ClusterRole = api::codec::from_value(&role).context("the role that reads metrics")?;
    match client.all::<ClusterRole>().create(&role).await {
        Err(error) if !error.is_already_exists() => Err(error).context("making the role that reads metrics"),
        _ => Ok(()),
    }
}

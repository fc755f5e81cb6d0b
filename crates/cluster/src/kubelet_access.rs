//! What API servers may do at kubelets, for `logs`, `exec` and everything else that they pass on.

use anyhow::Result;
use client::Client;
use serde_json::json;

use crate::role::{self, Binding};

/// As whom API servers ask kubelets. No more than that: its key is no administrator's.
pub(crate) const USER: &str = "kube-apiserver-kubelet-client";

pub(crate) async fn ensure(client: &Client) -> Result<()> {
    let binding = Binding {
        name: "cox:kubelet-api-admin",
        whose: "API servers at kubelets",
        role: "system:kubelet-api-admin",
        subjects: json!([{"apiGroup": role::GROUP, "kind": "User", "name": USER}]),
    };
    role::bind(client, binding).await
}

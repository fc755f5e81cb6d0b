//! What API servers may do at kubelets, for `logs`, `exec` and everything else that they pass on.

use std::time::Duration;

use anyhow::Result;
use client::{Client, Informer, InformerFactory, ListParams};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::role::{self, Binding};
use crate::turns::Turns;

/// As whom API servers ask kubelets. No more than that: its key is no administrator's.
pub(crate) const USER: &str = "kube-apiserver-kubelet-client";
const BINDING: &str = "cox:kubelet-api-admin";
/// Between looks at the binding that nothing asks for.
const LOOK_INTERVAL: Duration = Duration::from_secs(600);

pub(crate) async fn ensure(client: &Client) -> Result<()> {
    let binding = Binding {
        name: BINDING,
        whose: "API servers at kubelets",
        role: "system:kubelet-api-admin",
        subjects: json!([{"apiGroup": role::GROUP, "kind": "User", "name": USER}]),
    };
    role::bind(client, binding).await
}

/// Keeps the binding until `stop`: without it nobody sees a log, and it may have been refused or deleted.
pub(crate) async fn keep(client: Client, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(client.clone());
    let field = format!("metadata.name={BINDING}");
    let bindings: Informer<ClusterRoleBinding> = informers.filtered(ListParams::fields(field));
    let (changed, changes) = watch::channel(());
    bindings.subscribe(move |_| changed.send_replace(()));
    informers.start(stop.child_token());
    let mut turns = Turns::new(changes, stop);
    loop {
        turns.begin();
        let written = ensure(&client).await;
        if let Err(error) = &written {
            tracing::warn!("{error:#}");
        }
        if !turns.next_within(LOOK_INTERVAL, written.is_err()).await? {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use client::DeleteParams;

    use super::*;

    #[tokio::test(flavor = "multi_thread")]
    async fn the_binding_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let admin = crate::test_server::start(dir.path()).await;
        let bindings = admin.all::<ClusterRoleBinding>();
        let stop = CancellationToken::new();
        let keeping = tokio::spawn(keep(admin.clone(), stop.clone()));
        let mut uids = Vec::new();
        for _ in 0..3 {
            let found = loop {
                match bindings.get_opt(BINDING).await.unwrap() {
                    Some(found) if found.metadata.deletion_timestamp.is_none() => break found,
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            };
            assert_eq!(found.role_ref.name, "system:kubelet-api-admin");
            assert_eq!(found.subjects.unwrap()[0].name, USER);
            uids.extend(found.metadata.uid);
            bindings.delete(BINDING, &DeleteParams::default()).await.unwrap();
        }
        assert!(uids.len() == 3 && uids[0] != uids[1] && uids[1] != uids[2], "{uids:?}");
        stop.cancel();
        keeping.await.unwrap().unwrap();
    }
}

//! Two managers: one leads, and when it dies in the middle of its work the other goes on.

use std::time::Duration;

use client::{Durations, Election, Patch};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use crate::harness::{Cluster, deployment, is_rolled_out};

const LEASE: &str = "kube-controller-manager";

fn candidate(cluster: &Cluster, identity: &str) -> controllers::Config {
    // Long enough that a busy machine does not take the lead from the first.
    let durations = Durations {
        lease: Duration::from_secs(15),
        renew_deadline: Duration::from_secs(12),
        retry_period: Duration::from_millis(500),
    };
    let election =
        Election { namespace: "kube-system".into(), name: LEASE.into(), identity: identity.into(), durations };
    controllers::Config { election: Some(election), ..cluster.manager() }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}

/// Walk 5.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_manager_takes_over() {
    let mut cluster = Cluster::without_manager(3).await;
    let first = tokio::spawn(controllers::run(candidate(&cluster, "first"), cluster.stop.clone()));
    cluster.until::<Lease>("kube-system", LEASE, "held", |lease| holder(lease) == Some("first")).await;
    let second = candidate(&cluster, "second");
    cluster.spawn(controllers::run(second, cluster.stop.clone()));
    cluster.apply::<Deployment>(deployment("web", 5)).await;
    cluster.until::<Deployment>("default", "web", "available", |found| is_rolled_out(found, 5)).await;

    // Work is under way when the leader dies without a word.
    let api = cluster.client.namespaced::<Deployment>("default");
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": 60 } }))).await.unwrap();
    first.abort();
    assert!(first.await.unwrap_err().is_cancelled());
    let lease =
        cluster.until::<Lease>("kube-system", LEASE, "taken over", |lease| holder(lease) == Some("second")).await;
    assert_eq!(lease.spec.unwrap().lease_transitions, Some(1));
    cluster.until::<Deployment>("default", "web", "scaled", |found| is_rolled_out(found, 60)).await;
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 1);
    assert_eq!(cluster.list::<Pod>("default").await.len(), 60, "no pod twice");
    cluster.stop().await;
}

//! Nodes come and go, another scheduler takes pods away, and ours is restarted: nothing is over-committed, no hard
//! constraint is broken, and no pod is left that could run.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use client::{DeleteParams, ListParams};
use k8s_openapi::api::core::v1::{Node, Pod};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{Cluster, cpu, node_name, offers};

const PODS: usize = 120;
const NODES: usize = 8;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_over_committed() {
    let mut cluster = Cluster::start().await;
    let mut dice = StdRng::seed_from_u64(7);
    for at in 0..NODES {
        cluster.node(&format!("n{at}"), offers("4")).await;
    }
    for at in 0..PODS {
        // Small ones, ones that must not meet on a node, and some that the rival may take.
        let apart = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
            {"labelSelector": {"matchLabels": {"apart": "yes"}}, "topologyKey": "kubernetes.io/hostname"}]}});
        let (labels, spec) = match at % 10 {
            0 if at < 50 => (json!({"apart": "yes"}), json!({"containers": cpu("100m"), "affinity": apart})),
            1 | 2 => (json!({"free": "yes"}), json!({"containers": [{"name": "c", "image": "i"}]})),
            _ => (json!({}), json!({"containers": cpu("200m")})),
        };
        let metadata = json!({"name": format!("p{at}"), "namespace": "default", "labels": labels});
        let pod: Pod = serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap();
        cluster.client.namespaced::<Pod>("default").create(&pod).await.unwrap();
        match at {
            30 | 90 => {
                cluster.stop_scheduler().await;
                cluster.start_scheduler();
            }
            _ if at % 15 == 7 => lose_a_node(&cluster, &mut dice, at).await,
            _ if at % 5 == 3 => rival(&cluster, &mut dice).await,
            _ => {}
        }
    }
    let settled = async {
        loop {
            let pods = pods(&cluster).await;
            check(&pods);
            if pods.iter().all(|pod| node_name(pod).is_some()) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(240), settled).await.expect("every pod gets a node");
    cluster.stop_scheduler().await;
}

async fn pods(cluster: &Cluster) -> Vec<Pod> {
    cluster.client.namespaced::<Pod>("default").list(&ListParams::default()).await.unwrap().items
}

/// A node goes with its pods, and another comes.
async fn lose_a_node(cluster: &Cluster, dice: &mut StdRng, at: usize) {
    let nodes = cluster.client.all::<Node>().list(&ListParams::default()).await.unwrap().items;
    let gone = nodes[dice.random_range(0..nodes.len())].metadata.name.clone().unwrap();
    cluster.client.all::<Node>().delete(&gone, &DeleteParams::default()).await.unwrap();
    cluster.node(&format!("late{at}"), offers("4")).await;
    let api = cluster.client.namespaced::<Pod>("default");
    for pod in pods(cluster).await {
        if node_name(&pod) == Some(&gone) {
            let name = pod.metadata.name.unwrap();
            api.delete(&name, &DeleteParams::default().with_grace_period(0)).await.unwrap();
        }
    }
}

/// Another scheduler binds a pod that we have not yet bound, or try to right now.
async fn rival(cluster: &Cluster, dice: &mut StdRng) {
    let nodes = cluster.client.all::<Node>().list(&ListParams::default()).await.unwrap().items;
    let node = nodes[dice.random_range(0..nodes.len())].metadata.name.clone().unwrap();
    let free = pods(cluster).await.into_iter().find(|pod| {
        node_name(pod).is_none() && pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("free"))
    });
    if let Some(pod) = free {
        let name = pod.metadata.name.unwrap();
        let binding = json!({"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        // Whoever comes second gets a conflict; both outcomes are right.
        let api = cluster.client.namespaced::<Pod>("default");
        let _ = api.create_subresource::<_, Value>(&name, "binding", &binding).await;
    }
}

/// What must hold at every moment.
fn check(pods: &[Pod]) {
    let mut milli: BTreeMap<&str, i64> = BTreeMap::new();
    let mut apart: BTreeSet<&str> = BTreeSet::new();
    for pod in pods {
        let Some(node) = node_name(pod) else { continue };
        let request = pod.spec.as_ref().unwrap().containers[0].resources.as_ref();
        let request = request.and_then(|resources| resources.requests.as_ref()?.get("cpu")).map(|cpu| cpu.0.as_str());
        *milli.entry(node).or_default() += match request {
            Some("200m") => 200,
            Some("100m") => 100,
            _ => 0,
        };
        if pod.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key("apart")) {
            assert!(apart.insert(node), "two pods that must not meet are on {node}");
        }
    }
    for (node, milli) in milli {
        assert!(milli <= 4000, "{node} has {milli}m of 4000m");
    }
}

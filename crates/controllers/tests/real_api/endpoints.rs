//! Endpoints that people write, beside those that are made for them.

use k8s_openapi::api::core::v1::{Endpoints, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently};

fn written(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default" },
        "subsets": [{ "addresses": [{ "ip": "10.1.2.3" }], "ports": [{ "port": 80 }] }],
    })
}

/// Endpoints without a Service (for a Service that comes later, or as a lock) belong to who wrote them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_without_a_service_stay() {
    let cluster = Cluster::start(0).await;
    cluster.namespace("settled").await;
    let mine = cluster.apply::<Endpoints>(written("mine")).await;
    // Their mirror shows that the controllers have seen the first.
    let service =
        json!({ "metadata": { "name": "seen", "namespace": "default" }, "spec": { "ports": [{ "port": 80 }] } });
    cluster.apply::<Endpoints>(written("seen")).await;
    let mirrored = async || {
        let slices = cluster.list::<EndpointSlice>("default").await;
        let of = |slice: &EndpointSlice| slice.metadata.generate_name.as_deref() == Some("seen-");
        slices.iter().any(of).then_some(())
    };
    cluster.apply::<Service>(service).await;
    patiently(mirrored).await.expect("a mirror of Endpoints that were there before their Service");
    for round in 0..20 {
        let name = format!("later-{round}");
        cluster.apply::<Endpoints>(written(&name)).await;
    }
    // A Service that goes takes its Endpoints along; once these are gone, the controller has seen all others.
    cluster.client.namespaced::<Service>("default").delete("seen", &client::DeleteParams::default()).await.unwrap();
    let gone = async || {
        let all = cluster.list::<Endpoints>("default").await;
        (!all.iter().any(|one| one.metadata.name.as_deref() == Some("seen"))).then_some(all)
    };
    let left = patiently(gone).await.expect("the Endpoints of a deleted Service go");
    assert!(left.iter().any(|one| one.metadata.uid == mine.metadata.uid), "{left:?}");
    let later = left.iter().filter(|one| one.metadata.name.as_deref().is_some_and(|name| name.starts_with("later-")));
    assert_eq!(later.count(), 20);
    cluster.stop().await;
}

//! The whole manager against the real API server in one process, with RBAC on: each controller has only its own rights.

#![allow(clippy::unwrap_used, reason = "tests")]

mod hollow;

use std::sync::Arc;
use std::time::Duration;

use apiserver::{Server, Storage};
use client::kubeconfig::{AuthInfo, Cluster as KubeCluster, Kubeconfig, Overrides};
use client::{Client, DeleteParams, ListParams, Patch, Resource};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

struct Cluster {
    client: Client,
    url: String,
    dir: tempfile::TempDir,
    stop: CancellationToken,
    tasks: tokio::task::JoinSet<()>,
}

impl Cluster {
    async fn start(nodes: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let certificate = rcgen::generate_simple_self_signed(vec!["127.0.0.1".into()]).unwrap();
        std::fs::write(path("tls.crt"), certificate.cert.pem()).unwrap();
        std::fs::write(path("tls.key"), certificate.signing_key.serialize_pem()).unwrap();
        std::fs::write(path("tokens.csv"), "secret,admin,1,system:masters\n").unwrap();
        let mut config = apiserver::Config::new(Storage::Embedded(path("store")));
        config.bind = "127.0.0.1:0".parse().unwrap();
        config.tls_cert_file = Some(path("tls.crt"));
        config.tls_private_key_file = Some(path("tls.key"));
        config.token_auth_file = Some(path("tokens.csv"));
        config.authorization_modes = vec!["RBAC".into()];
        let server = Server::new(config).await.unwrap();
        let url = format!("https://{}", server.address());
        let handler = server.handler();
        let as_user =
            |name: &str, groups: &[&str]| Client::in_process(handler.clone(), api::UserInfo::new(name, groups));
        let client = as_user("admin", &["system:masters"]);
        let stop = CancellationToken::new();
        let mut tasks = tokio::task::JoinSet::new();
        {
            let stop = stop.clone();
            tasks.spawn(async move { server.serve(stop).await.unwrap() });
        }
        let manager = as_user("system:kube-controller-manager", &["system:authenticated"]);
        let mut config = controllers::Config::new(manager).with_cluster_cidr("10.42.0.0/16").unwrap();
        config.root_ca = Some("PEM".into());
        {
            let stop = stop.clone();
            tasks.spawn(async move { controllers::run(config, stop).await.unwrap() });
        }
        hollow::register(&client, nodes).await;
        tasks.spawn(hollow::run(client.clone(), nodes.len(), stop.clone()));
        Self { client, url, dir, stop, tasks }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        tokio::time::timeout(Duration::from_secs(20), ended).await.expect("everything ends when told to");
    }

    async fn apply<K: Resource>(&self, object: Value) -> K {
        let object: K = serde_json::from_value(object).unwrap();
        self.client.all::<K>().create(&object).await.unwrap_or_else(|error| panic!("{}: {error}", K::KIND))
    }

    async fn list<K: Resource>(&self, namespace: &str) -> Vec<K> {
        self.client.namespaced::<K>(namespace).list(&ListParams::default()).await.unwrap().items
    }

    /// Waits until what the API says about `name` satisfies `done`.
    async fn until<K: Resource>(&self, namespace: &str, name: &str, what: &str, done: impl Fn(&K) -> bool) -> K {
        let api = self.client.namespaced::<K>(namespace);
        let mut last = None;
        for _ in 0..600 {
            if let Some(object) = api.get_opt(name).await.unwrap() {
                if done(&object) {
                    return object;
                }
                last = Some(object);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let pods: Vec<String> = self
            .list::<Pod>(namespace)
            .await
            .iter()
            .map(|pod| {
                format!("{:?} {:?}", pod.metadata.name, pod.status.as_ref().and_then(|status| status.phase.clone()))
            })
            .collect();
        panic!("{} {name} never {what}: {}\npods {pods:?}", K::KIND, serde_json::to_string_pretty(&last).unwrap());
    }

    async fn until_none<K: Resource>(&self, namespace: &str) {
        for _ in 0..600 {
            if self.list::<K>(namespace).await.is_empty() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{} left: {}", K::KIND, serde_json::to_string_pretty(&self.list::<K>(namespace).await).unwrap());
    }
}

fn template(app: &str, image: &str, restart: &str) -> Value {
    json!({ "metadata": { "labels": { "app": app } }, "spec": { "restartPolicy": restart, "containers": [{ "name": "c", "image": image, "ports": [{ "containerPort": 80 }] }] } })
}

fn deployment(replicas: i32) -> Value {
    json!({
        "metadata": { "name": "web", "namespace": "default" },
        "spec": { "replicas": replicas, "selector": { "matchLabels": { "app": "web" } }, "template": template("web", "nginx:1", "Always") },
    })
}

fn is_rolled_out(deployment: &Deployment, replicas: i32) -> bool {
    let status = deployment.status.clone().unwrap_or_default();
    status.observed_generation == deployment.metadata.generation
        && [status.replicas, status.updated_replicas, status.available_replicas]
            .iter()
            .all(|count| count.unwrap_or_default() == replicas)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_walk_of_a_deployment() {
    let cluster = Cluster::start(&["node-0", "node-1", "node-2"]).await;
    cluster.apply::<Deployment>(deployment(3)).await;
    cluster.apply::<Service>(json!({ "metadata": { "name": "web", "namespace": "default" }, "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] } })).await;
    let up =
        cluster.until::<Deployment>("default", "web", "available", |deployment| is_rolled_out(deployment, 3)).await;
    assert_eq!(up.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "1");

    // Endpoints follow the pods.
    let count = |endpoints: &Endpoints| {
        endpoints.subsets.iter().flatten().map(|subset| subset.addresses.as_ref().map_or(0, Vec::len)).sum::<usize>()
    };
    cluster.until::<Endpoints>("default", "web", "3 addresses", |endpoints| count(endpoints) == 3).await;
    let slices = cluster
        .client
        .namespaced::<EndpointSlice>("default")
        .list(&ListParams::labels("kubernetes.io/service-name=web"))
        .await
        .unwrap()
        .items;
    assert_eq!(slices.len(), 1);
    assert_eq!(slices[0].endpoints.as_ref().map(Vec::len), Some(3));

    // Scale, roll, roll back.
    let api = cluster.client.namespaced::<Deployment>("default");
    api.patch("web", &Patch::merge(json!({ "spec": { "replicas": 10 } }))).await.unwrap();
    cluster.until::<Deployment>("default", "web", "scaled", |deployment| is_rolled_out(deployment, 10)).await;
    api.patch(
        "web",
        &Patch::strategic(
            json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "nginx:2" }] } } } }),
        ),
    )
    .await
    .unwrap();
    cluster.until::<Deployment>("default", "web", "rolled", |deployment| is_rolled_out(deployment, 10)).await;
    let images: std::collections::BTreeSet<_> = cluster
        .list::<Pod>("default")
        .await
        .iter()
        .filter(|pod| pod.metadata.deletion_timestamp.is_none())
        .filter_map(|pod| pod.spec.as_ref()?.containers[0].image.clone())
        .collect();
    assert_eq!(images.into_iter().collect::<Vec<_>>(), ["nginx:2"]);
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2);
    api.patch(
        "web",
        &Patch::strategic(
            json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "nginx:1" }] } } } }),
        ),
    )
    .await
    .unwrap();
    let back =
        cluster.until::<Deployment>("default", "web", "rolled back", |deployment| is_rolled_out(deployment, 10)).await;
    assert_eq!(back.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "3");
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2, "the first ReplicaSet is used again");

    // Gone, with all that belongs to it, dependents first.
    api.delete("web", &DeleteParams::foreground()).await.unwrap();
    cluster.until_none::<Deployment>("default").await;
    assert!(cluster.list::<ReplicaSet>("default").await.is_empty());
    cluster.until_none::<Pod>("default").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn namespaces_nodes_and_the_other_workloads() {
    let cluster = Cluster::start(&["node-0", "node-1", "node-2"]).await;
    cluster.apply::<Namespace>(json!({ "metadata": { "name": "team" } })).await;
    cluster.until::<ServiceAccount>("team", "default", "there", |_| true).await;
    let map = cluster.until::<ConfigMap>("team", "kube-root-ca.crt", "there", |_| true).await;
    assert_eq!(map.data.unwrap()["ca.crt"], "PEM");
    let mut ranges = std::collections::BTreeSet::new();
    for node in ["node-0", "node-1", "node-2"] {
        let node = cluster
            .until::<Node>("", node, "given a range", |node| {
                node.spec.as_ref().is_some_and(|spec| spec.pod_cidr.is_some())
            })
            .await;
        ranges.insert(node.spec.unwrap().pod_cidr.unwrap());
    }
    assert_eq!(ranges.into_iter().collect::<Vec<_>>(), ["10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24"]);

    cluster.apply::<Job>(json!({ "metadata": { "name": "sum", "namespace": "team" }, "spec": { "completions": 4, "parallelism": 2, "template": template("sum", "i", "Never") } })).await;
    let job = cluster
        .until::<Job>("team", "sum", "complete", |job| {
            job.status.as_ref().is_some_and(|status| status.completion_time.is_some())
        })
        .await;
    assert_eq!(job.status.unwrap().succeeded, Some(4));

    let set = json!({ "metadata": { "name": "db", "namespace": "team" }, "spec": { "replicas": 3, "serviceName": "db", "selector": { "matchLabels": { "app": "db" } }, "template": template("db", "i", "Always") } });
    cluster.apply::<StatefulSet>(set).await;
    cluster
        .until::<StatefulSet>("team", "db", "ready", |set| {
            set.status.as_ref().is_some_and(|status| status.ready_replicas == Some(3))
        })
        .await;
    let mut names: Vec<_> = cluster
        .client
        .namespaced::<Pod>("team")
        .list(&ListParams::labels("app=db"))
        .await
        .unwrap()
        .items
        .into_iter()
        .filter_map(|pod| pod.metadata.name)
        .collect();
    names.sort();
    assert_eq!(names, ["db-0", "db-1", "db-2"]);
    cluster
        .client
        .namespaced::<StatefulSet>("team")
        .patch(
            "db",
            &Patch::strategic(
                json!({ "spec": { "template": { "spec": { "containers": [{ "name": "c", "image": "j" }] } } } }),
            ),
        )
        .await
        .unwrap();
    cluster
        .until::<StatefulSet>("team", "db", "updated", |set| {
            let status = set.status.clone().unwrap_or_default();
            status.observed_generation == set.metadata.generation
                && status.updated_replicas == Some(3)
                && status.current_revision == status.update_revision
                && status.ready_replicas == Some(3)
        })
        .await;

    let set = json!({ "metadata": { "name": "agent", "namespace": "team" }, "spec": { "selector": { "matchLabels": { "app": "agent" } }, "template": template("agent", "i", "Always") } });
    cluster.apply::<DaemonSet>(set).await;
    cluster
        .until::<DaemonSet>("team", "agent", "everywhere", |set| {
            set.status.as_ref().is_some_and(|status| status.number_ready == 3 && status.desired_number_scheduled == 3)
        })
        .await;

    cluster.client.all::<Namespace>().delete("team", &DeleteParams::default()).await.unwrap();
    for _ in 0..600 {
        if cluster.client.all::<Namespace>().get_opt("team").await.unwrap().is_none() {
            assert!(cluster.list::<Pod>("team").await.is_empty());
            return cluster.stop().await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!(
        "namespace left: {}",
        serde_json::to_string_pretty(&cluster.client.all::<Namespace>().get("team").await.unwrap()).unwrap()
    );
}

/// The same verbs and watches over HTTPS.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_over_https() {
    let cluster = Cluster::start(&["node-0"]).await;
    let config = Kubeconfig::single(
        "t",
        KubeCluster {
            server: Some(cluster.url.clone()),
            certificate_authority: Some(cluster.dir.path().join("tls.crt").display().to_string()),
            ..KubeCluster::default()
        },
        AuthInfo { token: Some("secret".into()), ..AuthInfo::default() },
        None,
    );
    let client = Client::from_kubeconfig(&config, &Overrides::default()).unwrap();
    let informers = client::InformerFactory::new(client.clone());
    let maps = informers.informer::<ConfigMap>();
    let seen = Arc::new(tokio::sync::Notify::new());
    let notify = seen.clone();
    maps.subscribe(move |event| {
        if event.object().metadata.name.as_deref() == Some("hello") {
            notify.notify_one();
        }
    });
    informers.start(cluster.stop.clone());
    tokio::time::timeout(Duration::from_secs(10), maps.synced()).await.unwrap();
    let map: ConfigMap =
        serde_json::from_value(json!({ "metadata": { "name": "hello" }, "data": { "a": "b" } })).unwrap();
    client.namespaced::<ConfigMap>("default").create(&map).await.unwrap();
    tokio::time::timeout(Duration::from_secs(10), seen.notified()).await.unwrap();
    assert_eq!(maps.get("default/hello").unwrap().data.as_ref().unwrap()["a"], "b");
    assert!(client.namespaced::<ConfigMap>("default").get("absent").await.unwrap_err().is_not_found());
    let wrong = AuthInfo { token: Some("wrong".into()), ..AuthInfo::default() };
    let stranger = Kubeconfig::single("t", config.clusters[0].cluster.clone(), wrong, None);
    let error = Client::from_kubeconfig(&stranger, &Overrides::default())
        .unwrap()
        .namespaced::<ConfigMap>("default")
        .get("hello")
        .await
        .unwrap_err();
    assert_eq!(error.code(), Some(401));
    let untrusted = Kubeconfig::single(
        "t",
        KubeCluster { server: Some(cluster.url.clone()), ..KubeCluster::default() },
        AuthInfo::default(),
        None,
    );
    assert!(
        Client::from_kubeconfig(&untrusted, &Overrides::default())
            .unwrap()
            .get_json::<Value>("/version")
            .await
            .is_err()
    );
    cluster.stop().await;
}

//! Caches that are late: each informer follows the server on its own, and whatever one of them misses for a while, decisions
//! that were taken meanwhile are taken again.

use std::sync::Arc;

use client::{Body, BoxError, Client, Handler};
use futures_util::{StreamExt, stream};
use http::{Request, Response};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Endpoints, Node, Pod, ReplicationController, ResourceQuota, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::harness::{Cluster, WAIT_TIMEOUT, patiently, until_no_conflict};

/// Holds the watch events of one collection back while it is closed.
pub(crate) struct Gate {
    open: watch::Sender<bool>,
    seen: watch::Receiver<u64>,
}

impl Gate {
    /// A manager's client that sees the watches of `path` through the gate, and everything else as it is.
    pub(crate) fn new(cluster: &Cluster, path: &'static str) -> (Self, Client) {
        let (sender, open) = watch::channel(true);
        let (reached, seen) = watch::channel(0);
        let (server, reached) = (cluster.handler.clone(), Arc::new(reached));
        let handler: Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default();
            let held = query.contains("watch=true") && request.uri().path() == path;
            let held = held.then(|| Held {
                open: open.clone(),
                seen: reached.clone(),
                has_list: !query.contains("sendInitialEvents=true"),
                version: version(query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="))),
            });
            let answer = server(request);
            Box::pin(async move {
                match held {
                    Some(held) => hold(answer.await, held),
                    None => answer.await,
                }
            })
        });
        let user = api::UserInfo::new("system:kube-controller-manager", &["system:authenticated"]);
        (Self { open: sender, seen }, Client::in_process(handler, user))
    }

    pub(crate) fn close(&self) {
        self.open.send_replace(false);
    }

    /// Closes the gate behind this version of an object: an informer has it.
    async fn close_behind(&self, object: &ObjectMeta) {
        self.until_seen(version(object.resource_version.as_deref())).await;
        self.close();
    }

    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }

    /// Waits until an informer of the collection has listed it and has seen this version.
    async fn until_seen(&self, version: u64) {
        let mut seen = self.seen.clone();
        let reached = tokio::time::timeout(WAIT_TIMEOUT, seen.wait_for(|seen| *seen >= version)).await;
        assert!(reached.is_ok_and(|seen| seen.is_ok()), "no informer of the collection has seen version {version}");
    }
}

/// One watch through the gate.
struct Held {
    open: watch::Receiver<bool>,
    /// The version up to which an informer's cache shows everything; zero before it has listed.
    seen: Arc<watch::Sender<u64>>,
    /// It was listed before, or the end of the initial events has come.
    has_list: bool,
    version: u64,
}

impl Held {
    /// Who asks for the next frame has dealt with those before it.
    fn asked_for_more(&self) {
        if self.has_list {
            self.seen.send_if_modified(|seen| {
                let is_news = *seen < self.version;
                *seen = (*seen).max(self.version);
                is_news
            });
        }
    }

    /// Notes what is handed over. Frames consist of whole lines.
    fn hands_over(&mut self, data: &[u8]) {
        for line in data.split(|byte| *byte == b'\n') {
            let Ok(event) = serde_json::from_slice::<Value>(line) else { continue };
            let metadata = &event["object"]["metadata"];
            self.version = self.version.max(version(metadata["resourceVersion"].as_str()));
            self.has_list |= metadata["annotations"]["k8s.io/initial-events-end"] == "true";
        }
    }
}

fn version(text: Option<&str>) -> u64 {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

fn hold(response: Response<Body>, held: Held) -> Response<Body> {
    response.map(|body| {
        let frames = stream::unfold((BodyStream::new(body), held), |(mut frames, mut held)| async move {
            held.asked_for_more();
            let mut frame = frames.next().await?;
            if let Err(closed) = held.open.wait_for(|open| *open).await.map(drop) {
                frame = Err(BoxError::from(closed));
            }
            if let Some(data) = frame.as_ref().ok().and_then(|frame| frame.data_ref()) {
                held.hands_over(data);
            }
            Some((frame, (frames, held)))
        });
        StreamBody::new(frames).boxed_unsync()
    })
}

/// A control plane whose manager watches `path` through a gate. Pods can be made in the namespace `default`, and the
/// collection has been listed: the gate keeps back what changes, never what there is.
pub(crate) async fn start(path: &'static str, nodes: usize) -> (Cluster, Gate) {
    let mut cluster = Cluster::without_manager(nodes).await;
    let (gate, client) = Gate::new(&cluster, path);
    let config = controllers::Config { client, ..cluster.manager() };
    cluster.spawn(controllers::run(config, cluster.stop.clone()));
    cluster.until_pods_can_be_made().await;
    gate.until_seen(1).await;
    (cluster, gate)
}

fn used(quota: &ResourceQuota, name: &str) -> Option<Quantity> {
    quota.status.as_ref()?.used.as_ref()?.get(name).cloned()
}

async fn until_used(cluster: &Cluster, namespace: &str, name: &str, amount: &str) {
    let wanted = Some(Quantity(amount.to_owned()));
    cluster
        .until::<ResourceQuota>(namespace, "q", &format!("uses {amount} {name}"), |quota| used(quota, name) == wanted)
        .await;
}

async fn quota(cluster: &Cluster, namespace: &str, hard: serde_json::Value) {
    let quota = json!({ "metadata": { "name": "q", "namespace": namespace }, "spec": { "hard": hard } });
    cluster.apply::<ResourceQuota>(quota).await;
}

/// An object that its cache shows only after the quota was counted is counted then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_counts_what_a_late_cache_brings() {
    let (cluster, gate) = start("/api/v1/configmaps", 0).await;
    for namespace in ["first", "second"] {
        cluster.namespace(namespace).await;
        cluster.until::<ConfigMap>(namespace, "kube-root-ca.crt", "published", |_| true).await;
    }
    quota(&cluster, "first", json!({ "configmaps": "5" })).await;
    until_used(&cluster, "first", "configmaps", "1").await;
    gate.close();
    cluster.apply::<ConfigMap>(json!({ "metadata": { "name": "late", "namespace": "second" } })).await;
    quota(&cluster, "second", json!({ "configmaps": "5" })).await;
    until_used(&cluster, "second", "configmaps", "1").await;
    gate.open();
    until_used(&cluster, "second", "configmaps", "2").await;
    cluster.stop().await;
}

/// Admission has charged an object to the quota, and it is gone again, before the controller sees the charge.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quota_is_right_though_its_own_cache_is_late() {
    let (cluster, gate) = start("/api/v1/resourcequotas", 0).await;
    cluster.namespace("busy").await;
    cluster.until::<ConfigMap>("busy", "kube-root-ca.crt", "published", |_| true).await;
    quota(&cluster, "busy", json!({ "configmaps": "5", "resourcequotas": "5" })).await;
    until_used(&cluster, "busy", "configmaps", "1").await;
    until_used(&cluster, "busy", "resourcequotas", "1").await;
    gate.close();
    let maps = cluster.client.namespaced::<ConfigMap>("busy");
    cluster.apply::<ConfigMap>(json!({ "metadata": { "name": "brief", "namespace": "busy" } })).await;
    until_used(&cluster, "busy", "configmaps", "2").await;
    maps.delete("brief", &client::DeleteParams::default()).await.unwrap();
    until_used(&cluster, "busy", "configmaps", "1").await;
    gate.open();
    cluster.stop().await;
}

/// A pod that is ready on `node`, with an address, as its kubelet would write it.
async fn ready_pod(cluster: &Cluster, name: &str, node: &str) {
    let pod = json!({
        "metadata": { "name": name, "namespace": "default", "labels": { "app": "web" } },
        "spec": { "nodeName": node, "containers": [{ "name": "c", "image": "nginx:1" }] },
    });
    cluster.apply::<Pod>(pod).await;
    set_ready(cluster, name, true).await;
}

async fn set_ready(cluster: &Cluster, name: &str, ready: bool) {
    let ready = if ready { "True" } else { "False" };
    let status = json!({
        "phase": "Running", "podIP": "10.42.0.9", "podIPs": [{ "ip": "10.42.0.9" }],
        "conditions": [{ "type": "Ready", "status": ready }],
    });
    let patch = client::Patch::strategic(json!({ "status": status }));
    let api = cluster.client.namespaced::<Pod>("default");
    until_no_conflict(async || api.patch_status(name, &patch).await).await;
}

async fn service(cluster: &Cluster) {
    cluster
        .apply::<Service>(json!({
            "metadata": { "name": "web", "namespace": "default" },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80 }] },
        }))
        .await;
}

/// The zone of an endpoint is that of its node, however late the node is seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_get_the_zone_of_a_node_that_is_seen_late() {
    let (cluster, gate) = start("/api/v1/nodes", 0).await;
    cluster.namespace("settled").await;
    gate.close();
    let labels = json!({ "topology.kubernetes.io/zone": "east" });
    cluster.apply::<Node>(json!({ "metadata": { "name": "late", "labels": labels } })).await;
    service(&cluster).await;
    ready_pod(&cluster, "web-0", "late").await;
    let zones = async || {
        let slices = cluster.list::<EndpointSlice>("default").await;
        let mine = slices.iter().filter(|slice| {
            slice.metadata.labels.as_ref().is_some_and(|labels| labels["kubernetes.io/service-name"] == "web")
        });
        mine.flat_map(|slice| slice.endpoints.iter().flatten().map(|endpoint| endpoint.zone.clone()))
            .collect::<Vec<_>>()
    };
    patiently(async || (zones().await == [None]).then_some(())).await.expect("an endpoint without a zone");
    gate.open();
    patiently(async || (zones().await == [Some("east".to_owned())]).then_some(())).await.expect("the zone");
    cluster.stop().await;
}

/// What was decided on Endpoints of which a newer version was on its way is looked at again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_follow_a_pod_though_their_own_cache_is_late() {
    let (cluster, gate) = start("/api/v1/endpoints", 0).await;
    cluster.namespace("settled").await;
    cluster.apply::<Node>(json!({ "metadata": { "name": "node" } })).await;
    service(&cluster).await;
    ready_pod(&cluster, "web-0", "node").await;
    set_ready(&cluster, "web-0", false).await;
    let is_ready = |endpoints: &Endpoints| {
        endpoints.subsets.iter().flatten().any(|subset| subset.addresses.as_ref().is_some_and(|all| !all.is_empty()))
    };
    let not_ready = |endpoints: &Endpoints| !is_ready(endpoints) && endpoints.subsets.is_some();
    let written = cluster.until::<Endpoints>("default", "web", "has an address that is not ready", not_ready).await;
    gate.close_behind(&written.metadata).await;
    set_ready(&cluster, "web-0", true).await;
    cluster.until::<Endpoints>("default", "web", "is ready", is_ready).await;
    set_ready(&cluster, "web-0", false).await;
    // The other representation has no gate: once it follows, the controllers have seen the pod.
    patiently(async || {
        let slices = cluster.list::<EndpointSlice>("default").await;
        let endpoints: Vec<_> = slices
            .iter()
            .filter(|slice| slice.metadata.name.as_deref().is_some_and(|name| name.starts_with("web-")))
            .flat_map(|slice| slice.endpoints.iter().flatten())
            .map(|endpoint| endpoint.conditions.as_ref().and_then(|conditions| conditions.ready))
            .collect();
        (endpoints == [Some(false)]).then_some(())
    })
    .await
    .expect("a slice that follows");
    gate.open();
    cluster.until::<Endpoints>("default", "web", "is not ready", not_ready).await;
    cluster.stop().await;
}

/// Endpoints are not taken for those of a Service that is gone because the cache does not show the Service yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_of_a_service_that_is_seen_late_stay() {
    let (cluster, gate) = start("/api/v1/services", 0).await;
    cluster.namespace("settled").await;
    let spec = json!({ "selector": { "app": "none" }, "ports": [{ "port": 80 }] });
    cluster.apply::<Service>(json!({ "metadata": { "name": "first", "namespace": "default" }, "spec": spec })).await;
    // A controller that is at work has full caches.
    cluster.until::<Endpoints>("default", "first", "made", |_| true).await;
    gate.close();
    service(&cluster).await;
    let labels = json!({ "endpoints.kubernetes.io/managed-by": "endpoint-controller" });
    let made = async |name: &str| {
        let metadata = json!({ "name": name, "namespace": "default", "labels": labels });
        cluster.apply::<Endpoints>(json!({ "metadata": metadata })).await
    };
    let web = made("web").await;
    // Those of no Service go. Once these have, the ones before them were looked at.
    made("free").await;
    cluster.until_gone::<Endpoints>("default", "free").await;
    let found = cluster.client.namespaced::<Endpoints>("default").get("web").await.unwrap();
    assert_eq!(found.metadata.uid, web.metadata.uid);
    gate.open();
    cluster.stop().await;
}

fn has_finalizer(pod: &Pod) -> bool {
    pod.metadata.finalizers.as_ref().is_some_and(|finalizers| !finalizers.is_empty())
}

/// A pod as the manager before this one made it for a Job. A pod that nobody holds is never counted.
async fn job_pod(cluster: &Cluster, name: &str, job: &str, uid: &str) {
    let owner = json!({
        "apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": uid, "controller": true,
    });
    let labels = json!({ "batch.kubernetes.io/controller-uid": uid, "batch.kubernetes.io/job-name": job });
    let pod = json!({
        "metadata": {
            "name": name, "namespace": "default", "labels": labels, "ownerReferences": [owner],
            "finalizers": ["batch.kubernetes.io/job-tracking"],
        },
        "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "nginx:1" }] },
    });
    cluster.apply::<Pod>(pod).await;
}

/// A pod of a Job that the cache does not show yet is not taken for one that nobody counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_a_job_that_is_seen_late_are_counted() {
    let (cluster, gate) = start("/apis/batch/v1/jobs", 0).await;
    cluster.namespace("settled").await;
    let template = json!({ "spec": { "restartPolicy": "Never", "containers": [{ "name": "c", "image": "nginx:1" }] } });
    // A controller that is at work has full caches.
    let spec = json!({ "suspend": true, "template": template });
    cluster.apply::<Job>(json!({ "metadata": { "name": "first", "namespace": "settled" }, "spec": spec })).await;
    let is_suspended = |job: &Job| job.status.as_ref().is_some_and(|status| status.conditions.is_some());
    cluster.until::<Job>("settled", "first", "is suspended", is_suspended).await;
    gate.close();
    let job = json!({ "metadata": { "name": "late", "namespace": "default" }, "spec": { "template": template } });
    let job = cluster.apply::<Job>(job).await;
    job_pod(&cluster, "counted", "late", job.metadata.uid.as_deref().unwrap()).await;
    // Pods of Jobs that are not there are let go: once this one is, the one before it was looked at.
    job_pod(&cluster, "free", "none", "no-such-uid").await;
    let is_let_go = async || {
        let pod = cluster.client.namespaced::<Pod>("default").get_opt("free").await.unwrap();
        pod.is_none_or(|pod| !has_finalizer(&pod)).then_some(())
    };
    patiently(is_let_go).await.expect("let go");
    gate.open();
    let is_active = |job: &Job| job.status.as_ref().and_then(|status| status.active) == Some(1);
    cluster.until::<Job>("default", "late", "counts its pod", is_active).await;
    let pods = cluster.list::<Pod>("default").await;
    let held: Vec<_> = pods.iter().filter(|pod| has_finalizer(pod)).map(|pod| pod.metadata.name.as_deref()).collect();
    assert_eq!(held, [Some("counted")]);
    cluster.stop().await;
}

/// A range of Service addresses is not let go while an address of it is in use that the cache does not show yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_range_stays_for_an_address_that_is_seen_late() {
    let (cluster, gate) = start("/apis/networking.k8s.io/v1/ipaddresses", 0).await;
    let range = json!({ "metadata": { "name": "more" }, "spec": { "cidrs": ["10.77.0.0/24"] } });
    cluster.apply::<ServiceCIDR>(range).await;
    let ready = |range: &ServiceCIDR| {
        let mut conditions = range.status.iter().flat_map(|status| status.conditions.iter().flatten());
        conditions.find(|condition| condition.type_ == "Ready").map(|condition| condition.status.clone())
    };
    cluster.until::<ServiceCIDR>("", "more", "is ready", |range| ready(range).as_deref() == Some("True")).await;
    gate.close();
    let parent = json!({ "resource": "services", "namespace": "default", "name": "web" });
    cluster.apply::<IPAddress>(json!({ "metadata": { "name": "10.77.0.5" }, "spec": { "parentRef": parent } })).await;
    let api = cluster.client.all::<ServiceCIDR>();
    api.delete("more", &client::DeleteParams::default()).await.unwrap();
    cluster.until::<ServiceCIDR>("", "more", "is in use", |range| ready(range).as_deref() == Some("False")).await;
    gate.open();
    cluster.client.all::<IPAddress>().delete("10.77.0.5", &client::DeleteParams::default()).await.unwrap();
    cluster.until_gone::<ServiceCIDR>("", "more").await;
    cluster.stop().await;
}

/// Pods that the collector has not seen when their controller is deleted without them stay all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_are_seen_late_outlive_an_owner_that_leaves_them() {
    let (cluster, gate) = start("/api/v1/pods", 0).await;
    cluster.namespace("settled").await;
    let labels = json!({ "app": "web" });
    let spec = json!({ "containers": [{ "name": "c", "image": "nginx:1" }] });
    let template = json!({ "metadata": { "labels": labels }, "spec": spec });
    let controller = async |namespace: &str, replicas: i32| {
        let spec = json!({ "replicas": replicas, "selector": labels, "template": template });
        let controller = json!({ "metadata": { "name": "web", "namespace": namespace }, "spec": spec });
        cluster.apply::<ReplicationController>(controller).await;
    };
    // A controller that has counted its pods has full caches.
    controller("settled", 1).await;
    let has_counted =
        |controller: &ReplicationController| controller.status.as_ref().is_some_and(|status| status.replicas == 1);
    cluster.until::<ReplicationController>("settled", "web", "has a pod", has_counted).await;
    gate.close();
    controller("default", 2).await;
    let owned = async || {
        let pods = cluster.list::<Pod>("default").await;
        pods.iter().map(|pod| pod.metadata.owner_references.as_ref().map_or(0, Vec::len)).collect::<Vec<_>>()
    };
    patiently(async || (owned().await == [1, 1]).then_some(())).await.expect("two pods");
    let api = cluster.client.namespaced::<ReplicationController>("default");
    api.delete("web", &client::DeleteParams::orphan()).await.unwrap();
    cluster.until_gone::<ReplicationController>("default", "web").await;
    assert_eq!(owned().await, [0, 0]);
    gate.open();
    cluster.stop().await;
}

//! Conformance area 23: scheduler, preemption, taints. One test for each of the suite's, on hollow nodes.

use std::collections::BTreeMap;

use client::{ListParams, Patch, WatchEvent};
use futures_util::StreamExt;
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::{Event, Node, Pod, ServiceAccount};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use serde_json::{Value, json};

use crate::harness::{Cluster, patiently};

/// An extended resource that tests give their nodes.
const FOO: &str = "scheduling.k8s.io/foo";

/// A container that asks for so much of a resource.
fn asks(resource: &str, amount: &str) -> Value {
    let amount = json!({ resource: amount });
    json!([{ "name": "c", "image": "pause", "resources": { "requests": amount, "limits": amount } }])
}

fn on(node: &str) -> Value {
    json!({ "kubernetes.io/hostname": node })
}

fn node_of(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}

fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

fn condition<'a>(pod: &'a Pod, kind: &str) -> Option<(&'a str, &'a str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let found = conditions.iter().find(|condition| condition.type_ == kind)?;
    Some((&found.status, found.reason.as_deref().unwrap_or_default()))
}

fn is_unschedulable(pod: &Pod) -> bool {
    condition(pod, "PodScheduled") == Some(("False", "Unschedulable"))
}

/// A cluster whose nodes are open, and whose namespaces take pods.
async fn with_nodes(nodes: usize) -> Cluster {
    let cluster = Cluster::start(nodes).await;
    for namespace in ["default", "kube-system"] {
        cluster.until::<ServiceAccount>(namespace, "default", "there", |_| true).await;
    }
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    for at in 0..nodes {
        cluster.until::<Node>("", &format!("node-{at}"), "untainted", |node| taints(node).is_empty()).await;
    }
    cluster
}

impl Cluster {
    async fn pod(&self, name: &str, spec: Value) -> Pod {
        self.pod_in("default", name, spec).await
    }

    async fn pod_in(&self, namespace: &str, name: &str, mut spec: Value) -> Pod {
        if spec["containers"].is_null() {
            spec["containers"] = json!([{ "name": "c", "image": "pause" }]);
        }
        self.apply(json!({ "metadata": { "name": name, "namespace": namespace }, "spec": spec })).await
    }

    async fn running(&self, name: &str) -> Pod {
        let is_running =
            |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.phase.as_deref() == Some("Running"));
        self.until::<Pod>("default", name, "running", is_running).await
    }

    /// Waits until the scheduler has said that there is no place for the pod, in these words. It may have tried before it saw
    /// all that the test has done to nodes, and then tries again.
    async fn refused(&self, name: &str, words: &str) {
        self.until::<Pod>("default", name, "refused", is_unschedulable).await;
        self.said(name, "FailedScheduling", words).await;
    }

    async fn said(&self, pod: &str, reason: &str, words: &str) {
        let messages = async || {
            let of_pod = |event: &Event| {
                event.involved_object.name.as_deref() == Some(pod) && event.reason.as_deref() == Some(reason)
            };
            let events = self.list::<Event>("default").await.into_iter().filter(of_pod);
            events.filter_map(|event| event.message).collect::<Vec<_>>()
        };
        let is_said = async || messages().await.iter().any(|message| message.contains(words)).then_some(());
        if patiently(is_said).await.is_none() {
            panic!("no {words:?} in {reason} of {pod}: {:?}", messages().await);
        }
    }

    /// Gives a node an extended resource, as conformance tests do.
    async fn provide(&self, node: &str, resource: &str, amount: &str) {
        let amount = json!({ resource: amount });
        let status = json!({ "status": { "capacity": amount, "allocatable": amount } });
        self.client.all::<Node>().patch_status(node, &Patch::merge(status)).await.unwrap();
    }

    async fn priority(&self, name: &str, value: i32) {
        self.apply::<PriorityClass>(json!({ "metadata": { "name": name }, "value": value })).await;
    }

    async fn taint(&self, node: &str, taints: Value) {
        self.client.all::<Node>().patch(node, &Patch::merge(json!({ "spec": { "taints": taints } }))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn should_have_at_least_two_untainted_nodes() {
    with_nodes(2).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_resource_limits_of_pods_that_are_allowed_to_run() {
    let cluster = with_nodes(2).await;
    // Seven tenths of each node are filled, so half a node is nowhere left.
    for node in ["node-0", "node-1"] {
        let filler = json!({ "containers": asks("cpu", "700"), "nodeSelector": on(node) });
        cluster.pod(&format!("filler-{node}"), filler).await;
        cluster.running(&format!("filler-{node}")).await;
    }
    cluster.pod("additional", json!({ "containers": asks("cpu", "500") })).await;
    cluster.refused("additional", "0/2 nodes are available: 2 Insufficient cpu.").await;
    cluster.said("filler-node-0", "Scheduled", "Successfully assigned default/filler-node-0 to node-0").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_that_node_selector_is_respected_if_not_matching() {
    let cluster = with_nodes(2).await;
    cluster.pod("restricted", json!({ "nodeSelector": { "label": "nonempty" } })).await;
    cluster.refused("restricted", "2 node(s) didn't match Pod's node affinity/selector").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_that_node_selector_is_respected_if_matching() {
    let cluster = with_nodes(2).await;
    let label = json!({ "metadata": { "labels": { "kubernetes.io/e2e-42": "42" } } });
    cluster.client.all::<Node>().patch("node-1", &Patch::merge(label)).await.unwrap();
    cluster.pod("with-labels", json!({ "nodeSelector": { "kubernetes.io/e2e-42": "42" } })).await;
    assert_eq!(node_of(&cluster.running("with-labels").await), Some("node-1"));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_that_there_exists_conflict_between_pods_with_same_host_port_and_protocol_but_one_using_0_0_0_0_host_ip()
 {
    let cluster = with_nodes(2).await;
    let with_port = |address: Option<&str>, protocol: &str| {
        let ports = json!([{ "containerPort": 8080, "hostPort": 54322, "protocol": protocol, "hostIP": address }]);
        json!({ "containers": [{ "name": "c", "image": "pause", "ports": ports }], "nodeSelector": on("node-0") })
    };
    cluster.pod("pod4", with_port(None, "TCP")).await;
    cluster.running("pod4").await;
    cluster.pod("pod5", with_port(Some("172.16.0.1"), "TCP")).await;
    cluster.refused("pod5", "1 node(s) didn't have free ports for the requested pod ports").await;
    cluster.pod("pod6", with_port(Some("172.16.0.1"), "UDP")).await;
    cluster.running("pod6").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_basic_preemption_works() {
    let cluster = with_nodes(2).await;
    for (name, value) in [("low", 1), ("medium", 100), ("high", 1000)] {
        cluster.priority(name, value).await;
    }
    // Node 0 is filled by the least important pod, node 1 by a more important one.
    for (node, class) in [("node-0", "low"), ("node-1", "medium")] {
        cluster.provide(node, FOO, "5").await;
        let spec = json!({ "containers": asks(FOO, "5"), "nodeSelector": on(node), "priorityClassName": class });
        cluster.pod(class, spec).await;
        cluster.running(class).await;
    }
    cluster.pod("preemptor", json!({ "containers": asks(FOO, "5"), "priorityClassName": "high" })).await;
    assert_eq!(node_of(&cluster.running("preemptor").await), Some("node-0"));
    cluster.until_gone::<Pod>("default", "low").await;
    assert!(!is_leaving(&cluster.running("medium").await), "only the least important pod makes room");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_lower_priority_pod_preemption_by_critical_pod() {
    let cluster = with_nodes(2).await;
    cluster.priority("high", 1000).await;
    for node in ["node-0", "node-1"] {
        cluster.provide(node, FOO, "5").await;
    }
    for (name, node, class) in [("low", "node-0", None), ("other", "node-1", Some("high"))] {
        let spec = json!({ "containers": asks(FOO, "3"), "nodeSelector": on(node), "priorityClassName": class });
        cluster.pod(name, spec).await;
        cluster.running(name).await;
    }
    let spec = json!({ "containers": asks(FOO, "3"), "priorityClassName": "system-cluster-critical" });
    let critical = cluster.pod_in("kube-system", "critical", spec).await;
    assert_eq!(critical.spec.unwrap().priority, Some(2_000_000_000));
    let placed = |pod: &Pod| node_of(pod) == Some("node-0");
    cluster.until::<Pod>("kube-system", "critical", "on the node of the least important pod", placed).await;
    cluster.until_gone::<Pod>("default", "low").await;
    assert!(!is_leaving(&cluster.running("other").await));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn validates_pod_disruption_condition_is_added_to_the_preempted_pod() {
    let cluster = with_nodes(2).await;
    cluster.priority("high", 1000).await;
    cluster.provide("node-0", FOO, "1").await;
    let spec = json!({ "containers": asks(FOO, "1") });
    let metadata = json!({ "name": "victim", "namespace": "default", "finalizers": ["example.com/test-finalizer"] });
    cluster.apply::<Pod>(json!({ "metadata": metadata, "spec": spec })).await;
    cluster.running("victim").await;
    cluster.pod("preemptor", json!({ "containers": asks(FOO, "1"), "priorityClassName": "high" })).await;
    let victim = cluster.until::<Pod>("default", "victim", "preempted", is_leaving).await;
    assert_eq!(condition(&victim, "DisruptionTarget"), Some(("True", "PreemptionByScheduler")));
    let named = |pod: &Pod| pod.status.as_ref().is_some_and(|status| status.nominated_node_name.is_some());
    cluster.until::<Pod>("default", "preemptor", "promised a node", |pod| named(pod) || node_of(pod).is_some()).await;
    let release = Patch::merge(json!({ "metadata": { "finalizers": null } }));
    cluster.client.namespaced::<Pod>("default").patch("victim", &release).await.unwrap();
    cluster.running("preemptor").await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_replica_sets_to_verify_preemption_running_path() {
    let cluster = with_nodes(2).await;
    cluster.provide("node-0", "example.com/fakecpu", "1000").await;
    let pods = cluster.client.namespaced::<Pod>("default");
    let version = pods.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = pods.watch(&ListParams::default(), &version).await.unwrap();
    let spec = |amount: &str, class: &str| json!({ "containers": asks("example.com/fakecpu", amount), "priorityClassName": class });
    for (at, amount) in [(1, "200"), (2, "300"), (3, "450")] {
        cluster.priority(&format!("p{at}"), at).await;
        let labels = json!({ "name": format!("pod{at}") });
        let template = json!({ "metadata": { "labels": labels }, "spec": spec(amount, &format!("p{at}")) });
        let set = json!({ "replicas": 1, "selector": { "matchLabels": labels }, "template": template });
        let name = format!("rs-pod{at}");
        cluster.apply::<ReplicaSet>(json!({ "metadata": { "name": name, "namespace": "default" }, "spec": set })).await;
        let is_ready = |set: &ReplicaSet| set.status.as_ref().is_some_and(|status| status.ready_replicas == Some(1));
        cluster.until::<ReplicaSet>("default", &name, "ready", is_ready).await;
    }
    cluster.priority("p4", 4).await;
    cluster.pod("pod4", spec("500", "p4")).await;
    assert_eq!(node_of(&cluster.running("pod4").await), Some("node-0"));
    // The two least important pods made room and wait as new ones; their sets made each once, and the third set none.
    for name in ["pod1", "pod2"] {
        let selected = ListParams::labels(format!("name={name}"));
        let replaced = async || {
            let found = pods.list(&selected).await.unwrap().items;
            matches!(&found[..], [pod] if is_unschedulable(pod)).then_some(())
        };
        patiently(replaced).await.unwrap_or_else(|| panic!("{name} was not made again"));
    }
    cluster.pod("last", json!({})).await;
    cluster.running("last").await;
    let mut made: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let WatchEvent::Added(pod) = events.next().await.expect("the watch goes on").unwrap() else { continue };
        if pod.metadata.name.as_deref() == Some("last") {
            break;
        }
        let name = pod.metadata.labels.and_then(|mut labels| labels.remove("name"));
        *made.entry(name.unwrap_or_else(|| "pod4".into())).or_default() += 1;
    }
    let expected = [("pod1", 2), ("pod2", 2), ("pod3", 1), ("pod4", 1)].map(|(name, count)| (name.to_owned(), count));
    assert_eq!(made, expected.into());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn verify_priority_class_endpoints_can_be_operated_with_different_http_methods() {
    let cluster = Cluster::start(0).await;
    let classes = cluster.client.all::<PriorityClass>();
    cluster.priority("p1", 1).await;
    cluster.priority("p2", 2).await;
    let listed = classes.list(&ListParams::default()).await.unwrap().items;
    assert!(["p1", "p2"].iter().all(|name| listed.iter().any(|class| class.metadata.name.as_deref() == Some(name))));
    let described = classes.patch("p1", &Patch::merge(json!({ "description": "d" }))).await.unwrap();
    assert_eq!(described.description.as_deref(), Some("d"));
    let mut changed = classes.get("p2").await.unwrap();
    changed.description = Some("e".into());
    changed = classes.update(&changed).await.unwrap();
    assert_eq!(changed.description.as_deref(), Some("e"));
    let refused = |error: client::Error| {
        let text = error.to_string();
        assert!(text.contains("value: Forbidden: may not be changed in an update."), "{text}");
    };
    refused(classes.patch("p1", &Patch::merge(json!({ "value": 10 }))).await.unwrap_err());
    changed.value = Some(20);
    refused(classes.update(&changed).await.unwrap_err());
    cluster.stop().await;
}

/// The taint that conformance tests evict with.
fn evicting() -> Value {
    json!([{ "key": "kubernetes.io/e2e-evict-taint-key", "value": "evictTaintVal", "effect": "NoExecute" }])
}

fn patient(node: &str, seconds: u32) -> Value {
    let toleration = json!({ "key": "kubernetes.io/e2e-evict-taint-key", "operator": "Equal", "value": "evictTaintVal",
        "effect": "NoExecute", "tolerationSeconds": seconds });
    json!({ "tolerations": [toleration], "nodeSelector": on(node) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn evicts_pods_with_min_toleration_seconds() {
    let cluster = with_nodes(2).await;
    cluster.pod("brief", patient("node-0", 1)).await;
    cluster.pod("long", patient("node-0", 3600)).await;
    cluster.running("brief").await;
    cluster.running("long").await;
    cluster.taint("node-0", evicting()).await;
    let api = cluster.client.namespaced::<Pod>("default");
    // The hollow node may have removed it before anybody saw it leave.
    let left = patiently(async || match api.get_opt("brief").await.unwrap() {
        Some(pod) if is_leaving(&pod) => Some(Some(pod)),
        Some(_) => None,
        None => Some(None),
    });
    if let Some(pod) = left.await.expect("the brief pod was not evicted") {
        assert_eq!(condition(&pod, "DisruptionTarget"), Some(("True", "DeletionByTaintManager")));
    }
    assert!(!is_leaving(&cluster.running("long").await));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_taint_cancels_eviction() {
    const WAIT_TIMEOUT: u32 = 10;
    let cluster = with_nodes(2).await;
    cluster.pod("spared", patient("node-0", WAIT_TIMEOUT)).await;
    cluster.pod("evicted", patient("node-1", WAIT_TIMEOUT)).await;
    cluster.running("spared").await;
    cluster.running("evicted").await;
    // The second pod's time begins after the first one's would have: once it is gone, the first one's is over, too.
    cluster.taint("node-0", evicting()).await;
    cluster.taint("node-1", evicting()).await;
    cluster.taint("node-0", Value::Null).await;
    cluster.until_gone::<Pod>("default", "evicted").await;
    assert!(!is_leaving(&cluster.running("spared").await));
    cluster.stop().await;
}

//! Node lifecycle: notice nodes that fall silent, and taint nodes by their conditions.
//!
//! A node lives as long as its Lease is renewed. Renewals only note the time; one timer per node looks whether the grace period has
//! passed. Evicting taints are added at a limited rate per zone, and not at all while every zone is silent. What the taints do to pods is `taint_eviction`'s business.

mod plan;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use api::cached::Pod;
use api::meta::Meta as _;
use api::node::condition;
use client::metrics::{Histogram, Metrics, exponential};
use client::{Client, Clock, Event, EventRecorder, Informer, ListParams, Patch};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;
use tokio::time::Instant;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};
use plan::{Zone, eviction_period, is_marked_unknown, ready, taint_patch, taints};

/// While no node of a zone may be evicted, each looks again after this.
const HELD_BACK_INTERVAL: Duration = Duration::from_secs(30);
const LEASES: &str = "kube-node-lease";
const BY_NODE: &str = "node";
static HEALTH_BOUNDS: [f64; 8] = exponential(0.001, 4.0);

struct Controller {
    client: Client,
    clock: Clock,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    pods: Informer<Pod>,
    /// When each node last gave a sign of life, by our own clock.
    seen: Arc<Mutex<HashMap<String, Instant>>>,
    /// When the last node of each zone was given an evicting taint.
    evictions: Mutex<HashMap<String, Instant>>,
    /// `--node-monitor-grace-period`.
    grace: Duration,
    metrics: Metrics,
    /// How long it takes to look after one node.
    took: Histogram,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let seen: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let nodes = {
        let seen = seen.clone();
        context.on::<Node, _>(move |event| {
            let node = event.object();
            let name = node.metadata.name().to_owned();
            match event {
                Event::Deleted(_) => drop(seen.lock().remove(&name)),
                Event::Modified { old, new } if heartbeat(old) == heartbeat(new) => {}
                _ => drop(seen.lock().insert(name.clone(), Instant::now())),
            }
            [name]
        })
    };
    let leases = context.namespaced::<Lease>(LEASES, ListParams::default());
    {
        let seen = seen.clone();
        leases.subscribe(move |event| {
            if !matches!(event, Event::Deleted(_)) {
                seen.lock().insert(event.object().metadata.name().to_owned(), Instant::now());
            }
        });
    }
    leases.wakes_nothing("renewals only note the time, which a timer per node looks at");
    let pods = context.informer::<Pod>();
    pods.add_index(BY_NODE, |pod| vec![pods::node_name(pod).to_owned()]);
    let pods = {
        let (nodes, queue) = (nodes.clone(), context.queue.clone());
        pods.wakes(move |event| {
            let node = nodes.get(pods::node_name(event.object()));
            if let Some(node) = node.filter(|node| is_late(event, node)) {
                queue.add(node.metadata.name().to_owned());
            }
        })
    };
    measure_zones(&context.config.metrics, nodes.clone());
    Arc::new(Controller {
        clock: context.config.clock.clone(),
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        nodes,
        pods,
        seen,
        evictions: Mutex::default(),
        grace: context.config.node_monitor_grace_period,
        metrics: context.config.metrics.clone(),
        took: context.config.metrics.histogram(
            "node_collector_update_node_health_duration_seconds",
            "Duration in seconds for NodeController to update the health of a single node.",
            &HEALTH_BOUNDS,
            &[],
        ),
    })
}

/// Whether a pod shows up as ready on a node that nothing is heard of: it has to be marked as the others were.
fn is_late(event: &Event<Pod>, node: &Node) -> bool {
    let is_late = match event {
        Event::Added(pod) => pods::is_ready(pod),
        Event::Modified { old, new } => {
            pods::is_ready(new) && (pods::node_name(old) != pods::node_name(new) || !pods::is_ready(old))
        }
        Event::Deleted(_) => false,
    };
    is_late && is_marked_unknown(node)
}

/// What only the kubelet writes: it changes when the kubelet lives.
fn heartbeat(node: &Node) -> Option<Vec<(String, Option<Timestamp>)>> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    Some(
        conditions
            .iter()
            .map(|condition| (condition.type_.clone(), condition.last_heartbeat_time.as_ref().map(|time| time.0)))
            .collect(),
    )
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let began = Instant::now();
            let outcome = self.sync(key).await;
            self.took.observe_duration(began.elapsed());
            outcome
        })
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(node) = self.nodes.get(key) else { return Ok(Requeue::Never) };
        let last = *self.seen.lock().entry(key.to_owned()).or_insert_with(Instant::now);
        let silent = last.elapsed() >= self.grace;
        if silent && !is_marked_unknown(&node) {
            return self.mark_unknown(&node).await;
        }
        let mut wait =
            if silent { None } else { Some(self.grace.saturating_sub(last.elapsed()) + Duration::from_millis(100)) };
        let evict = match self.eviction_wait(&node) {
            Some(pause) => {
                wait = Some(wait.map_or(pause, |wait| wait.min(pause)));
                false
            }
            None => true,
        };
        if let Some(taints) = taints(&node, evict, self.clock.now()) {
            let evicts =
                taints.iter().any(|taint| taint.effect == "NoExecute" && taint.key.starts_with("node.kubernetes.io/"));
            self.client.all::<Node>().patch(key, &Patch::merge(taint_patch(&node, &taints))).await?;
            if evicts {
                let zone = zone(&node);
                self.metrics
                    .counter("node_collector_evictions_total", "Nodes given an evicting taint", &[("zone", &zone)])
                    .inc();
                self.evictions.lock().insert(zone, Instant::now());
            }
        }
        // The kubelet of a node that says itself that it is not ready still says how its pods are, and would say so again.
        if is_marked_unknown(&node) {
            self.mark_pods_not_ready(&node).await?;
        }
        Ok(wait.into())
    }

    /// How long this node's evicting taint has to wait; `None` if it may come, or is not wanted at all.
    fn eviction_wait(&self, node: &Node) -> Option<Duration> {
        if ready(node) == "True" || condition(node, "Ready").is_none() {
            return None;
        }
        let (zones, zone) = (zones(&self.nodes), zone(node));
        let Some(period) = eviction_period(&zones, &zone) else { return Some(HELD_BACK_INTERVAL) };
        let last = self.evictions.lock().get(&zone).copied()?;
        Some(period.saturating_sub(last.elapsed())).filter(|wait| !wait.is_zero())
    }

    /// The kubelet is silent: nobody knows any more what its conditions are.
    async fn mark_unknown(&self, node: &Node) -> Outcome {
        let mut changed = node.clone();
        let name = node.metadata.name().to_owned();
        let now = k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(self.clock.now());
        let conditions = changed.status.get_or_insert_default().conditions.get_or_insert_default();
        for kind in ["Ready", "MemoryPressure", "DiskPressure", "PIDPressure"] {
            let known = conditions.iter_mut().find(|condition| condition.type_ == kind);
            let (reason, message) = match known.is_some() {
                true => ("NodeStatusUnknown", "Kubelet stopped posting node status."),
                false => ("NodeStatusNeverUpdated", "Kubelet never posted node status."),
            };
            let unknown = k8s_openapi::api::core::v1::NodeCondition {
                type_: kind.into(),
                status: "Unknown".into(),
                reason: Some(reason.into()),
                message: Some(message.into()),
                last_heartbeat_time: known
                    .as_ref()
                    .and_then(|condition| condition.last_heartbeat_time.clone())
                    .or(node.metadata.creation_timestamp.clone()),
                last_transition_time: Some(now.clone()),
            };
            match known {
                Some(condition) if condition.status == "Unknown" => {}
                Some(condition) => *condition = unknown,
                None => conditions.push(unknown),
            }
        }
        self.client.all::<Node>().update_status(&changed).await?;
        self.recorder.normal(
            &client::reference(node),
            "NodeNotReady",
            format!("Node {name} status is now: NodeNotReady"),
        );
        Ok(Requeue::Never)
    }

    /// Services must not send traffic to pods that nobody watches over.
    async fn mark_pods_not_ready(&self, node: &Node) -> Result<(), Error> {
        for pod in self.pods.by_index(BY_NODE, node.metadata.name()) {
            if !pods::is_ready(&pod) {
                continue;
            }
            let now = api::time::rfc3339(self.clock.now());
            let patch = Patch::strategic(json!({
                "metadata": { "uid": pod.metadata.uid },
                "status": { "conditions": [{ "type": "Ready", "status": "False", "lastTransitionTime": now }] },
            }));
            let api = self.client.namespaced::<Pod>(pod.metadata.namespace());
            match api.patch_status(pod.metadata.name(), &patch).await {
                Ok(_) => self.recorder.warning(&client::reference(&*pod), "NodeNotReady", "Node is not ready"),
                Err(error) if error.is_not_found() || error.is_conflict() => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

fn zones(nodes: &Informer<Node>) -> BTreeMap<String, Zone> {
    let mut zones: BTreeMap<String, Zone> = BTreeMap::new();
    for node in nodes.list() {
        let zone = zones.entry(zone(&node)).or_default();
        *(if ready(&node) == "True" { &mut zone.ready } else { &mut zone.not_ready }) += 1;
    }
    zones
}

fn measure_zones(metrics: &Metrics, nodes: Informer<Node>) {
    let gauges = metrics.downgrade();
    metrics.on_render(move || {
        let Some(metrics) = gauges.upgrade() else { return };
        let zones = zones(&nodes);
        let health = |zone: &Zone| 100.0 * zone.ready as f64 / zone.size() as f64;
        let show = |name, help, value: &dyn Fn(&Zone) -> f64| {
            let rows = zones.iter().map(|(name, zone)| ([name.clone()], value(zone)));
            metrics.set_gauges(name, help, ["zone"], rows);
        };
        show("node_collector_zone_size", "Nodes of the zone", &|zone| zone.size() as f64);
        show("node_collector_zone_health", "Percentage of ready nodes", &health);
        show("node_collector_unhealthy_nodes_in_zone", "Nodes that are not ready", &|zone| zone.not_ready as f64);
    });
}

fn zone(node: &Node) -> String {
    api::node::zone_key(node.metadata.labels.as_ref())
}

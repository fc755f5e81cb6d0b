//! The loop around the decision: events in, bindings out.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use client::kubeconfig::{Kubeconfig, Overrides};
use client::{Client, DeleteParams, Event, EventRecorder, Informer, InformerFactory, Patch, reference};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Binding, Namespace, Node, ObjectReference, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use parking_lot::Mutex;
use rand::SeedableRng;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::cache::Cache;
use crate::cycle::{FitError, choose};
use crate::pod::{self, PodInfo};
use crate::preemption::{self, Candidate};
use crate::queue::Queue;

/// Assign pods to nodes
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Kubeconfig of the API server and of the scheduler's identity
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// Pods with another schedulerName are left for other schedulers
    #[arg(long, default_value = "default-scheduler")]
    scheduler_name: String,
}

pub struct Config {
    pub client: Client,
    pub scheduler_name: String,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    let config = Kubeconfig::load(args.kubeconfig.as_deref()).context("the scheduler's kubeconfig")?;
    let client = Client::from_kubeconfig(&config, &Overrides::default()).context("the scheduler's kubeconfig")?;
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    let interrupted = async move {
        tokio::signal::ctrl_c().await?;
        stopper.cancel();
        anyhow::Ok(())
    };
    tokio::try_join!(run(Config { client, scheduler_name: args.scheduler_name }, stop), interrupted)?;
    Ok(())
}

/// Schedules until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_until(config, stop))
}

async fn run_until(config: Config, stop: CancellationToken) -> Result<()> {
    let informers = InformerFactory::new(config.client.clone());
    let (pods, nodes) = (informers.informer::<Pod>(), informers.informer::<Node>());
    let (namespaces, budgets) = (informers.informer::<Namespace>(), informers.informer::<PodDisruptionBudget>());
    let scheduler = Arc::new(Scheduler {
        events: EventRecorder::new(config.client.clone(), &config.scheduler_name, ""),
        client: config.client,
        name: config.scheduler_name,
        cache: Mutex::default(),
        queue: Queue::default(),
    });
    scheduler.follow_namespaces(&namespaces);
    scheduler.clone().follow(&pods, &nodes);
    informers.start(stop.clone());
    tokio::select! {
        () = stop.cancelled() => return Ok(()),
        () = async {
            namespaces.synced().await;
            nodes.synced().await;
            pods.synced().await;
        } => {}
    }
    let mut dice = rand::rngs::StdRng::from_os_rng();
    let mut bindings = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            Some(ended) = bindings.join_next() => ended?,
            (pod, mark) = scheduler.queue.pop() => {
                let snapshot = scheduler.cache.lock().snapshot();
                match choose(&pod, &snapshot, &mut dice) {
                    Ok(node) => {
                        scheduler.cache.lock().assume(pod.clone(), &node.name);
                        let scheduler = scheduler.clone();
                        bindings.spawn(async move { scheduler.bind(pod, &node.name, mark).await });
                    }
                    Err(error) => {
                        let room = preemption::is_eligible(&pod, &snapshot)
                            .then(|| preemption::choose(&pod, &snapshot, &error, &budgets.list(), &mut dice))
                            .flatten();
                        if let Some(room) = &room {
                            scheduler.cache.lock().nominate(pod.clone(), &room.node.name);
                        }
                        let scheduler = scheduler.clone();
                        bindings.spawn(async move { scheduler.no_node(pod, error, room, mark).await });
                    }
                }
            }
        }
    }
}

struct Scheduler {
    client: Client,
    name: String,
    events: EventRecorder,
    cache: Mutex<Cache>,
    queue: Queue,
}

impl Scheduler {
    fn follow(self: Arc<Self>, pods: &Informer<Pod>, nodes: &Informer<Node>) {
        let scheduler = self.clone();
        nodes.subscribe(move |event| {
            match event {
                Event::Added(node) | Event::Modified { new: node, .. } => scheduler.cache.lock().set_node(node.clone()),
                Event::Deleted(node) => {
                    scheduler.cache.lock().remove_node(node.metadata.name.as_deref().unwrap_or_default());
                }
            }
            scheduler.queue.retry_all();
        });
        pods.subscribe(move |event| match event {
            Event::Added(pod) => self.observe(None, pod),
            Event::Modified { old, new } => self.observe(Some(old), new),
            Event::Deleted(pod) => self.gone(pod),
        });
    }

    fn follow_namespaces(self: &Arc<Self>, namespaces: &Informer<Namespace>) {
        let scheduler = self.clone();
        namespaces.subscribe(move |event| {
            let metadata = &event.object().metadata;
            let labels = match event {
                Event::Deleted(_) => None,
                _ => Some(metadata.labels.clone().unwrap_or_default()),
            };
            scheduler.cache.lock().set_namespace(metadata.name.as_deref().unwrap_or_default(), labels);
        });
    }

    fn observe(&self, old: Option<&Arc<Pod>>, pod: &Arc<Pod>) {
        if pod::is_terminal(pod) {
            return self.gone(pod);
        }
        if pod::node_name(pod).is_some() {
            self.cache.lock().observe(pod);
            self.queue.remove(pod.metadata.uid.as_deref().unwrap_or_default());
            return;
        }
        // A status that we wrote ourselves is no reason to try again.
        let unchanged = old.is_some_and(|old| old.spec == pod.spec && old.metadata.labels == pod.metadata.labels);
        if self.is_ours(pod) && !unchanged {
            self.queue.add(Arc::new(PodInfo::new(pod.clone())));
        }
    }

    fn gone(&self, pod: &Pod) {
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        self.queue.remove(uid);
        let mut cache = self.cache.lock();
        cache.clear_nomination(uid);
        cache.forget(uid);
        drop(cache);
        if pod::node_name(pod).is_some() {
            self.queue.retry_all();
        }
    }

    /// Ours to place: our scheduler's name, not on its way out, and no gate before it.
    fn is_ours(&self, pod: &Pod) -> bool {
        let Some(spec) = &pod.spec else { return false };
        spec.scheduler_name.as_deref().unwrap_or("default-scheduler") == self.name
            && spec.scheduling_gates.as_ref().is_none_or(Vec::is_empty)
            && pod.metadata.deletion_timestamp.is_none()
    }

    async fn bind(&self, pod: Arc<PodInfo>, node: &str, mark: u64) {
        let metadata = &pod.pod.metadata;
        let namespace = metadata.namespace.clone().unwrap_or_default();
        let name = metadata.name.clone().unwrap_or_default();
        let binding = Binding {
            metadata: ObjectMeta {
                name: Some(name.clone()),
                namespace: Some(namespace.clone()),
                uid: metadata.uid.clone(),
                ..ObjectMeta::default()
            },
            target: ObjectReference {
                kind: Some("Node".into()),
                name: Some(node.to_owned()),
                ..ObjectReference::default()
            },
        };
        let pods = self.client.namespaced::<Pod>(&namespace);
        match pods.create_subresource::<_, Value>(&name, "binding", &binding).await {
            Ok(_) => {
                let message = format!("Successfully assigned {} to {node}", pod.key);
                self.events.normal(&reference(&*pod.pod), "Scheduled", message);
            }
            Err(error) => {
                self.cache.lock().forget(&pod.uid);
                if error.is_not_found() {
                    return; // Deleted meanwhile: its own event has cleaned up, or will.
                }
                tracing::warn!(pod = %pod.key, node, %error, "binding failed");
                self.queue.retry_all();
                self.queue.failed(pod, mark);
            }
        }
    }

    /// Says on the pod why it has no node, makes room if that is possible, and lets it wait.
    async fn no_node(&self, pod: Arc<PodInfo>, error: FitError, room: Option<Candidate>, mark: u64) {
        let mut message = error.to_string();
        if room.is_none() && !error.rejections.is_empty() {
            let helpless = error.rejections.iter().filter(|(_, rejection)| rejection.unresolvable).count();
            let reasons = [
                (error.rejections.len() - helpless, "No preemption victims found for incoming pod."),
                (helpless, "Preemption is not helpful for scheduling"),
            ];
            let counted = reasons.iter().filter(|(count, _)| *count > 0).map(|(count, text)| format!("{count} {text}"));
            let text = counted.collect::<Vec<_>>().join(", ");
            let (all, end) = (error.rejections.len(), if text.ends_with('.') { "" } else { "." });
            message.push_str(&format!(" preemption: 0/{all} nodes are available: {text}{end}"));
        }
        self.events.warning(&reference(&*pod.pod), "FailedScheduling", message.clone());
        if let Err(error) = self.write_condition(&pod, &message, room.as_ref()).await
            && !error.is_not_found()
        {
            tracing::warn!(pod = %pod.key, %error, "condition not written");
        }
        if let Some(room) = &room {
            for victim in &room.victims {
                self.evict(&pod, victim, &room.node.name).await;
            }
        }
        self.queue.failed(pod, mark);
    }

    async fn write_condition(
        &self,
        pod: &PodInfo,
        message: &str,
        room: Option<&Candidate>,
    ) -> Result<(), client::Error> {
        let said = condition(&pod.pod).is_some_and(|(reason, said)| reason == "Unschedulable" && said == message);
        if said && room.is_none() {
            return Ok(());
        }
        let mut status = json!({"conditions": [{
            "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
            "lastTransitionTime": now(),
        }]});
        if let Some(room) = room {
            status["nominatedNodeName"] = room.node.name.as_str().into();
        }
        let metadata = &pod.pod.metadata;
        let pods = self.client.namespaced::<Pod>(metadata.namespace.as_deref().unwrap_or_default());
        let patch = Patch::strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
        pods.patch_status(metadata.name.as_deref().unwrap_or_default(), &patch).await.map(drop)
    }

    /// Takes a pod off its node in favour of another.
    async fn evict(&self, pod: &PodInfo, victim: &PodInfo, node: &str) {
        let metadata = &victim.pod.metadata;
        let name = metadata.name.as_deref().unwrap_or_default();
        let pods = self.client.namespaced::<Pod>(metadata.namespace.as_deref().unwrap_or_default());
        let message = format!("{}: preempting to accommodate a higher priority pod", self.name);
        let patch = Patch::strategic(json!({"metadata": {"uid": victim.uid}, "status": {"conditions": [{
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": message,
            "lastTransitionTime": now(),
        }]}}));
        let evicted = async {
            pods.patch_status(name, &patch).await?;
            pods.delete(name, &DeleteParams::default().with_uid(victim.uid.clone())).await
        };
        match evicted.await {
            Ok(()) => {
                let message = format!("Preempted by pod {} on node {node}", pod.uid);
                self.events.normal(&reference(&*victim.pod), "Preempted", message);
            }
            Err(error) if error.is_not_found() => {}
            Err(error) => tracing::warn!(pod = %victim.key, %error, "not preempted"),
        }
    }
}

fn condition(pod: &Pod) -> Option<(&str, &str)> {
    let conditions = pod.status.as_ref()?.conditions.as_ref()?;
    let scheduled = conditions.iter().find(|condition| condition.type_ == "PodScheduled")?;
    Some((scheduled.reason.as_deref()?, scheduled.message.as_deref()?))
}

fn now() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

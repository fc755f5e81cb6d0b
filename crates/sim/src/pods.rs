//! Pods: one watch of all that are bound, and workers that carry out what `plan` decides.

use std::collections::HashMap;
use std::net::Ipv4Addr;
use std::sync::Arc;

use client::{
    Api, Client, DeleteParams, Error, Event, Gvr, Informer, ListParams, Patch, WorkQueue, Written, object_key,
};
use futures_util::FutureExt;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::addresses::Addresses;
use crate::nodes;
use crate::plan::{self, Pod, Step};

/// Pods worked on at a time.
const WORKERS: usize = 32;

struct Kubelets {
    config: Config,
    pods: Informer<Pod>,
    addresses: Addresses,
    /// The addresses of our nodes, by name; pods of other nodes are not ours.
    nodes: HashMap<String, Ipv4Addr>,
}

/// Runs until `stop`.
pub(crate) async fn run(config: &Config, stop: CancellationToken) {
    let pods = Informer::new(api(&config.client, None), ListParams::fields("spec.nodeName!="));
    let nodes = (0..config.nodes)
        .map(|index| (format!("{}{index}", config.name_prefix), nodes::address(config.first_node_address, index)));
    let kubelets = Arc::new(Kubelets {
        config: config.clone(),
        pods: pods.clone(),
        addresses: Addresses::new(config.first_pod_address),
        nodes: nodes.collect(),
    });
    let queue: WorkQueue<String> = WorkQueue::new();
    {
        let (queue, kubelets) = (queue.clone(), kubelets.clone());
        pods.subscribe(move |event| kubelets.see(event, &queue));
    }
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (queue, kubelets) = (queue.clone(), kubelets.clone());
        // Boxed: a task is compiled for each scheduler that may run it.
        workers.spawn(FutureExt::boxed(async move {
            while let Some(key) = queue.get().await {
                kubelets.work(&key, &queue).await;
                queue.done(&key);
            }
        }));
    }
    pods.run(stop).await;
    queue.shut_down();
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a hollow kubelet ended badly");
        }
    }
}

impl Kubelets {
    fn see(&self, event: &Event<Pod>, queue: &WorkQueue<String>) {
        let pod = event.object();
        if !self.nodes.contains_key(&pod.spec.node_name) {
            return;
        }
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        match event {
            Event::Deleted(_) => self.addresses.release(&pod.status.pod_ip, uid),
            Event::Added(_) if !pod.status.pod_ip.is_empty() => self.addresses.keep(&pod.status.pod_ip, uid),
            _ => {}
        }
        if !matches!(event, Event::Deleted(_)) {
            queue.add(object_key(&**pod));
        }
    }

    async fn work(&self, key: &str, queue: &WorkQueue<String>) {
        let Some(pod) = self.pods.get(key) else { return };
        match self.step(&pod).await {
            Ok(Step::Wait(delay)) => {
                queue.forget(&key.to_owned());
                queue.add_after(key.to_owned(), delay);
            }
            Ok(_) => queue.forget(&key.to_owned()),
            // Gone, or another pod by now: the watch will say.
            Err(error) if error.is_not_found() || error.is_conflict() => {}
            Err(error) => {
                tracing::warn!(pod = key, %error, "hollow kubelet failed: trying again");
                queue.add_rate_limited(key.to_owned());
            }
        }
    }

    async fn step(&self, pod: &Pod) -> Result<Step, Error> {
        let now = Timestamp::now();
        let step = plan::next(pod, self.config.startup, self.config.run_for, now);
        match step {
            Step::Nothing | Step::Wait(_) => {}
            Step::Start => {
                let host = self.nodes.get(&pod.spec.node_name).copied().unwrap_or(Ipv4Addr::UNSPECIFIED);
                let address = if pod.spec.host_network {
                    host
                } else {
                    self.addresses.take(pod.metadata.uid.as_deref().unwrap_or_default())
                };
                self.report(pod, pod.started(host, address, now)).await?;
            }
            Step::Readiness => self.report(pod, pod.readiness(now)).await?,
            Step::Finish(code) => self.report(pod, pod.finished(code, now)).await?,
            Step::Remove => {
                let mut params = DeleteParams::default().with_grace_period(0);
                params.uid.clone_from(&pod.metadata.uid);
                self.api_of(pod).delete(name(pod), &params).await?;
            }
        }
        Ok(step)
    }

    async fn report(&self, pod: &Pod, status: Value) -> Result<(), Error> {
        let patch = Patch::strategic(json!({ "metadata": { "uid": pod.metadata.uid }, "status": status }));
        self.api_of(pod).patch_path::<Written>(name(pod), Some("status"), &patch).await.map(drop)
    }

    fn api_of(&self, pod: &Pod) -> Api<Pod> {
        api(&self.config.client, pod.metadata.namespace.as_deref())
    }
}

fn api(client: &Client, namespace: Option<&str>) -> Api<Pod> {
    client.view(&Gvr { group: "".into(), version: "v1".into(), resource: "pods".into() }, namespace)
}

fn name(pod: &Pod) -> &str {
    pod.metadata.name.as_deref().unwrap_or_default()
}

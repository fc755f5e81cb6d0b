//! `cox why`: the one thing that a pod, a workload, a claim or a node waits for, what decides a connection of a pod,
//! or what is wrong with the cluster, with evidence and the next step.
//!
//! Flow: fetch what bears on the object -> decide ([`pod::cause`], [`volume::cause`], [`node::cause`]: pure) -> print. A workload is
//! followed to the pod of its that is worst off.

mod cluster;
mod net;
mod node;
mod pod;
mod service;
mod volume;

use std::io::IsTerminal as _;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::meta::Meta as _;
use api::sort::CompactSort as _;
use api::terminal::escaped_line;
use client::{Client, ListParams};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Event, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::connection::Target;
use crate::history::History;

/// How far back the figures of a cluster are looked at.
const MINUTES: usize = 180;

/// Explain what an object is waiting for, with evidence and the next step
#[derive(Debug, Clone, clap::Args)]
#[command(
    after_help = "Examples:\n  cox why pod/nginx-5d9c\n  cox why deploy/nginx\n  cox why pvc/data\n  cox why node/node-1\n  cox why net pod/a pod/b:80\n  cox why net pod/a service/web:http\n  cox why cluster"
)]
pub struct Args {
    /// KIND/NAME: a pod, deployment, replicaset, statefulset, daemonset, job, pvc or node; or net, for a connection; or
    /// cluster, for everything that is wrong or soon will be
    object: String,
    /// With net: the pod that connects, and pod/NAME:PORT (pod/NAMESPACE/NAME:PORT/UDP), service/NAME:PORT, NAME.NAMESPACE.svc:PORT or
    /// ADDRESS:PORT that it connects to
    ends: Vec<String>,
    #[command(flatten)]
    target: Target,
}

/// The answer: what blocks, why we believe so, what to do about it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Cause {
    summary: String,
    evidence: Vec<String>,
    next: Vec<String>,
}

impl Cause {
    fn new(summary: impl Into<String>) -> Cause {
        Cause { summary: summary.into(), evidence: Vec::new(), next: Vec::new() }
    }

    fn because(mut self, evidence: impl Into<String>) -> Cause {
        self.evidence.push(evidence.into());
        self
    }

    fn then(mut self, step: impl Into<String>) -> Cause {
        self.next.push(step.into());
        self
    }

    fn render(&self, object: &str) -> String {
        let mut text = format!("{}: {}\n", escaped_line(object), escaped_line(&self.summary));
        for (title, lines) in [("because", &self.evidence), ("next", &self.next)] {
            for line in lines {
                text.push_str(&format!("  {title:<8} {}\n", escaped_line(line)));
            }
        }
        text
    }
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(explain(args))
}

async fn explain(args: Args) -> Result<()> {
    if args.object == "net" {
        let (object, cause) = net::explain(&args.target.connect()?, &args.ends).await?;
        print!("{}", cause.render(&object));
        return Ok(());
    }
    if let Some(word) = args.ends.first() {
        bail!("{word:?} is one word too many");
    }
    if args.object == "cluster" {
        return explain_cluster(&args.target.connect()?).await;
    }
    let Some((kind, name)) = args.object.split_once('/').filter(|(_, name)| !name.is_empty()) else {
        bail!("{:?} is not KIND/NAME, such as pod/nginx", args.object);
    };
    let client = args.target.connect()?;
    let seen = Seen { namespace: client.default_namespace().to_owned(), client, now: Timestamp::now() };
    let (object, cause) = match kind {
        "pod" | "pods" | "po" => {
            let pod = seen.client.namespaced::<Pod>(&seen.namespace).get(name).await?;
            (format!("pod/{name}"), seen.pod(&pod).await?)
        }
        "pvc" | "persistentvolumeclaim" | "persistentvolumeclaims" => {
            let claim = seen.client.namespaced::<PersistentVolumeClaim>(&seen.namespace).get(name).await?;
            (format!("pvc/{name}"), volume::cause(&seen.claim(claim).await?))
        }
        "node" | "nodes" | "no" => {
            let node = seen.client.all::<Node>().get(name).await?;
            (format!("node/{name}"), node::cause(&node, seen.now))
        }
        _ => seen.workload(kind, name).await?,
    };
    print!("{}", cause.render(&object));
    Ok(())
}

/// Nodes whose own metrics are looked at: the first so many that are ready.
const MOST_NODES: usize = 50;
/// Nodes that are asked at a time, and how long each may take: others are waiting.
const SIDE_BY_SIDE: usize = 16;
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
/// What only counts up says something by how far it moved: a few periods of a limit of CPU, a renewal of each lease.
const BETWEEN_LOOKS: Duration = Duration::from_secs(10);

async fn explain_cluster(client: &Client) -> Result<()> {
    let nodes = client.all::<Node>().list(&ListParams::default()).await?.items;
    let pods = client.all::<Pod>().list(&ListParams::default()).await?.items;
    let mut unseen = Vec::new();
    let history = History::ask(client, MINUTES).await.unwrap_or_else(|error| {
        unseen.push(format!("{error:#}"));
        History::default()
    });
    let ready = nodes.iter().filter(|node| api::node::is_ready(node));
    let names: Vec<&str> = ready.filter_map(|node| node.metadata.name.as_deref()).collect();
    let (asked, others) = names.split_at(names.len().min(MOST_NODES));
    if !others.is_empty() {
        unseen.push(format!("the metrics of {} more nodes", others.len()));
    }
    let before = look(client, asked, &mut unseen).await;
    if std::io::stderr().is_terminal() {
        eprintln!("looking for {BETWEEN_LOOKS:?} at what moves");
    }
    tokio::time::sleep(BETWEEN_LOOKS).await;
    let answered: Vec<&str> = before.kubelets.keys().map(String::as_str).collect();
    let after = look(client, &answered, &mut unseen).await;
    unseen.dedup();
    let facts = cluster::Facts { now: Timestamp::now(), nodes, pods, history, before, after };
    let found = cluster::findings(&facts);
    unseen.extend(cluster::unseen(&facts));
    for (object, cause) in &found {
        print!("{}", cause.render(object));
    }
    if found.is_empty() {
        println!("cluster: nothing is wrong that can be seen");
    }
    for what in unseen {
        println!("not seen: {}", escaped_line(&what));
    }
    Ok(())
}

/// Asks all components for what they count. What did not answer goes to `unseen`.
async fn look(client: &Client, nodes: &[&str], unseen: &mut Vec<String>) -> cluster::Look {
    let api = client.get_text("/metrics").await.unwrap_or_else(|error| {
        unseen.push(format!("the metrics of the API server: {error}"));
        String::new()
    });
    let mut look = cluster::Look { api, ..cluster::Look::default() };
    let asking: Vec<_> = nodes.iter().map(|node| ask(client, node)).collect();
    let answers: Vec<_> = stream::iter(asking).buffered(SIDE_BY_SIDE).collect().await;
    for (node, answer) in nodes.iter().zip(answers) {
        match answer {
            Ok(texts) => drop(look.kubelets.insert((*node).to_owned(), texts)),
            Err(error) => unseen.push(format!("the metrics of node {node}: {error}")),
        }
    }
    look
}

/// A kubelet's own metrics and those of its containers.
async fn ask(client: &Client, node: &str) -> Result<(String, String)> {
    let path = |rest: &str| format!("/api/v1/nodes/{node}/proxy/{rest}");
    let (metrics, cadvisor) = (path("metrics"), path("metrics/cadvisor"));
    let both = async { tokio::try_join!(client.get_text(&metrics), client.get_text(&cadvisor)) };
    let answer = tokio::time::timeout(NODE_TIMEOUT, both).await;
    Ok(answer.with_context(|| format!("no answer within {NODE_TIMEOUT:?}"))??)
}

/// The cluster as this command sees it.
struct Seen {
    client: Client,
    namespace: String,
    now: Timestamp,
}

impl Seen {
    async fn pod(&self, pod: &Pod) -> Result<Cause> {
        let events = self.events(pod.metadata.uid.as_deref()).await?;
        let node = match pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) {
            Some(name) => self.client.all::<Node>().get_opt(name).await?,
            None => None,
        };
        if let Some(cause) = volume::of_pod(pod, node.as_ref(), &self.claims(pod).await?) {
            return Ok(cause);
        }
        Ok(pod::cause(pod, &events, node.as_ref(), self.now))
    }

    /// What was said about an object, oldest first.
    async fn events(&self, uid: Option<&str>) -> Result<Vec<Event>> {
        let about = ListParams::fields(format!("involvedObject.uid={}", uid.unwrap_or_default()));
        let mut events = self.client.namespaced::<Event>(&self.namespace).list(&about).await?.items;
        events.compact_sort_by_key(|event| {
            event.last_timestamp.as_ref().map(|time| time.0).or(event.event_time.as_ref().map(|time| time.0))
        });
        Ok(events)
    }

    /// The claims of a pod, as far as they exist.
    async fn claims(&self, pod: &Pod) -> Result<Vec<volume::Facts>> {
        let mut facts = Vec::new();
        for name in volume::claims_of(pod) {
            if let Some(claim) = self.client.namespaced::<PersistentVolumeClaim>(&self.namespace).get_opt(&name).await?
            {
                facts.push(self.claim(claim).await?);
            }
        }
        Ok(facts)
    }

    async fn claim(&self, claim: PersistentVolumeClaim) -> Result<volume::Facts> {
        let spec = claim.spec.clone().unwrap_or_default();
        let class = match api::beta_annotations::claim_class(&claim).filter(|name| !name.is_empty()) {
            Some(name) => self.client.all::<StorageClass>().get_opt(name).await?,
            None => None,
        };
        let volume = match spec.volume_name.as_deref().filter(|name| !name.is_empty()) {
            Some(name) => self.client.all::<PersistentVolume>().get_opt(name).await?,
            None => None,
        };
        let made_by =
            volume.as_ref().and_then(|volume| volume.spec.as_ref()?.csi.as_ref()).map(|csi| csi.driver.clone());
        let driver = match made_by.or_else(|| class.as_ref().map(|class| class.provisioner.clone())) {
            Some(name) => self.client.all::<CSIDriver>().get_opt(&name).await?,
            None => None,
        };
        let chosen = claim.metadata.annotations.as_ref().and_then(|all| all.get(volume::SELECTED_NODE));
        let node = match chosen {
            Some(name) => self.client.all::<CSINode>().get_opt(name).await?,
            None => None,
        };
        let mut attachments = Vec::new();
        if let Some(volume) = &volume {
            let all = self.client.all::<VolumeAttachment>().list(&ListParams::default()).await?.items;
            let is_its = |it: &VolumeAttachment| it.spec.source.persistent_volume_name == volume.metadata.name;
            attachments.extend(all.into_iter().filter(is_its));
        }
        let name = claim.metadata.name().to_owned();
        let mut pods = self.client.namespaced::<Pod>(&self.namespace).list(&ListParams::default()).await?.items;
        pods.retain(|pod| volume::claims_of(pod).contains(&name));
        let events = self.events(claim.metadata.uid.as_deref()).await?;
        Ok(volume::Facts { claim, class, volume, pods, events, node, driver, attachments })
    }

    /// Follows a workload to the pod that is worst off.
    async fn workload(&self, kind: &str, name: &str) -> Result<(String, Cause)> {
        let namespace = self.namespace.as_str();
        let (selector, wanted, failure) = match kind {
            "deployment" | "deployments" | "deploy" | "deployment.apps" => {
                let found = self.client.namespaced::<Deployment>(namespace).get(name).await?;
                let failed = found.status.and_then(|status| status.conditions).unwrap_or_default();
                let failed = failed.into_iter().find(|c| c.type_ == "ReplicaFailure" && c.status == "True");
                let spec = found.spec.context("the deployment has no spec")?;
                (spec.selector, spec.replicas.unwrap_or(1), failed.and_then(|condition| condition.message))
            }
            "replicaset" | "replicasets" | "rs" | "replicaset.apps" => {
                let found = self.client.namespaced::<ReplicaSet>(namespace).get(name).await?;
                let failed = found.status.and_then(|status| status.conditions).unwrap_or_default();
                let failed = failed.into_iter().find(|c| c.type_ == "ReplicaFailure" && c.status == "True");
                let spec = found.spec.context("the replica set has no spec")?;
                (spec.selector, spec.replicas.unwrap_or(1), failed.and_then(|condition| condition.message))
            }
            "statefulset" | "statefulsets" | "sts" | "statefulset.apps" => {
                let spec = self.client.namespaced::<StatefulSet>(namespace).get(name).await?.spec;
                let spec = spec.context("the stateful set has no spec")?;
                (spec.selector, spec.replicas.unwrap_or(1), None)
            }
            "daemonset" | "daemonsets" | "ds" | "daemonset.apps" => {
                let found = self.client.namespaced::<DaemonSet>(namespace).get(name).await?;
                let wanted = found.status.map_or(0, |status| status.desired_number_scheduled);
                (found.spec.context("the daemon set has no spec")?.selector, wanted, None)
            }
            "job" | "jobs" | "job.batch" => {
                let spec = self.client.namespaced::<Job>(namespace).get(name).await?.spec;
                let spec = spec.context("the job has no spec")?;
                (spec.selector.unwrap_or_default(), spec.parallelism.unwrap_or(1), None)
            }
            _ => bail!("{kind:?} is not a kind that this command explains: see 'cox why --help'"),
        };
        let pods = self.client.namespaced::<Pod>(namespace).list(&ListParams::labels(query(&selector))).await?.items;
        let object = format!("{kind}/{name}");
        if let Some(pod) = pod::worst(&pods) {
            let pod_name = pod.metadata.name();
            return Ok((format!("{object}, pod/{pod_name}"), self.pod(pod).await?));
        }
        let cause = match (pods.len(), wanted, failure) {
            (_, _, Some(message)) => Cause::new("its pods cannot be created")
                .because(message)
                .then(format!("cox kubectl describe {kind} {name} -n {namespace}")),
            (_, 0, _) => Cause::new("it wants no pods").then(format!("cox kubectl scale {kind} {name} --replicas=1")),
            (0, _, _) => Cause::new("none of its pods exist yet")
                .because(format!("no pod matches {}", query(&selector)))
                .then("cox logs controllers"),
            _ => Cause::new("nothing blocks it: its pods are ready"),
        };
        Ok((object, cause))
    }
}

/// A label selector as the query of a list.
fn query(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let expressions = selector.match_expressions.iter().flatten().map(|expression| {
        let (key, values) = (&expression.key, expression.values.clone().unwrap_or_default().join(","));
        match expression.operator.as_str() {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        }
    });
    equal.chain(expressions).collect::<Vec<_>>().join(",")
}

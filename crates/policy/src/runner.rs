//! Keeps the node's table in step with the API.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use api::cached::Pod as PodObject;
use client::{Client, Event, Gvr, Informer, InformerFactory, ListParams, Object, object_key};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Node as NodeObject};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Config;
use crate::cluster_policy::{ClusterNetworkPolicy, ClusterPolicy, GROUP, PLURAL, VERSION};
use crate::conditions;
use crate::plan::{Announced, Planner};
use crate::program::{Inlined, MANY_SETS, anew, change, closing, inlined, is_at_work, is_there, isolated};
use crate::registration::{self, Call};
use crate::world::{DNS, Labels, Node, Pod, Policy};

const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Everything is programmed afresh this often, in case somebody else changed it.
const RESYNC_INTERVAL: Duration = Duration::from_secs(3600);
/// Between looks at whether the table is still there: without it nobody is isolated.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// How long a pod that announced itself is waited for before it starts behind closed doors.
const POD_TIMEOUT: Duration = Duration::from_secs(5);

/// Enforces policies until `stop`. Rules stay behind, so that a restart opens nothing and interrupts nobody.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(enforce(config, stop))
}

async fn enforce(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    see_bridged_packets();
    let shared = Arc::new(Shared::default());
    let informers = InformerFactory::new(config.client.clone());
    let pods: Informer<PodObject> = informers.informer();
    let namespaces: Informer<Namespace> = informers.informer();
    let policies: Informer<NetworkPolicy> = informers.informer();
    let service = format!("kubernetes.io/service-name={}", DNS.1);
    let slices: Informer<EndpointSlice> = informers.namespaced(DNS.0, ListParams::labels(service));
    follow(&pods, &shared, |news, key, pod| {
        news.pods.insert(key, pod.map(|pod| Arc::new(Pod::new(pod))));
    });
    follow(&namespaces, &shared, |news, key, namespace| {
        let labels = namespace.map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
        news.namespaces.insert(key, labels);
    });
    follow(&policies, &shared, |news, key, policy| {
        news.policies.insert(key, policy.map(|policy| Arc::new(Policy::new(policy))));
    });
    follow(&slices, &shared, |news, key, slice| {
        // No pod can have such a name.
        news.pods.insert(format!("{key}/endpoint"), slice.and_then(Pod::of_dns).map(Arc::new));
    });
    let definition = ListParams::fields(format!("metadata.name={PLURAL}.{GROUP}"));
    let definitions: Informer<CustomResourceDefinition> = informers.filtered(definition);
    let has_cluster_policies = Arc::new(AtomicBool::new(false));
    follow_definition(&definitions, &shared, &has_cluster_policies);
    informers.start(stop.child_token());
    let mut cluster_policies = ClusterPolicies { client: config.client.clone(), following: None };
    let (sender, mut calls) = registration::channel();
    let mut tasks = JoinSet::new();
    let synced = async {
        tokio::join!(pods.synced(), namespaces.synced(), policies.synced(), slices.synced(), definitions.synced());
        // Half of the policies would open what the other half forbids.
        if let Some(informer) =
            cluster_policies.follow(has_cluster_policies.load(Ordering::Acquire), &shared, &mut tasks, &stop)
        {
            informer.synced().await;
        }
    };
    tokio::select! {
        () = synced => {}
        () = stop.cancelled() => return Ok(()),
    }
    tasks.spawn(FutureExt::boxed(registration::serve(registration::listen(&config.socket)?, sender)));

    let planner = Planner::new(&config.node_name, &config.bridge);
    let mut enforcer =
        Enforcer { planner, has_inherited: false, is_programmed: false, inlined: Inlined::new(), waiting: Vec::new() };
    let (mut failures, mut fresh_at) = (0, Instant::now() + RESYNC_INTERVAL);
    loop {
        drop(cluster_policies.follow(has_cluster_policies.load(Ordering::Acquire), &shared, &mut tasks, &stop));
        let news = std::mem::take(&mut *shared.news.lock());
        // A panic inside would leave half a plan: whoever started us begins anew.
        let programmed = tokio::task::spawn_blocking(move || {
            let result = enforcer.program(news);
            (enforcer, result)
        });
        let result;
        (enforcer, result) = programmed.await?;
        match result {
            Ok(()) => failures = 0,
            Err(error) => {
                // What is in the kernel may not be what we think: begin afresh.
                tracing::error!(%error, "programming network policies failed");
                failures += 1;
                let delay = client::backoff::exponential(RETRY.0, RETRY.1, failures);
                tokio::select! {
                    () = tokio::time::sleep(delay) => continue,
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
        let next = enforcer.waiting.iter().map(|waiting| waiting.until).min().unwrap_or(fresh_at).min(fresh_at);
        let next = next.min(Instant::now() + LOOK_INTERVAL);
        tokio::select! {
            () = shared.changed.notified() => {}
            call = calls.recv() => match call {
                Some(call) => enforcer.hear(call),
                None => anyhow::bail!("nobody listens to pods any more"),
            },
            () = tokio::time::sleep_until(next) => {}
            () = stop.cancelled() => return Ok(()),
        }
        while let Ok(call) = calls.try_recv() {
            enforcer.hear(call);
        }
        if Instant::now() >= fresh_at {
            see_bridged_packets();
            enforcer.is_programmed = false;
            fresh_at = Instant::now() + RESYNC_INTERVAL;
        }
    }
}

/// Packets from one port of a bridge to another pass the hooks of IP only if that is wanted.
fn see_bridged_packets() {
    // Tagged frames too: the pod's kernel takes off a tag that means nothing.
    let tagged = ["bridge-nf-filter-vlan-tagged", "bridge-nf-filter-pppoe-tagged"];
    for name in ["bridge-nf-call-iptables", "bridge-nf-call-ip6tables"].into_iter().chain(tagged) {
        let path = format!("/proc/sys/net/bridge/{name}");
        let is_on = || std::fs::read_to_string(&path).is_ok_and(|value| value.trim() == "1");
        if !is_on() && std::fs::write(&path, "1").is_err() && !is_on() {
            tracing::error!(name, "cannot be set: network policies do not reach packets between pods of this node");
        }
    }
}

/// Whether the kernel can tell connections of SCTP apart. It has this setting, in each network namespace, if it can.
fn tracks_sctp() -> bool {
    std::path::Path::new("/proc/sys/net/netfilter/nf_conntrack_sctp_timeout_closed").exists()
}

#[derive(Default)]
struct Shared {
    news: Mutex<News>,
    changed: Notify,
}

/// The last that was heard of each object since it was asked for. None: it is gone.
#[derive(Default)]
struct News {
    pods: BTreeMap<String, Option<Arc<Pod>>>,
    namespaces: BTreeMap<String, Option<Labels>>,
    policies: BTreeMap<String, Option<Arc<Policy>>>,
    nodes: BTreeMap<String, Option<Arc<Node>>>,
    cluster_policies: BTreeMap<String, Option<Arc<ClusterPolicy>>>,
    /// Those that were known before are gone, and nodes are not followed any more.
    has_no_cluster_policies: bool,
}

impl News {
    fn apply_to(self, planner: &mut Planner) {
        for (key, namespace) in self.namespaces {
            planner.set_namespace(&key, namespace);
        }
        for (key, pod) in self.pods {
            planner.set_pod(&key, pod);
        }
        if self.has_no_cluster_policies {
            planner.forget_cluster_policies();
        }
        for (key, node) in self.nodes {
            planner.set_node(&key, node);
        }
        for (key, policy) in self.cluster_policies {
            planner.set_cluster_policy(&key, policy);
        }
        for (key, policy) in self.policies {
            planner.set_policy(&key, policy);
        }
    }
}

/// Takes down what an informer's events say.
fn follow<K: Object>(
    informer: &Informer<K>,
    shared: &Arc<Shared>,
    note: impl Fn(&mut News, String, Option<&K>) + Send + Sync + 'static,
) {
    let shared = shared.clone();
    informer.subscribe(move |event| {
        let object = event.object();
        let present = (!matches!(event, Event::Deleted(_))).then_some(&**object);
        note(&mut shared.news.lock(), object_key(&**object), present);
        shared.changed.notify_one();
    });
}

/// Says whether the cluster has the kind ClusterNetworkPolicy, in the version that we read.
fn follow_definition(
    definitions: &Informer<CustomResourceDefinition>,
    shared: &Arc<Shared>,
    is_there: &Arc<AtomicBool>,
) {
    let (shared, is_there) = (shared.clone(), is_there.clone());
    definitions.subscribe(move |event| {
        let definition = event.object();
        let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_established = conditions.into_iter().any(|one| one.type_ == "Established" && one.status == "True");
        let is_served = definition.spec.versions.iter().any(|version| version.served && version.name == VERSION);
        let now = match event {
            Event::Deleted(_) => false,
            _ if is_established && is_served => true,
            // What cannot be read for a while is still there.
            _ => return,
        };
        if is_there.swap(now, Ordering::AcqRel) != now {
            shared.changed.notify_one();
        }
    });
}

/// ClusterNetworkPolicies, and the nodes that they may name, followed while the cluster has the kind.
struct ClusterPolicies {
    client: Client,
    following: Option<CancellationToken>,
}

impl ClusterPolicies {
    /// Begins or ends to follow them; what comes back was just begun.
    fn follow(
        &mut self,
        is_there: bool,
        shared: &Arc<Shared>,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
    ) -> Option<Informer<ClusterNetworkPolicy>> {
        if self.following.is_some() == is_there {
            return None;
        }
        if let Some(following) = self.following.take() {
            following.cancel();
            let mut news = shared.news.lock();
            news.cluster_policies.clear();
            news.nodes.clear();
            news.has_no_cluster_policies = true;
            shared.changed.notify_one();
            return None;
        }
        let token = stop.child_token();
        // Only these policies name nodes, which are many and change often.
        let nodes: Informer<NodeObject> = Informer::new(self.client.all(), ListParams::default());
        let gone = token.clone();
        follow(&nodes, shared, move |news, key, node| {
            if !gone.is_cancelled() {
                news.nodes.insert(key, node.map(|node| Arc::new(Node::new(node))));
            }
        });
        let (known, until) = (nodes.clone(), token.clone());
        tasks.spawn(FutureExt::boxed(async move { nodes.run(until).await }));
        let api = self.client.view::<ClusterNetworkPolicy>(&Gvr::new(GROUP, VERSION, PLURAL), None);
        let informer = Informer::new(api.clone(), ListParams::default());
        let gone = token.clone();
        let (reporter, objects) = conditions::channel();
        follow(&informer, shared, move |news, key, object| {
            // A late event of those that are not followed any more says nothing.
            if !gone.is_cancelled() {
                reporter.note(&key, object);
                news.cluster_policies.insert(key, object.map(|object| Arc::new(ClusterPolicy::new(object))));
            }
        });
        let reported = token.clone();
        tasks.spawn(FutureExt::boxed(async move {
            reported.run_until_cancelled(conditions::report(api, objects)).await;
        }));
        self.following = Some(token.clone());
        let followed = informer.clone();
        tasks.spawn(FutureExt::boxed(async move {
            // What is denied by nodes is denied once they are known.
            if token.run_until_cancelled(known.synced()).await.is_some() {
                followed.run(token).await;
            }
        }));
        Some(informer)
    }
}

struct Enforcer {
    planner: Planner,
    /// Whether it was seen what the kernel held before.
    has_inherited: bool,
    /// Whether the kernel holds what the planner was last told that it does; otherwise everything is programmed afresh.
    is_programmed: bool,
    /// What of it is in rules instead of sets.
    inlined: Inlined,
    waiting: Vec<Waiting>,
}

/// A plug-in that is to be answered once its pod has its rules.
struct Waiting {
    pod: String,
    uid: String,
    until: Instant,
    done: oneshot::Sender<()>,
}

impl Enforcer {
    fn hear(&mut self, Call { announcement, done }: Call) {
        let pod = format!("{}/{}", announcement.namespace, announcement.name);
        let (uid, sandbox) = (announcement.uid, announcement.sandbox);
        let announced = |addresses| Announced { pod: pod.clone(), uid: uid.clone(), sandbox, addresses };
        // Announcements stay until the pod has given its addresses back: a pod may run on after its object is gone.
        match announcement.addresses.is_empty() {
            true => self.planner.withdraw(&announced(announcement.released)),
            false => self.planner.announce(announced(announcement.addresses)),
        }
        self.waiting.push(Waiting { pod, uid, until: Instant::now() + POD_TIMEOUT, done });
    }

    /// Brings the kernel in step with what is known. Blocking.
    fn program(&mut self, news: News) -> Result<(), netlink::nft::Error> {
        if self.is_programmed && !self.planner.plan().is_empty() && !is_there()? {
            tracing::error!("somebody has removed the rules of network policies; they are programmed afresh");
            self.is_programmed = false;
        }
        news.apply_to(&mut self.planner);
        let is_sctp_tracked = tracks_sctp();
        self.planner.set_sctp_tracking(is_sctp_tracked);
        if !self.has_inherited {
            self.planner.inherit(isolated()?);
            self.has_inherited = true;
        }
        self.planner.settle();
        let (touched, plan) = (self.planner.touched(), self.planner.plan());
        let transactions = match self.is_programmed {
            true => change(touched, plan, &mut self.inlined),
            false => {
                self.inlined = inlined(plan, MANY_SETS);
                anew(plan, &self.inlined, is_at_work()?)
            }
        };
        if let Err(error) = transactions.iter().try_for_each(|text| netlink::nft::apply(text)) {
            self.is_programmed = false;
            // Nothing of it holds yet. Whoever it concerns gets neither the old rules nor none.
            let closing = closing(touched, plan, is_at_work().unwrap_or(true));
            if let Err(error) = closing.iter().try_for_each(|text| netlink::nft::apply(text)) {
                tracing::error!(%error, "pods that changed network policies concern could not be closed");
            }
            return Err(error);
        }
        self.is_programmed = true;
        self.planner.is_programmed();
        // The first rule about connections has the kernel load what tells them apart.
        if tracks_sctp() != is_sctp_tracked {
            return self.program(News::default());
        }
        self.answer();
        Ok(())
    }

    /// Lets pods start whose rules are in place. One that is not shown yet is closed, or there is no policy that could concern
    /// it.
    fn answer(&mut self) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let is_shown = self.planner.is_shown(&waiting.pod, &waiting.uid);
            let is_free = !self.planner.is_announced(&waiting.pod, &waiting.uid);
            if is_shown || is_free || now >= waiting.until {
                // The plug-in may have given up.
                let _gone = waiting.done.send(());
            } else {
                self.waiting.push(waiting);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Many machines have a service whose restart flushes all rules before it reads its own.
    #[test]
    fn security_rules_that_somebody_removes_come_back() {
        let inside = || {
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
            let mut enforcer = Enforcer {
                planner: Planner::new("a", "cox0"),
                has_inherited: false,
                is_programmed: false,
                inlined: Inlined::new(),
                waiting: Vec::new(),
            };
            let pod =
                api::codec::from_value(&json!({"metadata": {"namespace": "default", "name": "web", "uid": "web"},
                "spec": {"nodeName": "a", "containers": []}, "status": {"podIPs": [{"ip": "10.42.0.2"}]}}));
            let policy = serde_json::from_value(json!({"metadata": {"namespace": "default", "name": "deny"},
                "spec": {"podSelector": {}, "policyTypes": ["Ingress"]}}));
            let news = News {
                pods: [("default/web".to_owned(), Some(Arc::new(Pod::new(&pod.unwrap()))))].into(),
                policies: [("default/deny".to_owned(), Some(Arc::new(Policy::new(&policy.unwrap()))))].into(),
                ..News::default()
            };
            enforcer.program(news).unwrap();
            let before = isolated().unwrap();
            assert_eq!(before.iter().map(ToString::to_string).collect::<Vec<_>>(), ["10.42.0.2"]);
            netlink::nft::delete_tables(&netlink::nft::tables().unwrap()).unwrap();
            assert!(isolated().unwrap().is_empty());
            enforcer.program(News::default()).unwrap();
            assert_eq!(isolated().unwrap(), before);
        };
        std::thread::spawn(inside).join().unwrap();
    }
}

//! Keeps the node's table in step with the API.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use client::{Client, Event, Gvr, Informer, InformerFactory, ListParams, Object, object_key};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Pod as PodObject};
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
use crate::plan::{Announced, Plan, plan};
use crate::program::{afresh, change};
use crate::registration::{self, Call};
use crate::world::{Pod, Policy, World};

const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(10));
/// Everything is programmed afresh this often, in case somebody else changed it.
const RESYNC_INTERVAL: Duration = Duration::from_secs(3600);
/// The cluster's DNS, which has no pods in `cox up`: policies name it by the labels that its pods have elsewhere.
const DNS: (&str, &str) = ("kube-system", "kube-dns");
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
    follow(&pods, &shared, |world, key, pod| keep(&mut world.pods, key, pod.map(|pod| Arc::new(Pod::new(pod)))));
    follow(&namespaces, &shared, |world, key, namespace| {
        keep(
            &mut world.namespaces,
            key,
            namespace.map(|namespace| namespace.metadata.labels.clone().unwrap_or_default()),
        )
    });
    follow(&policies, &shared, |world, key, policy| {
        keep(&mut world.policies, key, policy.map(|policy| Arc::new(Policy::new(policy))))
    });
    follow(&slices, &shared, |world, key, slice| {
        let labels = [("k8s-app".to_owned(), DNS.1.to_owned())].into();
        // No pod can have such a name.
        keep(
            &mut world.pods,
            format!("{key}/endpoint"),
            slice.and_then(|slice| Pod::stand_in(slice, labels)).map(Arc::new),
        )
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
    tasks.spawn(registration::serve(registration::listen(&config.socket)?, sender));

    let mut enforcer = Enforcer { config, programmed: None, announced: Vec::new(), waiting: Vec::new() };
    let (mut failures, mut fresh_at) = (0, Instant::now() + RESYNC_INTERVAL);
    loop {
        drop(cluster_policies.follow(has_cluster_policies.load(Ordering::Acquire), &shared, &mut tasks, &stop));
        let world = shared.world.lock().clone();
        match enforcer.program(&world).await {
            Ok(()) => failures = 0,
            Err(error) => {
                // The transaction did nothing, and what is in the kernel may not be what we think: begin afresh.
                tracing::error!(error, "programming network policies failed");
                enforcer.programmed = None;
                failures += 1;
                let delay = client::backoff::exponential(RETRY.0, RETRY.1, failures);
                tokio::select! {
                    () = tokio::time::sleep(delay) => continue,
                    () = stop.cancelled() => return Ok(()),
                }
            }
        }
        let next = enforcer.waiting.iter().map(|waiting| waiting.until).min().unwrap_or(fresh_at).min(fresh_at);
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
            enforcer.programmed = None;
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

#[derive(Default)]
struct Shared {
    world: Mutex<World>,
    changed: Notify,
}

/// Applies an informer's events; only those that change what policies can know wake anybody.
fn follow<K: Object>(
    informer: &Informer<K>,
    shared: &Arc<Shared>,
    apply: impl Fn(&mut World, String, Option<&K>) -> bool + Send + Sync + 'static,
) {
    let shared = shared.clone();
    informer.subscribe(move |event| {
        let object = event.object();
        let present = (!matches!(event, Event::Deleted(_))).then_some(&**object);
        if apply(&mut shared.world.lock(), object_key(&**object), present) {
            shared.changed.notify_one();
        }
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

/// ClusterNetworkPolicies, followed while the cluster has the kind.
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
            shared.world.lock().cluster_policies.clear();
            return None;
        }
        let token = stop.child_token();
        let api = self.client.view::<ClusterNetworkPolicy>(&Gvr::new(GROUP, VERSION, PLURAL), None);
        let informer = Informer::new(api, ListParams::default());
        let gone = token.clone();
        follow(&informer, shared, move |world, key, policy| {
            let policy = policy.map(|policy| Arc::new(ClusterPolicy::new(policy)));
            // A late event of those that are not followed any more says nothing.
            !gone.is_cancelled() && keep(&mut world.cluster_policies, key, policy)
        });
        self.following = Some(token.clone());
        let followed = informer.clone();
        tasks.spawn(async move { followed.run(token).await });
        Some(informer)
    }
}

/// Puts a value in its place, or takes it out; whether that changed anything.
fn keep<V: PartialEq>(map: &mut std::collections::BTreeMap<String, V>, key: String, value: Option<V>) -> bool {
    match value {
        Some(value) if map.get(&key) == Some(&value) => false,
        Some(value) => {
            map.insert(key, value);
            true
        }
        None => map.remove(&key).is_some(),
    }
}

struct Enforcer {
    config: Config,
    /// `None`: the kernel's state is unknown and everything is programmed afresh.
    programmed: Option<Plan>,
    announced: Vec<Announced>,
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
        // The end of a pod that was replaced by one of the same name says nothing about the other.
        let gives_back = announcement.addresses.is_empty();
        self.announced.retain(|known| known.pod != pod || (gives_back && known.uid != announcement.uid));
        if !gives_back {
            // Whoever had these addresses is gone.
            self.announced.retain(|known| !known.addresses.iter().any(|had| announcement.addresses.contains(had)));
            let (uid, addresses) = (announcement.uid.clone(), announcement.addresses);
            self.announced.push(Announced { pod: pod.clone(), uid, addresses });
        }
        self.waiting.push(Waiting { pod, uid: announcement.uid, until: Instant::now() + POD_TIMEOUT, done });
    }

    async fn program(&mut self, world: &World) -> Result<(), String> {
        // Announcements stay until the pod has given its addresses back: a pod may run on after its object is gone.
        let (of, node, bridge) = (world.clone(), self.config.node_name.clone(), self.config.bridge.clone());
        let announced = self.announced.clone();
        let wanted = tokio::task::spawn_blocking(move || plan(&of, &node, &bridge, &announced)).await;
        let wanted = wanted.map_err(|panic| panic.to_string())?;
        let text = match &self.programmed {
            Some(programmed) => change(programmed, &wanted),
            None => afresh(&wanted),
        };
        if !text.is_empty() {
            let told = tokio::task::spawn_blocking(move || netlink::nft::apply(&text)).await;
            told.map_err(|panic| panic.to_string())?.map_err(|error| error.to_string())?;
        }
        self.programmed = Some(wanted);
        self.answer(world);
        Ok(())
    }

    /// Lets pods start whose rules are in place. One that is not shown yet is closed, or in a namespace without policies.
    fn answer(&mut self, world: &World) {
        let now = Instant::now();
        for waiting in std::mem::take(&mut self.waiting) {
            let node = &self.config.node_name;
            let shown = world.pods.get(&waiting.pod);
            let is_shown = shown.is_some_and(|pod| pod.uid == waiting.uid && pod.node == *node);
            let is_free = !self.announced.iter().any(|told| told.pod == waiting.pod && told.uid == waiting.uid);
            if is_shown || is_free || now >= waiting.until {
                // The plug-in may have given up.
                let _gone = waiting.done.send(());
            } else {
                self.waiting.push(waiting);
            }
        }
    }
}

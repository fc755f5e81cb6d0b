//! Follows the API, plans, swaps the table, opens ports and writes statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use api::cidr::Cidr;
use api::endpoint::service_key;
use client::metrics::{Metrics, panics};
use client::{
    AnyInformer, Client, Event, EventRecorder, Gvr, Informer, InformerFactory, ListParams, Object, Patch, object_key,
    plain_http,
};
use data_plane::{DataPlane, Ports};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{Namespace, Node, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use parking_lot::Mutex;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::gateway_api::{
    BackendTLSPolicy, GROUP, GRPCRoute, Gateway, GatewayClass, HTTPRoute, ReferenceGrant, TLSRoute,
};
use crate::plan::{Kind, News, Plan, Settings, Status, plan};
use crate::table::Table;
use crate::world::{AuthorityMap, Definition, Objects, World, authority, certificate};
use crate::{Config, own_addresses};

const DEFINITIONS: &str = "customresourcedefinitions";
const ZONE: &str = "topology.kubernetes.io/zone";
/// Versions of the Gateway API's kinds that are understood; the first that a cluster has is read.
const VERSIONS: [&str; 4] = ["v1", "v1beta1", "v1alpha3", "v1alpha2"];
/// When something failed that may succeed later: a port was taken, a status was not written.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);
/// Times that one status is written within [`RETRY_INTERVAL`]. Somebody else who writes it, too, would otherwise have us answer without end.
const MAX_WRITES: u32 = 20;
/// Changes that come within this time make one plan.
const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// How long upgraded connections may take to end.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until `stop`.
pub fn run(config: Config, stop: CancellationToken) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(serve(config, stop))
}

#[derive(Default)]
struct Shared {
    /// A plan has the world as it was when it began; only what is told meanwhile is written into a copy.
    world: Mutex<Arc<World>>,
    /// Plurals of the Gateway API that the cluster has, with the version to read.
    definitions: Mutex<BTreeMap<String, &'static str>>,
    changed: Notify,
}

async fn serve(config: Config, stop: CancellationToken) -> anyhow::Result<()> {
    config.check()?;
    let metrics = Metrics::new();
    let plane = DataPlane::new(config.limits.clone(), config.access_log.as_ref(), metrics.clone(), stop.clone())?;
    let mut tasks = JoinSet::new();
    if let Some(address) = config.metrics_bind_address {
        let listener = TcpListener::bind(address).await.with_context(|| format!("listening on {address}"))?;
        tasks.spawn(FutureExt::boxed(plain_http::serve(listener, move |path| match path {
            "/healthz" | "/readyz" | "/livez" => (200, "ok".to_owned()),
            "/metrics" => (200, metrics.render()),
            _ => (404, "404 page not found\n".to_owned()),
        })));
    }
    let shared = Arc::new(Shared::default());
    let informers = InformerFactory::new(config.client.clone());
    let synced = follow_builtin(&informers, &shared, &config);
    informers.start(stop.child_token());
    let definitions = follow_definitions(&config.client, &shared);
    tasks.spawn(FutureExt::boxed(keep_following(definitions.untyped(), DEFINITIONS, stop.child_token())));
    let mut kinds = Kinds { client: config.client.clone(), shared: shared.clone(), running: BTreeMap::new() };
    // A table made of half of the objects would turn requests away that have a route.
    let ready = async {
        synced.await;
        definitions.synced().await;
        // Twice: what is followed depends on the policies that there are.
        for _ in 0..2 {
            for informer in kinds.start(&mut tasks, &stop) {
                informer.await;
            }
        }
    };
    tokio::select! {
        () = ready => {}
        () = stop.cancelled() => return Ok(()),
    }
    let recorder = EventRecorder::new(config.client.clone(), "gateway", &config.node_name);
    let mut runner = Runner {
        client: config.client.clone(),
        stop: stop.clone(),
        shared: shared.clone(),
        kinds,
        tasks,
        ports: Ports::new(plane.clone(), config.listen.clone()),
        plane: plane.clone(),
        settings: settings(&config),
        recorder,
        recorded: BTreeSet::new(),
        written: Written::default(),
        make_plan: plan,
    };
    // From here on only `stop` ends this: whatever fails, what is served goes on.
    loop {
        let began = Instant::now();
        let is_settled = panics::catch_future("gateway", runner.turn()).await.unwrap_or(false);
        let again = async {
            match is_settled {
                true => std::future::pending().await,
                false => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        };
        tokio::select! {
            () = shared.changed.notified() => {}
            () = again => {}
            () = stop.cancelled() => break,
        }
        // A storm of changes takes half of our time at most.
        tokio::time::sleep(BATCH_INTERVAL.max(began.elapsed().min(Duration::from_secs(1)))).await;
    }
    let workers = runner.ports.close().await;
    plane.finish(STOP_TIMEOUT).await;
    workers.end().await;
    if !config.address_pool.is_empty() {
        let removing = tokio::task::spawn_blocking(move || own_addresses::remove(&config.address_pool));
        removing.await?.context("removing the addresses of Gateways")?;
    }
    Ok(())
}

/// What is kept from plan to plan.
struct Runner {
    client: Client,
    stop: CancellationToken,
    shared: Arc<Shared>,
    kinds: Kinds,
    tasks: JoinSet<()>,
    plane: Arc<DataPlane>,
    ports: Ports,
    settings: Settings,
    recorder: EventRecorder,
    recorded: BTreeSet<(Option<String>, &'static str, String)>,
    written: Written,
    make_plan: fn(&World, &Settings) -> Plan,
}

impl Runner {
    /// Plans and puts the plan into force; whether nothing has to be tried again. While no plan can be made, the routes that are
    /// there stay, and so do the connections that they serve.
    async fn turn(&mut self) -> bool {
        // Those that the cluster has only now are followed as they come.
        drop(self.kinds.start(&mut self.tasks, &self.stop));
        if let Err(error) = self.look_for_taken().await {
            tracing::error!(%error, "whose the addresses of the pool are is not known; the table that is served stays");
            return false;
        }
        loop {
            let world = self.shared.world.lock().clone();
            self.settings.now = jiff::Timestamp::now();
            let (asked, make_plan) = (self.settings.clone(), self.make_plan);
            let planning = move || panics::catch("gateway plan", || make_plan(&world, &asked));
            let Ok(Some(Plan { table, statuses, news })) = tokio::task::spawn_blocking(planning).await else {
                tracing::error!("no routing table can be made; the one that is served stays");
                return false;
            };
            let table = Arc::new(table);
            let missing = tell_kernel(&self.settings, &table, own_addresses::add).await;
            self.ports.close_gone(&table).await;
            self.plane.swap(table.clone());
            let mut closed = self.ports.apply(&table).await;
            for (bind, why) in &mut closed {
                // Why there is no such address says more than that a port of it cannot be opened.
                if let Some(said) = bind.address.and_then(|address| missing.get(&address)) {
                    why.clone_from(said);
                }
            }
            // Ports go before their addresses.
            let pool = self.settings.pool.clone();
            let is_left = tell_kernel(&self.settings, &table, move |wanted| release(wanted, &pool)).await;
            if closed == self.settings.closed_ports {
                record_events(&self.recorder, &mut self.recorded, news);
                let versions = self.shared.definitions.lock().clone();
                let is_written = write(&self.client, &versions, &mut self.written, statuses).await;
                return is_written && closed.is_empty() && !is_left;
            }
            for (bind, why) in &closed {
                tracing::warn!(%bind, why, "port cannot be opened");
            }
            self.settings.closed_ports = closed;
        }
    }

    /// Whoever has an address of this machine's own would stand where its other programs are reached.
    async fn look_for_taken(&mut self) -> std::io::Result<()> {
        if !self.settings.pool.is_empty() {
            let pool = self.settings.pool.clone();
            self.settings.taken = tokio::task::spawn_blocking(move || own_addresses::taken(&pool)).await??;
        }
        Ok(())
    }
}

/// Has the kernel told of the addresses that single Gateways have, which only a gateway with a pool does.
async fn tell_kernel<T: Default + Send + 'static>(
    settings: &Settings,
    table: &Table,
    tell: impl FnOnce(&BTreeSet<IpAddr>) -> T + Send + 'static,
) -> T {
    if settings.pool.is_empty() {
        return T::default();
    }
    let wanted = table.own_addresses();
    tokio::task::spawn_blocking(move || tell(&wanted)).await.unwrap_or_default()
}

/// Lets go of the addresses of Gateways that are gone; whether some are left, which is tried again.
fn release(wanted: &BTreeSet<IpAddr>, pool: &[Cidr]) -> bool {
    let kept = own_addresses::keep_only(wanted, pool);
    if let Err(error) = &kept {
        tracing::warn!(%error, link = own_addresses::LINK, "addresses of Gateways that are gone are still there");
    }
    kept.is_err()
}

fn settings(config: &Config) -> Settings {
    let addresses = if config.publish.is_empty() { &config.listen } else { &config.publish };
    Settings {
        addresses: addresses.iter().copied().filter(|address| !address.is_unspecified()).collect(),
        pool: config.address_pool.clone(),
        taken: BTreeSet::new(),
        node: config.node_name.clone(),
        http_port: config.http_port,
        https_port: config.https_port,
        reserved_ports: config.reserved_ports.clone(),
        closed_ports: BTreeMap::new(),
        now: jiff::Timestamp::UNIX_EPOCH,
    }
}

/// Applies an informer's events to what is known.
fn follow<K: Object>(
    informer: &Informer<K>,
    shared: &Arc<Shared>,
    apply: impl Fn(&mut World, String, Option<&Arc<K>>) + Send + Sync + 'static,
) {
    let shared = shared.clone();
    informer.subscribe(move |event| {
        let object = event.object();
        let present = (!matches!(event, Event::Deleted(_))).then_some(object);
        apply(Arc::make_mut(&mut shared.world.lock()), object_key(&**object), present);
        shared.changed.notify_one();
    });
}

fn keep<V>(map: &mut BTreeMap<String, V>, key: String, value: Option<V>) {
    match value {
        Some(value) => drop(map.insert(key, value)),
        None => drop(map.remove(&key)),
    }
}

/// Kinds that every cluster has; what comes back waits for all of them.
fn follow_builtin(
    informers: &InformerFactory,
    shared: &Arc<Shared>,
    config: &Config,
) -> impl Future<Output = ()> + use<> {
    let ingresses: Informer<Ingress> = informers.informer();
    let classes: Informer<IngressClass> = informers.informer();
    let services: Informer<Service> = informers.informer();
    let slices: Informer<EndpointSlice> = informers.informer();
    let namespaces: Informer<Namespace> = informers.informer();
    let secrets: Informer<Secret> = informers.filtered(ListParams::fields("type=kubernetes.io/tls"));
    follow(&ingresses, shared, |world, key, object| keep(&mut world.ingresses, key, object.cloned()));
    follow(&classes, shared, |world, key, object| keep(&mut world.ingress_classes, key, object.cloned()));
    follow(&services, shared, |world, key, object| keep(&mut world.services, key, object.cloned()));
    follow(&namespaces, shared, |world, key, namespace| {
        let labels = namespace.map(|namespace| namespace.metadata.labels.clone().unwrap_or_default());
        keep(&mut world.namespaces, key, labels);
    });
    follow(&secrets, shared, |world, key, secret| {
        keep(&mut world.certificates, key, secret.map(|secret| certificate(secret)));
    });
    slices_by_service(&slices, shared);
    let node = (!config.node_name.is_empty()).then(|| {
        let one: Informer<Node> = informers.filtered(ListParams::fields(format!("metadata.name={}", config.node_name)));
        follow(&one, shared, |world, _, node| {
            let labels = node.and_then(|node| node.metadata.labels.as_ref());
            world.zone = labels.and_then(|labels| labels.get(ZONE)).cloned();
        });
        one
    });
    async move {
        tokio::join!(ingresses.synced(), classes.synced(), services.synced(), slices.synced());
        tokio::join!(namespaces.synced(), secrets.synced());
        if let Some(node) = node {
            node.synced().await;
        }
    }
}

fn slices_by_service(slices: &Informer<EndpointSlice>, shared: &Arc<Shared>) {
    let shared = shared.clone();
    slices.subscribe(move |event| {
        let mut guard = shared.world.lock();
        let world = Arc::make_mut(&mut guard);
        let mut put = |slice: &Arc<EndpointSlice>, is_there: bool| {
            let Some(service) = service_key(slice) else { return };
            let of_service = world.slices.entry(service.clone()).or_default();
            keep(of_service, object_key(&**slice), is_there.then(|| slice.clone()));
            if of_service.is_empty() {
                world.slices.remove(&service);
            }
        };
        match event {
            Event::Added(slice) => put(slice, true),
            // It may be of another service now.
            Event::Modified { old, new } => {
                put(old, false);
                put(new, true);
            }
            Event::Deleted(slice) => put(slice, false),
        }
        drop(guard);
        shared.changed.notify_one();
    });
}

/// The kinds of the Gateway API that the cluster has.
fn follow_definitions(client: &Client, shared: &Arc<Shared>) -> Informer<Definition> {
    let api = client.view::<Definition>(&Gvr::new("apiextensions.k8s.io", "v1", DEFINITIONS), None);
    let definitions = Informer::new(api, ListParams::default());
    let shared = shared.clone();
    definitions.subscribe(move |event| {
        let definition = event.object();
        if definition.spec.group != GROUP {
            return;
        }
        let is_there = !matches!(event, Event::Deleted(_)) && definition.is_established();
        let version = VERSIONS.iter().find(|version| definition.serves(version)).copied().filter(|_| is_there);
        keep(&mut shared.definitions.lock(), definition.spec.names.plural.clone(), version);
        shared.changed.notify_one();
    });
    definitions
}

/// Kinds that a cluster may have, followed while it has them.
struct Kinds {
    client: Client,
    shared: Arc<Shared>,
    running: BTreeMap<&'static str, (&'static str, CancellationToken)>,
}

type Synced = BoxFuture<'static, ()>;

impl Kinds {
    /// Follows what is there and not followed yet; what comes back waits for each.
    fn start(&mut self, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Vec<Synced> {
        let known = self.shared.definitions.lock().clone();
        let mut synced = Vec::new();
        macro_rules! each {
            ($($kind:ty => $field:ident),* $(,)?) => {$(
                let one = self.one::<$kind>(<$kind>::PLURAL, known.get(<$kind>::PLURAL).copied(), tasks, stop, |world| {
                    &mut world.$field
                });
                synced.extend(one);
            )*};
        }
        each! {
            GatewayClass => gateway_classes,
            Gateway => gateways,
            HTTPRoute => http_routes,
            GRPCRoute => grpc_routes,
            TLSRoute => tls_routes,
            ReferenceGrant => grants,
            BackendTLSPolicy => backend_tls_policies,
        }
        synced.extend(self.authorities(tasks, stop));
        synced
    }

    /// ConfigMaps are many, and looked at only while there are policies that may name one.
    fn authorities(&mut self, tasks: &mut JoinSet<()>, stop: &CancellationToken) -> Option<Synced> {
        const CONFIG_MAPS: &str = "configmaps";
        let is_wanted = !self.shared.world.lock().backend_tls_policies.is_empty();
        if self.running.contains_key(CONFIG_MAPS) == is_wanted {
            return None;
        }
        if let Some((_, token)) = self.running.remove(CONFIG_MAPS) {
            token.cancel();
            Arc::make_mut(&mut self.shared.world.lock()).authorities.clear();
            return None;
        }
        let token = stop.child_token();
        let api = self.client.view::<AuthorityMap>(&Gvr::new("", "v1", CONFIG_MAPS), None);
        let informer = Informer::new(api, ListParams::default());
        let gone = token.clone();
        follow(&informer, &self.shared, move |world, key, map| {
            if !gone.is_cancelled() {
                keep(&mut world.authorities, key, map.and_then(|map| authority(map)));
            }
        });
        self.running.insert(CONFIG_MAPS, ("v1", token.clone()));
        tasks.spawn(FutureExt::boxed(keep_following(informer.untyped(), CONFIG_MAPS, token)));
        Some(informer.untyped().synced())
    }

    fn one<K: Object>(
        &mut self,
        plural: &'static str,
        version: Option<&'static str>,
        tasks: &mut JoinSet<()>,
        stop: &CancellationToken,
        objects: fn(&mut World) -> &mut Objects<K>,
    ) -> Option<Synced> {
        let running = self.running.get(plural).map(|(version, _)| *version);
        if running == version {
            return None;
        }
        if let Some((_, token)) = self.running.remove(plural) {
            token.cancel();
            // In another version they are still there: routes and policies hold until the new list is in.
            if version.is_none() {
                objects(Arc::make_mut(&mut self.shared.world.lock())).clear();
            }
        }
        let version = version?;
        let token = stop.child_token();
        let api = self.client.view::<K>(&Gvr::new(GROUP, version, plural), None);
        let informer = Informer::new(api, ListParams::default());
        let gone = token.clone();
        follow(&informer, &self.shared, move |world, key, object| {
            // A late event of one that is not followed any more says nothing.
            if !gone.is_cancelled() {
                keep(objects(world), key, object.cloned());
            }
        });
        self.running.insert(plural, (version, token.clone()));
        if running.is_some() {
            tasks.spawn(FutureExt::boxed(forget_missing(
                informer.clone(),
                self.shared.clone(),
                token.clone(),
                objects,
            )));
        }
        tasks.spawn(FutureExt::boxed(keep_following(informer.untyped(), plural, token)));
        Some(informer.untyped().synced())
    }
}

/// A kind that nobody follows any more would stay as it was last seen.
async fn keep_following(informer: AnyInformer, plural: &'static str, stop: CancellationToken) {
    client::outlive_panics("gateway", plural, &stop, || informer.run(stop.clone())).await;
}

/// Lets go, once the first list is in, of what was known before and is not in it: it was deleted while nobody followed.
async fn forget_missing<K: Object>(
    informer: Informer<K>,
    shared: Arc<Shared>,
    gone: CancellationToken,
    objects: fn(&mut World) -> &mut Objects<K>,
) {
    tokio::select! {
        () = informer.synced() => {}
        () = gone.cancelled() => return,
    }
    let mut world = shared.world.lock();
    // Under the lock: whoever follows after us has not written anything yet if we are not cancelled.
    if !gone.is_cancelled() {
        objects(Arc::make_mut(&mut world)).retain(|key, _| informer.get(key).is_some());
        shared.changed.notify_one();
    }
}

/// Says what is new of it; what is mended may be said again.
fn record_events(
    recorder: &EventRecorder,
    recorded: &mut BTreeSet<(Option<String>, &'static str, String)>,
    news: Vec<News>,
) {
    let mut present = BTreeSet::new();
    for one in news {
        let key = (one.about.uid.clone(), one.reason, one.message.clone());
        if !recorded.contains(&key) && !present.contains(&key) {
            recorder.warning(&one.about, one.reason, one.message);
        }
        present.insert(key);
    }
    *recorded = present;
}

/// What is known of the statuses that were written.
#[derive(Default)]
struct Written {
    /// How often each was, from when on.
    counts: BTreeMap<(Kind, Option<String>, String), (Instant, u32)>,
    /// Those that changed nothing.
    in_vain: Vec<Status>,
}

impl Written {
    /// Whether one may be written now, which counts as written.
    fn admits(&mut self, status: &Status, now: Instant) -> bool {
        let key = (status.kind, status.namespace.clone(), status.name.clone());
        let (_, count) = self.counts.entry(key).or_insert((now, 0));
        *count = count.saturating_add(1);
        *count <= MAX_WRITES
    }

    fn forget(&mut self, now: Instant) {
        self.counts.retain(|_, (since, _)| now.duration_since(*since) < RETRY_INTERVAL);
    }

    /// Leaves out what would change nothing again: an older definition of a kind does not have every member that is written.
    fn not_in_vain(&mut self, statuses: Vec<Status>) -> Vec<Status> {
        let (in_vain, others) = statuses.into_iter().partition(|status| self.in_vain.contains(status));
        self.in_vain = in_vain;
        others
    }

    /// Takes note of the object as it is after its status was written.
    fn note(&mut self, status: Status, object: &serde_json::Value) {
        let version = object["metadata"]["resourceVersion"].as_str();
        if version.is_some() && version == status.resource_version.as_deref() {
            self.in_vain.push(status);
        }
    }
}

/// Writes statuses; whether none has to be tried again. An object that has changed since comes back by itself.
async fn write(
    client: &Client,
    versions: &BTreeMap<String, &'static str>,
    written: &mut Written,
    statuses: Vec<Status>,
) -> bool {
    let mut is_written = true;
    written.forget(Instant::now());
    for status in written.not_in_vain(statuses) {
        if !written.admits(&status, Instant::now()) {
            tracing::warn!(kind = ?status.kind, name = status.name, "status is written by somebody else, too");
            is_written = false;
            continue;
        }
        let gvr = resource(status.kind, versions);
        let body = json!({"metadata": {"resourceVersion": status.resource_version}, "status": status.status});
        let api = client.dynamic(&gvr, status.namespace.as_deref());
        match api.patch_status(&status.name, &Patch::merge(body)).await {
            Ok(object) => written.note(status, &object),
            Err(error) if error.is_conflict() || error.is_not_found() => {}
            Err(error) => {
                tracing::warn!(kind = ?status.kind, name = status.name, %error, "status not written");
                is_written = false;
            }
        }
    }
    is_written
}

/// Where objects of a kind are written, in the version that the cluster has of it.
fn resource(kind: Kind, versions: &BTreeMap<String, &'static str>) -> Gvr {
    let plural = match kind {
        Kind::Ingress => return Gvr::new("networking.k8s.io", "v1", "ingresses"),
        Kind::GatewayClass => GatewayClass::PLURAL,
        Kind::Gateway => Gateway::PLURAL,
        Kind::HttpRoute => HTTPRoute::PLURAL,
        Kind::GrpcRoute => GRPCRoute::PLURAL,
        Kind::TlsRoute => TLSRoute::PLURAL,
        Kind::BackendTlsPolicy => BackendTLSPolicy::PLURAL,
    };
    Gvr::new(GROUP, versions.get(plural).copied().unwrap_or(VERSIONS[0]), plural)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use data_plane::Limits;

    use super::*;

    #[tokio::test]
    async fn security_objects_stay_while_their_version_changes() {
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = Client::in_process(handler, api::UserInfo::default());
        let shared = Arc::new(Shared::default());
        let mut kinds = Kinds { client, shared: shared.clone(), running: BTreeMap::new() };
        let (mut tasks, stop) = (JoinSet::new(), CancellationToken::new());
        let mut follow = |version: Option<&'static str>| {
            let plural = BackendTLSPolicy::PLURAL;
            let is_new = kinds
                .one::<BackendTLSPolicy>(plural, version, &mut tasks, &stop, |world| &mut world.backend_tls_policies);
            (is_new.is_some(), shared.world.lock().backend_tls_policies.len())
        };
        assert_eq!(follow(Some("v1alpha3")), (true, 0));
        let tls: Arc<BackendTLSPolicy> = Arc::default();
        Arc::make_mut(&mut shared.world.lock()).backend_tls_policies.insert("default/tls".into(), tls);
        assert_eq!(follow(Some("v1alpha3")), (false, 1));
        assert_eq!(follow(Some("v1")), (true, 1));
        assert_eq!(follow(None), (false, 0));
    }

    /// The first plan and every later one are made of nothing; those between cannot be made.
    static PLANS: AtomicUsize = AtomicUsize::new(0);

    fn fragile_plan(world: &World, settings: &Settings) -> Plan {
        assert!(![1, 2].contains(&PLANS.fetch_add(1, Ordering::SeqCst)), "on purpose");
        plan(world, settings)
    }

    #[tokio::test]
    async fn security_a_plan_that_panics_leaves_what_is_served() {
        let handler: client::Handler = Arc::new(|_| Box::pin(std::future::pending()));
        let client = Client::in_process(handler, api::UserInfo::default());
        let (shared, stop) = (Arc::new(Shared::default()), CancellationToken::new());
        let plane = DataPlane::new(Limits::default(), None, Metrics::new(), stop.clone()).unwrap();
        let mut runner = Runner {
            client: client.clone(),
            stop: stop.clone(),
            shared: shared.clone(),
            kinds: Kinds { client: client.clone(), shared, running: BTreeMap::new() },
            tasks: JoinSet::new(),
            ports: Ports::new(plane.clone(), vec!["127.0.0.1".parse().unwrap()]),
            plane: plane.clone(),
            settings: settings(&Config::new(client.clone(), "node-1", Vec::new())),
            recorder: EventRecorder::new(client, "gateway", "node-1"),
            recorded: BTreeSet::new(),
            written: Written::default(),
            make_plan: fragile_plan,
        };
        assert!(runner.turn().await);
        let served = plane.table();
        for _ in 0..2 {
            assert!(!runner.turn().await, "it is tried again");
            assert!(Arc::ptr_eq(&plane.table(), &served));
        }
        assert!(runner.turn().await);
        assert!(!Arc::ptr_eq(&plane.table(), &served));
        assert!(panics::counts().contains(&("gateway plan", 2)));
        stop.cancel();
    }

    #[test]
    fn statuses_are_written_in_the_version_that_is_served() {
        let versions = BTreeMap::from([("tlsroutes".to_owned(), "v1alpha2"), ("gateways".to_owned(), "v1")]);
        for (kind, expected) in [
            (Kind::TlsRoute, "gateway.networking.k8s.io/v1alpha2/tlsroutes"),
            (Kind::Gateway, "gateway.networking.k8s.io/v1/gateways"),
            (Kind::HttpRoute, "gateway.networking.k8s.io/v1/httproutes"),
            (Kind::Ingress, "networking.k8s.io/v1/ingresses"),
        ] {
            let Gvr { group, version, resource } = resource(kind, &versions);
            assert_eq!(format!("{group}/{version}/{resource}"), expected);
        }
    }

    #[test]
    fn security_two_writers_of_a_status_do_not_chase_each_other() {
        let status = |name: &str| Status {
            kind: Kind::Ingress,
            namespace: Some("default".into()),
            name: name.into(),
            resource_version: None,
            status: json!({}),
        };
        let (mut written, began) = (Written::default(), Instant::now());
        let admitted = (0..1000).filter(|_| written.admits(&status("one"), began)).count();
        assert_eq!(admitted, MAX_WRITES as usize);
        assert!(written.admits(&status("two"), began), "others are not concerned");
        written.forget(began + RETRY_INTERVAL / 2);
        assert!(!written.admits(&status("one"), began + RETRY_INTERVAL / 2));
        written.forget(began + RETRY_INTERVAL);
        assert!(written.admits(&status("one"), began + RETRY_INTERVAL));
    }

    #[test]
    fn a_status_that_changes_nothing_is_not_written_again() {
        let status = |name: &str, version: &str| Status {
            kind: Kind::GatewayClass,
            namespace: None,
            name: name.into(),
            resource_version: Some(version.into()),
            status: json!({}),
        };
        let object = |version: &str| json!({"metadata": {"resourceVersion": version}});
        let mut written = Written::default();
        written.note(status("pruned", "1"), &object("1"));
        written.note(status("changed", "1"), &object("2"));
        let left = |written: &mut Written, statuses: &[Status]| written.not_in_vain(statuses.to_vec());
        let both = [status("pruned", "1"), status("changed", "1")];
        assert_eq!(left(&mut written, &both), [status("changed", "1")]);
        assert_eq!(left(&mut written, &both), [status("changed", "1")]);
        // The object has changed: it may be another definition's now.
        assert_eq!(left(&mut written, &[status("pruned", "2")]), [status("pruned", "2")]);
        assert_eq!(written.in_vain, []);
    }
}

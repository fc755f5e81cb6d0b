//! Garbage collector: objects whose owners are all gone go too.
//!
//! Flow: the metadata of every deletable resource (found by discovery, and again whenever a CRD or API service changes), from the
//! manager's informer where there is one and else by a watch of metadata alone -> `graph` -> work queue -> live reads, deletes and patches.
//! Invariant: nothing is deleted on the word of a cache. The object and any owner not in the graph are read from the server first.
//! Invariant: of an owner, only what was seen where the reference leads counts. An aggregated API server may show objects with the
//! uids of any others.
//! Invariant: a server that does not answer holds up what concerns its own groups, by `turns`.

mod graph;
mod turns;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use api::meta::Meta as _;
use client::metrics::Counter;
use client::{
    ApiResource, Client, DeleteParams, Event, Gvr, Informer, InformerFactory, ListParams, MetadataEvent,
    MetadataHandler, Owned, PartialObject, Patch, Propagation, WorkQueue,
};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, TryStreamExt};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use graph::{FOREGROUND, Graph, Node, ORPHAN, Place, Work, group_of};
use turns::Turns;

/// Ask the server again which resources there are.
const DISCOVER: &str = "discover";
/// Dependents cut loose at a time.
const PARALLEL: usize = 16;
/// How many objects the server is asked for at a time.
const PAGE: u32 = 500;
/// A uid never comes back, so this is only as long as a search through it should be.
const ABSENT: usize = 64;
/// Discovery answers a moment after a CRD is established.
const DISCOVERY_DELAY: Duration = Duration::from_millis(500);
/// For the list of what a namespace has of a kind of an aggregated API server.
const AGGREGATED_LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// After which an owner that exists but was not seen is looked up again.
const OWNER_RETRY_INTERVAL: Duration = Duration::from_secs(2);

struct Controller {
    client: Client,
    /// What the manager watches anyway is not watched once more.
    informers: InformerFactory,
    /// How often the server could not say which resources there are.
    failures: Counter,
    services: Informer<APIService>,
    queue: WorkQueue<String>,
    graph: Arc<Mutex<Graph>>,
    resources: Mutex<Vec<ApiResource>>,
    monitors: Mutex<HashMap<Gvr, CancellationToken>>,
    /// Owners lately found missing, by uid and place: a thousand dependents ask only once.
    absent: Mutex<VecDeque<(String, Place)>>,
    turns: Turns,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Ends the monitors with the controller.
impl Drop for Controller {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    context.on::<CustomResourceDefinition, _>(|_| [DISCOVER.to_owned()]);
    let services = context.on::<APIService, _>(|event| match event {
        // What a server behind the API server offers can be asked once it is there.
        Event::Modified { old, new } if is_available(old) == is_available(new) => None,
        _ => Some(DISCOVER.to_owned()),
    });
    context.queue.add(DISCOVER.to_owned());
    Arc::new(Controller {
        client: context.client.clone(),
        informers: context.informers.clone(),
        failures: context.config.metrics.counter(
            "garbagecollector_controller_resources_sync_error_total",
            "Number of garbage collector resources sync errors",
            &[],
        ),
        services,
        queue: context.queue.clone(),
        graph: Arc::default(),
        resources: Mutex::default(),
        monitors: Mutex::default(),
        absent: Mutex::default(),
        turns: Turns::new(context.queue.clone()),
        stop: CancellationToken::new(),
        tasks: TaskTracker::new(),
    })
}

fn is_available(service: &APIService) -> bool {
    let conditions = service.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Available" && condition.status == "True")
}

fn key(work: Work) -> String {
    match work {
        Work::Check(id) => format!("check/{id}"),
        Work::Orphan(id) => format!("orphan/{id}"),
    }
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some((work, id)) = key.split_once('/') else { return self.discover().await };
            let is_orphan = work == "orphan";
            let groups = match is_orphan {
                true => self.graph.lock().groups_of_dependents(id),
                false => self.graph.lock().groups_of_owners(id),
            };
            let _turn = match groups.into_iter().find(|group| self.is_of_others(group)) {
                None => None,
                Some(group) => match self.turns.take(group, key) {
                    Some(turn) => Some(turn),
                    None => return Ok(Requeue::Never),
                },
            };
            if is_orphan { self.orphan_dependents(id).await } else { self.check(id).await }
        })
    }

    fn background(&self, stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        Some(Box::pin(crate::controller::end_tasks(stop, &self.stop, &self.tasks)))
    }
}

impl Controller {
    /// Watches every resource that can be listed, watched and deleted; stops watching those that are gone.
    async fn discover(&self) -> Outcome {
        tokio::time::sleep(DISCOVERY_DELAY).await;
        let (resources, failed) = self.client.discover().await?;
        // Known before the first event comes: an owner of a kind that is not known is never looked up.
        *self.resources.lock() = resources.clone();
        let wanted: Vec<&ApiResource> = resources.iter().filter(|resource| is_collected(resource)).collect();
        {
            let mut monitors = self.monitors.lock();
            // A group that could not be asked may well still be there.
            let unknown = |gvr: &Gvr| failed.iter().any(|(path, _)| *path == gvr.url_prefix());
            monitors.retain(|gvr, stop| {
                let keep = wanted.iter().any(|resource| resource.gvr == *gvr) || unknown(gvr);
                if !keep {
                    stop.cancel();
                }
                keep
            });
            for resource in wanted {
                monitors.entry(resource.gvr.clone()).or_insert_with(|| self.monitor(&resource.gvr));
            }
        }
        if failed.is_empty() {
            return Ok(Requeue::Never);
        }
        self.failures.inc();
        Ok(Requeue::After(Duration::from_secs(30)))
    }

    fn monitor(&self, gvr: &Gvr) -> CancellationToken {
        // A shared informer outlives this controller: it must not keep its graph.
        let (graph, queue, resource) = (Arc::downgrade(&self.graph), self.queue.clone(), Arc::new(gvr.clone()));
        let handler: MetadataHandler = Box::new(move |event| {
            let Some(graph) = graph.upgrade() else { return };
            let work = match event {
                MetadataEvent::Present(meta) => graph.lock().observe(&resource, meta),
                MetadataEvent::Deleted(meta) => graph.lock().remove(&graph::id(&resource.group, meta.uid())),
            };
            work.into_iter().for_each(|work| queue.add(key(work)));
        });
        let stop = self.stop.child_token();
        let Err(handler) = self.informers.follow_metadata(gvr, handler) else { return stop };
        let informer: Informer<Owned> = Informer::new(self.client.owned(gvr, None), ListParams::default());
        informer.subscribe(move |event| handler(event.metadata()));
        let token = stop.clone();
        self.tasks.spawn(FutureExt::boxed(async move { informer.run(token).await }));
        stop
    }

    /// Decides about one object: keep it, shorten its owner list, delete it, or let its foreground deletion finish.
    async fn check(&self, id: &str) -> Outcome {
        let Some(node) = self.graph.lock().facts(id) else { return Ok(Requeue::Never) };
        let (_, uid) = graph::parts(id);
        let place = match (&node.place, &node.reference) {
            (Some(place), _) => place.clone(),
            (None, Some(reference)) => match self.place_of(&reference.0, reference.1.as_ref()) {
                Some(place) => place,
                None => return Ok(Requeue::Never), // a kind nobody serves: never collected
            },
            (None, None) => return Ok(Requeue::Never),
        };
        if node.is_deleting && !node.waits_for_dependents {
            return Ok(Requeue::Never);
        }
        let Some(live) = self.read(&place).await?.filter(|live| live.metadata.uid.as_deref() == Some(uid)) else {
            // Gone. For an owner never seen this is the news its dependents wait for. Of one that another server has shown,
            // the watch may never tell: it would keep its own owner waiting.
            let is_told = node.place.is_some() && self.is_ours(&place.gvr);
            let work = if is_told { Vec::new() } else { self.graph.lock().remove(id) };
            work.into_iter().for_each(|work| self.queue.add(key(work)));
            return Ok(Requeue::Never);
        };
        if node.place.is_none() {
            // Its watch will tell, unless it has not begun: then the object may be gone before that, and nobody tells.
            let is_watched = self.monitors.lock().contains_key(&place.gvr);
            return Ok(if is_watched { Requeue::After(OWNER_RETRY_INTERVAL) } else { Requeue::Never });
        }
        if node.waits_for_dependents {
            return self.finish_foreground(id, &place, &live).await;
        }
        let owners = live.metadata.owner_references.clone().unwrap_or_default();
        if owners.is_empty() {
            return Ok(Requeue::Never);
        }
        let (mut solid, mut waiting) = (Vec::new(), Vec::new());
        for owner in &owners {
            match self.state_of(owner, live.metadata.namespace.as_ref()).await? {
                OwnerState::Solid => solid.push(owner.clone()),
                OwnerState::Waiting => waiting.push(owner.clone()),
                OwnerState::Gone => {}
            }
        }
        if !solid.is_empty() {
            if solid.len() != owners.len() {
                self.patch_owners(&place, &live, &solid).await?;
            }
            return Ok(Requeue::Never);
        }
        let finalizer = |name: &str| live.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == name);
        let propagation = if !waiting.is_empty() && node.has_dependents {
            // Its owner waits for it, so it in turn waits for its own. If one of those is waiting as well this may be
            // a circle, which would wait for ever: then nobody waits for this one.
            if self.graph.lock().has_waiting_dependent(id) && owners.iter().any(blocks) {
                let free =
                    owners.iter().map(|owner| OwnerReference { block_owner_deletion: Some(false), ..owner.clone() });
                self.patch_owners(&place, &live, &free.collect::<Vec<_>>()).await?;
            }
            Propagation::Foreground
        } else if finalizer(ORPHAN) {
            Propagation::Orphan
        } else if finalizer(FOREGROUND) {
            Propagation::Foreground
        } else {
            Propagation::Background
        };
        let params = DeleteParams { propagation: Some(propagation), uid: Some(uid.into()), ..DeleteParams::default() };
        match self.api(&place).delete(&place.name, &params).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
            _ => Ok(Requeue::Never),
        }
    }

    async fn finish_foreground(&self, id: &str, place: &Place, live: &PartialObject) -> Outcome {
        let (is_blocked, unchecked) = self.graph.lock().blockers(id);
        if !is_blocked {
            self.remove_finalizer(place, live, FOREGROUND).await?;
        }
        unchecked.into_iter().for_each(|blocker| self.queue.add(key(Work::Check(blocker))));
        Ok(Requeue::Never)
    }

    /// Removes the owner from each dependent, and only then the finalizer that held it.
    async fn orphan_dependents(&self, id: &str) -> Outcome {
        let (_, uid) = graph::parts(id);
        let (place, dependents) = {
            let graph = self.graph.lock();
            let Some(place) = graph.get(id).and_then(|node| node.place.clone()) else { return Ok(Requeue::Never) };
            (place, graph.dependents(id))
        };
        let owner = &place;
        let orphan = |dependent: Place| async move {
            match self.read(&dependent).await? {
                Some(live) => self.cut_loose(&dependent, &live, uid, owner).await,
                None => Ok(()),
            }
        };
        stream::iter(dependents.into_iter().map(Ok)).try_for_each_concurrent(PARALLEL, orphan).await?;
        if let Some(namespace) = &place.namespace {
            self.orphan_unseen(uid, &place, namespace).await?;
        }
        if let Some(live) = self.read(&place).await?.filter(|live| live.metadata.uid.as_deref() == Some(uid)) {
            self.remove_finalizer(&place, &live, ORPHAN).await?;
        }
        Ok(Requeue::Never)
    }

    /// Cuts loose what the watches have not shown yet: it would be taken for garbage once its owner is gone.
    async fn orphan_unseen(&self, uid: &str, owner: &Place, namespace: &str) -> Result<(), Error> {
        let kinds: Vec<Gvr> = {
            let resources = self.resources.lock();
            let kept = resources.iter().filter(|resource| resource.namespaced && is_collected(resource));
            kept.map(|resource| resource.gvr.clone()).collect()
        };
        let mut silent: Vec<String> = Vec::new();
        for gvr in kinds {
            let (group, is_aggregated) = (gvr.url_prefix(), self.is_aggregated(&gvr));
            if silent.contains(&group) {
                continue;
            }
            let (api, params) = (self.client.metadata(&gvr, Some(namespace)), ListParams::default());
            let listing = api.list_all(&params, PAGE);
            let found = match is_aggregated {
                true => tokio::time::timeout(AGGREGATED_LIST_TIMEOUT, listing).await.ok(),
                false => Some(listing.await),
            };
            let found = match found {
                Some(Ok(found)) => found,
                // What a server had that is gone, its watch has shown. One that is only busy may have more.
                Some(Err(error)) if !error.is_retriable() || matches!(error.code(), Some(502..=504)) => continue,
                Some(Err(error)) if !is_aggregated => return Err(error.into()),
                // Upstream does not look beyond its watches at all. Otherwise one server would keep all owners.
                failed => {
                    let error = failed.and_then(Result::err).map(|error| error.to_string()).unwrap_or_default();
                    tracing::warn!(%group, %error, "what an owner leaves behind there may be taken for garbage");
                    silent.push(group);
                    continue;
                }
            };
            let gvr = Arc::new(gvr);
            for live in found.items {
                let name = live.metadata.name().to_owned();
                let place = Place { gvr: gvr.clone(), namespace: Some(namespace.to_owned()), name };
                self.cut_loose(&place, &live, uid, owner).await?;
            }
        }
        Ok(())
    }

    /// Whether another server has the kind.
    fn is_aggregated(&self, gvr: &Gvr) -> bool {
        let registered = self.services.get(&format!("{}.{}", gvr.version, gvr.group));
        registered.is_some_and(|service| service.spec.as_ref().is_some_and(|spec| spec.service.is_some()))
    }

    /// Whether another server has the group.
    fn is_of_others(&self, group: &str) -> bool {
        // By what is registered: who does not answer has no resources that are known.
        let has_it = |service: &Arc<APIService>| {
            service.spec.as_ref().is_some_and(|spec| spec.group.as_deref() == Some(group) && spec.service.is_some())
        };
        !group.is_empty() && self.services.list().iter().any(has_it)
    }

    /// Whether we serve the kind, in any version: its watch tells what is gone. A version that is not served any more has no
    /// objects, and they are there all the same.
    fn is_ours(&self, gvr: &Gvr) -> bool {
        let is_kind = |known: &Gvr| known.group == gvr.group && known.resource == gvr.resource;
        let is_served = self.resources.lock().iter().any(|resource| is_kind(&resource.gvr));
        is_served && !self.is_of_others(&gvr.group)
    }

    /// Takes an owner from an object, if it is one of its owners.
    async fn cut_loose(&self, dependent: &Place, live: &PartialObject, uid: &str, owner: &Place) -> Result<(), Error> {
        let leads_there = |reference: &OwnerReference| {
            let place = || self.place_of(reference, live.metadata.namespace.as_ref());
            reference.uid == uid && place().is_none_or(|place| place.is(owner))
        };
        let owners = live.metadata.owner_references.clone().unwrap_or_default();
        let kept: Vec<_> = owners.iter().filter(|reference| !leads_there(reference)).cloned().collect();
        if kept.len() != owners.len() {
            self.patch_owners(dependent, live, &kept).await?;
        }
        Ok(())
    }

    async fn state_of(&self, owner: &OwnerReference, namespace: Option<&String>) -> Result<OwnerState, Error> {
        // An owner of a kind that nobody serves: its dependents are kept, the kind may come back.
        let Some(place) = self.place_of(owner, namespace) else { return Ok(OwnerState::Solid) };
        let seen_there = |node: &&Node| node.place.as_ref().is_some_and(|seen| seen.is(&place));
        let id = graph::id(group_of(owner), &owner.uid);
        let waits = self.graph.lock().get(&id).filter(seen_there).map(|node| node.waits_for_dependents);
        match waits {
            Some(true) => return Ok(OwnerState::Waiting),
            Some(false) => return Ok(OwnerState::Solid),
            None => {}
        }
        let reference = (owner.uid.clone(), place.clone());
        if self.absent.lock().contains(&reference) {
            return Ok(OwnerState::Gone);
        }
        let live = self.read(&place).await?.filter(|live| live.metadata.uid.as_deref() == Some(&owner.uid));
        Ok(match live {
            None => {
                let mut absent = self.absent.lock();
                absent.push_back(reference);
                if absent.len() > ABSENT {
                    absent.pop_front();
                }
                OwnerState::Gone
            }
            Some(live) => {
                let foreground = live.metadata.finalizers.iter().flatten().any(|finalizer| finalizer == FOREGROUND);
                if live.metadata.deletion_timestamp.is_some() && foreground {
                    OwnerState::Waiting
                } else {
                    OwnerState::Solid
                }
            }
        })
    }

    fn place_of(&self, owner: &OwnerReference, namespace: Option<&String>) -> Option<Place> {
        let group = group_of(owner);
        let resources = self.resources.lock();
        let resource = resources.iter().find(|resource| resource.gvr.group == group && resource.kind == owner.kind)?;
        let namespace = if resource.namespaced { Some(namespace?.clone()) } else { None };
        Some(Place { gvr: Arc::new(resource.gvr.clone()), namespace, name: owner.name.clone() })
    }

    fn api(&self, place: &Place) -> client::Api<PartialObject> {
        self.client.metadata(&place.gvr, place.namespace.as_deref())
    }

    async fn read(&self, place: &Place) -> Result<Option<PartialObject>, Error> {
        Ok(self.api(place).get_opt(&place.name).await?)
    }

    async fn patch_owners(&self, place: &Place, live: &PartialObject, owners: &[OwnerReference]) -> Result<(), Error> {
        let owners = (!owners.is_empty()).then_some(owners);
        self.patch(place, live, json!({ "ownerReferences": owners })).await
    }

    async fn remove_finalizer(&self, place: &Place, live: &PartialObject, finalizer: &str) -> Result<(), Error> {
        let finalizers = live.metadata.finalizers.clone().unwrap_or_default();
        let kept: Vec<_> = finalizers.iter().filter(|kept| *kept != finalizer).collect();
        if kept.len() == finalizers.len() {
            return Ok(());
        }
        self.patch(place, live, json!({ "finalizers": (!kept.is_empty()).then_some(kept) })).await
    }

    /// A merge patch replaces lists whole, so it carries the version that was read.
    async fn patch(&self, place: &Place, live: &PartialObject, mut metadata: serde_json::Value) -> Result<(), Error> {
        metadata["resourceVersion"] = json!(live.metadata.resource_version);
        metadata["uid"] = json!(live.metadata.uid);
        match self.api(place).patch(&place.name, &Patch::merge(json!({ "metadata": metadata }))).await {
            Err(error) if !error.is_not_found() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

enum OwnerState {
    Solid,
    /// Being deleted in the foreground.
    Waiting,
    Gone,
}

fn blocks(owner: &OwnerReference) -> bool {
    owner.block_owner_deletion == Some(true)
}

/// Events are many, short-lived and own nothing.
fn is_collected(resource: &ApiResource) -> bool {
    ["delete", "list", "watch"].iter().all(|verb| resource.supports(verb)) && resource.gvr.resource != "events"
}

#[cfg(test)]
mod tests {
    use client::Body;
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::{BodyExt, Full};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
    use serde_json::Value;

    use super::*;

    const OTHERS: &str = "things.example.com";

    fn resource(group: &'static str, plural: &'static str, kind: &str) -> ApiResource {
        let verbs = ["delete", "list", "watch"].map(str::to_owned).to_vec();
        ApiResource { gvr: Gvr::new(group, "v1", plural), kind: kind.to_owned(), namespaced: true, verbs }
    }

    fn controller(handler: client::Handler) -> Controller {
        let client = Client::in_process(handler, api::UserInfo::default());
        let services = Informer::new(client.all(), ListParams::default());
        let resources = vec![
            resource(OTHERS, "things", "Thing"),
            resource("apps", "deployments", "Deployment"),
            resource("apps", "replicasets", "ReplicaSet"),
        ];
        let queue = WorkQueue::new();
        Controller {
            informers: InformerFactory::new(client.clone()),
            client,
            failures: client::metrics::Metrics::default().counter("failures", "", &[]),
            services,
            turns: Turns::new(queue.clone()),
            queue,
            graph: Arc::default(),
            resources: Mutex::new(resources),
            monitors: Mutex::default(),
            absent: Mutex::default(),
            stop: CancellationToken::new(),
            tasks: TaskTracker::new(),
        }
    }

    /// A deployment with a replica set.
    fn deployment() -> Value {
        json!({ "name": "web", "namespace": "default", "uid": "d" })
    }

    fn replica_set() -> Value {
        let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d" });
        json!({ "name": "web-1", "namespace": "default", "uid": "rs", "ownerReferences": [owner] })
    }

    /// An object that another server shows: it has the uid and the name of the deployment, and is about to go.
    fn double(finalizer: &str) -> Value {
        let deleted = "2026-01-01T00:00:00Z";
        json!({ "name": "web", "namespace": "default", "uid": "d", "finalizers": [finalizer],
            "deletionTimestamp": deleted })
    }

    fn observe(controller: &Controller, group: &'static str, plural: &'static str, metadata: &Value) {
        let metadata: ObjectMeta = serde_json::from_value(metadata.clone()).unwrap();
        controller.graph.lock().observe(&Arc::new(Gvr::new(group, "v1", plural)), &metadata);
    }

    fn answer(request: &Request<bytes::Bytes>, finalizer: &str) -> Response<Body> {
        let object = |metadata: Value| json!({ "metadata": metadata });
        let list = |items: Vec<Value>| json!({ "metadata": {}, "items": items });
        let (code, body) = match request.uri().path().rsplit_once("/default/").map_or("", |(_, rest)| rest) {
            "deployments/web" => (StatusCode::OK, object(deployment())),
            "replicasets/web-1" => (StatusCode::OK, object(replica_set())),
            "things/web" => (StatusCode::OK, object(double(finalizer))),
            "replicasets" => (StatusCode::OK, list(vec![object(replica_set())])),
            "deployments" | "things" => (StatusCode::OK, list(Vec::new())),
            _ => (StatusCode::NOT_FOUND, json!({})),
        };
        whole(code, &body)
    }

    fn whole(code: StatusCode, body: &Value) -> Response<Body> {
        let body = Full::new(body.to_string().into()).map_err(|never| match never {}).boxed_unsync();
        Response::builder().status(code).body(body).unwrap()
    }

    #[tokio::test]
    async fn security_an_object_with_the_uid_of_another_is_not_its_dependents_owner() {
        for finalizer in [FOREGROUND, ORPHAN] {
            let writes: Arc<Mutex<Vec<String>>> = Arc::default();
            let seen = writes.clone();
            let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
                if request.method() != Method::GET {
                    seen.lock().push(format!("{} {}", request.method(), request.uri().path()));
                }
                let response = answer(&request, finalizer);
                Box::pin(async move { response })
            });
            let controller = controller(handler);
            observe(&controller, "apps", "deployments", &deployment());
            observe(&controller, "apps", "replicasets", &replica_set());
            observe(&controller, OTHERS, "things", &double(finalizer));
            for key in ["check/apps/rs", "check/apps/d"] {
                assert!(controller.reconcile(key).await.is_ok(), "{key}");
            }
            for work in ["check", "orphan"] {
                assert!(controller.reconcile(&format!("{work}/{OTHERS}/d")).await.is_ok(), "{work}");
            }
            let elsewhere = |write: &String| write.contains(OTHERS);
            assert!(writes.lock().iter().all(elsewhere), "{finalizer}: {:?}", writes.lock());
        }
    }

    const REGISTRATIONS: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

    /// Another server has the group.
    fn registrations() -> Value {
        let service = json!({ "metadata": { "name": format!("v1.{OTHERS}") },
            "spec": { "group": OTHERS, "version": "v1", "service": { "namespace": "n", "name": "s" },
                "groupPriorityMinimum": 1, "versionPriority": 1 } });
        json!({ "metadata": { "resourceVersion": "5" }, "items": [service] })
    }

    #[tokio::test]
    async fn security_a_silent_server_holds_a_few_workers_only() {
        let handler: client::Handler = Arc::new(|request: Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default();
            let response = match request.uri().path() {
                _ if query.contains("sendInitialEvents") => Some(whole(StatusCode::BAD_REQUEST, &json!({}))),
                REGISTRATIONS if !query.contains("watch=") => Some(whole(StatusCode::OK, &registrations())),
                path if path.ends_with("/web-1") || path.ends_with("s/web") => Some(answer(&request, ORPHAN)),
                _ => None,
            };
            Box::pin(async move {
                match response {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            })
        });
        let controller = controller(handler);
        let (services, stop) = (controller.services.clone(), controller.stop.clone());
        let following = tokio::spawn(async move { services.run(stop).await });
        controller.services.synced().await;
        // It told nobody which resources it has, either.
        controller.resources.lock().retain(|resource| resource.gvr.group != OTHERS);
        // Half of them of the server itself, half of what others have made for an owner there.
        let owner = json!({ "apiVersion": format!("{OTHERS}/v1"), "kind": "Thing", "name": "t", "uid": "t" });
        let keys: Vec<String> = (0..16)
            .map(|number| {
                let (name, is_theirs) = (format!("o{number}"), number % 2 == 0);
                let metadata =
                    json!({ "name": name, "namespace": "default", "uid": name, "ownerReferences": [owner.clone()] });
                let (group, plural) = if is_theirs { (OTHERS, "things") } else { ("apps", "replicasets") };
                observe(&controller, group, plural, &metadata);
                format!("check/{group}/{name}")
            })
            .collect();
        let mut works: Vec<_> = keys.iter().map(|key| controller.reconcile(key)).collect();
        let mut held = 0;
        for work in &mut works {
            held += usize::from(futures_util::poll!(work).is_pending());
        }
        assert_eq!(held, turns::TURNS);
        observe(&controller, "apps", "replicasets", &json!({ "name": "web-1", "namespace": "default", "uid": "rs" }));
        assert!(controller.reconcile("check/apps/rs").await.is_ok(), "there is a worker for others");
        assert_eq!(controller.queue.len(), 0);
        drop(works);
        assert_eq!(controller.queue.len(), keys.len() - turns::TURNS, "the others are not forgotten");
        drop(controller);
        following.await.unwrap();
    }

    #[tokio::test]
    async fn security_a_blocker_that_is_not_there_blocks_nothing() {
        // Its server shows it to those who watch, and has it not.
        let handler: client::Handler = Arc::new(|request: Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default();
            let response = match request.uri().path() {
                _ if query.contains("sendInitialEvents") => Some(whole(StatusCode::BAD_REQUEST, &json!({}))),
                REGISTRATIONS if query.contains("watch=") => None,
                REGISTRATIONS => Some(whole(StatusCode::OK, &registrations())),
                _ => Some(answer(&request, FOREGROUND)),
            };
            Box::pin(async move {
                match response {
                    Some(response) => response,
                    None => std::future::pending().await,
                }
            })
        });
        let controller = controller(handler);
        let (services, stop) = (controller.services.clone(), controller.stop.clone());
        let following = tokio::spawn(async move { services.run(stop).await });
        controller.services.synced().await;
        let mut going = deployment();
        going["finalizers"] = json!([FOREGROUND]);
        going["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        let owner = json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d",
            "blockOwnerDeletion": true });
        let forged = json!({ "name": "forged", "namespace": "default", "uid": "f", "ownerReferences": [owner] });
        observe(&controller, OTHERS, "things", &forged);
        observe(&controller, "apps", "deployments", &going);
        let id = "apps/d";
        assert!(controller.graph.lock().blockers(id).0);
        assert!(controller.reconcile(&format!("check/{OTHERS}/f")).await.is_ok());
        assert!(!controller.graph.lock().blockers(id).0);
        assert_eq!(controller.queue.len(), 1, "the owner is looked at again");
        drop(controller);
        following.await.unwrap();
    }

    /// A version is not served any more, and the watch of the next one has not begun.
    #[tokio::test]
    async fn what_is_not_found_in_its_old_version_keeps_its_dependents() {
        let handler: client::Handler = Arc::new(|_| {
            let response = whole(StatusCode::NOT_FOUND, &json!({}));
            Box::pin(async move { response })
        });
        let controller = controller(handler);
        observe(&controller, "apps", "deployments", &deployment());
        observe(&controller, "apps", "replicasets", &replica_set());
        assert!(controller.reconcile("check/apps/d").await.is_ok());
        assert!(controller.graph.lock().facts("apps/d").is_some_and(|facts| facts.has_dependents));
        assert_eq!(controller.queue.len(), 0, "nobody takes the replica set for garbage");
        // A kind that nobody serves any more has nobody to tell what is gone.
        controller.resources.lock().clear();
        assert!(controller.reconcile("check/apps/d").await.is_ok());
        assert!(controller.graph.lock().facts("apps/d").is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn security_a_silent_server_keeps_no_owner_of_other_kinds() {
        let writes: Arc<Mutex<Vec<String>>> = Arc::default();
        let seen = writes.clone();
        let handler: client::Handler = Arc::new(move |request: Request<bytes::Bytes>| {
            if request.method() != Method::GET {
                seen.lock().push(request.uri().path().to_owned());
            }
            let query = request.uri().query().unwrap_or_default();
            let (is_watch, is_watch_list) = (query.contains("watch="), query.contains("sendInitialEvents"));
            let is_silent = request.uri().path().contains(OTHERS) || is_watch && !is_watch_list;
            let response = match request.uri().path() {
                _ if is_watch_list => whole(StatusCode::BAD_REQUEST, &json!({})),
                REGISTRATIONS => whole(StatusCode::OK, &registrations()),
                "/apis/apps/v1/namespaces/default/deployments/web" => {
                    let mut going = deployment();
                    going["finalizers"] = json!([ORPHAN]);
                    whole(StatusCode::OK, &json!({ "metadata": going }))
                }
                _ => answer(&request, ORPHAN),
            };
            Box::pin(async move { if is_silent { std::future::pending().await } else { response } })
        });
        let controller = controller(handler);
        let (services, stop) = (controller.services.clone(), controller.stop.clone());
        let following = tokio::spawn(async move { services.run(stop).await });
        controller.services.synced().await;
        observe(&controller, "apps", "deployments", &deployment());
        assert!(controller.reconcile("orphan/apps/d").await.is_ok());
        let of = |path: &str| format!("/apis/apps/v1/namespaces/default/{path}");
        assert_eq!(*writes.lock(), [of("replicasets/web-1"), of("deployments/web")]);
        drop(controller);
        following.await.unwrap();
    }
}

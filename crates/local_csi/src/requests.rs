//! What the control plane asks of this node's folders: NodeVolumes -> driver -> answers in its status.
//!
//! Requests are carried out side by side, those about one folder one after the other. A request is answered once; one that
//! was carried out and not answered, because the process ended, is carried out again, which changes nothing.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::node_volumes::{Action, Answer, Answers, ERROR_LENGTH, NodeVolumes, Request, Source};
use client::backoff::Backoff;
use client::{Client, Informer, ListParams, Patch};
use csi::tonic::{Code, Status};
use csi::v1::{
    CapacityRange, ContentSource, Controller, ControllerExpandVolumeRequest, CreateSnapshotRequest,
    CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, GetCapacityRequest, ListSnapshotsRequest,
    Snapshot, SnapshotSource, VolumeContentSource, VolumeSource,
};
use futures_util::FutureExt;
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trace::{Context, Stage, Work};

use crate::driver::{Driver, capabilities};

/// Free room is looked at this often, without any event.
const FREE_ROOM_INTERVAL: Duration = Duration::from_secs(30);
/// Free room is told in steps: it changes all the time.
const STEP: i64 = 64 << 20;
/// Who answers, in traces.
const ACTOR: &str = crate::NAME;
/// Copies share the disk: more at a time would not end sooner. Everything else is done at once.
const COPIES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum What {
    Volume,
    Snapshot,
}

type Key = (What, String);

struct Worker {
    client: Client,
    node: String,
    driver: Arc<Driver>,
    object: Informer<NodeVolumes>,
    copies: Arc<Semaphore>,
    busy: HashSet<Key>,
    /// Not in the status yet, as far as is known.
    answers: BTreeMap<Key, Answer>,
    tasks: JoinSet<(Key, Answer, Context)>,
    /// What the requests that are not looked at yet follow from.
    asked_by: Arc<Mutex<Context>>,
    /// What was done for answers that are not written yet.
    answered_by: Context,
}

pub(crate) async fn run(client: Client, node: String, driver: Arc<Driver>, stop: CancellationToken) {
    let own = ListParams { field_selector: Some(format!("metadata.name={node}")), ..ListParams::default() };
    let object = Informer::new(client.all(), own);
    let changed = Arc::new(Notify::new());
    let (wake, asked_by) = (changed.clone(), Arc::<Mutex<Context>>::default());
    let asked = asked_by.clone();
    object.subscribe(move |_| {
        asked.lock().merge(trace::current());
        wake.notify_one();
    });
    let mut worker = Worker {
        client,
        node,
        driver,
        object: object.clone(),
        copies: Arc::new(Semaphore::new(COPIES)),
        busy: HashSet::new(),
        answers: BTreeMap::new(),
        tasks: JoinSet::new(),
        asked_by,
        answered_by: Context::default(),
    };
    let work = async {
        object.synced().await;
        let mut retry = Backoff::new(Duration::from_millis(100), FREE_ROOM_INTERVAL);
        loop {
            let delay = match worker.pass().await {
                Ok(()) => {
                    retry.reset();
                    FREE_ROOM_INTERVAL
                }
                Err(error) => {
                    tracing::warn!(%error, "answers of local volumes not written, will retry");
                    retry.next_delay()
                }
            };
            tokio::select! {
                () = changed.notified() => {}
                () = tokio::time::sleep(delay) => {}
                Some(done) = worker.tasks.join_next() => worker.ended(done),
            }
            while let Some(done) = worker.tasks.try_join_next() {
                worker.ended(done);
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
        () = object.run(stop.clone()) => {}
    }
}

impl Worker {
    fn ended(&mut self, done: Result<(Key, Answer, Context), tokio::task::JoinError>) {
        match done {
            Ok((key, answer, done)) => {
                self.answered_by.merge(done);
                self.busy.remove(&key);
                self.answers.insert(key, answer);
            }
            // Nothing says which one it was: all are looked at again.
            Err(error) => {
                tracing::error!(%error, "a request about a local volume ended badly");
                self.busy.clear();
                self.tasks.abort_all();
            }
        }
    }

    async fn pass(&mut self) -> Result<(), client::Error> {
        let Some(object) = self.object.get(&self.node) else {
            self.answers.clear();
            return Ok(());
        };
        let cause = std::mem::take(&mut *self.asked_by.lock());
        for (key, request) in open(&object, &self.answers) {
            if self.busy.insert(key.clone()) {
                let (driver, copies, request) = (self.driver.clone(), self.copies.clone(), request.clone());
                let (all, node) = (self.object.clone(), self.node.clone());
                let work = Work::caused(&cause, Stage::Provision, ACTOR, format_args!("nodevolumes/{node}"));
                let work = work.with_detail(&key.1).announce();
                self.tasks.spawn(FutureExt::boxed(async move {
                    let is_wanted = || {
                        let same = |(other, known): (Key, &Request)| other == key && known.token == request.token;
                        all.get(&node).is_some_and(|object| requests(&object).any(same))
                    };
                    let answer = carry_out(&driver, &copies, &key, &request, &is_wanted).await;
                    let done = work.context();
                    match &answer.error {
                        None => work.end(),
                        Some(error) => work.fail(error),
                    }
                    (key, answer, done)
                }));
            }
        }
        let free = self.driver.get_capacity(GetCapacityRequest::default()).await;
        let available = free.ok().map(|free| free.available_capacity / STEP * STEP);
        let Some(status) = difference(&object, &self.answers, available) else { return Ok(()) };
        let patch = Patch::merge(json!({"status": status}));
        let work = Work::caused(&self.answered_by, Stage::Status, ACTOR, format_args!("nodevolumes/{}", self.node));
        let api = self.client.all::<NodeVolumes>();
        work.result(api.patch_status(&self.node, &patch)).await?;
        self.answered_by = Context::default();
        // What was written is in the informer soon; until then it is kept, so that nothing is done twice.
        let asked: HashSet<Key> = requests(&object).map(|(key, _)| key).collect();
        self.answers.retain(|key, _| asked.contains(key));
        Ok(())
    }
}

fn requests(object: &NodeVolumes) -> impl Iterator<Item = (Key, &Request)> {
    let volumes = object.spec.volumes.iter().map(|(id, request)| ((What::Volume, id.clone()), request));
    volumes.chain(object.spec.snapshots.iter().map(|(id, request)| ((What::Snapshot, id.clone()), request)))
}

fn answered<'a>(status: &'a Answers, (what, id): &Key) -> Option<&'a Answer> {
    match what {
        What::Volume => status.volumes.get(id),
        What::Snapshot => status.snapshots.get(id),
    }
}

/// The requests that have no answer.
fn open<'a>(object: &'a NodeVolumes, answers: &BTreeMap<Key, Answer>) -> Vec<(Key, &'a Request)> {
    let is_answered = |key: &Key, request: &Request| {
        let answers = [answers.get(key), answered(&object.status, key)];
        answers.into_iter().flatten().any(|answer| answer.token == request.token)
    };
    requests(object).filter(|(key, request)| !is_answered(key, request)).collect()
}

/// What the status has to say that it does not say yet. Answers that nobody asks for any more go.
fn difference(object: &NodeVolumes, answers: &BTreeMap<Key, Answer>, available: Option<i64>) -> Option<Value> {
    let mut changes: [Map<String, Value>; 2] = Default::default();
    for (key, request) in requests(object) {
        let new = answers.get(&key).filter(|answer| answer.token == request.token);
        if let Some(answer) = new.filter(|answer| answered(&object.status, &key) != Some(answer)) {
            // Members of an answer to an earlier request must not stay.
            let mut whole = json!({"error": null, "created": null, "size": null});
            if let (Some(whole), Ok(Value::Object(answer))) = (whole.as_object_mut(), serde_json::to_value(answer)) {
                whole.extend(answer);
            }
            changes[key.0 as usize].insert(key.1, whole);
        }
    }
    let mut forget = |what: What, answered: &BTreeMap<String, Answer>, asked: &BTreeMap<String, Request>| {
        for id in answered.keys().filter(|id| !asked.contains_key(*id)) {
            changes[what as usize].insert(id.clone(), Value::Null);
        }
    };
    forget(What::Volume, &object.status.volumes, &object.spec.volumes);
    forget(What::Snapshot, &object.status.snapshots, &object.spec.snapshots);
    let [volumes, snapshots] = changes;
    let mut status = Map::new();
    if !volumes.is_empty() {
        status.insert("volumes".into(), volumes.into());
    }
    if !snapshots.is_empty() {
        status.insert("snapshots".into(), snapshots.into());
    }
    if let Some(available) = available.filter(|available| object.status.available != Some(*available)) {
        status.insert("available".into(), available.into());
    }
    (!status.is_empty()).then(|| status.into())
}

/// `is_wanted` says whether the request still stands.
async fn carry_out(
    driver: &Driver,
    copies: &Semaphore,
    (what, id): &Key,
    request: &Request,
    is_wanted: &(dyn Fn() -> bool + Sync),
) -> Answer {
    let copies_files = request.action == Action::Create && request.source.is_some();
    let _permit = if copies_files { copies.acquire().await.ok() } else { None };
    let mut answer = Answer { token: request.token.clone(), ..Answer::default() };
    let mut retry = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
    let done = loop {
        let done = match what {
            What::Volume => change_volume(driver, id, request).await.map(|()| None),
            What::Snapshot => change_snapshot(driver, id, request).await,
        };
        match done {
            // Somebody else is at the same folder, and is done with it some time.
            Err(status) if status.code() == Code::Aborted => {
                tokio::time::sleep(retry.next_delay()).await;
                if !is_wanted() {
                    break Err(Status::cancelled("the request was withdrawn"));
                }
            }
            done => break done,
        }
    };
    match done {
        Ok(Some(snapshot)) => {
            let nanos = |time: csi::v1::Timestamp| time.seconds.saturating_mul(1_000_000_000) + i64::from(time.nanos);
            answer.created = snapshot.creation_time.map(nanos);
            answer.size = Some(snapshot.size_bytes);
        }
        Ok(None) => {}
        Err(status) => answer.error = Some(cut(csi::describe(&status))),
    }
    answer
}

fn cut(text: String) -> String {
    text.chars().take(ERROR_LENGTH).collect()
}

fn content(source: &Source) -> VolumeContentSource {
    let source = match source {
        Source::Volume(id) => ContentSource::Volume(VolumeSource { volume_id: id.clone() }),
        Source::Snapshot(id) => ContentSource::Snapshot(SnapshotSource { snapshot_id: id.clone() }),
    };
    VolumeContentSource { r#type: Some(source) }
}

async fn change_volume(driver: &Driver, id: &str, request: &Request) -> Result<(), Status> {
    let range = Some(CapacityRange { required_bytes: request.capacity, limit_bytes: 0 });
    match request.action {
        Action::Create => {
            let wanted = CreateVolumeRequest {
                name: id.to_owned(),
                capacity_range: range,
                volume_capabilities: capabilities(),
                volume_content_source: request.source.as_ref().map(content),
                ..Default::default()
            };
            driver.create_volume(wanted).await.map(drop)
        }
        Action::Expand => {
            let wanted =
                ControllerExpandVolumeRequest { volume_id: id.to_owned(), capacity_range: range, ..Default::default() };
            driver.controller_expand_volume(wanted).await.map(drop)
        }
        Action::Delete => {
            let wanted = DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
            driver.delete_volume(wanted).await.map(drop)
        }
        Action::Find => Err(Status::invalid_argument("volumes are not looked for")),
    }
}

async fn change_snapshot(driver: &Driver, id: &str, request: &Request) -> Result<Option<Snapshot>, Status> {
    match (request.action, &request.source) {
        (Action::Create, Some(Source::Volume(volume))) => {
            let wanted =
                CreateSnapshotRequest { source_volume_id: volume.clone(), name: id.to_owned(), ..Default::default() };
            driver.create_snapshot(wanted).await.map(|taken| taken.snapshot)
        }
        (Action::Find, _) => {
            let wanted = ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
            let found = driver.list_snapshots(wanted).await?.entries.into_iter().find_map(|entry| entry.snapshot);
            found.map(Some).ok_or_else(|| Status::not_found(format!("snapshot {id} is not on this node")))
        }
        (Action::Delete, _) => {
            let wanted = DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
            driver.delete_snapshot(wanted).await.map(|_| None)
        }
        _ => Err(Status::invalid_argument("a snapshot is of a volume")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn object(requests: Value, status: Value) -> NodeVolumes {
        serde_json::from_value(json!({"metadata": {"name": "n"}, "spec": {"volumes": requests}, "status": status}))
            .unwrap()
    }

    fn request(token: &str) -> Value {
        json!({"token": token, "action": "Create", "capacity": 1})
    }

    #[test]
    fn a_request_is_answered_once_and_forgotten_with_it() {
        let key = (What::Volume, "a".to_owned());
        let mine = |token: &str| BTreeMap::from([(key.clone(), Answer { token: token.into(), ..Answer::default() })]);
        let none = BTreeMap::new();
        let fresh = object(json!({"a": request("1")}), json!({}));
        assert_eq!(open(&fresh, &none).len(), 1);
        assert_eq!(open(&fresh, &mine("1")).len(), 0);
        assert_eq!(open(&fresh, &mine("0")).len(), 1, "the answer to another request");
        assert_eq!(difference(&fresh, &none, None), None);
        assert_eq!(difference(&fresh, &none, Some(5)), Some(json!({"available": 5})));
        let said = difference(&fresh, &mine("1"), None).unwrap();
        assert_eq!(said["volumes"]["a"], json!({"token": "1", "error": null, "created": null, "size": null}));
        let answered = object(json!({"a": request("1")}), json!({"available": 5, "volumes": {"a": {"token": "1"}}}));
        assert_eq!(open(&answered, &none).len(), 0, "by the process before");
        assert_eq!(difference(&answered, &mine("1"), Some(5)), None);
        let over = object(json!({}), json!({"volumes": {"a": {"token": "1"}}}));
        assert_eq!(difference(&over, &mine("1"), None), Some(json!({"volumes": {"a": null}})));
    }
}

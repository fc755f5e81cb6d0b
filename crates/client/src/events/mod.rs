//! Recording events: what happened to an object, for people.
//!
//! Flow: `normal`/`warning` -> a bounded channel -> one task -> `correlator` (count, combine, silence) -> create or patch.
//! Events are best effort: when the channel is full they are dropped, and an absent server is waited for only so long.

mod correlator;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Client, Error, Patch, Resource, Written};
use correlator::{Correlator, Plan};

/// Events waiting to be written. When full, new ones are dropped.
const BUFFER: usize = 10_000;
/// A burst of news is written at this rate, after this many at once: it must not take the server's time from the work that it
/// tells about.
const PER_SECOND: f64 = 100.0;
const AT_ONCE: u32 = 50;
/// A server that does not answer is asked again so often (`maxTriesPerEvent`, v1.36), so far apart.
const TRIES: u32 = 12;
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Writes events in the name of one component. Clones share the writer, which ends with the last of them.
#[derive(Clone)]
pub struct EventRecorder {
    sender: mpsc::Sender<Occurrence>,
    _writer: Arc<Writer>,
}

/// Ends the task when the last recorder is gone.
struct Writer(tokio::task::JoinHandle<()>);

impl Drop for Writer {
    fn drop(&mut self) {
        self.0.abort();
    }
}

#[derive(Debug, Clone)]
struct Occurrence {
    object: ObjectReference,
    kind: &'static str,
    reason: String,
    message: String,
    at: Timestamp,
}

impl EventRecorder {
    pub fn new(client: Client, component: &str, host: &str) -> Self {
        let (sender, receiver) = mpsc::channel(BUFFER);
        let client = client.with_rate_limit(PER_SECOND, AT_ONCE);
        let source = Source { component: component.to_owned(), host: host.to_owned() };
        Self { sender, _writer: Arc::new(Writer(tokio::spawn(FutureExt::boxed(write(client, source, receiver))))) }
    }

    pub fn normal(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, "Normal", reason, message.into());
    }

    pub fn warning(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, "Warning", reason, message.into());
    }

    fn record(&self, object: &ObjectReference, kind: &'static str, reason: &str, message: String) {
        let at = Timestamp::now();
        let occurrence = Occurrence { object: object.clone(), kind, reason: reason.into(), message, at };
        if self.sender.try_send(occurrence).is_err() {
            tracing::debug!(reason, "event dropped: too many are waiting");
        }
    }
}

/// A reference to an object, as events carry it.
pub fn reference<K: Resource>(object: &K) -> ObjectReference {
    let metadata = object.metadata();
    ObjectReference {
        api_version: Some(K::API_VERSION.into()),
        kind: Some(K::KIND.into()),
        name: metadata.name.clone(),
        namespace: metadata.namespace.clone(),
        uid: metadata.uid.clone(),
        resource_version: metadata.resource_version.clone(),
        field_path: None,
    }
}

/// Who reports.
struct Source {
    component: String,
    host: String,
}

async fn write(client: Client, source: Source, mut receiver: mpsc::Receiver<Occurrence>) {
    let mut correlator = Correlator::default();
    while let Some(occurrence) = receiver.recv().await {
        let Some(plan) = correlator.plan(occurrence, Instant::now()) else { continue };
        for tries in 1..=TRIES {
            match write_one(&client, &source, &plan).await {
                Ok(()) => break,
                // Refused for good: another try would be refused as well.
                Err(error) if !error.is_retriable() || tries == TRIES => {
                    tracing::debug!(%error, reason = plan.occurrence.reason, "event not written");
                    break;
                }
                // The first pause is random, so that clients of a server that comes back do not come all at once.
                Err(_) if tries == 1 => tokio::time::sleep(RETRY_INTERVAL.mul_f64(rand::random())).await,
                Err(_) => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
    }
}

async fn write_one(client: &Client, source: &Source, plan: &Plan) -> Result<(), Error> {
    let namespace = plan.occurrence.object.namespace.as_deref().unwrap_or("default");
    let api = client.namespaced::<Event>(namespace);
    if plan.count > 1 {
        let patch = Patch::strategic(serde_json::json!({
            "count": plan.count, "lastTimestamp": Time(plan.occurrence.at), "message": plan.occurrence.message,
        }));
        match api.patch_path::<Written>(&plan.name, None, &patch).await {
            // Events expire, but the count goes on.
            Err(error) if error.is_not_found() => {}
            patched => return patched.map(drop),
        }
    }
    match api.create_as::<Written>(&event(plan, namespace, source)).await {
        Err(error) if !error.is_already_exists() => Err(error),
        _ => Ok(()),
    }
}

fn event(plan: &Plan, namespace: &str, source: &Source) -> Event {
    let occurrence = &plan.occurrence;
    let host = (!source.host.is_empty()).then(|| source.host.clone());
    Event {
        metadata: ObjectMeta {
            name: Some(plan.name.clone()),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        involved_object: occurrence.object.clone(),
        reason: Some(occurrence.reason.clone()),
        message: Some(occurrence.message.clone()),
        source: Some(EventSource { component: Some(source.component.clone()), host: host.clone() }),
        first_timestamp: Some(Time(plan.first)),
        last_timestamp: Some(Time(occurrence.at)),
        count: Some(plan.count),
        type_: Some(occurrence.kind.into()),
        reporting_component: Some(source.component.clone()),
        reporting_instance: host,
        ..Event::default()
    }
}

//! Recording events: what happened to an object, for people.
//!
//! Flow: `normal`/`warning` -> a bounded channel -> one task -> create, or count up what is already there.
//! The same event again is a patch of `count`; many similar ones become one combined event; an object that
//! produces too many is silenced for a while. Events are best effort: when the channel is full they are dropped.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::{Client, Patch, Resource};

/// Events waiting to be written. When full, new ones are dropped.
const BUFFER: usize = 1000;
/// Objects remembered for counting and spam filtering (`maxLruCacheEntries`, v1.36).
const REMEMBERED: usize = 4096;
/// More than this many different messages in `SIMILAR_WINDOW` become one combined event.
const SIMILAR_MAX: usize = 10;
const SIMILAR_WINDOW: Duration = Duration::from_secs(600);
/// The spam filter of one object: a burst, then one event per refill.
const BURST: f64 = 25.0;
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

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
}

impl EventRecorder {
    pub fn new(client: Client, component: &str, host: &str) -> Self {
        let (sender, receiver) = mpsc::channel(BUFFER);
        let writer = write(client, Correlator::default(), component.to_owned(), host.to_owned(), receiver);
        Self { sender, _writer: Arc::new(Writer(tokio::spawn(writer))) }
    }

    pub fn normal(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, "Normal", reason, message.into());
    }

    pub fn warning(&self, object: &ObjectReference, reason: &str, message: impl Into<String>) {
        self.record(object, "Warning", reason, message.into());
    }

    fn record(&self, object: &ObjectReference, kind: &'static str, reason: &str, message: String) {
        let occurrence = Occurrence { object: object.clone(), kind, reason: reason.into(), message };
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

async fn write(
    client: Client,
    mut correlator: Correlator,
    component: String,
    host: String,
    mut receiver: mpsc::Receiver<Occurrence>,
) {
    while let Some(occurrence) = receiver.recv().await {
        let Some(plan) = correlator.plan(occurrence, Instant::now()) else { continue };
        let namespace = plan.occurrence.object.namespace.clone().unwrap_or_else(|| "default".into());
        let api = client.namespaced::<Event>(&namespace);
        let now = Timestamp::now();
        if let Some((name, count)) = &plan.again {
            let patch = Patch::strategic(serde_json::json!({
                "count": count, "lastTimestamp": Time(now), "message": plan.occurrence.message,
            }));
            match api.patch(name, &patch).await {
                Ok(_) => continue,
                // Events expire: then this is a new one.
                Err(error) if error.is_not_found() => {}
                Err(error) => {
                    tracing::debug!(%error, "event not counted");
                    continue;
                }
            }
        }
        let event = event(&plan.occurrence, &namespace, &component, &host, now);
        match api.create(&event).await {
            Ok(created) => correlator.created(&plan.key, created.metadata.name.unwrap_or_default()),
            Err(error) => tracing::debug!(%error, reason = plan.occurrence.reason, "event not written"),
        }
    }
}

fn event(occurrence: &Occurrence, namespace: &str, component: &str, host: &str, now: Timestamp) -> Event {
    let name = occurrence.object.name.as_deref().unwrap_or_default();
    Event {
        metadata: ObjectMeta {
            name: Some(format!("{name}.{:x}", now.as_nanosecond())),
            namespace: Some(namespace.into()),
            ..ObjectMeta::default()
        },
        involved_object: occurrence.object.clone(),
        reason: Some(occurrence.reason.clone()),
        message: Some(occurrence.message.clone()),
        source: Some(EventSource { component: Some(component.into()), host: (!host.is_empty()).then(|| host.into()) }),
        first_timestamp: Some(Time(now)),
        last_timestamp: Some(Time(now)),
        count: Some(1),
        type_: Some(occurrence.kind.into()),
        reporting_component: Some(component.into()),
        reporting_instance: (!host.is_empty()).then(|| host.into()),
        ..Event::default()
    }
}

/// What to do with one occurrence.
struct Plan {
    occurrence: Occurrence,
    /// The event's identity: the same key means the same event again.
    key: String,
    /// The event that exists already, with its new count.
    again: Option<(String, i32)>,
}

/// Remembers what was written, to count instead of repeat.
#[derive(Default)]
struct Correlator {
    written: Memory<(String, i32)>,
    similar: Memory<(Instant, HashSet<String>)>,
    budgets: Memory<(Instant, f64)>,
}

impl Correlator {
    fn plan(&mut self, mut occurrence: Occurrence, now: Instant) -> Option<Plan> {
        let object = &occurrence.object;
        let about = format!(
            "{}/{}/{}/{}/{}",
            object.kind.as_deref().unwrap_or_default(),
            object.namespace.as_deref().unwrap_or_default(),
            object.name.as_deref().unwrap_or_default(),
            object.uid.as_deref().unwrap_or_default(),
            object.field_path.as_deref().unwrap_or_default(),
        );
        if !self.allowed(&about, now) {
            return None;
        }
        let family = format!("{about}/{}/{}", occurrence.kind, occurrence.reason);
        let (since, messages) = self.similar.entry(&family, || (now, HashSet::new()));
        if now.duration_since(*since) > SIMILAR_WINDOW {
            (*since, *messages) = (now, HashSet::new());
        }
        messages.insert(occurrence.message.clone());
        let key = if messages.len() >= SIMILAR_MAX {
            // Any one of them stands for all, so that memory stays bounded.
            if messages.len() > SIMILAR_MAX {
                messages.remove(&occurrence.message);
            }
            occurrence.message = format!("(combined from similar events): {}", occurrence.message);
            family
        } else {
            format!("{family}/{}", occurrence.message)
        };
        let again = self.written.get(&key).map(|(name, count)| {
            *count += 1;
            (name.clone(), *count)
        });
        Some(Plan { occurrence, key, again })
    }

    fn created(&mut self, key: &str, name: String) {
        *self.written.entry(key, Default::default) = (name, 1);
    }

    fn allowed(&mut self, about: &str, now: Instant) -> bool {
        let (last, tokens) = self.budgets.entry(about, || (now, BURST));
        *tokens = (*tokens + now.duration_since(*last).as_secs_f64() * REFILL_PER_SECOND).min(BURST);
        *last = now;
        if *tokens < 1.0 {
            return false;
        }
        *tokens -= 1.0;
        true
    }
}

/// A bounded map that forgets the oldest entries first.
struct Memory<V> {
    entries: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> Default for Memory<V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), order: VecDeque::new() }
    }
}

impl<V> Memory<V> {
    fn get(&mut self, key: &str) -> Option<&mut V> {
        self.entries.get_mut(key)
    }

    fn entry(&mut self, key: &str, new: impl FnOnce() -> V) -> &mut V {
        if !self.entries.contains_key(key) {
            if self.order.len() >= REMEMBERED
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
            self.order.push_back(key.to_owned());
        }
        self.entries.entry(key.to_owned()).or_insert_with(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn occurrence(name: &str, message: &str) -> Occurrence {
        let object = ObjectReference { name: Some(name.into()), ..ObjectReference::default() };
        Occurrence { object, kind: "Normal", reason: "Because".into(), message: message.into() }
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_event_is_counted_not_repeated() {
        let mut correlator = Correlator::default();
        let first = correlator.plan(occurrence("a", "m"), Instant::now()).unwrap();
        assert!(first.again.is_none());
        correlator.created(&first.key, "a.1".into());
        for count in 2..5 {
            let plan = correlator.plan(occurrence("a", "m"), Instant::now()).unwrap();
            assert_eq!(plan.again, Some(("a.1".into(), count)));
        }
        assert!(correlator.plan(occurrence("a", "other"), Instant::now()).unwrap().again.is_none());
        assert!(correlator.plan(occurrence("b", "m"), Instant::now()).unwrap().again.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn similar_events_are_combined() {
        let mut correlator = Correlator::default();
        let mut last = None;
        for number in 0..12 {
            let plan = correlator.plan(occurrence("a", &format!("m{number}")), Instant::now()).unwrap();
            correlator.created(&plan.key, "name".into());
            last = Some(plan);
        }
        assert_eq!(last.unwrap().occurrence.message, "(combined from similar events): m11");
    }

    #[tokio::test(start_paused = true)]
    async fn an_object_that_shouts_is_silenced_for_a_while() {
        let mut correlator = Correlator::default();
        let allowed = (0..100).filter(|_| correlator.plan(occurrence("a", "m"), Instant::now()).is_some()).count();
        assert_eq!(allowed, 25);
        tokio::time::advance(Duration::from_secs(301)).await;
        assert!(correlator.plan(occurrence("a", "m"), Instant::now()).is_some());
        assert!(correlator.plan(occurrence("b", "m"), Instant::now()).is_some(), "others are not affected");
    }
}

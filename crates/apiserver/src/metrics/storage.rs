//! What requests ask of the store, and what store and watch caches hold.
//!
//! The names are those of etcd, whatever the store is: dashboards look for them.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ::metrics::{Counter, Histogram, Metrics, exponential};
use futures_util::future::BoxFuture;
use parking_lot::RwLock;
use registry::Resource;
use store::{Compare, KeyRange, Op, Range, RangeResult, Result, Revision, Store, Txn, TxnResult};

use super::requests::{DURATION_BOUNDS, scope};
use crate::request_info::RequestInfo;
use crate::watch_cache::ROOT;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Get,
    List,
    Create,
    Update,
    Delete,
}

impl Operation {
    fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }
}

/// What a transaction is about: what it does first if all is as it expects.
fn subject(txn: &Txn) -> (Operation, Option<Arc<str>>) {
    let key = |keys: &KeyRange| match keys {
        KeyRange::Key(key) | KeyRange::Prefix(key) => key.clone(),
    };
    match txn.success.first() {
        Some(Op::Put { key, .. }) => {
            let is_new = |compare: &Compare| match compare {
                Compare::ModRevision { key: compared, revision } => compared == key && *revision == Revision::ZERO,
                Compare::Absent { key: compared } => compared == key,
                Compare::Exists { .. } => false,
            };
            let operation = if txn.compares.iter().any(is_new) { Operation::Create } else { Operation::Update };
            (operation, Some(key.clone()))
        }
        Some(Op::Delete(keys)) => (Operation::Delete, Some(key(keys))),
        Some(Op::Get(range)) => (Operation::Get, Some(key(&range.keys))),
        None => (Operation::Get, None),
    }
}

/// The store, with a clock.
pub(crate) struct Timed {
    inner: Arc<dyn Store>,
    metrics: Metrics,
    /// Group and plural of what is stored below a prefix of one word.
    named: HashMap<Arc<str>, (String, String)>,
    /// By the place of a resource in the store.
    known: RwLock<HashMap<Box<str>, Arc<OfResource>>>,
}

#[derive(Default)]
struct OfResource([OnceLock<Calls>; 5]);

struct Calls {
    durations: Histogram,
    requests: Counter,
    errors: Counter,
}

impl Timed {
    pub(crate) fn new<'r>(
        inner: Arc<dyn Store>,
        metrics: &Metrics,
        rows: impl Iterator<Item = &'r Arc<Resource>>,
    ) -> Self {
        let named = rows.filter(|row| !row.store_prefix.contains('/'));
        let named = named.map(|row| ((&*row.store_prefix).into(), (row.group.to_string(), row.plural.to_string())));
        Self { inner, metrics: metrics.clone(), named: named.collect(), known: Default::default() }
    }

    /// Where the objects of a resource are: one word, or group and plural.
    fn place<'k>(&self, key: &'k str) -> &'k str {
        let rest = key.strip_prefix(ROOT).unwrap_or(key);
        let first = rest.split('/').next().unwrap_or_default();
        if !first.contains('.') {
            return first;
        }
        let second = rest[first.len()..].trim_start_matches('/').split('/').next().unwrap_or_default();
        rest[..(first.len() + 1 + second.len()).min(rest.len())].trim_end_matches('/')
    }

    /// Group and resource of a place.
    fn names<'a>(&'a self, place: &'a str) -> (&'a str, &'a str) {
        match self.named.get(place) {
            Some((group, plural)) => (group, plural),
            None => place.split_once('/').unwrap_or(("", place)),
        }
    }

    fn note<T>(&self, operation: Operation, key: &str, began: Instant, outcome: &Result<T>) {
        let place = self.place(key);
        let known = self.known.read().get(place).cloned();
        let of = known.unwrap_or_else(|| self.known.write().entry(place.into()).or_default().clone());
        let calls = of.0[operation as usize].get_or_init(|| {
            let (group, plural) = self.names(place);
            let labels = [("group", group), ("operation", operation.as_str()), ("resource", plural)];
            Calls {
                durations: self.metrics.histogram(
                    "etcd_request_duration_seconds",
                    "How long the store takes, by operation and resource.",
                    &DURATION_BOUNDS,
                    &labels,
                ),
                requests: self.metrics.counter(
                    "etcd_requests_total",
                    "Requests to the store, by operation and resource.",
                    &labels,
                ),
                errors: self.metrics.counter(
                    "etcd_request_errors_total",
                    "Requests to the store that failed, by operation and resource.",
                    &labels,
                ),
            }
        });
        calls.durations.observe_duration(began.elapsed());
        calls.requests.inc();
        if outcome.is_err() {
            calls.errors.inc();
        }
    }
}

impl Store for Timed {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>> {
        Box::pin(async move {
            let (operation, key) = match &range.keys {
                KeyRange::Key(key) => (Operation::Get, key.clone()),
                KeyRange::Prefix(key) => (Operation::List, key.clone()),
            };
            let began = Instant::now();
            let outcome = self.inner.range(range).await;
            self.note(operation, &key, began, &outcome);
            outcome
        })
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResult>> {
        Box::pin(async move {
            let (operation, key) = subject(&txn);
            let began = Instant::now();
            let outcome = self.inner.txn(txn).await;
            if let Some(key) = key {
                self.note(operation, &key, began, &outcome);
            }
            outcome
        })
    }

    store::forward!(
        inner: watch, request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot, size
    );
}

static SIZE_BOUNDS: [f64; 8] = exponential(1024.0, 2.0);

/// What is counted of the watches of one resource.
#[derive(Clone)]
pub(crate) struct WatchCounts {
    metrics: Metrics,
    events: Counter,
    sizes: Histogram,
    initial: Counter,
    /// Group, resource and version.
    names: [String; 3],
}

/// Upstream's, of requests that list by watching.
static LISTED_BOUNDS: [f64; 17] =
    [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 15.0, 20.0, 30.0, 45.0, 60.0];

impl WatchCounts {
    pub(crate) fn new(metrics: &Metrics, row: &Resource) -> Self {
        let (group, plural, version) = (&*row.group, &*row.plural, &*row.version);
        let labels = [("group", group), ("resource", plural), ("version", version)];
        Self {
            events: metrics.counter("apiserver_watch_events_total", "Events sent to watchers.", &labels),
            sizes: metrics.histogram(
                "apiserver_watch_events_sizes",
                "Sizes of the events sent to watchers, in bytes.",
                &SIZE_BOUNDS,
                &labels,
            ),
            initial: metrics.counter(
                "apiserver_init_events_total",
                "Events that showed watchers what was there when they began.",
                &labels[..2],
            ),
            metrics: metrics.clone(),
            names: [group.to_owned(), plural.to_owned(), version.to_owned()],
        }
    }

    pub(crate) fn sent(&self, bytes: usize) {
        self.events.inc();
        self.sizes.observe(bytes as f64);
    }

    pub(crate) fn began(&self, initial: usize) {
        self.initial.add(initial);
    }

    /// A watcher has been shown all that was there, as it had asked.
    pub(crate) fn listed(&self, info: &RequestInfo, took: Duration) {
        let [group, resource, version] = &self.names;
        let labels = [("group", &**group), ("resource", &**resource), ("scope", scope(info)), ("version", &**version)];
        let help = "How long requests take that list by watching.";
        let durations = self.metrics.histogram("apiserver_watch_list_duration_seconds", help, &LISTED_BOUNDS, &labels);
        durations.observe_duration(took);
    }

    /// A watcher was too slow.
    pub(crate) fn terminated(&self) {
        let labels = [("group", &*self.names[0]), ("resource", &*self.names[1])];
        let help = "Watchers that were ended because they were too slow.";
        self.metrics.counter("apiserver_terminated_watchers_total", help, &labels).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transactions_are_named_by_what_they_do() {
        let put = |compare: Option<Compare>| {
            let txn = Txn::new().then(Op::put("/registry/pods/a/b", "x"));
            compare.map_or(txn.clone(), |compare| txn.when(compare))
        };
        let key = "/registry/pods/a/b";
        for (txn, expected) in [
            (put(None), Operation::Update),
            (put(Some(Compare::mod_revision(key, Revision::ZERO))), Operation::Create),
            (put(Some(Compare::absent(key))), Operation::Create),
            (put(Some(Compare::mod_revision(key, Revision(7)))), Operation::Update),
            (Txn::new().then(Op::delete(key)), Operation::Delete),
        ] {
            assert_eq!(subject(&txn), (expected, Some(key.into())), "{txn:?}");
        }
        assert_eq!(subject(&Txn::new()), (Operation::Get, None));
    }

    #[tokio::test]
    async fn calls_are_timed_by_operation_and_resource() {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(store::EmbeddedStore::open(dir.path(), Default::default()).unwrap());
        let (metrics, table) = (Metrics::new(), registry::Registry::new(&Default::default()).table());
        let timed: Arc<dyn Store> = Arc::new(Timed::new(store, &metrics, table.rows().iter()));
        let first = timed.create("/registry/deployments/a/b", "{}").await.unwrap();
        timed.create("/registry/deployments/a/b", "{}").await.unwrap_err();
        timed.update("/registry/deployments/a/b", "{}", first).await.unwrap();
        timed.get("/registry/made.up/things/x").await.unwrap();
        timed.range(Range::prefix("/registry/ranges/")).await.unwrap();
        assert!(timed.size().await.unwrap().is_some_and(|bytes| bytes > 0));
        let text = metrics.render();
        for line in [
            "etcd_requests_total{group=\"apps\",operation=\"create\",resource=\"deployments\"} 2\n",
            "etcd_requests_total{group=\"apps\",operation=\"update\",resource=\"deployments\"} 1\n",
            "etcd_requests_total{group=\"made.up\",operation=\"get\",resource=\"things\"} 1\n",
            "etcd_requests_total{group=\"\",operation=\"list\",resource=\"ranges\"} 1\n",
            // A conflict is an answer.
            "etcd_request_errors_total{group=\"apps\",operation=\"create\",resource=\"deployments\"} 0\n",
            "etcd_request_duration_seconds_count{group=\"apps\",operation=\"create\",resource=\"deployments\"} 2\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}

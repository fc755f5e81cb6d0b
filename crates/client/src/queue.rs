//! The work queue: which keys need a reconcile, each at most once at a time.
//!
//! Flow: informer handler -> `add` -> `get` by a worker -> `done`. A key added while it is being worked on
//! is handed out again after `done`; a key added twice before that is handed out once.
//! Nothing here polls: a delayed key is one timer of the runtime, and an idle queue has none.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use trace::{Context, Stage, Work};

use crate::backoff::exponential;
use crate::metrics::{Counter, Gauge, Histogram, Metrics};

/// A delay may come from a field of an object, and be more than a clock can count. Ten years are for ever as well.
const LONGEST_DELAY: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// How long a failing key waits: `base * 2^failures`, at most `cap`.
#[derive(Debug, Clone, Copy)]
pub struct RateLimiter {
    pub base: Duration,
    pub cap: Duration,
}

impl Default for RateLimiter {
    fn default() -> Self {
        Self { base: Duration::from_millis(5), cap: Duration::from_secs(1000) }
    }
}

/// A de-duplicating, delaying, rate-limited queue. Clones share it.
pub struct WorkQueue<K> {
    shared: Arc<Shared<K>>,
}

impl<K> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone() }
    }
}

struct Shared<K> {
    state: Mutex<State<K>>,
    ready: Notify,
    limiter: RateLimiter,
    metrics: Option<QueueMetrics>,
    name: String,
}

struct State<K> {
    queue: VecDeque<K>,
    /// Waiting to be handed out since when (also those being worked on that were added again).
    dirty: HashMap<K, Waiting>,
    /// Being worked on since when.
    processing: HashMap<K, Instant>,
    /// The earliest moment each delayed key becomes ready.
    delayed: HashMap<K, Waiting>,
    failures: HashMap<K, u32>,
    closed: bool,
}

/// A key on its way to a worker: since when, or until when, and what put it there.
struct Waiting {
    at: Instant,
    context: Context,
}

/// A key that was handed out, with its causes.
pub struct Taken<K> {
    pub key: K,
    /// What the work on it is caused by: its wait.
    pub context: Context,
}

impl<K: Clone + Eq + Hash + Display + Send + 'static> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Clone + Eq + Hash + Display + Send + 'static> WorkQueue<K> {
    pub fn new() -> Self {
        Self::with_limiter(RateLimiter::default())
    }

    pub fn with_limiter(limiter: RateLimiter) -> Self {
        Self::build(limiter, "queue", None)
    }

    /// A queue that is known by its name in traces.
    pub fn called(name: &str) -> Self {
        Self::build(RateLimiter::default(), name, None)
    }

    /// A queue that is seen in `metrics` under `name`.
    pub fn named(name: &str, metrics: &Metrics) -> Self {
        let queue = Self::build(RateLimiter::default(), name, Some(QueueMetrics::new(name, metrics)));
        let shared = Arc::downgrade(&queue.shared);
        metrics.on_render(move || {
            if let Some(shared) = shared.upgrade()
                && let Some(metrics) = &shared.metrics
            {
                let ages: Vec<f64> =
                    shared.state.lock().processing.values().map(|since| since.elapsed().as_secs_f64()).collect();
                metrics.unfinished.set(ages.iter().sum());
                metrics.longest.set(ages.iter().copied().fold(0.0, f64::max));
            }
        });
        queue
    }

    fn build(limiter: RateLimiter, name: &str, metrics: Option<QueueMetrics>) -> Self {
        let state = State {
            queue: VecDeque::new(),
            dirty: HashMap::new(),
            processing: HashMap::new(),
            delayed: HashMap::new(),
            failures: HashMap::new(),
            closed: false,
        };
        let (state, ready, name) = (Mutex::new(state), Notify::new(), name.to_owned());
        Self { shared: Arc::new(Shared { state, ready, limiter, metrics, name }) }
    }

    pub fn add(&self, key: K) {
        self.add_caused(key, trace::current().waiting());
    }

    fn add_caused(&self, key: K, context: Context) {
        let mut state = self.shared.state.lock();
        if state.closed {
            return;
        }
        if let Some(waiting) = state.dirty.get_mut(&key) {
            return waiting.context.merge(context);
        }
        state.dirty.insert(key.clone(), Waiting { at: Instant::now(), context });
        if let Some(metrics) = &self.shared.metrics {
            metrics.adds.inc();
            metrics.depth.add(1.0);
        }
        if !state.processing.contains_key(&key) {
            state.queue.push_back(key);
            drop(state);
            self.shared.ready.notify_one();
        }
    }

    /// Adds `key` after `delay`, or `LONGEST_DELAY` if that is sooner. Of several delays for one key the earliest counts.
    pub fn add_after(&self, key: K, delay: Duration) {
        if delay.is_zero() {
            return self.add(key);
        }
        let at = Instant::now() + delay.min(LONGEST_DELAY);
        {
            let mut context = trace::current().waiting();
            let mut state = self.shared.state.lock();
            if state.closed {
                return;
            }
            if let Some(known) = state.delayed.get_mut(&key) {
                known.context.merge(context);
                if known.at <= at {
                    return;
                }
                context = known.context.take();
            }
            state.delayed.insert(key.clone(), Waiting { at, context });
        }
        let shared = Arc::downgrade(&self.shared);
        // Bounded by the delay; it holds no reference, so a dropped queue lets it end quietly.
        tokio::spawn(FutureExt::boxed(async move {
            tokio::time::sleep_until(at).await;
            if let Some(shared) = shared.upgrade() {
                let queue = Self { shared };
                let due = {
                    let mut state = queue.shared.state.lock();
                    let due = state.delayed.get(&key).is_some_and(|waiting| waiting.at == at);
                    due.then(|| state.delayed.remove(&key)).flatten()
                };
                if let Some(Waiting { context, .. }) = due {
                    queue.add_caused(key, context);
                }
            }
        }));
    }

    /// Adds `key` after a delay that doubles with each failure since the last `forget`.
    pub fn add_rate_limited(&self, key: K) {
        self.add_rate_limited_up_to(key, self.shared.limiter.cap);
    }

    /// As `add_rate_limited`, with a delay that grows no further than `cap`: for failures that time itself heals.
    pub fn add_rate_limited_up_to(&self, key: K, cap: Duration) {
        if let Some(metrics) = &self.shared.metrics {
            metrics.retries.inc();
        }
        let delay = {
            let mut state = self.shared.state.lock();
            let failures = state.failures.entry(key.clone()).or_default();
            let delay = exponential(self.shared.limiter.base, cap.min(self.shared.limiter.cap), *failures);
            *failures = failures.saturating_add(1);
            delay
        };
        self.add_after(key, delay);
    }

    /// The key succeeded: its next failure waits the shortest delay again.
    pub fn forget(&self, key: &K) {
        self.shared.state.lock().failures.remove(key);
    }

    /// How often `key` failed since the last `forget`.
    pub fn failures(&self, key: &K) -> u32 {
        self.shared.state.lock().failures.get(key).copied().unwrap_or_default()
    }

    /// The next key, or `None` once the queue is shut down and empty. Call `done` when finished with it.
    pub async fn get(&self) -> Option<K> {
        self.take().await.map(|taken| taken.key)
    }

    /// As `get`, with what put the key there.
    pub async fn take(&self) -> Option<Taken<K>> {
        loop {
            let notified = self.shared.ready.notified();
            {
                let mut state = self.shared.state.lock();
                if let Some(key) = state.queue.pop_front() {
                    let waiting = state.dirty.remove(&key);
                    state.processing.insert(key.clone(), Instant::now());
                    let more = !state.queue.is_empty();
                    drop(state);
                    if let Some(metrics) = &self.shared.metrics {
                        metrics.depth.add(-1.0);
                        metrics
                            .waited
                            .observe_duration(waiting.as_ref().map_or(Duration::ZERO, |waiting| waiting.at.elapsed()));
                    }
                    if more {
                        // A notification can be lost when two adds meet one waiter; pass it on.
                        self.shared.ready.notify_one();
                    }
                    let context = waiting.map(|waiting| self.waited(&key, waiting.context)).unwrap_or_default();
                    return Some(Taken { key, context });
                }
                if state.closed {
                    drop(state);
                    self.shared.ready.notify_one();
                    return None;
                }
            }
            notified.await;
        }
    }

    /// Records the wait of a key; what is done about it is caused by that.
    fn waited(&self, key: &K, context: Context) -> Context {
        if context.is_empty() {
            return context;
        }
        let wait = Work::caused(&context, Stage::Wait, &self.shared.name, key).since(&context);
        let after = wait.context();
        wait.end();
        after
    }

    pub fn done(&self, key: &K) {
        let mut state = self.shared.state.lock();
        let began = state.processing.remove(key);
        if let (Some(metrics), Some(began)) = (&self.shared.metrics, began) {
            metrics.worked.observe_duration(began.elapsed());
        }
        if state.dirty.contains_key(key) {
            state.queue.push_back(key.clone());
            drop(state);
            self.shared.ready.notify_one();
        }
    }

    /// No more keys are taken; workers get what is queued and then `None`.
    pub fn shut_down(&self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        state.delayed.clear();
        drop(state);
        self.shared.ready.notify_waiters();
        self.shared.ready.notify_one();
    }

    pub fn len(&self) -> usize {
        self.shared.state.lock().queue.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing queued, delayed or being worked on.
    pub fn is_idle(&self) -> bool {
        let state = self.shared.state.lock();
        state.queue.is_empty() && state.delayed.is_empty() && state.processing.is_empty()
    }
}

/// The metrics of one queue, as upstream calls them.
struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
    unfinished: Gauge,
    longest: Gauge,
}

impl QueueMetrics {
    fn new(name: &str, metrics: &Metrics) -> Self {
        const BOUNDS: &[f64] = &[1e-8, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0];
        let labels = [("name", name)];
        Self {
            depth: metrics.gauge("workqueue_depth", "Keys that wait", &labels),
            adds: metrics.counter("workqueue_adds_total", "Keys added", &labels),
            retries: metrics.counter("workqueue_retries_total", "Keys added again after a failure", &labels),
            waited: metrics.histogram("workqueue_queue_duration_seconds", "How long keys wait", BOUNDS, &labels),
            worked: metrics.histogram(
                "workqueue_work_duration_seconds",
                "How long work on a key takes",
                BOUNDS,
                &labels,
            ),
            unfinished: metrics.gauge(
                "workqueue_unfinished_work_seconds",
                "Time spent so far on keys that are being worked on",
                &labels,
            ),
            longest: metrics.gauge(
                "workqueue_longest_running_processor_seconds",
                "How long the oldest work under way has taken",
                &labels,
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_named_queue_is_measured() {
        let metrics = Metrics::new();
        let queue = WorkQueue::named("q", &metrics);
        queue.add("a");
        queue.add("b");
        tokio::time::advance(Duration::from_secs(2)).await;
        queue.get().await;
        tokio::time::advance(Duration::from_secs(3)).await;
        queue.add_rate_limited("a");
        let text = metrics.render();
        for line in [
            "workqueue_depth{name=\"q\"} 1",
            "workqueue_adds_total{name=\"q\"} 2",
            "workqueue_retries_total{name=\"q\"} 1",
            "workqueue_queue_duration_seconds_sum{name=\"q\"} 2",
            "workqueue_unfinished_work_seconds{name=\"q\"} 3",
        ] {
            assert!(text.contains(line), "{line} in {text}");
        }
    }

    #[tokio::test]
    async fn a_key_is_handed_out_once_and_again_if_added_meanwhile() {
        let queue = WorkQueue::new();
        for key in ["a", "b", "a"] {
            queue.add(key);
        }
        assert_eq!(queue.get().await, Some("a"));
        queue.add("a");
        assert_eq!(queue.get().await, Some("b"), "a is being worked on");
        queue.done(&"a");
        assert_eq!(queue.get().await, Some("a"));
        queue.done(&"a");
        queue.done(&"b");
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn the_earliest_of_several_delays_counts() {
        let queue = WorkQueue::new();
        let start = Instant::now();
        queue.add_after("a", Duration::from_secs(30));
        queue.add_after("a", Duration::from_secs(5));
        queue.add_after("a", Duration::from_secs(60));
        assert_eq!(queue.get().await, Some("a"));
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.done(&"a");
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_delay_may_be_longer_than_time() {
        let queue = WorkQueue::new();
        queue.add_after("a", Duration::MAX);
        queue.add_after("a", Duration::from_secs(5));
        assert_eq!(queue.get().await, Some("a"));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_delay_until_forgotten() {
        let queue = WorkQueue::new();
        for expected in [5, 10, 20, 40] {
            let start = Instant::now();
            queue.add_rate_limited("a");
            assert_eq!(queue.get().await, Some("a"));
            queue.done(&"a");
            assert_eq!(start.elapsed().as_millis(), expected);
        }
        queue.forget(&"a");
        let start = Instant::now();
        queue.add_rate_limited("a");
        queue.get().await;
        assert_eq!(start.elapsed().as_millis(), 5);
    }

    #[tokio::test]
    async fn shut_down_wakes_every_worker() {
        let queue: WorkQueue<&str> = WorkQueue::new();
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.get().await })
            })
            .collect();
        tokio::task::yield_now().await;
        queue.shut_down();
        for worker in workers {
            assert_eq!(worker.await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn many_workers_see_every_key() {
        let queue = WorkQueue::new();
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move {
                    let mut seen = 0;
                    while let Some(key) = queue.get().await {
                        tokio::task::yield_now().await;
                        queue.done(&key);
                        seen += 1;
                    }
                    seen
                })
            })
            .collect();
        for key in 0..100 {
            queue.add(key);
        }
        queue.shut_down();
        let mut seen = 0;
        for worker in workers {
            seen += worker.await.unwrap();
        }
        assert_eq!(seen, 100);
    }
}

//! The shape of a controller, and what runs it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use client::metrics::panics;
use client::{
    Client, Event, EventRecorder, Expectations, Informer, InformerFactory, ListParams, Resource, Taken, WorkQueue,
    outlive_panics,
};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trace::Work;

use crate::Error;
use crate::config::Config;

/// Reports of progress that come in quick succession (a pod ready, then the next) are looked at together: one status is
/// written instead of ten. Short enough that nobody waits for it.
pub(crate) const BATCH_INTERVAL: Duration = Duration::from_millis(10);
/// A look at many objects costs more, so it gathers longer: a set of five thousand pods is looked at ten times a second.
const BATCH_INTERVAL_PER_KEY: Duration = Duration::from_micros(20);
/// A conflict means that the cache is behind: it is looked at again as soon as it may have caught up. That is no failure and
/// must not make a busy object wait ever longer.
pub(crate) const CATCH_UP_TIMEOUT: Duration = Duration::from_millis(200);

/// How long to gather reports about a key that concerns `count` objects.
pub(crate) fn gather(count: usize) -> Duration {
    BATCH_INTERVAL + BATCH_INTERVAL_PER_KEY * u32::try_from(count).unwrap_or(u32::MAX)
}

/// What a reconcile asks of its queue when it succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Requeue {
    /// The next event will bring the key back.
    Never,
    /// Time itself is an event: look again after this.
    After(Duration),
}

impl From<Option<Duration>> for Requeue {
    fn from(delay: Option<Duration>) -> Self {
        delay.map_or(Requeue::Never, Requeue::After)
    }
}

pub(crate) type Outcome = Result<Requeue, Error>;

/// Brings one object closer to what it should be.
pub(crate) trait Reconcile: Send + Sync + 'static {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome>;

    /// Work besides the queue, for the life of the controller.
    fn background(&self, _stop: CancellationToken) -> Option<BoxFuture<'_, ()>> {
        None
    }
}

/// A controller: what `--controllers` calls it, who it is to the API, how many keys it works on at a time.
pub struct Descriptor {
    pub name: &'static str,
    /// The name of its service account in `kube-system`; RBAC binds `system:controller:<account>` to it. Empty: the manager itself.
    pub account: &'static str,
    pub workers: usize,
    pub(crate) build: fn(&Context) -> Arc<dyn Reconcile>,
}

/// When `stop` fires, ends the tasks that a controller has started beside its queue, and waits for them.
pub(crate) async fn end_tasks(stop: CancellationToken, own: &CancellationToken, tasks: &TaskTracker) {
    stop.cancelled().await;
    own.cancel();
    tasks.close();
    tasks.wait().await;
}

/// What a controller is built from. Its `build` maps informer events to keys of `queue`.
pub(crate) struct Context {
    /// Acts as the controller's own service account.
    pub(crate) client: Client,
    pub(crate) recorder: EventRecorder,
    pub(crate) informers: InformerFactory,
    pub(crate) queue: WorkQueue<String>,
    pub(crate) config: Arc<Config>,
    /// Resolves when every informer this controller uses has synced.
    syncs: Mutex<Vec<BoxFuture<'static, ()>>>,
    /// The informers that the controller reads, and what brings it back when they change.
    reads: Reads,
    /// What brings it back when an event never comes.
    expectations: Mutex<Vec<Arc<Expectations>>>,
}

type Reads = Arc<Mutex<Vec<Read>>>;

/// An informer that a controller reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Read {
    pub(crate) kind: &'static str,
    /// Its group and its plural, as roles name it.
    pub(crate) resource: (&'static str, &'static str),
    pub(crate) wake: Wake,
}

/// What brings a controller back when an informer changes that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wake {
    /// Its author has not said.
    Unsaid,
    /// Events of the informer become keys.
    Events,
    /// Nothing has to, for this reason.
    Nothing(&'static str),
}

/// An informer that does not wake its controller yet. Two caches are two clocks: an event of one says nothing about what
/// another has seen, so a decision that reads a late cache must be taken again when that cache has caught up. An informer
/// therefore becomes part of a controller only with an answer to the question what brings the controller back.
#[must_use]
pub(crate) struct Source<K> {
    informer: Informer<K>,
    reads: Reads,
    place: usize,
}

impl<K: Resource> Source<K> {
    /// Events of the informer enqueue keys: that is what `handler` does.
    pub(crate) fn wakes(self, handler: impl Fn(&Event<K>) + Send + Sync + 'static) -> Informer<K> {
        self.informer.subscribe(handler);
        self.settle(Wake::Events)
    }

    /// A late answer of this informer does no harm, for the reason given.
    pub(crate) fn wakes_nothing(self, reason: &'static str) -> Informer<K> {
        self.settle(Wake::Nothing(reason))
    }

    /// For the handlers of other informers.
    pub(crate) fn shared(&self) -> Informer<K> {
        self.informer.clone()
    }

    fn settle(self, wake: Wake) -> Informer<K> {
        if let Some(read) = self.reads.lock().get_mut(self.place) {
            read.wake = wake;
        }
        self.informer
    }
}

impl<K> Deref for Source<K> {
    type Target = Informer<K>;

    fn deref(&self) -> &Informer<K> {
        &self.informer
    }
}

impl Context {
    pub(crate) fn new(
        name: &str,
        client: Client,
        recorder: EventRecorder,
        informers: InformerFactory,
        config: Arc<Config>,
    ) -> Self {
        let queue = WorkQueue::named(name, &config.metrics);
        Self {
            client,
            recorder,
            informers,
            queue,
            config,
            syncs: Mutex::default(),
            reads: Reads::default(),
            expectations: Mutex::default(),
        }
    }

    /// What the controller has asked for and not seen yet. Keys whose events are overdue are looked at again.
    pub(crate) fn expectations(&self) -> Arc<Expectations> {
        let expectations = Arc::new(Expectations::new());
        self.expectations.lock().push(expectations.clone());
        expectations
    }

    /// The shared informer of `K`; workers start only after it has synced.
    pub(crate) fn informer<K: Resource>(&self) -> Source<K> {
        self.wait_for(self.informers.informer::<K>())
    }

    /// The shared informer of the objects of `K` that `params` selects.
    pub(crate) fn filtered<K: Resource>(&self, params: ListParams) -> Source<K> {
        self.wait_for(self.informers.filtered::<K>(params))
    }

    /// The shared informer of `K` in one namespace.
    pub(crate) fn namespaced<K: Resource>(&self, namespace: &str, params: ListParams) -> Source<K> {
        self.wait_for(self.informers.namespaced::<K>(namespace, params))
    }

    fn wait_for<K: Resource>(&self, informer: Informer<K>) -> Source<K> {
        self.syncs.lock().push(informer.untyped().synced());
        let mut reads = self.reads.lock();
        reads.push(Read { kind: K::KIND, resource: (K::GROUP, K::URL_PATH_SEGMENT), wake: Wake::Unsaid });
        Source { informer, reads: self.reads.clone(), place: reads.len() - 1 }
    }

    /// The informers that were asked for so far.
    #[cfg(test)]
    pub(crate) fn reads(&self) -> Vec<Read> {
        self.reads.lock().clone()
    }

    /// The informer of `K`, whose events enqueue whatever keys `keys` maps them to.
    pub(crate) fn on<K, I>(&self, keys: impl Fn(&Event<K>) -> I + Send + Sync + 'static) -> Informer<K>
    where
        K: Resource,
        I: IntoIterator<Item = String>,
    {
        let queue = self.queue.clone();
        self.informer::<K>().wakes(move |event| {
            for key in keys(event) {
                queue.add(key);
            }
        })
    }

    /// The informer of `K`, every event of which enqueues the object itself.
    pub(crate) fn on_self<K: Resource>(&self) -> Informer<K> {
        self.on::<K, _>(|event| [client::object_key(&**event.object())])
    }
}

/// Runs one controller until `stop`.
pub(crate) async fn run(descriptor: &'static Descriptor, context: Context, stop: CancellationToken) {
    let queue = context.queue.clone();
    // Handlers of a controller that panicked stay with their informers: nobody waits for what they enqueue.
    let _closed = Closed(&queue);
    let controller: Arc<dyn Reconcile> = (descriptor.build)(&context);
    let syncs = std::mem::take(&mut *context.syncs.lock());
    tokio::select! {
        () = stop.cancelled() => return,
        _ = join_all(syncs) => {}
    }
    tracing::debug!(controller = descriptor.name, "caches synced");
    let mut workers = JoinSet::new(); // dropping it aborts what is left
    for _ in 0..descriptor.workers {
        let (controller, queue, stop) = (controller.clone(), queue.clone(), stop.clone());
        workers.spawn(FutureExt::boxed(async move {
            let working = || work(descriptor.name, controller.clone(), queue.clone());
            outlive_panics(descriptor.name, "", &stop, working).await;
        }));
    }
    let background = {
        let (controller, stop) = (controller.clone(), stop.clone());
        async move {
            let working = || async {
                if let Some(task) = controller.background(stop.clone()) {
                    task.await;
                }
            };
            outlive_panics(descriptor.name, "background", &stop, working).await;
        }
    };
    workers.spawn(FutureExt::boxed(background));
    let expected = std::mem::take(&mut *context.expectations.lock());
    for expectations in expected {
        workers.spawn(FutureExt::boxed(look_at_overdue(expectations, queue.clone(), stop.clone())));
    }
    stop.cancelled().await;
    queue.shut_down();
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            tracing::error!(controller = descriptor.name, %error, "worker ended badly");
        }
    }
}

/// Until `stop`: enqueues keys whose events do not come.
async fn look_at_overdue(expectations: Arc<Expectations>, queue: WorkQueue<String>, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            keys = expectations.overdue() => keys.into_iter().for_each(|key| queue.add(key)),
        }
    }
}

async fn work(name: &'static str, controller: Arc<dyn Reconcile>, queue: WorkQueue<String>) {
    let stage = trace::Stage::of_controller(name);
    while let Some(Taken { key, context }) = queue.take().await {
        let _done = Done { queue: &queue, key: &key };
        let mut work = Work::caused(&context, stage, name, &key);
        // One bad object must not stop the others.
        let outcome = work.run(panics::catch_future(name, controller.reconcile(&key))).await;
        match outcome {
            Some(Ok(requeue)) => {
                work.end();
                queue.forget(&key);
                if let Requeue::After(delay) = requeue {
                    queue.add_after(key.clone(), delay);
                }
            }
            Some(Err(error)) if error.is_conflict() => {
                tracing::debug!(controller = name, key, %error, "reconciling again");
                work.run_now(|| queue.add_rate_limited_up_to(key.clone(), CATCH_UP_TIMEOUT));
                work.fail(error);
            }
            Some(Err(error)) => {
                tracing::warn!(controller = name, key, %error, "reconcile failed");
                work.run_now(|| queue.add_rate_limited(key.clone()));
                work.fail(error);
            }
            None => {
                tracing::error!(controller = name, key, "reconcile panicked");
                work.run_now(|| queue.add_rate_limited(key.clone()));
                work.fail("panicked");
            }
        }
    }
}

/// Takes no more keys when a controller ends, however it ends.
struct Closed<'a>(&'a WorkQueue<String>);

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// Hands a key back when work on it ends, however it ends: one that is never done is never looked at again.
struct Done<'a> {
    queue: &'a WorkQueue<String>,
    key: &'a String,
}

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.queue.done(self.key);
    }
}

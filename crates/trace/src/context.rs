//! The cause of the present work, and the way it travels.
//!
//! It belongs to the task: whatever runs inside [`Work::run`](crate::Work::run) finds it, and whoever hands work to another
//! task takes a [`Context`] along. An informer's handlers run inside [`deliver`].

use std::cell::{OnceCell, RefCell};
use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Clock;
use crate::export::{Exporting, TraceContext};
use crate::laps::Laps;
use crate::record::Record;
use crate::{Causes, Id, Lap, Name, Outcome, Recorder, Span, Stage, now};

tokio::task_local! {
    static SCOPE: Scope;
}

/// What a task is about.
pub(crate) struct Scope {
    recorder: Option<Arc<Recorder>>,
    cause: Cause,
    /// Of the span that the task works on, if any.
    laps: RefCell<Option<Laps>>,
    /// The object of the span, if it became known on the way.
    object: RefCell<Option<String>>,
    /// The span, where it is only exported: nothing follows from it.
    exported: Option<(Arc<Recorder>, Id)>,
}

enum Cause {
    Known(Causes),
    /// A watch event. Most are of no consequence, so its span is made only when something follows from it.
    Delivery {
        actor: Arc<str>,
        object: String,
        revision: u64,
        recorded: OnceCell<Id>,
    },
}

/// What is left of a scope: the output of its work, the laps and the object of its span.
pub(crate) type Done<T> = (T, Option<Laps>, Option<String>);

impl Scope {
    /// Of a span: what is done in it is caused by `id`.
    pub(crate) fn of_span(recorder: Arc<Recorder>, id: Id, laps: Laps) -> Self {
        Self { laps: RefCell::new(Some(laps)), ..Self::with(Some(recorder), Cause::Known(id.into())) }
    }

    /// Of a span that is only exported.
    pub(crate) fn of_exported(recorder: Arc<Recorder>, id: Id, laps: Laps) -> Self {
        Self { laps: RefCell::new(Some(laps)), exported: Some((recorder, id)), ..Self::nobodys() }
    }

    /// Of work that nobody keeps count of.
    pub(crate) fn nobodys() -> Self {
        Self::with(None, Cause::Known(Causes::default()))
    }

    fn with(recorder: Option<Arc<Recorder>>, cause: Cause) -> Self {
        Self { recorder, cause, laps: RefCell::default(), object: RefCell::default(), exported: None }
    }

    fn causes(&self) -> Causes {
        match (&self.cause, &self.recorder) {
            (Cause::Known(causes), _) => causes.clone(),
            (Cause::Delivery { .. }, None) => Causes::default(),
            (Cause::Delivery { actor, object, revision, recorded }, Some(recorder)) => {
                let id = recorded.get_or_init(|| {
                    let id = Id::fresh();
                    let cause = std::iter::once(Id::commit(*revision));
                    let mut record = Record::new(Stage::Delivery, id, now(), cause, actor, object);
                    record.finish(Outcome::Ok, 0);
                    recorder.keep(&record, None);
                    id
                });
                (*id).into()
            }
        }
    }

    fn context(&self) -> Context {
        Context { recorder: self.recorder.clone(), causes: self.causes(), since: 0 }
    }

    /// On the heap: the layers here would otherwise each hold a copy of a future that may be large.
    pub(crate) async fn run<F: Future>(self, future: Pin<Box<F>>) -> Done<F::Output> {
        let inner = async {
            let output = future.await;
            let (laps, object) = SCOPE.with(|scope| (scope.laps.take(), scope.object.take()));
            (output, laps, object)
        };
        SCOPE.scope(self, inner).await
    }

    pub(crate) fn run_now<R>(self, work: impl FnOnce() -> R) -> R {
        SCOPE.sync_scope(self, work)
    }
}

/// The causes of work that is yet to be done, on its way from one task to another.
#[derive(Clone, Default)]
pub struct Context {
    pub(crate) recorder: Option<Arc<Recorder>>,
    pub(crate) causes: Causes,
    /// When the first of them came about, if somebody counts the wait; else 0.
    pub(crate) since: u64,
}

impl Context {
    /// What is known to be caused by these.
    pub fn new(recorder: Arc<Recorder>, causes: impl Into<Causes>) -> Self {
        Self { recorder: Some(recorder), causes: causes.into(), since: 0 }
    }

    /// Begins to count a wait.
    pub fn waiting(mut self) -> Self {
        if self.since == 0 && !self.is_empty() {
            self.since = now();
        }
        self
    }

    pub fn is_empty(&self) -> bool {
        self.causes.is_empty()
    }

    /// The same work has another cause as well.
    pub fn merge(&mut self, other: Context) {
        if self.is_empty() {
            *self = other;
            return;
        }
        other.causes.iter().for_each(|cause| self.causes.add(cause));
    }

    /// Takes the causes out.
    pub fn take(&mut self) -> Context {
        std::mem::take(self)
    }

    /// The causes as a header's value.
    pub fn header(&self) -> Option<String> {
        (!self.is_empty()).then(|| self.causes.to_string())
    }

    /// Records a span of somebody's own making, with these causes. Returns what it causes in turn.
    pub fn record(&self, mut span: Span) -> Context {
        let Some(recorder) = self.recorder.as_ref().filter(|_| !self.is_empty()) else { return Context::default() };
        span.causes = self.causes.iter().collect();
        recorder.record(&span);
        Context::new(recorder.clone(), span.id)
    }

    /// Runs something that is caused by these, without a span of its own.
    pub fn run<F: Future>(self, future: F) -> impl Future<Output = F::Output> {
        let future = Box::pin(future);
        async move { Scope::with(self.recorder, Cause::Known(self.causes)).run(future).await.0 }
    }

    /// As `run`, for what does not wait.
    pub fn run_now<R>(self, work: impl FnOnce() -> R) -> R {
        Scope::with(self.recorder, Cause::Known(self.causes)).run_now(work)
    }

    /// Notes something that took no time.
    pub fn instant(&self, stage: Stage, actor: &str, object: impl Display) {
        let Some(recorder) = self.recorder.as_ref().filter(|_| !self.is_empty()) else { return };
        let mut record = Record::new(stage, Id::fresh(), now(), self.causes.iter(), actor, object);
        record.finish(Outcome::Ok, 0);
        recorder.keep(&record, None);
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Debug::fmt(&self.causes, out)
    }
}

/// What the present work is caused by; empty if nobody keeps count.
pub fn current() -> Context {
    SCOPE.try_with(Scope::context).unwrap_or_default()
}

/// The span that present work belongs to, where spans are exported.
fn exporting() -> Option<(Arc<Exporting>, Id)> {
    let found = SCOPE.try_with(|scope| match &scope.exported {
        Some((recorder, id)) => Some((recorder.exporting()?.clone(), *id)),
        None => Some((scope.recorder.as_ref()?.exporting()?.clone(), scope.causes().iter().next()?)),
    });
    found.ok().flatten()
}

/// The context of the present work for whoever it calls, if its spans are exported.
pub fn trace_context() -> Option<TraceContext> {
    exporting().and_then(|(exporting, id)| exporting.context_of(id))
}

/// The present span was asked for by somebody who names a trace. Whether it goes on there is the caller's to decide: whoever
/// may choose the trace may have everything exported.
pub fn follow(context: TraceContext, is_trusted: bool) {
    if let Some((exporting, id)) = exporting() {
        exporting.follow(id, context, is_trusted);
    }
}

impl Exporting {
    /// The present span was asked for by somebody whose word on its cause is not taken: a commit that it names does not
    /// decide whether it is exported. The commit's trace is still named by a link.
    pub fn alone() {
        if let Some((exporting, id)) = exporting() {
            exporting.part_from_commit(id);
        }
    }
}

/// Runs an informer's handlers on a watch event: what they set off is caused by the commit of `revision`.
pub fn deliver<R>(
    recorder: &Arc<Recorder>,
    actor: &Arc<str>,
    object: String,
    revision: u64,
    handlers: impl FnOnce() -> R,
) -> R {
    let cause = Cause::Delivery { actor: actor.clone(), object, revision, recorded: OnceCell::new() };
    Scope::with(Some(recorder.clone()), cause).run_now(handlers)
}

/// Records a part of the present work that has a name of its own: it began at `began` and ends now. The next step begins.
pub fn part(id: Id, stage: Stage, actor: &str, object: impl Display, detail: impl Display, began: Instant) {
    let _ = SCOPE.try_with(|scope| {
        let Some(recorder) = scope.recorder.as_ref().or(scope.exported.as_ref().map(|(recorder, _)| recorder)) else {
            return;
        };
        let ended = Instant::now();
        let duration = ended.saturating_duration_since(began).as_nanos() as u64;
        let laps = &mut *scope.laps.borrow_mut();
        let start = laps.as_ref().map(Laps::clock).map_or_else(|| now() - duration, |clock| clock.wall(began));
        let causes = scope.exported.as_ref().map_or_else(|| scope.causes(), |(_, id)| (*id).into());
        let mut record = Record::new(stage, id, start, causes.iter(), actor, object);
        record.detail(detail);
        record.finish(Outcome::Ok, duration);
        match scope.exported {
            None => recorder.keep(&record, None),
            Some(_) => recorder.offer(&record, None),
        }
        if let Some(laps) = laps {
            laps.mark(ended);
        }
    });
}

/// A step of the present span ends here; it began where the last one ended.
pub fn lap(stage: Stage) {
    lap_named(stage, Name::NONE);
}

pub fn lap_named(stage: Stage, name: Name) {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.lap(stage, name, false, Instant::now())));
}

pub fn lap_failed(stage: Stage, name: Name) {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.lap(stage, name, true, Instant::now())));
}

/// As `lap_named` or `lap_failed`, for whoever has just looked at the clock.
pub fn lap_at(stage: Stage, name: Name, failed: bool, at: Instant) {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.lap(stage, name, failed, at)));
}

/// The next step begins now.
pub fn mark() {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.mark(Instant::now())));
}

/// As `mark`, for whoever has just looked at the clock.
pub fn mark_at(at: Instant) {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.mark(at)));
}

fn with_laps(scope: &Scope, change: impl FnOnce(&mut Laps)) {
    if let Some(laps) = &mut *scope.laps.borrow_mut() {
        change(laps);
    }
}

/// Adds steps that somebody else made for the present span.
pub fn take_laps(list: &[Lap]) {
    let _ = SCOPE.try_with(|scope| with_laps(scope, |laps| laps.extend(list)));
}

/// Runs something for a caller elsewhere, who is told about its steps.
pub fn laps_of<F: Future>(future: F) -> impl Future<Output = (F::Output, Vec<Lap>)> {
    let future = Box::pin(future);
    async move {
        // Nothing is recorded here: the caller has the span.
        let scope = Scope { laps: RefCell::new(Some(Laps::new(Clock::begin()))), ..Scope::nobodys() };
        let (output, laps, _) = scope.run(future).await;
        (output, laps.as_ref().map(Laps::list).unwrap_or_default())
    }
}

/// The object of the present span has this name; known only now, because the server made it up.
pub fn set_object(object: impl FnOnce() -> String) {
    let _ = SCOPE.try_with(|scope| {
        if scope.laps.borrow().is_some() {
            *scope.object.borrow_mut() = Some(object());
        }
    });
}

/// The present span's steps go on in another task, until [`Detached::rejoin`].
pub fn detached<F: Future>(future: F) -> impl Future<Output = Detached<F::Output>> {
    let leave = |scope: &Scope| Scope {
        laps: RefCell::new(scope.laps.take()),
        exported: scope.exported.clone(),
        ..Scope::with(scope.recorder.clone(), Cause::Known(scope.causes()))
    };
    let scope = SCOPE.try_with(leave).unwrap_or_else(|_| Scope::nobodys());
    let future = Box::pin(future);
    async move {
        let (output, laps, object) = scope.run(future).await;
        Detached { output, laps, object }
    }
}

/// What a part of a span came to in another task.
pub struct Detached<T> {
    output: T,
    laps: Option<Laps>,
    object: Option<String>,
}

impl<T> Detached<T> {
    pub fn rejoin(self) -> T {
        let _ = SCOPE.try_with(|scope| scope.laps.replace(self.laps));
        if let Some(object) = self.object {
            set_object(|| object);
        }
        mark();
        self.output
    }
}

//! The cause of the present work, and the way it travels.
//!
//! It belongs to the task: whatever runs inside [`Work::run`](crate::Work::run) finds it, and whoever hands work to another
//! task takes a [`Context`] along. An informer's handlers run inside [`deliver`].

use std::cell::{OnceCell, RefCell};
use std::pin::Pin;
use std::sync::Arc;

use crate::span::MAX_CAUSES;
use crate::{Id, Lap, Name, Outcome, Recorder, Span, Stage, now};

tokio::task_local! {
    static SCOPE: Scope;
}

/// What a task is about.
pub(crate) struct Scope {
    recorder: Option<Arc<Recorder>>,
    cause: Cause,
    laps: RefCell<Laps>,
    /// The object of the span, if it became known on the way.
    object: RefCell<Option<String>>,
}

enum Cause {
    Known(Vec<Id>),
    /// A watch event. Most are of no consequence, so its span is made only when something follows from it.
    Delivery {
        event: Box<Span>,
        recorded: OnceCell<Id>,
    },
}

#[derive(Default)]
pub(crate) struct Laps {
    pub(crate) list: Vec<Lap>,
    /// When the last one ended.
    last: u64,
}

impl Scope {
    pub(crate) fn of(context: &Context, id: Id) -> Self {
        let causes = if context.recorder.is_some() { vec![id] } else { Vec::new() };
        Self::with(context.recorder.clone(), Cause::Known(causes))
    }

    fn with(recorder: Option<Arc<Recorder>>, cause: Cause) -> Self {
        let laps = RefCell::new(Laps { list: Vec::new(), last: now() });
        Self { recorder, cause, laps, object: RefCell::default() }
    }

    fn context(&self) -> Context {
        let causes = match &self.cause {
            Cause::Known(causes) => causes.clone(),
            Cause::Delivery { event, recorded } => {
                let id = recorded.get_or_init(|| {
                    if let Some(recorder) = &self.recorder {
                        recorder.record(event);
                    }
                    event.id
                });
                vec![*id]
            }
        };
        Context { recorder: self.recorder.clone(), causes, since: 0 }
    }

    /// On the heap: the layers here would otherwise each hold a copy of a future that may be large.
    pub(crate) async fn run<F: Future>(self, future: Pin<Box<F>>) -> (F::Output, Laps, Option<String>) {
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
    pub(crate) causes: Vec<Id>,
    /// When the first of them came about, if somebody counts the wait; else 0.
    pub(crate) since: u64,
}

impl Context {
    /// What is known to be caused by these.
    pub fn new(recorder: Arc<Recorder>, causes: Vec<Id>) -> Self {
        Self { recorder: Some(recorder), causes, since: 0 }
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
        for cause in other.causes {
            if self.causes.len() < MAX_CAUSES && !self.causes.contains(&cause) {
                self.causes.push(cause);
            }
        }
    }

    /// Takes the causes out.
    pub fn take(&mut self) -> Context {
        std::mem::take(self)
    }

    /// The causes as a header's value.
    pub fn header(&self) -> Option<String> {
        let mut causes = self.causes.iter();
        let mut text = causes.next()?.to_string();
        for cause in causes {
            text.push(',');
            text.push_str(&cause.to_string());
        }
        Some(text)
    }

    /// Records a span of somebody's own making, with these causes. Returns what it causes in turn.
    pub fn record(&self, mut span: Span) -> Context {
        let Some(recorder) = self.recorder.as_ref().filter(|_| !self.is_empty()) else { return Context::default() };
        span.causes.clone_from(&self.causes);
        recorder.record(&span);
        Context::new(recorder.clone(), vec![span.id])
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
    pub fn instant(&self, stage: Stage, actor: &str, object: &str) {
        if !self.is_empty() {
            self.record(Span { outcome: Outcome::Ok, ..Span::new(stage, actor, object) });
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(&self.causes).finish()
    }
}

/// What the present work is caused by; empty if nobody keeps count.
pub fn current() -> Context {
    SCOPE.try_with(Scope::context).unwrap_or_default()
}

/// Runs an informer's handlers on a watch event: what they set off is caused by the commit of `revision`.
pub fn deliver<R>(
    recorder: &Arc<Recorder>,
    actor: &str,
    object: String,
    revision: u64,
    handlers: impl FnOnce() -> R,
) -> R {
    let event =
        Span { causes: vec![Id::commit(revision)], outcome: Outcome::Ok, ..Span::new(Stage::Delivery, actor, object) };
    let cause = Cause::Delivery { event: Box::new(event), recorded: OnceCell::new() };
    Scope::with(Some(recorder.clone()), cause).run_now(handlers)
}

/// A step of the present span ends here; it began where the last one ended.
pub fn lap(stage: Stage) {
    add_lap(stage, Name::NONE, false);
}

pub fn lap_named(stage: Stage, name: Name) {
    add_lap(stage, name, false);
}

pub fn lap_failed(stage: Stage, name: Name) {
    add_lap(stage, name, true);
}

fn add_lap(stage: Stage, name: Name, failed: bool) {
    let _ = SCOPE.try_with(|scope| {
        if scope.recorder.is_some() {
            let mut laps = scope.laps.borrow_mut();
            let end = now();
            let start = std::mem::replace(&mut laps.last, end);
            laps.list.push(Lap { stage, name, start, duration: end.saturating_sub(start), failed });
        }
    });
}

/// The next step begins now.
pub fn mark() {
    let _ = SCOPE.try_with(|scope| scope.laps.borrow_mut().last = now());
}

/// Adds steps that somebody else made for the present span.
pub fn take_laps(laps: Vec<Lap>) {
    let _ = SCOPE.try_with(|scope| scope.laps.borrow_mut().list.extend(laps));
}

/// Runs something for a caller elsewhere, who is told about its steps.
pub fn laps_of<F: Future>(future: F) -> impl Future<Output = (F::Output, Vec<Lap>)> {
    let future = Box::pin(future);
    async move {
        // Nothing is recorded here: the caller has the span.
        let recorder = Recorder::new(0);
        let (output, laps, _) = Scope::with(Some(recorder), Cause::Known(Vec::new())).run(future).await;
        (output, laps.list)
    }
}

/// The object of the present span has this name; known only now, because the server made it up.
pub fn set_object(object: impl FnOnce() -> String) {
    let _ = SCOPE.try_with(|scope| *scope.object.borrow_mut() = Some(object()));
}

/// Part of the present span, for another task to run; [`Away::home`] adds its steps to the span.
pub fn away<F: Future>(future: F) -> impl Future<Output = Away<F::Output>> {
    let Context { recorder, causes, .. } = current();
    let future = Box::pin(future);
    async move {
        let (output, laps, object) = Scope::with(recorder, Cause::Known(causes)).run(future).await;
        Away { output, laps: laps.list, object }
    }
}

/// What a part of a span came to in another task.
pub struct Away<T> {
    output: T,
    laps: Vec<Lap>,
    object: Option<String>,
}

impl<T> Away<T> {
    pub fn home(self) -> T {
        take_laps(self.laps);
        if let Some(object) = self.object {
            set_object(|| object);
        }
        mark();
        self.output
    }
}

//! Work under way: a span that has begun.

use std::fmt::Display;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use crate::clock::Clock;
use crate::context::Scope;
use crate::laps::Laps;
use crate::record::Record;
use crate::{Causes, Context, Id, Lap, Outcome, Recorder, Stage, current};

/// A span that is recorded when the work ends, whichever way. Without a cause nothing is recorded: work that a timer sets
/// off belongs to nobody's walk.
pub struct Work(Option<Begun>);

/// A span as far as it is known.
struct Begun {
    recorder: Arc<Recorder>,
    id: Id,
    clock: Clock,
    record: Record,
    /// While the work runs they are in its scope, and are lost with it if it does not come to its end.
    laps: Option<Laps>,
    /// Whether it goes into the ring.
    is_kept: bool,
}

impl Begun {
    fn new(recorder: Arc<Recorder>, causes: &Causes, stage: Stage, actor: &str, object: impl Display) -> Self {
        let (id, clock) = (Id::fresh(), Clock::begin());
        let record = Record::new(stage, id, clock.start(), causes.iter(), actor, object);
        if let Some(exporting) = recorder.exporting() {
            exporting.begun(id, causes.iter().next());
        }
        Self { recorder, id, clock, record, laps: None, is_kept: true }
    }

    fn finish(mut self, outcome: Outcome) {
        self.record.finish(outcome, self.clock.elapsed());
        match self.is_kept {
            true => self.recorder.keep(&self.record, self.laps.as_ref()),
            false => self.recorder.offer(&self.record, self.laps.as_ref()),
        }
    }
}

impl Work {
    /// A part of the present work.
    pub fn begin(stage: Stage, actor: &str, object: impl Display) -> Self {
        Self::caused(&current(), stage, actor, object)
    }

    /// Work that follows from what `context` says.
    pub fn caused(context: &Context, stage: Stage, actor: &str, object: impl Display) -> Self {
        match &context.recorder {
            Some(recorder) if !context.is_empty() => Self::root(recorder, &context.causes, stage, actor, object),
            _ => Self::nobodys(),
        }
    }

    /// Work that is recorded in any case.
    pub fn root(recorder: &Arc<Recorder>, causes: &Causes, stage: Stage, actor: &str, object: impl Display) -> Self {
        Self(Some(Begun::new(recorder.clone(), causes, stage, actor, object)))
    }

    /// Work that is not recorded.
    pub fn nobodys() -> Self {
        Self(None)
    }

    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// The work began when its causes began to wait.
    pub fn since(mut self, context: &Context) -> Self {
        if let (Some(begun), 1..) = (&mut self.0, context.since) {
            begun.clock = begun.clock.since(context.since);
            begun.record.set_start(begun.clock.start());
        }
        self
    }

    /// Nanoseconds since 1970; 0 for what is not recorded.
    pub fn started_at(&self) -> u64 {
        self.0.as_ref().map_or(0, |begun| begun.clock.start())
    }

    pub fn detail(&mut self, detail: impl Display) {
        if let Some(begun) = &mut self.0 {
            begun.record.detail(detail);
        }
    }

    /// Adds a word.
    pub fn append_detail(&mut self, word: impl Display) {
        if let Some(begun) = &mut self.0 {
            begun.record.word(word);
        }
    }

    /// Nothing of it is kept here, and nothing that it sets off is said to follow from it: a collector alone is told.
    pub fn only_export(&mut self) {
        if let Some(begun) = &mut self.0 {
            begun.is_kept = false;
        }
    }

    /// What a collector is to call it.
    pub fn title(&mut self, title: impl Display) {
        if let Some(begun) = self.exported() {
            begun.record.title(title);
        }
    }

    /// What a collector is told besides.
    pub fn attribute(&mut self, name: &str, text: impl Display) {
        if let Some(begun) = self.exported() {
            begun.record.attribute(name, text);
        }
    }

    fn exported(&mut self) -> Option<&mut Begun> {
        self.0.as_mut().filter(|begun| begun.recorder.exporting().is_some())
    }

    pub fn with_detail(mut self, detail: impl Display) -> Self {
        self.detail(detail);
        self
    }

    /// Shows the work while it runs: for what takes long.
    pub fn announce(self) -> Self {
        if let Some(begun) = &self.0 {
            begun.recorder.keep(&begun.record, None);
        }
        self
    }

    pub fn add_lap(&mut self, lap: Lap) {
        if let Some(begun) = &mut self.0 {
            begun.laps.get_or_insert_with(|| Laps::new(begun.clock)).extend(&[lap]);
        }
    }

    /// What this work sets off is caused by it.
    pub fn context(&self) -> Context {
        let kept = self.0.as_ref().filter(|begun| begun.is_kept);
        kept.map(|begun| Context::new(begun.recorder.clone(), begun.id)).unwrap_or_default()
    }

    fn scope(&mut self) -> Scope {
        let Some(begun) = &mut self.0 else { return Scope::nobodys() };
        let laps = match begun.laps.take() {
            None => Laps::new(begun.clock),
            Some(mut laps) => {
                laps.mark(Instant::now());
                laps
            }
        };
        match begun.is_kept {
            true => Scope::of_span(begun.recorder.clone(), begun.id, laps),
            false => Scope::of_exported(begun.recorder.clone(), begun.id, laps),
        }
    }

    /// Does the work: everything in `future` is caused by it, and its laps are the span's.
    pub fn run<F: Future>(&mut self, future: F) -> impl Future<Output = F::Output> {
        self.run_boxed(Box::pin(future))
    }

    async fn run_boxed<F: Future>(&mut self, future: Pin<Box<F>>) -> F::Output {
        let (output, laps, object) = self.scope().run(future).await;
        if let Some(begun) = &mut self.0 {
            begun.laps = laps;
            if let Some(object) = object {
                begun.record.object(object);
            }
        }
        output
    }

    /// As `run`, for what does not wait and has no steps.
    pub fn run_now<R>(&self, work: impl FnOnce() -> R) -> R {
        self.context().run_now(work)
    }

    /// Does the work and ends with its result.
    pub fn result<T, E: Display>(
        mut self,
        future: impl Future<Output = Result<T, E>>,
    ) -> impl Future<Output = Result<T, E>> {
        let future = Box::pin(future);
        async move {
            let result = self.run_boxed(future).await;
            self.end_with(&result);
            result
        }
    }

    pub fn end(self) {
        self.finish(Outcome::Ok);
    }

    pub fn fail(mut self, why: impl Display) {
        self.detail(why);
        self.finish(Outcome::Failed);
    }

    pub fn end_with<T, E: Display>(self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.end(),
            Err(error) => self.fail(error),
        }
    }

    /// Ends it without a record.
    pub fn discard(mut self) {
        if let Some(begun) = self.0.take()
            && let Some(exporting) = begun.recorder.exporting()
        {
            exporting.forget(begun.id);
        }
    }

    pub fn finish(mut self, outcome: Outcome) {
        if let Some(begun) = self.0.take() {
            begun.finish(outcome);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if let Some(begun) = self.0.take() {
            begun.finish(Outcome::Dropped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{deliver, lap, now};

    #[tokio::test]
    async fn a_cause_travels_from_a_delivery_through_work_to_its_parts() {
        let recorder = Recorder::new(100_000);
        let actor = "informer".into();
        let mut queued = Context::default();
        deliver(&recorder, &actor, "pods/default/a".into(), 7, || queued.merge(current()));
        deliver(&recorder, &actor, "pods/default/a".into(), 8, || {});
        let mut work = Work::caused(&queued, Stage::Reconcile, "controller", "default/a");
        work.run(async {
            lap(Stage::Decode);
            Work::begin(Stage::Request, "client", "pods/default/b").end();
            let dropped = Work::begin(Stage::Pull, "kubelet", "image");
            drop(dropped);
        })
        .await;
        let id = work.context().causes.iter().next().unwrap();
        work.fail("no");
        assert!(current().is_empty(), "the cause ends with the work");

        let spans = recorder.spans();
        let seen: Vec<_> = spans.iter().map(|span| (span.stage, span.outcome)).collect();
        assert_eq!(
            seen,
            [
                (Stage::Delivery, Outcome::Ok),
                (Stage::Request, Outcome::Ok),
                (Stage::Pull, Outcome::Dropped),
                (Stage::Reconcile, Outcome::Failed),
            ],
            "an event of no consequence leaves nothing"
        );
        assert_eq!(spans[0].causes, [Id::commit(7)]);
        assert_eq!(spans[3].causes, [spans[0].id]);
        assert_eq!((spans[1].causes[0], spans[2].causes[0]), (id, id));
        assert_eq!((spans[3].laps.len(), spans[3].detail.as_str()), (1, "no"));
    }

    #[tokio::test]
    async fn nothing_is_recorded_for_nobody() {
        let mut work = Work::begin(Stage::Sync, "kubelet", "pods/default/a");
        let inner = work.run(async { current().is_empty() }).await;
        assert!(inner && !work.is_recorded());
        work.end();
    }

    #[test]
    fn waits_begin_with_the_first_cause_and_keep_the_others() {
        let recorder = Recorder::new(10_000);
        let mut context = Context::new(recorder.clone(), Id::commit(1)).waiting();
        let began = context.since;
        assert!(began > 0 && began <= now());
        context.merge(Context::new(recorder.clone(), Id::commit(2)).waiting());
        context.merge(Context::new(recorder, Id::commit(1)));
        assert_eq!((context.since, context.header().unwrap().as_str()), (began, "rv1,rv2"));
        assert_eq!(Work::caused(&context, Stage::Wait, "q", "k").since(&context).started_at(), began);
    }
}

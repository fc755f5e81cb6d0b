//! Work under way: a span that has begun.

use std::pin::Pin;
use std::sync::Arc;

use crate::context::Scope;
use crate::{Context, Id, Lap, Outcome, Recorder, Span, Stage, current};

/// A span that is recorded when the work ends, whichever way. Without a cause nothing is recorded: work that a timer sets
/// off belongs to nobody's walk.
pub struct Work {
    recorder: Option<Arc<Recorder>>,
    span: Span,
}

impl Work {
    /// A part of the present work.
    pub fn begin(stage: Stage, actor: &str, object: &str) -> Self {
        Self::caused(&current(), stage, actor, object)
    }

    /// Work that follows from what `context` says.
    pub fn caused(context: &Context, stage: Stage, actor: &str, object: &str) -> Self {
        let Some(recorder) = context.recorder.as_ref().filter(|_| !context.is_empty()) else {
            return Self::nobodys(stage);
        };
        let span = Span { causes: context.causes.clone(), ..Span::new(stage, actor, object) };
        Self { recorder: Some(recorder.clone()), span }
    }

    /// Work that is recorded in any case.
    pub fn root(recorder: &Arc<Recorder>, causes: Vec<Id>, stage: Stage, actor: &str, object: &str) -> Self {
        Self { recorder: Some(recorder.clone()), span: Span { causes, ..Span::new(stage, actor, object) } }
    }

    /// Work that is not recorded.
    pub fn nobodys(stage: Stage) -> Self {
        Self { recorder: None, span: Span { start: 0, ..Span::new(stage, "", "") } }
    }

    pub fn is_recorded(&self) -> bool {
        self.recorder.is_some()
    }

    pub fn id(&self) -> Id {
        self.span.id
    }

    /// The work began when its causes began to wait.
    pub fn since(mut self, context: &Context) -> Self {
        if context.since != 0 {
            self.span.start = context.since;
        }
        self
    }

    pub fn started_at(&self) -> u64 {
        self.span.start
    }

    pub fn detail(&mut self, detail: impl Into<String>) {
        if self.is_recorded() {
            self.span.detail = detail.into();
        }
    }

    /// Adds a word.
    pub fn append_detail(&mut self, word: &str) {
        if self.is_recorded() {
            self.span.detail.push(' ');
            self.span.detail.push_str(word);
        }
    }

    pub fn with_detail(mut self, detail: &str) -> Self {
        self.detail(detail);
        self
    }

    /// Shows the work while it runs: for what takes long.
    pub fn announce(self) -> Self {
        if let Some(recorder) = &self.recorder {
            recorder.record(&self.span);
        }
        self
    }

    pub fn add_lap(&mut self, lap: Lap) {
        if self.is_recorded() {
            self.span.laps.push(lap);
        }
    }

    /// What this work sets off is caused by it.
    pub fn context(&self) -> Context {
        match &self.recorder {
            Some(recorder) => Context::new(recorder.clone(), vec![self.span.id]),
            None => Context::default(),
        }
    }

    fn scope(&self) -> Scope {
        Scope::of(&self.context(), self.span.id)
    }

    /// Does the work: everything in `future` is caused by it, and its laps are the span's.
    pub fn run<F: Future>(&mut self, future: F) -> impl Future<Output = F::Output> {
        self.run_boxed(Box::pin(future))
    }

    async fn run_boxed<F: Future>(&mut self, future: Pin<Box<F>>) -> F::Output {
        let (output, laps, object) = self.scope().run(future).await;
        self.span.laps.extend(laps.list);
        if let Some(object) = object {
            self.span.object = object;
        }
        output
    }

    /// As `run`, for what does not wait.
    pub fn run_now<R>(&self, work: impl FnOnce() -> R) -> R {
        self.scope().run_now(work)
    }

    /// Does the work and ends with its result.
    pub fn result<T, E: std::fmt::Display>(
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

    pub fn fail(mut self, why: impl Into<String>) {
        self.detail(why);
        self.finish(Outcome::Failed);
    }

    pub fn end_with<T, E: std::fmt::Display>(self, result: &Result<T, E>) {
        match result {
            Ok(_) => self.end(),
            Err(error) if self.is_recorded() => {
                let why = error.to_string();
                self.fail(why);
            }
            Err(_) => {}
        }
    }

    pub fn finish(mut self, outcome: Outcome) {
        self.span.finish(outcome);
        self.record();
    }

    fn record(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            recorder.record(&self.span);
        }
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if self.is_recorded() {
            self.span.finish(Outcome::Dropped);
            self.record();
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
        let mut queued = Context::default();
        deliver(&recorder, "informer", "pods/default/a".into(), 7, || queued.merge(current()));
        deliver(&recorder, "informer", "pods/default/a".into(), 8, || {});
        let mut work = Work::caused(&queued, Stage::Reconcile, "controller", "default/a");
        work.run(async {
            lap(Stage::Decode);
            Work::begin(Stage::Request, "client", "pods/default/b").end();
            let dropped = Work::begin(Stage::Pull, "kubelet", "image");
            drop(dropped);
        })
        .await;
        let id = work.id();
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
        let mut context = Context::new(recorder.clone(), vec![Id::commit(1)]).waiting();
        let began = context.since;
        assert!(began > 0 && began <= now());
        context.merge(Context::new(recorder.clone(), vec![Id::commit(2)]).waiting());
        context.merge(Context::new(recorder, vec![Id::commit(1)]));
        assert_eq!((context.since, context.header().unwrap().as_str()), (began, "rv1,rv2"));
        assert_eq!(Work::caused(&context, Stage::Wait, "q", "k").since(&context).started_at(), began);
    }
}

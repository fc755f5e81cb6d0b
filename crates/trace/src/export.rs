//! Spans on their way out of the process, to a collector of OpenTelemetry: which trace each belongs to, and a bounded queue.
//!
//! A trace is what followed from one request or command: a span joins the trace of its first cause. Where that is not
//! known (it came about in another process, or long ago), a trace begins. Of each trace either everything is exported or
//! nothing, as W3C's flag says or the rate decides. Not here: who sends.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::record::{self, Record};
use crate::{Id, Outcome, Span};

/// The header in which W3C has the context of a trace travel.
pub const TRACEPARENT: &str = "traceparent";
/// Spans that wait to be sent. When they are more, the newest are lost, and counted: a collector costs nobody anything.
const QUEUE: usize = 2048;
/// Spans of which it is remembered to which trace they belong.
const REMEMBERED: usize = 1 << 15;

/// A place in a trace, as W3C's header names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceContext {
    pub trace: u128,
    pub span: u64,
    pub sampled: bool,
}

impl TraceContext {
    /// Reads `00-<trace>-<span>-<flags>`. What is not exactly that is nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let is_hex = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let known = bytes.get(..55)?;
        if bytes.len() > 55 && (known.starts_with(b"00") || bytes[55] != b'-') {
            return None;
        }
        let parts = [&known[..2], &known[3..35], &known[36..52], &known[53..]];
        if [2, 35, 52].iter().any(|at| known[*at] != b'-')
            || !parts.iter().all(|part| is_hex(part))
            || parts[0] == b"ff"
        {
            return None;
        }
        let trace = u128::from_str_radix(text.get(3..35)?, 16).ok().filter(|trace| *trace != 0)?;
        let span = u64::from_str_radix(text.get(36..52)?, 16).ok().filter(|span| *span != 0)?;
        let flags = u8::from_str_radix(text.get(53..55)?, 16).ok()?;
        Some(Self { trace, span, sampled: flags & 1 == 1 })
    }
}

impl std::fmt::Display for TraceContext {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, u8::from(self.sampled))
    }
}

/// Where a span belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub trace: u128,
    pub sampled: bool,
    /// The span that it is a part of, in the same trace.
    pub parent: Option<u64>,
    /// Another trace that it follows from.
    pub link: Option<TraceContext>,
}

/// A span that has ended, with its place.
#[derive(Debug)]
pub struct Exported {
    pub place: Place,
    pub span: Span,
}

/// What is to be sent.
pub struct Exporting {
    /// Of a million traces that begin here, this many are exported.
    rate: u32,
    traces: Mutex<Traces>,
    queue: Mutex<VecDeque<(Place, Vec<u8>)>>,
    filled: Notify,
    sent: AtomicU64,
    lost: AtomicU64,
}

#[derive(Default)]
struct Traces {
    places: HashMap<u64, Known>,
    /// In the order in which they came, by number.
    order: BTreeMap<u64, u64>,
    next: u64,
}

/// What is remembered of a span.
struct Known {
    place: Place,
    number: u64,
    /// Spans that name it as their cause, while nobody else has told of it; else 0.
    named_by: usize,
}

impl Traces {
    fn get(&self, id: Id) -> Option<Place> {
        self.places.get(&id.to_bits()).map(|known| known.place)
    }

    /// The place of a span that is there.
    fn set(&mut self, id: Id, place: Place) {
        self.put(id, place, 0);
    }

    fn put(&mut self, id: Id, place: Place, named_by: usize) {
        if let Some(known) = self.places.get_mut(&id.to_bits()) {
            (known.place, known.named_by) = (place, named_by);
            return;
        }
        let number = self.next;
        self.next += 1;
        self.places.insert(id.to_bits(), Known { place, number, named_by });
        self.order.insert(number, id.to_bits());
        while self.order.len() > REMEMBERED {
            if let Some((_, oldest)) = self.order.pop_first() {
                self.places.remove(&oldest);
            }
        }
    }

    /// One more span names a cause.
    fn name(&mut self, cause: Id) {
        if let Some(known) = self.places.get_mut(&cause.to_bits()).filter(|known| known.named_by > 0) {
            known.named_by += 1;
        }
    }

    fn remove(&mut self, bits: u64) -> Option<Known> {
        let known = self.places.remove(&bits)?;
        self.order.remove(&known.number);
        Some(known)
    }

    /// Forgets a span, and its cause if only such spans told of it.
    fn forget(&mut self, id: Id) {
        let Some(cause) = self.remove(id.to_bits()).and_then(|gone| gone.place.parent) else { return };
        if let Some(known) = self.places.get_mut(&cause).filter(|known| known.named_by > 0) {
            known.named_by -= 1;
            if known.named_by == 0 {
                self.remove(cause);
            }
        }
    }
}

impl Exporting {
    pub fn new(rate: u32) -> Self {
        Self {
            rate,
            traces: Mutex::default(),
            queue: Mutex::default(),
            filled: Notify::new(),
            sent: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// A trace that begins here.
    fn root(&self) -> Place {
        let trace = fresh_trace();
        // As `TraceIDRatioBased` decides: by the last eight bytes, so that every process decides alike.
        let sampled = u128::from(trace as u64 >> 1) * 1_000_000 < u128::from(self.rate) << 63;
        Place { trace, sampled, parent: None, link: None }
    }

    /// The place of a span that begins, by what caused it.
    pub(crate) fn begun(&self, id: Id, cause: Option<Id>) -> Place {
        let mut traces = self.traces.lock();
        let known = traces.get(id);
        let caused = cause.and_then(|cause| traces.get(cause).map(|place| (cause, place)));
        let place = match (known, cause, caused) {
            // Others were told of its trace before it was: so it stays there, and says from where it came.
            (Some(place), _, Some((cause, other))) if other.trace != place.trace && place.parent.is_none() => {
                let link = TraceContext { trace: other.trace, span: cause.to_bits(), sampled: other.sampled };
                Place { link: Some(link), ..place }
            }
            (Some(place), ..) => place,
            (None, _, Some((cause, other))) => {
                traces.name(cause);
                Place { parent: Some(cause.to_bits()), link: None, ..other }
            }
            // A commit of another time or another process will not be told about any more; a command will.
            (None, Some(cause), None) if !cause.is_commit() => {
                let root = self.root();
                traces.put(cause, root, 1);
                Place { parent: Some(cause.to_bits()), ..root }
            }
            (None, ..) => self.root(),
        };
        traces.set(id, place);
        place
    }

    /// The span goes on where `context` says; or, if its word is not taken, only names it.
    pub(crate) fn follow(&self, id: Id, context: TraceContext, is_trusted: bool) {
        let mut traces = self.traces.lock();
        let Some(place) = traces.get(id) else { return };
        // What one of our own processes says of the cause goes further.
        if place.parent.is_some() {
            return;
        }
        let place = match is_trusted {
            true => Place { trace: context.trace, sampled: context.sampled, parent: Some(context.span), link: None },
            false => Place { link: Some(context), ..place },
        };
        traces.set(id, place);
    }

    /// The span begins a trace of its own if it is said to follow from a commit, whose name anybody can guess.
    pub(crate) fn part_from_commit(&self, id: Id) {
        let mut traces = self.traces.lock();
        let parent = traces.get(id).and_then(|place| place.parent);
        if parent.is_some_and(|parent| Id::from_bits(parent).is_commit()) {
            traces.set(id, self.root());
        }
    }

    /// A span of somebody who was turned away.
    pub(crate) fn forget(&self, id: Id) {
        self.traces.lock().forget(id);
    }

    pub(crate) fn context_of(&self, id: Id) -> Option<TraceContext> {
        let place = self.traces.lock().get(id)?;
        Some(TraceContext { trace: place.trace, span: id.to_bits(), sampled: place.sampled })
    }

    /// A span as it is recorded. Those that have not ended come again.
    pub(crate) fn offer(&self, record: &Record, laps: &[u8]) {
        let Some(header) = record::header(record.bytes()) else { return };
        let place = self.begun(header.id, header.cause);
        if header.outcome == Outcome::Running || !place.sampled {
            return;
        }
        let mut queue = self.queue.lock();
        if queue.len() >= QUEUE {
            self.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        queue.push_back((place, [record.bytes(), laps].concat()));
        drop(queue);
        self.filled.notify_one();
    }

    /// Up to `most` spans, once there are some.
    pub async fn next(&self, most: usize) -> Vec<Exported> {
        loop {
            let filled = self.filled.notified();
            let taken = self.take(most);
            if !taken.is_empty() {
                return taken;
            }
            filled.await;
        }
    }

    /// Up to `most` spans that are there.
    pub fn take(&self, most: usize) -> Vec<Exported> {
        let mut queue = self.queue.lock();
        let many = most.min(queue.len());
        let taken: Vec<_> = queue.drain(..many).collect();
        drop(queue);
        let decoded = taken.into_iter().filter_map(|(place, bytes)| Some((place, record::decode(&bytes)?)));
        decoded.map(|(place, span)| Exported { place, span }).collect()
    }

    /// Waits until `most` spans are there.
    pub async fn full(&self, most: usize) {
        loop {
            let filled = self.filled.notified();
            if self.queue.lock().len() >= most {
                return;
            }
            filled.await;
        }
    }

    pub fn count_sent(&self, spans: usize) {
        self.sent.fetch_add(spans as u64, Ordering::Relaxed);
    }

    pub fn count_lost(&self, spans: usize) {
        self.lost.fetch_add(spans as u64, Ordering::Relaxed);
    }

    /// Spans that were sent, and those that were lost.
    pub fn counted(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }
}

/// A random number that is not zero.
fn fresh_trace() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(Id::fresh()));
    (half() << 64 | half()).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Causes, Recorder, Stage, Work, follow, lap, trace_context};

    fn recorder(rate: u32) -> (std::sync::Arc<Recorder>, std::sync::Arc<Exporting>) {
        let recorder = Recorder::new(100_000);
        let exporting = recorder.export(rate);
        (recorder, exporting)
    }

    #[test]
    fn contexts_survive_their_text_and_others_are_none() {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        let context = TraceContext::parse(text).unwrap();
        assert!(context.sampled);
        assert_eq!(context.to_string(), text);
        assert!(!TraceContext::parse(&text.replace("-01", "-00")).unwrap().sampled);
        assert!(TraceContext::parse(&(text.replacen("00", "01", 1) + "-what-is-to-come")).is_some());
        for wrong in [
            "".to_owned(),
            text.to_uppercase(),
            text.replacen("00", "ff", 1),
            text.to_owned() + "-more",
            text.to_owned() + "x",
            text.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            text.replace("b7ad6b7169203331", &"0".repeat(16)),
            text.replace('-', "_"),
            "é".repeat(55),
        ] {
            assert_eq!(TraceContext::parse(&wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn a_trace_holds_what_follows_from_a_request() {
        let (recorder, exporting) = recorder(1_000_000);
        let context = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let mut work = Work::root(&recorder, &Causes::default(), Stage::Request, "kube-apiserver", "pods/d/a");
        let said = work
            .run(async {
                follow(context, true);
                lap(Stage::Decode);
                crate::part(Id::commit(7), Stage::Commit, "store", "pods/d/a", "", std::time::Instant::now());
                trace_context().unwrap()
            })
            .await;
        work.end();
        crate::deliver(&recorder, &"kubelet".into(), "pods/d/a".into(), 7, || {
            Work::begin(Stage::Sync, "kubelet", "pods/d/a").end()
        });
        let spans = exporting.take(100);
        let stages: Vec<_> = spans.iter().map(|exported| exported.span.stage).collect();
        assert_eq!(stages, [Stage::Commit, Stage::Request, Stage::Delivery, Stage::Sync]);
        assert!(spans.iter().all(|exported| exported.place.trace == context.trace));
        assert_eq!(spans[1].place.parent, Some(context.span));
        assert_eq!(spans[0].place.parent, Some(said.span));
        assert_eq!((said.trace, said.sampled), (context.trace, true));
        assert_eq!(spans[1].span.laps.len(), 1);
        assert_eq!(spans[2].place.parent, Some(Id::commit(7).to_bits()));
        assert!(trace_context().is_none());
    }

    #[tokio::test]
    async fn security_strangers_do_not_choose_what_is_exported() {
        let (recorder, exporting) = recorder(0);
        let context = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        for (is_trusted, exported) in [(false, 0), (true, 1)] {
            let mut work = Work::root(&recorder, &Causes::default(), Stage::Request, "a", "b");
            work.run(async { follow(context, is_trusted) }).await;
            work.end();
            assert_eq!(exporting.take(10).len(), exported);
        }
        // Whoever is turned away leaves nothing.
        let before = exporting.traces.lock().places.len();
        Work::root(&recorder, &Causes::default(), Stage::Request, "a", "b").discard();
        assert_eq!(exporting.traces.lock().places.len(), before);
    }

    #[test]
    fn security_causes_that_strangers_make_up_are_forgotten_with_them() {
        let (recorder, exporting) = recorder(1_000_000);
        let begin = |cause: Id| Work::root(&recorder, &cause.into(), Stage::Request, "a", "b");
        let kept = || {
            let traces = exporting.traces.lock();
            assert_eq!(traces.order.len(), traces.places.len());
            traces.places.len()
        };
        let known = begin(Id::fresh());
        assert_eq!(kept(), 2);
        // Several at a time, in any order, also with the same cause.
        let strangers = [Id::fresh(), Id::fresh()].map(|cause| [begin(cause), begin(cause)]);
        assert_eq!(kept(), 8);
        strangers.into_iter().flatten().for_each(Work::discard);
        assert_eq!(kept(), 2);
        known.end();
        // A cause that somebody else names as well stays.
        let shared = Id::fresh();
        let (stranger, friend) = (begin(shared), begin(shared));
        let trace = exporting.context_of(shared).unwrap().trace;
        stranger.discard();
        friend.end();
        assert_eq!(exporting.context_of(shared).unwrap().trace, trace);
        // So does one that was told of.
        let mut command = Span::new(Stage::Command, "kubectl", "x");
        command.finish(Outcome::Ok);
        let stranger = begin(command.id);
        recorder.record(&command);
        stranger.discard();
        assert!(exporting.context_of(command.id).is_some());
    }

    #[tokio::test]
    async fn security_strangers_do_not_join_the_trace_of_a_commit() {
        let (recorder, exporting) = recorder(0);
        let context = TraceContext::parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01").unwrap();
        let mut work = Work::root(&recorder, &Causes::default(), Stage::Request, "a", "b");
        work.run(async {
            follow(context, true);
            crate::part(Id::commit(7), Stage::Commit, "store", "b", "", std::time::Instant::now());
        })
        .await;
        work.end();
        assert_eq!(exporting.take(10).len(), 2);
        for (is_alone, exported) in [(true, 0), (false, 1)] {
            let mut work = Work::root(&recorder, &Id::commit(7).into(), Stage::Request, "a", "b");
            let trace = work
                .run(async {
                    if is_alone {
                        Exporting::alone();
                    }
                    trace_context().unwrap().trace
                })
                .await;
            work.end();
            assert_eq!((trace != context.trace, exporting.take(10).len()), (is_alone, exported));
        }
    }

    #[test]
    fn what_nobody_takes_is_lost_and_counted() {
        let (recorder, exporting) = recorder(1_000_000);
        for _ in 0..QUEUE + 10 {
            Work::root(&recorder, &Causes::default(), Stage::Request, "a", "b").end();
        }
        assert_eq!(exporting.counted(), (0, 10));
        assert_eq!(exporting.take(usize::MAX).len(), QUEUE);
        for _ in 0..REMEMBERED {
            exporting.begun(Id::fresh(), None);
        }
        let traces = exporting.traces.lock();
        assert_eq!((traces.order.len(), traces.places.len()), (REMEMBERED, REMEMBERED));
    }

    #[test]
    fn of_a_thousand_traces_the_rate_decides() {
        let exporting = Exporting::new(250_000);
        let sampled = (0..1000).filter(|_| exporting.begun(Id::fresh(), None).sampled).count();
        assert!((150..350).contains(&sampled), "{sampled}");
    }

    #[tokio::test]
    async fn work_that_is_only_exported_leaves_nothing_in_the_ring() {
        let (recorder, exporting) = recorder(1_000_000);
        let mut work = Work::root(&recorder, &Causes::default(), Stage::Request, "kube-apiserver", "leases/d/a");
        work.only_export();
        work.attribute("http.method", "PUT");
        work.title("PUT /api");
        let context = work
            .run(async {
                crate::part(Id::commit(9), Stage::Commit, "store", "leases/d/a", "", std::time::Instant::now());
                assert!(crate::current().is_empty());
                trace_context()
            })
            .await;
        work.end();
        assert_eq!(recorder.count(), 0);
        let spans = exporting.take(10);
        assert_eq!(spans.len(), 2);
        assert_eq!(spans[0].place.parent, context.map(|context| context.span));
        assert_eq!(spans[1].span.title, "PUT /api");
        assert_eq!(spans[1].span.attributes, [("http.method".to_owned(), "PUT".to_owned())]);
    }

    #[test]
    fn a_cause_that_is_told_of_late_is_the_parent() {
        let (recorder, exporting) = recorder(1_000_000);
        let command = Id::fresh();
        Work::root(&recorder, &command.into(), Stage::Request, "a", "b").end();
        let mut late = Span::new(Stage::Command, "kubectl", "x");
        late.id = command;
        late.finish(Outcome::Ok);
        recorder.record(&late);
        let spans = exporting.take(10);
        assert_eq!((spans[0].place.parent, spans[1].place.parent), (Some(command.to_bits()), None));
        assert_eq!(spans[0].place.trace, spans[1].place.trace);
    }
}

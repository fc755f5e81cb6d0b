//! Pods that wait for a node.
//!
//! A pod is `active` (to be tried next), in `backoff` (tried lately; its turn comes again when its time has passed, or when
//! nothing else is to be done), `unschedulable` (tried in vain; an event that may help makes it worth another try) or
//! `gated` (not to be tried yet). Whether an event may help is asked of the plug-ins that rejected the pod. Events that
//! arrive while a pod is being tried are kept until the attempt has ended, so that none is missed.

mod hints;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::framework::{Event, Rejection};
use crate::metrics::{Counts, Metrics};
use crate::pod::PodInfo;
use hints::Hints;
use waiting::{Place, Waiting};

/// What the queue asks of the plug-ins of a pod's profile.
pub(crate) trait Advice: Send + Sync {
    /// May the pod be tried at all?
    fn admit(&self, pod: &PodInfo) -> Result<(), Rejection>;
    /// Which of two pods is tried first; equals by age.
    fn compare(&self, one: &PodInfo, other: &PodInfo) -> std::cmp::Ordering;
    /// May the event let a pod in that this plug-in rejected? None if there is no such plug-in.
    fn may_help(&self, pod: &PodInfo, plugin: &str, event: &Event) -> Option<bool>;
}

pub(crate) struct Queue {
    state: Mutex<State>,
    /// The earliest moment at which `pop` has something to do may have changed.
    changed: Notify,
}

struct State {
    advice: Arc<dyn Advice>,
    hints: Hints,
    waiting: Waiting,
    /// Pods that are being tried, with how many events there had been when their attempt began.
    trying: HashMap<Arc<str>, u64>,
    /// The same the other way round: how many attempts began after so many events.
    began: BTreeMap<u64, usize>,
    events: VecDeque<Event>,
    /// How many events were dropped from the front.
    dropped: u64,
    initial_backoff: Duration,
    max_backoff: Duration,
    /// An unschedulable pod is tried again after this long even if no event said that it could succeed.
    max_wait: Duration,
}

/// A pod to be tried, with what is known of earlier tries.
#[derive(Debug, Clone)]
pub(crate) struct Queued {
    pub(crate) pod: Arc<PodInfo>,
    /// This one included.
    pub(crate) attempts: u32,
    /// When the pod first came.
    pub(crate) since: Instant,
    /// When the last try ended.
    tried: Option<Instant>,
    /// It is tried because it waited too long, not because something happened.
    pub(crate) is_leftover: bool,
    /// What brought it here.
    pub(crate) context: trace::Context,
}

impl Queued {
    pub(crate) fn first(pod: Arc<PodInfo>, since: Instant) -> Queued {
        let context = trace::current().waiting();
        Queued { pod, attempts: 0, since, tried: None, is_leftover: false, context }
    }
}

/// Why an attempt ended without a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ended {
    /// These plug-ins rejected the pod.
    Rejected(BTreeSet<&'static str>),
    /// Something went wrong.
    Failed,
}

impl Queue {
    pub(crate) fn new(
        advice: Arc<dyn Advice>,
        initial_backoff: Duration,
        max_backoff: Duration,
        max_wait: Duration,
        metrics: Metrics,
    ) -> Queue {
        let state = State {
            waiting: Waiting::new(advice.clone()),
            hints: Hints::new(advice.clone(), metrics),
            advice,
            trying: HashMap::new(),
            began: BTreeMap::new(),
            events: VecDeque::new(),
            dropped: 0,
            initial_backoff,
            max_backoff,
            max_wait,
        };
        Queue { state: Mutex::new(state), changed: Notify::new() }
    }

    /// A pod that is new.
    pub(crate) fn add(&self, pod: Arc<PodInfo>) {
        let mut state = self.state.lock();
        state.enter(Queued::first(pod, Instant::now()), BTreeSet::new(), Place::Active);
        drop(state);
        self.changed.notify_one();
    }

    /// A pod that waits has changed.
    pub(crate) fn update(&self, pod: Arc<PodInfo>, event: &Event) {
        let mut state = self.state.lock();
        if state.trying.contains_key(&pod.uid) {
            state.note(event);
            return;
        }
        let Some((mut queued, plugins, place)) = state.waiting.take(&pod.uid) else {
            drop(state);
            return self.add(pod);
        };
        queued.pod = pod;
        queued.context.merge(trace::current().waiting());
        let place = match place {
            Place::Gated => Place::Active,
            Place::Unschedulable(_) if state.hints.may_help(&queued.pod, &plugins, event) => {
                state.retry_place(&queued, Instant::now())
            }
            place => place,
        };
        state.enter(queued, plugins, place);
        drop(state);
        self.changed.notify_one();
    }

    pub(crate) fn remove(&self, uid: &str) {
        let mut state = self.state.lock();
        state.waiting.take(uid);
        state.done(uid);
    }

    /// Something happened in the cluster.
    pub(crate) fn happened(&self, event: &Event) {
        let mut state = self.state.lock();
        state.note(event);
        let State { waiting, hints, .. } = &mut *state;
        let helped = waiting.unschedulable(|queued, plugins| hints.may_help(&queued.pod, plugins, event));
        if helped.is_empty() {
            return;
        }
        let now = Instant::now();
        for uid in helped {
            if let Some((mut queued, plugins, _)) = state.waiting.take(&uid) {
                queued.context.merge(trace::current().waiting());
                let place = state.retry_place(&queued, now);
                state.enter(queued, plugins, place);
            }
        }
        drop(state);
        self.changed.notify_one();
    }

    /// The next pod to try. Waits while there is none.
    pub(crate) async fn pop(&self) -> Queued {
        loop {
            let next = {
                let mut state = self.state.lock();
                if let Some(queued) = state.next(Instant::now()) {
                    return queued;
                }
                state.waiting.next_deadline()
            };
            match next {
                Some(until) => {
                    tokio::select! {
                        () = tokio::time::sleep_until(until) => {}
                        () = self.changed.notified() => {}
                    }
                }
                None => self.changed.notified().await,
            }
        }
    }

    /// The next pod to try, if there is one now.
    #[cfg(test)]
    fn try_pop(&self) -> Option<Queued> {
        self.state.lock().next(Instant::now())
    }

    /// An attempt ended in vain. `pod` is the pod as it is now. If something happened meanwhile that may help, it is tried
    /// again after its back-off, else it waits for an event.
    pub(crate) fn failed(&self, mut queued: Queued, pod: Arc<PodInfo>, ended: Ended) {
        let mut state = self.state.lock();
        let Some(began) = state.trying.get(&pod.uid).copied() else { return };
        let (plugins, is_error) = match ended {
            Ended::Rejected(plugins) => (plugins, false),
            Ended::Failed => (BTreeSet::new(), true),
        };
        let from = began.saturating_sub(state.dropped) as usize;
        let happened = state.events.range(from.min(state.events.len())..);
        let helped = is_error || happened.into_iter().any(|event| state.hints.may_help(&pod, &plugins, event));
        state.done(&pod.uid);
        let now = Instant::now();
        (queued.pod, queued.is_leftover, queued.tried) = (pod, false, Some(now));
        let place = match (helped, is_error) {
            (false, _) => Place::Unschedulable(now + state.max_wait),
            (true, is_error) => {
                let until = now + state.backoff(queued.attempts);
                Place::Backoff { until, is_strict: is_error }
            }
        };
        state.enter(queued, plugins, place);
        drop(state);
        self.changed.notify_one();
    }

    /// An attempt ended otherwise: the pod has a node, or is gone.
    pub(crate) fn done(&self, uid: &str) {
        self.state.lock().done(uid);
    }

    pub(crate) fn counts(&self) -> Counts {
        self.state.lock().waiting.counts()
    }

    /// Pods that wait, by the plug-in that rejected them and the scheduler they are for.
    pub(crate) fn rejected_by(&self) -> BTreeMap<(&'static str, String), usize> {
        self.state.lock().waiting.rejected_by()
    }

    /// Events that are kept while pods are being tried, by kind, and those pods.
    pub(crate) fn in_flight(&self) -> (BTreeMap<&'static str, usize>, usize) {
        let state = self.state.lock();
        let mut events = BTreeMap::new();
        state.events.iter().for_each(|event| *events.entry(event.label()).or_default() += 1);
        (events, state.trying.len())
    }
}

impl State {
    fn next(&mut self, now: Instant) -> Option<Queued> {
        for (mut queued, plugins) in self.waiting.overdue(now) {
            queued.is_leftover = true;
            let place = self.retry_place(&queued, now);
            self.enter(queued, plugins, place);
        }
        let mut queued = self.waiting.pop(now)?;
        queued.attempts += 1;
        let position = self.dropped + self.events.len() as u64;
        self.done(&queued.pod.uid);
        self.trying.insert(queued.pod.uid.clone(), position);
        *self.began.entry(position).or_default() += 1;
        Some(queued)
    }

    /// Puts a pod in its place, unless a plug-in says that it is not to be tried at all.
    fn enter(&mut self, queued: Queued, plugins: BTreeSet<&'static str>, place: Place) {
        match self.advice.admit(&queued.pod) {
            Ok(()) => self.waiting.put(queued, plugins, place),
            Err(rejection) => self.waiting.put(queued, BTreeSet::from([rejection.plugin]), Place::Gated),
        }
    }

    /// Where a pod goes that is worth another try: it waits until its back-off since the last try has passed.
    fn retry_place(&self, queued: &Queued, now: Instant) -> Place {
        match queued.tried.map(|tried| tried + self.backoff(queued.attempts)) {
            Some(until) if until > now => Place::Backoff { until, is_strict: false },
            _ => Place::Active,
        }
    }

    fn note(&mut self, event: &Event) {
        if !self.trying.is_empty() {
            self.events.push_back(event.clone());
        }
    }

    fn done(&mut self, uid: &str) {
        let Some(began) = self.trying.remove(uid) else { return };
        if let Some(count) = self.began.get_mut(&began) {
            *count -= 1;
            if *count == 0 {
                self.began.remove(&began);
            }
        }
        let needed = self.began.keys().next().copied().unwrap_or(u64::MAX);
        while self.dropped < needed && self.events.pop_front().is_some() {
            self.dropped += 1;
        }
    }

    /// 1 s, 2 s, 4 s … up to 10 s, unless configured otherwise.
    fn backoff(&self, attempts: u32) -> Duration {
        client::backoff::exponential(self.initial_backoff, self.max_backoff, attempts.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests;

//! Probes: one task per probe of each running container, and the verdicts they reach.
//!
//! Flow: `sync` calls [`Prober::reconcile`] with what runs -> tasks probe at their period ->
//! a verdict that changes wakes the pod's worker -> `plan` (liveness, startup) and `status`
//! (readiness) read it. Tasks are bound to one container id, so a restarted container starts afresh.

mod check;
mod error;
mod grpc;
mod http;
mod verdict;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use client::{Clock, EventRecorder};
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::{Container, ObjectReference, Pod, Probe};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trace::{Outcome as TraceOutcome, Span, Stage};

use crate::metrics::{Probed, Probing};
use crate::objects::Wake;
use crate::plan::{Verdict, Verdicts};
use crate::runtime::Runtime;
use crate::state::{self, PodState};
use crate::status::Readiness;

use check::{Outcome, Target};
pub(crate) use check::{named_ports, port_number};
pub(crate) use error::ProbeError;
pub(crate) use http::{http_get, run_http};
use verdict::Counter;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }

    fn of(self, container: &Container) -> Option<&Probe> {
        match self {
            Kind::Startup => container.startup_probe.as_ref(),
            Kind::Liveness => container.liveness_probe.as_ref(),
            Kind::Readiness => container.readiness_probe.as_ref(),
        }
    }
}

type Results = Arc<Found>;

/// The verdicts, by container id and kind.
#[derive(Default)]
struct Found {
    verdicts: Mutex<HashMap<(String, Kind), Verdict>>,
    /// Some container has started.
    started: Notify,
}

impl Found {
    fn get(&self, id: &str, kind: Kind) -> Option<Verdict> {
        self.verdicts.lock().get(&(id.to_string(), kind)).copied()
    }

    fn set(&self, id: &str, kind: Kind, verdict: Verdict) {
        self.verdicts.lock().insert((id.to_string(), kind), verdict);
        if kind == Kind::Startup {
            self.started.notify_waiters();
        }
    }

    fn remove(&self, id: &str, kind: Kind) {
        self.verdicts.lock().remove(&(id.to_string(), kind));
    }

    fn has_started(&self, id: &str) -> bool {
        self.get(id, Kind::Startup) == Some(Verdict::Success)
    }

    /// Waits until a probe is to be made again. Nothing but startup is asked before the container has started; whoever
    /// waits for readiness then waits no longer.
    async fn next_turn(&self, id: &str, kind: Kind, has_startup_probe: bool, ticks: &mut Interval) {
        if kind == Kind::Startup || !has_startup_probe || self.has_started(id) {
            ticks.tick().await;
            return;
        }
        loop {
            let started = self.started.notified();
            tokio::pin!(started);
            started.as_mut().enable();
            if self.has_started(id) {
                return;
            }
            tokio::select! {
                _ = ticks.tick() => {}
                () = started, if kind == Kind::Readiness => {
                    if self.has_started(id) {
                        ticks.reset();
                        return;
                    }
                }
            }
        }
    }
}

/// By pod uid: what made verdicts that no status has told of yet.
type Causes = Arc<Mutex<HashMap<String, trace::Context>>>;

pub(crate) struct Prober {
    clock: Clock,
    runtime: Runtime,
    recorder: EventRecorder,
    wake: Wake,
    stop: CancellationToken,
    tasks: TaskTracker,
    /// Locked after `workers` where both are held.
    results: Results,
    causes: Causes,
    /// By container id and kind; the value names the pod.
    workers: Mutex<HashMap<(String, Kind), (String, CancellationToken)>>,
}

impl Prober {
    pub(crate) fn new(
        clock: Clock,
        runtime: Runtime,
        recorder: EventRecorder,
        wake: Wake,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> Self {
        Prober {
            clock,
            runtime,
            recorder,
            wake,
            stop,
            tasks,
            results: Arc::default(),
            causes: Arc::default(),
            workers: Mutex::new(HashMap::new()),
        }
    }

    /// Starts probing what runs and stops probing what does not. A terminating pod keeps only readiness.
    pub(crate) fn reconcile(&self, pod: &Pod, state: &PodState, is_terminating: bool) {
        let uid = state::uid(pod);
        let mut wanted = Vec::new();
        for container in state::all_containers(pod) {
            let Some(current) = state.container(&container.name).filter(|c| c.is_running()) else { continue };
            for kind in [Kind::Startup, Kind::Liveness, Kind::Readiness] {
                if is_terminating && kind != Kind::Readiness {
                    continue;
                }
                if let Some(probe) = kind.of(&container) {
                    wanted.push((current.clone(), container.clone(), kind, probe.clone()));
                }
            }
        }
        let mut workers = self.workers.lock();
        workers.retain(|(id, kind), (owner, stop)| {
            let is_running = state.containers.iter().any(|c| c.id == *id && c.is_running());
            if owner == uid && is_terminating && *kind == Kind::Startup && is_running {
                // No longer asked, but what has started stays started, and readiness goes on.
                stop.cancel();
                return true;
            }
            let keep = owner != uid || wanted.iter().any(|(current, _, k, _)| current.id == *id && k == kind);
            if !keep {
                stop.cancel();
                self.results.remove(id, *kind);
            }
            keep
        });
        for (current, container, kind, probe) in wanted {
            let key = (current.id.clone(), kind);
            if workers.contains_key(&key) {
                continue;
            }
            let stop = self.stop.child_token();
            workers.insert(key.clone(), (uid.to_string(), stop.clone()));
            let adopted = adopted_verdict(pod, &container.name, &current.id, kind);
            if let Some(verdict) = adopted {
                self.results.set(&current.id, kind, verdict);
            }
            let task = Task {
                clock: self.clock.clone(),
                runtime: self.runtime.clone(),
                recorder: self.recorder.clone(),
                wake: self.wake.clone(),
                results: self.results.clone(),
                causes: self.causes.clone(),
                uid: uid.to_string(),
                container: container.name.clone(),
                reference: container_reference(pod, &container.name),
                target: Target::new(pod, &container, state.ips(), current.id.clone()),
                id: current.id,
                started_at: current.started_at,
                has_startup_probe: container.startup_probe.is_some(),
                kind,
                probe,
                context: trace::current(),
            };
            self.tasks.spawn(FutureExt::boxed(async move {
                tokio::select! {
                    _ = client::outlive_panics("kubelet probes", &task.uid, &stop, || task.run(adopted)) => {}
                    () = stop.cancelled() => {}
                }
            }));
        }
    }

    /// What made verdicts of the pod since this was last asked: whichever pass sees them first tells of them.
    pub(crate) fn take_causes(&self, uid: &str) -> trace::Context {
        self.causes.lock().remove(uid).unwrap_or_default()
    }

    /// Stops all probes of a pod.
    pub(crate) fn forget(&self, uid: &str) {
        self.causes.lock().remove(uid);
        let mut workers = self.workers.lock();
        workers.retain(|(id, kind), (owner, stop)| {
            if owner == uid {
                stop.cancel();
                self.results.remove(id, *kind);
            }
            owner != uid
        });
    }

    fn result(&self, id: &str, kind: Kind) -> Option<Verdict> {
        self.results.get(id, kind)
    }
}

impl Verdicts for Prober {
    fn liveness(&self, container_id: &str) -> Option<Verdict> {
        self.result(container_id, Kind::Liveness)
    }

    fn startup(&self, container_id: &str) -> Option<Verdict> {
        self.result(container_id, Kind::Startup)
    }
}

impl Readiness for Prober {
    fn is_started(&self, container_id: &str, container: &Container) -> bool {
        container.startup_probe.is_none() || self.result(container_id, Kind::Startup) == Some(Verdict::Success)
    }

    fn is_ready(&self, container_id: &str, container: &Container) -> bool {
        container.readiness_probe.is_none() || self.result(container_id, Kind::Readiness) == Some(Verdict::Success)
    }
}

/// What an earlier kubelet found out about this very container: a restart of ours must not make a
/// ready pod unready, nor forget that it has started.
fn adopted_verdict(pod: &Pod, name: &str, id: &str, kind: Kind) -> Option<Verdict> {
    let status = pod.status.as_ref()?;
    let container = status
        .container_statuses
        .iter()
        .flatten()
        .chain(status.init_container_statuses.iter().flatten())
        .find(|status| status.name == name)?;
    if crate::runtime::bare_id(container.container_id.as_deref()?) != id {
        return None;
    }
    let holds = match kind {
        Kind::Readiness => container.ready,
        Kind::Startup => container.started == Some(true),
        Kind::Liveness => false,
    };
    holds.then_some(Verdict::Success)
}

/// The reference events about one container carry.
pub(crate) fn container_reference(pod: &Pod, container: &str) -> ObjectReference {
    let spec = pod.spec.as_ref();
    let is_init = spec.is_some_and(|spec| spec.init_containers.iter().flatten().any(|c| c.name == container));
    let is_ephemeral = spec.is_some_and(|spec| spec.ephemeral_containers.iter().flatten().any(|c| c.name == container));
    let field = match (is_init, is_ephemeral) {
        (true, _) => "initContainers",
        (_, true) => "ephemeralContainers",
        _ => "containers",
    };
    ObjectReference { field_path: Some(format!("spec.{field}{{{container}}}")), ..client::reference(pod) }
}

struct Task {
    clock: Clock,
    runtime: Runtime,
    recorder: EventRecorder,
    wake: Wake,
    results: Results,
    causes: Causes,
    uid: String,
    container: String,
    reference: ObjectReference,
    target: Target,
    id: String,
    started_at: i64,
    has_startup_probe: bool,
    kind: Kind,
    probe: Probe,
    /// What started the container.
    context: trace::Context,
}

impl Task {
    /// Tells the trace about a verdict that is new; returns what it causes.
    fn traced(&self, began: u64, verdict: Verdict) -> trace::Context {
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        let object = format!("pods/{}/{}", text(&self.reference.namespace), text(&self.reference.name));
        let mut span = Span::new(Stage::Probe, state::ACTOR, object);
        span.start = began;
        span.detail = self.kind.title().to_lowercase();
        span.finish(if verdict == Verdict::Success { TraceOutcome::Ok } else { TraceOutcome::Failed });
        self.context.record(span)
    }

    fn count(&self, outcome: &Outcome, took: Duration) {
        let probed = match outcome {
            Outcome::Success | Outcome::Warning(_) => Probed::Successful,
            Outcome::Failure(_) => Probed::Failed,
            Outcome::Error(_) => Probed::Unknown,
        };
        let target = Probing {
            namespace: self.reference.namespace.as_deref().unwrap_or_default(),
            pod: self.reference.name.as_deref().unwrap_or_default(),
            uid: &self.uid,
            container: &self.container,
            kind: self.kind.title(),
        };
        self.runtime.metrics.probed(&target, probed, took);
    }

    async fn run(&self, adopted: Option<Verdict>) {
        if self.kind == Kind::Startup && adopted == Some(Verdict::Success) {
            return;
        }
        let seconds = |value: Option<i32>, default: i32| Duration::from_secs(value.unwrap_or(default).max(0) as u64);
        let period = seconds(self.probe.period_seconds, 10).max(Duration::from_secs(1));
        let timeout = seconds(self.probe.timeout_seconds, 1).max(Duration::from_secs(1));
        let delay = seconds(self.probe.initial_delay_seconds, 0);
        let now = self.clock.now().as_nanosecond() as i64;
        let age = Duration::from_nanos(now.saturating_sub(self.started_at).max(0) as u64);
        tokio::time::sleep(delay.saturating_sub(age)).await;
        let mut counter =
            Counter::new(self.probe.success_threshold.unwrap_or(1), self.probe.failure_threshold.unwrap_or(3));
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.results.next_turn(&self.id, self.kind, self.has_startup_probe, &mut ticks).await;
            let (began, clock) = (trace::now(), Instant::now());
            let outcome = self.target.check(&self.probe, timeout, &self.runtime).await;
            self.count(&outcome, clock.elapsed());
            match &outcome {
                Outcome::Success => {}
                Outcome::Warning(output) => {
                    let message = format!("{} probe warning: {output}", self.kind.title());
                    self.recorder.warning(&self.reference, "ProbeWarning", message);
                }
                Outcome::Failure(output) => {
                    let message = format!("{} probe failed: {output}", self.kind.title());
                    self.recorder.warning(&self.reference, "Unhealthy", message);
                }
                Outcome::Error(error) => {
                    let message = format!("{} probe errored and resulted in unknown state: {error}", self.kind.title());
                    self.recorder.warning(&self.reference, "Unhealthy", message);
                    continue;
                }
            }
            let is_success = matches!(outcome, Outcome::Success | Outcome::Warning(_));
            let Some(verdict) = counter.count(is_success) else { continue };
            if self.results.get(&self.id, self.kind) != Some(verdict) {
                let context = self.traced(began, verdict);
                // Before the verdict is seen: a pass may be under way.
                if !context.is_empty() {
                    self.causes.lock().entry(self.uid.clone()).or_default().merge(context.clone());
                }
                self.results.set(&self.id, self.kind, verdict);
                context.run_now(|| (self.wake)(&self.uid));
            }
            match (self.kind, verdict) {
                // Started once is started for good; one that is about to be killed has a successor
                // with a task of its own.
                (Kind::Startup, _) | (Kind::Liveness, Verdict::Failure) => return,
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readiness_is_asked_as_soon_as_a_container_has_started() {
        for (kind, expected) in [(Kind::Readiness, 5), (Kind::Liveness, 60)] {
            let found = Arc::new(Found::default());
            let waiting = tokio::spawn({
                let found = found.clone();
                async move {
                    let began = tokio::time::Instant::now();
                    let mut ticks = tokio::time::interval(Duration::from_secs(60));
                    found.next_turn("c", kind, true, &mut ticks).await;
                    let first = began.elapsed();
                    found.next_turn("c", kind, true, &mut ticks).await;
                    (first.as_secs(), (began.elapsed() - first).as_secs())
                }
            });
            tokio::time::sleep(Duration::from_secs(4)).await;
            found.set("another", Kind::Startup, Verdict::Success);
            tokio::time::sleep(Duration::from_secs(1)).await;
            found.set("c", Kind::Startup, Verdict::Success);
            assert_eq!(waiting.await.unwrap(), (expected, 60), "{kind:?}");
        }
    }
}

//! One worker per pod: an actor that syncs it while it should run, ends it when it should not, and
//! is alone in doing either.
//!
//! Flow: pod sources, runtime events, probes and timers -> [`Workers`] -> a task per pod uid.
//! Invariant: two tasks never work on the same uid, so nothing here needs a lock around a pod.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use trace::{Context, Stage, Work};

use crate::error::{EndError, SyncError};
use crate::kubelet::Kubelet;
use crate::names;
use crate::pass::Memory;
use crate::resize;
use crate::state;
use crate::status::Ended;

/// The newest word on a pod.
#[derive(Clone)]
struct Update {
    pod: Arc<Pod>,
    mirror: Option<Arc<Pod>>,
    /// Gone from its source: stop it and forget it.
    is_removed: bool,
    /// The node has decided to end it, with this much grace at most.
    ended: Option<(Ended, Option<i64>)>,
}

impl Update {
    fn must_end(&self) -> bool {
        self.is_removed || self.ended.is_some() || self.pod.metadata.deletion_timestamp.is_some()
    }
}

struct Handle {
    updates: watch::Sender<Update>,
    wake: Arc<Notify>,
    causes: Causes,
    /// Nothing of the pod runs any more.
    stopped: CancellationToken,
    /// And what it held is free.
    ended: CancellationToken,
}

/// What the next pass is caused by.
type Causes = Arc<Mutex<Context>>;

pub(crate) struct Workers {
    kubelet: Arc<Kubelet>,
    handles: Mutex<HashMap<String, Handle>>,
    left: Notify,
    tasks: TaskTracker,
    stop: CancellationToken,
}

/// Under which panics of workers are counted.
pub(crate) const PANICKING: &str = "pod worker";

impl Workers {
    pub(crate) fn new(kubelet: Arc<Kubelet>, tasks: TaskTracker, stop: CancellationToken) -> Arc<Self> {
        let (handles, left) = (Mutex::new(HashMap::new()), Notify::new());
        Arc::new(Workers { kubelet, handles, left, tasks, stop })
    }

    /// A pod is new or has changed.
    pub(crate) fn update(self: &Arc<Self>, pod: Arc<Pod>, mirror: Option<Arc<Pod>>) {
        if let Err(why) = names::check_pod(&pod) {
            tracing::warn!(pod = state::full_name(&pod), %why, "pod refused");
            return;
        }
        let uid = state::uid(&pod).to_string();
        let mut handles = self.handles.lock();
        if let Some(handle) = handles.get(&uid) {
            handle.updates.send_if_modified(|update| {
                let shown = |mirror: &Option<Arc<Pod>>| mirror.as_ref().map(|pod| state::uid(pod).to_string());
                let changed = differs(&update.pod, &pod) || shown(&update.mirror) != shown(&mirror);
                if changed {
                    handle.causes.lock().merge(trace::current());
                }
                update.pod = pod;
                update.mirror = mirror;
                changed
            });
            return;
        }
        self.start(&mut handles, uid, Update { pod, mirror, is_removed: false, ended: None });
    }

    /// The pod is gone from its source.
    pub(crate) fn removed(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.causes.lock().merge(trace::current());
            handle.updates.send_modify(|update| update.is_removed = true);
        }
    }

    /// A pod nobody asked for runs here: end it.
    pub(crate) fn end_orphan(self: &Arc<Self>, pod: Pod) {
        if let Err(why) = names::check_pod(&pod) {
            tracing::warn!(pod = state::full_name(&pod), %why, "a pod in no source is none of ours");
            return;
        }
        let uid = state::uid(&pod).to_string();
        let mut handles = self.handles.lock();
        if !handles.contains_key(&uid) {
            self.start(&mut handles, uid, Update { pod: Arc::new(pod), mirror: None, is_removed: true, ended: None });
        }
    }

    /// The node ends a pod: evicted, too old, or shutting down.
    pub(crate) fn end(&self, uid: &str, ended: Ended, grace: Option<i64>) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.updates.send_modify(|update| {
                update.ended.get_or_insert((ended, grace));
            });
        }
    }

    /// Fires when a pod has ended; none for a pod that has no worker.
    pub(crate) fn ended(&self, uid: &str) -> Option<CancellationToken> {
        self.handles.lock().get(uid).map(|handle| handle.ended.clone())
    }

    /// Fires when nothing of a pod runs any more, though its volumes may still be there; none for a pod that has no worker.
    fn stopped(&self, uid: &str) -> Option<CancellationToken> {
        self.handles.lock().get(uid).map(|handle| handle.stopped.clone())
    }

    /// Pods that are not over.
    pub(crate) fn active_pods(&self) -> Vec<Arc<Pod>> {
        let is_over = |pod: &Pod| {
            let status = self.kubelet.status.latest(state::uid(pod)).or_else(|| pod.status.clone());
            status.is_some_and(|status| status.phase.as_deref().is_some_and(api::pod::is_terminal_phase))
        };
        self.pods().into_iter().filter(|pod| !is_over(pod)).collect()
    }

    pub(crate) fn wake(&self, uid: &str) {
        if let Some(handle) = self.handles.lock().get(uid) {
            handle.causes.lock().merge(trace::current());
            handle.wake.notify_one();
        }
    }

    /// Every pod that has a worker.
    pub(crate) fn pods(&self) -> Vec<Arc<Pod>> {
        self.handles.lock().values().map(|handle| handle.updates.borrow().pod.clone()).collect()
    }

    /// Some pod is gone for good.
    pub(crate) async fn left(&self) {
        self.left.notified().await;
    }

    /// Whether a pod of this name has a worker, of whatever uid.
    pub(crate) fn has_name(&self, full_name: &str) -> bool {
        self.handles.lock().values().any(|handle| state::full_name(&handle.updates.borrow().pod) == full_name)
    }

    pub(crate) fn has(&self, uid: &str) -> bool {
        self.handles.lock().contains_key(uid)
    }

    fn start(self: &Arc<Self>, handles: &mut HashMap<String, Handle>, uid: String, update: Update) {
        let (wake, has_stopped, has_ended) =
            (Arc::new(Notify::new()), CancellationToken::new(), CancellationToken::new());
        // One that ran before the kubelet did does not start now.
        let first_seen = (!update.is_removed && !runs(update.pod.status.as_ref())).then(Instant::now);
        let (sender, receiver) = watch::channel(update);
        let causes: Causes = Arc::new(Mutex::new(trace::current()));
        let (stopped, ended) = (has_stopped.clone(), has_ended.clone());
        let handle = Handle { updates: sender, wake: wake.clone(), causes: causes.clone(), stopped, ended };
        handles.insert(uid.clone(), handle);
        let (kubelet, others, stop) = (self.kubelet.clone(), self.clone(), self.stop.clone());
        // Nothing that a worker remembers would be missed by the next one.
        let worker = move || Worker {
            kubelet: kubelet.clone(),
            others: others.clone(),
            updates: receiver.clone(),
            wake: wake.clone(),
            causes: causes.clone(),
            stop: stop.clone(),
            memory: Memory { first_seen, ..Memory::default() },
            ended: None,
            has_stopped: has_stopped.clone(),
            has_ended: has_ended.clone(),
        };
        let workers = self.clone();
        self.tasks.spawn(FutureExt::boxed(async move {
            let work = || worker().run();
            let is_done = tokio::select! {
                is_done = client::outlive_panics(PANICKING, &uid, &workers.stop, work) => is_done,
                () = workers.stop.cancelled() => None,
            };
            if is_done == Some(true) {
                workers.handles.lock().remove(&uid);
                workers.kubelet.status.forget(&uid);
                workers.left.notify_one();
            }
        }));
    }
}

fn runs(status: Option<&PodStatus>) -> bool {
    status.and_then(|status| status.phase.as_deref()).is_some_and(|phase| phase != "Pending")
}

/// Whether a pass could come out differently. Our own status writes come back through the watch and
/// must not wake anyone.
fn differs(old: &Pod, new: &Pod) -> bool {
    let foreign = |pod: &Pod| -> Vec<(String, String)> {
        let gates: Vec<&str> = pod
            .spec
            .iter()
            .flat_map(|s| s.readiness_gates.iter().flatten())
            .map(|g| g.condition_type.as_str())
            .collect();
        pod.status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten())
            .filter(|condition| gates.contains(&condition.type_.as_str()))
            .map(|condition| (condition.type_.clone(), condition.status.clone()))
            .collect()
    };
    old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
        || foreign(old) != foreign(new)
}

struct Worker {
    kubelet: Arc<Kubelet>,
    others: Arc<Workers>,
    updates: watch::Receiver<Update>,
    wake: Arc<Notify>,
    causes: Causes,
    stop: CancellationToken,
    memory: Memory,
    /// Our own verdict: not admitted, or past its deadline.
    ended: Option<Ended>,
    has_stopped: CancellationToken,
    has_ended: CancellationToken,
}

/// Why a pod ends in whose place a critical one comes.
const PREEMPTING: &str = "Preempting";
/// After a pass that failed.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(20);

impl Worker {
    /// Returns whether the pod is gone for good (not: the kubelet stops).
    async fn run(mut self) -> bool {
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => false,
            () = self.live() => true,
        }
    }

    async fn live(&mut self) {
        self.sync_until_end().await;
        self.kubelet.withdraw_wish(state::uid(&self.updates.borrow().pod));
        self.end().await;
        self.has_ended.cancel();
        self.wait_for_removal().await;
        let update = self.updates.borrow().clone();
        let mut retry = client::backoff::Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        while let Err(error) = self.kubelet.remove(&update.pod).await {
            tracing::warn!(pod = state::full_name(&update.pod), %error, "pod not removed, will retry");
            tokio::time::sleep(retry.next_delay()).await;
        }
    }

    /// Runs the pod until something says it must end, or it has ended by itself.
    async fn sync_until_end(&mut self) {
        let mut retry = client::backoff::Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        loop {
            let update = self.updates.borrow_and_update().clone();
            if update.must_end() {
                return;
            }
            // Before the decision: what is freed after it is not missed.
            let mut freed = self.kubelet.freed.subscribe();
            let mut admission = self.kubelet.admit(&update.pod).await;
            while let Err(refused) = &admission {
                let Some((victims, resource)) = self.kubelet.in_its_way(&update.pod, refused) else { break };
                if !self.preempt(&victims, &resource).await {
                    break;
                }
                admission = self.kubelet.admit(&update.pod).await;
            }
            let admission = match admission {
                Ok(admission) => {
                    let now = self.kubelet.clock.now();
                    deadline(&update.pod, self.start_time(&update.pod), now).map_or(Ok(admission), Err)
                }
                Err(ended) => Err(ended),
            };
            let admission = match admission {
                Ok(admission) => admission,
                Err(ended) => {
                    self.kubelet.recorder.warning(
                        &client::reference(update.pod.as_ref()),
                        &ended.reason,
                        ended.message.clone(),
                    );
                    self.ended = Some(ended);
                    return;
                }
            };
            self.memory.mirror = update.mirror.clone();
            let pod = admission.pod.clone();
            self.kubelet.note_resize(&update.pod, admission, &mut self.memory.resize);
            let may_wait_for_room =
                self.memory.resize.wait.as_ref().is_some_and(|wait| wait.reason == resize::DEFERRED);
            let delay = {
                let mut updates = self.updates.clone();
                let work = self.begin(&update.pod);
                let (kubelet, began) = (self.kubelet.clone(), Instant::now());
                let sync = work.result(Box::pin(self.kubelet.sync(&pod, &mut self.memory)));
                let sync = async { (sync.await, kubelet.runtime.metrics.worked("sync", began.elapsed())).0 };
                tokio::select! {
                    result = sync => match result {
                        Ok(next) if next.is_finished => return,
                        Ok(next) => {
                            retry.reset();
                            self.note_start(&pod);
                            next.again_in
                        }
                        Err(error) => {
                            if let SyncError::Volume(error) = &error
                                && let Some((reason, message)) = error.rejection()
                            {
                                let about = client::reference(update.pod.as_ref());
                                self.kubelet.recorder.warning(&about, reason, message.clone());
                                self.ended = Some(Ended { reason: reason.to_owned(), message, disruption: None });
                                return;
                            }
                            tracing::warn!(pod = state::full_name(&update.pod), %error, "pod not synced, will retry");
                            Some(retry.next_delay())
                        }
                    },
                    // A deletion does not wait for an image pull or a hook.
                    _ = updates.wait_for(Update::must_end) => continue,
                }
            };
            let left = deadline_left(&update.pod, self.start_time(&update.pod), self.kubelet.clock.now());
            let delay = soonest(delay, left.map(|seconds| Duration::from_secs(seconds.max(0) as u64)));
            tokio::select! {
                changed = self.updates.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                () = self.wake.notified() => {}
                _ = freed.changed(), if may_wait_for_room => {}
                () = sleep_for(delay) => {}
            }
        }
    }

    /// Ends pods in favour of this critical one; whether there is more room now and it still wants it.
    async fn preempt(&self, victims: &[Arc<Pod>], resource: &str) -> bool {
        let message = "Preempted in order to admit critical pod";
        let mut ends = Vec::new();
        for pod in victims {
            let uid = state::uid(pod);
            let Some(ended) = self.others.ended(uid).filter(|ended| !ended.is_cancelled()) else { continue };
            let Some(stopped) = self.others.stopped(uid) else { continue };
            tracing::warn!(pod = state::full_name(pod), "preempting a pod for a critical one");
            self.kubelet.recorder.warning(&client::reference(pod.as_ref()), PREEMPTING, message.to_owned());
            let disruption = Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned());
            let why = Ended { reason: PREEMPTING.to_owned(), message: message.to_owned(), disruption };
            self.others.end(uid, why, None);
            ends.push((uid, stopped, ended));
        }
        // Their volumes are not waited for: they may need this pod to go, which may be their driver. A pod that does not say yet
        // that it is over still has its place.
        let metrics = &self.kubelet.runtime.metrics;
        let free = ends.iter().map(|(uid, stopped, ended)| async move {
            stopped.cancelled().await;
            if !self.kubelet.status.is_terminal(uid) {
                ended.cancelled().await;
            }
            metrics.preempted(resource);
        });
        let mut updates = self.updates.clone();
        tokio::select! {
            _ = futures_util::future::join_all(free) => self.kubelet.has_room_of(victims),
            _ = updates.wait_for(Update::must_end) => false,
        }
    }

    /// Counts how long the pod took to run, once.
    fn note_start(&mut self, pod: &Pod) {
        if self.memory.first_seen.is_some() && runs(self.kubelet.status.latest(state::uid(pod)).as_ref()) {
            let took = self.memory.first_seen.take().map(|seen| seen.elapsed());
            took.into_iter().for_each(|took| self.kubelet.runtime.metrics.pod_started(took));
        }
    }

    /// A pass over the pod, caused by whatever came since the last one. Timers and the runtime cause nothing new.
    fn begin(&self, pod: &Pod) -> Work {
        let causes = self.causes.lock().take();
        let work = Work::caused(&causes, Stage::Sync, state::ACTOR, state::traced_name(pod));
        work.with_detail(&self.kubelet.settings.node_name).announce()
    }

    /// When the pod started, in seconds; our newest status knows before the API does.
    fn start_time(&self, pod: &Pod) -> Option<i64> {
        let latest = self.kubelet.status.latest(state::uid(pod)).and_then(|status| status.start_time);
        let started = latest.or_else(|| pod.status.as_ref().and_then(|status| status.start_time.clone()))?;
        Some(started.0.as_second())
    }

    /// Stops everything, tells the end, frees what the pod held. Tries until it is done.
    async fn end(&mut self) {
        let mut retry = client::backoff::Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        let mut has_failed = false;
        loop {
            let update = self.updates.borrow_and_update().clone();
            self.memory.mirror = update.mirror.clone();
            let (ended, shorter) = match &update.ended {
                Some((ended, grace)) => (Some(ended), *grace),
                None => (self.ended.as_ref(), None),
            };
            let grace = self.kubelet.grace_period(&update.pod, shorter);
            let kubelet = self.kubelet.clone();
            let pod = kubelet.granted(&update.pod);
            let result = {
                let mut updates = self.updates.clone();
                let work = self.begin(&update.pod);
                let mut terminate =
                    Box::pin(work.result(Box::pin(kubelet.terminate(&pod, &self.memory, ended, grace))));
                let is_shorter = |new: &Update| kubelet.grace_period(&new.pod, None) < grace;
                let mut shorter = Box::pin(async { drop(updates.wait_for(is_shorter).await) });
                loop {
                    tokio::select! {
                        result = &mut terminate => break Some(result),
                        // Deleted again with less grace: start over with what is left.
                        () = &mut shorter => break None,
                        // A container became ready or unready while it ends: whoever sends it requests must hear.
                        () = self.wake.notified() => kubelet.report_ending(&pod, &self.memory, ended).await,
                    }
                }
            };
            let Some(result) = result else { continue };
            let result = match result {
                Ok(()) => {
                    self.has_stopped.cancel();
                    self.kubelet.release(state::uid(&update.pod)).await.map_err(EndError::from)
                }
                Err(error) => Err(error.into()),
            };
            match result {
                Ok(()) => {
                    self.kubelet.report_over(&pod, &self.memory);
                    return;
                }
                // A sandbox whose start was given up may still have come into being: the next look finds and ends it.
                Err(error) if !std::mem::replace(&mut has_failed, true) => {
                    tracing::debug!(pod = state::full_name(&update.pod), %error, "pod not ended at once");
                    tokio::time::sleep(retry.next_delay()).await;
                }
                Err(error) => {
                    tracing::warn!(pod = state::full_name(&update.pod), %error, "pod not ended, will retry");
                    self.kubelet.recorder.warning(
                        &client::reference(update.pod.as_ref()),
                        "FailedKillPod",
                        format!("error killing pod: {error}"),
                    );
                    tokio::time::sleep(retry.next_delay()).await;
                }
            }
        }
    }

    /// A finished pod stays in the API until someone deletes it; a deleted one we delete for good.
    async fn wait_for_removal(&mut self) {
        let mut asked = false;
        loop {
            let update = self.updates.borrow_and_update().clone();
            if update.is_removed {
                return;
            }
            if update.pod.metadata.deletion_timestamp.is_some() && !asked {
                asked = true;
                let api_pod = update.mirror.as_ref().unwrap_or(&update.pod);
                self.kubelet.status.delete(state::uid(&update.pod), api_pod);
            }
            if self.updates.changed().await.is_err() {
                return;
            }
        }
    }
}

fn soonest(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

async fn sleep_for(delay: Option<Duration>) {
    match delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => std::future::pending().await,
    }
}

/// Seconds left of `activeDeadlineSeconds`.
fn deadline_left(pod: &Pod, started: Option<i64>, now: Timestamp) -> Option<i64> {
    let limit = pod.spec.as_ref()?.active_deadline_seconds?;
    Some(started?.saturating_add(limit).saturating_sub(now.as_second()))
}

fn deadline(pod: &Pod, started: Option<i64>, now: Timestamp) -> Option<Ended> {
    (deadline_left(pod, started, now)? <= 0).then(|| Ended {
        reason: "DeadlineExceeded".into(),
        message: "Pod was active on the node longer than the specified deadline".into(),
        disruption: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_deadlines_of_any_length_can_be_counted_with() {
        let (started, now) = (1_000_000_000, Timestamp::from_second(1_000_000_060).unwrap());
        for (seconds, is_over) in [(i64::MAX, false), (61, false), (60, true), (1, true), (i64::MIN, true)] {
            let spec =
                k8s_openapi::api::core::v1::PodSpec { active_deadline_seconds: Some(seconds), ..Default::default() };
            let pod = Pod { spec: Some(spec), ..Default::default() };
            assert_eq!(deadline(&pod, Some(started), now).is_some(), is_over, "{seconds}");
        }
    }
}

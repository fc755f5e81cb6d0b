//! The loop around the decision: pods out of the queue, nodes chosen, bindings under way.
//!
//! Lock order: `core`, then nothing. The queue has its own lock and is never called with `core` held.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::cached::Pod;
use client::metrics::panics;
use client::{Client, Clock, EventRecorder, Informer};
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use trace::{Lap, Name, Stage, Work};

use crate::cluster::Cluster;
use crate::config::Profiles;
use crate::cycle::{Decider, Failure, Times};
use crate::extender::Extender;
use crate::framework::{Diagnosis, Permit, Placement, Plugin, Point, PostFilter, Profile, SUCCESS};
use crate::metrics::Metrics;
use crate::permits::Waiting;
use crate::plugins::default_preemption;
use crate::pod::{Catalogue, PodInfo};
use crate::queue::{Queue, Queued};

pub(crate) struct Scheduler {
    pub(crate) client: Client,
    pub(crate) catalogue: Arc<Catalogue>,
    pub(crate) profiles: Arc<Profiles>,
    pub(crate) core: Mutex<Core>,
    pub(crate) queue: Queue,
    pub(crate) pods: Informer<Pod>,
    pub(crate) extenders: Vec<Extender>,
    /// By scheduler name.
    pub(crate) recorders: Vec<(String, EventRecorder)>,
    /// Pods that a permit plug-in holds.
    pub(crate) permits: Waiting,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
}

/// What decisions read and write.
pub(crate) struct Core {
    pub(crate) cluster: Cluster,
    pub(crate) decider: Decider,
}

/// One pod's way through the scheduler.
pub(crate) struct Try {
    pub(crate) queued: Queued,
    pub(crate) profile: Arc<Profile>,
    pub(crate) began: Instant,
    /// The decision, as the cause of what follows from it.
    pub(crate) context: trace::Context,
}

/// Calls to the API that no decision waits for, as metrics name them.
pub(crate) const POD_BINDING: &str = "pod_binding";
pub(crate) const POD_STATUS_PATCH: &str = "pod_status_patch";

/// What the scheduler is called in traces.
pub(crate) const ACTOR: &str = "kube-scheduler";

/// The pod's name in traces.
pub(crate) fn traced_name(pod: &PodInfo) -> String {
    format!("pods/{}", pod.key)
}

/// A pod that has a node, as far as we are concerned.
struct Assumed {
    placement: Placement,
    permit: Permit,
    /// How long finding and comparing nodes took, if it was done in one go.
    times: Option<Times>,
}

/// Why a pod has none.
pub(crate) struct Unplaced {
    pub(crate) failure: Failure,
    pub(crate) room: PostFilter,
}

impl From<Failure> for Unplaced {
    fn from(failure: Failure) -> Unplaced {
        Unplaced { failure, room: PostFilter { gives_up: true, ..PostFilter::default() } }
    }
}

impl Scheduler {
    /// Schedules until `stop`; what is under way then is dropped.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(ended) = tasks.join_next() => {
                    if let Err(error) = ended
                        && error.is_panic()
                    {
                        panics::count("scheduler");
                        tracing::error!(%error, "a binding ended in a panic");
                    }
                }
                queued = self.queue.pop() => {
                    let retry = queued.clone();
                    if panics::catch_future("scheduler", self.schedule(queued, &mut tasks)).await.is_none() {
                        self.recover(retry, &mut tasks);
                    }
                }
            }
            // Decisions do not wait for anything: others must get their turn too.
            tokio::task::consume_budget().await;
        }
    }

    /// After a panic: the pod holds nothing, and is tried again later as after any other error.
    fn recover(self: &Arc<Self>, queued: Queued, tasks: &mut JoinSet<()>) {
        let pod = queued.pod.clone();
        self.core.lock().cluster.forget(&pod.uid);
        let Some(profile) = self.profiles.of(&pod.pod).cloned() else { return self.queue.done(&pod.uid) };
        let attempt = Try { queued, profile, began: Instant::now(), context: Default::default() };
        let (scheduler, failure) = (self.clone(), Failure::Error("the scheduling cycle panicked".into()));
        tasks.spawn(FutureExt::boxed(async move { scheduler.give_up(attempt, failure.into()).await }));
    }

    async fn schedule(self: &Arc<Self>, queued: Queued, tasks: &mut JoinSet<()>) {
        let pod = queued.pod.clone();
        let Some(profile) = self.profiles.of(&pod.pod).cloned() else { return self.queue.done(&pod.uid) };
        if pod.is_terminating {
            let message = format!("skip schedule deleting pod: {}", pod.key);
            self.recorder(&profile).warning(&client::reference(&*pod.pod), "FailedScheduling", message);
            return self.queue.done(&pod.uid);
        }
        if self.core.lock().cluster.is_assumed(&pod.uid) {
            return self.queue.done(&pod.uid);
        }
        let mut cycle = begin_cycle(&queued);
        let mut attempt = Try { queued, profile, began: Instant::now(), context: cycle.context() };
        let placed = match self.extenders.is_empty() {
            true => self.place(&attempt),
            false => cycle.run(self.place_with_extenders(&attempt)).await,
        };
        let time = attempt.began.elapsed();
        self.metrics.time("scheduler_scheduling_algorithm_duration_seconds", &[], time);
        let scheduler = self.clone();
        match placed {
            Ok(Assumed { placement, permit, times }) => {
                note_times(&mut cycle, times);
                cycle.detail(format_args!("chose {}", placement.node));
                cycle.end();
                let pending = self.metrics.pending_call(POD_BINDING);
                tasks.spawn(FutureExt::boxed(async move { scheduler.bind(attempt, placement, permit, pending).await }));
            }
            Err(unplaced) => {
                // Whatever brings the pod back, this was a reason why it waited.
                attempt.queued.context = cycle.context().waiting();
                cycle.fail(&unplaced.failure);
                let context = attempt.context.clone();
                tasks.spawn(FutureExt::boxed(async move { context.run(scheduler.give_up(attempt, unplaced)).await }));
            }
        }
    }

    /// Decides and assumes in one step.
    fn place(&self, attempt: &Try) -> Result<Assumed, Unplaced> {
        let pod = &attempt.queued.pod;
        let mut core = self.core.lock();
        let Core { cluster, decider } = &mut *core;
        let decision = decider.decide(cluster, &attempt.profile, pod);
        let times = decider.times;
        self.metrics.decided(&attempt.profile, times, decision.is_ok());
        self.metrics.sampled(&mut decider.samples);
        match decision {
            Ok(node) => {
                let node = cluster.row(node).name.clone();
                let assumed = assume(cluster, &self.metrics, attempt, node)?;
                Ok(Assumed { times: Some(times), ..assumed })
            }
            Err(Failure::Unfit(diagnosis)) => Err(self.make_room(core, attempt, diagnosis)),
            Err(failure) => Err(failure.into()),
        }
    }

    /// As `place`, asking the extenders in between. Nobody else places pods meanwhile, so what was decided still holds,
    /// or is found out when the pod is bound.
    async fn place_with_extenders(&self, attempt: &Try) -> Result<Assumed, Unplaced> {
        let pod = &attempt.queued.pod;
        let (nodes, mut diagnosis) = {
            let mut core = self.core.lock();
            let Core { cluster, decider } = &mut *core;
            let mut step = decider.attempt(cluster, &attempt.profile, pod)?;
            let mut found = step.find();
            let feasible = std::mem::take(&mut found.feasible);
            let diagnosis = step.diagnose(found);
            let objects = feasible.iter().filter_map(|node| Some((*node, cluster.row(*node).object.clone()?)));
            (objects.collect::<Vec<_>>(), diagnosis)
        };
        let nodes = crate::extender::filter(&self.extenders, pod, nodes, &mut diagnosis).await;
        let nodes = nodes.map_err(|error| Failure::Error(error.to_string()))?;
        if nodes.is_empty() {
            return Err(self.make_room(self.core.lock(), attempt, Box::new(diagnosis)));
        }
        let ids: Vec<_> = nodes.iter().map(|(id, _)| *id).collect();
        let mut totals = {
            let mut core = self.core.lock();
            let Core { cluster, decider } = &mut *core;
            decider.attempt(cluster, &attempt.profile, pod)?.rank(&ids)
        };
        crate::extender::prioritize(&self.extenders, pod, &nodes, &mut totals).await;
        let mut core = self.core.lock();
        let Core { cluster, decider } = &mut *core;
        let at = decider.attempt(cluster, &attempt.profile, pod)?.pick(&totals);
        self.metrics.sampled(&mut decider.samples);
        let node = cluster.row(ids[at]).name.clone();
        assume(cluster, &self.metrics, attempt, node)
    }

    /// No node takes the pod: looks for pods that could make way.
    fn make_room(
        &self,
        mut core: parking_lot::MutexGuard<'_, Core>,
        attempt: &Try,
        mut diagnosis: Box<Diagnosis>,
    ) -> Unplaced {
        let Core { cluster, decider } = &mut *core;
        let began = Instant::now();
        let room = match decider.attempt(cluster, &attempt.profile, &attempt.queued.pod) {
            Ok(mut step) => step.post_filter(&diagnosis),
            // The pod was rejected as such.
            Err(_) if attempt.profile.has(Point::PostFilter, "DefaultPreemption") => {
                default_preemption::not_helpful(&attempt.queued.pod, diagnosis.nodes)
            }
            Err(_) => PostFilter { gives_up: true, ..PostFilter::default() },
        };
        if attempt.profile.at(Point::PostFilter).next().is_some() {
            self.metrics.count("scheduler_preemption_attempts_total", &[]);
            let status = if room.candidates.is_empty() { "Unschedulable" } else { SUCCESS };
            self.metrics.ran(Point::PostFilter.name(), &attempt.profile, status, began.elapsed());
            self.metrics.sampled(&mut decider.samples);
        }
        diagnosis.post_filter.clone_from(&room.message);
        Unplaced { failure: Failure::Unfit(diagnosis), room }
    }

    pub(crate) fn recorder(&self, profile: &Profile) -> &EventRecorder {
        let own = self.recorders.iter().find(|(name, _)| *name == profile.name);
        own.map_or(&self.recorders[0].1, |(_, recorder)| recorder)
    }

    pub(crate) fn pending(&self, pod: &Arc<Pod>) -> Arc<PodInfo> {
        Arc::new(PodInfo::pending(pod.clone(), &self.catalogue))
    }
}

/// Counts the pod on its node at once, and lets plug-ins reserve what it needs there.
fn assume(cluster: &mut Cluster, metrics: &Metrics, attempt: &Try, node: Arc<str>) -> Result<Assumed, Unplaced> {
    let pod = attempt.queued.pod.clone();
    cluster.assume(pod.clone(), &node);
    let placement = Placement { pod, node };
    let reserved = timed_point(metrics, attempt, Point::Reserve, |plugin| {
        plugin.reserve(&placement, cluster).map_err(|error| ("Error", error.to_string()))
    });
    if let Err(error) = reserved {
        release(cluster, metrics, attempt, &placement);
        return Err(Failure::Error(error).into());
    }
    let mut permit = Permit::Allow;
    let permitted = timed_point(metrics, attempt, Point::Permit, |plugin| {
        match (plugin.permit(&placement), &permit) {
            (Permit::Allow, _) => {}
            (Permit::Wait(time), Permit::Wait(held)) => permit = Permit::Wait(time.max(*held)),
            (Permit::Wait(time), _) => permit = Permit::Wait(time),
            (Permit::Reject(rejection), _) => return Err((rejection.status(), rejection)),
        }
        Ok(())
    });
    if let Err(rejection) = permitted {
        let node = cluster.node(&placement.node);
        release(cluster, metrics, attempt, &placement);
        let mut diagnosis = Diagnosis { nodes: 1, ..Default::default() };
        node.into_iter().for_each(|node| diagnosis.add(node, &rejection));
        return Err(Failure::Unfit(Box::new(diagnosis)).into());
    }
    Ok(Assumed { placement, permit, times: None })
}

/// Asks the plug-ins of a point one after the other, until one has a failure and a name for it.
fn timed_point<E>(
    metrics: &Metrics,
    attempt: &Try,
    point: Point,
    mut ask: impl FnMut(&dyn Plugin) -> Result<(), (&'static str, E)>,
) -> Result<(), E> {
    let began = Instant::now();
    let mut failure = None;
    for plugin in attempt.profile.at(point) {
        let asked = Instant::now();
        failure = ask(&**plugin).err();
        let status = failure.as_ref().map_or(SUCCESS, |(status, _)| *status);
        metrics.plugin_ran(plugin.name(), point.name(), status, asked.elapsed());
        if failure.is_some() {
            break;
        }
    }
    let status = failure.as_ref().map_or(SUCCESS, |(status, _)| *status);
    metrics.ran(point.name(), &attempt.profile, status, began.elapsed());
    failure.map_or(Ok(()), |(_, error)| Err(error))
}

/// The wait in the queue is over, the decision begins.
fn begin_cycle(queued: &Queued) -> Work {
    let (context, pod) = (&queued.context, traced_name(&queued.pod));
    let wait = Work::caused(context, Stage::Pending, ACTOR, &pod).since(context);
    let waited = wait.context();
    wait.end();
    Work::caused(&waited, Stage::Schedule, ACTOR, pod)
}

/// Filtering and scoring ended just now, one after the other.
fn note_times(cycle: &mut Work, times: Option<Times>) {
    let Some(times) = times.filter(|_| cycle.is_recorded()) else { return };
    let nanoseconds = |time: Option<Duration>| time.unwrap_or_default().as_nanos() as u64;
    let (filtering, scoring) = (nanoseconds(times.filtering), nanoseconds(times.scoring));
    let start = trace::now().saturating_sub(filtering + scoring).max(cycle.started_at());
    let lap = |stage, start, duration| Lap { stage, name: Name::NONE, start, duration, failed: false };
    cycle.add_lap(lap(Stage::Filter, start, filtering));
    cycle.add_lap(lap(Stage::Score, start + filtering, scoring));
}

/// Takes back what was assumed and reserved.
pub(crate) fn release(cluster: &mut Cluster, metrics: &Metrics, attempt: &Try, placement: &Placement) {
    const UNRESERVE: &str = "Unreserve";
    let began = Instant::now();
    for plugin in attempt.profile.at(Point::Reserve) {
        let asked = Instant::now();
        plugin.unreserve(placement, cluster);
        metrics.plugin_ran(plugin.name(), UNRESERVE, SUCCESS, asked.elapsed());
    }
    metrics.ran(UNRESERVE, &attempt.profile, SUCCESS, began.elapsed());
    cluster.forget(&placement.pod.uid);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::{PluginError, Rejection};
    use serde_json::json;
    use tokio::time::Instant as Moment;

    /// Reserves, and then permits, waits or rejects by the name of the pod.
    struct Guard;

    impl Plugin for Guard {
        fn name(&self) -> &'static str {
            "Guard"
        }

        fn points(&self) -> &'static [Point] {
            &[Point::Reserve, Point::Permit]
        }

        fn reserve(&self, placement: &Placement, _cluster: &mut Cluster) -> Result<(), PluginError> {
            if placement.pod.name() == "unlucky" { Err("nothing left".into()) } else { Ok(()) }
        }

        fn permit(&self, placement: &Placement) -> Permit {
            match placement.pod.name() {
                "slow" => Permit::Wait(Duration::from_secs(1)),
                "bad" => Permit::Reject(Rejection::new("Guard", "not today")),
                _ => Permit::Allow,
            }
        }
    }

    #[test]
    fn what_is_refused_is_given_back() {
        let plugins = || vec![(Arc::new(Guard) as Arc<dyn Plugin>, 1)];
        let points = vec![(Point::Reserve, plugins()), (Point::Permit, plugins())];
        let profile = Arc::new(Profile::new("default-scheduler".into(), 0, None, points));
        let (mut cluster, metrics) = (Cluster::default(), Metrics::default());
        cluster.set_node(Arc::new(serde_json::from_value(json!({"metadata": {"name": "n"}})).unwrap()));
        for (name, expected) in [
            ("good", "Allow"),
            ("slow", "Wait(1s)"),
            ("bad", "0/1 nodes are available: 1 not today."),
            ("unlucky", "nothing left"),
        ] {
            let pod = json!({"metadata": {"name": name, "uid": name}, "spec": {"containers": []}});
            let pod = Arc::new(PodInfo::pending(Arc::new(api::codec::from_value(&pod).unwrap()), &cluster.catalogue));
            let queued = Queued::first(pod, Moment::now());
            let attempt = Try { queued, profile: profile.clone(), began: Instant::now(), context: Default::default() };
            let (found, is_placed) = match assume(&mut cluster, &metrics, &attempt, "n".into()) {
                Ok(assumed) => (format!("{:?}", assumed.permit), true),
                Err(unplaced) => (unplaced.failure.to_string(), false),
            };
            assert_eq!(found, expected);
            assert_eq!(cluster.is_assumed(name), is_placed, "{name}");
        }
        let text = metrics.registry.render();
        for (point, status, count) in [
            ("Reserve", "Success", 3),
            ("Reserve", "Error", 1),
            ("Permit", "Success", 2),
            ("Permit", "Unschedulable", 1),
            ("Unreserve", "Success", 2),
        ] {
            let labels = format!("extension_point=\"{point}\",plugin=\"Guard\",status=\"{status}\"");
            let line = format!("scheduler_plugin_execution_duration_seconds_count{{{labels}}} {count}\n");
            assert!(text.contains(&line), "{line} not in\n{text}");
        }
    }
}

//! What the scheduler counts, under upstream's names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use client::metrics::{Gauge, Histogram, Metrics as Registry, exponential};
use parking_lot::Mutex;

use crate::cycle::Times;
use crate::framework::{Point, Profile, SUCCESS, Samples};

/// Clones share what they count.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
    /// Looked up several times for each pod: by profile, point and status.
    points: Arc<Mutex<Points>>,
    /// Series of gauges that were set once: they go on as 0 when there is nothing to count any more.
    known: Arc<Mutex<BTreeSet<Series>>>,
}

type Points = HashMap<(usize, &'static str, &'static str), Histogram>;
/// A metric and the values of its labels.
type Series = (&'static str, Vec<String>);

static FROM_HUNDREDTH_OF_MS: [f64; 20] = exponential(0.00001, 1.5);
static FROM_TENTH_OF_MS: [f64; 12] = exponential(0.0001, 2.0);
static FROM_MS: [f64; 15] = exponential(0.001, 2.0);
static FROM_TEN_MS: [f64; 20] = exponential(0.01, 2.0);
static ATTEMPTS: [f64; 5] = exponential(1.0, 2.0);
static VICTIMS: [f64; 7] = exponential(1.0, 2.0);

/// Name and help of every metric, and the bounds of those that are histograms.
const METRICS: &[(&str, &str, &[f64])] = &[
    ("scheduler_schedule_attempts_total", "[STABLE] Number of attempts to schedule pods, by the result.", &[]),
    (
        "scheduler_scheduling_attempt_duration_seconds",
        "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
        &FROM_MS,
    ),
    ("scheduler_scheduling_algorithm_duration_seconds", "[ALPHA] Scheduling algorithm latency in seconds", &FROM_MS),
    (
        "scheduler_pod_scheduling_sli_duration_seconds",
        "[BETA] Latency of a pod from entering the queue to being bound, over all attempts.",
        &FROM_TEN_MS,
    ),
    ("scheduler_pod_scheduling_attempts", "[STABLE] Number of attempts to successfully schedule a pod.", &ATTEMPTS),
    (
        "scheduler_pod_scheduled_after_flush_total",
        "[ALPHA] Number of pods scheduled after they waited too long without an event that could help.",
        &[],
    ),
    ("scheduler_preemption_attempts_total", "[STABLE] Total preemption attempts in the cluster till now", &[]),
    ("scheduler_preemption_victims", "[STABLE] Number of selected preemption victims", &VICTIMS),
    ("scheduler_pending_pods", "[STABLE] Number of pending pods, by the queue type.", &[]),
    ("scheduler_unschedulable_pods", "[BETA] The number of unschedulable pods by plugin name.", &[]),
    ("scheduler_cache_size", "[ALPHA] Number of nodes, pods, and assumed pods in the cache.", &[]),
    ("scheduler_goroutines", "[BETA] Number of running tasks by the work they do, such as binding.", &[]),
    (
        "scheduler_queue_incoming_pods_total",
        "[STABLE] Number of pods added to scheduling queues by event and queue type.",
        &[],
    ),
    ("scheduler_permit_wait_duration_seconds", "[BETA] Duration of waiting on permit.", &FROM_MS),
    (
        "scheduler_framework_extension_point_duration_seconds",
        "[STABLE] Latency for running all plugins of a specific extension point.",
        &FROM_TENTH_OF_MS,
    ),
    ("scheduler_event_handling_duration_seconds", "[ALPHA] Event handling latency in seconds.", &FROM_TENTH_OF_MS),
    (
        "scheduler_plugin_evaluation_total",
        "[BETA] How often each plugin was asked at an extension point: by attempt, or by node where it judges nodes. What is remembered of a node is not asked again.",
        &[],
    ),
    (
        "scheduler_plugin_execution_duration_seconds",
        "[ALPHA] Duration for running a plugin at a specific extension point. Of decisions, only some are timed.",
        &FROM_HUNDREDTH_OF_MS,
    ),
    (
        "scheduler_batch_attempts_total",
        "[ALPHA] Decisions for which judgements of nodes made for an equivalent pod were at hand, and others.",
        &[],
    ),
    ("scheduler_batch_cache_flushed_total", "[ALPHA] Judgements for equivalent pods that were forgotten.", &[]),
    ("scheduler_async_api_call_execution_total", "[ALPHA] Total number of API calls that no decision waits for.", &[]),
    (
        "scheduler_async_api_call_execution_duration_seconds",
        "[ALPHA] Duration in seconds of API calls that no decision waits for.",
        &FROM_MS,
    ),
    ("scheduler_pending_async_api_calls", "[ALPHA] Number of API calls decided on and not made yet.", &[]),
    ("scheduler_volume_scheduling_stage_error_total", "[ALPHA] Volume scheduling stage error count", &[]),
    (
        "scheduler_queueing_hint_execution_duration_seconds",
        "[ALPHA] Duration for asking a plugin whether an event may help a pod.",
        &FROM_HUNDREDTH_OF_MS,
    ),
    ("scheduler_inflight_events", "[ALPHA] Number of events currently tracked in the scheduling queue.", &[]),
    (
        "scheduler_preemption_goroutines_duration_seconds",
        "[ALPHA] Duration of making victims leave in the background.",
        &FROM_TEN_MS,
    ),
    ("scheduler_preemption_goroutines_execution_total", "[ALPHA] How often victims were made to leave.", &[]),
];

type Labels<'a> = [(&'a str, &'a str)];

fn described(name: &str) -> (&'static str, &'static [f64]) {
    METRICS.iter().find(|(known, ..)| *known == name).map_or(("", &[]), |(_, help, bounds)| (help, bounds))
}

impl Metrics {
    pub(crate) fn new(registry: Registry) -> Metrics {
        Metrics { registry, ..Metrics::default() }
    }

    pub(crate) fn count(&self, name: &'static str, labels: &Labels<'_>) {
        self.registry.counter(name, described(name).0, labels).inc();
    }

    pub(crate) fn set(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        self.registry.gauge(name, described(name).0, labels).set(value);
    }

    pub(crate) fn add(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        self.registry.gauge(name, described(name).0, labels).add(value);
    }

    pub(crate) fn histogram(&self, name: &'static str, labels: &Labels<'_>) -> Histogram {
        let (help, bounds) = described(name);
        self.registry.histogram(name, help, bounds, labels)
    }

    pub(crate) fn observe(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        self.histogram(name, labels).observe(value);
    }

    pub(crate) fn time(&self, name: &'static str, labels: &Labels<'_>, time: Duration) {
        self.observe(name, labels, time.as_secs_f64());
    }

    /// An attempt ended: `scheduled`, `unschedulable` or `error`.
    pub(crate) fn attempted(&self, result: &str, profile: &str, time: Duration) {
        let labels = [("result", result), ("profile", profile)];
        self.count("scheduler_schedule_attempts_total", &labels);
        self.time("scheduler_scheduling_attempt_duration_seconds", &labels, time);
    }

    /// The plug-ins of one point ran.
    pub(crate) fn ran(&self, point: &'static str, profile: &Profile, status: &'static str, time: Duration) {
        let mut points = self.points.lock();
        let histogram = points.entry((profile.index, point, status)).or_insert_with(|| {
            let labels = [("extension_point", point), ("profile", &profile.name), ("status", status)];
            self.histogram("scheduler_framework_extension_point_duration_seconds", &labels)
        });
        histogram.observe_duration(time);
    }

    /// A decision was made, or it was found that there is none to make.
    pub(crate) fn decided(&self, profile: &Profile, times: Times, is_placed: bool) {
        let last = if is_placed { SUCCESS } else { "Unschedulable" };
        let prepared = if times.filtering.is_some() { SUCCESS } else { last };
        self.ran(Point::PreFilter.name(), profile, prepared, times.preparing);
        if let Some(time) = times.filtering {
            self.ran(Point::Filter.name(), profile, last, time);
        }
        if let Some(time) = times.scoring {
            self.ran(Point::Score.name(), profile, SUCCESS, time);
        }
    }

    /// One plug-in ran.
    pub(crate) fn plugin_ran(&self, plugin: &str, point: &'static str, status: &'static str, time: Duration) {
        let labels = [("extension_point", point), ("plugin", plugin), ("status", status)];
        self.time("scheduler_plugin_execution_duration_seconds", &labels, time);
    }

    /// Plug-ins that were timed while decisions were made.
    pub(crate) fn sampled(&self, samples: &mut Samples) {
        for sample in samples.drain() {
            self.plugin_ran(sample.plugin, sample.point, sample.status, sample.time);
        }
    }

    /// A call to the API of this kind is decided on; it is pending until what is returned is dropped.
    pub(crate) fn pending_call(&self, kind: &'static str) -> Pending {
        let name = "scheduler_pending_async_api_calls";
        let gauge = self.registry.gauge(name, described(name).0, &[("call_type", kind)]);
        gauge.add(1.0);
        Pending(gauge)
    }

    /// A call to the API, which nobody waited for, was answered.
    pub(crate) fn called(&self, kind: &'static str, is_success: bool, time: Duration) {
        let labels = [("call_type", kind), ("result", if is_success { "success" } else { "error" })];
        self.count("scheduler_async_api_call_execution_total", &labels);
        self.time("scheduler_async_api_call_execution_duration_seconds", &labels, time);
    }

    /// What was done together for equivalent pods, and how often the plug-ins of a profile were asked, since the last time.
    pub(crate) fn add_evaluations(&self, profile: &Profile) {
        let add = |name, labels: &Labels<'_>, count: usize| {
            self.registry.counter(name, described(name).0, labels).add(count);
        };
        for (point, plugin, count) in profile.take_asked() {
            let labels = [("extension_point", point.name()), ("plugin", plugin), ("profile", &profile.name)];
            add("scheduler_plugin_evaluation_total", &labels, count);
        }
        let (batches, forgotten) = profile.take_batches();
        for (result, count) in batches.into_iter().filter(|(_, count)| *count > 0) {
            add("scheduler_batch_attempts_total", &[("profile", &profile.name), ("result", result)], count);
        }
        if forgotten > 0 {
            add("scheduler_batch_cache_flushed_total", &[("profile", &profile.name), ("reason", "expired")], forgotten);
        }
    }

    /// Sets all series of a gauge: those that are not given are 0 from now on.
    pub(crate) fn set_all<const N: usize>(
        &self,
        name: &'static str,
        labels: [&str; N],
        values: impl IntoIterator<Item = ([String; N], usize)>,
    ) {
        let mut known = self.known.lock();
        let mut values: BTreeMap<Vec<String>, usize> =
            values.into_iter().map(|(series, value)| (series.to_vec(), value)).collect();
        known.extend(values.keys().map(|series| (name, series.clone())));
        for (_, series) in known.iter().filter(|(other, _)| *other == name) {
            let pairs: Vec<_> = labels.iter().copied().zip(series.iter().map(String::as_str)).collect();
            self.set(name, &pairs, values.remove(series).unwrap_or(0) as f64);
        }
    }

    pub(crate) fn set_pending(&self, counts: Counts) {
        for (queue, count) in [
            ("active", counts.active),
            ("backoff", counts.backoff),
            ("unschedulable", counts.unschedulable),
            ("gated", counts.gated),
        ] {
            self.set("scheduler_pending_pods", &[("queue", queue)], count as f64);
        }
    }
}

/// How many pods wait, by queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) active: usize,
    pub(crate) backoff: usize,
    pub(crate) unschedulable: usize,
    pub(crate) gated: usize,
}

/// A call that was not made yet.
pub(crate) struct Pending(Gauge);

impl Drop for Pending {
    fn drop(&mut self) {
        self.0.add(-1.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_pending_until_it_is_made() {
        let metrics = Metrics::default();
        let (first, second) = (metrics.pending_call("pod_binding"), metrics.pending_call("pod_binding"));
        let pending =
            |count: usize| format!("scheduler_pending_async_api_calls{{call_type=\"pod_binding\"}} {count}\n");
        drop(first);
        metrics.called("pod_binding", true, Duration::from_millis(3));
        metrics.called("pod_binding", false, Duration::from_millis(3));
        let text = metrics.registry.render();
        for part in [
            pending(1),
            "scheduler_async_api_call_execution_total{call_type=\"pod_binding\",result=\"success\"} 1\n".into(),
            "scheduler_async_api_call_execution_duration_seconds_count{call_type=\"pod_binding\",result=\"error\"} 1\n"
                .into(),
        ] {
            assert!(text.contains(&part), "{part} not in\n{text}");
        }
        drop(second);
        assert!(metrics.registry.render().contains(&pending(0)));
    }

    #[test]
    fn all_that_dashboards_look_for_is_described() {
        let component = client::metrics::upstream::Component::Scheduler;
        for row in component.rows().filter(|row| row.name.starts_with("scheduler_")) {
            let (help, bounds) = described(row.name);
            assert!(help.starts_with(&format!("[{}] ", row.level)), "{row:?}: {help:?}");
            assert_eq!(row.kind == "histogram", !bounds.is_empty(), "{row:?}");
        }
    }

    #[test]
    fn attempts_are_counted_and_timed() {
        let metrics = Metrics::default();
        metrics.attempted("scheduled", "default-scheduler", Duration::from_millis(3));
        let text = metrics.registry.render();
        for part in [
            "# TYPE scheduler_schedule_attempts_total counter",
            "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1",
            "le=\"0.004\"} 1",
        ] {
            assert!(text.contains(part), "{part} not in\n{text}");
        }
    }

    #[test]
    fn what_is_counted_no_more_is_none() {
        let metrics = Metrics::default();
        for values in [vec![(["A", "p"], 2), (["B", "p"], 1)], vec![(["B", "p"], 3)]] {
            let values = values.into_iter().map(|(series, value)| (series.map(str::to_owned), value));
            metrics.set_all("scheduler_unschedulable_pods", ["plugin", "profile"], values);
        }
        let text = metrics.registry.render();
        assert!(
            text.contains("{plugin=\"A\",profile=\"p\"} 0\n") && text.contains("{plugin=\"B\",profile=\"p\"} 3\n"),
            "{text}"
        );
    }
}

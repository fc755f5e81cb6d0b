//! What the scheduler counts, under upstream's names.

use std::time::Duration;

use client::metrics::Metrics as Registry;

use crate::queue::Counts;

/// Clones share what they count.
#[derive(Clone, Default)]
pub(crate) struct Metrics {
    pub(crate) registry: Registry,
}

const fn exponential<const N: usize>(first: f64, factor: f64) -> [f64; N] {
    let mut bounds = [first; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

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
];

type Labels<'a> = [(&'a str, &'a str)];

fn described(name: &str) -> (&'static str, &'static [f64]) {
    METRICS.iter().find(|(known, ..)| *known == name).map_or(("", &[]), |(_, help, bounds)| (help, bounds))
}

impl Metrics {
    pub(crate) fn count(&self, name: &'static str, labels: &Labels<'_>) {
        self.registry.counter(name, described(name).0, labels).inc();
    }

    pub(crate) fn set(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        self.registry.gauge(name, described(name).0, labels).set(value);
    }

    pub(crate) fn add(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        self.registry.gauge(name, described(name).0, labels).add(value);
    }

    pub(crate) fn observe(&self, name: &'static str, labels: &Labels<'_>, value: f64) {
        let (help, bounds) = described(name);
        self.registry.histogram(name, help, bounds, labels).observe(value);
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

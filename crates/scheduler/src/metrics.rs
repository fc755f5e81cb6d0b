//! Metrics under upstream's names, in the text format of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use parking_lot::Mutex;

use crate::queue::Counts;

#[derive(Default)]
pub(crate) struct Metrics {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    counters: BTreeMap<(&'static str, Labels), u64>,
    gauges: BTreeMap<(&'static str, Labels), f64>,
    histograms: BTreeMap<(&'static str, Labels), Histogram>,
}

type Labels = Vec<(&'static str, String)>;

struct Histogram {
    bounds: Vec<f64>,
    counts: Vec<u64>,
    sum: f64,
    count: u64,
}

type Described = (&'static str, &'static str, &'static str, (f64, f64, usize));

/// Name, kind and help of every metric; histograms also have their smallest bound, the factor between bounds and how many.
const METRICS: &[Described] = &[
    (
        "scheduler_schedule_attempts_total",
        "counter",
        "[STABLE] Number of attempts to schedule pods, by the result.",
        (0.0, 0.0, 0),
    ),
    (
        "scheduler_scheduling_attempt_duration_seconds",
        "histogram",
        "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)",
        (0.001, 2.0, 15),
    ),
    (
        "scheduler_scheduling_algorithm_duration_seconds",
        "histogram",
        "[ALPHA] Scheduling algorithm latency in seconds",
        (0.001, 2.0, 15),
    ),
    (
        "scheduler_pod_scheduling_sli_duration_seconds",
        "histogram",
        "[BETA] Latency of a pod from entering the queue to being bound, over all attempts.",
        (0.01, 2.0, 20),
    ),
    (
        "scheduler_pod_scheduling_attempts",
        "histogram",
        "[STABLE] Number of attempts to successfully schedule a pod.",
        (1.0, 2.0, 5),
    ),
    (
        "scheduler_pod_scheduled_after_flush_total",
        "counter",
        "[ALPHA] Number of pods scheduled after they waited too long without an event that could help.",
        (0.0, 0.0, 0),
    ),
    (
        "scheduler_preemption_attempts_total",
        "counter",
        "[STABLE] Total preemption attempts in the cluster till now",
        (0.0, 0.0, 0),
    ),
    ("scheduler_preemption_victims", "histogram", "[STABLE] Number of selected preemption victims", (1.0, 2.0, 7)),
    ("scheduler_pending_pods", "gauge", "[STABLE] Number of pending pods, by the queue type.", (0.0, 0.0, 0)),
    ("scheduler_unschedulable_pods", "gauge", "[BETA] The number of unschedulable pods by plugin name.", (0.0, 0.0, 0)),
    ("scheduler_cache_size", "gauge", "[ALPHA] Number of nodes, pods, and assumed pods in the cache.", (0.0, 0.0, 0)),
    (
        "scheduler_goroutines",
        "gauge",
        "[BETA] Number of running tasks by the work they do, such as binding.",
        (0.0, 0.0, 0),
    ),
    (
        "scheduler_queue_incoming_pods_total",
        "counter",
        "[STABLE] Number of pods added to scheduling queues by event and queue type.",
        (0.0, 0.0, 0),
    ),
    ("scheduler_permit_wait_duration_seconds", "histogram", "[BETA] Duration of waiting on permit.", (0.001, 2.0, 15)),
    (
        "scheduler_framework_extension_point_duration_seconds",
        "histogram",
        "[STABLE] Latency for running all plugins of a specific extension point.",
        (0.0001, 2.0, 12),
    ),
    (
        "scheduler_event_handling_duration_seconds",
        "histogram",
        "[ALPHA] Event handling latency in seconds.",
        (0.0001, 2.0, 12),
    ),
];

impl Metrics {
    pub(crate) fn count(&self, name: &'static str, labels: &[(&'static str, &str)]) {
        *self.inner.lock().counters.entry((name, owned(labels))).or_default() += 1;
    }

    pub(crate) fn set(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        self.inner.lock().gauges.insert((name, owned(labels)), value);
    }

    pub(crate) fn add(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        *self.inner.lock().gauges.entry((name, owned(labels))).or_default() += value;
    }

    pub(crate) fn observe(&self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        let mut inner = self.inner.lock();
        let histogram = inner.histograms.entry((name, owned(labels))).or_insert_with(|| Histogram::new(name));
        histogram.observe(value);
    }

    pub(crate) fn time(&self, name: &'static str, labels: &[(&'static str, &str)], time: Duration) {
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

    /// Everything, as a scraper reads it.
    pub(crate) fn text(&self) -> String {
        let inner = self.inner.lock();
        let mut out = String::new();
        for (name, kind, help, _) in METRICS {
            // Writing to a string does not fail.
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for ((_, labels), value) in inner.counters.iter().filter(|((of, _), _)| of == name) {
                let _ = writeln!(out, "{name}{} {value}", braced(labels, None));
            }
            for ((_, labels), value) in inner.gauges.iter().filter(|((of, _), _)| of == name) {
                let _ = writeln!(out, "{name}{} {value}", braced(labels, None));
            }
            for ((_, labels), histogram) in inner.histograms.iter().filter(|((of, _), _)| of == name) {
                let mut below = 0;
                for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
                    below += count;
                    let _ = writeln!(out, "{name}_bucket{} {below}", braced(labels, Some(&bound.to_string())));
                }
                let _ = writeln!(out, "{name}_bucket{} {}", braced(labels, Some("+Inf")), histogram.count);
                let _ = writeln!(out, "{name}_sum{} {}", braced(labels, None), histogram.sum);
                let _ = writeln!(out, "{name}_count{} {}", braced(labels, None), histogram.count);
            }
        }
        out
    }
}

impl Histogram {
    fn new(name: &str) -> Histogram {
        let shape = METRICS.iter().find(|(known, ..)| *known == name).map_or((1.0, 2.0, 1), |(.., shape)| *shape);
        let (first, factor, count) = shape;
        let bounds: Vec<f64> = (0..count).map(|at| first * factor.powi(at as i32)).collect();
        Histogram { counts: vec![0; bounds.len()], bounds, sum: 0.0, count: 0 }
    }

    fn observe(&mut self, value: f64) {
        if let Some(at) = self.bounds.iter().position(|bound| value <= *bound) {
            self.counts[at] += 1;
        }
        self.sum += value;
        self.count += 1;
    }
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect()
}

fn braced(labels: &Labels, bound: Option<&str>) -> String {
    let bound = bound.map(|bound| ("le", bound.to_owned()));
    let pairs = labels.iter().chain(&bound).map(|(name, value)| format!("{name}={value:?}"));
    let pairs = pairs.collect::<Vec<_>>().join(",");
    if pairs.is_empty() { pairs } else { format!("{{{pairs}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_count_what_is_below_them() {
        let metrics = Metrics::default();
        metrics.attempted("scheduled", "default-scheduler", Duration::from_millis(3));
        metrics.attempted("scheduled", "default-scheduler", Duration::from_secs(100));
        let text = metrics.text();
        for line in [
            "# TYPE scheduler_schedule_attempts_total counter",
            "scheduler_schedule_attempts_total{result=\"scheduled\",profile=\"default-scheduler\"} 2",
            "scheduler_scheduling_attempt_duration_seconds_bucket{result=\"scheduled\",profile=\"default-scheduler\",le=\"0.002\"} 0",
            "scheduler_scheduling_attempt_duration_seconds_bucket{result=\"scheduled\",profile=\"default-scheduler\",le=\"0.004\"} 1",
            "scheduler_scheduling_attempt_duration_seconds_bucket{result=\"scheduled\",profile=\"default-scheduler\",le=\"+Inf\"} 2",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} not in\n{text}");
        }
    }
}

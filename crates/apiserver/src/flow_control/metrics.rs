//! What flow control counts, under upstream's names.

use std::time::Duration;

use ::metrics::{Counter, Gauge, Histogram, Metrics};

const WAIT_BOUNDS: [f64; 13] = [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0];

/// What is counted of one schema at one level.
pub(super) struct Counts {
    metrics: Metrics,
    level: String,
    schema: String,
    executing: Gauge,
    /// Each request has one, as long as it is served.
    seats: Gauge,
    pub(super) waiting: Gauge,
    dispatched: Counter,
    waits: [Histogram; 2],
}

impl Counts {
    pub(super) fn new(metrics: &Metrics, level: &str, schema: &str) -> Self {
        let labels = [("flow_schema", schema), ("priority_level", level)];
        let gauge = |name, help| metrics.gauge(name, help, &labels);
        let wait = |execute| {
            metrics.histogram(
                "apiserver_flowcontrol_request_wait_duration_seconds",
                "How long requests wait in their queues",
                &WAIT_BOUNDS,
                &[("execute", execute), ("flow_schema", schema), ("priority_level", level)],
            )
        };
        Self {
            executing: gauge("apiserver_flowcontrol_current_executing_requests", "Requests that are served now"),
            seats: gauge("apiserver_flowcontrol_current_executing_seats", "Seats of requests that are served now"),
            waiting: gauge("apiserver_flowcontrol_current_inqueue_requests", "Requests that wait in queues now"),
            dispatched: metrics.counter(
                "apiserver_flowcontrol_dispatched_requests_total",
                "Requests that were served",
                &labels,
            ),
            waits: [wait("false"), wait("true")],
            metrics: metrics.clone(),
            level: level.to_owned(),
            schema: schema.to_owned(),
        }
    }

    /// One more is served, or one fewer.
    pub(super) fn executing(&self, change: f64) {
        self.executing.add(change);
        self.seats.add(change);
    }

    pub(super) fn dispatched(&self, waited: Option<Duration>) {
        self.dispatched.inc();
        if let Some(waited) = waited {
            self.waits[1].observe_duration(waited);
        }
    }

    pub(super) fn rejected(&self, reason: &str, waited: Duration) {
        let labels = [("flow_schema", &*self.schema), ("priority_level", &*self.level), ("reason", reason)];
        let name = "apiserver_flowcontrol_rejected_requests_total";
        self.metrics.counter(name, "Requests that were turned away", &labels).inc();
        self.waits[0].observe_duration(waited);
    }
}

//! What the gateway counts: requests by route and code, how long they took, connections to backends.

use std::sync::OnceLock;
use std::time::Duration;

use client::metrics::{Counter, Histogram, Metrics};
use parking_lot::Mutex;

const REQUESTS: &str = "cox_gateway_requests_total";
const DURATION: &str = "cox_gateway_request_duration_seconds";
const DURATIONS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

/// The counters of all routes of one name, looked up when one of them is first used.
#[derive(Default)]
pub struct RouteMetrics {
    duration: OnceLock<Histogram>,
    /// The code of the first answer, which most answers have: all workers find its counter without a lock.
    usual: OnceLock<(u16, Counter)>,
    others: Mutex<Vec<(u16, Counter)>>,
}

impl RouteMetrics {
    pub(crate) fn count(&self, metrics: &Metrics, route: &str, code: u16, took: Duration) {
        let duration = self.duration.get_or_init(|| duration(metrics, route));
        duration.observe_duration(took);
        let (usual, counter) = self.usual.get_or_init(|| (code, requests(metrics, route, code)));
        if *usual == code {
            counter.inc();
            return;
        }
        let mut known = self.others.lock();
        match known.iter().find(|(known, _)| *known == code) {
            Some((_, counter)) => counter.inc(),
            None => {
                let counter = requests(metrics, route, code);
                counter.inc();
                known.push((code, counter));
            }
        }
    }
}

/// Ends the series of a route that is no more.
pub(crate) fn forget_route(metrics: &Metrics, route: &str) {
    for name in [REQUESTS, DURATION] {
        metrics.forget(name, &[("route", route)]);
    }
}

/// Requests that no route asks for, or that are refused before one is looked for.
pub(crate) fn count_unrouted(metrics: &Metrics, code: u16) {
    requests(metrics, "", code).inc();
}

fn requests(metrics: &Metrics, route: &str, code: u16) -> Counter {
    let code = code.to_string();
    let labels = [("route", route), ("code", code.as_str())];
    metrics.counter(REQUESTS, "Requests by route and code of the answer.", &labels)
}

fn duration(metrics: &Metrics, route: &str) -> Histogram {
    let help = "Seconds from a request to the head of its answer.";
    metrics.histogram(DURATION, help, DURATIONS, &[("route", route)])
}

/// Connections to backends, by how they went.
pub(crate) struct PoolMetrics {
    pub(crate) opened: Counter,
    pub(crate) failed: Counter,
    pub(crate) reused: Counter,
}

impl PoolMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let of = |kind| {
            let help = "Connections to endpoints: opened, failed to open, used again.";
            metrics.counter("cox_gateway_backend_connections_total", help, &[("kind", kind)])
        };
        Self { opened: of("opened"), failed: of("failed"), reused: of("reused") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_of_a_route_are_counted_by_code() {
        let (metrics, route) = (Metrics::new(), RouteMetrics::default());
        for code in [200, 404, 200, 502, 404, 200] {
            route.count(&metrics, "default/a", code, Duration::from_millis(1));
        }
        let text = metrics.render();
        for (code, count) in [(200, 3), (404, 2), (502, 1)] {
            let line = format!("{REQUESTS}{{code=\"{code}\",route=\"default/a\"}} {count}\n");
            assert!(text.contains(&line), "{line}{text}");
        }
        assert!(text.contains(&format!("{DURATION}_count{{route=\"default/a\"}} 6\n")), "{text}");
    }

    #[test]
    fn routes_that_are_gone_are_not_told_of() {
        let metrics = Metrics::new();
        for route in ["default/a", "default/b"] {
            RouteMetrics::default().count(&metrics, route, 200, Duration::from_millis(1));
        }
        count_unrouted(&metrics, 404);
        forget_route(&metrics, "default/a");
        let text = metrics.render();
        assert!(!text.contains("default/a"), "{text}");
        assert!(text.contains("default/b") && text.contains("code=\"404\""), "{text}");
    }
}

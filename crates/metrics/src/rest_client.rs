//! Requests that a component sends to the API server: how many with which outcome, how long they took.

use std::time::Duration;

use crate::Metrics;

const BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];
/// The host of requests that never leave the process.
pub const IN_PROCESS: &str = "in-process";

/// Counts one that has been answered; `code` is none where there was no answer.
pub fn answered(metrics: &Metrics, host: &str, method: &str, code: Option<u16>, took: Duration) {
    let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
    let labels = [("code", code.as_str()), ("method", method), ("host", host)];
    metrics.counter("rest_client_requests_total", "Requests to the API server", &labels).inc();
    let labels = [("verb", method), ("host", host)];
    metrics
        .histogram("rest_client_request_duration_seconds", "How long requests take", BOUNDS, &labels)
        .observe_duration(took);
}

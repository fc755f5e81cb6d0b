//! Requests in a component's metrics: how many with which outcome, how long they took.

use std::future::Future;

use http::{Method, Response};
use tokio::time::Instant;

use crate::metrics::Metrics;
use crate::{Body, Error};

const BOUNDS: &[f64] = &[0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

#[derive(Clone)]
pub(super) struct Measure {
    metrics: Metrics,
    host: String,
}

impl Measure {
    pub(super) fn new(metrics: &Metrics, host: &str) -> Self {
        Self { metrics: metrics.clone(), host: host.into() }
    }

    pub(super) async fn around(
        &self,
        method: Method,
        request: impl Future<Output = Result<Response<Body>, Error>>,
    ) -> Result<Response<Body>, Error> {
        let began = Instant::now();
        let answer = request.await;
        let code =
            answer.as_ref().map_or_else(|_| "<error>".to_owned(), |response| response.status().as_u16().to_string());
        let (method, host) = (method.as_str(), self.host.as_str());
        self.metrics
            .counter(
                "rest_client_requests_total",
                "Requests to the API server",
                &[("code", &code), ("method", method), ("host", host)],
            )
            .inc();
        self.metrics
            .histogram(
                "rest_client_request_duration_seconds",
                "How long requests take",
                BOUNDS,
                &[("verb", method), ("host", host)],
            )
            .observe_duration(began.elapsed());
        answer
    }
}

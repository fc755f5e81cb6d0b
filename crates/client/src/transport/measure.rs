//! Requests in a component's metrics.

use std::future::Future;

use http::{Method, Response};
use tokio::time::Instant;

use crate::metrics::{Metrics, rest_client};
use crate::{Body, Error};

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
        let code = answer.as_ref().ok().map(|response| response.status().as_u16());
        rest_client::answered(&self.metrics, &self.host, method.as_str(), code, began.elapsed());
        answer
    }
}

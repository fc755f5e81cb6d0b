//! A channel that tells what calls came to: their names, how long they took, whether they failed.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tonic::body::Body;
use tonic::transport::Channel;
use tower::Service;

/// Told of every call when its answer begins.
pub trait Observer: Send + Sync {
    /// `method` is the name that the protocol gives it, without its service.
    fn called(&self, method: &str, took: Duration, is_error: bool);

    /// What the call is a part of, in the words of W3C's `traceparent`.
    fn trace_context(&self) -> Option<String> {
        None
    }
}

#[derive(Clone)]
pub struct Measured {
    channel: Channel,
    observer: Option<Arc<dyn Observer>>,
}

impl std::fmt::Debug for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.channel.fmt(f)
    }
}

impl Measured {
    pub fn new(channel: Channel) -> Self {
        Self { channel, observer: None }
    }

    pub fn with(&self, observer: Arc<dyn Observer>) -> Self {
        Self { channel: self.channel.clone(), observer: Some(observer) }
    }
}

type Answer = Result<http::Response<Body>, tonic::transport::Error>;

impl Service<http::Request<Body>> for Measured {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let Some(observer) = self.observer.clone() else { return Box::pin(self.channel.call(request)) };
        if let Some(context) = observer.trace_context().and_then(|text| http::HeaderValue::from_str(&text).ok()) {
            request.headers_mut().insert("traceparent", context);
        }
        let path = request.uri().path().to_owned();
        let calling = self.channel.call(request);
        Box::pin(async move {
            let began = Instant::now();
            let answer = calling.await;
            observer.called(path.rsplit('/').next().unwrap_or_default(), began.elapsed(), is_error(&answer));
            answer
        })
    }
}

/// A call that fails answers with headers alone, which carry its status.
fn is_error(answer: &Answer) -> bool {
    match answer {
        Ok(response) => response.headers().get("grpc-status").is_some_and(|status| status != "0"),
        Err(_) => true,
    }
}

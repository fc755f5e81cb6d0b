//! Traces of the kubelet: they go to a collector, the runtime is told of them, and nobody waits for either.

use std::convert::Infallible;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use grpc::tonic::Status;
use grpc::tonic::body::Body;
use grpc::tonic::codegen::Service;
use grpc::tonic::server::NamedService;
use grpc::tonic::transport::{Channel, Server};
use otlp::collector::Collector;
use parking_lot::Mutex;
use serde_json::json;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::api;
use crate::node::{Node, is_ready, shell};

/// Calls of the runtime: their names, and what they are said to be part of.
type Calls = Arc<Mutex<Vec<(String, Option<String>)>>>;

/// Stands before a runtime, writes down what is asked of it, and passes everything on.
#[derive(Clone)]
struct Recording<const IMAGES: bool> {
    runtime: Channel,
    calls: Calls,
}

impl<const IMAGES: bool> NamedService for Recording<IMAGES> {
    const NAME: &'static str = if IMAGES { "runtime.v1.ImageService" } else { "runtime.v1.RuntimeService" };
}

impl<const IMAGES: bool> Service<http::Request<Body>> for Recording<IMAGES> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
        let context = request.headers().get("traceparent").map(|text| text.to_str().unwrap().to_owned());
        self.calls.lock().push((method, context));
        let mut runtime = self.runtime.clone();
        Box::pin(async move {
            let answer = match std::future::poll_fn(|context| runtime.poll_ready(context)).await {
                Ok(()) => runtime.call(request).await,
                Err(error) => Err(error),
            };
            Ok(answer.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}

fn record(socket: &Path, runtime: &Path) -> (Calls, DropGuard) {
    let (calls, stop) = (Calls::default(), CancellationToken::new());
    let runtime = grpc::lazy(runtime);
    let services = Server::builder()
        .add_service(Recording::<false> { runtime: runtime.clone(), calls: calls.clone() })
        .add_service(Recording::<true> { runtime, calls: calls.clone() });
    tokio::spawn(grpc::Socket::bind(socket).unwrap().serve(services, stop.clone()));
    (calls, stop.drop_guard())
}

/// Starts a kubelet in a process of its own whose traces go to `endpoint`.
pub(crate) fn spawn_traced(node: &mut Node, endpoint: &str) {
    std::fs::write(node.dir.path().join("kubeconfig"), node.api.kubeconfig(api::NODE_TOKEN)).unwrap();
    let config = node.dir.path().join("kubelet.yaml");
    let tracing = json!({"endpoint": endpoint, "samplingRatePerMillion": 1_000_000});
    let text =
        json!({"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration", "tracing": tracing});
    std::fs::write(&config, text.to_string()).unwrap();
    node.spawn_kubelet_with(&["--config", &config.to_string_lossy()]);
}

pub(crate) async fn the_runtime_is_told_of_traces_and_no_collector_holds_up_pods(node: &mut Node) {
    node.stop_kubelet().await;
    let socket = node.dir.path().join("recorded.sock");
    let (calls, _serving) = record(&socket, &node.runtime.socket());
    node.put_before_runtime(socket);

    let collector = Collector::start().await;
    spawn_traced(node, &collector.endpoint());
    let spec =
        || json!({"containers": [{"name": "c", "command": shell("sleep 1000")}], "terminationGracePeriodSeconds": 0});
    // What is there before the kubelet follows from nothing that it saw.
    node.create("early", spec()).await;
    node.wait("early", "ready", is_ready).await;
    calls.lock().clear();
    node.create("traced", spec()).await;
    node.wait("traced", "ready", is_ready).await;
    for method in ["RunPodSandbox", "CreateContainer", "StartContainer"] {
        let context = calls.lock().iter().find(|(name, _)| name == method).and_then(|(_, context)| context.clone());
        let context = context.unwrap_or_else(|| panic!("{method} is not told: {:?}", calls.lock()));
        let [version, trace, span, flags] = context.split('-').collect::<Vec<_>>()[..] else { panic!("{context}") };
        assert_eq!((version, trace.len(), span.len(), flags), ("00", 32, 16, "01"), "{method}");
        // The very trace, and the very part of it, that the collector gets.
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        node.wait_until("the span of the call", || {
            let sent = collector.spans();
            let of = sent.iter().find(|(_, sent)| hex(&sent.span_id) == span);
            of.is_some_and(|(service, sent)| service == "kubelet" && hex(&sent.trace_id) == trace)
        })
        .await;
    }
    node.stop_kubelet().await;

    // One that takes spans and never answers, and one that is not there.
    let silent = Collector::silent().await;
    for (name, endpoint) in [("slow", silent.endpoint().as_str()), ("dead", "127.0.0.1:1")] {
        spawn_traced(node, endpoint);
        node.create(name, spec()).await;
        node.wait(name, "ready", is_ready).await;
        node.delete(name).await;
        node.stop_kubelet().await;
    }
    node.start_kubelet();
    node.delete("traced").await;
    node.delete("early").await;
}

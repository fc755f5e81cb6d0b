//! A collector for tests: a real server of gRPC on a free port of this machine.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use grpc::tonic::body::Body;
use grpc::tonic::codegen::{BoxFuture, Service, http};
use grpc::tonic::server::{Grpc, NamedService, UnaryService};
use grpc::tonic::transport::Server;
use grpc::tonic::{Request, Response, Status};
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic_prost::ProstCodec;

use crate::messages::{ExportTraceServiceRequest, ExportTraceServiceResponse, Span, Value};

/// Ends when it is dropped.
pub struct Collector {
    endpoint: String,
    requests: Requests,
    task: tokio::task::JoinHandle<()>,
}

type Requests = Arc<Mutex<Vec<ExportTraceServiceRequest>>>;

impl Collector {
    pub async fn start() -> Self {
        Self::new(Answer::Ok).await
    }

    pub async fn refusing() -> Self {
        Self::new(Answer::Refusal).await
    }

    /// Takes connections and never answers.
    pub async fn silent() -> Self {
        Self::new(Answer::Nothing).await
    }

    async fn new(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = listener.local_addr().expect("a bound port").to_string();
        let requests = Requests::default();
        let service = TraceService { answer, requests: requests.clone() };
        let serving = Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
        let task = tokio::spawn(async move { drop(serving.await) });
        Self { endpoint, requests, task }
    }

    pub fn endpoint(&self) -> String {
        self.endpoint.clone()
    }

    /// Every span that came, with the service that it is of.
    pub fn spans(&self) -> Vec<(String, Span)> {
        let mut found = Vec::new();
        for of in self.requests.lock().iter().flat_map(|request| &request.resource_spans) {
            let attributes = of.resource.iter().flat_map(|resource| &resource.attributes);
            let name = attributes.filter(|attribute| attribute.key == "service.name").find_map(|attribute| {
                match attribute.value.as_ref()?.value.as_ref()? {
                    Value::Text(text) => Some(text.clone()),
                    Value::Number(_) => None,
                }
            });
            let spans = of.scope_spans.iter().flat_map(|scope| &scope.spans);
            found.extend(spans.map(|span| (name.clone().unwrap_or_default(), span.clone())));
        }
        found
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[derive(Clone, Copy)]
enum Answer {
    Ok,
    Refusal,
    Nothing,
}

#[derive(Clone)]
struct TraceService {
    answer: Answer,
    requests: Requests,
}

impl NamedService for TraceService {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<http::Request<Body>> for TraceService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        let codec: ProstCodec<ExportTraceServiceResponse, ExportTraceServiceRequest> = ProstCodec::default();
        Box::pin(async move { Ok(Grpc::new(codec).unary(service, request).await) })
    }
}

impl UnaryService<ExportTraceServiceRequest> for TraceService {
    type Response = ExportTraceServiceResponse;
    type Future = BoxFuture<Response<ExportTraceServiceResponse>, Status>;

    fn call(&mut self, request: Request<ExportTraceServiceRequest>) -> Self::Future {
        let (answer, requests) = (self.answer, self.requests.clone());
        Box::pin(async move {
            match answer {
                Answer::Nothing => std::future::pending().await,
                Answer::Refusal => Err(Status::invalid_argument("these are no spans")),
                Answer::Ok => {
                    requests.lock().push(request.into_inner());
                    Ok(Response::new(ExportTraceServiceResponse::default()))
                }
            }
        })
    }
}

//! The task that sends.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use grpc::Caller;
use grpc::tonic::codegen::http::uri::PathAndQuery;
use grpc::tonic::transport::Channel;
use grpc::tonic::{Code, Request, Status};
use tokio_util::sync::CancellationToken;
use tonic_prost::ProstCodec;
use trace::{Exported, Exporting};

use crate::config::{Target, TracingConfiguration};
use crate::convert;
use crate::messages::{ExportTraceServiceRequest, ExportTraceServiceResponse};

/// Spans of one message, and how long the first of them waits for others.
const BATCH: usize = 512;
const BATCH_INTERVAL: Duration = Duration::from_secs(1);
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// For what is left when the process ends.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);
/// How often, and with what pauses, a batch is tried again while the collector is away.
const ATTEMPTS: u32 = 5;
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// An answer says little.
const MAX_ANSWER: usize = 64 << 10;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// Sends what is exported until `stop`, and then what is left, once. Boxed: what an `async fn` does is compiled again by
/// every crate that waits for it.
pub fn run(
    exporting: Arc<Exporting>,
    config: TracingConfiguration,
    instance: String,
    stop: CancellationToken,
) -> Pin<Box<dyn Future<Output = ()> + Send>> {
    Box::pin(export(exporting, config, instance, stop))
}

async fn export(exporting: Arc<Exporting>, config: TracingConfiguration, instance: String, stop: CancellationToken) {
    let channel = match channel(&config) {
        Ok(channel) => channel,
        Err(error) => {
            tracing::error!(%error, "traces are not exported");
            return;
        }
    };
    let mut complained = false;
    loop {
        let first = tokio::select! {
            first = exporting.next(1) => first,
            () = stop.cancelled() => break,
        };
        tokio::select! {
            () = exporting.full(BATCH - 1) => {}
            () = tokio::time::sleep(BATCH_INTERVAL) => {}
            () = stop.cancelled() => {}
        }
        let batch: Vec<Exported> = first.into_iter().chain(exporting.take(BATCH - 1)).collect();
        let request = convert::request(&batch, &instance);
        let mut pause = MIN_RETRY_INTERVAL;
        for attempt in 1.. {
            let sent = tokio::select! {
                sent = send(channel.clone(), request.clone(), CALL_TIMEOUT) => sent,
                () = stop.cancelled() => send(channel.clone(), request.clone(), LAST_TIMEOUT).await,
            };
            let failed = match sent {
                Ok(rejected) => {
                    let rejected = usize::try_from(rejected).unwrap_or_default().min(batch.len());
                    exporting.count_sent(batch.len() - rejected);
                    exporting.count_lost(rejected);
                    complained = false;
                    break;
                }
                Err(failed) => failed,
            };
            if !std::mem::replace(&mut complained, true) {
                tracing::warn!(code = ?failed.code(), error = failed.message(), "the collector takes no spans");
            }
            if attempt >= ATTEMPTS || !is_passing(failed.code()) || stop.is_cancelled() {
                exporting.count_lost(batch.len());
                break;
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => {}
            }
            pause *= 2;
        }
    }
    let rest = exporting.take(usize::MAX);
    if !rest.is_empty() {
        match send(channel, convert::request(&rest, &instance), LAST_TIMEOUT).await {
            Ok(_) => exporting.count_sent(rest.len()),
            Err(_) => exporting.count_lost(rest.len()),
        }
    }
}

/// What the specification of OTLP lets clients try again.
fn is_passing(code: Code) -> bool {
    matches!(
        code,
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
            | Code::ResourceExhausted
            | Code::Unknown
    )
}

fn channel(config: &TracingConfiguration) -> Result<Channel, grpc::Error> {
    match config.target() {
        Target::Socket(path) => Ok(grpc::lazy(path)),
        Target::Host(host) => grpc::lazy_host(&host),
    }
}

/// Returns how many spans the collector did not want.
async fn send(channel: Channel, request: ExportTraceServiceRequest, limit: Duration) -> Result<i64, Status> {
    let calling = async {
        let mut client = Caller::new(channel).max_decoding_message_size(MAX_ANSWER);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec: ProstCodec<ExportTraceServiceRequest, ExportTraceServiceResponse> = ProstCodec::default();
        client.unary(Request::new(request), PathAndQuery::from_static(EXPORT), codec).await
    };
    let answer = tokio::time::timeout(limit, calling).await;
    let answer = answer.map_err(|_| Status::deadline_exceeded("no answer in time"))??;
    Ok(answer.into_inner().partial_success.map_or(0, |partial| partial.rejected_spans.max(0)))
}

#[cfg(test)]
mod tests {
    use trace::{Causes, Recorder, Stage, Work};

    use super::*;
    use crate::collector::Collector;

    fn work(recorder: &Arc<Recorder>) {
        Work::root(recorder, &Causes::default(), Stage::Request, "kube-apiserver", "pods/d/a").end();
    }

    fn config(endpoint: String) -> TracingConfiguration {
        TracingConfiguration { endpoint: Some(endpoint), sampling_rate_per_million: Some(1_000_000) }
    }

    async fn until(what: impl Fn() -> bool) {
        let waiting = async {
            while !what() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), waiting).await.unwrap();
    }

    #[tokio::test]
    async fn a_real_collector_gets_the_spans_and_the_rest_when_the_process_ends() {
        let collector = Collector::start().await;
        let recorder = Recorder::new(10_000);
        let exporting = recorder.export(1_000_000);
        let stop = CancellationToken::new();
        let task = tokio::spawn(run(exporting.clone(), config(collector.endpoint()), "me".into(), stop.clone()));
        work(&recorder);
        until(|| collector.spans().len() == 1).await;
        stop.cancel();
        work(&recorder);
        task.await.unwrap();
        assert_eq!(collector.spans().len(), 2);
        assert_eq!(exporting.counted(), (2, 0));
        assert_eq!(collector.spans()[0].0, "apiserver");
    }

    #[tokio::test]
    async fn security_a_collector_that_refuses_or_never_answers_costs_spans_only() {
        for collector in [Collector::refusing().await, Collector::silent().await] {
            let recorder = Recorder::new(10_000);
            let exporting = recorder.export(1_000_000);
            let stop = CancellationToken::new();
            let task = tokio::spawn(run(exporting.clone(), config(collector.endpoint()), "me".into(), stop.clone()));
            for _ in 0..10_000 {
                work(&recorder);
            }
            until(|| exporting.counted().1 > 0).await;
            stop.cancel();
            task.await.unwrap();
            assert_eq!(exporting.counted(), (0, 10_000));
        }
    }
}

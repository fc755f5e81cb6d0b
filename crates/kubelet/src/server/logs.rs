//! `GET /containerLogs/<namespace>/<pod>/<container>`: what `kubectl logs` reads.

use std::path::PathBuf;

use bytes::Bytes;
use client::Body;
use futures_util::{FutureExt, StreamExt};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::mpsc;

use super::{Server, flag, query, text};
use crate::logs::{self, Options};
use crate::runtime::ContainerPhase;
use crate::state;

/// Chunks in flight; a slow reader slows the reading of the file.
const CHUNKS: usize = 16;

pub(super) async fn serve(
    server: &Server,
    namespace: &str,
    name: &str,
    container: &str,
    params: &str,
) -> Response<Body> {
    let options = match options(params, server.kubelet.clock.now()) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::UNPROCESSABLE_ENTITY, message),
    };
    let Some(pod) = server.pod(namespace, name) else {
        return text(StatusCode::NOT_FOUND, format!("pod {name:?} does not exist\n"));
    };
    if !state::all_containers(&pod).iter().any(|known| known.name == container) {
        return text(StatusCode::NOT_FOUND, format!("container {container:?} not found in pod {name:?}\n"));
    }
    let state = match server.kubelet.runtime.pod_state(state::uid(&pod)).await {
        Ok(state) => state,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    };
    let mut records = state.containers.iter().filter(|record| record.name == container);
    let record = if flag(params, "previous") {
        match records.nth(1) {
            Some(record) => record,
            None => {
                let message = format!("previous terminated container {container:?} in pod {name:?} not found\n");
                return text(StatusCode::BAD_REQUEST, message);
            }
        }
    } else {
        match records.find(|record| record.phase != ContainerPhase::Created) {
            Some(record) => record,
            None => {
                let reason = waiting_reason(server, &pod, container);
                let message = format!("container {container:?} in pod {name:?} is waiting to start: {reason}\n");
                return text(StatusCode::BAD_REQUEST, message);
            }
        }
    };
    let path = PathBuf::from(&record.log_path);
    if !path.exists() {
        return text(
            StatusCode::INTERNAL_SERVER_ERROR,
            format!("failed to try resolving symlinks in path {:?}: no such file or directory", record.log_path),
        );
    }
    let (sender, receiver) = mpsc::channel::<Vec<u8>>(CHUNKS);
    let (runtime, id) = (server.kubelet.runtime.clone(), record.id.clone());
    // Ends when the reader goes away: the channel closes.
    tokio::spawn(FutureExt::boxed(async move {
        let is_running = || async {
            match runtime.container_status(&id).await {
                Ok(status) => status.state == cri::v1::ContainerState::ContainerRunning as i32,
                // A runtime that is away for a moment says nothing about the container.
                Err(error) => !error.is_not_found(),
            }
        };
        if let Err(error) = logs::stream(path.clone(), options, is_running, sender).await {
            tracing::debug!(path = %path.display(), %error, "log not read to its end");
        }
    }));
    let chunks = tokio_stream::wrappers::ReceiverStream::new(receiver)
        .map(|chunk| Ok::<_, client::BoxError>(Frame::data(Bytes::from(chunk))));
    let mut response = Response::new(StreamBody::new(chunks).boxed_unsync());
    response.headers_mut().insert("content-type", http::HeaderValue::from_static("text/plain"));
    response
}

fn waiting_reason(server: &Server, pod: &Pod, container: &str) -> String {
    let status = server.kubelet.status.latest(state::uid(pod)).or_else(|| pod.status.clone()).unwrap_or_default();
    let all = [status.container_statuses, status.init_container_statuses, status.ephemeral_container_statuses];
    let waiting = all
        .into_iter()
        .flatten()
        .flatten()
        .find(|status| status.name == container)
        .and_then(|status| status.state)
        .and_then(|state| state.waiting?.reason);
    match waiting {
        Some(reason) if reason == "ErrImagePull" || reason == "ImagePullBackOff" => {
            "trying and failing to pull image".to_string()
        }
        Some(reason) => reason,
        None => "ContainerCreating".into(),
    }
}

/// Reads and checks the query.
fn options(params: &str, now: Timestamp) -> Result<Options, String> {
    let number = |name: &str| -> Result<Option<i64>, String> {
        query(params, name)
            .next()
            .filter(|value| !value.is_empty())
            .map(|value| value.parse::<i64>().map_err(|_| format!("invalid {name}: {value:?}")))
            .transpose()
    };
    let tail = number("tailLines")?;
    let limit = number("limitBytes")?;
    if tail.is_some_and(|tail| tail < 0) {
        return Err("tailLines: must be greater than or equal to 0".into());
    }
    if limit.is_some_and(|limit| limit < 1) {
        return Err("limitBytes: must be greater than 0".into());
    }
    let mut since = None;
    if let Some(seconds) = number("sinceSeconds")? {
        if seconds < 1 {
            return Err("sinceSeconds: must be greater than 0".into());
        }
        since = Timestamp::from_second(now.as_second() - seconds).ok();
    }
    if let Some(time) = query(params, "sinceTime").next().filter(|value| !value.is_empty()) {
        since = Some(time.parse().map_err(|_| format!("invalid sinceTime: {time:?}"))?);
    }
    Ok(Options {
        follow: flag(params, "follow"),
        timestamps: flag(params, "timestamps"),
        tail: tail.map(|tail| tail as usize),
        limit_bytes: limit.map(|limit| limit as usize),
        since,
        stream: query(params, "stream").next().filter(|stream| !stream.is_empty() && stream != "All"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_become_options() {
        let now = Timestamp::from_second(1000).unwrap();
        let got =
            options("follow=true&tailLines=5&sinceSeconds=10&limitBytes=3&timestamps=true&stream=Stdout", now).unwrap();
        let expected = Options {
            follow: true,
            timestamps: true,
            tail: Some(5),
            limit_bytes: Some(3),
            since: Some(Timestamp::from_second(990).unwrap()),
            stream: Some("Stdout".into()),
        };
        assert_eq!(got, expected);
        for bad in ["tailLines=-1", "limitBytes=0", "sinceSeconds=0", "sinceTime=yesterday", "tailLines=x"] {
            assert!(options(bad, now).is_err(), "{bad}");
        }
    }
}

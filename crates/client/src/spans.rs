//! Where a component's spans go: into the ring of the API server in the same process, or to it in batches. And back: the
//! walk of an object, asked for or followed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, header};
use http_body_util::BodyExt;
use trace::{Recorder, Span, Walk};

use crate::transport::Traced;
use crate::{Body, Client};

/// Spans waiting to be sent. When they are more, the oldest are lost: an absent server costs memory only once.
const BUFFER_BYTES: usize = 512 << 10;
/// Spans are sent together, a little after the first.
const BATCH_INTERVAL: Duration = Duration::from_millis(100);
const BATCH: usize = 500;
/// After a failure.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Who records what follows.
impl Client {
    /// The same connection; what follows from its watches is recorded as `actor`'s, in `recorder`.
    pub fn traced(&self, recorder: Arc<Recorder>, actor: &str) -> Self {
        self.traced_by(Traced { recorder, actor: actor.into(), sender: None })
    }

    /// As `traced`, for a component that is not in the API server's process: spans are sent to the server.
    pub fn traced_remotely(&self, actor: &str) -> Self {
        let recorder = Recorder::new(BUFFER_BYTES);
        let sender = tokio::spawn(FutureExt::boxed(send(self.clone(), recorder.clone())));
        self.traced_by(Traced { recorder, actor: actor.into(), sender: Some(sender) })
    }
}

async fn send(client: Client, recorder: Arc<Recorder>) {
    let mut sent = 0;
    loop {
        recorder.more_than(sent).await;
        tokio::time::sleep(BATCH_INTERVAL).await;
        sent = recorder.count();
        for batch in recorder.drain().chunks(BATCH) {
            if let Err(error) = post(&client, batch, recorder.exporting().is_some()).await {
                tracing::debug!(%error, spans = batch.len(), "spans not sent");
                tokio::time::sleep(RETRY_INTERVAL).await;
            }
        }
    }
}

/// `exported` says that a collector has them already.
async fn post(client: &Client, spans: &[Span], exported: bool) -> Result<(), crate::Error> {
    let body = serde_json::to_vec(&serde_json::json!({ "spans": spans, "exported": exported }))
        .map_err(|error| crate::Error::Encode(error.to_string()))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(trace::PATH)
        .header(header::CONTENT_TYPE, "application/json")
        .body(Bytes::from(body))
        .map_err(|error| crate::Error::Encode(error.to_string()))?;
    crate::answer::read_out(client.send_checked(request).await?).await;
    Ok(())
}

/// Asking the server for the walk of an object.
impl Client {
    /// The walk of `object` (`deploy/web`) as far as the server remembers it.
    pub async fn walk(&self, object: &str, namespace: &str) -> Result<Walk, crate::Error> {
        let uri = walk_uri(object, namespace, "");
        let response = self.send_checked(get(&uri)?).await?;
        let body = crate::answer::read_one(response.into_body()).await.map_err(|source| crate::Error::Transport {
            method: Method::GET,
            uri: uri.clone(),
            source,
        })?;
        serde_json::from_slice(&body).map_err(|source| crate::Error::Decode { what: uri, source })
    }

    /// The walk of `object` as it goes on: first what there is, then what is new.
    pub async fn follow_walk(&self, object: &str, namespace: &str) -> Result<WalkStream, crate::Error> {
        let response = self.send_checked(get(&walk_uri(object, namespace, "&watch=true"))?).await?;
        Ok(WalkStream { body: response.into_body(), buffer: Vec::new() })
    }
}

fn walk_uri(object: &str, namespace: &str, rest: &str) -> String {
    let mut uri = format!("{}?object=", trace::PATH);
    crate::params::percent_encode(&mut uri, object);
    uri.push_str("&namespace=");
    crate::params::percent_encode(&mut uri, namespace);
    uri + rest
}

fn get(uri: &str) -> Result<Request<Bytes>, crate::Error> {
    Request::builder().uri(uri).body(Bytes::new()).map_err(|error| crate::Error::Encode(error.to_string()))
}

/// Pieces of a walk, each with spans that are new or have changed.
pub struct WalkStream {
    body: Body,
    buffer: Vec<u8>,
}

impl WalkStream {
    /// The next piece; `None` when the server ends.
    pub async fn next(&mut self) -> Option<Result<Walk, crate::Error>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                let what = || "a piece of a walk".to_owned();
                return Some(
                    serde_json::from_slice(&line).map_err(|source| crate::Error::Decode { what: what(), source }),
                );
            }
            match self.body.frame().await? {
                Ok(frame) => self.buffer.extend(frame.data_ref().into_iter().flatten()),
                Err(source) => {
                    let (method, uri) = (Method::GET, trace::PATH.to_owned());
                    return Some(Err(crate::Error::Transport { method, uri, source }));
                }
            }
        }
    }
}

//! How far the scheduler's watches have come. They are independent of each other: a pod that is made after a node may be
//! seen before it, and what the scheduler says of the pod then is about a cluster without the node.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use client::{Handler, Resource};
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, BodyStream, StreamBody};
use parking_lot::Mutex;
use serde_json::Value;

/// Long enough for a busy machine; a test that works never waits for it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// The resource versions that were seen, by the path of the watch.
#[derive(Clone, Default)]
pub(crate) struct Seen(Arc<Mutex<BTreeMap<String, u64>>>);

impl Seen {
    /// The server for somebody whose watches are noted. Whoever asks a watch for more has dealt with what it gave
    /// before.
    pub(crate) fn noting(&self, server: Handler) -> Handler {
        let seen = self.clone();
        Arc::new(move |request: http::Request<bytes::Bytes>| {
            let query = request.uri().query().unwrap_or_default();
            let from = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="));
            let mut given: u64 = from.and_then(|from| from.parse().ok()).unwrap_or_default();
            let path = query.contains("watch=true").then(|| request.uri().path().to_owned());
            let (answer, seen) = (server(request), seen.clone());
            Box::pin(async move {
                let answer = answer.await;
                let Some(path) = path else { return answer };
                answer.map(|body| {
                    let mut frames = BodyStream::new(body);
                    let noted = stream::poll_fn(move |context| {
                        seen.note(&path, given);
                        let frame = frames.poll_next_unpin(context);
                        if let Poll::Ready(Some(Ok(frame))) = &frame
                            && let Some(data) = frame.data_ref()
                        {
                            given = data.split(|byte| *byte == b'\n').filter_map(version).fold(given, u64::max);
                        }
                        frame
                    });
                    StreamBody::new(noted).boxed_unsync()
                })
            })
        })
    }

    fn note(&self, path: &str, version: u64) {
        let mut all = self.0.lock();
        let reached = all.entry(path.to_owned()).or_default();
        *reached = version.max(*reached);
    }

    /// Waits until this version of an object was seen. Who does not watch its kind yet lists it before anything else.
    pub(crate) async fn until<K: Resource>(&self, object: &K) {
        let path = match K::GROUP {
            "" => format!("/api/{}/{}", K::VERSION, K::URL_PATH_SEGMENT),
            group => format!("/apis/{group}/{}/{}", K::VERSION, K::URL_PATH_SEGMENT),
        };
        let version: u64 = object.metadata().resource_version.as_ref().unwrap().parse().unwrap();
        let deadline = Instant::now() + WAIT_TIMEOUT;
        while self.0.lock().get(&path).is_some_and(|reached| *reached < version) {
            assert!(Instant::now() < deadline, "version {version} of {path} is never seen");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

/// The resource version in an event of a watch.
fn version(event: &[u8]) -> Option<u64> {
    let event: Value = serde_json::from_slice(event).ok()?;
    event["object"]["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

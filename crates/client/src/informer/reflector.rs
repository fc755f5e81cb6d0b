//! The reflector: keeps an informer's cache equal to the server's collection.
//!
//! First choice is a watch-list (`sendInitialEvents`): one stream that begins with what exists. A server
//! that does not know it is listed and then watched. A watch that ends is resumed from the last version seen; only a
//! version that is too old (410) costs a new list.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{Informer, Object, object_key};
use crate::backoff::Backoff;
use crate::{Error, ListParams, WatchEvent, WatchStream};

/// A server that ignores `sendInitialEvents` never marks their end; after this silence it is asked for a list.
const WATCH_LIST_SILENCE: Duration = Duration::from_secs(3);
const PAGE: u32 = 500;
/// A watch that ends sooner than this is treated as a failure, so a server that hangs up at once is not hammered.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Where the reflector is between two requests.
struct Progress {
    /// The last version seen, while it can be resumed from.
    resume: Option<String>,
    watch_list: bool,
}

impl<K: Object> Informer<K> {
    /// Follows the server until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        let mut progress = Progress { resume: None, watch_list: true };
        let mut backoff = Backoff::new(Duration::from_millis(800), Duration::from_secs(30)).with_jitter(1.0);
        loop {
            let began = Instant::now();
            let ended = tokio::select! {
                () = stop.cancelled() => return,
                ended = self.follow(&mut progress) => ended,
            };
            match ended {
                Ok(()) if began.elapsed() >= SHORT_WATCH => {
                    backoff.reset();
                    continue;
                }
                Ok(()) => {}
                Err(error) if error.is_expired() => {
                    tracing::debug!(kind = K::kind(), %error, "watch expired: listing again");
                    progress.resume = None;
                }
                Err(error) => tracing::warn!(kind = K::kind(), %error, "watch failed: retrying"),
            }
            if began.elapsed() > Duration::from_secs(120) {
                backoff.reset();
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(backoff.next_delay()) => {}
            }
        }
    }

    /// One watch, preceded by a list if there is nothing to resume from.
    async fn follow(&self, progress: &mut Progress) -> Result<(), Error> {
        let mut stream = match &progress.resume {
            Some(version) => self.watch_from(version).await?,
            None if progress.watch_list => match self.watch_list(progress).await? {
                Some(stream) => stream,
                None => {
                    progress.watch_list = false;
                    self.list_then_watch(progress).await?
                }
            },
            None => self.list_then_watch(progress).await?,
        };
        while let Some(event) = stream.next().await {
            let version = match event? {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                    let version = object.meta().resource_version.clone();
                    self.apply(object);
                    version
                }
                WatchEvent::Deleted(object) => {
                    let version = object.meta().resource_version.clone();
                    self.remove(object);
                    version
                }
                WatchEvent::Bookmark { resource_version, .. } => Some(resource_version),
            };
            if version.is_some() {
                progress.resume = version;
            }
        }
        Ok(())
    }

    /// Streams the present objects and goes on watching; `None` if the server does not do that.
    async fn watch_list(&self, progress: &mut Progress) -> Result<Option<WatchStream<K>>, Error> {
        let params = ListParams {
            send_initial_events: true,
            resource_version_match: Some("NotOlderThan".into()),
            ..self.watch_params()
        };
        let mut stream = match self.inner.api.watch(&params, "").await {
            Ok(stream) => stream,
            Err(error) if matches!(error.code(), Some(400 | 405 | 406 | 422)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let mut objects = HashMap::new();
        loop {
            match tokio::time::timeout(WATCH_LIST_SILENCE, stream.next()).await {
                Err(_) | Ok(None) => return Ok(None),
                Ok(Some(event)) => match event? {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                        objects.insert(object_key(&object), object);
                    }
                    WatchEvent::Deleted(object) => {
                        objects.remove(&object_key(&object));
                    }
                    WatchEvent::Bookmark { resource_version, initial_events_end: true } => {
                        self.replace(objects.into_values().collect());
                        progress.resume = Some(resource_version);
                        return Ok(Some(stream));
                    }
                    WatchEvent::Bookmark { .. } => {}
                },
            }
        }
    }

    async fn list_then_watch(&self, progress: &mut Progress) -> Result<WatchStream<K>, Error> {
        let list = self.inner.api.list_all(&self.inner.params, PAGE).await?;
        let version = list.metadata.resource_version.unwrap_or_default();
        self.replace(list.items);
        let stream = self.watch_from(&version).await;
        progress.resume = Some(version);
        stream
    }

    async fn watch_from(&self, version: &str) -> Result<WatchStream<K>, Error> {
        self.inner.api.watch(&self.watch_params(), version).await
    }

    /// The server ends each watch after five to ten minutes, so that connections spread over servers.
    fn watch_params(&self) -> ListParams {
        let timeout = 300 + rand::random::<u32>() % 300;
        ListParams { allow_bookmarks: true, timeout_seconds: Some(timeout), ..self.inner.params.clone() }
    }
}

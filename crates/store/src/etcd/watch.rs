//! A watch on etcd that outlives its connection.
//!
//! `next` is the first revision not delivered yet; after a lost connection the watch asks for it again, so
//! there is no gap and no duplicate. etcd never splits a revision over two answers, so `next` is always whole.

use super::connection::{Connection, Failure, Opened};
use super::messages as pb;
use super::{Progress, end_of, key_value, number, revision};
use crate::{Result, Revision, StoreError, Watch, WatchEvent, range::KeyRange};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

const PATH: &str = "/etcdserverpb.Watch/Watch";
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

pub(super) async fn open(
    connection: Arc<Connection>,
    progress: Arc<Progress>,
    watch: Watch,
) -> Result<impl Stream<Item = Result<WatchEvent>>> {
    let next = watch.from.unwrap_or_default();
    let mut cursor = Cursor::new(connection, progress, watch, next);
    cursor.connect_patiently().await?;
    Ok(stream::unfold(Some(cursor), |cursor| async move {
        let mut cursor = cursor?;
        match cursor.next_event().await {
            Ok(event) => Some((Ok(event), Some(cursor))),
            Err(error) => Some((Err(error), None)),
        }
    }))
}

/// From when history is kept, if `asked` is no longer in it.
pub(super) async fn oldest_kept(connection: Arc<Connection>, asked: Revision) -> Option<Revision> {
    let progress = Arc::new(Progress::default());
    let watch = Watch::key("\0").from(asked);
    let mut cursor = Cursor::new(connection, progress, watch, asked);
    cursor.connect().await.ok()?;
    let (_, stream) = cursor.stream.as_mut()?;
    let answer = tokio::time::timeout(Duration::from_secs(2), stream.message()).await.ok()?;
    match cursor.take(answer) {
        Err(StoreError::Compacted { oldest, .. }) => Some(oldest),
        _ => None,
    }
}

struct Cursor {
    connection: Arc<Connection>,
    progress: Arc<Progress>,
    asked: watch::Receiver<u64>,
    watch: Watch,
    next: Revision,
    stream: Option<(mpsc::Sender<pb::WatchRequest>, Streaming<pb::WatchResponse>)>,
    /// Whose stream it is, or was.
    at: usize,
    /// Cancelled when that one is silent, or stays behind, while others do not.
    lost: CancellationToken,
    ready: VecDeque<WatchEvent>,
}

impl Cursor {
    fn new(connection: Arc<Connection>, progress: Arc<Progress>, watch: Watch, next: Revision) -> Cursor {
        let asked = progress.asked.subscribe();
        let lost = CancellationToken::new();
        Cursor { connection, progress, asked, watch, next, stream: None, at: 0, lost, ready: VecDeque::new() }
    }

    async fn next_event(&mut self) -> Result<WatchEvent> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Ok(event);
            }
            if self.stream.is_none() {
                self.reconnect().await?;
            }
            let Some((_, stream)) = &mut self.stream else { continue };
            let interval = self.watch.progress;
            let answer = tokio::select! {
                biased;
                answer = stream.message() => Some(answer),
                // What it would still have sent is asked for again elsewhere.
                () = self.lost.cancelled() => {
                    self.stream = None;
                    continue;
                }
                _ = self.asked.changed(), if interval.is_some() => None,
                () = tokio::time::sleep(interval.unwrap_or_default()), if interval.is_some() => None,
            };
            match answer {
                Some(answer) => self.take(answer)?,
                None => self.ask_for_progress(),
            }
        }
    }

    /// The first connection: the caller is waiting, so an outage is its business after a while.
    async fn connect_patiently(&mut self) -> Result<()> {
        let mut pause = FIRST_RETRY_DELAY;
        for _ in 0..6 {
            match self.connect().await {
                Ok(()) => return Ok(()),
                Err(Failure::Down(_)) => {}
                Err(refused) => return Err(refused.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
        Ok(self.connect().await?)
    }

    /// Later connections: a watch waits for as long as the cluster is away.
    async fn reconnect(&mut self) -> Result<()> {
        let mut pause = FIRST_RETRY_DELAY;
        loop {
            match self.connect().await {
                Ok(()) => return Ok(()),
                Err(Failure::Down(reason)) => tracing::debug!(%reason, next = %self.next, "watch waits for etcd"),
                Err(Failure::Refused(status, _)) if status.code() == tonic::Code::Unauthenticated => {
                    self.connection.forget_token();
                }
                Err(refused) => return Err(refused.into()),
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY_DELAY);
        }
    }

    async fn connect(&mut self) -> Result<(), Failure> {
        let (requests, receiver) = mpsc::channel(4);
        let (key, range_end) = match &self.watch.keys {
            KeyRange::Key(key) => (Bytes::copy_from_slice(key.as_bytes()), Bytes::new()),
            KeyRange::Prefix(prefix) => (super::start_of(prefix), end_of(prefix)),
        };
        let create = pb::WatchCreateRequest {
            key,
            range_end,
            start_revision: number(self.next),
            progress_notify: self.watch.progress.is_some(),
            prev_kv: self.watch.prev_kv,
        };
        // Cannot fail: the channel has room and its receiver is right here.
        let _ = requests.try_send(pb::WatchRequest { action: Some(pb::WatchAction::Create(create)) });
        let opened: Opened<pb::WatchResponse> = self.connection.stream(PATH, ReceiverStream::new(receiver)).await?;
        let Opened { mut stream, at, lost } = opened;
        (self.at, self.lost) = (at, lost);
        let created = tokio::time::timeout(Duration::from_secs(5), stream.message());
        let created = tokio::select! {
            biased;
            created = created => created,
            () = self.lost.cancelled() => Ok(Ok(None)),
        };
        let response = match created {
            Ok(Ok(Some(response))) => response,
            Ok(Ok(None)) | Err(_) => {
                self.connection.try_next_endpoint(at);
                return Err(Failure::Down(format!("etcd at {} does not accept watches", self.connection.names())));
            }
            Ok(Err(status)) => return Err(self.connection.judge_stream(at, status)),
        };
        if response.canceled {
            let status = tonic::Status::permission_denied(response.cancel_reason);
            return Err(Failure::Refused(status, self.connection.names()));
        }
        if self.next == Revision::ZERO {
            self.next = revision(response.header.as_ref()).next();
        }
        self.stream = Some((requests, stream));
        Ok(())
    }

    /// Takes one answer. A lost connection leaves `stream` empty and is no error.
    fn take(&mut self, answer: Result<Option<pb::WatchResponse>, tonic::Status>) -> Result<()> {
        let response = match answer {
            Ok(Some(response)) => response,
            Ok(None) => {
                self.stream = None;
                self.connection.try_next_endpoint(self.at);
                return Ok(());
            }
            Err(status) => {
                self.stream = None;
                return match self.connection.judge_stream(self.at, status) {
                    Failure::Down(_) => Ok(()),
                    Failure::Refused(status, _) if status.code() == tonic::Code::Unauthenticated => Ok(()),
                    refused => Err(refused.into()),
                };
            }
        };
        if response.compact_revision > 0 {
            let oldest = Revision(response.compact_revision as u64);
            return Err(StoreError::Compacted { asked: self.next, oldest });
        }
        if response.canceled {
            // etcd ends watches of a member that lost its leader; another member may do better.
            tracing::debug!(reason = %response.cancel_reason, "etcd ended the watch");
            self.stream = None;
            self.connection.try_next_endpoint(self.at);
            return Ok(());
        }
        if response.events.is_empty() && !response.created {
            let reached = revision(response.header.as_ref());
            if reached >= self.next {
                self.next = reached.next();
            }
            if self.watch.progress.is_some() {
                self.ready.push_back(WatchEvent::Progress(reached));
            }
        }
        for event in response.events {
            let Some(kv) = event.kv else { continue };
            let at = Revision(kv.mod_revision as u64);
            let prev = event.prev_kv.map(key_value).transpose()?;
            self.ready.push_back(match event.kind {
                0 => WatchEvent::Put { kv: key_value(kv)?, prev },
                _ => WatchEvent::Delete { key: key_value(kv)?.key, revision: at, prev },
            });
            self.next = at.next();
        }
        Ok(())
    }

    /// Never waits: a member that stands still takes no requests, and it must be noticed when that one is lost.
    fn ask_for_progress(&mut self) {
        if !self.progress.is_reliable() {
            return;
        }
        if let Some((requests, _)) = &self.stream {
            let action = Some(pb::WatchAction::Progress(pb::Empty {}));
            // Where there is no room, requests before this one are still to be sent, and their answers do as well.
            if let Err(mpsc::error::TrySendError::Closed(_)) = requests.try_send(pb::WatchRequest { action }) {
                self.stream = None;
            }
        }
    }
}

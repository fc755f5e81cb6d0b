//! Where events go: the log file and the collector behind a webhook, at once or in batches.
//!
//! A batch is sent when it is full or its first event has waited long enough, beside others that the collector has not
//! answered yet, as often as the throttle allows. Once too many are on their way, events wait in the buffer; what does not fit
//! there is dropped and counted. So a slow collector never slows requests, and takes no more memory than that.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc};
use tokio_util::sync::CancellationToken;

use super::log::Log;
use super::truncate::batches;
use crate::config::{Batching, Mode, Throttle, Truncation};
use crate::remote::{Remote, RemoteError};

/// How long the collector may take for a batch, retries included.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Batches on their way to the collector at the same time.
const MAX_IN_FLIGHT: usize = 16;

/// Events that found no room or were not taken, by the name of the plug-in upstream.
static LOST: [(&str, AtomicU64); 2] = [("log", AtomicU64::new(0)), ("webhook", AtomicU64::new(0))];

pub(super) fn lost() -> [(&'static str, u64); 2] {
    LOST.each_ref().map(|(plugin, count)| (*plugin, count.load(Ordering::Relaxed)))
}

/// Why an event is lost.
#[derive(Debug, thiserror::Error)]
pub(super) enum Lost {
    #[error(transparent)]
    Log(#[from] std::io::Error),
    #[error(transparent)]
    Encoding(#[from] serde_json::Error),
    #[error(transparent)]
    Collector(#[from] RemoteError),
    #[error("the audit buffer is full")]
    Full,
    #[error("event is too large even after truncating")]
    TooLarge,
}

pub(super) enum Backend {
    Log(Log),
    Webhook(Remote),
}

pub(super) struct Sink {
    backend: Arc<Backend>,
    mode: Mode,
    truncation: Option<Truncation>,
    queue: Option<mpsc::Sender<Bytes>>,
}

impl Backend {
    fn lose(&self, events: usize) {
        let (_, count) = match self {
            Backend::Log(_) => &LOST[0],
            Backend::Webhook(_) => &LOST[1],
        };
        count.fetch_add(events as u64, Ordering::Relaxed);
    }

    async fn write(&self, events: &[Bytes]) -> Result<(), Lost> {
        match self {
            Backend::Log(log) => Ok(log.write(events)?),
            Backend::Webhook(remote) => {
                let raw = |event: &Bytes| serde_json::from_slice::<Box<RawValue>>(event).ok();
                let items: Vec<Box<RawValue>> = events.iter().filter_map(raw).collect();
                let list = List { kind: "EventList", api_version: "audit.k8s.io/v1", metadata: Empty {}, items };
                let body = serde_json::to_vec(&list)?;
                Ok(remote.post(body.into(), SEND_TIMEOUT).await?)
            }
        }
    }
}

#[derive(serde::Serialize)]
#[serde(rename_all = "camelCase")]
struct List {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    items: Vec<Box<RawValue>>,
}

#[derive(serde::Serialize)]
struct Empty {}

impl Sink {
    /// A sink, and the task that sends its batches until `stop` fires and everything has been sent.
    pub(super) fn new(
        backend: Backend,
        mode: Mode,
        truncation: Option<Truncation>,
        tasks: &mut tokio::task::JoinSet<()>,
        stop: &CancellationToken,
    ) -> Self {
        let backend = Arc::new(backend);
        let queue = match mode {
            Mode::Batch(batching) => {
                let (sender, receiver) = mpsc::channel(batching.buffer.clamp(1, Semaphore::MAX_PERMITS));
                let (backend, receiver, stop) = (backend.clone(), tokio::sync::Mutex::new(receiver), stop.clone());
                tasks.spawn(FutureExt::boxed(async move {
                    let work = || send_batches(&backend, &receiver, batching, truncation, &stop);
                    let _ended = ::metrics::outlive_panics("audit", "", &stop, work).await;
                }));
                Some(sender)
            }
            Mode::Blocking | Mode::BlockingStrict => None,
        };
        Self { backend, mode, truncation, queue }
    }

    pub(super) fn is_strict(&self) -> bool {
        self.mode == Mode::BlockingStrict
    }

    pub(super) async fn accept(&self, event: Bytes) -> Result<(), Lost> {
        match (self.fit(event), &self.queue) {
            (Err(lost), _) => Err(lost),
            (Ok(event), Some(queue)) => queue.try_send(event).map_err(|_| Lost::Full),
            (Ok(event), None) => self.backend.write(&[event]).await,
        }
        .inspect_err(|error| {
            self.backend.lose(1);
            tracing::error!(%error, "audit event lost");
        })
    }

    fn fit(&self, event: Bytes) -> Result<Bytes, Lost> {
        let Some(truncation) = self.truncation else { return Ok(event) };
        truncation.fit(event).ok_or(Lost::TooLarge)
    }

    /// As [`Sink::accept`] where nothing can wait: a request that was dropped half-way still leaves its trace.
    pub(super) fn accept_now(&self, event: Bytes) {
        match (&self.queue, &*self.backend) {
            (None, Backend::Webhook(_)) => {
                let (backend, event) = (self.backend.clone(), self.fit(event));
                if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                    runtime.spawn(FutureExt::boxed(async move {
                        let written = match event {
                            Ok(event) => backend.write(&[event]).await,
                            Err(lost) => Err(lost),
                        };
                        if let Err(error) = written {
                            backend.lose(1);
                            tracing::error!(%error, "audit event lost");
                        }
                    }));
                }
            }
            _ => {
                // Neither a queue nor a file makes this wait; errors have been reported.
                drop(self.accept(event).now_or_never());
            }
        }
    }
}

async fn send_batches(
    backend: &Arc<Backend>,
    queue: &tokio::sync::Mutex<mpsc::Receiver<Bytes>>,
    batching: Batching,
    truncation: Option<Truncation>,
    stop: &CancellationToken,
) {
    // Whoever had it before has panicked.
    let mut queue = queue.lock().await;
    let max_bytes = truncation.map_or(usize::MAX, |truncation| truncation.max_batch);
    let mut throttle = batching.throttle.map(|throttle| Turns { throttle, due: Instant::now() });
    let mut in_flight = tokio::task::JoinSet::new();
    let mut batch = Vec::new();
    loop {
        let is_over = tokio::select! {
            event = queue.recv() => match event {
                Some(event) => {
                    batch.push(event);
                    fill(&mut batch, &mut queue, batching, stop).await;
                    false
                }
                None => true,
            },
            () = stop.cancelled() => true,
        };
        if is_over {
            while let Ok(event) = queue.try_recv() {
                batch.push(event);
            }
        }
        for events in batches(&batch, batching.max_size, max_bytes) {
            if let Some(throttle) = &mut throttle {
                tokio::time::sleep(throttle.wait(Instant::now())).await;
            }
            match &**backend {
                // Lines stay in their order.
                Backend::Log(_) => send(backend, events).await,
                Backend::Webhook(_) => {
                    while in_flight.len() >= MAX_IN_FLIGHT {
                        in_flight.join_next().await;
                    }
                    let (backend, events) = (backend.clone(), events.to_vec());
                    in_flight.spawn(FutureExt::boxed(async move { send(&backend, &events).await }));
                }
            }
        }
        batch.clear();
        while in_flight.try_join_next().is_some() {}
        if is_over {
            while in_flight.join_next().await.is_some() {}
            return;
        }
    }
}

async fn send(backend: &Backend, events: &[Bytes]) {
    let (written, count) = (::metrics::panics::catch_future("audit", backend.write(events)).await, events.len());
    match written {
        Some(Ok(())) => return,
        Some(Err(error)) => tracing::error!(%error, count, "audit events lost"),
        None => tracing::error!(count, "audit events lost: writing them panicked"),
    }
    backend.lose(count);
}

/// Whose turn it is under a throttle.
struct Turns {
    throttle: Throttle,
    /// When the next batch would be due if there were no bursts.
    due: Instant,
}

impl Turns {
    /// Takes the next turn; returns how long it is until then.
    fn wait(&mut self, now: Instant) -> Duration {
        let Throttle { interval, burst } = self.throttle;
        self.due = self.due.max(now) + interval;
        self.due.saturating_duration_since(now).saturating_sub(interval * burst)
    }
}

/// Waits for more, until the batch is full or has waited long enough.
async fn fill(batch: &mut Vec<Bytes>, queue: &mut mpsc::Receiver<Bytes>, batching: Batching, stop: &CancellationToken) {
    let full = async {
        while batch.len() < batching.max_size {
            match queue.recv().await {
                Some(event) => batch.push(event),
                None => return,
            }
        }
    };
    tokio::select! {
        () = full => {}
        () = tokio::time::sleep(batching.max_wait) => {}
        () = stop.cancelled() => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::LogConfig;

    #[tokio::test(start_paused = true)]
    async fn security_a_panic_leaves_the_audit_going() {
        let dir = tempfile::tempdir().unwrap();
        let (path, max_age) = (dir.path().join("audit.log"), Duration::ZERO);
        let log = Log::open(LogConfig { path, max_age, max_backups: 0, max_bytes: 0 }).unwrap();
        // There is no point in time that is so far away: each batch panics.
        let throttle = Some(Throttle { interval: Duration::MAX, burst: 1 });
        let batching = Batching { max_wait: Duration::ZERO, throttle, ..Batching::default() };
        let (mut tasks, stop) = (tokio::task::JoinSet::new(), CancellationToken::new());
        let sink = Sink::new(Backend::Log(log), Mode::Batch(batching), None, &mut tasks, &stop);
        let panics = || ::metrics::panics::counts().into_iter().find(|(worker, _)| *worker == "audit");
        for round in 1..=3 {
            assert!(sink.accept(Bytes::from_static(b"{}")).await.is_ok(), "{round}");
            let panicked = async {
                while panics().is_none_or(|(_, count)| count < round) {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            };
            assert!(tokio::time::timeout(Duration::from_secs(600), panicked).await.is_ok(), "{round}");
        }
    }

    #[test]
    fn a_throttle_lets_a_burst_pass_and_then_the_rate() {
        let began = Instant::now();
        let throttle = Throttle { interval: Duration::from_millis(100), burst: 3 };
        let mut turns = Turns { throttle, due: began };
        let mut waits = |after: u64| turns.wait(began + Duration::from_millis(after)).as_millis();
        assert_eq!([0, 0, 0, 0, 0].map(&mut waits), [0, 0, 0, 100, 200]);
        // Those who have waited took their turns; a quiet time makes room for the next burst.
        assert_eq!([200, 1000, 1000, 1000, 1000].map(&mut waits), [100, 0, 0, 0, 100]);
    }
}

//! Where spans go.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Span;
use crate::export::Exporting;
use crate::laps::Laps;
use crate::record::Record;
use crate::ring::Ring;

/// The last spans of one cluster, or those of a process that sends them on. Shared by everyone in the process.
pub struct Recorder {
    ring: Mutex<Ring>,
    changed: Notify,
    /// How many wait for a change. Mostly nobody does, and then nobody is told.
    waiting: AtomicUsize,
    exporting: OnceLock<Arc<Exporting>>,
}

impl Recorder {
    /// What the API server keeps: a good ten thousand spans.
    pub const DEFAULT_BYTES: usize = 4 << 20;

    /// Keeps what fits into `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self {
            ring: Mutex::new(Ring::new(bytes)),
            changed: Notify::new(),
            waiting: AtomicUsize::new(0),
            exporting: OnceLock::new(),
        })
    }

    /// From now on spans are exported as well: of a million traces that begin here, `rate`.
    pub fn export(&self, rate: u32) -> Arc<Exporting> {
        self.exporting.get_or_init(|| Arc::new(Exporting::new(rate))).clone()
    }

    /// What is exported, if anything is.
    pub fn exporting(&self) -> Option<&Arc<Exporting>> {
        self.exporting.get()
    }

    pub fn record(&self, span: &Span) {
        let (record, laps) = Record::of(span);
        self.keep(&record, Some(&laps));
    }

    /// Takes a span of another process, which exports its own.
    pub fn record_exported(&self, span: &Span) {
        let (record, laps) = Record::of(span);
        self.push(&record, Some(&laps));
    }

    pub(crate) fn keep(&self, record: &Record, laps: Option<&Laps>) {
        self.offer(record, laps);
        self.push(record, laps);
    }

    /// For those who export alone.
    pub(crate) fn offer(&self, record: &Record, laps: Option<&Laps>) {
        if let Some(exporting) = self.exporting.get() {
            exporting.offer(record, laps.map_or(&[], Laps::bytes));
        }
    }

    fn push(&self, record: &Record, laps: Option<&Laps>) {
        self.ring.lock().push(record.bytes(), laps.map_or(&[], Laps::bytes));
        // Whoever counts later than this begins to look after the lock was released: it sees the span.
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.changed.notify_waiters();
        }
    }

    /// All spans that are still here.
    pub fn spans(&self) -> Vec<Span> {
        self.ring.lock().since(0).0
    }

    /// Takes all spans out, to send them elsewhere.
    pub fn drain(&self) -> Vec<Span> {
        self.ring.lock().drain()
    }

    /// How many spans were recorded so far.
    pub fn count(&self) -> u64 {
        self.ring.lock().next()
    }

    /// Bytes in use.
    pub fn size(&self) -> usize {
        self.ring.lock().size()
    }

    /// Waits until more than `count` spans were recorded.
    pub async fn more_than(&self, count: u64) {
        let _waiting = Waiting::new(&self.waiting);
        loop {
            let changed = self.changed.notified();
            if self.count() > count {
                return;
            }
            changed.await;
        }
    }
}

/// Somebody waits, for as long as this lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

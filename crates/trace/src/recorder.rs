//! Where spans go.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Span;
use crate::laps::Laps;
use crate::record::Record;
use crate::ring::Ring;

/// The last spans of one cluster, or those of a process that sends them on. Shared by everyone in the process.
pub struct Recorder {
    ring: Mutex<Ring>,
    changed: Notify,
    /// How many wait for a change. Mostly nobody does, and then nobody is told.
    waiting: AtomicUsize,
}

impl Recorder {
    /// What the API server keeps: a good ten thousand spans.
    pub const DEFAULT_BYTES: usize = 4 << 20;

    /// Keeps what fits into `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { ring: Mutex::new(Ring::new(bytes)), changed: Notify::new(), waiting: AtomicUsize::new(0) })
    }

    pub fn record(&self, span: &Span) {
        let (record, laps) = Record::of(span);
        self.keep(&record, Some(&laps));
    }

    pub(crate) fn keep(&self, record: &Record, laps: Option<&Laps>) {
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

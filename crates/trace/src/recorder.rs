//! Where spans go.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::Span;
use crate::ring::Ring;

/// The last spans of one cluster, or those of a process that sends them on. Shared by everyone in the process.
pub struct Recorder {
    ring: Mutex<Ring>,
    changed: Notify,
}

impl Recorder {
    /// What the API server keeps: a good ten thousand spans.
    pub const DEFAULT_BYTES: usize = 4 << 20;

    /// Keeps what fits into `bytes`.
    pub fn new(bytes: usize) -> Arc<Self> {
        Arc::new(Self { ring: Mutex::new(Ring::new(bytes)), changed: Notify::new() })
    }

    pub fn record(&self, span: &Span) {
        self.ring.lock().push(span);
        self.changed.notify_waiters();
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
        loop {
            let changed = self.changed.notified();
            if self.count() > count {
                return;
            }
            changed.await;
        }
    }
}

//! Leases for events, which go away by themselves.

use std::time::{Duration, Instant};

use store::{LeaseId, Store, StoreError};

/// Leases for events: many events share one, as in upstream's lease manager.
pub(crate) struct EventLeases {
    ttl: Duration,
    current: tokio::sync::Mutex<Option<(LeaseId, Instant, u32)>>,
}

/// A lease is given to new events for this long, and to this many.
const REUSE_WINDOW: Duration = Duration::from_secs(60);
const REUSE_COUNT: u32 = 1000;

impl EventLeases {
    pub(crate) fn new(ttl: Duration) -> Self {
        Self { ttl, current: tokio::sync::Mutex::new(None) }
    }

    pub(crate) async fn current(&self, store: &dyn Store) -> Result<LeaseId, StoreError> {
        let mut current = self.current.lock().await;
        if let Some((lease, since, used)) = current.as_mut()
            && since.elapsed() < REUSE_WINDOW
            && *used < REUSE_COUNT
        {
            *used += 1;
            return Ok(*lease);
        }
        // The last event on a lease must live as long as the first would alone.
        let lease = store.grant_lease(self.ttl + REUSE_WINDOW).await?;
        *current = Some((lease, Instant::now(), 1));
        Ok(lease)
    }
}

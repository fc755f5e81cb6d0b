//! The turns of a task that keeps something in step with what informers see: another one when that changes, and after a
//! failure when it is time to try again.

use std::time::Duration;

use anyhow::Result;
use client::backoff::Backoff;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(30));

pub(crate) struct Turns {
    changes: watch::Receiver<()>,
    retries: Backoff,
    stop: CancellationToken,
}

impl Turns {
    pub(crate) fn new(changes: watch::Receiver<()>, stop: CancellationToken) -> Self {
        Self { changes, retries: retries(), stop }
    }

    /// A turn sees everything up to its beginning.
    pub(crate) fn begin(&mut self) {
        self.changes.mark_unchanged();
    }

    /// As [`Turns::next`], with a turn after so long in any case: for what is also changed by others.
    pub(crate) async fn next_within(&mut self, interval: Duration, failed: bool) -> Result<bool> {
        tokio::time::timeout(interval, self.next(failed)).await.unwrap_or(Ok(true))
    }

    /// Waits for the next turn, after one that failed or not: false if there is none, because all is to end.
    pub(crate) async fn next(&mut self, failed: bool) -> Result<bool> {
        if !failed {
            self.retries.reset();
        }
        let retries = &mut self.retries;
        let retry = async {
            match failed {
                true => tokio::time::sleep(retries.next_delay()).await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            change = self.changes.changed() => change?,
            () = retry => {}
            () = self.stop.cancelled() => return Ok(false),
        }
        Ok(true)
    }
}

/// How long to wait after failures of what must not be given up.
pub(crate) fn retries() -> Backoff {
    Backoff::new(RETRY.0, RETRY.1)
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_turn_follows_a_change_or_a_failure() {
        let (changed, changes) = watch::channel(());
        let stop = CancellationToken::new();
        let mut turns = Turns::new(changes, stop.clone());
        turns.begin();
        let began = Instant::now();
        assert!(turns.next(true).await.unwrap());
        assert!(turns.next(true).await.unwrap());
        assert_eq!(began.elapsed(), 3 * RETRY.0);
        // A change does not wait.
        changed.send_replace(());
        assert!(turns.next(true).await.unwrap());
        assert_eq!(began.elapsed(), 3 * RETRY.0);
        // What went well is not done again by itself.
        turns.begin();
        assert!(tokio::time::timeout(2 * RETRY.1, turns.next(false)).await.is_err());
        let began = Instant::now();
        assert!(turns.next(true).await.unwrap());
        assert_eq!(began.elapsed(), RETRY.0, "success forgets failures");
        let began = Instant::now();
        turns.begin();
        assert!(turns.next_within(RETRY.1, false).await.unwrap());
        assert_eq!(began.elapsed(), RETRY.1, "unless it is to be looked at");
        stop.cancel();
        assert!(!turns.next(false).await.unwrap());
        assert!(!turns.next_within(RETRY.1, false).await.unwrap());
    }
}

//! How many volumes of a driver the node may have. That can change while the driver runs: a driver whose object says so is asked
//! again and again, and also when its attacher has had no room for a volume for long (`MutableCSINodeAllocatableCount`, v1.36).

use std::time::Duration;

use client::Event;
use client::backoff::Backoff;
use csi::tonic::Status;
use csi::v1;
use futures_util::FutureExt;
use k8s_openapi::api::storage::v1::CSIDriver;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Csi, NoDriver, NodeInfoError, Wanted};

/// Between two tries to tell a new Node of a driver.
const MIN_RETRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(30);

/// Why it is not known how many volumes the node may have.
#[derive(Debug, thiserror::Error)]
enum LimitError {
    #[error(transparent)]
    NoDriver(#[from] NoDriver),
    #[error("{}", csi::describe(.0))]
    Driver(#[from] Status),
    #[error(transparent)]
    Node(#[from] NodeInfoError),
}

/// How often a driver is asked, if it is.
fn period(driver: &CSIDriver) -> Option<Duration> {
    let seconds = driver.spec.node_allocatable_update_period_seconds?;
    u64::try_from(seconds).ok().filter(|seconds| *seconds > 0).map(Duration::from_secs)
}

/// Whether a driver is asked more or less often from now on.
pub(super) fn changes_period(event: &Event<CSIDriver>) -> bool {
    match event {
        Event::Modified { old, new } => period(old) != period(new),
        Event::Added(driver) | Event::Deleted(driver) => period(driver).is_some(),
    }
}

impl Csi {
    /// Asks a driver as often as its object says, and tells each new Node of it. Never ends.
    pub(crate) async fn follow(&self, name: &str, mut nodes: watch::Receiver<String>) {
        let mut changes = self.periods.subscribe();
        let mut retry = Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        // When a Node that was not told is told again.
        let mut untold: Option<Instant> = None;
        loop {
            let period = self.period(name);
            tokio::select! {
                // The senders live as long as this.
                _ = changes.changed() => continue,
                _ = nodes.changed() => {}
                () = tokio::time::sleep_until(untold.unwrap_or_else(Instant::now)), if untold.is_some() => {}
                () = tokio::time::sleep(period.unwrap_or_default()), if period.is_some() => {
                    self.update_limit(name).await;
                    continue;
                }
            }
            untold = match self.install_again(name).await {
                Ok(()) => {
                    retry.reset();
                    None
                }
                Err(error) => {
                    tracing::warn!(driver = name, %error, "the new Node is not told of a CSI driver, will retry");
                    Some(Instant::now() + retry.next_delay())
                }
            };
        }
    }

    async fn install_again(&self, name: &str) -> Result<(), LimitError> {
        let driver = self.drivers.get(name)?;
        let info = driver.clients.node.node_get_info(v1::NodeGetInfoRequest {}).await?;
        Ok(self.install(name, &info).await?)
    }

    fn period(&self, name: &str) -> Option<Duration> {
        self.objects.get(name).and_then(|driver| period(&driver))
    }

    async fn update_limit(&self, name: &str) {
        // Boxed: pods wait for it, deep down already.
        if let Err(error) = self.ask_for_limit(name).boxed().await {
            tracing::warn!(driver = name, %error, "it is not known how many volumes the node may have");
        }
    }

    async fn ask_for_limit(&self, name: &str) -> Result<(), LimitError> {
        let driver = self.drivers.get(name)?;
        let info = driver.clients.node.node_get_info(v1::NodeGetInfoRequest {}).await?;
        Ok(self.node_info.set_limit(name, &info).await?)
    }

    /// The attacher has no room for a volume. Says whether that has been so for as long as a pod waits: then the pod is for
    /// another node, and the scheduler must hear how much room there is.
    pub(super) async fn is_without_room(&self, wanted: &Wanted, uid: &str) -> bool {
        if self.period(&wanted.driver).is_none() {
            return false;
        }
        let key = (uid.to_owned(), wanted.spec_name.clone());
        let since = *self.without_room.lock().entry(key).or_insert_with(Instant::now);
        let is_over = since.elapsed() >= self.call_timeout;
        if is_over {
            self.update_limit(&wanted.driver).await;
        }
        is_over
    }

    /// There is room after all, or the pod has gone.
    pub(super) fn forget_room(&self, uid: &str, volume: Option<&str>) {
        let is_it = |(owner, name): &(String, String)| owner == uid && volume.is_none_or(|volume| volume == name);
        self.without_room.lock().retain(|key, _| !is_it(key));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;

    #[test]
    fn a_driver_is_asked_as_often_as_it_says() {
        let driver = |seconds: Option<i64>| -> Arc<CSIDriver> {
            let spec = json!({"nodeAllocatableUpdatePeriodSeconds": seconds});
            Arc::new(serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap())
        };
        for (seconds, expected) in [(None, None), (Some(10), Some(10)), (Some(0), None), (Some(-1), None)] {
            assert_eq!(period(&driver(seconds)), expected.map(Duration::from_secs), "{seconds:?}");
        }
        assert!(!changes_period(&Event::Added(driver(None))));
        assert!(changes_period(&Event::Added(driver(Some(10)))));
        for (old, new, expected) in [(10, 10, false), (10, 20, true)] {
            let event = Event::Modified { old: driver(Some(old)), new: driver(Some(new)) };
            assert_eq!(changes_period(&event), expected);
        }
    }
}

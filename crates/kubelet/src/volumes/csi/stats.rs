//! How full volumes are and how they fare, as their drivers say: asked now and then, and kept. Whoever wants to know never
//! waits for a driver.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::attachable::csi_name;
use api::sort::CompactSort as _;
use csi::v1::{self, NodeRpc, Unit};
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Pod;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior};

use super::{Csi, Published};
use crate::backoff::Backoff;
use crate::state;

/// How long a driver has to measure a volume: nothing else is done to that meanwhile.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Until a driver that does not say is asked again.
const MIN_RETRY_INTERVAL: Duration = Duration::from_secs(10);
const MAX_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// One volume of a pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    /// Its name in the pod.
    pub(crate) volume: String,
    pub(crate) claim: Option<(String, String)>,
    pub(crate) capacity: Option<u64>,
    pub(crate) available: Option<u64>,
    pub(crate) used: Option<u64>,
    pub(crate) inodes: Option<u64>,
    pub(crate) inodes_free: Option<u64>,
    pub(crate) inodes_used: Option<u64>,
    /// Whether something is wrong with it; none if the driver does not look.
    pub(crate) is_abnormal: Option<bool>,
}

pub(super) struct Cache {
    /// By uid and spec name.
    latest: Mutex<HashMap<(String, String), Stats>>,
    soon: Notify,
    /// When a driver that did not say is asked again, by unique name of the volume.
    backoff: Backoff,
}

impl Cache {
    pub(super) fn new() -> Self {
        let backoff = Backoff::new(MIN_RETRY_INTERVAL, MAX_RETRY_INTERVAL);
        Cache { latest: Mutex::default(), soon: Notify::new(), backoff }
    }

    pub(super) fn look_soon(&self) {
        self.soon.notify_one();
    }

    pub(super) fn forget(&self, uid: &str, spec_name: &str) {
        self.latest.lock().remove(&(uid.to_string(), spec_name.to_string()));
    }
}

impl Csi {
    /// A driver is there anew: what the one before did not say, this one may.
    pub(crate) fn measure_soon(&self, driver: &str) {
        self.stats.backoff.forget_prefix(&csi_name(driver, ""));
        self.stats.look_soon();
    }

    /// What is known of the pod's volumes.
    pub(crate) fn stats_of(&self, uid: &str) -> Vec<Stats> {
        let latest = self.stats.latest.lock();
        let mut own: Vec<Stats> =
            latest.iter().filter(|((owner, _), _)| owner == uid).map(|(_, stats)| stats.clone()).collect();
        own.compact_sort_by(|a, b| a.volume.cmp(&b.volume));
        own
    }

    /// What is known of all claims.
    pub(crate) fn claim_stats(&self) -> Vec<Stats> {
        let latest = self.stats.latest.lock();
        let mut all: Vec<Stats> = latest.values().filter(|stats| stats.claim.is_some()).cloned().collect();
        all.compact_sort_by(|a, b| a.claim.cmp(&b.claim));
        // Two pods may share a claim.
        all.dedup_by(|a, b| a.claim == b.claim);
        all
    }

    /// Asks until the kubelet stops.
    pub(crate) async fn watch_stats(self: Arc<Self>, period: Duration) {
        let mut next = tokio::time::interval_at(Instant::now() + period, period);
        next.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_for_new = tokio::select! {
                () = self.stop.cancelled() => return,
                _ = next.tick() => false,
                () = self.stats.soon.notified() => true,
            };
            let mut all: Vec<((String, String), Published)> =
                self.done.lock().published.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            all.retain(|(key, _)| !is_for_new || !self.stats.latest.lock().contains_key(key));
            for (key, published) in all {
                let Ok(driver) = self.drivers.get(&published.wanted.driver) else { continue };
                if !driver.abilities.has(NodeRpc::GetVolumeStats) {
                    continue;
                }
                // Whoever has it is about to change it. One that does not answer is not waited for by the others.
                let volume = csi_name(&published.wanted.driver, &published.wanted.handle);
                if self.stats.backoff.remaining_since_update(&volume).is_some() {
                    continue;
                }
                let Some(held) = self.try_lock(&volume) else { continue };
                let clients = driver.clients.clone().timeout(CALL_TIMEOUT.min(self.call_timeout));
                let (this, stop) = (self.clone(), self.stop.clone());
                self.tasks.spawn(FutureExt::boxed(async move {
                    let _held = held;
                    let request = v1::NodeGetVolumeStatsRequest {
                        volume_id: published.wanted.handle.clone(),
                        volume_path: driver.path(&published.target),
                        staging_target_path: published
                            .staging
                            .as_ref()
                            .map(|path| driver.path(path))
                            .unwrap_or_default(),
                    };
                    let answer = tokio::select! {
                        () = stop.cancelled() => return,
                        answer = clients.node.node_get_volume_stats(request) => answer,
                    };
                    match answer {
                        Ok(answer) => {
                            this.stats.backoff.forget(&volume);
                            this.keep(key, &published, &answer);
                        }
                        Err(status) => {
                            this.stats.backoff.next(&volume);
                            tracing::debug!(volume, error = csi::describe(&status), "volume not measured");
                        }
                    }
                }));
            }
        }
    }

    fn keep(&self, key: (String, String), published: &Published, answer: &v1::NodeGetVolumeStatsResponse) {
        let wanted = &published.wanted;
        let stats = read(answer, &wanted.volume, wanted.claim.clone());
        let condition = answer.volume_condition.as_ref().filter(|condition| condition.abnormal);
        // It may have gone meanwhile.
        if !self.done.lock().published.contains_key(&key) {
            return;
        }
        let before = self.stats.latest.lock().insert(key, stats);
        let was_abnormal = before.is_some_and(|before| before.is_abnormal == Some(true));
        if let Some(condition) = condition.filter(|_| !was_abnormal) {
            let pod: &Pod = &published.pod;
            let message = format!("Volume {}: {}", wanted.spec_name, condition.message);
            tracing::warn!(pod = state::full_name(pod), message, "volume is abnormal");
            self.recorder.warning(&client::reference(pod), "VolumeConditionAbnormal", message);
        }
    }
}

/// What a driver's answer says. Numbers below zero say nothing.
fn read(answer: &v1::NodeGetVolumeStatsResponse, volume: &str, claim: Option<(String, String)>) -> Stats {
    let mut stats = Stats {
        volume: volume.into(),
        claim,
        is_abnormal: answer.volume_condition.as_ref().map(|condition| condition.abnormal),
        ..Default::default()
    };
    let number = |value: i64| u64::try_from(value).ok();
    for usage in &answer.usage {
        let values = (number(usage.total), number(usage.available), number(usage.used));
        match Unit::try_from(usage.unit) {
            Ok(Unit::Bytes) => (stats.capacity, stats.available, stats.used) = values,
            Ok(Unit::Inodes) => (stats.inodes, stats.inodes_free, stats.inodes_used) = values,
            Ok(Unit::Unknown) | Err(_) => {}
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_and_nonsense_is_not() {
        let usage = |unit: i32, total, available, used| v1::VolumeUsage { available, total, used, unit };
        let answer = v1::NodeGetVolumeStatsResponse {
            usage: vec![usage(1, 10, 7, 3), usage(2, 100, -1, 5), usage(77, 1, 1, 1)],
            volume_condition: Some(v1::VolumeCondition { abnormal: true, message: "m".into() }),
        };
        let stats = read(&answer, "v", None);
        assert_eq!((stats.capacity, stats.available, stats.used), (Some(10), Some(7), Some(3)));
        assert_eq!((stats.inodes, stats.inodes_free, stats.inodes_used), (Some(100), None, Some(5)));
        assert_eq!(stats.is_abnormal, Some(true));
        assert_eq!(read(&Default::default(), "v", None).is_abnormal, None);
    }
}

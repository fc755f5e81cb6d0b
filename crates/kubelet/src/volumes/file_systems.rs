//! How full the volumes are that no CSI driver measures: NFS shares, local volumes and iSCSI disks, as their file systems say.
//!
//! A share whose server is silent does not answer either. So nobody waits: each is asked now and then, by one thread at a time,
//! and what it said last is kept.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use super::csi::Stats;

/// Volumes that are measured at a time; those that do not answer keep their places.
const SLOTS: usize = 16;
/// How long to wait for a free place. A volume that answers at all answers within this time, so that those after it get figures.
const SLOT_TIMEOUT: Duration = Duration::from_secs(1);

/// By uid of the pod and name of the volume in it.
type Volumes = BTreeMap<(String, String), Volume>;

struct Volume {
    path: PathBuf,
    claim: Option<(String, String)>,
    latest: Option<Stats>,
    is_asked: bool,
}

pub(crate) struct FileSystems {
    volumes: Arc<Mutex<Volumes>>,
    slots: Arc<Semaphore>,
    soon: Notify,
}

impl Default for FileSystems {
    fn default() -> Self {
        FileSystems { volumes: Arc::default(), slots: Arc::new(Semaphore::new(SLOTS)), soon: Notify::new() }
    }
}

impl FileSystems {
    /// A pod has a volume, there. `claim` is namespace and name of the claim that it has it by.
    pub(super) fn add(&self, uid: &str, volume: &str, path: &Path, claim: Option<(String, String)>) {
        let mut volumes = self.volumes.lock();
        let key = (uid.to_owned(), volume.to_owned());
        if volumes.get(&key).is_some_and(|known| known.path == path && known.claim == claim) {
            return;
        }
        volumes.insert(key, Volume { path: path.to_owned(), claim, latest: None, is_asked: false });
        drop(volumes);
        self.soon.notify_one();
    }

    pub(super) fn forget(&self, uid: &str) {
        self.volumes.lock().retain(|(owner, _), _| owner != uid);
    }

    /// What is known of the pod's volumes.
    pub(crate) fn stats_of(&self, uid: &str) -> Vec<Stats> {
        let volumes = self.volumes.lock();
        let own = volumes.iter().filter(|((owner, _), _)| owner == uid);
        own.filter_map(|(_, volume)| volume.latest.clone()).collect()
    }

    /// What is known of all claims.
    pub(crate) fn claim_stats(&self) -> Vec<Stats> {
        let latest = self.volumes.lock().values().filter_map(|volume| volume.latest.clone()).collect::<Vec<_>>();
        let mut all: Vec<Stats> = latest.into_iter().filter(|stats| stats.claim.is_some()).collect();
        all.compact_sort_by(|a, b| a.claim.cmp(&b.claim));
        // Two pods may share a claim.
        all.dedup_by(|a, b| a.claim == b.claim);
        all
    }

    /// Measures until the kubelet stops.
    pub(crate) async fn watch(self: Arc<Self>, period: Duration, stop: CancellationToken) {
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(period) => {}
                () = self.soon.notified() => {}
            }
            let keys: Vec<(String, String)> = self.volumes.lock().keys().cloned().collect();
            for key in keys {
                // Only this task takes places: one that is free stays so.
                if tokio::time::timeout(SLOT_TIMEOUT, self.slots.acquire()).await.is_err() {
                    break;
                }
                self.measure(key);
            }
        }
    }

    /// Asks for one volume, unless its last answer is still waited for or too many others are.
    fn measure(&self, key: (String, String)) {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else { return };
        let path = match self.volumes.lock().get_mut(&key) {
            Some(volume) if !volume.is_asked => {
                volume.is_asked = true;
                volume.path.clone()
            }
            _ => return,
        };
        let volumes = self.volumes.clone();
        tokio::task::spawn_blocking(move || {
            let measured = measure(&path);
            let mut volumes = volumes.lock();
            // It may have gone meanwhile, or be another.
            if let Some(volume) = volumes.get_mut(&key).filter(|volume| volume.path == path) {
                volume.is_asked = false;
                if let Some(stats) = measured {
                    volume.latest = Some(Stats { volume: key.1.clone(), claim: volume.claim.clone(), ..stats });
                }
            }
            drop(slot);
        });
    }
}

fn measure(path: &Path) -> Option<Stats> {
    let found = nix::sys::statvfs::statvfs(path).ok()?;
    let bytes = |blocks: u64| Some(blocks.saturating_mul(found.fragment_size()));
    Some(Stats {
        capacity: bytes(found.blocks()),
        available: bytes(found.blocks_available()),
        used: bytes(found.blocks().saturating_sub(found.blocks_free())),
        inodes: Some(found.files()),
        inodes_free: Some(found.files_free()),
        inodes_used: Some(found.files().saturating_sub(found.files_free())),
        ..Stats::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn volumes_are_measured_until_their_pods_go() {
        let dir = tempfile::tempdir().unwrap();
        let stop = CancellationToken::new();
        let all = Arc::new(FileSystems::default());
        let watching = tokio::spawn(all.clone().watch(Duration::from_millis(5), stop.clone()));
        let claim = || Some(("ns".to_owned(), "data".to_owned()));
        all.add("a", "v", dir.path(), claim());
        all.add("b", "w", dir.path(), claim());
        all.add("b", "gone", &dir.path().join("missing"), None);
        let measured = async {
            while all.stats_of("a").is_empty() || all.stats_of("b").is_empty() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), measured).await.unwrap();
        let stats = all.stats_of("a").remove(0);
        assert_eq!((stats.volume.as_str(), &stats.claim), ("v", &claim()));
        assert!(stats.capacity > Some(0) && stats.used <= stats.capacity, "{stats:?}");
        assert_eq!(all.stats_of("b").len(), 1, "what cannot be measured has no figures");
        assert_eq!(all.claim_stats().len(), 1, "two pods share the claim");
        all.forget("a");
        assert!(all.stats_of("a").is_empty());
        stop.cancel();
        watching.await.unwrap();
    }

    #[tokio::test]
    async fn all_are_measured_where_there_are_more_than_places() {
        let stop = CancellationToken::new();
        let all = Arc::new(FileSystems::default());
        let count = 20 * SLOTS;
        for number in 0..count {
            all.add("a", &format!("v{number}"), Path::new("/"), None);
        }
        // One round, which the first volume asks for.
        let watching = tokio::spawn(all.clone().watch(Duration::from_secs(3600), stop.clone()));
        let measured = async {
            while all.stats_of("a").len() < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), measured).await.unwrap();
        stop.cancel();
        watching.await.unwrap();
    }

    /// A volume that does not answer holds its place, and nobody else.
    #[tokio::test]
    async fn what_is_asked_is_not_asked_again() {
        let all = FileSystems::default();
        all.add("a", "v", Path::new("/"), None);
        let key = ("a".to_owned(), "v".to_owned());
        all.volumes.lock().get_mut(&key).unwrap().is_asked = true;
        all.measure(key);
        assert_eq!(all.slots.available_permits(), SLOTS);
    }
}

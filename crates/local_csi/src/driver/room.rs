//! How much room there is for volumes: what is free on their disk, without what others were promised and have not taken yet.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use api::sort::CompactSort as _;
use csi::tonic::Status;
use tokio_util::sync::CancellationToken;

use super::{Busy, Driver, blocking, failed, lock, number};
use crate::store::Volume;

/// How often volumes are counted that nobody asks for.
const COUNT_INTERVAL: Duration = Duration::from_secs(300);

/// Ends a promise when it is dropped: it was kept or broken by then.
pub(super) struct Promise(Arc<Mutex<Busy>>, String);

impl Drop for Promise {
    fn drop(&mut self) {
        lock(&self.0).promised.remove(&self.1);
    }
}

/// A volume is like this now, or is gone.
pub(super) fn note(busy: &Mutex<Busy>, id: &str, volume: Option<&Volume>) {
    if let Some(made) = &mut lock(busy).made {
        match volume {
            Some(volume) => made.insert(id.to_owned(), volume.clone()),
            None => made.remove(id),
        };
    }
}

impl Driver {
    /// What can still be promised: what is free, without what was promised and is not taken yet.
    pub(super) fn available(&self) -> Result<i64, Status> {
        let used = self.all_used()?;
        self.available_beyond(&mut self.busy(), &used)
    }

    /// What is not known to be used is set aside.
    fn available_beyond(&self, busy: &mut Busy, used: &HashMap<String, i64>) -> Result<i64, Status> {
        let stat = nix::sys::statvfs::statvfs(&self.dir).map_err(io::Error::from).map_err(failed)?;
        let bytes = |blocks: u64| number(blocks.saturating_mul(stat.fragment_size()));
        self.read_made(busy)?;
        let Busy { promised, made, .. } = busy;
        let made = made.get_or_insert_default();
        let being_made = promised.iter().filter(|(id, _)| !made.contains_key(*id)).map(|(_, capacity)| *capacity);
        let growing = |id: &String| promised.get(id).copied().unwrap_or_default();
        let left = made.iter().map(|(id, volume)| {
            let used = used.get(id).copied().unwrap_or_default();
            growing(id).max(volume.capacity).saturating_sub(used).max(0)
        });
        let promised = left.chain(being_made).fold(0_i64, i64::saturating_add);
        Ok(bytes(stat.blocks_available()).saturating_sub(promised).max(0))
    }

    fn read_made(&self, busy: &mut Busy) -> Result<(), Status> {
        if busy.made.is_none() {
            // For one whose record is damaged no room is set aside.
            busy.made = Some(self.volumes.list_readable::<Volume>().map_err(failed)?.into_iter().collect());
        }
        Ok(())
    }

    /// How many bytes each volume is known to hold. The kernel may take its time: nobody is kept out meanwhile.
    fn all_used(&self) -> Result<HashMap<String, i64>, Status> {
        let made = {
            let mut busy = self.busy();
            self.read_made(&mut busy)?;
            busy.made.clone().unwrap_or_default()
        };
        Ok(made.into_iter().map(|(id, volume)| (id.clone(), self.used(&id, &volume))).collect())
    }

    fn used(&self, id: &str, volume: &Volume) -> i64 {
        let counted = self.projects.usage(volume.project).unwrap_or_else(|error| {
            tracing::warn!(volume = id, %error, "the kernel does not say what the volume holds");
            None
        });
        let counted = counted.map(|usage| usage.bytes).or_else(|| self.counts.last(id).map(|usage| usage.bytes));
        number(counted.unwrap_or_default())
    }

    /// Looks at what volumes hold where the kernel does not count, until `stop`: also at those that no pod uses.
    pub(crate) async fn keep_counting(&self, stop: CancellationToken) {
        let counting = async {
            loop {
                let folders = self.volumes.clone();
                match blocking(move || folders.list_readable::<Volume>()).await {
                    Ok(all) => {
                        self.counts.retain(&all.iter().map(|(id, _)| id.clone()).collect());
                        let is_counted =
                            |volume: &Volume| self.projects.usage(volume.project).is_ok_and(|it| it.is_some());
                        let due = |id: &str| self.counts.is_due(id, COUNT_INTERVAL);
                        let mut all: Vec<_> =
                            all.into_iter().filter(|(id, volume)| due(id) && !is_counted(volume)).collect();
                        // Those that were never counted first.
                        all.compact_sort_by_key(|(id, _)| self.counts.counted_at(id));
                        for (id, _) in all {
                            let data = self.volumes.data(&id);
                            self.counts.count(id, data).await;
                        }
                    }
                    Err(error) => tracing::warn!(error = error.message(), "volumes not counted"),
                }
                tokio::time::sleep(COUNT_INTERVAL).await;
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = counting => {}
        }
    }

    /// Sets room aside for a volume, beyond what it has.
    pub(super) fn promise(&self, id: &str, has: i64, wanted: i64) -> Result<Promise, Status> {
        let used = self.all_used()?;
        let mut busy = self.busy();
        let (available, more) = (self.available_beyond(&mut busy, &used)?, wanted.saturating_sub(has));
        if more > available {
            return Err(Status::resource_exhausted(format!(
                "node {} has {available} bytes left, {more} were asked for",
                self.node
            )));
        }
        busy.promised.insert(id.to_owned(), wanted);
        Ok(Promise(self.busy.clone(), id.to_owned()))
    }

    /// A volume is there. What is known of it is newer: it may just have grown.
    pub(super) fn note_found(&self, id: &str, volume: &Volume) {
        if let Some(made) = &mut self.busy().made {
            made.entry(id.to_owned()).or_insert_with(|| volume.clone());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::sync::Arc;

    use csi::v1::{self, Controller};

    use super::*;
    use crate::driver::capabilities;
    use crate::quota::{Recorded, Usage};

    #[tokio::test]
    async fn what_volumes_hold_is_not_set_aside_a_second_time() {
        let dir = tempfile::tempdir().unwrap();
        let recorded = Arc::new(Recorded::default());
        let limited = Driver::open_with("n", &dir.path().join("limited"), recorded.clone()).unwrap();
        let plain = Driver::open("n", &dir.path().join("plain")).unwrap();
        const SIZE: i64 = 64 << 20;
        for driver in [&limited, &plain] {
            let range = Some(v1::CapacityRange { required_bytes: SIZE, limit_bytes: 0 });
            let request = v1::CreateVolumeRequest {
                name: "one".into(),
                capacity_range: range,
                volume_capabilities: capabilities(),
                ..Default::default()
            };
            driver.create_volume(request).await.unwrap();
        }
        let set_aside = |driver: &Driver| {
            let volume: Volume = driver.volumes.get("one").unwrap().unwrap();
            volume.capacity - driver.used("one", &volume)
        };
        // Others write to the same disk: what is promised is held against what is free at the same moment, more or less.
        let available = |driver: &Driver| {
            let stat = nix::sys::statvfs::statvfs(&driver.dir).unwrap();
            let free = number(stat.blocks_available() * stat.fragment_size());
            (free - driver.available().unwrap() - set_aside(driver)).abs() < SIZE / 4
        };
        assert_eq!((set_aside(&limited), available(&limited)), (SIZE, true));
        let project = recorded.assigned.lock()[0].1;
        recorded.usage.lock().insert(project, Usage { bytes: 2 * SIZE as u64 / 4, inodes: 2 });
        assert_eq!((set_aside(&limited), available(&limited)), (SIZE / 2, true));
        assert_eq!((set_aside(&plain), available(&plain)), (SIZE, true), "nobody has counted yet");
        std::fs::write(plain.data("one").join("file"), vec![7; SIZE as usize / 2]).unwrap();
        plain.counts.fresh("one", plain.volumes.data("one"), Duration::ZERO).await.unwrap();
        assert!((set_aside(&plain) - SIZE / 2).abs() < 1 << 20 && available(&plain));
        // One that holds more than it was promised takes nothing from others.
        recorded.usage.lock().insert(project, Usage { bytes: 2 * SIZE as u64, inodes: 2 });
        assert_eq!(set_aside(&limited), -SIZE);
        let stat = nix::sys::statvfs::statvfs(&limited.dir).unwrap();
        let free = number(stat.blocks_available() * stat.fragment_size());
        assert!((free - limited.available().unwrap()).abs() < SIZE / 4);
        // One that cannot be measured is set aside as a whole.
        *recorded.broken.lock() = Some(project);
        assert_eq!((set_aside(&limited), available(&limited)), (SIZE, true));
    }
}

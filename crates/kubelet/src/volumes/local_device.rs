//! Local volumes that are block devices and wanted as file systems: formatted if nothing is on them, mounted once for the node,
//! and bound for every pod that uses them.
//!
//! Nothing is remembered but mounts: a device stays mounted as long as some pod has a directory for it, and is let go after that,
//! also by a kubelet that starts later.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::csi::names;
use super::error::{Cause, check_name};
use super::kernel::{Kernel, Linux};
use super::{ChangePolicy, format, mounts, on_own_thread, ownership};

/// The plug-in's name as part of a path.
pub(super) const PLUGIN: &str = "kubernetes.io~local-volume";

/// What is to be mounted, and how.
pub(super) struct Disk {
    /// Of the PersistentVolume.
    pub(super) name: String,
    pub(super) device: PathBuf,
    pub(super) fs_type: String,
    pub(super) options: Vec<String>,
    /// Who gets its files.
    pub(super) group: Option<(u32, ChangePolicy)>,
}

pub(crate) struct LocalDevices {
    root: PathBuf,
    /// By name of the volume: whoever holds it may mount and unmount.
    locks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl LocalDevices {
    pub(crate) fn new(root: PathBuf) -> Self {
        LocalDevices { root, locks: Mutex::default() }
    }

    fn mounts(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/local-volume/mounts")
    }

    fn lock_of(&self, name: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock();
        locks.retain(|other, lock| other == name || Arc::strong_count(lock) > 1);
        locks.entry(name.to_owned()).or_default().clone()
    }

    /// Mounts the device, unless it is, and binds it to `target`, which is in the pod's directory for this volume.
    pub(super) async fn set_up(&self, disk: Disk, target: PathBuf) -> Result<PathBuf, Cause> {
        check_name("volume name", &disk.name)?;
        let held: OwnedMutexGuard<()> = self.lock_of(&disk.name).lock_owned().await;
        let place = self.mounts().join(&disk.name);
        on_own_thread(move || {
            // Whoever gives up waiting does not let others in before this is done.
            let _held = held;
            std::fs::create_dir_all(&target)?;
            if !mounts::is_mounted_at(&Linux, &place)? {
                std::fs::create_dir_all(&place)?;
                format::mount(&disk.device, &disk.fs_type, &disk.options, &place)?;
            }
            if !mounts::is_mounted_at(&Linux, &target)? {
                if let Some((group, policy)) = disk.group {
                    ownership::apply(&place, group, policy)?;
                }
                Linux.mount(Some(&place), &target, None, MsFlags::MS_BIND, None)?;
            }
            Ok(target)
        })
        .await
        .map_err(Cause::from)
    }

    /// Has the file system of a device that is mounted take all of the device.
    pub(super) async fn grow(&self, name: &str, device: PathBuf) -> io::Result<()> {
        let held: OwnedMutexGuard<()> = self.lock_of(name).lock_owned().await;
        let place = self.mounts().join(name);
        on_own_thread(move || {
            let _held = held;
            format::grow(&device, &place)
        })
        .await
    }

    /// Unmounts devices that no pod uses any more. Says whether there was nothing to do.
    pub(crate) async fn release_unused(&self) -> bool {
        let (dir, pods) = (self.mounts(), self.root.join("pods"));
        let mounted = match names(&dir) {
            Ok(mounted) => mounted,
            Err(error) => {
                tracing::warn!(path = %dir.display(), %error, "local devices not looked at");
                return false;
            }
        };
        let mut is_clean = true;
        for name in mounted {
            let Ok(held) = self.lock_of(&name).try_lock_owned() else { continue };
            let (place, pods) = (dir.join(&name), pods.clone());
            let released = on_own_thread(move || {
                let _held = held;
                if is_used(&pods, &name)? {
                    return Ok(true);
                }
                if mounts::is_mounted_at(&Linux, &place)? {
                    Linux.unmount(&place, MntFlags::empty())?;
                }
                std::fs::remove_dir(&place).map(|()| false)
            });
            match released.await {
                Ok(is_used) => is_clean &= is_used,
                Err(error) => {
                    is_clean = false;
                    tracing::warn!(path = %dir.display(), %error, "a local device not unmounted, will retry");
                }
            }
        }
        is_clean
    }
}

/// Whether a pod has a directory for the device, which itself is not looked at: what is mounted there may not answer.
fn is_used(pods: &Path, name: &str) -> io::Result<bool> {
    for uid in names(pods)? {
        if names(&pods.join(uid).join("volumes").join(PLUGIN))?.iter().any(|there| there == name) {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[tokio::test]
    async fn a_device_is_formatted_once_and_let_go_after_its_last_pod() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("kubelet");
        let image = dir.path().join("disk");
        std::fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        let attached = Command::new("losetup").args(["-f", "--show"]).arg(&image).output();
        let Some(attached) = attached.ok().filter(|output| output.status.success()) else {
            eprintln!("skipped: no loop device can be had here");
            return;
        };
        let device = PathBuf::from(String::from_utf8(attached.stdout).unwrap().trim());
        let devices = LocalDevices::new(root.clone());
        let disk = |options: &str| Disk {
            name: "pv".into(),
            device: device.clone(),
            fs_type: String::new(),
            options: vec![options.into()],
            group: Some((4242, ChangePolicy::Always)),
        };
        let target = |uid: &str| root.join("pods").join(uid).join("volumes").join(PLUGIN).join("pv");
        let place = root.join("plugins/kubernetes.io/local-volume/mounts/pv");
        let refused = devices.set_up(disk("noatime,ro"), target("a")).await.unwrap_err().to_string();
        assert!(refused.starts_with("cannot mount unformatted disk"), "{refused}");
        for uid in ["a", "b", "b"] {
            devices.set_up(disk("noatime"), target(uid)).await.unwrap();
        }
        std::fs::write(target("a").join("file"), "x").unwrap();
        assert_eq!(std::fs::read_to_string(target("b").join("file")).unwrap(), "x");
        use std::os::unix::fs::MetadataExt;
        assert_eq!(std::fs::metadata(target("a")).unwrap().gid(), 4242);
        let remove = |uid: &str| mounts::remove_with_mounts(&Linux, &root.join("pods").join(uid)).unwrap();
        remove("a");
        assert!(devices.release_unused().await);
        assert!(mounts::is_mounted_at(&Linux, &place).unwrap(), "another pod uses it");
        remove("b");
        assert!(!devices.release_unused().await);
        assert!(!place.exists());
        assert!(devices.release_unused().await);
        // What is on it stays.
        devices.set_up(disk("noatime"), target("c")).await.unwrap();
        assert_eq!(std::fs::read_to_string(target("c").join("file")).unwrap(), "x");
        // It grows with its device, also while it is used.
        let size = || nix::sys::statvfs::statvfs(&target("c")).unwrap().blocks();
        let before = size();
        devices.grow("pv", device.clone()).await.unwrap();
        assert_eq!(size(), before, "the device is what it was");
        std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(64 << 20).unwrap();
        assert!(Command::new("losetup").arg("-c").arg(&device).status().unwrap().success());
        let grown = devices.grow("pv", device.clone()).await;
        if may_use_reserves() {
            grown.unwrap();
            assert!(size() > 2 * before, "{} of {before}", size());
        } else {
            // Without that capability the kernel does not let root grow a mounted ext4, and who asks hears why.
            assert!(grown.unwrap_err().to_string().contains("Permission denied"));
        }
        remove("c");
        devices.release_unused().await;
        assert!(Command::new("losetup").arg("-d").arg(&device).status().unwrap().success());
    }

    /// Whoever ends, looks whether devices can go, and those of others may not answer.
    #[tokio::test]
    async fn a_device_that_does_not_answer_holds_up_no_other_pod() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("pods/a/volumes").join(PLUGIN).join("pv");
        let place = dir.path().join("plugins/kubernetes.io/local-volume/mounts/pv");
        std::fs::create_dir_all(&target).unwrap();
        std::fs::create_dir_all(&place).unwrap();
        let Some(silent) = testkit::silent::Silent::mount(&target) else {
            eprintln!("skipped: there is no FUSE here");
            return;
        };
        let devices = LocalDevices::new(dir.path().into());
        let looked = tokio::time::timeout(std::time::Duration::from_secs(60), devices.release_unused()).await;
        drop(silent);
        assert_eq!(looked, Ok(true), "it is still used");
        assert!(place.exists());
    }

    /// `CAP_SYS_RESOURCE`.
    fn may_use_reserves() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
        u64::from_str_radix(effective, 16).unwrap() & 1 << 24 != 0
    }
}

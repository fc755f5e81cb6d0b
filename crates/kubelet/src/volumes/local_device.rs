//! Local volumes that are block devices and wanted as file systems: formatted if nothing is on them, mounted once for the node,
//! and bound for every pod that uses them.
//!
//! Nothing is remembered but mounts: a device stays mounted as long as some pod has a directory for it, and is let go after that,
//! also by a kubelet that starts later.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use nix::mount::{MntFlags, MsFlags};
use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::error::{Cause, check_name};
use super::kernel::{Kernel, Linux};
use super::{ChangePolicy, blocking, mounts, ownership};

/// The plug-in's name as part of a path.
pub(super) const PLUGIN: &str = "kubernetes.io~local-volume";
const DEFAULT_FS_TYPE: &str = "ext4";

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
        blocking(move || {
            // Whoever gives up waiting does not let others in before this is done.
            let _held = held;
            std::fs::create_dir_all(&target)?;
            if !mounts::is_mounted_at(&Linux, &place)? {
                std::fs::create_dir_all(&place)?;
                mount_disk(&disk, &place)?;
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

    /// Unmounts devices that no pod uses any more. Says whether there was nothing to do.
    pub(crate) async fn release_unused(&self) -> bool {
        let (dir, pods) = (self.mounts(), self.root.join("pods"));
        let mut is_clean = true;
        for name in names(&dir) {
            let Ok(held) = self.lock_of(&name).try_lock_owned() else { continue };
            let (place, pods) = (dir.join(&name), pods.clone());
            let released = blocking(move || {
                let _held = held;
                if is_used(&pods, &name) {
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

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn is_used(pods: &Path, name: &str) -> bool {
    names(pods).iter().any(|uid| pods.join(uid).join("volumes").join(PLUGIN).join(name).exists())
}

/// Upstream's steps (`SafeFormatAndMount`, v1.36): look, format or check, mount.
fn mount_disk(disk: &Disk, place: &Path) -> io::Result<()> {
    let device = disk.device.as_path();
    let fs_type = if disk.fs_type.is_empty() { DEFAULT_FS_TYPE } else { &disk.fs_type };
    if !fs_type.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-') {
        return Err(io::Error::other(format!("invalid file system type {fs_type:?}")));
    }
    let is_read_only = disk.options.iter().flat_map(|one| one.split(',')).any(|option| option == "ro");
    match format_of(device)? {
        None if is_read_only => {
            return Err(io::Error::other(format!(
                "cannot mount unformatted disk {} as we are manipulating it in read-only mode",
                device.display()
            )));
        }
        None => format(device, fs_type, place)?,
        Some(_) if !is_read_only => check(device)?,
        Some(_) => {}
    }
    let mut options: Vec<&str> = disk.options.iter().map(String::as_str).collect();
    options.push("defaults");
    let options = options.join(",");
    let output = run(Command::new("mount").args(["-t", fs_type, "-o", &options]).arg(device).arg(place))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "mount failed: {}\nMounting command: mount\nMounting arguments: -t {fs_type} -o {options} {} {}\nOutput: {}",
        ended(&output),
        device.display(),
        place.display(),
        said(&output)
    )))
}

/// What is on the device; none if nothing is.
fn format_of(device: &Path) -> io::Result<Option<String>> {
    let output = run(Command::new("blkid").args(["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export"]).arg(device))?;
    match output.status.code() {
        Some(0) => Ok(parse_format(&String::from_utf8_lossy(&output.stdout))),
        // What blkid says of a device without anything that it knows, and of one that it could not read.
        Some(2) if output.stderr.is_empty() => {
            let read = File::open(device).and_then(read_ends);
            let failed = |error: io::Error| format!("failed to read disk {}: {error}", device.display());
            read.map(|()| None).map_err(|error| io::Error::new(error.kind(), failed(error)))
        }
        _ => Err(io::Error::other(format!(
            "failed to get disk format of disk {}: {}: {}",
            device.display(),
            ended(&output),
            said(&output)
        ))),
    }
}

/// Reads where file systems and partition tables leave their marks: nothing is empty that cannot be read.
fn read_ends(mut device: impl Read + Seek) -> io::Result<()> {
    const END: u64 = 1 << 20;
    let size = device.seek(SeekFrom::End(0))?;
    let length = size.min(END);
    let mut buffer = vec![0; length as usize];
    for start in [0, size - length] {
        device.seek(SeekFrom::Start(start))?;
        device.read_exact(&mut buffer)?;
    }
    Ok(())
}

fn parse_format(text: &str) -> Option<String> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).filter(|value| !value.is_empty());
    match (value("PTTYPE="), value("TYPE=")) {
        (Some(_), _) => Some("unknown data, probably partitions".to_owned()),
        (None, found) => found.map(str::to_owned),
    }
}

fn format(device: &Path, fs_type: &str, place: &Path) -> io::Result<()> {
    let force: &[&str] = match fs_type {
        "ext3" | "ext4" => &["-F", "-m0"],
        "xfs" => &["-f"],
        _ => &[],
    };
    let output = run(Command::new(format!("mkfs.{fs_type}")).args(force).arg(device))?;
    if output.status.success() {
        return Ok(());
    }
    Err(io::Error::other(format!(
        "format of disk {:?} failed: type:({fs_type:?}) target:({:?}) options:(\"defaults\") errcode:({}) output:({}) ",
        device.display().to_string(),
        place.display().to_string(),
        ended(&output),
        said(&output)
    )))
}

fn check(device: &Path) -> io::Result<()> {
    /// Of fsck: errors are left that it could not correct.
    const UNCORRECTED: i32 = 4;
    let output = match run(Command::new("fsck").arg("-a").arg(device)) {
        Ok(output) => output,
        Err(error) => {
            tracing::warn!(%error, "a file system is not checked");
            return Ok(());
        }
    };
    match output.status.code() {
        Some(UNCORRECTED) => Err(io::Error::other(format!(
            "'fsck' found errors on device {} but could not correct them: {}",
            device.display(),
            said(&output)
        ))),
        _ => Ok(()),
    }
}

fn run(command: &mut Command) -> io::Result<Output> {
    let program = command.get_program().to_string_lossy().into_owned();
    command.output().map_err(|error| io::Error::new(error.kind(), format!("{program}: {error}")))
}

/// In Go's words.
fn ended(output: &Output) -> String {
    match output.status.code() {
        Some(code) => format!("exit status {code}"),
        None => output.status.to_string(),
    }
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_on_a_device() {
        for (text, expected) in [
            ("DEVNAME=/dev/loop0\nTYPE=ext4\n", Some("ext4")),
            ("DEVNAME=/dev/loop0\nPTTYPE=dos\n", Some("unknown data, probably partitions")),
            ("DEVNAME=/dev/loop0\nTYPE=x\nPTTYPE=gpt\n", Some("unknown data, probably partitions")),
            ("", None),
        ] {
            assert_eq!(parse_format(text).as_deref(), expected, "{text:?}");
        }
    }

    /// A device with a byte that cannot be read.
    struct Scratched {
        bytes: io::Cursor<Vec<u8>>,
        bad: u64,
    }

    impl Read for Scratched {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let start = self.bytes.position();
            let count = self.bytes.read(buffer)?;
            match (start..start + count as u64).contains(&self.bad) {
                true => Err(io::Error::other("Input/output error")),
                false => Ok(count),
            }
        }
    }

    impl Seek for Scratched {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    #[test]
    fn security_what_cannot_be_read_is_not_empty() {
        let size: u64 = 3 << 20;
        for (bad, is_readable) in [(0, false), (4096, false), (size / 2, true), (size - 1, false), (size, true)] {
            let device = Scratched { bytes: io::Cursor::new(vec![0; size as usize]), bad };
            assert_eq!(read_ends(device).is_ok(), is_readable, "{bad}");
        }
        for size in [0, 1, 1 << 20] {
            assert!(read_ends(io::Cursor::new(vec![0_u8; size])).is_ok(), "{size}");
        }
    }

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
        remove("c");
        devices.release_unused().await;
        assert!(Command::new("losetup").arg("-d").arg(&device).status().unwrap().success());
    }
}

//! Where volumes of CSI drivers are below the kubelet's directory, in upstream's layout, and what is written beside them.
//!
//! A record (`vol_data.json`) is there before a driver is asked for anything and goes after everything was undone. So a
//! kubelet that starts finds all that an earlier one may have asked for, whenever that one ended.

mod asked;
mod survey;

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use api::attachable::csi_name;
use nix::mount::MntFlags;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::volumes::kernel::{Kernel as _, Linux};
use crate::volumes::mounts;
use crate::volumes::records::{self, is_absent};

pub(crate) use asked::Asked;
pub(crate) use survey::{Found, Known, Place, Seen};

const RECORD: &str = "vol_data.json";
/// Where a file system is staged, beside its record.
const STAGED: &str = "globalmount";
/// The plug-in's name as part of a path.
pub(crate) const PLUGIN: &str = "kubernetes.io~csi";

/// Where drivers stage and publish devices, among the places of the volumes themselves: no device can have those names.
const NO_DEVICES: [&str; 2] = ["publish", "staging"];

/// Whoever holds it may take the place of a device: that goes by the name of a volume, and volumes of one name are worked on side
/// by side.
static TAKING: Mutex<()> = Mutex::new(());

/// What a kubelet needs to know to take a volume down without asking anyone; upstream's fields, and whether the volume was
/// given to the pod's group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Record {
    #[serde(rename = "specVolID")]
    pub(crate) spec_name: String,
    pub(crate) volume_handle: String,
    pub(crate) driver_name: String,
    pub(crate) node_name: String,
    #[serde(rename = "attachmentID")]
    pub(crate) attachment: String,
    pub(crate) volume_lifecycle_mode: String,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) group_applied: bool,
}

impl Record {
    pub(crate) fn is_inline(&self) -> bool {
        self.volume_lifecycle_mode == "Ephemeral"
    }

    /// The volume's name in statuses of nodes, and what its lock goes by.
    pub(crate) fn unique_name(&self) -> String {
        csi_name(&self.driver_name, &self.volume_handle)
    }

    /// None if nothing is written down. What cannot be read is not absent: somebody has a volume there.
    fn find(path: &Path) -> io::Result<Option<Record>> {
        let found: Option<Record> = records::find(path)?;
        match found.as_ref().is_some_and(|record| record.driver_name.is_empty() || record.volume_handle.is_empty()) {
            true => Err(records::unread(path, io::Error::other("it names no driver or no volume"))),
            false => Ok(found),
        }
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        records::write(self, path)
    }
}

/// The name of the VolumeAttachment that the attach-detach controller makes.
pub(crate) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{:x}", Sha256::digest(format!("{handle}{driver}{node}")))
}

/// The handle of a volume that lives and ends with its pod.
pub(crate) fn inline_handle(uid: &str, volume: &str) -> String {
    format!("csi-{:x}", Sha256::digest(format!("{uid}{volume}")))
}

/// How a volume is used; its places differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Mode {
    Filesystem,
    Block,
}

impl Mode {
    /// Whether the places of a volume of this name would be those of others.
    pub(crate) fn is_taken(self, spec_name: &str) -> bool {
        self == Mode::Block && NO_DEVICES.contains(&spec_name)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

impl Layout {
    fn plugins(&self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    /// A pod's directory for a mounted volume.
    fn pod_volume(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumes").join(PLUGIN).join(spec_name)
    }

    /// The pod's mark that it uses a device; a link to where the driver puts it.
    fn pod_device(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumeDevices").join(PLUGIN).join(spec_name)
    }

    /// Where drivers publish devices, by name of the volume.
    fn published_devices(&self) -> PathBuf {
        self.plugins().join("volumeDevices/publish")
    }

    fn devices(&self, spec_name: &str) -> PathBuf {
        self.plugins().join("volumeDevices").join(spec_name)
    }

    /// Where a device is mapped for the node and for a pod, as upstream's events have it.
    pub(crate) fn maps(&self, uid: &str, spec_name: &str) -> [(&'static str, PathBuf); 2] {
        let of_pod = self.root.join("pods").join(uid).join("volumeDevices").join(PLUGIN);
        [("globalMapPath", self.devices(spec_name).join("dev")), ("volumeMapPath", of_pod)]
    }

    /// Where the driver publishes a volume for a pod.
    pub(crate) fn target(&self, uid: &str, spec_name: &str, mode: Mode) -> PathBuf {
        match mode {
            Mode::Filesystem => self.pod_volume(uid, spec_name).join("mount"),
            Mode::Block => self.published_devices().join(spec_name).join(uid),
        }
    }

    /// Where the driver stages a volume for all pods of the node.
    pub(crate) fn staging(&self, record: &Record, mode: Mode) -> PathBuf {
        match mode {
            Mode::Filesystem => self.staging_dir(record).join(STAGED),
            Mode::Block => self.plugins().join("volumeDevices/staging").join(&record.spec_name),
        }
    }

    fn staging_dir(&self, record: &Record) -> PathBuf {
        let hash = format!("{:x}", Sha256::digest(&record.volume_handle));
        self.plugins().join(&record.driver_name).join(hash)
    }

    fn staging_record(&self, record: &Record, mode: Mode) -> PathBuf {
        match mode {
            Mode::Filesystem => self.staging_dir(record).join(RECORD),
            Mode::Block => self.devices(&record.spec_name).join("data").join(RECORD),
        }
    }

    /// Notes that a pod is going to use a volume. Says whether that is new.
    pub(crate) fn note_use(&self, uid: &str, record: &Record, mode: Mode) -> io::Result<bool> {
        match mode {
            Mode::Filesystem => {
                let path = self.pod_volume(uid, &record.spec_name).join(RECORD);
                let old = Record::find(&path)?;
                self.refuse_other(old.as_ref(), record)?;
                // What was given to the group is what is mounted; after a restart of the machine the driver mounts it anew.
                let has_group = old.as_ref().is_some_and(|old| old.group_applied)
                    && mounts::is_mounted_at(&Linux, &self.target(uid, &record.spec_name, mode))?;
                let record = Record { group_applied: has_group, ..record.clone() };
                if old.as_ref() != Some(&record) {
                    record.write(&path)?;
                }
                Ok(old.is_none())
            }
            Mode::Block => {
                let taking = TAKING.lock();
                self.refuse_other(Record::find(&self.staging_record(record, mode))?.as_ref(), record)?;
                // What the link leads to is known only with the volume's own record.
                record.write(&self.staging_record(record, mode))?;
                drop(taking);
                let link = self.pod_device(uid, &record.spec_name);
                if link.symlink_metadata().is_ok() {
                    return Ok(false);
                }
                let target = self.target(uid, &record.spec_name, mode);
                for dir in [link.parent(), target.parent()].into_iter().flatten() {
                    std::fs::create_dir_all(dir)?;
                }
                std::os::unix::fs::symlink(&target, &link)?;
                Ok(true)
            }
        }
    }

    /// Two volumes may have one name, an inline one and a PersistentVolume, or one that was made anew. The place is that of the
    /// first until it is taken down: the second's record would have the first forgotten while it is mounted.
    fn refuse_other(&self, there: Option<&Record>, wanted: &Record) -> io::Result<()> {
        match there.filter(|there| there.unique_name() != wanted.unique_name()) {
            None => Ok(()),
            Some(there) => Err(io::Error::other(format!(
                "another volume of the name {:?} is still here: {}",
                there.spec_name,
                there.unique_name()
            ))),
        }
    }

    pub(crate) fn is_group_applied(&self, uid: &str, spec_name: &str) -> bool {
        let record = Record::find(&self.pod_volume(uid, spec_name).join(RECORD));
        record.ok().flatten().is_some_and(|record| record.group_applied)
    }

    pub(crate) fn note_group(&self, uid: &str, record: &Record) -> io::Result<()> {
        let record = Record { group_applied: true, ..record.clone() };
        record.write(&self.pod_volume(uid, &record.spec_name).join(RECORD))
    }

    /// Notes that a volume is going to be staged, and makes its place. Says whether that is new.
    pub(crate) fn note_staging(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        let path = self.staging_record(record, mode);
        let there = Record::find(&path);
        // A damaged record of a file system is written anew: by its place it is of this very volume.
        if mode == Mode::Filesystem && !matches!(there, Ok(Some(_))) {
            record.write(&path)?;
        }
        std::fs::create_dir_all(self.staging(record, mode))?;
        Ok(mode == Mode::Filesystem && matches!(there, Ok(None)))
    }

    /// Removes a pod's places of a volume. Never through a mount: what it shows is the volume's.
    pub(crate) fn forget_use(&self, uid: &str, spec_name: &str, mode: Mode) -> io::Result<()> {
        let target = self.target(uid, spec_name, mode);
        remove_unmounted(&target)?;
        match mode {
            Mode::Filesystem => {
                let dir = self.pod_volume(uid, spec_name);
                records::remove(&dir.join(RECORD))?;
                remove_dir(&dir)
            }
            Mode::Block => remove_file(&self.pod_device(uid, spec_name)),
        }
    }

    /// Removes a volume's staging place, and the last trace of it.
    pub(crate) fn forget_staging(&self, record: &Record, mode: Mode) -> io::Result<()> {
        remove_unmounted(&self.staging(record, mode))?;
        records::remove(&self.staging_record(record, mode))?;
        if mode == Mode::Block {
            remove_dir(&self.published_devices().join(&record.spec_name))?;
            remove_dir(&self.devices(&record.spec_name).join("data"))?;
            return remove_dir(&self.devices(&record.spec_name));
        }
        remove_dir(&self.staging_dir(record))
    }

    /// Unmounts a stray without its driver, which nobody knows any more, and removes its place.
    pub(crate) fn remove_stray(&self, uid: &str, spec_name: &str, mode: Mode) -> io::Result<()> {
        let target = self.target(uid, spec_name, mode);
        while mounts::is_mounted_at(&Linux, &target)? {
            Linux.unmount(&target, MntFlags::MNT_DETACH)?;
        }
        self.forget_use(uid, spec_name, mode)?;
        match (mode, remove_dir(&self.published_devices().join(spec_name))) {
            // Other pods have the device.
            (Mode::Block, Err(error)) if error.kind() != io::ErrorKind::DirectoryNotEmpty => Err(error),
            _ => Ok(()),
        }
    }

    /// All pods that have a directory, or a device that was published.
    pub(crate) fn pods(&self) -> io::Result<BTreeSet<String>> {
        self.pods_with(&self.published()?)
    }

    /// Whether a volume is staged here, or may be.
    pub(crate) fn is_staged(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        let there = Record::find(&self.staging_record(record, mode))?;
        Ok(there.is_some_and(|there| there.unique_name() == record.unique_name()))
    }
}

/// What is in a directory; nothing if it is not there.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let at = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", dir.display()));
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(at(error)),
    };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    names.map(|name| name.map_err(at)).collect()
}

/// As [`names`], and nothing if it is no directory.
pub(crate) fn names_if_dir(path: &Path) -> io::Result<Vec<String>> {
    names(path).or_else(|error| if is_absent(&error) { Ok(Vec::new()) } else { Err(error) })
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_file(path: &Path) -> io::Result<()> {
    gone(std::fs::remove_file(path))
}

/// Only if nothing is left in it.
fn remove_dir(path: &Path) -> io::Result<()> {
    gone(std::fs::remove_dir(path))
}

fn remove_unmounted(path: &Path) -> io::Result<()> {
    if mounts::is_mount_point(&Linux, path)? {
        return Err(io::Error::other(format!("{} is still mounted", path.display())));
    }
    match path.symlink_metadata() {
        Ok(meta) if meta.is_dir() => remove_dir(path),
        Ok(_) => remove_file(path),
        Err(error) => gone(Err(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn record() -> Record {
        Record {
            spec_name: "pv".into(),
            volume_handle: "handle".into(),
            driver_name: "d.example".into(),
            node_name: "n".into(),
            attachment: attachment_name("handle", "d.example", "n"),
            volume_lifecycle_mode: "Persistent".into(),
            group_applied: false,
        }
    }

    #[test]
    fn places_and_records_are_upstreams() {
        let layout = Layout { root: "/k".into() };
        let staging = layout.staging(&record(), Mode::Filesystem);
        assert!(staging.starts_with("/k/plugins/kubernetes.io/csi/d.example"), "{}", staging.display());
        assert!(staging.ends_with("globalmount") && staging.components().count() == 8);
        for (path, expected) in [
            (layout.target("u", "pv", Mode::Filesystem), "/k/pods/u/volumes/kubernetes.io~csi/pv/mount"),
            (layout.target("u", "pv", Mode::Block), "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u"),
            (layout.staging(&record(), Mode::Block), "/k/plugins/kubernetes.io/csi/volumeDevices/staging/pv"),
            (
                layout.staging_record(&record(), Mode::Block),
                "/k/plugins/kubernetes.io/csi/volumeDevices/pv/data/vol_data.json",
            ),
        ] {
            assert_eq!(path, Path::new(expected));
        }
        let text = serde_json::to_value(record()).unwrap();
        let keys: Vec<&str> = text.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            ["attachmentID", "driverName", "nodeName", "specVolID", "volumeHandle", "volumeLifecycleMode"]
        );
    }

    #[test]
    fn what_is_noted_is_found_and_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        for mode in [Mode::Filesystem, Mode::Block] {
            assert!(layout.note_use("u", &record(), mode).unwrap());
            assert!(!layout.note_use("u", &record(), mode).unwrap(), "a second time is not new");
            assert_eq!(layout.note_staging(&record(), mode).unwrap(), mode == Mode::Filesystem);
            if mode == Mode::Filesystem {
                std::fs::write(layout.staging_record(&record(), mode), "").unwrap();
                assert!(!layout.note_staging(&record(), mode).unwrap(), "a damaged record is not a new volume's");
            }
            // A kubelet that ended while it wrote.
            std::fs::write(layout.staging_record(&record(), mode).with_extension(records::UNFINISHED), "").unwrap();
            let found = layout.in_use(None).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].uid.as_str(), found[0].mode, &found[0].record), ("u", mode, &record()));
            assert!(layout.in_use(Some("other")).unwrap().is_empty());
            assert_eq!(layout.known().unwrap().staged, [(record(), mode)]);
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&record(), mode).unwrap();
            assert!(layout.in_use(None).unwrap().is_empty() && layout.known().unwrap().staged.is_empty());
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&record(), mode).unwrap();
        }
        layout.note_use("u", &record(), Mode::Filesystem).unwrap();
        let target = layout.target("u", "pv", Mode::Filesystem);
        mounts::tmpfs(&Linux, &target, None).unwrap();
        layout.note_group("u", &record()).unwrap();
        layout.note_use("u", &record(), Mode::Filesystem).unwrap();
        let is_kept = layout.is_group_applied("u", "pv");
        nix::mount::umount(&target).unwrap();
        assert!(is_kept, "a later note keeps it");
        assert!(!layout.note_use("u", &record(), Mode::Filesystem).unwrap());
        assert!(
            !layout.is_group_applied("u", "pv"),
            "but not of what is mounted no more, as after a restart of the machine"
        );
    }

    #[test]
    fn security_a_volume_of_the_same_name_does_not_take_the_place_of_another() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let other = Record { volume_handle: "other".into(), ..record() };
        for mode in [Mode::Filesystem, Mode::Block] {
            layout.note_use("u", &record(), mode).unwrap();
            assert!(layout.note_use("u", &other, mode).is_err());
            assert_eq!(layout.in_use(Some("u")).unwrap()[0].record, record());
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&record(), mode).unwrap();
            assert!(layout.note_use("u", &other, mode).unwrap(), "after it is gone");
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&other, mode).unwrap();
        }
    }

    #[test]
    fn one_device_of_a_name_has_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let all = ["a", "b", "c", "d"].map(|handle| Record { volume_handle: handle.into(), ..record() });
        let note = |record: &Record| layout.note_use("u", record, Mode::Block).is_ok();
        let taken = std::thread::scope(|scope| {
            let at_once = all.each_ref().map(|record| scope.spawn(move || note(record)));
            at_once.map(|taking| taking.join().unwrap())
        });
        let held = all.each_ref().map(|record| layout.is_staged(record, Mode::Block).unwrap());
        assert_eq!((taken, held.iter().filter(|is_held| **is_held).count()), (held, 1));
    }

    #[test]
    fn mounted_volumes_are_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        layout.note_use("u", &record(), Mode::Filesystem).unwrap();
        let target = layout.target("u", "pv", Mode::Filesystem);
        mounts::tmpfs(&Linux, &target, None).unwrap();
        std::fs::write(target.join("data"), "x").unwrap();
        assert!(layout.forget_use("u", "pv", Mode::Filesystem).is_err());
        assert_eq!(std::fs::read_to_string(target.join("data")).unwrap(), "x");
        assert_eq!(layout.in_use(None).unwrap().len(), 1, "and not forgotten either");
        nix::mount::umount(&target).unwrap();
    }
}

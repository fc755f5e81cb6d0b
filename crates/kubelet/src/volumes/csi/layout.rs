//! Where volumes of CSI drivers are below the kubelet's directory, in upstream's layout, and what is written beside them.
//!
//! A record (`vol_data.json`) is there before a driver is asked for anything and goes after everything was undone. So a
//! kubelet that starts finds all that an earlier one may have asked for, whenever that one ended.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use api::attachable::csi_name;
use nix::mount::MntFlags;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::volumes::kernel::{Kernel as _, Linux};
use crate::volumes::{mounts, records};

const RECORD: &str = "vol_data.json";
/// The plug-in's name as part of a path.
pub(crate) const PLUGIN: &str = "kubernetes.io~csi";

/// Where drivers stage and publish devices, among the places of the volumes themselves: no device can have those names.
const NO_DEVICES: [&str; 2] = ["publish", "staging"];

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
        match records::read(path) {
            Ok(record) => Ok(Some(record)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
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

/// A volume of a pod, as its record on disk says.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) uid: String,
    pub(crate) mode: Mode,
    pub(crate) record: Record,
}

/// A place of a volume that a driver has put something at.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub(crate) uid: String,
    pub(crate) spec_name: String,
    pub(crate) mode: Mode,
}

/// What is at the places of volumes.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) found: Vec<Found>,
    /// What is published and was never written down, or forgotten since: its driver did that after its caller had given up.
    pub(crate) strays: Vec<Place>,
    /// Somebody has a volume there, and why it is not known which.
    pub(crate) unread: Vec<(Place, io::Error)>,
}

impl Seen {
    /// Whether anybody but `own` has a volume. Fails where somebody may have it: a place has the name of its volume.
    pub(crate) fn is_used(&self, record: &Record, own: Option<&str>) -> io::Result<bool> {
        let volume = record.unique_name();
        if self.found.iter().any(|it| own != Some(it.uid.as_str()) && it.record.unique_name() == volume) {
            return Ok(true);
        }
        match self.unread.iter().find(|(it, _)| own != Some(it.uid.as_str()) && it.spec_name == record.spec_name) {
            Some((_, error)) => Err(io::Error::new(error.kind(), error.to_string())),
            None => Ok(false),
        }
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
            Mode::Filesystem => self.staging_dir(record).join("globalmount"),
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
                self.refuse_other(Record::find(&self.staging_record(record, mode))?.as_ref(), record)?;
                // What the link leads to is known only with the volume's own record.
                record.write(&self.staging_record(record, mode))?;
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
        let is_new = mode == Mode::Filesystem && !path.exists();
        if is_new {
            record.write(&path)?;
        }
        std::fs::create_dir_all(self.staging(record, mode))?;
        Ok(is_new)
    }

    /// Removes a pod's places of a volume. Never through a mount: what it shows is the volume's.
    pub(crate) fn forget_use(&self, uid: &str, spec_name: &str, mode: Mode) -> io::Result<()> {
        let target = self.target(uid, spec_name, mode);
        remove_unmounted(&target)?;
        match mode {
            Mode::Filesystem => {
                let dir = self.pod_volume(uid, spec_name);
                remove_file(&dir.join(RECORD))?;
                remove_dir(&dir)
            }
            Mode::Block => remove_file(&self.pod_device(uid, spec_name)),
        }
    }

    /// Removes a volume's staging place, and the last trace of it.
    pub(crate) fn forget_staging(&self, record: &Record, mode: Mode) -> io::Result<()> {
        remove_unmounted(&self.staging(record, mode))?;
        let path = self.staging_record(record, mode);
        remove_file(&path)?;
        if mode == Mode::Block {
            remove_dir(&self.published_devices().join(&record.spec_name))?;
            remove_dir(&self.devices(&record.spec_name).join("data"))?;
            return remove_dir(&self.devices(&record.spec_name));
        }
        remove_dir(&self.staging_dir(record))
    }

    /// The volumes of one pod, or of all, if all can be told.
    pub(crate) fn in_use(&self, uid: Option<&str>) -> io::Result<Vec<Found>> {
        let seen = self.look(uid)?;
        match seen.unread.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(seen.found),
        }
    }

    /// What is at the places of one pod, or of all. What was published without a record is a volume if its staging place tells
    /// which one; else it is a stray, which holds up nobody but its own pod.
    pub(crate) fn look(&self, uid: Option<&str>) -> io::Result<Seen> {
        let pods = match uid {
            Some(uid) => vec![uid.to_string()],
            None => Vec::from_iter(self.pods()?),
        };
        let mut seen = Seen::default();
        for uid in pods {
            for (spec_name, mode) in self.places(&uid)? {
                self.look_at(Place { uid: uid.clone(), spec_name, mode }, &mut seen);
            }
        }
        Ok(seen)
    }

    fn look_at(&self, place: Place, seen: &mut Seen) {
        let (pod, volume) = (&place.uid, &place.spec_name);
        let is_published = || self.is_published(&place.uid, &place.spec_name, place.mode);
        let result = match self.recorded(&place) {
            Ok(None) => is_published().map(|is_published| (None, is_published)),
            other => other.map(|record| (record, true)),
        };
        match result {
            Ok((Some(record), _)) => seen.found.push(Found { uid: place.uid, mode: place.mode, record }),
            Ok((None, is_published)) => {
                tracing::warn!(pod, volume, is_published, "a place of a volume without a record");
                if is_published {
                    seen.strays.push(place);
                }
            }
            Err(error) => {
                tracing::warn!(pod, volume, %error, "a place of a volume whose record is not read");
                seen.unread.push((place, error));
            }
        }
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
        let mut pods = BTreeSet::from_iter(names(&self.root.join("pods"))?);
        for spec_name in names(&self.published_devices())? {
            pods.extend(names_if_dir(&self.published_devices().join(spec_name))?);
        }
        Ok(pods)
    }

    /// Where volumes of a pod are, or were begun.
    fn places(&self, uid: &str) -> io::Result<BTreeSet<(String, Mode)>> {
        let pod = self.root.join("pods").join(uid);
        let mut places = BTreeSet::new();
        for (kind, mode) in [("volumes", Mode::Filesystem), ("volumeDevices", Mode::Block)] {
            places.extend(names_if_dir(&pod.join(kind).join(PLUGIN))?.into_iter().map(|spec_name| (spec_name, mode)));
        }
        for spec_name in names(&self.published_devices())? {
            if self.is_published(uid, &spec_name, Mode::Block)? {
                places.insert((spec_name, Mode::Block));
            }
        }
        Ok(places)
    }

    /// What is written down about a pod's volume, if anything is.
    fn recorded(&self, Place { uid, spec_name, mode }: &Place) -> io::Result<Option<Record>> {
        let path = match mode {
            Mode::Filesystem => self.pod_volume(uid, spec_name).join(RECORD),
            Mode::Block => self.devices(spec_name).join("data").join(RECORD),
        };
        let found = Record::find(&path)?;
        // Begun and not even written down, or half removed: the driver has nothing there.
        if found.is_some() || *mode == Mode::Block || !self.is_published(uid, spec_name, *mode)? {
            return Ok(found);
        }
        self.shown(&self.target(uid, spec_name, *mode), spec_name)
    }

    /// The volume that a mount shows, by where it is staged: others may have its name.
    fn shown(&self, target: &Path, spec_name: &str) -> io::Result<Option<Record>> {
        let mut same = Vec::new();
        for (record, mode) in self.staged()? {
            let is_named = mode == Mode::Filesystem && record.spec_name == spec_name;
            if is_named && mounts::show_the_same(&Linux, target, &self.staging(&record, mode))? {
                same.push(record);
            }
        }
        // One of several may be the wrong one.
        Ok(same.pop().filter(|_| same.is_empty()))
    }

    /// Whether a driver has put something where a pod's volume belongs.
    fn is_published(&self, uid: &str, spec_name: &str, mode: Mode) -> io::Result<bool> {
        let target = self.target(uid, spec_name, mode);
        match mode {
            Mode::Filesystem => mounts::is_mounted_at(&Linux, &target),
            Mode::Block => target.try_exists().or_else(|error| if is_absent(&error) { Ok(false) } else { Err(error) }),
        }
    }

    /// Whether a volume is staged here, or may be.
    pub(crate) fn is_staged(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        let there = Record::find(&self.staging_record(record, mode))?;
        Ok(there.is_some_and(|there| there.unique_name() == record.unique_name()))
    }

    /// All volumes that are staged here, or may be, as far as that can be told.
    pub(crate) fn staged(&self) -> io::Result<Vec<(Record, Mode)>> {
        let all = self.all_staged()?.into_iter();
        let known = all.filter_map(|found| {
            found.inspect_err(|error| tracing::warn!(%error, "record of a staged volume not read")).ok()
        });
        Ok(known.collect())
    }

    /// All volumes that are staged here, or may be, and what cannot be told.
    pub(crate) fn all_staged(&self) -> io::Result<Vec<io::Result<(Record, Mode)>>> {
        let mut found = Vec::new();
        for driver in names(&self.plugins())? {
            for inner in names_if_dir(&self.plugins().join(&driver))? {
                let (path, mode) = match driver.as_str() {
                    "volumeDevices" => (self.devices(&inner).join("data").join(RECORD), Mode::Block),
                    _ => (self.plugins().join(&driver).join(&inner).join(RECORD), Mode::Filesystem),
                };
                found.extend(Record::find(&path).transpose().map(|record| record.map(|record| (record, mode))));
            }
        }
        Ok(found)
    }
}

/// Whether nothing is there.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// What is in a directory; nothing if it is not there.
pub(crate) fn names(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    entries.map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned())).collect()
}

/// As [`names`], and nothing if it is no directory.
fn names_if_dir(path: &Path) -> io::Result<Vec<String>> {
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
    use nix::mount::MsFlags;

    use super::*;

    fn record() -> Record {
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
            let found = layout.in_use(None).unwrap();
            assert_eq!(found.len(), 1);
            assert_eq!((found[0].uid.as_str(), found[0].mode, &found[0].record), ("u", mode, &record()));
            assert!(layout.in_use(Some("other")).unwrap().is_empty());
            assert_eq!(layout.staged().unwrap(), [(record(), mode)]);
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&record(), mode).unwrap();
            assert!(layout.in_use(None).unwrap().is_empty() && layout.staged().unwrap().is_empty());
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
    fn a_link_to_a_device_that_was_never_made_stops_nobody() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        layout.note_use("u", &record(), Mode::Block).unwrap();
        std::fs::remove_file(layout.staging_record(&record(), Mode::Block)).unwrap();
        assert!(layout.in_use(None).unwrap().is_empty());
        assert_eq!(strays(&layout, "u"), []);
        // Or made after the driver's caller had given up, when the link was gone.
        layout.forget_use("u", "pv", Mode::Block).unwrap();
        std::fs::write(layout.target("u", "pv", Mode::Block), "").unwrap();
        assert!(layout.in_use(None).unwrap().is_empty() && layout.pods().unwrap().contains("u"));
        let place = Place { uid: "u".into(), spec_name: "pv".into(), mode: Mode::Block };
        assert_eq!(strays(&layout, "u"), [place]);
        layout.remove_stray("u", "pv", Mode::Block).unwrap();
        assert_eq!(strays(&layout, "u"), []);
        // Where others use the device its record is there, and says whom to ask.
        layout.note_use("v", &record(), Mode::Block).unwrap();
        std::fs::write(layout.target("u", "pv", Mode::Block), "").unwrap();
        assert_eq!(layout.in_use(Some("u")).unwrap()[0].record, record());
    }

    /// A driver does what it was asked for when its caller has given up, and undone what was written down.
    #[test]
    fn security_a_volume_that_is_published_late_holds_up_its_own_pod_only() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let other = Record { spec_name: "other".into(), volume_handle: "other".into(), ..record() };
        layout.note_use("v", &other, Mode::Filesystem).unwrap();
        let target = layout.target("u", "pv", Mode::Filesystem);
        for _ in 0..2 {
            mount_anew(&target);
        }
        let found = |uid: Option<&str>| -> Vec<_> {
            layout.in_use(uid).unwrap().into_iter().map(|found| (found.uid, found.record.spec_name)).collect()
        };
        assert_eq!(found(None), [("v".to_owned(), "other".to_owned())]);
        assert_eq!((strays(&layout, "u").len(), strays(&layout, "v").len()), (1, 0));
        // Another volume of its name is staged.
        let staging = layout.staging(&record(), Mode::Filesystem);
        layout.note_staging(&record(), Mode::Filesystem).unwrap();
        mount_anew(&staging);
        assert_eq!((found(Some("u")).len(), strays(&layout, "u").len()), (0, 1));
        // While it is staged itself, its driver is known, and takes it back as any other.
        Linux.mount(Some(&staging), &target, None, MsFlags::MS_BIND, None).unwrap();
        assert_eq!(found(Some("u")), [("u".to_owned(), "pv".to_owned())]);
        assert_eq!(strays(&layout, "u"), []);
        Linux.unmount(&staging, MntFlags::empty()).unwrap();
        layout.forget_staging(&record(), Mode::Filesystem).unwrap();
        layout.remove_stray("u", "pv", Mode::Filesystem).unwrap();
        assert!(!target.exists() && strays(&layout, "u").is_empty());
    }

    fn strays(layout: &Layout, uid: &str) -> Vec<Place> {
        layout.look(Some(uid)).unwrap().strays
    }

    fn mount_anew(target: &Path) {
        std::fs::create_dir_all(target).unwrap();
        Linux.mount(Some(Path::new("tmpfs")), target, Some("tmpfs"), MsFlags::empty(), None).unwrap();
    }

    #[test]
    fn security_a_file_among_devices_hides_none_and_no_device_has_their_directorys_name() {
        for (mode, name, expected) in [
            (Mode::Block, "publish", true),
            (Mode::Block, "staging", true),
            (Mode::Block, "pv", false),
            (Mode::Filesystem, "publish", false),
        ] {
            assert_eq!(mode.is_taken(name), expected, "{mode:?} {name}");
        }
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        layout.note_use("u", &record(), Mode::Block).unwrap();
        for file in [layout.published_devices().join("file"), layout.plugins().join("file"), layout.root.join("pods/v")]
        {
            std::fs::write(file, "").unwrap();
        }
        assert_eq!(layout.in_use(None).unwrap().len(), 1);
        assert_eq!(layout.staged().unwrap(), [(record(), Mode::Block)]);
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

    /// A volume whose record is damaged, or that cannot be read at the moment, is somebody's still.
    #[test]
    fn security_a_record_that_cannot_be_read_is_not_an_absent_one() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let other = Record { spec_name: "other".into(), volume_handle: "other".into(), ..record() };
        for mode in [Mode::Filesystem, Mode::Block] {
            layout.note_use("u", &record(), mode).unwrap();
            layout.note_use("v", &other, mode).unwrap();
            let path = match mode {
                Mode::Filesystem => layout.pod_volume("u", "pv").join(RECORD),
                Mode::Block => layout.staging_record(&record(), mode),
            };
            std::fs::write(&path, "").unwrap();
            let seen = layout.look(None).unwrap();
            assert_eq!((seen.found.len(), seen.strays.len(), seen.unread.len()), (1, 0, 1), "{mode:?}");
            assert_eq!((seen.found[0].uid.as_str(), seen.unread[0].0.uid.as_str()), ("v", "u"));
            assert!(seen.is_used(&other, None).unwrap() && !seen.is_used(&other, Some("v")).unwrap());
            assert!(seen.is_used(&record(), None).is_err() && !seen.is_used(&record(), Some("u")).unwrap());
            assert!(layout.in_use(None).is_err() && layout.in_use(Some("u")).is_err());
            assert_eq!(layout.in_use(Some("v")).unwrap().len(), 1, "it holds up nobody else");
            assert!(layout.note_use("u", &other_named_pv(), mode).is_err());
            if mode == Mode::Block {
                assert!(layout.is_staged(&record(), mode).is_err() && layout.staged().unwrap().len() == 1);
                assert!(layout.all_staged().unwrap().iter().any(Result::is_err));
            }
            std::fs::remove_file(&path).unwrap();
            assert_eq!(layout.look(Some("u")).unwrap().unread.len(), 0);
            layout.forget_use("v", "other", mode).unwrap();
        }
    }

    fn other_named_pv() -> Record {
        Record { volume_handle: "other".into(), ..record() }
    }
}

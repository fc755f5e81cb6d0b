//! What is at the places of volumes: told by the records beside them, or by what is mounted, and what cannot be told.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use api::sort::CompactCollect as _;

use super::{Layout, Mode, PLUGIN, RECORD, Record, STAGED, names, names_if_dir};
use crate::volumes::kernel::{Kernel as _, Linux};
use crate::volumes::mounts;

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

/// All that is written down about volumes on this node, as far as it can be read.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) seen: Seen,
    /// What is staged here, or may be.
    pub(crate) staged: Vec<(Record, Mode)>,
    /// What is not read, and what to do about it.
    pub(crate) unread: BTreeSet<String>,
}

impl Known {
    /// Nothing could be looked at.
    pub(crate) fn nothing(error: &io::Error) -> Self {
        Known { unread: BTreeSet::from([error.to_string()]), ..Known::default() }
    }

    /// Whether a volume of this name is used, or staged.
    pub(crate) fn has(&self, volume: &str) -> bool {
        self.seen.found.iter().any(|found| found.record.unique_name() == volume)
            || self.staged.iter().any(|(record, _)| record.unique_name() == volume)
    }
}

/// What the record of a staged volume says.
type StagedRecord = io::Result<(Record, Mode)>;

/// The pods that a device is published for, by name of the volume, as far as that can be listed.
type Published = Vec<(String, io::Result<Vec<String>>)>;

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

impl Layout {
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
        let published = self.published()?;
        let pods = match uid {
            Some(uid) => vec![uid.to_string()],
            None => Vec::from_iter(self.pods_with(&published)?),
        };
        let mut seen = Seen::default();
        for uid in pods {
            match self.places(&uid, &published) {
                Ok(places) => places.into_iter().for_each(|(spec_name, mode)| {
                    self.look_at(Place { uid: uid.clone(), spec_name, mode }, &mut seen);
                }),
                Err(error) => seen.unread.extend(self.places_unlisted(&uid, &published, &error)?),
            }
        }
        // Whose they are is not known, and so they are nobody's whose own volumes are looked for.
        for (spec_name, pods) in published.into_iter().filter(|_| uid.is_none()) {
            let place = Place { uid: String::new(), spec_name, mode: Mode::Block };
            seen.unread.extend(pods.err().map(|error| (place, error)));
        }
        Ok(seen)
    }

    /// What is known all the same of a pod whose directories cannot be listed: what is mounted there, and that something may be.
    fn places_unlisted(
        &self,
        uid: &str,
        published: &Published,
        error: &io::Error,
    ) -> io::Result<Vec<(Place, io::Error)>> {
        let plugin = self.root.canonicalize()?.join("pods").join(uid).join("volumes").join(PLUGIN);
        let table = Linux.mount_table()?;
        let mounted = files::mounts(&table).filter_map(|mount| {
            let name = mount.point.strip_prefix(&plugin).ok()?.components().next()?;
            Some(name.as_os_str().to_string_lossy().into_owned())
        });
        let mounted = mounted.chain([String::new()]).map(|spec_name| (spec_name, Mode::Filesystem));
        let mut all: BTreeSet<(String, Mode)> = mounted.compact_collect();
        for (spec_name, pods) in published {
            let may_be_there = match pods {
                Ok(pods) => pods.iter().any(|pod| pod == uid),
                // What cannot be told is not taken from it either.
                Err(_) => true,
            };
            if may_be_there {
                all.insert((spec_name.clone(), Mode::Block));
            }
        }
        let unread = |(spec_name, mode)| {
            let place = Place { uid: uid.to_owned(), spec_name, mode };
            (place, io::Error::new(error.kind(), error.to_string()))
        };
        Ok(all.into_iter().map(unread).collect())
    }

    /// Everything that is written down.
    pub(crate) fn known(&self) -> io::Result<Known> {
        let mut known = Known { seen: self.look(None)?, ..Known::default() };
        for (_, found) in self.all_staged()? {
            match found {
                Ok(staged) => known.staged.push(staged),
                Err(error) => known.unread.extend([error.to_string()]),
            }
        }
        known.unread.extend(known.seen.unread.iter().map(|(_, error)| error.to_string()));
        Ok(known)
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
                tracing::debug!(pod, volume, %error, "a place of a volume whose record is not read");
                seen.unread.push((place, error));
            }
        }
    }

    /// Where volumes of a pod are, or were begun.
    fn places(&self, uid: &str, published: &Published) -> io::Result<BTreeSet<(String, Mode)>> {
        let pod = self.root.join("pods").join(uid);
        let mut places = BTreeSet::new();
        for (kind, mode) in [("volumes", Mode::Filesystem), ("volumeDevices", Mode::Block)] {
            places.extend(names_if_dir(&pod.join(kind).join(PLUGIN))?.into_iter().map(|spec_name| (spec_name, mode)));
        }
        for (spec_name, pods) in published {
            if pods.iter().flatten().any(|pod| pod == uid) {
                places.insert((spec_name.clone(), Mode::Block));
            }
        }
        Ok(places)
    }

    pub(super) fn published(&self) -> io::Result<Published> {
        let dir = self.published_devices();
        let listed = |spec_name: String| {
            let pods = names_if_dir(&dir.join(&spec_name));
            (spec_name, pods)
        };
        Ok(names(&dir)?.into_iter().map(listed).collect())
    }

    /// All pods that have a directory, or one of these devices.
    pub(super) fn pods_with(&self, published: &Published) -> io::Result<BTreeSet<String>> {
        let mut pods = BTreeSet::from_iter(names(&self.root.join("pods"))?);
        pods.extend(published.iter().flat_map(|(_, pods)| pods.iter().flatten()).cloned());
        Ok(pods)
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
        for (path, found) in self.all_staged()? {
            let is_shown = match &found {
                Ok((record, mode)) if *mode == Mode::Block || record.spec_name != spec_name => false,
                // A directory that cannot be listed may hold it.
                Err(_) if !path.ends_with(RECORD) => true,
                _ => mounts::show_the_same(&Linux, target, &path.with_file_name(STAGED))?,
            };
            if is_shown {
                same.push(found?.0);
            }
        }
        // One of several may be the wrong one.
        Ok(same.pop().filter(|_| same.is_empty()))
    }

    /// Whether a driver has put something where a pod's volume belongs.
    fn is_published(&self, uid: &str, spec_name: &str, mode: Mode) -> io::Result<bool> {
        match mode {
            Mode::Filesystem => mounts::is_mounted_at(&Linux, &self.target(uid, spec_name, mode)),
            // It is not looked at itself: what is mounted there may not answer.
            Mode::Block => Ok(names_if_dir(&self.published_devices().join(spec_name))?.iter().any(|it| it == uid)),
        }
    }

    /// The records of all volumes that are staged here, or may be, and what they say.
    fn all_staged(&self) -> io::Result<Vec<(PathBuf, StagedRecord)>> {
        let mut all = Vec::new();
        for driver in names(&self.plugins())? {
            let dir = self.plugins().join(&driver);
            let volumes = match names_if_dir(&dir) {
                Ok(volumes) => volumes,
                Err(error) => {
                    all.push((dir, Err(error)));
                    continue;
                }
            };
            for volume in volumes {
                let (path, mode) = match driver.as_str() {
                    "volumeDevices" => (self.devices(&volume).join("data").join(RECORD), Mode::Block),
                    _ => (dir.join(&volume).join(RECORD), Mode::Filesystem),
                };
                let found = Record::find(&path).transpose();
                all.extend(found.map(|record| (path, record.map(|record| (record, mode)))));
            }
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use nix::mount::{MntFlags, MsFlags};

    use super::super::tests::record;
    use super::*;

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

    /// The kubelet looks at all places when it starts, before it serves anybody.
    #[test]
    fn a_device_that_does_not_answer_holds_up_no_look() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        layout.note_use("u", &record(), Mode::Block).unwrap();
        let target = layout.target("u", "pv", Mode::Block);
        std::fs::create_dir(&target).unwrap();
        let Some(silent) = testkit::silent::Silent::mount(&target) else {
            eprintln!("skipped: there is no FUSE here");
            return;
        };
        let (sender, receiver) = std::sync::mpsc::channel();
        let looked = layout.clone();
        let look = std::thread::spawn(move || sender.send(looked.known().map(|known| known.seen.found.len())));
        let found = receiver.recv_timeout(std::time::Duration::from_secs(60));
        drop(silent);
        look.join().unwrap().unwrap();
        assert_eq!(found.unwrap().unwrap(), 1);
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
        assert_eq!(layout.known().unwrap().staged, [(record(), Mode::Block)]);
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
            let told = layout.known().unwrap().unread.pop_first().unwrap_or_default();
            assert!(told.contains(&*path.to_string_lossy()) && told.contains("by hand"), "{told}");
            assert!(layout.in_use(None).is_err() && layout.in_use(Some("u")).is_err());
            assert_eq!(layout.in_use(Some("v")).unwrap().len(), 1, "it holds up nobody else");
            assert!(layout.note_use("u", &other_named_pv(), mode).is_err());
            if mode == Mode::Block {
                assert!(layout.is_staged(&record(), mode).is_err() && layout.known().unwrap().staged.len() == 1);
            }
            std::fs::remove_file(&path).unwrap();
            assert_eq!(layout.look(Some("u")).unwrap().unread.len(), 0);
            layout.forget_use("v", "other", mode).unwrap();
        }
    }

    /// The driver has it mounted, and only its staging says which volume it is.
    #[test]
    fn security_what_may_be_a_volume_of_a_damaged_record_is_no_stray() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let (staging, target) =
            (layout.staging(&record(), Mode::Filesystem), layout.target("u", "pv", Mode::Filesystem));
        layout.note_staging(&record(), Mode::Filesystem).unwrap();
        mount_anew(&staging);
        std::fs::create_dir_all(&target).unwrap();
        Linux.mount(Some(&staging), &target, None, MsFlags::MS_BIND, None).unwrap();
        let path = layout.staging_record(&record(), Mode::Filesystem);
        for text in ["{", "{}"] {
            std::fs::write(&path, text).unwrap();
            let seen = layout.look(Some("u")).unwrap();
            assert_eq!((seen.found.len(), seen.strays.len(), seen.unread.len()), (0, 0, 1), "{text}");
            assert_eq!(layout.known().unwrap().unread.len(), 1, "{text}");
        }
        for place in [&target, &staging] {
            Linux.unmount(place, MntFlags::empty()).unwrap();
        }
    }

    /// Of a pod whose directories cannot be listed it is known what is mounted for it, and other pods are not held up.
    #[test]
    fn security_a_pod_that_cannot_be_looked_at_keeps_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().canonicalize().unwrap() };
        let other = Record { spec_name: "other".into(), volume_handle: "other".into(), ..record() };
        for (uid, record) in [("u", record()), ("v", other.clone())] {
            layout.note_use(uid, &record, Mode::Filesystem).unwrap();
        }
        let raw = Record { spec_name: "raw".into(), volume_handle: "raw".into(), ..record() };
        layout.note_use("u", &raw, Mode::Block).unwrap();
        std::fs::write(layout.target("u", "raw", Mode::Block), "").unwrap();
        let target = layout.target("u", "pv", Mode::Filesystem);
        mount_anew(&target);
        // Its devices are said to be where nobody comes to an end.
        let devices = layout.pod_device("u", "raw").parent().unwrap().to_path_buf();
        std::fs::remove_dir_all(&devices).unwrap();
        std::os::unix::fs::symlink(&devices, &devices).unwrap();
        let seen = layout.look(None).unwrap();
        Linux.unmount(&target, MntFlags::empty()).unwrap();
        assert_eq!(seen.found.iter().map(|found| found.uid.as_str()).collect::<Vec<_>>(), ["v"]);
        let names: Vec<&str> = seen.unread.iter().map(|(place, _)| place.spec_name.as_str()).collect();
        assert_eq!((names, seen.strays.len()), (vec!["", "pv", "raw"], 0));
        assert!(seen.is_used(&record(), None).is_err() && seen.is_used(&raw, None).is_err());
        assert!(seen.is_used(&other, None).unwrap());
        assert!(layout.known().unwrap().unread.iter().any(|why| why.contains(&*devices.to_string_lossy())));
    }

    /// Those of one volume's name are in one directory.
    #[test]
    fn devices_that_cannot_be_listed_hold_up_those_of_their_name_only() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let other = Record { spec_name: "other".into(), volume_handle: "other".into(), ..record() };
        layout.note_use("u", &record(), Mode::Block).unwrap();
        layout.note_use("v", &other, Mode::Block).unwrap();
        let devices = layout.published_devices().join("pv");
        std::fs::remove_dir(&devices).unwrap();
        std::os::unix::fs::symlink(&devices, &devices).unwrap();
        let seen = layout.look(None).unwrap();
        assert!(seen.is_used(&other, None).unwrap() && !seen.is_used(&other, Some("v")).unwrap());
        assert!(seen.is_used(&record(), None).unwrap() && seen.is_used(&record(), Some("u")).is_err());
        assert!(layout.known().unwrap().unread.iter().any(|why| why.contains(&*devices.to_string_lossy())));
        assert_eq!(layout.pods().unwrap(), ["u", "v"].map(str::to_owned).into());
        // Each pod is told which its own are by its own links.
        for uid in ["u", "v"] {
            let seen = layout.look(Some(uid)).unwrap();
            assert_eq!((seen.found.len(), seen.strays.len(), seen.unread.len()), (1, 0, 0), "{uid}");
        }
    }

    fn other_named_pv() -> Record {
        Record { volume_handle: "other".into(), ..record() }
    }
}

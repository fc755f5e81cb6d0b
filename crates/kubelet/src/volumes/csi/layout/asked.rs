//! Stagings that drivers were asked for and that have not come to an end, as far as this node knows: the kubelet ended, or it gave
//! up waiting. The driver may stage the volume all the same, after everything else about it was undone and forgotten.
//!
//! A note is written before the call and removed with the answer. It is not synced: a machine that went down has no driver that is
//! still at it.

use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Layout, Mode, Record, TAKING, names};
use crate::volumes::kernel::Linux;
use crate::volumes::mounts;
use crate::volumes::records::{self, is_absent};

/// A staging that may come still.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) record: Record,
    pub(crate) mode: Mode,
    /// When the driver was asked last.
    pub(crate) since: Timestamp,
    /// It has come.
    pub(crate) is_mounted: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    #[serde(flatten)]
    record: Record,
    is_block: bool,
    since: Timestamp,
}

impl Layout {
    fn notes(&self) -> PathBuf {
        self.root.join("csi_stagings")
    }

    fn note(&self, record: &Record, mode: Mode) -> PathBuf {
        let hash = Sha256::digest(format!("{mode:?} {}", record.unique_name()));
        self.notes().join(format!("{hash:x}.json"))
    }

    /// Notes that a driver is about to be asked to stage a volume. Says whether no answer is missing of an earlier call.
    pub(crate) fn note_asked(&self, record: &Record, mode: Mode, since: Timestamp) -> io::Result<bool> {
        let path = self.note(record, mode);
        let is_first = !path.try_exists()?;
        std::fs::create_dir_all(self.notes())?;
        let note = Note { record: record.clone(), is_block: mode == Mode::Block, since };
        let new = path.with_extension(records::UNFINISHED);
        std::fs::write(&new, serde_json::to_vec(&note).map_err(io::Error::other)?)?;
        std::fs::rename(&new, &path)?;
        Ok(is_first)
    }

    /// The driver has answered, and nothing comes any more.
    pub(crate) fn forget_asked(&self, record: &Record, mode: Mode) -> io::Result<()> {
        records::remove(&self.note(record, mode))
    }

    /// Nothing has come for long, unless the driver was asked again.
    pub(crate) fn give_up(&self, record: &Record, mode: Mode, since: Timestamp) -> io::Result<()> {
        let path = self.note(record, mode);
        match records::find::<Note>(&path)?.is_some_and(|note| note.since == since) {
            true => records::remove(&path),
            false => Ok(()),
        }
    }

    pub(crate) fn is_asked(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        self.note(record, mode).try_exists()
    }

    /// Whether the place of a volume is another's by now: devices are staged by name.
    fn is_of_another(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        let there = Record::find(&self.staging_record(record, mode))?;
        Ok(there.is_some_and(|there| there.unique_name() != record.unique_name()))
    }

    /// Takes a volume's place before it is unstaged there: no other of its name comes meanwhile. Says whether none was there.
    pub(crate) fn claim(&self, record: &Record, mode: Mode) -> io::Result<bool> {
        // File systems have places of their own.
        if mode == Mode::Filesystem {
            return Ok(true);
        }
        let _taking = TAKING.lock();
        let is_free = !self.is_of_another(record, mode)?;
        if is_free {
            record.write(&self.staging_record(record, mode))?;
        }
        Ok(is_free)
    }

    /// All stagings that may come still, as far as that can be told.
    pub(crate) fn asked(&self) -> io::Result<Vec<Asked>> {
        let mut all = Vec::new();
        for name in names(&self.notes())?.into_iter().filter(|name| !name.ends_with(records::UNFINISHED)) {
            let path = self.notes().join(name);
            match self.asked_for(&path) {
                Ok(asked) => all.extend(asked),
                Err(error) => tracing::warn!(path = %path.display(), %error, "note of a staging not read"),
            }
        }
        Ok(all)
    }

    /// What a note says; none if it is gone.
    fn asked_for(&self, note: &Path) -> io::Result<Option<Asked>> {
        let text = match records::text(note) {
            Err(error) if is_absent(&error) => return Ok(None),
            text => text?,
        };
        let Ok(Note { record, is_block, since }) = serde_json::from_slice(&text) else {
            // The machine went down: whoever was asked is gone.
            tracing::warn!(path = %note.display(), "a damaged note of a staging is removed");
            records::remove(note)?;
            return Ok(None);
        };
        let mode = if is_block { Mode::Block } else { Mode::Filesystem };
        let is_mounted =
            !self.is_of_another(&record, mode)? && mounts::is_mounted_at(&Linux, &self.staging(&record, mode))?;
        Ok(Some(Asked { record, mode, since, is_mounted }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::record;
    use super::*;

    #[test]
    fn what_was_asked_for_is_known_until_it_is_answered() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        assert!(layout.asked().unwrap().is_empty());
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for mode in [Mode::Filesystem, Mode::Block] {
            assert!(layout.note_asked(&record(), mode, since).unwrap());
            assert!(!layout.note_asked(&record(), mode, since).unwrap(), "an answer is missing");
            let asked = layout.asked().unwrap().pop().unwrap();
            assert_eq!((asked.record, asked.mode, asked.since, asked.is_mounted), (record(), mode, since, false));
            assert!(layout.is_asked(&record(), mode).unwrap());
            // All else is forgotten, and the volume comes.
            let staging = layout.staging(&record(), mode);
            mounts::tmpfs(&Linux, &staging, None).unwrap();
            let is_mounted = layout.asked().unwrap()[0].is_mounted;
            nix::mount::umount(&staging).unwrap();
            assert!(is_mounted);
            let later = since + jiff::SignedDuration::from_hours(1);
            layout.give_up(&record(), mode, later).unwrap();
            assert_eq!(layout.asked().unwrap().len(), 1, "the driver was asked again");
            match mode {
                Mode::Filesystem => layout.forget_asked(&record(), mode).unwrap(),
                Mode::Block => layout.give_up(&record(), mode, since).unwrap(),
            }
            assert!(layout.asked().unwrap().is_empty() && !layout.is_asked(&record(), mode).unwrap());
        }
        layout.note_asked(&record(), Mode::Block, since).unwrap();
        std::fs::write(layout.note(&record(), Mode::Block), "").unwrap();
        assert!(layout.asked().unwrap().is_empty() && !layout.is_asked(&record(), Mode::Block).unwrap());
        // What is no note holds up nobody.
        std::fs::create_dir(layout.notes().join("directory.json")).unwrap();
        layout.note_asked(&record(), Mode::Block, since).unwrap();
        assert_eq!(layout.asked().unwrap().len(), 1);
    }

    /// Devices are staged by name: what a driver may be late with is not what is staged there by now.
    #[test]
    fn security_a_device_is_not_unstaged_for_another_of_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let layout = Layout { root: dir.path().into() };
        let other = Record { volume_handle: "other".into(), ..record() };
        let since: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        for mode in [Mode::Filesystem, Mode::Block] {
            layout.note_asked(&record(), mode, since).unwrap();
            layout.note_use("u", &other, mode).unwrap();
            layout.note_staging(&other, mode).unwrap();
            let staging = layout.staging(&other, mode);
            mounts::tmpfs(&Linux, &staging, None).unwrap();
            let is_mounted = layout.asked().unwrap()[0].is_mounted;
            nix::mount::umount(&staging).unwrap();
            assert!(!is_mounted, "{mode:?}");
            assert_eq!(layout.claim(&record(), mode).unwrap(), mode == Mode::Filesystem);
            assert!(layout.is_staged(&other, mode).unwrap());
            layout.forget_use("u", "pv", mode).unwrap();
            layout.forget_staging(&other, mode).unwrap();
            layout.forget_asked(&record(), mode).unwrap();
        }
        // Nor does another come while it is unstaged.
        assert!(layout.claim(&record(), Mode::Block).unwrap());
        assert!(layout.note_use("u", &other, Mode::Block).is_err());
        layout.forget_staging(&record(), Mode::Block).unwrap();
        layout.note_use("u", &other, Mode::Block).unwrap();
    }
}

//! Folders on disk: volumes and snapshots, each complete or not there. Blocking.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::sort::CompactSort as _;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::unistd::syncfs;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// What is kept beside the files of a volume.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Volume {
    pub(crate) capacity: i64,
    /// `volume/<id>` or `snapshot/<id>`, if it began as a copy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) source: Option<String>,
    /// That limits it, if it was made where the file system has project quotas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) project: Option<u32>,
}

/// What is kept beside the files of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    pub(crate) volume: String,
    pub(crate) size: i64,
    pub(crate) created_nanos: i64,
}

const ABOUT: &str = "about.json";

#[derive(Clone, Debug)]
pub(crate) struct Folders(PathBuf);

impl Folders {
    pub(crate) fn open(dir: &Path) -> io::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        std::fs::create_dir_all(dir)?;
        // What is inside belongs to pods, and not to every user of the machine.
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o700))?;
        let folders = Folders(dir.to_path_buf());
        // Begun or half removed when the process before ended.
        for name in folders.names()? {
            if name.starts_with('.') {
                unmount(&dir.join(&name).join(SOURCE));
                // What cannot be removed holds up nobody but whoever asks for the same again.
                if let Err(error) = files::remove_tree(&dir.join(&name)) {
                    tracing::warn!(dir = %dir.display(), name, %error, "what is left of a folder not removed");
                }
            }
        }
        Ok(folders)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        std::fs::read_dir(&self.0)?
            .map(|entry| entry.map(|entry| entry.file_name().to_string_lossy().into_owned()))
            .collect()
    }

    pub(crate) fn data(&self, id: &str) -> PathBuf {
        self.0.join(id).join("data")
    }

    /// What is kept beside the files.
    pub(crate) fn about(&self, id: &str) -> PathBuf {
        self.0.join(id).join(ABOUT)
    }

    pub(crate) fn get<T: DeserializeOwned>(&self, id: &str) -> io::Result<Option<T>> {
        match std::fs::read(self.about(id)) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All by name whose record can be read: one that is damaged holds up nobody else.
    pub(crate) fn list_readable<T: DeserializeOwned>(&self) -> io::Result<Vec<(String, T)>> {
        let readable = self.each()?.into_iter().filter_map(|(name, about)| match about {
            Ok(about) => Some((name, about)),
            Err(error) => {
                tracing::warn!(path = %self.about(&name).display(), %error, "record of a folder not read");
                None
            }
        });
        Ok(readable.collect())
    }

    /// All by name, with what is kept beside their files.
    fn each<T: DeserializeOwned>(&self) -> io::Result<Vec<(String, io::Result<T>)>> {
        let mut names = self.names()?;
        names.retain(|name| !name.starts_with('.'));
        names.compact_sort();
        let all = names.into_iter().filter_map(|name| {
            let about = self.get(&name).transpose()?;
            Some((name, about))
        });
        Ok(all.collect())
    }

    /// Makes a folder, with a copy of another's files in it. It is there as a whole or not at all, also after a power failure:
    /// whoever asked for it tells others that it is. `prepare` gets the place of the files while nothing is in it.
    pub(crate) fn make<T: Serialize>(
        &self,
        id: &str,
        about: &T,
        from: Option<&Path>,
        prepare: impl FnOnce(&Path) -> io::Result<()>,
    ) -> io::Result<()> {
        let new = self.0.join(format!(".{id}.new"));
        clear(&new)?;
        let made = fill(&new, about, from, prepare).and_then(|()| std::fs::rename(&new, self.0.join(id)));
        // A copy that the disk has no room for does not keep the disk full.
        if made.is_err()
            && let Err(error) = clear(&new)
        {
            tracing::warn!(path = %new.display(), %error, "half a copy stays until the next try");
        }
        made.and_then(|()| sync_dir(&self.0))
    }

    pub(crate) fn update<T: Serialize>(&self, id: &str, about: &T) -> io::Result<()> {
        let path = self.about(id);
        let text = serde_json::to_vec(about).map_err(io::Error::other)?;
        files::replace_by(path.with_extension("new"), &path, &text, 0o644)
    }

    /// Removes a folder; one that is not there is removed already.
    pub(crate) fn remove(&self, id: &str) -> io::Result<()> {
        let old = self.0.join(format!(".{id}.old"));
        files::remove_tree(&old)?;
        match std::fs::rename(self.0.join(id), &old) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other?,
        }
        // What was said to be gone does not come back.
        sync_dir(&self.0)?;
        files::remove_tree(&old)
    }
}

/// Removes what is left of an earlier try.
fn clear(new: &Path) -> io::Result<()> {
    unmount(&new.join(SOURCE));
    files::remove_tree(new)
}

fn fill<T: Serialize>(
    new: &Path,
    about: &T,
    from: Option<&Path>,
    prepare: impl FnOnce(&Path) -> io::Result<()>,
) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let data = new.join("data");
    std::fs::create_dir_all(&data)?;
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o777))?;
    prepare(&data)?;
    if let Some(from) = from {
        let source = new.join(SOURCE);
        std::fs::create_dir(&source)?;
        let copied = without_links(from, &source).and_then(|()| copy(&source, &data));
        unmount(&source);
        copied?;
        std::fs::remove_dir(&source)?;
        // All of its files at once, and an error of any that the disk did not take.
        syncfs(File::open(&data)?)?;
    }
    write(&new.join(ABOUT), about)?;
    sync_dir(new)
}

/// Makes names durable that were created, renamed or removed.
fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

fn write<T: Serialize>(path: &Path, about: &T) -> io::Result<()> {
    use std::io::Write;
    let mut file = File::create(path)?;
    file.write_all(&serde_json::to_vec(about).map_err(io::Error::other)?)?;
    file.sync_all()
}

/// Where a folder that is being copied is seen while that lasts.
const SOURCE: &str = "from";

/// Shows a folder at another place, where it cannot be changed and no link in it is followed: a pod may exchange folders for links
/// while root copies them.
fn without_links(from: &Path, at: &Path) -> io::Result<()> {
    let none = None::<&str>;
    mount(Some(from), at, none, MsFlags::MS_BIND, none)?;
    let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY | files::NO_LINKS;
    Ok(mount(none, at, none, flags, none)?)
}

/// Nothing is mounted there as a rule.
fn unmount(at: &Path) {
    let _ = umount2(at, MntFlags::MNT_DETACH);
}

/// Files with owners, modes, links, times and attributes; blocks are shared where the file system can.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let output = Command::new("cp")
        .args(["-a", "--reflink=auto", "--"])
        .arg(from.join("."))
        .arg(to)
        .stdin(Stdio::null())
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_string())),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_copy_that_fills_the_disk_does_not_stay() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, source) = (dir.path().join("disk"), dir.path().join("source"));
        std::fs::create_dir(&disk).unwrap();
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("file"), vec![7; 2 << 20]).unwrap();
        mount(Some("tmpfs"), &disk, Some("tmpfs"), MsFlags::empty(), Some("size=1m")).unwrap();
        let folders = Folders::open(&disk).unwrap();
        let made = folders.make("one", &Volume::default(), Some(&source), |_| Ok(()));
        let left = folders.names();
        umount2(&disk, MntFlags::empty()).unwrap();
        assert!(made.is_err());
        assert_eq!(left.unwrap(), [""; 0]);
    }
}

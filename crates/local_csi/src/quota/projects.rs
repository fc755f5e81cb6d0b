//! Which project a volume has, and what is asked of the kernel when.

use std::fmt::Debug;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Projects of ours begin here: `/etc/projects` and the kubelet's own choose lower ones.
const FIRST: u32 = 1 << 30;
const COUNT: u32 = 1 << 30;
/// How many are looked at until one is free.
const MAX_TRIES: u32 = 1024;

/// What the files of a project take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
}

/// What a kernel does; tests have another.
pub(crate) trait Quotas: Debug + Send + Sync {
    /// Whether the file system of a directory counts projects.
    fn are_on(&self, dir: &Path) -> io::Result<bool>;
    fn usage(&self, dir: &Path, project: u32) -> io::Result<Usage>;
    /// No more than so many bytes; none is no limit.
    fn set_limit(&self, dir: &Path, project: u32, bytes: Option<u64>) -> io::Result<()>;
    /// Makes an empty directory the project's, with all that will be made in it.
    fn assign(&self, dir: &Path, project: u32) -> io::Result<()>;
}

/// The projects of the volumes below one directory.
#[derive(Clone, Debug)]
pub(crate) struct Projects {
    dir: PathBuf,
    quotas: Option<Arc<dyn Quotas>>,
}

impl Projects {
    pub(crate) fn open(dir: &Path, quotas: Arc<dyn Quotas>) -> io::Result<Self> {
        let quotas = quotas.are_on(dir)?.then_some(quotas);
        Ok(Projects { dir: dir.to_path_buf(), quotas })
    }

    /// Finds a project for a new volume and limits it. None where there are no quotas, and for a volume of no size.
    pub(crate) fn begin(&self, id: &str, capacity: i64, taken: &[u32]) -> io::Result<Option<u32>> {
        let (Some(quotas), Some(bytes)) = (&self.quotas, limit(capacity)) else { return Ok(None) };
        for project in candidates(id) {
            // One that has files is somebody's; one that has a limit only is left over from a volume that was never made.
            if !taken.contains(&project) && quotas.usage(&self.dir, project)? == Usage::default() {
                quotas.set_limit(&self.dir, project, Some(bytes))?;
                return Ok(Some(project));
            }
        }
        Err(io::Error::other(format!("no free project for volume {id}")))
    }

    pub(crate) fn assign(&self, dir: &Path, project: Option<u32>) -> io::Result<()> {
        match self.of(project) {
            Some((quotas, project)) => quotas.assign(dir, project),
            None => Ok(()),
        }
    }

    pub(crate) fn grow(&self, project: Option<u32>, capacity: i64) -> io::Result<()> {
        match self.of(project) {
            Some((quotas, project)) => quotas.set_limit(&self.dir, project, limit(capacity)),
            None => Ok(()),
        }
    }

    /// None if nobody has counted.
    pub(crate) fn usage(&self, project: Option<u32>) -> io::Result<Option<Usage>> {
        self.of(project).map(|(quotas, project)| quotas.usage(&self.dir, project)).transpose()
    }

    pub(crate) fn end(&self, project: Option<u32>) -> io::Result<()> {
        match self.of(project) {
            Some((quotas, project)) => quotas.set_limit(&self.dir, project, None),
            None => Ok(()),
        }
    }

    /// A volume keeps its project when the file system is mounted without quotas for a while.
    fn of(&self, project: Option<u32>) -> Option<(&Arc<dyn Quotas>, u32)> {
        self.quotas.as_ref().zip(project)
    }
}

/// To the kernel, nothing is no limit.
fn limit(capacity: i64) -> Option<u64> {
    u64::try_from(capacity).ok().filter(|bytes| *bytes > 0)
}

/// From where the volume's name says, so that most volumes have the first one.
fn candidates(id: &str) -> impl Iterator<Item = u32> {
    // FNV-1a.
    let hash = id.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (0..MAX_TRIES).map(move |step| FIRST + hash.wrapping_add(step) % COUNT)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use parking_lot::Mutex;

    use super::*;

    /// A file system that counts what it is told to.
    #[derive(Debug, Default)]
    pub(crate) struct Recorded {
        pub(crate) is_off: bool,
        pub(crate) limits: Mutex<BTreeMap<u32, u64>>,
        pub(crate) usage: Mutex<BTreeMap<u32, Usage>>,
        /// Of which nothing can be told.
        pub(crate) broken: Mutex<Option<u32>>,
        pub(crate) assigned: Mutex<Vec<(PathBuf, u32)>>,
    }

    impl Quotas for Recorded {
        fn are_on(&self, _: &Path) -> io::Result<bool> {
            Ok(!self.is_off)
        }

        fn usage(&self, _: &Path, project: u32) -> io::Result<Usage> {
            match *self.broken.lock() {
                Some(broken) if broken == project => Err(io::Error::other("broken")),
                _ => Ok(self.usage.lock().get(&project).copied().unwrap_or_default()),
            }
        }

        fn set_limit(&self, _: &Path, project: u32, bytes: Option<u64>) -> io::Result<()> {
            match bytes {
                Some(bytes) => self.limits.lock().insert(project, bytes),
                None => self.limits.lock().remove(&project),
            };
            Ok(())
        }

        fn assign(&self, dir: &Path, project: u32) -> io::Result<()> {
            assert_eq!(std::fs::read_dir(dir)?.count(), 0, "files that are there already would not be counted");
            self.assigned.lock().push((dir.to_path_buf(), project));
            Ok(())
        }
    }

    #[test]
    fn a_volume_gets_a_project_that_is_nobodys() {
        let recorded = Arc::new(Recorded::default());
        let projects = Projects::open(Path::new("/v"), recorded.clone()).unwrap();
        let first = projects.begin("pvc-1", 1 << 20, &[]).unwrap().unwrap();
        assert!(first >= FIRST, "{first}");
        assert_eq!(recorded.limits.lock().get(&first), Some(&(1 << 20)));
        // Of another volume, or with files of somebody's.
        let second = projects.begin("pvc-1", 1 << 20, &[first]).unwrap().unwrap();
        recorded.usage.lock().insert(second, Usage { bytes: 4096, inodes: 1 });
        let third = projects.begin("pvc-1", 1 << 20, &[first]).unwrap().unwrap();
        assert!(first != second && second != third && first != third);
        assert_eq!(projects.begin("pvc-2", 0, &[]).unwrap(), None, "a limit of nothing would be none");
        projects.end(Some(first)).unwrap();
        assert_eq!(recorded.limits.lock().get(&first), None);
    }

    #[test]
    fn without_quotas_nothing_is_asked() {
        let recorded = Arc::new(Recorded { is_off: true, ..Default::default() });
        let projects = Projects::open(Path::new("/v"), recorded.clone()).unwrap();
        assert_eq!(projects.begin("pvc-1", 1 << 20, &[]).unwrap(), None);
        projects.grow(Some(FIRST), 1 << 20).unwrap();
        projects.assign(Path::new("/"), Some(FIRST)).unwrap();
        assert_eq!(projects.usage(Some(FIRST)).unwrap(), None);
        assert!(recorded.limits.lock().is_empty() && recorded.assigned.lock().is_empty());
    }
}

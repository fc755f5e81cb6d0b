//! A kernel that mounts nothing, says what it was asked, and shows in its table what would be mounted.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::mount::{MntFlags, MsFlags};

use super::kernel::Kernel;

#[derive(Default)]
pub(super) struct Recorded {
    pub(super) calls: RefCell<Vec<String>>,
    pub(super) mounted: RefCell<Vec<PathBuf>>,
    /// What the next mounts answer; those after them succeed.
    pub(super) answers: RefCell<VecDeque<Errno>>,
    /// What cannot be unmounted.
    pub(super) busy: Option<PathBuf>,
}

impl Recorded {
    pub(super) fn calls(&self) -> Vec<String> {
        self.calls.take()
    }

    pub(super) fn mounted(&self) -> Vec<PathBuf> {
        self.mounted.borrow().clone()
    }
}

impl Kernel for Recorded {
    fn mount_table(&self) -> io::Result<Vec<u8>> {
        let line =
            |path: &PathBuf| format!("1 0 0:1 / {} rw - x x rw\n", path.display().to_string().replace(' ', "\\040"));
        Ok(self.mounted.borrow().iter().map(line).collect::<String>().into_bytes())
    }

    fn mount(
        &self,
        source: Option<&Path>,
        target: &Path,
        kind: Option<&str>,
        flags: MsFlags,
        data: Option<&str>,
    ) -> io::Result<()> {
        let source = source.map(|source| match source.starts_with("/proc/self/fd") {
            true => std::fs::read_link(source).unwrap().display().to_string(),
            false => source.display().to_string(),
        });
        let flags = Some(format!("{flags:?}")).filter(|_| !flags.is_empty());
        let flags = flags.map(|flags| flags.trim_start_matches("MsFlags(").trim_end_matches(')').to_owned());
        let words =
            [source, Some(target.display().to_string()), kind.map(str::to_owned), flags, data.map(str::to_owned)];
        self.calls.borrow_mut().push(format!("mount {}", words.into_iter().flatten().collect::<Vec<_>>().join(" ")));
        if let Some(errno) = self.answers.borrow_mut().pop_front() {
            return Err(errno.into());
        }
        self.mounted.borrow_mut().push(target.canonicalize()?);
        Ok(())
    }

    fn unmount(&self, target: &Path, _: MntFlags) -> io::Result<()> {
        self.calls.borrow_mut().push(format!("unmount {}", target.display()));
        if self.busy.as_deref() == Some(target) {
            return Err(Errno::EBUSY.into());
        }
        let mut mounted = self.mounted.borrow_mut();
        let at = mounted.iter().rposition(|path| path == target).ok_or(Errno::EINVAL)?;
        mounted.remove(at);
        Ok(())
    }
}

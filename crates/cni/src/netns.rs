//! Network namespaces: opened by path, entered for a moment by the calling thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::sched::{CloneFlags, setns};

use crate::netlink::Socket;

#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { file: File::open(path.as_ref())?, path: path.as_ref().to_owned() })
    }

    /// The namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Self::open("/proc/thread-self/ns/net")
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn is_same(&self, other: &Self) -> io::Result<bool> {
        use std::os::unix::fs::MetadataExt;
        let (mine, theirs) = (self.file.metadata()?, other.file.metadata()?);
        Ok((mine.dev(), mine.ino()) == (theirs.dev(), theirs.ino()))
    }

    /// Runs `work` with the calling thread inside. `work` must not await or hand work to other threads.
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        let home = Self::current()?;
        setns(&self.file, CloneFlags::CLONE_NEWNET)?;
        let value = work();
        // Staying inside would let the caller configure the wrong host.
        setns(&home.file, CloneFlags::CLONE_NEWNET).expect("the thread can return to the namespace it came from");
        Ok(value)
    }

    /// A netlink socket that speaks for this namespace from anywhere.
    pub fn socket(&self) -> io::Result<Socket> {
        self.enter(Socket::open)?
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Writes `/proc/sys/<name>` of the thread's namespace; slashes separate, since interface names may hold dots.
pub fn set_sysctl(name: &str, value: &str) -> io::Result<()> {
    let path = format!("/proc/sys/{name}");
    // Read first: in containers /proc/sys is often read-only yet already right.
    if std::fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
        return Ok(());
    }
    std::fs::write(&path, value)
        .map_err(|error| io::Error::new(error.kind(), format!("write {value} to {path}: {error}")))
}

pub fn sysctl(name: &str) -> io::Result<String> {
    Ok(std::fs::read_to_string(format!("/proc/sys/{name}"))?.trim().to_owned())
}

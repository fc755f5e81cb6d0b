//! Network namespaces: opened by path, entered for a moment by the calling thread.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, setns, unshare};

use netlink::Socket;

#[derive(Debug)]
pub struct Netns {
    file: File,
    path: PathBuf,
}

impl Netns {
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self { file: File::open(path.as_ref())?, path: path.as_ref().to_owned() })
    }

    /// Makes a namespace that lasts, whoever is inside, until [`Netns::remove`]: it is bound to `path`.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        File::create(path)?;
        // A thread of its own: nothing else of this process may change sides.
        let bind = || -> io::Result<()> {
            unshare(CloneFlags::CLONE_NEWNET)?;
            let none: Option<&str> = None;
            Ok(mount(Some("/proc/thread-self/ns/net"), path, none, MsFlags::MS_BIND, none)?)
        };
        std::thread::scope(|scope| scope.spawn(bind).join()).map_err(|_| io::Error::other("the thread panicked"))??;
        Self::open(path)
    }

    /// Lets go of a namespace that was kept at `path`; quiet when it is gone.
    pub fn remove(path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        match umount2(path, MntFlags::MNT_DETACH) {
            // Not mounted, or not there.
            Ok(()) | Err(nix::errno::Errno::EINVAL | nix::errno::Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether `path` keeps a namespace, rather than being an ordinary file or nothing.
    pub fn is_kept_at(path: impl AsRef<Path>) -> bool {
        nix::sys::statfs::statfs(path.as_ref()).is_ok_and(|fs| fs.filesystem_type() == nix::sys::statfs::NSFS_MAGIC)
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

    /// Moves the calling thread inside for good.
    pub fn enter_for_good(&self) -> io::Result<()> {
        Ok(setns(&self.file, CloneFlags::CLONE_NEWNET)?)
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

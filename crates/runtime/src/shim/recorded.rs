//! A kernel that does nothing and says what it was asked, so that tests need no privilege.

use std::cell::{Cell, RefCell};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use super::kernel::Kernel;
use super::rootfs::place;
use crate::rooted::Rooted;
use crate::sys;

/// Says what was asked, in one line a call. Places below the container's root are written `<path>`.
pub(crate) struct Recorded {
    pub(crate) root: PathBuf,
    pub(crate) calls: RefCell<Vec<String>>,
    pub(crate) is_entered: Cell<bool>,
    /// A call that begins so fails.
    pub(crate) failing: &'static str,
}

impl Recorded {
    pub(crate) fn new(root: &Path) -> Self {
        let root = root.canonicalize().unwrap();
        Self { root, calls: RefCell::default(), is_entered: Cell::new(false), failing: "none" }
    }

    pub(crate) fn note(&self, call: String) -> io::Result<()> {
        let fails = call.starts_with(self.failing);
        self.calls.borrow_mut().push(call);
        if fails { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
    }

    fn name(&self, path: &Path) -> String {
        let path = match path.starts_with("/proc/self/fd") {
            true => std::fs::read_link(path).unwrap(),
            false => path.to_path_buf(),
        };
        match path.strip_prefix(&self.root) {
            Ok(below) => format!("</{}>", below.display()),
            Err(_) => path.display().to_string(),
        }
    }

    fn name_of(&self, fd: BorrowedFd<'_>) -> String {
        self.name(&place(&fd))
    }

    pub(crate) fn calls(&self) -> Vec<String> {
        self.calls.take()
    }
}

impl Kernel for Recorded {
    fn mount(&self, source: &str, target: &Path, kind: &str, flags: u64, data: &str) -> io::Result<()> {
        let names = [
            (libc::MS_RDONLY, "ro"),
            (libc::MS_NOSUID, "nosuid"),
            (libc::MS_NODEV, "nodev"),
            (libc::MS_NOEXEC, "noexec"),
            (libc::MS_BIND, "bind"),
            (libc::MS_SLAVE, "slave"),
            (libc::MS_PRIVATE, "private"),
            (libc::MS_REC, "rec"),
        ];
        let flags: Vec<&str> = names.iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| *name).collect();
        let words = [source, &self.name(target), kind, &flags.join(","), data];
        let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
        self.note(format!("mount {}", words.join(" ")))
    }

    fn unmount(&self, target: &Path) -> io::Result<()> {
        self.note(format!("unmount {}", self.name(target)))
    }

    fn clone_mount(&self, path: &Path) -> io::Result<OwnedFd> {
        self.note(format!("clone {}", path.display()))?;
        sys::open_at(self.root()?.fd(), &sys::c_path(path)?, libc::O_PATH, 0)
    }

    fn clone_mount_at(&self, place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
        self.note(format!("clone {}", self.name_of(place)))?;
        place.try_clone_to_owned()
    }

    fn move_mount(&self, mount: BorrowedFd<'_>, place: BorrowedFd<'_>) -> io::Result<()> {
        self.note(format!("attach {} to {}", self.name_of(mount), self.name_of(place)))
    }

    fn set_propagation(&self, mount: BorrowedFd<'_>, propagation: u64) -> io::Result<()> {
        let names = [(libc::MS_PRIVATE, "private"), (libc::MS_SLAVE, "slave"), (libc::MS_SHARED, "shared")];
        let name = names.iter().find(|(flag, _)| *flag == propagation).unwrap().1;
        self.note(format!("{name} {}", self.name_of(mount)))
    }

    fn set_readonly(&self, mount: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
        let all = if recursive { "all below " } else { "" };
        self.note(format!("read-only {all}{}", self.name_of(mount)))
    }

    fn make_device(&self, directory: BorrowedFd<'_>, name: &CStr, _mode: u32, number: u64) -> io::Result<OwnedFd> {
        let (major, minor) = (libc::major(number), libc::minor(number));
        let made = std::fs::read_link(place(&directory))?.join(name.to_str().unwrap());
        self.note(format!("device {major}:{minor} {}", self.name(&made)))?;
        std::fs::File::create(made).map(Into::into)
    }

    fn set_mode(&self, device: &OwnedFd, mode: u32) -> io::Result<()> {
        self.note(format!("mode {mode:o} {}", self.name_of(device.as_fd())))
    }

    fn set_owner(&self, device: BorrowedFd<'_>, uid: u32, gid: u32) -> io::Result<()> {
        self.note(format!("owner {uid}:{gid} {}", self.name_of(device)))
    }

    fn enter(&self, directory: &Path) -> io::Result<()> {
        self.note(format!("enter {}", self.name(directory)))
    }

    fn enter_at(&self, directory: BorrowedFd<'_>) -> io::Result<()> {
        self.note(format!("enter {}", self.name_of(directory)))
    }

    fn pivot_root(&self) -> io::Result<()> {
        self.is_entered.set(true);
        self.note("pivot".into())
    }

    fn root(&self) -> io::Result<Rooted> {
        Rooted::open(if self.is_entered.get() { &self.root } else { Path::new("/") })
    }
}

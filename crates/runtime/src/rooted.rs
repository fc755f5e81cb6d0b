//! A directory that paths from outside cannot leave: image layers and container roots are walked only through this.
//!
//! The kernel resolves every path below the directory (`openat2`), so `..` and symbolic links of an image stay in it
//! even when they change under our feet.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path};

use crate::sys;
pub(crate) use crate::sys::Resolve;

pub(crate) struct Rooted {
    fd: OwnedFd,
}

impl Rooted {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(path)
            .map(|file| Self { fd: file.into() })
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// An `O_PATH` descriptor of what is at `path`.
    pub(crate) fn lookup(&self, path: &str, resolve: Resolve) -> io::Result<OwnedFd> {
        self.open_at(path, libc::O_PATH, resolve)
    }

    pub(crate) fn open_at(&self, path: &str, flags: i32, resolve: Resolve) -> io::Result<OwnedFd> {
        let relative = path.trim_start_matches('/');
        let relative = CString::new(if relative.is_empty() { "." } else { relative })?;
        sys::open_in_root(self.fd.as_fd(), &relative, flags, 0, resolve)
    }

    /// What is at `path`, made (with its parents) where it is missing: a directory, or an empty file.
    pub(crate) fn ensure(&self, path: &str, directory: bool, resolve: Resolve) -> io::Result<OwnedFd> {
        match self.lookup(path, resolve) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            result => return result,
        }
        let names: Vec<CString> = Path::new(path)
            .components()
            .filter_map(|c| match c {
                Component::Normal(name) => Some(sys::c_path(name)),
                _ => None,
            })
            .collect::<io::Result<_>>()?;
        let mut walked = String::from(".");
        let mut parent = self.lookup(".", resolve)?;
        for (index, name) in names.iter().enumerate() {
            walked.push('/');
            walked.push_str(name.to_str().map_err(io::Error::other)?);
            parent = match self.lookup(&walked, resolve) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    if directory || index + 1 < names.len() {
                        sys::mkdir_at(parent.as_fd(), name, 0o755)?;
                    } else {
                        sys::open_at(parent.as_fd(), name, libc::O_CREAT | libc::O_EXCL | libc::O_WRONLY, 0o644)?;
                    }
                    self.lookup(&walked, resolve)?
                }
                result => result?,
            };
        }
        Ok(parent)
    }
}

//! Pipes and terminals in tokio.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::unix::AsyncFd;

use crate::sys;

pub(super) struct AsyncPipe {
    fd: AsyncFd<OwnedFd>,
}

impl AsyncPipe {
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        sys::set_nonblocking(fd.as_fd())?;
        Ok(Self { fd: sys::watch_fd(fd)? })
    }

    /// Zero at the end. A terminal answers EIO once its last user is gone: that is its end.
    pub(super) async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        let result = self.fd.async_io(tokio::io::Interest::READABLE, |fd| sys::read(fd.as_fd(), buffer)).await;
        end_of_terminal(result)
    }

    /// What is there now; none if nothing is.
    pub(super) fn try_read(&self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        match end_of_terminal(sys::read(self.fd.get_ref().as_fd(), buffer)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            result => result.map(Some),
        }
    }

    pub(super) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let n = self.fd.async_io(tokio::io::Interest::WRITABLE, |fd| sys::write(fd.as_fd(), bytes)).await?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    pub(super) fn resize(&self, width: u16, height: u16) -> io::Result<()> {
        sys::set_window_size(self.fd.get_ref().as_fd(), width, height)
    }
}

fn end_of_terminal(result: io::Result<usize>) -> io::Result<usize> {
    match result {
        Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(0),
        result => result,
    }
}

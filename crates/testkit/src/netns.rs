//! Network namespaces for tests.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use nix::sched::{CloneFlags, setns, unshare};

/// A network namespace that lives as long as this does.
pub struct Namespace(File);

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Namespace {
    /// With nothing but a loopback that is down.
    pub fn new() -> Self {
        let inside = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            // Nobody else can have an address here, and nobody waits a second to find that out.
            for whose in ["all", "default"] {
                std::fs::write(format!("/proc/sys/net/ipv6/conf/{whose}/accept_dad"), "0").unwrap();
            }
            File::open("/proc/thread-self/ns/net").unwrap()
        };
        Self(std::thread::spawn(inside).join().unwrap())
    }

    /// Where other processes find it.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.0.as_raw_fd())
    }

    /// Runs `work` on a thread inside.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = || {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(inside).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

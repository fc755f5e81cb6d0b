//! The store's tests on real files, real processes and a real etcd. One binary: it links once.

#![allow(clippy::unwrap_used, reason = "tests")]

mod bad_input;
mod crash;
mod disk_full;
mod etcd;
mod foreign;
mod format;
mod kill;
mod linearizable;
mod members;
mod model;
mod peer;
mod suite;
mod transfer;
mod watch;

use std::path::Path;
use std::process::Command;
use store::EmbeddedStore;
use store::embedded::Options;

/// A directory in memory, for tests of logic that would otherwise wait for thousands of disk syncs.
fn memory_dir() -> tempfile::TempDir {
    match tempfile::tempdir_in("/dev/shm") {
        Ok(dir) => dir,
        Err(_) => tempfile::tempdir().unwrap(),
    }
}

fn open(dir: &Path) -> EmbeddedStore {
    EmbeddedStore::open(dir, Options::default()).unwrap()
}

/// Runs one test of this binary as a process of its own; `CHILD` tells it that it is one.
fn child(test: &str, argument: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(CHILD, argument);
    command
}

const CHILD: &str = "COX_STORE_TEST_CHILD";

fn child_argument() -> Option<std::path::PathBuf> {
    std::env::var_os(CHILD).map(Into::into)
}

//! Descriptors of this process: as many as it may have, and a few that connections never get.
//!
//! Containers get the limit that we were started with, not ours: there are programs that close, one by one, all
//! descriptors that they might have.

use std::os::fd::RawFd;
use std::sync::OnceLock;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// What stays for files of the store, for programs that are started and for connections that we make ourselves.
const RESERVED: usize = 256;
/// What the limit is taken for where it cannot be read; the usual one.
const USUAL: usize = 1024;

/// How processes of ours hand on the limit that the first of them was started with.
const STARTED_WITH: &str = "COX_DESCRIPTORS";

static BEFORE: OnceLock<u64> = OnceLock::new();

/// Raises the limit as far as it goes without more rights.
pub(crate) fn raise() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE).and_then(|(soft, hard)| {
        BEFORE.get_or_init(|| soft);
        match soft < hard {
            true => setrlimit(Resource::RLIMIT_NOFILE, hard, hard),
            false => Ok(()),
        }
    });
    if let Err(error) = raised {
        tracing::warn!(%error, "the limit of file descriptors stays as it was");
    }
}

/// The variable with which a process is started that calls [`restore`], or hands it on.
pub fn started_with() -> Option<(&'static str, String)> {
    let handed_on = std::env::var(STARTED_WITH).ok();
    Some((STARTED_WITH, handed_on.or_else(|| BEFORE.get().map(u64::to_string))?))
}

/// Goes back to the limit that our first process was started with.
pub fn restore() {
    let before = std::env::var(STARTED_WITH).ok().and_then(|limit| limit.parse::<u64>().ok());
    let (Some(before), Ok((_, hard))) = (before, getrlimit(Resource::RLIMIT_NOFILE)) else { return };
    if let Err(error) = setrlimit(Resource::RLIMIT_NOFILE, before.min(hard), hard) {
        tracing::warn!(%error, "the limit of file descriptors stays as it was");
    }
}

/// How many there can be.
pub(crate) fn limit() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(USUAL, |(soft, _)| usize::try_from(soft).unwrap_or(usize::MAX))
}

/// Whether a descriptor is among the last ones: at most an eighth of all.
pub(crate) fn is_reserved(descriptor: RawFd) -> bool {
    let limit = limit();
    usize::try_from(descriptor).is_ok_and(|number| number >= limit - RESERVED.min(limit / 8))
}

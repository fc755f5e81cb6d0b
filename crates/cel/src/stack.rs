//! Room for trees that are deeper than the stack of a worker should have to bear.

use std::thread;

/// So deep a tree any stack bears.
pub(crate) const SHALLOW: u32 = 40;
/// And so deep a stack with room: more than any one tree is.
pub(crate) const DEEP: u32 = 300;
/// Enough for that, even without optimization; only what is used becomes memory.
const ROOM: usize = 16 << 20;

/// Runs it on a thread with room. None if there is no such thread to be had.
pub(crate) fn with_room<T: Send>(run: impl FnOnce() -> T + Send) -> Option<T> {
    thread::scope(|scope| thread::Builder::new().stack_size(ROOM).spawn_scoped(scope, run).ok()?.join().ok())
}

/// No tree of this text can be deeper.
pub(crate) fn depth_of(source: &str) -> u32 {
    source.bytes().filter(|byte| b"([{?!-".contains(byte)).count() as u32
}

//! Room for trees that are deeper than the stack of a worker should have to bear.

use std::thread;

/// Up to here, any stack will do.
const SHALLOW: u32 = 40;
/// Enough for the deepest tree, even without optimization; only what is used becomes memory.
const ROOM: usize = 16 << 20;

/// Runs it here, or on a thread with room if the tree is deep. None if there is no such thread to be had.
pub(crate) fn with_room<T: Send>(depth: u32, run: impl FnOnce() -> T + Send) -> Option<T> {
    if depth <= SHALLOW {
        return Some(run());
    }
    thread::scope(|scope| thread::Builder::new().stack_size(ROOM).spawn_scoped(scope, run).ok()?.join().ok())
}

/// No tree of this text can be deeper.
pub(crate) fn depth_of(source: &str) -> u32 {
    source.bytes().filter(|byte| b"([{?!-".contains(byte)).count() as u32
}

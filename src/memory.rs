//! Which allocator a process uses, by its role.
//!
//! Servers make and drop thousands of small values per request, which mimalloc does in less time than glibc. What
//! starts often or stays once per pod (kubectl, plug-ins, shims, the runtime) wants few pages instead, and glibc's
//! allocator touches fewer. The choice falls before the first allocation and never changes: memory goes back to
//! where it came from.

#![allow(unsafe_code, reason = "an allocator and a look at argv before main; every block states why it is sound")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use mimalloc::MiMalloc;

/// The components that serve many requests for long, by name.
const SERVERS: &[&[u8]] =
    &[b"up", b"join", b"apiserver", b"controller-manager", b"scheduler", b"kubelet", b"gateway", b"sim"];

pub(crate) struct ByRole;

static SERVES: AtomicBool = AtomicBool::new(false);

// SAFETY: every call goes on unchanged to one allocator, the same for the life of the process.
unsafe impl GlobalAlloc for ByRole {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are those that the allocator behind asks for; so in the three below.
        let at = unsafe { if serves() { MiMalloc.alloc(layout) } else { System.alloc(layout) } };
        profile::heap::allocated(at, layout.size());
        at
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        let at = unsafe { if serves() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) } };
        profile::heap::allocated(at, layout.size());
        at
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        profile::heap::freed(at);
        // SAFETY: as in `alloc`.
        unsafe { if serves() { MiMalloc.dealloc(at, layout) } else { System.dealloc(at, layout) } }
    }

    #[inline]
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        profile::heap::freed(at);
        // SAFETY: as in `alloc`.
        let moved =
            unsafe { if serves() { MiMalloc.realloc(at, layout, size) } else { System.realloc(at, layout, size) } };
        profile::heap::allocated(moved, size);
        moved
    }
}

#[inline]
fn serves() -> bool {
    SERVES.load(Ordering::Relaxed)
}

/// Run by the C library before `main` and so before anything allocates, with the arguments of `main`.
#[cfg(target_env = "gnu")]
#[used]
// SAFETY: the section holds pointers to functions of exactly this type.
#[unsafe(link_section = ".init_array")]
static CHOOSE: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = choose;

#[cfg(target_env = "gnu")]
extern "C" fn choose(count: c_int, argv: *const *const c_char, _: *const *const c_char) {
    let argument = |at: usize| {
        // SAFETY: glibc passes `count` pointers to strings that live as long as the process.
        (at < count as usize).then(|| unsafe { CStr::from_ptr(*argv.add(at)) }.to_bytes())
    };
    let called_as = argument(0).and_then(|path| path.rsplit(|byte| *byte == b'/').next());
    let server = |name: Option<&[u8]>| name.is_some_and(|name| SERVERS.contains(&name));
    SERVES.store(server(called_as) || server(argument(1)), Ordering::Relaxed);
}

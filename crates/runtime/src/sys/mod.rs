//! The kernel calls that have no safe wrapper in std, each as a small safe function.
//!
//! Everything unsafe in this crate is here. The rest of the crate reads as ordinary Rust.
#![allow(unsafe_code, reason = "raw system calls; every block states why it is sound")]

mod descriptors;
mod device_filter;
mod files;
mod identity;
mod mounts;
mod network;
mod processes;
mod program;
mod terminals;

pub(crate) use descriptors::*;
pub(crate) use device_filter::*;
pub(crate) use files::*;
pub(crate) use identity::*;
pub(crate) use mounts::*;
pub(crate) use network::*;
pub(crate) use processes::*;
pub(crate) use program::*;
pub(crate) use terminals::*;

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Turns a C return value into a result.
fn cvt(value: i64) -> io::Result<i64> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}

pub(crate) fn c_path(path: impl AsRef<Path>) -> io::Result<CString> {
    CString::new(path.as_ref().as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path contains a NUL byte"))
}

fn c_str(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "string contains a NUL byte"))
}

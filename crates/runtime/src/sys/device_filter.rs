//! Programs that decide which devices a cgroup may use.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use super::cvt;

/// Arguments of `bpf(BPF_PROG_LOAD)`, as far as they are used here.
#[repr(C)]
struct LoadProgram {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log: [u64; 2],
    rest: [u64; 12],
}

/// Hands an eBPF program for `BPF_PROG_TYPE_CGROUP_DEVICE` to the kernel, which checks it.
pub(crate) fn load_device_filter(program: &[u64]) -> io::Result<OwnedFd> {
    const BPF_PROG_LOAD: i64 = 5;
    const CGROUP_DEVICE: u32 = 15;
    let arguments = LoadProgram {
        kind: CGROUP_DEVICE,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: c"Apache-2.0".as_ptr() as u64,
        log: [0; 2],
        rest: [0; 12],
    };
    let size = size_of::<LoadProgram>();
    // SAFETY: the arguments and what they point to outlive the call, which only reads them.
    let fd = cvt(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_LOAD, &raw const arguments, size) })?;
    // SAFETY: the kernel has just made this descriptor for us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) })
}

/// Attaches such a program to a cgroup of version 2.
pub(crate) fn attach_device_filter(cgroup: BorrowedFd<'_>, program: BorrowedFd<'_>) -> io::Result<()> {
    const BPF_PROG_ATTACH: i64 = 8;
    const CGROUP_DEVICE: u32 = 6;
    const ALLOW_MULTI: u32 = 2;
    let arguments = [cgroup.as_raw_fd() as u32, program.as_raw_fd() as u32, CGROUP_DEVICE, ALLOW_MULTI];
    let size = size_of_val(&arguments);
    // SAFETY: four plain numbers that outlive the call.
    cvt(unsafe { libc::syscall(libc::SYS_bpf, BPF_PROG_ATTACH, arguments.as_ptr(), size) }).map(drop)
}

//! Who a process is and what it may do: users, capabilities, seccomp.

use std::io;

use super::cvt;

pub(crate) fn set_identity(uid: u32, gid: u32, groups: &[u32]) -> io::Result<()> {
    // SAFETY: the pointer and length describe `groups`; single-threaded, so raw calls cover the whole process.
    unsafe {
        cvt(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
        cvt(libc::syscall(libc::SYS_setresgid, gid, gid, gid))?;
        cvt(libc::syscall(libc::SYS_setresuid, uid, uid, uid))?;
    }
    Ok(())
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct CapData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

/// The permitted capabilities of this process, as a bit mask.
pub(crate) fn permitted_capabilities() -> io::Result<u64> {
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    let mut data = [CapData::default(); 2];
    // SAFETY: version 3 of the interface fills two data elements.
    cvt(unsafe { libc::syscall(libc::SYS_capget, &header, data.as_mut_ptr()) })?;
    Ok(u64::from(data[0].permitted) | u64::from(data[1].permitted) << 32)
}

pub(crate) fn set_capabilities(effective: u64, permitted: u64, inheritable: u64) -> io::Result<()> {
    let header = CapHeader { version: 0x2008_0522, pid: 0 };
    let half = |shift: u32| CapData {
        effective: (effective >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 of the interface reads two data elements.
    cvt(unsafe { libc::syscall(libc::SYS_capset, &header, data.as_ptr()) }).map(drop)
}

/// Installs a seccomp filter given as raw `sock_filter` instructions of eight bytes each.
pub(crate) fn set_seccomp(program: &[u8]) -> io::Result<()> {
    let filters: Vec<libc::sock_filter> = program
        .chunks_exact(8)
        .map(|i| libc::sock_filter {
            code: u16::from_ne_bytes([i[0], i[1]]),
            jt: i[2],
            jf: i[3],
            k: u32::from_ne_bytes([i[4], i[5], i[6], i[7]]),
        })
        .collect();
    let prog = libc::sock_fprog { len: filters.len() as u16, filter: filters.as_ptr().cast_mut() };
    const SECCOMP_SET_MODE_FILTER: u32 = 1;
    // SAFETY: `prog` points at `filters`, which outlives the call; the kernel copies and checks it.
    cvt(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0u32, &prog) }).map(drop)
}

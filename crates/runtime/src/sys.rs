//! The kernel calls that have no safe wrapper in std, each as a small safe function.
//!
//! Everything unsafe in this crate is here. The rest of the crate reads as ordinary Rust.
#![allow(unsafe_code, reason = "raw system calls; every block states why it is sound")]

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
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

// ---- processes ----

/// Result of [`clone_process`]: which side of the fork this is.
pub(crate) enum Fork {
    Parent(i32),
    Child,
}

/// `fork` with namespace flags. Only the single-threaded shim may call this: the child keeps running Rust code.
pub(crate) fn clone_process(flags: i32) -> io::Result<Fork> {
    // SAFETY: a null stack with no CLONE_VM is a plain fork; the caller is single-threaded, so no lock is
    // held by another thread in the child's copy of memory.
    let pid = cvt(unsafe {
        libc::syscall(libc::SYS_clone, (flags | libc::SIGCHLD) as libc::c_ulong, 0usize, 0usize, 0usize, 0usize)
    })?;
    Ok(match pid {
        0 => Fork::Child,
        pid => Fork::Parent(pid as i32),
    })
}

/// Ends this process at once: no destructors, no flushing of buffers shared with the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: _exit never returns and touches no memory of ours.
    unsafe { libc::_exit(code) }
}

pub(crate) fn setns(fd: BorrowedFd<'_>, kind: i32) -> io::Result<()> {
    // SAFETY: plain call on an open descriptor.
    cvt(unsafe { libc::setns(fd.as_raw_fd(), kind) }.into()).map(drop)
}

pub(crate) fn unshare(flags: i32) -> io::Result<()> {
    // SAFETY: plain call.
    cvt(unsafe { libc::unshare(flags) }.into()).map(drop)
}

pub(crate) fn setsid() -> io::Result<()> {
    // SAFETY: plain call.
    cvt(unsafe { libc::setsid() }.into()).map(drop)
}

pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: plain call.
    cvt(unsafe { libc::kill(pid, signal) }.into()).map(drop)
}

/// How a child ended: its exit code, or 128 + signal as shells count it.
pub(crate) struct Reaped {
    pub(crate) pid: i32,
    pub(crate) code: i32,
}

/// Reaps one ended child, if there is one.
pub(crate) fn reap() -> Option<Reaped> {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    let pid = unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG) };
    (pid > 0).then(|| Reaped {
        pid,
        code: if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) },
    })
}

/// Waits for one particular child.
pub(crate) fn wait_for(pid: i32) -> i32 {
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return -1;
        }
    }
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

pub(crate) fn prctl(option: i32, a: u64, b: u64) -> io::Result<i32> {
    // SAFETY: only integer options are used through this wrapper.
    cvt(unsafe { libc::prctl(option, a, b, 0u64, 0u64) }.into()).map(|v| v as i32)
}

/// The most that this process may have of memory of its own, now and later: more is refused to whoever asks for it.
pub(crate) fn limit_memory(bytes: u64) -> io::Result<()> {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: the kernel reads the structure, which outlives the call.
    cvt(unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) }.into()).map(drop)
}

pub(crate) fn set_process_name(name: &str) {
    if let Ok(name) = c_str(name) {
        // SAFETY: the kernel copies at most 16 bytes of a NUL-terminated string.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr(), 0, 0, 0) };
    }
}

/// What `ps` shows for this process, cut to the room that its first command line had. A courtesy: failing is fine.
pub(crate) fn set_command_line(words: &[&str]) {
    let Ok(stat) = std::fs::read_to_string("/proc/self/stat") else { return };
    // The name, in parentheses, may contain anything; fields are counted after it.
    let Some((_, rest)) = stat.rsplit_once(')') else { return };
    let field = |number: usize| rest.split_whitespace().nth(number - 3).and_then(|text| text.parse::<usize>().ok());
    let (Some(start), Some(end)) = (field(48), field(49)) else { return };
    let mut line = words.join("\0").into_bytes();
    line.truncate(end.saturating_sub(start).saturating_sub(1));
    line.resize(end.saturating_sub(start), 0);
    // SAFETY: the kernel put our own arguments there, on this process's stack, writable and of exactly this length;
    // nothing refers to them any more: std copied what `main` needed, and this process has no other thread.
    unsafe { std::ptr::copy_nonoverlapping(line.as_ptr(), start as *mut u8, line.len()) };
}

/// Blocks `signals` for this thread and returns a descriptor that reads them.
pub(crate) fn signal_fd(signals: &[i32]) -> io::Result<OwnedFd> {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before it is used; the descriptor is fresh and owned here.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in signals {
            libc::sigaddset(set.as_mut_ptr(), *signal);
        }
        cvt(libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()).into())?;
        let fd = cvt(libc::signalfd(-1, set.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK).into())?;
        Ok(OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Gives a fresh child the signal state a program expects: nothing blocked, default dispositions.
pub(crate) fn reset_signals() {
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the set is initialised before use; SIG_DFL is always a valid disposition.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigprocmask(libc::SIG_SETMASK, set.as_ptr(), std::ptr::null_mut());
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
    }
}

/// Our allocator turns transparent huge pages off for itself; a program that we become decides anew.
pub(crate) fn reset_huge_pages() {
    // Kernels without them have nothing to reset.
    let _ = prctl(libc::PR_SET_THP_DISABLE, 0, 0);
}

pub(crate) fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN is always a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

pub(crate) fn umask(mask: u32) {
    // SAFETY: plain call.
    unsafe { libc::umask(mask) };
}

/// Replaces this process. Returns only on failure.
pub(crate) fn exec(program: &CStr, args: &[CString], env: &[CString]) -> io::Error {
    let vector = |list: &[CString]| -> Vec<*const libc::c_char> {
        list.iter().map(|s| s.as_ptr()).chain(std::iter::once(std::ptr::null())).collect()
    };
    let (argv, envp) = (vector(args), vector(env));
    // SAFETY: both vectors end in null and their strings outlive the call.
    unsafe { libc::execve(program.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}

/// Marks every descriptor above stdio close-on-exec, whoever opened it.
pub(crate) fn close_on_exec_from(first: u32) -> io::Result<()> {
    const CLOSE_RANGE_CLOEXEC: u32 = 4;
    // SAFETY: changes flags of descriptors only.
    let result = cvt(unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, CLOSE_RANGE_CLOEXEC) });
    match result {
        Ok(_) => Ok(()),
        // Before Linux 5.11: one by one.
        Err(_) => {
            for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
                if let Some(fd) = entry.file_name().to_str().and_then(|n| n.parse::<i32>().ok())
                    && fd >= first as i32
                {
                    // SAFETY: sets a flag; a stale number only yields EBADF.
                    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
                }
            }
            Ok(())
        }
    }
}

/// Closes every descriptor from `first` on. Only for a fresh child that owns none of them as Rust values.
pub(crate) fn close_from(first: u32) {
    // SAFETY: the caller is about to use no descriptor from this range again.
    unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0u32) };
}

// ---- identity ----

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

// ---- files and mounts ----

/// Options of [`open_in_root`], as in openat2(2).
#[derive(Clone, Copy)]
pub(crate) struct Resolve(u64);

impl Resolve {
    /// Symbolic links and `..` stay inside the root directory.
    pub(crate) const IN_ROOT: Self = Self(0x10 | 0x02);
    /// No symbolic link at all, and nothing above the root directory.
    pub(crate) const NO_SYMLINKS: Self = Self(0x08 | 0x04 | 0x02);
}

#[repr(C)]
struct OpenHow {
    flags: u64,
    mode: u64,
    resolve: u64,
}

/// Opens `path` as seen from the directory `root`, never leaving it.
pub(crate) fn open_in_root(
    root: BorrowedFd<'_>,
    path: &CStr,
    flags: i32,
    mode: u32,
    resolve: Resolve,
) -> io::Result<OwnedFd> {
    let how = OpenHow { flags: (flags | libc::O_CLOEXEC) as u64, mode: u64::from(mode), resolve: resolve.0 };
    loop {
        // SAFETY: `how` matches the size passed; the descriptor returned is fresh and owned here.
        let result = unsafe {
            cvt(libc::syscall(libc::SYS_openat2, root.as_raw_fd(), path.as_ptr(), &how, size_of::<OpenHow>()))
                .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
        };
        match result {
            // A concurrent rename made the walk uncertain: the kernel asks to try again.
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => {}
            result => return result,
        }
    }
}

pub(crate) fn open_at(dir: BorrowedFd<'_>, name: &CStr, flags: i32, mode: u32) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::openat(dir.as_raw_fd(), name.as_ptr(), flags | libc::O_CLOEXEC, mode).into())
            .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

pub(crate) fn mkdir_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::mkdirat(dir.as_raw_fd(), name.as_ptr(), mode) }.into()).map(drop)
}

pub(crate) fn mknod_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32, device: u64) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::mknodat(dir.as_raw_fd(), name.as_ptr(), mode, device) }.into()).map(drop)
}

pub(crate) fn symlink_at(target: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated names.
    cvt(unsafe { libc::symlinkat(target.as_ptr(), dir.as_raw_fd(), name.as_ptr()) }.into()).map(drop)
}

pub(crate) fn link_at(from_dir: BorrowedFd<'_>, from: &CStr, dir: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated names; no flags, so a symbolic link is linked, not followed.
    cvt(unsafe { libc::linkat(from_dir.as_raw_fd(), from.as_ptr(), dir.as_raw_fd(), name.as_ptr(), 0) }.into())
        .map(drop)
}

pub(crate) fn unlink_at(dir: BorrowedFd<'_>, name: &CStr, flags: i32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::unlinkat(dir.as_raw_fd(), name.as_ptr(), flags) }.into()).map(drop)
}

/// Owner of an entry itself, not of what a symbolic link points to.
pub(crate) fn chown_at(dir: BorrowedFd<'_>, name: &CStr, uid: u32, gid: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe {
        libc::fchownat(
            dir.as_raw_fd(),
            name.as_ptr(),
            uid,
            gid,
            libc::AT_SYMLINK_NOFOLLOW | if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 },
        )
    }
    .into())
    .map(drop)
}

/// Mode of an entry that is not a symbolic link.
pub(crate) fn chmod_at(dir: BorrowedFd<'_>, name: &CStr, mode: u32) -> io::Result<()> {
    // SAFETY: plain call with a NUL-terminated name.
    cvt(unsafe { libc::fchmodat(dir.as_raw_fd(), name.as_ptr(), mode, 0) }.into()).map(drop)
}

/// Modification (and access) time of an entry itself.
pub(crate) fn set_times_at(dir: BorrowedFd<'_>, name: &CStr, seconds: i64) -> io::Result<()> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = [time, time];
    // SAFETY: `times` holds the two entries that the call reads.
    cvt(unsafe { libc::utimensat(dir.as_raw_fd(), name.as_ptr(), times.as_ptr(), libc::AT_SYMLINK_NOFOLLOW) }.into())
        .map(drop)
}

/// Sets an extended attribute on the entry behind `path`, without following a last symbolic link.
pub(crate) fn set_xattr(path: &CStr, name: &CStr, value: &[u8]) -> io::Result<()> {
    // SAFETY: pointer and length describe `value`.
    cvt(unsafe { libc::lsetxattr(path.as_ptr(), name.as_ptr(), value.as_ptr().cast(), value.len(), 0) }.into())
        .map(drop)
}

/// mount(2); empty strings stand for "none".
pub(crate) fn mount(source: &str, target: impl AsRef<Path>, kind: &str, flags: u64, data: &str) -> io::Result<()> {
    let (source, target, kind, data) = (c_str(source)?, c_path(target)?, c_str(kind)?, c_str(data)?);
    let or_null = |s: &CString| {
        if s.is_empty() { std::ptr::null() } else { s.as_ptr() }
    };
    // SAFETY: every pointer is null or a NUL-terminated string that outlives the call.
    cvt(unsafe { libc::mount(or_null(&source), target.as_ptr(), or_null(&kind), flags, or_null(&data).cast()) }.into())
        .map(drop)
}

pub(crate) fn unmount(target: impl AsRef<Path>, flags: i32) -> io::Result<()> {
    let target = c_path(target)?;
    // SAFETY: plain call with a NUL-terminated path.
    cvt(unsafe { libc::umount2(target.as_ptr(), flags) }.into()).map(drop)
}

pub(crate) fn pivot_root(new: &CStr, old: &CStr) -> io::Result<()> {
    // SAFETY: plain call with NUL-terminated paths.
    cvt(unsafe { libc::syscall(libc::SYS_pivot_root, new.as_ptr(), old.as_ptr()) }).map(drop)
}

/// chdir to an open directory.
pub(crate) fn change_directory(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain call on an open descriptor.
    cvt(unsafe { libc::fchdir(fd.as_raw_fd()) }.into()).map(drop)
}

/// Whether what is behind `fd` belongs to a procfs.
pub(crate) fn is_procfs(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut answer = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the call fills `answer`, which is only read after it succeeded.
    let kind = unsafe {
        cvt(libc::fstatfs(fd.as_raw_fd(), answer.as_mut_ptr()).into())?;
        answer.assume_init().f_type
    };
    Ok(kind == libc::PROC_SUPER_MAGIC)
}

#[repr(C)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    userns_fd: u64,
}

const OPEN_TREE_CLONE: u32 = 1;
const AT_RECURSIVE: u32 = 0x8000;
const AT_EMPTY_PATH: u32 = 0x1000;
const MOUNT_ATTR_RDONLY: u64 = 1;

/// A detached copy of the mount behind `path`, in no mount namespace: nobody can remount or unmount it.
pub(crate) fn clone_mount(path: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::syscall(
            libc::SYS_open_tree,
            libc::AT_FDCWD,
            path.as_ptr(),
            OPEN_TREE_CLONE | AT_RECURSIVE | libc::O_CLOEXEC as u32,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// A detached copy of the mount behind `fd` (and all below it), from that very file or directory on.
pub(crate) fn clone_mount_at(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    unsafe {
        cvt(libc::syscall(
            libc::SYS_open_tree,
            fd.as_raw_fd(),
            c"".as_ptr(),
            OPEN_TREE_CLONE | AT_RECURSIVE | AT_EMPTY_PATH | libc::O_CLOEXEC as u32,
        ))
        .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))
    }
}

/// Attaches a detached mount onto the directory or file behind `target`.
pub(crate) fn move_mount(mount: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    const BOTH_EMPTY: u32 = 0x4 | 0x40;
    // SAFETY: plain call on open descriptors with empty paths.
    cvt(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            mount.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            BOTH_EMPTY,
        )
    })
    .map(drop)
}

/// Makes the mount behind `fd` (and all below it, if `recursive`) read-only.
pub(crate) fn set_mount_readonly(fd: BorrowedFd<'_>, recursive: bool) -> io::Result<()> {
    set_mount_attr(fd, &MountAttr { set: MOUNT_ATTR_RDONLY, clear: 0, propagation: 0, userns_fd: 0 }, recursive)
}

/// Gives the mount behind `fd` and all below it this propagation: one of `MS_PRIVATE`, `MS_SLAVE`, `MS_SHARED`.
pub(crate) fn set_mount_propagation(fd: BorrowedFd<'_>, propagation: u64) -> io::Result<()> {
    set_mount_attr(fd, &MountAttr { set: 0, clear: 0, propagation, userns_fd: 0 }, true)
}

fn set_mount_attr(fd: BorrowedFd<'_>, attr: &MountAttr, recursive: bool) -> io::Result<()> {
    // SAFETY: `attr` matches the size passed.
    cvt(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            fd.as_raw_fd(),
            c"".as_ptr(),
            AT_EMPTY_PATH | if recursive { AT_RECURSIVE } else { 0 },
            attr,
            size_of::<MountAttr>(),
        )
    })
    .map(drop)
}

/// Lets go of the pages of our own program that only its start needed: relocations, command lines, setting up. Whatever is
/// needed again comes back from the page cache. The parts that the loader wrote to are not touched.
pub(crate) fn release_program_pages() -> io::Result<()> {
    let program = std::fs::read_link("/proc/self/exe")?;
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        // `start-end perms offset device inode   path`
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [range, access, offset, _, _, path] = fields.as_slice() else { continue };
        let is_clean = *access == "r-xp" || (*access == "r--p" && offset.trim_start_matches('0').is_empty());
        if Path::new(path) != program || !is_clean {
            continue;
        }
        let bounds = range.split_once('-').and_then(|(start, end)| {
            Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
        });
        let Some((start, end)) = bounds else { continue };
        // SAFETY: a mapping of a file that nobody ever writes to: dropping its pages loses nothing.
        cvt(unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) }.into())?;
    }
    Ok(())
}

/// A sealed, anonymous copy of `content` that can be executed but never written again.
pub(crate) fn sealed_memfd(name: &CStr, content: &mut impl io::Read) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor returned is fresh and owned here.
    let fd = unsafe {
        cvt(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING).into())
            .map(|fd| OwnedFd::from_raw_fd(fd as RawFd))?
    };
    let mut file = std::fs::File::from(fd);
    io::copy(content, &mut file)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: sets seals on our own descriptor.
    cvt(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }.into())?;
    Ok(file.into())
}

pub(crate) fn sethostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    cvt(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

// ---- descriptors ----

pub(crate) fn dup_onto(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    if fd.as_raw_fd() == number {
        // dup2 would do nothing and leave close-on-exec set.
        // SAFETY: clears flags of an open descriptor.
        return cvt(unsafe { libc::fcntl(number, libc::F_SETFD, 0) }.into()).map(drop);
    }
    // SAFETY: `number` is one of the three stdio slots, which no Rust value owns in a child.
    cvt(unsafe { libc::dup2(fd.as_raw_fd(), number) }.into()).map(drop)
}

pub(crate) fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: reads and sets flags of an open descriptor.
    unsafe {
        let flags = cvt(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL).into())?;
        cvt(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags as i32 | libc::O_NONBLOCK).into()).map(drop)
    }
}

/// A close-on-exec pipe: (read end, write end).
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the call fills both numbers with fresh descriptors, owned here.
    unsafe {
        cvt(libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC).into())?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// A connected pair of message sockets: every send is one receive, and closing is seen as an empty receive.
pub(crate) fn message_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let mut fds = [0; 2];
    // SAFETY: the call fills both numbers with fresh descriptors, owned here.
    unsafe {
        cvt(libc::socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0, fds.as_mut_ptr()).into())?;
        Ok((OwnedFd::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])))
    }
}

/// At most this many descriptors travel with one message.
const MAX_FDS: usize = 4;

/// Sends bytes and descriptors over a Unix socket; returns how many bytes went.
pub(crate) fn send_with_fds(socket: BorrowedFd<'_>, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    debug_assert!(fds.len() <= MAX_FDS);
    let mut iov = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = [0u64; 8];
    // SAFETY: msghdr is plain data; its pointers are to `iov` and `control`, which outlive the call, and
    // `control` (64 bytes, aligned) is large enough for MAX_FDS descriptors.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        if !fds.is_empty() {
            let size = std::mem::size_of_val(fds) / size_of::<BorrowedFd<'_>>() * size_of::<RawFd>();
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(size as u32) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size as u32) as usize;
            let data = libc::CMSG_DATA(header).cast::<RawFd>();
            for (i, fd) in fds.iter().enumerate() {
                data.add(i).write_unaligned(fd.as_raw_fd());
            }
        }
        cvt(libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) as i64).map(|n| n as usize)
    }
}

/// Receives bytes and any descriptors that came with them.
pub(crate) fn receive_with_fds(socket: BorrowedFd<'_>, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = [0u64; 8];
    // SAFETY: as in `send_with_fds`; received descriptors are fresh and owned here.
    unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        message.msg_iov = &mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = std::mem::size_of_val(&control);
        let n = cvt(libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) as i64)?;
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let count = ((*header).cmsg_len - libc::CMSG_LEN(0) as usize) / size_of::<RawFd>();
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for i in 0..count {
                    fds.push(OwnedFd::from_raw_fd(data.add(i).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
        Ok(n as usize)
    }
}

/// What to wait for on a descriptor, and what came.
#[derive(Clone, Copy)]
pub(crate) struct Poll {
    pub(crate) fd: RawFd,
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) ready: bool,
}

/// Waits until something is ready (errors and hang-ups count) or the time is over.
pub(crate) fn poll(entries: &mut [Poll], timeout_ms: i32) -> io::Result<()> {
    let mut fds: Vec<libc::pollfd> = entries
        .iter()
        .map(|e| libc::pollfd {
            fd: e.fd,
            events: if e.read { libc::POLLIN } else { 0 } | if e.write { libc::POLLOUT } else { 0 },
            revents: 0,
        })
        .collect();
    // SAFETY: pointer and length describe `fds`.
    let result = cvt(unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, timeout_ms) }.into());
    match result {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
        _ => {}
    }
    for (entry, fd) in entries.iter_mut().zip(&fds) {
        entry.ready = fd.revents != 0;
    }
    Ok(())
}

pub(crate) fn read(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `buffer`.
    cvt(unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as i64).map(|n| n as usize)
}

pub(crate) fn write(fd: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: pointer and length describe `bytes`.
    cvt(unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64).map(|n| n as usize)
}

/// Hands a descriptor to tokio's reactor for as long as the returned value lives.
pub(crate) fn watch_fd(fd: OwnedFd) -> io::Result<tokio::io::unix::AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd always answers with the same open descriptor, and the AsyncFd owns it until deregistered.
    unsafe { tokio::io::unix::AsyncFd::register(fd).map_err(Into::into) }
}

// ---- terminals ----

/// Opens a new pseudo-terminal: (master, slave). The slave comes from the master itself: whatever lies at /dev/pts of a
/// container is never looked at.
pub(crate) fn open_pty() -> io::Result<(OwnedFd, OwnedFd)> {
    const FLAGS: libc::c_int = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
    // `_IO('T', 0x41)`, the same on every architecture we build for.
    const TIOCGPTPEER: libc::c_ulong = 0x5441;
    // SAFETY: fresh descriptors, owned here; the ioctl calls read an integer or take one by value.
    unsafe {
        let master = OwnedFd::from_raw_fd(cvt(libc::open(c"/dev/ptmx".as_ptr(), FLAGS).into())? as RawFd);
        let unlock: libc::c_int = 0;
        cvt(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock).into())?;
        let slave = cvt(libc::ioctl(master.as_raw_fd(), TIOCGPTPEER, FLAGS).into())?;
        Ok((master, OwnedFd::from_raw_fd(slave as RawFd)))
    }
}

pub(crate) fn set_controlling_terminal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain ioctl without a pointer.
    cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSCTTY, 0) }.into()).map(drop)
}

pub(crate) fn set_window_size(fd: BorrowedFd<'_>, width: u16, height: u16) -> io::Result<()> {
    let size = libc::winsize { ws_row: height, ws_col: width, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: `size` is a valid winsize.
    cvt(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCSWINSZ, &size) }.into()).map(drop)
}

// ---- network ----

/// Brings the loopback interface of this network namespace up.
pub(crate) fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind(("127.0.0.1", 0)).or_else(|_| std::net::UdpSocket::bind(("0.0.0.0", 0)))?;
    // SAFETY: `request` is plain data, filled with a short name and flags before use.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as i16;
        cvt(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &request).into()).map(drop)
    }
}

/// Opens one of this process's own namespaces, to come back to later.
pub(crate) fn own_namespace(kind: &str) -> io::Result<OwnedFd> {
    std::fs::File::open(format!("/proc/self/ns/{kind}")).map(Into::into)
}

/// The raw number of a descriptor as a path that opens it again.
pub(crate) fn fd_path(fd: &impl AsFd) -> String {
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

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

//! Processes: forking, namespaces, signals, exec.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use super::{c_str, cvt};

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

/// A session keyring of its own, instead of the one that all children of the node's root share.
pub(crate) fn own_session_keyring() -> io::Result<()> {
    // KEYCTL_JOIN_SESSION_KEYRING; without a name the keyring is new.
    let no_name: *const libc::c_char = std::ptr::null();
    // SAFETY: no memory is read.
    match cvt(unsafe { libc::syscall(libc::SYS_keyctl, 1, no_name) }) {
        // A kernel without keys has none to share; nor can a container use any where a filter forbids it to us.
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => Ok(()),
        result => result.map(drop),
    }
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

/// The same, for so long: none if it goes on.
pub(crate) fn wait_at_most(pid: i32, limit: Duration) -> io::Result<Option<i32>> {
    // SAFETY: the descriptor returned is fresh and owned here.
    let process = unsafe { OwnedFd::from_raw_fd(cvt(libc::syscall(libc::SYS_pidfd_open, pid, 0))? as RawFd) };
    match super::is_readable_by(process.as_fd(), Instant::now() + limit)? {
        true => Ok(Some(wait_for(pid))),
        false => Ok(None),
    }
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

pub(crate) fn sethostname(name: &str) -> io::Result<()> {
    // SAFETY: pointer and length describe `name`.
    cvt(unsafe { libc::sethostname(name.as_ptr().cast(), name.len()) }.into()).map(drop)
}

/// Opens one of this process's own namespaces, to come back to later.
pub(crate) fn own_namespace(kind: &str) -> io::Result<OwnedFd> {
    std::fs::File::open(format!("/proc/self/ns/{kind}")).map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Others of a container may stop what an external runtime starts in it, and then that runtime does not end.
    #[test]
    fn security_a_program_that_does_not_end_is_waited_for_so_long() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = child.id() as i32;
        assert_eq!(wait_at_most(pid, Duration::from_millis(10)).unwrap(), None);
        kill(pid, libc::SIGKILL).unwrap();
        assert_eq!(wait_at_most(pid, Duration::from_secs(600)).unwrap(), Some(128 + libc::SIGKILL));
        assert!(child.wait().is_err(), "it is reaped");
    }

    #[test]
    fn security_a_session_keyring_is_shared_with_nobody() {
        let keyring = || {
            // KEYCTL_GET_KEYRING_ID of KEY_SPEC_SESSION_KEYRING, which is not made for it.
            // SAFETY: no memory is read.
            cvt(unsafe { libc::syscall(libc::SYS_keyctl, 0, -3, 0) })
        };
        // Where there are no keys, or none for this container, nothing is shared.
        let Ok(of_all) = keyring() else { return own_session_keyring().unwrap() };
        let keyring = move || keyring().unwrap();
        // Each thread has its own.
        let [one, two] = [(), ()].map(|()| {
            std::thread::spawn(move || {
                assert_eq!(keyring(), of_all);
                own_session_keyring().unwrap();
                keyring()
            })
            .join()
            .unwrap()
        });
        assert!(one != of_all && two != of_all && one != two, "{one} {two} {of_all}");
    }
}

//! The forked child: from a copy of the shim to the container's program.
//!
//! Order is security. Namespaces and mounts come while we are still root of the node; then limits, the terminal, the
//! identity; capabilities and the seccomp filter last. Every descriptor above stdio is closed by the exec.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::error::{Error, Problem, Result, doing};
use super::kernel::Linux;
use super::rootfs;
use crate::cgroup::Cgroups;
use crate::spec::{Process, Spec};
use crate::sys;
use crate::user::{self, Identity};

/// What the child tells the shim on its way; the last word is the socket closing at exec.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    Identity {
        uid: u32,
        gid: u32,
        groups: Vec<u32>,
    },
    /// The terminal's master comes with it as a descriptor.
    Terminal,
    Failed {
        message: String,
    },
}

/// From its fork to its program a process takes milliseconds, or seconds on a busy node. By then others of its container see it,
/// and may stop it as often as they like; whoever else asks something of the shim waits meanwhile.
pub(super) const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// stdin, stdout, stderr; none when the process gets a terminal.
pub(crate) type Stdio = Option<[OwnedFd; 3]>;

/// Namespaces to join: open descriptor and its CLONE_NEW* kind, in this order.
pub(crate) type Joins = Vec<(OwnedFd, i32)>;

/// In a new mount namespace (and PID namespace): becomes the container's first process.
pub(crate) fn run_container(spec: &Spec, cgroups: &Cgroups, joins: Joins, stdio: Stdio, socket: OwnedFd) -> ! {
    finish(&socket, || {
        prepare(&socket)?;
        join(joins)?;
        sys::unshare(libc::CLONE_NEWCGROUP).map_err(doing("cgroup namespace"))?;
        // The host's limits files are named by the node's /proc: before the root changes.
        set_oom_score(spec.process.oom_score_adj);
        let label = label_file(&spec.process)?;
        rootfs::enter(&Linux, spec, cgroups)?;
        attach_stdio(&spec.process, stdio, &socket, true)?;
        let identity = user::resolve(&spec.process.user, Path::new("/etc"))?;
        become_process(&spec.process, &identity, label, &socket, true)
    })
}

/// In the namespaces of a running container: becomes another process of it.
pub(crate) fn run_exec(process: &Process, joins: Joins, stdio: Stdio, socket: OwnedFd) -> ! {
    finish(&socket, || {
        prepare(&socket)?;
        set_oom_score(process.oom_score_adj);
        let label = label_file(process)?;
        join(joins)?;
        attach_stdio(process, stdio, &socket, false)?;
        let identity = user::resolve(&process.user, Path::new("/etc"))?;
        become_process(process, &identity, label, &socket, false)
    })
}

fn finish(socket: &OwnedFd, body: impl FnOnce() -> Result<Infallible>) -> ! {
    let Err(error) = body();
    send(socket, &Message::Failed { message: error.to_string() }, &[]);
    sys::exit_now(128)
}

fn send(socket: &OwnedFd, message: &Message, fds: &[std::os::fd::BorrowedFd<'_>]) {
    if let Ok(bytes) = serde_json::to_vec(message) {
        // If the shim is gone there is nobody to tell.
        let _ = sys::send_with_fds(socket.as_fd(), &bytes, fds);
    }
}

/// Waits for the shim to put us into our cgroups, and starts a session.
fn prepare(socket: &OwnedFd) -> Result<()> {
    let mut go = [0u8; 1];
    match sys::read(socket.as_fd(), &mut go) {
        Ok(1) => {}
        _ => return Err(Error::Child("the shim gave up".into())),
    }
    sys::reset_signals();
    sys::reset_huge_pages();
    sys::umask(0o022);
    sys::setsid().map_err(doing("setsid"))?;
    sys::own_session_keyring().map_err(doing("session keyring"))
}

fn join(joins: Joins) -> Result<()> {
    for (fd, kind) in joins {
        sys::setns(fd.as_fd(), kind).map_err(doing("joining a namespace"))?;
    }
    Ok(())
}

/// Lowering may be forbidden to us: then the value we were born with stays.
fn set_oom_score(score: i64) {
    let _ = std::fs::write("/proc/self/oom_score_adj", score.clamp(-1000, 1000).to_string());
}

fn attach_stdio(process: &Process, stdio: Stdio, socket: &OwnedFd, console: bool) -> Result<()> {
    if let Some(fds) = stdio {
        for (number, fd) in fds.iter().enumerate() {
            sys::dup_onto(fd.as_fd(), number as i32).map_err(doing("stdio"))?;
        }
        return Ok(());
    }
    debug_assert!(process.tty);
    let (master, slave) = sys::open_pty().map_err(doing("terminal"))?;
    sys::set_controlling_terminal(slave.as_fd()).map_err(doing("controlling terminal"))?;
    for number in 0..3 {
        sys::dup_onto(slave.as_fd(), number).map_err(doing("terminal"))?;
    }
    if console {
        rootfs::mount_console(&Linux, &slave).map_err(doing("console"))?;
    }
    send(socket, &Message::Terminal, &[master.as_fd()]);
    Ok(())
}

/// Where the AppArmor profile of the next exec is written, for a process that gets one. Opened while /proc is still the
/// node's: in the container it is whatever its mounts made of it (CVE-2019-16884, CVE-2025-52881).
fn label_file(process: &Process) -> Result<Option<File>> {
    if process.apparmor.is_none() {
        return Ok(None);
    }
    let open = |path: &str| File::options().write(true).open(path);
    let file = match open("/proc/self/attr/apparmor/exec") {
        // Before Linux 5.8.
        Err(error) if error.kind() == io::ErrorKind::NotFound => open("/proc/self/attr/exec"),
        result => result,
    };
    let file = file.map_err(doing("AppArmor"))?;
    check_procfs(&file).map_err(doing("AppArmor"))?;
    Ok(Some(file))
}

fn check_procfs(file: &File) -> io::Result<()> {
    match sys::is_procfs(file.as_fd())? {
        true => Ok(()),
        false => Err(io::Error::other("/proc is not a procfs")),
    }
}

fn become_process(
    process: &Process,
    identity: &Identity,
    label: Option<File>,
    socket: &OwnedFd,
    first: bool,
) -> Result<Infallible> {
    let cwd = if process.cwd.is_empty() { "/" } else { &process.cwd };
    if first {
        make_directory(cwd, identity)?;
    }
    send(socket, &Message::Identity { uid: identity.uid, gid: identity.gid, groups: identity.groups.clone() }, &[]);
    if process.tty {
        // The program's user owns its terminal, as after a login.
        let _ = std::os::unix::fs::fchown(io::stdin(), Some(identity.uid), None);
    }
    let (program, args, env) = program(process, identity)?;
    if let (Some(profile), Some(mut label)) = (&process.apparmor, label) {
        label.write_all(format!("exec {profile}").as_bytes()).map_err(doing(format!("AppArmor profile {profile}")))?;
    }
    let filters = process
        .seccomp
        .iter()
        .map(|filter| STANDARD.decode(filter).map_err(|error| doing("seccomp")(io::Error::other(error))))
        .collect::<Result<Vec<_>>>()?;
    sys::close_on_exec_from(3).map_err(doing("descriptors"))?;
    // Installing a filter needs no_new_privs or a capability that we are about to lose.
    if !process.no_new_privs {
        install(&filters)?;
    }
    drop_privileges(process, identity)?;
    std::env::set_current_dir(cwd).map_err(doing(format!("chdir to cwd ({cwd:?})")))?;
    // A directory outside our root would be reachable by `..`.
    let really = std::env::current_dir().map_err(doing("working directory"))?;
    if !really.is_absolute() {
        return Err(Error::Spec("current working directory is outside of the container".into()));
    }
    if process.no_new_privs {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(doing("no_new_privs"))?;
        install(&filters)?;
    }
    let error = sys::exec(&program, &args, &env);
    Err(doing(format!("exec {program:?}"))(error))
}

fn install(filters: &[Vec<u8>]) -> Result<()> {
    filters.iter().try_for_each(|filter| sys::set_seccomp(filter).map_err(doing("seccomp")))
}

/// Bounding set, then identity (keeping capabilities across it), then the other sets.
fn drop_privileges(process: &Process, identity: &Identity) -> Result<()> {
    let wanted = &process.capabilities;
    // Never more than we have: this node may lack some itself.
    let ours = sys::permitted_capabilities().map_err(doing("capabilities"))?;
    for number in 0..64 {
        let bit = 1u64 << number;
        if crate::capabilities::all() & bit == 0 {
            break;
        }
        if wanted.bounding & bit == 0 {
            sys::prctl(libc::PR_CAPBSET_DROP, number, 0).map_err(doing("bounding set"))?;
        }
    }
    sys::prctl(libc::PR_SET_KEEPCAPS, 1, 0).map_err(doing("keepcaps"))?;
    sys::set_identity(identity.uid, identity.gid, &identity.groups).map_err(doing("setting user and groups"))?;
    sys::prctl(libc::PR_SET_KEEPCAPS, 0, 0).map_err(doing("keepcaps"))?;
    let (mut effective, mut permitted) = (wanted.effective & ours, wanted.permitted & ours);
    let inheritable = wanted.inheritable & ours;
    if identity.uid != 0 {
        // What another user keeps over exec is what is ambient.
        effective &= wanted.ambient;
        permitted &= wanted.ambient;
    }
    sys::set_capabilities(effective, permitted, inheritable).map_err(doing("capabilities"))?;
    for number in 0..64u64 {
        if wanted.ambient & ours & (1u64 << number) != 0 {
            const PR_CAP_AMBIENT: i32 = 47;
            const PR_CAP_AMBIENT_RAISE: u64 = 2;
            sys::prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, number).map_err(doing("ambient capability"))?;
        }
    }
    Ok(())
}

/// A working directory that the image does not have is made, as every runtime does.
fn make_directory(path: &str, identity: &Identity) -> Result<()> {
    if std::fs::metadata(path).is_ok() {
        return Ok(());
    }
    std::fs::create_dir_all(path)
        .and_then(|()| std::os::unix::fs::chown(path, Some(identity.uid), Some(identity.gid)))
        .map_err(doing(format!("working directory {path}")))
}

type Program = (CString, Vec<CString>, Vec<CString>);

/// Finds the program in the container's own PATH and finishes its environment.
fn program(process: &Process, identity: &Identity) -> Result<Program> {
    const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let mut env = process.env.clone();
    let get = |env: &[String], key: &str| {
        env.iter().rev().find_map(|e| e.strip_prefix(key)?.strip_prefix('=')).map(ToString::to_string)
    };
    if get(&env, "HOME").is_none() {
        env.push(format!("HOME={}", identity.home));
    }
    let path = get(&env, "PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let Some(name) = process.args.first() else { return Err(Error::Spec("no command specified".into())) };
    let program = find(name, &path, process)?;
    let c = |text: &String| {
        CString::new(text.as_str()).map_err(|_| Error::Spec(format!("{text:?} contains a NUL byte").into()))
    };
    Ok((c(&program)?, process.args.iter().map(c).collect::<Result<_>>()?, env.iter().map(c).collect::<Result<_>>()?))
}

fn find(name: &str, path: &str, process: &Process) -> Result<String> {
    use std::os::unix::fs::PermissionsExt;
    let check = |candidate: &Path| match std::fs::metadata(candidate) {
        Err(error) => {
            let reason = match error.kind() {
                io::ErrorKind::NotFound => "no such file or directory".into(),
                _ => error.to_string(),
            };
            Err(Problem::Unreachable { path: candidate.display().to_string(), reason })
        }
        Ok(m) if m.is_dir() => Err(Problem::Directory),
        Ok(m) if m.permissions().mode() & 0o111 == 0 => Err(Problem::Denied),
        Ok(_) => Ok(()),
    };
    let failed = |problem| Error::Program { name: name.to_owned(), problem };
    if name.contains('/') {
        // Relative names are relative to the working directory, which is entered later.
        let full = Path::new("/").join(&process.cwd).join(name);
        return check(&full).map(|()| name.to_owned()).map_err(failed);
    }
    let mut denied = false;
    for directory in path.split(':') {
        let candidate = Path::new(if directory.is_empty() { "." } else { directory }).join(name);
        match check(&candidate) {
            Ok(()) => return Ok(candidate.to_string_lossy().into_owned()),
            Err(problem) => denied |= problem == Problem::Denied,
        }
    }
    Err(failed(if denied { Problem::Denied } else { Problem::NotFound }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_cannot_run_are_named_with_the_problem() {
        let directory = tempfile::tempdir().unwrap();
        let below = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(below("plain"), "").unwrap();
        std::fs::create_dir(below("folder")).unwrap();
        let path = directory.path().display().to_string();
        for (name, expected) in [
            ("absent".to_owned(), "executable file not found in $PATH".to_owned()),
            ("plain".to_owned(), "permission denied".to_owned()),
            ("folder".to_owned(), "executable file not found in $PATH".to_owned()),
            (below("plain"), "permission denied".to_owned()),
            (below("folder"), "is a directory".to_owned()),
            (below("absent"), format!("stat {}: no such file or directory", below("absent"))),
        ] {
            let error = find(&name, &path, &Process::default()).unwrap_err();
            assert_eq!(error.to_string(), format!("exec: {name:?}: {expected}"));
            assert!(matches!(error, Error::Program { .. }), "{error:?}");
        }
    }

    #[test]
    fn security_labels_are_written_to_a_procfs_only() {
        assert!(check_procfs(&File::open("/proc/self/status").unwrap()).is_ok());
        let planted = tempfile::NamedTempFile::new().unwrap();
        assert!(check_procfs(planted.as_file()).is_err());
        let with_label = Process { apparmor: Some("profile".into()), ..Default::default() };
        let without = label_file(&Process::default()).unwrap();
        assert!(without.is_none(), "nothing is opened for nothing");
        // Opened before any mount of the container, or the start fails: never by path later.
        if let Ok(file) = label_file(&with_label) {
            assert!(sys::is_procfs(file.unwrap().as_fd()).unwrap());
        }
    }
}

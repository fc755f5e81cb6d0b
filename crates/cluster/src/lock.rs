//! The lock that says whether a cluster runs, and in which process.
//!
//! The kernel drops it when the process ends, however it ends: a stale pid is never believed, and waiting for the end of
//! a cluster is waiting for the lock, and then for what is left of the process: it closes its files one after the other, and
//! the store's may be the last.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use nix::fcntl::{Flock, FlockArg};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use rustix::io::Errno;
use rustix::process::{PidfdFlags, pidfd_open};

use crate::options::Options;

/// Of a process that the kernel is taking apart (`sched.h`).
const PF_EXITING: u64 = 0x4;
/// How often, and how long apart, a lock is tried again that is held by one who only looks, or has not written its number yet.
const MOMENT_LOOKS: u32 = 200;
const MOMENT_INTERVAL: Duration = Duration::from_millis(1);

/// Held for as long as this process runs the cluster.
pub(crate) struct Lock(#[expect(dead_code, reason = "holding it is the point")] Flock<File>);

impl Lock {
    /// Takes the lock, or says which process has it.
    pub(crate) fn take(path: &Path) -> Result<std::result::Result<Lock, Holder>> {
        match try_lock(path, FlockArg::LockExclusiveNonblock)? {
            Ok(mut file) => {
                let last = last_holder(&file);
                file.set_len(0)?;
                file.rewind()?;
                write!(*file, "{}", std::process::id())?;
                // Under our own number: nobody else takes this for the end of the last one.
                last.map_or(Ok(()), until_gone)?;
                Ok(Ok(Lock(file)))
            }
            Err(holder) => Ok(Err(holder)),
        }
    }

    /// Held until the process ends, whatever its tasks still do when all else is over.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }

    /// Held by a command that changes what is on this machine in several steps: two of them would undo each other's.
    pub(crate) fn for_change(options: &Options) -> Result<Lock> {
        if !options.data_dir.try_exists()? {
            bail!("there is no cluster at {}", options.data_dir.display());
        }
        match Lock::take(&options.change_lock_file())? {
            Ok(lock) => Ok(lock),
            Err(holder) => bail!("another command changes this cluster (process {})", holder.pid),
        }
    }

    /// The process that runs the cluster, if one does.
    pub(crate) fn holder(path: &Path) -> Result<Option<Holder>> {
        // What may not be looked at may be there.
        if !path.try_exists().with_context(|| path.display().to_string())? {
            return Ok(None);
        }
        // Shared, so that two who only look do not see each other.
        match try_lock(path, FlockArg::LockSharedNonblock)? {
            Ok(file) => {
                let last = last_holder(&file);
                drop(file);
                last.map_or(Ok(None), |last| until_gone(last).map(|()| None))
            }
            Err(holder) => Ok(Some(holder)),
        }
    }
}

/// The lock, or who has it. A holder that was killed and is not quite gone does not count: its end is waited for. Nor does one
/// who only looks.
fn try_lock(path: &Path, how: FlockArg) -> Result<std::result::Result<Flock<File>, Holder>> {
    let in_file = || path.display().to_string();
    let mut looks = 0;
    loop {
        match Flock::lock(open(path)?, how) {
            Ok(file) => return Ok(Ok(file)),
            Err((file, nix::errno::Errno::EWOULDBLOCK)) => {
                let holder = Holder::read(file, path);
                let is_for_a_moment = holder.is_err() || Flock::lock(open(path)?, FlockArg::LockSharedNonblock).is_ok();
                if is_for_a_moment && looks < MOMENT_LOOKS {
                    looks += 1;
                    std::thread::sleep(MOMENT_INTERVAL);
                    continue;
                }
                let holder = holder?;
                if !is_ending(holder.pid) {
                    return Ok(Err(holder));
                }
                Flock::lock(open(path)?, FlockArg::LockShared).map_err(|(_, error)| error).with_context(in_file)?;
            }
            Err((_, error)) => return Err(error).with_context(in_file),
        }
    }
}

/// Who had a lock that is free now, if that can be told.
fn last_holder(mut file: &File) -> Option<Pid> {
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    text.trim().parse().ok().map(Pid::from_raw)
}

/// Whether a process is a corpse, on its way out, or has a SIGKILL to die of. One that cannot be seen is somewhere else, alive.
fn is_ending(pid: Pid) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let (Ok(stat), Ok(status)) = (read("stat"), read("status")) else { return false };
    // Behind the name of the program, which may be anything.
    let flags = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u64>().ok());
    if flags.is_some_and(|flags| flags & PF_EXITING != 0) {
        return true;
    }
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default().trim();
    let killed =
        |mask: &str| u64::from_str_radix(mask, 16).is_ok_and(|mask| mask & 1 << (Signal::SIGKILL as u32 - 1) != 0);
    field("State:").starts_with(['Z', 'X']) || killed(field("SigPnd:")) || killed(field("ShdPnd:"))
}

/// Waits until nothing is left of a process that is ending; one that is not is another, with the same number.
fn until_gone(pid: Pid) -> Result<()> {
    let Some(number) = rustix::process::Pid::from_raw(pid.as_raw()).filter(|_| is_ending(pid)) else { return Ok(()) };
    let process = match pidfd_open(number, PidfdFlags::empty()) {
        // Gone since, or the number of a thread.
        Err(Errno::SRCH | Errno::INVAL) => return Ok(()),
        process => process.with_context(|| format!("waiting for the end of process {pid}"))?,
    };
    loop {
        match poll(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            ended => return ended.map(drop).with_context(|| format!("waiting for the end of process {pid}")),
        }
    }
}

/// The process that runs a cluster.
pub(crate) struct Holder {
    pub pid: Pid,
    path: PathBuf,
}

impl Holder {
    fn read(mut file: File, path: &Path) -> Result<Holder> {
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let pid = text.trim().parse().with_context(|| format!("{} holds no pid", path.display()))?;
        Ok(Holder { pid: Pid::from_raw(pid), path: path.to_owned() })
    }

    /// Fails if a service manager runs the process, which would start it again whenever it is stopped. `instead` says what
    /// can be done.
    pub(crate) fn refuse_foreground(&self, instead: &str) -> Result<()> {
        let path = format!("/proc/{}/cmdline", self.pid);
        if is_foreground(&std::fs::read(&path).with_context(|| path.clone())?) {
            bail!("a service manager runs this cluster: {instead}");
        }
        Ok(())
    }

    /// Resolves at the end of the process.
    pub(crate) fn released(self) -> tokio::sync::oneshot::Receiver<()> {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        // Not a task: the kernel's wait cannot be cancelled, and must not hold up the end of our own process.
        std::thread::spawn(move || {
            // Free again at once: only its end is waited for.
            if open(&self.path).is_ok_and(|file| Flock::lock(file, FlockArg::LockShared).is_ok()) {
                if let Err(error) = until_gone(self.pid) {
                    tracing::warn!(%error, "it has left its lock");
                }
                // Nobody may be waiting any more.
                let _ = sender.send(());
            }
        });
        receiver
    }

    /// Fails if the process of that number is another one here: the holder wrote the number that it has in its own PID
    /// namespace, and a signal would end a stranger.
    pub(crate) fn refuse_stranger(&self) -> Result<()> {
        let identity = |path: &Path| std::fs::metadata(path).map(|file| (file.dev(), file.ino()));
        let lock = identity(&self.path).with_context(|| self.path.display().to_string())?;
        let opened = format!("/proc/{}/fd", self.pid);
        let has_it_open = match std::fs::read_dir(&opened) {
            // One that was closed meanwhile is not the lock.
            Ok(files) => files.flatten().any(|file| identity(&file.path()).is_ok_and(|file| file == lock)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => false,
            Err(error) => return Err(error).context(opened),
        };
        // It may have ended since.
        if !has_it_open && Flock::lock(open(&self.path)?, FlockArg::LockSharedNonblock).is_err() {
            bail!(
                "{} is held by a process that cannot be seen from here, which calls itself {}: stop the cluster in the PID \
                 namespace where it was started",
                self.path.display(),
                self.pid
            );
        }
        Ok(())
    }

    /// Asks the process to end and returns when it has.
    pub(crate) fn stop(self) -> Result<()> {
        self.refuse_stranger()?;
        nix::sys::signal::kill(self.pid, Signal::SIGTERM).with_context(|| format!("stopping process {}", self.pid))?;
        match Flock::lock(open(&self.path)?, FlockArg::LockExclusive) {
            Ok(file) => {
                drop(file);
                until_gone(self.pid)
            }
            Err((_, error)) => Err(error).with_context(|| self.path.display().to_string()),
        }
    }
}

/// Whether a command line, as the kernel tells it, is that of a process that a service manager runs.
fn is_foreground(line: &[u8]) -> bool {
    line.split(|byte| *byte == 0).any(|word| word == b"--foreground")
}

fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("opening {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_may_not_look_is_not_told_that_nothing_runs() {
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(Lock::holder(&file.path().join("lock")).is_err());
        assert!(Lock::holder(&file.path().with_extension("gone")).unwrap().is_none());
    }

    #[test]
    fn one_holder_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert!(Lock::holder(&path).unwrap().is_none());
        let held = Lock::take(&path).unwrap().ok().unwrap();
        let Err(holder) = Lock::take(&path).unwrap() else { panic!("taken twice") };
        assert_eq!(holder.pid, nix::unistd::getpid());
        assert!(Lock::holder(&path).unwrap().is_some());
        holder.refuse_foreground("not this one").unwrap();
        drop(held);
        assert!(Lock::holder(&path).unwrap().is_none());
    }

    /// Whoever looks while another takes the lock or lets it go is in nobody's way, and sees one or the other.
    #[test]
    fn a_lock_is_taken_while_others_look() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    let seen = Lock::holder(&path).unwrap();
                    assert!(seen.is_none_or(|holder| holder.pid == nix::unistd::getpid()));
                }
            });
            let taken: Vec<bool> = (0..300).map(|_| Lock::take(&path).is_ok_and(|taken| taken.is_ok())).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            assert!(taken.iter().all(|taken| *taken), "{taken:?}");
        });
    }

    #[test]
    fn a_stranger_with_the_number_of_the_holder_gets_no_signal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = Lock::take(&path).unwrap().ok().unwrap();
        Lock::holder(&path).unwrap().unwrap().refuse_stranger().unwrap();
        let mut stranger = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        for number in [stranger.id(), i32::MAX as u32] {
            std::fs::write(&path, number.to_string()).unwrap();
            let holder = Lock::holder(&path).unwrap().unwrap();
            let error = holder.stop().unwrap_err().to_string();
            assert!(error.contains("cannot be seen from here"), "{error}");
        }
        assert!(stranger.try_wait().unwrap().is_none(), "the stranger was stopped");
        stranger.kill().unwrap();
        stranger.wait().unwrap();
        drop(held);
    }

    #[test]
    fn only_what_is_ending_is_waited_for() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed());
        assert!(!is_ending(pid));
        until_gone(pid).unwrap();
        child.kill().unwrap();
        // Its parent does not take note, and so it is still there to be seen.
        let flags = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(pid), flags).unwrap();
        assert!(is_ending(pid));
        until_gone(pid).unwrap();
        child.wait().unwrap();
        until_gone(pid).unwrap();
    }

    #[test]
    fn one_command_changes_a_cluster_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("data"), run_dir: dir.path().join("run"), name: "c".into() };
        assert!(Lock::for_change(&options).err().unwrap().to_string().contains("there is no cluster"));
        std::fs::create_dir(&options.data_dir).unwrap();
        let held = Lock::for_change(&options).unwrap();
        assert!(Lock::for_change(&options).err().unwrap().to_string().contains("another command"));
        drop(held);
        Lock::for_change(&options).unwrap();
    }

    #[test]
    fn a_service_manager_runs_its_process_in_the_foreground() {
        assert!(is_foreground(b"/usr/local/bin/cox\0up\0--foreground\0--node-name\0n\0"));
        assert!(!is_foreground(b"/usr/local/bin/cox\0up\0--detached\0--data-dir\0/d--foreground\0"));
        assert!(!is_foreground(b""));
    }
}

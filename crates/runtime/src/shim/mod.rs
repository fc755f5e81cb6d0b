//! The shim: one small process per pod that its containers live under.
//!
//! Flow: `sandbox::run` has `zygote` fork a shim, which forks pause, listens on a Unix socket and carries out [`protocol`]
//! requests: start, signal, exec, attach, reopen logs. It owns the containers' stdio, writes their log files and
//! records how they ended; the runtime may die and come back at any time, the files and the socket are still here.
//!
//! Why a process of its own: containers must outlast the runtime, and setting one up (fork, then namespaces, mounts and
//! identity in the child) is sound only in a single-threaded process. So no tokio and no threads here: one `poll` loop.
//! Why not an OCI runtime per start: everything needed is already in this process's memory, so a container costs a
//! fork instead of two program starts, and the forked image is the shim's own, shared page by page.

pub(crate) mod child;
pub(crate) mod client;
mod container;
pub(crate) mod error;
pub(crate) mod kernel;
mod log;
mod oci;
mod oci_config;
pub mod pause;
pub(crate) mod protocol;
#[cfg(test)]
pub(crate) mod recorded;
mod rootfs;
mod server;
pub(crate) mod starter;
mod zygote;

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::{Deserialize, Serialize};

use self::error::{Error, Result, doing};
use crate::cgroup::Cgroups;
use crate::record::{self, ShimRecord};
use crate::spec::{Namespace, PodSpec};
use crate::{sys, unpack};

/// Where a shim finds its pod.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Paths {
    /// The pod's own directory: `pod.json` in, `shim.json` and `shim.log` out.
    pub(crate) sandbox: PathBuf,
    /// Directory of all containers; `<id>/spec.json` in, `<id>/status.json` out.
    pub(crate) containers: PathBuf,
    pub(crate) socket: PathBuf,
}

/// What the runtime asks of the process that forks.
#[derive(Debug, Serialize, Deserialize)]
enum Request {
    Shim(Paths),
    /// What images bring is read outside of the runtime, which other pods need.
    Unpack(unpack::Request),
}

/// `cox shim`: started by the runtime, forks a shim or a reader of a layer per request.
pub fn main(_: Vec<OsString>) -> ExitCode {
    zygote::serve()
}

/// Everything up to the first request: detach, start pause, listen.
fn begin(paths: &Paths) -> Result<server::Server> {
    sys::setsid().map_err(doing("setsid"))?;
    std::env::set_current_dir("/").map_err(doing("chdir"))?;
    detach_stdio(paths).map_err(doing("stdio"))?;
    sys::umask(0o022);
    // Processes orphaned inside the node's PID namespace come to us instead of init, so that none is lost.
    sys::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0).map_err(doing("subreaper"))?;
    // Best effort: the last of this pod to be killed when memory is short. Needs a capability that may be missing.
    let _ = std::fs::write("/proc/self/oom_score_adj", "-998");
    let signals = sys::signal_fd(&[libc::SIGCHLD]).map_err(doing("signalfd"))?;
    let pod: PodSpec = record::read(&paths.sandbox.join("pod.json")).map_err(doing("pod.json"))?;
    let cgroups = Cgroups::detect().map_err(doing("cgroups"))?;
    match std::fs::remove_file(&paths.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(doing("socket")(error)),
        _ => {}
    }
    let listener = UnixListener::bind(&paths.socket).map_err(doing("socket"))?;
    listener.set_nonblocking(true).map_err(doing("socket"))?;
    let pause_pid = start_pause(paths, &pod, &cgroups)?;
    let shim = ShimRecord { pid: std::process::id() as i32, pause_pid };
    record::write(&paths.sandbox.join("shim.json"), &shim).map_err(doing("shim.json"))?;
    Ok(server::Server::new(paths, cgroups, pod, pause_pid, listener, signals))
}

fn detach_stdio(paths: &Paths) -> io::Result<()> {
    // Pause has it, too.
    let null = sys::open_null()?;
    let log = std::fs::OpenOptions::new().create(true).append(true).open(paths.sandbox.join("shim.log"))?;
    sys::dup_onto(null.as_fd(), 0)?;
    sys::dup_onto(null.as_fd(), 1)?;
    sys::dup_onto(log.as_fd(), 2)
}

/// Forks pause into the pod's new namespaces and waits until it holds them.
fn start_pause(paths: &Paths, pod: &PodSpec, cgroups: &Cgroups) -> Result<i32> {
    let mut flags = libc::CLONE_NEWNS;
    for (namespace, flag) in [
        (pod.namespaces.network, libc::CLONE_NEWNET),
        (pod.namespaces.ipc, libc::CLONE_NEWIPC),
        (pod.namespaces.uts, libc::CLONE_NEWUTS),
        (pod.namespaces.pid, libc::CLONE_NEWPID),
    ] {
        if namespace == Namespace::Own {
            flags |= flag;
        }
    }
    cgroups.create(&pod.cgroup, &pod.resources, &[]).map_err(doing("cgroup"))?;
    let (ours, theirs) = sys::message_pair().map_err(doing("socket pair"))?;
    match sys::clone_process(flags).map_err(doing("fork"))? {
        sys::Fork::Child => {
            drop(ours);
            let mut go = [0u8; 1];
            if !matches!(sys::read(theirs.as_fd(), &mut go), Ok(1)) {
                sys::exit_now(1);
            }
            match pause::enter(pod, &paths.sandbox, &kernel::Linux, &pause::Linux) {
                Ok(()) => {
                    let _ = sys::write(theirs.as_fd(), b"ok");
                    drop(theirs);
                    // Above all the shim's socket: while pause held it, a dead shim would seem to listen.
                    sys::close_from(3);
                    pause::hold()
                }
                Err(error) => {
                    let _ = sys::write(theirs.as_fd(), error.to_string().as_bytes());
                    sys::exit_now(1)
                }
            }
        }
        sys::Fork::Parent(pid) => {
            drop(theirs);
            let result = cgroups.enter(&pod.cgroup, pid, &pod.resources, &[]).map_err(doing("cgroup")).and_then(|()| {
                sys::write(ours.as_fd(), b"g").map_err(doing("pause"))?;
                let mut answer = [0u8; 4096];
                match sys::read(ours.as_fd(), &mut answer) {
                    Ok(2) if &answer[..2] == b"ok" => Ok(pid),
                    Ok(n) => Err(Error::Child(format!("pause: {}", String::from_utf8_lossy(&answer[..n])))),
                    Err(error) => Err(doing("pause")(error)),
                }
            });
            if result.is_err() {
                let _ = sys::kill(pid, libc::SIGKILL);
                sys::wait_for(pid);
            }
            result
        }
    }
}

//! pause: the process that holds a pod's namespaces. PID 1 of the pod when its containers share one PID namespace;
//! then it also reaps what the containers leave behind.
//!
//! The shim forks it, so it costs a few private pages. It owns nothing: an empty read-only root, no capabilities,
//! an unprivileged user, and no way for a container to look into it.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use crate::shim::error::{Error, doing};
use crate::spec::{Namespace, PodSpec};
use crate::sys;

/// As upstream's pause image runs.
const PAUSE_USER: u32 = 65535;

/// `cox pause`, for runtimes that want it as a program of its own (a pause image).
pub fn main() -> ExitCode {
    hold()
}

/// In the forked child: finishes the pod's namespaces, then gives up everything else.
pub(crate) fn enter(pod: &PodSpec, directory: &Path) -> Result<(), Error> {
    sys::set_process_name("pause");
    sys::reset_signals();
    if pod.namespaces.uts == Namespace::Own && !pod.hostname.is_empty() {
        sys::sethostname(&pod.hostname).map_err(doing("sethostname"))?;
    }
    if pod.namespaces.network == Namespace::Own {
        sys::loopback_up().map_err(doing("loopback"))?;
    }
    for (name, value) in &pod.sysctls {
        let path = format!("/proc/sys/{}", sysctl_path(name));
        std::fs::write(&path, value).map_err(doing(format!("sysctl {name}")))?;
    }
    // Best effort: lowering needs a capability that may be missing.
    let _ = std::fs::write("/proc/self/oom_score_adj", pod.oom_score_adj.to_string());
    sys::mount("", "/", "", libc::MS_REC | libc::MS_PRIVATE, "").map_err(doing("private mounts"))?;
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    sys::mount("tmpfs", directory, "tmpfs", flags, "size=0k,mode=555").map_err(doing("empty root"))?;
    std::env::set_current_dir(directory).map_err(doing("empty root"))?;
    sys::pivot_root(c".", c".").map_err(doing("pivot_root"))?;
    sys::unmount(".", libc::MNT_DETACH).map_err(doing("unmounting the node's root"))?;
    std::env::set_current_dir("/").map_err(doing("chdir"))?;
    sys::set_identity(PAUSE_USER, PAUSE_USER, &[]).map_err(doing("identity"))?;
    sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map_err(doing("no_new_privs"))?;
    let _ = sys::prctl(libc::PR_SET_DUMPABLE, 0, 0);
    Ok(())
}

/// Sleeps until told to end, reaping orphans meanwhile.
pub(crate) fn hold() -> ! {
    let Ok(signals) = sys::signal_fd(&[libc::SIGCHLD, libc::SIGTERM, libc::SIGINT]) else { sys::exit_now(1) };
    loop {
        let mut entries =
            [sys::Poll { fd: std::os::fd::AsRawFd::as_raw_fd(&signals), read: true, write: false, ready: false }];
        if sys::poll(&mut entries, -1).is_err() {
            sys::exit_now(1);
        }
        let mut info = [0u8; 128];
        while let Ok(n) = sys::read(signals.as_fd(), &mut info) {
            // The first four bytes of signalfd_siginfo are the signal's number.
            let signal = i32::from_ne_bytes([info[0], info[1], info[2], info[3]]);
            if n < 4 {
                break;
            }
            match signal {
                libc::SIGTERM | libc::SIGINT => sys::exit_now(0),
                _ => while sys::reap().is_some() {},
            }
        }
    }
}

/// `net.ipv4.ip_forward` and `net/ipv4/ip_forward` name the same file; with slashes, dots are part of names.
pub(crate) fn sysctl_path(name: &str) -> String {
    let slash = name.find('/');
    let dot = name.find('.');
    match (slash, dot) {
        (Some(slash), Some(dot)) if slash < dot => name.to_string(),
        (Some(_), None) => name.to_string(),
        _ => name
            .chars()
            .map(|c| match c {
                '.' => '/',
                '/' => '.',
                c => c,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysctl_names_in_both_spellings() {
        for (name, path) in [
            ("net.ipv4.ip_forward", "net/ipv4/ip_forward"),
            ("net/ipv4/ip_forward", "net/ipv4/ip_forward"),
            ("net/ipv4/conf/eth0.1/rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
            ("net.ipv4.conf.eth0/1.rp_filter", "net/ipv4/conf/eth0.1/rp_filter"),
        ] {
            assert_eq!(sysctl_path(name), path);
        }
    }
}

//! pause: the process that holds a pod's namespaces. PID 1 of the pod when its containers share one PID namespace;
//! then it also reaps what the containers leave behind.
//!
//! The shim forks it, so it costs a few private pages. It owns nothing: an empty read-only root, no capabilities,
//! an unprivileged user, and no way for a container to look into it.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::ExitCode;

use super::error::{Error, doing};
use super::kernel::Kernel;
use crate::spec::{Namespace, PodSpec};
use crate::sys;

/// As upstream's pause image runs.
const PAUSE_USER: u32 = 65535;

/// `cox pause`, for runtimes that want it as a program of its own (a pause image).
pub fn main() -> ExitCode {
    hold()
}

/// What becoming pause asks of the kernel for the process itself, besides another root.
pub(crate) trait Process {
    fn set_hostname(&self, name: &str) -> io::Result<()>;
    fn set_loopback_up(&self) -> io::Result<()>;
    /// Writes a file below /proc.
    fn write(&self, path: &str, value: &str) -> io::Result<()>;
    /// User, group, and no other groups; all capabilities go with root.
    fn set_identity(&self, id: u32) -> io::Result<()>;
    fn forbid_new_privileges(&self) -> io::Result<()>;
    /// No other process of the same user may look into this one.
    fn forbid_dumps(&self) -> io::Result<()>;
}

pub(crate) struct Linux;

impl Process for Linux {
    fn set_hostname(&self, name: &str) -> io::Result<()> {
        sys::sethostname(name)
    }

    fn set_loopback_up(&self) -> io::Result<()> {
        sys::loopback_up()
    }

    fn write(&self, path: &str, value: &str) -> io::Result<()> {
        std::fs::write(path, value)
    }

    fn set_identity(&self, id: u32) -> io::Result<()> {
        sys::set_identity(id, id, &[])
    }

    fn forbid_new_privileges(&self) -> io::Result<()> {
        sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0).map(drop)
    }

    fn forbid_dumps(&self) -> io::Result<()> {
        sys::prctl(libc::PR_SET_DUMPABLE, 0, 0).map(drop)
    }
}

/// In the forked child: finishes the pod's namespaces, then gives up everything else.
pub(crate) fn enter(
    pod: &PodSpec,
    directory: &Path,
    kernel: &impl Kernel,
    process: &impl Process,
) -> Result<(), Error> {
    sys::set_process_name("pause");
    sys::reset_signals();
    finish_namespaces(pod, process)?;
    give_up(directory, kernel, process)
}

fn finish_namespaces(pod: &PodSpec, process: &impl Process) -> Result<(), Error> {
    if pod.namespaces.uts == Namespace::Own && !pod.hostname.is_empty() {
        process.set_hostname(&pod.hostname).map_err(doing("sethostname"))?;
    }
    if pod.namespaces.network == Namespace::Own {
        process.set_loopback_up().map_err(doing("loopback"))?;
    }
    for (name, value) in &pod.sysctls {
        let path = format!("/proc/sys/{}", sysctl_path(name));
        process.write(&path, value).map_err(doing(format!("sysctl {name}")))?;
    }
    // Best effort: lowering needs a capability that may be missing.
    let _ = process.write("/proc/self/oom_score_adj", &pod.oom_score_adj.to_string());
    Ok(())
}

/// First the node's files, then all privileges.
fn give_up(directory: &Path, kernel: &impl Kernel, process: &impl Process) -> Result<(), Error> {
    kernel.mount("", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE, "").map_err(doing("private mounts"))?;
    let flags = libc::MS_RDONLY | libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC;
    kernel.mount("tmpfs", directory, "tmpfs", flags, "size=0k,mode=555").map_err(doing("empty root"))?;
    kernel.enter(directory).map_err(doing("empty root"))?;
    kernel.pivot_root().map_err(doing("pivot_root"))?;
    kernel.unmount(Path::new(".")).map_err(doing("unmounting the node's root"))?;
    kernel.enter(Path::new("/")).map_err(doing("chdir"))?;
    process.set_identity(PAUSE_USER).map_err(doing("identity"))?;
    process.forbid_new_privileges().map_err(doing("no_new_privs"))?;
    let _ = process.forbid_dumps();
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
    use crate::shim::recorded::Recorded;
    use crate::spec::Namespaces;

    impl Process for Recorded {
        fn set_hostname(&self, name: &str) -> io::Result<()> {
            self.note(format!("hostname {name}"))
        }

        fn set_loopback_up(&self) -> io::Result<()> {
            self.note("loopback".into())
        }

        fn write(&self, path: &str, value: &str) -> io::Result<()> {
            self.note(format!("write {path} {value}"))
        }

        fn set_identity(&self, id: u32) -> io::Result<()> {
            self.note(format!("identity {id}"))
        }

        fn forbid_new_privileges(&self) -> io::Result<()> {
            self.note("no new privileges".into())
        }

        fn forbid_dumps(&self) -> io::Result<()> {
            self.note("no dumps".into())
        }
    }

    fn pod(own: Namespace) -> PodSpec {
        PodSpec {
            hostname: "web-0".into(),
            namespaces: Namespaces { network: own, uts: own, ..Namespaces::default() },
            sysctls: [("net.ipv4.ip_forward".to_owned(), "1".to_owned())].into(),
            oom_score_adj: -998,
            ..PodSpec::default()
        }
    }

    #[test]
    fn namespaces_of_the_pod_are_finished_and_those_of_the_node_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Recorded::new(root.path());
        finish_namespaces(&pod(Namespace::Own), &kernel).unwrap();
        let sysctl = "write /proc/sys/net/ipv4/ip_forward 1";
        let oom = "write /proc/self/oom_score_adj -998";
        assert_eq!(kernel.calls(), ["hostname web-0", "loopback", sysctl, oom]);
        finish_namespaces(&PodSpec { sysctls: Default::default(), ..pod(Namespace::Host) }, &kernel).unwrap();
        assert_eq!(kernel.calls(), [oom]);
    }

    /// The node's root is gone before the user changes, and nothing is kept that could bring it back.
    #[test]
    fn pause_gives_up_the_nodes_root_and_then_all_privileges() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Recorded::new(root.path());
        give_up(root.path(), &kernel, &kernel).unwrap();
        assert_eq!(
            kernel.calls(),
            [
                "mount / private,rec",
                "mount tmpfs </> tmpfs ro,nosuid,nodev,noexec size=0k,mode=555",
                "enter </>",
                "pivot",
                "unmount .",
                "enter /",
                "identity 65535",
                "no new privileges",
                "no dumps",
            ]
        );
    }

    #[test]
    fn a_step_that_fails_is_the_last_one() {
        let root = tempfile::tempdir().unwrap();
        for (failing, said) in [
            ("mount / ", "private mounts"),
            ("pivot", "pivot_root"),
            ("unmount", "unmounting the node's root"),
            ("identity", "identity"),
            ("no new", "no_new_privs"),
        ] {
            let kernel = Recorded { failing, ..Recorded::new(root.path()) };
            let error = give_up(root.path(), &kernel, &kernel).unwrap_err().to_string();
            assert!(error.starts_with(said), "{failing}: {error}");
            assert!(kernel.calls().last().unwrap().starts_with(failing));
        }
        // What only makes it harder to look into is tried, and no more.
        let kernel = Recorded { failing: "no dumps", ..Recorded::new(root.path()) };
        give_up(root.path(), &kernel, &kernel).unwrap();
    }

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

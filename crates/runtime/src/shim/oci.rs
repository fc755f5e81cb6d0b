//! Containers run by an external OCI runtime (runc, crun, …) instead of by us.
//!
//! A RuntimeClass handler names the program. The shim still owns streams, logs and exit codes: the runtime's `create`
//! is called from a child in a mount namespace of its own, where the root filesystem is mounted, so the node never sees
//! that mount; the container's first process comes to the shim, its subreaper, when `create` has ended.

use std::ffi::CString;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::child::{READY_TIMEOUT, Stdio};
use super::error::{Error, Result, doing};
use super::kernel::Linux;
use super::{oci_config, rootfs};
use crate::rooted::{Resolve, Rooted};
use crate::spec::{MountSource, Process, Spec};
use crate::sys::{self, Fork};
use crate::user::{self, Identity};

/// An external runtime and the container it is asked about.
pub(super) struct External {
    program: PathBuf,
    id: String,
    /// The container's directory: also the bundle, and the place of the runtime's own state.
    directory: PathBuf,
    identity: Identity,
    /// Its cgroup is a scope of systemd.
    systemd_cgroup: bool,
}

/// A process that the external runtime has started.
pub(super) struct Started {
    pub(super) pid: i32,
    pub(super) terminal: Option<OwnedFd>,
}

impl External {
    /// Creates and starts the container of `spec`.
    pub(super) fn start(
        program: &Path,
        id: &str,
        directory: &Path,
        spec: &Spec,
        pause_pid: i32,
        stdio: Stdio,
    ) -> Result<(Self, Started)> {
        let console = Console::listen(directory, spec.process.tty)?;
        let mut external = External {
            program: program.into(),
            id: id.into(),
            directory: directory.into(),
            identity: Identity::default(),
            systemd_cgroup: cgroup::systemd::is_scope(&spec.cgroup),
        };
        let pid_file = directory.join("oci.pid");
        let mut arguments = external.arguments("create");
        arguments.extend(["--bundle".into(), path_text(directory), "--pid-file".into(), path_text(&pid_file)]);
        arguments.extend(console.arguments());
        arguments.push(id.into());
        let child = match sys::clone_process(libc::CLONE_NEWNS).map_err(doing("fork"))? {
            Fork::Child => {
                let prepared = prepare(spec, directory, pause_pid).and_then(|()| take_stdio(stdio));
                fail(&external.log(), prepared.err());
                external.exec(&arguments)
            }
            Fork::Parent(pid) => pid,
        };
        external.finished("create", child)?;
        let pid = read_pid(&pid_file)?;
        external.identity = read_identity(directory)?;
        let terminal = console.accept()?;
        if let Err(error) = external.run("start", &[id.into()]) {
            external.delete();
            return Err(error);
        }
        Ok((external, Started { pid, terminal }))
    }

    pub(super) fn identity(&self) -> &Identity {
        &self.identity
    }

    /// Starts another process in the container.
    pub(super) fn exec_in(&self, process: &Process, stdio: Stdio) -> Result<Started> {
        let unique = format!("exec-{}", crate::record::now());
        let (description, pid_file) =
            (self.directory.join(format!("{unique}.json")), self.directory.join(format!("{unique}.pid")));
        let text = oci_config::process(process, &self.identity).to_string();
        fs::write(&description, text).map_err(doing(description.display().to_string()))?;
        let console = Console::listen(&self.directory, process.tty)?;
        let mut arguments = self.arguments("exec");
        arguments.extend(["--detach".into(), "--pid-file".into(), path_text(&pid_file)]);
        arguments.extend(["--process".into(), path_text(&description)]);
        arguments.extend(console.arguments());
        arguments.push(self.id.clone());
        let child = match sys::clone_process(0).map_err(doing("fork"))? {
            Fork::Child => {
                fail(&self.log(), take_stdio(stdio).err());
                self.exec(&arguments)
            }
            Fork::Parent(pid) => pid,
        };
        let started = self
            .finished("exec", child)
            .and_then(|()| Ok(Started { pid: read_pid(&pid_file)?, terminal: console.accept()? }));
        let _ = fs::remove_file(&description);
        let _ = fs::remove_file(&pid_file);
        started
    }

    /// Forgets the container; what is left of it is killed.
    pub(super) fn delete(&self) {
        if let Err(error) = self.run("delete", &["--force".into(), self.id.clone()]) {
            eprintln!("container {}: {error}", self.id);
        }
    }

    fn log(&self) -> PathBuf {
        self.directory.join("oci.log")
    }

    fn arguments(&self, command: &str) -> Vec<String> {
        let state = path_text(&self.directory.join("oci"));
        let global =
            ["--root".into(), state, "--log".into(), path_text(&self.log()), "--log-format".into(), "json".into()];
        let systemd = self.systemd_cgroup.then(|| "--systemd-cgroup".into());
        [path_text(&self.program)].into_iter().chain(global).chain(systemd).chain([command.into()]).collect()
    }

    /// Runs one command to its end.
    fn run(&self, command: &str, rest: &[String]) -> Result<()> {
        let mut arguments = self.arguments(command);
        arguments.extend_from_slice(rest);
        match sys::clone_process(0).map_err(doing("fork"))? {
            Fork::Child => self.exec(&arguments),
            Fork::Parent(pid) => self.finished(command, pid),
        }
    }

    /// In a child: becomes the external runtime.
    fn exec(&self, arguments: &[String]) -> ! {
        sys::reset_signals();
        sys::reset_huge_pages();
        let failed = sys::close_on_exec_from(3).and_then(|()| {
            let arguments = arguments.iter().map(|a| CString::new(a.as_str())).collect::<Result<Vec<_>, _>>()?;
            let path = c"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
            Err::<(), _>(sys::exec(&arguments[0], &arguments, &[path.to_owned()]))
        });
        let failed = failed.map_err(doing(self.program.display().to_string()));
        fail(&self.log(), failed.err());
        sys::exit_now(1)
    }

    fn finished(&self, command: &str, pid: i32) -> Result<()> {
        match sys::wait_at_most(pid, READY_TIMEOUT).map_err(doing("waiting for the runtime"))? {
            Some(0) => Ok(()),
            None => {
                // It is reaped with all others.
                let _ = sys::kill(pid, libc::SIGKILL);
                Err(Error::NeverReady(READY_TIMEOUT))
            }
            Some(code) => {
                let name = self.program.file_name().unwrap_or_default().display();
                let message = last_error(&fs::read_to_string(self.log()).unwrap_or_default());
                Err(Error::External {
                    program: name.to_string(),
                    command: command.to_owned(),
                    message: message.unwrap_or_else(|| format!("ended with {code}")),
                })
            }
        }
    }
}

/// In the child, before `create`: mounts what the bundle needs and writes its `config.json`.
fn prepare(spec: &Spec, directory: &Path, pause_pid: i32) -> Result<()> {
    rootfs::mount_root(&Linux, spec)?;
    let mut images = Vec::new();
    for mount in &spec.mounts {
        if let MountSource::Image { layers, lower, sub_path } = &mount.source {
            let stage = directory.join(format!("image-volume-{}", images.len()));
            images.push(
                rootfs::stage_image(&Linux, layers, lower, sub_path, &stage).map_err(doing(mount.target.clone()))?,
            );
        }
    }
    let root = Rooted::open(&spec.rootfs.target).map_err(doing("root filesystem"))?;
    let read = |name: &str| {
        let opened = root.open_at(name, libc::O_RDONLY | libc::O_NONBLOCK, Resolve::IN_ROOT);
        user::text(name, opened.and_then(|fd| user::read_whole(fd.into())))
    };
    let identity = user::resolve_in(&spec.process.user, &read("etc/passwd")?, &read("etc/group")?)?;
    let config = oci_config::config(spec, &identity, pause_pid, &images)?;
    let write = |name: &'static str, text: String| fs::write(directory.join(name), text).map_err(doing(name));
    write("config.json", config.to_string())?;
    let identity = serde_json::json!([identity.uid, identity.gid, identity.groups, identity.home]);
    write("identity.json", identity.to_string())
}

fn read_identity(directory: &Path) -> Result<Identity> {
    let text = fs::read(directory.join("identity.json")).map_err(doing("identity.json"))?;
    let (uid, gid, groups, home) =
        serde_json::from_slice(&text).map_err(|error| doing("identity.json")(error.into()))?;
    Ok(Identity { uid, gid, groups, home })
}

fn take_stdio(stdio: Stdio) -> Result<()> {
    for (number, fd) in stdio.iter().flatten().enumerate() {
        sys::dup_onto(fd.as_fd(), number as i32).map_err(doing("stdio"))?;
    }
    Ok(())
}

/// In a child: leaves an error where the shim looks for those of the external runtime, and ends.
fn fail(log: &Path, error: Option<Error>) {
    if let Some(error) = error {
        let line = serde_json::json!({"level": "error", "msg": error.to_string()});
        let _ = fs::write(log, format!("{line}\n"));
        sys::exit_now(1);
    }
}

/// The last error of a log of JSON lines.
fn last_error(log: &str) -> Option<String> {
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut errors = lines.filter(|line| line["level"] == "error" || line["level"] == "fatal");
    errors.next_back().and_then(|line| line["msg"].as_str().map(String::from))
}

fn read_pid(path: &Path) -> Result<i32> {
    let text = fs::read_to_string(path).map_err(doing(path.display().to_string()))?;
    let parsed = text.trim().parse();
    parsed.map_err(|_| Error::Child(format!("{}: {text:?} is no pid", path.display())))
}

fn path_text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Where the external runtime sends the terminal's master, for processes that get one.
struct Console(Option<Listening>);

struct Listening {
    listener: UnixListener,
    path: PathBuf,
    /// The path leads through it: that of a socket must be short, and a container's directory is not.
    _directory: Rooted,
}

impl Console {
    fn listen(directory: &Path, wanted: bool) -> Result<Self> {
        if !wanted {
            return Ok(Console(None));
        }
        let directory = Rooted::open(directory).map_err(doing("console"))?;
        let number = directory.fd().as_raw_fd();
        let path = PathBuf::from(format!("/proc/{}/fd/{number}/console.sock", std::process::id()));
        let _ = fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(doing("console"))?;
        Ok(Console(Some(Listening { listener, path, _directory: directory })))
    }

    fn arguments(&self) -> Vec<String> {
        self.0.iter().flat_map(|listening| ["--console-socket".into(), path_text(&listening.path)]).collect()
    }

    fn accept(self) -> Result<Option<OwnedFd>> {
        let Some(listening) = self.0 else { return Ok(None) };
        let (stream, _) = listening.listener.accept().map_err(doing("console"))?;
        let (mut buffer, mut fds) = ([0u8; 4096], Vec::new());
        sys::receive_with_fds(stream.as_fd(), &mut buffer, &mut fds).map_err(doing("console"))?;
        let _ = fs::remove_file(&listening.path);
        Ok(fds.pop())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_found_in_logs() {
        let log = "{\"level\":\"warning\",\"msg\":\"w\"}\n{\"level\":\"error\",\"msg\":\"first\"}\nnoise\n{\"level\":\"error\",\"msg\":\"exec: \\\"x\\\"\"}\n";
        assert_eq!(last_error(log).as_deref(), Some("exec: \"x\""));
        assert_eq!(last_error("{\"level\":\"info\",\"msg\":\"fine\"}"), None);
    }
}

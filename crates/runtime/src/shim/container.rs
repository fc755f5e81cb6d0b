//! One container in the shim: its processes, its streams, its end.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::child::{self, Joins, Message, READY_TIMEOUT, Stdio};
use super::error::{Error, Result, doing};
use super::log::{Line, Log};
use super::oci::External;
use crate::cgroup::Cgroups;
use crate::record::{self, StatusRecord};
use crate::spec::{Namespace, Process, Spec};
use crate::sys::{self, Fork};

/// An attached client this far behind is dropped; the container is never held up by it.
const ATTACH_BUFFER: usize = 1 << 20;
/// Read from a stream before others have their turn: a program that writes as fast as we read must not keep the shim from
/// being told to end it.
const READS_PER_TURN: usize = 16;
/// Turns for the last words of a container. They are in its pipes by then, which hold a few; whoever else has their other end
/// may write for ever.
const LAST_TURNS: usize = 4;

pub(super) struct Container {
    pub(super) id: String,
    directory: PathBuf,
    process: Process,
    cgroup: String,
    pub(super) status: StatusRecord,
    pub(super) running: bool,
    log: Option<Log>,
    /// Writing side of the program's stdin, or the terminal's master.
    pub(super) stdin: Option<OwnedFd>,
    stdin_once: bool,
    stdin_queue: VecDeque<u8>,
    stdin_closing: bool,
    pub(super) outputs: Vec<Output>,
    pub(super) attached: Vec<Attached>,
    /// The program that runs it, where that is not us.
    external: Option<External>,
}

/// One stream that the program writes.
pub(super) struct Output {
    pub(super) fd: OwnedFd,
    name: &'static str,
    line: Line,
}

/// A client that follows the streams, living as long as its connection.
pub(super) struct Attached {
    pub(super) connection: u64,
    pub(super) stdin: Option<OwnedFd>,
    pub(super) outputs: Vec<AttachedOutput>,
}

pub(super) struct AttachedOutput {
    pub(super) fd: OwnedFd,
    name: &'static str,
    pub(super) queue: VecDeque<u8>,
}

/// What every start needs to know about the pod.
pub(super) struct Pod<'a> {
    pub(super) pause_pid: i32,
    pub(super) cgroups: &'a Cgroups,
    /// First processes of its containers. They are ours to reap, so until then their numbers are nobody else's.
    pub(super) alive: Vec<i32>,
}

impl Pod<'_> {
    /// A container that is to see the processes of another was told which one when it was made. That one may have ended, and
    /// its number be a process of another pod's, or of the node's, by now.
    fn check_target(&self, spec: &Spec) -> Result<()> {
        let namespaces = &spec.namespaces;
        let all = [namespaces.network, namespaces.ipc, namespaces.uts, namespaces.pid];
        let is_gone = |namespace: &Namespace| matches!(namespace, Namespace::Process(pid) if !self.alive.contains(pid));
        match all.iter().any(is_gone) {
            true => Err(Error::Spec("the container whose processes it is to see has ended".into())),
            false => Ok(()),
        }
    }
}

impl Container {
    /// Starts the container whose spec lies in `directory`.
    pub(super) fn start(id: &str, directory: PathBuf, pod: &Pod<'_>) -> Result<Self> {
        let spec: Spec = record::read(&directory.join("spec.json")).map_err(doing("spec.json"))?;
        match Self::launch(id, &directory, &spec, pod) {
            Ok(container) => Ok(container),
            Err(error) => {
                let now = record::now();
                // As containerd reports a container whose program could not be started.
                let status = StatusRecord {
                    started_at: now,
                    finished_at: now,
                    exit_code: 128,
                    reason: "StartError".into(),
                    message: error.to_string(),
                    ..Default::default()
                };
                record::write(&directory.join("status.json"), &status).map_err(doing("status.json"))?;
                pod.cgroups.kill(&spec.cgroup);
                let _ = pod.cgroups.remove(&spec.cgroup);
                Err(error)
            }
        }
    }

    fn launch(id: &str, directory: &Path, spec: &Spec, pod: &Pod<'_>) -> Result<Self> {
        pod.check_target(spec)?;
        let log = match &spec.log_path {
            Some(path) => Some(Log::open(path.clone()).map_err(doing(format!("log {}", path.display())))?),
            None => None,
        };
        let (ours, theirs) = match spec.process.tty {
            true => (Vec::new(), None),
            false => pipes(spec.stdin).map_err(doing("pipes"))?,
        };
        let (started, external) = match &spec.oci_runtime {
            None => (Self::fork(spec, pod, theirs)?, None),
            Some(program) => {
                let (external, started) = External::start(program, id, directory, spec, pod.pause_pid, theirs)?;
                let who = external.identity();
                let identity = (who.uid, who.gid, who.groups.clone());
                (Started { pid: started.pid, identity, terminal: started.terminal }, Some(external))
            }
        };
        let mut container = Self {
            id: id.to_string(),
            directory: directory.to_path_buf(),
            process: spec.process.clone(),
            cgroup: spec.cgroup.clone(),
            status: StatusRecord {
                pid: started.pid,
                started_at: record::now(),
                uid: started.identity.0,
                gid: started.identity.1,
                groups: started.identity.2,
                ..Default::default()
            },
            running: true,
            log,
            stdin: None,
            stdin_once: spec.stdin_once,
            stdin_queue: VecDeque::new(),
            stdin_closing: false,
            outputs: Vec::new(),
            attached: Vec::new(),
            external,
        };
        container.take_streams(ours, started.terminal, spec.stdin).map_err(doing("streams"))?;
        container.save();
        Ok(container)
    }

    /// Becomes the container in a forked child.
    fn fork(spec: &Spec, pod: &Pod<'_>, stdio: Stdio) -> Result<Started> {
        pod.cgroups.create(&spec.cgroup, &spec.resources, &spec.devices).map_err(doing("cgroup"))?;
        let mut joins = Joins::new();
        for (namespace, name, kind) in [
            (spec.namespaces.network, "net", libc::CLONE_NEWNET),
            (spec.namespaces.ipc, "ipc", libc::CLONE_NEWIPC),
            (spec.namespaces.uts, "uts", libc::CLONE_NEWUTS),
        ] {
            match namespace {
                Namespace::Pod => joins.push((namespace_of(pod.pause_pid, name)?, kind)),
                Namespace::Process(pid) => joins.push((namespace_of(pid, name)?, kind)),
                Namespace::Own | Namespace::Host => {}
            }
        }
        let pid_namespace = match spec.namespaces.pid {
            Namespace::Pod => Some(namespace_of(pod.pause_pid, "pid")?),
            Namespace::Process(pid) => Some(namespace_of(pid, "pid")?),
            Namespace::Own | Namespace::Host => None,
        };
        let own_pid = if spec.namespaces.pid == Namespace::Own { libc::CLONE_NEWPID } else { 0 };
        let cgroups = pod.cgroups;
        let enter = |pid| cgroups.enter(&spec.cgroup, pid, &spec.resources, &spec.devices);
        spawn(libc::CLONE_NEWNS | own_pid, pid_namespace, enter, |socket| {
            child::run_container(spec, cgroups, joins, stdio, socket)
        })
    }

    fn take_streams(&mut self, ours: Vec<OwnedFd>, terminal: Option<OwnedFd>, stdin: bool) -> io::Result<()> {
        let mut add = |fd: OwnedFd, name| {
            sys::set_nonblocking(fd.as_fd())?;
            self.outputs.push(Output { fd, name, line: Line::default() });
            io::Result::Ok(())
        };
        if let Some(master) = terminal {
            let input = master.try_clone()?;
            add(master, "stdout")?;
            if stdin {
                self.stdin = Some(input);
            }
            return Ok(());
        }
        let mut ours = ours.into_iter();
        if stdin {
            self.stdin = ours.next();
            if let Some(fd) = &self.stdin {
                sys::set_nonblocking(fd.as_fd())?;
            }
        }
        for (fd, name) in ours.zip(["stdout", "stderr"]) {
            add(fd, name)?;
        }
        Ok(())
    }

    fn save(&self) {
        if let Err(error) = record::write(&self.directory.join("status.json"), &self.status) {
            eprintln!("container {}: status.json: {error}", self.id);
        }
    }

    /// Starts another process in the container: (its pid, its terminal's master).
    pub(super) fn exec(
        &self,
        args: Vec<String>,
        tty: bool,
        fds: Vec<OwnedFd>,
        pod: &Pod<'_>,
    ) -> Result<(i32, Option<OwnedFd>)> {
        if !self.running {
            return Err(Error::NotRunning(self.id.clone()));
        }
        let stdio: Stdio = match tty {
            true => None,
            false => Some(fds.try_into().map_err(|_| Error::Descriptors("exec"))?),
        };
        let mut process = Process { args, tty, ..self.process.clone() };
        if tty && !process.env.iter().any(|e| e.starts_with("TERM=")) {
            process.env.push("TERM=xterm".into());
        }
        if let Some(external) = &self.external {
            let started = external.exec_in(&process, stdio)?;
            return Ok((started.pid, started.terminal));
        }
        let pid = self.status.pid;
        let mut joins = Joins::new();
        for (name, kind) in [
            ("cgroup", libc::CLONE_NEWCGROUP),
            ("net", libc::CLONE_NEWNET),
            ("ipc", libc::CLONE_NEWIPC),
            ("uts", libc::CLONE_NEWUTS),
            ("mnt", libc::CLONE_NEWNS),
        ] {
            joins.push((namespace_of(pid, name)?, kind));
        }
        let enter = |pid| pod.cgroups.add(&self.cgroup, pid);
        let started =
            spawn(0, Some(namespace_of(pid, "pid")?), enter, |socket| child::run_exec(&process, joins, stdio, socket))?;
        Ok((started.pid, started.terminal))
    }

    /// Moves what the program wrote to the log and to attached clients, a turn's worth; false when the stream has ended.
    pub(super) fn pump(&mut self, index: usize) -> bool {
        let mut buffer = [0u8; 64 * 1024];
        let mut reads = 0;
        loop {
            if reads == READS_PER_TURN {
                return true;
            }
            reads += 1;
            let output = &mut self.outputs[index];
            match sys::read(output.fd.as_fd(), &mut buffer) {
                Ok(0) => break,
                Ok(n) => {
                    let name = output.name;
                    if let Some(log) = &mut self.log
                        && let Err(error) = log.write(&mut output.line, name, &buffer[..n])
                    {
                        eprintln!("container {}: log: {error}", self.id);
                    }
                    for client in &mut self.attached {
                        for out in client.outputs.iter_mut().filter(|o| o.name == name) {
                            out.queue.extend(&buffer[..n]);
                        }
                    }
                    self.flush_attached();
                    if n < buffer.len() {
                        // Come back through poll: other containers have something to say too.
                        return true;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // A terminal answers EIO once its last user is gone.
                Err(_) => break,
            }
        }
        let output = &mut self.outputs[index];
        if let Some(log) = &mut self.log
            && let Err(error) = log.finish(&mut output.line, output.name)
        {
            eprintln!("container {}: log: {error}", self.id);
        }
        false
    }

    /// Sends queued output on; clients that went away or fell too far behind lose their streams.
    pub(super) fn flush_attached(&mut self) {
        for client in &mut self.attached {
            client.outputs.retain_mut(|out| {
                loop {
                    let (bytes, _) = out.queue.as_slices();
                    if bytes.is_empty() {
                        return true;
                    }
                    match sys::write(out.fd.as_fd(), bytes) {
                        Ok(n) => drop(out.queue.drain(..n)),
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return out.queue.len() < ATTACH_BUFFER,
                        Err(_) => return false,
                    }
                }
            });
        }
    }

    pub(super) fn attach(&mut self, connection: u64, wanted: [bool; 3], fds: Vec<OwnedFd>) -> Result<()> {
        if !self.running {
            return Err(Error::NotRunning(self.id.clone()));
        }
        let mut fds = fds.into_iter();
        let mut client = Attached { connection, stdin: None, outputs: Vec::new() };
        for (wanted, name) in wanted.into_iter().zip(["stdin", "stdout", "stderr"]) {
            if !wanted {
                continue;
            }
            let fd = fds.next().ok_or(Error::Descriptors("attach"))?;
            sys::set_nonblocking(fd.as_fd()).map_err(doing("attach"))?;
            match name {
                "stdin" if self.stdin.is_some() => client.stdin = Some(fd),
                "stdin" => {}
                name => client.outputs.push(AttachedOutput { fd, name, queue: VecDeque::new() }),
            }
        }
        self.attached.push(client);
        Ok(())
    }

    /// Takes input from an attached client, as much as the program's stdin has room for.
    pub(super) fn read_stdin(&mut self, client: usize) {
        let mut buffer = [0u8; 16 * 1024];
        let Some(fd) = self.attached[client].stdin.as_ref() else { return };
        match sys::read(fd.as_fd(), &mut buffer) {
            Ok(n) if n > 0 => self.stdin_queue.extend(&buffer[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            _ => {
                self.attached[client].stdin = None;
                match self.stdin_once {
                    true => self.stdin_closing = true,
                    // Others may attach and go on where this client ends; it gets no more output, as containerd does.
                    false => self.attached[client].outputs.clear(),
                }
            }
        }
        self.write_stdin();
    }

    pub(super) fn write_stdin(&mut self) {
        while let Some(fd) = &self.stdin
            && !self.stdin_queue.is_empty()
        {
            match sys::write(fd.as_fd(), self.stdin_queue.as_slices().0) {
                Ok(n) => drop(self.stdin_queue.drain(..n)),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.stdin = None,
            }
        }
        if self.stdin_closing {
            self.stdin = None;
        }
    }

    pub(super) fn wants_stdin_write(&self) -> bool {
        self.stdin.is_some() && !self.stdin_queue.is_empty()
    }

    pub(super) fn accepts_stdin(&self) -> bool {
        self.stdin.is_some() && self.stdin_queue.is_empty()
    }

    pub(super) fn reopen_log(&mut self) -> Result<()> {
        match &mut self.log {
            Some(log) => log.reopen().map_err(doing("reopening the log")),
            None => Ok(()),
        }
    }

    pub(super) fn resize(&self, width: u16, height: u16) -> Result<()> {
        match self.outputs.first() {
            Some(output) if self.process.tty => {
                sys::set_window_size(output.fd.as_fd(), width, height).map_err(doing("resizing the terminal"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn signal(&self, signal: i32, cgroups: &Cgroups) -> Result<()> {
        if !self.running {
            return Ok(());
        }
        sys::kill(self.status.pid, signal).map_err(doing("kill"))?;
        if signal == libc::SIGKILL {
            cgroups.kill(&self.cgroup);
        }
        Ok(())
    }

    /// The first process ended: nothing of the container outlives it, and its last words are in the log before
    /// anyone hears of its end.
    pub(super) fn ended(&mut self, code: i32, cgroups: &Cgroups) {
        self.running = false;
        cgroups.kill(&self.cgroup);
        for index in (0..self.outputs.len()).rev() {
            for _ in 0..LAST_TURNS {
                if !self.drain_once(index) {
                    break;
                }
            }
        }
        self.stdin = None;
        self.status.finished_at = record::now();
        self.status.exit_code = code;
        let killed = cgroups.oom_kills(&self.cgroup) > 0;
        self.status.reason = match code {
            _ if killed && code != 0 => "OOMKilled",
            0 => "Completed",
            _ => "Error",
        }
        .into();
        self.save();
        if self.outputs.is_empty() {
            // Whoever follows it notices that nothing more will come.
            self.log = None;
        }
        self.attached.clear();
        if let Some(external) = &self.external {
            external.delete();
        }
    }

    /// Reads on while there is more; closes the stream at its end. A stream still held open by a process that the
    /// kernel has not quite taken away stays, and is read on by the poll loop.
    fn drain_once(&mut self, index: usize) -> bool {
        let mut entry = [sys::Poll { fd: self.outputs[index].fd.as_raw_fd(), read: true, write: false, ready: false }];
        if sys::poll(&mut entry, 0).is_err() || !entry[0].ready {
            return false;
        }
        if !self.pump(index) {
            self.outputs.remove(index);
            return false;
        }
        true
    }
}

pub(super) fn namespace_of(pid: i32, name: &str) -> Result<OwnedFd> {
    let path = format!("/proc/{pid}/ns/{name}");
    std::fs::File::open(&path).map(Into::into).map_err(doing(path))
}

/// Pipes for a program without a terminal: (our ends, its ends).
fn pipes(stdin: bool) -> io::Result<(Vec<OwnedFd>, Stdio)> {
    let mut ours = Vec::new();
    let input = if stdin {
        let (read, write) = sys::pipe()?;
        ours.push(write);
        read
    } else {
        sys::open_null()?
    };
    let (out_read, out_write) = sys::pipe()?;
    let (err_read, err_write) = sys::pipe()?;
    ours.extend([out_read, err_read]);
    Ok((ours, Some([input, out_write, err_write])))
}

struct Started {
    pid: i32,
    identity: (u32, u32, Vec<u32>),
    terminal: Option<OwnedFd>,
}

/// Forks `body` with `flags`, inside `pid_namespace` if given, lets it `enter` its cgroup and follows it to its exec.
fn spawn(
    flags: i32,
    pid_namespace: Option<OwnedFd>,
    enter: impl FnOnce(i32) -> io::Result<()>,
    body: impl FnOnce(OwnedFd),
) -> Result<Started> {
    let (ours, theirs) = sys::message_pair().map_err(doing("socket pair"))?;
    // Only children are born there; we ourselves never move.
    let home = match &pid_namespace {
        Some(fd) => {
            let home = sys::own_namespace("pid").map_err(doing("pid namespace"))?;
            sys::setns(fd.as_fd(), libc::CLONE_NEWPID).map_err(doing("pid namespace"))?;
            Some(home)
        }
        None => None,
    };
    let forked = sys::clone_process(flags);
    if let Ok(Fork::Child) = forked {
        drop(ours);
        body(theirs);
        sys::exit_now(1);
    }
    if let Some(home) = home {
        sys::setns(home.as_fd(), libc::CLONE_NEWPID).map_err(doing("returning to our pid namespace"))?;
    }
    let pid = match forked {
        Ok(Fork::Parent(pid)) => pid,
        Ok(Fork::Child) => sys::exit_now(1),
        Err(error) => return Err(doing("fork")(error)),
    };
    drop(theirs);
    let followed = enter(pid)
        .map_err(doing("cgroup"))
        .and_then(|()| sys::write(ours.as_fd(), b"g").map_err(doing("child")))
        .and_then(|_| follow(pid, &ours, READY_TIMEOUT));
    if let Err(error) = &followed {
        let _ = sys::kill(pid, libc::SIGKILL);
        // One that hangs in the kernel ends later, if at all: it is reaped with all others.
        if !matches!(error, Error::NeverReady(_)) {
            sys::wait_for(pid);
        }
    }
    followed
}

fn follow(pid: i32, socket: &OwnedFd, limit: Duration) -> Result<Started> {
    let mut started = Started { pid, identity: (0, 0, Vec::new()), terminal: None };
    let mut buffer = vec![0u8; 64 * 1024];
    let deadline = Instant::now() + limit;
    loop {
        if !sys::is_readable_by(socket.as_fd(), deadline).map_err(doing("child"))? {
            return Err(Error::NeverReady(limit));
        }
        let mut fds = Vec::new();
        let n = sys::receive_with_fds(socket.as_fd(), &mut buffer, &mut fds).map_err(doing("child"))?;
        if n == 0 {
            return Ok(started);
        }
        match serde_json::from_slice(&buffer[..n]).map_err(|error| doing("child")(error.into()))? {
            Message::Identity { uid, gid, groups } => started.identity = (uid, gid, groups),
            Message::Terminal => started.terminal = fds.pop(),
            Message::Failed { message } => return Err(Error::Child(message)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_process_that_has_ended_lends_its_namespace_to_nobody() {
        let Ok(cgroups) = Cgroups::detect() else {
            eprintln!("skipped: there are no cgroups here");
            return;
        };
        let pod = Pod { pause_pid: 7, cgroups: &cgroups, alive: vec![41, 42] };
        for (namespace, fine) in [
            (Namespace::Own, true),
            (Namespace::Pod, true),
            (Namespace::Host, true),
            (Namespace::Process(42), true),
            (Namespace::Process(1), false),
        ] {
            let mut spec = Spec::default();
            spec.namespaces.pid = namespace;
            assert_eq!(pod.check_target(&spec).is_ok(), fine, "{namespace:?}");
        }
    }

    /// A process is seen by others of its container before it is what it is to be. One that they stop says nothing any more, and does
    /// not end either; whoever waited for it was never heard of again.
    #[test]
    fn security_a_process_that_is_stopped_on_its_way_is_given_up() {
        let (ours, theirs) = sys::message_pair().unwrap();
        let follow = |limit| follow(7, &ours, limit);
        assert!(matches!(follow(Duration::from_millis(10)), Err(Error::NeverReady(_))));
        // Word of it counts also when there is no time left, and so does its end.
        let word = Message::Failed { message: "no such program".into() };
        sys::write(theirs.as_fd(), &serde_json::to_vec(&word).unwrap()).unwrap();
        assert!(matches!(follow(Duration::ZERO), Err(Error::Child(_))));
        drop(theirs);
        assert!(follow(Duration::ZERO).is_ok());
    }

    /// A stream that has more to say whenever it is read, as that of a program that writes as fast as it can. Whoever reads
    /// it to its end is never heard of again.
    #[test]
    fn security_endless_output_keeps_nobody_from_the_shim() {
        let endless = || OwnedFd::from(std::fs::File::open("/dev/zero").unwrap());
        let mut container = Container {
            id: "c".into(),
            directory: PathBuf::new(),
            process: Process::default(),
            cgroup: String::new(),
            status: StatusRecord::default(),
            running: true,
            log: None,
            stdin: None,
            stdin_once: false,
            stdin_queue: VecDeque::new(),
            stdin_closing: false,
            outputs: vec![Output { fd: endless(), name: "stdout", line: Line::default() }],
            attached: Vec::new(),
            external: None,
        };
        assert!(container.pump(0), "it goes on, in its next turn");
        assert!(container.drain_once(0));
        assert_eq!(container.outputs.len(), 1);
    }
}

//! The shim's loop: one `poll` over its socket, its clients, its children's ends and their streams.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use super::Paths;
use super::container::{Container, Pod};
use super::error::{Error, Result};
use super::protocol::{Ended, Request, Response, frame, take_frame};
use crate::cgroup::Cgroups;
use crate::record::{self, ShimRecord};
use crate::spec::PodSpec;
use crate::sys::{self, Poll};

pub(super) struct Server {
    sandbox: PathBuf,
    containers_directory: PathBuf,
    socket: PathBuf,
    cgroups: Cgroups,
    cgroup: String,
    pause_pid: i32,
    listener: UnixListener,
    signals: OwnedFd,
    containers: Vec<Container>,
    connections: Vec<Connection>,
    next_connection: u64,
    stopping: bool,
}

struct Connection {
    token: u64,
    stream: UnixStream,
    input: Vec<u8>,
    fds: Vec<OwnedFd>,
    watches: bool,
    /// The process started over it.
    exec_pid: Option<i32>,
    closed: bool,
}

/// What a ready descriptor stands for.
enum Source {
    Listener,
    Signals,
    Connection(u64),
    Output(String, RawFd),
    Stdin(String),
    AttachedInput(String, u64),
    AttachedOutput(String),
}

impl Server {
    pub(super) fn new(
        paths: &Paths,
        cgroups: Cgroups,
        pod: PodSpec,
        pause_pid: i32,
        listener: UnixListener,
        signals: OwnedFd,
    ) -> Self {
        Self {
            sandbox: paths.sandbox.clone(),
            containers_directory: paths.containers.clone(),
            socket: paths.socket.clone(),
            cgroups,
            cgroup: pod.cgroup,
            pause_pid,
            listener,
            signals,
            containers: Vec::new(),
            connections: Vec::new(),
            next_connection: 1,
            stopping: false,
        }
    }

    /// Runs until told to shut down and everything of the pod is gone.
    pub(super) fn serve(mut self) {
        loop {
            if self.stopping && self.pause_pid == 0 && self.containers.iter().all(|c| !c.running) {
                break;
            }
            let (mut entries, sources) = self.interests();
            if let Err(error) = sys::poll(&mut entries, -1) {
                eprintln!("poll: {error}");
                break;
            }
            for (entry, source) in entries.iter().zip(sources) {
                if entry.ready {
                    self.ready(source);
                }
            }
            self.drop_closed();
        }
        let _ = std::fs::remove_file(&self.socket);
    }

    fn interests(&self) -> (Vec<Poll>, Vec<Source>) {
        let mut entries = Vec::new();
        let mut sources = Vec::new();
        let mut add = |fd: RawFd, read: bool, write: bool, source: Source| {
            entries.push(Poll { fd, read, write, ready: false });
            sources.push(source);
        };
        add(self.signals.as_raw_fd(), true, false, Source::Signals);
        add(self.listener.as_raw_fd(), true, false, Source::Listener);
        for connection in &self.connections {
            add(connection.stream.as_raw_fd(), true, false, Source::Connection(connection.token));
        }
        for container in &self.containers {
            let id = || container.id.clone();
            for output in &container.outputs {
                add(output.fd.as_raw_fd(), true, false, Source::Output(id(), output.fd.as_raw_fd()));
            }
            if let Some(fd) = &container.stdin
                && container.wants_stdin_write()
            {
                add(fd.as_raw_fd(), false, true, Source::Stdin(id()));
            }
            for client in &container.attached {
                if let Some(fd) = &client.stdin
                    && container.accepts_stdin()
                {
                    add(fd.as_raw_fd(), true, false, Source::AttachedInput(id(), client.connection));
                }
                for output in client.outputs.iter().filter(|o| !o.queue.is_empty()) {
                    add(output.fd.as_raw_fd(), false, true, Source::AttachedOutput(id()));
                }
            }
        }
        (entries, sources)
    }

    fn ready(&mut self, source: Source) {
        match source {
            Source::Signals => self.children_changed(),
            Source::Listener => self.accept(),
            Source::Connection(token) => self.read_connection(token),
            Source::Output(id, fd) => {
                if let Some(container) = self.container(&id)
                    && let Some(index) = container.outputs.iter().position(|o| o.fd.as_raw_fd() == fd)
                    && !container.pump(index)
                {
                    container.outputs.remove(index);
                }
            }
            Source::Stdin(id) => {
                if let Some(container) = self.container(&id) {
                    container.write_stdin();
                }
            }
            Source::AttachedInput(id, token) => {
                if let Some(container) = self.container(&id)
                    && let Some(index) = container.attached.iter().position(|a| a.connection == token)
                {
                    container.read_stdin(index);
                }
            }
            Source::AttachedOutput(id) => {
                if let Some(container) = self.container(&id) {
                    container.flush_attached();
                }
            }
        }
    }

    fn pod(&self) -> Pod<'_> {
        let running = self.containers.iter().filter(|container| container.running);
        let alive = running.map(|container| container.status.pid).collect();
        Pod { pause_pid: self.pause_pid, cgroups: &self.cgroups, alive }
    }

    fn container(&mut self, id: &str) -> Option<&mut Container> {
        self.containers.iter_mut().find(|c| c.id == id)
    }

    /// SIGCHLD: reaps all that ended and tells those who want to know.
    fn children_changed(&mut self) {
        let mut buffer = [0u8; 1024];
        while sys::read(self.signals.as_fd(), &mut buffer).is_ok_and(|n| n > 0) {}
        while let Some(reaped) = sys::reap() {
            if reaped.pid == self.pause_pid {
                self.pause_pid = 0;
                let shim = ShimRecord { pid: std::process::id() as i32, pause_pid: 0 };
                if let Err(error) = record::write(&self.sandbox.join("shim.json"), &shim) {
                    eprintln!("shim.json: {error}");
                }
                self.broadcast(&Ended::Pause);
            } else if let Some(container) = self.containers.iter_mut().find(|c| c.running && c.status.pid == reaped.pid)
            {
                container.ended(reaped.code, &self.cgroups);
                let event = Ended::Container { id: container.id.clone(), status: Some(container.status.clone()) };
                self.broadcast(&event);
            } else if let Some(connection) = self.connections.iter_mut().find(|c| c.exec_pid == Some(reaped.pid)) {
                connection.exec_pid = None;
                connection.send(&Ended::Exec { code: reaped.code });
                connection.closed = true;
            }
        }
        // Ended containers have nothing more to say once their streams are closed.
        self.containers.retain(|c| c.running || !c.outputs.is_empty());
    }

    fn broadcast(&mut self, event: &Ended) {
        for connection in self.connections.iter_mut().filter(|c| c.watches) {
            connection.send(event);
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Err(error) = stream.set_nonblocking(true) {
                eprintln!("socket: {error}");
                continue;
            }
            self.connections.push(Connection {
                token: self.next_connection,
                stream,
                input: Vec::new(),
                fds: Vec::new(),
                watches: false,
                exec_pid: None,
                closed: false,
            });
            self.next_connection += 1;
        }
    }

    fn read_connection(&mut self, token: u64) {
        let Some(connection) = self.connections.iter_mut().find(|c| c.token == token) else { return };
        let mut buffer = [0u8; 16 * 1024];
        match sys::receive_with_fds(connection.stream.as_fd(), &mut buffer, &mut connection.fds) {
            Ok(0) => connection.closed = true,
            Ok(n) => connection.input.extend(&buffer[..n]),
            Err(e) if matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            Err(_) => connection.closed = true,
        }
        loop {
            let Some(connection) = self.connections.iter_mut().find(|c| c.token == token) else { return };
            match take_frame::<Request>(&mut connection.input) {
                Ok(Some(request)) => {
                    let fds = std::mem::take(&mut connection.fds);
                    self.handle(token, request, fds);
                }
                Ok(None) => return,
                Err(error) => {
                    connection.send(&Response::Failed { message: error.to_string() });
                    connection.closed = true;
                    return;
                }
            }
        }
    }

    fn handle(&mut self, token: u64, request: Request, fds: Vec<OwnedFd>) {
        let mut answer_fds = Vec::new();
        let answer = self.carry_out(token, request, fds, &mut answer_fds);
        let response = answer.unwrap_or_else(|error| Response::Failed { message: error.to_string() });
        if let Some(connection) = self.connections.iter_mut().find(|c| c.token == token) {
            connection.send_with(&response, &answer_fds);
        }
    }

    fn carry_out(
        &mut self,
        token: u64,
        request: Request,
        fds: Vec<OwnedFd>,
        answer_fds: &mut Vec<OwnedFd>,
    ) -> Result<Response> {
        let unknown = |id: &str| Error::NotRunning(id.to_owned());
        match request {
            Request::Start { id } => {
                if self.stopping {
                    return Err(Error::Stopping);
                }
                if self.container(&id).is_some() {
                    return Err(Error::AlreadyStarted(id));
                }
                let pod = self.pod();
                let container = Container::start(&id, self.containers_directory.join(&id), &pod)?;
                let pid = container.status.pid;
                self.containers.push(container);
                Ok(Response::Started { pid })
            }
            Request::Signal { id, signal } => {
                match self.containers.iter().find(|c| c.id == id) {
                    Some(container) => container.signal(signal, &self.cgroups)?,
                    // Ended already: as good as signalled.
                    None => return Ok(Response::Done),
                }
                Ok(Response::Done)
            }
            Request::Exec { id, args, tty } => {
                let pod = self.pod();
                let container = self.containers.iter().find(|c| c.id == id).ok_or_else(|| unknown(&id))?;
                let (pid, terminal) = container.exec(args, tty, fds, &pod)?;
                answer_fds.extend(terminal);
                if let Some(connection) = self.connections.iter_mut().find(|c| c.token == token) {
                    connection.exec_pid = Some(pid);
                }
                Ok(Response::Started { pid })
            }
            Request::Attach { id, stdin, stdout, stderr } => {
                self.container(&id).ok_or_else(|| unknown(&id))?.attach(token, [stdin, stdout, stderr], fds)?;
                Ok(Response::Done)
            }
            Request::Resize { id, width, height } => {
                self.container(&id).ok_or_else(|| unknown(&id))?.resize(width, height)?;
                Ok(Response::Done)
            }
            Request::CloseStdin { id } => {
                self.container(&id).ok_or_else(|| unknown(&id))?.stdin = None;
                Ok(Response::Done)
            }
            Request::ReopenLog { id } => {
                self.container(&id).ok_or_else(|| unknown(&id))?.reopen_log()?;
                Ok(Response::Done)
            }
            Request::Watch => {
                if let Some(connection) = self.connections.iter_mut().find(|c| c.token == token) {
                    connection.watches = true;
                }
                Ok(Response::Done)
            }
            Request::Shutdown => {
                self.stopping = true;
                for container in &self.containers {
                    // Already gone is what we want.
                    let _ = container.signal(libc::SIGKILL, &self.cgroups);
                }
                if self.pause_pid > 0 {
                    let _ = sys::kill(self.pause_pid, libc::SIGKILL);
                }
                self.cgroups.kill(&self.cgroup);
                Ok(Response::Done)
            }
        }
    }

    /// A client that hung up takes its exec and its attached streams along.
    fn drop_closed(&mut self) {
        for connection in self.connections.iter().filter(|c| c.closed) {
            if let Some(pid) = connection.exec_pid {
                let _ = sys::kill(pid, libc::SIGKILL);
            }
            for container in &mut self.containers {
                container.attached.retain(|a| a.connection != connection.token);
            }
        }
        self.connections.retain(|c| !c.closed);
    }
}

impl Connection {
    fn send<T: serde::Serialize>(&mut self, message: &T) {
        self.send_with(message, &[]);
    }

    /// Frames are far smaller than a socket's buffer; a client that lets it fill up is not reading, and is dropped.
    fn send_with<T: serde::Serialize>(&mut self, message: &T, fds: &[OwnedFd]) {
        let borrowed: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
        let sent = frame(message)
            .and_then(|bytes| Ok(sys::send_with_fds(self.stream.as_fd(), &bytes, &borrowed)? == bytes.len()));
        if !sent.unwrap_or(false) {
            self.closed = true;
        }
    }
}

//! Load on an API server: many connections over TLS and HTTP/2, driven by one thread.
//!
//! A general client costs about as much as the server that it asks, and on a small machine they share the cores: then half
//! of what is measured is the client. This one makes a system call to send and one to receive, decrypts in place, and
//! reads of an answer what its caller looks at.

mod connection;
mod frames;
mod watches;

use std::time::Duration;

use anyhow::{Context, ensure};
use client::Endpoint;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use connection::Connection;
pub(crate) use frames::{Event, Request, Requests};
pub(crate) use watches::{Came, Watches, resource_version};

/// So long a server may be silent.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// Of what a connection has received, this much is taken at a time.
const SCRATCH: usize = 256 * 1024;

/// Who sends requests and looks at answers.
pub(crate) trait Handler {
    /// May send first requests on a connection.
    fn start(&mut self, connection: usize, requests: &mut Requests) -> anyhow::Result<()>;
    /// Something arrived; more may be sent.
    fn on(&mut self, connection: usize, event: Event<'_>, requests: &mut Requests) -> anyhow::Result<()>;
    fn is_done(&self) -> bool;
}

pub(crate) struct Load {
    epoll: Epoll,
    connections: Vec<Connection>,
    scratch: Vec<u8>,
}

impl Load {
    /// Opens so many connections and asks for the version on each: handshakes are not what is measured.
    pub(crate) fn connect(endpoint: &Endpoint, connections: usize) -> anyhow::Result<Self> {
        Self::connect_to(std::iter::repeat_n(endpoint, connections))
    }

    /// The same, to a server for each connection.
    pub(crate) fn connect_to<'a>(endpoints: impl IntoIterator<Item = &'a Endpoint>) -> anyhow::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let mut load = Self { epoll, connections: Vec::new(), scratch: vec![0; SCRATCH] };
        for (at, endpoint) in endpoints.into_iter().enumerate() {
            let connection = Connection::open(endpoint)?;
            load.epoll.add(&connection.socket, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))?;
            load.connections.push(connection);
        }
        let waiting = load.connections.len();
        load.run(&mut Greetings { waiting })?;
        Ok(load)
    }

    /// Lets `handler` start on every connection, and goes on until it is done.
    pub(crate) fn run(&mut self, handler: &mut impl Handler) -> anyhow::Result<()> {
        for at in 0..self.connections.len() {
            handler.start(at, &mut self.connections[at].requests)?;
            self.send(at)?;
        }
        let mut ready = [EpollEvent::empty(); 64];
        while !handler.is_done() {
            let count = self.epoll.wait(&mut ready, EpollTimeout::try_from(SILENCE_TIMEOUT)?)?;
            ensure!(count > 0, "no answer in {SILENCE_TIMEOUT:?}");
            for event in &ready[..count] {
                let at = event.data() as usize;
                if event.events().contains(EpollFlags::EPOLLIN) {
                    let mut on = |event: Event<'_>, requests: &mut Requests| handler.on(at, event, requests);
                    self.connections[at].receive(&mut self.scratch, &mut on)?;
                }
                self.send(at)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, at: usize) -> anyhow::Result<()> {
        let connection = &mut self.connections[at];
        let waited = connection.has_unsent();
        connection.send()?;
        if waited != connection.has_unsent() {
            let wanted = if waited { EpollFlags::EPOLLIN } else { EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT };
            self.epoll.modify(&connection.socket, &mut EpollEvent::new(wanted, at as u64))?;
        }
        Ok(())
    }
}

/// The first exchange on every connection.
struct Greetings {
    waiting: usize,
}

impl Handler for Greetings {
    fn start(&mut self, _: usize, requests: &mut Requests) -> anyhow::Result<()> {
        requests.send(&Request::get("/version")).map(drop)
    }

    fn on(&mut self, _: usize, event: Event<'_>, _: &mut Requests) -> anyhow::Result<()> {
        match event {
            Event::Head { code, .. } => ensure!(code == 200, "/version: {code}"),
            Event::End { .. } => self.waiting = self.waiting.checked_sub(1).context("an answer too many")?,
            Event::Data { .. } => {}
            Event::Reset { .. } => anyhow::bail!("/version: the server gave up"),
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.waiting == 0
    }
}

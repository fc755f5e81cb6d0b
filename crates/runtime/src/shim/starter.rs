//! The runtime's end of the process that shims are forked from.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;

use super::error::{Error, Result, doing};
use super::{Paths, Request};
use crate::{sys, unpack};

/// Room for the command line that a shim shows: where its pod is.
const COMMAND_LINE_ROOM: usize = 512;

pub(crate) struct Starter {
    /// Our own program, in a form that a container cannot write to.
    program: OwnedFd,
    running: Mutex<Option<Zygote>>,
}

struct Zygote {
    requests: OwnedFd,
    process: Child,
}

impl Starter {
    pub(crate) fn new(program: OwnedFd) -> Self {
        Self { program, running: Mutex::new(None) }
    }

    /// Starts the shim of a pod and waits until the pod's namespaces are held.
    pub(crate) async fn start(self: &std::sync::Arc<Self>, paths: Paths) -> Result<()> {
        let starter = self.clone();
        let start = move || -> io::Result<String> {
            let (ours, theirs) = sys::message_pair()?;
            starter.ask(&Request::Shim(paths), theirs)?;
            read_answer(&ours)
        };
        let answer = tokio::task::spawn_blocking(start).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match answer.map_err(doing("starting a shim"))?.as_str() {
            "ok" => Ok(()),
            "" => Err(Error::Child("the shim ended before the pod was set up".into())),
            error => Err(Error::Child(error.into())),
        }
    }

    /// Has a layer unpacked by a process of its own, and waits for it: the digest of the uncompressed tarball.
    pub(crate) fn unpack(&self, blob: &Path, target: &Path) -> io::Result<String> {
        let memory = unpack::Request::MEMORY;
        let layer = unpack::Request { blob: blob.to_path_buf(), target: target.to_path_buf(), memory };
        let (ours, theirs) = sys::message_pair()?;
        self.ask(&Request::Unpack(layer), theirs)?;
        let answer = read_answer(&ours)?;
        if answer.is_empty() {
            return Err(io::Error::other("the layer is refused: it takes too much memory"));
        }
        match serde_json::from_str(&answer)? {
            unpack::Outcome::Unpacked { digest } => Ok(digest),
            unpack::Outcome::Refused { why } => Err(io::Error::other(why)),
        }
    }

    /// Sends a request; if the process it goes to has died, to a new one.
    fn ask(&self, request: &Request, answer: OwnedFd) -> io::Result<()> {
        let request = &serde_json::to_vec(request)?[..];
        let mut running = self.running.lock();
        if let Some(zygote) = running.as_ref()
            && sys::send_with_fds(zygote.requests.as_fd(), request, &[answer.as_fd()]).is_ok()
        {
            return Ok(());
        }
        if let Some(mut dead) = running.take() {
            let _ = dead.process.kill();
            dead.process.wait()?;
        }
        let zygote = running.insert(self.spawn()?);
        sys::send_with_fds(zygote.requests.as_fd(), request, &[answer.as_fd()]).map(drop)
    }

    fn spawn(&self) -> io::Result<Zygote> {
        let (requests, theirs) = sys::message_pair()?;
        let process = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()))
            .arg0("cox")
            .arg("shim")
            .arg(" ".repeat(COMMAND_LINE_ROOM))
            .env_clear()
            // Shims ask systemd for scopes: on the bus that we use.
            .envs(std::env::var_os(dbus::SYSTEM_BUS_ADDRESS).map(|bus| (dbus::SYSTEM_BUS_ADDRESS, bus)))
            .envs(tls::descriptors::started_with())
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Zygote { requests, process })
    }
}

/// Empty where whoever should answer has ended.
fn read_answer(from: &OwnedFd) -> io::Result<String> {
    let mut answer = [0u8; 8192];
    let length = sys::read(from.as_fd(), &mut answer)?;
    Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
}

impl Drop for Starter {
    fn drop(&mut self) {
        if let Some(Zygote { requests, mut process }) = self.running.get_mut().take() {
            // It ends when nobody can ask any more.
            drop(requests);
            let _ = process.wait();
        }
    }
}

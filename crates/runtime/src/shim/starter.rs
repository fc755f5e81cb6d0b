//! The runtime's end of the process that shims are forked from.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;

use super::Paths;
use crate::sys;

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
    pub(crate) async fn start(self: &std::sync::Arc<Self>, paths: Paths) -> Result<(), String> {
        let starter = self.clone();
        let start = move || -> io::Result<String> {
            let (ours, theirs) = sys::message_pair()?;
            starter.ask(&serde_json::to_vec(&paths)?, theirs)?;
            let mut answer = [0u8; 4096];
            let length = sys::read(ours.as_fd(), &mut answer)?;
            Ok(String::from_utf8_lossy(&answer[..length]).into_owned())
        };
        let answer = tokio::task::spawn_blocking(start).await.unwrap_or_else(|error| Err(io::Error::other(error)));
        match answer.map_err(|error| format!("starting a shim: {error}"))?.as_str() {
            "ok" => Ok(()),
            "" => Err("the shim ended before the pod was set up".into()),
            error => Err(error.into()),
        }
    }

    /// Sends a request; if the process it goes to has died, to a new one.
    fn ask(&self, request: &[u8], answer: OwnedFd) -> io::Result<()> {
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

impl Drop for Starter {
    fn drop(&mut self) {
        if let Some(Zygote { requests, mut process }) = self.running.get_mut().take() {
            // It ends when nobody can ask any more.
            drop(requests);
            let _ = process.wait();
        }
    }
}

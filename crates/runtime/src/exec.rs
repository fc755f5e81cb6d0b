//! Running commands in containers: ExecSync here, and the start of streaming exec.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cri::v1;
use tokio::net::unix::pipe;

use crate::engine::Engine;
use crate::error::{Error, Result, doing};
use crate::shim::client::{Events, Session};
use crate::shim::protocol::{Ended, Request};
use crate::sys;

/// More output than this is cut off, as other runtimes do: one gRPC message has to carry it.
const MAX_OUTPUT: usize = 7 << 20;

/// Starts `args` in a running container. Dropping the session kills the process.
pub(crate) async fn start(
    engine: &Arc<Engine>,
    id: &str,
    args: Vec<String>,
    tty: bool,
    fds: Vec<OwnedFd>,
) -> Result<Session> {
    let container = engine.container(id)?;
    if !container.is_running() {
        return Err(Error::Precondition(format!("container {id} is not in running state")));
    }
    let sandbox = engine.sandbox(&container.sandbox_id())?;
    let request = Request::Exec { id: container.id(), args, tty };
    Ok(sandbox.shim.open(request, fds).await?)
}

/// Waits for the process of an exec session to end.
pub(crate) async fn exit_code(events: &mut Events) -> Result<i32> {
    loop {
        match events.next().await.map_err(doing("waiting for the command"))? {
            Some(Ended::Exec { code }) => return Ok(code),
            Some(_) => {}
            None => return Err(Error::Shim("the shim ended before the command".into())),
        }
    }
}

pub(crate) async fn sync(engine: &Arc<Engine>, request: v1::ExecSyncRequest) -> Result<v1::ExecSyncResponse> {
    let pipes = || -> std::io::Result<_> {
        let (out_read, out_write) = sys::pipe()?;
        let (err_read, err_write) = sys::pipe()?;
        Ok((Output::new(out_read)?, Output::new(err_read)?, vec![sys::open_null()?, out_write, err_write]))
    };
    let (mut stdout, mut stderr, fds) = pipes().map_err(doing("making pipes"))?;
    let run = async {
        let session = start(engine, &request.container_id, request.cmd.clone(), false, fds).await?;
        let mut events = session.events().map_err(doing("waiting for the command"))?;
        let code = exit_code(&mut events);
        tokio::pin!(code);
        let code = loop {
            tokio::select! {
                code = &mut code => break code?,
                () = stdout.read_some(), if !stdout.done => {}
                () = stderr.read_some(), if !stderr.done => {}
            }
        };
        // All that the command itself wrote is in the pipes now; what its orphans still write is not waited for.
        stdout.drain();
        stderr.drain();
        Ok(v1::ExecSyncResponse {
            stdout: std::mem::take(&mut stdout.bytes),
            stderr: std::mem::take(&mut stderr.bytes),
            exit_code: code,
        })
    };
    match request.timeout {
        seconds if seconds > 0 => match tokio::time::timeout(Duration::from_secs(seconds as u64), run).await {
            Ok(result) => result,
            Err(_) => Err(Error::Timeout { what: format!("command {:?}", request.cmd.join(" ")), seconds }),
        },
        _ => run.await,
    }
}

/// The reading end of a command's output.
struct Output {
    pipe: pipe::Receiver,
    bytes: Vec<u8>,
    done: bool,
}

impl Output {
    fn new(fd: OwnedFd) -> std::io::Result<Self> {
        Ok(Self { pipe: pipe::Receiver::from_owned_fd(fd)?, bytes: Vec::new(), done: false })
    }

    async fn read_some(&mut self) {
        match self.pipe.readable().await {
            Ok(()) => {
                self.drain();
                // A pipe that is never empty is ready at once each time: without this nobody else on the thread has a turn.
                tokio::task::yield_now().await;
            }
            Err(_) => self.done = true,
        }
    }

    /// Takes what is there, and no more than a pipe holds: a command that writes as fast as it is read must not hold the
    /// thread, on which its own deadline is waited for.
    fn drain(&mut self) {
        let Output { pipe, bytes, done } = self;
        drain(bytes, done, |buffer| pipe.try_read(buffer));
    }
}

/// As often as empties the largest pipe that somebody without privileges can have.
const READS_AT_ONCE: usize = 16;

fn drain(bytes: &mut Vec<u8>, done: &mut bool, mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>) {
    let mut buffer = [0u8; 64 * 1024];
    for _ in 0..READS_AT_ONCE {
        if *done {
            return;
        }
        match read(&mut buffer) {
            Ok(0) => *done = true,
            Ok(n) => {
                let room = MAX_OUTPUT.saturating_sub(bytes.len()).min(n);
                bytes.extend_from_slice(&buffer[..room]);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
            Err(_) => *done = true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Several write at once, so that there is always something to read.
    #[tokio::test(flavor = "current_thread")]
    async fn security_the_deadline_of_a_command_comes_while_it_writes() {
        use std::io::Write;
        let (reader, writer) = std::io::pipe().unwrap();
        for _ in 0..4 {
            let mut writer = writer.try_clone().unwrap();
            // Ends with the reader.
            std::thread::spawn(move || while writer.write_all(&[b'y'; 64 * 1024]).is_ok() {});
        }
        let mut output = Output::new(reader.into()).unwrap();
        let reading = async {
            while !output.done {
                output.read_some().await;
            }
        };
        assert!(tokio::time::timeout(Duration::from_millis(100), reading).await.is_err());
        assert!(!output.done);
    }

    #[test]
    fn security_endless_output_of_a_command_holds_no_thread() {
        let (mut bytes, mut done, mut reads) = (Vec::new(), false, 0);
        drain(&mut bytes, &mut done, |buffer| {
            reads += 1;
            Ok(buffer.len())
        });
        assert_eq!((bytes.len(), done, reads), (READS_AT_ONCE * 64 * 1024, false, READS_AT_ONCE));
        for _ in 0..2 * MAX_OUTPUT / bytes.len() {
            drain(&mut bytes, &mut done, |buffer| Ok(buffer.len()));
        }
        assert_eq!(bytes.len(), MAX_OUTPUT, "more is cut off");
        drain(&mut bytes, &mut done, |_| Ok(0));
        assert!(done);
    }
}

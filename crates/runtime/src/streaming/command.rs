//! Exec and attach: bytes between a client and a process.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cri::v1;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Protocol;
use super::fd::AsyncPipe;
use super::remote::{self, Channel, Outcome, Output, Remote};
use crate::engine::Engine;
use crate::error::{Error, Result, doing};
use crate::exec;
use crate::shim::protocol::Request;
use crate::sys;

pub(super) async fn exec<T>(engine: &Arc<Engine>, request: v1::ExecRequest, io: T, protocol: Protocol) -> Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let wanted = [request.stdin, request.stdout, request.stderr];
    let mut remote = remote::open(io, protocol, wanted, request.tty).await.map_err(doing("opening streams"))?;
    let outcome = match run_exec(engine, &request, &mut remote).await {
        Ok(Some(code)) => Outcome::Exit(code),
        // The client left; the process went with it.
        Ok(None) => return Ok(()),
        Err(error) => Outcome::Failed(error.to_string()),
    };
    remote.finish(outcome).await;
    Ok(())
}

async fn run_exec(engine: &Arc<Engine>, request: &v1::ExecRequest, remote: &mut Remote) -> Result<Option<i32>> {
    let mut ends = Ends::new(request.tty, request.stdin, request.stdout, request.stderr)?;
    let session =
        exec::start(engine, &request.container_id, request.cmd.clone(), request.tty, std::mem::take(&mut ends.theirs))
            .await;
    let mut session = session?;
    let ends = match request.tty {
        true => Ends::terminal(session.fds.pop())?,
        false => ends,
    };
    let mut events = session.events().map_err(doing("waiting for the command"))?;
    let done = CancellationToken::new();
    let gone = remote.gone.clone();
    let pumps = pump(ends, remote, &done, Until::Done, None);
    let exit = async {
        let code = exec::exit_code(&mut events).await;
        done.cancel();
        code
    };
    tokio::select! {
        // Both: the code counts only once all output is through.
        (code, ()) = async { tokio::join!(exit, pumps) } => code.map(Some),
        () = gone.cancelled() => Ok(None),
    }
}

pub(super) async fn attach<T>(engine: &Arc<Engine>, request: v1::AttachRequest, io: T, protocol: Protocol) -> Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let wanted = [request.stdin, request.stdout, request.stderr];
    let mut remote = remote::open(io, protocol, wanted, request.tty).await.map_err(doing("opening streams"))?;
    let outcome = match run_attach(engine, &request, &mut remote).await {
        Ok(true) => Outcome::Exit(0),
        Ok(false) => return Ok(()),
        Err(error) => Outcome::Failed(error.to_string()),
    };
    remote.finish(outcome).await;
    Ok(())
}

/// True when the container ended or has let go of the client, false when the client left.
async fn run_attach(engine: &Arc<Engine>, request: &v1::AttachRequest, remote: &mut Remote) -> Result<bool> {
    let container = engine.container(&request.container_id)?;
    if !container.is_running() {
        return Err(Error::Precondition(format!("container {} is not running", request.container_id)));
    }
    let sandbox = engine.sandbox(&container.sandbox_id())?;
    let mut ends = Ends::for_attach(request)?;
    let id = container.id();
    let open = Request::Attach {
        id: id.clone(),
        stdin: request.stdin,
        stdout: request.stdout,
        stderr: request.stderr && !request.tty,
    };
    // Dropping it detaches.
    let _session = sandbox.shim.open(open, std::mem::take(&mut ends.theirs)).await?;
    let done = CancellationToken::new();
    let gone = remote.gone.clone();
    let mut status = container.status.subscribe();
    let ended = async {
        // The shim closes our streams when the container ends; without any, its status tells.
        let _ = status.wait_for(|s| s.finished_at != 0).await;
        done.cancel();
        std::future::pending::<()>().await;
    };
    let shim = sandbox.shim.clone();
    let resize = move |width: u16, height: u16| {
        let (shim, id) = (shim.clone(), id.clone());
        async move {
            if let Err(error) = shim.call(Request::Resize { id, width, height }).await {
                tracing::debug!(%error, "cannot resize");
            }
        }
    };
    tokio::select! {
        () = pump(ends, remote, &done, Until::OutputsEnd, Some(Box::new(move |w, h| Box::pin(resize(w, h))))) => Ok(true),
        () = ended => Ok(true),
        () = gone.cancelled() => Ok(false),
    }
}

/// Pipes between us and a process: our ends, and its ends until they are handed over.
#[derive(Default)]
struct Ends {
    stdin: Option<AsyncPipe>,
    stdout: Option<AsyncPipe>,
    stderr: Option<AsyncPipe>,
    /// Both directions in one.
    terminal: Option<AsyncPipe>,
    theirs: Vec<OwnedFd>,
}

impl Ends {
    /// For an exec: three descriptors, /dev/null where nothing is wanted; none with a terminal.
    fn new(tty: bool, stdin: bool, stdout: bool, stderr: bool) -> Result<Self> {
        if tty {
            return Ok(Self::default());
        }
        let mut ends = Self::for_streams(stdin, stdout, stderr)?;
        let wanted = [stdin, stdout, stderr];
        let mut pipes = std::mem::take(&mut ends.theirs).into_iter();
        for wanted in wanted {
            let fd = match wanted.then(|| pipes.next()).flatten() {
                Some(fd) => fd,
                None => sys::open_null().map_err(doing("opening /dev/null"))?,
            };
            ends.theirs.push(fd);
        }
        Ok(ends)
    }

    fn for_attach(request: &v1::AttachRequest) -> Result<Self> {
        Self::for_streams(request.stdin, request.stdout, request.stderr && !request.tty)
    }

    fn for_streams(stdin: bool, stdout: bool, stderr: bool) -> Result<Self> {
        let make = || -> std::io::Result<Self> {
            let mut ends = Self::default();
            if stdin {
                let (read, write) = sys::pipe()?;
                ends.stdin = Some(AsyncPipe::new(write)?);
                ends.theirs.push(read);
            }
            for (wanted, slot) in [(stdout, &mut ends.stdout), (stderr, &mut ends.stderr)] {
                if wanted {
                    let (read, write) = sys::pipe()?;
                    *slot = Some(AsyncPipe::new(read)?);
                    ends.theirs.push(write);
                }
            }
            Ok(ends)
        };
        make().map_err(doing("making pipes"))
    }

    fn terminal(master: Option<OwnedFd>) -> Result<Self> {
        let master = master.ok_or_else(|| Error::Shim("the shim sent no terminal".into()))?;
        let pipe = AsyncPipe::new(master).map_err(doing("opening the terminal"))?;
        Ok(Self { terminal: Some(pipe), ..Self::default() })
    }
}

type Resizer = Box<dyn Fn(u16, u16) -> std::pin::Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// When a client has got all there is for it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Until {
    /// The process has ended, whatever it did with its outputs.
    Done,
    /// The outputs have ended: the shim closes them when the container ends, and when it detaches a client.
    OutputsEnd,
}

enum Sent<T> {
    /// None at the end.
    Input(Option<T>),
    Size(u16, u16),
}

/// What a client has sent. A program that reads its input finds the size that was sent before it.
async fn next_sent<T>(input: &mut mpsc::Receiver<T>, sizes: &mut mpsc::Receiver<(u16, u16)>) -> Sent<T> {
    tokio::select! {
        biased;
        Some((width, height)) = sizes.recv() => Sent::Size(width, height),
        bytes = input.recv() => Sent::Input(bytes),
    }
}

/// Moves bytes until `done` and nothing is left in the outputs, or until they end.
async fn pump(ends: Ends, remote: &mut Remote, done: &CancellationToken, until: Until, resizer: Option<Resizer>) {
    let Ends { mut stdin, stdout, stderr, terminal, .. } = ends;
    let output = remote.output.clone();
    let (input, sizes) = (&mut remote.stdin, &mut remote.resize);
    let feeding = async {
        loop {
            match next_sent(input, sizes).await {
                Sent::Input(bytes) => match (bytes, &stdin, &terminal) {
                    (Some(bytes), Some(pipe), _) | (Some(bytes), None, Some(pipe)) => {
                        if pipe.write_all(&bytes).await.is_err() {
                            stdin = None;
                        }
                    }
                    (Some(_), None, None) => {}
                    // No more input: the program sees its stdin end.
                    (None, ..) => {
                        stdin = None;
                        std::future::pending::<()>().await;
                    }
                },
                Sent::Size(width, height) => match (&resizer, &terminal) {
                    (Some(resize), _) => resize(width, height).await,
                    (None, Some(terminal)) => drop(terminal.resize(width, height)),
                    (None, None) => {}
                },
            }
        }
    };
    let reading = async {
        tokio::join!(
            copy(stdout.as_ref().or(terminal.as_ref()), &output, Channel::Stdout, done),
            copy(stderr.as_ref(), &output, Channel::Stderr, done),
        );
        let has_outputs = stdout.is_some() || stderr.is_some() || terminal.is_some();
        if until == Until::Done || !has_outputs {
            done.cancelled().await;
        }
    };
    tokio::select! {
        never = feeding => never,
        () = reading => {}
    }
}

/// More than a pipe holds: what was in it when the process ended is read.
const LEFT_IN_PIPE: usize = 1 << 20;

/// Copies until the end of the pipe, or until `done` and what is in it by then. A process that the command left behind may go on
/// writing: that is nobody's output any more.
async fn copy(pipe: Option<&AsyncPipe>, output: &Output, channel: Channel, done: &CancellationToken) {
    let Some(pipe) = pipe else { return };
    let mut buffer = vec![0u8; 32 * 1024];
    loop {
        let read = tokio::select! {
            // Looked at first: a process that never stops writing would leave it no turn.
            biased;
            () = done.cancelled() => {
                let mut left = LEFT_IN_PIPE;
                while let (1.., Ok(Some(n))) = (left, pipe.try_read(&mut buffer)) {
                    if n == 0 || output.write(channel, &buffer[..n]).await.is_err() {
                        return;
                    }
                    left = left.saturating_sub(n);
                }
                return;
            }
            read = pipe.read(&mut buffer) => read,
        };
        match read {
            Ok(0) | Err(_) => return,
            Ok(n) => {
                if output.write(channel, &buffer[..n]).await.is_err() {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_size_is_heard_before_input_that_came_after_it() {
        for _ in 0..50 {
            let ((sizes, mut size), (words, mut input)) = (mpsc::channel(1), mpsc::channel(1));
            sizes.send((80, 24)).await.unwrap();
            words.send("x").await.unwrap();
            assert!(matches!(next_sent(&mut input, &mut size).await, Sent::Size(80, 24)));
            assert!(matches!(next_sent(&mut input, &mut size).await, Sent::Input(Some("x"))));
        }
    }
}

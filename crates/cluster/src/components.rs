//! The running parts of a process: each is awaited, and the first to end ends all.
//!
//! A component that ends by itself ends the process, with its error: a service manager starts it again, and the
//! containers do not notice.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long components may take to end once they are told to.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

pub(crate) struct Components {
    tasks: JoinSet<(&'static str, Result<()>)>,
    running: Vec<&'static str>,
    pub(crate) stop: CancellationToken,
}

impl Components {
    pub(crate) fn new() -> Components {
        Components { tasks: JoinSet::new(), running: Vec::new(), stop: CancellationToken::new() }
    }

    pub(crate) fn spawn(&mut self, name: &'static str, component: impl Future<Output = Result<()>> + Send + 'static) {
        self.running.push(name);
        self.tasks.spawn(async move { (name, component.await) });
    }

    /// Waits for `event`, but not past the end of a component: it might never come then.
    pub(crate) async fn until<T>(&mut self, event: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            result = event => result,
            error = Self::first_end(&mut self.tasks) => Err(error),
        }
    }

    pub(crate) async fn until_stopped(&mut self) -> Result<()> {
        Err(Self::first_end(&mut self.tasks).await)
    }

    async fn first_end(tasks: &mut JoinSet<(&'static str, Result<()>)>) -> anyhow::Error {
        match tasks.join_next().await {
            Some(Ok((name, Ok(())))) => anyhow!("{name} ended"),
            Some(Ok((name, Err(error)))) => error.context(format!("{name} failed")),
            Some(Err(panic)) => anyhow!("a component panicked: {panic}"),
            None => std::future::pending().await,
        }
    }

    /// Waits for all to end, though not for ever: a restart must not hang on one that does not.
    pub(crate) async fn finish(mut self) -> Result<()> {
        self.stop.cancel();
        let deadline = tokio::time::Instant::now() + STOP_DEADLINE;
        let mut errors = Vec::new();
        loop {
            match tokio::time::timeout_at(deadline, self.tasks.join_next()).await {
                Ok(None) => break,
                Ok(Some(Ok((name, Ok(()))))) => self.running.retain(|running| *running != name),
                Ok(Some(Ok((name, Err(error))))) => {
                    self.running.retain(|running| *running != name);
                    errors.push(format!("{name}: {error:#}"));
                }
                Ok(Some(Err(panic))) => errors.push(panic.to_string()),
                Err(_) => {
                    errors.push(format!("still running after {STOP_DEADLINE:?}: {}", self.running.join(", ")));
                    break;
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\n")) }
    }
}

/// Returns when somebody wants this process to end.
pub(crate) async fn interrupted() -> Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = terminate.recv() => {}
        result = tokio::signal::ctrl_c() => result?,
    }
    Ok(())
}

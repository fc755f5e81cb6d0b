//! The running parts of a process: each is awaited, and until all have started the first to end ends all.
//!
//! After that, a component that fails or panics is started again by itself, and the others do not notice. Only what
//! all of them stand on (the API server) ends the process with it: a service manager starts it again, and the containers
//! do not notice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use client::backoff::exponential;
use client::metrics::panics;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// How long components may take to end once they are told to.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a component that failed waits to be started again: at first, and after many failures.
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// One that ran for so long has not failed before.
const STABLE_AFTER: Duration = Duration::from_secs(300);

/// Starts a component, with a token that tells it to stop.
type Component = Box<dyn Fn(CancellationToken) -> BoxFuture<'static, Result<()>> + Send>;

pub(crate) struct Components {
    tasks: JoinSet<(&'static str, Result<()>)>,
    running: Vec<&'static str>,
    /// All that was to start has.
    started: Arc<AtomicBool>,
    pub(crate) stop: CancellationToken,
}

impl Components {
    pub(crate) fn new() -> Components {
        Components {
            tasks: JoinSet::new(),
            running: Vec::new(),
            started: Arc::default(),
            stop: CancellationToken::new(),
        }
    }

    /// Starts a component without which the others are nothing: when it ends, all end.
    pub(crate) fn spawn(&mut self, name: &'static str, component: impl Future<Output = Result<()>> + Send + 'static) {
        self.spawn_boxed(name, Box::pin(component));
    }

    /// Boxed, so that a task is compiled once and not for each component.
    fn spawn_boxed(&mut self, name: &'static str, component: BoxFuture<'static, Result<()>>) {
        self.running.push(name);
        self.tasks.spawn(FutureExt::boxed(async move { (name, component.await) }));
    }

    /// Starts a component that is started again when it ends. What it left behind is told to stop by its own token.
    pub(crate) fn supervise<F, C>(&mut self, name: &'static str, component: F)
    where
        F: Fn(CancellationToken) -> C + Send + 'static,
        C: Future<Output = Result<()>> + Send + 'static,
    {
        self.supervise_boxed(name, Box::new(move |stop| Box::pin(component(stop))));
    }

    fn supervise_boxed(&mut self, name: &'static str, component: Component) {
        let (stop, started) = (self.stop.clone(), self.started.clone());
        self.spawn(name, async move {
            let mut failures = 0;
            loop {
                let (own, began) = (stop.child_token(), tokio::time::Instant::now());
                let running = component(own.clone());
                let ended = panics::catch_future(name, running).await.unwrap_or_else(|| Err(anyhow!("panicked")));
                own.cancel();
                if stop.is_cancelled() || !started.load(Ordering::Relaxed) {
                    return ended;
                }
                failures = if began.elapsed() >= STABLE_AFTER { 1 } else { failures + 1 };
                let delay = exponential(RESTART.0, RESTART.1, failures);
                let why = ended.err().map_or("it ended".to_owned(), |error| format!("{error:#}"));
                tracing::error!(component = name, error = why, ?delay, "component failed and is started again");
                tokio::select! {
                    () = tokio::time::sleep(delay) => {}
                    () = stop.cancelled() => return Ok(()),
                }
            }
        });
    }

    /// Waits for `event`, but not past the end of a component: it might never come then.
    pub(crate) async fn until<T>(&mut self, event: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            result = event => result,
            error = Self::first_end(&mut self.tasks) => Err(error),
        }
    }

    /// Waits for the end of a component that the others need. From here on, one that they do not need is started again.
    pub(crate) async fn until_stopped(&mut self) -> Result<()> {
        self.started.store(true, Ordering::Relaxed);
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
        let deadline = tokio::time::Instant::now() + STOP_TIMEOUT;
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
                    errors.push(format!("still running after {STOP_TIMEOUT:?}: {}", self.running.join(", ")));
                    break;
                }
            }
        }
        if errors.is_empty() { Ok(()) } else { bail!("{}", errors.join("\n")) }
    }
}

/// Why a process has ended, with what to do about a port that somebody else has.
pub(crate) fn explained(ended: Result<()>) -> Result<()> {
    ended.map_err(|error| {
        let kind = error.chain().find_map(|cause| Some(cause.downcast_ref::<std::io::Error>()?.kind()));
        match kind == Some(std::io::ErrorKind::AddrInUse) {
            true => error.context(
                "another program has a port that is needed here, perhaps another Kubernetes ('ss -ltnp' shows which; \
                 --secure-port and --kubelet-port choose others)",
            ),
            false => error,
        }
    })
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use anyhow::Context as _;

    use super::*;

    /// A component that ends badly whenever it is told to, and counts its starts.
    fn fragile(
        starts: &Arc<AtomicUsize>,
        bad: usize,
    ) -> impl Fn(CancellationToken) -> futures_util::future::BoxFuture<'static, Result<()>> + use<> {
        let starts = starts.clone();
        move |stop| {
            let start = starts.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                match start {
                    start if start >= bad => stop.cancelled().await,
                    start if start % 2 == 0 => panic!("on purpose"),
                    _ => bail!("on purpose"),
                }
                Ok(())
            })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn security_a_component_that_panics_takes_no_other_down() {
        let mut components = Components::new();
        let (fragile_starts, other_starts): (Arc<AtomicUsize>, Arc<AtomicUsize>) = Default::default();
        components.started.store(true, Ordering::Relaxed);
        components.supervise("fragile", fragile(&fragile_starts, 4));
        components.supervise("other", fragile(&other_starts, 0));
        let restarted = async {
            while fragile_starts.load(Ordering::SeqCst) < 5 {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        tokio::select! {
            () = restarted => {}
            ended = components.until_stopped() => panic!("{ended:?}"),
        }
        assert_eq!(other_starts.load(Ordering::SeqCst), 1);
        assert!(panics::counts().contains(&("fragile", 2)));
        components.finish().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn what_fails_while_all_start_is_told() {
        let mut components = Components::new();
        components.supervise("broken", fragile(&Default::default(), 1));
        let waiting = components.until(std::future::pending::<Result<()>>()).await;
        assert_eq!(format!("{:#}", waiting.unwrap_err()), "broken failed: panicked");
        components.finish().await.unwrap();
    }

    #[test]
    fn a_port_in_use_is_explained() {
        let failed = |kind: std::io::ErrorKind| {
            let bound: Result<(), std::io::Error> = Err(kind.into());
            let ended = bound.context("listening on [::]:6443").context("apiserver failed");
            format!("{:#}", explained(ended).unwrap_err())
        };
        let told = failed(std::io::ErrorKind::AddrInUse);
        assert!(told.contains("'ss -ltnp'") && told.contains("listening on [::]:6443"), "{told}");
        assert!(failed(std::io::ErrorKind::PermissionDenied).starts_with("apiserver failed"));
    }
}

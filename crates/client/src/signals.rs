//! How a component that is a process of its own ends: SIGTERM or SIGINT asks it to, and it finishes what it does.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Runs a component to its end, and cancels `stop` when a signal asks for that.
pub async fn run<T, E>(stop: CancellationToken, component: impl Future<Output = Result<T, E>>) -> Result<T, E>
where
    E: From<std::io::Error>,
{
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::pin!(component);
    loop {
        tokio::select! {
            ended = &mut component => return ended,
            _ = terminate.recv() => stop.cancel(),
            _ = interrupt.recv() => stop.cancel(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_signal_stops_and_the_component_ends_by_itself() {
        let stop = CancellationToken::new();
        let (seen, mut started) = (stop.clone(), tokio::sync::mpsc::channel(1));
        let component = async move {
            started.0.send(()).await.map_err(std::io::Error::other)?;
            seen.cancelled().await;
            Ok::<_, std::io::Error>("finished")
        };
        let asked = async {
            started.1.recv().await;
            let status = std::process::Command::new("kill").arg(std::process::id().to_string()).status();
            assert!(status.is_ok_and(|status| status.success()));
        };
        let (ended, ()) = tokio::join!(run(stop, component), asked);
        assert_eq!(ended.ok(), Some("finished"));
    }
}

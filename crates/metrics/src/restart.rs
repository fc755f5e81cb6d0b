//! Work that outlives a panic of its own.

use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::panics;

/// How long work that panicked waits to begin anew: at first, and after many panics.
const FIRST_DELAY: Duration = Duration::from_millis(500);
const MAX_DELAY: Duration = Duration::from_secs(20);
/// Work that went well for so long has not panicked before.
const STABLE_AFTER: Duration = Duration::from_secs(300);

/// Does `work` to its end. A panic ends one try only: it is counted for `worker`, and the work begins anew after a while,
/// with nothing of what it had. `None` when `stop` fired first. `object` is what the worker works on, for the log.
pub async fn outlive_panics<F: Future>(
    worker: &'static str,
    object: &str,
    stop: &CancellationToken,
    mut work: impl FnMut() -> F,
) -> Option<F::Output> {
    let mut delay = FIRST_DELAY;
    loop {
        let began = tokio::time::Instant::now();
        // What makes the work may panic as well as the work.
        let done = panics::catch_future(worker, async { work().await }).await;
        if done.is_some() {
            return done;
        }
        if began.elapsed() >= STABLE_AFTER {
            delay = FIRST_DELAY;
        }
        tracing::error!(worker, object, ?delay, "work panicked and begins anew");
        tokio::select! {
            () = tokio::time::sleep(delay) => {}
            () = stop.cancelled() => return None,
        }
        delay = (delay * 2).min(MAX_DELAY);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn security_a_panic_ends_one_try_only() {
        let tries = Cell::new(0);
        let work = || {
            tries.set(tries.get() + 1);
            let tried = tries.get();
            assert_ne!(tried, 1, "on purpose, before there is any work");
            async move {
                tokio::task::yield_now().await;
                assert_ne!(tried, 2, "on purpose");
                "done"
            }
        };
        let stop = CancellationToken::new();
        assert_eq!(outlive_panics("fragile work", "", &stop, work).await, Some("done"));
        assert_eq!(tries.get(), 3);
        assert!(panics::counts().contains(&("fragile work", 2)));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_always_panics_ends_when_it_is_told_to() {
        let stop = CancellationToken::new();
        let work = || async { panic!("on purpose") };
        let ended = async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            stop.cancel();
            std::future::pending::<()>().await
        };
        tokio::select! {
            done = outlive_panics("hopeless work", "", &stop, work) => assert_eq!(done, None::<()>),
            () = ended => {}
        }
        let tries = panics::counts().into_iter().find(|(worker, _)| *worker == "hopeless work").unwrap().1;
        assert!((30..45).contains(&tries), "{tries}: with a delay that grows to its limit");
    }
}

//! The parts of a kubelet beside the workers of its pods: each runs until the kubelet stops, whatever befalls it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Starts a part, with a token that tells it to stop.
type Part = Box<dyn Fn(CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Runs parts. A panic ends that part only: it is counted under the part's name, and the part begins anew.
#[derive(Clone)]
pub(crate) struct Parts {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Parts {
    pub(crate) fn new(tasks: TaskTracker, stop: CancellationToken) -> Self {
        Parts { tasks, stop }
    }

    /// Starts a part. Each try gets a token of its own, so that nothing of one that panicked goes on beside the next.
    pub(crate) fn spawn<F>(&self, name: &'static str, part: impl Fn(CancellationToken) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.spawn_boxed(name, Box::new(move |stop| Box::pin(part(stop))));
    }

    /// Boxed, so that a task is compiled once and not for each part.
    fn spawn_boxed(&self, name: &'static str, part: Part) {
        let stop = self.stop.clone();
        self.tasks.spawn(FutureExt::boxed(async move {
            let run = || {
                let own = stop.child_token();
                let ends_with_the_try = own.clone().drop_guard();
                let running = part(own);
                async move {
                    running.await;
                    drop(ends_with_the_try);
                }
            };
            client::outlive_panics(name, "", &stop, run).await;
        }));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use client::metrics::panics;
    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn security_a_part_that_panics_comes_back_and_takes_no_other_down() {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let parts = Parts::new(tasks.clone(), stop.clone());
        let (tries, other) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let tokens: Arc<Mutex<Vec<CancellationToken>>> = Arc::default();
        let (sender, mut running) = tokio::sync::mpsc::channel(1);
        let (counted, kept) = (tries.clone(), tokens.clone());
        parts.spawn("fragile part", move |stop| {
            let (tried, sender) = (counted.fetch_add(1, Ordering::SeqCst), sender.clone());
            kept.lock().push(stop.clone());
            async move {
                assert!(tried >= 2, "on purpose");
                sender.send(()).await.unwrap();
                stop.cancelled().await;
            }
        });
        let counted = other.clone();
        parts.spawn("other part", move |stop| {
            counted.fetch_add(1, Ordering::SeqCst);
            async move { stop.cancelled().await }
        });
        running.recv().await.unwrap();
        assert_eq!((tries.load(Ordering::SeqCst), other.load(Ordering::SeqCst)), (3, 1));
        assert!(panics::counts().contains(&("fragile part", 2)));
        let ended: Vec<bool> = tokens.lock().iter().map(CancellationToken::is_cancelled).collect();
        assert_eq!(ended, [true, true, false], "nothing of a try that panicked goes on");
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }
}

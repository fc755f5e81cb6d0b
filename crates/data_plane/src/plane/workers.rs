//! The threads that serve connections: one per processor, each with a runtime of its own.
//!
//! A connection stays with the thread that it was given to, and so do the connections to endpoints that its requests use: an
//! exchange wakes nobody else and takes no lock that another thread wants. On the threads that everything else in the process
//! shares, each of its steps may wake another of them to look for work.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;

const MAX_WORKERS: usize = 64;

/// How many threads there are, once there are any.
pub(super) fn count() -> usize {
    std::thread::available_parallelism().map_or(1, NonZero::get).min(MAX_WORKERS)
}

/// Made when the first port is opened: a gateway that serves nothing has none.
#[derive(Default)]
pub struct Workers {
    all: Vec<Worker>,
    threads: Vec<JoinHandle<()>>,
    ending: CancellationToken,
}

/// One of the threads.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) number: usize,
    pub(super) runtime: Handle,
    connections: Arc<AtomicUsize>,
}

/// A connection of a worker, which counts for as long as this is held, also after an upgrade: the worker with the fewest gets the
/// next one.
pub(crate) struct Turn {
    /// The number of the worker.
    pub(super) worker: usize,
    connections: Arc<AtomicUsize>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Worker {
    pub(super) fn take(&self) -> Turn {
        self.connections.fetch_add(1, Ordering::Relaxed);
        Turn { worker: self.number, connections: self.connections.clone() }
    }
}

/// Whoever has the fewest connections.
pub(super) fn least_busy(workers: &[Worker]) -> Option<&Worker> {
    workers.iter().min_by_key(|worker| worker.connections.load(Ordering::Relaxed))
}

impl Workers {
    /// All of them. A thread has the network namespace of whoever starts it.
    pub(super) fn started(&mut self) -> io::Result<&[Worker]> {
        for number in self.all.len()..count() {
            let (made, handle) = sync_channel(1);
            let ending = self.ending.clone();
            // A runtime is made and dropped by its own thread: others may be in the midst of another one's work.
            let work = move || match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    let _unwanted = made.send(Ok(runtime.handle().clone()));
                    runtime.block_on(ending.cancelled());
                }
                Err(error) => drop(made.send(Err(error))),
            };
            let thread = std::thread::Builder::new().name(format!("gateway-{number}")).spawn(work)?;
            let runtime = handle.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))??;
            self.threads.push(thread);
            self.all.push(Worker { number, runtime, connections: Arc::default() });
        }
        Ok(&self.all)
    }

    /// Ends what is still under way, and the threads.
    pub fn end(mut self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.ending.cancel();
            let threads = std::mem::take(&mut self.threads);
            let joined =
                tokio::task::spawn_blocking(move || threads.into_iter().filter_map(|one| one.join().err()).count());
            match joined.await {
                Ok(0) => {}
                ended => tracing::error!(?ended, "threads of the gateway"),
            }
        })
    }
}

impl Drop for Workers {
    /// Whoever is not asked to end ends nonetheless.
    fn drop(&mut self) {
        self.ending.cancel();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn connections_are_shared_out_and_stay_with_their_thread() {
        let mut workers = Workers::default();
        let all = workers.started().unwrap().to_vec();
        assert_eq!(all.len(), count());
        assert_eq!(workers.started().unwrap().len(), all.len(), "they are started once");
        let mut turns: Vec<Turn> = Vec::new();
        for _ in 0..2 * all.len() {
            turns.push(least_busy(&all).unwrap().take());
        }
        assert!(all.iter().all(|worker| worker.connections.load(Ordering::Relaxed) == 2));
        // Whoever loses one gets the next.
        let last = all.last().unwrap();
        let turn = turns.iter().position(|turn| Arc::ptr_eq(&turn.connections, &last.connections)).unwrap();
        turns.remove(turn);
        assert_eq!(least_busy(&all).unwrap().number, last.number);
        assert_eq!(last.take().worker, last.number);
        let name = || async {
            tokio::task::yield_now().await;
            std::thread::current().name().map(str::to_owned)
        };
        for worker in &all {
            let named = worker.runtime.spawn(name()).await.unwrap();
            assert_eq!(named, Some(format!("gateway-{}", worker.number)));
        }
        workers.end().await;
        assert!(all[0].runtime.spawn(name()).await.is_err(), "nothing runs any more");
    }
}

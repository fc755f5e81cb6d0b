//! Work that waits for the kernel, on threads that may.

use std::any::Any;
use std::io;

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let work = move || work().map(|done| Box::new(done) as Box<dyn Any + Send>);
    let done = run(Box::new(work)).await?;
    Ok(*done.downcast::<T>().expect("it is what the work came to"))
}

/// A task of one type, which is compiled once and not for each work or for what it comes to.
async fn run(work: Box<dyn FnOnce() -> io::Result<Box<dyn Any + Send>> + Send>) -> io::Result<Box<dyn Any + Send>> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

/// As [`blocking`], on a thread of its own: for work that looks at what a container brings. That may be on a server that is silent, and
/// a thread that waits for it is none of those that all share.
pub(crate) async fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (done, outcome) = tokio::sync::oneshot::channel();
    std::thread::Builder::new().name("volumes".into()).spawn(move || {
        // Nobody may wait for it any more.
        let _ = done.send(work());
    })?;
    outcome.await.unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
}

//! Looks into volumes, which may be on a server that is silent.

use std::io;

/// As [`super::blocking`], on a thread of its own: for work that looks at what is in a volume, or lets go of it. Where its server is
/// silent the thread does not come back, and so it is none of those that all share. A pod has one such look at a time.
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

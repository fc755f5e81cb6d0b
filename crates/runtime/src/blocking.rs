//! Work that waits for the kernel, on threads that may.

pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> std::io::Result<T> {
    // Boxed, so that a task is compiled once for what is answered and not for each work.
    let work: Box<dyn FnOnce() -> std::io::Result<T> + Send> = Box::new(work);
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(std::io::Error::other(error)))
}

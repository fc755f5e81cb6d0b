//! The part of a request's time that this server is not to blame for: webhooks that it asks, and the queue of its level.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

tokio::task_local! {
    static OF_REQUEST: Elsewhere;
}

/// Of one request.
#[derive(Clone, Default)]
pub(crate) struct Elsewhere(Arc<AtomicU64>);

impl Elsewhere {
    pub(crate) async fn of<T>(&self, work: impl Future<Output = T>) -> T {
        OF_REQUEST.scope(self.clone(), work).await
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Notes that the request at hand waited for somebody else. Work that has left its request belongs to none.
pub(crate) fn spent_elsewhere(time: Duration) {
    let nanoseconds = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let _ = OF_REQUEST.try_with(|request| request.0.fetch_add(nanoseconds, Ordering::Relaxed));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn times_are_those_of_their_request() {
        let (one, other) = (Elsewhere::default(), Elsewhere::default());
        spent_elsewhere(Duration::from_secs(9));
        one.of(async {
            spent_elsewhere(Duration::from_secs(1));
            other.of(async { spent_elsewhere(Duration::from_secs(2)) }).await;
            spent_elsewhere(Duration::from_secs(3));
        })
        .await;
        assert_eq!((one.total(), other.total()), (Duration::from_secs(4), Duration::from_secs(2)));
    }
}

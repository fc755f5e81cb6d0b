//! A limit on requests in flight: mutating and read-only apart; long-running ones are not counted.

use api::{Status, UserInfo};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::RequestInfo;

pub(crate) struct InFlight {
    mutating: Option<Arc<Semaphore>>,
    read_only: Option<Arc<Semaphore>>,
}

impl InFlight {
    /// Zero is no limit.
    pub(crate) fn new(mutating: usize, read_only: usize) -> Self {
        let limit = |count: usize| (count > 0).then(|| Arc::new(Semaphore::new(count)));
        Self { mutating: limit(mutating), read_only: limit(read_only) }
    }

    /// Takes a place for the duration of a request. Masters always get through: they are the way out of an overload.
    pub(crate) fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Option<OwnedSemaphorePermit>, Status> {
        if info.is_long_running() || user.in_group(api::user::MASTERS) {
            return Ok(None);
        }
        let Some(places) = (if info.is_mutating() { &self.mutating } else { &self.read_only }) else { return Ok(None) };
        places
            .clone()
            .try_acquire_owned()
            .map(Some)
            .map_err(|_| Status::too_many_requests("Too many requests, please try again later.", 1))
    }
}

//! A limit on requests in flight: mutating, read-only and long-running apart.
//!
//! A full server answers 429 at once instead of queueing. The cluster's own traffic has places of its own beside the
//! common ones, so that nodes stay alive and leaders stay leaders while users are told to come back later.

use std::sync::Arc;

use api::{Status, UserInfo};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::request_info::RequestInfo;

/// For every so many common places there is one that only the cluster itself may take.
const RESERVE: usize = 8;

pub(crate) struct InFlight {
    mutating: Option<Places>,
    read_only: Option<Places>,
    long_running: Option<Places>,
}

struct Places {
    common: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
}

/// A place in use.
pub(crate) type Place = Option<OwnedSemaphorePermit>;

impl Places {
    /// Zero is no limit.
    fn new(count: usize) -> Option<Self> {
        let common = Arc::new(Semaphore::new(count.min(Semaphore::MAX_PERMITS)));
        let reserved = Arc::new(Semaphore::new(count.div_ceil(RESERVE)));
        (count > 0).then_some(Self { common, reserved })
    }
}

impl InFlight {
    pub(crate) fn new(mutating: usize, read_only: usize, long_running: usize) -> Self {
        Self {
            mutating: Places::new(mutating),
            read_only: Places::new(read_only),
            long_running: Places::new(long_running),
        }
    }

    /// Takes a place for the duration of a request. Masters always get through: they are the way out of an overload.
    pub(crate) fn enter(&self, info: &RequestInfo, user: &UserInfo) -> Result<Place, Status> {
        if user.in_group(api::user::MASTERS) {
            return Ok(None);
        }
        let places = if info.is_long_running() {
            &self.long_running
        } else if info.is_mutating() {
            &self.mutating
        } else {
            &self.read_only
        };
        let Some(places) = places else { return Ok(None) };
        let mut place = places.common.clone().try_acquire_owned();
        if place.is_err() && is_system(user) {
            place = places.reserved.clone().try_acquire_owned();
        }
        place.map(Some).map_err(|_| Status::too_many_requests("Too many requests, please try again later.", 1))
    }
}

/// Components, nodes and the controllers' accounts.
fn is_system(user: &UserInfo) -> bool {
    user.name.starts_with("system:kube-")
        || user.in_group("system:nodes")
        || user.in_group("system:serviceaccounts:kube-system")
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Method;

    fn info(method: &str, url: &str) -> RequestInfo {
        RequestInfo::new(&method.parse::<Method>().unwrap(), &url.parse().unwrap())
    }

    #[test]
    fn the_cluster_stays_alive_while_users_wait() {
        let limits = InFlight::new(1, 8, 1);
        let (user, node) = (UserInfo::new("ann", &[]), UserInfo::new("system:node:n", &["system:nodes"]));
        let admin = UserInfo::new("admin", &[api::user::MASTERS]);
        let (write, read) = (info("POST", "/api/v1/namespaces/a/pods"), info("GET", "/api/v1/pods"));
        let watch = info("GET", "/api/v1/pods?watch=1");
        let held = limits.enter(&write, &user).unwrap();
        let refused = limits.enter(&write, &user).unwrap_err();
        assert_eq!((refused.code(), refused.retry_after_seconds()), (429, Some(1)));
        // Reads and watches have places of their own.
        let _read = limits.enter(&read, &user).unwrap();
        let _watch = limits.enter(&watch, &user).unwrap();
        assert_eq!(limits.enter(&watch, &user).unwrap_err().code(), 429);
        // The cluster has one more place, masters any number.
        let reserved = limits.enter(&write, &node).unwrap();
        assert!(limits.enter(&write, &node).is_err());
        assert!((0..10).all(|_| limits.enter(&write, &admin).is_ok()));
        drop(held);
        assert!(limits.enter(&write, &user).is_ok());
        drop(reserved);
        let unlimited = InFlight::new(0, 0, 0);
        assert!((0..10).all(|_| unlimited.enter(&write, &user).is_ok()));
    }
}

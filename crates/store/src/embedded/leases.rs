//! When leases end. What they hold is in the view; only the clocks are here, and a restart restarts them.

use super::index::View;
use crate::{LeaseId, Result, StoreError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A lease whose end could not be written (the disk is full) is tried again after this.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Leases {
    clocks: Mutex<Clocks>,
}

#[derive(Default)]
struct Clocks {
    by_lease: HashMap<LeaseId, Clock>,
    /// Nothing expires before this. Keeping a lease alive does not move it, so that it costs nothing.
    not_before: Option<Instant>,
}

struct Clock {
    ttl: Duration,
    expires: Instant,
}

impl Clocks {
    fn set(&mut self, id: LeaseId, ttl: Duration, expires: Instant) {
        self.by_lease.insert(id, Clock { ttl, expires });
        self.not_before = Some(self.not_before.map_or(expires, |at| at.min(expires)));
    }
}

impl Leases {
    /// Starts all clocks anew.
    pub(super) fn new(view: &View) -> Leases {
        let leases = Leases::default();
        let granted: Vec<_> = view.leases.iter().map(|(id, lease)| (*id, lease.ttl)).collect();
        leases.update(&granted, &[]);
        leases
    }

    pub(super) fn keep_alive(&self, id: LeaseId) -> Result<Duration> {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        let clock = clocks.by_lease.get_mut(&id).filter(|clock| clock.expires > now);
        let clock = clock.ok_or(StoreError::LeaseNotFound(id))?;
        clock.expires = now + clock.ttl;
        Ok(clock.ttl)
    }

    /// When to look at [`Leases::expired`] next.
    pub(super) fn next_look(&self) -> Option<Instant> {
        self.clocks.lock().not_before
    }

    /// The leases that are over. They keep their clocks until [`Leases::update`] confirms their end.
    pub(super) fn expired(&self) -> Vec<LeaseId> {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        if clocks.not_before.is_none_or(|at| at > now) {
            return Vec::new();
        }
        let over = clocks.by_lease.iter().filter(|(_, clock)| clock.expires <= now).map(|(id, _)| *id).collect();
        let rest = clocks.by_lease.values().map(|clock| clock.expires).filter(|expires| *expires > now);
        clocks.not_before = rest.min();
        over
    }

    pub(super) fn update(&self, granted: &[(LeaseId, Duration)], ended: &[LeaseId]) {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        for (id, ttl) in granted {
            clocks.set(*id, *ttl, now + *ttl);
        }
        for id in ended {
            clocks.by_lease.remove(id);
        }
    }

    /// Keeps leases whose end could not be written.
    pub(super) fn postpone(&self, ended: &[LeaseId]) {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        for id in ended {
            if let Some(ttl) = clocks.by_lease.get(id).filter(|clock| clock.expires <= now).map(|clock| clock.ttl) {
                clocks.set(*id, ttl, now + RETRY_INTERVAL);
            }
        }
    }
}

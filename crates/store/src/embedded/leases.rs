//! When leases end. What they hold is in the view; only the clocks are here, and a restart restarts them.

use super::index::View;
use crate::{LeaseId, Result, StoreError};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// A lease whose end could not be written (the disk is full) is tried again after this.
const RETRY: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Leases {
    clocks: Mutex<HashMap<LeaseId, Clock>>,
}

struct Clock {
    ttl: Duration,
    expires: Instant,
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
        let clock = clocks.get_mut(&id).filter(|clock| clock.expires > now);
        let clock = clock.ok_or(StoreError::LeaseNotFound(id))?;
        clock.expires = now + clock.ttl;
        Ok(clock.ttl)
    }

    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.clocks.lock().values().map(|clock| clock.expires).min()
    }

    /// The leases that are over. They keep their clocks until [`Leases::update`] confirms their end.
    pub(super) fn take_expired(&self) -> Vec<LeaseId> {
        let now = Instant::now();
        let clocks = self.clocks.lock();
        clocks.iter().filter(|(_, clock)| clock.expires <= now).map(|(id, _)| *id).collect()
    }

    pub(super) fn update(&self, granted: &[(LeaseId, Duration)], ended: &[LeaseId]) {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        for (id, ttl) in granted {
            clocks.insert(*id, Clock { ttl: *ttl, expires: now + *ttl });
        }
        for id in ended {
            clocks.remove(id);
        }
    }

    pub(super) fn postpone(&self, ended: &[LeaseId]) {
        let now = Instant::now();
        let mut clocks = self.clocks.lock();
        for id in ended {
            if let Some(clock) = clocks.get_mut(id).filter(|clock| clock.expires <= now) {
                clock.expires = now + RETRY;
            }
        }
    }
}

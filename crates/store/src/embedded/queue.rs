//! What waits for the committers, and whose turn it is to write the log.
//!
//! One lock and one condition for both, because a committer that has a batch waits for either: for the log, or for
//! more to put into the batch. At most one committer waits here; the other is writing, or waits for the first to leave.

use super::index::View;
use crate::{LeaseId, Result, Revision, StoreError, Txn, TxnResult};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// While the log is being written, commands are taken in portions of this size: a wake-up costs more than a decision.
const PORTION: usize = 8;

pub(super) type Reply<T> = oneshot::Sender<Result<T>>;

pub(super) enum Command {
    Txn(Txn, Reply<TxnResult>),
    Compact(Revision, Reply<()>),
    GrantLease(LeaseId, Duration, Reply<LeaseId>),
    RevokeLease(LeaseId, Reply<()>),
    /// A view that contains everything acknowledged so far, with the frame number that follows it.
    Capture(Reply<(Arc<View>, u64)>),
}

#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    commands: VecDeque<Command>,
    /// A committer writes the log.
    writing: bool,
    /// The waiting committer wants to know of so many commands; none if zero.
    wanted: usize,
    /// The waiting committer has a batch to write.
    has_batch: bool,
    stopped: bool,
    /// A committer panicked: nobody may go on.
    dead: bool,
}

/// How full a batch is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fill {
    Empty,
    Some,
    Full,
}

/// What a committer that gathers a batch does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Commands were moved to the caller, who decides them.
    Decide,
    /// The log is the caller's until [`Queue::release_log`].
    Write,
    /// The deadline has passed.
    Due,
    /// Everything was carried out, and nothing more comes.
    Stopped,
}

impl Queue {
    pub(super) fn push(&self, command: Command) -> Result<()> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        state.commands.push_back(command);
        if state.wanted > 0 && state.commands.len() >= state.wanted {
            state.wanted = 0;
            drop(state);
            self.changed.notify_one();
        }
        Ok(())
    }

    /// What is queued is still carried out.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.changed.notify_one();
    }

    /// Nobody will take commands any more: refuses new ones, and drops those that are queued, which tells their callers.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        (state.stopped, state.dead) = (true, true);
        state.commands.clear();
        self.changed.notify_one();
    }

    pub(super) fn release_log(&self) {
        let mut state = self.state.lock();
        state.writing = false;
        if state.has_batch || !state.commands.is_empty() {
            drop(state);
            self.changed.notify_one();
        } else if state.wanted > 0 {
            state.wanted = 1;
        }
    }

    /// Waits for something to do. `into` is empty, or the batch is full and takes nothing more.
    pub(super) fn next(&self, into: &mut VecDeque<Command>, fill: Fill, deadline: Option<Instant>) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.dead {
                return Next::Stopped;
            }
            let portion = if state.writing { PORTION } else { 1 };
            if fill != Fill::Full && state.commands.len() >= portion {
                std::mem::swap(&mut state.commands, into);
                return Next::Decide;
            }
            if fill != Fill::Empty && !state.writing {
                state.writing = true;
                return Next::Write;
            }
            if fill == Fill::Empty && state.stopped && state.commands.is_empty() {
                return Next::Stopped;
            }
            state.wanted = if fill == Fill::Full { 0 } else { portion };
            state.has_batch = fill != Fill::Empty;
            let timed_out = match deadline.filter(|_| fill == Fill::Empty) {
                Some(deadline) => self.changed.wait_until(&mut state, deadline).timed_out(),
                None => {
                    self.changed.wait(&mut state);
                    false
                }
            };
            (state.wanted, state.has_batch) = (0, false);
            if timed_out {
                return Next::Due;
            }
        }
    }
}

//! What writers ask for, until the committer decides it, and how the committer learns that there is something to write.

use super::index::View;
use crate::{LeaseId, Result, Revision, StoreError, Txn, TxnResult};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// What a command holds until it is answered, whether anybody still waits for that or not.
pub(super) type Place = OwnedSemaphorePermit;
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
    commands: VecDeque<(Command, Place)>,
    /// Commands that are not in a batch yet, also those that the committer has taken out of the queue.
    pending: usize,
    /// The committer waits until so many are pending; zero: it does not wait.
    wanted: usize,
    stopped: bool,
    /// Someone panicked while deciding or writing: nobody may go on.
    dead: bool,
}

/// What the committer does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// As many commands as were wanted are pending.
    Write,
    /// The deadline has passed.
    Due,
    /// Everything was carried out, and nothing more comes.
    Stopped,
}

impl Queue {
    /// Returns whether the committer waits for this command: then the caller calls [`Queue::wake`].
    pub(super) fn push(&self, command: Command, place: Place) -> Result<bool> {
        let mut state = self.state.lock();
        if state.stopped {
            return Err(StoreError::Unavailable("the store is closed".into()));
        }
        state.commands.push_back((command, place));
        state.pending += 1;
        let awaited = state.wanted > 0 && state.pending >= state.wanted;
        if awaited {
            state.wanted = 0;
        }
        Ok(awaited)
    }

    pub(super) fn wake(&self) {
        self.changed.notify_one();
    }

    /// Moves what is queued to `into`, which is empty. False if nothing is.
    pub(super) fn take(&self, into: &mut VecDeque<(Command, Place)>) -> bool {
        std::mem::swap(&mut self.state.lock().commands, into);
        !into.is_empty()
    }

    /// The committer has taken a batch of so many commands.
    pub(super) fn taken(&self, commands: usize) {
        self.state.lock().pending -= commands;
    }

    pub(super) fn pending(&self) -> usize {
        self.state.lock().pending
    }

    /// What is queued is still carried out.
    pub(super) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake();
    }

    /// Nobody will take commands any more: refuses new ones, and drops those that are queued, which tells their callers.
    pub(super) fn close(&self) {
        let mut state = self.state.lock();
        (state.stopped, state.dead) = (true, true);
        state.commands.clear();
        self.wake();
    }

    /// Waits until so many commands are pending, at least one. Once the queue is stopped, any number will do.
    pub(super) fn wait(&self, wanted: usize, deadline: Option<Instant>) -> Next {
        let mut state = self.state.lock();
        loop {
            if state.dead || (state.stopped && state.pending == 0) {
                return Next::Stopped;
            }
            if state.pending >= wanted || state.stopped {
                return Next::Write;
            }
            state.wanted = wanted;
            let timed_out = match deadline {
                Some(deadline) => self.changed.wait_until(&mut state, deadline).timed_out(),
                None => {
                    self.changed.wait(&mut state);
                    false
                }
            };
            state.wanted = 0;
            if timed_out {
                return Next::Due;
            }
        }
    }
}

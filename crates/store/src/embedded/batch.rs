//! A batch: commands that are decided together, become durable together and are answered together.

use super::index::{Change, Lease, View};
use super::log::Log;
use super::queue::{Command, Place, Reply};
use super::{record, transaction};
use crate::{LeaseId, Result, Revision, StoreError, TxnResult};
use std::sync::Arc;
use std::time::Duration;

/// Commands of one batch: bounds how long the first of them waits for the last to be decided.
const MAX_BATCH: usize = 2048;
/// Bytes of one frame, about; a snapshot or a reader holds one in memory.
const MAX_FRAME: usize = 8 << 20;

/// Answers one command once it is known whether its batch is on disk.
type Answer = Box<dyn FnOnce(Result<()>) + Send>;

/// What the callers of a batch are told. It is said when this is dropped, wherever that is, so nobody is forgotten.
pub(super) struct Answers {
    durable: Result<()>,
    /// Let go where the callers are.
    _commits: Vec<(Revision, Arc<[Change]>)>,
    txns: Vec<(Reply<TxnResult>, Result<TxnResult>)>,
    others: Vec<Answer>,
    /// Of all commands of the batch, as one.
    _places: Option<Place>,
}

impl Answers {
    pub(super) fn len(&self) -> usize {
        self.txns.len() + self.others.len()
    }

    /// Half of the answers to transactions, to be given elsewhere.
    pub(super) fn split_off_half(&mut self) -> Answers {
        let (commits, txns) = (self._commits.len() / 2, self.txns.len() / 2);
        Answers {
            durable: self.durable.clone(),
            _commits: self._commits.split_off(commits),
            txns: self.txns.split_off(txns),
            others: Vec::new(),
            _places: None,
        }
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        for (reply, result) in self.txns.drain(..) {
            // A caller that went away does not want to know.
            let _ = reply.send(self.durable.clone().and(result));
        }
        for answer in self.others.drain(..) {
            answer(self.durable.clone());
        }
    }
}

pub(super) struct Batch {
    pub(super) frame: Vec<u8>,
    pub(super) commits: Vec<(Revision, Arc<[Change]>)>,
    pub(super) captures: Vec<Reply<(Arc<View>, u64)>>,
    pub(super) granted: Vec<(LeaseId, Duration)>,
    pub(super) ended: Vec<LeaseId>,
    txns: Vec<(Reply<TxnResult>, Result<TxnResult>)>,
    others: Vec<Answer>,
    places: Option<Place>,
}

impl Batch {
    /// An empty batch. `frame` is a buffer to write to.
    pub(super) fn new(mut frame: Vec<u8>) -> Batch {
        frame.shrink_to(MAX_FRAME);
        Log::start_frame(&mut frame);
        Batch {
            frame,
            commits: Vec::new(),
            captures: Vec::new(),
            granted: Vec::new(),
            ended: Vec::new(),
            txns: Vec::new(),
            others: Vec::new(),
            places: None,
        }
    }

    /// How many commands were decided.
    pub(super) fn len(&self) -> usize {
        self.txns.len() + self.others.len() + self.captures.len()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len() >= MAX_BATCH || self.frame.len() >= MAX_FRAME
    }

    /// Decides a command on `view`, and keeps the answer until the batch is durable.
    pub(super) fn decide(&mut self, view: &mut View, command: Command, place: Place) {
        match &mut self.places {
            Some(places) => places.merge(place),
            None => self.places = Some(place),
        }
        match command {
            Command::Txn(txn, reply) => {
                let result = transaction::apply(view, txn).map(|(result, changes)| {
                    self.commit(view, changes);
                    result
                });
                self.txns.push((reply, result));
            }
            Command::Compact(revision, reply) => {
                let result = view.compact(revision);
                if result.is_ok() {
                    record::compact(&mut self.frame, revision);
                }
                self.answer_later(reply, result);
            }
            Command::GrantLease(id, ttl, reply) => {
                view.leases.insert(id, Lease { ttl, keys: imbl::OrdSet::new() });
                record::lease_grant(&mut self.frame, id, ttl);
                self.granted.push((id, ttl));
                self.answer_later(reply, Ok(id));
            }
            Command::RevokeLease(id, reply) => {
                let found = self.end_lease(view, id);
                self.answer_later(reply, if found { Ok(()) } else { Err(StoreError::LeaseNotFound(id)) });
            }
            Command::Capture(reply) => self.captures.push(reply),
        }
    }

    /// Deletes a lease and its keys; false if there is no such lease.
    pub(super) fn end_lease(&mut self, view: &mut View, id: LeaseId) -> bool {
        let Some(changes) = transaction::end_lease(view, id) else { return false };
        self.commit(view, changes);
        record::lease_revoke(&mut self.frame, id);
        self.ended.push(id);
        true
    }

    /// The answers to every caller, now that it is known whether the batch is on disk, and the frame's buffer.
    pub(super) fn answers(self, durable: Result<()>) -> (Answers, Vec<u8>) {
        let Batch { frame, commits, txns, others, places, .. } = self;
        (Answers { durable, _commits: commits, txns, others, _places: places }, frame)
    }

    fn commit(&mut self, view: &mut View, changes: Vec<Change>) {
        if changes.is_empty() {
            return;
        }
        let revision = view.revision.next();
        let changes = view.commit(revision, changes);
        record::txn(&mut self.frame, revision, &changes);
        self.commits.push((revision, changes));
    }

    fn answer_later<T: Send + 'static>(&mut self, reply: Reply<T>, result: Result<T>) {
        self.others.push(Box::new(move |durable| drop(reply.send(durable.and(result)))));
    }
}

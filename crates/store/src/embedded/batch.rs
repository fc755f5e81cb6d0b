//! A batch: commands that are decided together, become durable together and are answered together.

use super::index::{Change, Lease, View};
use super::log::Log;
use super::queue::{Command, Fill, Reply};
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

pub(super) struct Batch {
    /// How many writes had failed when the first command was decided. One more since then: this batch stands on a view
    /// that never came to be.
    pub(super) failures: u64,
    pub(super) frame: Vec<u8>,
    pub(super) commits: Vec<(Revision, Arc<[Change]>)>,
    pub(super) captures: Vec<Reply<(Arc<View>, u64)>>,
    pub(super) granted: Vec<(LeaseId, Duration)>,
    pub(super) ended: Vec<LeaseId>,
    /// Memory was given back, which shows only once the view is published.
    pub(super) trimmed: bool,
    txns: Vec<(Reply<TxnResult>, Result<TxnResult>)>,
    others: Vec<Answer>,
}

impl Batch {
    /// An empty batch. `frame` is a buffer to write to.
    pub(super) fn new(mut frame: Vec<u8>) -> Batch {
        frame.shrink_to(MAX_FRAME);
        Log::start_frame(&mut frame);
        Batch {
            failures: 0,
            frame,
            commits: Vec::new(),
            captures: Vec::new(),
            granted: Vec::new(),
            ended: Vec::new(),
            trimmed: false,
            txns: Vec::new(),
            others: Vec::new(),
        }
    }

    pub(super) fn fill(&self) -> Fill {
        let count = self.txns.len() + self.others.len() + self.captures.len();
        if count >= MAX_BATCH || self.frame.len() >= MAX_FRAME {
            Fill::Full
        } else if count > 0 || self.trimmed || !Log::is_empty_frame(&self.frame) {
            Fill::Some
        } else {
            Fill::Empty
        }
    }

    /// Decides a command on `view`, and keeps the answer until the batch is durable.
    pub(super) fn decide(&mut self, view: &mut View, command: Command) {
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

    /// Tells every caller. Returns the frame's buffer.
    pub(super) fn answer(self, durable: Result<()>) -> Vec<u8> {
        // A caller that went away does not want to know.
        match &durable {
            Ok(()) => self.txns.into_iter().for_each(|(reply, result)| drop(reply.send(result))),
            Err(error) => self.txns.into_iter().for_each(|(reply, _)| drop(reply.send(Err(error.clone())))),
        }
        for answer in self.others {
            answer(durable.clone());
        }
        self.frame
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

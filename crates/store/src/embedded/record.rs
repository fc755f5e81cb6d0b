//! Records: what the payload of a frame says. `docs/store-format.md` describes them byte by byte.
//!
//! The log keeps effects, not requests: replaying needs no compares and cannot come out differently.

use super::index::{Change, Lease, View};
use crate::{KeyValue, LeaseId, Revision, StoreError};
use bytes::Bytes;
use imbl::OrdSet;
use std::sync::Arc;
use std::time::Duration;

const TXN: u8 = 1;
const COMPACT: u8 = 2;
const LEASE_GRANT: u8 = 3;
const LEASE_REVOKE: u8 = 4;
const META: u8 = 16;
const KEY: u8 = 17;
const END: u8 = 18;

const PUT: u8 = 1;
const DELETE: u8 = 2;

pub(super) fn txn(out: &mut Vec<u8>, revision: Revision, changes: &[Change]) {
    out.push(TXN);
    out.extend(revision.0.to_le_bytes());
    out.extend((changes.len() as u32).to_le_bytes());
    for change in changes {
        match &change.new {
            Some(kv) => {
                out.push(PUT);
                bytes(out, kv.key.as_bytes());
                bytes(out, &kv.value);
                out.extend(lease_number(kv.lease).to_le_bytes());
            }
            None => {
                out.push(DELETE);
                bytes(out, change.key().as_bytes());
            }
        }
    }
}

pub(super) fn compact(out: &mut Vec<u8>, revision: Revision) {
    out.push(COMPACT);
    out.extend(revision.0.to_le_bytes());
}

pub(super) fn lease_grant(out: &mut Vec<u8>, id: LeaseId, ttl: Duration) {
    out.push(LEASE_GRANT);
    out.extend(id.get().to_le_bytes());
    out.extend((ttl.as_millis() as u64).to_le_bytes());
}

pub(super) fn lease_revoke(out: &mut Vec<u8>, id: LeaseId) {
    out.push(LEASE_REVOKE);
    out.extend(id.get().to_le_bytes());
}

/// The first record of a snapshot.
pub(super) fn meta(out: &mut Vec<u8>, view: &View) {
    let floor = view.snapshot_floor();
    out.push(META);
    out.extend(view.compacted.0.to_le_bytes());
    out.extend(floor.0.to_le_bytes());
}

pub(super) fn key(out: &mut Vec<u8>, kv: &KeyValue) {
    out.push(KEY);
    bytes(out, kv.key.as_bytes());
    bytes(out, &kv.value);
    out.extend(kv.create_revision.0.to_le_bytes());
    out.extend(kv.mod_revision.0.to_le_bytes());
    out.extend(kv.version.to_le_bytes());
    out.extend(lease_number(kv.lease).to_le_bytes());
}

/// The last record of a snapshot: what it must add up to.
pub(super) fn end(out: &mut Vec<u8>, keys: u64, revision: Revision) {
    out.push(END);
    out.extend(keys.to_le_bytes());
    out.extend(revision.0.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend(bytes);
}

fn lease_number(lease: Option<LeaseId>) -> i64 {
    lease.map_or(0, LeaseId::get)
}

/// Bytes whose checksum was right and that are no record, or one that does not follow from those before it.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadRecord {
    #[error("a record ends too early")]
    Cut,
    #[error("a key is not UTF-8")]
    Key,
    #[error("unknown record type {0}")]
    Record(u8),
    #[error("unknown operation type {0}")]
    Operation(u8),
    #[error("a lease has the number zero")]
    Lease,
    #[error("the history starts at revision zero")]
    NoHistory,
    #[error("revision {revision} follows {last}")]
    Gap { revision: Revision, last: Revision },
    #[error("revision {0} deletes a key that does not exist")]
    NoKey(Revision),
    #[error("the snapshot ends with {found} keys at revision {at}, not {keys} at {revision}")]
    Incomplete { found: u64, at: Revision, keys: u64, revision: Revision },
    #[error(transparent)]
    Compaction(#[from] StoreError),
}

/// Rebuilds a view from frames.
pub(super) struct Replay {
    pub(super) view: View,
    pub(super) base_keys: u64,
    /// The whole snapshot was seen. True from the start when there is none.
    pub(super) complete: bool,
    /// Salvage: count what does not fit instead of refusing it.
    pub(super) lenient: bool,
}

impl Replay {
    pub(super) fn new() -> Replay {
        Replay { view: View::new(), base_keys: 0, complete: true, lenient: false }
    }

    /// Applies every record of a payload whose checksum was right. An error is damage, or a program's mistake.
    pub(super) fn apply(&mut self, payload: &[u8]) -> Result<(), BadRecord> {
        let mut input = Input(payload);
        while !input.0.is_empty() {
            match input.u8()? {
                TXN => self.txn(&mut input)?,
                COMPACT => {
                    let revision = Revision(input.u64()?);
                    self.view.compact(revision)?;
                    self.view.trim(usize::MAX);
                }
                LEASE_GRANT => {
                    let id = input.lease()?.ok_or(BadRecord::Lease)?;
                    let ttl = Duration::from_millis(input.u64()?);
                    self.view.leases.insert(id, Lease { ttl, keys: OrdSet::new() });
                }
                LEASE_REVOKE => {
                    let id = input.lease()?.ok_or(BadRecord::Lease)?;
                    self.view.leases.remove(&id);
                }
                META => {
                    let compacted = Revision(input.u64()?);
                    let floor = input.u64()?;
                    let before = floor.checked_sub(1).ok_or(BadRecord::NoHistory)?;
                    self.view = View::starting(Revision(before), compacted, Revision(floor));
                    self.complete = false;
                }
                KEY => {
                    let kv = KeyValue {
                        key: Arc::from(input.str()?),
                        value: input.value()?,
                        create_revision: Revision(input.u64()?),
                        mod_revision: Revision(input.u64()?),
                        version: input.u64()?,
                        lease: input.lease()?,
                    };
                    self.view.insert_base(kv);
                    self.base_keys += 1;
                }
                END => {
                    let (keys, revision) = (input.u64()?, Revision(input.u64()?));
                    if !self.lenient && (keys, revision) != (self.base_keys, self.view.revision) {
                        let (found, at) = (self.base_keys, self.view.revision);
                        return Err(BadRecord::Incomplete { found, at, keys, revision });
                    }
                    self.complete = true;
                }
                other => return Err(BadRecord::Record(other)),
            }
        }
        Ok(())
    }

    fn txn(&mut self, input: &mut Input<'_>) -> Result<(), BadRecord> {
        let revision = Revision(input.u64()?);
        if self.lenient {
            // Frames are missing: keep the numbering of those that are left.
            while self.view.revision.next() < revision {
                let skipped = self.view.revision.next();
                self.view.commit(skipped, Vec::new());
            }
        }
        if revision != self.view.revision.next() {
            return Err(BadRecord::Gap { revision, last: self.view.revision });
        }
        let count = input.u32()?;
        let mut changes = Vec::with_capacity(count.min(1024) as usize);
        for _ in 0..count {
            match input.u8()? {
                PUT => {
                    let key: Arc<str> = match self.view.get(input.peek_str()?) {
                        Some(kv) => {
                            input.str()?;
                            kv.key.clone()
                        }
                        None => Arc::from(input.str()?),
                    };
                    let value = input.value()?;
                    let lease = input.lease()?;
                    changes.push(self.view.put(key, value, lease, revision));
                }
                DELETE => match self.view.delete(input.str()?, revision) {
                    Some(change) => changes.push(change),
                    None if self.lenient => {}
                    None => return Err(BadRecord::NoKey(revision)),
                },
                other => return Err(BadRecord::Operation(other)),
            }
        }
        self.view.commit(revision, changes);
        Ok(())
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], BadRecord> {
        let (head, tail) = self.0.split_at_checked(len).ok_or(BadRecord::Cut)?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], BadRecord> {
        let (head, tail) = self.0.split_first_chunk::<N>().ok_or(BadRecord::Cut)?;
        self.0 = tail;
        Ok(*head)
    }

    fn u8(&mut self) -> Result<u8, BadRecord> {
        Ok(u8::from_le_bytes(self.array()?))
    }

    fn u32(&mut self) -> Result<u32, BadRecord> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, BadRecord> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn lease(&mut self) -> Result<Option<LeaseId>, BadRecord> {
        Ok(LeaseId::new(i64::from_le_bytes(self.array()?)))
    }

    fn bytes(&mut self) -> Result<&'a [u8], BadRecord> {
        let len = self.u32()?;
        self.take(len as usize)
    }

    /// A copy: the payload's buffer is used again.
    fn value(&mut self) -> Result<Bytes, BadRecord> {
        Ok(Bytes::from(Box::<[u8]>::from(self.bytes()?)))
    }

    fn str(&mut self) -> Result<&'a str, BadRecord> {
        std::str::from_utf8(self.bytes()?).map_err(|_| BadRecord::Key)
    }

    fn peek_str(&self) -> Result<&'a str, BadRecord> {
        Input(self.0).str()
    }
}

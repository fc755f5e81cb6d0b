//! A store whose keys are elsewhere in another: what callers call `/registry/a` is stored as `/other/a`.
//!
//! Keys outside of the place that callers know are refused, so that nothing of others is read or written.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;

use crate::{
    Compare, KeyRange, KeyValue, Op, OpResult, Range, RangeResult, Result, Store, StoreError, Txn, TxnResult, Watch,
    WatchEvent, WatchStream,
};

pub struct Relocated {
    inner: Arc<dyn Store>,
    place: Place,
    sees_others: bool,
}

/// What keys begin with: for callers, and in the store beneath.
#[derive(Clone)]
struct Place {
    known: Arc<str>,
    stored: Arc<str>,
}

impl Relocated {
    /// Keys that begin with `known` are stored with `stored` in its place.
    pub fn new(inner: Arc<dyn Store>, known: impl Into<Arc<str>>, stored: impl Into<Arc<str>>) -> Relocated {
        Relocated { inner, place: Place { known: known.into(), stored: stored.into() }, sees_others: false }
    }

    /// For a store that does not answer requests for progress, in which others write too: whoever waits for the current
    /// revision would wait for ever when it was theirs. So watches that want progress follow what others write, of which
    /// nothing but the revision is passed on.
    pub fn seeing_others(self) -> Relocated {
        Relocated { sees_others: true, ..self }
    }
}

impl Place {
    fn stored(&self, key: &str) -> Result<Arc<str>> {
        match key.strip_prefix(&*self.known) {
            Some(rest) => Ok([&self.stored, rest].concat().into()),
            None => Err(StoreError::Invalid(format!("key {key} is not below {}", self.known))),
        }
    }

    fn known(&self, key: &Arc<str>) -> Arc<str> {
        match key.strip_prefix(&*self.stored) {
            Some(rest) => [&self.known, rest].concat().into(),
            None => key.clone(),
        }
    }

    fn keys(&self, keys: KeyRange) -> Result<KeyRange> {
        Ok(match keys {
            KeyRange::Key(key) => KeyRange::Key(self.stored(&key)?),
            // Callers see everything below their place, and nothing else.
            KeyRange::Prefix(prefix) if self.known.starts_with(&*prefix) => KeyRange::Prefix(self.stored.clone()),
            KeyRange::Prefix(prefix) => KeyRange::Prefix(self.stored(&prefix)?),
        })
    }

    fn range(&self, range: Range) -> Result<Range> {
        let start_after = range.start_after.map(|after| self.stored(&after)).transpose()?;
        Ok(Range { keys: self.keys(range.keys)?, start_after, ..range })
    }

    fn compare(&self, compare: Compare) -> Result<Compare> {
        Ok(match compare {
            Compare::ModRevision { key, revision } => Compare::ModRevision { key: self.stored(&key)?, revision },
            Compare::Exists { key } => Compare::Exists { key: self.stored(&key)? },
            Compare::Absent { key } => Compare::Absent { key: self.stored(&key)? },
        })
    }

    fn op(&self, op: Op) -> Result<Op> {
        Ok(match op {
            Op::Put { key, value, lease } => Op::Put { key: self.stored(&key)?, value, lease },
            Op::Delete(keys) => Op::Delete(self.keys(keys)?),
            Op::Get(range) => Op::Get(self.range(range)?),
        })
    }

    fn txn(&self, txn: Txn) -> Result<Txn> {
        txn.validate()?;
        let ops = |ops: Vec<Op>| ops.into_iter().map(|op| self.op(op)).collect::<Result<_>>();
        Ok(Txn {
            compares: txn.compares.into_iter().map(|compare| self.compare(compare)).collect::<Result<_>>()?,
            success: ops(txn.success)?,
            failure: ops(txn.failure)?,
        })
    }

    fn kv(&self, kv: KeyValue) -> KeyValue {
        KeyValue { key: self.known(&kv.key), ..kv }
    }

    fn found(&self, mut found: RangeResult) -> RangeResult {
        for kv in &mut found.kvs {
            kv.key = self.known(&kv.key);
        }
        found
    }

    /// What a watch of `keys` gets to see of an event of any key. Nobody changes something here and elsewhere at once, so a
    /// change elsewhere says that all of ours up to it has been seen.
    fn passed(&self, event: WatchEvent, keys: &KeyRange) -> Option<WatchEvent> {
        let key = match &event {
            WatchEvent::Put { kv, .. } => &kv.key,
            WatchEvent::Delete { key, .. } => key,
            WatchEvent::Progress(_) => return Some(event),
        };
        match keys.contains(key) {
            true => Some(self.event(event)),
            false if key.starts_with(&*self.stored) => None,
            false => Some(WatchEvent::Progress(event.revision())),
        }
    }

    fn event(&self, event: WatchEvent) -> WatchEvent {
        match event {
            WatchEvent::Put { kv, prev } => WatchEvent::Put { kv: self.kv(kv), prev: prev.map(|kv| self.kv(kv)) },
            WatchEvent::Delete { key, revision, prev } => {
                WatchEvent::Delete { key: self.known(&key), revision, prev: prev.map(|kv| self.kv(kv)) }
            }
            progress @ WatchEvent::Progress(_) => progress,
        }
    }
}

impl Store for Relocated {
    fn range(&self, range: Range) -> BoxFuture<'_, Result<RangeResult>> {
        Box::pin(async move { Ok(self.place.found(self.inner.range(self.place.range(range)?).await?)) })
    }

    fn txn(&self, txn: Txn) -> BoxFuture<'_, Result<TxnResult>> {
        Box::pin(async move {
            let mut done = self.inner.txn(self.place.txn(txn)?).await?;
            for result in &mut done.results {
                if let OpResult::Get(found) = result {
                    found.kvs.iter_mut().for_each(|kv| kv.key = self.place.known(&kv.key));
                }
            }
            Ok(done)
        })
    }

    fn watch(&self, watch: Watch) -> BoxFuture<'_, Result<WatchStream>> {
        Box::pin(async move {
            let place = self.place.clone();
            let keys = place.keys(watch.keys)?;
            if !self.sees_others || watch.progress.is_none() {
                let events = self.inner.watch(Watch { keys, ..watch }).await?;
                return Ok(events.map(move |event| Ok(place.event(event?))).boxed());
            }
            let all = Watch { keys: KeyRange::Prefix("".into()), ..watch };
            let events = self.inner.watch(all).await?.filter_map(move |event| {
                let passed = event.map(|event| place.passed(event, &keys)).transpose();
                std::future::ready(passed)
            });
            Ok(events.boxed())
        })
    }

    // Snapshot and size are those of the whole store beneath.
    crate::forward!(
        inner: request_progress, compact, current_revision, grant_lease, keep_alive, revoke_lease, snapshot, size
    );
}

//! Carrying everything below a prefix from one store into another, so that revisions only grow.
//!
//! Into etcd: it counts its own revisions, so it is brought above the source's first, then everything is written anew. A
//! client that knew an object or a list by an older revision is told that it is gone, and reads again.
//! Into an embedded store: every key keeps its revisions, and the store goes on from the source's.
//! Invariant: a target that was not filled to its end, or not taken into use, says so, and the next attempt begins anew.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;

use crate::embedded::{self, Imported};
use crate::{Contents, KeyRange, KeyValue, Op, Range, Result, Revision, Store, StoreError, Txn};

/// Requests on their way at the same time.
const AT_ONCE: usize = 128;
/// Keys that are read or compared at a time.
const PAGE: usize = 500;
/// Revisions that are counted up between compactions: a store that keeps all of them may be full before it is there.
const COUNTED_UP: u64 = 50_000;
/// Keys that would end by themselves get so long again.
pub const LEASE_TTL: Duration = Duration::from_secs(3600);

/// What is carried over.
pub struct Transfer<'a> {
    /// What all keys begin with.
    pub root: &'a str,
    /// A key below it that says in the target that a transfer has begun and not ended.
    pub mark: &'a str,
    /// Beginnings of keys that stay behind.
    pub without: &'a [&'a str],
}

/// What was carried over, and up to which revision the target counts now.
#[derive(Debug, PartialEq, Eq)]
pub struct Carried {
    pub keys: usize,
    pub revision: Revision,
}

impl Transfer<'_> {
    /// Writes everything into a store that counts for itself. Nobody else may write to either meanwhile. The mark stays until
    /// [`Transfer::taken_over`]: whoever is ended before begins anew.
    pub async fn into_store(&self, from: &dyn Store, to: &dyn Store) -> Result<Carried> {
        self.make_room(to).await?;
        let Contents { kvs, revision } = self.read(from).await?;
        self.raise(to, revision).await?;
        let mut lease = None;
        if kvs.iter().any(|kv| kv.lease.is_some()) {
            lease = Some(to.grant_lease(LEASE_TTL).await?);
        }
        for some in kvs.chunks(AT_ONCE) {
            let mut writes = Vec::new();
            for kv in some {
                let op = Op::Put { key: kv.key.clone(), value: kv.value.clone(), lease: kv.lease.and(lease) };
                writes.push(to.txn(Txn::new().then(op)));
            }
            try_join_all(writes).await?;
        }
        self.compare(&kvs, to).await?;
        // Nobody is to watch how this came about.
        let revision = to.current_revision().await?;
        to.compact(revision).await?;
        Ok(Carried { keys: kvs.len(), revision })
    }

    /// The target is in use: nothing in it is to be thrown away any more.
    pub async fn taken_over(&self, to: &dyn Store) -> Result<()> {
        if to.get(self.mark).await?.is_some() {
            to.txn(Txn::new().then(Op::delete(self.mark))).await?;
        }
        Ok(())
    }

    /// Makes an embedded store of everything, in a directory that must not hold one.
    pub async fn into_directory(&self, from: &dyn Store, dir: &Path) -> Result<Carried> {
        let Contents { kvs, revision } = self.read(from).await?;
        let keys = kvs.len();
        let dir = dir.to_owned();
        let import = move || embedded::import(&dir, Imported { kvs, revision, lease_time: LEASE_TTL });
        let report = tokio::task::spawn_blocking(import).await;
        let report = report.map_err(|error| StoreError::Unavailable(error.to_string()))??;
        if report.keys != keys as u64 || report.revision != revision {
            return Err(StoreError::Unavailable(format!(
                "{} keys at revision {} were written, and {keys} at {revision} were read",
                report.keys, report.revision
            )));
        }
        Ok(Carried { keys, revision })
    }

    /// A target has nothing below the root, but for what an earlier attempt left there.
    async fn make_room(&self, to: &dyn Store) -> Result<()> {
        let found = to.range(Range::prefix(self.root).limit(2).keys_only()).await?;
        let is_marked = to.get(self.mark).await?.is_some();
        if found.count > 0 && !is_marked {
            let first = found.kvs.first().map(|kv| kv.key.to_string()).unwrap_or_default();
            return Err(StoreError::Invalid(format!("the target is not empty: it has {first}")));
        }
        let mark = Txn::new().then(Op::put(self.mark, "this store is being filled"));
        if is_marked {
            to.txn(Txn::new().then(Op::Delete(KeyRange::Prefix(self.root.into())))).await?;
        }
        to.txn(mark).await.map(drop)
    }

    /// Everything at one revision.
    pub async fn read(&self, from: &dyn Store) -> Result<Contents> {
        let revision = from.current_revision().await?;
        let mut kvs = Vec::new();
        let mut after: Option<Arc<str>> = None;
        loop {
            let mut page = Range::prefix(self.root).at(revision).limit(PAGE);
            page.start_after = after;
            let page = from.range(page).await?;
            after = page.kvs.last().map(|kv| kv.key.clone());
            let stays =
                |kv: &KeyValue| *kv.key == *self.mark || self.without.iter().any(|start| kv.key.starts_with(start));
            kvs.extend(page.kvs.into_iter().filter(|kv| !stays(kv)));
            if !page.more {
                return Ok(Contents { kvs, revision });
            }
        }
    }

    /// Makes the target count at least as far as `revision`.
    async fn raise(&self, to: &dyn Store, revision: Revision) -> Result<()> {
        let mut missing = revision.0.saturating_sub(to.current_revision().await?.0);
        let mut kept = 0;
        while missing > 0 {
            let count = missing.min(AT_ONCE as u64);
            let mut writes = Vec::new();
            for _ in 0..count {
                writes.push(to.txn(Txn::new().then(Op::put(self.mark, "revisions are counted up"))));
            }
            try_join_all(writes).await?;
            (missing, kept) = (missing - count, kept + count);
            if kept >= COUNTED_UP {
                kept = 0;
                to.compact(to.current_revision().await?).await?;
            }
        }
        Ok(())
    }

    /// Fails unless the target has what was read, and nothing else but the mark.
    async fn compare(&self, kvs: &[KeyValue], to: &dyn Store) -> Result<()> {
        let differs = |key: &str| StoreError::Unavailable(format!("{key} is not in the target as it was read"));
        let written = to.range(Range::prefix(self.root).count_only()).await?;
        if written.count != kvs.len() as u64 + 1 {
            let text = format!("{} keys are in the target, and {} were read", written.count - 1, kvs.len());
            return Err(StoreError::Unavailable(text));
        }
        for some in kvs.chunks(AT_ONCE) {
            let mut reads = Vec::new();
            for kv in some {
                reads.push(to.range(Range::key(kv.key.clone())));
            }
            for (kv, found) in some.iter().zip(try_join_all(reads).await?) {
                if found.kvs.first().is_none_or(|found| found.value != kv.value) {
                    return Err(differs(&kv.key));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::EmbeddedStore;
    use crate::embedded::Options;

    const ALL: Transfer<'static> = Transfer { root: "/registry/", mark: "/registry/cox/moving", without: &[] };

    #[tokio::test]
    async fn a_transfer_that_ends_anywhere_is_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let [from, to] = ["a", "b"].map(|name| EmbeddedStore::open(dir.path().join(name), Options::default()).unwrap());
        (&from as &dyn Store).put("/registry/a", "1").await.unwrap();
        // Killed before its flags say where the objects are, the command is given again.
        for _ in 0..2 {
            assert_eq!(ALL.into_store(&from, &to).await.unwrap().keys, 1);
        }
        ALL.taken_over(&to).await.unwrap();
        ALL.taken_over(&to).await.unwrap();
        assert!(ALL.into_store(&from, &to).await.unwrap_err().to_string().contains("is not empty: it has /registry/a"));
        // One that lives with a mark does not pass it on.
        (&to as &dyn Store).put(ALL.mark, "left behind").await.unwrap();
        assert_eq!(ALL.into_directory(&to, &dir.path().join("c")).await.unwrap().keys, 1);
    }

    #[tokio::test]
    async fn counting_up_leaves_no_history() {
        let dir = tempfile::tempdir().unwrap();
        let to = EmbeddedStore::open(dir.path(), Options::default()).unwrap();
        let wanted = Revision(COUNTED_UP + 1000);
        ALL.raise(&to, wanted).await.unwrap();
        assert_eq!(to.current_revision().await.unwrap(), wanted);
        let early = to.range(Range::key(ALL.mark).at(Revision(COUNTED_UP - 1000))).await.unwrap_err();
        assert!(matches!(early, StoreError::Compacted { .. }), "{early}");
    }
}

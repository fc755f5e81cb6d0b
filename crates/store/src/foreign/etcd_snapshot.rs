//! Snapshots that `etcdctl snapshot save` and `k3s etcd-snapshot save` write: etcd's database with a digest behind it.
//!
//! A database without the digest is that of a member, which may have acknowledged more than is in it: it is refused.

use std::collections::BTreeMap;
use std::path::Path;

use prost::Message;
use ring::digest::{Context, SHA256, SHA256_OUTPUT_LEN};

use super::PagedFile;
use super::bolt::{self, Database};
use crate::etcd::StoredKeyValue;
use crate::{Contents, KeyValue, LeaseId, Result, Revision, StoreError};

/// A database has a whole number of these.
const BLOCK: u64 = 512;
const PIECE: usize = 1 << 20;
/// A revision as a key: two numbers with a letter between, and one behind for a deletion.
const REVISION: usize = 17;

/// Whether a file is a database of etcd's, with a digest or without.
pub fn is_database(path: &Path) -> Result<bool> {
    bolt::begins(&PagedFile::open(path)?)
}

/// Everything below `root`.
pub fn read(path: &Path, root: &str) -> Result<Contents> {
    let mut file = PagedFile::open(path)?;
    check_digest(&file)?;
    file.len -= SHA256_OUTPUT_LEN as u64;
    let database = Database::open(file)?;
    let keys = database.bucket(b"key")?.ok_or_else(|| database.damaged(0, "it has no keys: it is not of etcd 3"))?;
    let mut latest: BTreeMap<String, KeyValue> = BTreeMap::new();
    let mut revision = compacted(&database)?;
    database.each(&keys, &mut |_, place, value| {
        let at = revision_of(place).ok_or_else(|| database.damaged(0, "a key that is no revision"))?;
        revision = revision.max(at);
        let found = StoredKeyValue::decode(value).map_err(|error| database.damaged(0, &error.to_string()))?;
        let Some(key) = std::str::from_utf8(&found.key).ok().filter(|key| key.starts_with(root)) else { return Ok(()) };
        if place.len() > REVISION {
            latest.remove(key);
            return Ok(());
        }
        let number = |number: i64| u64::try_from(number).unwrap_or_default();
        let kv = KeyValue {
            key: key.into(),
            value: found.value.clone(),
            create_revision: Revision(number(found.create_revision)),
            mod_revision: Revision(number(found.mod_revision)),
            version: number(found.version),
            lease: LeaseId::new(found.lease),
        };
        latest.insert(key.to_owned(), kv);
        Ok(())
    })?;
    Ok(Contents { kvs: latest.into_values().collect(), revision })
}

fn revision_of(key: &[u8]) -> Option<Revision> {
    (key.len() >= REVISION && key[8] == b'_').then_some(())?;
    Some(Revision(u64::from_be_bytes(key.get(..8)?.try_into().ok()?)))
}

/// The revision that was compacted last: what was deleted there is in no key.
fn compacted(database: &Database) -> Result<Revision> {
    let mut revision = Revision::ZERO;
    if let Some(meta) = database.bucket(b"meta")? {
        database.each(&meta, &mut |_, key, value| {
            if matches!(key, b"scheduledCompactRev" | b"finishedCompactRev") {
                revision = revision.max(revision_of(value).unwrap_or_default());
            }
            Ok(())
        })?;
    }
    Ok(revision)
}

fn check_digest(file: &PagedFile) -> Result<()> {
    let digest = SHA256_OUTPUT_LEN as u64;
    if file.len < digest || file.len % BLOCK != digest {
        return Err(StoreError::Invalid(format!(
            "{} is no snapshot: write one with 'etcdctl snapshot save' or 'k3s etcd-snapshot save' (without compression). \
             The database of a member that is stopped does not do: a part of what it has is in its log",
            file.path.display()
        )));
    }
    let (mut sum, mut at, end) = (Context::new(&SHA256), 0, file.len - digest);
    while at < end {
        let piece = file.read(at, usize::try_from(end - at).unwrap_or(PIECE).min(PIECE))?;
        sum.update(&piece);
        at += piece.len() as u64;
    }
    if sum.finish().as_ref() != file.read(end, SHA256_OUTPUT_LEN)? {
        return Err(file.damaged(end, "its digest is that of something else"));
    }
    Ok(())
}

//! The database of a k3s server with one machine: kine's log of changes, a row for each.
//!
//! The id of a row is its revision. The latest row of a name is its state, unless that is a deletion.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

use bytes::Bytes;
use nix::fcntl::{FcntlArg, fcntl};

use super::sqlite::{Database, Table, Value};
use crate::{Contents, KeyValue, LeaseId, Result, Revision, StoreError};

const TABLE: &str = "kine";
/// A server that runs commits every second or so, and reading takes less.
const ATTEMPTS: u32 = 20;
/// Where SQLite locks a database that is open, beyond what a page would have: a byte for whoever is about to write, and
/// those that readers share.
const LOCKS: (i64, i64) = (0x4000_0000, 512);

/// The process that has the database open, if there is one.
pub fn holder(path: &Path) -> Result<Option<i32>> {
    let file = File::open(path).map_err(|error| StoreError::io(path, &error))?;
    let mut lock = libc_lock();
    fcntl(&file, FcntlArg::F_GETLK(&mut lock)).map_err(|error| StoreError::io(path, &error.into()))?;
    Ok((i32::from(lock.l_type) != nix::libc::F_UNLCK).then_some(lock.l_pid))
}

/// Somebody who wants all of it to himself.
fn libc_lock() -> nix::libc::flock {
    nix::libc::flock {
        l_type: nix::libc::F_WRLCK as nix::libc::c_short,
        l_whence: nix::libc::SEEK_SET as nix::libc::c_short,
        l_start: LOCKS.0,
        l_len: LOCKS.1,
        l_pid: 0,
    }
}

/// Everything below `root`.
pub fn read(path: &Path, root: &str) -> Result<Contents> {
    for _ in 0..ATTEMPTS {
        let database = Database::open(path)?;
        let found = read_once(path, &database, root);
        if !database.has_changed()? {
            return found;
        }
    }
    Err(StoreError::Unavailable(format!("{} changes while it is read: stop its server", path.display())))
}

/// Where the columns are.
struct Columns {
    name: usize,
    created: usize,
    deleted: usize,
    create_revision: usize,
    lease: usize,
    value: usize,
}

impl Columns {
    fn of(table: &Table) -> Option<Columns> {
        let at = |name: &str| table.columns.iter().position(|column| column.eq_ignore_ascii_case(name));
        Some(Columns {
            name: at("name")?,
            created: at("created")?,
            deleted: at("deleted")?,
            create_revision: at("create_revision")?,
            lease: at("lease")?,
            value: at("value")?,
        })
    }
}

fn read_once(path: &Path, database: &Database, root: &str) -> Result<Contents> {
    let other = |what: &str| StoreError::Invalid(format!("{} {what}", path.display()));
    let table = database.table(TABLE)?.ok_or_else(|| other("has no table kine: it is not of k3s"))?;
    let columns = Columns::of(&table).ok_or_else(|| other("has a table kine with other columns"))?;
    let mut latest: BTreeMap<String, Option<KeyValue>> = BTreeMap::new();
    let mut revision = Revision::ZERO;
    database.rows(&table, &mut |id, row| {
        let at = Revision(u64::try_from(id).map_err(|_| other("has a row with a negative id"))?);
        revision = revision.max(at);
        let name = match row.get(columns.name) {
            Some(Value::Text(name)) => name.clone(),
            // SQLite keeps what it is given.
            Some(Value::Blob(name)) => String::from_utf8_lossy(name).into_owned(),
            _ => return Err(other(&format!("has no name in row {id}"))),
        };
        if !name.starts_with(root) {
            return Ok(());
        }
        let number = |column: usize| row.get(column).and_then(Value::integer).unwrap_or_default();
        if number(columns.deleted) != 0 {
            latest.insert(name, None);
            return Ok(());
        }
        let value = match row.get(columns.value) {
            Some(Value::Blob(value)) => Bytes::from(value.clone()),
            Some(Value::Text(value)) => Bytes::from(value.clone()),
            _ => Bytes::new(),
        };
        let is_new = number(columns.created) != 0;
        let created =
            u64::try_from(number(columns.create_revision)).ok().filter(|created| (1..=at.0).contains(created));
        let create_revision = if is_new { at } else { created.map_or(at, Revision) };
        let version = match latest.get(&name) {
            Some(Some(before)) if !is_new => before.version + 1,
            // What was before is compacted away, and nobody counted.
            _ if is_new => 1,
            _ => 2,
        };
        let lease = LeaseId::new(number(columns.lease));
        let key = name.as_str().into();
        latest.insert(name, Some(KeyValue { key, value, create_revision, mod_revision: at, version, lease }));
        Ok(())
    })?;
    Ok(Contents { kvs: latest.into_values().flatten().collect(), revision })
}

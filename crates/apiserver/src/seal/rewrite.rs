//! Whole stores, while no server has them open: what is sealed in them, and writing it with the keys of today.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use store::{Compare, KeyValue, Op, Range, Store, StoreError, Txn};

use super::foreign::Foreign;
use super::rules::Seals;
use super::store::{Sealed, open_value};
use super::{SEALED, SealError};
use crate::watch_cache::ROOT;
use registry::{Registry, RuntimeConfig, Serving, Table};

/// How many objects are read at once.
const PAGE: usize = 500;

/// Objects after a key, and after which to go on if there are more.
async fn page(store: &dyn Store, after: Option<Arc<str>>) -> Result<(Vec<KeyValue>, Option<Arc<str>>), StoreError> {
    let mut range = Range::prefix(ROOT).limit(PAGE);
    range.start_after = after;
    let page = store.range(range).await?;
    let next = page.kvs.last().filter(|_| page.more).map(|last| last.key.clone());
    Ok((page.kvs, next))
}

/// The key of an object that is sealed, if there is one.
pub async fn first_sealed(store: &dyn Store) -> Result<Option<Arc<str>>, StoreError> {
    let mut after = None;
    loop {
        let (kvs, next) = page(store, after).await?;
        if let Some(kv) = kvs.iter().find(|kv| kv.value.starts_with(SEALED)) {
            return Ok(Some(kv.key.clone()));
        }
        if next.is_none() {
            return Ok(None);
        }
        after = next;
    }
}

/// How a configuration seals every built-in resource; without one nothing is sealed.
async fn seals(table: &Table, file: Option<&Path>) -> anyhow::Result<Seals> {
    let rows = table.rows().iter().filter(|row| row.serving == Serving::Stored);
    let resources = rows.map(|row| (&*row.store_prefix, &*row.plural, &*row.group));
    Seals::new(resources, file.map(Path::to_owned), false).await
}

/// Objects of another cluster that could not be read: the key, and why.
pub type Unreadable = Vec<(Arc<str>, String)>;

/// Replaces the values of another cluster's objects by what this server would have stored, unsealed. `root` is what their
/// keys began with there, where these begin with `/registry/`: sealed values are bound to their place. Ends at the first
/// that cannot be unsealed. What was unsealed and is of no kind that is known here stays as it is, and is returned.
pub async fn open_others(kvs: &mut [KeyValue], root: &str, file: Option<&Path>) -> anyhow::Result<Unreadable> {
    let table = Registry::new(&RuntimeConfig::default()).table();
    let (seals, foreign) = (seals(&table, file).await?, Foreign::new(&table));
    let rules = seals.rules();
    let mut unreadable = Vec::new();
    for kv in kvs {
        let place = [root, kv.key.strip_prefix(ROOT).unwrap_or_default()].concat();
        match open_value(&rules, &foreign, &kv.key, &place, &kv.value).await {
            Ok(opened) => kv.value = opened.plain,
            Err(SealError::Foreign(error)) => {
                unreadable.push((kv.key.clone(), error.to_string()));
                if let Some(providers) = rules.of(&kv.key) {
                    kv.value = providers.open(&place, &kv.value).await.with_context(|| kv.key.to_string())?.plain;
                }
            }
            Err(error) => return Err(error).with_context(|| kv.key.to_string()),
        }
    }
    Ok(unreadable)
}

/// Seals values as a configuration says. Returns how many are sealed.
pub async fn seal_values(kvs: &mut [KeyValue], file: &Path) -> anyhow::Result<usize> {
    let table = Registry::new(&RuntimeConfig::default()).table();
    let rules = seals(&table, Some(file)).await?.rules();
    let mut count = 0;
    for kv in kvs {
        if let Some(sealed) = rules.seal(&kv.key, &kv.key, &kv.value).with_context(|| kv.key.to_string())? {
            kv.value = sealed;
            count += 1;
        }
    }
    Ok(count)
}

/// Writes every object that a configuration seals, and that is not sealed as a write would do it, once more. Returns how
/// many are sealed by then. Ends at the first that cannot be opened, which it names.
pub async fn rewrite_store(store: Arc<dyn Store>, file: &Path) -> anyhow::Result<usize> {
    let table = Registry::new(&RuntimeConfig::default()).table();
    let seals = seals(&table, Some(file)).await?;
    let rules = seals.rules();
    let sealed = Sealed::new(store.clone(), seals, Foreign::new(&table));
    let (mut count, mut after) = (0, None);
    loop {
        let (kvs, next) = page(&*store, after).await?;
        for kv in &kvs {
            let Some(providers) = rules.of(&kv.key) else { continue };
            let opened = providers.open(&kv.key, &kv.value).await.with_context(|| kv.key.to_string())?;
            count += 1;
            if opened.stale {
                let put = Op::Put { key: kv.key.clone(), value: opened.plain, lease: kv.lease };
                let txn = Txn::new().when(Compare::mod_revision(kv.key.clone(), kv.mod_revision)).then(put);
                let done = sealed.txn(txn).await.with_context(|| kv.key.to_string())?;
                anyhow::ensure!(done.succeeded, "{} was changed by somebody else", kv.key);
            }
        }
        if next.is_none() {
            return Ok(count);
        }
        after = next;
    }
}

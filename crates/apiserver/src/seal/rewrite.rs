//! Whole stores, while no server has them open: what is sealed in them, and writing it with the keys of today.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use store::{Compare, KeyValue, Op, Range, Store, StoreError, Txn};

use super::SEALED;
use super::foreign::Foreign;
use super::rules::Seals;
use super::store::Sealed;
use registry::{Registry, RuntimeConfig, Serving};

/// How many objects are read at once.
const PAGE: usize = 500;

/// Objects after a key, and after which to go on if there are more.
async fn page(store: &dyn Store, after: Option<Arc<str>>) -> Result<(Vec<KeyValue>, Option<Arc<str>>), StoreError> {
    let mut range = Range::prefix(crate::watch_cache::ROOT).limit(PAGE);
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

/// Writes every object that a configuration seals, and that is not sealed as a write would do it, once more. Returns how
/// many are sealed by then. Ends at the first that cannot be opened, which it names.
pub async fn rewrite_store(store: Arc<dyn Store>, file: &Path) -> anyhow::Result<usize> {
    let registry = Registry::new(&RuntimeConfig::default());
    let table = registry.table();
    let rows = table.rows().iter().filter(|row| row.serving == Serving::Stored);
    let resources = rows.map(|row| (&*row.store_prefix, &*row.plural, &*row.group));
    let seals = Seals::new(resources, Some(file.to_owned()), false).await?;
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

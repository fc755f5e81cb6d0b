//! Writing a whole store with the keys of today, while no server has it open.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use store::{Compare, Op, Range, Store, Txn};

use super::foreign::Foreign;
use super::rules::Seals;
use super::store::Sealed;
use registry::{Registry, RuntimeConfig, Serving};

/// How many objects are read at once.
const PAGE: usize = 500;

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
    let (mut count, mut after) = (0, None::<Arc<str>>);
    loop {
        let mut range = Range::prefix(crate::watch_cache::ROOT).limit(PAGE);
        range.start_after = after.take();
        let page = store.range(range).await?;
        for kv in &page.kvs {
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
        match page.kvs.last().filter(|_| page.more) {
            Some(last) => after = Some(last.key.clone()),
            None => return Ok(count),
        }
    }
}

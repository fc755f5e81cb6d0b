//! Reads every stored object once, when the server starts or a kind is defined: one that cannot be read is known, and
//! the server not ready, before a decision needs it. What is written later was encoded by a server like this one, or
//! is noticed when it is read.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use registry::{Resource, Serving};

use crate::state::State;
use crate::verbs::decode_entry;

/// Checks the objects of all built-in kinds; the server is not ready before.
pub(crate) async fn run(state: Arc<State>) {
    let table = state.registry.table();
    let is_stored = |row: &&Arc<Resource>| !row.is_custom && row.serving == Serving::Stored && row.conversion.is_none();
    let rows: Vec<Arc<Resource>> = table.rows().iter().filter(is_stored).cloned().collect();
    if check(&state, &rows).await {
        state.caches.checked.store(true, Ordering::Release);
    }
}

/// Checks the objects of some rows. Returns whether that came to its end.
pub(crate) async fn check(state: &Arc<State>, rows: &[Arc<Resource>]) -> bool {
    let (state, rows) = (state.clone(), rows.to_vec());
    let checking = tokio::task::spawn_blocking(move || {
        let mut seen = std::collections::HashSet::new();
        for row in rows.iter().filter(|row| seen.insert(row.store_prefix.clone())) {
            let Some(cache) = state.caches.get(&row.store_prefix) else { continue };
            for entry in cache.snapshot().objects.values() {
                // Whoever cannot be read is noted on the way.
                drop(decode_entry(row, entry));
            }
        }
    });
    match checking.await {
        Ok(()) => true,
        Err(error) => {
            tracing::error!(%error, "reading what is stored");
            false
        }
    }
}

//! One copy of what several hold: found again by a hash while anybody holds it.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What others hold, found by a hash; forgotten some time after they let go of it.
pub struct Table<K, T: ?Sized> {
    entries: HashMap<K, Weak<T>>,
    /// How many entries there may be before those are looked for that nobody holds any more.
    limit: usize,
}

impl<K, T: ?Sized> Default for Table<K, T> {
    fn default() -> Self {
        Self { entries: HashMap::new(), limit: Self::SMALL }
    }
}

impl<K, T: ?Sized> Table<K, T> {
    const SMALL: usize = 256;
}

impl<K: Eq + Hash, T: ?Sized> Table<K, T> {
    pub fn find(&self, key: &K) -> Option<Arc<T>> {
        self.entries.get(key)?.upgrade()
    }

    /// The value under this key if it is the same (two may have decoded it at once); else `new`, which is held from now on.
    pub fn keep(&mut self, key: K, new: Arc<T>, is_same: impl Fn(&T) -> bool) -> Arc<T> {
        if let Some(known) = self.find(&key).filter(|known| is_same(known)) {
            return known;
        }
        if self.entries.len() >= self.limit {
            self.entries.retain(|_, held| held.strong_count() > 0);
            // An entry whose value is gone still keeps the allocation of that value: at most one in nine may be such an entry.
            self.limit = (self.entries.len() / 8 * 9).max(Self::SMALL);
        }
        self.entries.insert(key, Arc::downgrade(&new));
        new
    }
}

/// A table stays whole whoever panics beside it.
pub fn lock<T>(table: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_holds_is_forgotten() {
        let mut table = Table::default();
        let held: Vec<_> = (0..10).map(|at| table.keep(at, Arc::new(at), |_| true)).collect();
        for at in 10..10_000 {
            table.keep(at, Arc::new(at), |_| true);
        }
        assert!(table.entries.len() <= Table::<u64, u64>::SMALL);
        assert!(held.iter().all(|held| table.find(held).is_some_and(|found| Arc::ptr_eq(&found, held))));
        assert!(Arc::ptr_eq(&table.keep(3, Arc::new(3), |_| true), &held[3]));
        assert!(!Arc::ptr_eq(&table.keep(3, Arc::new(3), |_| false), &held[3]));
    }
}

//! Texts of merge rules that come at run time, from the schemas of custom kinds.
//!
//! Rules are small values that are copied freely, so the texts in them live as long as the program. Each is kept once: no more
//! than there are names of keys in the schemas that a cluster has ever had.

use std::collections::HashSet;
use std::sync::{LazyLock, Mutex, PoisonError};

static TEXTS: LazyLock<Mutex<HashSet<&'static str>>> = LazyLock::new(Mutex::default);
static KEYS: LazyLock<Mutex<HashSet<&'static [&'static str]>>> = LazyLock::new(Mutex::default);

/// A text that stays.
pub fn interned(text: &str) -> &'static str {
    let mut known = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(text) = known.get(text) {
        return text;
    }
    let kept: &'static str = Box::leak(text.into());
    known.insert(kept);
    kept
}

/// A list of keys that stays.
pub fn interned_keys<'a>(keys: impl Iterator<Item = &'a str>) -> &'static [&'static str] {
    let keys: Vec<&'static str> = keys.map(interned).collect();
    let mut known = KEYS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(keys) = known.get(keys.as_slice()) {
        return keys;
    }
    let kept: &'static [&'static str] = keys.leak();
    known.insert(kept);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_kept_once() {
        assert!(std::ptr::eq(interned("a"), interned(&String::from("a"))));
        let keys = || interned_keys(["x", "y"].into_iter());
        assert!(std::ptr::eq(keys(), keys()));
    }
}

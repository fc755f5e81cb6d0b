//! A bounded map whose entries die of age: what webhooks said a moment ago.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// More entries than this and old ones go, whether they are due or not: a flood of different questions must not fill memory.
const CAPACITY: usize = 8192;

/// What is asked is not remembered if it is longer than this: who asks chooses how long (upstream's
/// `maxControlledAttrCacheSize`).
const MAX_QUESTION: usize = 10_000;
/// Nor is an answer whose texts are longer: a webhook chooses how much it says.
const MAX_ANSWER: usize = 10_000;

pub(crate) struct Expiring<K, V>(Mutex<HashMap<K, (V, Instant)>>);

impl<K: Hash + Eq + Clone, V: Clone> Expiring<K, V> {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(HashMap::new()))
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let entries = self.0.lock();
        entries.get(key).filter(|(_, until)| Instant::now() < *until).map(|(value, _)| value.clone())
    }

    /// Keeps a value for `life`; zero is not at all.
    pub(crate) fn put(&self, key: K, value: V, life: Duration) {
        if life.is_zero() {
            return;
        }
        let now = Instant::now();
        let mut entries = self.0.lock();
        if entries.len() >= CAPACITY {
            entries.retain(|_, (_, until)| now < *until);
        }
        if entries.len() >= CAPACITY {
            let some: Vec<K> = entries.keys().take(CAPACITY / 8).cloned().collect();
            some.iter().for_each(|key| drop(entries.remove(key)));
        }
        entries.insert(key, (value, now + life));
    }
}

impl<V: Clone> Expiring<String, V> {
    /// Keeps what was answered to a question for `life`, unless the question is too long, or `length`, that of the answer's texts.
    pub(crate) fn remember(&self, question: String, answer: V, length: usize, life: Duration) {
        if question.len() <= MAX_QUESTION && length <= MAX_ANSWER {
            self.put(question, answer, life);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_die_and_never_fill_memory() {
        let map = Expiring::new();
        map.put(0, "old", Duration::ZERO);
        map.put(1, "young", Duration::from_secs(60));
        assert_eq!((map.get(&0), map.get(&1)), (None, Some("young")));
        for key in 2..3 * CAPACITY {
            map.put(key, "x", Duration::from_secs(60));
        }
        assert!(map.0.lock().len() <= CAPACITY);
        assert_eq!(map.get(&(3 * CAPACITY - 1)), Some("x"));
    }

    #[test]
    fn security_long_questions_and_answers_are_not_remembered() {
        for (question, answer, is_remembered) in [
            (MAX_QUESTION, MAX_ANSWER, true),
            (MAX_QUESTION + 1, MAX_ANSWER, false),
            (MAX_QUESTION, MAX_ANSWER + 1, false),
        ] {
            let map = Expiring::new();
            let (question, answer) = ("x".repeat(question), "y".repeat(answer));
            map.remember(question.clone(), answer.clone(), answer.len(), Duration::from_secs(60));
            assert_eq!(map.get(&question).is_some(), is_remembered);
        }
    }
}

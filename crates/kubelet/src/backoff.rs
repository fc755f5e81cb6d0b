//! Back-off per key: the delay doubles up to a limit, and is forgotten after twice that long of peace. Restarts and image
//! pulls begin with 10 s and end with 5 min, as upstream.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// How often leftovers of pods nobody knows are looked for, after a first look at start: while there are some or a pod has just
/// gone, and when there were none, or none that is due.
pub(crate) const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const IDLE_HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(30);

pub(crate) struct Backoff {
    initial: Duration,
    max: Duration,
    entries: Mutex<HashMap<String, Entry>>,
}

#[derive(Clone, Copy)]
struct Entry {
    delay: Duration,
    since: Instant,
}

impl Backoff {
    pub(crate) fn new(initial: Duration, max: Duration) -> Self {
        Backoff { initial, max, entries: Mutex::new(HashMap::new()) }
    }

    /// For what cannot be removed: leftovers of pods, and volumes that nobody uses.
    pub(crate) fn of_removals() -> Self {
        Self::new(Duration::from_secs(2), Duration::from_secs(120))
    }

    /// How much longer to wait after something that happened `ago`, and the whole delay.
    pub(crate) fn remaining(&self, key: &str, ago: Duration) -> Option<(Duration, Duration)> {
        let entries = self.entries.lock();
        let entry = entries.get(key)?;
        if entry.since.elapsed() > 2 * self.max {
            return None;
        }
        (ago < entry.delay).then(|| (entry.delay - ago, entry.delay))
    }

    /// How much longer to wait after the last `next`.
    pub(crate) fn remaining_since_update(&self, key: &str) -> Option<Duration> {
        let since = self.entries.lock().get(key)?.since;
        self.remaining(key, since.elapsed()).map(|(left, _)| left)
    }

    /// When housekeeping is to look again at what is tried later and later.
    pub(crate) fn next_look(&self, key: &str) -> Duration {
        let left = self.remaining_since_update(key).unwrap_or_default();
        left.clamp(HOUSEKEEPING_INTERVAL, IDLE_HOUSEKEEPING_INTERVAL)
    }

    /// Notes another attempt: the next wait is twice as long.
    pub(crate) fn next(&self, key: &str) {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        entries.retain(|_, entry| entry.since.elapsed() <= 2 * self.max);
        let delay = entries.get(key).map_or(self.initial, |entry| (entry.delay * 2).min(self.max));
        entries.insert(key.to_string(), Entry { delay, since: now });
    }

    pub(crate) fn forget(&self, key: &str) {
        self.entries.lock().remove(key);
    }

    pub(crate) fn forget_prefix(&self, prefix: &str) {
        self.entries.lock().retain(|key, _| !key.starts_with(prefix));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn doubles_to_the_cap_and_forgets() {
        let backoff = Backoff::new(Duration::from_secs(10), Duration::from_secs(300));
        assert_eq!(backoff.remaining("a", Duration::ZERO), None);
        for expected in [10, 20, 40, 80, 160, 300, 300] {
            backoff.next("a");
            let (left, whole) = backoff.remaining("a", Duration::ZERO).unwrap();
            assert_eq!((left.as_secs(), whole.as_secs()), (expected, expected));
        }
        assert_eq!(backoff.remaining("a", Duration::from_secs(301)), None);
        tokio::time::advance(Duration::from_secs(601)).await;
        assert_eq!(backoff.remaining("a", Duration::ZERO), None);
        backoff.next("a");
        assert_eq!(backoff.remaining("a", Duration::ZERO).unwrap().1.as_secs(), 10);
    }
}

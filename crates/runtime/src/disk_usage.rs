//! What is on the disk, remembered for a while: to find out takes a walk through all files, and a kubelet asks every ten
//! seconds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use files::Usage;
use parking_lot::Mutex;

use crate::record;

/// Questions that come together, for containers and for their pods, share one walk.
const SHORTEST: Duration = Duration::from_secs(2);
/// As long as cAdvisor waits between two walks at most.
const LONGEST: Duration = Duration::from_secs(60);
/// A walk takes no more than this part of the time.
const PART: u32 = 100;

/// For how long the result of a walk is good.
#[derive(Clone, Copy)]
pub(crate) enum Keep {
    /// The longer it took, the longer.
    ByCost,
    For(Duration),
}

impl Keep {
    fn after(self, cost: Duration) -> Duration {
        match self {
            Keep::ByCost => cost.saturating_mul(PART).clamp(SHORTEST, LONGEST),
            Keep::For(time) => time,
        }
    }
}

struct Walk {
    ended: Instant,
    good_for: Duration,
    found: Found,
}

/// What a walk found, and when, in nanoseconds since 1970.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    pub(crate) usage: Usage,
    pub(crate) at: i64,
}

/// The last walks, by the id of a container or another name.
#[derive(Default)]
pub(crate) struct Walks(Mutex<HashMap<String, Walk>>);

impl Walks {
    /// What the last walk found, or a new one if that is too long ago.
    pub(crate) fn usage(&self, of: &str, keep: Keep, walk: impl FnOnce() -> Usage) -> Found {
        let is_good = |walk: &Walk| walk.ended.elapsed() < walk.good_for;
        if let Some(last) = self.0.lock().get(of).filter(|last| is_good(last)) {
            return last.found;
        }
        let began = Instant::now();
        let found = Found { usage: walk(), at: record::now() };
        let ended = Instant::now();
        let good_for = keep.after(ended.duration_since(began));
        let mut walks = self.0.lock();
        // Those of containers that are gone must not gather.
        walks.retain(|_, walk| is_good(walk));
        walks.insert(of.to_owned(), Walk { ended, good_for, found });
        found
    }

    /// Something has changed.
    pub(crate) fn forget(&self, of: &str) {
        self.0.lock().remove(of);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_walks_are_made_less_often() {
        for (cost, expected) in [(0, 2_000), (20, 2_000), (100, 10_000), (5_000, 60_000)] {
            let kept = Keep::ByCost.after(Duration::from_millis(cost));
            assert_eq!(kept, Duration::from_millis(expected), "{cost} ms");
        }
        assert_eq!(Keep::For(LONGEST).after(Duration::from_secs(500)), LONGEST);
    }

    #[test]
    fn questions_that_come_together_share_a_walk() {
        let (walks, of) = (Walks::default(), |bytes| Usage { bytes, inodes: 1 });
        let (kept, at_once) = (Keep::For(LONGEST), Keep::For(Duration::ZERO));
        for (what, keep, bytes, expected) in [
            ("a", kept, 1, 1),
            ("b", at_once, 2, 2),
            ("a", kept, 3, 1),
            // Too long ago.
            ("b", kept, 4, 4),
            ("b", kept, 5, 4),
        ] {
            assert_eq!(walks.usage(what, keep, || of(bytes)).usage.bytes, expected, "{what} {bytes}");
        }
        walks.forget("a");
        assert_eq!(walks.usage("a", kept, || of(6)).usage.bytes, 6);
        for (what, left) in [("gone", 3), ("another", 3)] {
            walks.usage(what, at_once, || of(7));
            assert_eq!(walks.0.lock().len(), left, "{what}");
        }
    }
}

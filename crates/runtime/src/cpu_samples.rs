//! CPU time between two questions.

use std::collections::HashMap;

use parking_lot::Mutex;

/// Cumulated CPU time at the last question per cgroup: the rate since then is what `usage_nano_cores` means.
#[derive(Default)]
pub(crate) struct Samples(Mutex<HashMap<String, (i64, u64)>>);

impl Samples {
    pub(crate) fn rate(&self, cgroup: &str, now: i64, total: u64) -> Option<u64> {
        let old = self.0.lock().insert(cgroup.to_string(), (now, total))?;
        let elapsed = u64::try_from(now - old.0).ok().filter(|e| *e > 0)?;
        Some((u128::from(total.saturating_sub(old.1)) * 1_000_000_000 / u128::from(elapsed)) as u64)
    }

    pub(crate) fn forget(&self, cgroup: &str) {
        self.0.lock().remove(cgroup);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_samples() {
        let samples = Samples::default();
        assert_eq!(samples.rate("x", 1_000_000_000, 5), None);
        assert_eq!(samples.rate("x", 3_000_000_000, 5 + 1_000_000_000), Some(500_000_000));
    }
}

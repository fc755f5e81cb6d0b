//! One exponential backoff with jitter for every retry in the system.

use std::time::Duration;

/// Delays that double from `initial` to `cap`, each stretched by up to `jitter` of itself.
#[derive(Debug, Clone)]
pub struct Backoff {
    initial: Duration,
    cap: Duration,
    jitter: f64,
    failures: u32,
}

impl Backoff {
    pub fn new(initial: Duration, cap: Duration) -> Self {
        Self { initial, cap, jitter: 0.0, failures: 0 }
    }

    /// Spreads delays so that many clients do not return at the same instant.
    pub fn with_jitter(mut self, jitter: f64) -> Self {
        self.jitter = jitter;
        self
    }

    /// The next delay; each call counts as one more failure.
    pub fn next_delay(&mut self) -> Duration {
        let delay = exponential(self.initial, self.cap, self.failures);
        self.failures = self.failures.saturating_add(1);
        if self.jitter > 0.0 { delay.mul_f64(1.0 + rand::random::<f64>() * self.jitter) } else { delay }
    }

    /// Forgets the failures: the next delay is the initial one again.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// `initial * 2^failures`, at most `cap`.
pub fn exponential(initial: Duration, cap: Duration, failures: u32) -> Duration {
    1u32.checked_shl(failures).and_then(|factor| initial.checked_mul(factor)).map_or(cap, |delay| delay.min(cap))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap() {
        let (initial, cap) = (Duration::from_millis(5), Duration::from_secs(1000));
        for (failures, expected_ms) in
            [(0, 5), (1, 10), (2, 20), (10, 5120), (17, 655_360), (18, 1_000_000), (40, 1_000_000)]
        {
            assert_eq!(exponential(initial, cap, failures), Duration::from_millis(expected_ms), "{failures} failures");
        }
    }

    #[test]
    fn reset_starts_over_and_jitter_only_stretches() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(8)).with_jitter(0.5);
        for base in [1, 2, 4, 8, 8] {
            let delay = backoff.next_delay();
            assert!(delay >= Duration::from_secs(base) && delay <= Duration::from_millis(base * 1500), "{delay:?}");
        }
        backoff.reset();
        assert!(backoff.next_delay() <= Duration::from_millis(1500));
    }
}

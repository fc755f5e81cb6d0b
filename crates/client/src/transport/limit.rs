//! A limit on how many requests a client sends per second, for those who ask for one. A polite fleet needs none: the server
//! has its own limits, and says so. The kubelet limits its pulls of images in the same way.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// `qps` requests per second, with up to `burst` at once after a quiet time.
pub struct Limit {
    interval: Duration,
    burst: u32,
    /// When the next request would be due if there were no bursts.
    due: Mutex<Instant>,
}

impl Limit {
    /// `None` for a rate that limits nothing.
    pub fn new(qps: f64, burst: u32) -> Option<Self> {
        let interval = (qps > 0.0).then(|| Duration::try_from_secs_f64(1.0 / qps).ok()).flatten()?;
        Some(Self { interval, burst: burst.max(1), due: Mutex::new(Instant::now()) })
    }

    /// Waits for this request's turn.
    pub(super) async fn turn(&self) {
        let at = {
            let mut due = self.due.lock();
            *due = (*due).max(Instant::now()) + self.interval;
            *due
        };
        tokio::time::sleep_until(at.checked_sub(self.interval * self.burst).unwrap_or(at)).await;
    }

    /// Whether it is this request's turn now. One that is refused takes nothing from those after it.
    pub fn try_turn(&self) -> bool {
        let now = Instant::now();
        let mut due = self.due.lock();
        let next = (*due).max(now) + self.interval;
        let is_due = next.checked_sub(self.interval * self.burst).is_none_or(|at| at <= now);
        if is_due {
            *due = next;
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_and_then_the_rate() {
        let limit = Limit::new(10.0, 3).unwrap();
        let start = Instant::now();
        let mut times = Vec::new();
        for _ in 0..5 {
            limit.turn().await;
            times.push(start.elapsed().as_millis());
        }
        assert_eq!(times, [0, 0, 0, 100, 200]);
        tokio::time::advance(Duration::from_secs(10)).await;
        let later = Instant::now();
        for _ in 0..3 {
            limit.turn().await;
        }
        assert_eq!(later.elapsed(), Duration::ZERO, "quiet time is saved up, but only so much");
        assert!(Limit::new(0.0, 5).is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_wait_is_refused() {
        let limit = Limit::new(10.0, 2).unwrap();
        assert_eq!([limit.try_turn(), limit.try_turn(), limit.try_turn()], [true, true, false]);
        tokio::time::advance(Duration::from_millis(100)).await;
        assert_eq!([limit.try_turn(), limit.try_turn()], [true, false]);
    }
}

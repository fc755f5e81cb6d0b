//! What time it is. Components ask at their edge and hand the answer to whatever decides, so that a decision is a function of
//! what it is given, and a whole component can run in another time than the machine's.

use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;

/// Where a component gets the time from.
#[derive(Clone)]
pub struct Clock(Source);

#[derive(Clone)]
enum Source {
    Machine,
    Given(Arc<dyn Fn() -> Timestamp + Send + Sync>),
}

impl Clock {
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Machine => Timestamp::now(),
            Source::Given(now) => now(),
        }
    }

    /// Begins at `start` and goes with the clock of the async runtime: where that is paused and moved on, so is this.
    pub fn of_runtime(start: Timestamp) -> Self {
        let began = tokio::time::Instant::now();
        Clock(Source::Given(Arc::new(move || start.saturating_add(began.elapsed()).unwrap_or(Timestamp::MAX))))
    }
}

impl Default for Clock {
    /// The machine's.
    fn default() -> Self {
        Clock(Source::Machine)
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match &self.0 {
            Source::Machine => "Clock::Machine",
            Source::Given(_) => "Clock::Given",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_clock_can_go_with_the_runtime() {
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::of_runtime(start);
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert_eq!(clock.now().duration_since(start).as_secs(), 3600);
    }
}

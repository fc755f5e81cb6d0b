//! When a span began, by two clocks.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Nanoseconds since 1970. The clock that all processes of a machine share, so that their spans line up.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// The wall's clock, read once, says where in the day a span lies; all else is timed by the one that never jumps.
#[derive(Clone, Copy)]
pub(crate) struct Clock {
    /// Nanoseconds since 1970.
    start: u64,
    began: Instant,
    /// The span began this much before `began`.
    earlier: u64,
}

impl Clock {
    pub(crate) fn begin() -> Self {
        Self::at(now())
    }

    /// It is `start` now.
    pub(crate) fn at(start: u64) -> Self {
        Self { start, began: Instant::now(), earlier: 0 }
    }

    /// The span began before anybody timed it.
    pub(crate) fn since(self, start: u64) -> Self {
        let earlier = self.earlier + self.start.saturating_sub(start);
        Self { start: start.min(self.start), earlier, ..self }
    }

    pub(crate) fn start(self) -> u64 {
        self.start
    }

    /// Nanoseconds from the start to when somebody began to time the span.
    pub(crate) fn first(self) -> u64 {
        self.earlier
    }

    /// Nanoseconds from the start to `at`.
    pub(crate) fn offset(self, at: Instant) -> u64 {
        self.earlier + at.saturating_duration_since(self.began).as_nanos() as u64
    }

    /// Nanoseconds from 1970 to `at`.
    pub(crate) fn wall(self, at: Instant) -> u64 {
        self.start + self.offset(at)
    }

    pub(crate) fn elapsed(self) -> u64 {
        self.offset(Instant::now())
    }
}

//! One line per phase while people wait.
//!
//! The process that runs the cluster writes these lines to its standard output; `cox up` passes them on until the
//! last one. Afterwards nobody may be listening any more, and that is fine.

use std::io::Write;
use std::time::{Duration, Instant};

/// Ends the report: what follows it, if anything, is not progress.
pub(crate) const READY: &str = "ready";

pub(crate) struct Progress {
    started: Instant,
    phase: Instant,
}

impl Default for Progress {
    fn default() -> Progress {
        let now = Instant::now();
        Progress { started: now, phase: now }
    }
}

impl Progress {
    /// Reports a phase as done; its time is what passed since the phase before.
    pub(crate) fn done(&mut self, phase: &str, detail: &str) {
        let now = Instant::now();
        say(&format!(" ✓ {phase:<14} {:>8}  {detail}", human(now - self.phase)));
        self.phase = now;
    }

    pub(crate) fn ready(&self) {
        say(&format!(" ✓ {:<14} {:>8}", "ready", human(self.started.elapsed())));
        say(READY);
    }
}

/// Says what is not as it should be, and keeps nobody from going on.
pub(crate) fn note(text: &str) {
    say(&format!(" ! {text}"));
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A closed pipe means that `cox up` has gone: the cluster runs on.
    let _gone = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn human(time: Duration) -> String {
    match time.as_millis() {
        0..1000 => format!("{} ms", time.as_millis()),
        _ => format!("{:.1} s", time.as_secs_f64()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short() {
        for (millis, expected) in [(0, "0 ms"), (999, "999 ms"), (1000, "1.0 s"), (61_250, "61.2 s")] {
            assert_eq!(human(Duration::from_millis(millis)), expected);
        }
    }
}

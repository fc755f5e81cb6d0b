//! Counts outcomes against thresholds. Pure.

use crate::plan::Verdict;

pub(crate) struct Counter {
    success_threshold: u32,
    failure_threshold: u32,
    last: Option<bool>,
    run: u32,
}

impl Counter {
    pub(crate) fn new(success_threshold: i32, failure_threshold: i32) -> Self {
        Counter {
            success_threshold: success_threshold.max(1) as u32,
            failure_threshold: failure_threshold.max(1) as u32,
            last: None,
            run: 0,
        }
    }

    /// Adds one outcome; a verdict once enough equal ones came in a row.
    pub(crate) fn count(&mut self, is_success: bool) -> Option<Verdict> {
        if self.last == Some(is_success) {
            self.run = self.run.saturating_add(1);
        } else {
            self.last = Some(is_success);
            self.run = 1;
        }
        let threshold = if is_success { self.success_threshold } else { self.failure_threshold };
        (self.run >= threshold).then_some(if is_success { Verdict::Success } else { Verdict::Failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds() {
        for (success, failure, outcomes, expected) in [
            (1, 3, "+", "S"),
            (1, 3, "---", "..F"),
            (1, 3, "--+--", "..S.."),
            (2, 1, "+-++", ".F.S"),
            (1, 1, "+-+", "SFS"),
        ] {
            let mut counter = Counter::new(success, failure);
            let told: String = outcomes
                .chars()
                .map(|c| match counter.count(c == '+') {
                    Some(Verdict::Success) => 'S',
                    Some(Verdict::Failure) => 'F',
                    None => '.',
                })
                .collect();
            assert_eq!(told, expected, "{outcomes}");
        }
    }
}

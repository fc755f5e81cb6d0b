//! Times as the API writes them.

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

static TO_THE_SECOND: DateTimePrinter = DateTimePrinter::new().precision(Some(0));

/// A `metav1.Time`: in UTC, to the second.
pub fn rfc3339(time: Timestamp) -> String {
    TO_THE_SECOND.timestamp_to_string(&time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_left_out() {
        let time: Timestamp = "2026-01-02T03:04:05.678+01:00".parse().unwrap();
        assert_eq!(rfc3339(time), "2026-01-02T02:04:05Z");
        let time: Timestamp = "1969-12-31T23:59:58.9Z".parse().unwrap();
        assert_eq!(rfc3339(time), "1969-12-31T23:59:58Z");
    }
}

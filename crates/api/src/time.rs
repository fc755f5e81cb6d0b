//! Times as the API writes them.

use jiff::Timestamp;

/// A `metav1.Time`: in UTC, to the second.
pub fn rfc3339(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_left_out() {
        let time: Timestamp = "2026-01-02T03:04:05.678+01:00".parse().unwrap();
        assert_eq!(rfc3339(time), "2026-01-02T02:04:05Z");
    }
}

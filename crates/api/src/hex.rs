//! Bytes as hexadecimal digits.

use std::fmt::Write;

/// Two lower-case digits a byte.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().fold(String::new(), |mut text, byte| {
        // Writing to a text does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_two_digits() {
        assert_eq!(encode([0u8, 10, 255]), "000aff");
        assert_eq!(encode(""), "");
    }
}

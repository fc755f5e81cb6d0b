//! What the server gives objects by itself: times, unique ids and generated names.

use jiff::Timestamp;

/// Generated names get this many random characters and are cut so that they fit into a label.
const SUFFIX_LENGTH: usize = 5;
const MAX_NAME: usize = 63;

/// Now, in whole seconds: the precision of Kubernetes timestamps.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}

/// A name that nothing else has. Made of what this thread has at hand: the system would have to be asked for each one.
pub(crate) fn unique_id() -> String {
    uuid::Builder::from_random_bytes(rand::random()).into_uuid().to_string()
}

/// A prefix and five characters without vowels, as upstream's `SimpleNameGenerator`.
pub(crate) fn generate_name(prefix: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut end = prefix.len().min(MAX_NAME - SUFFIX_LENGTH);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let suffix = (0..SUFFIX_LENGTH).map(|_| ALPHABET[rand::random_range(0..ALPHABET.len())] as char);
    prefix[..end].chars().chain(suffix).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_names_fit_into_a_label() {
        for prefix in ["web-", &"x".repeat(80)] {
            let name = generate_name(prefix);
            assert!(name.len() <= MAX_NAME, "{name}");
            assert!(name.starts_with(&prefix[..4]));
        }
    }
}

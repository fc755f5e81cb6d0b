//! PEM files: labelled base64 blocks.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// The blocks of a file as label and content; text around them is skipped.
pub(crate) fn blocks(text: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    let mut current: Option<(String, String)> = None;
    for line in text.lines().map(str::trim) {
        if let Some(label) = line.strip_prefix("-----BEGIN ").and_then(|rest| rest.strip_suffix("-----")) {
            current = Some((label.to_owned(), String::new()));
        } else if line.starts_with("-----END ") {
            if let Some((label, body)) = current.take()
                && let Ok(bytes) = STANDARD.decode(body)
            {
                found.push((label, bytes));
            }
        } else if let Some((_, body)) = &mut current {
            // Header lines of old encrypted keys hold a colon; base64 never does.
            if !line.contains(':') {
                body.push_str(line);
            }
        }
    }
    found
}

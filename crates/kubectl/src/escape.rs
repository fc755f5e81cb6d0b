//! Text in URLs, escaped as Go escapes it.

/// Go's `url.QueryEscape`.
pub(crate) fn query_escape(text: &str) -> String {
    escape(text, true)
}

/// Go's `url.PathEscape`, for names in paths.
pub(crate) fn path_escape(text: &str) -> String {
    escape(text, false)
}

fn escape(text: &str, query: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for b in text.bytes() {
        match b {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(b)),
            b'$' | b'&' | b'+' | b'=' | b':' | b'@' if !query => out.push(char::from(b)),
            b' ' if query => out.push('+'),
            _ => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

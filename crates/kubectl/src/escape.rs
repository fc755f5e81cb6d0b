//! Text in URLs, escaped as Go escapes it.

use api::percent::{encode_except, is_unreserved};

/// Go's `url.QueryEscape`.
pub(crate) fn query_escape(text: &str) -> String {
    encode_except(text, |byte| is_unreserved(byte) || byte == b' ').replace(' ', "+")
}

/// Go's `url.PathEscape`, for names in paths.
pub(crate) fn path_escape(text: &str) -> String {
    encode_except(text, |byte| is_unreserved(byte) || b"$&+=:@".contains(&byte))
}

//! JSON as Go's encoding/json writes it: `<`, `>`, `&` and the line separators are escaped, indentation is four spaces.

use serde::Serialize;
use serde_json::ser::{CompactFormatter, Formatter, PrettyFormatter};

pub(crate) fn pretty(value: &impl Serialize) -> String {
    render(value, PrettyFormatter::with_indent(b"    ")) + "\n"
}

pub(crate) fn compact(value: &impl Serialize) -> String {
    render(value, CompactFormatter)
}

fn render<F: Formatter>(value: &impl Serialize, formatter: F) -> String {
    let mut out = Vec::with_capacity(1024);
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    // Writing a Value to memory cannot fail: keys are strings and the sink grows.
    if value.serialize(&mut serializer).is_err() {
        return String::new();
    }
    let text = String::from_utf8_lossy(&out).into_owned();
    if !text.contains(['<', '>', '&', '\u{2028}', '\u{2029}']) {
        return text;
    }
    // These characters only occur inside strings.
    let mut escaped = String::with_capacity(text.len() + 64);
    for c in text.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Indented by two blanks, for what upstream does not print through its printers.
pub(crate) fn two_spaces(value: &impl Serialize) -> String {
    let text = pretty(value);
    text.lines()
        .map(|line| {
            let indent = line.len() - line.trim_start().len();
            format!("{}{}", " ".repeat(indent / 2), line.trim_start())
        })
        .collect::<Vec<_>>()
        .join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn escapes_and_indents_as_go() {
        assert_eq!(
            pretty(&json!({"a": "<b>&", "c": [1], "d": {}, "e": []})),
            "{\n    \"a\": \"\\u003cb\\u003e\\u0026\",\n    \"c\": [\n        1\n    ],\n    \"d\": {},\n    \"e\": []\n}\n"
        );
        assert_eq!(compact(&json!({"b": 1, "a": "x"})), "{\"a\":\"x\",\"b\":1}");
    }
}

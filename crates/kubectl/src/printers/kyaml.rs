//! KYAML: the flow-style, always-quoted dialect of `-o kyaml`.

use serde_json::Value;

pub(crate) fn to_string(value: &Value) -> String {
    let mut out = String::new();
    write(value, 0, &mut out);
    out.push('\n');
    out
}

fn write(value: &Value, indent: usize, out: &mut String) {
    let pad = |out: &mut String, n: usize| out.extend(std::iter::repeat_n(' ', n));
    match value {
        Value::Object(m) if m.is_empty() => out.push_str("{}"),
        Value::Object(m) => {
            out.push_str("{\n");
            for (k, v) in m {
                pad(out, indent + 2);
                out.push_str(&key(k));
                out.push_str(": ");
                write(v, indent + 2, out);
                out.push_str(",\n");
            }
            pad(out, indent);
            out.push('}');
        }
        Value::Array(a) if a.is_empty() => out.push_str("[]"),
        // Lists of structures cuddle their brackets; lists of scalars take a line each.
        Value::Array(a) if a.iter().all(|v| v.is_object() || v.is_array()) => {
            out.push('[');
            for (i, v) in a.iter().enumerate() {
                if i > 0 {
                    out.push_str(", ");
                }
                write(v, indent, out);
            }
            out.push(']');
        }
        Value::Array(a) => {
            out.push_str("[\n");
            for v in a {
                pad(out, indent + 2);
                write(v, indent + 2, out);
                out.push_str(",\n");
            }
            pad(out, indent);
            out.push(']');
        }
        Value::String(s) => text(s, indent, out),
        other => out.push_str(&other.to_string()),
    }
}

/// Quoted; lines of their own for each line of the text, which the reader folds together again.
fn text(s: &str, indent: usize, out: &mut String) {
    let folded = s.contains('\n');
    out.push_str(if folded { "\"\\\n" } else { "\"" });
    let pad = " ".repeat(indent + 2);
    let mut line_start = folded;
    for c in s.chars() {
        if line_start {
            out.push_str(&pad);
            // Space at the beginning of a line must be escaped to count.
            out.push(if c.is_whitespace() && c != '\n' { '\\' } else { ' ' });
        }
        line_start = c == '\n';
        match c {
            '\n' => out.push_str("\\n\\\n"),
            '\t' => out.push('\t'),
            '"' | '\\' => out.extend(['\\', c]),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{b}' => out.push_str("\\v"),
            '\u{c}' => out.push_str("\\f"),
            '\r' => out.push_str("\\r"),
            '\0' => out.push_str("\\0"),
            '\u{1b}' => out.push_str("\\e"),
            c if c.is_control() => out.push_str(&format!("\\x{:02x}", u32::from(c))),
            c => out.push(c),
        }
    }
    if folded {
        out.push_str(if line_start { "" } else { "\\\n" });
        out.push_str(&pad);
    }
    out.push('"');
}

fn key(k: &str) -> String {
    let ambiguous = ["y", "n", "yes", "no", "true", "false", "on", "off", "null", "t", "f", "inf", "infinity", "nan"]
        .contains(&k.to_ascii_lowercase().as_str())
        || k.replace('_', "").parse::<f64>().is_ok()
        || k.starts_with("0x");
    let count = k.chars().count();
    let plain = count > 0
        && k.chars()
            .enumerate()
            .all(|(i, c)| c.is_alphanumeric() || c == '_' || (i > 0 && i + 1 < count && matches!(c, '-' | '.' | '/')));
    if plain && !ambiguous {
        return k.to_owned();
    }
    let mut quoted = String::new();
    text(k, 0, &mut quoted);
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_of_a_text_are_folded() {
        assert_eq!(
            to_string(&json!({"a": "one\n  two\n", "f": "x\ty", "g/h.i-j": "q\"", "7up": "\n"})),
            "{\n  7up: \"\\\n     \\n\\\n    \",\n  a: \"\\\n     one\\n\\\n    \\  two\\n\\\n    \",\n  \"f\": \"x\ty\",\n  g/h.i-j: \"q\\\"\",\n}\n"
        );
    }

    #[test]
    fn strings_are_quoted_and_structures_cuddle() {
        assert_eq!(
            to_string(&json!({"a": [{"num": 1}], "b": ["x"], "no": {}})),
            "{\n  a: [{\n    num: 1,\n  }],\n  b: [\n    \"x\",\n  ],\n  \"no\": {},\n}\n"
        );
    }
}

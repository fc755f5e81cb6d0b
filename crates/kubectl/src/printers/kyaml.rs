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
        Value::String(s) => out.push_str(&super::json::compact(&Value::String(s.clone()))),
        other => out.push_str(&other.to_string()),
    }
}

fn key(k: &str) -> String {
    let plain = k.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && k.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | '/'))
        && !matches!(
            k.to_ascii_lowercase().as_str(),
            "y" | "n" | "yes" | "no" | "true" | "false" | "on" | "off" | "null"
        );
    if plain { k.to_owned() } else { super::json::compact(&Value::String(k.to_owned())) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn strings_are_quoted_and_structures_cuddle() {
        assert_eq!(
            to_string(&json!({"a": [{"num": 1}], "b": ["x"], "no": {}})),
            "{\n  a: [{\n    num: 1,\n  }],\n  b: [\n    \"x\",\n  ],\n  \"no\": {},\n}\n"
        );
    }
}

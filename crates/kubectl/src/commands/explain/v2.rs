//! A type out of an OpenAPI v2 document, in the older form that knows structures only as `Object`.

use serde_json::Value;

use super::Subject;
use crate::failure::{Failure, Result};

const WIDTH: usize = 80;

pub(super) fn explain(document: &Value, subject: &Subject) -> Result<String> {
    let Subject { group, version, kind, fields, recursive } = subject;
    let definitions = Definitions(document);
    let mut all = document["definitions"].as_object().into_iter().flatten();
    let root = all.find(|(_, definition)| {
        definition["x-kubernetes-group-version-kind"].as_array().is_some_and(|list| {
            list.iter().any(|k| k["group"] == *group && k["version"] == *version && k["kind"] == *kind)
        })
    });
    let Some((_, root)) = root else {
        return Err(Failure::message(format!("couldn't find resource for \"{group}/{version}, Kind={kind}\"")));
    };
    let schema = definitions.lookup(root, fields)?;
    let api_version = crate::discovery::group_version(group, version);
    let mut out = format!("KIND:     {kind}\nVERSION:  {api_version}\n\n");
    let mut descriptions = Vec::new();
    let shown = definitions.content(schema, &mut descriptions);
    let name = fields.last().copied().unwrap_or("");
    let is_kind = matches!(shape(shown), Shape::Kind);
    if is_kind && !name.is_empty() {
        out.push_str(&format!("RESOURCE: {name} <{}>\n\n", definitions.type_name(schema)));
    } else if matches!(shape(shown), Shape::Primitive(_)) {
        out.push_str(&format!("FIELD:    {name} <{}>\n\n", definitions.type_name(schema)));
    }
    out.push_str("DESCRIPTION:\n");
    descriptions.push(shown["description"].as_str().unwrap_or(""));
    if descriptions.iter().all(|d| d.is_empty()) {
        write_wrapped("<empty>", 5, &mut out);
    }
    for (i, description) in descriptions.iter().enumerate().filter(|(_, d)| !d.is_empty()) {
        if i > 0 {
            out.push('\n');
        }
        write_wrapped(description, 5, &mut out);
    }
    if is_kind {
        out.push_str("\nFIELDS:\n");
        if *recursive {
            definitions.tree(shown, 3, &mut Vec::new(), &mut out);
        } else {
            definitions.list(shown, &mut out);
        }
    }
    Ok(out)
}

/// What a schema is, by what it says.
enum Shape<'a> {
    Reference(&'a str),
    Kind,
    Map,
    Array,
    Primitive(&'a str),
    Arbitrary,
}

fn shape(schema: &Value) -> Shape<'_> {
    if let Some(reference) = schema["$ref"].as_str() {
        return Shape::Reference(reference);
    }
    match schema["type"].as_str() {
        Some("object") | None if schema["properties"].is_object() => Shape::Kind,
        Some("object") => Shape::Map,
        Some("array") => Shape::Array,
        Some(simple) => Shape::Primitive(simple),
        None => Shape::Arbitrary,
    }
}

struct Definitions<'a>(&'a Value);

impl<'a> Definitions<'a> {
    fn target(&self, reference: &str) -> &'a Value {
        reference.strip_prefix('#').and_then(|path| self.0.pointer(path)).unwrap_or(&Value::Null)
    }

    /// The schema of a field, whatever arrays, maps and references lie on the way.
    fn lookup(&self, schema: &'a Value, fields: &[&str]) -> Result<&'a Value> {
        let Some((first, rest)) = fields.split_first() else { return Ok(schema) };
        match shape(schema) {
            Shape::Reference(reference) => self.lookup(self.target(reference), fields),
            Shape::Array => self.lookup(&schema["items"], fields),
            Shape::Map => self.lookup(&schema["additionalProperties"], fields),
            Shape::Kind => match schema["properties"].get(*first) {
                Some(field) => self.lookup(field, rest),
                None => Err(Failure::message(format!("field \"{first}\" does not exist"))),
            },
            Shape::Primitive(_) | Shape::Arbitrary => Ok(schema),
        }
    }

    /// What arrays, maps and references hold in the end; their own words are collected.
    fn content(&self, schema: &'a Value, descriptions: &mut Vec<&'a str>) -> &'a Value {
        let inner = match shape(schema) {
            Shape::Reference(reference) => self.target(reference),
            Shape::Array => &schema["items"],
            Shape::Map => &schema["additionalProperties"],
            Shape::Kind | Shape::Primitive(_) | Shape::Arbitrary => return schema,
        };
        descriptions.push(schema["description"].as_str().unwrap_or(""));
        self.content(inner, descriptions)
    }

    fn type_name(&self, schema: &Value) -> String {
        match shape(schema) {
            Shape::Reference(reference) => self.type_name(self.target(reference)),
            Shape::Kind => "Object".to_owned(),
            Shape::Map => format!("map[string]{}", self.type_name(&schema["additionalProperties"])),
            Shape::Array => format!("[]{}", self.type_name(&schema["items"])),
            Shape::Primitive(simple) => simple.to_owned(),
            Shape::Arbitrary => String::new(),
        }
    }

    fn list(&self, kind: &Value, out: &mut String) {
        for (name, field) in kind["properties"].as_object().into_iter().flatten() {
            let required = kind["required"].as_array().is_some_and(|list| list.iter().any(|r| r == name));
            let required = if required { " -required-" } else { "" };
            out.push_str(&format!("   {name}\t<{}>{required}\n", self.type_name(field)));
            write_wrapped(field["description"].as_str().unwrap_or(""), 5, out);
            out.push('\n');
        }
    }

    /// All fields below, each reference once on its way down.
    fn tree(&self, schema: &'a Value, margin: usize, seen: &mut Vec<&'a str>, out: &mut String) {
        match shape(schema) {
            Shape::Reference(reference) => {
                if !seen.contains(&reference) {
                    seen.push(reference);
                    self.tree(self.target(reference), margin, seen, out);
                    seen.pop();
                }
            }
            Shape::Array => self.tree(&schema["items"], margin, seen, out),
            Shape::Map => self.tree(&schema["additionalProperties"], margin, seen, out),
            Shape::Kind => {
                for (name, field) in schema["properties"].as_object().into_iter().flatten() {
                    out.push_str(&format!("{}{name}\t<{}>\n", " ".repeat(margin), self.type_name(field)));
                    self.tree(field, margin + 3, seen, out);
                }
            }
            Shape::Primitive(_) | Shape::Arbitrary => {}
        }
    }
}

fn write_wrapped(text: &str, margin: usize, out: &mut String) {
    for line in wrap(text, WIDTH - margin) {
        if line.is_empty() {
            out.push('\n');
        } else {
            out.push_str(&format!("{}{line}\n", " ".repeat(margin)));
        }
    }
}

/// `- `, `* `, `1 ` or `1. `
fn is_bullet(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let rest = if number.len() < line.len() {
        Some(number.strip_prefix('.').unwrap_or(number))
    } else {
        line.strip_prefix(['-', '*'])
    };
    rest.is_some_and(|r| r.starts_with(char::is_whitespace))
}

/// Paragraphs are filled; lists, code and what follows a colon keep their lines.
fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    let mut line = String::new();
    for source in text.split('\n') {
        let code = source.starts_with("    ");
        let trimmed = source.trim();
        let own_line = code || trimmed.is_empty() || is_bullet(trimmed) || line.ends_with(':');
        if own_line && !line.is_empty() {
            out.push(std::mem::take(&mut line));
        }
        if code {
            out.push(source.to_owned());
            continue;
        }
        if trimmed.is_empty() {
            if !out.is_empty() {
                out.push(String::new());
            }
            continue;
        }
        for word in source.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > width {
                out.push(std::mem::take(&mut line));
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    if !line.is_empty() {
        out.push(line);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_filled_and_lists_are_not() {
        for (text, expected) in [
            ("one\ntwo three four", vec!["one two", "three four"]),
            ("see:\none", vec!["see:", "one"]),
            ("a\n - b\n - c", vec!["a", "- b", "- c"]),
            ("a\n\nb", vec!["a", "", "b"]),
            ("", vec![]),
        ] {
            assert_eq!(wrap(text, 10), expected, "{text}");
        }
    }
}

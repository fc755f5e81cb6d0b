//! A type out of an OpenAPI v3 document, as upstream's `plaintext` template (v1.36) shows it.

use serde_json::Value;

use super::Subject;
use crate::failure::Failure;

/// How many values of an enumeration are shown beside a field.
const FEW: usize = 4;

/// The text, and what was not found after part of it.
pub(super) fn explain(document: &Value, subject: &Subject) -> (String, Option<Failure>) {
    let Subject { group, version, kind, fields, recursive } = subject;
    let mut out = String::new();
    if !group.is_empty() {
        out.push_str(&format!("GROUP:      {group}\n"));
    }
    out.push_str(&format!("KIND:       {kind}\nVERSION:    {version}\n\n"));
    let schemas = document["components"]["schemas"].as_object();
    let root = schemas.into_iter().flatten().map(|(_, schema)| schema).find(|schema| {
        schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|list| {
            list.iter().any(|k| k["group"] == *group && k["version"] == *version && k["kind"] == *kind)
        })
    });
    let Some(root) = root else {
        let text = format!("GVK {kind} of {group}/{version} not found in OpenAPI schema");
        return (out, Some(Failure::message(text)));
    };
    let explained = Schemas(document).output(root, fields, *recursive, &mut Vec::new());
    if explained.is_empty() {
        let last = fields.last().copied().unwrap_or_default();
        return (out, Some(Failure::message(format!("field \"{last}\" does not exist"))));
    }
    (out + &explained + "\n", None)
}

struct Schemas<'a>(&'a Value);

impl<'a> Schemas<'a> {
    fn target(&self, reference: &str) -> Option<&'a Value> {
        self.0.pointer(reference.strip_prefix('#')?)
    }

    /// The schema itself, or the one it refers to.
    fn resolve(&self, schema: &'a Value) -> &'a Value {
        schema["$ref"].as_str().and_then(|r| self.target(r)).unwrap_or(schema)
    }

    /// Follows the fields; nothing when there is no such way.
    fn output(&self, schema: &'a Value, fields: &[&str], recursive: bool, seen: &mut Vec<&'a str>) -> String {
        let resolved = self.resolve(schema);
        let Some((first, rest)) = fields.split_first() else { return self.whole(resolved, recursive) };
        let reference = schema["$ref"].as_str();
        if reference.is_some_and(|r| seen.contains(&r)) {
            return String::new();
        }
        seen.extend(reference);
        if let Some(field) = resolved["properties"].get(*first) {
            let header = if rest.is_empty() {
                format!("FIELD: {first} <{}>\n{}\n\n", self.type_name(field), long_enum(field))
            } else {
                String::new()
            };
            let below = self.output(field, rest, recursive, &mut Vec::new());
            return if header.is_empty() || !below.is_empty() { header + &below } else { header };
        }
        for inner in [&resolved["items"], &resolved["additionalProperties"]] {
            if inner.is_object() {
                return self.output(inner, fields, recursive, seen);
            }
        }
        let all = resolved["allOf"].as_array().into_iter().flatten();
        all.map(|inner| self.output(inner, fields, recursive, &mut seen.clone()))
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    }

    fn whole(&self, schema: &'a Value, recursive: bool) -> String {
        let mut description = String::new();
        self.describe(schema, &mut description);
        if description.is_empty() {
            description.push_str("<empty>");
        }
        let mut out = format!("DESCRIPTION:\n{}\n", indent(&wrap(&description, 76), 4));
        let docs = &schema["externalDocs"];
        if docs.is_object() {
            out.push_str(&format!("\nEXTERNAL DOCS:\n{}", external_docs(docs, 76, 4)));
        }
        let mut fields = String::new();
        self.list(schema, recursive, 2, &mut Vec::new(), &mut fields);
        if !fields.is_empty() {
            out.push_str("FIELDS:\n");
            out.push_str(&fields);
        }
        out
    }

    /// A schema's own words, then those about what it holds.
    fn describe(&self, schema: &'a Value, out: &mut String) {
        let schema = self.resolve(schema);
        if let Some(text) = schema["description"].as_str().filter(|d| !d.is_empty()) {
            out.push_str(text);
            out.push('\n');
        }
        for inner in inside(schema) {
            self.describe(inner, out);
        }
    }

    fn list(&self, schema: &'a Value, recursive: bool, margin: usize, seen: &mut Vec<&'a str>, out: &mut String) {
        let reference = schema["$ref"].as_str();
        if reference.is_some_and(|r| seen.contains(&r)) {
            return;
        }
        let depth = seen.len();
        seen.extend(reference);
        let schema = self.resolve(schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            self.field(schema, name, field, recursive, margin, out);
            if recursive {
                self.list(field, true, margin + 2, seen, out);
            }
        }
        for inner in inside(schema) {
            self.list(inner, recursive, margin, seen, out);
        }
        seen.truncate(depth);
    }

    fn field(&self, owner: &Value, name: &str, field: &'a Value, short: bool, margin: usize, out: &mut String) {
        let pad = " ".repeat(margin);
        let required = owner["required"].as_array().is_some_and(|list| list.iter().any(|r| r == name));
        let required = if required { " -required-" } else { "" };
        out.push_str(&format!("{pad}{name}\t<{}>{required}{}\n", self.type_name(field), short_enum(field, &pad)));
        if short {
            return;
        }
        let text = field["description"].as_str().filter(|d| !d.is_empty()).unwrap_or("<no description>");
        out.push_str(&indent(&wrap(text, 78 - margin), margin + 2));
        out.push('\n');
        let docs = &field["externalDocs"];
        if docs.is_object() {
            out.push_str(&format!("\n{pad}  EXTERNAL DOCS:\n{}", external_docs(docs, 76 - margin, margin + 4)));
        }
        out.push('\n');
    }

    fn type_name(&self, schema: &'a Value) -> String {
        let all = schema["allOf"].as_array();
        if schema["items"].is_object() {
            return format!("[]{}", self.type_name(&schema["items"]));
        }
        if schema["additionalProperties"].is_object() {
            return format!("map[string]{}", self.type_name(&schema["additionalProperties"]));
        }
        if let (Some([only]), true) = (all.map(Vec::as_slice), schema["properties"].is_null()) {
            return self.type_name(only);
        }
        let own = if let Some(reference) = schema["$ref"].as_str() {
            match self.target(reference).and_then(|target| target["type"].as_str()) {
                None | Some("object") => return reference.rsplit(['/', '.']).next().unwrap_or("Object").to_owned(),
                simple => simple,
            }
        } else {
            schema["type"].as_str()
        };
        own.filter(|t| *t != "object").unwrap_or("Object").to_owned()
    }
}

/// The schemas that a schema wraps.
fn inside(schema: &Value) -> impl Iterator<Item = &Value> {
    let all = schema["allOf"].as_array().into_iter().flatten();
    all.chain([&schema["items"], &schema["additionalProperties"]].into_iter().filter(|inner| inner.is_object()))
}

fn external_docs(docs: &Value, width: usize, margin: usize) -> String {
    let mut out = String::new();
    if let Some(text) = docs["description"].as_str() {
        out.push_str(&(indent(&wrap(text, width), margin) + "\n"));
    }
    if let Some(url) = docs["url"].as_str() {
        out.push_str(&(indent(&format!("URL: {url}"), margin) + "\n"));
    }
    out
}

fn enum_values(schema: &Value) -> Vec<String> {
    let values = schema["enum"].as_array().into_iter().flatten();
    values
        .map(|v| match v {
            Value::String(s) if s.is_empty() => "\"\"".to_owned(),
            Value::String(s) => s.clone(),
            other => other.to_string(),
        })
        .collect()
}

fn short_enum(schema: &Value, pad: &str) -> String {
    let values = enum_values(schema);
    if values.is_empty() {
        return String::new();
    }
    let more = if values.len() > FEW { ", ...." } else { "" };
    format!("\n{pad}enum: {}{more}", values[..values.len().min(FEW)].join(", "))
}

fn long_enum(schema: &Value) -> String {
    let values = enum_values(schema);
    if values.is_empty() { String::new() } else { format!("ENUM:\n    {}", values.join("\n    ")) }
}

fn indent(text: &str, margin: usize) -> String {
    let pad = " ".repeat(margin);
    format!("{pad}{}", text.replace('\n', &format!("\n{pad}")))
}

/// Breaks lines at spaces; what stands between words otherwise stays as it is.
fn wrap(text: &str, width: usize) -> String {
    let mut out = String::new();
    for (i, line) in text.split('\n').enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let mut column = 0;
        let mut rest = line;
        while !rest.is_empty() {
            let word_at = rest.find(|c: char| !c.is_whitespace()).unwrap_or(rest.len());
            let (space, tail) = rest.split_at(word_at);
            let word_end = tail.find(char::is_whitespace).unwrap_or(tail.len());
            let (word, tail) = tail.split_at(word_end);
            let (spaces, letters) = (space.chars().count(), word.chars().count());
            // A word breaks at its first letter too many, when something stands before it.
            let first_over = (width + 1).saturating_sub(column + spaces).max(1);
            if letters > 0 && column + spaces + letters > width && first_over < width {
                out.push('\n');
                out.push_str(word);
                column = letters;
            } else {
                out.push_str(space);
                out.push_str(word);
                column += spaces + letters;
            }
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn types_are_named() {
        let document = json!({"components": {"schemas": {
            "io.k8s.api.core.v1.PodSpec": {"type": "object", "properties": {}},
            "io.k8s.Quantity": {"type": "string"}}}});
        for (schema, expected) in [
            (json!({"type": "string"}), "string"),
            (json!({"type": "array", "items": {"type": "integer"}}), "[]integer"),
            (json!({"type": "object", "additionalProperties": {"type": "string"}}), "map[string]string"),
            (json!({"type": "object", "additionalProperties": true}), "Object"),
            (json!({"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.PodSpec"}]}), "PodSpec"),
            (json!({"$ref": "#/components/schemas/io.k8s.Quantity"}), "string"),
            (json!({}), "Object"),
        ] {
            assert_eq!(Schemas(&document).type_name(&schema), expected);
        }
    }

    #[test]
    fn lines_break_at_spaces_and_keep_them_elsewhere() {
        for (text, expected) in [
            ("one two three", "one two\nthree"),
            ("one  two three", "one  two\nthree"),
            ("averyverylongword a", "averyverylongword\na"),
            ("see averyverylongword", "see\naveryverylongword"),
            ("one\n\ttwo", "one\n\ttwo"),
        ] {
            assert_eq!(wrap(text, 8), expected);
        }
    }

    #[test]
    fn enumerations_are_shown() {
        let schema = json!({"enum": ["", "a", "b", "c", "d"]});
        assert_eq!(short_enum(&schema, "  "), "\n  enum: \"\", a, b, c, ....");
        assert_eq!(long_enum(&json!({"enum": ["a", "b"]})), "ENUM:\n    a\n    b");
    }
}

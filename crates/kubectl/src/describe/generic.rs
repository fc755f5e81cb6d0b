//! Any object: its metadata and then every field, titled from its name.

use serde_json::Value;

use super::{Writer, plain, write_annotations, write_labels};
use crate::objects::text;

pub(super) fn describe(object: &Value, w: &mut Writer) {
    w.line(0, format!("Name:\t{}", text(object, "/metadata/name")));
    w.line(0, format!("Namespace:\t{}", text(object, "/metadata/namespace")));
    write_labels(w, "Labels", &object["metadata"]["labels"]);
    write_annotations(w, "Annotations", &object["metadata"]["annotations"]);
    let mut rest = object.clone();
    if let Some(metadata) = rest["metadata"].as_object_mut() {
        for key in ["name", "namespace", "labels", "annotations", "managedFields"] {
            metadata.remove(key);
        }
    }
    fields(w, 0, &rest);
}

fn fields(w: &mut Writer, level: usize, value: &Value) {
    let Some(map) = value.as_object() else { return };
    for (key, v) in map {
        let title = title(key);
        match v {
            Value::Object(_) => {
                w.line(level, format!("{title}:"));
                fields(w, level + 1, v);
            }
            Value::Array(list) => {
                w.line(level, format!("{title}:"));
                for item in list {
                    match item {
                        Value::Object(_) => fields(w, level + 1, item),
                        other => w.line(level + 1, plain(other)),
                    }
                }
            }
            other => w.line(level, format!("{title}:\t{}", plain(other))),
        }
    }
}

/// `creationTimestamp` -> `Creation Timestamp`; acronyms stay together, and what is not made of words stays as it is.
fn title(key: &str) -> String {
    if key.contains(|c: char| !c.is_alphabetic() && c != '-') {
        return key.to_owned();
    }
    let chars: Vec<char> = key.chars().collect();
    let mut out = String::new();
    for (i, &c) in chars.iter().enumerate() {
        let boundary = i > 0
            && c.is_uppercase()
            && (!chars[i - 1].is_uppercase() || chars.get(i + 1).is_some_and(|n| n.is_lowercase()));
        if boundary && out.chars().last().is_some_and(char::is_alphanumeric) {
            out.push(' ');
        }
        if i == 0 || out.ends_with(' ') { out.extend(c.to_uppercase()) } else { out.push(c) }
    }
    match out.as_str() {
        "Api Version" => "API Version".to_owned(),
        "Uid" => "UID".to_owned(),
        _ => out,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn titles_split_words() {
        for (key, expected) in [
            ("spec", "Spec"),
            ("creationTimestamp", "Creation Timestamp"),
            ("podIP", "Pod IP"),
            ("uid", "UID"),
            ("apiVersion", "API Version"),
            ("openAPIV3Schema", "openAPIV3Schema"),
        ] {
            assert_eq!(super::title(key), expected);
        }
    }
}

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
    let mut titled: Vec<String> = Vec::new();
    let mut words = words(key).into_iter().peekable();
    while let Some(mut word) = words.next() {
        // `URLs` is one acronym.
        if word.len() > 1
            && word.chars().all(char::is_uppercase)
            && let Some(rest) = words.next_if(|next| next.starts_with(char::is_uppercase))
        {
            word.push_str(&rest);
        }
        let first = word.chars().next().filter(|_| word.chars().all(|c| !c.is_uppercase()));
        titled.push(match first {
            _ if ["API", "URL", "UID", "GUID"].contains(&word.to_uppercase().as_str()) => word.to_uppercase(),
            Some(first) => first.to_uppercase().collect::<String>() + &word[first.len_utf8()..],
            None => word,
        });
    }
    titled.join(" ")
}

/// The words of a name in camel case: `podIPs` -> `pod`, `I`, `Ps`, as the library that upstream uses has it.
fn words(key: &str) -> Vec<String> {
    let class = |c: char| (c.is_lowercase(), c.is_uppercase());
    let mut runs: Vec<String> = Vec::new();
    let mut before = None;
    for c in key.chars() {
        match runs.last_mut() {
            Some(run) if before == Some(class(c)) => run.push(c),
            _ => runs.push(c.to_string()),
        }
        before = Some(class(c));
    }
    for i in 1..runs.len() {
        if runs[i].starts_with(char::is_lowercase)
            && runs[i - 1].starts_with(char::is_uppercase)
            && let Some(initial) = runs[i - 1].pop()
        {
            runs[i].insert(0, initial);
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
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
            ("apiGroups", "API Groups"),
            ("nonResourceURLs", "Non Resource URLs"),
            ("podIPs", "Pod I Ps"),
            ("clusterIP", "Cluster IP"),
            ("x-kind", "X - Kind"),
            ("openAPIV3Schema", "openAPIV3Schema"),
        ] {
            assert_eq!(super::title(key), expected);
        }
    }
}

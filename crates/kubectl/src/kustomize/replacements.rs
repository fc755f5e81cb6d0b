//! `replacements`: a value of one object copied into fields of others.

use serde_json::{Value, json};

use super::error::{KustomizeError, ReplacementError};
use super::patches::Selector;
use super::{Resource, Root, list, strings};
use crate::objects::text;

pub(super) fn run(root: &Root, entries: &Value, resources: &mut [Resource]) -> Result<(), KustomizeError> {
    for entry in list(entries) {
        let read;
        let entry = match entry["path"].as_str() {
            Some(path) => {
                read = super::yaml(&root.read(path)?)?;
                &read
            }
            None => entry,
        };
        for entry in if entry.is_array() { list(entry) } else { std::slice::from_ref(entry) } {
            replace(entry, resources)?;
        }
    }
    Ok(())
}

fn replace(entry: &Value, resources: &mut [Resource]) -> Result<(), KustomizeError> {
    let value = match entry.get("sourceValue") {
        Some(value) => value.clone(),
        None => source(&entry["source"], resources)?,
    };
    for target in list(&entry["targets"]) {
        let chosen = Selector::new(&target["select"])?;
        let rejected = list(&target["reject"]).iter().map(Selector::new).collect::<Result<Vec<_>, _>>()?;
        let mut paths = strings(&target["fieldPaths"]);
        if paths.is_empty() {
            paths.push("metadata.name");
        }
        for resource in resources.iter_mut() {
            if !chosen.matches(resource) || rejected.iter().any(|r| r.matches(resource)) {
                continue;
            }
            for path in &paths {
                let mut found = false;
                let create = target["options"]["create"] == true;
                walk(&mut resource.object, &words(path), create, &mut |field| {
                    found = true;
                    *field = with_part(field, &value, &target["options"]);
                });
                if !found {
                    return Err(ReplacementError::NoField((*path).to_owned()).into());
                }
            }
        }
    }
    Ok(())
}

fn source(source: &Value, resources: &[Resource]) -> Result<Value, KustomizeError> {
    let selector = Selector::new(source)?;
    let mut found = resources.iter().filter(|r| selector.matches(r));
    let (Some(resource), None) = (found.next(), found.next()) else {
        let (kind, name) = (text(source, "/kind").to_owned(), text(source, "/name").to_owned());
        return Err(ReplacementError::NoSource { kind, name }.into());
    };
    let path = source["fieldPath"].as_str().filter(|p| !p.is_empty()).unwrap_or("metadata.name");
    let value = field(&resource.object, path)
        .ok_or_else(|| ReplacementError::NoSourceField { path: path.to_owned(), id: resource.id() })?;
    let options = &source["options"];
    let Some(delimiter) = options["delimiter"].as_str().filter(|d| !d.is_empty()) else { return Ok(value) };
    let whole = value.as_str().unwrap_or_default();
    let at = usize::try_from(options["index"].as_i64().unwrap_or(0)).unwrap_or(usize::MAX);
    let part = whole.split(delimiter).nth(at);
    Ok(part.map(|p| json!(p)).ok_or_else(|| ReplacementError::Index { at, whole: whole.to_owned() })?)
}

/// The value of a field, if there is exactly such a one.
pub(super) fn field(object: &Value, path: &str) -> Option<Value> {
    let mut value = None;
    walk(&mut object.clone(), &words(path), false, &mut |field| value = Some(field.clone()));
    value
}

/// The field with the value in it, or in the part of it that a delimiter marks.
fn with_part(field: &Value, value: &Value, options: &Value) -> Value {
    let Some(delimiter) = options["delimiter"].as_str().filter(|d| !d.is_empty()) else { return value.clone() };
    let new = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut parts: Vec<String> = field.as_str().unwrap_or_default().split(delimiter).map(str::to_owned).collect();
    match options["index"].as_i64().unwrap_or(0) {
        before if before < 0 => parts.insert(0, new),
        at => match parts.get_mut(at as usize) {
            Some(part) => *part = new,
            None => parts.push(new),
        },
    }
    json!(parts.join(delimiter))
}

/// `spec.containers.[name=web].env.0`: dots separate, `\.` is a dot, brackets hold a condition.
fn words(path: &str) -> Vec<String> {
    let mut out = vec![String::new()];
    let mut chars = path.chars();
    let mut bracket = false;
    while let Some(c) = chars.next() {
        let last = out.len() - 1;
        match c {
            '\\' => out[last].extend(chars.next()),
            '[' if out[last].is_empty() => {
                bracket = true;
                out[last].push(c);
            }
            ']' if bracket => {
                bracket = false;
                out[last].push(c);
            }
            '.' if !bracket => out.push(String::new()),
            c => out[last].push(c),
        }
    }
    out
}

fn walk(value: &mut Value, path: &[String], create: bool, change: &mut dyn FnMut(&mut Value)) {
    let Some((word, rest)) = path.split_first() else { return change(value) };
    if let Some(condition) = word.strip_prefix('[').and_then(|w| w.strip_suffix(']')) {
        let (key, wanted) = condition.split_once('=').unwrap_or((condition, ""));
        for item in value.as_array_mut().into_iter().flatten().filter(|item| item[key] == wanted) {
            walk(item, rest, create, change);
        }
        return;
    }
    if let Some(items) = value.as_array_mut() {
        if word == "*" {
            items.iter_mut().for_each(|item| walk(item, rest, create, change));
        } else if let Some(item) = word.parse::<usize>().ok().and_then(|at| items.get_mut(at)) {
            walk(item, rest, create, change);
        }
        return;
    }
    if create && (value.is_object() || value.is_null()) && value.get(word).is_none() {
        value[word] = Value::Null;
    }
    if let Some(next) = value.get_mut(word) {
        walk(next, rest, create, change);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::built;

    #[test]
    fn values_are_copied() {
        let objects = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: from\ndata:\n  host: a.example.com:80\n---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: to\n  annotations:\n    x.y/z: old\nspec:\n  containers:\n  - name: c\n    image: nginx:1\n  - name: d\n    image: other:1\n";
        for (target, pointer, expected) in [
            ("fieldPaths: [spec.containers.0.image]", "/spec/containers/0/image", "a.example.com:80"),
            ("fieldPaths: ['spec.containers.[name=d].image']", "/spec/containers/1/image", "a.example.com:80"),
            (
                "fieldPaths: [spec.containers.*.image]\n    options: {delimiter: ':', index: 1}",
                "/spec/containers/1/image",
                "other:a.example.com:80",
            ),
            ("fieldPaths: ['metadata.annotations.x\\.y/z']", "/metadata/annotations/x.y~1z", "a.example.com:80"),
            ("fieldPaths: [spec.hostname]\n    options: {create: true}", "/spec/hostname", "a.example.com:80"),
        ] {
            let kustomization = format!(
                "resources: [o.yaml]\nreplacements:\n- source: {{kind: ConfigMap, name: from, fieldPath: data.host}}\n  targets:\n  - select: {{kind: Pod}}\n    {target}\n"
            );
            let text = built(&[("o.yaml", objects), ("kustomization.yaml", &kustomization)], ".").unwrap();
            let pod = &crate::manifests::documents(&text).unwrap()[1];
            assert_eq!(pod.pointer(pointer).and_then(|v| v.as_str()), Some(expected), "{target}");
        }
    }
}

//! `configMapGenerator` and `secretGenerator`: objects from literals and files, created, merged or replaced.

use base64::Engine;
use serde_json::{Map, Value, json};

use super::error::{GeneratorError, KustomizeError};
use super::{Resource, Root, list, strings};
use crate::objects::text;

pub(super) fn run(root: &Root, settings: &Value, resources: &mut Vec<Resource>) -> Result<(), KustomizeError> {
    for (field, kind) in [("configMapGenerator", "ConfigMap"), ("secretGenerator", "Secret")] {
        for generator in list(&settings[field]) {
            let generated = generate(root, generator, kind, &settings["generatorOptions"])?;
            place(generated, text(generator, "/behavior"), resources)?;
        }
    }
    Ok(())
}

fn place(generated: Resource, behavior: &str, resources: &mut Vec<Resource>) -> Result<(), KustomizeError> {
    let existing = resources.iter_mut().find(|r| r.kind() == generated.kind() && r.was_called(generated.name()));
    match (behavior, existing) {
        ("" | "create" | "unspecified", None) => resources.push(generated),
        ("" | "create" | "unspecified", Some(_)) => {
            return Err(KustomizeError::Twice(generated.id()));
        }
        ("merge" | "replace", None) => {
            return Err(GeneratorError::Nothing(generated.id()).into());
        }
        ("merge", Some(existing)) => {
            for key in ["data", "binaryData"] {
                for (k, v) in generated.object[key].as_object().into_iter().flatten() {
                    existing.object[key][k] = v.clone();
                }
            }
            existing.needs_hash |= generated.needs_hash;
        }
        ("replace", Some(existing)) => {
            for key in ["data", "binaryData"] {
                match generated.object.get(key) {
                    Some(data) => existing.object[key] = data.clone(),
                    None => _ = existing.object.as_object_mut().map(|o| o.remove(key)),
                }
            }
            existing.needs_hash |= generated.needs_hash;
        }
        (other, _) => return Err(GeneratorError::Behavior(other.to_owned()).into()),
    }
    Ok(())
}

fn generate(root: &Root, generator: &Value, kind: &str, shared: &Value) -> Result<Resource, KustomizeError> {
    let mut entries: Vec<(String, Vec<u8>)> = Vec::new();
    for source in strings(&generator["envs"]).into_iter().chain(generator["env"].as_str()) {
        let content = root.read(source)?;
        for line in content.lines().map(str::trim_start).filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let (key, value) = line.split_once('=').unwrap_or((line, ""));
            entries.push((key.to_owned(), value.as_bytes().to_vec()));
        }
    }
    for source in strings(&generator["files"]) {
        let (key, path) = source.split_once('=').unwrap_or((source.rsplit('/').next().unwrap_or(source), source));
        entries.push((key.to_owned(), root.read_bytes(path)?));
    }
    for literal in strings(&generator["literals"]) {
        let (key, value) = literal.split_once('=').ok_or_else(|| GeneratorError::Literal(literal.to_owned()))?;
        let quoted = |q: char| value.len() > 1 && value.starts_with(q) && value.ends_with(q);
        let value = if quoted('"') || quoted('\'') { &value[1..value.len() - 1] } else { value };
        entries.push((key.to_owned(), value.as_bytes().to_vec()));
    }
    let mut object = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": generator["name"]}});
    let (mut data, mut binary) = (Map::new(), Map::new());
    for (key, bytes) in entries {
        let encoded = || json!(base64::engine::general_purpose::STANDARD.encode(&bytes));
        let clash = match String::from_utf8(bytes.clone()) {
            _ if kind == "Secret" => data.insert(key.clone(), encoded()),
            Ok(text) => data.insert(key.clone(), json!(text)),
            Err(_) => binary.insert(key.clone(), encoded()),
        };
        if clash.is_some() {
            let name = text(generator, "/name").to_owned();
            return Err(GeneratorError::Repeated { name, key }.into());
        }
    }
    if !data.is_empty() {
        object["data"] = Value::Object(data);
    }
    if !binary.is_empty() {
        object["binaryData"] = Value::Object(binary);
    }
    if kind == "Secret" {
        object["type"] = generator.get("type").cloned().unwrap_or(json!("Opaque"));
    }
    if generator["namespace"].is_string() {
        object["metadata"]["namespace"] = generator["namespace"].clone();
    }
    let own = &generator["options"];
    for options in [shared, own] {
        for key in ["labels", "annotations"] {
            for (k, v) in options[key].as_object().into_iter().flatten() {
                object["metadata"][key][k] = v.clone();
            }
        }
        if options["immutable"] == true {
            object["immutable"] = json!(true);
        }
    }
    let plain = own.get("disableNameSuffixHash").unwrap_or(&shared["disableNameSuffixHash"]) == true;
    Ok(Resource { needs_hash: !plain, ..Resource::new(object) })
}

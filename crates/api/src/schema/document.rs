//! The schemas of an OpenAPI document: whole, with descriptions, each with everything that it refers to.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::DeflateDecoder;
use serde_json::{Map, Value};

mod packages {
    include!(concat!(env!("OUT_DIR"), "/packages.rs"));
}

/// What references between schemas begin with as they are kept.
const KEPT: &str = "#/definitions/";

/// A document's schemas, which grow with what is added.
pub struct Document {
    /// What references begin with in this document.
    references: &'static str,
    schemas: Map<String, Value>,
    /// What has been read and not been asked for yet.
    packages: BTreeMap<&'static str, Map<String, Value>>,
}

impl Document {
    pub fn new(references: &'static str) -> Document {
        Document { references, schemas: Map::new(), packages: BTreeMap::new() }
    }

    /// Adds the definition of a kind that is built in, and returns its name. Those of others are [`Self::insert`]ed.
    pub fn add_kind(&mut self, api_version: &str, kind: &str) -> String {
        let name = super::name(api_version, kind).unwrap_or(kind);
        self.add(name);
        name.to_owned()
    }

    /// Adds a definition that is built in, and all that it refers to.
    pub fn add(&mut self, name: &str) {
        let mut wanted = vec![name.to_owned()];
        while let Some(name) = wanted.pop() {
            if self.schemas.contains_key(&name) {
                continue;
            }
            if let Some(mut schema) = self.take(&name) {
                adapt(&mut schema, self.references, &mut wanted);
                self.schemas.insert(name, schema);
            }
        }
    }

    /// Adds one that is not built in. What it refers to must be added, too.
    pub fn insert(&mut self, name: String, schema: Value) {
        self.schemas.insert(name, schema);
    }

    /// What refers to a definition here.
    pub fn reference(&self, name: &str) -> String {
        format!("{}{name}", self.references)
    }

    pub fn into_schemas(self) -> Map<String, Value> {
        self.schemas
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let package = name.rsplit_once('.')?.0;
        let at = packages::PACKAGES.binary_search_by_key(&package, |(name, _)| name).ok()?;
        let (package, compressed) = packages::PACKAGES[at];
        self.packages.entry(package).or_insert_with(|| unpacked(compressed)).remove(name)
    }
}

/// What the build wrote.
fn unpacked(compressed: &[u8]) -> Map<String, Value> {
    let mut text = Vec::new();
    let read = DeflateDecoder::new(compressed).read_to_end(&mut text);
    let schemas = read.map_err(serde_json::Error::io).and_then(|_| serde_json::from_slice(&text));
    schemas.expect("the build wrote it, and a test reads all of it")
}

/// Brings references into the form of the document, and notes what they lead to.
fn adapt(schema: &mut Value, references: &str, wanted: &mut Vec<String>) {
    match schema {
        Value::Object(fields) => {
            for (name, value) in fields {
                match (name.as_str(), &*value) {
                    ("$ref", Value::String(reference)) => {
                        let target = reference.strip_prefix(KEPT).unwrap_or(reference).to_owned();
                        *value = format!("{references}{target}").into();
                        wanted.push(target);
                    }
                    _ => adapt(value, references, wanted),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| adapt(item, references, wanted)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_comes_with_what_it_refers_to() {
        let mut document = Document::new("#/components/schemas/");
        assert_eq!(document.add_kind("apps/v1", "Deployment"), "io.k8s.api.apps.v1.Deployment");
        let schemas = document.into_schemas();
        assert!(schemas.contains_key("io.k8s.api.core.v1.Container"));
        assert!(!schemas.contains_key("io.k8s.api.core.v1.Node"));
        let metadata = schemas["io.k8s.api.apps.v1.Deployment"]["properties"]["metadata"].to_string();
        assert!(
            metadata.contains("#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"),
            "{metadata}"
        );
    }

    #[test]
    fn every_package_can_be_read() {
        for (package, compressed) in packages::PACKAGES {
            let schemas = unpacked(compressed);
            assert!(!schemas.is_empty(), "{package}");
            let mut document = Document::new(KEPT);
            schemas.keys().for_each(|name| document.add(name));
            let found = document.into_schemas();
            assert!(schemas.keys().all(|name| found.contains_key(name)));
        }
    }
}

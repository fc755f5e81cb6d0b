//! Writes down what `k8s-openapi` knows about its types, for `src/schema`: as data this takes a tenth of what the code takes
//! that says it, and nothing has to run before it can be read.
//!
//! - `types.rs`: every definition with its fields and their types, and which kind has which definition.
//! - `structures.rs`: the fields of each structure of `k8s-openapi`, for those that are read (`src/read`).
//! - `all_kinds.rs`: every kind of `k8s-openapi`, for tests of what has to hold for each.
//! - `packages.rs` and a file for each package: the whole schemas, with descriptions, compressed.

mod kinds;
mod structures;

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use flate2::Compression;
use flate2::write::DeflateEncoder;
use schemars::SchemaGenerator;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

/// Of kinds that `k8s-openapi` lacks.
const OURS: &str = "src/schema/ours.json";
const GROUP_VERSION_KIND: &str = "x-kubernetes-group-version-kind";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=build");
    println!("cargo::rerun-if-changed={OURS}");
    let out = std::env::var("OUT_DIR")?;
    let out = Path::new(&out);
    let (mut ours, mut kinds) = ours()?;
    let mut generator = SchemaGenerator::new(SchemaSettings::draft07());
    for ([group, version, kind], name) in kinds::describe(&mut generator) {
        kinds.insert([api_version(group, version), kind.to_owned()], name);
    }
    let mut definitions = generator.take_definitions(true);
    std::fs::write(out.join("structures.rs"), structures::write(&definitions, &kinds)?)?;
    std::fs::write(out.join("all_kinds.rs"), structures::all_kinds(&kinds, &definitions))?;
    definitions.append(&mut ours);
    std::fs::write(out.join("types.rs"), types(&definitions, &kinds)?)?;
    packages(out, definitions)
}

pub(crate) type Kinds = BTreeMap<[String; 2], String>;

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

fn ours() -> Result<(Map<String, Value>, Kinds), Box<dyn Error>> {
    let mut definitions: Map<String, Value> = serde_json::from_slice(&std::fs::read(OURS)?)?;
    let mut kinds = Kinds::new();
    for (name, schema) in &mut definitions {
        let removed = schema.as_object_mut().and_then(|schema| schema.remove(GROUP_VERSION_KIND));
        let kind = removed.ok_or_else(|| format!("{name} has no {GROUP_VERSION_KIND}"))?;
        let text =
            |part: &str| kind[part].as_str().ok_or_else(|| format!("{name}: {GROUP_VERSION_KIND} has no {part}"));
        kinds.insert([api_version(text("group")?, text("version")?), text("kind")?.to_owned()], name.clone());
    }
    Ok((definitions, kinds))
}

/// `DEFINITIONS`, sorted by name, and `KINDS`, with the place of each one's definition.
fn types(definitions: &Map<String, Value>, kinds: &Kinds) -> Result<String, Box<dyn Error>> {
    let sorted: BTreeMap<&str, &Value> = definitions.iter().map(|(name, schema)| (name.as_str(), schema)).collect();
    let structures: Vec<&str> =
        sorted.iter().filter(|(name, schema)| is_structure(name, schema)).map(|(name, _)| *name).collect();
    let types = Types { definitions, structures: &structures };
    let mut text = String::from("pub(super) static DEFINITIONS: &[(&str, &str)] = &[\n");
    for name in &structures {
        writeln!(text, "    ({name:?}, {:?}),", types.fields(&definitions[*name])?)?;
    }
    text.push_str("];\npub(super) static KINDS: &[(&str, &str, usize)] = &[\n");
    for ([api_version, kind], name) in kinds {
        let place = structures.binary_search(&name.as_str()).map_err(|_| format!("{name} is no structure"))?;
        writeln!(text, "    ({api_version:?}, {kind:?}, {place}),")?;
    }
    text.push_str("];\n");
    Ok(text)
}

/// What is written for a definition that stands for a value of its own kind, not for a structure.
fn special(name: &str) -> Option<&'static str> {
    Some(match name.rsplit('.').next().unwrap_or(name) {
        "IntOrString" => "intOrString",
        "Quantity" => "quantity",
        "Time" | "MicroTime" => "time",
        "RawExtension"
        | "FieldsV1"
        | "JSON"
        | "JSONSchemaPropsOrArray"
        | "JSONSchemaPropsOrBool"
        | "JSONSchemaPropsOrStringArray" => "any",
        _ => return None,
    })
}

/// A structure without fields, such as an empty marker struct, is one too: it refuses unknown ones.
pub(crate) fn is_structure(name: &str, schema: &Value) -> bool {
    let is_empty = schema["type"] == "object" && schema.get("additionalProperties").is_none();
    special(name).is_none() && (schema["properties"].is_object() || is_empty)
}

struct Types<'a> {
    definitions: &'a Map<String, Value>,
    structures: &'a [&'a str],
}

impl Types<'_> {
    /// `NAME:TYPE NAME!:TYPE`, with a mark at fields that must be given.
    fn fields(&self, schema: &Value) -> Result<String, String> {
        let required = schema["required"].as_array();
        let mark = |field: &str| required.is_some_and(|all| all.iter().any(|name| name == field));
        let properties = schema["properties"].as_object().into_iter().flatten();
        let fields = properties.map(|(field, schema)| {
            let mark = if mark(field) { "!" } else { "" };
            self.of(schema).map(|of| format!("{field}{mark}:{of}"))
        });
        Ok(fields.collect::<Result<Vec<_>, _>>()?.join(" "))
    }

    /// As Go writes it, with the place of its definition instead of a structure's name.
    fn of(&self, schema: &Value) -> Result<String, String> {
        // A description beside a reference makes it one of one.
        let reference = schema.get("$ref").or_else(|| schema["allOf"].get(0).and_then(|only| only.get("$ref")));
        if let Some(reference) = reference.and_then(Value::as_str) {
            let name = reference.rsplit('/').next().unwrap_or(reference);
            return self.named(name);
        }
        let kind = schema["type"].as_str().or_else(|| {
            schema["type"]
                .as_array()
                .and_then(|types| types.iter().find(|kind| **kind != "null"))
                .and_then(Value::as_str)
        });
        let simple = match (kind, schema["format"].as_str()) {
            (Some("boolean"), _) => "bool",
            (Some("integer"), Some("int32")) => "int32",
            (Some("integer"), _) => "int64",
            (Some("number"), _) => "number",
            (Some("string"), Some("byte")) => "bytes",
            (Some("string"), Some("date-time")) => "time",
            (Some("string"), _) => "string",
            (Some("array"), _) => return Ok(format!("[]{}", self.of(&schema["items"])?)),
            (Some("object"), _) if schema.get("additionalProperties").is_some() => {
                return Ok(format!("{{}}{}", self.of(&schema["additionalProperties"])?));
            }
            _ if schema.get("x-kubernetes-int-or-string").is_some() => "intOrString",
            _ => "any",
        };
        Ok(simple.to_owned())
    }

    fn named(&self, name: &str) -> Result<String, String> {
        match (special(name), self.structures.binary_search(&name), self.definitions.get(name)) {
            (Some(special), ..) => Ok(special.to_owned()),
            (None, Ok(place), _) => Ok(place.to_string()),
            (None, Err(_), Some(schema)) => self.of(schema),
            (None, Err(_), None) => Err(format!("{name} is referred to and has no definition")),
        }
    }
}

/// One file for each package (`io.k8s.api.core.v1`): documents are about one, with some of a few others.
fn packages(out: &Path, definitions: Map<String, Value>) -> Result<(), Box<dyn Error>> {
    let mut packages: BTreeMap<String, Map<String, Value>> = BTreeMap::new();
    for (name, schema) in definitions {
        let package = name.rsplit_once('.').map_or("", |(package, _)| package).to_owned();
        packages.entry(package).or_default().insert(name, schema);
    }
    let mut text = String::from("pub(super) static PACKAGES: &[(&str, &[u8])] = &[\n");
    for (package, schemas) in packages {
        let file = format!("{package}.deflate");
        let mut compressed = DeflateEncoder::new(Vec::new(), Compression::best());
        compressed.write_all(&serde_json::to_vec(&schemas)?)?;
        std::fs::write(out.join(&file), compressed.finish()?)?;
        writeln!(text, "    ({package:?}, include_bytes!({file:?})),")?;
    }
    text.push_str("];\n");
    Ok(std::fs::write(out.join("packages.rs"), text)?)
}

//! OpenAPI v2 and v3, generated from the types on first use and kept compressed into one buffer each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, OnceLock};

use api::Status;
use api::schema::Document as Schemas;
use api::sort::CompactCollect as _;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use registry::{Resource, Table, Verb};
use serde_json::{Map, Value, json};

use super::groups::{Documents, etag};
use super::openapi_corrections as corrections;
use super::openapi_paths::{self, Dialect};
use crate::body::Body;

/// A generated document and its tag.
struct Document {
    body: Bytes,
    etag: String,
}

impl Document {
    fn new(body: Vec<u8>) -> Self {
        let etag = etag(&body);
        Self { body: body.into(), etag }
    }

    fn respond(&self, parts: &http::request::Parts, content_type: &'static str) -> Response<Body> {
        super::tagged(parts, (self.body.clone(), self.etag.clone()), content_type)
    }
}

/// The documents that were asked for so far.
#[derive(Default)]
pub(crate) struct OpenApi {
    v2_json: OnceLock<Document>,
    v2_proto: OnceLock<Document>,
    v3: parking_lot::Mutex<BTreeMap<String, Arc<Document>>>,
}

/// Clients ask for it with an `@` before the version, which no media type may contain.
const PROTO: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `/openapi/v2`: JSON, or the protobuf form that kubectl prefers.
pub(crate) fn v2(documents: &Documents, parts: &http::request::Parts) -> Response<Body> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let known = &documents.openapi;
    if accept.contains("proto-openapi.spec.v2") {
        let document = known.v2_proto.get_or_init(|| Document::new(super::openapi_proto::encode(&v2_whole(documents))));
        return document.respond(parts, PROTO);
    }
    let document = known.v2_json.get_or_init(|| Document::new(v2_whole(documents).to_string().into_bytes()));
    document.respond(parts, "application/json")
}

/// The package of what all kinds share.
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

fn info() -> Value {
    json!({"title": "Kubernetes", "version": super::version()["gitVersion"]})
}

/// With what aggregated API servers describe. Where a name is taken, what it means here counts.
fn v2_whole(documents: &Documents) -> Value {
    let mut document = v2_value(&documents.table);
    for described in documents.backends.iter().filter_map(|backend| backend.discovered().openapi_v2.clone()) {
        for (part, found) in [("paths", &described.paths), ("definitions", &described.definitions)] {
            let Some(known) = document[part].as_object_mut() else { continue };
            for (name, value) in found {
                known.entry(name.clone()).or_insert_with(|| value.clone());
            }
        }
    }
    document
}

fn v2_value(table: &Table) -> Value {
    let rows: Vec<&Resource> = table.rows().iter().map(|row| &**row).collect();
    let (definitions, paths) = describe(&rows, Dialect::V2, Some(table));
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions,
        "securityDefinitions": {"BearerToken": {"description": "Bearer Token authentication", "type": "apiKey",
            "name": "authorization", "in": "header"}},
        "security": [{"BearerToken": []}]})
}

/// `/openapi/v3`: where the document of each group version is.
pub(crate) fn v3_index(documents: &Documents) -> Value {
    let mut paths = Map::new();
    for (group, versions) in documents.table.groups() {
        for version in versions {
            let name = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            let hash = if has_custom(&documents.table, group, version) {
                v3_document(documents, &name, group, version).etag.clone()
            } else {
                // The hash changes with the program, which is when the document can change.
                etag(format!("{name}{}", env!("CARGO_PKG_VERSION")).as_bytes())
            };
            let url = format!("/openapi/v3/{name}?hash={}", hash.trim_matches('"'));
            paths.insert(name, json!({"serverRelativeURL": url}));
        }
    }
    for backend in documents.backends.iter().filter(|backend| !backend.group.is_empty()) {
        let name = format!("apis/{}/{}", backend.group, backend.version);
        match &backend.discovered().openapi_v3 {
            Some(url) => drop(paths.insert(name, json!({"serverRelativeURL": url}))),
            None => drop(paths.remove(&name)),
        }
    }
    json!({"paths": paths})
}

fn has_custom(table: &Table, group: &str, version: &str) -> bool {
    table.rows().iter().any(|row| row.is_custom && row.group == group && row.version == version)
}

fn v3_document(documents: &Documents, name: &str, group: &str, version: &str) -> Arc<Document> {
    let known = documents.openapi.v3.lock().get(name).cloned();
    known.unwrap_or_else(|| {
        let document = v3_value(&documents.table, group, version).to_string().into_bytes();
        let document = Arc::new(Document::new(document));
        documents.openapi.v3.lock().insert(name.to_owned(), document.clone());
        document
    })
}

pub(crate) fn v3(documents: &Documents, parts: &http::request::Parts, name: &str) -> Result<Response<Body>, Status> {
    let (group, version) = match name.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => ("", *version),
        ["apis", group, version] => (*group, *version),
        _ => return Err(Status::no_such_path()),
    };
    if !documents.table.has_version(group, version) {
        return Err(Status::no_such_path());
    }
    let document = v3_document(documents, name, group, version);
    let mut answer = document.respond(parts, "application/json");
    if parts.uri.query().is_some_and(|query| query.contains("hash=")) && answer.status() == StatusCode::OK {
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Ok(answer)
}

fn v3_value(table: &Table, group: &str, version: &str) -> Value {
    let rows: Vec<&Resource> =
        table.rows().iter().map(|row| &**row).filter(|row| row.group == group && row.version == version).collect();
    let (schemas, paths) = describe(&rows, Dialect::V3, None);
    json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {"schemas": schemas,
        "securitySchemes": {"BearerToken": {"description": "Bearer Token authentication", "type": "apiKey",
            "name": "authorization", "in": "header"}}}})
}

/// The schemas of the rows and everything they refer to, with upstream's extensions, and the paths of the rows; with a
/// registry, also those of the server's own documents.
fn describe(rows: &[&Resource], dialect: Dialect, table: Option<&Table>) -> (Map<String, Value>, Map<String, Value>) {
    let mut schemas = Schemas::new(dialect.references());
    let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let (mut paths, mut lists) = (Map::new(), Map::new());
    for name in ["DeleteOptions", "ListMeta", "Status", "WatchEvent"] {
        schemas.add(&format!("{META}.{name}"));
    }
    for row in rows {
        let described = (row.describe)(&mut schemas);
        let kind = |kind: String| json!({"group": row.group, "version": row.version, "kind": kind});
        let mut add = |name: &str, value: Value| {
            let known = kinds.entry(name.to_owned()).or_default();
            if !known.contains(&value) {
                known.push(value);
            }
        };
        add(&described, kind(row.kind.to_string()));
        if row.has_verb(&Verb::List) {
            let name = openapi_paths::list_name(&described);
            add(&name, kind(row.list_kind()));
            lists.insert(name, list(row, &described, dialect));
        }
        for subresource in &row.subresources {
            if let (Some(name), Some((group, version, kind))) =
                (subresource.action.describe(&mut schemas), subresource.kind)
            {
                add(&name, json!({"group": group, "version": version, "kind": kind}));
            }
        }
        openapi_paths::add(row, &described, dialect, &mut schemas, &mut paths);
    }
    if let Some(table) = table {
        super::openapi_groups::add(table, dialect, &mut schemas, &mut paths);
    }
    let versions: BTreeSet<(&str, &str)> = rows.iter().map(|row| (&*row.group, &*row.version)).compact_collect();
    for (kind, everywhere) in [("Status", false), ("DeleteOptions", true), ("WatchEvent", true)] {
        let of = |(group, version): &(&str, &str)| json!({"group": group, "version": version, "kind": kind});
        let known = if everywhere { versions.iter().map(of).collect() } else { vec![of(&("", "v1"))] };
        kinds.insert(format!("{META}.{kind}"), known);
    }
    let mut definitions = schemas.into_schemas();
    definitions.append(&mut lists);
    for (name, schema) in &mut definitions {
        simplify(schema, dialect);
        corrections::apply(name, schema, dialect);
        if let Some(kinds) = kinds.get(name.as_str()) {
            schema["x-kubernetes-group-version-kind"] = Value::Array(kinds.clone());
        }
        merge_extensions(name, schema);
    }
    let patch = json!({"type": "object",
        "description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body."});
    definitions.insert(openapi_paths::PATCH.to_owned(), patch);
    (definitions, paths)
}

/// A list of a kind; the types have only one generic list.
fn list(row: &Resource, kind: &str, dialect: Dialect) -> Value {
    json!({
        "description": format!("{0}List is a list of {0} objects.", row.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."},
            "kind": {"type": "string", "description": "Kind is a string value representing the REST resource this object represents."},
            "items": {"type": "array", "description": format!("List of {}.", row.plural), "items": dialect.reference(kind)},
            "metadata": dialect.reference(&format!("{META}.ListMeta")),
        },
    })
}

/// Merge keys and list types, which the generated schemas do not carry.
fn merge_extensions(name: &str, schema: &mut Value) {
    use api::schema::ListType;
    if !name.starts_with("io.k8s.") {
        // The schema of a custom kind says it all.
        return;
    }
    if api::schema::table::is_atomic(name) {
        schema["x-kubernetes-map-type"] = "atomic".into();
    }
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (field, property) in properties {
        if api::schema::table::is_granular(name, field) {
            property["x-kubernetes-map-type"] = "granular".into();
        }
        let is_list = property["type"] == "array";
        let Some(merge) = api::schema::table::merge(name, field) else {
            // What the table does not name is replaced as a whole. Lists of objects are not written at all.
            if is_list && !(field == "items" && name.ends_with("List")) {
                property["x-kubernetes-list-type"] = "atomic".into();
            }
            continue;
        };
        if merge.atomic {
            property["x-kubernetes-map-type"] = "atomic".into();
        }
        match merge.list {
            _ if !is_list => {}
            ListType::Atomic => property["x-kubernetes-list-type"] = "atomic".into(),
            ListType::Set => property["x-kubernetes-list-type"] = "set".into(),
            ListType::Map(keys) => {
                property["x-kubernetes-list-type"] = "map".into();
                property["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        if merge.patch_replaces {
            property["x-kubernetes-patch-strategy"] = "replace".into();
        }
        if let Some(key) = merge.patch_key {
            if !key.is_empty() {
                property["x-kubernetes-patch-merge-key"] = key.into();
            }
            property["x-kubernetes-patch-strategy"] =
                if merge.retain_keys { "merge,retainKeys" } else { "merge" }.into();
        } else if merge.retain_keys {
            property["x-kubernetes-patch-strategy"] = "retainKeys".into();
        }
    }
}

/// Turns the generator's dialect into what OpenAPI clients read: single types, no nulls, and in v2 no `allOf` around a
/// reference with a description.
fn simplify(schema: &mut Value, dialect: Dialect) {
    match schema {
        Value::Object(map) => {
            // Not the field of this name that a schema of schemas describes.
            if map.get("$schema").is_some_and(Value::is_string) {
                map.remove("$schema");
            }
            if let Some(Value::Array(types)) = map.get("type") {
                let single = types.iter().find(|kind| *kind != "null").cloned().unwrap_or_default();
                map.insert("type".to_owned(), single);
            }
            if dialect == Dialect::V2
                && let Some(Value::Array(all)) = map.get("allOf")
                && let [Value::Object(only)] = all.as_slice()
                && let Some(reference) = only.get("$ref").cloned()
            {
                map.remove("allOf");
                map.insert("$ref".to_owned(), reference);
            }
            map.values_mut().for_each(|value| simplify(value, dialect));
        }
        Value::Array(list) => list.iter_mut().for_each(|value| simplify(value, dialect)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::RuntimeConfig;

    /// Every reference leads somewhere, and every kind that is served can be found by its group, version and kind.
    #[test]
    fn documents_are_closed_and_name_every_kind() {
        let table = Table::new(&RuntimeConfig::parse("api/all=true").unwrap());
        let v2 = v2_value(&table);
        closed(&v2, &v2);
        for (group, versions) in table.groups() {
            for version in versions {
                let v3 = v3_value(&table, group, version);
                closed(&v3, &v3);
                for row in table.rows().iter().filter(|row| row.group == group && row.version == version) {
                    let kind = json!({"group": group, "version": version, "kind": row.kind});
                    for schemas in [&v2["definitions"], &v3["components"]["schemas"]] {
                        let found = schemas.as_object().unwrap().values().any(|schema| {
                            let kinds = schema["x-kubernetes-group-version-kind"].as_array();
                            kinds.is_some_and(|kinds| kinds.contains(&kind))
                        });
                        assert!(found, "{row:?}");
                    }
                }
            }
        }
        let pods = &v2["paths"]["/api/v1/namespaces/{namespace}/pods"];
        assert_eq!(pods["get"]["operationId"], "listCoreV1NamespacedPod");
        assert_eq!(pods["post"]["responses"]["201"]["schema"]["$ref"], "#/definitions/io.k8s.api.core.v1.Pod");
        // What upstream's command-line tests look for.
        let watch = pods["get"]["parameters"].as_array().unwrap().iter().find(|parameter| parameter["name"] == "watch");
        let description = watch.unwrap()["description"].as_str().unwrap();
        assert!(description.starts_with("Watch for changes to the described resources"), "{description}");
        let services = &v2["definitions"]["io.k8s.api.core.v1.ServiceList"]["properties"]["items"];
        assert_eq!(services["description"], "List of services.");
    }

    fn closed(document: &Value, part: &Value) {
        match part {
            Value::Object(map) => {
                if let Some(Value::String(reference)) = map.get("$ref") {
                    let target = document.pointer(reference.trim_start_matches('#'));
                    assert!(target.is_some(), "{reference} leads nowhere");
                }
                map.values().for_each(|value| closed(document, value));
            }
            Value::Array(list) => list.iter().for_each(|value| closed(document, value)),
            _ => {}
        }
    }
}

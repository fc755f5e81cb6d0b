//! OpenAPI v2 and v3, generated from the types on first use and kept compressed into one buffer each.

use std::collections::BTreeMap;
use std::sync::{LazyLock, OnceLock};

use api::Status;
use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use k8s_openapi::schemars::SchemaGenerator;
use k8s_openapi::schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use super::groups::etag;
use crate::body::Body;
use crate::registry::{Registry, Resource, Serving};
use crate::state::State;

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

static V2_JSON: OnceLock<Document> = OnceLock::new();
static V2_PROTO: OnceLock<Document> = OnceLock::new();
static V3: LazyLock<parking_lot::Mutex<BTreeMap<String, std::sync::Arc<Document>>>> = LazyLock::new(Default::default);

const PROTO: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

/// `/openapi/v2`: JSON, or the protobuf form that kubectl prefers.
pub(super) fn v2(state: &State, parts: &http::request::Parts) -> Response<Body> {
    let accept = parts.headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if accept.contains("proto-openapi.spec.v2") {
        let document = V2_PROTO.get_or_init(|| Document::new(super::openapi_proto::encode(&v2_value(&state.registry))));
        return document.respond(parts, PROTO);
    }
    let document = V2_JSON.get_or_init(|| Document::new(v2_value(&state.registry).to_string().into_bytes()));
    document.respond(parts, "application/json")
}

fn info() -> Value {
    json!({"title": "Kubernetes", "version": super::version()["gitVersion"]})
}

fn v2_value(registry: &Registry) -> Value {
    let rows: Vec<&Resource> = registry.rows().iter().map(|row| &**row).collect();
    let definitions = definitions(&rows, "/definitions");
    let mut paths = Map::new();
    for row in &rows {
        add_paths(row, &mut paths);
    }
    json!({"swagger": "2.0", "info": info(), "paths": paths, "definitions": definitions})
}

/// `/openapi/v3`: where the document of each group version is.
pub(super) fn v3_index(state: &State) -> Value {
    let mut paths = Map::new();
    for (group, versions) in state.registry.groups() {
        for version in versions {
            let name = if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") };
            // The hash changes with the program, which is when the document can change.
            let hash = etag(format!("{name}{}", env!("CARGO_PKG_VERSION")).as_bytes());
            let url = format!("/openapi/v3/{name}?hash={}", hash.trim_matches('"'));
            paths.insert(name, json!({"serverRelativeURL": url}));
        }
    }
    json!({"paths": paths})
}

pub(super) fn v3(state: &State, parts: &http::request::Parts, name: &str) -> Result<Response<Body>, Status> {
    let (group, version) = match name.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => (String::new(), (*version).to_owned()),
        ["apis", group, version] => ((*group).to_owned(), (*version).to_owned()),
        _ => return Err(Status::no_such_path()),
    };
    if !state.registry.has_version(&group, &version) {
        return Err(Status::no_such_path());
    }
    let known = V3.lock().get(name).cloned();
    let document = known.unwrap_or_else(|| {
        let document =
            std::sync::Arc::new(Document::new(v3_value(&state.registry, &group, &version).to_string().into_bytes()));
        V3.lock().insert(name.to_owned(), document.clone());
        document
    });
    let mut answer = document.respond(parts, "application/json");
    if parts.uri.query().is_some_and(|query| query.contains("hash=")) && answer.status() == StatusCode::OK {
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    }
    Ok(answer)
}

fn v3_value(registry: &Registry, group: &str, version: &str) -> Value {
    let rows: Vec<&Resource> =
        registry.rows().iter().map(|row| &**row).filter(|row| row.group == group && row.version == version).collect();
    let schemas = definitions(&rows, "/components/schemas");
    let mut paths = Map::new();
    for row in &rows {
        add_paths(row, &mut paths);
    }
    json!({"openapi": "3.0.0", "info": info(), "paths": paths, "components": {"schemas": schemas}})
}

/// The schemas of the rows and everything they refer to, with upstream's extensions.
fn definitions(rows: &[&Resource], path: &'static str) -> Map<String, Value> {
    let mut settings = SchemaSettings::draft07();
    settings.definitions_path = path.into();
    let mut generator = SchemaGenerator::new(settings);
    let mut kinds: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.serving == Serving::Stored) {
        let name = row.strategy.register_schema(&mut generator);
        // A row that is converted shares the stored kind's schema; its own form is not described.
        if row.conversion.is_none() {
            kinds.entry(name).or_default().push(json!({"group": row.group, "version": row.version, "kind": row.kind}));
        }
    }
    let mut definitions = generator.take_definitions(true);
    for (name, schema) in &mut definitions {
        simplify(schema);
        if let Some(kinds) = kinds.get(name.as_str()) {
            schema["x-kubernetes-group-version-kind"] = Value::Array(kinds.clone());
        }
        merge_extensions(name, schema);
    }
    definitions
}

/// Merge keys and list types, which the generated schemas do not carry.
fn merge_extensions(name: &str, schema: &mut Value) {
    use api::schema::ListType;
    let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
    for (field, property) in properties {
        let Some(merge) = api::schema::table::merge(name, field) else { continue };
        match merge.list {
            ListType::Atomic => property["x-kubernetes-list-type"] = "atomic".into(),
            ListType::Set => property["x-kubernetes-list-type"] = "set".into(),
            ListType::Map(keys) => {
                property["x-kubernetes-list-type"] = "map".into();
                property["x-kubernetes-list-map-keys"] = json!(keys);
            }
        }
        if let Some(key) = merge.patch_key {
            if !key.is_empty() {
                property["x-kubernetes-patch-merge-key"] = key.into();
            }
            property["x-kubernetes-patch-strategy"] =
                if merge.retain_keys { "merge,retainKeys" } else { "merge" }.into();
        }
    }
}

/// Turns the generator's dialect into what OpenAPI clients read: single types, no nulls.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            map.remove("$schema");
            if let Some(Value::Array(types)) = map.get("type") {
                let single = types.iter().find(|kind| *kind != "null").cloned().unwrap_or_default();
                map.insert("type".to_owned(), single);
            }
            map.values_mut().for_each(simplify);
        }
        Value::Array(list) => list.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// Paths with what clients look for in them: the kind, the action and the query parameters of writes.
fn add_paths(row: &Resource, paths: &mut Map<String, Value>) {
    let base = if row.group.is_empty() {
        format!("/api/{}", row.version)
    } else {
        format!("/apis/{}/{}", row.group, row.version)
    };
    let place = if row.is_namespaced() { "/namespaces/{namespace}" } else { "" };
    let kind = json!({"group": row.group, "version": row.version, "kind": row.kind});
    let parameter = |name: &str| json!({"name": name, "in": "query", "type": "string", "uniqueItems": true});
    let operation = |action: &str| {
        let parameters: Vec<Value> = match action {
            "post" | "put" | "patch" => {
                ["dryRun", "fieldManager", "fieldValidation"].iter().map(|name| parameter(name)).collect()
            }
            "list" => ["continue", "fieldSelector", "labelSelector", "limit", "resourceVersion", "watch"]
                .iter()
                .map(|name| parameter(name))
                .collect(),
            _ => Vec::new(),
        };
        json!({"x-kubernetes-action": action, "x-kubernetes-group-version-kind": kind, "parameters": parameters,
            "responses": {"200": {"description": "OK"}}})
    };
    let mut collection = Map::new();
    let mut single = Map::new();
    for verb in row.verbs {
        match *verb {
            "list" => drop(collection.insert("get".to_owned(), operation("list"))),
            "create" => drop(collection.insert("post".to_owned(), operation("post"))),
            "deletecollection" => drop(collection.insert("delete".to_owned(), operation("deletecollection"))),
            "get" => drop(single.insert("get".to_owned(), operation("get"))),
            "update" => drop(single.insert("put".to_owned(), operation("put"))),
            "patch" => drop(single.insert("patch".to_owned(), operation("patch"))),
            "delete" => drop(single.insert("delete".to_owned(), operation("delete"))),
            _ => {}
        }
    }
    paths.insert(format!("{base}{place}/{}", row.plural), Value::Object(collection));
    if !single.is_empty() {
        paths.insert(format!("{base}{place}/{}/{{name}}", row.plural), Value::Object(single));
    }
}

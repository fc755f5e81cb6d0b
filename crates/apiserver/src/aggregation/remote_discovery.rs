//! What an aggregated API server offers in one version of a group: its resources, and where they are described.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use api::sort::CompactCollect as _;
use serde_json::{Map, Value, json};

use super::backend::Backend;
use crate::remote::Services;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
const JSON: &str = "application/json";

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Discovered {
    /// The server could be asked; otherwise nothing is known of it at present.
    pub(crate) is_current: bool,
    /// As in a document of aggregated discovery.
    pub(crate) resources: Vec<Value>,
    /// Where the server has the OpenAPI v3 document of the version: a path with a hash.
    pub(crate) openapi_v3: Option<String>,
    /// Paths of the version in OpenAPI v2, and all definitions that they refer to.
    pub(crate) openapi_v2: Option<Arc<Described>>,
}

#[derive(Debug, Default, PartialEq)]
pub(crate) struct Described {
    pub(crate) paths: Map<String, Value>,
    pub(crate) definitions: Map<String, Value>,
}

/// Asks the server. The OpenAPI v2 document is large, so it is fetched again only when something else has changed.
pub(crate) async fn discover(services: &Services, backend: &Backend) -> Discovered {
    let Some(resources) = resources(services, backend).await else { return Discovered::default() };
    let openapi_v3 = openapi_v3(services, backend).await;
    let known = backend.discovered();
    let is_same = known.is_current && known.resources == resources && known.openapi_v3 == openapi_v3;
    let openapi_v2 = match &known.openapi_v2 {
        Some(known) if is_same => Some(known.clone()),
        _ => openapi_v2(services, backend).await.map(Arc::new),
    };
    Discovered { is_current: true, resources, openapi_v3, openapi_v2 }
}

async fn fetch(services: &Services, backend: &Backend, path: &str, accept: &str) -> Option<(String, Value)> {
    let answer = backend.ask(services, path, accept).await.ok().filter(|answer| answer.status().is_success())?;
    let kind = answer.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let kind = kind.unwrap_or_default().to_owned();
    Some((kind, serde_json::from_slice(answer.body()).ok()?))
}

async fn resources(services: &Services, backend: &Backend) -> Option<Vec<Value>> {
    let aggregated = fetch(services, backend, "/apis", AGGREGATED).await;
    if let Some((_, document)) = aggregated.filter(|(kind, _)| kind.contains("as=APIGroupDiscoveryList")) {
        return Some(of_version(document, &backend.group, &backend.version));
    }
    let (_, list) = fetch(services, backend, &backend.path(), JSON).await?;
    Some(from_legacy(&list, &backend.group, &backend.version))
}

/// The resources of one version in a document of aggregated discovery.
fn of_version(mut document: Value, group: &str, version: &str) -> Vec<Value> {
    let mut groups = document.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten();
    let found = groups.find(|item| item["metadata"]["name"] == group);
    let mut versions = found.and_then(|found| found["versions"].as_array_mut()).into_iter().flatten();
    let found = versions.find(|item| item["version"] == version).map(|found| found["resources"].take());
    let Some(Value::Array(mut resources)) = found else { return Vec::new() };
    resources.retain(is_resource);
    // Old clients fall over what has no kind.
    let fill = |item: &mut Value| {
        if item["responseKind"].is_null() {
            item["responseKind"] = json!({"group": "", "version": "", "kind": ""});
        }
    };
    for resource in &mut resources {
        fill(resource);
        resource.get_mut("subresources").and_then(Value::as_array_mut).into_iter().flatten().for_each(fill);
    }
    resources
}

/// Whether an entry has the types that it must have. They become one document with what everybody else offers, and a client
/// that cannot decode one entry has none of them.
fn is_resource(item: &Value) -> bool {
    let has_name = item["resource"].as_str().is_some_and(|name| !name.is_empty());
    let subresources = &item["subresources"];
    let is_subresource = |item: &Value| is_text(&item["subresource"]) && is_served(item);
    has_name
        && is_served(item)
        && ["scope", "singularResource"].iter().all(|field| is_text(&item[*field]))
        && ["shortNames", "categories"].iter().all(|field| is_list(&item[*field], is_text))
        && is_list(subresources, is_subresource)
}

/// What resources and subresources have.
fn is_served(item: &Value) -> bool {
    let has_texts = |kind: &Value| ["group", "version", "kind"].iter().all(|field| is_text(&kind[*field]));
    let is_kind = |kind: &Value| kind.is_null() || kind.is_object() && has_texts(kind);
    item.is_object()
        && is_kind(&item["responseKind"])
        && is_list(&item["verbs"], is_text)
        && is_list(&item["acceptedTypes"], is_kind)
}

fn is_text(value: &Value) -> bool {
    value.is_null() || value.is_string()
}

fn is_list(value: &Value, is_item: impl Fn(&Value) -> bool) -> bool {
    value.is_null() || value.as_array().is_some_and(|items| items.iter().all(is_item))
}

/// The same from a list in which subresources stand beside resources.
fn from_legacy(list: &Value, group: &str, version: &str) -> Vec<Value> {
    let text = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let kind = |item: &Value| {
        let or = |found: String, default: &str| if found.is_empty() { default.to_owned() } else { found };
        json!({"group": or(text(item, "group"), group), "version": or(text(item, "version"), version), "kind": item["kind"]})
    };
    let mut resources: Vec<Value> = Vec::new();
    // Where each is, by name: a server may list as many as fit into an answer.
    let mut places: HashMap<String, usize> = HashMap::new();
    let items = || list["resources"].as_array().into_iter().flatten();
    for item in items().filter(|item| !text(item, "name").contains('/')) {
        let mut resource = json!({"resource": item["name"], "responseKind": kind(item),
            "scope": if item["namespaced"] == true { "Namespaced" } else { "Cluster" },
            "singularResource": item["singularName"], "verbs": item["verbs"]});
        for field in ["shortNames", "categories"] {
            if item[field].as_array().is_some_and(|list| !list.is_empty()) {
                resource[field] = item[field].clone();
            }
        }
        places.entry(text(item, "name")).or_insert(resources.len());
        resources.push(resource);
    }
    for item in items() {
        let name = text(item, "name");
        let Some((parent, subresource)) = name.split_once('/') else { continue };
        let at = places.get(parent).copied().unwrap_or_else(|| {
            // A subresource of what cannot be listed itself.
            let scope = if item["namespaced"] == true { "Namespaced" } else { "Cluster" };
            resources.push(json!({"resource": parent, "scope": scope, "verbs": [], "singularResource": "",
                "responseKind": {"group": "", "version": "", "kind": ""}}));
            places.insert(parent.to_owned(), resources.len() - 1);
            resources.len() - 1
        });
        let entry = json!({"subresource": subresource, "responseKind": kind(item), "verbs": item["verbs"]});
        match resources[at]["subresources"].as_array_mut() {
            Some(list) => list.push(entry),
            None => resources[at]["subresources"] = json!([entry]),
        }
    }
    resources.retain(is_resource);
    resources
}

async fn openapi_v3(services: &Services, backend: &Backend) -> Option<String> {
    let (_, index) = fetch(services, backend, "/openapi/v3", JSON).await?;
    let name = backend.path();
    let url = index["paths"][name.trim_start_matches('/')]["serverRelativeURL"].as_str()?;
    // It is led through this server under the same name; anything else is not ours to lead to.
    let expected = format!("/openapi/v3{name}");
    (url == expected || url.starts_with(&format!("{expected}?"))).then(|| url.to_owned())
}

async fn openapi_v2(services: &Services, backend: &Backend) -> Option<Described> {
    let (_, document) = fetch(services, backend, "/openapi/v2", JSON).await?;
    Some(described(&document, &backend.path()))
}

/// The paths below a prefix, and the definitions that they need.
fn described(document: &Value, prefix: &str) -> Described {
    let is_below = |path: &str| path == prefix || path.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    let paths = document["paths"].as_object().into_iter().flatten().filter(|(path, _)| is_below(path));
    let paths: Map<String, Value> = paths.map(|(path, value)| (path.clone(), value.clone())).compact_collect();
    let mut wanted = BTreeSet::new();
    paths.values().for_each(|value| references(value, &mut wanted));
    let mut definitions = Map::new();
    while let Some(name) = wanted.pop_first() {
        let Some(definition) = document["definitions"].get(&name).filter(|_| !definitions.contains_key(&name)) else {
            continue;
        };
        references(definition, &mut wanted);
        definitions.insert(name, definition.clone());
    }
    Described { paths, definitions }
}

/// The names of all definitions that are referred to.
fn references(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            let name = fields.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/definitions/"));
            found.extend(name.map(str::to_owned));
            fields.values().for_each(|field| references(field, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_old_servers_are_understood() {
        let list = json!({"kind": "APIResourceList", "groupVersion": "wardle.example.com/v1alpha1", "resources": [
            {"name": "flunders", "singularName": "flunder", "namespaced": true, "kind": "Flunder", "verbs": ["get"]},
            {"name": "flunders/status", "namespaced": true, "kind": "Scale", "group": "autoscaling", "version": "v1",
                "verbs": ["patch"]},
            {"name": "ghosts/x", "namespaced": false, "kind": "X", "verbs": []}]});
        let resources = from_legacy(&list, "wardle.example.com", "v1alpha1");
        assert_eq!(resources.len(), 2);
        assert_eq!(resources[0]["responseKind"]["group"], "wardle.example.com");
        assert_eq!(resources[0]["subresources"][0]["responseKind"]["group"], "autoscaling");
        assert_eq!((&resources[1]["scope"], &resources[1]["verbs"]), (&json!("Cluster"), &json!([])));
    }

    #[test]
    fn security_a_long_list_of_resources_is_looked_through_once() {
        let item = |name: String| json!({"name": name, "namespaced": true, "kind": "K", "verbs": []});
        let items = (0..100_000).flat_map(|number| [item(format!("r{number}")), item(format!("s{number}/x"))]);
        let list = json!({"resources": items.collect::<Vec<_>>()});
        assert_eq!(from_legacy(&list, "example.com", "v1").len(), 200_000);
    }

    #[test]
    fn security_resources_of_other_types_are_left_out() {
        let sound = json!({"resource": "as", "responseKind": {"group": "", "version": "", "kind": "A"}, "verbs": ["get"],
            "subresources": [{"subresource": "status", "responseKind": {"group": "", "version": "", "kind": "A"}}]});
        let odd = [
            json!(1),
            json!("x"),
            json!({"resource": 5}),
            json!({"resource": "bs", "verbs": "get"}),
            json!({"resource": "cs", "subresources": [1]}),
            json!({"resource": "ds", "responseKind": "D"}),
            json!({"resource": "es", "shortNames": [{}]}),
        ];
        let resources: Vec<&Value> = odd.iter().chain([&sound]).collect();
        let versions = json!([7, {"version": "v1", "resources": resources}]);
        let document = json!({"items": [7, {"metadata": {"name": "a.com"}, "versions": versions}]});
        assert_eq!(of_version(document, "a.com", "v1"), [sound]);
        for document in [json!([]), json!("x"), json!(1), Value::Null] {
            assert!(of_version(document, "a.com", "v1").is_empty());
        }
        let list = json!({"resources": [1, {"name": 5}, {"name": "as", "verbs": ["get"]}, {"name": "bs", "kind": {}}]});
        let found = from_legacy(&list, "a.com", "v1");
        assert_eq!(found.iter().map(|item| &item["resource"]).collect::<Vec<_>>(), ["as"]);
    }

    #[test]
    fn only_the_version_itself_is_taken_from_a_document() {
        let document = json!({"items": [{"metadata": {"name": "a.com"}, "versions": [
            {"version": "v1", "resources": [{"resource": "as"}]}, {"version": "v2", "resources": []}]}]});
        let found = of_version(document.clone(), "a.com", "v1");
        assert_eq!(found, [json!({"resource": "as", "responseKind": {"group": "", "version": "", "kind": ""}})]);
        assert!(of_version(document, "b.com", "v1").is_empty());
    }

    #[test]
    fn definitions_come_with_what_they_need() {
        let to = |name: &str| json!({"$ref": format!("#/definitions/{name}")});
        let document = json!({"paths": {"/apis/a.com/v1/as": to("A"), "/apis/a.com/v10/": to("C"), "/version/": {}},
            "definitions": {"A": {"items": [to("B"), to("A")]}, "B": {}, "C": {}}});
        let described = described(&document, "/apis/a.com/v1");
        assert_eq!(described.paths.keys().collect::<Vec<_>>(), ["/apis/a.com/v1/as"]);
        assert_eq!(described.definitions.keys().collect::<Vec<_>>(), ["A", "B"]);
    }
}

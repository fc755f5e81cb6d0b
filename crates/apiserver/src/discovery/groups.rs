//! Groups, versions and resources: the legacy documents and the aggregated one, both from the resource table and from what
//! aggregated API servers offer.

use std::cmp::Reverse;
use std::sync::Arc;

use api::sort::CompactSort as _;
use bytes::Bytes;
use registry::priority::{self, Priority, version_rank};
use registry::{Resource, Scope, Table, Verb};
use serde_json::{Value, json};

use crate::aggregation::Backend;

/// Documents made when the server starts, and again when kinds come or go.
pub(crate) struct Documents {
    pub(crate) core: Aggregated,
    pub(crate) groups: Aggregated,
    /// What the documents are about.
    pub(crate) table: Arc<Table>,
    /// Who serves the rest.
    pub(super) backends: Arc<[Arc<Backend>]>,
    pub(super) openapi: super::openapi::OpenApi,
    group_list: Vec<Value>,
    paths: Vec<String>,
}

/// An aggregated discovery document in both of its versions.
pub(crate) struct Aggregated {
    v2: (Bytes, String),
    v2beta1: (Bytes, String),
}

/// A version as clients see it, and who serves it if not this server.
struct Version<'a> {
    name: &'a str,
    priority: Priority,
    backend: Option<&'a Backend>,
}

type Group<'a> = (&'a str, Vec<Version<'a>>);

/// All groups and their versions, those first that clients are to find first.
fn listed<'a>(table: &'a Table, backends: &'a [Arc<Backend>]) -> Vec<Group<'a>> {
    let is_elsewhere = |group: &str, version: &str| {
        backends.iter().any(|backend| backend.group == group && backend.version == version)
    };
    let mut groups: Vec<Group<'a>> = Vec::new();
    for (group, versions) in table.groups() {
        let here = versions.into_iter().filter(|version| !is_elsewhere(group, version));
        let here = here.map(|name| Version { name, priority: priority::local(group, name), backend: None });
        groups.push((group, here.collect()));
    }
    for backend in backends {
        let version = Version { name: &backend.version, priority: backend.priority, backend: Some(backend) };
        match groups.iter_mut().find(|(group, _)| *group == backend.group) {
            Some((_, versions)) => versions.push(version),
            None => groups.push((&backend.group, vec![version])),
        }
    }
    for (_, versions) in &mut groups {
        versions.compact_sort_by(|a, b| {
            version_rank(a.priority.version, a.name).cmp(&version_rank(b.priority.version, b.name))
        });
    }
    let rank = |versions: &[Version<'_>]| versions.iter().map(|version| version.priority.group).max();
    groups.compact_sort_by(|(a, of_a), (b, of_b)| (Reverse(rank(of_a)), a).cmp(&(Reverse(rank(of_b)), b)));
    groups
}

impl Version<'_> {
    fn aggregated(&self, table: &Table, group: &str) -> Value {
        let (freshness, resources) = match self.backend.map(Backend::discovered) {
            Some(found) => (if found.is_current { "Current" } else { "Stale" }, found.resources.clone()),
            None => ("Current", sorted(table, group, self.name).into_iter().map(aggregated_resource).collect()),
        };
        let mut version = json!({"version": self.name, "freshness": freshness});
        if !resources.is_empty() {
            version["resources"] = resources.into();
        }
        version
    }
}

impl Aggregated {
    fn new(table: &Table, groups: &[Group<'_>], keep: impl Fn(&str) -> bool) -> Self {
        let items: Vec<Value> = groups
            .iter()
            .filter(|(group, _)| keep(group))
            .map(|(group, versions)| {
                let versions: Vec<Value> = versions.iter().map(|version| version.aggregated(table, group)).collect();
                let metadata = if group.is_empty() { json!({}) } else { json!({"name": group}) };
                json!({"metadata": metadata, "versions": versions})
            })
            .collect();
        let document = |version: &str| {
            let value = json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{version}"),
                "metadata": {}, "items": items});
            let body = Bytes::from(value.to_string());
            let tag = etag(&body);
            (body, tag)
        };
        Self { v2: document("v2"), v2beta1: document("v2beta1") }
    }

    pub(crate) fn with_version(&self, version: &str) -> (Bytes, String) {
        if version == "v2" { self.v2.clone() } else { self.v2beta1.clone() }
    }
}

/// A quoted hash of the content, in upstream's form.
pub(crate) fn etag(body: &[u8]) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA512, body);
    let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02X}")).collect();
    format!("\"{hex}\"")
}

fn sorted<'a>(table: &'a Table, group: &str, version: &str) -> Vec<&'a Resource> {
    let mut rows: Vec<&Resource> =
        table.rows().iter().map(|row| &**row).filter(|row| row.group == group && row.version == version).collect();
    rows.compact_sort_by(|a, b| a.plural.cmp(&b.plural));
    rows
}

fn aggregated_resource(row: &Resource) -> Value {
    let kind = |group: &str, version: &str, kind: &str| json!({"group": group, "version": version, "kind": kind});
    let mut value = json!({
        "resource": row.plural,
        "responseKind": kind("", "", &row.kind),
        "scope": if row.scope == Scope::Namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": row.singular,
        "verbs": row.verbs,
    });
    if !row.short_names.is_empty() {
        value["shortNames"] = json!(row.short_names);
    }
    if !row.categories.is_empty() {
        value["categories"] = json!(row.categories);
    }
    if !row.subresources.is_empty() {
        let list: Vec<Value> = row
            .subresources
            .iter()
            .map(|sub| {
                let response = match sub.kind {
                    Some((group, version, name)) if group == row.group => {
                        kind("", if version == row.version { "" } else { version }, name)
                    }
                    Some((group, version, name)) => kind(group, version, name),
                    None => kind("", "", &row.kind),
                };
                json!({"subresource": sub.name, "responseKind": response, "verbs": sub.verbs})
            })
            .collect();
        value["subresources"] = Value::Array(list);
    }
    value
}

/// `/api/v1` and `/apis/<group>/<version>`.
pub(crate) fn resource_list(table: &Table, group: &str, version: &str) -> Value {
    let mut resources = Vec::new();
    for row in sorted(table, group, version) {
        let namespaced = row.is_namespaced();
        let mut value = json!({"name": row.plural, "singularName": row.singular, "namespaced": namespaced,
            "kind": row.kind, "verbs": row.verbs});
        if !row.short_names.is_empty() {
            value["shortNames"] = json!(row.short_names);
        }
        if !row.categories.is_empty() {
            value["categories"] = json!(row.categories);
        }
        if row.has_verb(&Verb::Watch) {
            value["storageVersionHash"] = storage_hash(row).into();
        }
        resources.push(value);
        for sub in &row.subresources {
            let kind = sub.kind.map_or(&*row.kind, |(_, _, kind)| kind);
            let mut value = json!({"name": format!("{}/{}", row.plural, sub.name), "singularName": "",
                "namespaced": namespaced, "kind": kind, "verbs": sub.verbs});
            if let Some((group, version, _)) =
                sub.kind.filter(|(group, version, _)| *group != row.group || *version != row.version)
            {
                value["group"] = group.into();
                value["version"] = version.into();
            }
            resources.push(value);
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group_version, "resources": resources})
}

/// Tells clients when the stored form changes.
fn storage_hash(row: &Resource) -> String {
    use base64::Engine;
    let text = format!("{}/{}", row.storage_version, row.kind);
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    base64::engine::general_purpose::STANDARD.encode(&digest.as_ref()[..8])
}

impl Documents {
    pub(crate) fn new(table: Arc<Table>, backends: Arc<[Arc<Backend>]>) -> Self {
        let groups = listed(&table, &backends);
        let mut paths: Vec<String> = ["/.well-known/openid-configuration", "/api", "/api/v1", "/apis", "/apis/"]
            .iter()
            .map(|path| (*path).to_owned())
            .collect();
        let mut group_list = Vec::new();
        for (group, versions) in groups.iter().filter(|(group, _)| !group.is_empty()) {
            paths.push(format!("/apis/{group}"));
            paths.extend(versions.iter().map(|version| format!("/apis/{group}/{}", version.name)));
            let version = |version: &Version<'_>| json!({"groupVersion": format!("{group}/{}", version.name), "version": version.name});
            let all: Vec<Value> = versions.iter().map(version).collect();
            let preferred = versions.first().map(version).unwrap_or_default();
            group_list.push(json!({"name": group, "versions": all, "preferredVersion": preferred}));
        }
        for path in [
            "/flagz",
            "/healthz",
            "/livez",
            "/metrics",
            "/metrics/slis",
            "/openapi/v2",
            "/openapi/v3",
            "/openid/v1/jwks",
            "/readyz",
            "/statusz",
            "/version",
        ] {
            paths.push(path.to_owned());
        }
        paths.retain(|path| path != "/apis/");
        paths.compact_sort();
        Self {
            core: Aggregated::new(&table, &groups, str::is_empty),
            groups: Aggregated::new(&table, &groups, |group| !group.is_empty()),
            openapi: Default::default(),
            table,
            backends,
            group_list,
            paths,
        }
    }

    pub(crate) fn root_paths(&self) -> Value {
        json!({"paths": self.paths})
    }

    pub(crate) fn api_versions(&self, address: &str) -> Value {
        json!({"kind": "APIVersions", "versions": ["v1"],
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}]})
    }

    pub(crate) fn group_list(&self) -> Value {
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": self.group_list})
    }

    pub(crate) fn group(&self, name: &str) -> Option<Value> {
        let mut group = self.group_list.iter().find(|group| group["name"] == name)?.clone();
        group["kind"] = "APIGroup".into();
        group["apiVersion"] = "v1".into();
        Some(group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use registry::RuntimeConfig;

    #[test]
    fn pods_are_described() {
        let table = Table::new(&RuntimeConfig::default());
        let list = resource_list(&table, "", "v1");
        let find =
            |name: &str| list["resources"].as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone();
        assert_eq!(find("pods")["shortNames"], json!(["po"]));
        assert_eq!(find("pods/eviction")["group"], "policy");
        assert_eq!(find("pods/exec")["verbs"], json!(["create", "get"]));
        assert_eq!(find("namespaces/finalize")["verbs"], json!(["update"]));
    }
}

//! The paths of an OpenAPI document that are not about a resource: groups, versions, the version of the server, the issuer
//! of tokens.

use api::schema::Document;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList, APIVersions};
use registry::Table;
use serde_json::{Map, Value, json};

use super::openapi_paths::{Dialect, MEDIA, capitalized, group_tag};

const INFO: &str = "io.k8s.apimachinery.pkg.version.Info";

/// Adds all of them.
pub(super) fn add(table: &Table, dialect: Dialect, document: &mut Document, paths: &mut Map<String, Value>) {
    let mut add = |path: &str, id: &str, tag: &str, description: &str, answer: Option<String>| {
        paths.insert(path.to_owned(), json!({"get": operation(dialect, id, tag, description, answer)}));
    };
    let group_list = Some(described::<APIGroupList>(document));
    let (group_of, resources) = (described::<APIGroup>(document), described::<APIResourceList>(document));
    let versions = Some(described::<APIVersions>(document));
    add("/api/", "getCoreAPIVersions", "core", "get available API versions", versions);
    add("/apis/", "getAPIVersions", "apis", "get available API versions", group_list);
    for (group, versions) in table.groups() {
        let tag = group_tag(group);
        let base = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        if !group.is_empty() {
            let id = format!("get{}APIGroup", capitalized(&tag));
            add(&format!("{base}/"), &id, &tag, "get information of a group", Some(group_of.clone()));
        }
        for version in versions {
            let id = format!("get{}{}APIResources", capitalized(&tag), capitalized(version));
            let (path, tag) = (format!("{base}/{version}/"), format!("{tag}_{version}"));
            add(&path, &id, &tag, "get available resources", Some(resources.clone()));
        }
    }
    document.add(INFO);
    let info = Some(INFO.to_owned());
    add("/version/", "getCodeVersion", "version", "get the version information for this server", info);
    let (issuer, keys) = ("/.well-known/openid-configuration/", "/openid/v1/jwks/");
    let what = "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'";
    add(issuer, "getServiceAccountIssuerOpenIDConfiguration", "WellKnown", what, None);
    let what = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)";
    add(keys, "getServiceAccountIssuerOpenIDKeyset", "openid", what, None);
}

fn described<K: k8s_openapi::Resource>(document: &mut Document) -> String {
    document.add_kind(K::API_VERSION, K::KIND)
}

fn operation(dialect: Dialect, id: &str, tag: &str, description: &str, answer: Option<String>) -> Value {
    let schema = answer.map_or_else(|| json!({"type": "string"}), |name| dialect.reference(&name));
    let mut ok = json!({"description": "OK"});
    match dialect {
        Dialect::V2 => ok["schema"] = schema,
        Dialect::V3 => ok["content"] = json!({"application/json": {"schema": schema}}),
    }
    let mut operation = json!({"description": description, "operationId": id, "tags": [tag],
        "responses": {"200": ok, "401": {"description": "Unauthorized"}}});
    if dialect == Dialect::V2 {
        operation["consumes"] = json!(MEDIA);
        operation["produces"] = json!(MEDIA);
        operation["schemes"] = json!(["https"]);
    }
    operation
}

//! The paths of an OpenAPI document that are not about a resource: groups, versions, the version of the server, the issuer
//! of tokens.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, APIGroupList, APIResourceList, APIVersions};
use k8s_openapi::apimachinery::pkg::version::Info;
use k8s_openapi::schemars::{JsonSchema, SchemaGenerator};
use registry::Table;
use serde_json::{Map, Value, json};

use super::openapi_paths::{Dialect, MEDIA, capitalized, group_tag};

/// Adds all of them.
pub(super) fn add(table: &Table, dialect: Dialect, generator: &mut SchemaGenerator, paths: &mut Map<String, Value>) {
    let mut add = |path: &str, id: &str, tag: &str, description: &str, answer: Option<String>| {
        paths.insert(path.to_owned(), json!({"get": operation(dialect, id, tag, description, answer)}));
    };
    let group_list = Some(described::<APIGroupList>(generator));
    let (group_of, resources) = (described::<APIGroup>(generator), described::<APIResourceList>(generator));
    let versions = Some(described::<APIVersions>(generator));
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
    let info = Some(described::<Info>(generator));
    add("/version/", "getCodeVersion", "version", "get the version information for this server", info);
    let (issuer, keys) = ("/.well-known/openid-configuration/", "/openid/v1/jwks/");
    let what = "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'";
    add(issuer, "getServiceAccountIssuerOpenIDConfiguration", "WellKnown", what, None);
    let what = "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)";
    add(keys, "getServiceAccountIssuerOpenIDKeyset", "openid", what, None);
}

fn described<K: JsonSchema>(generator: &mut SchemaGenerator) -> String {
    generator.subschema_for::<K>();
    K::schema_name().into_owned()
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

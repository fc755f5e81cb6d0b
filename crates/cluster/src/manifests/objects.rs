//! From text to objects. Pure.

use api::documents;
use api::yaml::Rules;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub(super) const DEFAULT_NAMESPACE: &str = "default";
/// More are a mistake.
const MAX_OBJECTS: usize = 10_000;

/// Which object it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Identity {
    pub api_version: String,
    pub kind: String,
    /// Empty where the manifest names none.
    pub namespace: String,
    pub name: String,
}

impl Identity {
    /// Whether both name the same object, in whichever versions.
    pub(super) fn is(&self, other: &Identity) -> bool {
        let key = |one: &Identity| (one.group().to_owned(), one.kind.clone(), one.place().to_owned(), one.name.clone());
        key(self) == key(other)
    }

    /// Where no namespace is named it is the default one. Kinds that are in none are never given one.
    fn place(&self) -> &str {
        if self.namespace.is_empty() { DEFAULT_NAMESPACE } else { &self.namespace }
    }

    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

impl std::fmt::Display for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = self.kind.to_lowercase();
        match self.namespace.as_str() {
            "" => write!(f, "{kind}/{}", self.name),
            namespace => write!(f, "{kind}/{} in {namespace}", self.name),
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Object {
    pub(super) identity: Identity,
    pub(super) value: Value,
}

/// Why a file is not applied.
#[derive(Debug, thiserror::Error)]
pub(super) enum BadManifest {
    /// It could not be read.
    #[error("{0}")]
    Unreadable(String),
    #[error("{0}")]
    Yaml(String),
    #[error("{0} is there twice")]
    Twice(Identity),
    #[error("{identity} is in {file} too")]
    Elsewhere { identity: Identity, file: String },
    #[error("an object has no apiVersion or no kind")]
    NoKind,
    #[error("a {0} has no name")]
    NoName(String),
    #[error("more than {MAX_OBJECTS} objects")]
    TooMany,
}

/// The objects of a file, lists taken apart. A mistake anywhere makes it none.
pub(super) fn parse(text: &str) -> Result<Vec<Object>, BadManifest> {
    let (values, failure) = documents::read_all(text, Rules::Full);
    if let Some(failure) = failure {
        return Err(BadManifest::Yaml(failure.to_string()));
    }
    let mut objects = Vec::new();
    for value in values {
        take(value, &mut objects)?;
    }
    for (at, object) in objects.iter().enumerate() {
        if objects[..at].iter().any(|before| before.identity.is(&object.identity)) {
            return Err(BadManifest::Twice(object.identity.clone()));
        }
    }
    Ok(objects)
}

fn take(mut value: Value, objects: &mut Vec<Object>) -> Result<(), BadManifest> {
    let text = |pointer: &str| value.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let (api_version, kind) = (text("/apiVersion"), text("/kind"));
    if !value.is_object() || api_version.is_empty() || kind.is_empty() {
        return Err(BadManifest::NoKind);
    }
    if kind.ends_with("List") && value["items"].is_array() {
        let Value::Array(items) = value["items"].take() else { return Ok(()) };
        return items.into_iter().try_for_each(|item| take(item, objects));
    }
    let (namespace, name) = (text("/metadata/namespace"), text("/metadata/name"));
    if name.is_empty() {
        return Err(BadManifest::NoName(kind));
    }
    if objects.len() == MAX_OBJECTS {
        return Err(BadManifest::TooMany);
    }
    objects.push(Object { identity: Identity { api_version, kind, namespace, name }, value });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_objects_or_nothing() {
        let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\n# nothing\n---\napiVersion: v1\nkind: List\n\
                    items:\n- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: a}}\n";
        let found = parse(text).unwrap();
        let told: Vec<String> = found.iter().map(|object| object.identity.to_string()).collect();
        assert_eq!(told, ["namespace/a", "deployment/d in a"]);
        assert_eq!(parse("").unwrap(), []);
        for (text, why) in [
            ("a: [", "yaml"),
            ("kind: Pod\nmetadata: {name: a}", "no apiVersion"),
            ("- 1", "no apiVersion"),
            ("{apiVersion: v1, kind: Pod, metadata: {generateName: a-}}", "a Pod has no name"),
            (
                "apiVersion: apps/v1\nkind: X\nmetadata: {name: a}\n---\napiVersion: apps/v2\nkind: X\nmetadata: {name: a}",
                "x/a is there twice",
            ),
            (
                "apiVersion: v1\nkind: X\nmetadata: {name: a}\n---\napiVersion: v1\nkind: X\nmetadata: {name: a, namespace: default}",
                "x/a in default is there twice",
            ),
            // The second half of a file is missing.
            ("apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n---\napiVersion: v1\nkind: {Names", "yaml"),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}

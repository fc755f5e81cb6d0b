//! The secret that a class names for taking and deleting snapshots (`GetSecretReference` of external-snapshotter): pure.
//!
//! It is written down in annotations of the content, where the driver's snapshotter finds it for CreateSnapshot and, when class and
//! snapshot may be gone, for DeleteSnapshot. Parameters of this prefix are for whoever calls the driver, and not passed on to it.

use std::collections::{BTreeMap, BTreeSet};

use api::meta::Meta as _;
use serde_json::{Value, json};

use super::kinds::VolumeSnapshot;

const NAME_PARAMETER: &str = "csi.storage.k8s.io/snapshotter-secret-name";
const NAMESPACE_PARAMETER: &str = "csi.storage.k8s.io/snapshotter-secret-namespace";
const NAME_ANNOTATION: &str = "snapshot.storage.kubernetes.io/deletion-secret-name";
const NAMESPACE_ANNOTATION: &str = "snapshot.storage.kubernetes.io/deletion-secret-namespace";

/// Why a class does not say which secret it is.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(super) enum SecretError {
    #[error(
        "failed to get name and namespace template from params: \
         either name and namespace for Snapshotter secrets specified, Both must be specified"
    )]
    Half,
    #[error(
        "failed to get name and namespace template from params: \
         Snapshotter secrets specified in parameters but value of either namespace or name is empty"
    )]
    Empty,
    #[error("error resolving value {template:?}: invalid tokens: [{}]", quoted(.unknown))]
    Unknown { template: String, unknown: BTreeSet<String> },
    #[error("{template:?} is not a valid {what} name")]
    Invalid { template: String, what: &'static str },
    #[error("{template:?} resolved to {resolved:?} which is not a valid {what} name")]
    Resolved { template: String, resolved: String, what: &'static str },
}

fn quoted(words: &BTreeSet<String>) -> String {
    words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(" ")
}

#[derive(Debug, PartialEq)]
pub(super) struct SecretReference {
    namespace: String,
    name: String,
}

impl SecretReference {
    /// What the parameters of a class say; none if they say nothing.
    pub(super) fn of(
        parameters: Option<&BTreeMap<String, String>>,
        content: &str,
        snapshot: &VolumeSnapshot,
    ) -> Result<Option<Self>, SecretError> {
        let given = |key: &str| parameters.and_then(|all| all.get(key)).map(String::as_str);
        let (name, namespace) = match (given(NAME_PARAMETER), given(NAMESPACE_PARAMETER)) {
            (None, None) => return Ok(None),
            (Some(""), Some(_)) | (Some(_), Some("")) => return Err(SecretError::Empty),
            (Some(name), Some(namespace)) => (name, namespace),
            _ => return Err(SecretError::Half),
        };
        let mut known = BTreeMap::from([
            ("volumesnapshotcontent.name", content),
            ("volumesnapshot.namespace", snapshot.metadata.namespace()),
        ]);
        // Whoever makes a snapshot chooses its name, which must not lead into another namespace.
        let namespace = resolved(namespace, &known, "namespace", api::validation::is_dns1123_label)?;
        known.insert("volumesnapshot.name", snapshot.metadata.name());
        let name = resolved(name, &known, "secret", api::validation::is_dns1123_subdomain)?;
        Ok(Some(SecretReference { namespace, name }))
    }

    /// As the content has it.
    pub(super) fn annotations(&self) -> Value {
        json!({ NAME_ANNOTATION: self.name, NAMESPACE_ANNOTATION: self.namespace })
    }
}

fn resolved(
    template: &str,
    known: &BTreeMap<&str, &str>,
    what: &'static str,
    is_valid: fn(&str) -> bool,
) -> Result<String, SecretError> {
    let (mut resolved, mut unknown, mut rest) = (String::new(), BTreeSet::new(), template);
    while let Some((before, after)) = rest.split_once('$') {
        resolved.push_str(before);
        let (token, left) = match after.strip_prefix('{') {
            Some(inner) => inner.split_once('}').unwrap_or((inner, "")),
            None => {
                let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
                after.split_at(after.find(|letter| !is_part(letter)).unwrap_or(after.len()))
            }
        };
        match known.get(token) {
            Some(value) => resolved.push_str(value),
            None => drop(unknown.insert(token.to_owned())),
        }
        rest = left;
    }
    resolved.push_str(rest);
    let template = template.to_owned();
    if !unknown.is_empty() {
        return Err(SecretError::Unknown { template, unknown });
    }
    match is_valid(&resolved) {
        true => Ok(resolved),
        false if resolved == template => Err(SecretError::Invalid { template, what }),
        false => Err(SecretError::Resolved { template, resolved, what }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_class_names_the_secret_of_its_snapshots() {
        let snapshot: VolumeSnapshot =
            serde_json::from_value(json!({ "metadata": { "name": "s", "namespace": "ns" } })).unwrap();
        let half = "failed to get name and namespace template from params: either name and namespace for Snapshotter \
            secrets specified, Both must be specified";
        let empty = "failed to get name and namespace template from params: Snapshotter secrets specified in parameters \
            but value of either namespace or name is empty";
        for (name, namespace, expected) in [
            (None, None, Ok(None)),
            (Some("key"), Some("storage"), Ok(Some(("key", "storage")))),
            (
                Some("${volumesnapshotcontent.name}-${volumesnapshot.namespace}.${volumesnapshot.name}"),
                Some("${volumesnapshot.namespace}"),
                Ok(Some(("content-ns.s", "ns"))),
            ),
            (Some("key"), None, Err(half)),
            (None, Some("storage"), Err(half)),
            (Some(""), Some("storage"), Err(empty)),
            (Some("key"), Some(""), Err(empty)),
            (
                Some("key"),
                Some("${volumesnapshot.name}"),
                Err("error resolving value \"${volumesnapshot.name}\": invalid tokens: [\"volumesnapshot.name\"]"),
            ),
            (
                Some("${b}-$a-${b}"),
                Some("storage"),
                Err("error resolving value \"${b}-$a-${b}\": invalid tokens: [\"a\" \"b\"]"),
            ),
            (Some("key"), Some("a.b"), Err("\"a.b\" is not a valid namespace name")),
            (Some("Key"), Some("storage"), Err("\"Key\" is not a valid secret name")),
            (
                Some("-${volumesnapshot.name}"),
                Some("storage"),
                Err("\"-${volumesnapshot.name}\" resolved to \"-s\" which is not a valid secret name"),
            ),
        ] {
            let mut parameters = BTreeMap::from([("other".to_owned(), "x".to_owned())]);
            parameters.extend(name.map(|name| (NAME_PARAMETER.to_owned(), name.to_owned())));
            parameters.extend(namespace.map(|namespace| (NAMESPACE_PARAMETER.to_owned(), namespace.to_owned())));
            let found = SecretReference::of(Some(&parameters), "content", &snapshot);
            let found = found.map(|found| found.map(|secret| (secret.name, secret.namespace)));
            let expected = expected.map(|found| found.map(|(name, namespace)| (name.into(), namespace.into())));
            assert_eq!(
                found.map_err(|error| error.to_string()),
                expected.map_err(str::to_owned),
                "{name:?} {namespace:?}"
            );
        }
    }
}

//! From text to pods of this node. Pure.

use std::hash::Hasher;

use k8s_openapi::api::core::v1::{Pod, Toleration, Volume};
use serde_json::Value;

use super::{HASH, SOURCE};
use crate::env;

/// Where a manifest came from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Origin<'a> {
    File(&'a str),
    Url(&'a str),
}

/// Why a text is no pod of this node.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error(transparent)]
    Yaml(#[from] yaml_serde::Error),
    #[error(transparent)]
    Pod(#[from] serde_json::Error),
    #[error("neither a pod nor a list of pods")]
    Kind,
    #[error("invalid pod: {0} is needed for the pod")]
    Missing(&'static str),
    #[error("static pods may not reference {0}")]
    Reference(&'static str),
}

/// One pod.
pub(super) fn pod(text: &str, origin: Origin<'_>, node: &str) -> Result<Pod, ManifestError> {
    make(yaml_serde::from_str(text)?, origin, node)
}

/// One pod, or a list of them.
pub(super) fn pods(text: &str, origin: Origin<'_>, node: &str) -> Result<Vec<Pod>, ManifestError> {
    let mut value: Value = yaml_serde::from_str(text)?;
    if value["kind"] == "Pod" {
        return Ok(vec![make(value, origin, node)?]);
    }
    match value["items"].take() {
        Value::Array(items) => items.into_iter().map(|item| make(item, origin, node)).collect(),
        _ => Err(ManifestError::Kind),
    }
}

/// Makes it a pod of this node, as upstream's `applyDefaults` does.
fn make(value: Value, origin: Origin<'_>, node: &str) -> Result<Pod, ManifestError> {
    let (source, place) = match origin {
        Origin::File(path) => ("file", path),
        Origin::Url(url) => ("http", url),
    };
    let hash = content_hash(&[node.as_bytes(), place.as_bytes(), value.to_string().as_bytes()]);
    let mut pod: Pod = api::codec::from_value(&value)?;
    let given = pod.metadata.name.clone().filter(|name| !name.is_empty());
    let name = given.ok_or(ManifestError::Missing("name"))?;
    if let Some(resource) = api_reference(&pod) {
        return Err(ManifestError::Reference(resource));
    }
    let spec = pod.spec.as_mut().ok_or(ManifestError::Missing("spec"))?;
    spec.node_name = Some(node.to_string());
    if source == "file" {
        spec.tolerations.get_or_insert_default().push(Toleration {
            operator: Some("Exists".into()),
            effect: Some("NoExecute".into()),
            ..Default::default()
        });
    }
    pod.metadata.name = Some(format!("{name}-{}", node.to_lowercase()));
    pod.metadata.namespace.get_or_insert_with(|| "default".into());
    let uid = pod.metadata.uid.get_or_insert(hash).clone();
    // Only what the API holds has one.
    pod.metadata.resource_version = None;
    let annotations = pod.metadata.annotations.get_or_insert_default();
    annotations.insert(SOURCE.into(), source.into());
    annotations.insert(HASH.into(), uid);
    Ok(pod)
}

/// What a pod needs from the API, in upstream's words (`HasAPIObjectReference`): a static pod must run without.
fn api_reference(pod: &Pod) -> Option<&'static str> {
    let spec = pod.spec.as_ref()?;
    if spec.service_account_name.as_deref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    let containers = || spec.init_containers.iter().flatten().chain(&spec.containers);
    if spec.image_pull_secrets.as_ref().is_some_and(|list| !list.is_empty())
        || containers().any(|container| !env::referenced(container).1.is_empty())
    {
        return Some("secrets");
    }
    if containers().any(|container| !env::referenced(container).0.is_empty()) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|list| !list.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(volume_reference)
}

fn volume_reference(volume: &Volume) -> Option<&'static str> {
    let of_volume = [
        (volume.config_map.is_some(), "configmaps (via configmap volumes)"),
        (volume.secret.is_some(), "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
    ];
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    let of_sources = projected.flat_map(|source| {
        [
            (source.config_map.is_some(), "configmaps (via projected volumes)"),
            (source.secret.is_some(), "secrets (via projected volumes)"),
            (source.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
            (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
            (source.pod_certificate.is_some(), "podcertificates"),
        ]
    });
    of_volume.into_iter().chain(of_sources).find_map(|(is_it, name)| is_it.then_some(name))
}

/// 32 hexadecimal digits, as upstream's are.
fn content_hash(parts: &[&[u8]]) -> String {
    let mut halves = [0u64; 2];
    for (seed, half) in halves.iter_mut().enumerate() {
        let mut hash = Fnv64(0xcbf2_9ce4_8422_2325 ^ (seed as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        for part in parts {
            hash.write(part);
            hash.write(&[0xff]);
        }
        *half = hash.finish();
    }
    format!("{:016x}{:016x}", halves[0], halves[1])
}

struct Fnv64(u64);

impl Hasher for Fnv64 {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state;
    use crate::static_pods::{is_mirror, is_static};

    const TEXT: &str =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: nginx}]}\n";

    #[test]
    fn files_become_pods_of_this_node() {
        let file = Origin::File("/etc/web.yaml");
        let made = pod(TEXT, file, "n1").unwrap();
        assert_eq!(state::full_name(&made), "default/web-n1");
        assert_eq!(made.spec.as_ref().unwrap().node_name.as_deref(), Some("n1"));
        assert!(!is_mirror(&made) && is_static(&made));
        assert_eq!(pod(TEXT, file, "n1").unwrap(), made, "the same file is the same pod");
        let saved = TEXT.replace("{name: web}", "{name: web, resourceVersion: '7'}");
        assert!(is_static(&pod(&saved, file, "n1").unwrap()), "what was once in the API is a pod of this node");
        for (text, origin, node) in [
            (TEXT.replace("nginx", "nginx:2"), file, "n1"),
            (TEXT.to_string(), file, "n2"),
            (TEXT.to_string(), Origin::Url("/etc/web.yaml"), "n3"),
        ] {
            assert_ne!(pod(&text, origin, node).unwrap().metadata.uid, made.metadata.uid);
        }
    }

    #[test]
    fn addresses_may_have_lists() {
        let url = Origin::Url("http://127.0.0.1/pods");
        assert_eq!(pods(TEXT, url, "n").unwrap().len(), 1);
        let list = r#"{"kind": "PodList", "items": [
            {"metadata": {"name": "a"}, "spec": {"containers": []}}, {"metadata": {"name": "b"}, "spec": {"containers": []}}]}"#;
        let names: Vec<String> = pods(list, url, "n").unwrap().iter().map(state::full_name).collect();
        assert_eq!(names, ["default/a-n", "default/b-n"]);
        assert!(pods("kind: Node", url, "n").is_err());
        assert!(pods("kind: Pod\nspec: {containers: []}", url, "n").is_err(), "without a name");
    }

    #[test]
    fn the_api_is_not_needed() {
        for (spec, expected) in [
            ("serviceAccountName: x", "serviceaccounts"),
            ("imagePullSecrets: [{name: x}]", "secrets"),
            ("volumes: [{name: v, configMap: {name: x}}]", "configmaps (via configmap volumes)"),
            ("volumes: [{name: v, projected: {sources: [{secret: {name: x}}]}}]", "secrets (via projected volumes)"),
            ("volumes: [{name: v, persistentVolumeClaim: {claimName: x}}]", "persistentvolumeclaims"),
        ] {
            let text = format!("kind: Pod\nmetadata: {{name: x}}\nspec:\n  containers: []\n  {spec}\n");
            let refused = pod(&text, Origin::File("f"), "n").unwrap_err().to_string();
            assert_eq!(refused, format!("static pods may not reference {expected}"));
        }
    }
}

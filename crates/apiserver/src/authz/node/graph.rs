//! What leads to which node: object -> pod -> node, volume -> claim -> pod -> node, attachment -> node, slice -> node.
//!
//! Edges are those of upstream's node authorizer. A mirror pod leads to its node and to nothing else: a kubelet makes them
//! itself, and must not give itself access by doing so.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use api::meta::Meta as _;
use k8s_openapi::api::core::v1::{EnvFromSource, EnvVar, PersistentVolume, Pod, PodSpec, SecretReference};

/// A kind of object that a pod can refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Secret,
    ConfigMap,
    Claim,
    ServiceAccount,
    ResourceClaim,
}

type Object = (Kind, String, String);

#[derive(Default)]
pub(super) struct Graph {
    /// By `<namespace>/<name>`.
    pods: HashMap<Box<str>, Placed>,
    /// How often pods of each node refer to an object: some are referred to by every pod there is.
    users: HashMap<Arc<Object>, HashMap<Box<str>, usize>>,
    volumes: HashMap<String, Volume>,
    /// Which volumes need a secret.
    volumes_with: HashMap<Object, HashSet<String>>,
    /// The node of each volume attachment.
    attachments: HashMap<String, String>,
    /// The node of each slice of devices that is on one.
    slices: HashMap<String, String>,
    /// The node that asked for each certificate of a pod, by `<namespace>/<name>`.
    requests: HashMap<String, String>,
}

struct Placed {
    node: Box<str>,
    refers_to: Box<[Arc<Object>]>,
}

struct Volume {
    claim: Object,
    secrets: Vec<Object>,
}

impl Graph {
    /// Whether a pod on the node refers to the object, itself or through a volume.
    pub(super) fn reaches(&self, kind: Kind, namespace: &str, name: &str, node: &str) -> bool {
        let object = (kind, namespace.to_owned(), name.to_owned());
        self.is_used_on(&object, node)
            || self.volumes_with.get(&object).into_iter().flatten().any(|volume| self.volume_reaches(volume, node))
    }

    pub(super) fn volume_reaches(&self, volume: &str, node: &str) -> bool {
        self.volumes.get(volume).is_some_and(|volume| self.is_used_on(&volume.claim, node))
    }

    pub(super) fn pod_is_on(&self, namespace: &str, name: &str, node: &str) -> bool {
        self.pods.get(format!("{namespace}/{name}").as_str()).is_some_and(|pod| *pod.node == *node)
    }

    pub(super) fn attachment_is_on(&self, name: &str, node: &str) -> bool {
        self.attachments.get(name).is_some_and(|of| of == node)
    }

    pub(super) fn slice_is_on(&self, name: &str, node: &str) -> bool {
        self.slices.get(name).is_some_and(|of| of == node)
    }

    pub(super) fn request_is_of(&self, namespace: &str, name: &str, node: &str) -> bool {
        self.requests.get(&format!("{namespace}/{name}")).is_some_and(|of| of == node)
    }

    fn is_used_on(&self, object: &Object, node: &str) -> bool {
        self.users.get(object).is_some_and(|nodes| nodes.contains_key(node))
    }

    pub(super) fn set_pod(&mut self, key: &str, pod: Option<&Pod>) {
        if let Some(old) = self.pods.remove(key) {
            for object in old.refers_to.iter() {
                self.forget_use(object, &old.node);
            }
        }
        let Some(spec) = pod.and_then(|pod| pod.spec.as_ref()) else { return };
        let Some(node) = spec.node_name.as_deref().filter(|node| !node.is_empty()) else { return };
        let refers_to = pod.map(references).unwrap_or_default();
        let refers_to = refers_to.into_iter().map(|object| self.note_use(object, node)).collect();
        self.pods.insert(key.into(), Placed { node: node.into(), refers_to });
    }

    /// The object as all share it who refer to it.
    fn note_use(&mut self, object: Object, node: &str) -> Arc<Object> {
        let known = self.users.get_key_value(&object).map(|(known, _)| known.clone());
        let object = known.unwrap_or_else(|| Arc::new(object));
        *self.users.entry(object.clone()).or_default().entry(node.into()).or_default() += 1;
        object
    }

    fn forget_use(&mut self, object: &Arc<Object>, node: &str) {
        let Some(nodes) = self.users.get_mut(object) else { return };
        match nodes.get_mut(node) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                nodes.remove(node);
            }
        }
        if nodes.is_empty() {
            self.users.remove(object);
        }
    }

    pub(super) fn clear_pods(&mut self) {
        self.pods.clear();
        self.users.clear();
    }

    pub(super) fn set_volume(&mut self, name: &str, volume: Option<&PersistentVolume>) {
        if let Some(old) = self.volumes.remove(name) {
            for secret in &old.secrets {
                unlink(&mut self.volumes_with, secret, name);
            }
        }
        let spec = volume.and_then(|volume| volume.spec.as_ref());
        let Some((spec, claim)) = spec.and_then(|spec| spec.claim_ref.as_ref().map(|claim| (spec, claim))) else {
            return;
        };
        let namespace = claim.namespace.clone().unwrap_or_default();
        let claim = (Kind::Claim, namespace.clone(), claim.name.clone().unwrap_or_default());
        let secrets = volume_secrets(spec, &namespace);
        for secret in &secrets {
            self.volumes_with.entry(secret.clone()).or_default().insert(name.to_owned());
        }
        self.volumes.insert(name.to_owned(), Volume { claim, secrets });
    }

    pub(super) fn clear_volumes(&mut self) {
        self.volumes.clear();
        self.volumes_with.clear();
    }

    pub(super) fn set_attachment(&mut self, name: &str, node: Option<String>) {
        match node {
            Some(node) => drop(self.attachments.insert(name.to_owned(), node)),
            None => drop(self.attachments.remove(name)),
        }
    }

    pub(super) fn clear_attachments(&mut self) {
        self.attachments.clear();
    }

    pub(super) fn set_slice(&mut self, name: &str, node: Option<String>) {
        match node {
            Some(node) => drop(self.slices.insert(name.to_owned(), node)),
            None => drop(self.slices.remove(name)),
        }
    }

    pub(super) fn clear_slices(&mut self) {
        self.slices.clear();
    }

    pub(super) fn set_request(&mut self, key: &str, node: Option<String>) {
        match node {
            Some(node) => drop(self.requests.insert(key.to_owned(), node)),
            None => drop(self.requests.remove(key)),
        }
    }

    pub(super) fn clear_requests(&mut self) {
        self.requests.clear();
    }
}

fn unlink(map: &mut HashMap<Object, HashSet<String>>, object: &Object, key: &str) {
    if let Some(keys) = map.get_mut(object) {
        keys.remove(key);
        if keys.is_empty() {
            map.remove(object);
        }
    }
}

/// Everything a pod needs its node to read.
fn references(pod: &Pod) -> Vec<Object> {
    let annotations = pod.metadata.annotations.as_ref();
    if annotations.is_some_and(|annotations| annotations.contains_key("kubernetes.io/config.mirror")) {
        return Vec::new();
    }
    let Some(spec) = &pod.spec else { return Vec::new() };
    let mut found: Vec<(Kind, String)> = Vec::new();
    found.extend(spec.service_account_name.clone().map(|name| (Kind::ServiceAccount, name)));
    found.extend(spec.image_pull_secrets.iter().flatten().map(|secret| (Kind::Secret, secret.name.clone())));
    in_environments(spec, &mut found);
    in_volumes(pod, spec, &mut found);
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let claims = spec.resource_claims.iter().flatten().filter_map(|claim| claim.resource_claim_name.clone());
    let made = statuses.filter_map(|status| status.resource_claim_name.clone());
    found.extend(claims.chain(made).map(|name| (Kind::ResourceClaim, name)));
    let namespace = pod.metadata.namespace().to_owned();
    found.retain(|(_, name)| !name.is_empty());
    found.into_iter().map(|(kind, name)| (kind, namespace.clone(), name)).collect()
}

fn in_environments(spec: &PodSpec, found: &mut Vec<(Kind, String)>) {
    let main = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    let main = main.map(|container| (container.env.as_deref(), container.env_from.as_deref()));
    let late = spec.ephemeral_containers.iter().flatten();
    let late = late.map(|container| (container.env.as_deref(), container.env_from.as_deref()));
    for (env, env_from) in main.chain(late) {
        let env: &[EnvVar] = env.unwrap_or_default();
        for source in env.iter().filter_map(|variable| variable.value_from.as_ref()) {
            found.extend(source.secret_key_ref.iter().map(|key| (Kind::Secret, key.name.clone())));
            found.extend(source.config_map_key_ref.iter().map(|key| (Kind::ConfigMap, key.name.clone())));
        }
        let env_from: &[EnvFromSource] = env_from.unwrap_or_default();
        for source in env_from {
            found.extend(source.secret_ref.iter().map(|secret| (Kind::Secret, secret.name.clone())));
            found.extend(source.config_map_ref.iter().map(|map| (Kind::ConfigMap, map.name.clone())));
        }
    }
}

fn in_volumes(pod: &Pod, spec: &PodSpec, found: &mut Vec<(Kind, String)>) {
    let pod_name = pod.metadata.name();
    for volume in spec.volumes.iter().flatten() {
        found.extend(volume.secret.iter().filter_map(|secret| Some((Kind::Secret, secret.secret_name.clone()?))));
        found.extend(volume.config_map.iter().map(|map| (Kind::ConfigMap, map.name.clone())));
        found.extend(api::claim::of_volume(pod_name, volume).map(|(name, _)| (Kind::Claim, name)));
        for source in volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten()) {
            found.extend(source.secret.iter().map(|secret| (Kind::Secret, secret.name.clone())));
            found.extend(source.config_map.iter().map(|map| (Kind::ConfigMap, map.name.clone())));
        }
        let local = [
            volume.csi.as_ref().and_then(|csi| csi.node_publish_secret_ref.as_ref()),
            volume.cephfs.as_ref().and_then(|ceph| ceph.secret_ref.as_ref()),
            volume.rbd.as_ref().and_then(|rbd| rbd.secret_ref.as_ref()),
            volume.iscsi.as_ref().and_then(|iscsi| iscsi.secret_ref.as_ref()),
            volume.flex_volume.as_ref().and_then(|flex| flex.secret_ref.as_ref()),
            volume.scale_io.as_ref().map(|scale| &scale.secret_ref),
            volume.storageos.as_ref().and_then(|storage| storage.secret_ref.as_ref()),
        ];
        found.extend(local.into_iter().flatten().map(|secret| (Kind::Secret, secret.name.clone())));
        found.extend(volume.azure_file.iter().map(|azure| (Kind::Secret, azure.secret_name.clone())));
    }
}

/// The secrets a kubelet needs to mount a volume; those without a namespace are in the claim's.
fn volume_secrets(spec: &k8s_openapi::api::core::v1::PersistentVolumeSpec, namespace: &str) -> Vec<Object> {
    let mut references: Vec<&SecretReference> = Vec::new();
    if let Some(csi) = &spec.csi {
        let of_nodes = [&csi.node_publish_secret_ref, &csi.node_stage_secret_ref, &csi.node_expand_secret_ref];
        references.extend(of_nodes.into_iter().flatten());
    }
    references.extend(spec.cephfs.iter().filter_map(|ceph| ceph.secret_ref.as_ref()));
    references.extend(spec.rbd.iter().filter_map(|rbd| rbd.secret_ref.as_ref()));
    references.extend(spec.iscsi.iter().filter_map(|iscsi| iscsi.secret_ref.as_ref()));
    references.extend(spec.flex_volume.iter().filter_map(|flex| flex.secret_ref.as_ref()));
    references.extend(spec.scale_io.iter().map(|scale| &scale.secret_ref));
    let place = |given: &Option<String>| given.clone().filter(|name| !name.is_empty()).unwrap_or(namespace.to_owned());
    let mut found: Vec<Object> = references
        .iter()
        .filter_map(|reference| Some((Kind::Secret, place(&reference.namespace), reference.name.clone()?)))
        .collect();
    let azure = spec.azure_file.as_ref();
    found.extend(azure.map(|azure| (Kind::Secret, place(&azure.secret_namespace), azure.secret_name.clone())));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(node: &str) -> Pod {
        let env_from = json!([{ "secretRef": { "name": "s" } }, { "secretRef": { "name": "s" } }]);
        let containers = json!([{ "name": "c", "envFrom": env_from }]);
        let spec = json!({ "nodeName": node, "serviceAccountName": "default", "containers": containers });
        serde_json::from_value(json!({ "metadata": { "namespace": "a" }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_node_reaches_what_its_pods_refer_to_until_the_last_of_them_goes() {
        let mut graph = Graph::default();
        let reaches = |graph: &Graph| {
            ["n", "m"].map(|node| {
                (graph.reaches(Kind::Secret, "a", "s", node), graph.reaches(Kind::ServiceAccount, "a", "default", node))
            })
        };
        let (both, neither) = ((true, true), (false, false));
        for (key, of, expected) in [
            ("a/1", Some("n"), [both, neither]),
            ("a/2", Some("n"), [both, neither]),
            ("a/3", Some("m"), [both, both]),
            ("a/1", Some("n"), [both, both]),
            ("a/1", None, [both, both]),
            ("a/3", Some("n"), [both, neither]),
            ("a/3", None, [both, neither]),
            ("a/2", None, [neither, neither]),
        ] {
            graph.set_pod(key, of.map(pod).as_ref());
            assert_eq!(reaches(&graph), expected, "{key} on {of:?}");
        }
        assert!(graph.users.is_empty() && graph.pods.is_empty());
    }
}

//! What a kubelet may do to pods: mirror its static ones, report on and remove those bound to it.

use api::meta::Meta as _;
use api::pod::{MIRROR, is_mirror};
use api::{GroupResource, Status};
use k8s_openapi::api::core::v1::{
    Container, Node, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume, VolumeProjection,
};
use k8s_openapi::api::storage::v1::CSIDriver;

use super::super::{Attributes, Verb, secret_references};
use crate::cluster::Cluster;
use crate::watch_cache::Unreadable;

pub(super) fn check(cluster: &Cluster, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let own = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()) == Some(node);
    let verb = attributes.verb.as_str();
    match (attributes.subresource, attributes.verb) {
        ("", Verb::Create) => create(cluster, attributes, node),
        ("", Verb::Delete) if attributes.old_ref::<Pod>().is_some_and(own) => Ok(()),
        ("", Verb::Delete) => {
            let message = format!("node {node:?} can only delete pods with spec.nodeName set to itself");
            Err(attributes.forbidden(message))
        }
        ("", _) => Err(attributes
            .forbidden(format!("unexpected operation {verb:?}, node {node:?} can only create and delete mirror pods"))),
        ("status", Verb::Update) => status(attributes, node, own),
        ("eviction", Verb::Create) => {
            let pod = cluster.objects().get::<Pod>(attributes.namespace, attributes.name)?;
            let missing = || Status::not_found(&GroupResource::new("", "pods"), attributes.name);
            if own(&*pod.ok_or_else(missing)?) {
                return Ok(());
            }
            let message = format!("node {node} can only evict pods with spec.nodeName set to itself");
            Err(attributes.forbidden(message))
        }
        ("status" | "eviction", _) => Err(attributes.forbidden(format!("unexpected operation {verb:?}"))),
        (other, _) => Err(attributes
            .forbidden(format!("unexpected pod subresource {other:?}, only 'status' and 'eviction' are allowed"))),
    }
}

fn status(attributes: &Attributes<'_>, node: &str, own: impl Fn(&Pod) -> bool) -> Result<(), Status> {
    let (Some(new), Some(old)) = (attributes.object_ref::<Pod>(), attributes.old_ref::<Pod>()) else { return Ok(()) };
    let refuse = |what: &str| Err(attributes.forbidden(format!("node {node:?} {what}")));
    if !own(old) {
        return refuse("can only update pod status for pods with spec.nodeName set to itself");
    }
    let labels = |pod: &Pod| pod.metadata.labels.clone().unwrap_or_default();
    if labels(new) != labels(old) {
        return refuse("cannot update labels through pod status");
    }
    let claims = |pod: &Pod| pod.status.as_ref().and_then(|status| status.resource_claim_statuses.clone());
    if claims(new).unwrap_or_default() != claims(old).unwrap_or_default() {
        return refuse("cannot update resource claim statues");
    }
    let extended = |pod: &Pod| pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.clone());
    if extended(new) != extended(old) {
        return refuse("cannot update extended resource claim status");
    }
    Ok(())
}

/// Static pods are shown by a pod that mirrors them, owned by the node.
fn create(cluster: &Cluster, attributes: &Attributes<'_>, node: &str) -> Result<(), Status> {
    let Some(pod) = attributes.object_ref::<Pod>() else { return Ok(()) };
    let refuse = |what: String| Err(attributes.forbidden(what));
    if !is_mirror(&pod.metadata) {
        return refuse(format!("pod does not have {MIRROR:?} annotation, node {node:?} can only create mirror pods"));
    }
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    if spec.node_name.as_deref() != Some(node) {
        return refuse(format!("node {node:?} can only create pods with spec.nodeName set to itself"));
    }
    let owner = match pod.metadata.owner_references.as_deref().unwrap_or_default() {
        [owner] => owner,
        [] => return refuse(format!("node {node:?} can only create pods with an owner reference set to itself")),
        _ => return refuse(format!("node {node:?} can only create pods with a single owner reference set to itself")),
    };
    if (owner.api_version.as_str(), owner.kind.as_str(), owner.name.as_str()) != ("v1", "Node", node) {
        return refuse(format!("node {node:?} can only create pods with an owner reference set to itself"));
    }
    if owner.controller != Some(true) {
        return refuse(format!("node {node:?} can only create pods with a controller owner reference set to itself"));
    }
    if owner.block_owner_deletion == Some(true) {
        return refuse(format!("node {node:?} must not set blockOwnerDeletion on an owner reference"));
    }
    let record = cluster.objects().metadata::<Node>("", node)?;
    let record = record.ok_or_else(|| Status::not_found(&GroupResource::new("", "nodes"), node))?;
    let uid = record.uid.unwrap_or_default();
    if owner.uid != uid {
        return refuse(format!("node {node} UID mismatch: expected {} got {uid}", owner.uid));
    }
    match referenced(spec) {
        Some(what) => refuse(format!("node {node:?} can not create pods that reference {what}")),
        None => Ok(()),
    }
}

/// The first kind of object that the pod reads through the API.
fn referenced(spec: &PodSpec) -> Option<&'static str> {
    if spec.service_account_name.as_ref().is_some_and(|name| !name.is_empty()) {
        return Some("serviceaccounts");
    }
    if secret_references::any(spec) {
        return Some("secrets");
    }
    let containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    if containers.into_iter().any(uses_config_map) {
        return Some("configmaps");
    }
    if spec.resource_claims.as_ref().is_some_and(|claims| !claims.is_empty()) {
        return Some("resourceclaims");
    }
    spec.volumes.iter().flatten().find_map(volume_reference)
}

fn uses_config_map(container: &Container) -> bool {
    let variables = container.env.iter().flatten().filter_map(|variable| variable.value_from.as_ref());
    let whole = container.env_from.iter().flatten();
    variables.into_iter().any(|from| from.config_map_key_ref.is_some())
        || whole.into_iter().any(|from| from.config_map_ref.is_some())
}

fn volume_reference(volume: &Volume) -> Option<&'static str> {
    let kinds = [
        (volume.config_map.is_some(), "configmaps (via configmap volumes)"),
        (volume.secret.is_some(), "secrets (via secret volumes)"),
        (volume.csi.is_some(), "csidrivers (via CSI volumes)"),
        (volume.glusterfs.is_some(), "endpoints (via glusterFS volumes)"),
        (volume.persistent_volume_claim.is_some(), "persistentvolumeclaims"),
        (volume.ephemeral.is_some(), "persistentvolumeclaims (via ephemeral volumes)"),
        (volume.azure_file.is_some(), "secrets (via azureFile volumes)"),
    ];
    let direct = kinds.into_iter().find(|(used, _)| *used).map(|(_, kind)| kind);
    let projected = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
    direct.or_else(|| projected.into_iter().find_map(projected_reference))
}

fn projected_reference(source: &VolumeProjection) -> Option<&'static str> {
    let kinds = [
        (source.config_map.is_some(), "configmaps (via projected volumes)"),
        (source.secret.is_some(), "secrets (via projected volumes)"),
        (source.service_account_token.is_some(), "serviceaccounts (via projected volumes)"),
        (source.cluster_trust_bundle.is_some(), "clustertrustbundles"),
        (source.pod_certificate.is_some(), "podcertificates"),
    ];
    kinds.into_iter().find(|(used, _)| *used).map(|(_, kind)| kind)
}

/// Whether a volume of the pod, or the driver behind one, wants tokens for this audience.
pub(super) fn names_audience(cluster: &Cluster, pod: &Pod, audience: &str) -> Result<bool, Unreadable> {
    let namespace = pod.metadata.namespace();
    let name = pod.metadata.name();
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    for volume in volumes {
        let sources = volume.projected.iter().flat_map(|projected| projected.sources.iter().flatten());
        let mut tokens = sources.filter_map(|source| source.service_account_token.as_ref());
        if tokens.any(|token| token.audience.as_deref().unwrap_or_default() == audience) {
            return Ok(true);
        }
        let driver = match api::claim::of_volume(name, volume) {
            Some((claim, _)) => driver_of_claim(cluster, namespace, &claim)?,
            None => volume.csi.as_ref().map(|csi| csi.driver.clone()),
        };
        let driver = driver.map(|driver| cluster.objects().get::<CSIDriver>("", &driver)).transpose()?.flatten();
        let requests = driver.as_ref().and_then(|driver| driver.spec.token_requests.as_deref()).unwrap_or_default();
        if requests.iter().any(|request| request.audience == audience) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn driver_of_claim(cluster: &Cluster, namespace: &str, claim: &str) -> Result<Option<String>, Unreadable> {
    let claim = cluster.objects().get::<PersistentVolumeClaim>(namespace, claim)?;
    let named = claim.as_ref().and_then(|claim| claim.spec.as_ref()?.volume_name.as_deref());
    let Some(name) = named else { return Ok(None) };
    let volume = cluster.objects().get::<PersistentVolume>("", name)?;
    Ok(volume.and_then(|volume| Some(volume.spec.as_ref()?.csi.as_ref()?.driver.clone())))
}

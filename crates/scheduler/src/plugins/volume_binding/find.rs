//! Which volumes a pod would use on a node: pure decisions on claims, volumes and classes.

use std::sync::Arc;

use api::claim::{matching_volume, requested};
use api::meta::Meta as _;
use api::placement::is_reachable;
use api::quantity::Quantity;
use api::selector::Selector;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;

use super::error::VolumeError;
use crate::cluster::{Volumes, claim_class};
use crate::pod::PodInfo;

pub(crate) const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
pub(crate) const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

/// Why a node cannot have the volumes; several may hold.
pub(crate) const NODE_CONFLICT: u8 = 1;
pub(crate) const BIND_CONFLICT: u8 = 2;
pub(crate) const NOT_ENOUGH_SPACE: u8 = 4;
pub(crate) const NO_VOLUME: u8 = 8;

/// A pod's claims, sorted by what has to happen to them.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    pub(crate) bound: Vec<Arc<PersistentVolumeClaim>>,
    /// They are bound once the node is known.
    pub(crate) waiting: Vec<Arc<PersistentVolumeClaim>>,
}

/// What has to be written before the pod can run on a node.
#[derive(Debug, Default, Clone)]
pub(crate) struct Bindings {
    pub(crate) volumes: Vec<(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)>,
    pub(crate) provisions: Vec<Arc<PersistentVolumeClaim>>,
}

/// The claims of a pod, or why no node can take it.
pub(crate) fn claims_of(pod: &PodInfo, volumes: &Volumes) -> Result<Claims, VolumeError> {
    let mut claims = Claims::default();
    let mut immediate = false;
    for (name, is_made_for_pod) in pod.claims() {
        let Some(claim) = volumes.claim(&format!("{}/{name}", pod.namespace())) else {
            return Err(match is_made_for_pod {
                true => VolumeError::NotMade(name.to_owned()),
                false => VolumeError::NoClaim(name.to_owned()),
            });
        };
        let volume_name = volume_name(claim);
        if claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Lost") {
            return Err(VolumeError::Lost { claim: name.to_owned(), volume: volume_name.to_owned() });
        }
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(VolumeError::Deleted(name.to_owned()));
        }
        if is_made_for_pod && !claim.metadata.is_controlled_by(&pod.uid) {
            return Err(VolumeError::NotOwner {
                namespace: pod.namespace().to_owned(),
                claim: name.to_owned(),
                pod: pod.key.to_string(),
            });
        }
        if is_fully_bound(claim) {
            claims.bound.push(claim.clone());
        } else if volume_name.is_empty() && waits_for_consumer(claim, volumes)? {
            claims.waiting.push(claim.clone());
        } else {
            immediate = true;
        }
    }
    if immediate {
        return Err(VolumeError::Immediate);
    }
    Ok(claims)
}

/// What would have to be written for the claims on a node, or which reasons speak against it.
pub(crate) fn on_node(claims: &Claims, node: &Node, volumes: &Volumes) -> Result<Bindings, u8> {
    let labels = node.metadata.labels.as_ref();
    let mut reasons = 0;
    for claim in &claims.bound {
        match volumes.volume(volume_name(claim)) {
            None => reasons |= NO_VOLUME,
            Some(volume) if !is_reachable(volume, labels) => reasons |= NODE_CONFLICT,
            Some(_) => continue,
        }
        break;
    }
    let bindings = for_waiting(claims, node, volumes);
    match (reasons, bindings) {
        (0, bindings) => bindings,
        (reasons, Ok(_)) => Err(reasons),
        (reasons, Err(more)) => Err(reasons | more),
    }
}

fn for_waiting(claims: &Claims, node: &Node, volumes: &Volumes) -> Result<Bindings, u8> {
    let name = node.metadata.name();
    let mut bindings = Bindings::default();
    let mut to_match = Vec::new();
    for claim in &claims.waiting {
        let selected = claim.metadata.annotations.as_ref().and_then(|annotations| annotations.get(SELECTED_NODE));
        match selected {
            Some(selected) if selected != name => return Err(BIND_CONFLICT),
            Some(_) => bindings.provisions.push(claim.clone()),
            None => to_match.push(claim),
        }
    }
    // Small claims first, so that they do not take the large volumes.
    to_match.sort_by_key(|claim| requested(claim));
    for claim in to_match {
        let found = best_volume(claim, node, volumes, &bindings.volumes);
        match found {
            Some(volume) => bindings.volumes.push((volume.clone(), claim.clone())),
            None => bindings.provisions.push(claim.clone()),
        }
    }
    for claim in &bindings.provisions {
        let class = volumes.class(claim_class(claim)).ok_or(BIND_CONFLICT)?;
        can_provision(claim, class, node, volumes)?;
    }
    Ok(bindings)
}

fn can_provision(
    claim: &PersistentVolumeClaim,
    class: &StorageClass,
    node: &Node,
    volumes: &Volumes,
) -> Result<(), u8> {
    if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !allows_topology(class, node) {
        return Err(BIND_CONFLICT);
    }
    let (size, Some(name)) = (requested(claim), class.metadata.name.as_deref()) else { return Ok(()) };
    let Some(capacities) = volumes.capacities(&class.provisioner, name) else { return Ok(()) };
    let parse = |text: &k8s_openapi::apimachinery::pkg::api::resource::Quantity| text.0.parse::<Quantity>().ok();
    let is_enough = capacities.iter().any(|capacity| {
        let limit = capacity.maximum_volume_size.as_ref().or(capacity.capacity.as_ref()).and_then(parse);
        let selector = Selector::from_label_selector(capacity.node_topology.as_ref());
        limit.is_some_and(|limit| limit >= size)
            && selector.is_ok_and(|selector| selector.matches(node.metadata.labels.as_ref()))
    });
    if is_enough { Ok(()) } else { Err(NOT_ENOUGH_SPACE) }
}

fn allows_topology(class: &StorageClass, node: &Node) -> bool {
    let Some(terms) = class.allowed_topologies.as_ref().filter(|terms| !terms.is_empty()) else { return true };
    let labels = node.metadata.labels.as_ref();
    terms.iter().any(|term| {
        let expressions = term.match_label_expressions.as_deref().unwrap_or_default();
        !expressions.is_empty()
            && expressions.iter().all(|expression| {
                labels
                    .and_then(|labels| labels.get(&expression.key))
                    .is_some_and(|value| expression.values.contains(value))
            })
    })
}

/// The smallest volume that the claim can have on the node.
fn best_volume<'a>(
    claim: &PersistentVolumeClaim,
    node: &Node,
    volumes: &'a Volumes,
    taken: &[(Arc<PersistentVolume>, Arc<PersistentVolumeClaim>)],
) -> Option<&'a Arc<PersistentVolume>> {
    let free = volumes.of_class(claim_class(claim)).into_iter();
    let free = free.filter(|volume| taken.iter().all(|(other, _)| other.metadata.name != volume.metadata.name));
    matching_volume(claim, free, Some(node))
}

pub(crate) fn volume_name(claim: &PersistentVolumeClaim) -> &str {
    claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()).unwrap_or_default()
}

pub(crate) fn is_fully_bound(claim: &PersistentVolumeClaim) -> bool {
    !volume_name(claim).is_empty()
        && claim.metadata.annotations.as_ref().is_some_and(|annotations| annotations.contains_key(BIND_COMPLETED))
}

fn waits_for_consumer(claim: &PersistentVolumeClaim, volumes: &Volumes) -> Result<bool, VolumeError> {
    let Some(class) = volumes.class(claim_class(claim)) else { return Ok(false) };
    match class.volume_binding_mode.as_deref() {
        Some(mode) => Ok(mode == "WaitForFirstConsumer"),
        None => Err(VolumeError::NoBindingMode(claim_class(claim).to_owned())),
    }
}

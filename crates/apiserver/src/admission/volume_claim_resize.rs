//! PersistentVolumeClaimResize: a claim grows only if it is bound and its class can grow volumes.

use std::sync::Arc;

use api::Status;
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;

use super::{Admitted, Attributes, Plugin, Verb, admitted};
use crate::cluster::Cluster;

pub(super) struct PersistentVolumeClaimResize;

impl Plugin for PersistentVolumeClaimResize {
    fn validate<'a>(&'a self, cluster: &'a Arc<Cluster>, attributes: &'a Attributes<'_>) -> Admitted<'a> {
        if attributes.verb != Verb::Update || !attributes.writes("", "persistentvolumeclaims") {
            return admitted();
        }
        check(cluster, attributes).into()
    }
}

fn check(cluster: &Cluster, attributes: &Attributes<'_>) -> Result<(), Status> {
    let claims = (attributes.object_ref::<PersistentVolumeClaim>(), attributes.old_ref::<PersistentVolumeClaim>());
    let (Some(new), Some(old)) = claims else { return Ok(()) };
    if size(new) <= size(old) {
        return Ok(());
    }
    if old.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Bound") {
        return Err(attributes.forbidden("Only bound persistent volume claims can be expanded"));
    }
    let same = class(new).filter(|class| Some(*class) == self::class(old));
    let class = same.map(|class| cluster.objects().get::<StorageClass>("", class)).transpose()?.flatten();
    if class.is_some_and(|class| class.allow_volume_expansion == Some(true)) {
        return Ok(());
    }
    Err(attributes.forbidden(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    ))
}

fn size(claim: &PersistentVolumeClaim) -> Quantity {
    let requests = claim.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    let storage = requests.and_then(|requests| requests.get("storage"));
    storage.and_then(|amount| Quantity::parse(&amount.0).ok()).unwrap_or_default()
}

fn class(claim: &PersistentVolumeClaim) -> Option<&str> {
    api::beta_annotations::claim_class(claim).filter(|class| !class.is_empty())
}

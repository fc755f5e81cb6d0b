//! Expansion: claims that want more than they have are grown by the resizer of their driver. Nothing here can grow a volume
//! itself, so claims are told whom they wait for.

use std::sync::Arc;

use api::meta::Meta as _;
use api::quantity::Quantity;
use api::volume_migration::csi_source;
use client::{Client, Event, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::json;

use super::decision::{annotation, claim_key, plugin_before, volume_name};
use super::matching::requested;
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;
use crate::{Error, pods};

/// By which the resizer of a driver knows that it is to grow a volume that a removed plug-in made.
const RESIZER: &str = "volume.kubernetes.io/storage-resizer";

struct Controller {
    client: Client,
    recorder: EventRecorder,
    claims: Informer<PersistentVolumeClaim>,
    volumes: Informer<PersistentVolume>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let claims = context.on::<PersistentVolumeClaim, _>(|event| {
        let grows = match event {
            Event::Added(claim) => is_too_small(claim),
            Event::Modified { old, new } => requested(new) > requested(old),
            Event::Deleted(_) => false,
        };
        grows.then(|| pods::key(&**event.object()))
    });
    // A claim may be seen before the volume that it names.
    let volumes = {
        let claims = claims.clone();
        context.on::<PersistentVolume, _>(move |event| match event {
            Event::Added(volume) => {
                let key = claim_key(volume);
                key.filter(|key| claims.get(key).is_some_and(|claim| is_too_small(&claim)))
            }
            _ => None,
        })
    };
    let recorder = EventRecorder::new(context.client.clone(), "volume_expand", "");
    Arc::new(Controller { client: context.client.clone(), recorder, claims, volumes })
}

/// The removed plug-in that a volume is of, and the driver that has its work now.
fn successor(volume: &PersistentVolume) -> Option<(&'static str, String)> {
    let is_older = volume.spec.as_ref().is_some_and(|spec| spec.csi.is_none());
    let driver = csi_source(volume).filter(|_| is_older)?.driver.clone();
    Some((plugin_before(&driver)?, driver))
}

/// Bound, and asking for more than it has.
fn is_too_small(claim: &PersistentVolumeClaim) -> bool {
    let Some(status) = &claim.status else { return false };
    let held = status.capacity.as_ref().and_then(|capacity| capacity.get("storage"));
    let held = held.and_then(|held| Quantity::try_from(held).ok()).unwrap_or_default();
    status.phase.as_deref() == Some("Bound") && requested(claim) > held
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(claim) = self.claims.get(key).filter(|claim| is_too_small(claim)) else {
                return Ok(Requeue::Never);
            };
            let volume = volume_name(&claim).and_then(|name| self.volumes.get(name));
            let Some(volume) = volume else { return Ok(Requeue::Never) }; // its event comes
            let reference = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
            if reference.is_none_or(|reference| reference.uid != claim.metadata.uid) {
                let name = volume.metadata.name();
                return Err(Error::object(format!("persistent Volume {name} not bound to PVC {key}")));
            }
            let about = client::reference(&*claim);
            let Some((plugin, driver)) = successor(&volume) else {
                let message = "waiting for an external controller to expand this PVC";
                self.recorder.normal(&about, "ExternalExpanding", message);
                return Ok(Requeue::Never);
            };
            let message = format!("CSI migration enabled for {plugin}; waiting for external resizer to expand the pvc");
            self.recorder.normal(&about, "ExternalExpanding", message);
            if annotation(&claim.metadata, RESIZER) != Some(driver.as_str()) {
                let patch = Patch::merge(json!({ "metadata": { "annotations": { RESIZER: driver } } }));
                let claims = self.client.namespaced::<PersistentVolumeClaim>(claim.metadata.namespace());
                if_unchanged(claims.patch_status(claim.metadata.name(), &patch).await)?;
            }
            Ok(Requeue::Never)
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_bound_claim_that_wants_more_is_too_small() {
        for (phase, wanted, held, expected) in [
            ("Bound", "2Gi", json!({ "storage": "1Gi" }), true),
            ("Bound", "1Gi", json!({ "storage": "1Gi" }), false),
            ("Bound", "1Gi", json!({ "storage": "2Gi" }), false),
            ("Pending", "2Gi", json!(null), false),
        ] {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({
                "metadata": { "name": "c" },
                "spec": { "resources": { "requests": { "storage": wanted } } },
                "status": { "phase": phase, "capacity": held },
            }))
            .unwrap();
            assert_eq!(is_too_small(&claim), expected, "{phase} {wanted}");
        }
    }
}

//! What a claim and its pod hear while this node grows their volume: that it has begun, that it is done, or why it is not.
//! Who grows the volume is another's business.

use api::meta::Meta as _;
use client::{Client, Clock, EventRecorder, Patch};
use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Value, json};

use super::VolumeError;
use super::error::Cause;
use super::growth::{self, Growth, Telling};

pub(super) struct Growing {
    pub(super) client: Client,
    pub(super) clock: Clock,
    pub(super) recorder: EventRecorder,
    pub(super) node_name: String,
}

/// A volume that this node is growing.
pub(super) struct Begun {
    pub(super) growth: Growth,
    /// Of the PersistentVolume.
    volume: String,
    namespace: String,
    claim: String,
    /// Pod and claim.
    about: [ObjectReference; 2],
}

impl Growing {
    /// Begins what is to be done for a volume that `has` so much, by what its claim says now. None if there is nothing to do, or
    /// nothing that may be done.
    pub(super) async fn begin(
        &self,
        pod: &Pod,
        (namespace, name): (&str, &str),
        (volume, has): (&str, &Quantity),
        is_read_only: bool,
    ) -> Result<Option<Begun>, client::Error> {
        let claim = self.client.namespaced::<PersistentVolumeClaim>(namespace).get(name).await?;
        let Some(growth) = growth::due(&claim, has) else { return Ok(None) };
        let about = [client::reference(pod), client::reference(&claim)];
        if is_read_only {
            let what = format!("MountVolume.NodeExpandVolume failed for volume {volume:?}");
            for object in &about {
                let message = format!("{what} requested read-only file system");
                self.recorder.warning(object, "FileSystemResizeFailed", message);
            }
            return Ok(None);
        }
        if growth.telling == Telling::Steps
            && let Some(change) = growth::begun(&claim.status.clone().unwrap_or_default())
        {
            self.tell(&claim, change).await?;
        }
        let (namespace, claim) = (namespace.to_owned(), name.to_owned());
        Ok(Some(Begun { growth, volume: volume.to_owned(), namespace, claim, about }))
    }

    /// The volume has grown.
    pub(super) async fn end(&self, begun: &Begun) -> Result<(), client::Error> {
        let what = format!("MountVolume.NodeExpandVolume succeeded for volume {:?}", begun.volume);
        for object in &begun.about {
            self.recorder.normal(object, "FileSystemResizeSuccessful", format!("{what} {}", self.node_name));
        }
        if begun.growth.telling == Telling::Nothing {
            return Ok(());
        }
        let claim = self.client.namespaced::<PersistentVolumeClaim>(&begun.namespace).get(&begun.claim).await?;
        let change = growth::ended(&claim.status.clone().unwrap_or_default(), &begun.growth.shown);
        self.tell(&claim, change).await
    }

    /// The claim says why its volume does not grow, and whether that is the end of it, if it hears of steps at all.
    pub(super) async fn fail(&self, begun: &Begun, why: &Cause, is_given_up: bool) {
        if begun.growth.telling != Telling::Steps {
            return;
        }
        let claims = self.client.namespaced::<PersistentVolumeClaim>(&begun.namespace);
        let told = async {
            let claim = claims.get(&begun.claim).await?;
            let status = claim.status.clone().unwrap_or_default();
            match growth::failed(&status, &why.to_string(), is_given_up, self.clock.now()) {
                Some(change) => self.tell(&claim, change).await,
                None => Ok(()),
            }
        };
        if let Err(error) = told.await {
            tracing::warn!(claim = begun.claim, %error, "the claim does not say that its volume cannot grow");
        }
    }

    /// A volume that did not grow is still the volume that it was: its pod goes on, and hears of it.
    pub(super) fn warn(&self, pod: &Pod, error: &VolumeError) {
        self.recorder.warning(&client::reference(pod), error.reason(), error.to_string());
    }

    /// Changes the status of a claim, unless somebody else has meanwhile.
    async fn tell(&self, claim: &PersistentVolumeClaim, change: Value) -> Result<(), client::Error> {
        let meta = &claim.metadata;
        let claims = self.client.namespaced::<PersistentVolumeClaim>(meta.namespace());
        let patch = json!({"metadata": {"resourceVersion": meta.resource_version}, "status": change});
        claims.patch_status(meta.name(), &Patch::merge(patch)).await.map(drop)
    }
}

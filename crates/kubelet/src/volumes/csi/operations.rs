//! One volume and its driver: stage, grow, publish, and the way back. The volume is locked all the while.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use client::Patch;
use csi::tonic::{Code, Status};
use csi::v1::{self, NodeRpc};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;
use trace::Stage;

use super::growth;
use super::layout::{Found, Mode, Record};
use super::{Csi, Driver, Inputs, Published, Wanted};
use crate::state;
use crate::volumes::error::{Cause, Operation};
use crate::volumes::in_use::STAGING;
use crate::volumes::{Mounted, VolumeError, blocking, change_policy, ownership};

impl Csi {
    pub(super) async fn mount(self: &Arc<Self>, wanted: &Arc<Wanted>, inputs: &Inputs) -> Result<Mounted, VolumeError> {
        let operation = if wanted.is_block { Operation::MapPodDevice } else { Operation::SetUp };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let (uid, mode) = (state::uid(&inputs.pod).to_string(), wanted.mode());
        let record = wanted.record(&self.node_name, wanted.needs_attachment(inputs.object.as_deref()));
        let volume = record.unique_name();
        let _held = self.lock(&volume).await;
        let published = self.done.lock().published.get(&(uid.clone(), wanted.spec_name.clone())).cloned();
        if let Some(published) = published.filter(|published| published.is_of(wanted) && !inputs.republish) {
            if let Some(size) = wanted.grow_to {
                // The pod has its volume: it goes on with what it has, and the driver is asked again.
                let grown = self.grow(wanted, inputs, &published.target, published.staging.as_deref(), size).await;
                self.note_growth(inputs, grown);
            }
            return Ok(published.mounted());
        }
        if wanted.is_for_one_pod() {
            let (layout, name, own) = (self.layout.clone(), volume.clone(), uid.clone());
            let is_taken = blocking(move || {
                Ok(layout.in_use(None)?.iter().any(|found| found.uid != own && found.record.unique_name() == name))
            });
            if is_taken.await.map_err(|error| fail(error.into()))? {
                return Err(fail(Cause::UsedByAnotherPod));
            }
        }
        let (layout, noted, owner) = (self.layout.clone(), record.clone(), uid.clone());
        let is_new =
            blocking(move || layout.note_use(&owner, &noted, mode)).await.map_err(|error| fail(error.into()))?;
        let staging = match inputs.driver.abilities.has(NodeRpc::StageUnstageVolume) && !wanted.is_inline {
            true => Some(self.stage(wanted, inputs, &record, is_new).await?),
            false => None,
        };
        let target = self.layout.target(&uid, &wanted.spec_name, mode);
        if let Some(size) = wanted.grow_to.filter(|_| staging.is_some()) {
            let path = staging.as_deref().unwrap_or(&target);
            match self.grow(wanted, inputs, path, staging.as_deref(), size).await {
                // A kubelet before this one may have given it to the pod.
                grown if !is_new => self.note_growth(inputs, grown),
                grown => grown?,
            }
        }
        let driver = &inputs.driver;
        let request = v1::NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: inputs.publish_context.clone(),
            staging_target_path: staging.as_ref().map(|path| driver.path(path)).unwrap_or_default(),
            target_path: driver.path(&target),
            volume_capability: Some(self.capability(wanted, inputs)),
            readonly: wanted.is_read_only,
            secrets: inputs.publish_secrets.clone(),
            volume_context: inputs.volume_context.clone(),
        };
        let publish = driver.clients.node.node_publish_volume(request);
        if let Err(status) = inputs.call(Stage::PublishVolume, wanted, publish).await {
            // Nothing came of it, and nothing else of the volume is here: its pod can go without the driver.
            if csi::is_final(&status) && is_new && staging.is_none() {
                self.forget_use(&uid, &record, mode).await;
            }
            return Err(fail(Cause::Driver(status)));
        }
        if let Some(size) = wanted.grow_to.filter(|_| staging.is_none()) {
            let grown = self.grow(wanted, inputs, &target, None, size).await;
            self.note_growth(inputs, grown);
        }
        if let Some(group) = wanted.group_to_apply(&inputs.pod, inputs.object.as_deref(), &driver.abilities) {
            let (layout, owner, policy) = (self.layout.clone(), uid.clone(), change_policy(&inputs.pod));
            let (given, record) = (target.clone(), record.clone());
            let applied = blocking(move || {
                // Once, before anything of the pod has started: afterwards its containers are at work in it.
                if !layout.is_group_applied(&owner, &record.spec_name) {
                    ownership::apply(&given, group, policy)?;
                    layout.note_group(&owner, &record)?;
                }
                Ok(())
            });
            applied.await.map_err(|source| fail(Cause::Group { handle: wanted.handle.clone(), source }))?;
        }
        let published = Published { wanted: wanted.clone(), pod: inputs.pod.clone(), target, staging };
        let mounted = published.mounted();
        let is_first = self.done.lock().published.insert((uid, wanted.spec_name.clone()), published).is_none();
        if is_first {
            self.stats.look_soon();
        }
        Ok(mounted)
    }

    fn capability(&self, wanted: &Wanted, inputs: &Inputs) -> v1::VolumeCapability {
        wanted.capability(&inputs.pod, inputs.object.as_deref(), &inputs.driver.abilities, self.has_selinux)
    }

    /// Stages the volume unless it is; returns where.
    async fn stage(
        &self,
        wanted: &Wanted,
        inputs: &Inputs,
        record: &Record,
        is_first_use: bool,
    ) -> Result<std::path::PathBuf, VolumeError> {
        let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::MountDevice };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let (volume, mode, driver) = (record.unique_name(), wanted.mode(), &inputs.driver);
        let staging = self.layout.staging(record, mode);
        if self.done.lock().staged.contains(&volume) {
            return Ok(staging);
        }
        let (layout, noted) = (self.layout.clone(), record.clone());
        let is_new = blocking(move || layout.note_staging(&noted, mode)).await.map_err(|error| fail(error.into()))?;
        let request = v1::NodeStageVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: inputs.publish_context.clone(),
            staging_target_path: driver.path(&staging),
            volume_capability: Some(self.capability(wanted, inputs)),
            secrets: inputs.stage_secrets.clone(),
            volume_context: wanted.attributes.clone(),
        };
        let stage = driver.clients.node.node_stage_volume(request);
        if let Err(status) = inputs.call(Stage::StageVolume, wanted, stage).await {
            if csi::is_final(&status) && is_new && is_first_use {
                self.forget_use(state::uid(&inputs.pod), record, mode).await;
                let (layout, record) = (self.layout.clone(), record.clone());
                if let Err(error) = blocking(move || layout.forget_staging(&record, mode)).await {
                    tracing::warn!(volume, %error, "staging place of a volume not removed");
                }
            }
            return Err(fail(Cause::Driver(status)));
        }
        self.done.lock().staged.insert(volume);
        Ok(staging)
    }

    async fn forget_use(&self, uid: &str, record: &Record, mode: Mode) {
        let (layout, owner, name) = (self.layout.clone(), uid.to_string(), record.spec_name.clone());
        if let Err(error) = blocking(move || layout.forget_use(&owner, &name, mode)).await {
            tracing::warn!(volume = record.spec_name, %error, "place of a volume not removed");
        }
    }

    /// Has the driver grow the file system, and tells that in the claim.
    async fn grow(
        &self,
        wanted: &Wanted,
        inputs: &Inputs,
        path: &Path,
        staging: Option<&Path>,
        size: i64,
    ) -> Result<(), VolumeError> {
        let fail = |cause: Cause| VolumeError::of(Operation::NodeExpand, &wanted.spec_name, cause);
        let driver = &inputs.driver;
        if driver.abilities.has(NodeRpc::ExpandVolume) {
            let request = v1::NodeExpandVolumeRequest {
                volume_id: wanted.handle.clone(),
                volume_path: driver.path(path),
                capacity_range: Some(v1::CapacityRange { required_bytes: size, limit_bytes: 0 }),
                staging_target_path: staging.map(|path| driver.path(path)).unwrap_or_default(),
                volume_capability: Some(self.capability(wanted, inputs)),
                secrets: inputs.expand_secrets.clone(),
            };
            let grow = driver.clients.node.node_expand_volume(request);
            if let Err(status) = inputs.call(Stage::ExpandVolume, wanted, grow).await {
                self.report_not_grown(wanted, &status).await;
                let is_in_use = status.code() == Code::FailedPrecondition;
                let failed = Err(fail(Cause::Driver(status)));
                if is_in_use {
                    // It grows when nobody uses it, and is what it was until then.
                    self.note_growth(inputs, failed);
                    return Ok(());
                }
                return failed;
            }
            let message = format!("MountVolume.NodeExpandVolume succeeded for volume {:?} ", wanted.spec_name);
            self.recorder.normal(&client::reference(inputs.pod.as_ref()), "FileSystemResizeSuccessful", message);
        }
        let Some((namespace, name)) = &wanted.claim else { return Ok(()) };
        self.report_grown(namespace, name, size).await.map_err(|error| fail(error.into()))
    }

    /// The claim says why its volume does not grow, if that is certain.
    async fn report_not_grown(&self, wanted: &Wanted, failure: &Status) {
        let Some((namespace, name)) = wanted.claim.as_ref().filter(|_| csi::is_final(failure)) else { return };
        let api = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let reported = async {
            let status = api.get(name).await?.status.unwrap_or_default();
            match growth::failed(status, failure, self.clock.now()) {
                Some(patch) => api.patch_status(name, &Patch::merge(patch)).await.map(drop),
                None => Ok(()),
            }
        };
        if let Err(error) = reported.await {
            tracing::warn!(claim = name, %error, "the claim does not say that its volume cannot grow");
        }
    }

    /// A volume that did not grow is still the volume that it was.
    fn note_growth(&self, inputs: &Inputs, grown: Result<(), VolumeError>) {
        if let Err(error) = grown {
            self.recorder.warning(&client::reference(inputs.pod.as_ref()), error.reason(), error.to_string());
        }
    }

    async fn report_grown(&self, namespace: &str, name: &str, size: i64) -> Result<(), client::Error> {
        let api = self.client.namespaced::<PersistentVolumeClaim>(namespace);
        let status = api.get(name).await?.status.unwrap_or_default();
        let is_over = |kind: &str| matches!(kind, "FileSystemResizePending" | "Resizing" | "NodeResizeError");
        let left: Vec<_> =
            status.conditions.into_iter().flatten().filter(|condition| !is_over(&condition.type_)).collect();
        let quantity = api::quantity::Quantity::new(size, api::quantity::Format::BinarySI).to_string();
        let patch = json!({"status": {
            "capacity": {"storage": quantity}, "conditions": left, "allocatedResourceStatuses": {"storage": null},
        }});
        api.patch_status(name, &Patch::merge(patch)).await.map(drop)
    }

    /// Takes one volume from a pod, and off the node if no other pod has it.
    pub(super) async fn unmount(self: &Arc<Self>, found: &Found) -> Result<(), VolumeError> {
        let Found { uid, mode, record } = found;
        let volume = record.unique_name();
        let _held = self.lock(&volume).await;
        let fail = |cause: Cause| VolumeError::of(Operation::TearDown, &record.spec_name, cause);
        let driver = self.drivers.get(&record.driver_name).map_err(|source| {
            fail(Cause::NoDriver { needed_by: "Unmounter.TearDownAt failed to get CSI client", source })
        })?;
        let target = self.layout.target(uid, &record.spec_name, *mode);
        self.done.lock().published.remove(&(uid.clone(), record.spec_name.clone()));
        self.stats.forget(uid, &record.spec_name);
        let request = v1::NodeUnpublishVolumeRequest {
            volume_id: record.volume_handle.clone(),
            target_path: driver.path(&target),
        };
        let done =
            self.called(&driver, "NodeUnpublishVolume", driver.clients.node.node_unpublish_volume(request)).await;
        accepted(done.map(drop)).map_err(|status| fail(Cause::Driver(status)))?;
        let (layout, owner, name, mode) = (self.layout.clone(), uid.clone(), record.spec_name.clone(), *mode);
        blocking(move || layout.forget_use(&owner, &name, mode)).await.map_err(|error| fail(error.into()))?;
        if !record.is_inline() {
            // It may stay staged after its last pod.
            self.attached.in_use.hold(&volume, STAGING);
            self.attached.in_use.release(&volume, uid);
            self.unstage_if_unused(record, mode).await?;
        }
        Ok(())
    }

    /// The volume is locked by the caller.
    pub(super) async fn unstage_if_unused(&self, record: &Record, mode: Mode) -> Result<(), VolumeError> {
        let volume = record.unique_name();
        let fail = |cause: Cause| VolumeError::of(Operation::UnmountDevice, &record.spec_name, cause);
        let (layout, name) = (self.layout.clone(), volume.clone());
        let is_used = blocking(move || Ok(layout.in_use(None)?.iter().any(|found| found.record.unique_name() == name)));
        if is_used.await.map_err(|error| fail(error.into()))? {
            self.attached.in_use.release(&volume, STAGING);
            return Ok(());
        }
        let (layout, wanted) = (self.layout.clone(), volume.clone());
        let is_staged = blocking(move || Ok(layout.staged()?.iter().any(|(record, _)| record.unique_name() == wanted)));
        if is_staged.await.map_err(|error| fail(error.into()))? {
            let driver = self.drivers.get(&record.driver_name).map_err(|source| {
                let needed_by = "attacher.UnmountDevice failed to create newCsiDriverClient";
                fail(Cause::NoDriver { needed_by, source })
            })?;
            self.done.lock().staged.remove(&volume);
            if driver.abilities.has(NodeRpc::StageUnstageVolume) {
                self.unstage(&driver, record, mode).await.map_err(|status| fail(Cause::Driver(status)))?;
            }
            let (layout, record) = (self.layout.clone(), record.clone());
            let forgotten = blocking(move || layout.forget_staging(&record, mode)).await;
            forgotten.map_err(|error| fail(error.into()))?;
        }
        self.attached.in_use.release(&volume, STAGING);
        Ok(())
    }

    async fn unstage(&self, driver: &Driver, record: &Record, mode: Mode) -> Result<(), Status> {
        let request = v1::NodeUnstageVolumeRequest {
            volume_id: record.volume_handle.clone(),
            staging_target_path: driver.path(&self.layout.staging(record, mode)),
        };
        let unstage = driver.clients.node.node_unstage_volume(request);
        accepted(self.called(driver, "NodeUnstageVolume", unstage).await.map(drop))
    }

    /// Times a call that is part of no pod's start.
    async fn called<T>(
        &self,
        driver: &Driver,
        method: &str,
        call: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let began = Instant::now();
        let answer = call.await;
        let code = answer.as_ref().err().map_or(Code::Ok, Status::code);
        self.metrics.driver_called(&driver.name, &format!("/csi.v1.Node/{method}"), code, false, began.elapsed());
        answer
    }
}

/// A volume that the driver does not know any more is not there either.
fn accepted(answer: Result<(), Status>) -> Result<(), Status> {
    match answer {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        other => other,
    }
}

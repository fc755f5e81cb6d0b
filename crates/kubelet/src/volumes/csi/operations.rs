//! One volume and its driver: stage, grow, publish, and the way back. The volume is locked all the while.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use api::attachable::csi_name;
use csi::tonic::{Code, Status};
use csi::v1::{self, NodeRpc};
use tokio::sync::OwnedMutexGuard;
use trace::Stage;

use super::layout::{Found, Mode, Record};
use super::{Csi, Driver, Inputs, NoDriver, Published, Wanted};
use crate::state;
use crate::volumes::error::{Cause, Operation};
use crate::volumes::growth::{self, Telling};
use crate::volumes::in_use::STAGING;
use crate::volumes::{Mounted, VolumeError, blocking, change_policy, on_own_thread, ownership};

impl Csi {
    pub(super) async fn mount(self: &Arc<Self>, wanted: &Arc<Wanted>, inputs: &Inputs) -> Result<Mounted, VolumeError> {
        let operation = if wanted.is_block { Operation::MapPodDevice } else { Operation::SetUp };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let (uid, mode) = (state::uid(&inputs.pod).to_string(), wanted.mode());
        let record = wanted.record(&self.node_name, wanted.needs_attachment(inputs.object.as_deref()));
        let volume = record.unique_name();
        let key = (uid.clone(), wanted.spec_name.clone());
        let (_held, secrets) = self.lock_with_secrets(&volume, wanted, inputs, &key).await;
        let published = self.published(&key, wanted);
        if let Some(published) = published.as_ref().filter(|_| !inputs.republish) {
            if self.is_to_grow(published, wanted) {
                // The pod has its volume: it goes on with what it has, and the driver is asked again.
                let staging = published.staging.as_deref();
                let place = (published.target.as_path(), staging);
                match self.grow(wanted, inputs, place, secrets.expand, Operation::ExpandInUse).await {
                    Ok(Some(size)) => {
                        self.done.lock().published.entry(key).and_modify(|known| known.size = Some(size));
                    }
                    Ok(None) => {}
                    Err(error) => self.growing.warn(&inputs.pod, &error),
                }
            }
            return Ok(published.mounted());
        }
        if wanted.is_for_one_pod() {
            let (layout, looked_for, own) = (self.layout.clone(), record.clone(), uid.clone());
            let is_taken = blocking(move || layout.look(None)?.is_used(&looked_for, Some(&own)));
            if is_taken.await.map_err(|error| fail(error.into()))? {
                let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::SetUp };
                return Err(VolumeError::of(operation, &wanted.spec_name, Cause::UsedByAnotherPod));
            }
        }
        let is_staging = inputs.is_staging(wanted);
        let is_staged = self.done.lock().staged.contains(&volume);
        let stage_secrets = match is_staging && !is_staged {
            true => {
                let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::MountDevice };
                let secrets = given(secrets.stage);
                Some(secrets.map_err(|cause| VolumeError::of(operation, &wanted.spec_name, cause))?)
            }
            false => None,
        };
        let mut publish_secrets = given(secrets.publish).map_err(fail)?;
        publish_secrets.extend(inputs.secret_tokens.clone());
        let (layout, noted, owner) = (self.layout.clone(), record.clone(), uid.clone());
        let is_new =
            blocking(move || layout.note_use(&owner, &noted, mode)).await.map_err(|error| fail(error.into()))?;
        if is_new {
            self.done.lock().begun.insert(key.clone());
        }
        let staging = is_staging.then(|| self.layout.staging(&record, mode));
        if let Some((staging, secrets)) = staging.as_ref().zip(stage_secrets) {
            self.stage(wanted, inputs, &record, (staging, secrets), is_new).await?;
        }
        let target = self.layout.target(&uid, &wanted.spec_name, mode);
        let driver = &inputs.driver;
        // A driver hears where devices would be staged also if it stages none (`publishVolumeForBlock`, v1.36).
        let told = wanted.is_block.then(|| self.layout.staging(&record, mode)).or_else(|| staging.clone());
        let request = v1::NodePublishVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: inputs.publish_context.clone(),
            staging_target_path: told.map(|path| driver.path(&path)).unwrap_or_default(),
            target_path: driver.path(&target),
            volume_capability: Some(Self::capability(wanted, inputs)),
            readonly: wanted.is_read_only,
            secrets: publish_secrets,
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
        if let Some(group) = wanted.group_to_apply(&inputs.pod, inputs.object.as_deref(), &driver.abilities) {
            let (layout, owner, policy) = (self.layout.clone(), uid.clone(), change_policy(&inputs.pod));
            let (given, record) = (target.clone(), record.clone());
            let applied = on_own_thread(move || {
                // Once, before anything of the pod has started: afterwards its containers are at work in it.
                if !layout.is_group_applied(&owner, &record.spec_name) {
                    ownership::apply(&given, group, policy)?;
                    layout.note_group(&owner, &record)?;
                }
                Ok(())
            });
            applied.await.map_err(|source| fail(Cause::Group { handle: wanted.handle.clone(), source }))?;
        }
        let (mut size, is_to_grow) = match &published {
            Some(published) => (published.size, self.is_to_grow(published, wanted)),
            // As large as the claim says, unless that is what it waits for.
            None => (wanted.claimed, wanted.growth.as_ref().is_some_and(|growth| growth.telling != Telling::Nothing)),
        };
        if is_to_grow {
            // A kubelet before this one may have given it to the pod, which goes on with what it has.
            let is_in_use = !self.done.lock().begun.contains(&key);
            let operation = match wanted.is_block {
                _ if is_in_use => Operation::ExpandInUse,
                true => Operation::ExpandMapped,
                false => Operation::ExpandMounted,
            };
            let place = (target.as_path(), staging.as_deref());
            match self.grow(wanted, inputs, place, secrets.expand, operation).await {
                Ok(grown) => size = grown.or(size),
                Err(error) if is_in_use => self.growing.warn(&inputs.pod, &error),
                Err(error) => return Err(error),
            }
        }
        let published = Published { wanted: wanted.clone(), pod: inputs.pod.clone(), target, staging, size };
        let mounted = published.mounted();
        let is_first = {
            let mut done = self.done.lock();
            done.begun.remove(&key);
            done.published.insert(key, published).is_none()
        };
        if is_first {
            self.stats.look_soon();
            let maps = if wanted.is_block { self.layout.maps(&uid, &wanted.spec_name).to_vec() } else { Vec::new() };
            for (what, path) in maps {
                let (name, path) = (&wanted.spec_name, path.to_string_lossy());
                let message = format!("MapVolume.MapPodDevice succeeded for volume {name:?} {what} {path:?}");
                self.recorder.normal(&client::reference(&*inputs.pod), "SuccessfulMountVolume", message);
            }
        }
        Ok(mounted)
    }

    /// The volume's driver is not here.
    pub(super) fn without_driver(&self, wanted: &Wanted, source: NoDriver) -> VolumeError {
        let is_staged = self.done.lock().staged.contains(&csi_name(&wanted.driver, &wanted.handle));
        let (operation, needed_by) = needs_driver_first(wanted, is_staged);
        VolumeError::of(operation, &wanted.spec_name, Cause::NoDriver { needed_by, source })
    }

    /// What a pod has of a volume.
    fn published(&self, key: &(String, String), wanted: &Wanted) -> Option<Published> {
        self.done.lock().published.get(key).cloned().filter(|published| published.is_of(wanted))
    }

    /// Locks a volume, with what its driver is given besides. That is looked up before: the API may take its time, and others
    /// wait for the volume.
    async fn lock_with_secrets(
        &self,
        volume: &str,
        wanted: &Wanted,
        inputs: &Inputs,
        key: &(String, String),
    ) -> (OwnedMutexGuard<()>, Secrets) {
        let mut secrets = Secrets::default();
        loop {
            secrets.look_up(self.needed(volume, wanted, inputs, key), wanted, inputs).await;
            let held = self.lock(volume).await;
            // It may have been unstaged meanwhile.
            if secrets.are_there(self.needed(volume, wanted, inputs, key)) {
                return (held, secrets);
            }
        }
    }

    /// The secrets for the calls that are left to make.
    fn needed(&self, volume: &str, wanted: &Wanted, inputs: &Inputs, key: &(String, String)) -> Needed {
        let published = self.published(key, wanted);
        let expand = match &published {
            Some(published) => self.is_to_grow(published, wanted),
            None => wanted.growth.as_ref().is_some_and(|growth| growth.telling != Telling::Nothing),
        };
        let publish = published.is_none() || inputs.republish;
        let stage = publish && inputs.is_staging(wanted) && !self.done.lock().staged.contains(volume);
        Needed { stage, publish, expand }
    }

    fn capability(wanted: &Wanted, inputs: &Inputs) -> v1::VolumeCapability {
        wanted.capability(&inputs.pod, &inputs.driver.abilities, inputs.label.as_deref())
    }

    /// Stages the volume, with what the driver needs for that.
    async fn stage(
        &self,
        wanted: &Wanted,
        inputs: &Inputs,
        record: &Record,
        (staging, secrets): (&Path, BTreeMap<String, String>),
        is_first_use: bool,
    ) -> Result<(), VolumeError> {
        let operation = if wanted.is_block { Operation::SetUpDevice } else { Operation::MountDevice };
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let (volume, mode, driver) = (record.unique_name(), wanted.mode(), &inputs.driver);
        let (layout, noted, now) = (self.layout.clone(), record.clone(), self.clock.now());
        let noted =
            blocking(move || Ok((layout.note_staging(&noted, mode)?, layout.note_asked(&noted, mode, now)?))).await;
        let (is_new, is_first_call) = noted.map_err(|error| fail(error.into()))?;
        let request = v1::NodeStageVolumeRequest {
            volume_id: wanted.handle.clone(),
            publish_context: inputs.publish_context.clone(),
            staging_target_path: driver.path(staging),
            volume_capability: Some(Self::capability(wanted, inputs)),
            secrets,
            volume_context: wanted.attributes.clone(),
        };
        let stage = driver.clients.node.node_stage_volume(request);
        if let Err(status) = inputs.call(Stage::StageVolume, wanted, stage).await {
            match csi::is_final(&status) {
                true if is_first_call => self.forget_asked(record, mode).await,
                true => {}
                // It may be staged later than anybody waits for that.
                false => self.late.next(&volume),
            }
            if csi::is_final(&status) && is_new && is_first_use {
                self.forget_use(state::uid(&inputs.pod), record, mode).await;
                let (layout, record) = (self.layout.clone(), record.clone());
                if let Err(error) = blocking(move || layout.forget_staging(&record, mode)).await {
                    tracing::warn!(volume, %error, "staging place of a volume not removed");
                }
            }
            return Err(fail(Cause::Driver(status)));
        }
        self.forget_asked(record, mode).await;
        self.done.lock().staged.insert(volume);
        Ok(())
    }

    /// The driver has answered: a volume that it stages later is none that nobody knows of.
    pub(super) async fn forget_asked(&self, record: &Record, mode: Mode) {
        self.late.forget(&record.unique_name());
        let (layout, asked) = (self.layout.clone(), record.clone());
        if let Err(error) = blocking(move || layout.forget_asked(&asked, mode)).await {
            tracing::warn!(volume = record.spec_name, %error, "note of a staging not removed");
        }
    }

    async fn forget_use(&self, uid: &str, record: &Record, mode: Mode) {
        let (layout, owner, name) = (self.layout.clone(), uid.to_string(), record.spec_name.clone());
        if let Err(error) = blocking(move || layout.forget_use(&owner, &name, mode)).await {
            tracing::warn!(volume = record.spec_name, %error, "place of a volume not removed");
        }
    }

    /// Whether the driver is to be asked to grow a volume that a pod has.
    pub(super) fn is_to_grow(&self, published: &Published, wanted: &Wanted) -> bool {
        let Some(growth) = wanted.growth.as_ref().filter(|_| !wanted.is_read_only) else { return false };
        // Where another node has told the claim, only this one knows what it has done.
        let is_grown = growth.telling == Telling::Nothing && published.size.is_none_or(|size| size >= growth.size);
        !is_grown && !self.done.lock().fixed_in_use.contains(&csi_name(&wanted.driver, &wanted.handle))
    }

    /// Has the driver grow what it has published, and tells that in the claim. Returns how large it is then, if it has grown.
    async fn grow(
        &self,
        wanted: &Wanted,
        inputs: &Inputs,
        (target, staging): (&Path, Option<&Path>),
        secrets: Option<LookedUp>,
        operation: Operation,
    ) -> Result<Option<i64>, VolumeError> {
        let fail = |cause: Cause| VolumeError::of(operation, &wanted.spec_name, cause);
        let Some(((namespace, name), size)) = wanted.claim.as_ref().zip(wanted.size.as_ref()) else { return Ok(None) };
        // The volume may have been waited for: what the claim said is no longer news.
        let (claim, volume) = ((namespace.as_str(), name.as_str()), (wanted.spec_name.as_str(), size));
        let begun = self.growing.begin(&inputs.pod, claim, volume, wanted.is_read_only).await;
        let Some(begun) = begun.map_err(|error| fail(error.into()))? else { return Ok(None) };
        let growth = &begun.growth;
        let driver = &inputs.driver;
        if !driver.abilities.has(NodeRpc::ExpandVolume) {
            if growth.telling != Telling::Steps {
                return Ok(Some(growth.size));
            }
            let cause = Cause::NoGrowth(wanted.driver.clone());
            self.growing.fail(&begun, &cause, false).await;
            return Err(fail(cause));
        }
        let secrets = given(secrets).map_err(fail)?;
        let request = v1::NodeExpandVolumeRequest {
            volume_id: wanted.handle.clone(),
            volume_path: driver.path(target),
            capacity_range: Some(v1::CapacityRange { required_bytes: growth.size, limit_bytes: 0 }),
            staging_target_path: staging.map(|path| driver.path(path)).unwrap_or_default(),
            volume_capability: Some(Self::capability(wanted, inputs)),
            secrets,
        };
        let volume = csi_name(&wanted.driver, &wanted.handle);
        let call = driver.clients.node.node_expand_volume(request);
        if let Err(status) = inputs.call(Stage::ExpandVolume, wanted, call).await {
            let (is_over, is_fixed) = (growth::is_over(&status), status.code() == Code::FailedPrecondition);
            let is_infeasible = csi::is_infeasible(&status);
            let cause = Cause::Growth(status);
            if is_over {
                let had_failed = !self.done.lock().not_grown.insert(volume.clone());
                let is_given_up = is_infeasible || (had_failed && growth.is_outdated);
                self.growing.fail(&begun, &cause, is_given_up).await;
            }
            if is_fixed {
                // It grows when nobody uses it, and is what it was until then.
                self.done.lock().fixed_in_use.insert(volume);
                self.growing.warn(&inputs.pod, &fail(cause));
                return Ok(None);
            }
            return Err(fail(cause));
        }
        self.done.lock().not_grown.remove(&volume);
        self.growing.end(&begun).await.map_err(|error| fail(error.into()))?;
        Ok(Some(growth.size))
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
        let (layout, looked_for) = (self.layout.clone(), record.clone());
        let is_used = blocking(move || layout.look(None)?.is_used(&looked_for, None));
        if is_used.await.map_err(|error| fail(error.into()))? {
            self.attached.in_use.release(&volume, STAGING);
            return Ok(());
        }
        {
            let mut done = self.done.lock();
            done.fixed_in_use.remove(&volume);
            done.not_grown.remove(&volume);
        }
        let (layout, looked_for) = (self.layout.clone(), record.clone());
        let is_staged = blocking(move || layout.is_staged(&looked_for, mode));
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
        self.attached.in_use.let_go(&volume);
        self.attached.in_use.release(&volume, STAGING);
        Ok(())
    }

    /// Unstages what a driver staged after its caller had given up and all of it was undone. The volume is locked by the caller.
    pub(super) async fn unstage_late(&self, record: &Record, mode: Mode) -> Result<(), VolumeError> {
        let fail = |cause: Cause| VolumeError::of(Operation::UnmountDevice, &record.spec_name, cause);
        let (layout, looked_for) = (self.layout.clone(), record.clone());
        let is_left = blocking(move || {
            let is_used = layout.look(None)?.is_used(&looked_for, None)? || layout.is_staged(&looked_for, mode)?;
            Ok(!is_used && layout.is_asked(&looked_for, mode)?)
        });
        if !is_left.await.map_err(|error| fail(error.into()))? {
            return Ok(());
        }
        let driver = self.drivers.get(&record.driver_name).map_err(|source| {
            let needed_by = "attacher.UnmountDevice failed to create newCsiDriverClient";
            fail(Cause::NoDriver { needed_by, source })
        })?;
        let (layout, claimed) = (self.layout.clone(), record.clone());
        let is_free = blocking(move || layout.claim(&claimed, mode)).await;
        if !is_free.map_err(|error| fail(error.into()))? {
            return Ok(());
        }
        self.done.lock().staged.remove(&record.unique_name());
        let unstaged = self.unstage(&driver, record, mode).await;
        // A driver that may be at it still keeps the place: it is unstaged as any other then.
        let is_over = unstaged.as_ref().err().is_none_or(csi::is_final);
        let (layout, left) = (self.layout.clone(), record.clone());
        let removed = blocking(move || if is_over { layout.forget_staging(&left, mode) } else { Ok(()) }).await;
        unstaged.map_err(|status| fail(Cause::Driver(status)))?;
        removed.map_err(|error| fail(error.into()))
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

type LookedUp = Result<BTreeMap<String, String>, Cause>;

/// What a driver is given with its calls, of those that are made.
#[derive(Default)]
struct Secrets {
    stage: Option<LookedUp>,
    publish: Option<LookedUp>,
    expand: Option<LookedUp>,
}

/// For which calls secrets are needed.
#[derive(Clone, Copy)]
struct Needed {
    stage: bool,
    publish: bool,
    expand: bool,
}

impl Secrets {
    async fn look_up(&mut self, needed: Needed, wanted: &Wanted, inputs: &Inputs) {
        for (is_needed, secret, field, reference) in [
            (needed.stage, &mut self.stage, STAGE_SECRET, &wanted.stage_secret),
            (needed.publish, &mut self.publish, PUBLISH_SECRET, &wanted.publish_secret),
            (needed.expand, &mut self.expand, EXPAND_SECRET, &wanted.expand_secret),
        ] {
            if is_needed && secret.is_none() {
                *secret = Some(inputs.secret(field, wanted.is_block, reference.as_ref()).await);
            }
        }
    }

    fn are_there(&self, needed: Needed) -> bool {
        let all = [(needed.stage, &self.stage), (needed.publish, &self.publish), (needed.expand, &self.expand)];
        all.into_iter().all(|(is_needed, secret)| !is_needed || secret.is_some())
    }
}

const STAGE_SECRET: &str = "NodeStageSecretRef";
const PUBLISH_SECRET: &str = "NodePublishSecretRef";
const EXPAND_SECRET: &str = "NodeExpandSecretRef";

/// What has failed where the secret of this field cannot be had.
pub(super) fn without_secret(field: &str, is_block: bool, place: &str) -> String {
    match (field, is_block) {
        (EXPAND_SECRET, _) => format!("expander.NodeExpand failed to get {field} {place}"),
        (_, false) => format!("fetching {field} {place} failed"),
        (STAGE_SECRET, true) => format!("kubernetes.io/csi: failed to get {field} {place}"),
        (_, true) => format!("kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get {field} {place}"),
    }
}

/// What is done first of what a driver must be there for, and how that fails without it.
fn needs_driver_first(wanted: &Wanted, is_staged: bool) -> (Operation, &'static str) {
    match (wanted.is_block, wanted.is_inline || is_staged) {
        (false, false) => (Operation::MountDevice, "attacher.MountDevice failed to create newCsiDriverClient"),
        (false, true) => (Operation::SetUp, "mounter.SetUpAt failed to get CSI client"),
        (true, false) => (Operation::SetUpDevice, "blockMapper.SetUpDevice failed to get CSI client"),
        (true, true) => (Operation::MapPodDevice, "blockMapper.MapPodDevice failed to get CSI client"),
    }
}

/// Nothing was looked up for a call that needs nothing.
fn given(secrets: Option<LookedUp>) -> LookedUp {
    secrets.unwrap_or_else(|| Ok(BTreeMap::new()))
}

/// A volume that the driver does not know any more is not there either.
fn accepted(answer: Result<(), Status>) -> Result<(), Status> {
    match answer {
        Err(status) if status.code() == Code::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::error::SecretError;

    #[test]
    fn a_driver_that_is_not_here_is_told_as_upstream_tells_it() {
        for (is_block, is_inline, is_staged, expected) in [
            (false, false, false, (Operation::MountDevice, "attacher.MountDevice failed to create newCsiDriverClient")),
            (false, false, true, (Operation::SetUp, "mounter.SetUpAt failed to get CSI client")),
            (false, true, false, (Operation::SetUp, "mounter.SetUpAt failed to get CSI client")),
            (true, false, false, (Operation::SetUpDevice, "blockMapper.SetUpDevice failed to get CSI client")),
            (true, false, true, (Operation::MapPodDevice, "blockMapper.MapPodDevice failed to get CSI client")),
        ] {
            let wanted = Wanted { is_block, is_inline, ..Wanted::default() };
            assert_eq!(needs_driver_first(&wanted, is_staged), expected, "{is_block} {is_inline} {is_staged}");
        }
    }

    #[test]
    fn a_secret_that_is_not_there_is_told_as_upstream_tells_it() {
        for (field, is_block, expected) in [
            (STAGE_SECRET, false, "fetching NodeStageSecretRef ns/s failed"),
            (PUBLISH_SECRET, false, "fetching NodePublishSecretRef ns/s failed"),
            (EXPAND_SECRET, false, "expander.NodeExpand failed to get NodeExpandSecretRef ns/s"),
            (STAGE_SECRET, true, "kubernetes.io/csi: failed to get NodeStageSecretRef ns/s"),
            (
                PUBLISH_SECRET,
                true,
                "kubernetes.io/csi: blockMapper.publishVolumeForBlock failed to get NodePublishSecretRef ns/s",
            ),
        ] {
            let (namespace, name) = ("ns".to_owned(), "s".to_owned());
            let (what, why) = (without_secret(field, is_block, "ns/s"), SecretError::Missing(name.clone()));
            let found = Cause::Secret { what, namespace, name, why }.to_string();
            let why = "failed to find the secret s in the namespace ns with error: secrets \"s\" not found";
            assert_eq!(found, format!("{expected}: kubernetes.io/csi: {why}"));
        }
    }
}

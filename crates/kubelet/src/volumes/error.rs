//! Why a volume is not ready, or not taken down: what was done to it, which volume, and the cause. What was done decides the
//! reason of the event that tells of it. The words are upstream's.

use std::io;

use api::volume_migration::MigrationError;
use csi::tonic::Status;

use super::attached::NodeUnknown;
use super::csi::{AttachError, ManyLabels, NoDriver, WrongLifecycle};
use super::iscsi::IscsiError;
use super::nfs::NfsError;
use super::payload::PayloadError;
use super::tokens::TokenError;
use crate::huge_pages::MediumError;
use crate::objects::NotSynced;

/// What was done to a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Finding out what it is, before anything is done to it.
    Process,
    SetUp,
    CheckMountOptions,
    /// Whether the volume is there for this node, and the same of a device.
    CheckNode,
    CheckNodeOfDevice,
    WaitForAttach,
    MountDevice,
    /// Growing its file system before its pod starts, and growing the device.
    ExpandMounted,
    ExpandMapped,
    /// And while a pod uses it.
    ExpandInUse,
    SetUpDevice,
    MapPodDevice,
    TearDown,
    UnmountDevice,
}

impl Operation {
    /// How a failure begins to be told.
    fn failed(self, volume: &str) -> String {
        let what = match self {
            Operation::Process => {
                return format!(
                    "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], \
                     failed to process volumes=[{volume}]:"
                );
            }
            Operation::SetUp => "MountVolume.SetUp failed",
            Operation::CheckMountOptions => "MountVolume.MountOptionSupport check failed",
            Operation::CheckNode => "MountVolume.NodeAffinity check failed",
            Operation::CheckNodeOfDevice => "MapVolume.NodeAffinity check failed",
            Operation::WaitForAttach => "MountVolume.WaitForAttach failed",
            Operation::MountDevice => "MountVolume.MountDevice failed",
            Operation::ExpandMounted => "MountVolume.Setup failed while expanding volume",
            Operation::ExpandMapped => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
            Operation::ExpandInUse => "NodeExpandVolume.NodeExpandVolume failed",
            Operation::SetUpDevice => "MapVolume.SetUpDevice failed",
            Operation::MapPodDevice => "MapVolume.MapPodDevice failed",
            Operation::TearDown => "UnmountVolume.TearDown failed",
            Operation::UnmountDevice => "UnmountDevice failed",
        };
        format!("{what} for volume \"{volume}\" :")
    }

    /// The reason of the event that tells of a failure; what is taken down is told in no event.
    fn reason(self) -> &'static str {
        match self {
            Operation::ExpandInUse => "VolumeResizeFailed",
            Operation::CheckMountOptions => "UnsupportedMountOption",
            Operation::SetUpDevice | Operation::MapPodDevice | Operation::ExpandMapped => "FailedMapVolume",
            Operation::Process
            | Operation::SetUp
            | Operation::CheckNode
            | Operation::CheckNodeOfDevice
            | Operation::ExpandMounted
            | Operation::WaitForAttach
            | Operation::MountDevice
            | Operation::TearDown
            | Operation::UnmountDevice => "FailedMount",
        }
    }
}

/// One volume that could not be made ready, or taken down: another try will follow.
#[derive(Debug, thiserror::Error)]
#[error("{} {cause}", .operation.failed(.volume))]
pub(crate) struct VolumeError {
    operation: Operation,
    volume: String,
    cause: Box<Cause>,
}

impl VolumeError {
    pub(crate) fn of(operation: Operation, volume: &str, cause: impl Into<Cause>) -> Self {
        VolumeError { operation, volume: volume.into(), cause: Box::new(cause.into()) }
    }

    /// The event's reason.
    pub(crate) fn reason(&self) -> &'static str {
        self.operation.reason()
    }

    /// The reason and the message with which the pod is rejected, where another try on this node does not help.
    pub(crate) fn rejection(&self) -> Option<(&'static str, String)> {
        let Cause::Attach(cause @ AttachError::NoRoom { .. }) = &*self.cause else { return None };
        Some(("VolumeAttachmentLimitExceeded", format!("Pod was rejected: {cause}")))
    }
}

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Cause {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("unknown storage medium \"{0}\"")]
    Medium(String),
    #[error(transparent)]
    HugePages(#[from] MediumError),
    /// Of volumes that nothing here can make ready.
    #[error("failed to get Plugin from volumeSpec for volume {0:?} err=no volume plugin matched")]
    NoPlugin(String),
    /// Names of objects become parts of paths.
    #[error("invalid {what} {name:?}: {why}")]
    Name { what: &'static str, name: String, why: String },
    #[error("Mount options are not supported for this volume type")]
    MountOptions,
    /// The volume is there for other nodes.
    #[error("no matching NodeSelectorTerms")]
    WrongNode,
    #[error(transparent)]
    Node(#[from] NodeUnknown),
    #[error(transparent)]
    MountOption(#[from] files::NotForDirectories),
    #[error(transparent)]
    Claim(#[from] ClaimError),
    #[error(transparent)]
    Payload(#[from] PayloadError),
    #[error(transparent)]
    Nfs(#[from] NfsError),
    #[error(transparent)]
    Iscsi(#[from] IscsiError),
    /// Of a driver that was part of Kubernetes once, and without what its successor must know.
    #[error(transparent)]
    Migration(#[from] MigrationError),
    #[error("volume handle is empty")]
    NoHandle,
    #[error("kubernetes.io/csi: mounter.SetupAt failed to check volume lifecycle mode: {0}")]
    Lifecycle(#[from] WrongLifecycle),
    #[error(transparent)]
    Labels(#[from] ManyLabels),
    #[error("kubernetes.io/csi: {needed_by}: {source}")]
    NoDriver { needed_by: &'static str, source: NoDriver },
    #[error(
        "{what}: kubernetes.io/csi: failed to find the secret {name} in the namespace {namespace} with error: {why}"
    )]
    Secret { what: String, namespace: String, name: String, why: SecretError },
    /// Of a pod's account, for a driver that wants it. With upstream's spelling.
    #[error("kubernetes.io/csi: mounter.SetUpAt failed to get service accoount token attributes: {0}")]
    Token(#[from] TokenError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    UsedByAnotherPod,
    /// What the driver answered.
    #[error("{}", csi::describe(.0))]
    Driver(Status),
    /// And when it was asked to grow the volume.
    #[error("{}", growth_failure(.0))]
    Growth(Status),
    #[error("NodeExpand is not supported by the CSI driver {0}")]
    NoGrowth(String),
    #[error("applyFSGroup failed for vol {handle}: {source}")]
    Group { handle: String, source: io::Error },
    /// The claim could not be told that its volume has grown.
    #[error(transparent)]
    Api(#[from] client::Error),
    #[error(transparent)]
    Unfinished(#[from] Unfinished),
}

/// Why a driver did not grow a volume, in the words of events and of the claim's condition (`nodeExpandWithClient`, v1.36).
fn growth_failure(status: &Status) -> String {
    let colon = if csi::is_infeasible(status) { "" } else { ": " };
    format!("Expander.NodeExpand failed to expand the volume {colon}{}", csi::describe(status))
}

/// Names become parts of paths.
pub(super) fn check_name(what: &'static str, name: &str) -> Result<(), Cause> {
    match api::validation::dns1123_subdomain(name).into_iter().next() {
        Some(why) => Err(Cause::Name { what, name: name.to_owned(), why }),
        None => Ok(()),
    }
}

/// Why a pod cannot have what it claims.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    #[error("error processing PVC {claim}: {why}")]
    Unusable { claim: String, why: UnusableClaim },
    /// Somebody else had made a claim of the name that the pod's own would have.
    #[error("PVC {claim} was not created for pod {pod} (pod is not owner)")]
    NotForPod { claim: String, pod: String },
    #[error("volume {0} has volumeMode Block, but is specified in volumeMounts")]
    IsDevice(String),
    #[error("volume {0} has volumeMode Filesystem, but is specified in volumeDevices")]
    IsFileSystem(String),
}

/// What is wrong with a claim, or with the volume that it names.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UnusableClaim {
    #[error("failed to fetch PVC from API server: {0}")]
    NotRead(client::Error),
    #[error("PVC is being deleted")]
    BeingDeleted,
    #[error("PVC is not bound")]
    NotBound,
    #[error("PVC has empty pvc.Spec.VolumeName")]
    NoVolumeName,
    #[error("failed to fetch PV {name} from API server: {source}")]
    NoVolume { name: String, source: client::Error },
    #[error("found PV object {0} but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim")]
    NoReference(String),
    #[error("found PV object {name} but its pv.Spec.ClaimRef.UID {given} does not point to claim.UID {own}")]
    AnotherClaim { name: String, given: String, own: String },
}

/// Why a driver's secret cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SecretError {
    #[error(transparent)]
    NotSynced(#[from] NotSynced),
    #[error("secrets {0:?} not found")]
    Missing(String),
}

/// Work on a volume that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unfinished {
    #[error("the kubelet is stopping")]
    Stopping,
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// What could not be taken down of a pod.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TearDownError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Volumes(Vec<TornDown>),
}

/// Why one volume was not taken down.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TornDown {
    #[error(transparent)]
    Volume(#[from] VolumeError),
    #[error(transparent)]
    Unfinished(#[from] Unfinished),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_upstreams_reasons_and_words() {
        let status = || Cause::Driver(Status::internal("no disk"));
        for (operation, reason, text) in [
            (Operation::SetUp, "FailedMount", "MountVolume.SetUp failed"),
            (Operation::WaitForAttach, "FailedMount", "MountVolume.WaitForAttach failed"),
            (Operation::MountDevice, "FailedMount", "MountVolume.MountDevice failed"),
            (Operation::ExpandMounted, "FailedMount", "MountVolume.Setup failed while expanding volume"),
            (Operation::ExpandMapped, "FailedMapVolume", "MapVolume.MarkVolumeAsMounted failed while expanding volume"),
            (Operation::ExpandInUse, "VolumeResizeFailed", "NodeExpandVolume.NodeExpandVolume failed"),
            (Operation::CheckMountOptions, "UnsupportedMountOption", "MountVolume.MountOptionSupport check failed"),
            (Operation::CheckNode, "FailedMount", "MountVolume.NodeAffinity check failed"),
            (Operation::CheckNodeOfDevice, "FailedMount", "MapVolume.NodeAffinity check failed"),
            (Operation::SetUpDevice, "FailedMapVolume", "MapVolume.SetUpDevice failed"),
            (Operation::MapPodDevice, "FailedMapVolume", "MapVolume.MapPodDevice failed"),
        ] {
            let error = VolumeError::of(operation, "data", status());
            assert_eq!(error.reason(), reason, "{operation:?}");
            let expected = format!("{text} for volume \"data\" : rpc error: code = Internal desc = no disk");
            assert_eq!(error.to_string(), expected);
        }
        let unusable = ClaimError::Unusable { claim: "ns/c".into(), why: UnusableClaim::NotBound };
        let error = VolumeError::of(Operation::Process, "data", unusable);
        assert_eq!(error.reason(), "FailedMount");
        let expected = "Unable to attach or mount volumes: unmounted volumes=[data], unattached volumes=[], \
            failed to process volumes=[data]: error processing PVC ns/c: PVC is not bound";
        assert_eq!(error.to_string(), expected);
        for (status, expected) in [
            (Status::internal("x"), "volume : rpc error: code = Internal desc = x"),
            (Status::out_of_range("x"), "volume rpc error: code = OutOfRange desc = x"),
        ] {
            let expected = format!("Expander.NodeExpand failed to expand the {expected}");
            assert_eq!(Cause::Growth(status).to_string(), expected);
        }
    }

    #[test]
    fn a_pod_for_which_there_is_no_room_is_rejected() {
        let refused = |cause: AttachError| VolumeError::of(Operation::WaitForAttach, "pv", cause).rejection();
        let (reason, message) = refused(AttachError::NoRoom { volume: "data".into() }).unwrap();
        let words = "Node has reached its volume attachment limit, rejecting pod. unmounted volumes=[data], \
            unattached volumes=[data], failed to process volumes=[]: context deadline exceeded";
        assert_eq!(reason, "VolumeAttachmentLimitExceeded");
        assert_eq!(message, format!("Pod was rejected: {words}"));
        assert!(refused(AttachError::Attacher("no room".into())).is_none(), "it may come");
    }

    #[test]
    fn everything_that_is_left_of_a_pod_is_told() {
        let failed = |name: &str| TornDown::from(VolumeError::of(Operation::TearDown, name, Cause::NoHandle));
        let error = TearDownError::Volumes(vec![failed("a"), Unfinished::Stopping.into()]);
        let expected =
            "UnmountVolume.TearDown failed for volume \"a\" : volume handle is empty; the kubelet is stopping";
        assert_eq!(error.to_string(), expected);
    }
}

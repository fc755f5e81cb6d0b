//! Why there is no volume.

use api::node_volumes::DRIVER;

/// Why a claim gets no volume.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoVolume {
    #[error("volumes are folders and cannot be used as block devices")]
    Block,
    #[error("the class has no volumes on the node that was selected")]
    OtherNodes,
    #[error("no node has {0} left")]
    NoRoom(String),
    #[error("it has no spec")]
    NoSpec,
    #[error("a volume cannot be made from a {0}")]
    SourceKind(String),
    #[error("error getting PVC {name} ({namespace}) from api server: not found")]
    NoClaim { namespace: String, name: String },
    #[error("the PVC {name} ({namespace}) is not bound")]
    Unbound { namespace: String, name: String },
    #[error("the source PVC {0} is not a volume of {DRIVER}")]
    ForeignClaim(String),
    #[error("requested volume size {wanted} is less than the size {size} for the source {key}")]
    Smaller { wanted: i64, size: i64, key: String },
    #[error("error getting snapshot {0} from api server: not found")]
    NoSnapshot(String),
    #[error("snapshot {0} is not Ready")]
    SnapshotNotReady(String),
    #[error("snapshot {0} is not one of {DRIVER}")]
    ForeignSnapshot(String),
}

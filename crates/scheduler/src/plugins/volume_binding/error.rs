//! What keeps a pod from its volumes, in upstream's words.

use client::Error as ApiError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    #[error("persistentvolumeclaim {0:?} not found")]
    NoClaim(String),
    #[error("waiting for ephemeral volume controller to create the persistentvolumeclaim {0:?}")]
    NotMade(String),
    #[error("persistentvolumeclaim {claim:?} bound to non-existent persistentvolume {volume:?}")]
    Lost { claim: String, volume: String },
    #[error("persistentvolumeclaim {0:?} is being deleted")]
    Deleted(String),
    #[error("PVC {namespace}/{claim} was not created for pod {pod} (pod is not owner)")]
    NotOwner { namespace: String, claim: String, pod: String },
    #[error("pod has unbound immediate PersistentVolumeClaims")]
    Immediate,
    #[error("VolumeBindingMode not set for StorageClass {0:?}")]
    NoBindingMode(String),
    #[error("node {0:?} not found")]
    NoNode(String),
    #[error("no pod volume found for node {0:?}")]
    NoVolumes(String),
    #[error("{0}")]
    Write(#[from] ApiError),
    #[error("binding volumes: failed to check binding: could not find v1.{kind} {key:?}")]
    Gone { kind: &'static str, key: String },
    /// Somebody took the choice of the node back.
    #[error("binding volumes: provisioning failed for PVC {0:?}")]
    Provisioning(String),
    /// Somebody took a volume back that was promised to a claim.
    #[error("binding volumes: ClaimRef got reset for pv {0:?}")]
    Reset(String),
    #[error("binding volumes: pv {volume:?} node affinity doesn't match node {node:?}: no matching NodeSelectorTerms")]
    Unreachable { volume: String, node: String },
    /// Nobody needs what is waited for any more.
    #[error("binding volumes: pod does not exist any more: pod {0:?} not found")]
    PodGone(String),
    #[error("binding volumes: failed to get node {0:?}: node {0:?} not found")]
    NodeGone(String),
    #[error("binding volumes: the scheduler is stopping")]
    Stopping,
    #[error("binding volumes: context deadline exceeded")]
    Timeout,
}

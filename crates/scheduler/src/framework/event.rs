//! Things that happen in the cluster and may let a waiting pod be scheduled.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::{CSINode, CSIStorageCapacity, StorageClass};

use crate::pod::PodInfo;

#[derive(Debug, Clone)]
pub(crate) enum Event {
    NodeAdded(Arc<Node>),
    NodeChanged {
        old: Arc<Node>,
        new: Arc<Node>,
        change: NodeChange,
    },
    NodeDeleted(Arc<Node>),
    /// A pod got a node.
    PodAdded(Arc<PodInfo>),
    /// A pod that has a node changed.
    PodChanged {
        old: Arc<PodInfo>,
        new: Arc<PodInfo>,
        change: PodChange,
    },
    /// A pod with a node is gone, or what was kept for it is given back.
    PodDeleted(Arc<PodInfo>),
    /// The waiting pod itself changed.
    SelfChanged {
        change: PodChange,
        gates_gone: bool,
    },
    /// The labels of a namespace changed, or it came or went.
    NamespaceChanged,
    ClaimAdded(Arc<PersistentVolumeClaim>),
    ClaimChanged(Arc<PersistentVolumeClaim>),
    VolumeAdded,
    VolumeChanged,
    StorageClassAdded(Arc<StorageClass>),
    StorageClassChanged {
        old: Arc<StorageClass>,
        new: Arc<StorageClass>,
    },
    /// A driver stopped publishing its capacity.
    CsiDriverChanged(String),
    CsiNodeAdded,
    CsiNodeChanged {
        old: Arc<CSINode>,
        new: Arc<CSINode>,
    },
    /// A volume was detached from its node.
    AttachmentDeleted,
    CapacityAdded,
    CapacityChanged {
        old: Arc<CSIStorageCapacity>,
        new: Arc<CSIStorageCapacity>,
    },
}

/// What changed of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeChange {
    pub(crate) allocatable: bool,
    pub(crate) labels: bool,
    pub(crate) taints: bool,
}

/// What changed of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct PodChange {
    pub(crate) labels: bool,
    pub(crate) tolerations: bool,
    pub(crate) scaled_down: bool,
}

impl NodeChange {
    /// None if nothing changed that could let a pod in.
    pub(crate) fn between(old: &Node, new: &Node) -> Option<NodeChange> {
        let spec = |node: &Node| {
            node.spec
                .as_ref()
                .map(|spec| (spec.taints.clone(), spec.unschedulable.unwrap_or(false)))
                .unwrap_or_default()
        };
        let allocatable = |node: &Node| node.status.as_ref().and_then(|status| status.allocatable.clone());
        let change = NodeChange {
            allocatable: allocatable(old) != allocatable(new),
            labels: old.metadata.labels != new.metadata.labels,
            taints: spec(old) != spec(new),
        };
        (change != NodeChange::default()).then_some(change)
    }
}

impl PodChange {
    pub(crate) fn between(old: &PodInfo, new: &PodInfo) -> PodChange {
        let (before, after) = (&old.held().asked, &new.held().asked);
        let shrunk = before.scalars.iter().any(|scalar| scalar.amount > after.scalar(scalar.id));
        PodChange {
            labels: old.group.labels != new.group.labels,
            tolerations: old.class.tolerations.len() != new.class.tolerations.len(),
            scaled_down: shrunk
                || before.milli_cpu > after.milli_cpu
                || before.memory > after.memory
                || before.ephemeral_storage > after.ephemeral_storage,
        }
    }
}

impl Event {
    /// The name under which metrics count it.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Event::NodeAdded(_) => "NodeAdd",
            Event::NodeChanged { change: NodeChange { allocatable: true, .. }, .. } => "NodeUpdateNodeAllocatable",
            Event::NodeChanged { change: NodeChange { labels: true, .. }, .. } => "NodeUpdateNodeLabel",
            Event::NodeChanged { .. } => "NodeUpdateNodeTaint",
            Event::NodeDeleted(_) => "NodeDelete",
            Event::PodAdded(_) => "AssignedPodAdd",
            Event::PodChanged { .. } => "AssignedPodUpdate",
            Event::PodDeleted(_) => "AssignedPodDelete",
            Event::SelfChanged { .. } => "UnschedulablePodUpdate",
            Event::NamespaceChanged => "NamespaceUpdate",
            Event::ClaimAdded(_) => "PersistentVolumeClaimAdd",
            Event::ClaimChanged(_) => "PersistentVolumeClaimUpdate",
            Event::VolumeAdded => "PersistentVolumeAdd",
            Event::VolumeChanged => "PersistentVolumeUpdate",
            Event::StorageClassAdded(_) => "StorageClassAdd",
            Event::StorageClassChanged { .. } => "StorageClassUpdate",
            Event::CsiDriverChanged(_) => "CSIDriverUpdate",
            Event::CsiNodeAdded => "CSINodeAdd",
            Event::CsiNodeChanged { .. } => "CSINodeUpdate",
            Event::AttachmentDeleted => "VolumeAttachmentDelete",
            Event::CapacityAdded => "CSIStorageCapacityAdd",
            Event::CapacityChanged { .. } => "CSIStorageCapacityUpdate",
        }
    }
}

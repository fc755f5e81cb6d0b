//! CSI v1: messages and services, with the names and numbers of the specification.
//!
//! Messages that the specification nests (`ValidateVolumeCapabilitiesResponse.Confirmed`, `ListVolumesResponse.Entry`) stand
//! on their own; on the wire that is the same. Here is what more than one service speaks of.

mod controller;
mod identity;
mod node;

use std::collections::BTreeMap;

pub use controller::*;
pub use identity::*;
pub use node::*;

/// Opaque to everyone but the driver, or secret.
pub type Parameters = BTreeMap<String, String>;

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct BoolValue {
    #[prost(bool, tag = "1")]
    pub value: bool,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct Int64Value {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub requisite: Vec<Topology>,
    #[prost(message, repeated, tag = "2")]
    pub preferred: Vec<Topology>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum AccessMode {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

/// How a volume is used: as a device or as a file system, and by whom at once.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<VolumeAccessMode>,
}

impl VolumeCapability {
    pub fn block(mode: AccessMode) -> Self {
        VolumeCapability { access_type: Some(AccessType::Block(BlockVolume {})), access_mode: Some(mode.into()) }
    }

    pub fn mount(mount: MountVolume, mode: AccessMode) -> Self {
        VolumeCapability { access_type: Some(AccessType::Mount(mount)), access_mode: Some(mode.into()) }
    }
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(BlockVolume),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct BlockVolume {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct VolumeAccessMode {
    #[prost(enumeration = "AccessMode", tag = "1")]
    pub mode: i32,
}

impl From<AccessMode> for VolumeAccessMode {
    fn from(mode: AccessMode) -> Self {
        VolumeAccessMode { mode: mode as i32 }
    }
}

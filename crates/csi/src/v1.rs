//! CSI v1: messages and services, with the names and numbers of the specification.
//!
//! Messages that the specification nests (`ValidateVolumeCapabilitiesResponse.Confirmed`, `ListVolumesResponse.Entry`) stand
//! on their own here; on the wire that is the same.

use std::collections::BTreeMap;

use crate::service::service;

/// Opaque to everyone but the driver, or secret.
pub type Parameters = BTreeMap<String, String>;

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct GetPluginInfoRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetPluginInfoResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub vendor_version: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub manifest: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct GetPluginCapabilitiesRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetPluginCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<PluginCapability>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ProbeRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ProbeResponse {
    #[prost(message, optional, tag = "1")]
    pub ready: Option<BoolValue>,
}

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

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateVolumeRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Parameters,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Parameters,
    #[prost(message, optional, tag = "6")]
    pub volume_content_source: Option<VolumeContentSource>,
    #[prost(message, optional, tag = "7")]
    pub accessibility_requirements: Option<TopologyRequirement>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub mutable_parameters: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: Parameters,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
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
pub struct DeleteVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct DeleteVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerPublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(message, optional, tag = "3")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "4")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerPublishVolumeResponse {
    #[prost(btree_map = "string, string", tag = "1")]
    pub publish_context: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub node_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerUnpublishVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ValidateVolumeCapabilitiesRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub volume_context: Parameters,
    #[prost(message, repeated, tag = "3")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Parameters,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "6")]
    pub mutable_parameters: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ValidateVolumeCapabilitiesResponse {
    #[prost(message, optional, tag = "1")]
    pub confirmed: Option<Confirmed>,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Confirmed {
    #[prost(btree_map = "string, string", tag = "1")]
    pub volume_context: Parameters,
    #[prost(message, repeated, tag = "2")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub parameters: Parameters,
    #[prost(btree_map = "string, string", tag = "4")]
    pub mutable_parameters: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListVolumesRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListVolumesResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<VolumeEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeEntry {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<VolumeStatus>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeStatus {
    #[prost(string, repeated, tag = "1")]
    pub published_node_ids: Vec<String>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerGetVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerGetVolumeResponse {
    #[prost(message, optional, tag = "1")]
    pub volume: Option<Volume>,
    #[prost(message, optional, tag = "2")]
    pub status: Option<VolumeStatus>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerModifyVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "3")]
    pub mutable_parameters: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerModifyVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetCapacityRequest {
    #[prost(message, repeated, tag = "1")]
    pub volume_capabilities: Vec<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub parameters: Parameters,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetCapacityResponse {
    #[prost(int64, tag = "1")]
    pub available_capacity: i64,
    #[prost(message, optional, tag = "2")]
    pub maximum_volume_size: Option<Int64Value>,
    #[prost(message, optional, tag = "3")]
    pub minimum_volume_size: Option<Int64Value>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerGetCapabilitiesRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<ControllerServiceCapability>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateSnapshotRequest {
    #[prost(string, tag = "1")]
    pub source_volume_id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "4")]
    pub parameters: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct CreateSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct Snapshot {
    #[prost(int64, tag = "1")]
    pub size_bytes: i64,
    #[prost(string, tag = "2")]
    pub snapshot_id: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(message, optional, tag = "4")]
    pub creation_time: Option<Timestamp>,
    #[prost(bool, tag = "5")]
    pub ready_to_use: bool,
    #[prost(string, tag = "6")]
    pub group_snapshot_id: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct DeleteSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct DeleteSnapshotResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListSnapshotsRequest {
    #[prost(int32, tag = "1")]
    pub max_entries: i32,
    #[prost(string, tag = "2")]
    pub starting_token: String,
    #[prost(string, tag = "3")]
    pub source_volume_id: String,
    #[prost(string, tag = "4")]
    pub snapshot_id: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ListSnapshotsResponse {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<SnapshotEntry>,
    #[prost(string, tag = "2")]
    pub next_token: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct SnapshotEntry {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetSnapshotRequest {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub secrets: Parameters,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct GetSnapshotResponse {
    #[prost(message, optional, tag = "1")]
    pub snapshot: Option<Snapshot>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct ControllerExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(message, optional, tag = "2")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(btree_map = "string, string", tag = "3")]
    pub secrets: Parameters,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(bool, tag = "2")]
    pub node_expansion_required: bool,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeStageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: Parameters,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "4")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "5")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_context: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeStageVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeUnstageVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub staging_target_path: String,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeUnstageVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodePublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "2")]
    pub publish_context: Parameters,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
    #[prost(string, tag = "4")]
    pub target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(bool, tag = "6")]
    pub readonly: bool,
    #[prost(btree_map = "string, string", tag = "7")]
    pub secrets: Parameters,
    #[prost(btree_map = "string, string", tag = "8")]
    pub volume_context: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodePublishVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeUnpublishVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub target_path: String,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeUnpublishVolumeResponse {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeGetVolumeStatsRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(string, tag = "3")]
    pub staging_target_path: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeGetVolumeStatsResponse {
    #[prost(message, repeated, tag = "1")]
    pub usage: Vec<VolumeUsage>,
    #[prost(message, optional, tag = "2")]
    pub volume_condition: Option<VolumeCondition>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeUsage {
    #[prost(int64, tag = "1")]
    pub available: i64,
    #[prost(int64, tag = "2")]
    pub total: i64,
    #[prost(int64, tag = "3")]
    pub used: i64,
    #[prost(enumeration = "Unit", tag = "4")]
    pub unit: i32,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeGetCapabilitiesRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeGetCapabilitiesResponse {
    #[prost(message, repeated, tag = "1")]
    pub capabilities: Vec<NodeServiceCapability>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeGetInfoRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeGetInfoResponse {
    #[prost(string, tag = "1")]
    pub node_id: String,
    #[prost(int64, tag = "2")]
    pub max_volumes_per_node: i64,
    #[prost(message, optional, tag = "3")]
    pub accessible_topology: Option<Topology>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct NodeExpandVolumeRequest {
    #[prost(string, tag = "1")]
    pub volume_id: String,
    #[prost(string, tag = "2")]
    pub volume_path: String,
    #[prost(message, optional, tag = "3")]
    pub capacity_range: Option<CapacityRange>,
    #[prost(string, tag = "4")]
    pub staging_target_path: String,
    #[prost(message, optional, tag = "5")]
    pub volume_capability: Option<VolumeCapability>,
    #[prost(btree_map = "string, string", tag = "6")]
    pub secrets: Parameters,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeExpandVolumeResponse {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ServiceType {
    Unknown = 0,
    ControllerService = 1,
    VolumeAccessibilityConstraints = 2,
    GroupControllerService = 3,
    SnapshotMetadataService = 4,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum VolumeExpansionType {
    Unknown = 0,
    Online = 1,
    Offline = 2,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum ControllerRpc {
    Unknown = 0,
    CreateDeleteVolume = 1,
    PublishUnpublishVolume = 2,
    ListVolumes = 3,
    GetCapacity = 4,
    CreateDeleteSnapshot = 5,
    ListSnapshots = 6,
    CloneVolume = 7,
    PublishReadonly = 8,
    ExpandVolume = 9,
    ListVolumesPublishedNodes = 10,
    VolumeCondition = 11,
    GetVolume = 12,
    SingleNodeMultiWriter = 13,
    ModifyVolume = 14,
    GetSnapshot = 15,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum NodeRpc {
    Unknown = 0,
    StageUnstageVolume = 1,
    GetVolumeStats = 2,
    ExpandVolume = 3,
    VolumeCondition = 4,
    SingleNodeMultiWriter = 5,
    VolumeMountGroup = 6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, ::prost::Enumeration)]
#[repr(i32)]
pub enum Unit {
    Unknown = 0,
    Bytes = 1,
    Inodes = 2,
}

/// Where the contents of a new volume come from.
#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeContentSource {
    #[prost(oneof = "ContentSource", tags = "1, 2")]
    pub r#type: Option<ContentSource>,
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub enum ContentSource {
    #[prost(message, tag = "1")]
    Snapshot(SnapshotSource),
    #[prost(message, tag = "2")]
    Volume(VolumeSource),
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct SnapshotSource {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct VolumeSource {
    #[prost(string, tag = "1")]
    pub volume_id: String,
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

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PluginCapability {
    #[prost(oneof = "PluginCapabilityType", tags = "1, 2")]
    pub r#type: Option<PluginCapabilityType>,
}

#[derive(Clone, PartialEq, ::prost::Oneof)]
pub enum PluginCapabilityType {
    #[prost(message, tag = "1")]
    Service(ServiceCapability),
    #[prost(message, tag = "2")]
    VolumeExpansion(VolumeExpansionCapability),
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ServiceCapability {
    #[prost(enumeration = "ServiceType", tag = "1")]
    pub r#type: i32,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct VolumeExpansionCapability {
    #[prost(enumeration = "VolumeExpansionType", tag = "1")]
    pub r#type: i32,
}

impl From<ServiceType> for PluginCapability {
    fn from(service: ServiceType) -> Self {
        PluginCapability { r#type: Some(PluginCapabilityType::Service(ServiceCapability { r#type: service as i32 })) }
    }
}

impl From<VolumeExpansionType> for PluginCapability {
    fn from(expansion: VolumeExpansionType) -> Self {
        let expansion = VolumeExpansionCapability { r#type: expansion as i32 };
        PluginCapability { r#type: Some(PluginCapabilityType::VolumeExpansion(expansion)) }
    }
}

impl GetPluginCapabilitiesResponse {
    pub fn has(&self, service: ServiceType) -> bool {
        self.capabilities.contains(&service.into())
    }
}

/// One call that a service answers. The specification wraps it in a choice of one; on the wire that is one more message.
#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<ControllerRpcCapability>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct ControllerRpcCapability {
    #[prost(enumeration = "ControllerRpc", tag = "1")]
    pub r#type: i32,
}

impl From<ControllerRpc> for ControllerServiceCapability {
    fn from(rpc: ControllerRpc) -> Self {
        ControllerServiceCapability { rpc: Some(ControllerRpcCapability { r#type: rpc as i32 }) }
    }
}

impl ControllerGetCapabilitiesResponse {
    pub fn has(&self, rpc: ControllerRpc) -> bool {
        self.capabilities.contains(&rpc.into())
    }
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeServiceCapability {
    #[prost(message, optional, tag = "1")]
    pub rpc: Option<NodeRpcCapability>,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct NodeRpcCapability {
    #[prost(enumeration = "NodeRpc", tag = "1")]
    pub r#type: i32,
}

impl From<NodeRpc> for NodeServiceCapability {
    fn from(rpc: NodeRpc) -> Self {
        NodeServiceCapability { rpc: Some(NodeRpcCapability { r#type: rpc as i32 }) }
    }
}

impl NodeGetCapabilitiesResponse {
    pub fn has(&self, rpc: NodeRpc) -> bool {
        self.capabilities.contains(&rpc.into())
    }
}

service! {
    /// Who a driver is and what it can.
    IdentityClient, Identity, IdentityServer = "csi.v1.Identity" {
        get_plugin_info("GetPluginInfo"): GetPluginInfoRequest => GetPluginInfoResponse;
        get_plugin_capabilities("GetPluginCapabilities"): GetPluginCapabilitiesRequest => GetPluginCapabilitiesResponse;
        probe("Probe"): ProbeRequest => ProbeResponse;
    }
}

service! {
    /// What a driver does for the whole cluster: volumes, attachments, snapshots.
    ControllerClient, Controller, ControllerServer = "csi.v1.Controller" {
        create_volume("CreateVolume"): CreateVolumeRequest => CreateVolumeResponse;
        delete_volume("DeleteVolume"): DeleteVolumeRequest => DeleteVolumeResponse;
        controller_publish_volume("ControllerPublishVolume"): ControllerPublishVolumeRequest => ControllerPublishVolumeResponse;
        controller_unpublish_volume("ControllerUnpublishVolume"): ControllerUnpublishVolumeRequest => ControllerUnpublishVolumeResponse;
        validate_volume_capabilities("ValidateVolumeCapabilities"): ValidateVolumeCapabilitiesRequest => ValidateVolumeCapabilitiesResponse;
        list_volumes("ListVolumes"): ListVolumesRequest => ListVolumesResponse;
        get_capacity("GetCapacity"): GetCapacityRequest => GetCapacityResponse;
        controller_get_capabilities("ControllerGetCapabilities"): ControllerGetCapabilitiesRequest => ControllerGetCapabilitiesResponse;
        create_snapshot("CreateSnapshot"): CreateSnapshotRequest => CreateSnapshotResponse;
        delete_snapshot("DeleteSnapshot"): DeleteSnapshotRequest => DeleteSnapshotResponse;
        list_snapshots("ListSnapshots"): ListSnapshotsRequest => ListSnapshotsResponse;
        get_snapshot("GetSnapshot"): GetSnapshotRequest => GetSnapshotResponse;
        controller_expand_volume("ControllerExpandVolume"): ControllerExpandVolumeRequest => ControllerExpandVolumeResponse;
        controller_get_volume("ControllerGetVolume"): ControllerGetVolumeRequest => ControllerGetVolumeResponse;
        controller_modify_volume("ControllerModifyVolume"): ControllerModifyVolumeRequest => ControllerModifyVolumeResponse;
    }
}

service! {
    /// What a driver does on a node: volumes into pods and out again.
    NodeClient, Node, NodeServer = "csi.v1.Node" {
        node_stage_volume("NodeStageVolume"): NodeStageVolumeRequest => NodeStageVolumeResponse;
        node_unstage_volume("NodeUnstageVolume"): NodeUnstageVolumeRequest => NodeUnstageVolumeResponse;
        node_publish_volume("NodePublishVolume"): NodePublishVolumeRequest => NodePublishVolumeResponse;
        node_unpublish_volume("NodeUnpublishVolume"): NodeUnpublishVolumeRequest => NodeUnpublishVolumeResponse;
        node_get_volume_stats("NodeGetVolumeStats"): NodeGetVolumeStatsRequest => NodeGetVolumeStatsResponse;
        node_expand_volume("NodeExpandVolume"): NodeExpandVolumeRequest => NodeExpandVolumeResponse;
        node_get_capabilities("NodeGetCapabilities"): NodeGetCapabilitiesRequest => NodeGetCapabilitiesResponse;
        node_get_info("NodeGetInfo"): NodeGetInfoRequest => NodeGetInfoResponse;
    }
}

//! Volumes and snapshots as a whole: made, attached, grown, listed and removed.

use super::*;
use crate::service::service;

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

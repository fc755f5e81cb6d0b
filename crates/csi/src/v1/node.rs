//! A volume on one node: staged, published, measured and taken down.

use super::*;
use crate::service::service;

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

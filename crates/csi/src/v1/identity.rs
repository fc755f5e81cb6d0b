//! Who a driver is and what it can do.

use super::*;
use crate::service::service;

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

service! {
    /// Who a driver is and what it can.
    IdentityClient, Identity, IdentityServer = "csi.v1.Identity" {
        get_plugin_info("GetPluginInfo"): GetPluginInfoRequest => GetPluginInfoResponse;
        get_plugin_capabilities("GetPluginCapabilities"): GetPluginCapabilitiesRequest => GetPluginCapabilitiesResponse;
        probe("Probe"): ProbeRequest => ProbeResponse;
    }
}

//! `pluginregistration` v1: how a plug-in tells a kubelet that it is there. The kubelet finds its socket in a directory that
//! both know, asks who it is, and tells it what came of it.

use crate::service::service;

/// The kind of plug-in that is a CSI driver.
pub const CSI_PLUGIN: &str = "CSIPlugin";

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct InfoRequest {}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct PluginInfo {
    /// `CSIPlugin`, `DevicePlugin` or `DRAPlugin`.
    #[prost(string, tag = "1")]
    pub r#type: String,
    #[prost(string, tag = "2")]
    pub name: String,
    /// Where the plug-in is served; empty: on the socket of the registration.
    #[prost(string, tag = "3")]
    pub endpoint: String,
    #[prost(string, repeated, tag = "4")]
    pub supported_versions: Vec<String>,
}

#[derive(Clone, PartialEq, ::prost::Message)]
pub struct RegistrationStatus {
    #[prost(bool, tag = "1")]
    pub plugin_registered: bool,
    #[prost(string, tag = "2")]
    pub error: String,
}

#[derive(Clone, Copy, PartialEq, ::prost::Message)]
pub struct RegistrationStatusResponse {}

service! {
    /// A plug-in's registration.
    RegistrationClient, Registration, RegistrationServer = "pluginregistration.Registration" {
        get_info("GetInfo"): InfoRequest => PluginInfo;
        notify_registration_status("NotifyRegistrationStatus"): RegistrationStatus => RegistrationStatusResponse;
    }
}

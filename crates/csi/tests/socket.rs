//! A driver and its callers over a real socket.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Duration;

use csi::tonic::{Code, Status};
use csi::v1::{self, AccessMode, MountVolume, NodeRpc, ServiceType, VolumeCapability};
use csi::{Answer, Clients, Socket};
use tokio_util::sync::CancellationToken;

struct Driver;

impl v1::Identity for Driver {
    fn get_plugin_info(&self, _: v1::GetPluginInfoRequest) -> Answer<'_, v1::GetPluginInfoResponse> {
        Box::pin(async { Ok(v1::GetPluginInfoResponse { name: "test.cox".into(), ..Default::default() }) })
    }

    fn get_plugin_capabilities(
        &self,
        _: v1::GetPluginCapabilitiesRequest,
    ) -> Answer<'_, v1::GetPluginCapabilitiesResponse> {
        let capabilities = vec![ServiceType::ControllerService.into()];
        Box::pin(async { Ok(v1::GetPluginCapabilitiesResponse { capabilities }) })
    }
}

impl v1::Controller for Driver {
    fn create_volume(&self, _: v1::CreateVolumeRequest) -> Answer<'_, v1::CreateVolumeResponse> {
        Box::pin(std::future::pending())
    }
}

impl v1::Node for Driver {
    fn node_get_capabilities(&self, _: v1::NodeGetCapabilitiesRequest) -> Answer<'_, v1::NodeGetCapabilitiesResponse> {
        let capabilities = vec![NodeRpc::StageUnstageVolume.into()];
        Box::pin(async { Ok(v1::NodeGetCapabilitiesResponse { capabilities }) })
    }

    fn node_publish_volume(&self, request: v1::NodePublishVolumeRequest) -> Answer<'_, v1::NodePublishVolumeResponse> {
        Box::pin(async move { Err(Status::invalid_argument(format!("{request:?}").len().to_string())) })
    }
}

#[tokio::test]
async fn calls_reach_the_driver_and_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("csi.sock");
    let clients = Clients::lazy(format!("unix://{}", path.display()));
    let early = clients.identity.get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap_err();
    assert_eq!(early.code(), Code::Unavailable, "nobody is there yet: {early}");
    let stop = CancellationToken::new();
    let socket = Socket::bind(&path).unwrap();
    let serving = tokio::spawn(socket.serve(csi::router(Arc::new(Driver)), stop.clone()));

    let info = clients.identity.get_plugin_info(v1::GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(info.name, "test.cox");
    let services = clients.identity.get_plugin_capabilities(v1::GetPluginCapabilitiesRequest {}).await.unwrap();
    assert!(services.has(ServiceType::ControllerService));
    assert!(!services.has(ServiceType::VolumeAccessibilityConstraints));
    let node = clients.node.node_get_capabilities(v1::NodeGetCapabilitiesRequest {}).await.unwrap();
    assert!(node.has(NodeRpc::StageUnstageVolume) && !node.has(NodeRpc::ExpandVolume));

    let unknown = clients.node.node_get_info(v1::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(unknown.code(), Code::Unimplemented);
    let capability = VolumeCapability::mount(MountVolume::default(), AccessMode::SingleNodeWriter);
    let request = v1::NodePublishVolumeRequest { volume_capability: Some(capability), ..Default::default() };
    let refused = clients.node.node_publish_volume(request.clone()).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (Code::InvalidArgument, &*format!("{request:?}").len().to_string())
    );
    assert!(csi::is_final(&refused));

    let hasty = clients.clone().timeout(Duration::from_millis(20));
    let late = hasty.controller.create_volume(v1::CreateVolumeRequest::default()).await.unwrap_err();
    assert!(matches!(late.code(), Code::DeadlineExceeded | Code::Cancelled), "{late}");
    assert!(!csi::is_final(&late));
    stop.cancel();
    serving.await.unwrap().unwrap();
}

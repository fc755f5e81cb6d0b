//! RuntimeService.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;

use cri::tonic::{self, Request, Response, Status};
use cri::v1;
use cri::v1::runtime_service_server::RuntimeService;
use tokio_stream::{Stream, StreamExt, wrappers::BroadcastStream};

use crate::blocking::blocking;
use crate::engine::{Container, Engine, Sandbox, status};
use crate::error::{Error, doing};
use crate::{container, exec, network, sandbox, stats, streaming};

pub(crate) struct Runtime {
    pub(crate) engine: Arc<Engine>,
    pub(crate) streaming: Arc<streaming::Server>,
}

type Reply<T> = Result<Response<T>, Status>;
type StreamOf<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// A list as a stream with a message for each: one for all would be as long as what pods have said of themselves.
fn each<I, T>(items: Vec<I>, message: impl Fn(I) -> T + Send + 'static) -> Response<StreamOf<T>>
where
    I: Send + 'static,
    T: Send + 'static,
{
    Response::new(Box::pin(tokio_stream::iter(items.into_iter().map(move |item| Ok(message(item))))))
}

/// Reads usage on a thread that may wait for the disk.
async fn measure<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    blocking(move || Ok(work())).await.map_err(doing("reading usage"))
}

fn has_labels(labels: &HashMap<String, String>, selector: &HashMap<String, String>) -> bool {
    selector.iter().all(|(key, value)| labels.get(key) == Some(value))
}

impl Runtime {
    fn running(&self, id: &str) -> Result<(), Error> {
        match self.engine.container(id)?.is_running() {
            true => Ok(()),
            false => Err(Error::Precondition(format!("container {id} is not in running state"))),
        }
    }

    fn sandboxes(&self, filter: Option<v1::PodSandboxFilter>) -> Vec<Arc<Sandbox>> {
        let filter = filter.unwrap_or_default();
        let all: Vec<_> = self.engine.sandboxes.lock().values().cloned().collect();
        let mut found: Vec<_> = all
            .into_iter()
            .filter(|s| s.record.lock().complete)
            .filter(|s| s.id().starts_with(&filter.id))
            .filter(|s| filter.state.as_ref().is_none_or(|v| status::sandbox_summary(s).state == v.state))
            .filter(|s| has_labels(&s.record.lock().config.labels, &filter.label_selector))
            .collect();
        found.sort_by_key(|s| std::cmp::Reverse(s.record.lock().created_at));
        found
    }

    fn containers(&self, filter: Option<v1::ContainerFilter>) -> Vec<Arc<Container>> {
        let filter = filter.unwrap_or_default();
        let all: Vec<_> = self.engine.containers.lock().values().cloned().collect();
        let mut found: Vec<_> = all
            .into_iter()
            .filter(|c| c.id().starts_with(&filter.id))
            .filter(|c| c.sandbox_id().starts_with(&filter.pod_sandbox_id))
            .filter(|c| filter.state.as_ref().is_none_or(|v| i32::from(c.state()) == v.state))
            .filter(|c| has_labels(&c.record.lock().config.labels, &filter.label_selector))
            .collect();
        found.sort_by_key(|c| std::cmp::Reverse(c.record.lock().created_at));
        found
    }

    async fn list_stats(&self, filter: Option<v1::ContainerStatsFilter>) -> Result<Vec<v1::ContainerStats>, Error> {
        let filter = filter.map(|f| v1::ContainerFilter {
            id: f.id,
            pod_sandbox_id: f.pod_sandbox_id,
            label_selector: f.label_selector,
            state: None,
        });
        let (engine, containers) = (self.engine.clone(), self.containers(filter));
        measure(move || containers.iter().map(|c| stats::of_container(&engine, c)).collect()).await
    }

    async fn list_sandbox_stats(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Result<Vec<v1::PodSandboxStats>, Error> {
        let filter = filter.map(|f| v1::PodSandboxFilter { id: f.id, label_selector: f.label_selector, state: None });
        let (engine, sandboxes) = (self.engine.clone(), self.sandboxes(filter));
        measure(move || sandboxes.iter().filter(|s| s.is_ready()).map(|s| stats::of_sandbox(&engine, s)).collect())
            .await
    }
}

#[tonic::async_trait]
impl RuntimeService for Runtime {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Reply<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "cox".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: "v1".into(),
        }))
    }

    async fn run_pod_sandbox(&self, request: Request<v1::RunPodSandboxRequest>) -> Reply<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request.config.ok_or_else(|| Error::Invalid("sandbox config is missing".into()))?;
        let run = |engine| async move {
            let (id, laps) = trace::laps_of(sandbox::run(&engine, config, request.runtime_handler)).await;
            id.map(|id| (id, laps))
        };
        let (pod_sandbox_id, laps) = self.engine.to_the_end(run).await?;
        let mut response = Response::new(v1::RunPodSandboxResponse { pod_sandbox_id });
        // The caller has the span; it is told how its time was spent.
        if let Some(laps) = serde_json::to_string(&laps).ok().and_then(|laps| laps.parse().ok()) {
            response.metadata_mut().insert(cri::LAPS, laps);
        }
        Ok(response)
    }

    async fn stop_pod_sandbox(&self, request: Request<v1::StopPodSandboxRequest>) -> Reply<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.engine.to_the_end(|engine| async move { sandbox::stop(&engine, &id).await }).await?;
        Ok(Response::new(v1::StopPodSandboxResponse {}))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Reply<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.engine.to_the_end(|engine| async move { sandbox::remove(&engine, &id).await }).await?;
        Ok(Response::new(v1::RemovePodSandboxResponse {}))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Reply<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let sandbox = self.engine.sandbox(&request.pod_sandbox_id)?;
        let statuses =
            self.engine.containers_of(&sandbox.id()).iter().map(|c| status::of_container(&self.engine, c)).collect();
        let mut info = HashMap::new();
        if request.verbose {
            info.insert("info".into(), serde_json::json!({ "pid": sandbox.pause() }).to_string());
        }
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(status::of_sandbox(&sandbox)),
            info,
            containers_statuses: statuses,
            timestamp: crate::record::now(),
        }))
    }

    async fn list_pod_sandbox(&self, request: Request<v1::ListPodSandboxRequest>) -> Reply<v1::ListPodSandboxResponse> {
        let items = self.sandboxes(request.into_inner().filter).iter().map(|s| status::sandbox_summary(s)).collect();
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    type StreamPodSandboxesStream = StreamOf<v1::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Reply<Self::StreamPodSandboxesStream> {
        let sandboxes = self.sandboxes(request.into_inner().filter);
        Ok(each(sandboxes, |s| v1::StreamPodSandboxesResponse { pod_sandboxes: vec![status::sandbox_summary(&s)] }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Reply<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let container_id =
            self.engine.to_the_end(|engine| async move { container::create(&engine, request).await }).await?;
        Ok(Response::new(v1::CreateContainerResponse { container_id }))
    }

    async fn start_container(&self, request: Request<v1::StartContainerRequest>) -> Reply<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.engine.to_the_end(|engine| async move { container::start(&engine, &id).await }).await?;
        Ok(Response::new(v1::StartContainerResponse {}))
    }

    async fn stop_container(&self, request: Request<v1::StopContainerRequest>) -> Reply<v1::StopContainerResponse> {
        let request = request.into_inner();
        container::stop(&self.engine, &request.container_id, request.timeout).await?;
        Ok(Response::new(v1::StopContainerResponse {}))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Reply<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.engine.to_the_end(|engine| async move { container::remove(&engine, &id).await }).await?;
        Ok(Response::new(v1::RemoveContainerResponse {}))
    }

    async fn list_containers(&self, request: Request<v1::ListContainersRequest>) -> Reply<v1::ListContainersResponse> {
        let containers =
            self.containers(request.into_inner().filter).iter().map(|c| status::container_summary(c)).collect();
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    type StreamContainersStream = StreamOf<v1::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Reply<Self::StreamContainersStream> {
        let containers = self.containers(request.into_inner().filter);
        Ok(each(containers, |c| v1::StreamContainersResponse { containers: vec![status::container_summary(&c)] }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Reply<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let container = self.engine.container(&request.container_id)?;
        let mut info = HashMap::new();
        if request.verbose {
            let pid = container.status.borrow().pid;
            info.insert("info".into(), serde_json::json!({ "pid": pid }).to_string());
        }
        let status = Some(status::of_container(&self.engine, &container));
        Ok(Response::new(v1::ContainerStatusResponse { status, info }))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Reply<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        if let Some(linux) = request.linux {
            container::update(&self.engine, &request.container_id, linux).await?;
        }
        Ok(Response::new(v1::UpdateContainerResourcesResponse {}))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Reply<v1::ReopenContainerLogResponse> {
        container::reopen_log(&self.engine, &request.into_inner().container_id).await?;
        Ok(Response::new(v1::ReopenContainerLogResponse {}))
    }

    async fn exec_sync(&self, request: Request<v1::ExecSyncRequest>) -> Reply<v1::ExecSyncResponse> {
        Ok(Response::new(exec::sync(&self.engine, request.into_inner()).await?))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Reply<v1::ExecResponse> {
        let request = request.into_inner();
        self.running(&request.container_id)?;
        Ok(Response::new(v1::ExecResponse { url: self.streaming.exec_url(request)? }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Reply<v1::AttachResponse> {
        let request = request.into_inner();
        self.running(&request.container_id)?;
        Ok(Response::new(v1::AttachResponse { url: self.streaming.attach_url(request)? }))
    }

    async fn port_forward(&self, request: Request<v1::PortForwardRequest>) -> Reply<v1::PortForwardResponse> {
        let request = request.into_inner();
        self.engine.sandbox(&request.pod_sandbox_id)?;
        Ok(Response::new(v1::PortForwardResponse { url: self.streaming.port_forward_url(request)? }))
    }

    async fn container_stats(&self, request: Request<v1::ContainerStatsRequest>) -> Reply<v1::ContainerStatsResponse> {
        let container = self.engine.container(&request.into_inner().container_id)?;
        let engine = self.engine.clone();
        let stats = Some(measure(move || stats::of_container(&engine, &container)).await?);
        Ok(Response::new(v1::ContainerStatsResponse { stats }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Reply<v1::ListContainerStatsResponse> {
        let stats = self.list_stats(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    type StreamContainerStatsStream = StreamOf<v1::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Reply<Self::StreamContainerStatsStream> {
        let stats = self.list_stats(request.into_inner().filter).await?;
        Ok(each(stats, |stats| v1::StreamContainerStatsResponse { container_stats: vec![stats] }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Reply<v1::PodSandboxStatsResponse> {
        let sandbox = self.engine.sandbox(&request.into_inner().pod_sandbox_id)?;
        let engine = self.engine.clone();
        let stats = Some(measure(move || stats::of_sandbox(&engine, &sandbox)).await?);
        Ok(Response::new(v1::PodSandboxStatsResponse { stats }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Reply<v1::ListPodSandboxStatsResponse> {
        let stats = self.list_sandbox_stats(request.into_inner().filter).await?;
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    type StreamPodSandboxStatsStream = StreamOf<v1::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Reply<Self::StreamPodSandboxStatsStream> {
        let stats = self.list_sandbox_stats(request.into_inner().filter).await?;
        Ok(each(stats, |stats| v1::StreamPodSandboxStatsResponse { pod_sandbox_stats: vec![stats] }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Reply<v1::UpdateRuntimeConfigResponse> {
        let network = request.into_inner().runtime_config.and_then(|c| c.network_config).unwrap_or_default();
        *self.engine.pod_cidr.lock() = network.pod_cidr;
        Ok(Response::new(v1::UpdateRuntimeConfigResponse {}))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Reply<v1::StatusResponse> {
        let problem = network::problem(&self.engine.config).await;
        let condition = |kind: &str, problem: Option<String>, reason: &str| v1::RuntimeCondition {
            r#type: kind.into(),
            status: problem.is_none(),
            reason: if problem.is_some() { reason.into() } else { String::new() },
            message: problem.unwrap_or_default(),
        };
        let mut info = HashMap::new();
        if request.into_inner().verbose {
            let config = &self.engine.config;
            info.insert("config".into(), serde_json::json!({ "root": config.root, "state": config.state }).to_string());
        }
        let features = v1::RuntimeHandlerFeatures { recursive_read_only_mounts: true, user_namespaces: false };
        Ok(Response::new(v1::StatusResponse {
            status: Some(v1::RuntimeStatus {
                conditions: vec![
                    condition("RuntimeReady", None, ""),
                    condition(
                        "NetworkReady",
                        problem.map(|p| format!("Network plugin returns error: cni plugin not initialized: {p}")),
                        "NetworkPluginNotReady",
                    ),
                ],
            }),
            info,
            runtime_handlers: self
                .engine
                .config
                .handlers()
                .map(|name| v1::RuntimeHandler { name: name.into(), features: Some(features) })
                .collect(),
            features: Some(v1::RuntimeFeatures { supplemental_groups_policy: true, ..Default::default() }),
        }))
    }

    async fn checkpoint_container(
        &self,
        _: Request<v1::CheckpointContainerRequest>,
    ) -> Reply<v1::CheckpointContainerResponse> {
        Err(Error::Unimplemented("CheckpointContainer").into())
    }

    type GetContainerEventsStream = StreamOf<v1::ContainerEventResponse>;

    async fn get_container_events(&self, _: Request<v1::GetEventsRequest>) -> Reply<Self::GetContainerEventsStream> {
        let stream = BroadcastStream::new(self.engine.events.subscribe())
            .map(|event| event.map_err(|_| Status::resource_exhausted("events were lost: list again")));
        Ok(Response::new(Box::pin(stream)))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<v1::ListMetricDescriptorsRequest>,
    ) -> Reply<v1::ListMetricDescriptorsResponse> {
        Err(Error::Unimplemented("ListMetricDescriptors").into())
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<v1::ListPodSandboxMetricsRequest>,
    ) -> Reply<v1::ListPodSandboxMetricsResponse> {
        Err(Error::Unimplemented("ListPodSandboxMetrics").into())
    }

    type StreamPodSandboxMetricsStream = StreamOf<v1::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<v1::StreamPodSandboxMetricsRequest>,
    ) -> Reply<Self::StreamPodSandboxMetricsStream> {
        Err(Error::Unimplemented("StreamPodSandboxMetrics").into())
    }

    async fn runtime_config(&self, _: Request<v1::RuntimeConfigRequest>) -> Reply<v1::RuntimeConfigResponse> {
        let driver = match self.engine.config.systemd_cgroup {
            true => v1::CgroupDriver::Systemd,
            false => v1::CgroupDriver::Cgroupfs,
        };
        let linux = Some(v1::LinuxRuntimeConfiguration { cgroup_driver: driver.into() });
        Ok(Response::new(v1::RuntimeConfigResponse { linux }))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<v1::UpdatePodSandboxResourcesRequest>,
    ) -> Reply<v1::UpdatePodSandboxResourcesResponse> {
        // The kubelet owns the pod's cgroup and has set it already; we have nothing of our own to follow it.
        self.engine.sandbox(&request.into_inner().pod_sandbox_id)?;
        Ok(Response::new(v1::UpdatePodSandboxResourcesResponse {}))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each pod has annotations and ports to its liking; all of them together are more than a message may be.
    #[tokio::test]
    async fn security_what_is_streamed_comes_in_messages_of_one() {
        let annotations = HashMap::from([("a".to_owned(), "x".repeat(256 << 10))]);
        let sandboxes = vec![v1::PodSandbox { annotations, ..Default::default() }; 110];
        let stream = each(sandboxes, |sandbox| v1::StreamPodSandboxesResponse { pod_sandboxes: vec![sandbox] });
        let messages: Vec<_> = stream.into_inner().collect().await;
        assert_eq!(messages.len(), 110);
        assert!(messages.iter().flatten().all(|message| message.pod_sandboxes.len() == 1));
    }
}

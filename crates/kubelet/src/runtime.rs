//! The kubelet's hand on the runtime: CRI calls with deadlines, and the state of a pod read back.
//!
//! Flow: `sync`, `probes`, `server` -> here -> CRI socket. Works with any CRI v1 runtime; what an
//! older one lacks (events, runtime configuration) is answered with `None`.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactSort as _;
use cri::tonic::{self, Code, Request, Streaming};
use cri::v1;

use crate::config::CgroupDriver;
use crate::metrics::KubeletMetrics;
use crate::state::{ContainerState, Phase, PodState, Sandbox, annotation, label};
use crate::{logs, state};

/// Upstream's `--runtime-request-timeout`.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Termination messages are cut here, and fall back to this much of the log.
const MAX_MESSAGE: usize = 4096;
const MAX_LOG_MESSAGE: usize = 2048;
const MAX_LOG_LINES: usize = 80;

/// A call to the runtime that failed, in the words gRPC clients know.
#[derive(Debug, Clone, thiserror::Error)]
#[error("rpc error: code = {:?} desc = {}", .0.code(), .0.message())]
pub(crate) struct CallError(pub(crate) tonic::Status);

impl From<tonic::Status> for CallError {
    fn from(status: tonic::Status) -> Self {
        CallError(status)
    }
}

impl CallError {
    pub(crate) fn is_not_found(&self) -> bool {
        self.0.code() == Code::NotFound
    }
}

pub(crate) type Result<T> = std::result::Result<T, CallError>;

#[derive(Clone)]
pub(crate) struct Runtime {
    clients: cri::Clients,
    /// `containerd`, `cox`: the scheme of container ids.
    pub(crate) name: String,
    pub(crate) version: String,
    /// It can make all mounts below a volume read-only.
    pub(crate) recursive_read_only: bool,
    /// Of the whole kubelet: everyone who counts has the runtime at hand.
    pub(crate) metrics: KubeletMetrics,
}

fn request<T>(message: T, timeout: Duration) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(timeout);
    request
}

/// A call whose answer does not matter, where "not found" means that the work is done.
fn done<T>(answer: std::result::Result<T, tonic::Status>) -> Result<()> {
    match answer {
        Ok(_) => Ok(()),
        Err(status) if status.code() == Code::NotFound => Ok(()),
        Err(status) => Err(status.into()),
    }
}

/// Whether an answer is more than a message may be. Lists have the annotations and ports of all pods, and those may be long.
fn is_too_long(status: &tonic::Status) -> bool {
    matches!(status.code(), Code::OutOfRange | Code::ResourceExhausted)
}

/// A list that comes in parts.
async fn all_of<T, I>(parts: tonic::Response<Streaming<T>>, items: impl Fn(T) -> Vec<I>) -> Result<Vec<I>> {
    let mut parts = parts.into_inner();
    let mut all = Vec::new();
    while let Some(part) = parts.message().await? {
        all.extend(items(part));
    }
    Ok(all)
}

impl Runtime {
    /// Asks the runtime who it is.
    pub(crate) async fn open(clients: cri::Clients) -> Result<Self> {
        let metrics = KubeletMetrics::new();
        let clients = clients.observed(Arc::new(metrics.clone()));
        let version = clients
            .runtime
            .clone()
            .version(request(v1::VersionRequest { version: "0.1.0".into() }, TIMEOUT))
            .await?
            .into_inner();
        let mut runtime = Runtime {
            clients,
            name: version.runtime_name,
            version: version.runtime_version,
            recursive_read_only: false,
            metrics,
        };
        let handlers = runtime.status().await?.runtime_handlers;
        let default =
            handlers.iter().find(|handler| handler.name.is_empty()).and_then(|handler| handler.features.as_ref());
        runtime.recursive_read_only = default.is_some_and(|features| features.recursive_read_only_mounts);
        Ok(runtime)
    }

    pub(crate) async fn status(&self) -> Result<v1::StatusResponse> {
        Ok(self
            .clients
            .runtime
            .clone()
            .status(request(v1::StatusRequest { verbose: false }, TIMEOUT))
            .await?
            .into_inner())
    }

    /// Who makes cgroups according to the runtime; `None` when it does not say.
    pub(crate) async fn cgroup_driver(&self) -> Result<Option<CgroupDriver>> {
        match self.clients.runtime.clone().runtime_config(request(v1::RuntimeConfigRequest {}, TIMEOUT)).await {
            Ok(answer) => Ok(answer.into_inner().linux.map(|linux| match linux.cgroup_driver() {
                v1::CgroupDriver::Systemd => CgroupDriver::Systemd,
                v1::CgroupDriver::Cgroupfs => CgroupDriver::Cgroupfs,
            })),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    /// Tells the runtime the node's pod range, for those that make their own network configuration.
    pub(crate) async fn set_pod_cidr(&self, pod_cidr: &str) -> Result<()> {
        let config = v1::RuntimeConfig { network_config: Some(v1::NetworkConfig { pod_cidr: pod_cidr.into() }) };
        done(
            self.clients
                .runtime
                .clone()
                .update_runtime_config(request(
                    v1::UpdateRuntimeConfigRequest { runtime_config: Some(config) },
                    TIMEOUT,
                ))
                .await,
        )
    }

    /// Changes as they happen; `None` when the runtime has no event stream.
    pub(crate) async fn events(&self) -> Result<Option<Streaming<v1::ContainerEventResponse>>> {
        match self.clients.runtime.clone().get_container_events(Request::new(v1::GetEventsRequest::default())).await {
            Ok(stream) => Ok(Some(stream.into_inner())),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status.into()),
        }
    }

    pub(crate) async fn sandboxes(&self, uid: Option<&str>) -> Result<Vec<v1::PodSandbox>> {
        let filter = uid.map(|uid| v1::PodSandboxFilter { label_selector: by_uid(uid), ..Default::default() });
        let mut client = self.clients.runtime.clone();
        let message = v1::ListPodSandboxRequest { filter: filter.clone() };
        match client.list_pod_sandbox(request(message, TIMEOUT)).await {
            Ok(answer) => Ok(answer.into_inner().items),
            Err(status) if is_too_long(&status) => {
                let message = v1::StreamPodSandboxesRequest { filter };
                all_of(client.stream_pod_sandboxes(request(message, TIMEOUT)).await?, |part| part.pod_sandboxes).await
            }
            Err(status) => Err(status.into()),
        }
    }

    pub(crate) async fn containers(&self, uid: Option<&str>) -> Result<Vec<v1::Container>> {
        let filter = uid.map(|uid| v1::ContainerFilter { label_selector: by_uid(uid), ..Default::default() });
        let mut client = self.clients.runtime.clone();
        let message = v1::ListContainersRequest { filter: filter.clone() };
        match client.list_containers(request(message, TIMEOUT)).await {
            Ok(answer) => Ok(answer.into_inner().containers),
            Err(status) if is_too_long(&status) => {
                let message = v1::StreamContainersRequest { filter };
                all_of(client.stream_containers(request(message, TIMEOUT)).await?, |part| part.containers).await
            }
            Err(status) => Err(status.into()),
        }
    }

    /// Everything the runtime knows of one pod, newest first.
    pub(crate) async fn pod_state(&self, uid: &str) -> Result<PodState> {
        let (sandboxes, containers) = tokio::try_join!(self.sandboxes(Some(uid)), self.containers(Some(uid)))?;
        let mut state = PodState::default();
        for sandbox in sandboxes {
            let is_ready = sandbox.state == v1::PodSandboxState::SandboxReady as i32;
            let mut seen = Sandbox {
                ready: is_ready,
                attempt: sandbox.metadata.as_ref().map_or(0, |metadata| metadata.attempt),
                created_at: sandbox.created_at,
                id: sandbox.id,
                ..Default::default()
            };
            if is_ready {
                match self.sandbox_status(&seen.id).await {
                    Ok(status) => read_network(&mut seen, &status),
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => return Err(error),
                }
            }
            state.sandboxes.push(seen);
        }
        for container in containers {
            let status = match self.container_status(&container.id).await {
                Ok(status) => status,
                // Removed since it was listed.
                Err(error) if error.is_not_found() => continue,
                Err(error) => return Err(error),
            };
            let message = termination_message(&status).await;
            let mut seen = ContainerState::from_cri(&container, status);
            if seen.phase == Phase::Exited && seen.message.is_empty() {
                seen.message = message;
            }
            state.containers.push(seen);
        }
        state.sandboxes.compact_sort_by_key(|sandbox| std::cmp::Reverse(sandbox.created_at));
        state
            .containers
            .compact_sort_by_key(|container| std::cmp::Reverse((container.created_at, container.restart_count)));
        Ok(state)
    }

    pub(crate) async fn sandbox_status(&self, id: &str) -> Result<v1::PodSandboxStatus> {
        self.clients
            .runtime
            .clone()
            .pod_sandbox_status(request(
                v1::PodSandboxStatusRequest { pod_sandbox_id: id.into(), verbose: false },
                TIMEOUT,
            ))
            .await?
            .into_inner()
            .status
            .ok_or_else(|| tonic::Status::not_found(format!("sandbox {id} has no status")).into())
    }

    pub(crate) async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus> {
        self.clients
            .runtime
            .clone()
            .container_status(request(v1::ContainerStatusRequest { container_id: id.into(), verbose: false }, TIMEOUT))
            .await?
            .into_inner()
            .status
            .ok_or_else(|| tonic::Status::not_found(format!("container {id} has no status")).into())
    }

    pub(crate) async fn run_sandbox(&self, config: v1::PodSandboxConfig, handler: &str) -> Result<String> {
        let message = v1::RunPodSandboxRequest { config: Some(config), runtime_handler: handler.into() };
        // Twice the usual: network plug-ins run inside this call.
        let answer = self.clients.runtime.clone().run_pod_sandbox(request(message, 2 * TIMEOUT)).await?;
        let laps = answer.metadata().get(cri::LAPS);
        let laps: Option<Vec<_>> = laps.and_then(|laps| serde_json::from_slice(laps.as_bytes()).ok());
        trace::take_laps(&laps.unwrap_or_default());
        Ok(answer.into_inner().pod_sandbox_id)
    }

    pub(crate) async fn stop_sandbox(&self, id: &str) -> Result<()> {
        done(
            self.clients
                .runtime
                .clone()
                .stop_pod_sandbox(request(v1::StopPodSandboxRequest { pod_sandbox_id: id.into() }, TIMEOUT))
                .await,
        )
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) -> Result<()> {
        done(
            self.clients
                .runtime
                .clone()
                .remove_pod_sandbox(request(v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() }, TIMEOUT))
                .await,
        )
    }

    pub(crate) async fn create_container(
        &self,
        sandbox: &str,
        config: v1::ContainerConfig,
        sandbox_config: v1::PodSandboxConfig,
    ) -> Result<String> {
        let message = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        };
        Ok(self.clients.runtime.clone().create_container(request(message, TIMEOUT)).await?.into_inner().container_id)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<()> {
        self.clients
            .runtime
            .clone()
            .start_container(request(v1::StartContainerRequest { container_id: id.into() }, TIMEOUT))
            .await?;
        Ok(())
    }

    /// Changes the processors that a running container may use.
    pub(crate) async fn set_cpus(&self, id: &str, cpuset_cpus: String) -> Result<()> {
        self.update_container(id, v1::LinuxContainerResources { cpuset_cpus, ..Default::default() }).await
    }

    /// Changes what a running container may use; zeros leave things as they are.
    pub(crate) async fn update_container(&self, id: &str, linux: v1::LinuxContainerResources) -> Result<()> {
        let message =
            v1::UpdateContainerResourcesRequest { container_id: id.into(), linux: Some(linux), ..Default::default() };
        done(self.clients.runtime.clone().update_container_resources(request(message, TIMEOUT)).await)
    }

    /// Returns when the container has ended: politely within `grace`, by force after.
    pub(crate) async fn stop_container(&self, id: &str, grace: Duration) -> Result<()> {
        let message = v1::StopContainerRequest { container_id: id.into(), timeout: grace.as_secs() as i64 };
        done(self.clients.runtime.clone().stop_container(request(message, grace + TIMEOUT)).await)
    }

    pub(crate) async fn remove_container(&self, id: &str) -> Result<()> {
        done(
            self.clients
                .runtime
                .clone()
                .remove_container(request(v1::RemoveContainerRequest { container_id: id.into() }, TIMEOUT))
                .await,
        )
    }

    pub(crate) async fn exec_sync(
        &self,
        id: &str,
        command: Vec<String>,
        timeout: Duration,
    ) -> Result<v1::ExecSyncResponse> {
        let message =
            v1::ExecSyncRequest { container_id: id.into(), cmd: command, timeout: timeout.as_secs().max(1) as i64 };
        // The runtime ends the command at its own deadline; ours only guards against a dead runtime.
        Ok(self
            .clients
            .runtime
            .clone()
            .exec_sync(request(message, timeout + Duration::from_secs(10)))
            .await?
            .into_inner())
    }

    pub(crate) async fn exec_url(&self, message: v1::ExecRequest) -> Result<String> {
        Ok(self.clients.runtime.clone().exec(request(message, TIMEOUT)).await?.into_inner().url)
    }

    pub(crate) async fn attach_url(&self, message: v1::AttachRequest) -> Result<String> {
        Ok(self.clients.runtime.clone().attach(request(message, TIMEOUT)).await?.into_inner().url)
    }

    pub(crate) async fn port_forward_url(&self, message: v1::PortForwardRequest) -> Result<String> {
        Ok(self.clients.runtime.clone().port_forward(request(message, TIMEOUT)).await?.into_inner().url)
    }

    pub(crate) async fn reopen_log(&self, id: &str) -> Result<()> {
        done(
            self.clients
                .runtime
                .clone()
                .reopen_container_log(request(v1::ReopenContainerLogRequest { container_id: id.into() }, TIMEOUT))
                .await,
        )
    }

    pub(crate) async fn container_stats(&self) -> Result<Vec<v1::ContainerStats>> {
        let mut client = self.clients.runtime.clone();
        let message = v1::ListContainerStatsRequest { filter: None };
        match client.list_container_stats(request(message, TIMEOUT)).await {
            Ok(answer) => Ok(answer.into_inner().stats),
            Err(status) if is_too_long(&status) => {
                let message = v1::StreamContainerStatsRequest { filter: None };
                let stream = client.stream_container_stats(request(message, TIMEOUT)).await?;
                all_of(stream, |part| part.container_stats).await
            }
            Err(status) => Err(status.into()),
        }
    }

    /// Nothing from a runtime that does not count per sandbox.
    pub(crate) async fn sandbox_stats(&self) -> Result<Vec<v1::PodSandboxStats>> {
        let mut client = self.clients.runtime.clone();
        let message = v1::ListPodSandboxStatsRequest { filter: None };
        match client.list_pod_sandbox_stats(request(message, TIMEOUT)).await {
            Ok(answer) => Ok(answer.into_inner().stats),
            Err(status) if is_too_long(&status) => {
                let message = v1::StreamPodSandboxStatsRequest { filter: None };
                let stream = client.stream_pod_sandbox_stats(request(message, TIMEOUT)).await?;
                all_of(stream, |part| part.pod_sandbox_stats).await
            }
            Err(status) if status.code() == Code::Unimplemented => Ok(Vec::new()),
            Err(status) => Err(status.into()),
        }
    }

    pub(crate) async fn image_status(&self, image: &str) -> Result<Option<v1::Image>> {
        let message = v1::ImageStatusRequest { image: Some(spec(image)), verbose: false };
        Ok(self.clients.images.clone().image_status(request(message, TIMEOUT)).await?.into_inner().image)
    }

    /// No deadline: a large image over a slow line takes as long as it takes; dropping the future stops it.
    pub(crate) async fn pull_image(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
        sandbox_config: Option<v1::PodSandboxConfig>,
    ) -> Result<String> {
        let message = v1::PullImageRequest { image: Some(spec(image)), auth, sandbox_config };
        Ok(self.clients.images.clone().pull_image(Request::new(message)).await?.into_inner().image_ref)
    }

    pub(crate) async fn images(&self) -> Result<Vec<v1::Image>> {
        Ok(self
            .clients
            .images
            .clone()
            .list_images(request(v1::ListImagesRequest { filter: None }, TIMEOUT))
            .await?
            .into_inner()
            .images)
    }

    pub(crate) async fn remove_image(&self, image: &str) -> Result<()> {
        done(
            self.clients
                .images
                .clone()
                .remove_image(request(v1::RemoveImageRequest { image: Some(spec(image)) }, TIMEOUT))
                .await,
        )
    }

    pub(crate) async fn image_fs(&self) -> Result<v1::ImageFsInfoResponse> {
        Ok(self
            .clients
            .images
            .clone()
            .image_fs_info(request(v1::ImageFsInfoRequest::default(), TIMEOUT))
            .await?
            .into_inner())
    }
}

pub(crate) fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..Default::default() }
}

fn by_uid(uid: &str) -> HashMap<String, String> {
    HashMap::from([(label::POD_UID.to_string(), uid.to_string())])
}

fn read_network(sandbox: &mut Sandbox, status: &v1::PodSandboxStatus) {
    sandbox.ready = status.state == v1::PodSandboxState::SandboxReady as i32;
    sandbox.host_network = status
        .linux
        .as_ref()
        .and_then(|linux| linux.namespaces.as_ref())
        .and_then(|namespaces| namespaces.options.as_ref())
        .is_some_and(|options| options.network == v1::NamespaceMode::Node as i32);
    if let Some(network) = status.network.as_ref().filter(|network| !network.ip.is_empty()) {
        sandbox.ips.push(network.ip.clone());
        sandbox.ips.extend(network.additional_ips.iter().map(|ip| ip.ip.clone()));
    }
}

/// What a container left for the API to show: its message file, or the end of its log.
async fn termination_message(status: &v1::ContainerStatus) -> String {
    if status.state != v1::ContainerState::ContainerExited as i32 {
        return String::new();
    }
    let path = status.annotations.get(annotation::TERMINATION_PATH);
    let policy = status.annotations.get(annotation::TERMINATION_POLICY);
    let file = path.and_then(|path| status.mounts.iter().find(|mount| &mount.container_path == path));
    let mut message = String::new();
    if let Some(mount) = file {
        // The container could write anything there: read no more than is shown.
        message = match logs::read_start(Path::new(&mount.host_path), MAX_MESSAGE).await {
            Ok(data) => String::from_utf8_lossy(&data).into_owned(),
            // Gone with the pod's directory; what it said was told before.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => format!("Error on reading termination log {}: {error}", mount.host_path),
        };
    }
    if message.is_empty() && status.exit_code != 0 && policy.is_some_and(|policy| policy == "FallbackToLogsOnError") {
        let tail = logs::tail_text(Path::new(&status.log_path), MAX_LOG_LINES, MAX_LOG_MESSAGE).await;
        message = match tail {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => format!("Error reading termination message from logs: {error}"),
        };
    }
    message
}

/// Uids of all pods the runtime knows, with the names it knows them by.
pub(crate) fn known_pods(sandboxes: &[v1::PodSandbox]) -> HashMap<String, (String, String)> {
    sandboxes
        .iter()
        .filter_map(|sandbox| sandbox.metadata.as_ref())
        .map(|metadata| (metadata.uid.clone(), (metadata.namespace.clone(), metadata.name.clone())))
        .collect()
}

/// Strips `containerd://` off an API container id.
pub(crate) fn bare_id(id: &str) -> &str {
    id.split_once("://").map_or(id, |(_, id)| id)
}

pub(crate) use state::Phase as ContainerPhase;

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use bytes::Bytes;
    use cri::tonic::body::Body;
    use cri::tonic::codegen::Service;
    use cri::tonic::server::NamedService;
    use cri::tonic::transport::Server;
    use http::{HeaderMap, HeaderValue};
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// A runtime whose lists are too long for a message. As a stream each has two messages.
    #[derive(Clone)]
    struct Crowded;

    impl NamedService for Crowded {
        const NAME: &'static str = "runtime.v1.RuntimeService";
    }

    impl Service<http::Request<Body>> for Crowded {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = std::future::Ready<std::result::Result<Self::Response, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<std::result::Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            if !request.uri().path().contains("/Stream") {
                let status = cri::tonic::Status::out_of_range("Error, encoded message length too large");
                return std::future::ready(Ok(status.into_http()));
            }
            // Six bytes: a list of one element, whose first field is `id`.
            let part = || Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"\0\0\0\0\x06\x0a\x04\x0a\x02id")));
            let mut end = HeaderMap::new();
            end.insert("grpc-status", HeaderValue::from_static("0"));
            let body = StreamBody::new(tokio_stream::iter([part(), part(), Ok(Frame::trailers(end))]));
            let mut answer = http::Response::new(Body::new(body));
            answer.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
            std::future::ready(Ok(answer))
        }
    }

    /// Annotations and ports of all pods are in these lists, and somebody's pods may have long ones: without the lists, nothing is known
    /// of the pods of others on the node.
    #[tokio::test]
    async fn security_lists_too_long_for_a_message_come_in_many() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("cri.sock");
        let services = Server::builder().add_service(Crowded);
        tokio::spawn(grpc::Socket::bind(&path).unwrap().serve(services, CancellationToken::new()));
        let runtime = Runtime {
            clients: cri::Clients::lazy(&path),
            name: String::new(),
            version: String::new(),
            recursive_read_only: false,
            metrics: KubeletMetrics::new(),
        };
        let sandboxes = runtime.sandboxes(None).await.unwrap();
        assert_eq!(sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect::<Vec<_>>(), ["id", "id"]);
        let containers = runtime.containers(Some("uid")).await.unwrap();
        assert_eq!(containers.iter().map(|container| container.id.as_str()).collect::<Vec<_>>(), ["id", "id"]);
    }
}

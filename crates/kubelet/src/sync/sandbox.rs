//! The pod's directories and its sandbox.

use cri::v1;
use k8s_openapi::api::core::v1::Pod;
use trace::{Stage, Work};

use crate::containers::{self, SandboxParts};
use crate::dns::{self, ResolverError};
use crate::error::{SandboxError, SyncError};
use crate::kubelet::Kubelet;
use crate::state;
use crate::volumes::blocking;

impl Kubelet {
    pub(super) async fn make_directories(&self, pod: &Pod) -> Result<(), SyncError> {
        let (dir, logs) = (self.pod_dir(pod), self.log_dir(pod));
        let containers: Vec<String> = state::all_containers(pod).into_iter().map(|container| container.name).collect();
        blocking(move || {
            for sub in ["volumes", "plugins", "containers"] {
                std::fs::create_dir_all(dir.join(sub))?;
            }
            // Each container logs below a directory of its name.
            containers.iter().try_for_each(|name| std::fs::create_dir_all(logs.join(name)))
        })
        .await
        .map_err(SyncError::Directories)
    }

    pub(super) async fn sandbox_config(&self, pod: &Pod, attempt: u32) -> Result<v1::PodSandboxConfig, ResolverError> {
        let host = self.dns.host().await?;
        let (hostname, _) = dns::hostname(pod, &self.dns.cluster_domain);
        Ok(containers::sandbox_config(
            pod,
            SandboxParts {
                attempt,
                hostname,
                log_directory: self.log_dir(pod).to_string_lossy().into_owned(),
                dns: dns::for_pod(pod, &self.dns, &host),
                cgroup_parent: self.cgroups.as_ref().map(|cgroups| cgroups.pod_path(pod)).unwrap_or_default(),
            },
        ))
    }

    pub(super) async fn create_sandbox(&self, pod: &Pod, attempt: u32) -> Result<String, SandboxError> {
        let made = self.run_sandbox(pod, attempt).await;
        if let Err(error) = &made {
            self.recorder.warning(&client::reference(pod), SandboxError::REASON, error.message());
        }
        made
    }

    async fn run_sandbox(&self, pod: &Pod, attempt: u32) -> Result<String, SandboxError> {
        let handler = match pod.spec.as_ref().and_then(|spec| spec.runtime_class_name.as_deref()) {
            None | Some("") => String::new(),
            Some(name) => {
                let class = self.client.all::<k8s_openapi::api::node::v1::RuntimeClass>().get(name).await;
                let class = class.map_err(|source| match source.is_not_found() {
                    true => SandboxError::NoRuntimeClass(source),
                    false => SandboxError::RuntimeClass { name: name.to_owned(), source },
                });
                class?.handler
            }
        };
        let config = self.sandbox_config(pod, attempt).await?;
        let work = Work::begin(Stage::Sandbox, state::ACTOR, state::traced_name(pod)).announce();
        let made = work.result(Box::pin(self.runtime.run_sandbox(config, &handler))).await;
        self.runtime.metrics.pod_start_attempted(made.is_err());
        Ok(made?)
    }
}

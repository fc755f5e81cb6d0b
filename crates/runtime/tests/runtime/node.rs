//! What tests stand on: one registry with images for all of them, and a runtime process with its own directories each.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use cri::v1;
use testkit::runtimes;

pub(crate) struct World {
    pub(crate) registry: testkit::registry::Registry,
    pub(crate) nginx: testkit::images::Image,
    next: AtomicU32,
    cgroup: String,
}

impl World {
    pub(crate) fn new() -> Self {
        let registry = testkit::registry::start();
        testkit::images::busybox(&registry);
        let nginx = testkit::images::nginx(&registry);
        Self { registry, nginx, next: AtomicU32::new(1), cgroup: format!("/cox-test-{}", std::process::id()) }
    }

    /// Removes the cgroups that tests made.
    pub(crate) fn close(&self) {
        for tree in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
            remove_cgroup(&tree.path().join(self.cgroup.trim_start_matches('/')));
        }
        remove_cgroup(&Path::new("/sys/fs/cgroup").join(self.cgroup.trim_start_matches('/')));
    }

    pub(crate) async fn node(&self) -> Node {
        Node::start(self).await
    }
}

fn remove_cgroup(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
        remove_cgroup(&entry.path());
    }
    let _ = fs::remove_dir(path);
}

/// A runtime and everything around it.
pub(crate) struct Node {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) cri: cri::Clients,
    pub(crate) cgroup: String,
    process: Child,
}

impl Node {
    async fn start(world: &World) -> Self {
        let number = world.next.fetch_add(1, Ordering::Relaxed);
        let directory = tempfile::Builder::new().prefix("coxrt").tempdir().unwrap();
        let path = directory.path();
        runtimes::prepare(path, &format!("br{number}"), &format!("10.88.{number}.0/24"));
        fs::write(path.join("registries.yaml"), world.registry.registries_yaml()).unwrap();
        let process = spawn(path);
        let cri = connect(path).await;
        Self { cri, cgroup: format!("{}/node{number}", world.cgroup), directory, process }
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// SIGKILL for the runtime, nothing else.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// How many descriptors the runtime has open.
    pub(crate) fn open_files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.process.id())).unwrap().count()
    }

    pub(crate) async fn restart(&mut self) {
        self.process = spawn(self.path());
        self.cri = connect(self.path()).await;
    }

    pub(crate) async fn pull(&self, image: &str) -> String {
        self.try_pull(image, None).await.unwrap()
    }

    pub(crate) async fn try_pull(
        &self,
        image: &str,
        auth: Option<v1::AuthConfig>,
    ) -> Result<String, cri::tonic::Status> {
        let request = v1::PullImageRequest { image: Some(spec(image)), auth, sandbox_config: None };
        Ok(self.cri.images.clone().pull_image(request).await?.into_inner().image_ref)
    }

    pub(crate) fn pod_config(&self, name: &str) -> v1::PodSandboxConfig {
        v1::PodSandboxConfig {
            metadata: Some(v1::PodSandboxMetadata {
                name: name.into(),
                uid: format!("uid-{name}"),
                namespace: "default".into(),
                attempt: 0,
            }),
            hostname: name.into(),
            log_directory: self.path().join("logs").display().to_string(),
            dns_config: Some(v1::DnsConfig {
                servers: vec!["10.43.0.10".into()],
                searches: vec!["default.svc.cluster.local".into()],
                options: vec!["ndots:5".into()],
            }),
            labels: HashMap::from([("app".into(), name.into())]),
            linux: Some(v1::LinuxPodSandboxConfig {
                cgroup_parent: format!("{}/{name}", self.cgroup),
                security_context: Some(v1::LinuxSandboxSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        pid: v1::NamespaceMode::Container.into(),
                        ..Default::default()
                    }),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(crate) async fn sandbox(&self, config: &v1::PodSandboxConfig) -> String {
        self.sandbox_of(config, "").await
    }

    /// A sandbox of a RuntimeClass's handler.
    pub(crate) async fn sandbox_of(&self, config: &v1::PodSandboxConfig, handler: &str) -> String {
        let request = v1::RunPodSandboxRequest { config: Some(config.clone()), runtime_handler: handler.into() };
        self.cri.runtime.clone().run_pod_sandbox(request).await.unwrap().into_inner().pod_sandbox_id
    }

    pub(crate) async fn ip(&self, sandbox: &str) -> String {
        let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.into(), verbose: false };
        let status = self.cri.runtime.clone().pod_sandbox_status(request).await.unwrap().into_inner().status.unwrap();
        status.network.unwrap().ip
    }

    pub(crate) fn container_config(&self, name: &str, image: &str, command: &[&str]) -> v1::ContainerConfig {
        v1::ContainerConfig {
            metadata: Some(v1::ContainerMetadata { name: name.into(), attempt: 0 }),
            image: Some(spec(image)),
            command: command.iter().map(ToString::to_string).collect(),
            log_path: format!("{name}.log"),
            linux: Some(v1::LinuxContainerConfig {
                security_context: Some(v1::LinuxContainerSecurityContext {
                    namespace_options: Some(v1::NamespaceOption {
                        pid: v1::NamespaceMode::Container.into(),
                        ..Default::default()
                    }),
                    masked_paths: vec!["/proc/kcore".into(), "/proc/acpi".into(), "/sys/firmware".into()],
                    readonly_paths: vec!["/proc/sys".into(), "/proc/bus".into()],
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    pub(crate) async fn create(
        &self,
        sandbox: &str,
        pod: &v1::PodSandboxConfig,
        config: v1::ContainerConfig,
    ) -> Result<String, cri::tonic::Status> {
        let request = v1::CreateContainerRequest {
            pod_sandbox_id: sandbox.into(),
            config: Some(config),
            sandbox_config: Some(pod.clone()),
        };
        Ok(self.cri.runtime.clone().create_container(request).await?.into_inner().container_id)
    }

    pub(crate) async fn start_container(&self, id: &str) -> Result<(), cri::tonic::Status> {
        let request = v1::StartContainerRequest { container_id: id.into() };
        self.cri.runtime.clone().start_container(request).await.map(drop)
    }

    /// A pod with one container, running.
    pub(crate) async fn run(&self, name: &str, image: &str, command: &[&str]) -> (String, String) {
        let pod = self.pod_config(name);
        let sandbox = self.sandbox(&pod).await;
        let container = self.create(&sandbox, &pod, self.container_config(name, image, command)).await.unwrap();
        self.start_container(&container).await.unwrap();
        (sandbox, container)
    }

    pub(crate) async fn status(&self, id: &str) -> v1::ContainerStatus {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: false };
        self.cri.runtime.clone().container_status(request).await.unwrap().into_inner().status.unwrap()
    }

    pub(crate) async fn pid(&self, id: &str) -> i32 {
        let request = v1::ContainerStatusRequest { container_id: id.into(), verbose: true };
        let answer = self.cri.runtime.clone().container_status(request).await.unwrap().into_inner();
        let info: serde_json::Value = serde_json::from_str(&answer.info["info"]).unwrap();
        info["pid"].as_i64().unwrap() as i32
    }

    pub(crate) async fn exited(&self, id: &str) -> v1::ContainerStatus {
        for _ in 0..12_000 {
            let status = self.status(id).await;
            if status.state() == v1::ContainerState::ContainerExited {
                return status;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("container {id} did not exit");
    }

    pub(crate) async fn try_exec(
        &self,
        id: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<v1::ExecSyncResponse, cri::tonic::Status> {
        let request = v1::ExecSyncRequest {
            container_id: id.into(),
            cmd: command.iter().map(ToString::to_string).collect(),
            timeout,
        };
        self.cri.runtime.clone().exec_sync(request).await.map(|r| r.into_inner())
    }

    /// Output of a shell script that must succeed.
    pub(crate) async fn sh(&self, id: &str, script: &str) -> String {
        let answer = self.try_exec(id, &["sh", "-c", script], 120).await.unwrap();
        let stderr = String::from_utf8_lossy(&answer.stderr);
        assert_eq!(answer.exit_code, 0, "{script}: {stderr}");
        String::from_utf8(answer.stdout).unwrap()
    }

    pub(crate) async fn stop_container(&self, id: &str, timeout: i64) {
        let request = v1::StopContainerRequest { container_id: id.into(), timeout };
        self.cri.runtime.clone().stop_container(request).await.unwrap();
    }

    pub(crate) async fn remove_sandbox(&self, id: &str) {
        let stop = v1::StopPodSandboxRequest { pod_sandbox_id: id.into() };
        self.cri.runtime.clone().stop_pod_sandbox(stop).await.unwrap();
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id: id.into() };
        self.cri.runtime.clone().remove_pod_sandbox(remove).await.unwrap();
    }

    /// The log of a container, as (stream, tag, text).
    pub(crate) fn log(&self, name: &str) -> Vec<(String, String, String)> {
        let text = fs::read_to_string(self.path().join("logs").join(format!("{name}.log"))).unwrap();
        text.lines()
            .map(|line| {
                let mut parts = line.splitn(4, ' ');
                let time = parts.next().unwrap();
                assert!(time.ends_with('Z') && time.len() == 30, "{time}");
                let mut next = || parts.next().unwrap_or_default().to_string();
                (next(), next(), next())
            })
            .collect()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Whatever a failed test left: the shims of this node, then what runs below them.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let needle = self.directory.path().display().to_string();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
            let cmdline = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if cmdline.contains("shim\0") && cmdline.contains(&needle) {
                let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
            }
        }
        for line in fs::read_to_string("/proc/self/mounts").unwrap().lines() {
            if let Some(target) = line.split(' ').nth(1).filter(|t| t.starts_with(&needle)) {
                let _ = Command::new("umount").arg("-l").arg(target).status();
            }
        }
    }
}

pub(crate) fn spec(image: &str) -> v1::ImageSpec {
    v1::ImageSpec { image: image.into(), ..Default::default() }
}

fn spawn(path: &Path) -> Child {
    let mut command = runtimes::ours(&std::env::current_exe().unwrap(), path, Path::new("/usr/lib/cni"));
    command.args(["--oci-runtime", "runc=/usr/sbin/runc,crun=/usr/bin/crun"]);
    command.stdin(Stdio::null()).spawn().unwrap()
}

async fn connect(path: &Path) -> cri::Clients {
    let socket = runtimes::socket(path);
    for _ in 0..6000 {
        if let Ok(clients) = cri::connect(&socket).await
            && clients.runtime.clone().version(v1::VersionRequest::default()).await.is_ok()
        {
            return clients;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the runtime did not come up");
}

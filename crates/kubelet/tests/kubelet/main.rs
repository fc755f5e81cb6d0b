//! The kubelet on a real runtime: real containers, in a network namespace of their own.
#![allow(clippy::unwrap_used)]

mod api;
mod cases;
mod containerd;
mod image;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use self::api::TestApi;
use client::DeleteParams;
use containerd::Containerd;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// One node: runtime, API and kubelet.
struct Node {
    dir: tempfile::TempDir,
    api: TestApi,
    runtime: Containerd,
    name: String,
    kubelet: Option<(CancellationToken, tokio::task::JoinHandle<anyhow::Result<()>>)>,
}

impl Node {
    async fn start() -> Self {
        // Sockets need a short path.
        let dir = tempfile::Builder::new().prefix("kl").tempdir_in("/tmp").unwrap();
        let runtime = Containerd::start(dir.path());
        let mut node = Node {
            api: TestApi::start(dir.path()).await,
            runtime,
            name: format!("n{:x}", rand::random::<u32>()),
            dir,
            kubelet: None,
        };
        node.start_kubelet();
        node
    }

    fn start_kubelet(&mut self) {
        let mut settings = kubelet::Settings::new(self.name.clone());
        settings.cri_endpoint = self.runtime.socket();
        settings.root_dir = self.dir.path().join("kubelet");
        settings.cert_dir = self.dir.path().join("pki");
        settings.pod_logs_dir = self.dir.path().join("logs");
        settings.address = IpAddr::from([127, 0, 0, 1]);
        settings.port = 0;
        settings.node_ips = vec![IpAddr::from([127, 0, 0, 1])];
        settings.cgroup_root = format!("/cox-test-{}", self.name);
        settings.anonymous_auth = true;
        settings.authorization_webhook = false;
        settings.cluster_dns = vec!["10.43.0.10".into()];
        let stop = CancellationToken::new();
        let task = tokio::spawn(kubelet::run(
            kubelet::Config { client: self.api.node_client(&self.name), settings },
            stop.clone(),
        ));
        self.kubelet = Some((stop, task));
    }

    async fn stop_kubelet(&mut self) {
        let (stop, task) = self.kubelet.take().unwrap();
        stop.cancel();
        task.await.unwrap().unwrap();
    }

    async fn create(&self, name: &str, mut spec: Value) -> Pod {
        spec["nodeName"] = json!(self.name);
        for container in spec["containers"].as_array_mut().unwrap() {
            if container["image"].is_null() {
                container["image"] = json!("localhost/busybox:1");
            }
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "generation": 1}, "spec": spec});
        self.api.client().namespaced::<Pod>("default").create(&serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    async fn pod(&self, name: &str) -> Option<Pod> {
        self.api.client().namespaced::<Pod>("default").get_opt(name).await.unwrap()
    }

    /// Waits until the pod is as wanted; the last state is in the panic.
    async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
        loop {
            let pod = self.pod(name).await;
            if let Some(pod) = pod.as_ref().filter(|pod| wanted(pod)) {
                return pod.clone();
            }
            if tokio::time::Instant::now() > deadline {
                let events: Vec<String> = self
                    .api
                    .events()
                    .await
                    .iter()
                    .map(|event| format!("{:?}: {:?}", event.reason, event.message))
                    .collect();
                panic!("pod {name} never {what}: {:#?}\n{events:#?}\n{}", pod.and_then(|pod| pod.status), self.log());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    async fn wait_gone(&self, name: &str) {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        while self.pod(name).await.is_some() {
            assert!(
                tokio::time::Instant::now() < deadline,
                "pod {name} never gone: {:?}",
                self.pod(name).await.unwrap()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.path().join("containerd.log")).unwrap_or_default();
        text.lines().rev().take(15).collect::<Vec<_>>().join("\n")
    }

    fn container_log(&self, pod: &Pod, container: &str) -> String {
        let meta = &pod.metadata;
        let dir = format!(
            "{}_{}_{}",
            meta.namespace.as_deref().unwrap(),
            meta.name.as_deref().unwrap(),
            meta.uid.as_deref().unwrap()
        );
        let path: PathBuf = self.dir.path().join("logs").join(dir).join(container).join("0.log");
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().filter_map(|line| line.splitn(4, ' ').nth(3)).map(|line| format!("{line}\n")).collect()
    }

    /// The container's log once it is as wanted.
    async fn wait_log(&self, pod: &Pod, container: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let log = self.container_log(pod, container);
            if wanted(&log) {
                return log;
            }
            assert!(tokio::time::Instant::now() < deadline, "log never as wanted: {log:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until the runtime has nothing left of a pod.
    async fn wait_empty(&self, name: &str) {
        let mut runtime = cri::connect(self.runtime.socket()).await.unwrap().runtime;
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let sandboxes =
                runtime.list_pod_sandbox(cri::v1::ListPodSandboxRequest::default()).await.unwrap().into_inner().items;
            if !sandboxes.iter().any(|sandbox| sandbox.metadata.as_ref().is_some_and(|metadata| metadata.name == name))
            {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "pod {name} never left the runtime");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Where the kubelet's server listens, as the Node says.
    async fn port(&self) -> u16 {
        let node: k8s_openapi::api::core::v1::Node = self.api.client().all().get(&self.name).await.unwrap();
        node.status.unwrap().daemon_endpoints.unwrap().kubelet_endpoint.unwrap().port as u16
    }

    async fn delete(&self, name: &str) {
        self.api
            .client()
            .namespaced::<Pod>("default")
            .delete(name, &DeleteParams::default().with_grace_period(1))
            .await
            .unwrap();
        self.wait_gone(name).await;
    }

    async fn finish(mut self) {
        let client = self.api.client();
        for pod in client.namespaced::<Pod>("default").list(&Default::default()).await.unwrap().items {
            self.delete(pod.metadata.name.as_deref().unwrap()).await;
        }
        self.stop_kubelet().await;
        self.runtime.kill();
    }
}

/// A failed test leaves containers: their processes are the ones in this node's cgroups, their shims name its directory.
impl Drop for Node {
    fn drop(&mut self) {
        let group = format!("cox-test-{}", self.name);
        let mut ours: Vec<i32> = Vec::new();
        for tree in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let mut open = vec![tree.path().join(&group)];
            while let Some(dir) = open.pop() {
                let procs = std::fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                ours.extend(procs.lines().filter_map(|pid| pid.parse::<i32>().ok()));
                let inner = std::fs::read_dir(&dir).into_iter().flatten().flatten();
                open.extend(
                    inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
                );
            }
        }
        let place = self.dir.path().display().to_string();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let command = std::fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
            if command.contains("containerd-shim") && command.contains(&place) {
                ours.push(pid);
            }
        }
        for pid in ours {
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mut mounts: Vec<&str> =
            table.lines().filter_map(|line| line.split(' ').nth(4)).filter(|path| path.starts_with(&place)).collect();
        mounts.sort();
        for path in mounts.into_iter().rev() {
            let _ = nix::mount::umount2(path, nix::mount::MntFlags::MNT_DETACH);
        }
        remove_cgroups(&group);
    }
}

fn remove_cgroups(name: &str) {
    fn remove(dir: &std::path::Path) {
        for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                remove(&entry.path());
            }
        }
        let _ = std::fs::remove_dir(dir);
    }
    remove(&std::path::Path::new("/sys/fs/cgroup").join(name));
    for tree in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
        remove(&tree.path().join(name));
    }
}

fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

/// Runs a test on threads that live in a new network namespace, so that nothing reaches the host's.
fn in_namespace<F: Future<Output = ()>>(test: impl FnOnce() -> F + Send + 'static) {
    let _ = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_test_writer()
        .try_init();
    std::thread::spawn(move || {
        nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("tests run as root");
        let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
        assert!(up.success());
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(test());
    })
    .join()
    .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

#[test]
fn pod_runs_serves_and_is_deleted() {
    in_namespace(|| async {
        let node = Node::start().await;
        node.create("web", json!({"containers": [{"name": "web", "command": ["httpd", "-f", "-p", "80", "-h", "/www"], "readinessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 1}}], "terminationGracePeriodSeconds": 5})).await;
        let pod = node.wait("web", "ready", is_ready).await;
        let status = pod.status.as_ref().unwrap();
        assert_eq!(phase(&pod), "Running");
        assert_eq!(status.host_ip.as_deref(), Some("127.0.0.1"));
        assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
        assert_eq!(status.observed_generation, Some(1));
        let ip = status.pod_ip.clone().unwrap();
        let answer =
            std::process::Command::new("busybox").args(["wget", "-qO-", &format!("http://{ip}/")]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&answer.stdout), "hello from busybox\n");
        let reasons: Vec<String> = node.api.events().await.into_iter().filter_map(|event| event.reason).collect();
        for reason in ["Pulled", "Created", "Started"] {
            assert!(reasons.iter().any(|r| r == reason), "{reason} in {reasons:?}");
        }
        node.delete("web").await;
        node.finish().await;
    });
}

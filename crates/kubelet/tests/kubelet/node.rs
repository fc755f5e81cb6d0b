//! One node of a test: a real API server in this process, a real runtime, and the kubelet between them.

use std::net::IpAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use client::{DeleteParams, Patch};
use k8s_openapi::api::core::v1::{Event, Node as ApiNode, PersistentVolume, PersistentVolumeClaim, Pod};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::api::{self, TestApi};
use crate::image;
use crate::runtime::{Kind, Runtime};

/// Long enough for a busy machine; a test that works never waits for it.
const WAIT_TIMEOUT: Duration = Duration::from_secs(120);

/// One node: runtime, API and kubelet.
pub(crate) struct Node {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) api: TestApi,
    pub(crate) runtime: Runtime,
    pub(crate) name: String,
    kubelet: Kubelet,
    /// A socket that passes on to the runtime's.
    before_runtime: Option<PathBuf>,
}

enum Kubelet {
    Stopped,
    /// In this process, by its library.
    Inside(CancellationToken, tokio::task::JoinHandle<anyhow::Result<()>>),
    /// A process that can be killed.
    Process(Child),
}

impl Node {
    pub(crate) async fn start(kind: Kind) -> Self {
        // Sockets need a short path.
        let dir = tempfile::Builder::new().prefix("kl").tempdir_in("/tmp").unwrap();
        let runtime = Runtime::start(kind, dir.path());
        let name = format!("n{:x}", rand::random::<u32>());
        let api = TestApi::start(dir.path(), &name).await;
        let mut node = Node { api, runtime, name, dir, kubelet: Kubelet::Stopped, before_runtime: None };
        node.start_kubelet();
        node
    }

    /// Where kubelets find the runtime from now on.
    pub(crate) fn put_before_runtime(&mut self, socket: PathBuf) {
        self.before_runtime = Some(socket);
    }

    fn cri_endpoint(&self) -> PathBuf {
        self.before_runtime.clone().unwrap_or_else(|| self.runtime.socket())
    }

    pub(crate) fn start_kubelet(&mut self) {
        self.start_kubelet_with(|_| {});
    }

    /// Starts a kubelet in this process, with some settings changed.
    pub(crate) fn start_kubelet_with(&mut self, change: impl FnOnce(&mut kubelet::Settings)) {
        let mut settings = kubelet::Settings::new(self.name.clone());
        settings.cri_endpoint = self.cri_endpoint();
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
        // How full this machine's disk is has nothing to do with what is tested.
        settings.eviction_hard = [("memory.available".into(), "100Mi".into())].into();
        change(&mut settings);
        let stop = CancellationToken::new();
        let task = tokio::spawn(kubelet::run(
            kubelet::Config { client: self.api.node_client(&self.name), settings, summaries: Default::default() },
            stop.clone(),
        ));
        self.kubelet = Kubelet::Inside(stop, task);
    }

    /// Starts a kubelet in a process of its own, by its command line.
    pub(crate) fn spawn_kubelet(&mut self) {
        std::fs::write(self.dir.path().join("kubeconfig"), self.api.kubeconfig(api::NODE_TOKEN)).unwrap();
        self.spawn_kubelet_with(&[]);
    }

    /// The same with more flags; its kubeconfig is the caller's business.
    pub(crate) fn spawn_kubelet_with(&mut self, flags: &[&str]) {
        let path = |name: &str| self.dir.path().join(name);
        let kubeconfig = path("kubeconfig");
        let log = std::fs::OpenOptions::new().create(true).append(true).open(path("kubelet.log")).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.arg("kubelet").args(["--address=127.0.0.1", "--port=0", "--node-ip=127.0.0.1"]);
        command.args(["--anonymous-auth=true", "--authorization-mode=AlwaysAllow", "--cluster-dns=10.43.0.10"]);
        command.arg("--eviction-hard=memory.available<100Mi");
        command.arg(format!("--hostname-override={}", self.name)).args(flags);
        command.arg(format!("--cgroup-root=/cox-test-{}", self.name));
        for (flag, value) in [
            ("--kubeconfig", kubeconfig),
            ("--container-runtime-endpoint", self.cri_endpoint()),
            ("--root-dir", path("kubelet")),
            ("--cert-dir", path("pki")),
            ("--pod-logs-dir", path("logs")),
        ] {
            command.arg(flag).arg(value);
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        self.kubelet = Kubelet::Process(child);
    }

    /// The process that `spawn_kubelet` started.
    pub(crate) fn kubelet_pid(&self) -> i32 {
        match &self.kubelet {
            Kubelet::Process(child) => child.id() as i32,
            Kubelet::Stopped | Kubelet::Inside(..) => panic!("the kubelet is no process of its own"),
        }
    }

    pub(crate) async fn stop_kubelet(&mut self) {
        match std::mem::replace(&mut self.kubelet, Kubelet::Stopped) {
            Kubelet::Stopped => {}
            Kubelet::Inside(stop, task) => {
                stop.cancel();
                task.await.unwrap().unwrap();
            }
            Kubelet::Process(mut child) => {
                // Nothing of it runs after this line, and nothing was tidied up.
                child.kill().unwrap();
                child.wait().unwrap();
            }
        }
    }

    pub(crate) async fn create(&self, name: &str, mut spec: Value) -> Pod {
        spec["nodeName"] = json!(self.name);
        for container in spec["containers"].as_array_mut().unwrap() {
            if container["image"].is_null() {
                container["image"] = json!(image::NAME);
            }
        }
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "generation": 1}, "spec": spec});
        self.api.client().namespaced::<Pod>("default").create(&serde_json::from_value(pod).unwrap()).await.unwrap()
    }

    /// Binds a claim and a volume to each other, as the binder does.
    pub(crate) async fn bind(&self, claim: &str, volume: &str) {
        let client = self.api.client();
        let claims = client.namespaced::<PersistentVolumeClaim>("default");
        let uid = claims.get(claim).await.unwrap().metadata.uid;
        let reference = json!({"spec": {"claimRef": {"namespace": "default", "name": claim, "uid": uid}}});
        client.all::<PersistentVolume>().patch(volume, &Patch::merge(reference)).await.unwrap();
        claims.patch_status(claim, &Patch::merge(json!({"status": {"phase": "Bound"}}))).await.unwrap();
    }

    pub(crate) async fn pod(&self, name: &str) -> Option<Pod> {
        self.api.client().namespaced::<Pod>("default").get_opt(name).await.unwrap()
    }

    /// Waits until the pod is as wanted; the last state is in the panic.
    pub(crate) async fn wait(&self, name: &str, what: &str, wanted: impl Fn(&Pod) -> bool) -> Pod {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
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
                panic!(
                    "pod {name} never {what}: {:#?}\n{events:#?}\n{}",
                    pod.and_then(|pod| pod.status),
                    self.runtime.log()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What the events say.
    pub(crate) async fn messages(&self) -> Vec<String> {
        self.api.events().await.into_iter().filter_map(|event| event.message).collect()
    }

    /// Waits for an event. Events are sent beside everything else, so that a status may be there before them.
    pub(crate) async fn wait_event(&self, what: &str, wanted: impl Fn(&Event) -> bool) {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        while !self.api.events().await.iter().any(&wanted) {
            assert!(tokio::time::Instant::now() < deadline, "{what} not in {:?}", self.messages().await);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits for an event with this message.
    pub(crate) async fn wait_message(&self, message: &str) {
        self.wait_event(message, |event| event.message.as_deref() == Some(message)).await;
    }

    pub(crate) async fn wait_gone(&self, name: &str) {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        while self.pod(name).await.is_some() {
            assert!(
                tokio::time::Instant::now() < deadline,
                "pod {name} never gone: {:?}",
                self.pod(name).await.unwrap()
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) fn container_log(&self, pod: &Pod, container: &str) -> String {
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
    pub(crate) async fn wait_log(&self, pod: &Pod, container: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
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
    pub(crate) async fn wait_empty(&self, name: &str) {
        let mut runtime = cri::connect(self.runtime.socket()).await.unwrap().runtime;
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
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

    /// The pid of a pod's first container, as the runtime says.
    pub(crate) async fn pid(&self, pod: &Pod) -> i64 {
        let id = container_id(pod).unwrap();
        let container_id = id.split_once("://").unwrap().1.to_string();
        let mut runtime = cri::connect(self.runtime.socket()).await.unwrap().runtime;
        let request = cri::v1::ContainerStatusRequest { container_id, verbose: true };
        let answer = runtime.container_status(request).await.unwrap().into_inner();
        serde_json::from_str::<Value>(&answer.info["info"]).unwrap()["pid"].as_i64().unwrap()
    }

    /// Runs a command, its words between spaces, in a container through the kubelet, trying until its server answers.
    pub(crate) async fn exec(&self, pod: &str, container: &str, words: &str) -> String {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        loop {
            let url = format!("https://127.0.0.1:{}/run/default/{pod}/{container}", self.port().await);
            let mut command = tokio::process::Command::new("curl");
            command.args(["-skf", "--max-time", "20", "-G", "-X", "POST", "--data-urlencode"]);
            let output = command.arg(format!("cmd={words}")).arg(url).output().await.unwrap();
            if output.status.success() {
                return String::from_utf8(output.stdout).unwrap();
            }
            assert!(tokio::time::Instant::now() < deadline, "no exec in pod {pod}: {output:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits for something other than a pod's state.
    pub(crate) async fn wait_until(&self, what: &str, holds: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        while !holds() {
            assert!(tokio::time::Instant::now() < deadline, "never: {what}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a condition of the Node says this; its message.
    pub(crate) async fn wait_condition(&self, kind: &str, status: &str) -> String {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        loop {
            // The kubelet may not have registered it yet.
            let found: Option<ApiNode> = self.api.client().all().get_opt(&self.name).await.unwrap();
            let conditions = found.and_then(|node| node.status?.conditions).unwrap_or_default();
            let condition = conditions.into_iter().find(|condition| condition.type_ == kind);
            if let Some(condition) = condition.as_ref().filter(|condition| condition.status == status) {
                return condition.message.clone().unwrap_or_default();
            }
            assert!(tokio::time::Instant::now() < deadline, "node never {kind}={status}: {condition:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until pods can have this much of a resource.
    pub(crate) async fn wait_allocatable(&self, resource: &str, expected: Option<&str>) {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        loop {
            let found: ApiNode = self.api.client().all().get(&self.name).await.unwrap();
            let amount = found.status.and_then(|status| status.allocatable?.remove(resource));
            if amount.as_ref().map(|amount| amount.0.as_str()) == expected {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "never {expected:?} of {resource}: {amount:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Where the kubelet's server listens, as the Node says.
    pub(crate) async fn port(&self) -> u16 {
        let deadline = tokio::time::Instant::now() + WAIT_TIMEOUT;
        loop {
            // The kubelet may not have registered it yet.
            let found: Option<ApiNode> = self.api.client().all().get_opt(&self.name).await.unwrap();
            let endpoint = found.and_then(|node| node.status?.daemon_endpoints?.kubelet_endpoint);
            if let Some(endpoint) = endpoint.filter(|endpoint| endpoint.port > 0) {
                return endpoint.port as u16;
            }
            assert!(tokio::time::Instant::now() < deadline, "the node never said where its kubelet listens");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(crate) async fn delete(&self, name: &str) {
        self.api
            .client()
            .namespaced::<Pod>("default")
            .delete(name, &DeleteParams::default().with_grace_period(1))
            .await
            .unwrap();
        self.wait_gone(name).await;
    }

    /// Deletes all pods, which must leave nothing running, and stops.
    pub(crate) async fn finish(mut self) {
        let client = self.api.client();
        for pod in client.namespaced::<Pod>("default").list(&Default::default()).await.unwrap().items {
            self.delete(pod.metadata.name.as_deref().unwrap()).await;
        }
        self.stop_kubelet().await;
        self.runtime.kill();
    }
}

/// A failed test leaves containers: their processes are the ones in this node's cgroups, its shims name its directory.
impl Drop for Node {
    fn drop(&mut self) {
        if let Kubelet::Process(child) = &mut self.kubelet {
            let _ = child.kill();
            let _ = child.wait();
        }
        let group = format!("cox-test-{}", self.name);
        // As systemd's driver spells it.
        let slice = format!("{}.slice", group.replace('-', "_"));
        let mut ours: Vec<i32> = Vec::new();
        for tree in std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten() {
            let mut open = vec![tree.path().join(&group), tree.path().join(&slice)];
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
            if command.contains("shim") && command.contains(&place) {
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
        remove_cgroups(&slice);
    }
}

fn remove_cgroups(name: &str) {
    pub(crate) fn remove(dir: &std::path::Path) {
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

pub(crate) fn phase(pod: &Pod) -> &str {
    pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

pub(crate) fn is_ready(pod: &Pod) -> bool {
    pod.status
        .iter()
        .flat_map(|status| status.conditions.iter().flatten())
        .any(|c| c.type_ == "Ready" && c.status == "True")
}

pub(crate) fn shell(script: &str) -> Value {
    json!(["sh", "-c", script])
}

pub(crate) fn restarts(pod: &Pod) -> i32 {
    pod.status
        .iter()
        .flat_map(|status| status.container_statuses.iter().flatten())
        .map(|status| status.restart_count)
        .sum()
}

pub(crate) fn waiting_reason(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.reason.clone()
}

pub(crate) fn waiting_message(pod: &Pod) -> Option<String> {
    let status = pod.status.as_ref()?.container_statuses.as_ref()?.first()?;
    status.state.as_ref()?.waiting.as_ref()?.message.clone()
}

pub(crate) fn container_id(pod: &Pod) -> Option<String> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()?.container_id.clone()
}

//! The runtime dies and comes back; containers do not notice.

use std::collections::BTreeSet;
use std::fs;
use std::sync::Arc;

use cri::v1;

use crate::node::{Node, World};

pub(crate) async fn containers_outlive_the_runtime(world: Arc<World>) {
    let mut node = world.node().await;
    node.pull("busybox").await;
    let script = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.01; done";
    let (sandbox, container) = node.run("steady", "busybox", &["sh", "-c", script]).await;
    let pid = node.pid(&container).await;
    let started = node.status(&container).await.started_at;
    for _ in 0..10 {
        node.kill();
        node.restart().await;
        let status = node.status(&container).await;
        assert_eq!(status.state(), v1::ContainerState::ContainerRunning);
        assert_eq!((status.started_at, node.pid(&container).await), (started, pid));
        assert_eq!(node.sh(&container, "echo exec works").await, "exec works\n");
    }
    node.stop_container(&container, 0).await;
    assert_eq!(node.exited(&container).await.exit_code, 137);
    let lines: Vec<String> = node.log("steady").into_iter().map(|l| l.2).collect();
    assert!(!lines.is_empty());
    for (i, line) in lines.iter().enumerate() {
        assert_eq!(*line, format!("line {i}"), "no line is lost or doubled");
    }
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn an_exit_while_down_is_reported(world: Arc<World>) {
    let mut node = world.node().await;
    node.pull("busybox").await;
    let flag = node.path().join("flag");
    fs::create_dir(&flag).unwrap();
    let pod = node.pod_config("brief");
    let sandbox = node.sandbox(&pod).await;
    let mut config = node.container_config(
        "brief",
        "busybox",
        &["sh", "-c", "while [ ! -e /flag/go ]; do sleep 0.01; done; exit 7"],
    );
    config.mounts.push(v1::Mount {
        container_path: "/flag".into(),
        host_path: flag.display().to_string(),
        ..Default::default()
    });
    let container = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&container).await.unwrap();
    let pid = node.pid(&container).await;
    node.kill();
    fs::write(flag.join("go"), "").unwrap();
    let directory = format!("/proc/{pid}");
    // The process is gone a moment before its shim looks at the clock and writes down what it was.
    let record = node.path().join("root/containers").join(&container).join("status.json");
    let is_recorded = || {
        let status: Option<serde_json::Value> = serde_json::from_slice(&fs::read(&record).ok()?).ok();
        status.filter(|status| status["finished_at"].as_i64().is_some_and(|at| at > 0)).map(drop)
    };
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(120);
    while fs::exists(&directory).unwrap() || is_recorded().is_none() {
        assert!(
            std::time::Instant::now() < deadline,
            "the end is never written down: {:?}",
            fs::read_to_string(&record)
        );
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let ended = now();
    node.restart().await;
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (7, "Error"));
    assert!(status.finished_at <= ended, "the time is that of the exit, not of the restart");
    node.remove_sandbox(&sandbox).await;
}

fn now() -> i64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as i64
}

/// All that a pod may leave behind.
#[derive(Debug, PartialEq)]
struct Traces {
    shims: usize,
    mounts: BTreeSet<String>,
    cgroups: BTreeSet<String>,
    links: usize,
    namespaces: usize,
    directories: usize,
}

fn traces(node: &Node) -> Traces {
    let needle = node.path().display().to_string();
    let mut namespaces = BTreeSet::new();
    let mut shims = 0;
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let path = entry.path();
        let cmdline = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
        if cmdline.contains("shim\0") && cmdline.contains(&needle) {
            shims += 1;
            namespaces.extend(fs::read_link(path.join("ns/net")).ok());
        }
    }
    let mut cgroups = BTreeSet::new();
    for tree in fs::read_dir("/sys/fs/cgroup").unwrap().flatten() {
        let path = tree.path().join(node.cgroup.trim_start_matches('/'));
        for pod in fs::read_dir(path).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
            for leaf in fs::read_dir(pod.path()).into_iter().flatten().flatten().filter(|e| e.path().is_dir()) {
                cgroups.insert(leaf.path().display().to_string());
            }
        }
    }
    Traces {
        shims,
        mounts: fs::read_to_string("/proc/self/mounts")
            .unwrap()
            .lines()
            .filter(|line| line.contains(&needle))
            .map(ToString::to_string)
            .collect(),
        cgroups,
        links: fs::read_dir("/sys/class/net").unwrap().count(),
        namespaces: namespaces.len(),
        directories: ["root/sandboxes", "root/containers", "state", "state/specs"]
            .iter()
            .map(|d| fs::read_dir(node.path().join(d)).unwrap().count())
            .sum(),
    }
}

pub(crate) async fn pods_leave_nothing_behind(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let once = |name: String| {
        let node = &node;
        async move {
            let (sandbox, container) = node.run(&name, "busybox", &["sleep", "1000"]).await;
            assert_eq!(node.sh(&container, "echo x").await, "x\n");
            node.remove_sandbox(&sandbox).await;
        }
    };
    once("first".into()).await;
    let before = traces(&node);
    let fds = node.open_files();
    // `COX_TEST_CYCLES=200` for the long run.
    let cycles = std::env::var("COX_TEST_CYCLES").ok().and_then(|count| count.parse().ok()).unwrap_or(30);
    for i in (0..cycles).step_by(3) {
        let names = [format!("a{i}"), format!("b{i}"), format!("c{i}")];
        futures_util::future::join_all(names.map(once)).await;
    }
    let after = traces(&node);
    assert_eq!(after, before);
    assert_eq!(after.shims, 0);
    // Who listens to a shim hears a moment after its end that it has ended.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while node.open_files() > fds + 2 {
        let left = node.open_files();
        assert!(std::time::Instant::now() < deadline, "descriptors of the runtime: {fds} before, {left} after");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Nothing goes on that nobody watches, and it can be cleaned up.
pub(crate) async fn a_dead_shim_takes_its_pod_along(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let before = traces(&node);
    let (sandbox, container) = node.run("orphan", "busybox", &["sleep", "1000"]).await;
    let pid = node.pid(&container).await;
    let shim: serde_json::Value =
        serde_json::from_slice(&fs::read(node.path().join("root/sandboxes").join(&sandbox).join("shim.json")).unwrap())
            .unwrap();
    let shim = shim["pid"].to_string();
    assert!(std::process::Command::new("kill").args(["-9", &shim]).status().unwrap().success());
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "Unknown"));
    let request = v1::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
    let answer = node.cri.runtime.clone().pod_sandbox_status(request).await.unwrap().into_inner();
    assert_eq!(answer.status.unwrap().state(), v1::PodSandboxState::SandboxNotready);
    node.remove_sandbox(&sandbox).await;
    assert!(!fs::exists(format!("/proc/{pid}/root/bin")).unwrap_or(false));
    let after = traces(&node);
    // The bridge of this node came with its first pod and stays.
    assert_eq!(
        (after.shims, after.mounts, after.cgroups, after.directories),
        (0, before.mounts, before.cgroups, before.directories)
    );
}

/// Killed while it sets a pod up, at whatever moment: the call fails, and nothing of the pod is left.
pub(crate) async fn a_shim_killed_in_the_middle_leaves_no_pause(world: Arc<World>) {
    let node = world.node().await;
    let sandboxes = node.path().join("root/sandboxes");
    let before = traces(&node);
    for round in 0..24_u64 {
        let config = Some(node.pod_config(&format!("cut-{round}")));
        let mut client = node.cri.runtime.clone();
        let request = v1::RunPodSandboxRequest { config, ..Default::default() };
        let call = tokio::spawn(async move { client.run_pod_sandbox(request).await });
        let shim = loop {
            match shims(&sandboxes).pop() {
                None if !call.is_finished() => tokio::task::yield_now().await,
                found => break found,
            }
        };
        tokio::time::sleep(std::time::Duration::from_micros(round * 500)).await;
        if let Some(pid) = shim {
            // It may have ended by itself.
            let _ = std::process::Command::new("kill").args(["-9", &pid.to_string()]).output();
        }
        if let Ok(made) = call.await.unwrap() {
            node.remove_sandbox(&made.into_inner().pod_sandbox_id).await;
        }
        assert_eq!(shims(&sandboxes), Vec::<u32>::new());
    }
    let after = traces(&node);
    assert_eq!(
        (after.shims, after.mounts, after.cgroups, after.directories),
        (0, before.mounts, before.cgroups, before.directories)
    );
}

/// The pids of the shims whose pods are below a directory.
fn shims(sandboxes: &std::path::Path) -> Vec<u32> {
    let wanted = sandboxes.display().to_string();
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_shim = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        line.starts_with("cox\0shim") && line.contains(&wanted)
    };
    pids.filter(is_shim).collect()
}

/// A kubelet leaves its call when the pod is deleted meanwhile. What was begun must be whole, or gone: never nobody's.
pub(crate) async fn a_caller_that_leaves_leaves_no_half_sandbox(world: Arc<World>) {
    let node = world.node().await;
    let sandboxes = node.path().join("root/sandboxes");
    for milliseconds in [1, 2, 4, 8, 16, 32] {
        let config = Some(node.pod_config(&format!("left-{milliseconds}")));
        let request = v1::RunPodSandboxRequest { config, ..Default::default() };
        let mut client = node.cri.runtime.clone();
        let call = client.run_pod_sandbox(request);
        // Whether it was quick enough does not matter.
        let _ = tokio::time::timeout(std::time::Duration::from_millis(milliseconds), call).await;
    }
    loop {
        let listed = node.cri.runtime.clone().list_pod_sandbox(v1::ListPodSandboxRequest::default()).await.unwrap();
        let ready = v1::PodSandboxState::SandboxReady;
        let whole: Vec<_> = listed.into_inner().items.into_iter().filter(|sandbox| sandbox.state() == ready).collect();
        for sandbox in &whole {
            node.remove_sandbox(&sandbox.id).await;
        }
        if whole.is_empty() && fs::read_dir(&sandboxes).unwrap().next().is_none() {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

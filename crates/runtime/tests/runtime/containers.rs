//! Containers from start to end.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use cri::v1;

use crate::node::World;

fn http_get(address: &str) -> String {
    for _ in 0..6000 {
        if let Ok(mut stream) = TcpStream::connect(address) {
            stream.write_all(b"GET / HTTP/1.0\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            return answer;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{address} does not answer");
}

pub(crate) async fn nginx_answers(world: Arc<World>) {
    let node = world.node().await;
    let id = node.pull("nginx").await;
    assert_eq!(id, world.nginx.id());
    let (sandbox, container) = node.run("web", "nginx", &[]).await;
    let ip = node.ip(&sandbox).await;
    assert!(http_get(&format!("{ip}:80")).contains("Welcome to nginx!"));
    assert_eq!(node.status(&container).await.state(), v1::ContainerState::ContainerRunning);
    node.stop_container(&container, 60).await;
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (0, "Completed"), "SIGQUIT ends nginx gracefully");
    assert!(node.log("web").iter().any(|(stream, _, text)| stream == "stdout" && text.contains("GET /")));
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn exec_sees_the_container(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, container) = node.run("shell", "busybox", &["sleep", "1000"]).await;
    for (script, expected) in [
        ("hostname", "shell\n"),
        ("cat /etc/hostname", "shell\n"),
        ("id -u", "0\n"),
        ("cat /proc/1/comm", "sleep\n"),
        ("cat /etc/resolv.conf", "search default.svc.cluster.local\nnameserver 10.43.0.10\noptions ndots:5\n"),
        ("echo hello > /x && cat /x", "hello\n"),
        ("ls /proc/self/fd | wc -l", "4\n"),
        ("cat /proc/self/oom_score_adj | wc -l", "1\n"),
        ("(echo x > /proc/sys/kernel/hostname) 2>/dev/null || echo read-only", "read-only\n"),
        ("mount | grep -c ' / '", "1\n"),
    ] {
        assert_eq!(node.sh(&container, script).await, expected, "{script}");
    }
    let failed = node.try_exec(&container, &["sh", "-c", "echo oops >&2; exit 3"], 0).await.unwrap();
    assert_eq!((failed.exit_code, failed.stderr.as_slice()), (3, &b"oops\n"[..]));
    let missing = node.try_exec(&container, &["no-such-program"], 0).await.unwrap_err();
    assert!(missing.message().contains("executable file not found in $PATH"), "{missing}");
    let slow = node.try_exec(&container, &["sleep", "100"], 1).await.unwrap_err();
    assert_eq!(slow.code(), cri::tonic::Code::DeadlineExceeded);
    assert_eq!(
        node.sh(&container, "ps | grep -c '[s]leep 100$' || true").await,
        "0\n",
        "a timed-out command is killed"
    );
    node.remove_sandbox(&sandbox).await;
}

pub(crate) async fn logs_and_exit_codes(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let script =
        "echo one; echo two >&2; i=0; while [ $i -lt 2000 ]; do echo line $i; i=$((i+1)); done; printf tail; exit 42";
    let (sandbox, container) = node.run("talk", "busybox", &["sh", "-c", script]).await;
    let status = node.exited(&container).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (42, "Error"));
    assert!(status.finished_at >= status.started_at && status.started_at >= status.created_at);
    let log = node.log("talk");
    assert_eq!(log.len(), 2003);
    assert!(log.contains(&("stderr".into(), "F".into(), "two".into())));
    let out: Vec<&str> = log.iter().filter(|l| l.0 == "stdout").map(|l| l.2.as_str()).collect();
    assert_eq!((out[0], out[1], out[2000], out[2001]), ("one", "line 0", "line 1999", "tail"));
    assert_eq!(log.last().map(|l| l.1.as_str()), Some("P"), "no newline at the end");
    let pod = node.pod_config("talk");
    let config = node.container_config("bad", "busybox", &["/nope"]);
    let bad = node.create(&sandbox, &pod, config).await.unwrap();
    let error = node.start_container(&bad).await.unwrap_err();
    assert!(error.message().contains("stat /nope: no such file or directory"), "{error}");
    let status = node.exited(&bad).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
    node.remove_sandbox(&sandbox).await;
}

/// What the security context asks for is what the process gets.
pub(crate) async fn security_contexts_hold(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let pod = node.pod_config("secure");
    let sandbox = node.sandbox(&pod).await;
    let mut config = node.container_config("secure", "busybox", &["sleep", "1000"]);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.run_as_user = Some(v1::Int64Value { value: 101 });
    security.supplemental_groups = vec![5000];
    security.readonly_rootfs = true;
    security.no_new_privs = true;
    security.capabilities = Some(v1::Capability { drop_capabilities: vec!["ALL".into()], ..Default::default() });
    security.seccomp = Some(v1::SecurityProfile {
        profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
        localhost_ref: String::new(),
    });
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    for (script, expected) in [
        ("id -u; id -g; id -G", "101\n102\n102 4 5000\n"),
        ("touch /x 2>/dev/null || echo read-only", "read-only\n"),
        ("grep -E 'Cap(Inh|Eff|Bnd|Amb)' /proc/self/status | cut -f2 | sort -u", "0000000000000000\n"),
        ("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | cut -f2", "1\n2\n"),
        ("unshare -U true 2>/dev/null || echo refused", "refused\n"),
        ("(cat /proc/kcore | head -c 1) 2>/dev/null | wc -c", "0\n"),
    ] {
        assert_eq!(node.sh(&id, script).await, expected, "{script}");
    }
    let user = node.status(&id).await.user.unwrap().linux.unwrap();
    assert_eq!((user.uid, user.gid, user.supplemental_groups), (101, 102, vec![102, 4, 5000]));
    // Without capabilities to give up: root, defaults.
    let plain =
        node.create(&sandbox, &pod, node.container_config("plain", "busybox", &["sleep", "1000"])).await.unwrap();
    node.start_container(&plain).await.unwrap();
    assert_eq!(node.sh(&plain, "grep CapEff /proc/self/status | cut -f2").await, "00000000a80425fb\n");
    // Nothing that a program could inherit (CVE-2022-29162), and no cgroup of its own to write to (CVE-2023-25809).
    assert_eq!(node.sh(&plain, "grep CapInh /proc/self/status | cut -f2").await, "0000000000000000\n");
    assert_eq!(node.sh(&plain, "mkdir /sys/fs/cgroup/x 2>/dev/null || echo read-only").await, "read-only\n");
    assert_eq!(node.sh(&plain, "mknod /b b 7 0 && (cat /b 2>/dev/null || echo denied)").await, "denied\n");
    let mut config = node.container_config("priv", "busybox", &["sleep", "1000"]);
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    let privileged = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&privileged).await.unwrap();
    assert_eq!(node.sh(&privileged, "mount -t tmpfs x /tmp && ls -d /dev/null").await, "/dev/null\n");
    node.remove_sandbox(&sandbox).await;
}

/// A container cannot write to the program that started it (CVE-2019-5736), nor reach descriptors of the node
/// (CVE-2024-21626).
pub(crate) async fn the_runtime_is_out_of_reach(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let mut pod = node.pod_config("evil");
    let linux = pod.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    linux.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    let sandbox = node.sandbox(&pod).await;
    let mut config = node.container_config("evil", "busybox", &["sleep", "1000"]);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.namespace_options.as_mut().unwrap().pid = v1::NamespaceMode::Pod.into();
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    assert_eq!(node.sh(&id, "cat /proc/1/comm").await, "pause\n", "PID 1 of the pod is pause");
    let program = std::env::current_exe().unwrap();
    let before = std::fs::metadata(&program).unwrap();
    // The program's loader resolves inside the container, so a link to /proc/self/exe starts our own program there.
    for script in [
        "ln -sf /proc/self/exe /bin/own; ls /proc/1/exe",
        "for p in /proc/[0-9]*/exe; do (echo x >> $p) 2>/dev/null && echo written $p; done; true",
    ] {
        let answer = node.try_exec(&id, &["sh", "-c", script], 10).await.unwrap();
        assert!(!String::from_utf8_lossy(&answer.stdout).contains("written"), "{script}");
    }
    let _ = node.try_exec(&id, &["/bin/own", "--help"], 10).await;
    let after = std::fs::metadata(&program).unwrap();
    assert_eq!((before.len(), before.modified().unwrap()), (after.len(), after.modified().unwrap()));
    // A working directory through a descriptor of the runtime leads nowhere.
    let pod = node.pod_config("evil");
    for number in 3..12 {
        let mut config =
            node.container_config(&format!("cwd{number}"), "busybox", &["sh", "-c", "ls ../../../etc/debian_version"]);
        config.working_dir = format!("/proc/self/fd/{number}");
        let Ok(id) = node.create(&sandbox, &pod, config).await else { continue };
        if node.start_container(&id).await.is_ok() {
            assert_ne!(node.exited(&id).await.exit_code, 0, "descriptor {number} reached the node");
        }
    }
    node.remove_sandbox(&sandbox).await;
}

/// Limits reach the kernel, and running out of memory has its name.
pub(crate) async fn limits_and_oom(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let pod = node.pod_config("limits");
    let sandbox = node.sandbox(&pod).await;
    let mut config = node.container_config("limits", "busybox", &["sleep", "1000"]);
    config.linux.as_mut().unwrap().resources =
        Some(v1::LinuxContainerResources { cpu_shares: 512, memory_limit_in_bytes: 32 << 20, ..Default::default() });
    let id = node.create(&sandbox, &pod, config.clone()).await.unwrap();
    node.start_container(&id).await.unwrap();
    let limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max";
    assert_eq!(node.sh(&id, limit).await, "33554432\n");
    let update = v1::UpdateContainerResourcesRequest {
        container_id: id.clone(),
        linux: Some(v1::LinuxContainerResources { memory_limit_in_bytes: 64 << 20, ..Default::default() }),
        ..Default::default()
    };
    node.cri.runtime.clone().update_container_resources(update).await.unwrap();
    assert_eq!(node.sh(&id, limit).await, "67108864\n");
    let stats = node.cri.runtime.clone().container_stats(v1::ContainerStatsRequest { container_id: id.clone() }).await;
    let stats = stats.unwrap().into_inner().stats.unwrap();
    assert!(stats.memory.unwrap().working_set_bytes.unwrap().value > 0);
    assert!(stats.cpu.unwrap().usage_core_nano_seconds.unwrap().value > 0);
    let mut hungry = config;
    hungry.metadata.as_mut().unwrap().name = "hungry".into();
    hungry.command = ["sh", "-c", "x=a; while true; do x=$x$x; done"].map(Into::into).to_vec();
    let id = node.create(&sandbox, &pod, hungry).await.unwrap();
    node.start_container(&id).await.unwrap();
    let status = node.exited(&id).await;
    assert_eq!((status.exit_code, status.reason.as_str()), (137, "OOMKilled"));
    node.remove_sandbox(&sandbox).await;
}

/// The node's namespaces where asked for, sysctls, and mounts with propagation.
pub(crate) async fn host_namespaces_and_mounts(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let mut pod = node.pod_config("host");
    let options = v1::NamespaceOption {
        network: v1::NamespaceMode::Node.into(),
        pid: v1::NamespaceMode::Node.into(),
        ipc: v1::NamespaceMode::Node.into(),
        ..Default::default()
    };
    pod.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(options.clone());
    let sandbox = node.sandbox(&pod).await;
    assert_eq!(node.ip(&sandbox).await, "");
    let mut config = node.container_config("host", "busybox", &["sleep", "1000"]);
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().namespace_options = Some(options);
    let volume = node.path().join("volume");
    std::fs::create_dir(&volume).unwrap();
    std::fs::write(volume.join("file"), "from the node").unwrap();
    for (path, readonly, propagation) in [
        ("/ro", true, v1::MountPropagation::PropagationPrivate),
        ("/rw", false, v1::MountPropagation::PropagationHostToContainer),
    ] {
        config.mounts.push(v1::Mount {
            container_path: path.into(),
            host_path: volume.display().to_string(),
            readonly,
            propagation: propagation.into(),
            ..Default::default()
        });
    }
    config.mounts.push(v1::Mount {
        container_path: "/etc/single".into(),
        host_path: volume.join("file").display().to_string(),
        readonly: true,
        ..Default::default()
    });
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    let own = |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
    for kind in ["net", "pid", "ipc", "uts"] {
        assert_eq!(node.sh(&id, &format!("readlink /proc/self/ns/{kind}")).await.trim(), own(kind), "{kind}");
    }
    assert_ne!(node.sh(&id, "readlink /proc/self/ns/mnt").await.trim(), own("mnt"));
    assert_eq!(node.sh(&id, "cat /etc/single").await, "from the node");
    assert_eq!(node.sh(&id, "touch /ro/x 2>/dev/null || echo read-only; touch /rw/y").await, "read-only\n");
    assert!(volume.join("y").exists());
    node.remove_sandbox(&sandbox).await;
    let mut pod = node.pod_config("sysctl");
    pod.linux.as_mut().unwrap().sysctls.insert("kernel.shm_rmid_forced".into(), "1".into());
    let sandbox = node.sandbox(&pod).await;
    let config = node.container_config("sysctl", "busybox", &["sleep", "1000"]);
    let id = node.create(&sandbox, &pod, config).await.unwrap();
    node.start_container(&id).await.unwrap();
    let values = "cat /proc/sys/kernel/shm_rmid_forced /proc/sys/net/ipv4/ip_unprivileged_port_start";
    assert_eq!(node.sh(&id, values).await, "1\n0\n");
    node.remove_sandbox(&sandbox).await;
}

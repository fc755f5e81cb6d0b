//! RuntimeClass handlers: external OCI runtimes under our shims.

use std::sync::Arc;

use cri::v1;

use crate::node::World;

/// Debian's runc and crun run containers as we do ourselves: streams, exit codes, commands, security, restarts of ours.
pub(crate) async fn external_runtimes_run_containers(world: Arc<World>) {
    let mut node = world.node().await;
    node.pull("busybox").await;
    // crun refuses to work where controllers are spread over both versions of cgroups, and says so.
    let unified = std::fs::read_to_string("/sys/fs/cgroup/unified/cgroup.controllers").unwrap_or_default();
    let is_hybrid = !unified.trim().is_empty();
    for handler in ["runc", "crun"] {
        let pod = node.pod_config(handler);
        let sandbox = node.sandbox_of(&pod, handler).await;
        let mut config = node.container_config(handler, "busybox", &["sh", "-c", "echo out; echo err >&2; sleep 1000"]);
        let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
        security.run_as_user = Some(v1::Int64Value { value: 101 });
        security.no_new_privs = true;
        security.seccomp = Some(v1::SecurityProfile {
            profile_type: v1::security_profile::ProfileType::RuntimeDefault.into(),
            localhost_ref: String::new(),
        });
        config.linux.as_mut().unwrap().resources =
            Some(v1::LinuxContainerResources { memory_limit_in_bytes: 32 << 20, ..Default::default() });
        let id = node.create(&sandbox, &pod, config).await.unwrap();
        let started = node.start_container(&id).await;
        if handler == "crun" && is_hybrid {
            let error = started.unwrap_err();
            assert!(error.message().starts_with("crun create: cgroups in hybrid mode not supported"), "{error}");
            let status = node.exited(&id).await;
            assert_eq!((status.exit_code, status.reason.as_str()), (128, "StartError"));
            node.remove_sandbox(&sandbox).await;
            continue;
        }
        started.unwrap();
        let limit = "cat /sys/fs/cgroup/memory/memory.limit_in_bytes 2>/dev/null || cat /sys/fs/cgroup/memory.max";
        for (script, expected) in [
            ("hostname", format!("{handler}\n")),
            ("id -u; id -G", "101\n102 4\n".to_string()),
            // Once the shell has come to its last command.
            ("until grep -x sleep /proc/1/comm; do sleep 0.05; done", "sleep\n".to_string()),
            (limit, "33554432\n".to_string()),
            ("grep -E 'NoNewPrivs|Seccomp:' /proc/self/status | cut -f2", "1\n2\n".to_string()),
            ("touch /proc/sys/kernel/hostname 2>/dev/null || echo read-only", "read-only\n".to_string()),
        ] {
            assert_eq!(node.sh(&id, script).await, expected, "{handler}: {script}");
        }
        let user = node.status(&id).await.user.unwrap().linux.unwrap();
        assert_eq!((user.uid, user.gid), (101, 102));
        node.kill();
        node.restart().await;
        assert_eq!(node.sh(&id, "echo after a restart").await, "after a restart\n");
        node.stop_container(&id, 1).await;
        assert_eq!(node.exited(&id).await.exit_code, 137);
        let mut log: Vec<(String, String)> = node.log(handler).into_iter().map(|line| (line.0, line.2)).collect();
        log.sort();
        assert_eq!(log, [("stderr".into(), "err".into()), ("stdout".into(), "out".into())]);

        let code = node.container_config("code", "busybox", &["sh", "-c", "exit 7"]);
        let id = node.create(&sandbox, &pod, code).await.unwrap();
        node.start_container(&id).await.unwrap();
        assert_eq!(node.exited(&id).await.exit_code, 7);
        let missing = node.container_config("missing", "busybox", &["/nope"]);
        let id = node.create(&sandbox, &pod, missing).await.unwrap();
        let error = node.start_container(&id).await.unwrap_err();
        assert!(error.message().contains("/nope"), "{error}");
        node.remove_sandbox(&sandbox).await;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(&node.path().join("root/containers").display().to_string()), "{mounts}");
    }
    let pod = node.pod_config("nobody");
    let request = v1::RunPodSandboxRequest { config: Some(pod), runtime_handler: "nobody".into() };
    assert!(node.cri.runtime.clone().run_pod_sandbox(request).await.is_err());
}

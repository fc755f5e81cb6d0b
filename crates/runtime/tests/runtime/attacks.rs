//! Containers, images and volumes that mean harm: what they try, and that it comes to nothing.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use cri::v1;

use crate::node::{Node, World};

fn bind(host: &Path, container: &str) -> v1::Mount {
    v1::Mount { container_path: container.into(), host_path: host.display().to_string(), ..Default::default() }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// Creates and starts a container with these mounts: its id, or why it did not start.
async fn start(node: &Node, name: &str, config: v1::ContainerConfig) -> Result<(String, String), String> {
    let pod = node.pod_config(name);
    let sandbox = node.sandbox(&pod).await;
    let id = node.create(&sandbox, &pod, config).await.map_err(|error| error.message().to_string())?;
    node.start_container(&id).await.map_err(|error| error.message().to_string())?;
    Ok((sandbox, id))
}

/// Names that would lead out of a directory are refused before anything is made of them.
pub(crate) async fn security_names_lead_nowhere(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let planted = node.path().join("planted");
    let pod = node.pod_config("names");
    for change in [
        |metadata: &mut v1::PodSandboxMetadata, path: &str| metadata.name = path.into(),
        |metadata: &mut v1::PodSandboxMetadata, path: &str| metadata.namespace = path.into(),
        |metadata: &mut v1::PodSandboxMetadata, path: &str| metadata.uid = path.into(),
    ] {
        let mut bad = pod.clone();
        change(bad.metadata.as_mut().unwrap(), planted.to_str().unwrap());
        let request = v1::RunPodSandboxRequest { config: Some(bad), runtime_handler: String::new() };
        let error = node.cri.runtime.clone().run_pod_sandbox(request).await.unwrap_err();
        assert_eq!(error.code(), cri::tonic::Code::InvalidArgument, "{error}");
    }
    let sandbox = node.sandbox(&pod).await;
    let container = node.container_config("c", "busybox", &["sleep", "1000"]);
    let mut named = container.clone();
    named.metadata.as_mut().unwrap().name = planted.display().to_string();
    let mut logged = container.clone();
    logged.log_path = planted.join("0.log").display().to_string();
    let mut climbing = container.clone();
    climbing.log_path = "../planted/0.log".into();
    for config in [named, logged, climbing] {
        let error = node.create(&sandbox, &pod, config).await.unwrap_err();
        assert_eq!(error.code(), cri::tonic::Code::InvalidArgument, "{error}");
    }
    assert!(!planted.exists());
    node.remove_sandbox(&sandbox).await;
}

/// A volume at /dev with links in the place of devices: nothing that they lead to changes, whether the path says /dev or
/// a link of the image does.
pub(crate) async fn security_planted_devices_are_left_alone(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let victim = node.path().join("victim");
    fs::write(&victim, "secret").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    let volume = node.path().join("dev-volume");
    fs::create_dir(&volume).unwrap();
    for name in ["null", "zero", "full", "random", "urandom", "tty", "console", "kvm"] {
        symlink(&victim, volume.join(name)).unwrap();
    }
    let mut config = node.container_config("dev", "busybox", &["sleep", "1000"]);
    config.mounts.push(bind(&volume, "/dev"));
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().masked_paths.push("/proc/version".into());
    let (sandbox, id) = start(&node, "dev", config.clone()).await.unwrap();
    assert_eq!(mode(&victim), 0o600);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "secret");
    let entries = fs::read_dir(&volume).unwrap().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    assert!(names.iter().all(|name| ["fd", "core", "ptmx", "stdin"].iter().all(|made| made != name)), "{names:?}");
    // A masked file is masked by the node's own null, not by what lies at /dev/null of the volume.
    let masked = node.sh(&id, "stat -c '%t:%T %F' /proc/version").await;
    assert_eq!(masked, "1:3 character special file\n");
    node.remove_sandbox(&sandbox).await;
    // With a terminal, /dev/console is a link of the volume's: it is not followed.
    config.tty = true;
    symlink("pts/ptmx", volume.join("ptmx")).unwrap();
    config.mounts.push(bind(Path::new("/dev/pts"), "/dev/pts"));
    let refused = start(&node, "console", config).await.unwrap_err();
    assert!(refused.contains("symbolic link"), "{refused}");
    assert_eq!((mode(&victim), fs::metadata(&victim).unwrap().uid()), (0o600, 0));
    // A device below a volume whose entry is a link already: refused, nothing changed.
    let mut config = node.container_config("device", "busybox", &["sleep", "1000"]);
    config.mounts.push(bind(&volume, "/data"));
    config.devices.push(v1::Device {
        container_path: "/data/kvm".into(),
        host_path: "/dev/zero".into(),
        permissions: "rw".into(),
    });
    let (sandbox, id) = start(&node, "device", config).await.unwrap();
    assert_eq!(node.sh(&id, "readlink /data/kvm").await.trim(), victim.to_str().unwrap());
    assert_eq!(mode(&victim), 0o600);
    node.remove_sandbox(&sandbox).await;
}

/// The node's null device masks files and is the input of programs that have none: its mode and owner stay the node's.
pub(crate) async fn security_the_null_device_of_the_node_is_not_lent(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let mut config = node.container_config("null", "busybox", &["sleep", "1000"]);
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().masked_paths.push("/proc/version".into());
    let (sandbox, id) = start(&node, "null", config).await.unwrap();
    let null = Path::new("/dev/null");
    let before = mode(null);
    // What is masked, the input of the container's first program, and that of a command.
    for place in ["/proc/version", "/proc/1/fd/0", "/proc/self/fd/0"] {
        let changed = node.sh(&id, &format!("chmod 646 {place} 2>&1 || true")).await;
        let after = mode(null);
        fs::set_permissions(null, fs::Permissions::from_mode(before)).unwrap();
        assert_eq!(after, before, "{place}");
        assert!(changed.contains("Read-only file system"), "{place}: {changed}");
        assert_eq!(node.sh(&id, &format!("echo lost > {place} && cat {place}")).await, "", "{place}");
    }
    node.remove_sandbox(&sandbox).await;
}

/// Nothing but a procfs comes to /proc, and only harmless files of it are hidden (CVE-2019-16884, CVE-2023-27561).
pub(crate) async fn security_nothing_hides_proc(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let volume = node.path().join("proc-volume");
    fs::create_dir_all(volume.join("self/attr")).unwrap();
    fs::write(volume.join("file"), "from a volume\n").unwrap();
    symlink("/proc", volume.join("link")).unwrap();
    let file = volume.join("file");
    for (name, mounts) in [
        ("all", vec![bind(&volume, "/proc")]),
        ("below", vec![bind(&volume, "/proc/sys")]),
        ("file", vec![bind(&file, "/proc/self/attr/exec")]),
        ("dots", vec![bind(&volume, "/tmp/../proc/sys")]),
        // A link of one volume in the path of the next mount.
        ("link", vec![bind(&volume, "/v"), bind(&volume, "/v/link/sys")]),
        ("over", vec![bind(&volume, "/v"), bind(&volume, "/v/link")]),
        // A procfs, but not its root.
        ("part", vec![bind(Path::new("/proc/sys"), "/proc")]),
    ] {
        let mut config = node.container_config("c", "busybox", &["sleep", "1000"]);
        config.mounts = mounts;
        let error = start(&node, &format!("proc-{name}"), config).await.expect_err(name);
        assert!(error.contains("cannot be mounted because it is inside /proc"), "{name}: {error}");
    }
    let mut config = node.container_config("c", "busybox", &["sleep", "1000"]);
    config.mounts = vec![bind(&file, "/proc/cpuinfo"), bind(Path::new("/proc"), "/host/proc")];
    let (sandbox, id) = start(&node, "proc-fine", config).await.unwrap();
    assert_eq!(node.sh(&id, "cat /proc/cpuinfo").await, "from a volume\n");
    assert_eq!(node.sh(&id, "test -e /host/proc/self && cat /proc/1/comm").await, "sleep\n");
    node.remove_sandbox(&sandbox).await;
    // The node's own procfs may be the container's.
    let mut config = node.container_config("c", "busybox", &["sleep", "1000"]);
    config.mounts = vec![bind(Path::new("/proc"), "/proc")];
    let (sandbox, id) = start(&node, "proc-node", config).await.unwrap();
    assert_eq!(node.sh(&id, "(echo x > /proc/sys/kernel/hostname) 2>/dev/null || echo read-only").await, "read-only\n");
    node.remove_sandbox(&sandbox).await;
}

/// Terminals come from the master itself: what lies at /dev/pts of a volume is not taken for one.
pub(crate) async fn security_planted_terminals_are_not_taken(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let mut config = node.container_config("tty", "busybox", &["sh", "-c", "tty; ls -l /dev/console; sleep 1000"]);
    config.tty = true;
    let (sandbox, id) = start(&node, "tty", config.clone()).await.unwrap();
    assert_eq!(
        node.sh(&id, "stat -c %F /dev/console; readlink /proc/1/fd/0").await,
        "character special file\n/dev/pts/0\n"
    );
    node.remove_sandbox(&sandbox).await;
    let volume = node.path().join("pts-volume");
    fs::create_dir(&volume).unwrap();
    for number in 0..4 {
        fs::write(volume.join(number.to_string()), "").unwrap();
    }
    config.mounts.push(bind(&volume, "/dev/pts"));
    // There is no devpts to take a terminal from, and the volume's files are not terminals.
    let refused = start(&node, "planted", config).await.unwrap_err();
    assert!(refused.contains("terminal"), "{refused}");
    assert!((0..4).all(|number| fs::metadata(volume.join(number.to_string())).unwrap().len() == 0));
}

/// What a probe's command says without end is cut (CVE-2022-31030).
pub(crate) async fn security_output_of_commands_is_bounded(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let (sandbox, id) = node.run("talker", "busybox", &["sleep", "1000"]).await;
    let answer = node.try_exec(&id, &["head", "-c", "9000000", "/dev/zero"], 60).await.unwrap();
    assert_eq!((answer.exit_code, answer.stdout.len()), (0, 7 << 20));
    node.remove_sandbox(&sandbox).await;
}

/// A layer is read by a process of its own, which may have so much memory: one that needs more is refused, and the process
/// that was asked goes on.
pub(crate) async fn security_layers_are_unpacked_with_so_much_memory(_: Arc<World>) {
    let directory = tempfile::tempdir().unwrap();
    let mut layer = testkit::images::Layer::new();
    layer.file("f", 0o644, b"x");
    let tar = layer.finish();
    let digest = testkit::images::digest(&tar);
    for (name, log, memory, expected) in [
        ("small", 20, 64 << 20, Ok(digest.as_str())),
        ("window", 27, 64 << 20, Err("")),
        ("allowed", 27, 512 << 20, Ok(&digest)),
    ] {
        let (blob, target) = (directory.path().join(name), directory.path().join(format!("{name}-unpacked")));
        fs::write(&blob, testkit::images::zstd_with_window(&tar, log)).unwrap();
        fs::create_dir(&target).unwrap();
        let request = serde_json::json!({"Unpack": {"blob": blob, "target": target, "memory": memory}});
        let mut program = Command::new(std::env::current_exe().unwrap());
        let answer = testkit::messages::ask(program.arg("shim"), &request.to_string());
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        match expected {
            Ok(digest) => assert_eq!(answer["Unpacked"]["digest"], digest, "{name}: {answer}"),
            Err(_) => {
                let is_told = answer["Refused"]["why"].as_str().is_some_and(|why| why.contains("memory"));
                assert!(is_told, "{name}: {answer}");
            }
        }
        assert_eq!(target.join("f").exists(), expected.is_ok(), "{name}");
    }
}

/// A group of its own needs a user, as with other runtimes.
pub(crate) async fn a_group_without_a_user_is_refused(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let mut config = node.container_config("c", "busybox", &["sleep", "1000"]);
    let security = config.linux.as_mut().unwrap().security_context.as_mut().unwrap();
    security.run_as_group = Some(v1::Int64Value { value: 1001 });
    let error = start(&node, "group", config).await.unwrap_err();
    assert_eq!(error, "failed to generate user string: user group \"1001\" is specified without user");
}

/// What a container mounts in a Bidirectional volume is there on the node; what the node mounts in a HostToContainer one
/// is there in the container; and neither goes the other way, nor anywhere with no propagation.
pub(crate) async fn mounts_propagate_as_asked(world: Arc<World>) {
    let node = world.node().await;
    node.pull("busybox").await;
    let volume = node.path().join("shared");
    fs::create_dir(&volume).unwrap();
    let run = |arguments: &[&str]| assert!(Command::new("mount").args(arguments).status().unwrap().success());
    run(&["-t", "tmpfs", "shared", volume.to_str().unwrap()]);
    run(&["--make-shared", volume.to_str().unwrap()]);
    for name in ["both", "host", "none", "from-node"] {
        fs::create_dir(volume.join(name)).unwrap();
    }
    let mut config = node.container_config("c", "busybox", &["sleep", "1000"]);
    config.linux.as_mut().unwrap().security_context.as_mut().unwrap().privileged = true;
    for (path, propagation) in [
        ("/both", v1::MountPropagation::PropagationBidirectional),
        ("/host", v1::MountPropagation::PropagationHostToContainer),
        ("/none", v1::MountPropagation::PropagationPrivate),
    ] {
        config.mounts.push(v1::Mount { propagation: propagation.into(), ..bind(&volume, path) });
    }
    let (sandbox, id) = start(&node, "propagation", config).await.unwrap();
    for name in ["both", "host", "none"] {
        node.sh(&id, &format!("mount -t tmpfs inner /{name}/{name} && touch /{name}/{name}/file")).await;
    }
    for (name, reaches_the_node) in [("both", true), ("host", false), ("none", false)] {
        assert_eq!(volume.join(name).join("file").exists(), reaches_the_node, "{name}");
    }
    let inner = volume.join("from-node");
    run(&["-t", "tmpfs", "inner", inner.to_str().unwrap()]);
    fs::write(inner.join("file"), "").unwrap();
    for (name, is_seen) in [("both", "yes\n"), ("host", "yes\n"), ("none", "no\n")] {
        let script = format!("test -e /{name}/from-node/file && echo yes || echo no");
        assert_eq!(node.sh(&id, &script).await, is_seen, "{name}");
    }
    node.remove_sandbox(&sandbox).await;
    assert!(volume.join("both/file").exists(), "the mount is the node's too, and outlives the container");
    for path in [inner, volume.join("both"), volume] {
        assert!(Command::new("umount").arg(&path).status().unwrap().success());
    }
}

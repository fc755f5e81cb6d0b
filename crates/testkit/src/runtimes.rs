//! Command lines of the runtimes that tests and benchmarks run: our own, and Debian's containerd with runc. Each works in
//! a directory of its own, where its socket is ([`socket`]) and where it finds its network and images.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use crate::images::{Compression, Image, busybox_layer};

/// What containerd holds the namespaces of a pod with.
const PAUSE: &str = "localhost/pause:1";

/// Where a runtime in `dir` listens. Sockets need a short path.
pub fn socket(dir: &Path) -> PathBuf {
    dir.join("c.sock")
}

/// Makes the directories of a runtime, and the network its pods are on: a bridge.
pub fn prepare(dir: &Path, bridge: &str, subnet: &str) {
    for name in ["cni", "archives", "logs"] {
        std::fs::create_dir_all(dir.join(name)).unwrap();
    }
    let ipam = json!({
        "type": "host-local", "dataDir": dir.join("ipam"), "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
    });
    let network = json!({
        "cniVersion": "0.4.0", "name": bridge,
        "plugins": [{"type": "bridge", "bridge": bridge, "isGateway": true, "ipMasq": false, "ipam": ipam}],
    });
    std::fs::write(dir.join("cni/10-bridge.conflist"), network.to_string()).unwrap();
}

/// A directory of plug-ins that are all one program, which looks at the name it is called by.
pub fn link_plugins(program: &Path, dir: &Path) -> PathBuf {
    let plugins = dir.join("plugins");
    std::fs::create_dir_all(&plugins).unwrap();
    for name in ["bridge", "host-local", "loopback"] {
        let link = plugins.join(name);
        if !link.exists() {
            std::os::unix::fs::symlink(program, link).unwrap();
        }
    }
    plugins
}

/// `<program> cri …`: our own runtime. It imports what is in `archives` at its start, and reads `registries.yaml` and
/// `certs.d` when it pulls.
pub fn ours(program: &Path, dir: &Path, plugins: &Path) -> Command {
    let mut command = Command::new(program);
    command.arg("cri").arg("--listen").arg(socket(dir)).arg("--cni-bin-dir").arg(plugins);
    for (flag, name) in [
        ("--root", "root"),
        ("--state", "state"),
        ("--cni-conf-dir", "cni"),
        ("--cni-cache-dir", "cni-cache"),
        ("--images-dir", "archives"),
        ("--registries", "registries.yaml"),
        ("--registry-hosts", "certs.d"),
    ] {
        command.arg(flag).arg(dir.join(name));
    }
    command
}

/// containerd. It reads `certs.d` when it pulls; images are given to it by [`import`], [`import_pause`] first.
pub fn containerd(dir: &Path, plugins: &Path) -> Command {
    let path = |name: &str| dir.join(name).display().to_string();
    let config = format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{PAUSE}"
stream_server_address = "127.0.0.1"
stream_server_port = "0"
restrict_oom_score_adj = true
enable_unprivileged_ports = true
enable_unprivileged_icmp = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".registry]
config_path = "{certs}"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{plugins}"
conf_dir = "{cni}"
"#,
        root = path("root"),
        state = path("state"),
        socket = socket(dir).display(),
        certs = path("certs.d"),
        cni = path("cni"),
        plugins = plugins.display(),
    );
    std::fs::write(dir.join("config.toml"), config).unwrap();
    let mut command = Command::new("containerd");
    command.arg("--config").arg(dir.join("config.toml"));
    command
}

/// Whether the containerd of a directory answers.
pub fn containerd_answers(dir: &Path) -> bool {
    ctr(dir).arg("version").status().is_ok_and(|status| status.success())
}

/// Gives an image to a running containerd.
pub fn import(dir: &Path, name: &str, image: &Image) {
    let archive = dir.join("archives/import.tar");
    std::fs::write(&archive, image.docker_archive(name)).unwrap();
    assert!(ctr(dir).args(["images", "import"]).arg(&archive).status().unwrap().success(), "{name} is imported");
}

/// The smallest pause there is without a registry: a program that only waits.
pub fn import_pause(dir: &Path) {
    let config = json!({"Cmd": ["/bin/busybox", "sleep", "1000000"]});
    import(dir, PAUSE, &Image::new(vec![(busybox_layer(), Compression::None)], config));
}

fn ctr(dir: &Path) -> Command {
    let mut command = Command::new("ctr");
    command.arg("-a").arg(socket(dir)).args(["-n", "k8s.io"]).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

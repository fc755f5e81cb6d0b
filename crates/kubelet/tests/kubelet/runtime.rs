//! The runtimes that the suite runs on, each a process with its own directories and socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::image;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Our own: this very program, started as `… cri`.
    Cox,
    /// Debian's containerd, with runc.
    Containerd,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Cox => "cox",
            Kind::Containerd => "containerd",
        }
    }
}

pub(crate) struct Runtime {
    pub(crate) kind: Kind,
    dir: PathBuf,
    child: Option<Child>,
}

impl Runtime {
    /// Starts the runtime and gives it the image of the tests.
    pub(crate) fn start(kind: Kind, dir: &Path) -> Self {
        for name in ["cni", "archives"] {
            std::fs::create_dir_all(dir.join(name)).unwrap();
        }
        let network = serde_json::json!({
            "cniVersion": "0.4.0", "name": "test",
            "plugins": [{"type": "bridge", "bridge": "kt0", "isGateway": true,
                "ipam": {"type": "host-local", "dataDir": dir.join("ipam"), "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}],
        });
        std::fs::write(dir.join("cni/10-test.conflist"), network.to_string()).unwrap();
        let mut runtime = Runtime { kind, dir: dir.to_path_buf(), child: None };
        let archives = ["1", "2"].map(|tag| {
            let archive = dir.join(format!("archives/{tag}.tar"));
            let name = format!("localhost/busybox:{tag}");
            std::fs::write(&archive, image::busybox(&["sh"]).docker_archive(&name)).unwrap();
            archive
        });
        match kind {
            // Imported from the directory at start.
            Kind::Cox => runtime.spawn(),
            // Each with the other's plug-ins: Debian's under our runtime, ours under containerd.
            Kind::Containerd => {
                std::fs::create_dir_all(dir.join("plugins")).unwrap();
                for plugin in ["bridge", "host-local", "loopback"] {
                    let this = std::env::current_exe().unwrap();
                    std::os::unix::fs::symlink(this, dir.join("plugins").join(plugin)).unwrap();
                }
                std::fs::write(dir.join("config.toml"), containerd_config(dir)).unwrap();
                let pause = dir.join("pause.tar");
                std::fs::write(&pause, image::busybox(&["sleep", "1000000"]).docker_archive("localhost/pause:1"))
                    .unwrap();
                runtime.spawn();
                for archive in archives.into_iter().chain([pause]) {
                    assert!(runtime.ctr(&["images", "import", &archive.display().to_string()]), "{archive:?} imported");
                }
            }
        }
        runtime
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    /// Starts it, for the first time or again, and waits until it answers.
    pub(crate) fn spawn(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("runtime.log")).unwrap();
        let path = |name: &str| self.dir.join(name);
        let mut command = match self.kind {
            Kind::Containerd => {
                let mut command = Command::new("containerd");
                command.arg("--config").arg(path("config.toml"));
                command
            }
            Kind::Cox => {
                let mut command = Command::new(std::env::current_exe().unwrap());
                command.arg("cri");
                for (flag, value) in [
                    ("--listen", self.socket()),
                    ("--root", path("root")),
                    ("--state", path("state")),
                    ("--cni-conf-dir", path("cni")),
                    ("--cni-bin-dir", "/usr/lib/cni".into()),
                    ("--cni-cache-dir", path("cni-cache")),
                    ("--images-dir", path("archives")),
                    ("--registries", path("registries.yaml")),
                    ("--registry-hosts", path("certs.d")),
                ] {
                    command.arg(flag).arg(value);
                }
                command
            }
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("the runtime is installed"));
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            assert!(Instant::now() < until, "the runtime answers: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// SIGKILL, for the runtime alone.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// The end of the runtime's log.
    pub(crate) fn log(&self) -> String {
        let text = std::fs::read_to_string(self.dir.join("runtime.log")).unwrap_or_default();
        text.lines().rev().take(15).collect::<Vec<_>>().join("\n")
    }

    fn answers(&self) -> bool {
        match self.kind {
            Kind::Containerd => self.ctr(&["version"]),
            Kind::Cox => std::os::unix::net::UnixStream::connect(self.socket()).is_ok(),
        }
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(self.socket()).args(["-n", "k8s.io"]).args(arguments);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.kill();
    }
}

fn containerd_config(dir: &Path) -> String {
    let path = |name: &str| dir.join(name).display().to_string();
    format!(
        r#"version = 2
root = "{root}"
state = "{state}"
[grpc]
address = "{socket}"
[ttrpc]
address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "localhost/pause:1"
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
        socket = path("c.sock"),
        certs = path("certs.d"),
        cni = path("cni"),
        plugins = path("plugins"),
    )
}

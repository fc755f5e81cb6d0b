//! A containerd of our own: its own directories, socket and network namespace.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Containerd {
    dir: PathBuf,
    child: Option<Child>,
}

impl Containerd {
    pub(crate) fn start(dir: &Path) -> Self {
        std::fs::create_dir_all(dir.join("cni")).unwrap();
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
sandbox_image = "localhost/pause:1"
stream_server_address = "127.0.0.1"
stream_server_port = "0"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".containerd]
snapshotter = "overlayfs"
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{cni}"
"#,
            root = path("root"),
            state = path("state"),
            socket = path("c.sock"),
            cni = path("cni"),
        );
        std::fs::write(dir.join("config.toml"), config).unwrap();
        let network = serde_json::json!({
            "cniVersion": "0.4.0", "name": "test",
            "plugins": [{"type": "bridge", "bridge": "kt0", "isGateway": true,
                "ipam": {"type": "host-local", "dataDir": path("ipam"), "ranges": [[{"subnet": "10.88.0.0/16"}]], "routes": [{"dst": "0.0.0.0/0"}]}}],
        });
        std::fs::write(dir.join("cni/10-test.conflist"), network.to_string()).unwrap();
        let mut containerd = Containerd { dir: dir.to_path_buf(), child: None };
        containerd.spawn();
        for (name, command) in [("localhost/pause:1", vec!["sleep", "1000000"]), ("localhost/busybox:1", vec!["sh"])] {
            let archive = dir.join("image.tar");
            super::image::busybox(&archive, name, &command);
            let done = containerd.ctr(&["images", "import", &archive.display().to_string()]);
            assert!(done, "image {name} imported");
        }
        containerd
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.join("c.sock")
    }

    pub(crate) fn spawn(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("containerd.log")).unwrap();
        let child = Command::new("containerd")
            .arg("--config")
            .arg(self.dir.join("config.toml"))
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("containerd is installed");
        self.child = Some(child);
        let until = Instant::now() + Duration::from_secs(60);
        while !self.ctr(&["version"]) {
            assert!(
                Instant::now() < until,
                "containerd answers: {}",
                std::fs::read_to_string(self.dir.join("containerd.log")).unwrap_or_default()
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn ctr(&self, arguments: &[&str]) -> bool {
        Command::new("ctr")
            .arg("-a")
            .arg(self.socket())
            .args(["-n", "k8s.io"])
            .args(arguments)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok_and(|status| status.success())
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.kill();
    }
}

//! The runtimes that the suite runs on, each a process with its own directories and socket.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use testkit::runtimes;

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
    /// The bus that systemd is on, for a runtime that makes scopes.
    bus: Option<PathBuf>,
}

impl Runtime {
    /// Starts the runtime and gives it the images of the tests.
    pub(crate) fn start(kind: Kind, dir: &Path) -> Self {
        runtimes::prepare(dir, "kt0", "10.88.0.0/16");
        let mut runtime = Runtime { kind, dir: dir.to_path_buf(), child: None, bus: None };
        let images = ["1", "2"].map(|tag| (format!("localhost/busybox:{tag}"), image::busybox(&["sh"])));
        match kind {
            Kind::Cox => {
                for (number, (name, image)) in images.iter().enumerate() {
                    std::fs::write(dir.join(format!("archives/{number}.tar")), image.docker_archive(name)).unwrap();
                }
                runtime.spawn();
            }
            Kind::Containerd => {
                runtime.spawn();
                runtimes::import_pause(dir);
                for (name, image) in &images {
                    runtimes::import(dir, name, image);
                }
            }
        }
        runtime
    }

    pub(crate) fn socket(&self) -> PathBuf {
        runtimes::socket(&self.dir)
    }

    /// Starts it, for the first time or again, and waits until it answers.
    pub(crate) fn spawn(&mut self) {
        let log = std::fs::OpenOptions::new().create(true).append(true).open(self.dir.join("runtime.log")).unwrap();
        let this = std::env::current_exe().unwrap();
        // Each with the other's plug-ins: Debian's under our runtime, ours under containerd.
        let mut command = match self.kind {
            Kind::Containerd => runtimes::containerd(&self.dir, &runtimes::link_plugins(&this, &self.dir)),
            Kind::Cox => runtimes::ours(&this, &self.dir, Path::new("/usr/lib/cni")),
        };
        if let Some(bus) = &self.bus {
            command.arg("--systemd-cgroup").env("DBUS_SYSTEM_BUS_ADDRESS", format!("unix:path={}", bus.display()));
        }
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn();
        self.child = Some(child.expect("the runtime is installed"));
        let until = Instant::now() + Duration::from_secs(60);
        while !self.answers() {
            assert!(Instant::now() < until, "the runtime answers: {}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Our runtime makes scopes of systemd from its next start on.
    pub(crate) fn use_systemd(&mut self, bus: &Path) {
        assert_eq!(self.kind, Kind::Cox);
        self.bus = Some(bus.to_path_buf());
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.as_ref().expect("it runs").id() as i32
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
            Kind::Containerd => runtimes::containerd_answers(&self.dir),
            Kind::Cox => std::os::unix::net::UnixStream::connect(self.socket()).is_ok(),
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.kill();
    }
}

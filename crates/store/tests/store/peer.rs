//! Real etcd processes on loopback, with data in a temporary directory, ended with the test.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};
use store::EtcdStore;
use store::etcd::Options;

pub(crate) struct Cluster {
    members: Vec<Member>,
    dir: tempfile::TempDir,
}

struct Member {
    arguments: Vec<String>,
    endpoint: String,
    process: Option<Child>,
}

impl Cluster {
    pub(crate) fn start(size: usize) -> Cluster {
        Cluster::start_with(size, "http", &[])
    }

    pub(crate) fn start_with(size: usize, scheme: &str, extra: &[&str]) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let ports = free_ports(size * 2);
        let peer = |n: usize| format!("http://127.0.0.1:{}", ports[n * 2 + 1]);
        let all: Vec<_> = (0..size).map(|n| format!("m{n}={}", peer(n))).collect();
        let members = (0..size).map(|n| {
            let endpoint = format!("{scheme}://127.0.0.1:{}", ports[n * 2]);
            let data = dir.path().join(format!("m{n}"));
            let mut arguments: Vec<String> = [
                ("name", format!("m{n}")),
                ("data-dir", data.display().to_string()),
                ("listen-client-urls", endpoint.clone()),
                ("advertise-client-urls", endpoint.clone()),
                ("listen-peer-urls", peer(n)),
                ("initial-advertise-peer-urls", peer(n)),
                ("initial-cluster", all.join(",")),
                ("initial-cluster-state", "new".into()),
                ("log-level", "error".into()),
            ]
            .map(|(flag, value)| format!("--{flag}={value}"))
            .into();
            arguments.extend(extra.iter().map(|flag| flag.to_string()));
            Member { arguments, endpoint, process: None }
        });
        let mut cluster = Cluster { members: members.collect(), dir };
        (0..size).for_each(|n| cluster.run(n));
        cluster
    }

    pub(crate) fn run(&mut self, n: usize) {
        let log = std::fs::File::create(self.dir.path().join(format!("m{n}.log"))).unwrap();
        let mut command = Command::new("etcd");
        command.args(&self.members[n].arguments).stdout(Stdio::null()).stderr(log);
        let process = command.spawn().expect("etcd is installed: apt-get install etcd-server");
        self.members[n].process = Some(process);
    }

    pub(crate) fn kill(&mut self, n: usize) {
        let mut process = self.members[n].process.take().expect("the member runs");
        process.kill().unwrap();
        process.wait().unwrap();
    }

    /// The member stands still, with its connections open, until it is told to go on.
    pub(crate) fn pause(&self, n: usize) {
        self.signal(n, "-STOP");
    }

    pub(crate) fn resume(&self, n: usize) {
        self.signal(n, "-CONT");
    }

    fn signal(&self, n: usize, signal: &str) {
        let process = self.members[n].process.as_ref().expect("the member runs");
        let sent = Command::new("kill").arg(signal).arg(process.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.iter().map(|member| member.endpoint.clone()).collect()
    }

    pub(crate) fn options(&self) -> Options {
        Options::new(self.endpoints())
    }

    /// Waits until the cluster has a leader.
    pub(crate) async fn connect(&self) -> EtcdStore {
        self.connect_with(self.options()).await
    }

    pub(crate) async fn connect_with(&self, options: Options) -> EtcdStore {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match EtcdStore::connect(options.clone()).await {
                Ok(store) => return store,
                Err(error) if Instant::now() > deadline => panic!("etcd does not come up: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for member in &mut self.members {
            if let Some(mut process) = member.process.take() {
                let _ = process.kill();
                let _ = process.wait();
            }
        }
    }
}

/// Ports that nobody has. They lie below those that the kernel hands out, so that no connection takes one before its
/// server has started, and none is given twice.
pub(crate) fn free_ports(count: usize) -> Vec<u16> {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    let seed = (std::process::id() % 10_000) as u16;
    let ports = std::iter::repeat_with(|| 20_000 + (seed + TAKEN.fetch_add(1, Ordering::Relaxed) % 10_000) % 10_000);
    ports.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).take(count).collect()
}

//! Real peers, found on this machine and started on loopback.

use anyhow::{Context, bail};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use store::EtcdStore;
use store::etcd::Options;

/// An etcd of one member with its data in `dir`. Ended when dropped.
pub(crate) struct Etcd {
    process: Child,
    dir: PathBuf,
    endpoint: String,
    peer: String,
}

impl Etcd {
    pub(crate) async fn start(dir: &Path) -> anyhow::Result<Etcd> {
        let (endpoint, peer) = (free_url()?, free_url()?);
        let process = spawn(dir, &endpoint, &peer)?;
        let etcd = Etcd { process, dir: dir.into(), endpoint, peer };
        etcd.connect().await?;
        Ok(etcd)
    }

    /// Ends it and starts it again on the same data. Returns how long it took to answer.
    pub(crate) async fn restart(&mut self) -> anyhow::Result<Duration> {
        self.end();
        let started = Instant::now();
        self.process = spawn(&self.dir, &self.endpoint, &self.peer)?;
        self.connect().await?;
        Ok(started.elapsed())
    }

    pub(crate) async fn connect(&self) -> anyhow::Result<EtcdStore> {
        let deadline = Instant::now() + Duration::from_secs(180);
        // Patient: on a busy disk etcd's own work stops its answers for seconds.
        let options = Options { timeout: Duration::from_secs(60), ..Options::new([&self.endpoint]) };
        loop {
            match EtcdStore::connect(options.clone()).await {
                Ok(store) => return Ok(store),
                Err(error) if Instant::now() > deadline => bail!("etcd does not come up: {error}"),
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    fn end(&mut self) {
        // It is waited for, so that its port and its lock are free.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.end();
    }
}

fn spawn(dir: &Path, endpoint: &str, peer: &str) -> anyhow::Result<Child> {
    let mut command = Command::new("etcd");
    command.args(["--name=m0", "--log-level=error", "--quota-backend-bytes=8589934592"]);
    command.arg(format!("--data-dir={}", dir.display()));
    command.args([format!("--listen-client-urls={endpoint}"), format!("--advertise-client-urls={endpoint}")]);
    command.args([format!("--listen-peer-urls={peer}"), format!("--initial-advertise-peer-urls={peer}")]);
    command.arg(format!("--initial-cluster=m0={peer}"));
    command.stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().context("no etcd to compare with; install it with: apt-get install etcd-server")
}

fn free_url() -> anyhow::Result<String> {
    Ok(format!("http://{}", TcpListener::bind("127.0.0.1:0")?.local_addr()?))
}

//! Our API server in a process of its own, so that its CPU and memory are its own too.
//!
//! `coxbench` starts itself with `--inside <directory>`; the child serves, leaves a kubeconfig file in the directory, and
//! ends with its parent.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::ensure;

use crate::control_plane::{self, ControlPlane, Transport};

/// In the directory of a server that keeps the last hours' figures, as servers of `cox up` do.
const KEEPS_HISTORY: &str = "keeps-history";

pub(crate) struct OwnServer {
    process: Child,
    dir: tempfile::TempDir,
}

impl OwnServer {
    /// Starts it with its data below `dir`, for the comparison `what`.
    pub(crate) async fn start(what: &str, dir: &Path) -> anyhow::Result<Self> {
        Self::start_in(what, tempfile::tempdir_in(dir)?).await
    }

    /// As `start`, with a history of figures.
    pub(crate) async fn start_with_history(what: &str, dir: &Path) -> anyhow::Result<Self> {
        let dir = tempfile::tempdir_in(dir)?;
        std::fs::write(dir.path().join(KEEPS_HISTORY), "")?;
        Self::start_in(what, dir).await
    }

    async fn start_in(what: &str, dir: tempfile::TempDir) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(what).arg("--inside").arg(dir.path()).stdin(Stdio::piped());
        let server = Self { process: command.spawn()?, dir };
        let deadline = Instant::now() + Duration::from_secs(60);
        while !server.kubeconfig().exists() {
            ensure!(Instant::now() < deadline, "our API server does not come up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(server)
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.path().join("kubeconfig")
    }
}

impl Drop for OwnServer {
    fn drop(&mut self) {
        // Its standard input ends, and so does it.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

/// The child: serves until its standard input ends.
pub(crate) async fn serve(dir: &Path) -> anyhow::Result<()> {
    let history = dir.join(KEEPS_HISTORY).exists().then(|| dir.join("history"));
    let server = ControlPlane::start_with(dir, Transport::Https, |config| config.history_file = history).await?;
    let text = control_plane::kubeconfig(&server.client, dir)?;
    let (new, file) = (dir.join("kubeconfig.new"), dir.join("kubeconfig"));
    std::fs::write(&new, text)?;
    std::fs::rename(new, file)?;
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    server.stop().await
}

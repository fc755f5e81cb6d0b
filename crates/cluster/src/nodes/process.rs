//! The process of a further node: started inside the node's namespace, or found running from an earlier start.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::pin::Pin;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use cni::netns::Netns;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::Command;

use super::record::Record;
use super::run::Chore;
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::private_dir;

/// How long a node's process may take to end before it is made to.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) struct Process {
    pid: Pid,
    /// Resolves to how the process ended.
    ended: Pin<Box<dyn Future<Output = String> + Send>>,
}

impl Process {
    /// The process that runs the node now, if one does: it outlives the process that started it.
    pub(super) fn running(options: &Options) -> Result<Option<Process>> {
        let Some(holder) = Lock::holder(&options.lock_file())? else { return Ok(None) };
        let pid = holder.pid;
        let released = holder.released();
        let ended = Box::pin(async move {
            // An error means that the waiting thread is gone, and this process with it.
            let _ = released.await;
            "it was started earlier".to_owned()
        });
        Ok(Some(Process { pid, ended }))
    }

    /// Starts the node's process in its namespace. The machine's network stays open to it, for pulling images.
    pub(super) fn start(cluster: &Options, record: &Record) -> Result<Process> {
        let host = format!("/proc/{}/ns/net", std::process::id());
        let mut child = spawn(cluster, record, &["--host-network", &host])?;
        let pid = child.id().context("the process ended at once")?;
        let ended = Box::pin(async move {
            match child.wait().await {
                Ok(status) => status.to_string(),
                Err(error) => error.to_string(),
            }
        });
        Ok(Process { pid: Pid::from_raw(pid as i32), ended })
    }

    /// Waits for the end, however it comes, and says how it came.
    pub(super) async fn ended(&mut self) -> String {
        (&mut self.ended).await
    }

    /// Asks the process to end, insists if need be, and returns when it has.
    pub(super) async fn stop(mut self) -> Result<()> {
        self.signal(Signal::SIGTERM)?;
        if tokio::time::timeout(STOP_TIMEOUT, &mut self.ended).await.is_err() {
            self.signal(Signal::SIGKILL)?;
            self.ended.await;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        match kill(self.pid, signal) {
            // It has ended just now.
            Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("stopping process {}", self.pid)),
        }
    }
}

/// Has the node's pods ended or removed, from within its namespace, while its own process does not run.
pub(crate) async fn do_chore(cluster: &Options, record: &Record, chore: Chore) -> Result<()> {
    let name = match chore {
        Chore::StopPods => "stop-pods",
        Chore::RemovePods => "remove-pods",
    };
    let status = spawn(cluster, record, &["--chore", name])?.wait().await?;
    if !status.success() {
        let log = record.options(cluster).log_file();
        bail!("{name} of node {} ended with {status}; see {}", record.name, log.display());
    }
    Ok(())
}

/// `cox node run …` inside the node's namespace, with its log as standard error.
fn spawn(cluster: &Options, record: &Record, more: &[&str]) -> Result<tokio::process::Child> {
    let options = record.options(cluster);
    let log = options.log_file();
    private_dir(log.parent().unwrap_or(Path::new("/")))?;
    let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
    let stderr = stderr.with_context(|| format!("opening {}", log.display()))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(["node", "run", "--name", &options.name]);
    command.arg("--data-dir").arg(&options.data_dir).arg("--run-dir").arg(&options.run_dir).args(more);
    command.envs(runtime::descriptors_started_with());
    // A group of its own: an interrupt at the terminal is for the cluster's process, which then ends this one.
    command.current_dir("/").process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
    let path = record.netns(cluster);
    let namespace = Netns::open(&path).with_context(|| path.display().to_string())?;
    let spawned =
        on_a_host_named(&record.name, &namespace, || command.spawn()).context("entering the node's namespaces")?;
    spawned.map_err(|error| anyhow!("starting the process of node {}: {error}", record.name))
}

/// Does `work` on a thread of its own that is in the node's network and on a host with the node's name, which what it
/// starts inherits: pods in the node's network see that name.
fn on_a_host_named<T: Send>(name: &str, network: &Netns, work: impl FnOnce() -> T + Send) -> std::io::Result<T> {
    let runtime = tokio::runtime::Handle::current();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _runtime = runtime.enter();
            network.enter_for_good()?;
            nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWUTS)?;
            nix::unistd::sethostname(name)?;
            Ok(work())
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

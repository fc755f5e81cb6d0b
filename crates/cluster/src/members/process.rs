//! The process of this server's etcd member: started, started again when it ends or hangs, and ended after all that use it.
//!
//! A server that is killed leaves its member behind, which goes on voting. The next start ends it first.

use std::fs::{self, OpenOptions};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use client::backoff::{Backoff, exponential};
use futures_util::FutureExt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use store::etcd::Members;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::flags::{client_url, peer_url};
use super::plan::{self, Joining, NameTaken, Start, Support};
use super::state::{is_removed, only};
use crate::ca_hash::CaHash;
use crate::etcd::Etcd;
use crate::options::Options;
use crate::pki::{Pki, private_dir, write_private};
use crate::shape::{Flags, Shape};

/// How long it may take to end before it is made to.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const RESTART: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// One that ran for so long has not failed before.
const STABLE_AFTER: Duration = Duration::from_secs(300);
/// One that answered once, and then so often not, hangs.
const LOOK_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);
const MISSED_LOOKS: u32 = 12;
/// The cluster may be busy with another that joins.
const JOIN_TIMEOUT: Duration = Duration::from_secs(120);
const JOIN_RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(5));
/// Of the database; etcd refuses to grow beyond.
const QUOTA: u64 = 8 << 30;

/// Below the data directory.
const DATA: &str = "etcd";
const PID_FILE: &str = "etcd.pid";
/// There once the member has been one.
const SERVED_FILE: &str = "etcd.served";

/// This server's member.
pub(crate) struct Member {
    spec: Arc<Spec>,
    stop: CancellationToken,
    task: JoinHandle<()>,
    failed: watch::Receiver<Option<String>>,
}

/// All that its command line is made of.
#[derive(Debug)]
struct Spec {
    options: Options,
    binary: PathBuf,
    name: String,
    address: IpAddr,
    pki: Pki,
    /// Says which cluster this is, so that members of two never mix.
    token: String,
    etcd: Etcd,
    start: Start,
    /// All members, where there are others.
    initial_cluster: String,
}

impl Member {
    /// Does what the member's first start needs and starts it.
    pub(crate) async fn start(options: &Options, shape: &Shape, pki: &Pki) -> Result<Member> {
        let (binary, note) = find(shape.ha.etcd_binary.as_deref()).await?;
        if let Some(note) = note {
            println!(" ! {note}");
        }
        let address = shape.node_ip()?;
        let authority = fs::read_to_string(pki.certificate("etcd-ca")).context("reading etcd's authority")?;
        let token = CaHash::of_all(&authority)?.first().map(CaHash::to_string).context("etcd has no authority")?;
        private_dir(&options.data_dir.join(DATA))?;
        end_orphan(options).await?;
        let own = client_url(address);
        let others: Vec<String> = shape.etcd.etcd_servers.iter().filter(|url| **url != own).cloned().collect();
        // Made last of all: the rest is there before it has joined.
        let has_data = options.data_dir.join(DATA).join("member/wal").try_exists()?;
        let has_served = options.data_dir.join(SERVED_FILE).try_exists()?;
        let start = plan::start(has_data, has_served, &others)?;
        let (name, peer) = (shape.node_name.clone(), peer_url(address));
        let initial_cluster = match start {
            Start::Join => join(&shape.etcd, &others, &name, &peer).await?,
            Start::Found | Start::Resume => format!("{name}={peer}"),
        };
        let spec = Arc::new(Spec {
            options: options.clone(),
            binary,
            name,
            address,
            pki: pki.clone(),
            token,
            etcd: shape.etcd.clone(),
            start,
            initial_cluster,
        });
        let (sender, failed) = watch::channel(None);
        let stop = CancellationToken::new();
        let task = tokio::spawn(FutureExt::boxed(spec.clone().run(stop.clone(), sender)));
        Ok(Member { spec, stop, task, failed })
    }

    /// Resolves when the member takes part with a vote. A cluster of which too many are away is waited for.
    pub(crate) fn ready(&self) -> impl Future<Output = Result<()>> + use<> {
        let (spec, mut failed) = (self.spec.clone(), self.failed.clone());
        async move {
            tokio::select! {
                ready = spec.until_ready() => ready,
                why = failed.wait_for(Option::is_some) => Err(anyhow!(why?.clone().unwrap_or_default())),
            }
        }
    }

    /// Resolves when the member can never run again, or at `stop`.
    pub(crate) fn failed(&self, stop: CancellationToken) -> impl Future<Output = Result<()>> + use<> {
        let mut failed = self.failed.clone();
        async move {
            tokio::select! {
                why = failed.wait_for(Option::is_some) => Err(anyhow!(why?.clone().unwrap_or_default())),
                () = stop.cancelled() => Ok(()),
            }
        }
    }

    /// Ends the process and returns when it has ended.
    pub(crate) async fn stop(self) -> Result<()> {
        self.stop.cancel();
        self.task.await.context("looking after the etcd member")
    }
}

impl Spec {
    async fn run(self: Arc<Self>, stop: CancellationToken, failed: watch::Sender<Option<String>>) {
        let mut failures = 0;
        loop {
            let began = Instant::now();
            let how = match self.run_once(&stop).await {
                Ok(None) => return,
                Ok(Some(how)) => how,
                Err(error) => format!("{error:#}"),
            };
            if is_removed(&self.known(), &client_url(self.address), &peer_url(self.address)).await {
                let why = format!(
                    "{} is no longer a server of this cluster: 'cox delete' makes room, and 'cox server add' on another \
                     server says how it joins again",
                    self.name
                );
                failed.send_replace(Some(why));
                return;
            }
            failures = if began.elapsed() >= STABLE_AFTER { 1 } else { failures + 1 };
            let delay = exponential(RESTART.0, RESTART.1, failures);
            let log = self.log_file();
            tracing::error!(how, ?delay, log = %log.display(), "the etcd member ended and is started again");
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// The way to all members that are known by now; the one that founded the cluster started alone.
    fn known(&self) -> Etcd {
        let remembered = Flags::remembered(&self.options).ok().map(|flags| flags.etcd);
        remembered.filter(Etcd::is_used).unwrap_or_else(|| self.etcd.clone())
    }

    /// Runs the process once; how it ended, or none if it was told to.
    async fn run_once(&self, stop: &CancellationToken) -> Result<Option<String>> {
        end_orphan(&self.options).await?;
        let mut child = self.spawn()?;
        let pid = child.id().context("it ended at once")?;
        write_private(&pid_file(&self.options), pid.to_string().as_bytes())?;
        let how = tokio::select! {
            status = child.wait() => Some(status.context("waiting for etcd")?.to_string()),
            () = self.until_hung() => {
                child.kill().await.context("ending an etcd that hangs")?;
                Some("it did not answer any more".to_owned())
            }
            () = stop.cancelled() => {
                end(&mut child, pid).await?;
                None
            }
        };
        fs::remove_file(pid_file(&self.options)).context("removing the pid of etcd")?;
        Ok(how)
    }

    fn log_file(&self) -> PathBuf {
        self.options.data_dir.join("logs/etcd.log")
    }

    fn spawn(&self) -> Result<Child> {
        let log = self.log_file();
        private_dir(log.parent().unwrap_or(Path::new("/")))?;
        let stderr = OpenOptions::new().create(true).append(true).mode(0o600).open(&log);
        let stderr = stderr.with_context(|| format!("opening {}", log.display()))?;
        let mut command = Command::new(&self.binary);
        // Nothing but these flags: etcd takes any of them from the environment as well.
        command.env_clear().args(self.arguments()).current_dir("/");
        // A group of its own: an interrupt at the terminal is for the server, which then ends this one.
        command.process_group(0).stdin(Stdio::null()).stdout(stderr.try_clone()?).stderr(stderr);
        command.spawn().with_context(|| format!("starting {}", self.binary.display()))
    }

    fn arguments(&self) -> Vec<String> {
        let (client, peer) = (client_url(self.address), peer_url(self.address));
        let file = |path: PathBuf| path.display().to_string();
        let (certificate, key) = (file(self.pki.certificate("etcd-member")), file(self.pki.key("etcd-member")));
        let authority = file(self.pki.certificate("etcd-ca"));
        let state = if self.start == Start::Found { "new" } else { "existing" };
        [
            data_flag(&self.options),
            format!("--name={}", self.name),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster={}", self.initial_cluster),
            format!("--initial-cluster-state={state}"),
            format!("--initial-cluster-token={}", self.token),
            format!("--cert-file={certificate}"),
            format!("--key-file={key}"),
            "--client-cert-auth=true".to_owned(),
            format!("--trusted-ca-file={authority}"),
            format!("--peer-cert-file={certificate}"),
            format!("--peer-key-file={key}"),
            "--peer-client-cert-auth=true".to_owned(),
            format!("--peer-trusted-ca-file={authority}"),
            // Machines that also run pods are busy at times.
            "--heartbeat-interval=250".to_owned(),
            "--election-timeout=2500".to_owned(),
            "--pre-vote=true".to_owned(),
            format!("--quota-backend-bytes={QUOTA}"),
            "--log-level=warn".to_owned(),
        ]
        .into()
    }

    fn own(&self) -> Result<Members> {
        Ok(Members::new(&only(&self.etcd, &client_url(self.address), LOOK_TIMEOUT))?)
    }

    async fn until_ready(&self) -> Result<()> {
        let mut pauses = Backoff::new(JOIN_RETRY.0, JOIN_RETRY.1);
        loop {
            match self.take_part().await {
                Ok(()) => break,
                Err(error) => tracing::info!(why = format!("{error:#}"), "waiting for the etcd member"),
            }
            tokio::time::sleep(pauses.next_delay()).await;
        }
        write_private(&self.options.data_dir.join(SERVED_FILE), b"")
    }

    /// Asks for a vote if there is none; fails while the member, or the cluster, is not there.
    async fn take_part(&self) -> Result<()> {
        let status = self.own()?.status().await?;
        if status.is_learner {
            let mut others = self.etcd.options();
            others.endpoints.retain(|url| *url != client_url(self.address));
            Members::new(&others)?.promote(status.id).await.context("asking for a vote")?;
        }
        super::state::store_of(&self.etcd, &client_url(self.address), LOOK_TIMEOUT).await.map(drop)
    }

    /// Resolves when a member that has answered no longer does. One that has never answered reads its log, or waits for others.
    async fn until_hung(&self) {
        let mut missed = None;
        loop {
            tokio::time::sleep(LOOK_INTERVAL).await;
            let asked = async { Ok::<_, anyhow::Error>(self.own()?.status().await?) };
            match asked.await {
                Ok(_) => missed = Some(0),
                Err(_) => missed = missed.map(|missed: u32| missed + 1),
            }
            if missed.is_some_and(|missed| missed >= MISSED_LOOKS) {
                return;
            }
        }
    }
}

/// Adds this server to the members; returns what its first start must know of the others.
async fn join(etcd: &Etcd, others: &[String], name: &str, peer: &str) -> Result<String> {
    let mut options = etcd.options();
    options.endpoints = others.to_vec();
    let members = Members::new(&options)?;
    let deadline = tokio::time::Instant::now() + JOIN_TIMEOUT;
    let mut pauses = Backoff::new(JOIN_RETRY.0, JOIN_RETRY.1);
    loop {
        let attempt = async {
            let found = members.list().await.context("asking etcd for its members")?;
            match plan::joining(name, peer, &found) {
                Err(why) => return Ok(Err(why)),
                Ok(Joining::Added) => return Ok(Ok(plan::initial_cluster(name, peer, &found))),
                Ok(Joining::Add) => members.add_learner(peer).await.context("becoming a member of etcd")?,
                Ok(Joining::Replace(id)) => members.remove(id).await.context("giving up the old place in etcd")?,
            }
            bail!("the members are looked at once more")
        };
        let attempt: Result<Result<String, NameTaken>> = attempt.await;
        match attempt {
            Ok(decided) => return Ok(decided?),
            Err(error) if tokio::time::Instant::now() >= deadline => return Err(error),
            Err(error) => tracing::info!(why = format!("{error:#}"), "joining the members of etcd"),
        }
        tokio::time::sleep(pauses.next_delay()).await;
    }
}

/// The program, and what is to be said about it.
async fn find(named: Option<&Path>) -> Result<(PathBuf, Option<String>)> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let dirs = std::env::var_os("PATH").unwrap_or_default();
            let found = std::env::split_paths(&dirs).map(|dir| dir.join("etcd")).find(|path| path.is_file());
            found.context("--ha needs the etcd program, 3.5 or 3.6: install it, or name it with --etcd-binary")?
        }
    };
    let output = Command::new(&path).arg("--version").env_clear().output().await;
    let output = output.with_context(|| format!("running {} --version", path.display()))?;
    let (version, support) = plan::support(&String::from_utf8_lossy(&output.stdout))
        .map_err(|why| anyhow!("{} will not do: {why}", path.display()))?;
    let note = match support {
        Support::Full => None,
        Support::Old => {
            Some(format!("etcd {version} is used, though 3.5 or 3.6 is better: 3.4 gets no fixes any more"))
        }
    };
    Ok((path, note))
}

async fn end(child: &mut Child, pid: u32) -> Result<()> {
    signal(Pid::from_raw(pid as i32), Signal::SIGTERM)?;
    if tokio::time::timeout(STOP_TIMEOUT, child.wait()).await.is_err() {
        child.kill().await.context("ending etcd")?;
    }
    Ok(())
}

fn signal(pid: Pid, signal: Signal) -> Result<()> {
    match kill(pid, signal) {
        // It has ended just now.
        Ok(()) | Err(nix::errno::Errno::ESRCH) => Ok(()),
        Err(error) => Err(error).with_context(|| format!("ending etcd (process {pid})")),
    }
}

fn pid_file(options: &Options) -> PathBuf {
    options.data_dir.join(PID_FILE)
}

fn data_flag(options: &Options) -> String {
    format!("--data-dir={}", options.data_dir.join(DATA).display())
}

/// Ends the member that an earlier server left behind, if one did.
pub(crate) async fn end_orphan(options: &Options) -> Result<()> {
    let path = pid_file(options);
    let pid = match fs::read_to_string(&path) {
        Ok(text) => text.trim().parse().ok().map(Pid::from_raw),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let Some(pid) = pid else { return Ok(()) };
    // The number may be another's by now.
    let is_ours = || {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).any(|word| word == data_flag(options).as_bytes())
    };
    let deadline = Instant::now() + STOP_TIMEOUT;
    while is_ours() {
        signal(pid, if Instant::now() < deadline { Signal::SIGTERM } else { Signal::SIGKILL })?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Ok(())
}

/// Puts the data of a member aside that is none any more; returns where they are.
pub(crate) fn forget(options: &Options, put_aside: fn(&Path) -> Result<PathBuf>) -> Result<PathBuf> {
    // First: it must not say of data that are gone that they are missed.
    let served = options.data_dir.join(SERVED_FILE);
    match fs::remove_file(&served) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| served.display().to_string());
        }
        _ => {}
    }
    put_aside(&options.data_dir.join(DATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(start: Start) -> Spec {
        Spec {
            options: Options { data_dir: "/d".into(), run_dir: "/r".into(), name: "cox".into() },
            binary: "/bin/etcd".into(),
            name: "a".into(),
            address: "192.0.2.1".parse().unwrap(),
            pki: Pki::open(Path::new("/d/pki")),
            token: "sha256:00".into(),
            etcd: Etcd::default(),
            start,
            initial_cluster: "a=https://192.0.2.1:2380".into(),
        }
    }

    #[test]
    fn security_members_talk_to_nobody_without_a_certificate_of_their_authority() {
        let flags = spec(Start::Found).arguments();
        let has = |flag: &str| flags.iter().any(|held| held == flag);
        for flag in ["--client-cert-auth=true", "--peer-client-cert-auth=true"] {
            assert!(has(flag), "{flag}");
        }
        for flag in ["trusted-ca-file", "peer-trusted-ca-file"] {
            assert!(has(&format!("--{flag}=/d/pki/etcd-ca.crt")), "{flag}");
        }
        assert!(flags.iter().all(|flag| !flag.contains("http://")), "{flags:?}");
        assert!(has("--initial-cluster-state=new"));
        for start in [Start::Join, Start::Resume] {
            assert!(spec(start).arguments().iter().any(|flag| flag == "--initial-cluster-state=existing"));
        }
    }

    #[test]
    fn members_that_came_later_are_known() {
        let dir = tempfile::tempdir().unwrap();
        let etcd = |servers: &[&str]| Etcd {
            etcd_servers: servers.iter().map(|server| (*server).to_owned()).collect(),
            ..Etcd::default()
        };
        let mut spec = spec(Start::Found);
        spec.options.data_dir = dir.path().into();
        spec.etcd = etcd(&["https://192.0.2.1:2379"]);
        assert_eq!(spec.known(), spec.etcd, "nothing is written down");
        let all = etcd(&["https://192.0.2.1:2379", "https://192.0.2.2:2379"]);
        Flags { etcd: all.clone(), ..Flags::default() }.remember(&spec.options).unwrap();
        assert_eq!(spec.known(), all);
    }

    #[test]
    fn data_of_a_former_member_are_kept_and_not_missed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        let served = dir.path().join(SERVED_FILE);
        fs::write(&served, "").unwrap();
        assert!(forget(&options, |_| bail!("no room")).is_err());
        assert!(!served.exists());
        let aside = forget(&options, |dir| Ok(dir.with_extension("aside"))).unwrap();
        assert_eq!(aside, dir.path().join("etcd.aside"));
    }

    #[tokio::test]
    async fn only_our_own_process_is_ended() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        end_orphan(&options).await.unwrap();
        let start = |words: &[&str]| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", "read line", "sh"]).args(words).stdin(Stdio::piped()).spawn().unwrap()
        };
        let (mut other, mut own) = (start(&["--data-dir=/elsewhere"]), start(&[&data_flag(&options)]));
        write_private(&pid_file(&options), other.id().to_string().as_bytes()).unwrap();
        end_orphan(&options).await.unwrap();
        assert!(other.try_wait().unwrap().is_none(), "somebody else has this number");
        write_private(&pid_file(&options), own.id().to_string().as_bytes()).unwrap();
        // A corpse has no command line.
        end_orphan(&options).await.unwrap();
        assert!(!own.wait().unwrap().success());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}

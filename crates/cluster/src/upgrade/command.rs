//! The steps of an upgrade.
//!
//! [`forward`] says what is to be done, each step is written down when it begins, and [`back`] says from that how to return, also
//! after this program itself was ended in between.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use client::Clock;
use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::Node;
use serde::{Deserialize, Serialize};
use store::embedded::{GoOn, USUALLY_LATER};

use super::health::Patient;
use super::skew::{self, Minor};
use super::{all, machine, turn};
use crate::background::{self, DETACHED};
use crate::connection::connect;
use crate::join::Membership;
use crate::lock::{Holder, Lock};
use crate::options::Options;
use crate::pki::{private_dir, write_private};
use crate::shape::Flags;
use crate::store_move::{hold, put_aside};
use crate::{manage, members, progress};

/// A program says its version at once.
const VERSION_TIMEOUT: Duration = Duration::from_secs(30);
const BUSY_INTERVAL: Duration = Duration::from_millis(20);
/// For a server that is about to go, and may not answer.
const TURN_TIMEOUT: Duration = Duration::from_secs(10);

/// Replace the program that runs the cluster on this machine, and roll back if the cluster is not healthy
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "On several servers, one after the other: each is upgraded while the others are healthy.")]
pub struct Args {
    #[command(flatten)]
    pub(super) options: Options,
    /// The new program; if omitted, roll back an interrupted upgrade
    pub(super) binary: Option<PathBuf>,
    /// Upgrade all machines of the cluster from this server, one at a time; stop at the first failure
    #[arg(long, conflicts_with_all = ["target", "order"])]
    pub(super) all: bool,
    /// Drain each machine first, as 'kubectl drain --ignore-daemonsets --delete-emptydir-data' does, for at most --timeout;
    /// otherwise pods keep running
    #[arg(long, requires = "all")]
    pub(super) drain: bool,
    /// The order that this process obeys.
    #[arg(long, hide = true)]
    pub(super) order: Option<String>,
    /// The program to replace (default: the one that runs the cluster, else this one)
    #[arg(long)]
    pub(super) target: Option<PathBuf>,
    /// How long the cluster may take to become ready
    #[arg(long, default_value = "5m")]
    pub(super) timeout: SignedDuration,
    /// How long it must then stay healthy
    #[arg(long, default_value = "20s")]
    pub(super) observe: SignedDuration,
    /// Allow versions other than the same or the next
    #[arg(long)]
    pub(super) force: bool,
}

/// What is done on the way there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Step {
    /// Of the store of this server's own.
    BackUp,
    /// Of the cluster's etcd.
    Snapshot,
    Stop,
    Replace,
    Start,
    Observe,
}

/// What is done on the way back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Return {
    Stop,
    PutBack,
    Restore,
    Start,
}

/// Where objects are, as far as it matters here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Objects {
    Embedded,
    Members,
    /// With others: this machine is a node, or a server over their etcd.
    Elsewhere,
}

fn forward(objects: Objects, is_running: bool) -> Vec<Step> {
    let mut steps = Vec::new();
    // Its member must run to be asked.
    if objects == Objects::Members && is_running {
        steps.push(Step::Snapshot);
    }
    if is_running {
        steps.push(Step::Stop);
    }
    // Afterwards nobody writes: going back loses nothing that was acknowledged before.
    if objects == Objects::Embedded {
        steps.push(Step::BackUp);
    }
    steps.extend([Step::Replace, Step::Start, Step::Observe]);
    steps
}

/// How to return after these steps were done or begun.
fn back(begun: &[Step]) -> Vec<Return> {
    let has = |step: Step| begun.contains(&step);
    [
        (has(Step::Start), Return::Stop),
        (has(Step::Replace), Return::PutBack),
        // Only what a newer program may have written needs it.
        (has(Step::Start) && has(Step::BackUp), Return::Restore),
        (has(Step::Stop), Return::Start),
    ]
    .into_iter()
    .filter_map(|(is_due, step)| is_due.then_some(step))
    .collect()
}

/// What becomes of an upgrade that is written down when another command comes.
#[derive(Debug, PartialEq, Eq)]
enum Earlier {
    /// It has ended, and some of what it needed is still there.
    Clear,
    Return,
    /// The new program may have run for long: what it stored is not thrown away unasked.
    Refuse,
}

fn earlier(begun: &[Step], has_binary: bool) -> Earlier {
    match begun {
        [] => Earlier::Clear,
        begun if has_binary && begun.contains(&Step::Start) => Earlier::Refuse,
        _ => Earlier::Return,
    }
}

/// What must be known to return.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Record {
    target: PathBuf,
    /// The command that brings this machine's part up.
    command: String,
    begun: Vec<Step>,
}

impl Record {
    fn file(options: &Options) -> PathBuf {
        options.data_dir.join("upgrade.json")
    }

    fn load(options: &Options) -> Result<Option<Record>> {
        let path = Record::file(options);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn save(&self, options: &Options) -> Result<()> {
        write_private(&Record::file(options), &serde_json::to_vec_pretty(self)?)
    }

    /// The program from before, beside the one that took its place.
    fn old(&self) -> PathBuf {
        let mut name = self.target.file_name().unwrap_or_default().to_owned();
        name.push(".before-upgrade");
        self.target.with_file_name(name)
    }

    /// From the first write on there is nothing to return from; ended in between, it is done again.
    fn forget(&self, options: &Options) -> Result<()> {
        Record { begun: Vec::new(), ..self.clone() }.save(options)?;
        for path in [self.old(), backup_file(options), Record::file(options)] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| path.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether an upgrade of this machine was begun and has not come to an end.
pub(super) fn is_unfinished(options: &Options) -> Result<bool> {
    Ok(Record::load(options)?.is_some_and(|record| !record.begun.is_empty()))
}

fn backup_file(options: &Options) -> PathBuf {
    options.data_dir.join("upgrade.snap")
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    let options = &args.options;
    let (lock, ended) = match Lock::for_change(options) {
        Ok(lock) if args.all => (Some(lock), all::run(&args).await),
        Ok(lock) => (Some(lock), here(&args).await),
        Err(error) => (None, Err(error)),
    };
    // Before the lock is free: who finds it so and no report takes this process for one that was killed.
    if let Some(id) = &args.order {
        machine::report(options, id, &ended)?;
    }
    drop(lock);
    ended
}

/// Upgrades this machine. The caller holds the lock of changes.
pub(super) async fn here(args: &Args) -> Result<()> {
    let options = &args.options;
    if let Some(record) = Record::load(options)? {
        match earlier(&record.begun, args.binary.is_some()) {
            Earlier::Clear => record.forget(options)?,
            Earlier::Refuse => bail!(
                "an upgrade of {} was broken off after the new program had been started: 'cox upgrade' alone returns to the \
                 old one and to what was stored then; remove {} to keep the new one",
                record.target.display(),
                Record::file(options).display()
            ),
            Earlier::Return => {
                if !args.force {
                    take_turn(options, &record, Duration::try_from(args.timeout)?).await?;
                }
                println!("an upgrade of {} was broken off: returning", record.target.display());
                go_back(options, &record).await?;
                println!("the old program runs the cluster");
                let flags = Flags::remembered(options)?;
                if record.command == "up" && flags.etcd.is_used() {
                    give_turn_back(options, &flags.shape()?.node_name).await;
                }
                if args.binary.is_none() {
                    return Ok(());
                }
            }
        }
    }
    let binary = args.binary.as_ref().context("which program? Give the path of the new one")?;
    let holder = Lock::holder(&options.lock_file())?;
    if let Some(holder) = &holder {
        holder.refuse_foreground("stop the service, upgrade, and start it again")?;
    }
    let target = match (&args.target, &holder) {
        (Some(target), _) => target.clone(),
        (None, Some(holder)) => program_of(&running(holder))?,
        (None, None) => std::env::current_exe()?,
    };
    let member = Membership::load(options)?;
    let flags = Flags::remembered(options)?;
    if member.is_none() && flags.machine.node_name.is_none() {
        bail!("there is no cluster at {}", options.data_dir.display());
    }
    let (old, new) = (version_of(&target).await?, version_of(binary).await?);
    if !args.force {
        skew::check_step(old, new)?;
    }
    let objects = match (&member, flags.ha.ha, flags.etcd.is_used()) {
        (None, false, false) => Objects::Embedded,
        (None, true, _) => Objects::Members,
        _ => Objects::Elsewhere,
    };
    let command = if member.is_some() { "join" } else { "up" };
    let node = match &member {
        Some(member) => member.settings.name.clone(),
        None => flags.shape()?.node_name,
    };
    let etcd = (objects == Objects::Members).then_some(&flags.etcd);
    let patient = Patient { options, member: member.as_ref(), node: &node, etcd };
    if member.is_some() && !args.force {
        skew::check_node(patient.oldest_server().await?, new)?;
    }
    let (timeout, observe) = (Duration::try_from(args.timeout)?, Duration::try_from(args.observe)?);
    // A server among others, which have to go on meanwhile.
    let is_one_of_several = member.is_none() && flags.etcd.is_used() && holder.is_some();
    if is_one_of_several {
        let client = connect(&options.admin_kubeconfig())?;
        // There, and back if need be.
        turn::take(&client, &node, observe + 2 * timeout, &Clock::default()).await?;
        let whole = async {
            let nodes = turn::nodes(&client).await?;
            turn::require_others(&nodes, &node)?;
            if !args.force {
                skew::check_server(&node, new, &nodes)?;
            }
            if objects == Objects::Members {
                members::require_healthy(&flags.etcd).await?;
            }
            anyhow::Ok(())
        };
        if let Err(error) = whole.await {
            give_turn_back(options, &node).await;
            return Err(error);
        }
    }
    let is_asked = holder.is_some() || flags.etcd.is_used();
    if member.is_none() && is_asked && !is_one_of_several && !args.force {
        // A server that does not answer may be what the new program is to mend. One that is away has others that know.
        let servers = match holder.is_some() {
            true => connect(&options.admin_kubeconfig()).map(|own| vec![own]),
            false => machine::servers_of(options),
        };
        match nodes_by(servers).await {
            Ok(nodes) => skew::check_server(&node, new, &nodes)?,
            Err(error) => println!(" ! what versions the nodes are of is not known: {error:#}"),
        }
    }
    let last_sign = if holder.is_some() { patient.last_sign().await } else { None };
    let mut record = Record { target, command: command.to_owned(), begun: Vec::new() };
    let was_running = holder.is_some();
    let mut started = None;
    let upgraded = async {
        // Nobody else starts the cluster meanwhile: what it wrote would be lost on the way back.
        let mut closed = if was_running { None } else { Some(hold(options).await?) };
        for step in forward(objects, was_running) {
            record.begun.push(step);
            record.save(options)?;
            match step {
                Step::Snapshot => {
                    let own = flags.etcd.etcd_servers.first().context("etcd has no members")?;
                    let path = members::snapshot(options, &flags.etcd, own).await?;
                    println!(" ✓ snapshot       {}", path.display());
                }
                Step::Stop => {
                    manage::stop(options)?;
                    closed = Some(hold(options).await?);
                }
                Step::BackUp => {
                    let (store, file) = (options.store_dir(), backup_file(options));
                    fs::remove_file(&file).or_else(|error| match error.kind() {
                        std::io::ErrorKind::NotFound => Ok(()),
                        _ => Err(error),
                    })?;
                    let (revision, _) =
                        tokio::task::spawn_blocking(move || store::embedded::backup(&store, &file)).await??;
                    println!(" ✓ backup         revision {revision}");
                }
                Step::Replace => replace(binary, &record)?,
                Step::Start => {
                    drop(closed.take());
                    started = Some(start(options, &record, timeout).await?);
                }
                Step::Observe => patient.keeps_well(last_sign.as_ref(), observe).await?,
            }
        }
        anyhow::Ok(())
    };
    let ended = match upgraded.await {
        Ok(()) => {
            // It is left as it was found.
            if !was_running {
                manage::stop(options)?;
            }
            record.forget(options)?;
            println!("upgraded: {}", record.target.display());
            Ok(())
        }
        Err(error) => {
            println!(" ✗ {error:#}: returning");
            if let Some(child) = started {
                end_stranger(options, child).await?;
            }
            go_back(options, &record).await.context("returning to the old program")?;
            let stored = if objects == Objects::Embedded { ", and so is what was stored before" } else { "" };
            Err(error.context(format!("not upgraded; the old program is back{stored}")))
        }
    };
    if is_one_of_several {
        give_turn_back(options, &node).await;
    }
    ended
}

/// All nodes, as the first server that answers knows them.
async fn nodes_by(servers: Result<Vec<client::Client>>) -> Result<Vec<Node>> {
    let mut failed = anyhow!("no server is known");
    for server in servers? {
        match tokio::time::timeout(TURN_TIMEOUT, turn::nodes(&server)).await {
            Ok(Ok(nodes)) => return Ok(nodes),
            Ok(Err(error)) => failed = error,
            Err(_) => failed = anyhow!("the API does not answer"),
        }
    }
    Err(failed)
}

/// Ends a program that said that it was ready and runs no cluster. One that does is ended as every cluster is.
async fn end_stranger(options: &Options, mut child: Child) -> Result<()> {
    let holder = Lock::holder(&options.lock_file())?.map(|holder| holder.pid.as_raw().unsigned_abs());
    if holder != Some(child.id()) && child.try_wait()?.is_none() {
        child.kill()?;
        ended(child).await?;
    }
    Ok(())
}

/// Takes the turn for a return that stops a server which may well serve: another may be away meanwhile. Where nobody can be
/// asked, there is nothing to lose.
async fn take_turn(options: &Options, record: &Record, longest: Duration) -> Result<()> {
    let is_stopped = back(&record.begun).contains(&Return::Stop) && Lock::holder(&options.lock_file())?.is_some();
    let flags = Flags::remembered(options)?;
    if !is_stopped || record.command != "up" || !flags.etcd.is_used() {
        return Ok(());
    }
    let taken = async {
        let client = connect(&options.admin_kubeconfig())?;
        turn::take(&client, &flags.shape()?.node_name, longest, &Clock::default()).await
    };
    match tokio::time::timeout(TURN_TIMEOUT, taken).await {
        Ok(Err(error)) if error.is::<turn::Taken>() => Err(error),
        Ok(Err(error)) => {
            println!(" ! returning without a turn: {error:#}");
            Ok(())
        }
        Ok(Ok(())) | Err(_) => Ok(()),
    }
}

/// Lets another server be upgraded. Its turn comes by itself if nobody can be told.
async fn give_turn_back(options: &Options, node: &str) {
    let given = async { turn::give_back(&connect(&options.admin_kubeconfig())?, node).await };
    if let Err(error) = given.await {
        println!(" ! others wait until this server's turn has run out: {error:#}");
    }
}

async fn go_back(options: &Options, record: &Record) -> Result<()> {
    // Nobody starts the cluster while its objects are exchanged under it.
    let mut closed = None;
    for step in back(&record.begun) {
        match step {
            Return::Stop => {
                // It did not do well: it is not asked twice.
                if let Some(holder) = Lock::holder(&options.lock_file())? {
                    let pid = holder.pid;
                    let released = holder.released();
                    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM)?;
                    if tokio::time::timeout(Duration::from_secs(30), released).await.is_err() {
                        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL)?;
                        while Lock::holder(&options.lock_file())?.is_some() {
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    }
                }
                closed = Some(hold(options).await?);
            }
            // Not there: it was not replaced yet.
            Return::PutBack if !record.old().try_exists()? => {}
            Return::PutBack => {
                fs::rename(record.old(), &record.target).with_context(|| record.target.display().to_string())?;
            }
            // Done before: what is there now is what was restored.
            Return::Restore if !backup_file(options).try_exists()? => {}
            Return::Restore => {
                let (store, file) = (options.store_dir(), backup_file(options));
                tokio::task::spawn_blocking(move || put_objects_back(&store, &file)).await??;
            }
            Return::Start => {
                drop(closed.take());
                if Lock::holder(&options.lock_file())?.is_none() {
                    start(options, record, Duration::MAX).await?;
                }
            }
        }
    }
    drop(closed);
    record.forget(options)
}

/// Has the store go on from what it was before, above every revision that was given since.
fn put_objects_back(store: &Path, file: &Path) -> Result<()> {
    let mut go_on = GoOn::Later(USUALLY_LATER);
    if store.try_exists()? {
        // One that only a newer program can read says nothing.
        if let Ok(failed) = store::embedded::check(store) {
            go_on = GoOn::Above(failed.revision);
        }
        put_aside(store, "failed")?;
    }
    store::embedded::restore(file, store, go_on)?;
    fs::remove_file(file).with_context(|| file.display().to_string())
}

/// The kernel's link to the program of a cluster that runs.
pub(super) fn running(holder: &Holder) -> String {
    format!("/proc/{}/exe", holder.pid)
}

/// What a link of the kernel to a program says; one that was replaced while it ran is meant by its name.
fn program_of(link: &str) -> Result<PathBuf> {
    let path = fs::read_link(link).with_context(|| link.to_owned())?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map(PathBuf::from).unwrap_or(path.clone()))
}

pub(super) async fn version_of(program: &Path) -> Result<Minor> {
    let said = async {
        loop {
            match tokio::process::Command::new(program).arg("version").kill_on_drop(true).output().await {
                // A child of who wrote it has it open until it runs its own program.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => tokio::time::sleep(BUSY_INTERVAL).await,
                said => return said,
            }
        }
    };
    let said = tokio::time::timeout(VERSION_TIMEOUT, said).await.map_err(|_| anyhow!("it says nothing"));
    let said = said.and_then(|said| Ok(said?)).with_context(|| format!("running {} version", program.display()))?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    skew::minor(&text).with_context(|| format!("{} is no cox: its version is {:?}", program.display(), text.trim()))
}

/// Puts the new program in the place of the old one, whole or not at all, and keeps the old one beside it.
fn replace(binary: &Path, record: &Record) -> Result<()> {
    let mut name = record.target.file_name().context("the program has no name")?.to_owned();
    name.push(".upgrade");
    let fresh = record.target.with_file_name(name);
    fs::copy(binary, &fresh).with_context(|| format!("copying {}", binary.display()))?;
    fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755))?;
    let old = record.old();
    if old.try_exists()? {
        fs::remove_file(&old)?;
    }
    fs::hard_link(&record.target, &old).with_context(|| format!("keeping {}", record.target.display()))?;
    let file = fs::File::open(&fresh)?;
    files::give_name(&file, &fresh, &record.target).with_context(|| record.target.display().to_string())
}

/// Starts the program in the background; fails unless it brings everything up in time.
async fn start(options: &Options, record: &Record, timeout: Duration) -> Result<Child> {
    let log = options.log_file();
    private_dir(log.parent().unwrap_or(Path::new("/")))?;
    let log_file = fs::OpenOptions::new().create(true).append(true).mode(0o600).open(&log)?;
    let mut command = Command::new(&record.target);
    command.args([&*record.command, DETACHED, "--name", &options.name]);
    command.arg("--data-dir").arg(&options.data_dir).arg("--run-dir").arg(&options.run_dir);
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log_file);
    let mut child = command.spawn().with_context(|| format!("starting {}", record.target.display()))?;
    let output = child.stdout.take().context("it has no output")?;
    // Ends with its output; nobody waits for it longer than that.
    let (sender, ready) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if line == progress::READY {
                // Nobody listens after the timeout.
                let _late = sender.send(());
                return;
            }
            println!("{line}");
        }
    });
    match tokio::time::timeout(timeout, ready).await {
        Ok(Ok(())) => Ok(child),
        Ok(Err(_)) => {
            let how = ended(child).await?;
            bail!("{} did not bring the cluster up ({how}):\n{}", record.target.display(), background::tail(&log, 12))
        }
        Err(_) => {
            child.kill()?;
            ended(child).await?;
            bail!("{} did not bring the cluster up within {timeout:?}", record.target.display())
        }
    }
}

async fn ended(mut child: Child) -> Result<String> {
    Ok(tokio::task::spawn_blocking(move || child.wait()).await??.to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use store::{EmbeddedStore, Store};

    use super::*;

    #[tokio::test]
    async fn a_program_that_somebody_still_has_open_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("cox");
        fs::write(&program, "#!/bin/sh\necho 'cox 9.9.9 (Kubernetes v1.36)'\n").unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let open = fs::OpenOptions::new().append(true).open(&program).unwrap();
        let closing = async {
            tokio::time::sleep(BUSY_INTERVAL).await;
            drop(open);
        };
        assert_eq!(tokio::join!(version_of(&program), closing).0.unwrap(), (1, 36));
    }

    #[test]
    fn whatever_was_begun_is_undone_in_order() {
        let all = forward(Objects::Embedded, true);
        assert_eq!(all, [Step::Stop, Step::BackUp, Step::Replace, Step::Start, Step::Observe]);
        let expected: [&[Return]; 6] = [
            &[],
            &[Return::Start],
            &[Return::Start],
            &[Return::PutBack, Return::Start],
            &[Return::Stop, Return::PutBack, Return::Restore, Return::Start],
            &[Return::Stop, Return::PutBack, Return::Restore, Return::Start],
        ];
        for (count, expected) in expected.into_iter().enumerate() {
            assert_eq!(back(&all[..count]), expected, "after {count} steps");
        }
        // Objects of others are never put back, and what did not run is not started.
        let steps = forward(Objects::Members, true);
        assert_eq!(steps[..2], [Step::Snapshot, Step::Stop]);
        assert_eq!(back(&steps), [Return::Stop, Return::PutBack, Return::Start]);
        assert_eq!(back(&forward(Objects::Embedded, false)), [Return::Stop, Return::PutBack, Return::Restore]);
        assert_eq!(back(&forward(Objects::Elsewhere, false)), [Return::Stop, Return::PutBack]);
    }

    #[test]
    fn a_new_program_that_has_run_is_not_given_up_unasked() {
        let all = forward(Objects::Embedded, true);
        for (count, with_binary, alone) in [
            (0, Earlier::Clear, Earlier::Clear),
            (1, Earlier::Return, Earlier::Return),
            (3, Earlier::Return, Earlier::Return),
            (4, Earlier::Refuse, Earlier::Return),
            (5, Earlier::Refuse, Earlier::Return),
        ] {
            assert_eq!(earlier(&all[..count], true), with_binary, "after {count} steps");
            assert_eq!(earlier(&all[..count], false), alone, "after {count} steps");
        }
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// Answers every request on this listener with a list of one server, of another version.
    fn serve(listener: std::net::TcpListener) {
        let info = json!({
            "architecture": "", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "v1.35.9", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": "",
        });
        let metadata = json!({"name": "other", "labels": {crate::node_roles::CONTROL_PLANE: ""}});
        let nodes = json!([{"metadata": metadata, "status": {"nodeInfo": info}}]);
        let list = json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {}, "items": nodes}).to_string();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
                lines.take_while(|line| !line.is_empty()).for_each(drop);
                let head =
                    format!("content-type: application/json\r\ncontent-length: {}\r\nconnection: close", list.len());
                std::io::Write::write_all(&mut stream, format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{list}").as_bytes())
                    .unwrap();
            }
        });
    }

    #[tokio::test]
    async fn a_server_that_is_away_asks_others_for_their_versions() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("data"), run_dir: dir.path().join("run"), name: "c".into() };
        private_dir(&options.data_dir).unwrap();
        let mut flags = Flags::default();
        flags.machine.node_name = Some("own".into());
        flags.machine.node_ip = vec![std::net::Ipv4Addr::LOCALHOST.into()];
        flags.etcd.etcd_servers = vec!["https://127.0.0.1:1".into()];
        flags.settled().unwrap().remember(&options).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (gone, other) = ("127.0.0.1:1".to_owned(), listener.local_addr().unwrap().to_string());
        serve(listener);
        let named = |kind: &str, value: &dyn Fn(&str) -> serde_json::Value| {
            let entry = |server: &String| json!({"name": format!("c@{server}"), kind: value(server)});
            [&gone, &other].map(entry).to_vec()
        };
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "users": [{"name": "c", "user": {}}],
            "clusters": named("cluster", &|server| json!({"server": format!("http://{server}")})),
            "contexts": named("context", &|server| json!({"cluster": format!("c@{server}"), "user": "c"})),
        });
        private_dir(options.admin_kubeconfig().parent().unwrap()).unwrap();
        fs::write(options.admin_kubeconfig(), config.to_string()).unwrap();
        let program = |name: &str, version: &str| {
            let (draft, path) = (dir.path().join("draft"), dir.path().join(name));
            fs::write(&draft, format!("#!/bin/sh\necho 'cox 1 (Kubernetes {version})'\n")).unwrap();
            // By another process: a program that is open for writing in this one could not be run.
            let copied = Command::new("install").arg(&draft).arg(&path).status().unwrap();
            assert!(copied.success());
            path
        };
        let (old, new) = (program("old", "v1.36"), program("new", "v1.37"));
        let mut words = vec!["upgrade".into(), new.clone().into_os_string(), "--target".into(), old.into_os_string()];
        for (flag, path) in [("--data-dir", &options.data_dir), ("--run-dir", &options.run_dir)] {
            words.extend([flag.into(), path.clone().into_os_string()]);
        }
        words.extend(["--name".into(), "c".into()]);
        let args = <Line as clap::Parser>::try_parse_from(words).unwrap().args;
        let refused = here(&args).await.unwrap_err().to_string();
        assert!(refused.contains("the server other is of v1.35"), "{refused}");
        assert!(Record::load(&options).unwrap().is_none(), "nothing was begun");
    }

    #[tokio::test]
    async fn what_was_stored_comes_back_and_nobody_starts_the_cluster_meanwhile() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("data"), run_dir: dir.path().join("run"), name: "c".into() };
        let open =
            || -> Arc<dyn Store> { Arc::new(EmbeddedStore::open(options.store_dir(), Default::default()).unwrap()) };
        for path in [&options.data_dir, &options.run_dir] {
            fs::create_dir(path).unwrap();
        }
        let old = open();
        let known = old.put("/k", "old").await.unwrap();
        drop(old);
        let file = backup_file(&options);
        store::embedded::backup(&options.store_dir(), &file).unwrap();
        let copy = fs::read(&file).unwrap();
        fs::remove_file(&file).unwrap();
        let new = open();
        let lost = new.put("/k", "of the new program").await.unwrap();
        drop(new);
        // Opened by nobody until somebody writes to it: that is how long the return takes.
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let begun = vec![Step::BackUp, Step::Replace, Step::Start];
        let record = Record { target: dir.path().join("cox"), command: "up".into(), begun };
        drop(Lock::take(&options.lock_file()).unwrap());
        let returning = tokio::spawn({
            let (options, record) = (options.clone(), record.clone());
            async move { go_back(&options, &record).await }
        });
        let is_closed = async {
            while Lock::holder(&options.lock_file()).unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), is_closed).await.expect("the cluster can be started meanwhile");
        let pipe = file.clone();
        tokio::task::spawn_blocking(move || fs::OpenOptions::new().write(true).open(pipe)).await.unwrap().unwrap();
        returning.await.unwrap().unwrap_err();
        assert!(Lock::holder(&options.lock_file()).unwrap().is_none());
        // Tried again with a whole one, it goes on above what was there since.
        fs::remove_file(&file).unwrap();
        fs::rename(options.data_dir.join("store.failed-1"), options.store_dir()).unwrap();
        fs::write(&file, copy).unwrap();
        go_back(&options, &record).await.unwrap();
        let again = open();
        assert_eq!(again.get("/k").await.unwrap().unwrap().mod_revision, known);
        assert!(again.current_revision().await.unwrap() > lost);
        assert!(!file.exists() && Record::load(&options).unwrap().is_none());
    }

    #[test]
    fn the_old_program_is_there_until_it_is_not_needed() {
        let dir = tempfile::tempdir().unwrap();
        let (target, binary) = (dir.path().join("cox"), dir.path().join("new"));
        fs::write(&target, "old").unwrap();
        fs::write(&binary, "new").unwrap();
        let options = Options { data_dir: dir.path().join("data"), run_dir: dir.path().join("run"), name: "c".into() };
        fs::create_dir(&options.data_dir).unwrap();
        let record = Record { target: target.clone(), command: "up".into(), begun: vec![Step::Replace] };
        assert!(!is_unfinished(&options).unwrap());
        record.save(&options).unwrap();
        assert!(is_unfinished(&options).unwrap());
        replace(&binary, &record).unwrap();
        assert_eq!((fs::read(&target).unwrap(), fs::read(record.old()).unwrap()), (b"new".into(), b"old".into()));
        assert_eq!(fs::metadata(&target).unwrap().permissions().mode() & 0o777, 0o755);
        // Again, as after a return that was broken off.
        fs::rename(record.old(), &target).unwrap();
        replace(&binary, &record).unwrap();
        assert_eq!(Record::load(&options).unwrap().unwrap().begun, [Step::Replace]);
        record.forget(&options).unwrap();
        assert!(Record::load(&options).unwrap().is_none() && !record.old().exists());
        // Broken off, it says that nothing is to be undone, and goes on the next time.
        fs::create_dir(backup_file(&options)).unwrap();
        assert!(record.forget(&options).is_err());
        assert!(Record::load(&options).unwrap().unwrap().begun.is_empty() && !is_unfinished(&options).unwrap());
        fs::remove_dir(backup_file(&options)).unwrap();
        record.forget(&options).unwrap();
        assert!(Record::load(&options).unwrap().is_none());
    }
}

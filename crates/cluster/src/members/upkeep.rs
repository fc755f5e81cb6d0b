//! What members need from time to time: snapshots, room given back to the disk, and servers that know all of them.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use client::backoff::Backoff;
use futures_util::StreamExt;
use jiff::Timestamp;
use ring::digest::{Context as Digest, SHA256, SHA256_OUTPUT_LEN};
use store::Store;
use store::etcd::Members;
use tokio_util::sync::CancellationToken;

use super::flags::client_url;
use super::plan::{self, State, Which};
use super::state::{hand_over, only, states, store_of};
use crate::etcd::Etcd;
use crate::options::Options;
use crate::pki::private_dir;
use crate::shape::{Flags, Shape};

const LOOK_INTERVAL: Duration = Duration::from_secs(10);
/// Between looks at what databases waste.
const DEFRAGMENT_INTERVAL: Duration = Duration::from_secs(3600);
/// A large database takes its time.
const DEFRAGMENT_TIMEOUT: Duration = Duration::from_secs(300);
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(30);
/// After one that failed: each reads the whole database.
const SNAPSHOT_RETRY: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(3600));
const SNAPSHOTS_KEPT: usize = 5;
/// What is of later than this was made while the clock was wrong.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(3600);

/// Looks after the members, until `stop`. What one does for all, the server does whose member leads.
pub(crate) async fn keep(options: Options, shape: Shape, stop: CancellationToken) -> Result<()> {
    let own = client_url(shape.node_ip()?);
    let interval = shape.ha.snapshot_interval()?;
    let mut defragmented = tokio::time::Instant::now();
    let mut pauses = Backoff::new(SNAPSHOT_RETRY.0, SNAPSHOT_RETRY.1);
    let mut not_before = tokio::time::Instant::now();
    if let Err(error) = remove_unfinished(&snapshots_dir(&options)) {
        tracing::warn!("snapshots of etcd that were broken off stay: {error:#}");
    }
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_INTERVAL.min(interval.unwrap_or(LOOK_INTERVAL))) => {}
            () = stop.cancelled() => return Ok(()),
        }
        let seen = match states(&shape.etcd).await {
            Ok(seen) => seen,
            Err(error) => {
                tracing::warn!("etcd: {error:#}");
                continue;
            }
        };
        for state in seen.iter().filter(|state| !state.is_healthy) {
            let why = state.status.as_ref().map_or_else(ToString::to_string, |status| status.errors.join(", "));
            tracing::warn!(member = state.name(), why, "an etcd member is not healthy");
        }
        if let Err(error) = remember(&options, &own, &seen) {
            tracing::warn!("the members of etcd are not written down: {error:#}");
        }
        if let Some(interval) = interval
            && tokio::time::Instant::now() >= not_before
            && is_due(&options, interval, Timestamp::now())?
        {
            match snapshot(&options, &shape.etcd, &own).await {
                Ok(_) => pauses.reset(),
                Err(error) => {
                    let delay = pauses.next_delay();
                    not_before = tokio::time::Instant::now() + delay;
                    tracing::error!(?delay, "no snapshot of etcd: {error:#}");
                }
            }
        }
        let leads = seen.iter().any(|state| state.is_leader() && state.member.client_urls.contains(&own));
        if leads && defragmented.elapsed() >= DEFRAGMENT_INTERVAL {
            defragmented = tokio::time::Instant::now();
            if let Err(error) = defragment(&shape.etcd, Which::Wasteful).await {
                tracing::warn!("etcd is not defragmented: {error:#}");
            }
        }
    }
}

/// Writes down where the members are, so that the next start finds one that lives.
fn remember(options: &Options, own: &str, seen: &[State]) -> Result<()> {
    let voters = seen.iter().filter(|state| !state.member.is_learner && !state.member.name.is_empty());
    let mut servers: Vec<String> = voters.flat_map(|state| state.member.client_urls.iter().cloned()).collect();
    servers.compact_sort();
    servers.retain(|server| server != own);
    servers.insert(0, own.to_owned());
    let mut flags = Flags::remembered(options)?;
    if flags.etcd.etcd_servers != servers {
        flags.etcd.etcd_servers = servers;
        flags.remember(options)?;
    }
    Ok(())
}

/// Defragments member after member; says which.
pub(super) async fn defragment(etcd: &Etcd, which: Which) -> Result<Vec<String>> {
    let order = plan::defragmentation(&states(etcd).await?, which)?;
    let mut done = Vec::new();
    for id in order {
        // Anything may have happened since.
        let seen = states(etcd).await?;
        if let Some(sick) = seen.iter().find(|state| !state.is_healthy) {
            bail!("{} is not healthy; defragmented so far: {}", sick.name(), done.join(", "));
        }
        let state = seen.iter().find(|state| state.member.id == id).context("a member is gone")?;
        if state.is_leader()
            && let Some(next) = seen.iter().find(|other| other.member.id != id && !other.member.is_learner)
        {
            hand_over(etcd, &seen, next.member.id).await?;
        }
        let url = state.member.client_urls.first().context("a member without an address")?;
        let defragmented = Members::new(&only(etcd, url, DEFRAGMENT_TIMEOUT))?.defragment().await;
        defragmented.with_context(|| format!("defragmenting {}", state.member.name))?;
        done.push(state.member.name.clone());
    }
    Ok(done)
}

fn snapshots_dir(options: &Options) -> PathBuf {
    options.data_dir.join("etcd-snapshots")
}

fn snapshot_names(dir: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".db") {
            names.push(name);
        }
    }
    Ok(names)
}

/// Which process writes a file that is unfinished, by its name. Older ones do not say it.
fn writer(name: &str) -> Option<u32> {
    name.split('.').nth(1)?.parse().ok()
}

/// Removes what is unfinished and stays so: nobody is at it.
fn remove_unfinished(dir: &Path) -> Result<()> {
    if !dir.try_exists()? {
        return Ok(());
    }
    // This process has not begun any.
    let is_at_it = |pid: u32| pid != std::process::id() && Path::new(&format!("/proc/{pid}")).exists();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".tmp") && writer(&name).is_none_or(|pid| !is_at_it(pid)) {
            fs::remove_file(dir.join(&name)).with_context(|| name.clone())?;
        }
    }
    Ok(())
}

/// A file that goes unless it was given another name.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        // It is not there where all went well.
        let _absent = fs::remove_file(&self.0);
    }
}

static ATTEMPTS: AtomicU64 = AtomicU64::new(0);

fn is_due(options: &Options, interval: Duration, now: Timestamp) -> Result<bool> {
    let dir = snapshots_dir(options);
    if !dir.try_exists()? {
        return Ok(true);
    }
    let names = snapshot_names(&dir)?;
    let Some(newest) = plan::newest(&names, &latest_name(now)) else { return Ok(true) };
    let written = fs::metadata(dir.join(newest))?.modified()?;
    Ok(SystemTime::from(now).duration_since(written).is_ok_and(|age| age >= interval))
}

/// How a snapshot is called at a time.
fn name_at(time: Timestamp) -> String {
    format!("{}.db", time.strftime("%Y%m%dT%H%M%SZ"))
}

/// The latest name that there can be now, with room for a clock that was set back a little.
fn latest_name(now: Timestamp) -> String {
    name_at(now.checked_add(CLOCK_TOLERANCE).unwrap_or(now))
}

/// Writes a snapshot of the member at `url` and removes those that are too many. Returns its path.
pub(crate) async fn snapshot(options: &Options, etcd: &Etcd, url: &str) -> Result<PathBuf> {
    let dir = snapshots_dir(options);
    private_dir(&dir)?;
    let store = store_of(etcd, url, SNAPSHOT_TIMEOUT).await?;
    let now = Timestamp::now();
    let path = dir.join(name_at(now));
    let (pid, attempt) = (std::process::id(), ATTEMPTS.fetch_add(1, Ordering::Relaxed));
    let temporary = path.with_extension(format!("{pid}.{attempt}.tmp"));
    let _unfinished = Unfinished(temporary.clone());
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    let mut check = Check::default();
    let mut pieces = store.snapshot().await.context("asking etcd for a snapshot")?;
    while let Some(piece) = pieces.next().await {
        let piece = piece.context("reading a snapshot of etcd")?;
        check.update(&piece);
        file.write_all(&piece).with_context(|| temporary.display().to_string())?;
    }
    check.finish().with_context(|| temporary.display().to_string())?;
    files::give_name(&file, &temporary, &path)?;
    for name in plan::superfluous(snapshot_names(&dir)?, SNAPSHOTS_KEPT, &latest_name(now)) {
        fs::remove_file(dir.join(&name)).with_context(|| name.clone())?;
    }
    Ok(path)
}

/// etcd ends a snapshot with the hash of what comes before.
struct Check {
    hash: Digest,
    /// What may be the end.
    tail: Vec<u8>,
}

impl Default for Check {
    fn default() -> Check {
        Check { hash: Digest::new(&SHA256), tail: Vec::new() }
    }
}

impl Check {
    fn update(&mut self, piece: &[u8]) {
        self.tail.extend_from_slice(piece);
        let whole = self.tail.len().saturating_sub(SHA256_OUTPUT_LEN);
        self.hash.update(&self.tail[..whole]);
        self.tail.drain(..whole);
    }

    fn finish(self) -> Result<()> {
        match self.hash.finish().as_ref() == self.tail {
            true => Ok(()),
            false => bail!("the snapshot did not arrive whole"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_ends_with_its_hash() {
        let content = vec![7u8; 1000];
        let whole = [content.as_slice(), ring::digest::digest(&SHA256, &content).as_ref()].concat();
        for size in [1, 31, 32, 33, 500, 2000] {
            let mut check = Check::default();
            whole.chunks(size).for_each(|piece| check.update(piece));
            check.finish().unwrap();
            let mut torn = Check::default();
            whole[..whole.len() - 1].chunks(size).for_each(|piece| torn.update(piece));
            assert!(torn.finish().is_err());
        }
        assert!(Check::default().finish().is_err());
    }

    #[test]
    fn a_snapshot_of_a_clock_that_was_ahead_holds_up_none() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "c".into() };
        let (snapshots, interval) = (snapshots_dir(&options), Duration::from_secs(3600));
        private_dir(&snapshots).unwrap();
        let now = Timestamp::now();
        let ahead = now + jiff::SignedDuration::from_hours(10_000);
        let file = fs::File::create(snapshots.join(name_at(ahead))).unwrap();
        file.set_modified(ahead.into()).unwrap();
        assert!(is_due(&options, interval, now).unwrap());
        fs::write(snapshots.join(name_at(now)), "").unwrap();
        assert!(!is_due(&options, interval, now).unwrap());
    }

    #[test]
    fn what_nobody_writes_any_more_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        remove_unfinished(&dir.path().join("none")).unwrap();
        // The first process lives as long as there is any; no process has the last number.
        let own = format!("20260102T000000Z.{}.0.tmp", std::process::id());
        let stale = ["20260101T000000Z.tmp", "20260102T000000Z.4294967295.7.tmp", &own];
        let kept = ["20260103T000000Z.1.0.tmp", "20260101T000000Z.db"];
        for name in stale.iter().chain(&kept) {
            fs::write(dir.path().join(name), "").unwrap();
        }
        remove_unfinished(dir.path()).unwrap();
        assert!(stale.iter().all(|name| !dir.path().join(name).exists()));
        assert!(kept.iter().all(|name| dir.path().join(name).exists()));
        assert_eq!((writer(&own), writer(stale[0])), (Some(std::process::id()), None));

        let path = dir.path().join("x");
        fs::write(&path, "").unwrap();
        drop(Unfinished(path.clone()));
        assert!(!path.exists());
    }
}

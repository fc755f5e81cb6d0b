//! Copies of the store that are made while the cluster runs, into a directory, the newest few kept.
//!
//! When the next one is due is told by the names of those that are there, so a restart neither skips nor repeats one.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::options::Options;
use crate::pki::private_dir;

const USUAL_INTERVAL: Duration = Duration::from_secs(12 * 3600);
const MIN_INTERVAL: Duration = Duration::from_secs(60);
const USUAL_KEEP: usize = 5;
/// After one that failed.
const RETRY: Duration = Duration::from_secs(300);
/// How late a clock that was set is noticed.
const LOOK: Duration = Duration::from_secs(3600);
const FORMAT: &str = "%Y%m%dT%H%M%SZ";
const ENDING: &str = ".snap";

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct BackupFlags {
    /// Directory into which the store is copied every now and then while the cluster runs (default: none)
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_dir: Option<PathBuf>,
    /// How often that is done (default: 12h)
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_interval: Option<String>,
    /// How many of these copies are kept (default: 5)
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_keep: Option<usize>,
}

/// Where to, how often, and how many.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    pub dir: PathBuf,
    interval: Duration,
    keep: usize,
}

impl BackupFlags {
    pub(crate) fn over(self, remembered: BackupFlags) -> BackupFlags {
        BackupFlags {
            backup_dir: self.backup_dir.or(remembered.backup_dir),
            backup_interval: self.backup_interval.or(remembered.backup_interval),
            backup_keep: self.backup_keep.or(remembered.backup_keep),
        }
    }

    /// None where no directory is named.
    pub(crate) fn schedule(&self, has_own_store: bool) -> Result<Option<Schedule>> {
        let Some(dir) = self.backup_dir.clone().filter(|dir| !dir.as_os_str().is_empty()) else { return Ok(None) };
        if !has_own_store {
            bail!("--backup-dir is of no use with --etcd-servers: the backups of an etcd are etcd's");
        }
        if dir.is_relative() {
            bail!("--backup-dir={} must be a whole path: the cluster is resumed from anywhere", dir.display());
        }
        let interval = match &self.backup_interval {
            None => USUAL_INTERVAL,
            Some(text) => text
                .parse::<SignedDuration>()
                .ok()
                .and_then(|interval| Duration::try_from(interval).ok())
                .filter(|interval| *interval >= MIN_INTERVAL)
                .with_context(|| format!("--backup-interval={text} is not a duration of {MIN_INTERVAL:?} or more"))?,
        };
        let keep = self.backup_keep.unwrap_or(USUAL_KEEP);
        if keep == 0 {
            bail!("--backup-keep=0 would keep nothing");
        }
        Ok(Some(Schedule { dir, interval, keep }))
    }
}

/// Makes copies when they are due, until `stop`.
pub(crate) async fn keep(options: Options, schedule: Schedule, stop: CancellationToken) -> Result<()> {
    loop {
        let (own, plan) = (options.clone(), schedule.clone());
        let pause = match tokio::task::spawn_blocking(move || make_due(&own, &plan, Timestamp::now())).await? {
            Ok(pause) => pause,
            Err(error) => {
                tracing::error!("the store is not backed up: {error:#}");
                RETRY
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause.min(LOOK)) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Makes the copy that is due, if one is, and removes the oldest; returns how long there is nothing to do.
fn make_due(options: &Options, schedule: &Schedule, now: Timestamp) -> Result<Duration> {
    private_dir(&schedule.dir)?;
    let made = made(&schedule.dir, &options.name)?;
    if let Some(pause) = until_due(made.last().map(|(at, _)| *at), now, schedule.interval) {
        return Ok(pause);
    }
    let file = schedule.dir.join(format!("{}{}{ENDING}", beginning(&options.name), now.strftime(FORMAT)));
    let (revision, bytes) = store::embedded::backup(&options.store_dir(), &file)?;
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).with_context(|| file.display().to_string())?;
    tracing::info!(file = %file.display(), %revision, bytes, "the store is backed up");
    // Only after the new one is there.
    let surplus = (made.len() + 1).saturating_sub(schedule.keep);
    for (_, old) in made.into_iter().take(surplus) {
        fs::remove_file(&old).with_context(|| format!("removing {}", old.display()))?;
    }
    Ok(schedule.interval)
}

/// How long until the next is due; none if it is now. A last one that is in the future was made by a wrong clock.
fn until_due(last: Option<Timestamp>, now: Timestamp, interval: Duration) -> Option<Duration> {
    let age = Duration::try_from(now.duration_since(last?)).ok()?;
    interval.checked_sub(age).filter(|left| !left.is_zero())
}

fn beginning(cluster: &str) -> String {
    format!("{}-", cluster.replace('/', "-"))
}

/// The copies that are there, oldest first. Other files are not ours to remove.
fn made(dir: &Path, cluster: &str) -> Result<Vec<(Timestamp, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let at = name.strip_prefix(&beginning(cluster)).and_then(|rest| rest.strip_suffix(ENDING));
        let at = at.and_then(|text| jiff::civil::DateTime::strptime(FORMAT, text).ok());
        if let Some(at) = at.and_then(|at| at.to_zoned(jiff::tz::TimeZone::UTC).ok()) {
            found.push((at.timestamp(), path));
        }
    }
    found.sort();
    Ok(found)
}

/// For `cox status`: how many there are, and the newest.
pub(crate) fn describe(options: &Options, schedule: &Schedule) -> String {
    match made(&schedule.dir, &options.name) {
        Err(error) => format!("{error:#}"),
        Ok(made) => match made.last() {
            None => format!("{} (none yet)", schedule.dir.display()),
            Some((at, _)) => format!("{} ({}, the last at {at})", schedule.dir.display(), made.len()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use store::{EmbeddedStore, Store};

    #[test]
    fn schedules_are_checked() {
        let flags = |dir: &str, interval: Option<&str>, keep: Option<usize>| BackupFlags {
            backup_dir: Some(dir.into()),
            backup_interval: interval.map(str::to_owned),
            backup_keep: keep,
        };
        assert_eq!(BackupFlags::default().schedule(true).unwrap(), None);
        let usual = flags("/b", None, None).schedule(true).unwrap().unwrap();
        assert_eq!((usual.interval, usual.keep), (USUAL_INTERVAL, 5));
        for (wrong, own, why) in [
            (flags("b", None, None), true, "whole path"),
            (flags("/b", None, None), false, "with --etcd-servers"),
            (flags("/b", Some("5s"), None), true, "--backup-interval=5s"),
            (flags("/b", Some("often"), None), true, "--backup-interval=often"),
            (flags("/b", None, Some(0)), true, "keep nothing"),
        ] {
            let error = wrong.schedule(own).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        let remembered = flags("/b", Some("1h"), Some(3));
        assert_eq!(BackupFlags::default().over(remembered.clone()), remembered);
    }

    #[test]
    fn the_next_one_is_due_an_interval_after_the_last() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (last, now, expected) in [
            (None, 1000, None),
            (Some(1000), 1000, Some(100)),
            (Some(1000), 1099, Some(1)),
            (Some(1000), 1100, None),
            (Some(1000), 5000, None),
            (Some(5000), 1000, None),
        ] {
            let found = until_due(last.map(at), at(now), Duration::from_secs(100));
            assert_eq!(found.map(|left| left.as_secs()), expected, "{last:?} {now}");
        }
    }

    #[tokio::test]
    async fn copies_are_made_kept_and_restored() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("d"), run_dir: dir.path().join("r"), name: "c".into() };
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options.store_dir(), Default::default()).unwrap());
        let plan = Schedule { dir: dir.path().join("b"), interval: Duration::from_secs(3600), keep: 2 };
        private_dir(&plan.dir).unwrap();
        fs::write(plan.dir.join("c-notes.snap"), "mine").unwrap();
        fs::write(plan.dir.join("other-20200101T000000Z.snap"), "another cluster's").unwrap();
        for hour in 0..4 {
            store.put(&format!("/k{hour}"), "v").await.unwrap();
            let now = Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap();
            assert_eq!(make_due(&options, &plan, now).unwrap(), plan.interval);
            // Once: the next is due later.
            let later = now.checked_add(SignedDuration::from_secs(600)).unwrap();
            assert_eq!(make_due(&options, &plan, later).unwrap(), Duration::from_secs(3000));
        }
        let found = made(&plan.dir, "c").unwrap();
        assert_eq!(found.len(), 2);
        assert!(
            describe(&options, &plan).contains("(2, the last at 2027-01-15T11:00:00Z)"),
            "{}",
            describe(&options, &plan)
        );
        assert_eq!(fs::read_dir(&plan.dir).unwrap().count(), 4, "what is not ours stays");
        for (_, file) in &found {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let restored = dir.path().join("again");
        store::embedded::restore(&found[1].1, &restored).unwrap();
        let again: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&restored, Default::default()).unwrap());
        assert_eq!(again.get("/k3").await.unwrap().unwrap().value, "v");
    }
}

//! Copies of the store that are made while the cluster runs, into a directory or a bucket of S3, the newest few kept.
//!
//! When the next one is due is told by the names of those that are there, so a restart neither skips nor repeats one. Objects
//! that are in etcd are carried into a store first, so that a copy is the same wherever they are, and good for any machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::etcd::{Etcd, PREFIX, TRANSFER};
use crate::options::Options;
use crate::path_value::{named, path_or_empty};
use crate::pki::private_dir;
use crate::s3::{Bucket, Place, S3Flags};

const USUAL_INTERVAL: Duration = Duration::from_secs(12 * 3600);
const MIN_INTERVAL: Duration = Duration::from_secs(60);
const USUAL_KEEP: usize = 5;
/// After one that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(300);
/// How late a clock that was set is noticed.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
const FORMAT: &str = "%Y%m%dT%H%M%SZ";
const ENDING: &str = ".snap";
/// Where a copy is on its way to a bucket.
const PASSING: &str = "backup-passing";
/// Where the objects of an etcd are on their way into a copy.
const CARRIED: &str = "backup-carried";

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct BackupFlags {
    /// Directory for regular backups of the store while the cluster runs; an empty value turns them off (default: none)
    #[arg(long, value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_dir: Option<PathBuf>,
    #[command(flatten)]
    #[serde(flatten)]
    pub s3: S3Flags,
    /// How often a backup is made (default: 12h)
    #[arg(long, value_name = "DURATION")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_interval: Option<String>,
    /// How many backups are kept (default: 5)
    #[arg(long, value_name = "COUNT")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup_keep: Option<usize>,
}

/// Where to, how often, and how many.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    to: Target,
    interval: Duration,
    keep: usize,
}

#[derive(Debug, Clone, PartialEq)]
enum Target {
    Dir(PathBuf),
    S3(Place),
}

impl BackupFlags {
    pub(crate) fn over(self, remembered: BackupFlags) -> BackupFlags {
        BackupFlags {
            backup_dir: self.backup_dir.or(remembered.backup_dir),
            s3: self.s3.over(remembered.s3),
            backup_interval: self.backup_interval.or(remembered.backup_interval),
            backup_keep: self.backup_keep.or(remembered.backup_keep),
        }
    }

    /// None where neither a directory nor an endpoint is named.
    pub(crate) fn schedule(&self, etcd: &Etcd) -> Result<Option<Schedule>> {
        let dir = named(&self.backup_dir).map(Path::to_owned);
        let to = match (dir, self.s3.place()?) {
            (None, None) => return Ok(None),
            (Some(_), Some(_)) => {
                bail!("--backup-dir and --backup-s3-endpoint: copies go to one place; an empty value ends the other")
            }
            (Some(dir), None) => Target::Dir(dir),
            (None, Some(place)) => Target::S3(place),
        };
        if let Some(prefix) = etcd.prefix().filter(|prefix| *prefix != PREFIX) {
            // Some encryptions are good for one place only.
            bail!("--backup-dir and --backup-s3-endpoint copy objects below {PREFIX}, and --etcd-prefix is {prefix}");
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
        Ok(Some(Schedule { to, interval, keep }))
    }
}

/// Makes copies when they are due, until `stop`.
pub(crate) async fn keep(options: Options, etcd: Etcd, schedule: Schedule, stop: CancellationToken) -> Result<()> {
    let source = Source { options, etcd };
    loop {
        let now = Timestamp::now();
        let made = match &schedule.to {
            Target::Dir(dir) => {
                let (own, dir, plan) = (source.clone(), dir.clone(), schedule.clone());
                tokio::task::spawn_blocking(move || make_due(&own, &dir, &plan, now)).await?
            }
            // Somebody else's network may be slow, and the cluster is to stop all the same; what is half put is no copy.
            Target::S3(place) => tokio::select! {
                made = put_due(&source, place, &schedule, now) => made,
                () = stop.cancelled() => return Ok(()),
            },
        };
        let pause = match made {
            Ok(pause) => pause,
            Err(error) => {
                tracing::error!("the store is not backed up: {error:#}");
                RETRY_INTERVAL.min(schedule.interval)
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause.min(CLOCK_CHECK_INTERVAL)) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// Makes the copy that is due, if one is, and removes the oldest; returns how long there is nothing to do.
fn make_due(source: &Source, dir: &Path, schedule: &Schedule, now: Timestamp) -> Result<Duration> {
    private_dir(dir)?;
    let name = &source.options.name;
    let made = made(dir, name, now)?;
    if let Some(pause) = until_due(made.last().map(|(at, _)| *at), now, schedule.interval) {
        return Ok(pause);
    }
    let file = dir.join(name_at(name, now));
    let (revision, bytes) = source.copy(&file)?;
    tracing::info!(file = %file.display(), %revision, bytes, "the store is backed up");
    // Only after the new one is there.
    let surplus = (made.len() + 1).saturating_sub(schedule.keep);
    for (_, old) in made.into_iter().take(surplus) {
        fs::remove_file(&old).with_context(|| format!("removing {}", old.display()))?;
    }
    Ok(schedule.interval)
}

/// The same for a bucket.
async fn put_due(source: &Source, place: &Place, schedule: &Schedule, now: Timestamp) -> Result<Duration> {
    let options = &source.options;
    let bucket = Bucket::open(place)?;
    let made = put(&bucket, place, &options.name, now).await?;
    if let Some(pause) = until_due(made.last().map(|(at, _)| *at), now, schedule.interval) {
        return Ok(pause);
    }
    // On its way through a place where only root looks.
    let dir = empty_dir(options, PASSING)?;
    let name = name_at(&options.name, now);
    let (file, own) = (dir.join(&name), source.clone());
    let from = file.clone();
    let (revision, bytes) = tokio::task::spawn_blocking(move || own.copy(&file)).await??;
    let key = format!("{}{name}", place.prefix);
    let sent = bucket.put(&key, &from).await;
    fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    sent?;
    tracing::info!(%place, key, %revision, bytes, "the store is backed up");
    let surplus = (made.len() + 1).saturating_sub(schedule.keep);
    for (_, old) in made.into_iter().take(surplus) {
        bucket.delete(&old).await?;
    }
    Ok(schedule.interval)
}

/// The copies in a bucket, oldest first.
async fn put(bucket: &Bucket, place: &Place, cluster: &str, now: Timestamp) -> Result<Vec<(Timestamp, String)>> {
    let names = bucket.list(&format!("{}{}", place.prefix, beginning(cluster))).await?;
    let at = |key: &String| key.strip_prefix(&place.prefix).and_then(|name| made_at(name, cluster));
    Ok(oldest_first(names.into_iter().filter_map(|key| Some((at(&key)?, key))).collect(), now))
}

fn name_at(cluster: &str, now: Timestamp) -> String {
    format!("{}{}{ENDING}", beginning(cluster), now.strftime(FORMAT))
}

/// A directory of this name, with nothing in it, where only root looks.
fn empty_dir(options: &Options, name: &str) -> Result<PathBuf> {
    let dir = options.data_dir.join(name);
    if dir.try_exists()? {
        fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
    }
    private_dir(&dir)?;
    Ok(dir)
}

/// What is copied.
#[derive(Clone)]
struct Source {
    options: Options,
    etcd: Etcd,
}

impl Source {
    /// Writes one state into a file. Blocks; not for threads that run tasks.
    fn copy(&self, file: &Path) -> Result<(store::Revision, u64)> {
        let done = match self.etcd.is_used() {
            false => store::embedded::backup(&self.options.store_dir(), file)?,
            true => {
                let dir = empty_dir(&self.options, CARRIED)?;
                let done = self.copy_by_way_of(&dir.join("store"), file);
                fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
                done?
            }
        };
        fs::set_permissions(file, fs::Permissions::from_mode(0o600)).with_context(|| file.display().to_string())?;
        Ok(done)
    }

    fn copy_by_way_of(&self, store: &Path, file: &Path) -> Result<(store::Revision, u64)> {
        let carry = async {
            let from = self.etcd.connect().await?;
            TRANSFER.into_directory(&*from, store).await.context("carrying objects out of etcd")
        };
        tokio::runtime::Handle::current().block_on(carry)?;
        Ok(store::embedded::backup(store, file)?)
    }
}

/// List the backups that `cox up` has put into an S3 bucket, or fetch one for `cox store restore`
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct FetchArgs {
    #[command(flatten)]
    pub options: Options,
    #[command(flatten)]
    s3: S3Flags,
    /// The backup to fetch, by its listed name, or 'latest'
    #[arg(requires = "file")]
    copy: Option<String>,
    /// The file to write; it must not exist
    file: Option<PathBuf>,
}

/// `remembered` are the cluster's own flags: on its machine nothing need be said again.
pub(crate) async fn fetch(args: FetchArgs, remembered: S3Flags) -> Result<()> {
    let flags = args.s3.over(remembered);
    let place = flags.place()?.context("which endpoint? Say --backup-s3-endpoint and --backup-s3-bucket")?;
    let bucket = Bucket::open(&place)?;
    let found = put(&bucket, &place, &args.options.name, Timestamp::now()).await?;
    let name = |key: &str| key.strip_prefix(&place.prefix).unwrap_or(key).to_owned();
    let Some((wanted, file)) = args.copy.zip(args.file) else {
        found.iter().for_each(|(_, key)| println!("{}", name(key)));
        return Ok(());
    };
    let key = match wanted.as_str() {
        "latest" => found.last().map(|(_, key)| key.clone()),
        wanted => found.into_iter().map(|(_, key)| key).find(|key| name(key) == wanted),
    };
    let key =
        key.with_context(|| format!("{place} has no copy {wanted} of the cluster {:?} (--name)", args.options.name))?;
    let bytes = bucket.fetch(&key, &file).await?;
    println!("{}: {}, {bytes} bytes", file.display(), name(&key));
    Ok(())
}

/// How long until the next is due; none if it is now. A last one that is in the future was made by a wrong clock.
fn until_due(last: Option<Timestamp>, now: Timestamp, interval: Duration) -> Option<Duration> {
    let age = Duration::try_from(now.duration_since(last?)).ok()?;
    interval.checked_sub(age).filter(|left| !left.is_zero())
}

fn beginning(cluster: &str) -> String {
    format!("{}-", cluster.replace('/', "-"))
}

/// When a copy was made, by its name; none for what is no copy of this cluster.
fn made_at(name: &str, cluster: &str) -> Option<Timestamp> {
    let text = name.strip_prefix(&beginning(cluster))?.strip_suffix(ENDING)?;
    let at = jiff::civil::DateTime::strptime(FORMAT, text).ok()?;
    Some(at.to_zoned(jiff::tz::TimeZone::UTC).ok()?.timestamp())
}

/// The copies that are there, oldest first. Other files are not ours to remove.
fn made(dir: &Path, cluster: &str, now: Timestamp) -> Result<Vec<(Timestamp, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(|| dir.display().to_string())? {
        let path = entry.with_context(|| dir.display().to_string())?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if let Some(at) = made_at(name, cluster) {
            found.push((at, path));
        }
    }
    Ok(oldest_first(found, now))
}

/// Copies in the order in which they were made. One that seems to be of the future was made while the clock was wrong, nobody knows
/// when: the others are newer, and outlast it.
fn oldest_first<T: Ord>(mut copies: Vec<(Timestamp, T)>, now: Timestamp) -> Vec<(Timestamp, T)> {
    // Other servers' clocks may be a little ahead.
    let latest = now.checked_add(CLOCK_CHECK_INTERVAL).unwrap_or(now);
    copies.compact_sort_by(|one, other| (one.0 <= latest, one).cmp(&(other.0 <= latest, other)));
    copies
}

/// For `cox status`: how many there are, and the newest.
pub(crate) fn describe(options: &Options, schedule: &Schedule) -> String {
    let dir = match &schedule.to {
        Target::Dir(dir) => dir,
        // Not asked: the answer would wait for somebody else's network.
        Target::S3(place) => return format!("{place} ('cox store fetch' lists them)"),
    };
    match made(dir, &options.name, Timestamp::now()) {
        Err(error) => format!("{error:#}"),
        Ok(made) => match made.last() {
            None => format!("{} (none yet)", dir.display()),
            Some((at, _)) => format!("{} ({}, the last at {at})", dir.display(), made.len()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use store::{EmbeddedStore, Store};

    #[test]
    fn copies_are_ended_by_an_empty_place() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            flags: BackupFlags,
        }
        let flags = |words: &[&str]| <Line as clap::Parser>::parse_from([&["cox"][..], words].concat()).flags;
        let remembered = || flags(&["--backup-dir=/b"]);
        let etcd = Etcd::default();
        assert!(flags(&[]).over(remembered()).schedule(&etcd).unwrap().is_some());
        for words in [&["--backup-dir="][..], &["--backup-dir", ""]] {
            assert_eq!(flags(words).over(remembered()).schedule(&etcd).unwrap(), None, "{words:?}");
        }
        let remembered = || flags(&["--backup-s3-endpoint=https://s3.example", "--backup-s3-bucket=copies"]);
        assert!(flags(&[]).over(remembered()).schedule(&etcd).unwrap().is_some());
        assert_eq!(flags(&["--backup-s3-endpoint="]).over(remembered()).schedule(&etcd).unwrap(), None);
    }

    #[test]
    fn schedules_are_checked() {
        let flags = |dir: &str, interval: Option<&str>, keep: Option<usize>| BackupFlags {
            backup_dir: Some(dir.into()),
            backup_interval: interval.map(str::to_owned),
            backup_keep: keep,
            s3: S3Flags::default(),
        };
        // In a store of the server's own, or in etcd below a prefix.
        let schedule = |flags: BackupFlags, prefix: Option<&str>| {
            let etcd = prefix.map(|prefix| Etcd {
                etcd_servers: vec!["http://192.0.2.1:2379".into()],
                etcd_prefix: Some(prefix.to_owned()),
                ..Etcd::default()
            });
            flags.schedule(&etcd.unwrap_or_default())
        };
        let none = None;
        assert_eq!(schedule(BackupFlags::default(), none).unwrap(), None);
        let usual = schedule(flags("/b", None, None), none).unwrap().unwrap();
        // The same copies of an etcd.
        assert_eq!(schedule(flags("/b", None, None), Some("/registry")).unwrap().unwrap(), usual);
        assert_eq!((usual.interval, usual.keep), (USUAL_INTERVAL, 5));
        for (wrong, prefix, why) in [
            (flags("/b", None, None), Some("/two"), "--etcd-prefix is /two"),
            (flags("/b", Some("5s"), None), none, "--backup-interval=5s"),
            (flags("/b", Some("often"), None), none, "--backup-interval=often"),
            (flags("/b", None, Some(0)), none, "keep nothing"),
        ] {
            let error = schedule(wrong, prefix).unwrap_err().to_string();
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
    async fn copies_of_a_clock_that_was_ahead_are_not_the_newest() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("d"), run_dir: dir.path().join("r"), name: "c".into() };
        let _store = EmbeddedStore::open(options.store_dir(), Default::default()).unwrap();
        let source = Source { options, etcd: Etcd::default() };
        let to = dir.path().join("b");
        let plan = Schedule { to: Target::Dir(to.clone()), interval: Duration::from_secs(3600), keep: 2 };
        let at = |second| Timestamp::from_second(second).unwrap();
        private_dir(&to).unwrap();
        for second in [2_000_000_000, 2_000_003_600] {
            fs::write(to.join(name_at("c", at(second))), "").unwrap();
        }
        // The clock is right again: one is due, and then not at once another.
        let now = at(1_800_000_000);
        assert_eq!(make_due(&source, &to, &plan, now).unwrap(), plan.interval);
        assert_eq!(make_due(&source, &to, &plan, at(1_800_000_600)).unwrap(), Duration::from_secs(3000));
        let times = |now| made(&to, "c", now).unwrap().iter().map(|(at, _)| at.as_second()).collect::<Vec<_>>();
        assert_eq!(times(now), [2_000_003_600, 1_800_000_000], "the newest is the last");
        let later = at(1_800_003_600);
        assert_eq!(make_due(&source, &to, &plan, later).unwrap(), plan.interval);
        assert_eq!(times(later), [1_800_000_000, 1_800_003_600]);
    }

    #[tokio::test]
    async fn copies_are_made_kept_and_restored() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().join("d"), run_dir: dir.path().join("r"), name: "c".into() };
        let store: Arc<dyn Store> = Arc::new(EmbeddedStore::open(options.store_dir(), Default::default()).unwrap());
        let source = Source { options: options.clone(), etcd: Etcd::default() };
        let to = dir.path().join("b");
        let plan = Schedule { to: Target::Dir(to.clone()), interval: Duration::from_secs(3600), keep: 2 };
        private_dir(&to).unwrap();
        fs::write(to.join("c-notes.snap"), "mine").unwrap();
        fs::write(to.join("other-20200101T000000Z.snap"), "another cluster's").unwrap();
        for hour in 0..4 {
            store.put(&format!("/k{hour}"), "v").await.unwrap();
            let now = Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap();
            assert_eq!(make_due(&source, &to, &plan, now).unwrap(), plan.interval);
            // Once: the next is due later.
            let later = now.checked_add(SignedDuration::from_secs(600)).unwrap();
            assert_eq!(make_due(&source, &to, &plan, later).unwrap(), Duration::from_secs(3000));
        }
        let found = made(&to, "c", Timestamp::from_second(1_800_020_000).unwrap()).unwrap();
        assert_eq!(found.len(), 2);
        assert!(
            describe(&options, &plan).contains("(2, the last at 2027-01-15T11:00:00Z)"),
            "{}",
            describe(&options, &plan)
        );
        assert_eq!(fs::read_dir(&to).unwrap().count(), 4, "what is not ours stays");
        for (_, file) in &found {
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        }
        let restored = dir.path().join("again");
        store::embedded::restore(&found[1].1, &restored, store::embedded::GoOn::Later(0)).unwrap();
        let again: Arc<dyn Store> = Arc::new(EmbeddedStore::open(&restored, Default::default()).unwrap());
        assert_eq!(again.get("/k3").await.unwrap().unwrap().value, "v");
    }
}

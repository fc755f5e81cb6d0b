//! NFS volumes: the kernel's own client, asked by mount(2). What the helper of nfs-utils does is done here: names are
//! resolved, and versions are tried from the newest to the oldest unless one is asked for.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::sort::CompactCollect as _;
use files::MountOption;
use k8s_openapi::api::core::v1::NFSVolumeSource;
use nix::errno::Errno;
use nix::mount::MsFlags;
use parking_lot::Mutex;
use tokio::sync::watch;

use super::kernel::{Kernel, Linux};
use super::mounts;

/// As the helper of nfs-utils tries them.
const VERSIONS: [&str; 4] = ["4.2", "4.1", "4.0", "3"];
const PORT: u16 = 2049;

/// Shares that the kernel is asked to mount: a server that does not answer holds the call for minutes.
#[derive(Clone, Default)]
pub(crate) struct Nfs {
    under_way: Arc<Mutex<HashSet<PathBuf>>>,
    taken: Arc<watch::Sender<Taken>>,
}

/// How many mounts may wait for their servers at a time.
const PLACES: usize = 32;
/// Less than all, where all servers that a namespace names are silent.
const PLACES_OF_NAMESPACE: usize = 16;
/// And less than those, for one that is.
const PLACES_OF_SERVER: usize = 4;

/// How many mounts wait, by whose they are.
#[derive(Debug, Default)]
struct Taken(HashMap<Whose, usize>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Whose {
    All,
    Namespace(String),
    Server(String),
}

impl Taken {
    fn is_full(&self, whose: &Whose) -> bool {
        let most = match whose {
            Whose::All => PLACES,
            Whose::Namespace(_) => PLACES_OF_NAMESPACE,
            Whose::Server(_) => PLACES_OF_SERVER,
        };
        self.0.get(whose).is_some_and(|taken| *taken >= most)
    }

    /// All of them or none, so that who waits for one keeps nobody from another. Says which.
    fn take(&mut self, all: &[Whose]) -> bool {
        let has_room = !all.iter().any(|whose| self.is_full(whose));
        if has_room {
            for whose in all {
                *self.0.entry(whose.clone()).or_default() += 1;
            }
        }
        has_room
    }

    fn free(&mut self, all: &[Whose]) {
        for whose in all {
            if let Some(taken) = self.0.get_mut(whose) {
                *taken -= 1;
                if *taken == 0 {
                    self.0.remove(whose);
                }
            }
        }
    }
}

/// Free again when it is dropped.
#[derive(Debug)]
struct Place(Arc<watch::Sender<Taken>>, [Whose; 3]);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.send_modify(|taken| taken.free(&self.1));
    }
}

/// What is mounted where, and how.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Share {
    server: String,
    path: String,
    is_read_only: bool,
    /// Of the PersistentVolume.
    options: Vec<String>,
}

impl Share {
    pub(super) fn new(source: &NFSVolumeSource, is_read_only: bool, options: &[String]) -> Share {
        Share {
            server: source.server.clone(),
            path: source.path.clone(),
            is_read_only: is_read_only || source.read_only == Some(true),
            options: options.to_vec(),
        }
    }

    /// As mount(8) is told of it.
    fn source(&self) -> String {
        match self.server.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!("[{address}]:{}", self.path),
            _ => format!("{}:{}", self.server, self.path),
        }
    }

    /// The flags of mount(2), and what the file system itself is told, in the order given. Options that only mean something
    /// to mount(8) are left out.
    fn parsed(&self) -> (MsFlags, Vec<&str>) {
        let (mut flags, mut rest) = (MsFlags::empty(), Vec::new());
        for option in files::mount_options(&self.options) {
            match option {
                MountOption::Flag(flag, is_set) => flags.set(flag, is_set),
                MountOption::Ignored => {}
                MountOption::Data(option) => rest.push(option),
            }
        }
        flags.set(MsFlags::MS_RDONLY, flags.contains(MsFlags::MS_RDONLY) || self.is_read_only);
        (flags, rest)
    }

    /// What the kernel is told, one line per try.
    fn tries(&self, address: IpAddr) -> Vec<String> {
        let (_, options) = self.parsed();
        let names_version = |option: &&str| {
            ["vers=", "nfsvers=", "minorversion="].iter().any(|key| option.starts_with(key))
                || matches!(*option, "v2" | "v3" | "v4" | "v4.0" | "v4.1" | "v4.2")
        };
        let versions: &[&str] = if options.iter().any(names_version) { &[""] } else { &VERSIONS };
        let whole = |version: &&str| {
            let version = Some(format!("vers={version}")).filter(|_| !version.is_empty());
            let address = format!("addr={address}");
            let all = options.iter().map(|option| (*option).to_owned()).chain(version).chain([address]);
            all.collect::<Vec<_>>().join(",")
        };
        versions.iter().map(whole).collect()
    }

    /// The words of upstream's mounter, with those of the helper as what was put out.
    fn failed(&self, target: &Path, error: Errno) -> String {
        let mut options: BTreeSet<&str> = self.options.iter().map(String::as_str).compact_collect();
        options.extend(self.is_read_only.then_some("ro"));
        let options = match options.is_empty() {
            true => String::new(),
            false => format!("-o {} ", Vec::from_iter(options).join(",")),
        };
        format!(
            "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs {options}{} {}\n\
             Output: mount.nfs: {}\n",
            self.source(),
            target.display(),
            error.desc()
        )
    }
}

/// Why a share is not mounted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NfsError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("Failed to resolve server {server}: {why}")]
    Resolve { server: String, why: String },
    #[error("too many NFS servers do not answer")]
    Busy,
    #[error("{0} is being mounted and {1} has not answered yet")]
    UnderWay(String, String),
    #[error("{} was not mounted in time: the server does not answer", .0.display())]
    Silent(PathBuf),
    /// In the words of mount(8).
    #[error("{0}")]
    Mount(String),
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

impl Nfs {
    /// Mounts a share for a pod of a namespace unless it is mounted there.
    pub(super) async fn set_up(
        &self,
        namespace: &str,
        target: PathBuf,
        share: Share,
        timeout: Duration,
    ) -> Result<PathBuf, NfsError> {
        let looked = target.clone();
        if super::blocking(move || mounts::is_mounted_at(&Linux, &looked)).await? {
            return Ok(target);
        }
        let address = resolve(&share.server, timeout).await?;
        // Each mount holds a thread for as long as its server is silent.
        let place = self.place(namespace, &share, timeout).await?;
        if !self.under_way.lock().insert(target.clone()) {
            return Err(NfsError::UnderWay(share.source(), share.server));
        }
        let (under_way, at) = (self.under_way.clone(), target.clone());
        let mounting = tokio::task::spawn_blocking(move || {
            let mounted = mount_share(&Linux, &share, &at, address);
            under_way.lock().remove(&at);
            drop(place);
            mounted
        });
        match tokio::time::timeout(timeout, mounting).await {
            Ok(ended) => ended?.map(|()| target),
            Err(_) => Err(NfsError::Silent(target)),
        }
    }

    /// A place among those that wait.
    async fn place(&self, namespace: &str, share: &Share, timeout: Duration) -> Result<Place, NfsError> {
        let (namespace, server) = (Whose::Namespace(namespace.to_owned()), Whose::Server(share.server.clone()));
        let all = [Whose::All, namespace, server];
        let mut changes = self.taken.subscribe();
        let taking = async {
            while !self.taken.send_if_modified(|taken| taken.take(&all)) {
                // The sender lives as long as this.
                let _ = changes.changed().await;
            }
        };
        let taken = tokio::time::timeout(timeout, taking).await;
        match taken {
            Ok(()) => Ok(Place(self.taken.clone(), all)),
            Err(_) if self.taken.borrow().is_full(&all[2]) => {
                Err(NfsError::UnderWay(share.source(), share.server.clone()))
            }
            Err(_) => Err(NfsError::Busy),
        }
    }
}

async fn resolve(server: &str, timeout: Duration) -> Result<IpAddr, NfsError> {
    let unknown = |why: String| NfsError::Resolve { server: server.to_owned(), why };
    let found = tokio::time::timeout(timeout, tokio::net::lookup_host((server, PORT))).await;
    let mut found = found.map_err(|_| unknown("timed out".into()))?.map_err(|error| unknown(error.to_string()))?;
    found.next().map(|address| address.ip()).ok_or_else(|| unknown("Name or service not known".into()))
}

fn mount_share(kernel: &impl Kernel, share: &Share, target: &Path, address: IpAddr) -> Result<(), NfsError> {
    std::fs::create_dir_all(target)?;
    let (flags, _) = share.parsed();
    let mut failed = Errno::ENODEV;
    for options in share.tries(address) {
        match kernel.mount(Some(Path::new(&share.source())), target, Some("nfs"), flags, Some(options.as_str())) {
            Ok(()) => return Ok(()),
            Err(error) => failed = error.raw_os_error().map_or(failed, Errno::from_raw),
        }
        // Only these say that another version may do.
        if !matches!(failed, Errno::EPROTONOSUPPORT | Errno::EINVAL | Errno::ECONNREFUSED | Errno::ENOENT) {
            break;
        }
    }
    // Nothing is mounted in it: it is empty.
    if let Err(error) = std::fs::remove_dir(target) {
        tracing::debug!(path = %target.display(), %error, "place of a share not removed");
    }
    Err(NfsError::Mount(share.failed(target, failed)))
}

#[cfg(test)]
mod tests {
    use super::super::recorded::Recorded;
    use super::*;

    /// Versions are tried from the newest on, as long as the server may know another one.
    #[test]
    fn a_server_is_asked_for_older_versions_only_if_that_may_help() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("data");
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        for (answers, asked, is_mounted) in [
            (vec![], 1, true),
            (vec![Errno::EPROTONOSUPPORT, Errno::EINVAL], 3, true),
            (vec![Errno::EPROTONOSUPPORT; 4], 4, false),
            (vec![Errno::EACCES], 1, false),
        ] {
            let kernel = Recorded { answers: std::cell::RefCell::new(answers.clone().into()), ..Recorded::default() };
            let mounted = mount_share(&kernel, &share("nas", false, &[]), &target, address);
            let versions: Vec<String> =
                kernel.calls().iter().map(|call| call.rsplit_once("vers=").unwrap().1.to_owned()).collect();
            let expected: Vec<String> =
                VERSIONS.iter().take(asked).map(|version| format!("{version},addr=10.0.0.1")).collect();
            assert_eq!((versions, mounted.is_ok()), (expected, is_mounted), "{answers:?}");
            assert_eq!(target.exists(), is_mounted, "a place where nothing is mounted does not stay");
        }
    }

    fn share(server: &str, is_read_only: bool, options: &[&str]) -> Share {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let source = NFSVolumeSource { server: server.into(), path: "/export".into(), read_only: None };
        Share::new(&source, is_read_only, &options)
    }

    #[test]
    fn options_are_told_to_whom_they_concern() {
        let address: IpAddr = "10.0.0.1".parse().unwrap();
        let tried = share("s", false, &["nfsvers=4.1", "noatime,hard", "_netdev", "retry=2", "rsize=8192"]);
        assert_eq!(tried.tries(address), ["nfsvers=4.1,hard,rsize=8192,addr=10.0.0.1"]);
        assert_eq!(tried.parsed().0, MsFlags::MS_NOATIME);
        let any = share("s", true, &["soft"]);
        assert_eq!(
            any.tries(address),
            ["4.2", "4.1", "4.0", "3"].map(|version| format!("soft,vers={version},addr=10.0.0.1"))
        );
        assert_eq!(any.parsed().0, MsFlags::MS_RDONLY);
        assert_eq!(share("s", true, &["rw"]).parsed().0, MsFlags::MS_RDONLY, "a claim may ask for less");
        assert_eq!(share("s", false, &["ro", "rw"]).parsed().0, MsFlags::empty(), "the last one counts");
        assert_eq!(share("fd00::1", false, &[]).source(), "[fd00::1]:/export");
        assert_eq!(share("nfs.example", false, &[]).source(), "nfs.example:/export");
    }

    /// Where the kernel has no NFS, or nobody serves it, the pod is told what mount(8) would have said.
    #[tokio::test]
    async fn a_share_that_cannot_be_mounted_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("kubernetes.io~nfs/data");
        // Nobody listens at this address of the loopback network.
        let share = share("127.255.255.254", true, &["vers=4.2", "port=1", "soft", "timeo=10", "retrans=1"]);
        let failed =
            Nfs::default().set_up("ns", target.clone(), share, Duration::from_secs(100)).await.unwrap_err().to_string();
        assert!(failed.starts_with("mount failed: exit status 32\nMounting command: mount\n"), "{failed}");
        let arguments = "-t nfs -o port=1,retrans=1,ro,soft,timeo=10,vers=4.2 127.255.255.254:/export";
        assert!(failed.contains(&format!("{arguments} {}\nOutput: mount.nfs: ", target.display())), "{failed}");
        let has_nfs = std::fs::read_to_string("/proc/filesystems").unwrap().lines().any(|line| line.ends_with("\tnfs"));
        assert!(has_nfs || failed.contains("No such device"), "{failed}");
        assert!(!target.exists(), "nothing is left behind");
    }

    /// All pods of a node may have shares of one server, which goes silent, and those of a namespace of as many as they name.
    #[tokio::test(start_paused = true)]
    async fn security_a_silent_server_leaves_room_for_others() {
        let nfs = Nfs::default();
        let place = async |namespace: &str, server: &str| {
            nfs.place(namespace, &share(server, false, &[]), Duration::from_secs(60)).await
        };
        let mut waiting = Vec::new();
        for _ in 0..PLACES_OF_SERVER {
            waiting.push(place("ns", "a").await.unwrap());
        }
        for namespace in ["ns", "other"] {
            let refused = place(namespace, "a").await.unwrap_err().to_string();
            assert_eq!(refused, "a:/export is being mounted and a has not answered yet");
            assert!(place(namespace, "b").await.is_ok());
        }
        for number in PLACES_OF_SERVER..PLACES_OF_NAMESPACE {
            waiting.push(place("ns", &number.to_string()).await.unwrap());
        }
        let refused = place("ns", "b").await.unwrap_err().to_string();
        assert_eq!(refused, "too many NFS servers do not answer");
        assert!(place("other", "b").await.is_ok());
        waiting.pop();
        assert!(place("ns", "b").await.is_ok());
        waiting.clear();
        assert!(nfs.taken.borrow().0.is_empty(), "what nobody waits for is forgotten");
    }
}

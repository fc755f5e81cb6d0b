//! A cluster whose objects are in an etcd that is there, rather than in a store of its own: several servers can share it.
//!
//! The first server writes down whose etcd it is. Another cluster is refused: it would have other keys, and neither could
//! read what the other wrote.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use client::backoff::Backoff;
use serde::{Deserialize, Serialize};
use store::etcd::{EtcdStore, Tls};
use store::transfer::Transfer;
use store::{Compare, Op, Relocated, Store, StoreError, Txn};
use tokio::time::Instant;

use crate::ca_hash::CaHash;
use crate::path_value::{named, path_or_empty};
use crate::progress;

/// What keys begin with in this program, whatever they begin with in etcd.
pub(crate) const ROOT: &str = "/registry/";
/// No object: the authority of the cluster that this etcd belongs to.
const AUTHORITY: &str = "/registry/cox/authority";
/// Servers that live write themselves down here, for some seconds.
pub(crate) const SERVERS: &str = "/registry/masterleases/";
/// What keys of a cluster that can be moved or copied begin with: some encryptions are good for one place only.
pub(crate) const PREFIX: &str = "/registry";
/// All that a cluster keeps in its store, but for who serves it and whose it is.
pub(crate) const TRANSFER: Transfer<'static> =
    Transfer { root: ROOT, mark: "/registry/cox/moving", without: &[SERVERS, AUTHORITY] };

/// How long a start waits for members that cannot answer: they may be starting, or choosing who leads.
const START_TIMEOUT: Duration = Duration::from_secs(30);
const START_RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub(crate) struct Etcd {
    /// Members of an existing etcd that holds the objects of the cluster (https://host:2379,…), instead of the embedded store
    #[arg(long, value_delimiter = ',')]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub etcd_servers: Vec<String>,
    /// File with the CA of the etcd members
    #[arg(long, value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_cafile: Option<PathBuf>,
    /// File with the client certificate for etcd
    #[arg(long, requires = "etcd_keyfile", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_certfile: Option<PathBuf>,
    /// File with the key of that certificate
    #[arg(long, requires = "etcd_certfile", value_parser = path_or_empty())]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_keyfile: Option<PathBuf>,
    /// Prefix of the keys of this cluster in etcd (default: /registry)
    #[arg(long)]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etcd_prefix: Option<String>,
}

impl Etcd {
    /// Whether there is one.
    pub(crate) fn is_used(&self) -> bool {
        !self.etcd_servers.is_empty()
    }

    /// These flags where they say something, else the remembered ones.
    pub(crate) fn over(self, remembered: Etcd) -> Etcd {
        let etcd_servers = if self.is_used() { self.etcd_servers } else { remembered.etcd_servers };
        Etcd {
            etcd_servers,
            etcd_cafile: self.etcd_cafile.or(remembered.etcd_cafile),
            etcd_certfile: self.etcd_certfile.or(remembered.etcd_certfile),
            etcd_keyfile: self.etcd_keyfile.or(remembered.etcd_keyfile),
            etcd_prefix: self.etcd_prefix.or(remembered.etcd_prefix),
        }
    }

    /// What makes no sense is refused before anything is started.
    pub(crate) fn check(&self) -> Result<()> {
        if self.etcd_prefix.is_some() && !self.is_used() {
            bail!("--etcd-prefix is of no use without --etcd-servers");
        }
        // No rule of the command line alone: the servers may stand in a file, or have been named before.
        if named(&self.etcd_cafile).is_some() && !self.is_used() {
            bail!("--etcd-cafile is of no use without --etcd-servers");
        }
        let is_url = |server: &&String| server.starts_with("http://") || server.starts_with("https://");
        if let Some(other) = self.etcd_servers.iter().find(|server| !is_url(server)) {
            bail!("--etcd-servers={other} must start with http:// or https://");
        }
        Ok(())
    }

    /// The files that are named, by their flags.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        let all = [
            ("etcd-cafile", &self.etcd_cafile),
            ("etcd-certfile", &self.etcd_certfile),
            ("etcd-keyfile", &self.etcd_keyfile),
        ];
        all.into_iter().filter_map(|(flag, file)| Some((flag, named(file)?)))
    }

    pub(crate) fn options(&self) -> store::etcd::Options {
        let mut options = store::etcd::Options::new(self.etcd_servers.clone());
        let file = |file| named(file).map(Path::to_owned);
        options.tls = file(&self.etcd_cafile).map(|ca| {
            let identity = file(&self.etcd_certfile).zip(file(&self.etcd_keyfile));
            Tls { ca, identity }
        });
        options
    }

    /// The store as the API server sees it, but for what is encrypted.
    pub(crate) async fn connect(&self) -> Result<Arc<dyn Store>> {
        let store = EtcdStore::connect(self.options()).await;
        let store: Arc<dyn Store> =
            Arc::new(store.with_context(|| format!("connecting to etcd at {}", self.etcd_servers.join(",")))?);
        Ok(match self.prefix() {
            Some(prefix) => Arc::new(Relocated::new(store, ROOT, apiserver::etcd_root(prefix))),
            None => store,
        })
    }

    pub(crate) fn prefix(&self) -> Option<&str> {
        self.etcd_prefix.as_deref()
    }
}

/// Tries again for a while if etcd cannot answer, and says why. What it refuses fails at once.
pub(crate) async fn while_unavailable<T, F>(attempt: impl Fn() -> F) -> Result<T>
where
    F: Future<Output = Result<T>>,
{
    let mut pauses = Backoff::new(START_RETRY.0, START_RETRY.1);
    let deadline = Instant::now() + START_TIMEOUT;
    let mut is_said = false;
    loop {
        let error = match attempt().await {
            Err(error) if is_unavailable(&error) => error,
            done => return done,
        };
        let pause = pauses.next_delay();
        if Instant::now() + pause > deadline {
            return Err(error.context("etcd does not become ready: do enough of its members run?"));
        }
        if !is_said {
            progress::note(&format!("waiting for etcd: {error:#}"));
            is_said = true;
        }
        tracing::warn!(why = format!("{error:#}"), "waiting for etcd");
        tokio::time::sleep(pause).await;
    }
}

fn is_unavailable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref::<StoreError>(), Some(StoreError::Unavailable(_))))
}

/// Makes the etcd that of the cluster with this authority (PEM); fails if it is another's.
pub(crate) async fn claim(store: &dyn Store, authority: &str) -> Result<()> {
    let own = CaHash::of_all(authority)?;
    let first = own.first().context("the cluster's authority is empty")?;
    let claim = Txn::new()
        .when(Compare::absent(AUTHORITY))
        .then(Op::put(AUTHORITY, first.to_string()))
        .otherwise(Op::get(AUTHORITY));
    let done = store.txn(claim).await.context("writing to etcd whose it is")?;
    if done.succeeded {
        return Ok(());
    }
    check_own(&own, &done.kv(0).map(|kv| String::from_utf8_lossy(&kv.value).into_owned()).unwrap_or_default())
}

/// Fails if the etcd is another cluster's. One that is nobody's is not claimed.
pub(crate) async fn refuse_others(store: &dyn Store, authority: &str) -> Result<()> {
    match store.get(AUTHORITY).await.context("asking etcd whose it is")? {
        Some(kv) => check_own(&CaHash::of_all(authority)?, &String::from_utf8_lossy(&kv.value)),
        None => Ok(()),
    }
}

fn check_own(own: &[CaHash], found: &str) -> Result<()> {
    if !own.iter().any(|own| own.to_string() == found) {
        bail!(
            "this etcd belongs to the cluster with the authority {found}: join it as a server ('cox token create --server' \
             there prints how), or give this cluster a place of its own with --etcd-prefix"
        );
    }
    Ok(())
}

/// Makes the etcd that of the first of these authorities (PEM), which signs from now on.
pub(crate) async fn pass_on(store: &dyn Store, authority: &str) -> Result<()> {
    claim(store, authority).await?;
    let first =
        CaHash::of_all(authority)?.first().map(CaHash::to_string).context("the cluster's authority is empty")?;
    let found = store.get(AUTHORITY).await.context("asking etcd whose it is")?;
    if let Some(kv) = found.filter(|kv| kv.value != first.as_bytes()) {
        let renew = Txn::new().when(Compare::mod_revision(AUTHORITY, kv.mod_revision)).then(Op::put(AUTHORITY, first));
        store.txn(renew).await.context("writing to etcd whose it is")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    fn authority() -> String {
        let pair = rcgen::KeyPair::generate().unwrap();
        rcgen::CertificateParams::default().self_signed(&pair).unwrap().pem()
    }

    #[tokio::test]
    async fn security_an_etcd_belongs_to_one_cluster() {
        let dir = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(store::EmbeddedStore::open(dir.path(), Default::default()).unwrap());
        let (first, second) = (authority(), authority());
        claim(&*store, &first).await.unwrap();
        claim(&*store, &first).await.unwrap();
        // While an authority is exchanged for another, both are there.
        claim(&*store, &format!("{first}{second}")).await.unwrap();
        let before = store.current_revision().await.unwrap();
        let refused = claim(&*store, &second).await.unwrap_err().to_string();
        assert!(refused.contains("belongs to the cluster with the authority sha256:"), "{refused}");
        assert_eq!(store.current_revision().await.unwrap(), before);
        assert!(claim(&*store, "").await.is_err());
        // A server that has fallen behind changes nothing.
        claim(&*store, &format!("{second}{first}")).await.unwrap();
        claim(&*store, &first).await.unwrap();
        // Once the other signs, it is the other's.
        assert!(pass_on(&*store, &second).await.is_err());
        pass_on(&*store, &format!("{second}{first}")).await.unwrap();
        claim(&*store, &second).await.unwrap();
        assert!(claim(&*store, &first).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_waits_while_members_choose_who_leads() {
        let asked = &AtomicU32::new(0);
        let answers = move |fails: u32, error: fn() -> StoreError| {
            move || async move {
                match asked.fetch_add(1, Ordering::Relaxed) < fails {
                    true => Err::<(), _>(error()).context("connecting to etcd"),
                    false => Ok(()),
                }
            }
        };
        let no_leader = || StoreError::Unavailable("no leader".into());
        while_unavailable(answers(5, no_leader)).await.unwrap();
        assert_eq!(asked.swap(0, Ordering::Relaxed), 6);
        // Not for ever, and who waited learns for what.
        let error = format!("{:#}", while_unavailable(answers(u32::MAX, no_leader)).await.unwrap_err());
        assert!(error.contains("do enough of its members run?") && error.contains("no leader"), "{error}");
        assert!(asked.swap(0, Ordering::Relaxed) > 10);
        while_unavailable(answers(1, || StoreError::Denied("who are you?".into()))).await.unwrap_err();
        assert_eq!(asked.swap(0, Ordering::Relaxed), 1);
    }

    #[test]
    fn flags_of_etcd_are_checked() {
        let servers = vec!["https://127.0.0.1:2379".to_owned()];
        let with = |change: fn(&mut Etcd)| {
            let mut etcd = Etcd { etcd_servers: servers.clone(), ..Etcd::default() };
            change(&mut etcd);
            etcd.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|etcd| etcd.etcd_cafile = Some("/ca.crt".into())), Ok(()));
        assert!(with(|etcd| etcd.etcd_servers = vec!["127.0.0.1:2379".into()]).unwrap_err().contains("http://"));
        let lonely = |etcd: &mut Etcd| (etcd.etcd_servers, etcd.etcd_prefix) = (Vec::new(), Some("/a".into()));
        assert!(with(lonely).unwrap_err().contains("of no use"));
        let lonely = |etcd: &mut Etcd| (etcd.etcd_servers, etcd.etcd_cafile) = (Vec::new(), Some("/a".into()));
        assert!(with(lonely).unwrap_err().contains("of no use"));
        Etcd::default().check().unwrap();
    }
}

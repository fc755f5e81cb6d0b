//! `cox cert rotate-ca`: another authority in the place of the cluster's, while everybody goes on trusting everybody.
//!
//! Flow: a new authority is trusted beside the old one ([`Phase::Trust`]) -> it signs, and everything is signed anew
//! ([`Phase::Sign`]) -> the old one goes ([`Phase::Drop`]). Each phase is written down, then its files are put in place and the
//! server is restarted, which takes some seconds and leaves containers alone; the next begins only when every node says that it
//! has come as far ([`decide`]). Ended anywhere, the next start completes the files, and the command goes on where it was.
//! Machines that have joined learn of it from the settings that the cluster publishes ([`follow`]).

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use client::{Client, ListParams, Patch};
use jiff::SignedDuration;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::connection::connect;
use crate::join::{self, Membership};
use crate::lock::Lock;
use crate::options::Options;
use crate::pki::{Certificate, Pki, write_private};
use crate::shape::Flags;
use crate::{background, certificates, manage, nodes};

/// What a machine that has joined says of itself: whom it trusts, and who signed what it shows.
const TRUSTS: &str = "cox.dev/trusted-authorities";
const SIGNED_BY: &str = "cox.dev/certificates-signed-by";
const FOLLOW_INTERVAL: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
const COMMON_NAME: &str = "kubernetes-ca";

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
    /// How long nodes may take to come along; the command can be given again
    #[arg(long, default_value = "10m")]
    timeout: SignedDuration,
    /// How long to wait between phases for pods, which get to see authorities a little later than nodes
    #[arg(long, default_value = "90s")]
    settle: SignedDuration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Phase {
    /// Both are trusted, the old one signs.
    Trust,
    /// Both are trusted, the new one signs.
    Sign,
    /// Only the new one is left.
    Drop,
}

impl Phase {
    fn next(self) -> Option<Phase> {
        match self {
            Phase::Trust => Some(Phase::Sign),
            Phase::Sign => Some(Phase::Drop),
            Phase::Drop => None,
        }
    }
}

/// Certificate and key in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Authority {
    certificate: String,
    key: String,
}

/// An exchange that has begun. It has both keys, and is for its owner as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Rotation {
    phase: Phase,
    old: Authority,
    new: Authority,
}

impl Rotation {
    fn file(dir: &Path) -> PathBuf {
        dir.join("ca-rotation.json")
    }

    fn load(dir: &Path) -> Result<Option<Rotation>> {
        let path = Rotation::file(dir);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    fn save(&self, dir: &Path) -> Result<()> {
        write_private(&Rotation::file(dir), &serde_json::to_vec_pretty(self)?)
    }

    /// What the authority's two files say in this phase: the one that signs comes first.
    fn files(&self) -> (String, &str) {
        let (old, new) = (&self.old, &self.new);
        match self.phase {
            Phase::Trust => (format!("{}{}", old.certificate, new.certificate), &old.key),
            Phase::Sign => (format!("{}{}", new.certificate, old.certificate), &new.key),
            Phase::Drop => (new.certificate.clone(), &new.key),
        }
    }
}

/// Completes what an exchange has written down: whoever signs next must find a certificate and its own key.
pub(crate) fn complete(dir: &Path) -> Result<()> {
    let Some(rotation) = Rotation::load(dir)? else { return Ok(()) };
    let pki = Pki::open(dir);
    let (certificates, key) = rotation.files();
    for (path, text) in [(pki.key("ca"), key), (pki.certificate("ca"), certificates.as_str())] {
        if fs::read_to_string(&path).is_ok_and(|found| found == text) {
            continue;
        }
        write_private(&path, text.as_bytes())?;
    }
    Ok(())
}

/// The name of the authority after one.
fn next_name(subject: &str) -> String {
    let number = subject.rsplit_once(&format!("{COMMON_NAME}-")).and_then(|(_, number)| number.parse::<u64>().ok());
    format!("{COMMON_NAME}-{}", number.unwrap_or(1) + 1)
}

/// How far a machine that has joined is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Progress {
    trusts: Vec<String>,
    signed_by: Vec<String>,
}

/// Who has not come as far as the next phase needs; nobody must be left behind.
fn decide<'a>(phase: Phase, new: &str, nodes: &'a BTreeMap<String, Progress>) -> Vec<&'a str> {
    let is_ready = |node: &Progress| match phase {
        Phase::Trust => node.trusts.iter().any(|name| name == new),
        Phase::Sign | Phase::Drop => !node.signed_by.is_empty() && node.signed_by.iter().all(|name| name == new),
    };
    nodes.iter().filter(|(_, progress)| !is_ready(progress)).map(|(name, _)| name.as_str()).collect()
}

pub(crate) async fn rotate(args: Args) -> Result<()> {
    let options = &args.options;
    if let Some(member) = Membership::load(options)? {
        bail!("this machine is a node of {}: its server exchanges the authority", member.server);
    }
    let dir = options.pki_dir();
    if !dir.join("ca.key").try_exists()? {
        bail!("there is no cluster at {}", options.data_dir.display());
    }
    let Ok(_lock) = Lock::take(&dir.join("rotation.lock"))? else {
        bail!("another 'cox cert rotate-ca' is under way");
    };
    match Lock::holder(&options.lock_file())? {
        Some(holder) => holder.refuse_foreground(
            "stop the service, have 'cox up' run it for as long as the exchange takes, and start the service again after \
             'cox down'",
        )?,
        None => bail!("the cluster does not run: nodes could not be told ('cox up')"),
    }
    refuse_several(options).await?;
    let (timeout, settle) = (Duration::try_from(args.timeout)?, Duration::try_from(args.settle)?);
    let mut rotation = match Rotation::load(&dir)? {
        Some(rotation) => rotation,
        None => {
            let pki = Pki::open(&dir);
            let read = |path: PathBuf| fs::read_to_string(&path).with_context(|| path.display().to_string());
            let old = Authority { certificate: read(pki.certificate("ca"))?, key: read(pki.key("ca"))? };
            let name = next_name(&Certificate::parse(old.certificate.as_bytes())?.subject);
            let (certificate, key) = crate::pki::new_authority(&name)?;
            let rotation = Rotation { phase: Phase::Trust, old, new: Authority { certificate, key } };
            rotation.save(&dir)?;
            rotation
        }
    };
    let new = Certificate::parse(rotation.new.certificate.as_bytes())?.subject;
    loop {
        take_effect(options)?;
        println!(" ✓ {}", describe(rotation.phase, &new));
        let Some(next) = rotation.phase.next() else { break };
        until_followed(options, rotation.phase, &new, timeout).await?;
        tokio::time::sleep(settle).await;
        rotation.phase = next;
        rotation.save(&dir)?;
    }
    fs::remove_file(Rotation::file(&dir)).context("ending the exchange")?;
    Ok(())
}

fn describe(phase: Phase, new: &str) -> String {
    match phase {
        Phase::Trust => format!("{new} is trusted beside the old authority"),
        Phase::Sign => format!("{new} has signed everything anew"),
        Phase::Drop => format!("{new} is the only authority"),
    }
}

/// Keys of servers do not travel for this: with several, each would have to be told at the same time.
async fn refuse_several(options: &Options) -> Result<()> {
    let slice = connect(&options.admin_kubeconfig())?.namespaced::<EndpointSlice>("default").get("kubernetes").await;
    let servers = slice.context("asking for the servers")?.endpoints.unwrap_or_default();
    let count: usize = servers.iter().map(|endpoint| endpoint.addresses.len()).sum();
    match count {
        0 | 1 => Ok(()),
        count => bail!(
            "the cluster has {count} servers: take it down to one ('cox server rm'), exchange its authority, and add the \
             others anew"
        ),
    }
}

/// Puts the files of the phase in place, signs everything with them, and has the server use them.
fn take_effect(options: &Options) -> Result<()> {
    complete(&options.pki_dir())?;
    certificates::renew(options, &Flags::remembered(options)?.shape()?)?;
    manage::stop(options)?;
    background::start_again(options, "up", &[])
}

/// Waits until every machine that has joined is as far as the next phase needs.
async fn until_followed(options: &Options, phase: Phase, new: &str, timeout: Duration) -> Result<()> {
    let client = connect(&options.admin_kubeconfig())?;
    let mut own: Vec<String> = nodes::all(options)?.into_iter().map(|record| record.name).collect();
    own.extend(Flags::remembered(options)?.machine.node_name);
    let deadline = Instant::now() + timeout;
    loop {
        let listed = client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")?;
        let words = |node: &Node, key: &str| -> Vec<String> {
            let text = node.metadata.annotations.as_ref().and_then(|all| all.get(key)).cloned().unwrap_or_default();
            text.split(';').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let mut joined = BTreeMap::new();
        for node in &listed.items {
            let name = node.metadata.name.clone().unwrap_or_default();
            // What is on this machine has the files already.
            if !own.contains(&name) {
                let progress = Progress { trusts: words(node, TRUSTS), signed_by: words(node, SIGNED_BY) };
                joined.insert(name, progress);
            }
        }
        let behind = decide(phase, new, &joined);
        if behind.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{} has not come along: 'cox cert rotate-ca' goes on when it has, or when its node is deleted; until then \
                 both authorities are trusted",
                behind.join(", ")
            );
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// On a machine that has joined: trusts whom the cluster trusts, asks for certificates of whom signs now, and says how far it
/// is, until `stop`.
pub(crate) async fn follow(client: Client, dir: PathBuf, node: String, stop: CancellationToken) -> Result<()> {
    let mut said = None;
    loop {
        if let Err(error) = follow_once(&client, &dir, &node, &mut said).await {
            tracing::warn!("the cluster's authority: {error:#}");
        }
        tokio::select! {
            () = tokio::time::sleep(FOLLOW_INTERVAL) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn follow_once(client: &Client, dir: &Path, node: &str, said: &mut Option<Progress>) -> Result<()> {
    let settings = client.namespaced::<ConfigMap>(join::SETTINGS_NAMESPACE).get(join::SETTINGS_NAME).await;
    let data = settings.context("reading the cluster's settings")?.data.unwrap_or_default();
    // A server of an earlier version says nothing of it.
    let Some(published) = data.get(join::AUTHORITY_KEY) else { return Ok(()) };
    let pki = Pki::open(dir);
    let authorities = Certificate::parse_all(published.as_bytes())?;
    let Some(signer) = authorities.first() else { bail!("the cluster publishes no authority") };
    if fs::read_to_string(pki.certificate("ca"))? != *published {
        write_private(&pki.certificate("ca"), published.as_bytes())?;
        tracing::info!(authorities = authorities.len(), "the cluster's authorities are others now");
    }
    let shown = pki.certificates()?.into_iter().filter(|(name, one)| name.ends_with("-current") && !one.is_authority);
    let signed_by: Vec<String> = shown.map(|(_, one)| one.issuer).collect();
    if signed_by.iter().any(|issuer| *issuer != signer.subject) {
        kubelet::ask_renewal(dir).context("asking for new certificates")?;
    }
    let progress = Progress { trusts: authorities.into_iter().map(|one| one.subject).collect(), signed_by };
    if said.as_ref() != Some(&progress) {
        let annotations = json!({TRUSTS: progress.trusts.join(";"), SIGNED_BY: progress.signed_by.join(";")});
        let patch = Patch::merge(json!({"metadata": {"annotations": annotations}}));
        client.all::<Node>().patch(node, &patch).await.context("saying whom this node trusts")?;
        *said = Some(progress);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(name: &str) -> Authority {
        let (certificate, key) = crate::pki::new_authority(name).unwrap();
        Authority { certificate, key }
    }

    #[test]
    fn security_an_exchange_that_ends_anywhere_leaves_a_key_and_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path());
        let (old, new) = (authority("kubernetes-ca"), authority("kubernetes-ca-2"));
        complete(dir.path()).unwrap();
        assert!(!pki.key("ca").exists(), "nothing has begun");
        let subjects = |text: &str| -> Vec<String> {
            Certificate::parse_all(text.as_bytes()).unwrap().into_iter().map(|one| one.subject).collect()
        };
        let mut phase = Some(Phase::Trust);
        for expected in [
            &["CN=kubernetes-ca", "CN=kubernetes-ca-2"][..],
            &["CN=kubernetes-ca-2", "CN=kubernetes-ca"],
            &["CN=kubernetes-ca-2"],
        ] {
            let rotation = Rotation { phase: phase.unwrap(), old: old.clone(), new: new.clone() };
            rotation.save(dir.path()).unwrap();
            assert_eq!(Rotation::load(dir.path()).unwrap().unwrap(), rotation);
            // Ended before either file, between the two, and after both.
            for before in [None, Some(pki.key("ca")), Some(pki.certificate("ca"))] {
                if let Some(path) = before {
                    fs::write(path, "of another phase").unwrap();
                }
                complete(dir.path()).unwrap();
                let found = fs::read_to_string(pki.certificate("ca")).unwrap();
                assert_eq!(subjects(&found), expected);
                let signer = if expected[0] == "CN=kubernetes-ca" { &old } else { &new };
                assert_eq!(fs::read_to_string(pki.key("ca")).unwrap(), signer.key);
                assert!(found.starts_with(&signer.certificate), "the first has the key");
            }
            phase = phase.and_then(Phase::next);
        }
        assert_eq!(phase, None);
    }

    #[test]
    fn nobody_is_left_behind() {
        let (old, new) = ("CN=kubernetes-ca", "CN=kubernetes-ca-2");
        let node = |trusts: &[&str], signed_by: &[&str]| Progress {
            trusts: trusts.iter().map(|name| (*name).to_owned()).collect(),
            signed_by: signed_by.iter().map(|name| (*name).to_owned()).collect(),
        };
        let nodes =
            |one: Progress| BTreeMap::from([("a".to_owned(), one), ("b".to_owned(), node(&[old, new], &[new, new]))]);
        for (phase, one, expected) in [
            (Phase::Trust, node(&[], &[]), &["a"][..]),
            (Phase::Trust, node(&[old], &[old, old]), &["a"]),
            (Phase::Trust, node(&[old, new], &[old, old]), &[]),
            (Phase::Sign, node(&[old, new], &[old, new]), &["a"]),
            (Phase::Sign, node(&[old, new], &[]), &["a"]),
            (Phase::Sign, node(&[new, old], &[new, new]), &[]),
        ] {
            assert_eq!(decide(phase, new, &nodes(one.clone())), expected, "{phase:?} {one:?}");
        }
        for (subject, expected) in [
            ("CN=kubernetes-ca", "kubernetes-ca-2"),
            ("CN=kubernetes-ca-2", "kubernetes-ca-3"),
            ("CN=somebody's", "kubernetes-ca-2"),
        ] {
            assert_eq!(next_name(subject), expected);
        }
    }
}

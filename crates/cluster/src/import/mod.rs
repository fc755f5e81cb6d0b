//! `cox import kubeadm|k3s`: another cluster's keys and objects become those of a cluster of ours, in a store of its own.
//!
//! Flow: files are read ([`found`], [`keys`]) -> objects are read, unsealed with the old keys -> what comes over is decided
//! ([`plan`], pure) and held against what the cluster is told to be ([`settle`]) -> all is shown, and whether somebody still
//! writes there ([`running`]); with `--dry-run` that is the end. Otherwise objects are sealed with a key of ours and written with the revisions that they had, then keys and flags.
//! Nothing of the old cluster is changed. Until all is written, a mark keeps `cox up` from starting what is half a cluster.

mod found;
mod keys;
mod plan;
mod running;
mod service;

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::cidr::Cidr;
use futures_util::future::BoxFuture;
use jiff::SignedDuration;
use store::embedded::{Imported, USUALLY_LATER};
use store::transfer::{LEASE_TTL, Transfer};
use store::{Contents, Revision, Store};

use crate::encryption;
use crate::etcd::Etcd;
use crate::join::Membership;
use crate::lock::Lock;
use crate::node_network::ranges;
use crate::options::Options;
use crate::pki::{private_dir, write_private};
use crate::shape::{Flags, Machine};
use found::{Found, Given, Objects, Settings};
use plan::{Facts, Part, Plan, System};

/// How many keys of a part are named.
const SHOWN: usize = 4;
/// Which address of the services answers names.
const DNS_OFFSET: u32 = 10;
/// Where k3s keeps its server, and the unit that its installer writes.
const K3S_DIR: &str = "/var/lib/rancher/k3s/server";
const K3S_SERVICE: &str = "/etc/systemd/system/k3s.service";
const TRANSFER: Transfer<'static> = Transfer { root: plan::ROOT, mark: "", without: &[] };

/// Take over a cluster of kubeadm or k3s
#[derive(clap::Parser, Clone, Debug)]
#[command(name = "import")]
pub struct Args {
    #[command(subcommand)]
    from: Source,
}

#[derive(clap::Subcommand, Clone, Debug)]
enum Source {
    /// Take over a kubeadm cluster: run this on one of its servers, with etcd running and kube-apiserver stopped
    Kubeadm {
        /// The directory of kubeadm
        #[arg(long, default_value = "/etc/kubernetes", value_name = "DIR")]
        from: PathBuf,
        /// Where the manifests of its servers are now (default: manifests in that directory)
        #[arg(long, value_name = "DIR")]
        manifests: Option<PathBuf>,
        #[command(flatten)]
        common: Box<Common>,
    },
    /// Take over a k3s cluster: run this on its server, while it is stopped
    K3s {
        /// The directory of the server
        #[arg(long, default_value = K3S_DIR, value_name = "DIR")]
        from: PathBuf,
        /// Its configuration
        #[arg(long, default_value = "/etc/rancher/k3s/config.yaml", value_name = "FILE")]
        config: PathBuf,
        /// Its systemd unit, which may have more flags (default: /etc/systemd/system/k3s.service, unless --from is given)
        #[arg(long, value_name = "FILE")]
        service: Option<PathBuf>,
        /// Read db/state.db although k3s seems to keep its objects elsewhere now
        #[arg(long, conflicts_with_all = ["etcd_servers", "etcd_snapshot"])]
        sqlite: bool,
        #[command(flatten)]
        common: Box<Common>,
    },
}

#[derive(clap::Args, Clone, Debug)]
struct Common {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    etcd: Etcd,
    /// An etcd snapshot to read the objects from, instead of a running etcd
    #[arg(long, value_name = "FILE", conflicts_with = "etcd_servers")]
    etcd_snapshot: Option<PathBuf>,
    /// Address range of pods, if it cannot be found in files and objects of the cluster
    #[arg(long)]
    cluster_cidr: Option<String>,
    /// Address range of services, likewise
    #[arg(long)]
    service_cidr: Option<String>,
    /// DNS domain of the cluster, likewise
    #[arg(long)]
    cluster_domain: Option<String>,
    /// Components to keep although Coxswain has its own
    #[arg(long, value_delimiter = ',', value_name = "PART")]
    keep: Vec<Part>,
    /// How long etcd must see no writes before its API servers count as stopped
    #[arg(long, default_value = "15s", value_name = "TIME")]
    settle: SignedDuration,
    /// Confirm that all API servers are stopped, where this cannot be detected
    #[arg(long)]
    servers_stopped: bool,
    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run(args))
}

async fn run(args: Args) -> Result<()> {
    let given = |common: &'_ Common| -> (Etcd, Option<PathBuf>) { (common.etcd.clone(), common.etcd_snapshot.clone()) };
    let (found, common) = match args.from {
        Source::Kubeadm { from, manifests, common } => {
            let (etcd, snapshot) = given(&common);
            let manifests = manifests.unwrap_or_else(|| from.join("manifests"));
            let given = Given { etcd: &etcd, snapshot: snapshot.as_deref() };
            (found::kubeadm(&from, &manifests, &given)?, common)
        }
        Source::K3s { from, config, service, sqlite, common } => {
            let (etcd, snapshot) = given(&common);
            // A copy of another machine's directory says nothing about this one's service.
            let usual = (from == Path::new(K3S_DIR)).then(|| PathBuf::from(K3S_SERVICE));
            let files = found::K3sFiles { dir: &from, config: &config, service: service.or(usual), sqlite };
            (found::k3s(&files, &Given { etcd: &etcd, snapshot: snapshot.as_deref() })?, common)
        }
    };
    // Refused before the work rather than after it.
    if !common.dry_run {
        refuse_occupied(&common.options)?;
    }
    // Before as well as after: what was written between our reading and the end of its server would be lost.
    let in_use_before = running::seen(&found, &Facts::default(), common.servers_stopped).await?;
    let Reading { mut contents, root, store } = read_objects(&found.objects).await?;
    let read = contents.kvs.len();
    if read == 0 {
        bail!("there are no objects below {root}: is this the store of the cluster?");
    }
    let unreadable = apiserver::open_others(&mut contents.kvs, &root, found.encryption.as_deref()).await?;
    let mut plan = plan::plan(found.system, std::mem::take(&mut contents.kvs), &common.keep);
    let flags = settle(&found.settings, &plan.facts, &common)?;
    let encrypted = encrypted(found.encryption.as_deref())?;
    print!("{}", describe(&found, &plan, &flags, (read, &contents), &unreadable)?);
    let mut in_use = match in_use_before {
        Some(reason) => Some(reason),
        None => running::seen(&found, &plan.facts, common.servers_stopped).await?,
    };
    if let (None, Some(store)) = (&in_use, &store) {
        println!("\nWatching for {:#} that nobody writes there any more.", common.settle);
        in_use = running::written(&**store, contents.revision, Duration::try_from(common.settle)?).await?;
    }
    if common.dry_run {
        if let Some(reason) = in_use {
            println!("\nThe import itself would be refused now: {reason}");
        }
        println!("\nNothing was changed.");
        return Ok(());
    }
    if let Some(reason) = in_use {
        bail!("{reason}");
    }
    let written = write(&common.options, &found, &mut plan, &contents, &flags, &encrypted).await?;
    println!("\n{written}\n\nNothing of the old cluster was changed. 'cox up' starts the new one.");
    Ok(())
}

/// What was read.
struct Reading {
    /// Every object at one revision, under keys that begin as ours do.
    contents: Contents,
    /// What they really began with.
    root: String,
    /// Where others may still write.
    store: Option<Arc<dyn Store>>,
}

async fn read_objects(objects: &Objects) -> Result<Reading> {
    match objects {
        Objects::Etcd(etcd) => {
            etcd.check()?;
            let store =
                etcd.connect().await.context("to read from a snapshot instead, name it with --etcd-snapshot")?;
            let root = etcd.prefix().map_or_else(|| plan::ROOT.to_owned(), apiserver::etcd_root);
            let contents = TRANSFER.read(&*store).await.context("reading the objects")?;
            Ok(Reading { contents, root, store: Some(store) })
        }
        Objects::Snapshot(path) => read_file(path, store::foreign::read_etcd_snapshot).await,
        Objects::Kine(path) => read_file(path, store::foreign::read_kine).await,
    }
}

type Read = fn(&Path, &str) -> store::Result<Contents>;

async fn read_file(path: &Path, read: Read) -> Result<Reading> {
    let path = path.to_owned();
    let contents = tokio::task::spawn_blocking(move || read(&path, plan::ROOT)).await?;
    Ok(Reading { contents: contents.context("reading the objects")?, root: plan::ROOT.to_owned(), store: None })
}

/// The flags that the cluster needs to be the same. What objects say counts more than files.
fn settle(files: &Settings, facts: &Facts, given: &Common) -> Result<Flags> {
    let networking = facts.kubeadm.as_ref().map(|configuration| &configuration["networking"]);
    let kubeadm = |field: &str| networking.and_then(|found| found[field].as_str()).map(str::to_owned);
    let stated = (!facts.service_cidrs.is_empty()).then(|| facts.service_cidrs.join(","));
    let service_cidr =
        given.service_cidr.clone().or(stated).or(files.service_cidr.clone()).or(kubeadm("serviceSubnet"));
    let cluster_cidr = given.cluster_cidr.clone().or(files.cluster_cidr.clone()).or(kubeadm("podSubnet"));
    let domain = given.cluster_domain.clone().or(files.cluster_domain.clone()).or(kubeadm("dnsDomain"));
    let domain = domain.unwrap_or_else(|| "cluster.local".to_owned());
    let service_cidr = service_cidr.context("nothing says which addresses services have: give --service-cidr")?;
    if let Some(address) = facts.api_address
        && service_address(&service_cidr, 1)? != address
    {
        bail!(
            "the service kubernetes has the address {address}, which is not the first of {service_cidr}: give --service-cidr"
        );
    }
    let pods = cluster_cidr.as_deref().map(ranges).transpose()?.unwrap_or_default();
    for (node, theirs) in &facts.nodes {
        for range in theirs {
            let network: Cidr = range.parse().with_context(|| format!("the range {range:?} of node {node}"))?;
            let holds = |all: &Cidr| all.contains(network.addr) && all.prefix <= network.prefix;
            if !pods.iter().any(holds) {
                let known = cluster_cidr.as_deref().unwrap_or("none");
                bail!(
                    "pods of node {node} are in {range}, which the range of pods ({known}) has not: give --cluster-cidr"
                );
            }
        }
    }
    let usual = vec![format!("https://kubernetes.default.svc.{domain}")];
    Ok(Flags {
        service_cidr: Some(service_cidr),
        cluster_cidr,
        cluster_domain: Some(domain),
        secure_port: files.secure_port,
        tls_san: files.names.clone(),
        service_account_issuer: if files.issuers == usual { Vec::new() } else { files.issuers.clone() },
        ..Flags::default()
    })
}

/// Where in a range our server has a service.
fn service_address(range: &str, offset: u32) -> Result<IpAddr> {
    // Of no machine: only the range counts.
    let machine =
        Machine { node_name: Some("n".into()), node_ip: vec![Ipv4Addr::LOCALHOST.into()], ..Machine::default() };
    let flags = Flags { machine, service_cidr: Some(range.to_owned()), ..Flags::default() };
    flags.shape()?.service_address(offset)
}

/// What pods and kubelets that go on as before would ask in vain.
fn moved_dns(plan: &Plan, range: &str) -> Result<Option<String>> {
    let Some(before) = plan.facts.dns_address.filter(|_| plan.left.contains_key(&Part::Dns)) else { return Ok(None) };
    let now = service_address(range, DNS_OFFSET)?;
    Ok((now != before).then(|| format!("names are answered at {now} from now on, and no longer at {before}")))
}

/// The revision of the new store. A snapshot is older than what clients have seen, and these revisions are not to be given again.
fn goes_on_at(objects: &Objects, read: Revision) -> Revision {
    match objects {
        Objects::Snapshot(_) => Revision(read.0 + USUALLY_LATER),
        Objects::Etcd(_) | Objects::Kine(_) => read,
    }
}

/// The resources that were encrypted, and are to be.
fn encrypted(file: Option<&Path>) -> Result<Vec<String>> {
    let Some(file) = file else { return Ok(encryption::resources([])) };
    let found = apiserver::EncryptionConfiguration::load(file, true)?;
    // One that writes plain text first is on its way out.
    let writes =
        |rule: &&apiserver::ResourceConfiguration| rule.providers.first().is_some_and(|first| first.identity.is_none());
    Ok(encryption::resources(found.resources.iter().filter(writes).flat_map(|rule| rule.resources.iter().cloned())))
}

/// Everything that is to be known before it is done.
fn describe(
    found: &Found,
    plan: &Plan,
    flags: &Flags,
    (read, contents): (usize, &Contents),
    unreadable: &apiserver::Unreadable,
) -> Result<String> {
    let mut text = format!("authority    {}\n", found.keys.authority.describe()?);
    text.push_str(&format!("front proxy  {}\n", found.keys.front_proxy.describe()?));
    let sealed = found.encryption.as_ref().map_or("nothing".to_owned(), |file| format!("as {} says", file.display()));
    text.push_str(&format!("encrypted    {sealed}; Secrets are encrypted with a new key\n"));
    let said = |value: &Option<String>| value.clone().unwrap_or_else(|| "as usual".to_owned());
    text.push_str(&format!(
        "addresses    services {}, pods {}, domain {}, port {}\n",
        said(&flags.service_cidr),
        said(&flags.cluster_cidr),
        said(&flags.cluster_domain),
        flags.secure_port.unwrap_or(6443)
    ));
    if let Some(moved) = moved_dns(plan, flags.service_cidr.as_deref().unwrap_or_default())? {
        text.push_str(&format!("             {moved}\n"));
    }
    if !flags.tls_san.is_empty() {
        text.push_str(&format!("known as     {}\n", flags.tls_san.join(", ")));
    }
    text.push_str(&format!("objects      {} of {read}, at revision {}\n", plan.kept.len(), contents.revision));
    let kinds: Vec<String> = plan.kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    text.push_str(&format!("             {}\n", kinds.join(", ")));
    let name = |key: &Arc<str>| key.strip_prefix(plan::ROOT).unwrap_or(key).to_owned();
    let some = |keys: &[Arc<str>]| {
        let shown: Vec<String> = keys.iter().take(SHOWN).map(name).collect();
        let more = keys.len().saturating_sub(SHOWN);
        if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
    };
    for (part, keys) in &plan.left {
        text.push_str(&format!("left out     {}\n             {}: {}\n", part.instead(), keys.len(), some(keys)));
    }
    if !plan.changed.is_empty() {
        text.push_str(&format!("changed      finalizers of k3s are removed from {}\n", some(&plan.changed)));
    }
    for (key, why) in unreadable {
        text.push_str(&format!("not read     {}: {why}; it is carried over as it is\n", name(key)));
    }
    if !found.other_flags.is_empty() {
        text.push_str(&format!("not taken    flags of the old API server: {}\n", found.other_flags.join(" ")));
        text.push_str("             those that are wanted go into spec.components.apiserver of a cluster file\n");
    }
    let nodes: Vec<&str> = plan.facts.nodes.keys().map(String::as_str).collect();
    text.push_str(&format!("nodes        {}\n", nodes.join(", ")));
    let stop = match found.system {
        System::Kubeadm => "stop kubelet and containerd there",
        System::K3s => "stop k3s-agent there",
    };
    text.push_str(&format!("             each comes back under its name with 'cox join': {stop} first\n"));
    Ok(text)
}

/// Says that an import has begun and not ended.
fn mark(options: &Options) -> PathBuf {
    options.data_dir.join("importing")
}

/// Fails where an import was broken off: what is there is half a cluster.
pub(crate) fn refuse_unfinished(options: &Options) -> Result<()> {
    let mark = mark(options);
    if mark.try_exists().with_context(|| mark.display().to_string())? {
        bail!("'cox import' was broken off here: give the command again, or make room with 'cox delete'");
    }
    Ok(())
}

fn refuse_occupied(options: &Options) -> Result<()> {
    if let Some(member) = Membership::load(options)? {
        bail!("this machine is a node of {}: 'cox delete' makes room", member.server);
    }
    if mark(options).try_exists()? {
        return Ok(());
    }
    for path in [options.store_dir(), options.pki_dir()] {
        if path.try_exists().with_context(|| path.display().to_string())? {
            bail!(
                "there is a cluster here already ({}): 'cox delete' makes room, and --data-dir another place",
                path.display()
            );
        }
    }
    Ok(())
}

async fn write(
    options: &Options,
    found: &Found,
    plan: &mut Plan,
    contents: &Contents,
    flags: &Flags,
    encrypted: &[String],
) -> Result<String> {
    private_dir(&options.data_dir)?;
    let _lock = match Lock::take(&options.lock_file())? {
        Ok(lock) => lock,
        Err(holder) => bail!("process {} runs a cluster here", holder.pid),
    };
    refuse_occupied(options)?;
    write_private(&mark(options), b"an import has begun\n")?;
    // From an attempt before: nothing has used it.
    for dir in [options.store_dir(), options.pki_dir()] {
        if dir.try_exists()? {
            fs::remove_dir_all(&dir).with_context(|| dir.display().to_string())?;
        }
    }
    found.keys.write(&options.pki_dir())?;
    let file = encryption::write_new(options, encrypted)?;
    let sealed = apiserver::seal_values(&mut plan.kept, &file).await?;
    let (dir, revision) = (options.store_dir(), goes_on_at(&found.objects, contents.revision));
    let imported = Imported { kvs: std::mem::take(&mut plan.kept), revision, lease_time: LEASE_TTL };
    let report = tokio::task::spawn_blocking(move || store::embedded::import(&dir, imported)).await??;
    flags.remember(options)?;
    fs::remove_file(mark(options)).context("ending the import")?;
    Ok(format!("{} objects are here, {sealed} of them encrypted, from revision {revision} on", report.keys))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn common(words: &[&str]) -> Common {
        use clap::Parser;
        let args = Args::parse_from(["import", "kubeadm"].iter().chain(words).copied());
        match args.from {
            Source::Kubeadm { common, .. } | Source::K3s { common, .. } => *common,
        }
    }

    fn facts() -> Facts {
        Facts {
            nodes: [("a".to_owned(), vec!["10.244.3.0/24".to_owned()])].into(),
            api_address: "10.96.0.1".parse().ok(),
            kubeadm: Some(json!({"networking": {"dnsDomain": "example.org", "podSubnet": "10.244.0.0/16"}})),
            ..Facts::default()
        }
    }

    #[test]
    fn a_snapshot_gives_no_revision_that_clients_have_seen() {
        let read = Revision(7);
        for (objects, expected) in [
            (Objects::Etcd(Box::default()), read),
            (Objects::Kine("state.db".into()), read),
            (Objects::Snapshot("a.db".into()), Revision(7 + USUALLY_LATER)),
        ] {
            assert_eq!(goes_on_at(&objects, read), expected);
        }
    }

    #[test]
    fn what_objects_say_counts_and_contradictions_are_refused() {
        let files = Settings {
            service_cidr: Some("10.96.0.0/12".into()),
            issuers: vec!["https://kubernetes.default.svc.example.org".into()],
            ..Settings::default()
        };
        let settle =
            |words: &[&str], facts: &Facts| settle(&files, facts, &common(words)).map_err(|error| error.to_string());
        let flags = settle(&[], &facts()).unwrap();
        assert_eq!(flags.cluster_cidr.as_deref(), Some("10.244.0.0/16"));
        assert_eq!(flags.cluster_domain.as_deref(), Some("example.org"));
        assert!(flags.service_account_issuer.is_empty(), "it is the usual one");
        let other = settle(&["--cluster-domain=b.example"], &facts()).unwrap();
        assert_eq!(other.service_account_issuer, ["https://kubernetes.default.svc.example.org"]);

        let elsewhere = Facts { service_cidrs: vec!["10.97.0.0/16".into()], ..facts() };
        assert!(settle(&[], &elsewhere).unwrap_err().contains("which is not the first of 10.97.0.0/16"));
        assert!(settle(&["--service-cidr=10.96.0.0/16"], &elsewhere).is_ok());
        assert!(
            settle(&["--cluster-cidr=10.1.0.0/16"], &facts())
                .unwrap_err()
                .contains("pods of node a are in 10.244.3.0/24")
        );
    }

    #[test]
    fn another_address_for_names_is_told() {
        let with = |address: &str, is_left: bool| {
            let left = is_left.then(|| (Part::Dns, Vec::new()));
            let facts = Facts { dns_address: address.parse().ok(), ..Facts::default() };
            let plan = Plan { facts, left: left.into_iter().collect(), ..Plan::default() };
            moved_dns(&plan, "10.96.0.0/12").unwrap()
        };
        assert_eq!(with("10.96.0.10", true), None);
        assert!(with("10.96.0.53", true).unwrap().contains("at 10.96.0.10 from now on, and no longer at 10.96.0.53"));
        assert_eq!(with("10.96.0.53", false), None, "it comes as well");
    }

    #[test]
    fn what_was_encrypted_stays_encrypted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("e.yaml");
        let rule = |resources: &str, provider: &str| {
            let key = "keys: [{name: k, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}]";
            let first =
                if provider == "identity" { "identity: {}".to_owned() } else { format!("{provider}: {{{key}}}") };
            format!("- resources: {resources}\n  providers: [{{{first}}}, {{aesgcm: {{{key}}}}}]\n")
        };
        for (rules, expected) in [
            (rule("[secrets, configmaps]", "aescbc"), &["secrets", "configmaps"][..]),
            (rule("[configmaps]", "aescbc"), &["configmaps", "secrets"]),
            (rule("[configmaps]", "identity"), &["secrets"]),
            (rule("['*.*']", "secretbox"), &["*.*"]),
            (rule("['*.']", "secretbox"), &["*."]),
            ([rule("[secrets]", "aescbc"), rule("['*.']", "aescbc")].concat(), &["*."]),
        ] {
            let text =
                format!("kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n{rules}");
            fs::write(&file, text).unwrap();
            assert_eq!(encrypted(Some(&file)).unwrap(), expected, "{rules}");
        }
        assert_eq!(encrypted(None).unwrap(), ["secrets"]);
    }

    #[test]
    fn half_a_cluster_is_not_started() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        refuse_unfinished(&options).unwrap();
        refuse_occupied(&options).unwrap();
        fs::create_dir(options.store_dir()).unwrap();
        assert!(refuse_occupied(&options).unwrap_err().to_string().contains("a cluster here already"));
        fs::write(mark(&options), "").unwrap();
        refuse_occupied(&options).unwrap();
        assert!(refuse_unfinished(&options).unwrap_err().to_string().contains("broken off"));
    }
}

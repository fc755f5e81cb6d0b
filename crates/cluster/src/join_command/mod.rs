//! `cox join`: makes this machine a node of a cluster elsewhere, or resumes it.

mod machine;

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use client::kubeconfig::{AuthInfo, Kubeconfig, Overrides};
use client::{Client, Clock};
use futures_util::future::BoxFuture;

use crate::background::Ground;
use crate::ca_hash::CaHash;
use crate::flag_paths::{ETCD_BINARY, REGISTRIES};
use crate::join::discovery::{Cluster, discover};
use crate::join::membership::{Membership, bootstrap_kubeconfig, node_kubeconfig};
use crate::join::server_keys::ServerKey;
use crate::join::token::Token;
use crate::join::{enrolment, server_keys};
use crate::lock::Lock;
use crate::options::Options;
use crate::path_value::{named, readable, whole};
use crate::pki::{Pki, private_dir, write_private};
use crate::settings::Settings;
use crate::shape::{self, Machine};
use crate::{background, preflight, server};

const TOKEN_VARIABLE: &str = "COX_TOKEN";
const KEY_VARIABLE: &str = "COX_SERVER_KEY";
/// Nothing of these stays in a process.
const SECRETS: [&str; 2] = [TOKEN_VARIABLE, KEY_VARIABLE];

/// Make this machine a node or a server of a cluster, or resume it
#[derive(Debug, Clone, clap::Args)]
#[command(after_help = "On a server of the cluster, 'cox token create --print-join-command' prints what to type here.")]
pub struct Args {
    #[command(flatten)]
    options: Options,
    #[command(flatten)]
    machine: Machine,
    /// Address of an API server of the cluster, with or without a port; if omitted, resume
    #[arg(requires = "ca_hash")]
    server: Option<String>,
    /// The token that lets this machine join. Other users of the machine can see it on the command line: a file is safer
    #[arg(long, env = TOKEN_VARIABLE, hide_env_values = true)]
    token: Option<String>,
    /// File to read the token from; - is standard input
    #[arg(long, conflicts_with = "token")]
    token_file: Option<PathBuf>,
    /// Hash of the cluster's CA (sha256:…): without it anybody could impersonate the cluster
    #[arg(long, alias = "discovery-token-ca-cert-hash", value_delimiter = ',')]
    ca_hash: Vec<CaHash>,
    /// Become a server of the cluster, not just a node; 'cox up' resumes it
    #[arg(long = "server", requires_all = ["server", "key"])]
    as_server: bool,
    /// Key that decrypts the server keys offered with the token. Other users of the machine can see it on the command line
    #[arg(long, env = KEY_VARIABLE, hide_env_values = true)]
    key: Option<ServerKey>,
    /// The etcd program, if the servers run etcd members (default: the one in $PATH)
    #[arg(long, requires = "as_server")]
    etcd_binary: Option<PathBuf>,
    #[command(flatten)]
    ground: Ground,
}

impl Args {
    /// Files that are named are there before anything is changed.
    fn check_files(&self) -> Result<()> {
        for (flag, path) in [(REGISTRIES, &self.machine.registries), (ETCD_BINARY, &self.etcd_binary)] {
            if let Some(path) = named(path) {
                readable(path).with_context(|| format!("{flag}={}", path.display()))?;
            }
        }
        Ok(())
    }
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> Result<()> {
    preflight::require()?;
    let options = &args.options;
    private_dir(&options.data_dir)?;
    if let Some(holder) = Lock::holder(&options.lock_file())? {
        bail!("process {} runs a node with this directory already: see 'cox status'", holder.pid);
    }
    if options.admin_kubeconfig().exists() {
        bail!("{} holds a cluster: 'cox delete' makes room", options.data_dir.display());
    }
    match (&args.server, Membership::load(options)?) {
        (Some(server), None) if args.as_server => {
            args.check_files()?;
            return become_server(&args, server).await;
        }
        (Some(server), None) => {
            args.check_files()?;
            enrol(&args, server).await?;
        }
        (Some(server), Some(member))
            if !args.as_server && member.check_certificate(options, Clock::default().now()).is_err() =>
        {
            enrol_again(&args, server, member).await?;
        }
        (Some(_), Some(member)) => {
            bail!("this machine is a node of {}: 'cox join' resumes it, 'cox delete' makes room", member.server)
        }
        (None, Some(_)) => {}
        (None, None) => bail!("which cluster? Give the address of its API server, a token and the authority's hash"),
    }
    if args.ground.stays()? {
        return machine::run(options).await;
    }
    background::start_again(options, "join", &SECRETS)?;
    println!("\nThis machine is a node of the cluster. Here: 'cox status', 'cox logs', 'cox down', 'cox delete'.");
    Ok(())
}

/// Finds the cluster, gets what its servers have in common, and goes on as `cox up` does.
async fn become_server(args: &Args, server: &str) -> Result<()> {
    let options = &args.options;
    let token = token(args.token.as_deref(), args.token_file.as_deref())?;
    let key = args.key.as_ref().context("give the server key with --key")?;
    let cluster = discover(server, &token, &args.ca_hash).await?;
    println!(" ✓ {:<14} {}", "cluster", cluster.server);
    let user = AuthInfo { token: Some(token.to_string()), ..AuthInfo::default() };
    let client = Client::from_kubeconfig(&cluster.kubeconfig(user), &Overrides::default())?;
    let bundle = server_keys::fetch(&client, &token, key).await?;
    let mut machine = args.machine.clone();
    // Others must reach this server: an address that only this machine knows is none.
    machine.node_ip = machine.reachable_addresses(host_address(&cluster.server), &bundle.families())?;
    let flags = bundle.unpack(options, machine, args.etcd_binary.clone())?.settled()?;
    flags.remember(options)?;
    println!(" ✓ {:<14} {}", "server keys", options.pki_dir().display());
    if let Err(error) = server_keys::discard(&client, &token).await {
        println!(" ! {error:#}: 'cox token delete {}' does it", token.id);
    }
    if args.ground.stays()? {
        return server::run(options.clone(), flags).await;
    }
    background::start_again(options, "up", &SECRETS)?;
    println!(
        "\nThis machine is a server of the cluster. 'cox up' resumes it; kubeconfig: {}",
        options.admin_kubeconfig().display()
    );
    Ok(())
}

/// Finds the cluster, learns what its nodes must know, and writes down what the machine's process needs.
async fn enrol(args: &Args, server: &str) -> Result<()> {
    let options = &args.options;
    let token = token(args.token.as_deref(), args.token_file.as_deref())?;
    let cluster = discover(server, &token, &args.ca_hash).await?;
    println!(" ✓ {:<14} {}", "cluster", cluster.server);
    let user = AuthInfo { token: Some(token.to_string()), ..AuthInfo::default() };
    let first = cluster.kubeconfig(user);
    let settings = settings(&args.machine, options, &cluster, &first).await?;
    remember(options, &cluster, &first, settings)
}

/// Gets a node in whose certificate has ended. It stays the node that it is, with its pods and their data.
async fn enrol_again(args: &Args, server: &str, member: Membership) -> Result<()> {
    let (options, settings) = (&args.options, member.settings);
    let Machine { node_name, node_ip, .. } = &args.machine;
    let is_itself = node_name.as_ref().is_none_or(|name| *name == settings.name)
        && node_ip.first().is_none_or(|address| *address == settings.address);
    if !is_itself {
        bail!("this machine is node {} at {}: 'cox delete' makes room", settings.name, settings.address);
    }
    let token = token(args.token.as_deref(), args.token_file.as_deref())?;
    let cluster = discover(server, &token, &args.ca_hash).await?;
    println!(" ✓ {:<14} {}", "cluster", cluster.server);
    let ca = Pki::open(&options.pki_dir()).certificate("ca");
    let known = CaHash::of_all(&std::fs::read_to_string(&ca).with_context(|| ca.display().to_string())?)?;
    if !CaHash::of_all(&cluster.ca)?.iter().any(|found| known.contains(found)) {
        bail!("{} has another authority than the cluster of this node: 'cox delete' makes room", cluster.server);
    }
    let first = cluster.kubeconfig(AuthInfo { token: Some(token.to_string()), ..AuthInfo::default() });
    let client = Client::from_kubeconfig(&first, &Overrides::default())?;
    let common = enrolment::cluster_settings(&client).await.with_context(|| cluster.server.clone())?;
    remember(options, &cluster, &first, Settings { cluster: common, ..settings })
}

/// Writes down what the machine's process needs to get a certificate.
fn remember(options: &Options, cluster: &Cluster, first: &Kubeconfig, settings: Settings) -> Result<()> {
    private_dir(&options.pki_dir())?;
    write_private(&Pki::open(&options.pki_dir()).certificate("ca"), cluster.ca.as_bytes())?;
    // A certificate of an earlier membership would speak to the wrong cluster.
    if node_kubeconfig(options).exists() {
        std::fs::remove_file(node_kubeconfig(options)).context("removing old credentials")?;
    }
    write_private(&bootstrap_kubeconfig(options), first.to_yaml()?.as_bytes())?;
    println!(" ✓ {:<14} {} at {}", "membership", settings.name, settings.address);
    Membership { server: cluster.server.clone(), settings }.save(options)
}

/// From where it was given; never from the command line if it is anywhere else.
fn token(given: Option<&str>, file: Option<&Path>) -> Result<Token> {
    let text = match (file, given) {
        (Some(path), _) if path == Path::new("-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("reading the token from standard input")?;
            text
        }
        (Some(path), _) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
        (None, Some(text)) => text.to_owned(),
        (None, None) => bail!("give a token: --token-file (- for standard input), {TOKEN_VARIABLE} or --token"),
    };
    text.trim().parse()
}

/// This machine's part, and what the cluster tells those who come with a token.
async fn settings(machine: &Machine, options: &Options, cluster: &Cluster, first: &Kubeconfig) -> Result<Settings> {
    machine.check()?;
    let client = Client::from_kubeconfig(first, &Overrides::default())?;
    let common = enrolment::cluster_settings(&client).await.with_context(|| cluster.server.clone())?;
    let families = shape::families(&common.cluster_cidr);
    let addresses = machine.reachable_addresses(host_address(&cluster.server), &families)?;
    Ok(Settings {
        name: machine.name()?,
        address: addresses.first().copied().context("this machine has no address")?,
        second_address: addresses.get(1).copied(),
        kubelet_port: machine.kubelet_port(),
        cluster: common,
        registries: whole(&machine.registries())?,
        images_dir: options.images_dir(),
        also_behind: Vec::new(),
        asks_for_certificate: true,
        resolvers: None,
        labels: machine.node_label.clone(),
        taints: machine.node_taint.clone(),
    })
}

/// The address in `https://192.0.2.1:6443`; none where it is a name.
fn host_address(url: &str) -> Option<IpAddr> {
    let host = url.strip_prefix("https://")?.split('/').next()?;
    host.parse::<SocketAddr>().map(|address| address.ip()).ok().or_else(|| host.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_may_be_an_address_or_a_name() {
        for (url, expected) in [
            ("https://192.0.2.1:6443", Some("192.0.2.1")),
            ("https://[2001:db8::1]:6443/", Some("2001:db8::1")),
            ("https://192.0.2.1", Some("192.0.2.1")),
            ("https://cox.example:6443", None),
            ("192.0.2.1:6443", None),
        ] {
            assert_eq!(host_address(url).map(|address| address.to_string()).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn tokens_come_from_files_and_words() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "abcdef.0123456789abcdef\n").unwrap();
        assert_eq!(token(None, Some(file.path())).unwrap().id, "abcdef");
        assert_eq!(token(Some("fedcba.0123456789abcdef"), None).unwrap().id, "fedcba");
        for (given, file) in [(None, None), (Some("x"), None), (None, Some(Path::new("/nonexistent")))] {
            assert!(token(given, file).is_err());
        }
    }
}

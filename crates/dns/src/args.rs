//! `cox dns`: the server on its own.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use client::Client;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::Config;

const PORT: u16 = 53;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The address of the API server, over the one in the kubeconfig
    #[arg(long)]
    master: Option<String>,
    /// The addresses to serve on, UDP and TCP, with or without a port
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0:53")]
    listen: Vec<String>,
    /// The cluster's domain
    #[arg(long, default_value = "cluster.local")]
    domain: String,
    /// Resolvers for other names; if none are given, those of --resolv-conf
    #[arg(long, value_delimiter = ',')]
    upstream: Vec<String>,
    #[arg(long, default_value = "/etc/resolv.conf")]
    resolv_conf: PathBuf,
    /// A domain with a resolver of its own: domain=address
    #[arg(long)]
    stub_domain: Vec<String>,
    /// Ranges of pods and services, whose addresses have no names elsewhere
    #[arg(long, value_delimiter = ',')]
    cluster_cidr: Vec<String>,
    #[arg(long, default_value_t = 30)]
    ttl: u32,
    /// Where /health and /ready answer
    #[arg(long)]
    health_bind_address: Option<SocketAddr>,
    /// A ConfigMap whose `Corefile` says how names are answered, in the place of flags: namespace/name
    #[arg(long)]
    corefile_config_map: Option<String>,
    /// Where /metrics answers
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
}

/// `cox dns`.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let client = Client::from_flags(args.kubeconfig.as_deref(), args.master.clone())?.traced_remotely("dns");
    let listen = args.listen.iter().map(|text| address(text)).collect::<Result<_, _>>()?;
    let mut config = Config::new(client, listen);
    config.upstreams = match args.upstream.is_empty() {
        false => args.upstream.iter().map(|text| address(text)).collect::<Result<_, _>>()?,
        true => resolvers(&args.resolv_conf)?,
    };
    for stub in &args.stub_domain {
        let (domain, server) = stub.split_once('=').with_context(|| format!("{stub:?} is not domain=address"))?;
        config.stub_domains.push((domain.to_owned(), vec![address(server)?]));
    }
    if let Some(map) = &args.corefile_config_map {
        let (namespace, name) = map.split_once('/').with_context(|| format!("{map:?} is not namespace/name"))?;
        config.corefile = Some((namespace.to_owned(), name.to_owned()));
    }
    config.domain = args.domain;
    config.ranges = args.cluster_cidr;
    config.search = search_domains(&args.resolv_conf)?;
    config.ttl = args.ttl;
    config.health_bind_address = args.health_bind_address;
    config.metrics_bind_address = args.metrics_bind_address;
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), crate::run(config, stop)).await
}

/// The node's own resolvers.
pub fn resolvers(resolv_conf: &Path) -> anyhow::Result<Vec<SocketAddr>> {
    Ok(name_servers(&read(resolv_conf)?))
}

/// The domains that this machine looks for names in, as its pods do after those of the cluster.
pub fn search_domains(resolv_conf: &Path) -> anyhow::Result<Vec<String>> {
    Ok(searched(&read(resolv_conf)?))
}

fn read(resolv_conf: &Path) -> anyhow::Result<String> {
    match std::fs::read_to_string(resolv_conf) {
        // A machine without resolvers has no other names to offer.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        text => text.with_context(|| format!("reading {}", resolv_conf.display())),
    }
}

/// The last line counts, and `.` is no domain.
fn searched(text: &str) -> Vec<String> {
    let mut lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let last = lines.rfind(|words| words.first() == Some(&"search")).unwrap_or_default();
    last.into_iter().skip(1).filter(|word| *word != ".").map(str::to_owned).collect()
}

fn name_servers(text: &str) -> Vec<SocketAddr> {
    let addresses = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some("nameserver")).then(|| words.next())?
    });
    // A zone (`fe80::1%eth0`) needs an interface that we do not know: such a resolver is skipped.
    addresses.filter_map(|text| text.parse::<IpAddr>().ok()).map(|addr| (addr, PORT).into()).collect()
}

fn address(text: &str) -> anyhow::Result<SocketAddr> {
    match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(addr)) => Ok((addr, PORT).into()),
        _ => bail!("invalid address {text:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_resolv_conf() {
        let text =
            "# comment\nsearch a b\nnameserver 192.0.2.1\nnameserver 2001:db8::1\nnameserver fe80::1%eth0\noptions x\n";
        assert_eq!(name_servers(text), [address("192.0.2.1").unwrap(), address("2001:db8::1").unwrap()]);
        for (text, expected) in [
            (text, &["a", "b"][..]),
            ("search a\nsearch\tb  c .\n", &["b", "c"]),
            ("search a\nsearch\n", &[]),
            ("searched a\n", &[]),
        ] {
            assert_eq!(searched(text), expected, "{text}");
        }
    }
}

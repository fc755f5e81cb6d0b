//! `cox gateway`: the gateway on its own.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use api::cidr::Cidr;
use client::Client;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::Config;

#[derive(clap::Args, Debug)]
pub struct Args {
    #[arg(long)]
    kubeconfig: Option<PathBuf>,
    /// The address of the API server, over the one in the kubeconfig
    #[arg(long)]
    master: Option<String>,
    /// The node it runs on, whose zone decides between endpoints
    #[arg(long, default_value = "")]
    node_name: String,
    /// The addresses to serve on
    #[arg(long, value_delimiter = ',', default_value = "0.0.0.0")]
    listen: Vec<IpAddr>,
    /// The addresses that clients use, written into statuses; if none are given, those of --listen
    #[arg(long, value_delimiter = ',')]
    publish_address: Vec<IpAddr>,
    /// Ranges of addresses of which each Gateway gets one of each family for itself, on a link of this machine (default: none;
    /// all Gateways share those of --listen)
    #[arg(long, value_delimiter = ',', value_name = "CIDR")]
    address_pool: Vec<Cidr>,
    /// The port of Ingresses
    #[arg(long, default_value_t = 80)]
    http_port: u16,
    /// The port of Ingresses with TLS
    #[arg(long, default_value_t = 443)]
    https_port: u16,
    /// Bytes that the body of a request may have (default: no limit; bodies are never gathered)
    #[arg(long)]
    max_body_size: Option<u64>,
    /// File to which a line of JSON per request is appended; - is standard output
    #[arg(long)]
    access_log: Option<PathBuf>,
    /// Where /metrics and /healthz answer
    #[arg(long)]
    metrics_bind_address: Option<SocketAddr>,
}

/// `cox gateway`.
pub fn main(args: Args) -> BoxFuture<'static, anyhow::Result<()>> {
    Box::pin(run_main(args))
}

impl Args {
    /// What the flags say, but for the client.
    pub fn config_with(self, client: Client) -> Config {
        let mut config = Config::new(client, self.node_name, self.listen);
        config.publish = self.publish_address;
        config.address_pool = self.address_pool;
        config.http_port = self.http_port;
        config.https_port = self.https_port;
        config.limits.max_body = self.max_body_size;
        config.access_log = self.access_log;
        config.metrics_bind_address = self.metrics_bind_address;
        config
    }
}

async fn run_main(args: Args) -> anyhow::Result<()> {
    let client = Client::from_flags(args.kubeconfig.as_deref(), args.master.clone())?.traced_remotely("gateway");
    let stop = CancellationToken::new();
    client::signals::run(stop.clone(), crate::run(args.config_with(client), stop)).await
}

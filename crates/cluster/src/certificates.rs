//! Certificates while time passes: what the authorities of a cluster have signed on this machine is signed anew before it
//! ends, while everything runs; `cox cert` shows them and does it at once.
//!
//! Whoever uses a certificate looks at its file when it makes or takes a connection, so nothing is told and no connection
//! is cut. Machines that have joined ask for theirs by themselves.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

use crate::authority;
use crate::connection::connect;
use crate::join::{Membership, remaining};
use crate::kubelet_access;
use crate::nodes;
use crate::options::Options;
use crate::pki::{Certificate, Pki};
use crate::server_pki::renew;
use crate::shape::{Flags, Shape};

/// What is left of a certificate's life when it is renewed.
const LEFT: f64 = 0.3;
/// How late a clock that was set is noticed.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(3600);
/// A server that does not answer in so long is not waited for.
const SERVER_TIMEOUT: Duration = Duration::from_secs(10);
/// After a renewal that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Show and renew the certificates of the cluster on this machine
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Clone, clap::Subcommand)]
enum Command {
    /// List the certificates and when they expire
    #[command(alias = "ls")]
    List(Options),
    /// Renew all certificates except those of the CAs; the cluster may be running
    Renew(Options),
    /// Replace the cluster's CA by a new one, in steps that nodes can follow; continues where it was interrupted
    RotateCa(authority::Args),
}

pub fn main(args: Args) -> BoxFuture<'static, Result<()>> {
    Box::pin(async move {
        match args.command {
            Command::List(options) => list(&options),
            Command::Renew(options) => renew_now(&options).await,
            Command::RotateCa(args) => authority::rotate(args).await,
        }
    })
}

fn list(options: &Options) -> Result<()> {
    let now = Timestamp::now();
    println!("{:<34} {:<22} {:<15} {:<10} SUBJECT", "CERTIFICATE", "EXPIRES", "RESIDUAL TIME", "AUTHORITY");
    for (name, certificate) in all(options)? {
        let ends = api::time::rfc3339(certificate.not_after);
        let left = remaining(certificate.not_after.duration_since(now));
        let kind = if certificate.is_authority { "yes" } else { "no" };
        println!("{name:<34} {ends:<22} {left:<15} {kind:<10} {}", certificate.subject);
    }
    Ok(())
}

/// Of this machine's server and node, then of its further nodes.
fn all(options: &Options) -> Result<Vec<(String, Certificate)>> {
    let mut found = Pki::open(&options.pki_dir()).certificates().context("has 'cox up' run?")?;
    for record in nodes::all(options)? {
        let dir = record.options(options).pki_dir();
        if !dir.try_exists()? {
            continue;
        }
        let of_node = Pki::open(&dir).certificates()?.into_iter().filter(|(_, certificate)| !certificate.is_authority);
        found.extend(of_node.map(|(name, certificate)| (format!("{}/{name}", record.name), certificate)));
    }
    Ok(found)
}

async fn renew_now(options: &Options) -> Result<()> {
    if let Some(member) = Membership::load(options)? {
        bail!("this machine is a node of {}: it renews its certificates by itself", member.server);
    }
    if !options.pki_dir().join("ca.key").try_exists()? {
        bail!("there is no cluster at {}", options.data_dir.display());
    }
    give_access_to_kubelets(options).await;
    renew(options, &Flags::remembered(options)?.shape()?)?;
    list(options)
}

/// The server that runs may be an older one, which uses what is signed now and gives it no rights. Failures keep nobody from
/// renewing: the administrator's certificate may be what has expired, and a server that starts does this itself.
async fn give_access_to_kubelets(options: &Options) {
    let Ok(admin) = connect(&options.admin_kubeconfig()) else { return };
    if let Ok(Err(error)) = tokio::time::timeout(SERVER_TIMEOUT, kubelet_access::ensure(&admin)).await
        && !error.downcast_ref::<client::Error>().is_some_and(|error| matches!(error, client::Error::Transport { .. }))
    {
        tracing::warn!("{error:#}: if `logs` and `exec` are refused, restart the cluster with `cox up`");
    }
}

/// Renews what is near its end, until `stop`.
pub(crate) async fn keep(options: Options, shape: Shape, stop: CancellationToken) -> Result<()> {
    loop {
        let leaves = Pki::open(&options.pki_dir()).certificates()?;
        // A certificate for an etcd of others is not ours to sign.
        let is_ours = |name: &str| shape.ha.ha || !name.starts_with("etcd-");
        let ours = leaves.iter().filter(|(name, one)| !one.is_authority && is_ours(name));
        let now = Timestamp::now();
        let lives =
            ours.map(|(_, one)| until_renewal(now, (one.not_before, one.not_after), shape.certificate_validity));
        let mut pause = lives.min().unwrap_or(CLOCK_CHECK_INTERVAL);
        if pause.is_zero() {
            let (options, shape) = (options.clone(), shape.clone());
            match tokio::task::spawn_blocking(move || renew(&options, &shape)).await? {
                Ok(()) => tracing::info!("certificates renewed"),
                Err(error) => tracing::error!("certificates are not renewed: {error:#}"),
            }
            pause = RETRY_INTERVAL;
        }
        tokio::select! {
            () = tokio::time::sleep(pause.min(CLOCK_CHECK_INTERVAL)) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

/// How long a certificate still does that is good from `begin` to `end`. One that is good only later was signed while the clock was
/// ahead.
fn until_renewal(now: Timestamp, (begin, end): (Timestamp, Timestamp), validity: Duration) -> Duration {
    if now < begin {
        return Duration::ZERO;
    }
    let left = Duration::try_from(end.duration_since(now)).unwrap_or_default();
    left.saturating_sub(validity.mul_f64(LEFT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_comes_before_the_end() {
        let at = |second| Timestamp::from_second(second).unwrap();
        for (now, begin, end, validity, expected) in [
            (0, 0, 1000, 1000, 700),
            (650, 0, 1000, 1000, 50),
            (700, 0, 1000, 1000, 0),
            (999, 0, 1000, 1000, 0),
            (2000, 0, 1000, 1000, 0),
            // Signed when certificates lived for longer, or shorter.
            (0, 0, 10_000, 1000, 9700),
            (0, 0, 100, 1000, 0),
            // Signed by a clock that was ahead.
            (0, 5000, 6000, 1000, 0),
            (5000, 5000, 6000, 1000, 700),
        ] {
            let found = until_renewal(at(now), (at(begin), at(end)), Duration::from_secs(validity));
            assert_eq!(found.as_secs(), expected, "{now} {begin} {end} {validity}");
        }
    }
}

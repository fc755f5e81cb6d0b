//! The kubelet's own certificates, asked for through the API: one to be a client with (TLS bootstrap), one to serve with.
//!
//! Flow: `main` without a usable client certificate -> [`bootstrap`] with the bootstrap kubeconfig -> a
//! CertificateSigningRequest (`request`) -> files in the certificate directory (`store`) and a kubeconfig that names them.
//! Both certificates are renewed when most of their lifetime has passed ([`until_renewal`]).

mod request;
mod store;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Context;
use client::kubeconfig::{AuthInfo, Kubeconfig, Overrides};
use client::{Client, Clock};
use jiff::{SignedDuration, Timestamp};

pub(crate) use request::{Purpose, RETRY_INTERVAL, request};
pub(crate) use store::{Certificate, Store};

const USER_AGENT: &str = "kubelet/v1.36";

pub fn client_of(kubeconfig: &Kubeconfig) -> anyhow::Result<Client> {
    Ok(Client::from_kubeconfig(kubeconfig, &Overrides::default())?.with_user_agent(USER_AGENT)?)
}

/// Where a kubelet that was bootstrapped keeps the certificate it is a client with.
fn client_store(cert_dir: &Path) -> Store {
    Store::new(cert_dir, "kubelet-client")
}

/// Where a kubelet keeps the certificate that it was given to serve with.
pub(crate) fn serving_store(cert_dir: &Path) -> Store {
    Store::new(cert_dir, "kubelet-server")
}

/// Makes sure that the kubeconfig works: if it is missing, or its certificate has ended, gets a new one with the
/// credentials of the bootstrap kubeconfig.
pub async fn bootstrap(
    kubeconfig: &Path,
    bootstrap_kubeconfig: &Path,
    cert_dir: &Path,
    node_name: &str,
    clock: &Clock,
) -> anyhow::Result<()> {
    let store = client_store(cert_dir);
    if kubeconfig.exists() {
        let is_ours = Kubeconfig::read(kubeconfig)?
            .resolve(&Overrides::default())?
            .user
            .client_certificate
            .is_none_or(|path| Path::new(&path) == store.current());
        if !is_ours || store.load().is_some_and(|certificate| certificate.not_after > clock.now()) {
            return Ok(());
        }
    }
    tracing::info!(path = %bootstrap_kubeconfig.display(), "asking for a client certificate");
    let first = Kubeconfig::read(bootstrap_kubeconfig).context("reading the bootstrap kubeconfig")?;
    let issued = request(&client_of(&first)?, &Purpose::client(node_name)).await?;
    let path = store.save(&issued, clock.now()).context("keeping the client certificate")?.display().to_string();
    let user = AuthInfo { client_certificate: Some(path.clone()), client_key: Some(path), ..AuthInfo::default() };
    let cluster = first.resolve(&Overrides::default())?.cluster;
    let text = Kubeconfig::single("default", cluster, user, None).to_yaml()?;
    store::write_private(kubeconfig, &text).with_context(|| format!("writing {}", kubeconfig.display()))
}

/// Has the certificates in a directory renewed soon, whatever is left of their time.
pub fn ask_renewal(cert_dir: &Path) -> std::io::Result<()> {
    [client_store(cert_dir), serving_store(cert_dir)].iter().try_for_each(Store::ask_renewal)
}

/// How often a certificate could not be renewed, in this process.
pub(crate) struct RenewalsFailed {
    pub(crate) client: AtomicU64,
    pub(crate) server: AtomicU64,
}

pub(crate) static RENEWALS_FAILED: RenewalsFailed =
    RenewalsFailed { client: AtomicU64::new(0), server: AtomicU64::new(0) };

/// Returns once a new client certificate is in the directory, or the old one has ended, which only a bootstrap can mend;
/// never, when there is none to renew.
pub async fn renewed(client: &Client, cert_dir: &Path, node_name: &str, clock: &Clock) {
    let store = client_store(cert_dir);
    loop {
        let Some(current) = store.load() else { return std::future::pending().await };
        store.until_due(until_renewal(&current, clock.now(), rand::random())).await;
        match request(client, &Purpose::client(node_name)).await {
            Ok(issued) => match store.save(&issued, clock.now()) {
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "renewed client certificate not kept"),
            },
            Err(error) => {
                RENEWALS_FAILED.client.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(error = format!("{error:#}"), "client certificate not renewed, will retry");
            }
        }
        if current.not_after < clock.now() {
            tracing::warn!("the client certificate has ended, starting over");
            return;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// How long until 70 to 90 per cent of a certificate's lifetime have passed, so that nodes do not all ask at once.
/// `jitter` is any number.
pub(crate) fn until_renewal(certificate: &Certificate, now: Timestamp, jitter: u32) -> std::time::Duration {
    let lifetime = certificate.not_after.duration_since(certificate.not_before);
    let share = 0.7 + 0.2 * f64::from(jitter) / f64::from(u32::MAX);
    let at = SignedDuration::from_secs_f64(lifetime.as_secs_f64() * share);
    let passed = now.duration_since(certificate.not_before);
    std::time::Duration::try_from(at - passed).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_comes_late_in_life() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let certificate = Certificate { pem: String::new(), not_before: at(0), not_after: at(1000) };
        for (now, jitter, expected) in
            [(0, 0, 700), (0, u32::MAX, 900), (600, 0, 100), (950, u32::MAX, 0), (2000, 0, 0)]
        {
            assert_eq!(until_renewal(&certificate, at(now), jitter).as_secs(), expected, "{now} {jitter}");
        }
    }
}

//! The kubelet's own certificates, asked for through the API: one to be a client with (TLS bootstrap), one to serve with.
//!
//! Flow: `main` without a usable client certificate -> [`bootstrap`] with the bootstrap kubeconfig -> a
//! CertificateSigningRequest (`request`) -> files in the certificate directory (`store`) and a kubeconfig that names them.
//! Both certificates are renewed when most of their lifetime has passed ([`until_renewal`]).

mod request;
mod store;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use client::backoff::Backoff;
use client::kubeconfig::{AuthInfo, Kubeconfig, Overrides};
use client::{Client, Clock, EventRecorder};
use jiff::{SignedDuration, Timestamp};

use crate::node::reference;

pub(crate) use request::{Purpose, request};
pub(crate) use store::{Certificate, Store};

const USER_AGENT: &str = "kubelet/v1.36";
/// After a request that failed or was not answered, at first and at most. A certificate that has ended meanwhile cannot be
/// renewed any more, and what is left of its life may be short.
const RETRY_INTERVALS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(30));

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

/// When the client certificate in a directory ends; none if there is none.
pub fn client_certificate_end(cert_dir: &Path) -> Option<Timestamp> {
    client_store(cert_dir).load().map(|certificate| certificate.not_after)
}

/// How often a certificate could not be renewed, in this process.
pub(crate) struct RenewalsFailed {
    pub(crate) client: AtomicU64,
    pub(crate) server: AtomicU64,
}

pub(crate) static RENEWALS_FAILED: RenewalsFailed =
    RenewalsFailed { client: AtomicU64::new(0), server: AtomicU64::new(0) };

/// How long to wait after each attempt to renew a certificate that has failed.
pub(crate) fn retries() -> Backoff {
    Backoff::new(RETRY_INTERVALS.0, RETRY_INTERVALS.1)
}

/// Returns once a new client certificate is in the directory, or the old one has ended, which only a bootstrap can mend;
/// never, when there is none to renew.
pub async fn renewed(client: &Client, cert_dir: &Path, node_name: &str, clock: &Clock) {
    let store = client_store(cert_dir);
    // Chosen once: who has failed does not wait for another turn.
    let (mut retries, jitter) = (retries(), rand::random());
    let mut events = None;
    loop {
        let Some(current) = store.load() else { return std::future::pending().await };
        store.until_due(until_renewal(&current, clock.now(), jitter)).await;
        match request(client, &Purpose::client(node_name)).await {
            Ok(issued) => match store.save(&issued, clock.now()) {
                Ok(_) => return,
                Err(error) => tracing::warn!(%error, "renewed client certificate not kept"),
            },
            Err(error) => {
                RENEWALS_FAILED.client.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(error = format!("{error:#}"), "client certificate not renewed, will retry");
                // As long as it is believed: afterwards nobody hears of it.
                let events = events.get_or_insert_with(|| EventRecorder::new(client.clone(), "kubelet", node_name));
                let end = current.not_after;
                let message = format!(
                    "the client certificate ends at {end} and is not renewed: {error:#}; see 'kubectl get csr'. Once it \
                     has ended, the node must join the cluster again"
                );
                events.warning(&reference(node_name), "CertificateNotRenewed", message);
            }
        }
        if current.not_after < clock.now() {
            tracing::warn!("the client certificate has ended, starting over");
            return;
        }
        tokio::time::sleep(retries.next_delay()).await;
    }
}

/// How long until 70 to 90 per cent of a certificate's lifetime have passed, so that nodes do not all ask at once.
/// `jitter` is any number.
pub(crate) fn until_renewal(certificate: &Certificate, now: Timestamp, jitter: u32) -> Duration {
    let lifetime = certificate.not_after.duration_since(certificate.not_before);
    let share = 0.7 + 0.2 * f64::from(jitter) / f64::from(u32::MAX);
    let at = SignedDuration::from_secs_f64(lifetime.as_secs_f64() * share);
    let passed = now.duration_since(certificate.not_before);
    Duration::try_from(at - passed).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::sync::Arc;

    /// Once it has ended, nobody would believe the kubelet that asks for another one.
    #[tokio::test(start_paused = true)]
    async fn a_certificate_is_asked_for_again_while_it_is_good() {
        let dir = tempfile::tempdir().unwrap();
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = Clock::of_runtime(start);
        // It is due soon, and has ended soon after.
        let mut params = rcgen::CertificateParams::new(vec!["n".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1) - Duration::from_secs(700);
        params.not_after = rcgen::date_time_ymd(2026, 1, 1) + Duration::from_secs(300);
        let key = rcgen::KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        client_store(dir.path()).save(&Certificate::parse(pem).unwrap(), start).unwrap();

        let asked: Arc<Mutex<Vec<i64>>> = Arc::default();
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let (seen, heard, now) = (asked.clone(), told.clone(), clock.clone());
        let handler: client::Handler = Arc::new(move |request: http::Request<bytes::Bytes>| {
            match request.uri().path().contains("/events") {
                true => heard.lock().push(String::from_utf8_lossy(request.body()).into_owned()),
                false => seen.lock().push(now.now().as_millisecond()),
            }
            let status = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "not now"});
            let body = http_body_util::BodyExt::boxed_unsync(http_body_util::BodyExt::map_err(
                http_body_util::Full::new(bytes::Bytes::from(status.to_string())),
                |never| match never {},
            ));
            let response = http::Response::builder().status(403).header("content-type", "application/json");
            Box::pin(async move { response.body(body).unwrap() })
        });
        renewed(&Client::in_process(handler, api::UserInfo::default()), dir.path(), "n", &clock).await;
        // In tenths of a second.
        let pauses: Vec<i64> = asked.lock().windows(2).map(|two| (two[1] - two[0]) / 100).collect();
        assert_eq!(pauses[..4], [20, 40, 80, 160], "{pauses:?}");
        // Who looks at the node learns of it in time, and what follows.
        let told = told.lock();
        assert!(told[0].contains("CertificateNotRenewed") && told[0].contains("must join the cluster"), "{told:?}");
    }

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

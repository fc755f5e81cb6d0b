//! Finding out that a server is the one that is meant, from a token and the hash of its authority.
//!
//! Flow: `cluster-info` over a connection that proves nothing -> its signature, which only who knows the token can make -> its
//! authority, which must have a given hash -> the same again over a connection that this authority vouches for.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::Client;
use client::backoff::Backoff;
use client::kubeconfig::{self, AuthInfo, Kubeconfig, Overrides};
use controllers::jws;
use k8s_openapi::api::core::v1::ConfigMap;

use super::enrolment::{INFO_NAME, INFO_NAMESPACE};
use super::token::Token;
use crate::ca_hash::CaHash;

/// A server that is just starting, or a token that is just being signed for, is waited for.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(60);
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));
const DEFAULT_PORT: u16 = 6443;

/// A cluster that can be trusted.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Cluster {
    /// `https://…`
    pub(crate) server: String,
    /// Certificates in PEM.
    pub(crate) ca: String,
}

impl Cluster {
    /// A kubeconfig for it, with these credentials.
    pub(crate) fn kubeconfig(&self, user: AuthInfo) -> Kubeconfig {
        let cluster = kubeconfig::Cluster {
            server: Some(self.server.clone()),
            certificate_authority_data: Some(STANDARD.encode(&self.ca)),
            ..kubeconfig::Cluster::default()
        };
        Kubeconfig::single("default", cluster, user, None)
    }
}

/// The cluster behind a server, if it is the one that token and hashes speak of.
pub(crate) async fn discover(server: &str, token: &Token, pins: &[CaHash]) -> Result<Cluster> {
    let url = url(server);
    let mut pauses = Backoff::new(RETRY.0, RETRY.1);
    let deadline = tokio::time::Instant::now() + DISCOVERY_TIMEOUT;
    let unverified = Kubeconfig::single(
        "discovery",
        kubeconfig::Cluster {
            server: Some(url.clone()),
            insecure_skip_tls_verify: Some(true),
            ..kubeconfig::Cluster::default()
        },
        AuthInfo::default(),
        None,
    );
    let info = loop {
        let signed = async { signed_content(&fetch(&unverified).await?, token) };
        match signed.await {
            Ok(info) => break info,
            // A signature that is there and wrong does not become right.
            Err(Failure::Forged(error)) => return Err(error),
            Err(Failure::NotYet(error)) => {
                let pause = pauses.next_delay();
                if tokio::time::Instant::now() + pause > deadline {
                    return Err(error.context(format!("{url} does not let this token in")));
                }
                tracing::debug!(error = format!("{error:#}"), "asking again");
                tokio::time::sleep(pause).await;
            }
        }
    };
    let cluster = first_cluster(&info)?;
    let found = CaHash::of_all(&cluster.ca)?;
    if !found.iter().any(|hash| pins.contains(hash)) {
        let found: Vec<String> = found.iter().map(CaHash::to_string).collect();
        bail!("the authority of {url} has the hash {}, which was not given with --ca-hash", found.join(", "));
    }
    // The same server, now by a connection that the authority vouches for.
    let verified = Cluster { server: url.clone(), ca: cluster.ca.clone() }.kubeconfig(AuthInfo::default());
    let again = fetch(&verified).await.map_err(Failure::into_error)?;
    if again.data.as_ref().and_then(|data| data.get("kubeconfig")) != Some(&info) {
        bail!("{url} tells different things over an unverified and a verified connection: somebody is in between");
    }
    // Other servers may have published theirs since; this one was found good.
    Ok(Cluster { server: url, ..cluster })
}

/// Why there is no trust.
#[derive(Debug)]
enum Failure {
    /// It may come.
    NotYet(anyhow::Error),
    Forged(anyhow::Error),
}

impl Failure {
    fn into_error(self) -> anyhow::Error {
        match self {
            Failure::NotYet(error) | Failure::Forged(error) => error,
        }
    }
}

async fn fetch(config: &Kubeconfig) -> Result<ConfigMap, Failure> {
    let get = async {
        let client = Client::from_kubeconfig(config, &Overrides::default())?;
        client.namespaced::<ConfigMap>(INFO_NAMESPACE).get(INFO_NAME).await
    };
    get.await.map_err(|error| Failure::NotYet(anyhow::Error::new(error).context("reading cluster-info")))
}

/// The kubeconfig in `cluster-info`, if the token's owner signed it.
fn signed_content(info: &ConfigMap, token: &Token) -> Result<String, Failure> {
    let data = info.data.clone().unwrap_or_default();
    let no_content = || Failure::NotYet(anyhow::anyhow!("cluster-info has no kubeconfig"));
    let content = data.get("kubeconfig").ok_or_else(no_content)?;
    let Some(signature) = data.get(&format!("{}{}", jws::PREFIX, token.id)) else {
        return Err(Failure::NotYet(anyhow::anyhow!(
            "cluster-info is not signed for the token {:?}: is it still valid?",
            token.id
        )));
    };
    match jws::verify(content, &token.id, &token.secret, signature) {
        true => Ok(content.clone()),
        false => Err(Failure::Forged(anyhow::anyhow!(
            "cluster-info was not signed with the token {:?}: its secret is wrong, or this is another cluster",
            token.id
        ))),
    }
}

/// The cluster that a kubeconfig speaks of.
pub(crate) fn first_cluster(text: &str) -> Result<Cluster> {
    let config = Kubeconfig::parse(text).context("cluster-info is not a kubeconfig")?;
    let named = config.clusters.into_iter().next().context("cluster-info names no cluster")?;
    let server = named.cluster.server.context("cluster-info names no server")?;
    let data = named.cluster.certificate_authority_data.context("cluster-info has no authority")?;
    let ca = STANDARD.decode(data).context("the authority in cluster-info")?;
    Ok(Cluster { server, ca: String::from_utf8(ca).context("the authority in cluster-info")? })
}

/// `host`, `host:port` or the whole of it.
fn url(server: &str) -> String {
    let rest = server.strip_prefix("https://").unwrap_or(server).trim_end_matches('/');
    let has_port = match rest.rsplit_once(':') {
        // The colons of a bare IPv6 address are within its brackets.
        Some((host, port)) => port.parse::<u16>().is_ok() && (!host.starts_with('[') || host.ends_with(']')),
        None => false,
    };
    match has_port {
        true => format!("https://{rest}"),
        false => format!("https://{rest}:{DEFAULT_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_named_in_several_ways() {
        for (given, expected) in [
            ("192.0.2.1", "https://192.0.2.1:6443"),
            ("192.0.2.1:7443", "https://192.0.2.1:7443"),
            ("https://api.example.org/", "https://api.example.org:6443"),
            ("[2001:db8::1]", "https://[2001:db8::1]:6443"),
            ("[2001:db8::1]:7443", "https://[2001:db8::1]:7443"),
        ] {
            assert_eq!(url(given), expected);
        }
    }

    #[test]
    fn hashes_are_of_the_public_key() {
        let pair = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::default().self_signed(&pair).unwrap();
        let hashes = CaHash::of_all(&certificate.pem()).unwrap();
        let text = hashes[0].to_string();
        assert_eq!(text.parse::<CaHash>().unwrap(), hashes[0]);
        // Another certificate of the same key is the same authority.
        let renewed = rcgen::CertificateParams::new(vec!["x".into()]).unwrap().self_signed(&pair).unwrap();
        assert_eq!(CaHash::of_all(&format!("{}{}", certificate.pem(), renewed.pem())).unwrap().len(), 2);
        assert_eq!(CaHash::of_all(&renewed.pem()).unwrap(), hashes);
        for broken in ["", "sha256:", "sha256:00", "md5:0123", &text[..70], &text.replace("sha256", "sha512")] {
            assert!(broken.parse::<CaHash>().is_err(), "{broken}");
        }
        assert!(CaHash::of_all("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").is_err());
    }

    #[test]
    fn signatures_are_missing_right_or_wrong() {
        let token: Token = "abcdef.0123456789abcdef".parse().unwrap();
        let info = |entries: &[(&str, String)]| ConfigMap {
            data: Some(entries.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()),
            ..ConfigMap::default()
        };
        let content = ("kubeconfig", "content".to_owned());
        let right = ("jws-kubeconfig-abcdef", jws::sign("content", "abcdef", "0123456789abcdef"));
        let wrong = ("jws-kubeconfig-abcdef", jws::sign("content", "abcdef", "ffffffffffffffff"));
        let other = ("jws-kubeconfig-fedcba", right.1.clone());
        assert_eq!(signed_content(&info(&[content.clone(), right]), &token).unwrap(), "content");
        assert!(matches!(signed_content(&info(&[content.clone(), wrong]), &token), Err(Failure::Forged(_))));
        assert!(matches!(signed_content(&info(&[content, other]), &token), Err(Failure::NotYet(_))));
        assert!(matches!(signed_content(&ConfigMap::default(), &token), Err(Failure::NotYet(_))));
    }
}

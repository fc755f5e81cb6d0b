//! Client certificates. TLS takes any certificate the client can prove it holds; which authority signed it, and so
//! what it means, is decided here. A bad certificate is then a 401 like any other wrong credential.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::UserInfo;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use tls::Reloading;

use super::error::CertificateError;

/// An authority for client certificates; its file may change.
pub(crate) struct CertificateAuthority(Reloading<Verifier>);

type Verifier = Arc<dyn ClientCertVerifier>;

/// The certificates a client showed, and what the authorities said of them. A connection carries many requests: checking
/// signatures once is enough, as long as the authority and the time of day still agree.
pub(crate) struct PeerCertificates {
    chain: Vec<CertificateDer<'static>>,
    known: Mutex<Vec<Known>>,
}

struct Known {
    authority: Arc<Verifier>,
    user: UserInfo,
    /// Seconds since the epoch after which a certificate of the chain is no longer valid.
    until: i64,
}

impl PeerCertificates {
    pub(crate) fn new(chain: &[CertificateDer<'_>]) -> Self {
        let chain = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
        Self { chain, known: Mutex::new(Vec::new()) }
    }
}

impl CertificateAuthority {
    pub(crate) fn load(path: &Path) -> anyhow::Result<Self> {
        let load = |files: &[PathBuf]| {
            let roots = Arc::new(tls::load_roots(&files[0])?);
            Ok(WebPkiClientVerifier::builder_with_provider(roots, tls::provider()).build()? as Verifier)
        };
        Ok(Self(Reloading::new(vec![path.to_owned()], load)?))
    }

    /// The user the certificates name: CN is the user, each O a group.
    pub(crate) fn user(&self, peer: &PeerCertificates) -> Result<UserInfo, CertificateError> {
        self.user_until(peer).map(|(user, _)| user)
    }

    /// As [`Self::user`], and for how many seconds the certificates hold.
    pub(crate) fn user_until(&self, peer: &PeerCertificates) -> Result<(UserInfo, i64), CertificateError> {
        let authority = self.0.get();
        let now = UnixTime::now();
        let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
        let mut known = peer.known.lock();
        known.retain(|known| seconds <= known.until);
        if let Some(known) = known.iter().find(|known| Arc::ptr_eq(&known.authority, &authority)) {
            return Ok((known.user.clone(), known.until - seconds));
        }
        let (leaf, intermediates) = peer.chain.split_first().ok_or(CertificateError::None)?;
        authority.verify_client_cert(leaf, intermediates, now)?;
        let user = subject(leaf)?;
        let until = peer.chain.iter().filter_map(|certificate| not_after(certificate)).min().unwrap_or(seconds);
        known.push(Known { authority, user: user.clone(), until });
        Ok((user, until - seconds))
    }
}

/// When a certificate ends, in seconds since 1970.
pub(crate) fn not_after(certificate: &[u8]) -> Option<i64> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

fn subject(leaf: &[u8]) -> Result<UserInfo, CertificateError> {
    let (_, certificate) =
        x509_parser::parse_x509_certificate(leaf).map_err(|error| CertificateError::Unreadable(error.to_string()))?;
    let subject = certificate.subject();
    // The last one counts, as for whoever approved and signed the request.
    let unreadable = |error: x509_parser::error::X509Error| CertificateError::Unreadable(error.to_string());
    let name = subject.iter_common_name().last().map(|name| name.as_str().map_err(unreadable)).transpose()?;
    let Some(name) = name.filter(|name| !name.is_empty()) else { return Err(CertificateError::NoName) };
    // Somebody whose groups are known in part is somebody else.
    let groups = subject.iter_organization().map(|group| group.as_str().map(str::to_owned).map_err(unreadable));
    let groups = groups.collect::<Result<_, _>>()?;
    let mut user = UserInfo { name: name.to_owned(), groups, ..Default::default() };
    let digest = ring::digest::digest(&ring::digest::SHA256, leaf);
    let id = format!("X509SHA256={}", api::hex::encode(digest));
    user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![id]);
    Ok(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

    fn authority(path: &Path) -> Issuer<'static, KeyPair> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        std::fs::write(path.with_extension("new"), pem).unwrap();
        std::fs::rename(path.with_extension("new"), path).unwrap();
        Issuer::new(params, key)
    }

    fn shown(
        issuer: &Issuer<'static, KeyPair>,
        name: &str,
        usage: ExtendedKeyUsagePurpose,
        year: i32,
    ) -> PeerCertificates {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        // One attribute of a kind is kept: the second common name is of a kind that says the same.
        for (kind, name) in
            [DnType::CommonName, DnType::CustomDnType(vec![2, 5, 4, 3])].into_iter().zip(name.split(','))
        {
            params.distinguished_name.push(kind, name);
        }
        params.distinguished_name.push(DnType::OrganizationName, "dev");
        params.extended_key_usages = vec![usage];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&KeyPair::generate().unwrap(), issuer).unwrap();
        PeerCertificates::new(&[certificate.der().clone()])
    }

    #[test]
    fn certificates_name_users_if_the_authority_signed_them() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, theirs) = (authority(&dir.path().join("ca")), authority(&dir.path().join("other")));
        let ca = CertificateAuthority::load(&dir.path().join("ca")).unwrap();
        let client = ExtendedKeyUsagePurpose::ClientAuth;
        for (peer, expected) in [
            (shown(&ours, "ann", client.clone(), 2100), Some("ann")),
            (shown(&ours, "eve,ann", client.clone(), 2100), Some("ann")),
            (shown(&theirs, "ann", client.clone(), 2100), None),
            (shown(&ours, "ann", client.clone(), 2020), None),
            (shown(&ours, "ann", ExtendedKeyUsagePurpose::ServerAuth, 2100), None),
            (shown(&ours, "", client.clone(), 2100), None),
        ] {
            let found = ca.user(&peer).ok();
            assert_eq!(found.as_ref().map(|user| user.name.as_str()), expected);
            assert!(found.is_none_or(|user| user.groups == ["dev"]));
        }
        // A new authority takes the old one's certificates with it, on open connections too.
        let peer = shown(&ours, "ann", client, 2100);
        assert!(ca.user(&peer).is_ok());
        authority(&dir.path().join("ca"));
        assert!(ca.user(&peer).is_err());
    }
}

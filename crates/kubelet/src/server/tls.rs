//! The server's certificate, and who a client's certificate says it is.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use parking_lot::RwLock;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime};

use crate::config::Settings;

/// The certificate in use, exchanged when a new one is issued. Without one, connections are refused.
#[derive(Debug, Default)]
pub(super) struct Served(RwLock<Option<Arc<CertifiedKey>>>);

impl ResolvesServerCert for Served {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.read().clone()
    }
}

impl Served {
    /// Serves with this chain and key from the next connection on.
    pub(super) fn set(&self, pem: &str) -> anyhow::Result<()> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(pem.as_bytes()).collect::<Result<_, _>>().context("reading a chain")?;
        let key = PrivateKeyDer::from_pem_slice(pem.as_bytes()).context("reading a key")?;
        *self.0.write() = Some(Arc::new(CertifiedKey::from_der(chain, key, &tls::provider())?));
        Ok(())
    }
}

/// Serves with the configured certificate, with one that the API issues, or with a self-signed one.
pub(super) fn server_config(
    settings: &Settings,
    host_ips: &[String],
    served: Arc<Served>,
) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let mut resolver: Arc<dyn ResolvesServerCert> = served.clone();
    match (&settings.tls_cert_file, &settings.tls_private_key_file) {
        // Whoever renews them need not tell us.
        (Some(cert), Some(key)) => resolver = Arc::new(tls::ServingCertificate::load(cert, key)?),
        _ if settings.server_tls_bootstrap => {}
        _ => {
            let (cert, key) = (settings.cert_dir.join("kubelet.crt"), settings.cert_dir.join("kubelet.key"));
            if !cert.exists() || !key.exists() {
                self_sign(&settings.node_name, host_ips, &cert, &key)?;
            }
            served.set(&read_both(&cert, &key)?)?;
        }
    }
    let builder = tls::server_builder();
    let builder = match &settings.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(Arc::new(ClientAuthorities::load(path)?)),
    };
    let mut config = builder.with_cert_resolver(resolver);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Verifies clients against the authorities that are in a file at the time. A token may come instead of a certificate.
struct ClientAuthorities(tls::Reloading<Arc<dyn ClientCertVerifier>>);

impl ClientAuthorities {
    fn load(path: &Path) -> anyhow::Result<ClientAuthorities> {
        let load = |files: &[PathBuf]| {
            let mut roots = RootCertStore::empty();
            for certificate in files.iter().map(|path| read_chain(path)).collect::<anyhow::Result<Vec<_>>>()?.concat() {
                roots.add(certificate)?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::provider());
            anyhow::Ok(verifier.allow_unauthenticated().build()?)
        };
        Ok(ClientAuthorities(tls::Reloading::new(vec![path.to_owned()], load)?))
    }
}

impl std::fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ClientAuthorities")
    }
}

impl ClientCertVerifier for ClientAuthorities {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    /// None: a client shows the certificate that it has.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.0.get().verify_client_cert(certificate, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.get().verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.get().verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.get().supported_verify_schemes()
    }
}

fn read_both(cert: &Path, key: &Path) -> anyhow::Result<String> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    Ok(format!("{}\n{}", read(cert)?, read(key)?))
}

fn read_chain(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("reading {}", path.display()))
}

fn self_sign(name: &str, ips: &[String], cert_path: &Path, key_path: &Path) -> anyhow::Result<()> {
    let mut names = vec![name.to_string()];
    names.extend(ips.iter().filter(|ip| ip.parse::<IpAddr>().is_ok()).cloned());
    let made = rcgen::generate_simple_self_signed(names)?;
    files::replace(cert_path, made.cert.pem().as_bytes(), 0o644)?;
    Ok(files::replace(key_path, made.signing_key.serialize_pem().as_bytes(), 0o600)?)
}

/// Common name and organizations of a certificate that TLS has already verified.
pub(super) fn user_of(certificate: &CertificateDer<'_>) -> Option<api::UserInfo> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(String::from);
    let subject = parsed.subject();
    let name = subject.iter_common_name().last().and_then(text)?;
    let mut groups: Vec<String> = subject.iter_organization().map(text).collect::<Option<_>>()?;
    groups.push("system:authenticated".into());
    Some(api::UserInfo { name, groups, ..Default::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An authority and a client's certificate that it has signed.
    fn authority(name: &str) -> (String, CertificateDer<'static>) {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = rcgen::Issuer::new(params, key);
        let mut leaf = rcgen::CertificateParams::new(Vec::new()).unwrap();
        leaf.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ClientAuth];
        let signed = leaf.signed_by(&rcgen::KeyPair::generate().unwrap(), &issuer).unwrap();
        (pem, signed.der().clone())
    }

    #[test]
    fn security_clients_are_verified_against_the_authorities_of_now() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ca.crt");
        let write = |text: &str| {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), &file).unwrap();
        };
        let ((old, by_old), (new, by_new)) = (authority("old"), authority("new"));
        write(&old);
        let authorities = ClientAuthorities::load(&file).unwrap();
        let lets_in =
            |client: &CertificateDer<'_>| authorities.verify_client_cert(client, &[], UnixTime::now()).is_ok();
        assert_eq!((lets_in(&by_old), lets_in(&by_new)), (true, false));
        write(&format!("{old}{new}"));
        assert_eq!((lets_in(&by_old), lets_in(&by_new)), (true, true));
        write("half a fi");
        assert_eq!((lets_in(&by_old), lets_in(&by_new)), (true, true));
        write(&new);
        assert_eq!((lets_in(&by_old), lets_in(&by_new)), (false, true));
    }
}

//! Client certificates. TLS takes any certificate the client can prove it holds; which authority signed it, and so
//! what it means, is decided here. A bad certificate is then a 401 like any other wrong credential.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use api::UserInfo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};

/// The certificates of a PEM file.
pub(crate) fn load_certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("certificate file {}", path.display()))?;
    let found: Vec<_> = super::pem::blocks(&text)
        .into_iter()
        .filter(|(label, _)| label == "CERTIFICATE")
        .map(|(_, der)| CertificateDer::from(der))
        .collect();
    anyhow::ensure!(!found.is_empty(), "certificate file {} holds no certificate", path.display());
    Ok(found)
}

/// The private key of a PEM file, in any of the three usual forms.
pub(crate) fn load_key(path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let text = std::fs::read_to_string(path).with_context(|| format!("key file {}", path.display()))?;
    super::pem::blocks(&text)
        .into_iter()
        .find_map(|(label, der)| match label.as_str() {
            "PRIVATE KEY" => Some(PrivateKeyDer::Pkcs8(der.into())),
            "RSA PRIVATE KEY" => Some(PrivateKeyDer::Pkcs1(der.into())),
            "EC PRIVATE KEY" => Some(PrivateKeyDer::Sec1(der.into())),
            _ => None,
        })
        .with_context(|| format!("key file {} holds no private key", path.display()))
}

/// An authority for client certificates.
pub(crate) struct CertificateAuthority(Arc<dyn ClientCertVerifier>);

impl CertificateAuthority {
    pub(crate) fn load(path: &Path, provider: Arc<CryptoProvider>) -> anyhow::Result<Self> {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in load_certificates(path)? {
            roots.add(certificate).with_context(|| format!("certificate file {}", path.display()))?;
        }
        Ok(Self(WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?))
    }

    fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let (leaf, intermediates) = chain.split_first().ok_or("no certificate")?;
        self.0
            .verify_client_cert(leaf, intermediates, UnixTime::now())
            .map(drop)
            .map_err(|error| format!("verifying certificate failed: {error}"))
    }

    /// The user a certificate names: CN is the user, each O a group.
    pub(crate) fn user(&self, chain: &[CertificateDer<'_>]) -> Result<UserInfo, String> {
        self.verify(chain)?;
        let leaf = chain.first().ok_or("no certificate")?;
        let (_, certificate) = x509_parser::parse_x509_certificate(leaf).map_err(|error| error.to_string())?;
        let subject = certificate.subject();
        let name = subject.iter_common_name().next().and_then(|name| name.as_str().ok()).unwrap_or_default();
        if name.is_empty() {
            return Err("certificate has no common name".to_owned());
        }
        let groups = subject.iter_organization().filter_map(|group| group.as_str().ok().map(str::to_owned));
        let mut user = UserInfo { name: name.to_owned(), groups: groups.collect(), ..Default::default() };
        let digest = ring::digest::digest(&ring::digest::SHA256, leaf);
        let hex: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        user.extra.insert("authentication.kubernetes.io/credential-id".to_owned(), vec![format!("X509SHA256={hex}")]);
        Ok(user)
    }

    /// The common name of a certificate this authority signed.
    pub(crate) fn common_name(&self, chain: &[CertificateDer<'_>]) -> Option<String> {
        self.user(chain).ok().map(|user| user.name)
    }
}

/// Asks for a certificate and takes any that the client holds the key of.
#[derive(Debug)]
pub(crate) struct AcceptAny(pub(crate) Arc<CryptoProvider>);

impl ClientCertVerifier for AcceptAny {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// For backends whose certificate nobody can know (upstream's `InsecureSkipVerify` for proxies and, without
/// `--kubelet-certificate-authority`, for kubelets).
#[derive(Debug)]
pub(crate) struct NoVerification(pub(crate) Arc<CryptoProvider>);

impl ServerCertVerifier for NoVerification {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

//! TLS to backends: who they must prove to be.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use x509_parser::extensions::GeneralName;

use super::pool::ConnectError;
use crate::table::{BackendProtocol, BackendTls, Roots};

/// Makes connections to those who can prove it.
pub(super) fn connector(tls: &BackendTls, protocol: BackendProtocol) -> Result<TlsConnector, ConnectError> {
    let mut config = tls::client_builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyOf::new(tls)?))
        .with_no_client_auth();
    config.alpn_protocols = match protocol {
        BackendProtocol::Http1 => vec![b"http/1.1".to_vec()],
        BackendProtocol::Http2 => vec![b"h2".to_vec()],
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_roots() -> Arc<RootCertStore> {
    static ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();
    ROOTS.get_or_init(|| Arc::new(tls::system_roots())).clone()
}

/// A certificate that is good for one of some names, whichever was asked for.
#[derive(Debug)]
struct AnyOf {
    verifier: Arc<WebPkiServerVerifier>,
    roots: Arc<RootCertStore>,
    /// There is at least one name or URI.
    names: Vec<ServerName<'static>>,
    uris: Vec<String>,
}

impl AnyOf {
    fn new(tls: &BackendTls) -> Result<Self, ConnectError> {
        let roots = match &tls.roots {
            Roots::System => system_roots(),
            Roots::Of(stores) => {
                let mut all = RootCertStore::empty();
                all.extend(stores.iter().flat_map(|store| store.roots.iter().cloned()));
                Arc::new(all)
            }
        };
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.clone(), tls::provider()).build();
        let verifier = verifier.map_err(|error| ConnectError::Authorities(Arc::new(error)))?;
        let (mut names, uris) = (tls.names.clone(), tls.uris.clone());
        if names.is_empty() && uris.is_empty() {
            names.push(tls.name.clone());
        }
        Ok(Self { verifier, roots, names, uris })
    }

    /// A certificate that the authorities vouch for and that has one of the URIs.
    fn verify_uri(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = tls::provider().signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&certificate, &self.roots, intermediates, now, algorithms)?;
        match has_uri(end_entity, &self.uris) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(CertificateError::NotValidForName.into()),
        }
    }
}

fn has_uri(certificate: &[u8], uris: &[String]) -> bool {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else { return false };
    let Ok(Some(names)) = certificate.subject_alternative_name() else { return false };
    let is_known = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => uris.iter().any(|known| known == uri),
        _ => false,
    };
    names.value.general_names.iter().any(is_known)
}

impl ServerCertVerifier for AnyOf {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        asked: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verify = |name| self.verifier.verify_server_cert(end_entity, intermediates, name, ocsp_response, now);
        let mut verdict = Err(rustls::Error::General(format!("no name is good for {asked:?}")));
        for name in &self.names {
            verdict = verify(name);
            if verdict.is_ok() {
                return verdict;
            }
        }
        match self.uris.is_empty() {
            true => verdict,
            false => self.verify_uri(end_entity, intermediates, now),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}

/// A connection to an endpoint.
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_write_vectored(context, parts),
            Self::Tls(stream) => Pin::new(stream).poll_write_vectored(context, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_backend_proves_one_of_the_names_or_uris() {
        const URI: &str = "spiffe://cluster.test/backend";
        let certificate = |uri: &str| {
            let mut params = rcgen::CertificateParams::new(vec!["backend.test".to_owned()]).unwrap();
            params.subject_alt_names.push(rcgen::SanType::URI(uri.try_into().unwrap()));
            params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
        };
        let (known, stranger) = (certificate(URI), certificate(URI));
        let mut roots = RootCertStore::empty();
        roots.add(known.clone()).unwrap();
        let roots = Arc::new(roots);
        let name = |text: &str| ServerName::try_from(text.to_owned()).unwrap();
        for (asked, names, uris, expected) in [
            ("backend.test", &[][..], &[][..], true),
            ("elsewhere.test", &[][..], &[][..], false),
            ("elsewhere.test", &["backend.test"][..], &[][..], true),
            ("elsewhere.test", &[][..], &[URI][..], true),
            ("elsewhere.test", &["other.test"][..], &["spiffe://other", URI][..], true),
            ("backend.test", &["other.test"][..], &["spiffe://other"][..], false),
            ("backend.test", &[][..], &["spiffe://other"][..], false),
            ("backend.test", &[][..], &["backend.test"][..], false),
        ] {
            let tls = BackendTls {
                id: 0,
                name: name(asked),
                names: names.iter().map(|text| name(text)).collect(),
                uris: uris.iter().map(|uri| (*uri).to_owned()).collect(),
                roots: Roots::Of(vec![roots.clone()]),
            };
            let verifier = AnyOf::new(&tls).unwrap();
            let verify = |shown| verifier.verify_server_cert(shown, &[], &tls.name, &[], UnixTime::now()).is_ok();
            assert_eq!(verify(&known), expected, "{asked} {names:?} {uris:?}");
            assert!(!verify(&stranger), "{asked} {names:?} {uris:?}: no authority vouches for it");
        }
    }
}

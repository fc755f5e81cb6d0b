//! Certificates and keys in PEM files.

use std::path::Path;

use anyhow::Context;
use rustls::RootCertStore;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

/// The certificates of PEM text; at least one.
pub fn certificates(pem: &[u8]) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    anyhow::ensure!(!found.is_empty(), "no certificate found");
    Ok(found)
}

/// The certificates of a PEM file; at least one.
pub fn load_certificates(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    let named = || format!("certificate file {}", path.display());
    certificates(&std::fs::read(path).with_context(named)?).with_context(named)
}

/// The private key of a PEM file, in any of the three usual forms.
pub fn load_key(path: &Path) -> anyhow::Result<PrivateKeyDer<'static>> {
    let named = || format!("key file {}", path.display());
    PrivateKeyDer::from_pem_slice(&std::fs::read(path).with_context(named)?).with_context(named)
}

/// The authorities of a PEM file.
pub fn load_roots(path: &Path) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in load_certificates(path)? {
        roots.add(certificate).with_context(|| format!("certificate file {}", path.display()))?;
    }
    Ok(roots)
}

/// The certificate authorities that this machine trusts. Where they are is up to the distribution.
pub fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for path in ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"] {
        if let Ok(certificates) = CertificateDer::pem_file_iter(path) {
            roots.add_parsable_certificates(certificates.flatten());
        }
    }
    roots
}

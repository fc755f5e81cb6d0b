//! The certificate a server shows, read again when its files change.

use std::path::Path;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::Reloading;

/// A certificate chain and its key. Each handshake uses the files as they are then.
pub struct ServingCertificate(Reloading<Arc<CertifiedKey>>);

impl ServingCertificate {
    pub fn load(certificate: &Path, key: &Path) -> anyhow::Result<Self> {
        let files = vec![certificate.to_owned(), key.to_owned()];
        let load = |files: &[std::path::PathBuf]| {
            let [certificate, key] = files else { anyhow::bail!("a certificate and a key are needed") };
            let chain = crate::load_certificates(certificate)?;
            // Refuses a key that does not belong to the certificate, so a pair caught half-way through is not used.
            Ok(Arc::new(CertifiedKey::from_der(chain, crate::load_key(key)?, &crate::provider())?))
        };
        Ok(Self(Reloading::new(files, load)?))
    }
}

impl std::fmt::Debug for ServingCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ServingCertificate")
    }
}

impl ResolvesServerCert for ServingCertificate {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.get()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{KeyPair, generate_simple_self_signed};

    #[test]
    fn a_new_pair_is_used_and_half_a_pair_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (certificate, key) = (dir.path().join("c"), dir.path().join("k"));
        let make = || generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
        let write = |file: &Path, text: String| {
            std::fs::write(dir.path().join("new"), text).unwrap();
            std::fs::rename(dir.path().join("new"), file).unwrap();
        };
        let first = make();
        write(&certificate, first.cert.pem());
        write(&key, first.signing_key.serialize_pem());
        let serving = ServingCertificate::load(&certificate, &key).unwrap();
        let shown = || serving.0.get().cert[0].clone();
        assert_eq!(&shown(), first.cert.der());
        let second = make();
        write(&certificate, second.cert.pem());
        assert_eq!(&shown(), first.cert.der());
        write(&key, second.signing_key.serialize_pem());
        assert_eq!(&shown(), second.cert.der());
        write(&key, KeyPair::generate().unwrap().serialize_pem());
        assert_eq!(&shown(), second.cert.der());
    }
}

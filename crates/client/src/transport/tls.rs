//! TLS towards the server: which authorities to trust and which certificate to show.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::Error;
use crate::kubeconfig::{AuthInfo, Cluster};

/// Where the system keeps its trusted authorities, for clusters that name none.
const SYSTEM_ROOTS: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

/// Certificate chain and key in PEM.
pub(super) type Identity = ::tls::Pair;

/// Builds the configuration of one connection. Files are read here, so a rotated certificate is used by the next one.
pub(super) fn config(cluster: &Cluster, identity: Option<Identity>, http2: bool) -> Result<ClientConfig, Error> {
    let builder = ::tls::client_builder();
    let builder = if cluster.insecure_skip_tls_verify.unwrap_or_default() {
        // The user asked not to check who the server is.
        builder.dangerous().with_custom_certificate_verifier(Arc::new(::tls::AnyCertificate::default()))
    } else {
        builder.with_root_certificates(roots(cluster)?)
    };
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((chain, key)) => {
            let chain = certificates(&chain, "client certificate")?;
            let key =
                PrivateKeyDer::from_pem_slice(&key).map_err(|error| Error::config(format!("client key: {error}")))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| Error::config(format!("client certificate: {error}")))?
        }
    };
    config.alpn_protocols = if http2 { vec![b"h2".to_vec(), b"http/1.1".to_vec()] } else { vec![b"http/1.1".to_vec()] };
    Ok(config)
}

/// The client certificate that a kubeconfig user names, in data or files.
pub(super) fn identity(user: &AuthInfo) -> Result<Option<Identity>, Error> {
    match user.client_certificate_data.is_none() || user.client_key_data.is_none() {
        true => ::tls::read_pair(|| read_identity(user)),
        false => read_identity(user),
    }
}

fn read_identity(user: &AuthInfo) -> Result<Option<Identity>, Error> {
    let chain = data_or_file(
        user.client_certificate_data.as_deref(),
        user.client_certificate.as_deref(),
        "client-certificate",
    )?;
    let key = data_or_file(user.client_key_data.as_deref(), user.client_key.as_deref(), "client-key")?;
    match (chain, key) {
        (Some(chain), Some(key)) => Ok(Some((chain, key))),
        (None, None) => Ok(None),
        (Some(_), None) => Err(Error::config("a client certificate needs a client key")),
        (None, Some(_)) => Err(Error::config("a client key needs a client certificate")),
    }
}

fn roots(cluster: &Cluster) -> Result<RootCertStore, Error> {
    let given = data_or_file(
        cluster.certificate_authority_data.as_deref(),
        cluster.certificate_authority.as_deref(),
        "certificate-authority",
    )?;
    let pem = given.or_else(|| SYSTEM_ROOTS.iter().find_map(|path| std::fs::read(path).ok())).unwrap_or_default();
    let mut store = RootCertStore::empty();
    for certificate in certificates(&pem, "certificate authority")? {
        // System bundles carry old certificates that rustls does not read; the rest is still good.
        let _ = store.add(certificate);
    }
    if store.is_empty() {
        return Err(Error::config("no usable certificate authority for the server"));
    }
    Ok(store)
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| Error::config(format!("{what}: {error}")))
}

fn data_or_file(data: Option<&str>, file: Option<&str>, what: &str) -> Result<Option<Vec<u8>>, Error> {
    if let Some(data) = data.filter(|data| !data.is_empty()) {
        let data = STANDARD.decode(data.trim()).map_err(|error| Error::config(format!("{what}-data: {error}")))?;
        return Ok(Some(data));
    }
    file.filter(|file| !file.is_empty())
        .map(|file| {
            std::fs::read(file).map_err(|error| Error::config(format!("unable to read {what} {file}: {error}")))
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::generate_simple_self_signed;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_pair_whose_files_are_being_exchanged_is_read_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        let put = |name: &str, text: String| {
            std::fs::write(path("new"), text).unwrap();
            std::fs::rename(path("new"), Path::new(&path(name))).unwrap();
        };
        let exchange = || {
            let made = generate_simple_self_signed(vec!["a".to_owned()]).unwrap();
            put("key", made.signing_key.serialize_pem());
            put("crt", made.cert.pem());
        };
        exchange();
        let user =
            AuthInfo { client_certificate: Some(path("crt")), client_key: Some(path("key")), ..AuthInfo::default() };
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..200).for_each(|_| exchange());
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                assert!(::tls::is_pair(&identity(&user).unwrap().unwrap()));
            }
        });
        // What never belongs together is returned, and refused where it is used.
        put("key", generate_simple_self_signed(vec!["b".to_owned()]).unwrap().signing_key.serialize_pem());
        assert!(!::tls::is_pair(&identity(&user).unwrap().unwrap()));
    }
}

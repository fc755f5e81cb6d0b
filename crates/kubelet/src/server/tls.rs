//! The server's certificate, and who a client's certificate says it is.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::config::Settings;

/// Uses the configured certificate, or makes a self-signed one in the certificate directory.
pub(super) fn server_config(settings: &Settings, host_ips: &[String]) -> anyhow::Result<Arc<rustls::ServerConfig>> {
    let (cert, key) = match (&settings.tls_cert_file, &settings.tls_private_key_file) {
        (Some(cert), Some(key)) => (cert.clone(), key.clone()),
        _ => {
            let (cert, key) = (settings.cert_dir.join("kubelet.crt"), settings.cert_dir.join("kubelet.key"));
            if !cert.exists() || !key.exists() {
                self_sign(&settings.node_name, host_ips, &cert, &key)?;
            }
            (cert, key)
        }
    };
    let chain = read_chain(&cert)?;
    let key = PrivateKeyDer::from_pem_file(&key).with_context(|| format!("reading {}", key.display()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder =
        rustls::ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions()?;
    let builder = match &settings.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for cert in read_chain(path)? {
                roots.add(cert)?;
            }
            // A token may come instead of a certificate.
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .allow_unauthenticated()
                .build()?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn read_chain(path: &Path) -> anyhow::Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .with_context(|| format!("reading {}", path.display()))
}

fn self_sign(name: &str, ips: &[String], cert_path: &Path, key_path: &Path) -> anyhow::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut names = vec![name.to_string()];
    names.extend(ips.iter().filter(|ip| ip.parse::<IpAddr>().is_ok()).cloned());
    let made = rcgen::generate_simple_self_signed(names)?;
    std::fs::write(cert_path, made.cert.pem())?;
    let mut file = std::fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(key_path)?;
    file.write_all(made.signing_key.serialize_pem().as_bytes())?;
    Ok(())
}

/// Common name and organizations of a certificate that TLS has already verified.
pub(super) fn user_of(certificate: &CertificateDer<'_>) -> Option<api::UserInfo> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let text = |value: &x509_parser::x509::AttributeTypeAndValue<'_>| value.as_str().ok().map(String::from);
    let subject = parsed.subject();
    let name = subject.iter_common_name().find_map(text)?;
    let mut groups: Vec<String> = subject.iter_organization().filter_map(text).collect();
    groups.push("system:authenticated".into());
    Some(api::UserInfo { name, groups, ..Default::default() })
}

//! The certificate that this server shows: the files that it is given, else a pair that it makes for itself and keeps in
//! `--cert-dir` for its next start.

use std::fs;
use std::io::Write as _;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

use crate::allocation::range;
use crate::config::Config;

const LIFETIME: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Clocks of clients may be behind.
const BACKDATED: Duration = Duration::from_secs(60 * 60);

/// The files of certificate and key, which are made if none are given and none are there from an earlier start.
pub(crate) fn files(config: &Config) -> anyhow::Result<(PathBuf, PathBuf)> {
    match (&config.tls_cert_file, &config.tls_private_key_file) {
        (Some(certificate), Some(key)) => return Ok((certificate.clone(), key.clone())),
        (None, Some(_)) => anyhow::bail!("missing filename for serving cert"),
        (Some(_), None) => anyhow::bail!("missing filename for serving key"),
        (None, None) => {}
    }
    let (certificate, key) = (config.cert_dir.join("apiserver.crt"), config.cert_dir.join("apiserver.key"));
    match (is_readable(&certificate), is_readable(&key)) {
        (true, true) => return Ok((certificate, key)),
        (false, true) => {
            anyhow::bail!("error reading {}, certificate and key must be supplied as a pair", certificate.display())
        }
        (true, false) => {
            anyhow::bail!("error reading {}, certificate and key must be supplied as a pair", key.display())
        }
        (false, false) => {}
    }
    let made = make(config)?;
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&config.cert_dir)
        .with_context(|| config.cert_dir.display().to_string())?;
    write(&certificate, 0o644, &made.chain)?;
    write(&key, 0o600, &made.key)?;
    tracing::info!("Generated self-signed cert ({}, {})", certificate.display(), key.display());
    Ok((certificate, key))
}

fn is_readable(path: &Path) -> bool {
    fs::File::open(path).is_ok()
}

fn write(path: &Path, mode: u32, content: &str) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
        file.write_all(content.as_bytes())?;
        file.sync_all()
    };
    write().with_context(|| format!("writing {}", path.display()))
}

struct Made {
    /// In PEM: the certificate, then that of the authority made for it.
    chain: String,
    key: String,
}

/// Signed by an authority whose key nobody keeps, for the names and addresses by which this server is called.
fn make(config: &Config) -> anyhow::Result<Made> {
    let bind = config.bind.ip();
    let host = config.advertise_address.or(Some(bind).filter(|ip| !ip.is_unspecified()));
    let mut names: Vec<String> =
        ["kubernetes.default.svc", "kubernetes.default", "kubernetes"].map(str::to_owned).into();
    let mut addresses: Vec<IpAddr> = host.into_iter().collect();
    addresses.extend(config.service_cluster_ip_ranges.first().map(|first| range::at(first, 1)));
    if bind.is_unspecified() {
        names.push("localhost".to_owned());
    } else if !addresses.contains(&bind) {
        addresses.push(bind);
    }
    let host = host.map_or_else(|| "localhost".to_owned(), |ip| ip.to_string());
    let now = SystemTime::now();
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
    let params = |names: Vec<String>, common_name: String| -> anyhow::Result<CertificateParams> {
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.not_before = (now - BACKDATED).into();
        params.not_after = (now - BACKDATED + LIFETIME).into();
        Ok(params)
    };

    let mut authority = params(Vec::new(), format!("{host}-ca@{seconds}"))?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages =
        vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyCertSign];
    let authority_key = KeyPair::generate()?;
    let root = authority.self_signed(&authority_key)?;

    // Text that is an address becomes one.
    let alternatives = names.into_iter().chain(addresses.iter().map(ToString::to_string)).collect();
    let mut own = params(alternatives, format!("{host}@{seconds}"))?;
    own.key_usages = vec![KeyUsagePurpose::KeyEncipherment, KeyUsagePurpose::DigitalSignature];
    own.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    own.use_authority_key_identifier_extension = true;
    let key = KeyPair::generate()?;
    let signed = own.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok(Made { chain: signed.pem() + &root.pem(), key: key.serialize_pem() })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::Storage;

    fn config(dir: &Path) -> Config {
        let mut config = Config::new(Storage::Embedded(dir.join("store")));
        config.cert_dir = dir.join("run/kubernetes");
        config.bind = "127.0.0.1:6443".parse().unwrap();
        config.service_cluster_ip_ranges = vec!["10.0.0.0/24".parse().unwrap()];
        config
    }

    #[test]
    fn a_server_without_certificate_makes_one_and_keeps_it() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let (certificate, key) = files(&config).unwrap();
        assert_eq!(certificate, config.cert_dir.join("apiserver.crt"));
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        tls::ServingCertificate::load(&certificate, &key).unwrap();

        let chain = tls::load_certificates(&certificate).unwrap();
        assert_eq!(chain.len(), 2);
        let (_, own) = x509_parser::parse_x509_certificate(&chain[0]).unwrap();
        let (_, authority) = x509_parser::parse_x509_certificate(&chain[1]).unwrap();
        own.verify_signature(Some(authority.public_key())).unwrap();
        assert!(authority.is_ca() && !own.is_ca());
        assert!(own.subject().to_string().starts_with("CN=127.0.0.1@"), "{}", own.subject());
        let names = own.subject_alternative_name().unwrap().unwrap().value.general_names.iter();
        let names: Vec<String> = names.map(|name| format!("{name}")).collect();
        for expected in ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "7f:00:00:01", "0a:00:00:01"] {
            assert!(names.iter().any(|name| name.contains(expected)), "{expected}: {names:?}");
        }

        let before = fs::read(&certificate).unwrap();
        files(&config).unwrap();
        assert_eq!(fs::read(&certificate).unwrap(), before);
    }

    #[test]
    fn half_a_pair_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        let (certificate, key) = files(&config).unwrap();
        fs::remove_file(&key).unwrap();
        let said = files(&config).unwrap_err().to_string();
        assert_eq!(said, format!("error reading {}, certificate and key must be supplied as a pair", key.display()));
        config.tls_cert_file = Some(certificate.clone());
        assert_eq!(files(&config).unwrap_err().to_string(), "missing filename for serving key");
        config.tls_private_key_file = config.tls_cert_file.take();
        assert_eq!(files(&config).unwrap_err().to_string(), "missing filename for serving cert");
    }
}

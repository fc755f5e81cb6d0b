//! Keys and certificates for an API server that lives as long as a test.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Writes a certificate authority (`ca.*`), what it signed for a server on this machine and for a member of
/// `system:masters` (`server.*`, `admin.*`), and a key for service accounts (`sa.key`, `sa.pub`).
pub fn write(dir: &Path) -> Authority {
    let authority = Authority::new(dir, "ca");
    authority.sign(dir, "server", "apiserver", None, ExtendedKeyUsagePurpose::ServerAuth);
    authority.sign(dir, "admin", "admin", Some("system:masters"), ExtendedKeyUsagePurpose::ClientAuth);
    let service_accounts = KeyPair::generate().unwrap();
    replace(&dir.join("sa.key"), &service_accounts.serialize_pem());
    replace(&dir.join("sa.pub"), &service_accounts.public_key_pem());
    authority
}

/// An authority, in `<name>.crt` and `<name>.key`, and what it signs.
pub struct Authority(Issuer<'static, KeyPair>);

impl Authority {
    pub fn new(dir: &Path, name: &str) -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        replace(&dir.join(format!("{name}.crt")), &params.self_signed(&key).unwrap().pem());
        replace(&dir.join(format!("{name}.key")), &key.serialize_pem());
        Self(Issuer::new(params, key))
    }

    /// Signs `<file>.crt` with `<file>.key` for the names of this machine.
    pub fn sign(&self, dir: &Path, file: &str, name: &str, group: Option<&str>, usage: ExtendedKeyUsagePurpose) {
        self.sign_until(dir, file, name, group, usage, 2100);
    }

    pub fn sign_until(
        &self,
        dir: &Path,
        file: &str,
        name: &str,
        group: Option<&str>,
        usage: ExtendedKeyUsagePurpose,
        year: i32,
    ) {
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![usage];
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        self.issue(dir, file, &params);
    }

    /// Signs `<file>.crt` with `<file>.key` for a server of this name.
    pub fn sign_server(&self, dir: &Path, file: &str, host: &str) {
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.issue(dir, file, &params);
    }

    fn issue(&self, dir: &Path, file: &str, params: &CertificateParams) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        replace(&dir.join(format!("{file}.key")), &key.serialize_pem());
        replace(&dir.join(format!("{file}.crt")), &certificate.pem());
    }
}

/// Puts a new file in the place of an old one, as rotation does.
pub fn replace(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// A certificate for a host that vouches for itself, and its key, as PEM text.
pub fn self_signed(host: &str) -> (String, String) {
    let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

//! Keys and certificates for an API server that lives as long as a test.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

/// Writes a certificate authority (`ca.*`), what it signed for a server on this machine and for a member of
/// `system:masters` (`server.*`, `admin.*`), and a key for service accounts (`sa.key`).
pub fn write(dir: &Path) {
    let ca_key = KeyPair::generate().unwrap();
    let mut ca = CertificateParams::new(Vec::new()).unwrap();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, "ca");
    std::fs::write(dir.join("ca.crt"), ca.self_signed(&ca_key).unwrap().pem()).unwrap();
    std::fs::write(dir.join("ca.key"), ca_key.serialize_pem()).unwrap();
    let issuer = Issuer::new(ca, ca_key);
    for (file, name, group, usage) in [
        ("server", "apiserver", None, ExtendedKeyUsagePurpose::ServerAuth),
        ("admin", "admin", Some("system:masters"), ExtendedKeyUsagePurpose::ClientAuth),
    ] {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        if let Some(group) = group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.extended_key_usages = vec![usage];
        std::fs::write(dir.join(format!("{file}.crt")), params.signed_by(&key, &issuer).unwrap().pem()).unwrap();
        std::fs::write(dir.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
    std::fs::write(dir.join("sa.key"), KeyPair::generate().unwrap().serialize_pem()).unwrap();
}

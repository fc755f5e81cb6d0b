//! The keys of another cluster, in the form that ours are in.
//!
//! Whatever a key was written as, it is PKCS#8 here. An authority without its key signs nothing, and one whose key is
//! another's signs what nobody trusts: both are refused.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use rcgen::{KeyPair, PublicKeyData};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::extensions::GeneralName;
use x509_parser::pem::Pem;

use crate::pki::{Certificate, Pki, private_dir, write_private};

/// A file of keys has a few of them.
const MAX_BYTES: u64 = 1 << 20;
/// Names that the certificate of every API server of ours has.
const ALWAYS: [&str; 2] = ["localhost", "kubernetes"];

pub(super) struct Keys {
    /// Of clients, nodes and servers; the first signs.
    pub authority: Authority,
    pub front_proxy: Authority,
    /// Signs tokens of service accounts.
    service_account: KeyPair,
    /// All that verify them, in PEM.
    verifying: String,
}

/// An authority and its key.
pub(super) struct Authority {
    certificates: String,
    key: KeyPair,
}

pub(super) fn read(path: &Path) -> Result<String> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    if metadata.len() > MAX_BYTES {
        bail!("{} is longer than {MAX_BYTES} bytes", path.display());
    }
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// All private keys of a file.
fn private_keys(path: &Path) -> Result<Vec<KeyPair>> {
    let text = read(path)?;
    let mut pairs = Vec::new();
    for key in PrivateKeyDer::pem_slice_iter(text.as_bytes()) {
        let key = key.with_context(|| path.display().to_string())?;
        let der = tls::pkcs8(&key).with_context(|| format!("{}: a key of an unknown kind", path.display()))?;
        pairs.push(KeyPair::try_from(&PrivatePkcs8KeyDer::from(der)).with_context(|| path.display().to_string())?);
    }
    Ok(pairs)
}

fn private_key(path: &Path) -> Result<KeyPair> {
    private_keys(path)?.into_iter().next().with_context(|| format!("{} has no private key", path.display()))
}

impl Authority {
    /// `others` are trusted as well, and do not sign.
    pub(super) fn read(certificate: &Path, key: &Path, others: &[PathBuf]) -> Result<Authority> {
        if !key.try_exists().with_context(|| key.display().to_string())? {
            bail!(
                "{} is not there: an authority outside of the cluster signs its certificates, and ours must sign those of its \
                 servers and nodes. Put the key there for the time of the import",
                key.display()
            );
        }
        let mut certificates = read(certificate)?;
        let pair = private_key(key)?;
        let first = Pem::iter_from_buffer(certificates.as_bytes()).next();
        let first = first.with_context(|| format!("{} has no certificate", certificate.display()))??;
        let parsed = first.parse_x509().with_context(|| certificate.display().to_string())?;
        if parsed.public_key().raw != pair.subject_public_key_info() {
            bail!("{} is not the key of {}", key.display(), certificate.display());
        }
        for other in others {
            certificates.push_str(&format!("\n{}", read(other)?));
        }
        Ok(Authority { certificates, key: pair })
    }

    /// Who it is, and until when.
    pub(super) fn describe(&self) -> Result<String> {
        let all = Certificate::parse_all(self.certificates.as_bytes())?;
        let one = |certificate: &Certificate| format!("{} (until {})", certificate.subject, certificate.not_after);
        Ok(all.iter().map(one).collect::<Vec<_>>().join(", "))
    }

    fn write(&self, pki: &Pki, name: &str) -> Result<()> {
        write_private(&pki.key(name), self.key.serialize_pem().as_bytes())?;
        write_private(&pki.certificate(name), self.certificates.as_bytes())
    }
}

impl Keys {
    /// The key that signs tokens, and the files of all that verify them, which may be private ones.
    pub(super) fn new(authority: Authority, front_proxy: Authority, signing: &Path, files: &[PathBuf]) -> Result<Keys> {
        let service_account = private_key(signing)?;
        let mut verifying = vec![service_account.public_key_pem()];
        for file in files {
            let private = private_keys(file)?;
            match private.is_empty() {
                true => verifying.push(read(file)?),
                false => verifying.extend(private.iter().map(KeyPair::public_key_pem)),
            }
        }
        verifying.dedup();
        Ok(Keys { authority, front_proxy, service_account, verifying: verifying.join("\n") })
    }

    pub(super) fn write(&self, dir: &Path) -> Result<()> {
        private_dir(dir)?;
        let pki = Pki::open(dir);
        self.authority.write(&pki, "ca")?;
        self.front_proxy.write(&pki, "front-proxy-ca")?;
        write_private(&pki.service_account_public_key(), self.verifying.as_bytes())?;
        write_private(&pki.key("sa"), self.service_account.serialize_pem().as_bytes())
    }
}

/// The names and addresses that a server's certificate is for, but for those that every server of ours has.
pub(super) fn names_of(pem: &[u8]) -> Result<Vec<String>> {
    let block = Pem::iter_from_buffer(pem).next().context("no certificate")??;
    let parsed = block.parse_x509().context("no certificate")?;
    let mut names = Vec::new();
    for name in parsed.subject_alternative_name()?.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) if !ALWAYS.contains(name) && !name.starts_with("kubernetes.default") => {
                names.push((*name).to_owned());
            }
            GeneralName::IPAddress(bytes) => {
                let four = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from).ok();
                let address = four.or_else(|| <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from).ok());
                names.extend(address.filter(|address| !address.is_loopback()).map(|address| address.to_string()));
            }
            _ => {}
        }
    }
    Ok(names)
}

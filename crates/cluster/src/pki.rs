//! Keys and certificates of a cluster.
//!
//! The authorities and the key that signs service-account tokens are made once and kept. Everything they sign is
//! made anew at each start, which costs a few milliseconds and follows a changed address, and while the cluster runs
//! before it ends (`certificates`). Whoever uses a file notices by itself that it has changed.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use jiff::Timestamp;
use nix::fcntl::{Flock, FlockArg};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, SanType,
};

use crate::kubelet_access;

const AUTHORITY_YEARS: u64 = 10;
/// How long what the authorities sign is good for, if nobody says otherwise.
pub(crate) const LEAF_LIFETIME: Duration = Duration::from_secs(365 * 24 * 3600);
/// Certificates are good from so long ago, so that a client whose clock is a little behind is not turned away.
const BACKDATED: Duration = Duration::from_secs(3600);

/// The directory of keys; every file has a name that kubeadm users know.
#[derive(Debug, Clone)]
pub(crate) struct Pki {
    dir: PathBuf,
    /// Of what is signed here.
    lifetime: Duration,
}

/// Who a certificate speaks for.
struct Subject<'a> {
    name: &'a str,
    organizations: &'a [&'a str],
    hosts: &'a [String],
    addresses: &'a [IpAddr],
}

impl Pki {
    /// Makes what is missing under `dir` and signs the leaves anew.
    pub(crate) fn prepare(
        dir: &Path,
        lifetime: Duration,
        node_name: &str,
        hosts: &[String],
        addresses: &[IpAddr],
    ) -> Result<Pki> {
        private_dir(dir)?;
        let pki = Pki { dir: dir.to_owned(), lifetime };
        let _alone = pki.lock()?;
        let ca = pki.authority("ca", "kubernetes-ca")?;
        let front_proxy = pki.authority("front-proxy-ca", "kubernetes-front-proxy-ca")?;
        pki.service_account_key()?;

        let client = |name, organizations| Subject { name, organizations, hosts: &[], addresses: &[] };
        pki.leaf(&ca, "apiserver", Subject { name: "kube-apiserver", organizations: &[], hosts, addresses })?;
        pki.leaf(&ca, "admin", client("kubernetes-admin", &["system:masters"]))?;
        pki.leaf(&ca, "apiserver-kubelet-client", client(kubelet_access::USER, &[]))?;
        pki.leaf(&front_proxy, "front-proxy-client", client("front-proxy-client", &[]))?;
        pki.kubelet(&ca, node_name, addresses)?;
        Ok(pki)
    }

    /// Makes the authority of etcd's members if there is none, and signs what this machine's member and its clients show.
    pub(crate) fn prepare_member(&self, node_name: &str, addresses: &[IpAddr]) -> Result<()> {
        let _alone = self.lock()?;
        let ca = self.authority("etcd-ca", "etcd-ca")?;
        let hosts = [node_name.to_owned(), "localhost".to_owned()];
        self.leaf(&ca, "etcd-member", Subject { name: node_name, organizations: &[], hosts: &hosts, addresses })?;
        let client = Subject { name: "kube-apiserver-etcd-client", organizations: &[], hosts: &[], addresses: &[] };
        self.leaf(&ca, "etcd-client", client)
    }

    /// Signs the certificates of another node into a directory of its own, which holds no authority's key.
    pub(crate) fn sign_node(&self, dir: &Path, node_name: &str, addresses: &[IpAddr]) -> Result<Pki> {
        private_dir(dir)?;
        let node = Pki { dir: dir.to_owned(), lifetime: self.lifetime };
        // Nobody exchanges the authority meanwhile: its key would not be that of its certificate, or what is signed here would
        // take the place of what the new one has signed.
        let _alone = (self.lock()?, node.lock()?);
        let ca = self.authority("ca", "kubernetes-ca")?;
        let authority = fs::read(self.certificate("ca")).context("reading the authority's certificate")?;
        write_private(&node.certificate("ca"), &authority)?;
        node.kubelet(&ca, node_name, addresses)?;
        let proxy = Subject { name: "system:kube-proxy", organizations: &[], hosts: &[], addresses: &[] };
        node.leaf(&ca, "proxy-client", proxy)?;
        Ok(node)
    }

    /// A kubelet's two faces: to the API server, and to those who ask it.
    fn kubelet(&self, ca: &Issuer<'_, KeyPair>, node_name: &str, addresses: &[IpAddr]) -> Result<()> {
        let (name, organizations) = (format!("system:node:{node_name}"), &["system:nodes"]);
        self.leaf(ca, "kubelet-client", Subject { name: &name, organizations, hosts: &[], addresses: &[] })?;
        let hosts = [node_name.to_owned(), "localhost".to_owned()];
        self.leaf(ca, "kubelet", Subject { name: &name, organizations, hosts: &hosts, addresses })
    }

    /// The keys that an earlier start prepared.
    pub(crate) fn open(dir: &Path) -> Pki {
        Pki { dir: dir.to_owned(), lifetime: LEAF_LIFETIME }
    }

    /// Held while a certificate and its key are exchanged, or read: of two who do so at once, each would have half a pair.
    pub(crate) fn lock(&self) -> Result<Flock<fs::File>> {
        let path = self.dir.join(".lock");
        let file = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.with_context(|| path.display().to_string())?;
        Flock::lock(file, FlockArg::LockExclusive)
            .map_err(|(_, error)| error)
            .with_context(|| path.display().to_string())
    }

    /// Every certificate here, authorities included, by the name of its file.
    pub(crate) fn certificates(&self) -> Result<Vec<(String, Certificate)>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir).with_context(|| self.dir.display().to_string())? {
            let path = entry?.path();
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let is_one = path.extension().is_some_and(|extension| extension == "crt" || extension == "pem");
            // Of those that a kubelet was given, the current one.
            if !is_one || path.extension().is_some_and(|end| end == "pem") && !name.ends_with("-current") {
                continue;
            }
            let text = fs::read(&path).with_context(|| path.display().to_string())?;
            found.push((name, Certificate::parse(&text).with_context(|| path.display().to_string())?));
        }
        found.compact_sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(found)
    }

    pub(crate) fn certificate(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.crt"))
    }

    pub(crate) fn key(&self, name: &str) -> PathBuf {
        self.dir.join(format!("{name}.key"))
    }

    /// The public half of the key that signs service-account tokens.
    pub(crate) fn service_account_public_key(&self) -> PathBuf {
        self.dir.join("sa.pub")
    }

    /// Whom this cluster trusts, the one that signs first, and that one's key, in PEM.
    pub(crate) fn authority_files(&self) -> Result<(String, String)> {
        let _alone = self.lock()?;
        let read = |path: PathBuf| fs::read_to_string(&path).with_context(|| path.display().to_string());
        Ok((read(self.certificate("ca"))?, read(self.key("ca"))?))
    }

    #[cfg(test)]
    pub(crate) fn replace_authority(&self, certificates: &str, key: &str) -> Result<()> {
        self.replace_authority_with(|| Ok(Some((certificates.to_owned(), key.to_owned()))))
    }

    /// Puts certificates and key in their place, where others are there. They are read when nobody else exchanges any.
    pub(crate) fn replace_authority_with(&self, read: impl FnOnce() -> Result<Option<(String, String)>>) -> Result<()> {
        let _alone = self.lock()?;
        let Some((certificates, key)) = read()? else { return Ok(()) };
        for (path, text) in [(self.key("ca"), key), (self.certificate("ca"), certificates)] {
            if !fs::read_to_string(&path).is_ok_and(|found| found == text) {
                write_private(&path, text.as_bytes())?;
            }
        }
        Ok(())
    }

    fn authority(&self, name: &str, common_name: &str) -> Result<Issuer<'static, KeyPair>> {
        let (certificate, key) = (self.certificate(name), self.key(name));
        let is_there = |path: &Path| path.try_exists().with_context(|| path.display().to_string());
        let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
        match (is_there(&certificate)?, is_there(&key)?) {
            (true, true) => {}
            (false, false) => {
                let (made, its_key) = new_authority(common_name)?;
                write_private(&key, its_key.as_bytes())?;
                write_private(&certificate, made.as_bytes())?;
            }
            // Ended between the two, or lost since: what the key has signed is still good, if it was under this name.
            (false, true) => {
                self.refuse_other_name(name, common_name)?;
                let pair = KeyPair::from_pem(&read(&key)?).with_context(|| key.display().to_string())?;
                write_private(&certificate, self_signed(common_name, &pair)?.as_bytes())?;
            }
            // Another one in its place would be trusted by nobody who trusts this one.
            (true, false) => bail!(
                "{} is there and its key {} is not: put the key back, or remove the certificate to have another authority made",
                certificate.display(),
                key.display()
            ),
        }
        let pair = KeyPair::from_pem(&read(&key)?).with_context(|| key.display().to_string())?;
        Issuer::from_ca_cert_pem(&read(&certificate)?, pair).with_context(|| certificate.display().to_string())
    }

    /// Fails if an authority whose certificate is lost had another name, as after an exchange: nobody would believe what it
    /// signs under this one.
    fn refuse_other_name(&self, name: &str, common_name: &str) -> Result<()> {
        let signed = match name {
            "ca" => "apiserver",
            "front-proxy-ca" => "front-proxy-client",
            _ => "etcd-member",
        };
        let path = self.certificate(signed);
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error).with_context(|| path.display().to_string()),
        };
        let issuer = Certificate::parse(&text).with_context(|| path.display().to_string())?.issuer;
        if issuer != format!("CN={common_name}") {
            bail!("{} is lost: put the certificate of {issuer} back", self.certificate(name).display());
        }
        Ok(())
    }

    fn leaf(&self, issuer: &Issuer<'_, KeyPair>, file: &str, subject: Subject<'_>) -> Result<()> {
        let mut params = CertificateParams::new(subject.hosts.to_vec())?;
        params.subject_alt_names.extend(subject.addresses.iter().map(|address| SanType::IpAddress(*address)));
        let mut name = DistinguishedName::new();
        for organization in subject.organizations {
            name.push(DnType::OrganizationName, *organization);
        }
        name.push(DnType::CommonName, subject.name);
        params.distinguished_name = name;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !subject.hosts.is_empty() || !subject.addresses.is_empty() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        valid_for(&mut params, self.lifetime);
        let pair = KeyPair::generate()?;
        let signed = params.signed_by(&pair, issuer)?;
        let (key, certificate) = (pair.serialize_pem(), signed.pem());
        let (key_file, certificate_file) = (self.key(file), self.certificate(file));
        let pair = [(key_file.as_path(), key.as_bytes()), (certificate_file.as_path(), certificate.as_bytes())];
        files::replace_together(&pair, 0o600).with_context(|| format!("writing {}", certificate_file.display()))
    }

    fn service_account_key(&self) -> Result<()> {
        let key = self.key("sa");
        if !key.exists() {
            let pair = KeyPair::generate()?;
            write_private(&self.service_account_public_key(), pair.public_key_pem().as_bytes())?;
            write_private(&key, pair.serialize_pem().as_bytes())?;
        }
        Ok(())
    }
}

/// The certificate and the key of an authority that is new, in PEM.
pub(crate) fn new_authority(common_name: &str) -> Result<(String, String)> {
    let pair = KeyPair::generate()?;
    Ok((self_signed(common_name, &pair)?, pair.serialize_pem()))
}

/// The certificate of an authority with this key, in PEM.
fn self_signed(common_name: &str, pair: &KeyPair) -> Result<String> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    params.distinguished_name = name;
    valid_for(&mut params, Duration::from_secs(AUTHORITY_YEARS * 365 * 24 * 3600));
    Ok(params.self_signed(pair)?.pem())
}

fn valid_for(params: &mut CertificateParams, lifetime: Duration) {
    let now = SystemTime::now();
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + lifetime).into();
}

/// Who a certificate is for, whose it is, and from when until when.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Certificate {
    pub subject: String,
    pub issuer: String,
    pub not_before: Timestamp,
    pub not_after: Timestamp,
    pub is_authority: bool,
}

impl Certificate {
    /// The first in a PEM file.
    pub(crate) fn parse(pem: &[u8]) -> Result<Certificate> {
        let block = x509_parser::pem::Pem::iter_from_buffer(pem).next().context("no certificate")??;
        Certificate::from_block(&block)
    }

    /// All in a PEM file.
    pub(crate) fn parse_all(pem: &[u8]) -> Result<Vec<Certificate>> {
        x509_parser::pem::Pem::iter_from_buffer(pem).map(|block| Certificate::from_block(&block?)).collect()
    }

    fn from_block(block: &x509_parser::pem::Pem) -> Result<Certificate> {
        let parsed = block.parse_x509().context("no certificate")?;
        Ok(Certificate {
            subject: parsed.subject().to_string(),
            issuer: parsed.issuer().to_string(),
            not_before: Timestamp::from_second(parsed.validity().not_before.timestamp())?,
            not_after: Timestamp::from_second(parsed.validity().not_after.timestamp())?,
            is_authority: parsed.is_ca(),
        })
    }
}

/// Creates a directory, and its parents, that only its owner can enter.
pub(crate) fn private_dir(dir: &Path) -> Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).with_context(|| format!("creating {}", dir.display()))
}

/// Replaces a file as a whole; only its owner can read it.
pub(crate) fn write_private(path: &Path, content: &[u8]) -> Result<()> {
    // What is written with a new key does not outlast the key.
    files::replace(path, content, 0o600).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn security_a_key_that_could_not_be_written_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sa.key");
        fs::create_dir(&path).unwrap();
        for _ in 0..3 {
            write_private(&path, b"a secret").unwrap_err();
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn authorities_last_and_leaves_are_renewed() {
        let dir = tempfile::tempdir().unwrap();
        let prepare = || {
            Pki::prepare(dir.path(), LEAF_LIFETIME, "n1", &["localhost".into()], &["127.0.0.1".parse().unwrap()])
                .unwrap()
        };
        let pki = prepare();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        let (ca, sa, leaf) = (read(pki.certificate("ca")), read(pki.key("sa")), read(pki.certificate("admin")));
        let pki = prepare();
        assert_eq!((ca, sa), (read(pki.certificate("ca")), read(pki.key("sa"))));
        assert_ne!(leaf, read(pki.certificate("admin")));
        for entry in fs::read_dir(dir.path()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0, "nothing here is for others");
        }
    }

    #[test]
    fn security_only_the_administrator_has_every_right() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::prepare(dir.path(), LEAF_LIFETIME, "n1", &["localhost".into()], &[]).unwrap();
        pki.prepare_member("n1", &[]).unwrap();
        let all = pki.certificates().unwrap();
        let masters: Vec<&str> = all
            .iter()
            .filter(|(_, certificate)| certificate.subject.contains("system:masters"))
            .map(|(name, _)| name.as_str())
            .collect();
        assert_eq!(masters, ["admin"]);
        assert!(all.iter().any(|(name, _)| name == "apiserver-kubelet-client"));
    }

    /// While the authority is exchanged, nodes are started.
    #[test]
    fn a_node_gets_certificates_of_the_authority_that_it_trusts() {
        let dir = tempfile::tempdir().unwrap();
        let (keys, of_node) = (dir.path().join("server"), dir.path().join("node"));
        let pki = Pki::prepare(&keys, LEAF_LIFETIME, "n1", &["localhost".into()], &[]).unwrap();
        let authorities = [pki.authority_files().unwrap(), new_authority("kubernetes-ca-2").unwrap()];
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..40 {
                    let (certificate, key) = &authorities[number % authorities.len()];
                    pki.replace_authority(certificate, key).unwrap();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                let node = pki.sign_node(&of_node, "n2", &[]).unwrap();
                let read = |name: &str| fs::read(node.certificate(name)).unwrap();
                let (authority, leaf) = (read("ca"), read("kubelet-client"));
                let parsed = |pem: &[u8]| x509_parser::pem::parse_x509_pem(pem).unwrap().1;
                let (authority, leaf) = (parsed(&authority), parsed(&leaf));
                let (authority, leaf) = (authority.parse_x509().unwrap(), leaf.parse_x509().unwrap());
                assert_eq!(leaf.issuer().to_string(), authority.subject().to_string());
                leaf.verify_signature(Some(authority.public_key())).unwrap();
            }
        });
    }

    /// What cannot be found is not made anew over what can: the whole cluster trusts it.
    #[test]
    fn security_an_authority_of_which_half_is_lost_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let prepare = || Pki::prepare(dir.path(), LEAF_LIFETIME, "n1", &["localhost".into()], &[]);
        let pki = prepare().unwrap();
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        let (certificate, key) = (read(pki.certificate("ca")), read(pki.key("ca")));
        fs::remove_file(pki.key("ca")).unwrap();
        let error = prepare().unwrap_err().to_string();
        assert!(error.contains("put the key back"), "{error}");
        assert_eq!(read(pki.certificate("ca")), certificate);
        fs::write(pki.key("ca"), &key).unwrap();
        fs::remove_file(pki.certificate("ca")).unwrap();
        prepare().unwrap();
        assert_eq!(read(pki.key("ca")), key, "only its certificate is new");
        assert_ne!(read(pki.certificate("ca")), certificate);
        // One that was exchanged has another name.
        let (certificate, key) = new_authority("kubernetes-ca-2").unwrap();
        pki.replace_authority(&certificate, &key).unwrap();
        prepare().unwrap();
        fs::remove_file(pki.certificate("ca")).unwrap();
        let error = prepare().unwrap_err().to_string();
        assert!(error.contains("put the certificate of CN=kubernetes-ca-2 back"), "{error}");
        assert!(!pki.certificate("ca").exists());
    }
}

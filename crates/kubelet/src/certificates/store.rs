//! Certificates on disk: `<name>-<time>.pem` holds a chain and its key, `<name>-current.pem` links to the newest.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;

/// Between looks whether somebody wants another certificate.
const WISH_INTERVAL: Duration = Duration::from_secs(5);

pub(crate) struct Store {
    dir: PathBuf,
    name: &'static str,
}

/// A certificate with its chain and key, and how long it is good for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Certificate {
    pub(crate) pem: String,
    pub(crate) not_before: Timestamp,
    pub(crate) not_after: Timestamp,
}

impl Certificate {
    /// Reads the lifetime of the first certificate.
    pub(crate) fn parse(pem: String) -> Option<Self> {
        use rustls_pki_types::CertificateDer;
        use rustls_pki_types::pem::PemObject;
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).ok()?;
        let validity = parsed.validity();
        Some(Certificate {
            not_before: Timestamp::from_second(validity.not_before.timestamp()).ok()?,
            not_after: Timestamp::from_second(validity.not_after.timestamp()).ok()?,
            pem,
        })
    }
}

impl Store {
    pub(crate) fn new(dir: &Path, name: &'static str) -> Self {
        Store { dir: dir.to_path_buf(), name }
    }

    pub(crate) fn current(&self) -> PathBuf {
        self.dir.join(format!("{}-current.pem", self.name))
    }

    /// The current certificate; none when there never was one, or what is there is none.
    pub(crate) fn load(&self) -> Option<Certificate> {
        let path = self.current();
        let pem = match std::fs::read_to_string(&path) {
            Ok(pem) => pem,
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(path = %path.display(), %error, "certificate not read, a new one is asked for");
                }
                return None;
            }
        };
        let parsed = Certificate::parse(pem);
        if parsed.is_none() {
            tracing::warn!(path = %path.display(), "no certificate in the file, a new one is asked for");
        }
        parsed
    }

    /// There while somebody wants another certificate.
    fn wish(&self) -> PathBuf {
        self.dir.join(format!("{}.renew", self.name))
    }

    /// Has the certificate renewed, if there is one.
    pub(crate) fn ask_renewal(&self) -> io::Result<()> {
        match self.current().exists() {
            true => write_private(&self.wish(), ""),
            false => Ok(()),
        }
    }

    /// Waits for so long, or until somebody wants another certificate.
    pub(crate) async fn until_due(&self, pause: Duration) {
        let wished = async {
            while !self.wish().exists() {
                tokio::time::sleep(WISH_INTERVAL).await;
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = wished => {}
        }
    }

    /// Keeps a certificate and makes it the current one, in one step for whoever reads it.
    pub(crate) fn save(&self, certificate: &Certificate, now: Timestamp) -> io::Result<PathBuf> {
        std::fs::create_dir_all(&self.dir)?;
        let stamp = now.strftime("%Y-%m-%d-%H-%M-%S");
        let file = format!("{}-{stamp}.pem", self.name);
        write_private(&self.dir.join(&file), &certificate.pem)?;
        let fresh = self.dir.join(format!("{}-updated.pem", self.name));
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        symlink(&file, &fresh)?;
        std::fs::rename(&fresh, self.current())?;
        match std::fs::remove_file(self.wish()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(self.current())
    }
}

/// Replaces a file, which only its owner may read. A machine that loses power must not come back with a part of it: the token
/// for a first certificate may have expired.
pub(super) fn write_private(path: &Path, text: &str) -> io::Result<()> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    files::replace(path, text.as_bytes(), 0o600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wish_for_another_certificate_is_heard_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), "kubelet-client");
        store.ask_renewal().unwrap();
        assert!(!store.wish().exists(), "there is none to renew");
        let at = |second| Timestamp::from_second(second).unwrap();
        let certificate = Certificate { pem: "x".into(), not_before: at(0), not_after: at(1000) };
        store.save(&certificate, Timestamp::UNIX_EPOCH).unwrap();
        store.ask_renewal().unwrap();
        let began = tokio::time::Instant::now();
        store.until_due(Duration::from_secs(3600)).await;
        assert!(began.elapsed() < Duration::from_secs(60));
        store.save(&certificate, Timestamp::UNIX_EPOCH).unwrap();
        store.until_due(Duration::from_secs(3600)).await;
        assert!(began.elapsed() >= Duration::from_secs(3600));
    }

    #[test]
    fn what_is_written_is_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (path, kept) = (dir.path().join("certs/kubeconfig"), dir.path().join("kept"));
        write_private(&path, "old").unwrap();
        std::fs::hard_link(&path, &kept).unwrap();
        write_private(&path, "new").unwrap();
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!((read(&path), read(&kept)), ("new".to_owned(), "old".to_owned()));
    }

    #[test]
    fn the_newest_is_current() {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::new(dir.path(), "kubelet-client");
        assert_eq!(store.load(), None);
        let made = rcgen::generate_simple_self_signed(vec!["n".to_string()]).unwrap();
        let pem = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
        let certificate = Certificate::parse(pem).unwrap();
        assert!(certificate.not_after > certificate.not_before);
        let path = store.save(&certificate, Timestamp::UNIX_EPOCH).unwrap();
        assert!(path.ends_with("kubelet-client-current.pem"));
        assert_eq!(store.load(), Some(certificate));
    }
}

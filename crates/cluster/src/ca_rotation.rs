//! An exchange of the cluster's authority that has begun: its phases, and what the authority's two files say in each.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::pki::{Certificate, Pki, new_authority, write_private};

const COMMON_NAME: &str = "kubernetes-ca";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Phase {
    /// Both are trusted, the old one signs.
    Trust,
    /// Both are trusted, the new one signs.
    Sign,
    /// Only the new one is left.
    Drop,
}

impl Phase {
    pub(crate) fn next(self) -> Option<Phase> {
        match self {
            Phase::Trust => Some(Phase::Sign),
            Phase::Sign => Some(Phase::Drop),
            Phase::Drop => None,
        }
    }
}

/// Certificate and key in PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Authority {
    pub(crate) certificate: String,
    pub(crate) key: String,
}

/// An exchange that has begun. It has both keys, and is for its owner as they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Rotation {
    pub(crate) phase: Phase,
    pub(crate) old: Authority,
    pub(crate) new: Authority,
}

impl Rotation {
    /// Of the authority in a directory of keys, for a new one.
    pub(crate) fn begin(dir: &Path) -> Result<Rotation> {
        let (certificate, key) = Pki::open(dir).authority_files()?;
        let name = next_name(&Certificate::parse(certificate.as_bytes())?.subject);
        let old = Authority { certificate, key };
        let (certificate, key) = new_authority(&name)?;
        Ok(Rotation { phase: Phase::Trust, old, new: Authority { certificate, key } })
    }

    pub(crate) fn file(dir: &Path) -> PathBuf {
        dir.join("ca-rotation.json")
    }

    pub(crate) fn load(dir: &Path) -> Result<Option<Rotation>> {
        let path = Rotation::file(dir);
        match fs::read(&path) {
            Ok(text) => Ok(Some(serde_json::from_slice(&text).with_context(|| path.display().to_string())?)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| path.display().to_string()),
        }
    }

    pub(crate) fn save(&self, dir: &Path) -> Result<()> {
        write_private(&Rotation::file(dir), &serde_json::to_vec_pretty(self)?)
    }

    /// Fails if the authority in a directory of keys has no part in this exchange: its files would be lost.
    pub(crate) fn check_own(&self, dir: &Path) -> Result<()> {
        let (certificate, _) = Pki::open(dir).authority_files()?;
        let is_known = [&self.old, &self.new].iter().any(|one| certificate.starts_with(&one.certificate));
        if !is_known {
            bail!("this server's authority is neither the one that is exchanged nor the new one");
        }
        Ok(())
    }

    /// The same, where the old authority has gone here already: without it. A store that was restored may tell of an earlier
    /// phase, and nodes trust nothing that the old one would sign again.
    pub(crate) fn never_back(self, dir: &Path) -> Result<Rotation> {
        let (certificates, _) = Pki::open(dir).authority_files()?;
        let phase = if certificates == self.new.certificate { Phase::Drop } else { self.phase };
        Ok(Rotation { phase, ..self })
    }

    /// What the authority's two files say in this phase: the one that signs comes first.
    fn files(&self) -> (String, &str) {
        let (old, new) = (&self.old, &self.new);
        match self.phase {
            Phase::Trust => (format!("{}{}", old.certificate, new.certificate), &old.key),
            Phase::Sign => (format!("{}{}", new.certificate, old.certificate), &new.key),
            Phase::Drop => (new.certificate.clone(), &new.key),
        }
    }

    /// The name of the new authority.
    pub(crate) fn subject(&self) -> Result<String> {
        Ok(Certificate::parse(self.new.certificate.as_bytes())?.subject)
    }
}

/// Completes what an exchange has written down: whoever signs next must find a certificate and its own key.
pub(crate) fn complete(dir: &Path) -> Result<()> {
    if Rotation::load(dir)?.is_none() {
        return Ok(());
    }
    // Read where nobody else writes: whoever read an earlier phase must not write its files over those of this one.
    Pki::open(dir).replace_authority_with(|| {
        let rotation = Rotation::load(dir)?;
        Ok(rotation.map(|rotation| {
            let (certificates, key) = rotation.files();
            (certificates, key.to_owned())
        }))
    })
}

/// The name of the authority after one.
fn next_name(subject: &str) -> String {
    let number = subject.rsplit_once(&format!("{COMMON_NAME}-")).and_then(|(_, number)| number.parse::<u64>().ok());
    format!("{COMMON_NAME}-{}", number.unwrap_or(1) + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority(name: &str) -> Authority {
        let (certificate, key) = new_authority(name).unwrap();
        Authority { certificate, key }
    }

    #[test]
    fn security_an_exchange_that_ends_anywhere_leaves_a_key_and_its_certificate() {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::open(dir.path());
        let (old, new) = (authority("kubernetes-ca"), authority("kubernetes-ca-2"));
        complete(dir.path()).unwrap();
        assert!(!pki.key("ca").exists(), "nothing has begun");
        let subjects = |text: &str| -> Vec<String> {
            Certificate::parse_all(text.as_bytes()).unwrap().into_iter().map(|one| one.subject).collect()
        };
        let mut phase = Some(Phase::Trust);
        for expected in [
            &["CN=kubernetes-ca", "CN=kubernetes-ca-2"][..],
            &["CN=kubernetes-ca-2", "CN=kubernetes-ca"],
            &["CN=kubernetes-ca-2"],
        ] {
            let rotation = Rotation { phase: phase.unwrap(), old: old.clone(), new: new.clone() };
            rotation.save(dir.path()).unwrap();
            assert_eq!(Rotation::load(dir.path()).unwrap().unwrap(), rotation);
            // Ended before either file, between the two, and after both.
            for before in [None, Some(pki.key("ca")), Some(pki.certificate("ca"))] {
                if let Some(path) = before {
                    fs::write(path, "of another phase").unwrap();
                }
                complete(dir.path()).unwrap();
                let found = fs::read_to_string(pki.certificate("ca")).unwrap();
                assert_eq!(subjects(&found), expected);
                let signer = if expected[0] == "CN=kubernetes-ca" { &old } else { &new };
                assert_eq!(fs::read_to_string(pki.key("ca")).unwrap(), signer.key);
                assert!(found.starts_with(&signer.certificate), "the first has the key");
            }
            phase = phase.and_then(Phase::next);
        }
        assert_eq!(phase, None);
    }

    #[test]
    fn security_an_exchange_of_others_leaves_an_authority_alone() {
        let dir = tempfile::tempdir().unwrap();
        let own = authority("kubernetes-ca");
        Pki::open(dir.path()).replace_authority(&own.certificate, &own.key).unwrap();
        let rotation = Rotation::begin(dir.path()).unwrap();
        assert_eq!((&rotation.old, rotation.subject().unwrap().as_str()), (&own, "CN=kubernetes-ca-2"));
        rotation.check_own(dir.path()).unwrap();
        let other = Rotation { old: authority("kubernetes-ca"), ..rotation.clone() };
        assert!(other.check_own(dir.path()).unwrap_err().to_string().contains("neither"));
        // In each phase the authority is one of the two.
        for phase in [Phase::Trust, Phase::Sign, Phase::Drop] {
            let rotation = Rotation { phase, ..rotation.clone() };
            rotation.save(dir.path()).unwrap();
            complete(dir.path()).unwrap();
            rotation.check_own(dir.path()).unwrap();
            assert_eq!(rotation.clone().never_back(dir.path()).unwrap(), rotation);
        }
        // What a store tells that was restored.
        assert_eq!(rotation.phase, Phase::Trust);
        assert_eq!(rotation.never_back(dir.path()).unwrap().phase, Phase::Drop);
    }

    #[test]
    fn authorities_are_numbered() {
        for (subject, expected) in [
            ("CN=kubernetes-ca", "kubernetes-ca-2"),
            ("CN=kubernetes-ca-2", "kubernetes-ca-3"),
            ("CN=somebody's", "kubernetes-ca-2"),
        ] {
            assert_eq!(next_name(subject), expected);
        }
    }
}

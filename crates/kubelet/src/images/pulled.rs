//! Who may use an image that is on the node: one record per image that this kubelet pulled.
//!
//! Flow: a pull notes its intent, then whose credentials opened the registry -> files below `image_manager` -> asked
//! before a container uses an image that is there already. An image without any record was not pulled by us but
//! brought along; anyone may use it (upstream's `NeverVerifyPreloadedImages`).

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::credentials::{Credential, Source};
use super::hash;

pub(super) struct Pulled {
    /// `<hash of the name>` for each pull under way, or that a crash cut short.
    pulling: PathBuf,
    /// `<hash of the image's id>`: who may use it, by the name it was asked for.
    pulled: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Record {
    image_ref: String,
    credential_mapping: BTreeMap<String, Access>,
}

#[derive(Clone, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Access {
    /// Pulled without anybody's secret.
    node_pods_accessible: bool,
    kubernetes_secrets: Vec<Source>,
}

impl Pulled {
    pub(super) fn new(root: &Path) -> Self {
        let dir = root.join("image_manager");
        Pulled { pulling: dir.join("pulling"), pulled: dir.join("pulled") }
    }

    /// To be called before a pull. Without it nothing may be pulled: an image of which nothing is known is everybody's.
    pub(super) fn begin(&self, image: &str) -> io::Result<()> {
        std::fs::create_dir_all(&self.pulling)?;
        let mut file = std::fs::File::create(self.pulling.join(hash(image)))?;
        file.write_all(image.as_bytes())?;
        file.sync_all()
    }

    /// The pull has ended: with an image and perhaps the secret that was needed, or in failure.
    pub(super) fn end(&self, image: &str, used: Option<(&str, Option<&Source>)>) {
        if let Some((id, source)) = used {
            let mut record = match self.record(id) {
                Ok(record) => record.unwrap_or_default(),
                Err(error) => {
                    // Made anew, others would have to show their credentials again; but it must not say more than was known.
                    tracing::warn!(image, %error, "record of an image not read, it is made anew");
                    Record::default()
                }
            };
            record.image_ref = id.to_string();
            let access = record.credential_mapping.entry(repository(image).to_string()).or_default();
            match source {
                None => access.node_pods_accessible = true,
                Some(source) => {
                    access.kubernetes_secrets.retain(|known| known.uid != source.uid);
                    access.kubernetes_secrets.push(source.clone());
                }
            }
            let write = || {
                std::fs::create_dir_all(&self.pulled)?;
                std::fs::write(self.pulled.join(hash(id)), serde_json::to_vec(&record)?)
            };
            if let Err(error) = write() {
                // The intent stays: without a record, the next user has to show credentials.
                tracing::warn!(image, %error, "pull not recorded");
                return;
            }
        }
        let _ = std::fs::remove_file(self.pulling.join(hash(image)));
    }

    /// Whether a pod with these credentials may use the image that is here under this id.
    pub(super) fn may_use(&self, image: &str, id: &str, credentials: &[Credential]) -> bool {
        let record = match self.record(id) {
            Ok(Some(record)) => record,
            // Not being able to look is not the same as finding that nobody is pulling it.
            Ok(None) => return self.pulling.join(hash(image)).try_exists().is_ok_and(|is_pulled| !is_pulled),
            Err(error) => {
                tracing::warn!(image, %error, "record of an image not read, credentials are asked for");
                return false;
            }
        };
        let Some(access) = record.credential_mapping.get(repository(image)) else { return false };
        access.node_pods_accessible
            || credentials.iter().any(|credential| {
                access.kubernetes_secrets.iter().any(|known| {
                    let own = &credential.source;
                    let same = (&known.uid, &known.namespace, &known.name) == (&own.uid, &own.namespace, &own.name);
                    same || known.credential_hash == own.credential_hash
                })
            })
    }

    pub(super) fn removed(&self, id: &str) {
        let _ = std::fs::remove_file(self.pulled.join(hash(id)));
    }

    fn record(&self, id: &str) -> std::io::Result<Option<Record>> {
        match std::fs::read(self.pulled.join(hash(id))) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).map(Some)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An image name without tag and digest.
fn repository(image: &str) -> &str {
    let name = image.split_once('@').map_or(image, |(name, _)| name);
    match name.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(uid: &str, hash: &str) -> Credential {
        let source = Source { uid: uid.into(), credential_hash: hash.into(), ..Default::default() };
        Credential { auth: Default::default(), source }
    }

    #[test]
    fn images_belong_to_those_who_could_pull_them() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        let (mine, same, other) = (credential("1", "a"), credential("2", "a"), credential("3", "b"));
        assert!(pulled.may_use("r/app:1", "sha256:1", &[]), "brought along");
        pulled.begin("r/app:1").unwrap();
        assert!(!pulled.may_use("r/app:1", "sha256:1", &[]), "a pull was cut short");
        pulled.end("r/app:1", Some(("sha256:1", Some(&mine.source))));
        for (credentials, expected) in [(vec![], false), (vec![mine], true), (vec![same], true), (vec![other], false)] {
            assert_eq!(pulled.may_use("r/app:2", "sha256:1", &credentials), expected, "{credentials:?}");
        }
        assert!(!pulled.may_use("elsewhere/app:1", "sha256:1", &[]), "the same image from another place");
        pulled.end("elsewhere/app:1", Some(("sha256:1", None)));
        assert!(pulled.may_use("elsewhere/app:1", "sha256:1", &[]));
        pulled.removed("sha256:1");
        assert!(pulled.may_use("r/app:1", "sha256:1", &[]));
    }

    #[test]
    fn security_pulls_that_cannot_be_looked_for_are_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        std::fs::create_dir_all(&pulled.pulled).unwrap();
        // Where intents are kept there is a link that leads in a circle.
        std::os::unix::fs::symlink(&pulled.pulling, &pulled.pulling).unwrap();
        assert!(!pulled.may_use("r/app:1", "sha256:1", &[]));
    }

    #[test]
    fn security_nothing_is_pulled_that_cannot_be_noted() {
        let dir = tempfile::tempdir().unwrap();
        // Neither can a directory be made here, nor a file.
        std::fs::write(dir.path().join("image_manager"), "").unwrap();
        assert!(Pulled::new(dir.path()).begin("r/app:1").is_err());
    }

    #[test]
    fn repositories() {
        for (image, expected) in [
            ("nginx:1", "nginx"),
            ("nginx", "nginx"),
            ("localhost:5000/a/b", "localhost:5000/a/b"),
            ("localhost:5000/a/b:1@sha256:x", "localhost:5000/a/b"),
        ] {
            assert_eq!(repository(image), expected);
        }
    }
}

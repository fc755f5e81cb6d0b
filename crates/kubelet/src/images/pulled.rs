//! Who may use an image that is on the node: one record per image that this kubelet pulled.
//!
//! Flow: a pull notes its intent, then whose credentials opened the registry -> files below `image_manager` -> asked
//! before a container uses an image that is there already. An image without any record was not pulled by us but
//! brought along; anyone may use it (upstream's `NeverVerifyPreloadedImages`).

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use api::image::repository;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::credentials::{Credential, Source, registry_of};
use super::hash;

pub(super) struct Pulled {
    /// `<hash of the name>` for each pull under way, or that a crash cut short.
    pulling: PathBuf,
    /// `<hash of the image's id>`: who may use it, by the name it was asked for.
    pulled: PathBuf,
    /// How many records were written by the time that of an image was, by its id. Locked while records change.
    written: Mutex<(u64, HashMap<String, u64>)>,
}

/// What was known of an image when its removal began.
#[derive(Clone, Copy)]
pub(crate) struct Known(Option<u64>);

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
        Pulled { pulling: dir.join("pulling"), pulled: dir.join("pulled"), written: Mutex::default() }
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
            let mut written = self.written.lock();
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
                // Whoever looks meanwhile does not wait for the lock, and would take half a record for a refusal.
                let path = self.pulled.join(hash(id));
                files::replace_by(path.with_extension("new"), &path, &serde_json::to_vec(&record)?, 0o600)
            };
            if let Err(error) = write() {
                // The intent stays: without a record, the next user has to show credentials.
                tracing::warn!(image, %error, "pull not recorded");
                return;
            }
            written.0 += 1;
            let number = written.0;
            written.1.insert(id.to_owned(), number);
        }
        let _ = std::fs::remove_file(self.pulling.join(hash(image)));
    }

    /// Whether a pod with these credentials may use the image that is here under this id. `names` are all that it has.
    pub(super) fn may_use(&self, image: &str, id: &str, names: &[String], credentials: &[Credential]) -> bool {
        // Before the record is looked for: a pull that ends meanwhile has left one.
        let is_being_pulled = self.is_being_pulled(image, names);
        let record = match self.record(id) {
            Ok(Some(record)) => record,
            // Not being able to look is not the same as finding that nobody is pulling it.
            Ok(None) => return is_being_pulled.is_ok_and(|is_pulled| !is_pulled),
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

    /// Whether somebody is pulling the image, or was when the kubelet or the pod ended: then it may be here for those with a secret
    /// only. Whoever asks for it may use another of its names than the pull did.
    fn is_being_pulled(&self, image: &str, names: &[String]) -> io::Result<bool> {
        let entries = match std::fs::read_dir(&self.pulling) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            entries => entries?,
        };
        let known: Vec<String> = names.iter().map(|name| full_name(name)).chain([full_name(image)]).collect();
        for entry in entries {
            match std::fs::read_to_string(entry?.path()) {
                Ok(pulled) if known.contains(&full_name(&pulled)) => return Ok(true),
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(false)
    }

    /// To be asked before an image is removed.
    pub(super) fn known(&self, id: &str) -> Known {
        Known(self.written.lock().1.get(id).copied())
    }

    /// An image was removed. What was written of it since that began is about the same image, pulled again.
    pub(super) fn removed(&self, id: &str, Known(before): Known) {
        let mut written = self.written.lock();
        if written.1.get(id).copied() == before {
            written.1.remove(id);
            let _ = std::fs::remove_file(self.pulled.join(hash(id)));
        }
    }

    fn record(&self, id: &str) -> std::io::Result<Option<Record>> {
        match std::fs::read(self.pulled.join(hash(id))) {
            Ok(bytes) => Ok(serde_json::from_slice(&bytes).map(Some)?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A name with its registry, and with a digest or a tag: whoever pulls may leave out what is understood.
fn full_name(image: &str) -> String {
    let selected = match image.split_once('@') {
        Some((_, digest)) => format!("{}@{digest}", repository(image)),
        None => image.to_owned(),
    };
    match registry_of(&selected) {
        (host, path) if matches!(host.as_str(), "docker.io" | "index.docker.io") => match path.contains('/') {
            true => format!("docker.io/{path}"),
            false => format!("docker.io/library/{path}"),
        },
        (host, path) => format!("{host}/{path}"),
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
        assert!(pulled.may_use("r/app:1", "sha256:1", &[], &[]), "brought along");
        pulled.begin("r/app:1").unwrap();
        assert!(!pulled.may_use("r/app:1", "sha256:1", &[], &[]), "a pull was cut short");
        pulled.end("r/app:1", Some(("sha256:1", Some(&mine.source))));
        for (credentials, expected) in [(vec![], false), (vec![mine], true), (vec![same], true), (vec![other], false)] {
            assert_eq!(pulled.may_use("r/app:2", "sha256:1", &[], &credentials), expected, "{credentials:?}");
        }
        assert!(!pulled.may_use("elsewhere/app:1", "sha256:1", &[], &[]), "the same image from another place");
        pulled.end("elsewhere/app:1", Some(("sha256:1", None)));
        assert!(pulled.may_use("elsewhere/app:1", "sha256:1", &[], &[]));
        pulled.removed("sha256:1", pulled.known("sha256:1"));
        assert!(pulled.may_use("r/app:1", "sha256:1", &[], &[]));
    }

    #[test]
    fn a_record_is_never_there_in_part() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        pulled.end("r/app:1", Some(("sha256:1", None)));
        let (record, reader) = (pulled.pulled.join(hash("sha256:1")), dir.path().join("reader"));
        std::fs::hard_link(&record, &reader).unwrap();
        let before = std::fs::read(&record).unwrap();
        pulled.end("elsewhere/app:1", Some(("sha256:1", None)));
        assert_eq!(std::fs::read(&reader).unwrap(), before, "who has it open reads it to its end");
        assert_ne!(std::fs::read(&record).unwrap(), before);
    }

    #[test]
    fn security_pulls_that_cannot_be_looked_for_are_not_taken_for_none() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        std::fs::create_dir_all(&pulled.pulled).unwrap();
        // Where intents are kept there is a link that leads in a circle.
        std::os::unix::fs::symlink(&pulled.pulling, &pulled.pulling).unwrap();
        assert!(!pulled.may_use("r/app:1", "sha256:1", &[], &[]));
    }

    /// Other names lead to the same image, and so does its id, before it is known who may use it.
    #[test]
    fn security_an_image_that_is_being_pulled_has_no_other_way_in() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        pulled.begin("app:1").unwrap();
        let of = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        for (image, names, expected) in [
            ("app:1", vec![], false),
            ("sha256:1", vec!["docker.io/library/app:1"], false),
            ("app@sha256:2", vec!["docker.io/library/app@sha256:2", "docker.io/library/app:1"], false),
            ("docker.io/app:1", vec![], false),
            ("app:2", vec!["docker.io/library/app:2"], true),
            ("r.example/library/app:1", vec!["r.example/library/app:1"], true),
        ] {
            assert_eq!(pulled.may_use(image, "sha256:1", &of(&names), &[]), expected, "{image} {names:?}");
        }
        assert_eq!(full_name("r.example/a:1@sha256:2"), "r.example/a@sha256:2");
    }

    /// While an image goes, it may come again with somebody's secret.
    #[test]
    fn security_a_pull_during_a_removal_stays_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let pulled = Pulled::new(dir.path());
        let mine = credential("1", "a");
        let pull = || pulled.end("r/app:1", Some(("sha256:1", Some(&mine.source))));
        pull();
        for is_known in [true, false] {
            let before = if is_known { pulled.known("sha256:1") } else { Pulled::new(dir.path()).known("sha256:1") };
            pull();
            pulled.removed("sha256:1", before);
            assert!(!pulled.may_use("r/app:1", "sha256:1", &[], &[]));
        }
        pulled.removed("sha256:1", pulled.known("sha256:1"));
        assert!(pulled.record("sha256:1").unwrap().is_none());
    }

    #[test]
    fn security_nothing_is_pulled_that_cannot_be_noted() {
        let dir = tempfile::tempdir().unwrap();
        // Neither can a directory be made here, nor a file.
        std::fs::write(dir.path().join("image_manager"), "").unwrap();
        assert!(Pulled::new(dir.path()).begin("r/app:1").is_err());
    }
}

//! The user's kubeconfig: our context goes in, everything else in the file stays as it is.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use nix::fcntl::Flock;
use nix::unistd::{Gid, Uid, setfsgid, setfsuid};
use serde_json::{Value, json};

use crate::options::Options;
use crate::pki::{Pki, private_dir, write_private};

/// No kubeconfig is longer.
const MAX_LENGTH: u64 = 16 << 20;

/// How to reach a cluster, and as whom.
pub(crate) struct Access {
    pub name: String,
    pub server: String,
    pub ca: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
    /// While this is held nobody signs another certificate: what is put into a file is never older than what is there.
    _keys: Option<Flock<fs::File>>,
    /// All servers as `host:port`, where there may be several: each gets a context of its own, `<name>@<host:port>`.
    servers: Vec<String>,
}

impl Access {
    /// As the administrator. The directory of keys is locked until this is dropped.
    pub(crate) fn admin(name: &str, server: &str, pki: &Pki) -> Result<Access> {
        let keys = pki.lock()?;
        let read = |path: PathBuf| fs::read(&path).with_context(|| path.display().to_string());
        Ok(Access {
            name: name.to_owned(),
            server: server.to_owned(),
            ca: read(pki.certificate("ca"))?,
            certificate: read(pki.certificate("admin"))?,
            key: read(pki.key("admin"))?,
            _keys: Some(keys),
            servers: Vec::new(),
        })
    }

    pub(crate) fn with_servers(self, servers: Vec<String>) -> Access {
        Access { servers, ..self }
    }

    /// Puts the cluster, its user and its context into the file and makes the context current.
    pub(crate) fn merge_into(&self, path: &Path) -> Result<()> {
        let mut config = load(path)?;
        let cluster = |server: &str| json!({"cluster": {"server": server, "certificate-authority-data": STANDARD.encode(&self.ca)}});
        self.replace_trust(&mut config);
        upsert(&mut config, "clusters", &self.name, cluster(&self.server))?;
        self.merge_servers(&mut config, &cluster)?;
        upsert(
            &mut config,
            "users",
            &self.name,
            json!({"user": {"client-certificate-data": STANDARD.encode(&self.certificate), "client-key-data": STANDARD.encode(&self.key)}}),
        )?;
        // A namespace that the user chose for the context outlives a restart of the cluster.
        let namespace = entries(&config, "contexts")
            .find(|entry| entry["name"] == self.name.as_str())
            .and_then(|entry| entry["context"]["namespace"].as_str().map(str::to_owned));
        let mut context = json!({"context": {"cluster": self.name, "user": self.name}});
        if let Some(namespace) = namespace {
            context["context"]["namespace"] = namespace.into();
        }
        upsert(&mut config, "contexts", &self.name, context)?;
        config["current-context"] = self.name.as_str().into();
        save(path, &config)
    }

    /// Exchanges the certificate and key of our user, if it is there, and whom it trusts, and touches nothing else. Done as the first owner on the
    /// way to the directory who is not root: it is theirs to say what the path leads to, links included.
    fn renew_in(&self, path: &Path) -> Result<()> {
        let parent = path.parent().context("a file without a directory")?;
        let found = |dir: &Path| fs::symlink_metadata(dir).ok();
        let owner = parent.ancestors().filter_map(found).find(|dir| dir.uid() != 0);
        let Some(owner) = owner.or_else(|| found(parent)) else { return Ok(()) };
        let (uid, gid) = (Uid::from_raw(owner.uid()), Gid::from_raw(owner.gid()));
        std::thread::scope(|scope| {
            // Of this thread alone, which ends with it.
            let renewal = scope.spawn(|| {
                setfsgid(gid);
                setfsuid(uid);
                self.replace_user(path)
            });
            renewal.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn replace_user(&self, path: &Path) -> Result<()> {
        let mut config = load(path)?;
        let entries = config.get_mut("users").and_then(Value::as_array_mut).into_iter().flatten();
        let Some(user) = entries.into_iter().find(|entry| entry["name"] == self.name.as_str()) else { return Ok(()) };
        let Some(fields) = user.get_mut("user").and_then(Value::as_object_mut) else { return Ok(()) };
        fields.insert("client-certificate-data".to_owned(), STANDARD.encode(&self.certificate).into());
        fields.insert("client-key-data".to_owned(), STANDARD.encode(&self.key).into());
        self.replace_trust(&mut config);
        save(path, &config)
    }

    /// Whom to trust, in every entry of this cluster that says so.
    fn replace_trust(&self, config: &mut Value) {
        let clusters = config.get_mut("clusters").and_then(Value::as_array_mut).into_iter().flatten();
        for entry in clusters {
            let name = entry["name"].as_str().unwrap_or_default();
            if name != self.name && !is_server_of(name, &self.name) {
                continue;
            }
            let authority = entry.get_mut("cluster").and_then(|cluster| cluster.get_mut("certificate-authority-data"));
            if let Some(authority) = authority {
                *authority = STANDARD.encode(&self.ca).into();
            }
        }
    }

    /// A context for each server, and none for those that are gone. Servers that nobody has told of stay as they are.
    fn merge_servers(&self, config: &mut Value, cluster: &dyn Fn(&str) -> Value) -> Result<()> {
        if self.servers.is_empty() {
            return Ok(());
        }
        let named = |server: &String| format!("{}@{server}", self.name);
        let current: Vec<String> = self.servers.iter().map(named).collect();
        for list in ["clusters", "contexts"] {
            if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
                entries.retain(|entry| {
                    let name = entry["name"].as_str().unwrap_or_default();
                    !is_server_of(name, &self.name) || current.iter().any(|known| known == name)
                });
            }
        }
        for (server, name) in self.servers.iter().zip(&current) {
            upsert(config, "clusters", name, cluster(&format!("https://{server}")))?;
            upsert(config, "contexts", name, json!({"context": {"cluster": name, "user": self.name}}))?;
        }
        Ok(())
    }
}

/// Whether an entry is one of the servers of a cluster.
fn is_server_of(entry: &str, cluster: &str) -> bool {
    entry.strip_prefix(cluster).is_some_and(|rest| rest.starts_with('@'))
}

/// The servers that a kubeconfig of ours names, as `host:port`.
pub(crate) fn servers_in(path: &Path, cluster: &str) -> Result<Vec<String>> {
    let config = load(path)?;
    let names = entries(&config, "clusters").filter_map(|entry| entry["name"].as_str());
    Ok(names.filter_map(|name| name.strip_prefix(cluster)?.strip_prefix('@')).map(str::to_owned).collect())
}

/// Takes the cluster, its user and its context out again; a missing file is fine.
pub(crate) fn remove_from(path: &Path, name: &str) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let mut config = load(path)?;
    for list in ["clusters", "users", "contexts"] {
        if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| {
                entry["name"] != name && !is_server_of(entry["name"].as_str().unwrap_or_default(), name)
            });
        }
    }
    if config["current-context"] == name {
        config["current-context"] = "".into();
    }
    save(path, &config)
}

/// The file that `kubectl` would change: the first of `$KUBECONFIG`, or `~/.kube/config`.
pub(crate) fn user_file() -> Option<PathBuf> {
    if let Some(list) = std::env::var_os("KUBECONFIG").filter(|list| !list.is_empty()) {
        return std::env::split_paths(&list).find(|path| !path.as_os_str().is_empty());
    }
    std::env::var_os("HOME").map(|home| Path::new(&home).join(".kube/config"))
}

/// Where it is written down which kubeconfigs have our context.
fn user_files(options: &Options) -> PathBuf {
    options.data_dir.join("kubeconfigs.json")
}

fn remembered_user_files(options: &Options) -> Result<Vec<PathBuf>> {
    let path = user_files(options);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).with_context(|| path.display().to_string()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

/// Remembers a kubeconfig that has our context, so that its certificate is renewed too.
pub(crate) fn remember_user_file(options: &Options, file: &Path) -> Result<()> {
    let file = std::path::absolute(file)?;
    let mut files = remembered_user_files(options)?;
    if !files.contains(&file) {
        files.push(file);
        write_private(&user_files(options), &serde_json::to_vec(&files)?)?;
    }
    Ok(())
}

/// Puts the certificate into every kubeconfig that still has our user; returns those where that failed.
pub(crate) fn renew_user_files(options: &Options, access: &Access) -> Result<Vec<(PathBuf, anyhow::Error)>> {
    let files = remembered_user_files(options)?;
    Ok(files.into_iter().filter_map(|file| Some((file.clone(), access.renew_in(&file).err()?))).collect())
}

/// The text of a file that users may have put there: not of a pipe that nobody writes, nor of a device without end.
fn read_bounded(path: &Path) -> std::io::Result<String> {
    let file = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_LENGTH + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_LENGTH {
        return Err(std::io::Error::other("too long for a kubeconfig"));
    }
    Ok(text)
}

fn load(path: &Path) -> Result<Value> {
    let text = match read_bounded(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    let mut config: Value = if text.trim().is_empty() {
        json!({})
    } else {
        yaml_serde::from_str(&text).with_context(|| format!("{} is not a kubeconfig", path.display()))?
    };
    let Some(object) = config.as_object_mut() else {
        bail!("{} is not a kubeconfig", path.display());
    };
    object.entry("apiVersion").or_insert("v1".into());
    object.entry("kind").or_insert("Config".into());
    object.entry("preferences").or_insert(json!({}));
    Ok(config)
}

fn save(path: &Path, config: &Value) -> Result<()> {
    if let Some(parent) = path.parent() {
        private_dir(parent)?;
    }
    // The target of a link is replaced, not the link.
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    write_private(&target, yaml_serde::to_string(config)?.as_bytes())
}

fn entries<'a>(config: &'a Value, list: &str) -> impl Iterator<Item = &'a Value> {
    config.get(list).and_then(Value::as_array).into_iter().flatten()
}

fn upsert(config: &mut Value, list: &str, name: &str, mut entry: Value) -> Result<()> {
    entry["name"] = name.into();
    let slot = &mut config[list];
    if slot.is_null() {
        *slot = json!([]);
    }
    let Some(entries) = slot.as_array_mut() else { bail!("the kubeconfig's {list} is not a list") };
    match entries.iter_mut().find(|existing| existing["name"] == name) {
        Some(existing) => *existing = entry,
        None => entries.push(entry),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::KeyPair;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    fn access() -> Access {
        Access {
            name: "cox".into(),
            server: "https://127.0.0.1:6443".into(),
            ca: b"ca".into(),
            certificate: b"cert".into(),
            key: b"key".into(),
            _keys: None,
            servers: Vec::new(),
        }
    }

    /// Two who renew and merge at once: what is in the file is always a pair, and in the end the one that was signed last.
    #[test]
    fn a_certificate_goes_with_its_key_while_others_are_signed() {
        let dir = tempfile::tempdir().unwrap();
        let (keys, file) = (dir.path().join("pki"), dir.path().join("config"));
        let prepare = || Pki::prepare(&keys, Duration::from_secs(60), "n1", &["localhost".into()], &[]).unwrap();
        let pki = prepare();
        let put = || Access::admin("cox", "https://127.0.0.1:6443", &pki).unwrap().merge_into(&file).unwrap();
        let in_file = || -> (String, String) {
            let config = load(&file).unwrap();
            let user = &config["users"][0]["user"];
            let text = |field: &str| -> String {
                String::from_utf8(STANDARD.decode(user[field].as_str().unwrap()).unwrap()).unwrap()
            };
            (text("client-certificate-data"), text("client-key-data"))
        };
        put();
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..50 {
                    prepare();
                    put();
                }
                is_over.store(true, Ordering::Relaxed);
            });
            while !is_over.load(Ordering::Relaxed) {
                put();
                let (certificate, key) = in_file();
                let public = KeyPair::from_pem(&key).unwrap().public_key_raw().to_vec();
                let certificate = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).unwrap().1;
                let certified = certificate.parse_x509().unwrap().public_key().subject_public_key.data.to_vec();
                assert_eq!(certified, public);
            }
        });
        let last = fs::read_to_string(pki.certificate("admin")).unwrap();
        assert_eq!(in_file().0, last);
    }

    #[test]
    fn every_server_has_a_context() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        fs::write(&path, "contexts: [{name: coxen@1, context: {cluster: c}}]\n").unwrap();
        let names = |list: &str| -> Vec<String> {
            entries(&load(&path).unwrap(), list).map(|entry| entry["name"].as_str().unwrap().to_owned()).collect()
        };
        access().with_servers(vec!["192.0.2.1:6443".into(), "192.0.2.2:6443".into()]).merge_into(&path).unwrap();
        assert_eq!(names("clusters"), ["cox", "cox@192.0.2.1:6443", "cox@192.0.2.2:6443"]);
        // One goes, another comes; who does not know them leaves them alone.
        access().with_servers(vec!["192.0.2.2:6443".into(), "192.0.2.3:6443".into()]).merge_into(&path).unwrap();
        access().merge_into(&path).unwrap();
        assert_eq!(names("contexts"), ["coxen@1", "cox@192.0.2.2:6443", "cox", "cox@192.0.2.3:6443"]);
        assert_eq!(servers_in(&path, "cox").unwrap(), ["192.0.2.2:6443", "192.0.2.3:6443"]);
        let config = load(&path).unwrap();
        let third = entries(&config, "clusters").last().unwrap();
        assert_eq!(third["cluster"]["server"], "https://192.0.2.3:6443");
        assert_eq!(config["current-context"], "cox");
        remove_from(&path, "cox").unwrap();
        assert_eq!((names("clusters").len(), names("contexts")), (0, vec!["coxen@1".to_owned()]));
    }

    #[test]
    fn other_contexts_and_unknown_fields_survive() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        fs::write(
            &path,
            "apiVersion: v1\nkind: Config\ncurrent-context: prod\nextensions: [{name: x}]\nclusters:\n- name: prod\n  cluster: {server: https://prod, proxy-url: http://p}\ncontexts:\n- name: cox\n  context: {cluster: old, user: old, namespace: dev}\n",
        )
        .unwrap();
        access().merge_into(&path).unwrap();
        let config = load(&path).unwrap();
        assert_eq!(config["clusters"][0]["cluster"]["proxy-url"], "http://p");
        assert_eq!(config["extensions"][0]["name"], "x");
        assert_eq!(config["current-context"], "cox");
        assert_eq!(config["contexts"].as_array().unwrap().len(), 1);
        assert_eq!(config["contexts"][0]["context"], json!({"cluster": "cox", "user": "cox", "namespace": "dev"}));
        remove_from(&path, "cox").unwrap();
        let config = load(&path).unwrap();
        assert_eq!((entries(&config, "clusters").count(), entries(&config, "contexts").count()), (1, 0));
        assert_eq!(config["current-context"], "");
    }

    #[test]
    fn security_renewal_touches_our_user_as_the_owner_of_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { data_dir: dir.path().into(), run_dir: dir.path().join("run"), name: "cox".into() };
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let path = home.join("config");
        access().merge_into(&path).unwrap();
        let mut config = load(&path).unwrap();
        config["current-context"] = "other".into();
        save(&path, &config).unwrap();
        remember_user_file(&options, &path).unwrap();
        remember_user_file(&options, &path).unwrap();
        remember_user_file(&options, &home.join("gone/config")).unwrap();
        let renewed = Access { certificate: b"new".into(), ..access() };
        assert!(renew_user_files(&options, &renewed).unwrap().is_empty());
        let found = load(&path).unwrap();
        assert_eq!(found["users"][0]["user"]["client-certificate-data"], STANDARD.encode("new"));
        assert_eq!((&found["current-context"], &found["clusters"]), (&"other".into(), &config["clusters"]));

        // Tests run as root: what belongs to somebody else is written as them, and not by way of their links.
        let nobody = 65534;
        std::os::unix::fs::chown(dir.path(), Some(nobody), Some(nobody)).unwrap();
        std::os::unix::fs::chown(&home, Some(nobody), Some(nobody)).unwrap();
        std::os::unix::fs::chown(&path, Some(nobody), Some(nobody)).unwrap();
        assert!(renew_user_files(&options, &access()).unwrap().is_empty());
        assert_eq!(fs::metadata(&path).unwrap().uid(), nobody);
        let protected = tempfile::tempdir().unwrap();
        let target = protected.path().join("config");
        fs::rename(&path, &target).unwrap();
        std::os::unix::fs::chown(&target, Some(0), Some(0)).unwrap();
        std::os::unix::fs::symlink(&target, &path).unwrap();
        let before = fs::read(&target).unwrap();
        assert_eq!(renew_user_files(&options, &renewed).unwrap().len(), 1);
        assert_eq!(fs::read(&target).unwrap(), before);
    }

    #[test]
    fn a_file_that_is_not_a_kubeconfig_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["- a list\n", "clusters: 3\n", "{unclosed"] {
            fs::write(&path, text).unwrap();
            assert!(access().merge_into(&path).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    fn security_what_is_no_file_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("config");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(load(&pipe).unwrap_err().to_string().contains("config"));
        let endless = dir.path().join("endless");
        std::os::unix::fs::symlink("/dev/zero", &endless).unwrap();
        assert!(load(&endless).is_err());
        assert!(load(&dir.path().join("nothing")).is_ok());
    }
}

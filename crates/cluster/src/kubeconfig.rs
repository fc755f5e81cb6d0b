//! The user's kubeconfig: our context goes in, everything else in the file stays as it is.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::pki::{Pki, private_dir, write_private};

/// How to reach a cluster, and as whom.
pub(crate) struct Access {
    pub name: String,
    pub server: String,
    pub ca: Vec<u8>,
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

impl Access {
    pub(crate) fn admin(name: &str, server: &str, pki: &Pki) -> Result<Access> {
        Access::new(name, server, pki, "admin")
    }

    /// With one of the client certificates in a directory of keys.
    pub(crate) fn new(name: &str, server: &str, pki: &Pki, leaf: &str) -> Result<Access> {
        let read = |path: PathBuf| fs::read(&path).with_context(|| path.display().to_string());
        Ok(Access {
            name: name.to_owned(),
            server: server.to_owned(),
            ca: read(pki.certificate("ca"))?,
            certificate: read(pki.certificate(leaf))?,
            key: read(pki.key(leaf))?,
        })
    }

    /// Puts the cluster, its user and its context into the file and makes the context current.
    pub(crate) fn merge_into(&self, path: &Path) -> Result<()> {
        let mut config = load(path)?;
        upsert(
            &mut config,
            "clusters",
            &self.name,
            json!({"cluster": {"server": self.server, "certificate-authority-data": STANDARD.encode(&self.ca)}}),
        )?;
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
}

/// Takes the cluster, its user and its context out again; a missing file is fine.
pub(crate) fn remove_from(path: &Path, name: &str) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let mut config = load(path)?;
    for list in ["clusters", "users", "contexts"] {
        if let Some(entries) = config.get_mut(list).and_then(Value::as_array_mut) {
            entries.retain(|entry| entry["name"] != name);
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

fn load(path: &Path) -> Result<Value> {
    let text = match fs::read_to_string(path) {
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

    fn access() -> Access {
        Access {
            name: "cox".into(),
            server: "https://127.0.0.1:6443".into(),
            ca: b"ca".into(),
            certificate: b"cert".into(),
            key: b"key".into(),
        }
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
    fn a_file_that_is_not_a_kubeconfig_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config");
        for text in ["- a list\n", "clusters: 3\n", "{unclosed"] {
            fs::write(&path, text).unwrap();
            assert!(access().merge_into(&path).is_err(), "{text}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }
}

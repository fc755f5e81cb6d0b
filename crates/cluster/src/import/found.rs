//! What the files of another cluster say about it, before its objects are read.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::keys::{Authority, Keys, names_of, read};
use super::plan::System;
use crate::etcd::Etcd;

/// Where manifests of kubeadm say that files are, wherever the directory is now.
const KUBEADM_DIR: &str = "/etc/kubernetes";
/// An argument of k3s for its API server, which says whose the tokens are.
const ISSUER: &str = "service-account-issuer=";
/// Flags of a kubeadm API server that have their counterpart here, or none that matters.
const KNOWN: &[&str] = &[
    "advertise-address",
    "allow-privileged",
    "authorization-mode",
    "client-ca-file",
    "enable-admission-plugins",
    "enable-bootstrap-token-auth",
    "encryption-provider-config",
    "encryption-provider-config-automatic-reload",
    "etcd-cafile",
    "etcd-certfile",
    "etcd-keyfile",
    "etcd-prefix",
    "etcd-servers",
    "kubelet-client-certificate",
    "kubelet-client-key",
    "kubelet-preferred-address-types",
    "proxy-client-cert-file",
    "proxy-client-key-file",
    "requestheader-allowed-names",
    "requestheader-client-ca-file",
    "requestheader-extra-headers-prefix",
    "requestheader-group-headers",
    "requestheader-username-headers",
    "secure-port",
    "service-account-issuer",
    "service-account-key-file",
    "service-account-signing-key-file",
    "service-cluster-ip-range",
    "tls-cert-file",
    "tls-private-key-file",
];

pub(super) struct Found {
    pub system: System,
    pub keys: Keys,
    /// What the old servers sealed, and with what.
    pub encryption: Option<PathBuf>,
    pub objects: Objects,
    pub settings: Settings,
    /// Flags of the old API server that have no counterpart in what is taken over.
    pub other_flags: Vec<String>,
}

/// Where the objects are.
#[derive(Debug, PartialEq)]
pub(super) enum Objects {
    Etcd(Box<Etcd>),
    Snapshot(PathBuf),
    Kine(PathBuf),
}

/// What `cox up` is to be told, as far as files say it.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub service_cidr: Option<String>,
    pub cluster_cidr: Option<String>,
    pub cluster_domain: Option<String>,
    pub secure_port: Option<u16>,
    pub issuers: Vec<String>,
    /// Names that clients know the servers by.
    pub names: Vec<String>,
}

/// What the command line says about where objects are.
pub(super) struct Given<'g> {
    pub etcd: &'g Etcd,
    pub snapshot: Option<&'g Path>,
}

impl Given<'_> {
    fn objects(&self) -> Option<Objects> {
        match (self.snapshot, self.etcd.is_used()) {
            (Some(snapshot), _) => Some(Objects::Snapshot(snapshot.to_owned())),
            (None, true) => Some(Objects::Etcd(Box::new(self.etcd.clone()))),
            (None, false) => None,
        }
    }
}

/// The flags of a component, by name; some may be given several times.
#[derive(Debug, Default)]
struct Flags(BTreeMap<String, Vec<String>>);

impl Flags {
    /// From the manifest of a static pod.
    fn read(path: &Path) -> Result<Flags> {
        let text = read(path)?;
        let manifest = api::codec::from_yaml(text.as_bytes()).with_context(|| path.display().to_string())?.value;
        let container = &manifest["spec"]["containers"][0];
        let words = ["command", "args"].into_iter().flat_map(|field| container[field].as_array().into_iter().flatten());
        let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for word in words.filter_map(Value::as_str) {
            if let Some(flag) = word.strip_prefix("--") {
                let (name, value) = flag.split_once('=').unwrap_or((flag, "true"));
                flags.entry(name.to_owned()).or_default().push(value.to_owned());
            }
        }
        if flags.is_empty() {
            bail!("{} has no flags: is it a manifest of kubeadm?", path.display());
        }
        Ok(Flags(flags))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.last().map(String::as_str)
    }

    fn all(&self, name: &str) -> Vec<String> {
        let given = self.0.get(name).into_iter().flatten();
        given.flat_map(|value| value.split(',')).map(str::to_owned).collect()
    }
}

/// What kubeadm set up, with its directory at `dir` and the manifests at `manifests`.
pub(super) fn kubeadm(dir: &Path, manifests: &Path, given: &Given<'_>) -> Result<Found> {
    let manifest = manifests.join("kube-apiserver.yaml");
    if !is_there(&manifest)? {
        bail!("{} is not there: if it was moved to stop the server, say where to with --manifests", manifest.display());
    }
    let flags = Flags::read(&manifest)?;
    let controllers = manifests.join("kube-controller-manager.yaml");
    let controllers = if is_there(&controllers)? { Flags::read(&controllers)? } else { Flags::default() };
    let here = |path: &str| match Path::new(path).strip_prefix(KUBEADM_DIR) {
        Ok(rest) => dir.join(rest),
        Err(_) => PathBuf::from(path),
    };
    let file =
        |flags: &Flags, name: &str, usual: &str| flags.get(name).map_or_else(|| dir.join("pki").join(usual), here);
    let signing = (
        file(&controllers, "cluster-signing-cert-file", "ca.crt"),
        file(&controllers, "cluster-signing-key-file", "ca.key"),
    );
    let front_proxy = file(&flags, "requestheader-client-ca-file", "front-proxy-ca.crt");
    let clients = file(&flags, "client-ca-file", "ca.crt");
    let others = if read(&clients)? == read(&signing.0)? { Vec::new() } else { vec![clients] };
    let authority = Authority::read(&signing.0, &signing.1, &others)?;
    let front_proxy = Authority::read(&front_proxy, &front_proxy.with_extension("key"), &[])?;
    let verifying: Vec<PathBuf> = flags.all("service-account-key-file").iter().map(|path| here(path)).collect();
    let keys =
        Keys::new(authority, front_proxy, &file(&flags, "service-account-signing-key-file", "sa.key"), &verifying)?;
    let serving = file(&flags, "tls-cert-file", "apiserver.crt");
    let etcd = Etcd {
        etcd_servers: flags.all("etcd-servers"),
        etcd_cafile: flags.get("etcd-cafile").map(here),
        etcd_certfile: flags.get("etcd-certfile").map(here),
        etcd_keyfile: flags.get("etcd-keyfile").map(here),
        etcd_prefix: flags.get("etcd-prefix").map(str::to_owned),
    };
    let is_other = |name: &&String| !KNOWN.contains(&name.as_str());
    let other_flags = flags.0.keys().filter(is_other).map(|name| format!("--{name}={}", flags.all(name).join(",")));
    Ok(Found {
        system: System::Kubeadm,
        keys,
        encryption: flags.get("encryption-provider-config").map(here),
        objects: given.objects().unwrap_or_else(|| Objects::Etcd(Box::new(etcd))),
        settings: Settings {
            service_cidr: flags.get("service-cluster-ip-range").map(str::to_owned),
            cluster_cidr: controllers.get("cluster-cidr").map(str::to_owned),
            cluster_domain: None,
            secure_port: flags.get("secure-port").map(str::parse).transpose().context("--secure-port")?,
            issuers: flags.all("service-account-issuer"),
            names: names_of(read(&serving)?.as_bytes()).with_context(|| serving.display().to_string())?,
        },
        other_flags: other_flags.collect(),
    })
}

/// What k3s set up, with its server's directory at `dir` and its configuration in `config`, which need not be there.
pub(super) fn k3s(dir: &Path, config: &Path, given: &Given<'_>) -> Result<Found> {
    let tls = dir.join("tls");
    if !tls.is_dir() {
        bail!("{} is not there: is {} the directory of a k3s server?", tls.display(), dir.display());
    }
    let config = K3sConfig::read(config)?;
    let file = |name: &str| tls.join(name);
    // Certificates of clients are signed by another authority than those of servers: both are trusted, and that of servers
    // signs from now on, since it is the one that clients know.
    let authority = Authority::read(&file("server-ca.crt"), &file("server-ca.key"), &[file("client-ca.crt")])?;
    let front_proxy = Authority::read(&file("request-header-ca.crt"), &file("request-header-ca.key"), &[])?;
    let (verifying, current) = (file("service.key"), file("service.current.key"));
    let signing = if is_there(&current)? { current } else { verifying.clone() };
    let keys = Keys::new(authority, front_proxy, &signing, &[verifying])?;
    let encryption = dir.join("cred/encryption-config.json");
    let encryption = is_there(&encryption)?.then_some(encryption);
    let given_flags = config.list("kube-apiserver-arg");
    let mut names = config.list("tls-san");
    let mut certificates = vec![fs::read(file("serving-kube-apiserver.crt")).unwrap_or_default()];
    certificates.extend(listener_certificate(&file("dynamic-cert.json"))?);
    for pem in certificates.iter().filter(|pem| !pem.is_empty()) {
        names.extend(names_of(pem)?);
    }
    names.sort();
    names.dedup();
    Ok(Found {
        system: System::K3s,
        keys,
        encryption,
        objects: match given.objects() {
            Some(given) => given,
            None => k3s_objects(dir, &config)?,
        },
        settings: Settings {
            service_cidr: Some(config.get("service-cidr").unwrap_or("10.43.0.0/16".to_owned())),
            cluster_cidr: Some(config.get("cluster-cidr").unwrap_or("10.42.0.0/16".to_owned())),
            cluster_domain: Some(config.get("cluster-domain").unwrap_or("cluster.local".to_owned())),
            secure_port: config
                .get("https-listen-port")
                .map(|port| port.parse())
                .transpose()
                .context("https-listen-port")?,
            // Tokens name it, and would not count without it.
            issuers: given_flags.iter().filter_map(|flag| flag.strip_prefix(ISSUER)).map(str::to_owned).collect(),
            names,
        },
        other_flags: given_flags
            .iter()
            .filter(|flag| !flag.starts_with(ISSUER))
            .map(|flag| format!("--{flag}"))
            .collect(),
    })
}

fn k3s_objects(dir: &Path, config: &K3sConfig) -> Result<Objects> {
    if let Some(endpoint) = config.get("datastore-endpoint") {
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            // The rest has a password.
            let kind = endpoint.split_once("://").map_or("of an unknown kind", |(kind, _)| kind);
            bail!(
                "the objects are in a database ({kind}), which cannot be read here: move them into SQLite or etcd first"
            );
        }
        let file = |name: &str| config.get(name).map(PathBuf::from);
        return Ok(Objects::Etcd(Box::new(Etcd {
            etcd_servers: endpoint.split(',').map(str::to_owned).collect(),
            etcd_cafile: file("datastore-cafile"),
            etcd_certfile: file("datastore-certfile"),
            etcd_keyfile: file("datastore-keyfile"),
            etcd_prefix: None,
        })));
    }
    let (database, members) = (dir.join("db/state.db"), dir.join("db/etcd"));
    if members.is_dir() {
        let file = |name: &str| Some(dir.join("tls/etcd").join(name));
        return Ok(Objects::Etcd(Box::new(Etcd {
            etcd_servers: vec!["https://127.0.0.1:2379".to_owned()],
            etcd_cafile: file("server-ca.crt"),
            etcd_certfile: file("client.crt"),
            etcd_keyfile: file("client.key"),
            etcd_prefix: None,
        })));
    }
    if !is_there(&database)? {
        bail!("{} has neither db/state.db nor db/etcd: where are its objects?", dir.display());
    }
    Ok(Objects::Kine(database))
}

/// What cannot be looked at is not absent.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().with_context(|| path.display().to_string())
}

/// The certificate that k3s shows on its port, which it keeps as a Secret in a file.
fn listener_certificate(path: &Path) -> Result<Option<Vec<u8>>> {
    if !is_there(path)? {
        return Ok(None);
    }
    let secret: Value = serde_json::from_str(&read(path)?).with_context(|| path.display().to_string())?;
    let Some(text) = secret["data"]["tls.crt"].as_str() else { return Ok(None) };
    Ok(Some(STANDARD.decode(text).with_context(|| path.display().to_string())?))
}

/// `config.yaml` and the files of `config.yaml.d` over it.
#[derive(Debug, Default)]
struct K3sConfig(BTreeMap<String, Value>);

impl K3sConfig {
    fn read(path: &Path) -> Result<K3sConfig> {
        let mut files = Vec::from_iter(is_there(path)?.then(|| path.to_owned()));
        let mut further = path.as_os_str().to_owned();
        further.push(".d");
        let further = PathBuf::from(further);
        if is_there(&further)? {
            let entries = fs::read_dir(&further).with_context(|| further.display().to_string())?;
            let mut found: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
            found.retain(|path| path.extension().is_some_and(|end| end == "yaml" || end == "yml"));
            found.sort();
            files.extend(found);
        }
        let mut all = BTreeMap::new();
        for file in files {
            let text = read(&file)?;
            let found = api::codec::from_yaml(text.as_bytes()).with_context(|| file.display().to_string())?.value;
            for (name, value) in found.as_object().into_iter().flatten() {
                // With a plus, a value comes beside those of earlier files.
                match name.strip_suffix('+') {
                    Some(name) => {
                        let mut together = list(all.get(name).unwrap_or(&Value::Null));
                        together.extend(list(value));
                        all.insert(name.to_owned(), together.into());
                    }
                    None => drop(all.insert(name.to_owned(), value.clone())),
                }
            }
        }
        Ok(K3sConfig(all))
    }

    /// As text; ranges of two families may be a list.
    fn get(&self, name: &str) -> Option<String> {
        let all = self.list(name);
        (!all.is_empty()).then(|| all.join(","))
    }

    fn list(&self, name: &str) -> Vec<String> {
        list(self.0.get(name).unwrap_or(&Value::Null))
    }
}

fn list(value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Array(all) => all.iter().flat_map(list).collect(),
        Value::String(text) => text.split(',').map(|part| part.trim().to_owned()).collect(),
        other => vec![other.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_of_k3s_are_read_over_each_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        assert!(K3sConfig::read(&path).unwrap().0.is_empty());
        fs::write(
            &path,
            "cluster-cidr: 10.1.0.0/16\nservice-cidr: [10.2.0.0/16, 'fd02::/112']\ntls-san: [a.example]\n",
        )
        .unwrap();
        fs::create_dir(dir.path().join("config.yaml.d")).unwrap();
        let more = "cluster-cidr: 10.9.0.0/16\ntls-san+: b.example\nhttps-listen-port: 7443\n";
        fs::write(dir.path().join("config.yaml.d/1.yaml"), more).unwrap();
        let config = K3sConfig::read(&path).unwrap();
        for (name, expected) in [
            ("cluster-cidr", Some("10.9.0.0/16")),
            ("service-cidr", Some("10.2.0.0/16,fd02::/112")),
            ("tls-san", Some("a.example,b.example")),
            ("https-listen-port", Some("7443")),
            ("datastore-endpoint", None),
        ] {
            assert_eq!(config.get(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn objects_of_k3s_are_found_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let with = |endpoint: Option<&str>| {
            let config = endpoint.map(|endpoint| ("datastore-endpoint".to_owned(), Value::from(endpoint)));
            k3s_objects(dir.path(), &K3sConfig(config.into_iter().collect())).map_err(|error| error.to_string())
        };
        assert!(with(None).unwrap_err().contains("where are its objects?"));
        assert!(with(Some("mysql://a:b@tcp(h)/k")).unwrap_err().contains("a database (mysql)"));
        assert!(!with(Some("user:password@tcp(h)/k")).unwrap_err().contains("password"));
        let Ok(Objects::Etcd(etcd)) = with(Some("http://a:2379,http://b:2379")) else { panic!() };
        assert_eq!(etcd.etcd_servers.len(), 2);
        fs::create_dir_all(dir.path().join("db")).unwrap();
        fs::write(dir.path().join("db/state.db"), "").unwrap();
        assert_eq!(with(None), Ok(Objects::Kine(dir.path().join("db/state.db"))));
        fs::create_dir_all(dir.path().join("db/etcd")).unwrap();
        assert!(matches!(with(None), Ok(Objects::Etcd(_))));
    }

    #[test]
    fn flags_of_static_pods_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kube-apiserver.yaml");
        let command = "[kube-apiserver, --secure-port=6443, --a=1, --a=2, --profiling]";
        fs::write(&path, format!("spec:\n  containers:\n  - command: {command}\n")).unwrap();
        let flags = Flags::read(&path).unwrap();
        assert_eq!(
            (flags.get("secure-port"), flags.get("profiling"), flags.get("b")),
            (Some("6443"), Some("true"), None)
        );
        assert_eq!(flags.all("a"), ["1", "2"]);
        fs::write(&path, "kind: Pod\n").unwrap();
        assert!(Flags::read(&path).unwrap_err().to_string().contains("has no flags"));
    }
}

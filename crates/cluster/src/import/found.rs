//! What the files of another cluster say about it, before its objects are read.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::keys::{Authority, Keys, names_of, read};
use super::plan::System;
use super::service::{self, is_there};
use crate::etcd::Etcd;

/// Where manifests of kubeadm say that files are, wherever the directory is now.
const KUBEADM_DIR: &str = "/etc/kubernetes";
/// An argument of k3s for its API server, which says whose the tokens are.
const ISSUER: &str = "service-account-issuer=";
/// The database of k3s, in the directory of its server.
const DATABASE: &str = "db/state.db";
/// The port of an API server that is told of none.
const SECURE_PORT: u16 = 6443;
/// A database may be older than what k3s writes when it starts, by no more than a start takes.
const START_TIME: Duration = Duration::from_secs(60);
/// Flags of k3s that come beside those of its configuration, rather than instead.
const LISTS: [&str; 2] = ["kube-apiserver-arg", "tls-san"];
/// Variables that k3s takes for flags.
const VARIABLES: [(&str, &str); 4] = [
    ("K3S_DATASTORE_ENDPOINT", "datastore-endpoint"),
    ("K3S_DATASTORE_CAFILE", "datastore-cafile"),
    ("K3S_DATASTORE_CERTFILE", "datastore-certfile"),
    ("K3S_DATASTORE_KEYFILE", "datastore-keyfile"),
];
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
    /// Where the API server of this machine listens, if it runs.
    pub listens: Option<SocketAddr>,
    /// The flags that keep API servers from writing down that they run, if both are given.
    pub silent: Option<&'static str>,
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

    /// What keeps an API server from writing down that it runs: it has neither a lease for the `kubernetes` service nor one of
    /// its identity.
    fn silence(&self) -> Option<&'static str> {
        let gates = self.all("feature-gates");
        let is = |gate: &str| gates.iter().any(|given| given == gate);
        let has_identity = !is("APIServerIdentity=false") && (!is("AllBeta=false") || is("APIServerIdentity=true"));
        let has_lease = self.get("endpoint-reconciler-type").is_none_or(|kind| kind == "lease");
        (!has_identity && !has_lease)
            .then_some("--endpoint-reconciler-type and --feature-gates=APIServerIdentity=false")
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
    let secure_port: Option<u16> = flags.get("secure-port").map(str::parse).transpose().context("--secure-port")?;
    let address: Option<IpAddr> =
        flags.get("advertise-address").map(str::parse).transpose().context("--advertise-address")?;
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
            secure_port,
            issuers: flags.all("service-account-issuer"),
            names: names_of(read(&serving)?.as_bytes()).with_context(|| serving.display().to_string())?,
        },
        other_flags: other_flags.collect(),
        listens: Some((address.unwrap_or(Ipv4Addr::LOCALHOST.into()), secure_port.unwrap_or(SECURE_PORT)).into()),
        silent: flags.silence(),
    })
}

/// Where k3s has what.
pub(super) struct K3sFiles<'f> {
    /// The directory of its server.
    pub dir: &'f Path,
    /// Its configuration, which need not be there.
    pub config: &'f Path,
    /// The unit of systemd, likewise.
    pub service: Option<PathBuf>,
    /// The database counts, whatever else says.
    pub sqlite: bool,
}

/// What k3s set up.
pub(super) fn k3s(files: &K3sFiles<'_>, given: &Given<'_>) -> Result<Found> {
    let dir = files.dir;
    let tls = dir.join("tls");
    if !tls.is_dir() {
        bail!("{} is not there: is {} the directory of a k3s server?", tls.display(), dir.display());
    }
    let mut config = K3sConfig::read(files.config)?;
    if let Some(unit) = &files.service {
        config.started_by(service::read(unit)?);
    }
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
    let serving = file("serving-kube-apiserver.crt");
    let serving = is_there(&serving)?.then(|| read(&serving)).transpose()?.map(String::into_bytes);
    for pem in serving.into_iter().chain(listener_certificate(&file("dynamic-cert.json"))?) {
        names.extend(names_of(&pem)?);
    }
    names.compact_sort();
    names.dedup();
    Ok(Found {
        system: System::K3s,
        keys,
        encryption,
        objects: match given.objects() {
            Some(given) => given,
            None if files.sqlite => Objects::Kine(dir.join(DATABASE)),
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
        // Its database says who has it open, and of an etcd, k3s' servers write down that they run.
        listens: None,
        silent: None,
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
    let (database, members) = (dir.join(DATABASE), dir.join("db/etcd"));
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
    refuse_stale(dir, &database)?;
    Ok(Objects::Kine(database))
}

/// Fails if k3s was started since it last wrote to its database: it keeps its objects elsewhere now. While it runs it writes
/// all the time, and what it writes when it starts is never much newer.
fn refuse_stale(dir: &Path, database: &Path) -> Result<()> {
    let mut log = database.as_os_str().to_owned();
    log.push("-wal");
    let last = changed(database)?.max(changed(Path::new(&log))?);
    let mut files = vec![dir.with_file_name("agent/etc/containerd/config.toml")];
    for dir in [dir.join("tls"), dir.join("cred")] {
        files.extend(service::files_in(&dir)?);
    }
    for file in files {
        if changed(&file)? > last.map(|last| last + START_TIME) {
            bail!(
                "{} is newer than {}: k3s was started since it last wrote there, and keeps its objects elsewhere. Name that \
                 etcd with --etcd-servers; if the database is current all the same, say --sqlite",
                file.display(),
                database.display()
            );
        }
    }
    Ok(())
}

/// When a file was last written; none if it is not there.
fn changed(path: &Path) -> Result<Option<SystemTime>> {
    match fs::metadata(path) {
        Ok(found) => Ok(Some(found.modified()?)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
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
        let mut all = BTreeMap::new();
        for file in service::with_drop_ins(path, &["yaml", "yml"])? {
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

    /// What systemd adds: flags count more than files, and variables less.
    fn started_by(&mut self, start: service::Start) {
        for (name, values) in start.flags {
            let mut all = match LISTS.contains(&name.as_str()) {
                true => self.list(&name),
                false => Vec::new(),
            };
            all.extend(values);
            self.0.insert(name, all.into());
        }
        for (variable, flag) in VARIABLES {
            if let (Some(value), false) = (start.environment.get(variable), self.0.contains_key(flag)) {
                self.0.insert(flag.to_owned(), value.as_str().into());
            }
        }
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
    fn a_database_that_k3s_has_left_is_not_its_own_any_more() {
        let dir = tempfile::tempdir().unwrap();
        let server = dir.path().join("server");
        for dir in [server.join("db"), server.join("tls"), dir.path().join("agent/etc/containerd")] {
            fs::create_dir_all(dir).unwrap();
        }
        let [database, log] = ["db/state.db", "db/state.db-wal"].map(|name| server.join(name));
        let [key, start] = [server.join("tls/service.key"), dir.path().join("agent/etc/containerd/config.toml")];
        let now = SystemTime::now();
        let write = |path: &Path, age: u64| {
            let file = fs::File::create(path).unwrap();
            file.set_modified(now - Duration::from_secs(age)).unwrap();
        };
        let objects = || k3s_objects(&server, &K3sConfig::default()).map_err(|error| error.to_string());
        write(&database, 7000);
        write(&key, 9000);
        assert_eq!(objects(), Ok(Objects::Kine(database.clone())));
        write(&start, 6970);
        assert!(objects().is_ok(), "while it starts");
        write(&start, 3000);
        let refused = objects().unwrap_err();
        assert!(refused.contains("config.toml is newer") && refused.contains("--sqlite"), "{refused}");
        write(&log, 10);
        assert!(objects().is_ok(), "what is written is in the log");
        write(&log, 7000);
        write(&start, 8000);
        write(&key, 60);
        assert!(objects().unwrap_err().contains("service.key is newer"));
    }

    #[test]
    fn flags_of_the_service_count_more_than_files_and_variables_less() {
        let start = |flags: &[(&str, &[&str])], environment: &[(&str, &str)]| service::Start {
            flags: flags
                .iter()
                .map(|(name, values)| ((*name).to_owned(), values.iter().map(|value| (*value).to_owned()).collect()))
                .collect(),
            environment: environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
        };
        let file = || {
            K3sConfig([("cluster-cidr".to_owned(), "10.1.0.0/16".into()), ("tls-san".to_owned(), "a".into())].into())
        };
        let mut config = file();
        config.started_by(start(
            &[("cluster-cidr", &["10.9.0.0/16"]), ("tls-san", &["b"])],
            &[("K3S_DATASTORE_ENDPOINT", "http://e:2379"), ("K3S_TOKEN", "t")],
        ));
        assert_eq!(config.get("cluster-cidr").as_deref(), Some("10.9.0.0/16"));
        assert_eq!(config.list("tls-san"), ["a", "b"]);
        assert_eq!(config.get("datastore-endpoint").as_deref(), Some("http://e:2379"));
        let mut config = file();
        config.started_by(start(
            &[("datastore-endpoint", &["http://flag:2379"])],
            &[("K3S_DATASTORE_ENDPOINT", "http://variable:2379")],
        ));
        assert_eq!(config.get("datastore-endpoint").as_deref(), Some("http://flag:2379"));
    }

    #[test]
    fn servers_that_write_down_nothing_are_known_by_their_flags() {
        let flags = |given: &[(&str, &str)]| {
            Flags(given.iter().map(|(name, value)| ((*name).to_owned(), vec![(*value).to_owned()])).collect())
        };
        let (none, off) = (("endpoint-reconciler-type", "none"), ("feature-gates", "A=true,APIServerIdentity=false"));
        for (given, is_silent) in [
            (&[][..], false),
            (&[none], false),
            (&[off], false),
            (&[none, off], true),
            (&[none, ("feature-gates", "AllBeta=false")], true),
            (&[none, ("feature-gates", "AllBeta=false,APIServerIdentity=true")], false),
            (&[("endpoint-reconciler-type", "lease"), off], false),
        ] {
            assert_eq!(flags(given).silence().is_some(), is_silent, "{given:?}");
        }
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

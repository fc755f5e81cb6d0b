//! What a machine must have to become a server of a cluster: its authorities, the keys of tokens and of what is encrypted,
//! and the way to its etcd.
//!
//! Flow: `cox token create --server` seals it with a key that is in no store and no file, and puts it into a Secret that
//! goes with the token ([`offer`]) -> `cox join --server` fetches it as that token over a verified connection, opens it with
//! the key that a person carried over, and takes the Secret away ([`fetch`], [`discard`]).
//! Invariants: who reads the cluster's Secrets learns nothing; an offer ends with its token and is taken once.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail};
use api::cidr::Cidr;
use api::meta::Meta as _;
use client::{Client, DeleteParams, ListParams, Patch};
use cni::routes::Backend;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Salt};
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::token::{NAMESPACE, Token};
use crate::component_configs::ComponentConfigs;
use crate::etcd::Etcd;
use crate::ha::Ha;
use crate::options::Options;
use crate::pki::{Pki, private_dir, write_private};
use crate::role::{GROUP, MANAGER};
use crate::shape::{Flags, Machine, families};

/// Those who come with such a token may fetch what is offered to it, and nothing else.
pub(crate) const SERVERS_GROUP: &str = "system:bootstrappers:cox:servers";

const KEY_LENGTH: usize = 32;
const FIELD: &str = "bundle";
/// Below the directory of keys, on every server.
const FILES: [&str; 7] =
    ["ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key", "sa.pub", "encryption.yaml"];
/// The same, where a server that joined keeps what the flags for etcd name.
const ETCD_FILES: [(&str, &str); 3] =
    [("etcd-cafile", "etcd-ca.crt"), ("etcd-certfile", "etcd-client.crt"), ("etcd-keyfile", "etcd-client.key")];

/// The same, where servers run etcd's members: each signs its own certificates.
const MEMBER_FILES: [&str; 2] = ["etcd-ca.crt", "etcd-ca.key"];

/// What opens an offer; carried over by a person.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerKey([u8; KEY_LENGTH]);

impl ServerKey {
    fn generate() -> Result<ServerKey> {
        let mut key = [0; KEY_LENGTH];
        SystemRandom::new().fill(&mut key).ok().context("the system has no random bytes")?;
        Ok(ServerKey(key))
    }

    /// One that all servers of a cluster make, for one purpose: by the key of the authority that only they have.
    pub(crate) fn of_servers(pki: &Path, purpose: &str) -> Result<ServerKey> {
        let path = Pki::open(pki).key("front-proxy-ca");
        let secret = fs::read(&path).with_context(|| path.display().to_string())?;
        Self::derived(&secret, purpose)
    }

    /// One that everybody makes who has the secret, for one purpose.
    fn derived(secret: &[u8], purpose: &str) -> Result<ServerKey> {
        let mut key = [0; KEY_LENGTH];
        let expanded = Salt::new(HKDF_SHA256, &[]).extract(secret);
        let filled = expanded.expand(&[purpose.as_bytes()], HKDF_SHA256).and_then(|made| made.fill(&mut key));
        filled.ok().context("deriving a key")?;
        Ok(ServerKey(key))
    }

    /// A nonce, then what is sealed; bound to a name.
    pub(crate) fn seal(&self, name: &str, plain: &[u8]) -> Result<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).ok().context("the system has no random bytes")?;
        let mut sealed = plain.to_vec();
        let done = self.cipher()?.seal_in_place_append_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(name.as_bytes()),
            &mut sealed,
        );
        done.ok().context("sealing the keys of servers")?;
        Ok([&nonce[..], &sealed].concat())
    }

    pub(crate) fn open(&self, name: &str, sealed: Vec<u8>) -> Result<Vec<u8>> {
        let (nonce, sealed) = sealed.split_at_checked(NONCE_LEN).context("it is too short")?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok().context("it has no nonce")?;
        let mut plain = sealed.to_vec();
        let opened = self.cipher()?.open_in_place(nonce, Aad::from(name.as_bytes()), &mut plain);
        let length = opened.ok().context("it was sealed with another key, or under another name")?.len();
        plain.truncate(length);
        Ok(plain)
    }

    fn cipher(&self) -> Result<LessSafeKey> {
        Ok(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &self.0).ok().context("making a cipher")?))
    }
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKey")
    }
}

/// A text that is no server key. It is not repeated: it may be almost a secret.
#[derive(Debug, thiserror::Error)]
#[error("a server key has {} hexadecimal digits", 2 * KEY_LENGTH)]
pub(crate) struct BadServerKey;

impl FromStr for ServerKey {
    type Err = BadServerKey;

    fn from_str(text: &str) -> Result<ServerKey, BadServerKey> {
        if text.len() != 2 * KEY_LENGTH || !text.is_ascii() {
            return Err(BadServerKey);
        }
        let mut key = [0; KEY_LENGTH];
        for (index, byte) in key.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).map_err(|_| BadServerKey)?;
        }
        Ok(ServerKey(key))
    }
}

/// Everything that servers of a cluster have in common. What a server of an older version does not send has its default.
#[derive(Serialize, Deserialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Bundle {
    /// Contents by name below the directory of keys.
    files: BTreeMap<String, String>,
    etcd_servers: Vec<String>,
    etcd_prefix: Option<String>,
    /// Whether servers run etcd's members.
    #[serde(default)]
    ha: bool,
    #[serde(default)]
    etcd_snapshot_interval: Option<String>,
    secure_port: Option<u16>,
    cluster_cidr: Option<String>,
    service_cidr: Option<String>,
    cluster_domain: Option<String>,
    routes: Option<Backend>,
    /// A server that sent in plain text what others encrypt would reach nobody.
    #[serde(default)]
    encrypt: Option<bool>,
    #[serde(default)]
    encrypt_port: Option<u16>,
    #[serde(default)]
    encrypt_rotation: Option<String>,
    #[serde(default)]
    certificate_validity: Option<String>,
    /// A token is good with every server, or with none.
    #[serde(default)]
    service_account_issuer: Vec<String>,
    #[serde(default)]
    tls_san: Vec<String>,
    /// The pool of Gateways was checked against it.
    #[serde(default)]
    node_cidr: Option<String>,
    /// Whichever server leads serves Gateways and services of type LoadBalancer, with the addresses that they have.
    #[serde(default)]
    gateway: Option<bool>,
    #[serde(default)]
    gateway_http_port: Option<u16>,
    #[serde(default)]
    gateway_https_port: Option<u16>,
    #[serde(default)]
    gateway_address_pool: Vec<Cidr>,
    #[serde(default)]
    load_balancer: Option<bool>,
    /// What one server admits, audits or asks of a user, no other may let pass.
    #[serde(default)]
    components: Option<ComponentConfigs>,
}

impl Bundle {
    /// Of the server on this machine.
    fn gather(options: &Options) -> Result<Bundle> {
        // Every setting is named, so that whoever adds one decides whether all servers must have the same.
        let Flags {
            machine: _,
            etcd,
            ha,
            backups: _,
            components,
            secure_port,
            cluster_cidr,
            service_cidr,
            cluster_domain,
            nodes: _,
            node_cidr,
            routes,
            encrypt,
            encrypt_port,
            encrypt_rotation,
            gateway,
            gateway_http_port,
            gateway_https_port,
            gateway_address_pool,
            certificate_validity,
            load_balancer,
            tracing_config_file: _,
            tls_san,
            service_account_issuer,
            remote_write: _,
        } = Flags::remembered(options)?;
        if !etcd.is_used() {
            bail!(
                "this cluster has a store of its own, which only this server can write to: several servers need \
                 'cox up --ha' or 'cox up --etcd-servers', and 'cox store move' makes this cluster one of them"
            );
        }
        let read = |path: &Path| fs::read_to_string(path).with_context(|| path.display().to_string());
        let mut files = BTreeMap::new();
        for name in FILES {
            files.insert(name.to_owned(), read(&options.pki_dir().join(name))?);
        }
        for name in MEMBER_FILES.into_iter().filter(|_| ha.ha) {
            files.insert(name.to_owned(), read(&options.pki_dir().join(name))?);
        }
        for (flag, path) in etcd.files().filter(|_| !ha.ha) {
            let named = ETCD_FILES.iter().find(|(known, _)| *known == flag).map(|(_, name)| *name);
            files.insert(named.context("a file of etcd without a name")?.to_owned(), read(path)?);
        }
        Ok(Bundle {
            files,
            etcd_servers: etcd.etcd_servers,
            etcd_prefix: etcd.etcd_prefix,
            ha: ha.ha,
            etcd_snapshot_interval: ha.etcd_snapshot_interval,
            secure_port,
            cluster_cidr,
            service_cidr,
            cluster_domain,
            routes,
            encrypt,
            encrypt_port,
            encrypt_rotation,
            certificate_validity,
            service_account_issuer,
            tls_san,
            node_cidr,
            gateway,
            gateway_http_port,
            gateway_https_port,
            gateway_address_pool,
            load_balancer,
            components,
        })
    }

    /// Whether each family of addresses that nodes of the cluster have is IPv6.
    pub(crate) fn families(&self) -> Vec<bool> {
        families(self.cluster_cidr.as_deref().unwrap_or_default())
    }

    /// Puts the files where a server has them; returns what `cox up` would have been told here.
    pub(crate) fn unpack(self, options: &Options, machine: Machine, etcd_binary: Option<PathBuf>) -> Result<Flags> {
        let dir = options.pki_dir();
        private_dir(&dir)?;
        let known = |name: &str| match self.ha {
            true => FILES.contains(&name) || MEMBER_FILES.contains(&name),
            false => FILES.contains(&name) || ETCD_FILES.iter().any(|(_, known)| *known == name),
        };
        // Names become paths.
        if let Some(other) = self.files.keys().find(|name| !known(name)) {
            bail!("the cluster sent a file that no server has: {other:?}");
        }
        let members = MEMBER_FILES.iter().filter(|_| self.ha);
        if let Some(missing) = FILES.iter().chain(members).find(|name| !self.files.contains_key(**name)) {
            bail!("the cluster did not send {missing}");
        }
        for (name, content) in &self.files {
            write_private(&dir.join(name), content.as_bytes())?;
        }
        let [ca, certificate, key] = ETCD_FILES.map(|(_, name)| self.files.contains_key(name).then(|| dir.join(name)));
        let etcd = Etcd {
            etcd_servers: self.etcd_servers,
            etcd_cafile: ca,
            etcd_certfile: certificate,
            etcd_keyfile: key,
            etcd_prefix: self.etcd_prefix,
        };
        let ha = Ha {
            ha: self.ha,
            etcd_binary: etcd_binary.filter(|_| self.ha),
            etcd_snapshot_interval: self.etcd_snapshot_interval,
        };
        Ok(Flags {
            machine,
            etcd,
            ha,
            secure_port: self.secure_port,
            cluster_cidr: self.cluster_cidr,
            service_cidr: self.service_cidr,
            cluster_domain: self.cluster_domain,
            routes: self.routes,
            encrypt: self.encrypt,
            encrypt_port: self.encrypt_port,
            encrypt_rotation: self.encrypt_rotation,
            certificate_validity: self.certificate_validity,
            service_account_issuer: self.service_account_issuer,
            tls_san: self.tls_san,
            node_cidr: self.node_cidr,
            gateway: self.gateway,
            gateway_http_port: self.gateway_http_port,
            gateway_https_port: self.gateway_https_port,
            gateway_address_pool: self.gateway_address_pool,
            load_balancer: self.load_balancer,
            components: self.components,
            ..Flags::default()
        })
    }
}

/// The name of everything that goes with a token.
fn name(id: &str) -> String {
    format!("cox-server-{id}")
}

/// Offers what servers have in common to who comes with a token; `owner` is the token's Secret. Returns the key to it.
pub(crate) async fn offer(client: &Client, options: &Options, token: &Token, owner: &Secret) -> Result<ServerKey> {
    let key = ServerKey::generate()?;
    let sealed = key.seal(&token.id, &serde_json::to_vec(&Bundle::gather(options)?)?)?;
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Secret".into(),
        name: owner.metadata.name().to_owned(),
        uid: owner.metadata.uid().to_owned(),
        ..OwnerReference::default()
    };
    let name = name(&token.id);
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(NAMESPACE.into()),
            owner_references: Some(vec![owner.clone()]),
            ..ObjectMeta::default()
        },
        data: Some([(FIELD.to_owned(), ByteString(sealed))].into()),
        ..Secret::default()
    };
    client.namespaced::<Secret>(NAMESPACE).create(&secret).await.context("offering the keys of servers")?;
    let metadata = json!({"name": name, "namespace": NAMESPACE, "ownerReferences": [owner]});
    let version = format!("{GROUP}/v1");
    let rule =
        json!({"apiGroups": [""], "resources": ["secrets"], "resourceNames": [name], "verbs": ["get", "delete"]});
    let role = json!({"apiVersion": version, "kind": "Role", "metadata": metadata, "rules": [rule]});
    let binding = json!({
        "apiVersion": version,
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": name},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": format!("system:bootstrap:{}", token.id)}],
    });
    client.namespaced::<Role>(NAMESPACE).patch(&name, &Patch::apply(MANAGER, role).force()).await?;
    client.namespaced::<RoleBinding>(NAMESPACE).patch(&name, &Patch::apply(MANAGER, binding).force()).await?;
    Ok(key)
}

/// What was offered to a token.
pub(crate) async fn fetch(client: &Client, token: &Token, key: &ServerKey) -> Result<Bundle> {
    let found = client.namespaced::<Secret>(NAMESPACE).get(&name(&token.id)).await;
    let found = found.context("nothing is offered to this token: was it made with 'cox token create --server'?")?;
    let sealed = found.data.unwrap_or_default().remove(FIELD).context("what is offered to this token is empty")?;
    let plain = key.open(&token.id, sealed.0).context("the server key does not fit this token")?;
    serde_json::from_slice(&plain).context("reading the keys of servers")
}

/// Takes all offers away: the keys in them are about to be others.
pub(crate) async fn withdraw_offers(client: &Client) -> Result<()> {
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    let listed = secrets.list(&ListParams::default()).await.context("looking for offers to servers")?;
    let names = listed.items.iter().filter_map(|secret| secret.metadata.name.as_deref());
    for offer in names.filter(|found| found.starts_with(&name(""))) {
        match secrets.delete(offer, &DeleteParams::default()).await {
            Err(error) if !error.is_not_found() => return Err(error).context("taking the offered keys away"),
            _ => {}
        }
    }
    Ok(())
}

/// Takes the offer away: nobody else is to have it.
pub(crate) async fn discard(client: &Client, token: &Token) -> Result<()> {
    let deleted = client.namespaced::<Secret>(NAMESPACE).delete(&name(&token.id), &DeleteParams::default()).await;
    deleted.map(drop).context("taking the offered keys away")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::remote_write::RemoteWriteFlags;

    fn options(dir: &Path) -> Options {
        Options { data_dir: dir.to_owned(), run_dir: dir.join("run"), name: "t".to_owned() }
    }

    #[test]
    fn security_offers_open_with_their_key_and_token_only() {
        let key = ServerKey::generate().unwrap();
        let sealed = key.seal("abcdef", b"a key of the cluster").unwrap();
        assert!(!sealed.windows(5).any(|window| window == b"a key"));
        assert_eq!(key.open("abcdef", sealed.clone()).unwrap(), b"a key of the cluster");
        assert!(key.open("fedcba", sealed.clone()).is_err());
        assert!(ServerKey::generate().unwrap().open("abcdef", sealed.clone()).is_err());
        for length in 0..sealed.len() {
            assert!(key.open("abcdef", sealed[..length].to_vec()).is_err(), "{length}");
        }
        let mut changed = sealed;
        *changed.last_mut().unwrap() ^= 1;
        assert!(key.open("abcdef", changed).is_err());

        let derived = |secret: &[u8], purpose: &str| ServerKey::derived(secret, purpose).unwrap();
        assert_eq!(derived(b"secret", "one"), derived(b"secret", "one"));
        assert_ne!(derived(b"secret", "one"), derived(b"secret", "two"));
        assert_ne!(derived(b"secret", "one"), derived(b"other", "one"));
        let text = key.to_string();
        assert_eq!(text.parse::<ServerKey>().unwrap(), key);
        assert!(!format!("{key:?}").contains(&text[..8]));
        for broken in ["", "00", &text[1..], &text.replace(|_| true, "g")] {
            let error = broken.parse::<ServerKey>().unwrap_err().to_string();
            assert!(broken.len() < 8 || !error.contains(broken), "{error}");
        }
    }

    /// Keys that are their names.
    fn write_keys(options: &Options) {
        private_dir(&options.pki_dir()).unwrap();
        for name in FILES {
            write_private(&options.pki_dir().join(name), name.as_bytes()).unwrap();
        }
    }

    #[test]
    fn security_a_server_is_told_what_must_be_the_same_on_all() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = (options(first.path()), options(second.path()));
        write_keys(&first);
        let components = json!({
            "apiserver": {"enable-admission-plugins": ["AlwaysPullImages"]},
            "kubelet": {"maxPods": 7},
        });
        let plain = Flags {
            etcd: Etcd { etcd_servers: vec!["http://192.0.2.1:2379".into()], ..Etcd::default() },
            cluster_cidr: Some("10.42.0.0/16,fd42::/48".into()),
            ..Flags::default()
        };
        let common = Flags {
            node_cidr: Some("10.45.0.0/24".into()),
            gateway: Some(true),
            gateway_http_port: Some(8080),
            gateway_https_port: Some(8443),
            gateway_address_pool: ["198.51.100.0/28", "2001:db8::/120"].map(|range| range.parse().unwrap()).to_vec(),
            load_balancer: Some(false),
            components: Some(serde_json::from_value(components).unwrap()),
            ..plain.clone()
        };
        // What is of one machine stays there.
        let machine = Machine { node_name: Some("one".into()), ..Machine::default() };
        let remote_write = RemoteWriteFlags {
            history_remote_write_url: Some("http://192.0.2.9/api/v1/write".to_owned()),
            ..RemoteWriteFlags::default()
        };
        Flags { machine, remote_write, ..common.clone() }.remember(&first).unwrap();
        let mut sent = serde_json::to_value(Bundle::gather(&first).unwrap()).unwrap();
        let read = |sent: &serde_json::Value| serde_json::from_value::<Bundle>(sent.clone()).unwrap();
        assert_eq!(read(&sent).families(), [false, true]);
        assert_eq!(read(&sent).unpack(&second, Machine::default(), None).unwrap(), common);

        // An older server sends less.
        for name in [
            "nodeCidr",
            "gateway",
            "gatewayHttpPort",
            "gatewayHttpsPort",
            "gatewayAddressPool",
            "loadBalancer",
            "components",
        ] {
            assert!(sent.as_object_mut().unwrap().remove(name).is_some(), "{name}");
        }
        assert_eq!(read(&sent).unpack(&second, Machine::default(), None).unwrap(), plain);
    }

    #[test]
    fn security_a_server_gets_what_the_first_one_has_for_its_owner_only() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (first, second) = (options(first.path()), options(second.path()));
        let machine = Machine { node_name: Some("one".into()), ..Machine::default() };
        Flags { machine, ..Flags::default() }.remember(&first).unwrap();
        let alone = Bundle::gather(&first).err().unwrap().to_string();
        assert!(alone.contains("cox up --ha"), "{alone}");

        write_keys(&first);
        let ca = first.data_dir.join("some-ca.crt");
        write_private(&ca, b"etcd's").unwrap();
        let etcd = Etcd {
            etcd_servers: vec!["https://192.0.2.1:2379".into()],
            etcd_cafile: Some(ca),
            etcd_prefix: Some("/two".into()),
            ..Etcd::default()
        };
        let (issuers, names) = (vec!["https://one.example.com".to_owned()], vec!["api.example.com".to_owned()]);
        let flags = Flags {
            etcd,
            service_cidr: Some("10.96.0.0/16".into()),
            service_account_issuer: issuers.clone(),
            tls_san: names.clone(),
            encrypt: Some(true),
            encrypt_port: Some(4000),
            ..Flags::default()
        };
        flags.remember(&first).unwrap();
        let bundle = Bundle::gather(&first).unwrap();
        let machine = Machine { node_name: Some("two".into()), ..Machine::default() };
        let flags = bundle.unpack(&second, machine, None).unwrap();
        for name in FILES.into_iter().chain(["etcd-ca.crt"]) {
            let path = second.pki_dir().join(name);
            let expected = if name == "etcd-ca.crt" { "etcd's" } else { name };
            assert_eq!(fs::read_to_string(&path).unwrap(), expected);
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o077, 0, "{name}");
        }
        assert_eq!(flags.etcd.etcd_cafile, Some(second.pki_dir().join("etcd-ca.crt")));
        assert_eq!((flags.etcd.etcd_certfile, flags.etcd.etcd_prefix.as_deref()), (None, Some("/two")));
        assert_eq!(
            (flags.machine.node_name.as_deref(), flags.service_cidr.as_deref()),
            (Some("two"), Some("10.96.0.0/16"))
        );
        assert_eq!((flags.encrypt, flags.encrypt_port), (Some(true), Some(4000)));
        assert_eq!((flags.service_account_issuer, flags.tls_san), (issuers, names), "one token, one name for all");

        // A name is no way to another directory, and half a set of keys is none.
        let mut evil = Bundle::gather(&first).unwrap();
        evil.files.insert("../../evil".into(), "x".into());
        assert!(evil.unpack(&second, Machine::default(), None).is_err());
        let mut less = Bundle::gather(&first).unwrap();
        less.files.remove("sa.key");
        assert!(less.unpack(&second, Machine::default(), None).is_err());

        // Where servers run members, they get their authority and no client's key.
        let mut flags = Flags::remembered(&first).unwrap();
        (flags.ha.ha, flags.etcd.etcd_keyfile) = (true, Some("/nowhere".into()));
        flags.remember(&first).unwrap();
        assert!(Bundle::gather(&first).is_err(), "no authority to hand on");
        for name in MEMBER_FILES {
            write_private(&first.pki_dir().join(name), name.as_bytes()).unwrap();
        }
        let bundle = Bundle::gather(&first).unwrap();
        assert!(!bundle.files.contains_key("etcd-client.key"));
        let flags = bundle.unpack(&second, Machine::default(), Some("/opt/etcd".into())).unwrap();
        assert_eq!((flags.ha.ha, flags.ha.etcd_binary), (true, Some("/opt/etcd".into())));
        assert_eq!(fs::read_to_string(second.pki_dir().join("etcd-ca.key")).unwrap(), "etcd-ca.key");
    }
}

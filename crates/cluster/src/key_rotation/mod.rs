//! `cox store rotate-keys` while the cluster runs: the server goes over to a new key, everything is written once more by
//! StorageVersionMigrations, and the older keys are forgotten. Of several servers every one knows the new key before any writes
//! with it ([`shared`] tells them, [`server`] is their part).
//!
//! Where it stands is in the file of keys alone. Ended after any step, all that is stored can be read with what the file has,
//! and the next exchange ends what this one began. Keys are forgotten only once the bytes in the store have been looked at:
//! none may need them.

mod server;
mod shared;

pub(crate) use server::Server;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use client::{ApiResource, Client, DeleteParams, ListParams};
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::api::storagemigration::v1beta1::StorageVersionMigration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rand::Rng;
use serde_json::json;
use store::transfer::Transfer;
use store::{KeyValue, Store};

use crate::connection::connect;
use crate::encryption::{
    add_key, encrypted_resources, keep_key, rotate_stopped, with_key_alone, with_key_first, with_new_key_last,
};
use crate::etcd::SERVERS;
use crate::join;
use crate::lock::Lock;
use crate::node_roles::CONTROL_PLANE;
use crate::options::Options;
use crate::shape::Flags;

/// For the server to read the file again; it looks every second.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
/// For all servers to have a file.
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(600);
/// For all objects of a resource to be written once more.
const MIGRATION_TIMEOUT: Duration = Duration::from_secs(1800);
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// What a resource must take for its objects to be written once more.
const MIGRATED_BY: [&str; 3] = ["list", "patch", "update"];
const NAMESPACE: &str = "kube-system";
/// What is sealed in a store begins so.
const SEALED: &[u8] = b"k8s:enc:";
/// On what this makes in the API for a while.
const LABEL: &str = "cox.dev/key-rotation";
const ALL: Transfer<'static> = Transfer { root: "/registry/", mark: "", without: &[] };

/// The bytes of the store beneath a running server.
enum Beneath {
    Embedded(PathBuf),
    Etcd(Arc<dyn Store>),
}

impl Beneath {
    async fn open(options: &Options, flags: &Flags) -> Result<Beneath> {
        Ok(match flags.etcd.is_used() {
            true => Beneath::Etcd(flags.etcd.connect().await?),
            false => Beneath::Embedded(options.store_dir()),
        })
    }

    async fn contents(&self) -> Result<Vec<KeyValue>> {
        match self {
            Beneath::Embedded(dir) => {
                let dir = dir.clone();
                Ok(tokio::task::spawn_blocking(move || store::embedded::contents(&dir)).await??.kvs)
            }
            Beneath::Etcd(store) => Ok(ALL.read(&**store).await?.kvs),
        }
    }
}

/// How values begin that were sealed with a key of ours.
fn prefix(key: &str) -> String {
    format!("k8s:enc:secretbox:v1:{key}:")
}

/// The first object whose bytes need another key than the newest, or have none though they should, and how many have it.
fn judge<'k>(kvs: &'k [KeyValue], places: &[String], newest: &str) -> (Option<&'k str>, usize) {
    let wanted = prefix(newest);
    let is_one =
        |kv: &&KeyValue| kv.value.starts_with(SEALED) || places.iter().any(|place| kv.key.starts_with(place.as_str()));
    let has_it = |kv: &&KeyValue| kv.value.starts_with(wanted.as_bytes());
    let other = kvs.iter().filter(is_one).find(|kv| !has_it(kv)).map(|kv| &*kv.key);
    (other, kvs.iter().filter(has_it).count())
}

/// Group and resource of a name in the file, such as `configmaps` and `deployments.apps`.
fn resource(name: &str) -> (String, String) {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    (group.to_owned(), resource.to_owned())
}

/// Exchanges the keys of the cluster, which may run.
pub(crate) async fn rotate(options: &Options) -> Result<String> {
    // Of two at once the one would forget the key that the other has just put to use.
    let _alone = Lock::for_change(options)?;
    match Lock::holder(&options.lock_file())? {
        Some(_) => rotate_running(options).await,
        None => rotate_stopped(options).await,
    }
}

async fn rotate_running(options: &Options) -> Result<String> {
    let file = options.encryption_file();
    let flags = Flags::remembered(options)?;
    let named = encrypted_resources(&file)?;
    let beneath = Beneath::open(options, &flags).await?;
    let before = beneath.contents().await?;
    let client = connect(&options.admin_kubeconfig())?;
    let resources = match named.iter().any(|name| is_wildcard(name)) {
        true => expanded(&named, &served(&client).await?),
        false => named,
    };
    // One that is down just now has a file of keys as well, and could read nothing when it comes back.
    let servers = if flags.etcd.is_used() { servers(&client).await? } else { Vec::new() };
    check_all_known(&alive_in(&before), servers.len())?;
    remove_leftovers(&client).await.context("removing what an exchange that was broken off has left")?;
    if flags.etcd.is_used() {
        // Whoever joined with what was offered before would come with the keys of before, also beside one server.
        join::withdraw_offers(&client).await?;
    }
    let exchanged = Exchanged { client: &client, beneath: &beneath, resources: &resources };
    let (added, count) = match servers.len() {
        0 | 1 => {
            let added = add_key(&file)?;
            let count = exchanged.write_everything(&added).await?;
            exchanged.check_nobody_came(servers.len()).await?;
            keep_key(&file, &added)?;
            (added, count)
        }
        _ => exchange_everywhere(options, &exchanged).await?,
    };
    Ok(format!("{}: {count} objects are encrypted with {added} now", file.display()))
}

fn is_wildcard(name: &str) -> bool {
    name.starts_with("*.")
}

/// Every resource that the server has. One that cannot be asked for could not be written once more.
async fn served(client: &Client) -> Result<Vec<ApiResource>> {
    let (served, failed) = client.discover().await.context("asking which resources there are")?;
    if let Some((group, error)) = failed.first() {
        bail!("{group} does not answer, and what is stored of it may be encrypted: {error}");
    }
    Ok(served)
}

/// The same names, with resources in the place of `*.*`, `*.apps` and the like: those whose objects can be written.
fn expanded(names: &[String], served: &[ApiResource]) -> Vec<String> {
    let mut found: Vec<String> = names.iter().filter(|name| !is_wildcard(name)).cloned().collect();
    let groups: Vec<&str> = names.iter().filter_map(|name| name.strip_prefix("*.")).collect();
    let is_meant = |one: &&ApiResource| groups.iter().any(|group| *group == "*" || *group == &*one.gvr.group);
    let is_written = |one: &&ApiResource| MIGRATED_BY.iter().all(|verb| one.supports(verb));
    for one in served.iter().filter(is_meant).filter(is_written) {
        let name = match &*one.gvr.group {
            "" => one.gvr.resource.to_string(),
            group => format!("{}.{group}", one.gvr.resource),
        };
        if !found.contains(&name) {
            found.push(name);
        }
    }
    found
}

/// The nodes of all servers.
async fn servers(client: &Client) -> Result<Vec<Node>> {
    let listed = client.all::<Node>().list(&ListParams::labels(CONTROL_PLANE)).await;
    Ok(listed.context("looking for other servers")?.items)
}

/// Where servers are alive, by what they write down.
fn alive_in(kvs: &[KeyValue]) -> Vec<&str> {
    kvs.iter().filter_map(|kv| kv.key.strip_prefix(SERVERS)).collect()
}

/// A server that takes no part would not know the new key.
fn check_all_known(alive: &[&str], nodes: usize) -> Result<()> {
    if alive.len() > nodes.max(1) {
        bail!(
            "servers are alive at {}, and {nodes} nodes are servers: one without a node cannot be told other keys",
            alive.join(", ")
        );
    }
    Ok(())
}

/// The same for several servers: a step begins when all of them have come to the end of the one before.
async fn exchange_everywhere(options: &Options, exchanged: &Exchanged<'_>) -> Result<(String, usize)> {
    let client = exchanged.client;
    let file = options.encryption_file();
    let before = std::fs::read(&file).with_context(|| file.display().to_string())?;
    let (added, known) = with_new_key_last(&before)?;
    let used = with_key_first(&known, &added)?;
    let mut exchange = shared::Exchange::new(client, options.pki_dir());
    for text in [&known, &used] {
        exchange.publish(text).await?;
        until_followed(client, text).await?;
    }
    let count = exchanged.write_everything(&added).await?;
    // What was offered while the older key still wrote would have a new server write with it.
    join::withdraw_offers(client).await?;
    exchanged.check_nobody_came(servers(client).await?.len()).await?;
    let alone = with_key_alone(&used, &added)?;
    exchange.publish(&alone).await?;
    until_followed(client, &alone).await?;
    exchange.end().await?;
    Ok((added, count))
}

/// Waits until every server has this file.
async fn until_followed(client: &Client, text: &[u8]) -> Result<()> {
    let mark = shared::mark(text);
    let deadline = Instant::now() + FOLLOW_TIMEOUT;
    loop {
        let behind = shared::behind(&servers(client).await?, &mark);
        if behind.is_empty() {
            return Ok(());
        }
        if Instant::now() >= deadline {
            bail!(
                "{} does not come along: give the command again when it is back, or delete its node if it is gone for good. \
                 Until then everything can be read",
                behind.join(", ")
            );
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// What is written with another key.
struct Exchanged<'a> {
    client: &'a Client,
    beneath: &'a Beneath,
    resources: &'a [String],
}

impl Exchanged<'_> {
    /// Has all of it written with the new key, once that writes; returns how many objects have it. None has another then.
    async fn write_everything(&self, added: &str) -> Result<usize> {
        until_used(self.client, self.beneath, added).await?;
        for name in self.resources {
            let migrated = migrate(self.client, name).await;
            migrated.with_context(|| format!("writing {name} once more; no key was forgotten"))?;
        }
        // Secrets are where everybody knows; of others it is enough that none needs an older key.
        let has_secrets = self.resources.iter().any(|name| name == "secrets");
        let places = if has_secrets { vec!["/registry/secrets/".to_owned()] } else { Vec::new() };
        let after = self.beneath.contents().await?;
        let (other, count) = judge(&after, &places, added);
        if let Some(key) = other {
            bail!("{key} is not encrypted with {added}: no key was forgotten; give the command again");
        }
        Ok(count)
    }

    /// A server that came meanwhile, and was told nothing, has only a key that is about to be forgotten.
    async fn check_nobody_came(&self, nodes: usize) -> Result<()> {
        let now = self.beneath.contents().await?;
        check_all_known(&alive_in(&now), nodes).context("no key was forgotten; give the command again")
    }
}

async fn remove_leftovers(client: &Client) -> Result<()> {
    let (ours, params) = (ListParams::labels(LABEL), DeleteParams::default());
    client.namespaced::<Secret>(NAMESPACE).delete_collection(&ours, &params).await?;
    client.all::<StorageVersionMigration>().delete_collection(&ours, &params).await?;
    Ok(())
}

/// Waits until the server writes with the new key, which a Secret of ours shows.
async fn until_used(client: &Client, beneath: &Beneath, added: &str) -> Result<()> {
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    let name = format!("cox-key-{:08x}", rand::rng().random::<u32>());
    let key = format!("/registry/secrets/{NAMESPACE}/{name}");
    let probe = |number: u32| Secret {
        metadata: ObjectMeta {
            name: Some(name.clone()),
            namespace: Some(NAMESPACE.into()),
            labels: Some([(LABEL.to_owned(), number.to_string())].into()),
            ..ObjectMeta::default()
        },
        ..Secret::default()
    };
    secrets.create(&probe(0)).await.context("writing a Secret to see which key is used")?;
    let mut number = 0;
    let wait = async {
        loop {
            let kvs = beneath.contents().await?;
            let found = kvs.iter().find(|kv| *kv.key == *key).context("the Secret is not in the store")?;
            if found.value.starts_with(prefix(added).as_bytes()) {
                return anyhow::Ok(());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
            number += 1;
            secrets.update(&probe(number)).await.context("writing a Secret to see which key is used")?;
        }
    };
    let used = tokio::time::timeout(RELOAD_TIMEOUT, wait).await;
    let removed = secrets.delete(&name, &DeleteParams::default()).await;
    match used {
        Ok(used) => used?,
        Err(_) => bail!(
            "the server does not use the new key after {RELOAD_TIMEOUT:?}: its log says why. No key was forgotten"
        ),
    }
    removed.with_context(|| format!("removing the Secret {NAMESPACE}/{name}")).map(drop)
}

/// Has every object of a resource written once more.
async fn migrate(client: &Client, name: &str) -> Result<()> {
    let migrations = client.all::<StorageVersionMigration>();
    let (group, resource) = resource(name);
    let called = format!("cox-rotate-keys-{}-{:08x}", resource.to_lowercase(), rand::rng().random::<u32>());
    let wanted = json!({"metadata": {"name": called, "labels": {LABEL: resource}}, "spec": {"resource": {"group": group, "resource": resource}}});
    migrations.create(&api::codec::from_value(&wanted)?).await?;
    let wait = async {
        loop {
            let found = migrations.get(&called).await?;
            let conditions = found.status.as_ref().and_then(|status| status.conditions.as_ref());
            let holds = |kind: &str| {
                conditions.into_iter().flatten().find(|one| one.type_ == kind && one.status == "True").cloned()
            };
            if let Some(failed) = holds("Failed") {
                bail!("{}", failed.message);
            }
            if holds("Succeeded").is_some() {
                return Ok(());
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    };
    let done = tokio::time::timeout(MIGRATION_TIMEOUT, wait).await;
    migrations.delete(&called, &DeleteParams::default()).await?;
    done.with_context(|| format!("it takes longer than {MIGRATION_TIMEOUT:?}"))?
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::Revision;

    #[test]
    fn keys_are_forgotten_only_if_nothing_needs_them() {
        let kv = |key: &str, value: &str| KeyValue {
            key: key.into(),
            value: value.to_owned().into(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            version: 1,
            lease: None,
        };
        let new = |key: &str| kv(key, "k8s:enc:secretbox:v1:key2:x");
        let places = ["/registry/secrets/".to_owned()];
        for (kvs, expected) in [
            (vec![new("/registry/secrets/a/s"), kv("/registry/pods/a/p", "{}")], (None, 1)),
            (vec![kv("/registry/secrets/a/s", "k8s:enc:secretbox:v1:key1:x")], (Some("/registry/secrets/a/s"), 0)),
            (vec![kv("/registry/secrets/a/s", "k8s:enc:secretbox:v1:key22:x")], (Some("/registry/secrets/a/s"), 0)),
            (vec![new("/registry/secrets/a/r"), kv("/registry/secrets/a/s", "{}")], (Some("/registry/secrets/a/s"), 1)),
            (vec![kv("/registry/configmaps/a/c", "k8s:enc:aescbc:v1:old:x")], (Some("/registry/configmaps/a/c"), 0)),
            (vec![], (None, 0)),
        ] {
            assert_eq!(judge(&kvs, &places, "key2"), expected);
        }
    }

    #[test]
    fn servers_that_cannot_be_told_are_not_left_behind() {
        for (alive, nodes) in [(&[][..], 0), (&["a"][..], 0), (&["a"][..], 1), (&["a", "b"][..], 3)] {
            check_all_known(alive, nodes).unwrap();
        }
        let refused = check_all_known(&["a", "b"], 1).unwrap_err().to_string();
        assert!(refused.contains("alive at a, b, and 1 nodes are servers"), "{refused}");
        let kv = |key: &str| KeyValue {
            key: key.into(),
            value: String::new().into(),
            create_revision: Revision(1),
            mod_revision: Revision(1),
            version: 1,
            lease: None,
        };
        let stored = [kv("/registry/masterleases/192.0.2.1"), kv("/registry/pods/a/p")];
        assert_eq!(alive_in(&stored), ["192.0.2.1"]);
    }

    #[test]
    fn wildcards_stand_for_what_is_served() {
        let served = |group: &str, resource: &str, verbs: &[&str]| ApiResource {
            gvr: client::Gvr {
                group: group.to_owned().into(),
                version: "v1".into(),
                resource: resource.to_owned().into(),
            },
            kind: "K".to_owned(),
            namespaced: true,
            verbs: verbs.iter().map(|verb| (*verb).to_owned()).collect(),
        };
        let all = ["get", "list", "patch", "update"];
        let served = [
            served("", "secrets", &all),
            served("", "bindings", &["create"]),
            served("apps", "deployments", &all),
            served("example.com", "boats", &all),
        ];
        for (names, expected) in [
            (&["secrets"][..], &["secrets"][..]),
            (&["secrets", "*."][..], &["secrets"][..]),
            (&["*.apps", "secrets"][..], &["secrets", "deployments.apps"][..]),
            (&["*.*"][..], &["secrets", "deployments.apps", "boats.example.com"][..]),
        ] {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(expanded(&names, &served), expected, "{names:?}");
        }
    }

    #[test]
    fn resources_have_a_group() {
        assert_eq!(resource("secrets"), (String::new(), "secrets".to_owned()));
        assert_eq!(resource("deployments.apps"), ("apps".to_owned(), "deployments".to_owned()));
        assert_eq!(resource("boats.old.example"), ("old.example".to_owned(), "boats".to_owned()));
    }
}

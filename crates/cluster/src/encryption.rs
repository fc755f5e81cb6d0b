//! Secrets are encrypted in the store: the file with the key, and the exchange of one key for another.
//!
//! The file is an `EncryptionConfiguration` as upstream's API server reads it too. It is made when a cluster starts without
//! one; what was written before stays readable and is encrypted when it is written again.
//! Invariant: no new key is made for a store that has encrypted objects: the file was lost, and a cluster that went on
//! would write Secrets beside those that nobody can read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use apiserver::{EncryptionConfiguration, Key, Keys, ProviderConfiguration, ResourceConfiguration};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use store::{EmbeddedStore, Store};

use crate::etcd::Etcd;
use crate::options::Options;
use crate::pki::write_private;
use crate::shape::Flags;

const SECRETS: &str = "secrets";
const KEY_BYTES: usize = 32;
/// Not an object: says in the store which key was the last to be exchanged for another.
const ROTATED: &str = "/cox/rotated-keys";
const ABOUT: &str = "# What is encrypted in the store, and with what. Without this file nobody can read the Secrets of this\n\
                     # cluster, nor those in its backups: keep a copy where the backups are not.\n";

/// The file, made if it is not there and nothing is encrypted yet.
pub(crate) async fn ensure(options: &Options, etcd: &Etcd) -> Result<PathBuf> {
    let (file, dir) = (options.encryption_file(), options.store_dir());
    if is_there(&file)? {
        return Ok(file);
    }
    if etcd.is_used() {
        refuse_lost_key(&file, &*etcd.connect().await?).await?;
    } else if is_there(&dir)? {
        refuse_lost_key(&file, &*open(&dir).await?).await?;
    }
    write(&file, &configuration(vec![new_key("key1")?]))?;
    Ok(file)
}

/// Fails if a store needs the file that is not there.
async fn refuse_lost_key(file: &Path, store: &dyn Store) -> Result<()> {
    if let Some(key) = apiserver::first_sealed(store).await? {
        bail!(
            "{} is missing, but the store has objects that were encrypted with a key from it, such as {key}: put your copy \
             of the file back. Without one these objects are lost; docs/backup.md says how to go on without them",
            file.display()
        );
    }
    Ok(())
}

/// Nothing is there only if the system says so.
fn is_there(path: &Path) -> Result<bool> {
    path.try_exists().with_context(|| path.display().to_string())
}

pub(crate) async fn open(dir: &Path) -> Result<Arc<dyn Store>> {
    let dir = dir.to_owned();
    let store = tokio::task::spawn_blocking(move || EmbeddedStore::open(dir, Default::default())).await?;
    match store {
        Err(store::StoreError::Locked { pid, .. }) => {
            bail!("process {pid} runs this cluster: stop it with 'cox down' first; containers run on")
        }
        store => Ok(Arc::new(store?)),
    }
}

/// Exchanges the keys of a cluster that does not run: a new one is added, everything is written with it, and the others
/// go. Ended after any step, everything can be read, and the next exchange ends what this one began.
pub(crate) async fn rotate_stopped(options: &Options) -> Result<String> {
    let (file, dir) = (options.encryption_file(), options.store_dir());
    if Flags::remembered(options)?.etcd.is_used() {
        bail!(
            "the objects of this cluster are in etcd, where other servers may write: exchange its keys while it runs"
        );
    }
    if !dir.is_dir() {
        bail!("there is no store at {}", dir.display());
    }
    // Taken first and held to the end: nobody else writes, with whatever key.
    let store = open(&dir).await?;
    if !is_there(&file)? {
        refuse_lost_key(&file, &*store).await?;
    }
    let added = add_key(&file)?;
    let written = apiserver::rewrite_store(store.clone(), &file).await.context("nothing was removed")?;
    // History still has what the old keys wrote. The last change keeps what it replaced, so that is to be none of these.
    let last = store.put(ROTATED, added.clone()).await?;
    store.compact(last).await?;
    drop(store);
    tokio::task::spawn_blocking(move || store::embedded::condense(&dir)).await??;
    keep_key(&file, &added)?;
    Ok(format!("{}: {written} objects are encrypted with {added} now", file.display()))
}

/// The resources to encrypt where others were encrypted before: those, and Secrets. None that another stands for as well.
pub(crate) fn resources(before: impl IntoIterator<Item = String>) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for name in before.into_iter().chain([SECRETS.to_owned()]) {
        if !all.contains(&name) {
            all.push(name);
        }
    }
    let group = |name: &str| name.split_once('.').map_or("", |(_, group)| group).to_owned();
    let stands_for = |wildcard: &String, name: &String| {
        wildcard != name && (wildcard == "*.*" || wildcard.starts_with("*.") && group(wildcard) == group(name))
    };
    let known = all.clone();
    all.retain(|name| !known.iter().any(|wildcard| stands_for(wildcard, name)));
    all
}

/// A file with a new key, for these resources.
pub(crate) fn write_new(options: &Options, resources: &[String]) -> Result<PathBuf> {
    let file = options.encryption_file();
    let mut configuration = configuration(vec![new_key("key1")?]);
    for rule in &mut configuration.resources {
        rule.resources = resources.to_vec();
    }
    write(&file, &configuration)?;
    Ok(file)
}

fn configuration(keys: Vec<Key>) -> EncryptionConfiguration {
    let secretbox = ProviderConfiguration { secretbox: Some(Keys { keys }), ..Default::default() };
    let identity = ProviderConfiguration { identity: Some(serde_json::json!({})), ..Default::default() };
    let secrets = ResourceConfiguration { resources: vec![SECRETS.to_owned()], providers: vec![secretbox, identity] };
    EncryptionConfiguration::new(vec![secrets])
}

/// Puts a new key before the others, and returns its name.
pub(crate) fn add_key(file: &Path) -> Result<String> {
    if !is_there(file)? {
        write(file, &configuration(vec![new_key("key1")?]))?;
        return Ok("key1".to_owned());
    }
    change(file, |keys| {
        let key = next_key(keys)?;
        let name = key.name.clone();
        keys.insert(0, key);
        Ok(name)
    })
}

/// A key whose name is none of these.
fn next_key(keys: &[Key]) -> Result<Key> {
    let number = |key: &Key| key.name.strip_prefix("key").and_then(|number| number.parse::<u64>().ok());
    new_key(&format!("key{}", keys.iter().filter_map(number).max().unwrap_or(0) + 1))
}

/// The text of such a file with one more key, which reads and does not write; and the name of that key.
pub(crate) fn with_new_key_last(text: &[u8]) -> Result<(String, Vec<u8>)> {
    changed(text, |keys| {
        let key = next_key(keys)?;
        let name = key.name.clone();
        keys.push(key);
        Ok(name)
    })
}

/// The same text with this key before the others: it writes.
pub(crate) fn with_key_first(text: &[u8], name: &str) -> Result<Vec<u8>> {
    let (_, text) = changed(text, |keys| {
        keys.compact_sort_by_key(|key| key.name != name);
        Ok(())
    })?;
    Ok(text)
}

/// The same text with no other key.
pub(crate) fn with_key_alone(text: &[u8], name: &str) -> Result<Vec<u8>> {
    let (_, text) = changed(text, |keys| {
        keys.retain(|key| key.name == name);
        Ok(())
    })?;
    Ok(text)
}

/// Makes this the file, unless it is so already or the server could not read it; returns whether it was something else.
pub(crate) fn put_in_place(file: &Path, text: &[u8]) -> Result<bool> {
    let wanted = EncryptionConfiguration::parse(text, true)?;
    if std::fs::read(file).with_context(|| file.display().to_string())? == text {
        return Ok(false);
    }
    // An older order must not take away what was written since.
    let now = EncryptionConfiguration::load(file, true)?;
    if let Some(key) = keys(&now).next()
        && !keys(&wanted).any(|other| other.name == key.name && other.secret == key.secret)
    {
        bail!("the keys that are wanted lack {}, which {} writes with", key.name, file.display());
    }
    write_private(file, text)?;
    Ok(true)
}

/// What a file as [`ensure`] makes it encrypts.
pub(crate) fn encrypted_resources(file: &Path) -> Result<Vec<String>> {
    let found = EncryptionConfiguration::load(file, true)?;
    Ok(found.resources.into_iter().flat_map(|rule| rule.resources).collect())
}

/// Forgets all keys but one.
pub(crate) fn keep_key(file: &Path, name: &str) -> Result<()> {
    change(file, |keys| {
        keys.retain(|key| key.name == name);
        Ok(())
    })
}

/// The keys of a file as [`ensure`] makes it, the one that writes first.
fn keys(found: &EncryptionConfiguration) -> impl Iterator<Item = &Key> {
    let provider = found.resources.first().and_then(|rule| rule.providers.first());
    provider.and_then(|provider| provider.secretbox.as_ref()).into_iter().flat_map(|keys| &keys.keys)
}

/// Changes the keys of a file as [`ensure`] makes it. One that says something else is its author's to change.
fn change<T>(file: &Path, change: impl FnOnce(&mut Vec<Key>) -> Result<T>) -> Result<T> {
    let mut found = EncryptionConfiguration::load(file, true)?;
    let done = change_keys(&mut found, &file.display(), change)?;
    write(file, &found)?;
    Ok(done)
}

/// The same for the text of a file.
fn changed<T>(text: &[u8], change: impl FnOnce(&mut Vec<Key>) -> Result<T>) -> Result<(T, Vec<u8>)> {
    let mut found = EncryptionConfiguration::parse(text, true)?;
    let done = change_keys(&mut found, &"the file of keys", change)?;
    Ok((done, render(&found)?))
}

fn change_keys<T>(
    found: &mut EncryptionConfiguration,
    called: &dyn std::fmt::Display,
    change: impl FnOnce(&mut Vec<Key>) -> Result<T>,
) -> Result<T> {
    let [rule] = found.resources.as_mut_slice() else { bail!("{called} has several rules: change its keys by hand") };
    let keys = rule.providers.first_mut().and_then(|provider| provider.secretbox.as_mut());
    let keys = keys.with_context(|| format!("{called} does not write with secretbox: change it by hand"))?;
    change(&mut keys.keys)
}

fn new_key(name: &str) -> Result<Key> {
    let mut secret = [0; KEY_BYTES];
    SystemRandom::new().fill(&mut secret).ok().context("the system has no random bytes")?;
    Ok(Key { name: name.to_owned(), secret: STANDARD.encode(secret) })
}

fn write(path: &Path, configuration: &EncryptionConfiguration) -> Result<()> {
    write_private(path, &render(configuration)?)
}

fn render(configuration: &EncryptionConfiguration) -> Result<Vec<u8>> {
    Ok([ABOUT, &api::codec::to_yaml(configuration)?].concat().into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_rotation::rotate;
    use crate::lock::Lock;
    use std::os::unix::fs::PermissionsExt;

    const PLAIN: &str = "c2VjcmV0LXRleHQ=";

    fn options(dir: &Path) -> Options {
        std::fs::create_dir_all(dir.join("pki")).unwrap();
        Options { data_dir: dir.to_owned(), run_dir: dir.join("run"), name: "t".to_owned() }
    }

    fn open(options: &Options) -> Arc<dyn Store> {
        Arc::new(EmbeddedStore::open(options.store_dir(), Default::default()).unwrap())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn security_a_lost_key_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        // A store from before there were keys gets one.
        let store = open(&options);
        put(&store, "s").await;
        drop(store);
        let file = ensure(&options, &Etcd::default()).await.unwrap();
        rotate(&options).await.unwrap();
        let kept = std::fs::read(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        for error in [ensure(&options, &Etcd::default()).await.unwrap_err(), rotate(&options).await.unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("encryption.yaml is missing") && error.contains("/registry/secrets/a/s"), "{error}");
            assert!(!file.exists());
        }
        std::fs::write(&file, kept).unwrap();
        ensure(&options, &Etcd::default()).await.unwrap();
        assert!(rotate(&options).await.unwrap().contains("1 objects are encrypted"));
    }

    async fn put(store: &Arc<dyn Store>, name: &str) {
        let value = format!(
            r#"{{"kind":"Secret","apiVersion":"v1","metadata":{{"name":"{name}","namespace":"a"}},"data":{{"p":"{PLAIN}"}}}}"#
        );
        store.put(&format!("/registry/secrets/a/{name}"), value).await.unwrap();
    }

    async fn prefixes(store: &Arc<dyn Store>) -> Vec<String> {
        let found = store.range(store::Range::prefix("/registry/secrets/")).await.unwrap();
        let start = |kv: &store::KeyValue| String::from_utf8_lossy(&kv.value).into_owned();
        found.kvs.iter().map(start).map(|text| text.split(':').nth(4).unwrap_or("plain").to_owned()).collect()
    }

    fn shows(dir: &Path) -> bool {
        std::fs::read_dir(dir).unwrap().any(|entry| {
            let bytes = std::fs::read(entry.unwrap().path()).unwrap();
            bytes.windows(PLAIN.len()).any(|window| window == PLAIN.as_bytes())
        })
    }

    #[tokio::test]
    async fn security_the_key_is_for_its_owner_and_lasts() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        let path = ensure(&options, &Etcd::default()).await.unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let first = std::fs::read(&path).unwrap();
        ensure(&options, &Etcd::default()).await.unwrap();
        assert_eq!(first, std::fs::read(&path).unwrap());
        let other = tempfile::tempdir().unwrap();
        assert_ne!(
            first,
            std::fs::read(ensure(&self::options(other.path()), &Etcd::default()).await.unwrap()).unwrap()
        );
    }

    #[tokio::test]
    async fn a_new_key_reads_then_writes_then_is_alone() {
        let dir = tempfile::tempdir().unwrap();
        let file = ensure(&options(dir.path()), &Etcd::default()).await.unwrap();
        let names = |text: &[u8]| -> Vec<String> {
            let found = EncryptionConfiguration::parse(text, true).unwrap();
            let keys = found.resources[0].providers[0].secretbox.as_ref().unwrap();
            keys.keys.iter().map(|key| key.name.clone()).collect()
        };
        let before = std::fs::read(&file).unwrap();
        let (added, last) = with_new_key_last(&before).unwrap();
        assert_eq!((added.as_str(), names(&last)), ("key2", vec!["key1".to_owned(), "key2".to_owned()]));
        let first = with_key_first(&last, &added).unwrap();
        assert_eq!(names(&first), ["key2", "key1"]);
        let alone = with_key_alone(&first, &added).unwrap();
        assert_eq!(names(&alone), ["key2"]);
        for (text, is_new) in [(&before, false), (&last, true), (&first, true), (&first, false), (&alone, true)] {
            assert_eq!(put_in_place(&file, text).unwrap(), is_new);
            assert_eq!(&std::fs::read(&file).unwrap(), text);
        }
        // What no server could read is not put anywhere, nor is what lacks the key that writes.
        assert!(put_in_place(&file, b"kind: Pod").is_err());
        assert!(put_in_place(&file, &before).unwrap_err().to_string().contains("lack key2"));
        assert_eq!(std::fs::read(&file).unwrap(), alone);
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn security_keys_are_exchanged_and_the_old_text_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let options = options(dir.path());
        let file = ensure(&options, &Etcd::default()).await.unwrap();
        // A cluster from before: nothing is encrypted.
        let store = open(&options);
        for name in ["s", "t"] {
            put(&store, name).await;
        }
        store
            .put("/registry/configmaps/a/c", r#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"}}"#)
            .await
            .unwrap();
        let locked = rotate(&options).await.unwrap_err().to_string();
        assert!(locked.contains("stop it with 'cox down' first"), "{locked}");
        drop(store);
        assert!(shows(&options.store_dir()));
        assert!(rotate(&options).await.unwrap().ends_with("2 objects are encrypted with key2 now"));
        assert!(!shows(&options.store_dir()));
        let store = open(&options);
        assert_eq!(prefixes(&store).await, ["key2", "key2"]);
        assert!(store.get("/registry/configmaps/a/c").await.unwrap().unwrap().value.starts_with(b"{"));
        drop(store);
        let backup = dir.path().join("backup");
        std::fs::create_dir(&backup).unwrap();
        store::embedded::backup(&options.store_dir(), &backup.join("cluster.snap")).unwrap();
        assert!(!shows(&backup));

        // Ended after a key was added, after some objects were written, and after all were.
        assert_eq!(add_key(&file).unwrap(), "key3");
        let store = open(&options);
        put(&store, "s").await;
        assert_eq!(apiserver::rewrite_store(store.clone(), &file).await.unwrap(), 2);
        put(&store, "t").await;
        drop(store);
        assert_eq!(add_key(&file).unwrap(), "key4");
        assert!(rotate(&options).await.unwrap().ends_with("2 objects are encrypted with key5 now"));
        let store = open(&options);
        assert_eq!(prefixes(&store).await, ["key5", "key5"]);
        let left = EncryptionConfiguration::load(&file, true).unwrap();
        assert_eq!(left.resources[0].providers[0].secretbox.as_ref().unwrap().keys.len(), 1);

        // Without the key nothing is removed and nothing is lost.
        drop(store);
        let kept = std::fs::read(&file).unwrap();
        write(&file, &configuration(vec![new_key("key5").unwrap()])).unwrap();
        let error = format!("{:#}", rotate(&options).await.unwrap_err());
        assert!(error.contains("nothing was removed") && error.contains("/registry/secrets/a/s"), "{error}");
        std::fs::write(&file, kept).unwrap();
        rotate(&options).await.unwrap();

        // One at a time.
        let held = Lock::for_change(&options).unwrap();
        let second = rotate(&options).await.unwrap_err().to_string();
        assert!(second.contains("another command changes this cluster"), "{second}");
        drop(held);
    }
}

//! Where servers find the file of keys that all of them are to have: a Secret, sealed. Each says of its node which file it has.
//!
//! It is sealed with a key made from that of the front proxy's authority, which is on every server and in no store: who reads
//! the store has not read the keys.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use api::meta::Meta as _;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, DeleteParams};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Node, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use ring::digest::{SHA256, digest};

use super::{LABEL, NAMESPACE};
use crate::join::ServerKey;

pub(super) const NAME: &str = "cox-key-rotation";
const FIELD: &str = "keys";
/// What a server says of its node: which file it has.
pub(super) const ANNOTATION: &str = "cox.dev/encryption-keys";

/// An exchange that this command leads.
pub(super) struct Exchange<'a> {
    client: &'a Client,
    pki: PathBuf,
    /// What servers were told last.
    published: Option<Vec<u8>>,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(client: &'a Client, pki: PathBuf) -> Exchange<'a> {
        Exchange { client, pki, published: None }
    }

    /// Tells every server to have this file.
    pub(super) async fn publish(&mut self, text: &[u8]) -> Result<()> {
        let secrets = self.client.namespaced::<Secret>(NAMESPACE);
        let resource_version = self.version().await?;
        let is_new = resource_version.is_none();
        let labels = Some([(LABEL.to_owned(), FIELD.to_owned())].into());
        let metadata = ObjectMeta { name: Some(NAME.to_owned()), labels, resource_version, ..ObjectMeta::default() };
        let sealed = ByteString(ServerKey::of_servers(&self.pki, NAME)?.seal(NAME, text)?);
        let order = Secret { metadata, data: Some([(FIELD.to_owned(), sealed)].into()), ..Secret::default() };
        let published = match is_new {
            true => secrets.create(&order).await,
            false => secrets.update(&order).await,
        };
        published.context("telling the servers which keys they are to have")?;
        self.published = Some(text.to_vec());
        Ok(())
    }

    /// Of the Secret, if there is to be one. Whoever writes all Secrets once more changes it; what the Secret says is
    /// changed by another command only.
    async fn version(&self) -> Result<Option<String>> {
        let Some(published) = &self.published else { return Ok(None) };
        let found = self.client.namespaced::<Secret>(NAMESPACE).get_opt(NAME).await;
        let found = found.context("asking for the exchange of keys that is under way")?;
        match found {
            Some(secret) if read(&secret, &self.pki).is_ok_and(|said| said == *published) => {
                Ok(secret.metadata.resource_version)
            }
            _ => bail!("another 'cox store rotate-keys' was given meanwhile, and goes on"),
        }
    }

    pub(super) async fn end(self) -> Result<()> {
        let deleted = self.client.namespaced::<Secret>(NAMESPACE).delete(NAME, &DeleteParams::default()).await;
        deleted.context("ending the exchange of keys")
    }
}

/// The file that servers are told to have.
pub(super) fn read(secret: &Secret, pki: &Path) -> Result<Vec<u8>> {
    let sealed = secret.data.as_ref().and_then(|data| data.get(FIELD)).context("it has no keys")?;
    ServerKey::of_servers(pki, NAME)?.open(NAME, sealed.0.clone())
}

/// What a server says that has this file. Nobody finds a key by it: keys are as long as this is.
pub(super) fn mark(text: &[u8]) -> String {
    STANDARD.encode(sum(text))
}

/// SHA-256.
pub(super) fn sum(text: &[u8]) -> [u8; 32] {
    let mut sum = [0; 32];
    sum.copy_from_slice(digest(&SHA256, text).as_ref());
    sum
}

pub(super) fn said_by(node: &Node) -> Option<&str> {
    node.metadata.annotation(ANNOTATION)
}

/// The servers that do not say that they have a file.
pub(super) fn behind(servers: &[Node], mark: &str) -> Vec<String> {
    let late = servers.iter().filter(|node| said_by(node) != Some(mark));
    late.map(|node| node.metadata.name().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::write_private;

    #[test]
    fn security_keys_on_their_way_are_read_by_servers_of_the_cluster_only() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (dir, text) in [(&own, "one"), (&other, "another")] {
            write_private(&dir.path().join("front-proxy-ca.key"), text.as_bytes()).unwrap();
        }
        let sealed = ServerKey::of_servers(own.path(), NAME).unwrap().seal(NAME, b"secret: c2VjcmV0").unwrap();
        assert!(!sealed.windows(8).any(|window| window == b"c2VjcmV0"));
        let secret = Secret { data: Some([(FIELD.to_owned(), ByteString(sealed))].into()), ..Secret::default() };
        assert_eq!(read(&secret, own.path()).unwrap(), b"secret: c2VjcmV0");
        assert!(read(&secret, other.path()).is_err());
        assert!(read(&Secret::default(), own.path()).is_err());
    }

    #[test]
    fn who_says_nothing_or_something_else_is_behind() {
        let node = |name: &str, said: Option<&str>| Node {
            metadata: ObjectMeta {
                name: Some(name.to_owned()),
                annotations: said.map(|said| [(ANNOTATION.to_owned(), said.to_owned())].into()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        };
        let (old, new) = (mark(b"old"), mark(b"new"));
        let servers = [node("a", Some(&new)), node("b", Some(&old)), node("c", None)];
        assert_eq!(behind(&servers, &new), ["b", "c"]);
        assert!(behind(&servers[..1], &new).is_empty());
    }
}

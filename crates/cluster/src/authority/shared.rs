//! Where servers find the exchange that is under way: a Secret with both keys, sealed.
//!
//! It is sealed with a key made from that of the front proxy's authority, which is on every server, in no store, and stays. Who
//! has that one may speak to the API as anybody already.

use std::path::Path;

use anyhow::{Context, Result, bail};
use client::{Client, DeleteParams};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::ca_rotation::Rotation;
use crate::join::ServerKey;

pub(super) const NAMESPACE: &str = "kube-system";
pub(super) const NAME: &str = "cox-ca-rotation";
const FIELD: &str = "rotation";

/// The exchange in a Secret.
pub(super) fn read(secret: &Secret, dir: &Path) -> Result<Rotation> {
    let sealed = secret.data.as_ref().and_then(|data| data.get(FIELD)).context("it is empty")?;
    let plain = ServerKey::of_servers(dir, NAME)?.open(NAME, sealed.0.clone())?;
    serde_json::from_slice(&plain).context("it is none")
}

/// The exchange that is under way, if one is, and the version of the Secret that says so.
pub(super) async fn load(client: &Client, dir: &Path) -> Result<Option<(Rotation, Option<String>)>> {
    let found = client.namespaced::<Secret>(NAMESPACE).get_opt(NAME).await;
    let Some(secret) = found.context("asking for an exchange that is under way")? else { return Ok(None) };
    let rotation = read(&secret, dir).with_context(|| format!("the Secret {NAMESPACE}/{NAME}"))?;
    Ok(Some((rotation, secret.metadata.resource_version)))
}

/// Tells the servers, unless somebody else has since `version`; returns the version from now on.
pub(super) async fn save(
    client: &Client,
    dir: &Path,
    rotation: &Rotation,
    version: Option<String>,
) -> Result<Option<String>> {
    let sealed = ByteString(ServerKey::of_servers(dir, NAME)?.seal(NAME, &serde_json::to_vec(rotation)?)?);
    let is_new = version.is_none();
    let metadata = ObjectMeta { name: Some(NAME.to_owned()), resource_version: version, ..ObjectMeta::default() };
    let secret = Secret { metadata, data: Some([(FIELD.to_owned(), sealed)].into()), ..Secret::default() };
    let secrets = client.namespaced::<Secret>(NAMESPACE);
    let saved = match is_new {
        true => secrets.create(&secret).await,
        false => secrets.update(&secret).await,
    };
    match saved {
        Ok(saved) => Ok(saved.metadata.resource_version),
        Err(error) if error.is_conflict() || error.is_already_exists() => {
            bail!("another 'cox cert rotate-ca' is under way")
        }
        Err(error) => Err(error).context("telling the servers"),
    }
}

/// The exchange is over.
pub(super) async fn forget(client: &Client) -> Result<()> {
    match client.namespaced::<Secret>(NAMESPACE).delete(NAME, &DeleteParams::default()).await {
        Err(error) if !error.is_not_found() => Err(error).context("ending the exchange"),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Pki, write_private};

    #[test]
    fn security_an_exchange_is_read_by_servers_of_the_cluster_only() {
        let (own, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (dir, text) in [(&own, "one key"), (&other, "another")] {
            write_private(&dir.path().join("front-proxy-ca.key"), text.as_bytes()).unwrap();
        }
        let (certificate, its_key) = crate::pki::new_authority("kubernetes-ca").unwrap();
        Pki::open(own.path()).replace_authority(&certificate, &its_key).unwrap();
        let rotation = Rotation::begin(own.path()).unwrap();
        let sealed = ServerKey::of_servers(own.path(), NAME)
            .unwrap()
            .seal(NAME, &serde_json::to_vec(&rotation).unwrap())
            .unwrap();
        assert!(!sealed.windows(11).any(|window| window == b"PRIVATE KEY"));
        let secret = Secret { data: Some([(FIELD.to_owned(), ByteString(sealed))].into()), ..Secret::default() };
        assert_eq!(read(&secret, own.path()).unwrap(), rotation);
        assert!(read(&secret, other.path()).is_err());
        assert!(read(&Secret::default(), own.path()).is_err());
    }
}

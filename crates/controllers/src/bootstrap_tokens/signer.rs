//! Bootstrap signer: the public `cluster-info` is signed with every token that allows it.
//!
//! Who knows a token can check that the address and authority in `kube-public/cluster-info` come from this cluster.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::sort::CompactCollect as _;
use client::{Client, Clock, Informer, ListParams};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};

use super::{NAMESPACE, field, has_expired, jws, selection};
use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::error::if_unchanged;

const PUBLIC: &str = "kube-public";
const CLUSTER_INFO: &str = "cluster-info";

struct Controller {
    client: Client,
    clock: Clock,
    maps: Informer<ConfigMap>,
    tokens: Informer<Secret>,
}

/// There is one key: the signed object.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let maps = context.namespaced::<ConfigMap>(PUBLIC, ListParams::fields(format!("metadata.name={CLUSTER_INFO}")));
    let tokens = context.namespaced::<Secret>(NAMESPACE, selection());
    let (queue, again) = (context.queue.clone(), context.queue.clone());
    let maps = maps.wakes(move |_| queue.add(CLUSTER_INFO.into()));
    let tokens = tokens.wakes(move |_| again.add(CLUSTER_INFO.into()));
    Arc::new(Controller { clock: context.config.clock.clone(), client: context.client.clone(), maps, tokens })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(async move {
            let Some(map) = self.maps.get(&format!("{PUBLIC}/{CLUSTER_INFO}")) else { return Ok(Requeue::Never) };
            let now = self.clock.now();
            let tokens = self.tokens.list();
            let tokens = tokens.iter().filter_map(|secret| signing_token(secret, now)).collect();
            let Some(data) = signed(map.data.as_ref(), &tokens) else { return Ok(Requeue::Never) };
            let changed = ConfigMap { data: Some(data), ..ConfigMap::clone(&map) };
            if_unchanged(self.client.namespaced::<ConfigMap>(PUBLIC).update(&changed).await)?;
            Ok(Requeue::Never)
        })
    }
}

/// Id and secret of a token that is valid and may sign.
fn signing_token(secret: &Secret, now: Timestamp) -> Option<(&str, &str)> {
    let named = secret.metadata.name.as_deref()?.strip_prefix("bootstrap-token-")?;
    let (id, key) = (field(secret, "token-id"), field(secret, "token-secret"));
    let usable = id == named && !id.is_empty() && !key.is_empty() && !has_expired(secret, now);
    (usable && field(secret, "usage-bootstrap-signing") == "true").then_some((id, key))
}

/// The data with exactly the signatures of `tokens`; `None` if nothing changes.
fn signed(data: Option<&BTreeMap<String, String>>, tokens: &BTreeMap<&str, &str>) -> Option<BTreeMap<String, String>> {
    let data = data?;
    let content = data.get("kubeconfig")?;
    let mut new: BTreeMap<String, String> = data
        .iter()
        .filter(|(key, _)| !key.starts_with(jws::PREFIX))
        .map(|(key, value)| (key.clone(), value.clone()))
        .compact_collect();
    for (id, secret) in tokens {
        new.insert(format!("{}{id}", jws::PREFIX), jws::sign(content, id, secret));
    }
    (new != *data).then_some(new)
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn token(fields: &[(&str, &str)]) -> Secret {
        let mut secret = Secret {
            data: Some(
                fields.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect(),
            ),
            ..Secret::default()
        };
        secret.metadata.name = Some("bootstrap-token-abcdef".into());
        secret
    }

    #[test]
    fn only_valid_signing_tokens_sign() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let whole = [("token-id", "abcdef"), ("token-secret", "0123456789abcdef"), ("usage-bootstrap-signing", "true")];
        for (change, expected) in [
            (("description", "any"), true),
            (("token-id", "fedcba"), false),
            (("token-secret", ""), false),
            (("usage-bootstrap-signing", "false"), false),
            (("expiration", "2026-01-01T00:00:01Z"), true),
            (("expiration", "2025-12-31T23:59:59Z"), false),
            (("expiration", "soon"), false),
        ] {
            let fields: Vec<_> = whole.into_iter().chain([change]).collect();
            assert_eq!(signing_token(&token(&fields), now).is_some(), expected, "{change:?}");
        }
    }

    #[test]
    fn signatures_follow_the_tokens() {
        let data = BTreeMap::from([
            ("kubeconfig".to_owned(), "content".to_owned()),
            ("jws-kubeconfig-gone".to_owned(), "x".to_owned()),
        ]);
        let tokens = BTreeMap::from([("abcdef", "0123456789abcdef")]);
        let new = signed(Some(&data), &tokens).unwrap();
        assert_eq!(new.keys().map(String::as_str).collect::<Vec<_>>(), ["jws-kubeconfig-abcdef", "kubeconfig"]);
        assert!(jws::verify("content", "abcdef", "0123456789abcdef", &new["jws-kubeconfig-abcdef"]));
        assert_eq!(signed(Some(&new), &tokens), None, "signing again changes nothing");
        assert_eq!(signed(Some(&BTreeMap::new()), &tokens), None, "there is nothing to sign");
    }
}

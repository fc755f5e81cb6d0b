//! How far everybody is: what nodes say of themselves, and who is behind.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use client::{Client, Patch};
use k8s_openapi::api::core::v1::Node;
use serde_json::json;

use crate::ca_rotation::Phase;
use crate::pki::{Certificate, Pki};

/// What a node says of itself: whom it trusts, and who signed what it shows.
const TRUSTS: &str = "cox.dev/trusted-authorities";
const SIGNED_BY: &str = "cox.dev/certificates-signed-by";

/// How far a node is, and the server beside it if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Progress {
    pub(super) trusts: Vec<String>,
    pub(super) signed_by: Vec<String>,
}

impl Progress {
    /// What a directory of keys says; `is_shown` chooses the certificates that others see.
    pub(super) fn of_files(dir: &Path, is_shown: impl Fn(&str) -> bool) -> Result<Progress> {
        let pki = Pki::open(dir);
        let path = pki.certificate("ca");
        let trusted = std::fs::read(&path).with_context(|| path.display().to_string())?;
        let trusts = Certificate::parse_all(&trusted)?.into_iter().map(|one| one.subject).collect();
        let shown = pki.certificates()?.into_iter().filter(|(name, one)| !one.is_authority && is_shown(name));
        Ok(Progress { trusts, signed_by: shown.map(|(_, one)| one.issuer).collect() })
    }

    /// What a node has said.
    pub(super) fn said_by(node: &Node) -> Progress {
        let words = |key: &str| -> Vec<String> {
            let text = node.metadata.annotations.as_ref().and_then(|all| all.get(key));
            text.into_iter()
                .flat_map(|text| text.split(';'))
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        Progress { trusts: words(TRUSTS), signed_by: words(SIGNED_BY) }
    }

    /// Says it of a node.
    pub(super) async fn say(&self, client: &Client, node: &str) -> Result<()> {
        let annotations = json!({TRUSTS: self.trusts.join(";"), SIGNED_BY: self.signed_by.join(";")});
        let patch = Patch::merge(json!({"metadata": {"annotations": annotations}}));
        client.all::<Node>().patch(node, &patch).await.with_context(|| format!("saying whom {node} trusts"))?;
        Ok(())
    }
}

/// Who has not come to the end of a phase; nobody must be left behind.
pub(super) fn behind<'a>(phase: Phase, new: &str, nodes: &'a BTreeMap<String, Progress>) -> Vec<&'a str> {
    let is_signed = |node: &Progress| !node.signed_by.is_empty() && node.signed_by.iter().all(|name| name == new);
    let is_there = |node: &Progress| match phase {
        Phase::Trust => node.trusts.iter().any(|name| name == new),
        Phase::Sign => is_signed(node),
        Phase::Drop => is_signed(node) && node.trusts.iter().all(|name| name == new),
    };
    nodes.iter().filter(|(_, progress)| !is_there(progress)).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_left_behind() {
        let (old, new) = ("CN=kubernetes-ca", "CN=kubernetes-ca-2");
        let node = |trusts: &[&str], signed_by: &[&str]| Progress {
            trusts: trusts.iter().map(|name| (*name).to_owned()).collect(),
            signed_by: signed_by.iter().map(|name| (*name).to_owned()).collect(),
        };
        let nodes =
            |one: Progress| BTreeMap::from([("a".to_owned(), one), ("b".to_owned(), node(&[new], &[new, new]))]);
        for (phase, one, expected) in [
            (Phase::Trust, node(&[], &[]), &["a"][..]),
            (Phase::Trust, node(&[old], &[old, old]), &["a"]),
            (Phase::Trust, node(&[old, new], &[old, old]), &[]),
            (Phase::Sign, node(&[old, new], &[old, new]), &["a"]),
            (Phase::Sign, node(&[old, new], &[]), &["a"]),
            (Phase::Sign, node(&[new, old], &[new, new]), &[]),
            (Phase::Drop, node(&[new, old], &[new, new]), &["a"]),
            (Phase::Drop, node(&[new], &[new, old]), &["a"]),
            (Phase::Drop, node(&[new], &[new]), &[]),
        ] {
            assert_eq!(behind(phase, new, &nodes(one.clone())), expected, "{phase:?} {one:?}");
        }
    }

    #[test]
    fn what_a_node_says_is_read_back() {
        let annotations =
            [(TRUSTS, "CN=a;CN=b"), (SIGNED_BY, "CN=a")].map(|(key, text)| (key.to_owned(), text.to_owned()));
        let mut node = Node::default();
        assert_eq!(Progress::said_by(&node), Progress::default());
        node.metadata.annotations = Some(annotations.into());
        let said = Progress::said_by(&node);
        assert_eq!(
            (said.trusts, said.signed_by),
            (vec!["CN=a".to_owned(), "CN=b".to_owned()], vec!["CN=a".to_owned()])
        );
    }
}

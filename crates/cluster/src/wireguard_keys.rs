//! Generations of the keys that nodes encrypt their traffic with: which is the present one, and when the next begins.
//!
//! Flow: `cox up --encrypt`, its schedule or `cox node rotate-keys` writes a number into a ConfigMap -> every node makes a key of
//! that number and publishes it (`nodes::encrypted`) -> pairs of nodes go over to it -> the keys before it go.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::sort::CompactSort as _;
use client::{Client, DeleteParams, ListParams};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use wireguard::Announcement;

use crate::role::{self, Role};

pub(crate) const NAMESPACE: &str = "kube-system";
pub(crate) const NAME: &str = "cox-wireguard";
const NUMBER: &str = "generation";
const SINCE: &str = "since";

/// Between looks: whether it is time for other keys, and whether the number is still there.
const LOOK_INTERVAL: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// No node has exchanged its keys so often; who says so would leave no numbers for those to come.
const MAX_FIRST: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generation {
    pub(crate) number: u64,
    since: Timestamp,
}

impl Generation {
    pub(crate) fn read(map: &ConfigMap) -> Result<Generation> {
        let field = |name: &str| {
            let value = map.data.as_ref().and_then(|data| data.get(name));
            value.with_context(|| format!("the ConfigMap {NAMESPACE}/{NAME} has no {name}"))
        };
        let wrong = |name: &str| format!("{name} of the ConfigMap {NAMESPACE}/{NAME}");
        Ok(Generation {
            number: field(NUMBER)?.parse::<u64>().with_context(|| wrong(NUMBER))?,
            since: field(SINCE)?.parse::<Timestamp>().with_context(|| wrong(SINCE))?,
        })
    }

    fn write(&self, version: Option<String>) -> ConfigMap {
        let fields = [(NUMBER, self.number.to_string()), (SINCE, self.since.to_string())];
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(NAME.into()),
                namespace: Some(NAMESPACE.into()),
                resource_version: version,
                ..ObjectMeta::default()
            },
            data: Some(fields.map(|(name, value)| (name.to_owned(), value)).into()),
            ..ConfigMap::default()
        }
    }
}

/// Keeps the number, and raises it when a period has passed, until `stop`. Of several servers one succeeds.
pub(crate) async fn keep(client: Client, period: Option<Duration>, stop: CancellationToken) -> Result<()> {
    loop {
        let pause = match look(&client, period).await {
            Ok(()) => LOOK_INTERVAL,
            Err(error) => {
                tracing::warn!("{error:#}");
                RETRY_INTERVAL
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

async fn look(client: &Client, period: Option<Duration>) -> Result<()> {
    ensure_role(client).await?;
    let nodes = client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")?.items;
    let maps = client.namespaced::<ConfigMap>(NAMESPACE);
    let now = Timestamp::now();
    let Some(map) = maps.get_opt(NAME).await.context("reading the generation of keys")? else {
        let first = Generation { number: newest(&nodes).unwrap_or(1), since: now };
        return match maps.create(&first.write(None)).await {
            Err(error) if !error.is_already_exists() => Err(error).context("writing the generation of keys"),
            _ => Ok(()),
        };
    };
    let present = Generation::read(&map)?;
    if let Some(number) = overtaken(&nodes, present.number) {
        // A backup from before an exchange was restored. Nodes do not go back: those that come would have keys that nobody else has.
        let same = Generation { number, since: present.since };
        let written = maps.update(&same.write(map.metadata.resource_version.clone())).await;
        return written.map(drop).context("catching up with the generation of keys that nodes have");
    }
    if is_due(&present, period, now) && busy(&nodes, present.number).is_empty() {
        raise(client, &map, &present, now).await?;
    }
    Ok(())
}

/// No longer: nodes that start from now on do not encrypt.
pub(crate) async fn forget(client: &Client) -> Result<()> {
    match client.namespaced::<ConfigMap>(NAMESPACE).delete(NAME, &DeleteParams::default()).await {
        Err(error) if !error.is_not_found() => Err(error).context("forgetting the generation of keys"),
        _ => Ok(()),
    }
}

/// Begins another generation; returns its number.
pub(crate) async fn rotate(client: &Client) -> Result<u64> {
    let maps = client.namespaced::<ConfigMap>(NAMESPACE);
    let Some(map) = maps.get_opt(NAME).await.context("reading the generation of keys")? else {
        bail!("this cluster does not encrypt what nodes send to each other: 'cox up --encrypt' begins with it");
    };
    let present = Generation::read(&map)?;
    let nodes = client.all::<Node>().list(&ListParams::default()).await.context("listing the nodes")?.items;
    if let Some(node) = busy(&nodes, present.number).first() {
        bail!(
            "keys are being exchanged: node {node} has not come as far, or still has its key of before. Try again in a minute"
        );
    }
    raise(client, &map, &present, Timestamp::now()).await
}

async fn raise(client: &Client, map: &ConfigMap, present: &Generation, now: Timestamp) -> Result<u64> {
    let next = Generation { number: present.number.saturating_add(1), since: now };
    let written = next.write(map.metadata.resource_version.clone());
    match client.namespaced::<ConfigMap>(NAMESPACE).update(&written).await {
        Ok(_) => Ok(next.number),
        Err(error) if error.is_conflict() => bail!("somebody else has begun another generation of keys just now"),
        Err(error) => Err(error).context("beginning another generation of keys"),
    }
}

/// Nodes that are ready and have not published a key of this generation.
pub(crate) fn behind(nodes: &[Node], number: u64) -> Vec<String> {
    names(nodes, |said| said.is_none_or(|said| !said.keys.contains_key(&number)))
}

/// Nodes that are ready and in the middle of an exchange.
fn busy(nodes: &[Node], number: u64) -> Vec<String> {
    names(nodes, |said| said.is_none_or(|said| said.keys.len() != 1 || !said.keys.contains_key(&number)))
}

fn names(nodes: &[Node], is_meant: impl Fn(Option<&Announcement>) -> bool) -> Vec<String> {
    let ready = nodes.iter().filter(|node| api::node::is_ready(node));
    let meant = ready.filter(|node| is_meant(announcement(node).as_ref()));
    meant.filter_map(|node| node.metadata.name.clone()).collect()
}

/// The newest generation that any node has a key of.
fn newest(nodes: &[Node]) -> Option<u64> {
    nodes.iter().filter_map(newest_of).filter(|number| *number <= MAX_FIRST).max()
}

/// The generation that more than half of the nodes that are ready have reached, if it is after `present`. What a few say decides nothing.
fn overtaken(nodes: &[Node], present: u64) -> Option<u64> {
    let ready = nodes.iter().filter(|node| api::node::is_ready(node));
    let mut reached: Vec<u64> = ready.map(|node| newest_of(node).unwrap_or_default()).collect();
    reached.compact_sort();
    let middle = *reached.get(reached.len().checked_sub(1)? / 2)?;
    (middle > present).then_some(middle)
}

fn newest_of(node: &Node) -> Option<u64> {
    announcement(node)?.keys.keys().next_back().copied()
}

pub(crate) fn announcement(node: &Node) -> Option<Announcement> {
    node.metadata.annotations.as_ref()?.get(wireguard::ANNOTATION)?.parse().ok()
}

fn is_due(present: &Generation, period: Option<Duration>, now: Timestamp) -> bool {
    let Some(period) = period.and_then(|period| SignedDuration::try_from(period).ok()) else { return false };
    now.duration_since(present.since) >= period
}

/// Lets nodes see the number, and nothing else.
async fn ensure_role(client: &Client) -> Result<()> {
    let role = Role {
        name: "cox:wireguard",
        whose: "the encryption between nodes",
        rules: json!([
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": [NAME], "verbs": ["get", "list", "watch"]},
        ]),
        subjects: json!([
            {"apiGroup": role::GROUP, "kind": "User", "name": "system:kube-proxy"},
            {"apiGroup": role::GROUP, "kind": "Group", "name": "system:nodes"},
        ]),
    };
    role::ensure(client, role).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: &str, generations: &[u64]) -> Node {
        let key = wireguard::PrivateKey::generate().unwrap().public();
        let said = Announcement { port: 1, keys: generations.iter().map(|generation| (*generation, key)).collect() };
        let annotations = json!({wireguard::ANNOTATION: said.to_text()});
        serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": if generations.is_empty() { json!({}) } else { annotations }},
            "status": {"conditions": [{"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    #[test]
    fn nodes_that_are_there_are_waited_for() {
        let nodes = [
            node("done", "True", &[4]),
            node("both", "True", &[3, 4]),
            node("late", "True", &[3]),
            node("new", "True", &[]),
            node("off", "Unknown", &[2]),
        ];
        assert_eq!(behind(&nodes, 4), ["late", "new"]);
        assert_eq!(busy(&nodes, 4), ["both", "late", "new"]);
        assert_eq!((newest(&nodes), newest(&[])), (Some(4), None));
    }

    #[test]
    fn security_the_number_follows_most_nodes_and_no_single_one() {
        let nodes = |newest: &[&[u64]]| -> Vec<Node> {
            newest.iter().enumerate().map(|(at, all)| node(&format!("n{at}"), "True", all)).collect()
        };
        let rows: [(&[&[u64]], Option<u64>); 7] = [
            (&[], None),
            (&[&[4], &[4], &[4]], None),
            // Restored from a backup: all of them, or all but one that has come since.
            (&[&[6], &[5, 6], &[6]], Some(6)),
            (&[&[6], &[4], &[6]], Some(6)),
            (&[&[1 << 32], &[4], &[4]], None),
            (&[&[1 << 32], &[4]], None),
            (&[&[1 << 32], &[], &[]], None),
        ];
        for (all, expected) in rows {
            assert_eq!(overtaken(&nodes(all), 4), expected, "{all:?}");
        }
        assert_eq!(newest(&nodes(&[&[1 << 32], &[7]])), Some(7));
    }

    #[test]
    fn a_generation_lasts_for_a_period() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let present = Generation { number: 7, since: at(1_000) };
        for (period, now, expected) in
            [(Some(60), 1_059, false), (Some(60), 1_060, true), (None, 1_000_000, false), (Some(60), 0, false)]
        {
            let due = is_due(&present, period.map(Duration::from_secs), at(now));
            assert_eq!(due, expected, "{period:?} {now}");
        }
        assert_eq!(Generation::read(&present.write(None)).unwrap(), present);
        assert!(Generation::read(&ConfigMap::default()).is_err());
        let mut damaged = present.write(None);
        damaged.data.as_mut().unwrap().insert(NUMBER.into(), "many".into());
        assert!(Generation::read(&damaged).unwrap_err().to_string().contains("generation of the ConfigMap"));
    }
}

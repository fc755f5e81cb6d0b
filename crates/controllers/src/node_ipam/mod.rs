//! Node IPAM: every node gets a range of pod addresses of its own out of the cluster's.
//!
//! Flow: node events -> the sets of ranges in use -> node key -> the next free ranges -> the node's `spec.podCIDRs`. A node's
//! ranges are kept for it from when they are chosen until it is gone, or says that it has others.

use std::collections::HashMap;
use std::sync::Arc;

use api::meta::Meta as _;
use client::metrics::Metrics;
use client::{Client, Event, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::Error;
use crate::cidr_set::{CidrSet, Range};
use crate::controller::{Context, Outcome, Reconcile, Requeue};

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    ledger: Arc<Mutex<Ledger>>,
}

pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let config = &context.config;
    let ledger = Ledger::new(&config.cluster_cidrs, &config.service_cidrs, &config.metrics);
    let ledger = Arc::new(Mutex::new(ledger));
    let nodes = {
        let ledger = ledger.clone();
        // Every node there is has been noted before the first range is chosen: workers start when the informer has synced.
        context.on::<Node, _>(move |event| {
            let node = event.object();
            let name = node.metadata.name().to_owned();
            match event {
                Event::Deleted(_) => ledger.lock().release(&name, &ranges(node)),
                _ => ledger.lock().occupy(&name, &ranges(node)),
            }
            [name]
        })
    };
    Arc::new(Controller { client: context.client.clone(), recorder: context.recorder.clone(), nodes, ledger })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(node) = self.nodes.get(key) else { return Ok(Requeue::Never) };
        // A cluster without ranges of its own leaves them to someone else.
        if self.ledger.lock().sets.is_empty() || !ranges(&node).is_empty() || node.metadata.deletion_timestamp.is_some()
        {
            return Ok(Requeue::Never);
        }
        let Some(chosen) = self.ledger.lock().choose(key) else {
            self.recorder.normal(
                &client::reference(&*node),
                "CIDRNotAvailable",
                format!("Node {key} status is now: CIDRNotAvailable"),
            );
            return Err(Error::object(format!("node {key}: no pod range is left in the cluster's")));
        };
        // If this fails, perhaps it did not: the ranges stay the node's, and the next attempt asks for the same.
        let patch = Patch::strategic(json!({ "spec": { "podCIDR": chosen.first(), "podCIDRs": chosen } }));
        self.client.all::<Node>().patch(key, &patch).await?;
        tracing::info!(node = key, cidr = ?chosen, "pod range assigned");
        Ok(Requeue::Never)
    }
}

/// Who has which ranges.
struct Ledger {
    /// One for each address family of the cluster.
    sets: Vec<CidrSet>,
    /// Chosen for a node that does not say so yet.
    promised: HashMap<String, Vec<String>>,
}

impl Ledger {
    fn new(cluster: &[Range], services: &[String], metrics: &Metrics) -> Ledger {
        let mut sets: Vec<CidrSet> = cluster.iter().map(|range| CidrSet::new(range.clone(), metrics)).collect();
        sets.iter_mut().for_each(|set| services.iter().for_each(|range| set.reserve(range)));
        Ledger { sets, promised: HashMap::new() }
    }

    /// One range of each set, the same as the last time if it was chosen before. `None` if a set has none left.
    fn choose(&mut self, node: &str) -> Option<Vec<String>> {
        if let Some(promised) = self.promised.get(node) {
            return Some(promised.clone());
        }
        let mut chosen = Vec::new();
        for at in 0..self.sets.len() {
            match self.sets[at].allocate() {
                Some(range) => chosen.push(range),
                None => {
                    self.free(&chosen);
                    return None;
                }
            }
        }
        self.promised.insert(node.to_owned(), chosen.clone());
        Some(chosen)
    }

    /// A node says that it has these.
    fn occupy(&mut self, node: &str, ranges: &[String]) {
        if ranges.is_empty() {
            return;
        }
        if let Some(promised) = self.promised.remove(node) {
            let unused: Vec<String> = promised.into_iter().filter(|range| !ranges.contains(range)).collect();
            self.free(&unused);
        }
        self.sets.iter_mut().for_each(|set| ranges.iter().for_each(|range| set.occupy(range)));
    }

    /// A node is gone.
    fn release(&mut self, node: &str, ranges: &[String]) {
        let promised = self.promised.remove(node).unwrap_or_default();
        self.free(&promised);
        self.free(ranges);
    }

    fn free(&mut self, ranges: &[String]) {
        self.sets.iter_mut().for_each(|set| ranges.iter().for_each(|range| set.release(range)));
    }
}

fn ranges(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let one = spec.pod_cidr.iter().filter(|cidr| !cidr.is_empty());
    let mut ranges: Vec<String> = spec.pod_cidrs.iter().flatten().chain(one).cloned().collect();
    ranges.dedup();
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cidr_set::parse_list;

    fn ledger(cluster: &[&str]) -> Ledger {
        let cluster: Vec<Range> = cluster.iter().map(|text| Range::parse(text, None).unwrap()).collect();
        Ledger::new(&cluster, &[], &Metrics::new())
    }

    fn list(ranges: &[&str]) -> Vec<String> {
        ranges.iter().map(|range| (*range).to_owned()).collect()
    }

    #[test]
    fn services_addresses_are_no_nodes() {
        let cluster: Vec<Range> =
            ["10.0.0.0/22", "fd00::/62"].iter().map(|text| Range::parse(text, None).unwrap()).collect();
        let services = parse_list("10.0.0.0/23, fd00:0:0:1::/108").unwrap();
        let mut ledger = Ledger::new(&cluster, &services, &Metrics::new());
        assert_eq!(ledger.choose("a").unwrap(), ["10.0.2.0/24", "fd00::/64"]);
        assert_eq!(ledger.choose("b").unwrap(), ["10.0.3.0/24", "fd00:0:0:2::/64"]);
        assert_eq!(ledger.choose("c"), None);
        for bad in ["10.0.0.0", "10.0.0.0/23,x", "10.0.0.0/33"] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_range_is_a_nodes_until_it_is_gone_or_has_another() {
        let mut ledger = ledger(&["10.0.0.0/23", "fd00::/60"]);
        let first = ledger.choose("a").unwrap();
        assert_eq!(first, ["10.0.0.0/24", "fd00::/64"]);
        assert_eq!(ledger.choose("a").as_ref(), Some(&first), "asked again, the same");
        ledger.occupy("a", &list(&["10.0.1.0/24", "fd00::/64"]));
        assert_eq!(ledger.choose("b").unwrap(), ["10.0.0.0/24", "fd00:0:0:1::/64"], "what it did not take is free");
        assert_eq!(ledger.choose("c"), None, "one family is used up");
        ledger.release("b", &[]);
        assert_eq!(ledger.choose("c").unwrap(), ["10.0.0.0/24", "fd00:0:0:2::/64"], "the other family lost nothing");
    }
}

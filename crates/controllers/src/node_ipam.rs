//! Node IPAM: every node gets a range of pod addresses of its own out of the cluster's.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use client::{Client, EventRecorder, Informer, Patch};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use parking_lot::Mutex;
use serde_json::json;

use crate::controller::{Context, Outcome, Reconcile, Requeue};
use crate::{Error, pods};

struct Controller {
    client: Client,
    recorder: EventRecorder,
    nodes: Informer<Node>,
    cluster: Vec<Range>,
    /// Handed out, but perhaps not yet in the cache.
    reserved: Mutex<HashMap<String, Vec<String>>>,
}

/// One worker: two nodes must not be given the same range.
pub(crate) fn build(context: &Context) -> Arc<dyn Reconcile> {
    let nodes = context.on_self::<Node>();
    Arc::new(Controller {
        client: context.client.clone(),
        recorder: context.recorder.clone(),
        nodes,
        cluster: context.config.cluster_cidrs.clone(),
        reserved: Mutex::default(),
    })
}

impl Reconcile for Controller {
    fn reconcile<'a>(&'a self, key: &'a str) -> BoxFuture<'a, Outcome> {
        Box::pin(self.sync(key))
    }
}

impl Controller {
    async fn sync(&self, key: &str) -> Outcome {
        let Some(node) = self.nodes.get(key) else {
            self.reserved.lock().remove(key);
            return Ok(Requeue::Never);
        };
        // A cluster without ranges of its own leaves them to someone else.
        if self.cluster.is_empty() || !ranges(&node).is_empty() || node.metadata.deletion_timestamp.is_some() {
            return Ok(Requeue::Never);
        }
        let chosen = {
            let mut reserved = self.reserved.lock();
            match reserved.get(key) {
                Some(chosen) => Ok(chosen.clone()),
                None => {
                    let mut used: HashSet<String> = self.nodes.list().iter().flat_map(|node| ranges(node)).collect();
                    used.extend(reserved.values().flatten().cloned());
                    let chosen: Option<Vec<String>> =
                        self.cluster.iter().map(|range| range.first_free(&used)).collect();
                    chosen.inspect(|chosen| drop(reserved.insert(key.to_owned(), chosen.clone()))).ok_or(())
                }
            }
        };
        let Ok(chosen) = chosen else {
            self.recorder.normal(
                &client::reference(&*node),
                "CIDRNotAvailable",
                format!("Node {key} status is now: CIDRNotAvailable"),
            );
            return Err(Error::object(format!("node {key}: no pod range is left in the cluster's")));
        };
        let patch = Patch::strategic(json!({ "spec": { "podCIDR": chosen.first(), "podCIDRs": chosen } }));
        match self.client.all::<Node>().patch(key, &patch).await {
            Ok(_) => {
                tracing::info!(node = key, cidr = ?chosen, "pod range assigned");
                Ok(Requeue::Never)
            }
            Err(error) => {
                // Perhaps another manager was faster; decide again from what the node says then.
                self.reserved.lock().remove(&pods::key(&*node));
                Err(error.into())
            }
        }
    }
}

fn ranges(node: &Node) -> Vec<String> {
    let Some(spec) = &node.spec else { return Vec::new() };
    let one = spec.pod_cidr.iter().filter(|cidr| !cidr.is_empty());
    let mut ranges: Vec<String> = spec.pod_cidrs.iter().flatten().chain(one).cloned().collect();
    ranges.dedup();
    ranges
}

/// The cluster's range for one address family, divided into ranges of nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Range {
    base: u128,
    prefix: u8,
    node_prefix: u8,
    ipv6: bool,
}

impl Range {
    /// `10.42.0.0/16` in pieces of `/24`, or an IPv6 range in pieces of `/64`, unless `node_prefix` says otherwise.
    pub fn parse(text: &str, node_prefix: Option<u8>) -> Result<Self, Error> {
        let invalid = || Error::object(format!("invalid cluster CIDR {text:?}"));
        let (address, prefix) = text.trim().split_once('/').ok_or_else(invalid)?;
        let address: IpAddr = address.parse().map_err(|_| invalid())?;
        let prefix: u8 = prefix.parse().map_err(|_| invalid())?;
        let (value, bits, ipv6) = match address {
            IpAddr::V4(address) => (u128::from(u32::from(address)), 32, false),
            IpAddr::V6(address) => (u128::from(address), 128, true),
        };
        let node_prefix = node_prefix.unwrap_or(if ipv6 { 64 } else { 24 });
        if prefix > node_prefix || node_prefix > bits || node_prefix - prefix > 16 {
            return Err(Error::object(format!("cluster CIDR {text} cannot be divided into /{node_prefix}")));
        }
        let host_bits = u32::from(bits - prefix);
        let base = value.checked_shr(host_bits).unwrap_or(0).checked_shl(host_bits).unwrap_or(0);
        Ok(Self { base, prefix, node_prefix, ipv6 })
    }

    fn first_free(&self, used: &HashSet<String>) -> Option<String> {
        (0..1u32 << (self.node_prefix - self.prefix))
            .map(|number| self.piece(number))
            .find(|piece| !used.contains(piece))
    }

    fn piece(&self, number: u32) -> String {
        let bits = if self.ipv6 { 128 } else { 32 };
        let value = self.base + u128::from(number).checked_shl(u32::from(bits - self.node_prefix)).unwrap_or(0);
        let address = if self.ipv6 {
            IpAddr::V6(Ipv6Addr::from(value))
        } else {
            IpAddr::V4(Ipv4Addr::from(u32::try_from(value).unwrap_or(u32::MAX)))
        };
        format!("{address}/{}", self.node_prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_handed_out_in_order_without_overlap() {
        let range = Range::parse("10.42.0.0/16", None).unwrap();
        let mut used = HashSet::new();
        for expected in ["10.42.0.0/24", "10.42.1.0/24", "10.42.2.0/24"] {
            let piece = range.first_free(&used).unwrap();
            assert_eq!(piece, expected);
            used.insert(piece);
        }
        used.remove("10.42.1.0/24");
        assert_eq!(range.first_free(&used).as_deref(), Some("10.42.1.0/24"), "a returned range is used again");
        let tiny = Range::parse("10.0.0.0/24", None).unwrap();
        assert_eq!(tiny.first_free(&["10.0.0.0/24".to_owned()].into()), None);
        assert_eq!(Range::parse("fd00:42::/56", None).unwrap().piece(2), "fd00:42:0:2::/64");
        for bad in ["", "10.0.0.0", "10.0.0.0/33", "x/16", "10.0.0.0/28"] {
            assert!(Range::parse(bad, None).is_err(), "{bad}");
        }
    }
}

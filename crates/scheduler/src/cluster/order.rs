//! The order in which nodes are looked at: zones take turns, so that the first nodes found are spread over them.

use std::collections::HashMap;

use super::node::{NodeId, Row};

#[derive(Debug, Default)]
pub(crate) struct Order {
    /// Zones in the order in which they first had a node, with their nodes in the order in which those came.
    zones: Vec<(String, Vec<NodeId>)>,
    zone_of: HashMap<NodeId, String>,
    list: Vec<NodeId>,
    is_stale: bool,
}

impl Order {
    pub(crate) fn set(&mut self, node: NodeId, row: &Row) {
        let zone = api::node::zone_key(row.labels());
        if self.zone_of.get(&node) == Some(&zone) {
            return;
        }
        self.remove(node);
        match self.zones.iter_mut().find(|(name, _)| *name == zone) {
            Some((_, nodes)) => nodes.push(node),
            None => self.zones.push((zone.clone(), vec![node])),
        }
        self.zone_of.insert(node, zone);
        self.is_stale = true;
    }

    pub(crate) fn remove(&mut self, node: NodeId) {
        let Some(zone) = self.zone_of.remove(&node) else { return };
        if let Some((_, nodes)) = self.zones.iter_mut().find(|(name, _)| *name == zone) {
            nodes.retain(|other| *other != node);
        }
        self.zones.retain(|(_, nodes)| !nodes.is_empty());
        self.is_stale = true;
    }

    pub(crate) fn len(&self) -> usize {
        self.zone_of.len()
    }

    /// Brings the list up to date.
    pub(crate) fn refresh(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        self.list.clear();
        let longest = self.zones.iter().map(|(_, nodes)| nodes.len()).max().unwrap_or(0);
        for turn in 0..longest {
            self.list.extend(self.zones.iter().filter_map(|(_, nodes)| nodes.get(turn)));
        }
    }

    /// As of the last `refresh`.
    pub(crate) fn list(&self) -> &[NodeId] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn zones_take_turns() {
        let mut order = Order::default();
        let set = |order: &mut Order, id: u32, zone: &str| {
            let node = json!({"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": zone}}});
            let object = Some(Arc::new(serde_json::from_value(node).unwrap()));
            order.set(NodeId(id), &Row { object, ..Row::default() });
        };
        for (id, zone) in [(0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "c"), (5, "c")] {
            set(&mut order, id, zone);
        }
        let list = |order: &mut Order| {
            order.refresh();
            order.list().iter().map(|node| node.0).collect::<Vec<_>>()
        };
        assert_eq!(list(&mut order), [0, 3, 4, 1, 5, 2]);
        set(&mut order, 1, "b");
        order.remove(NodeId(4));
        assert_eq!(list(&mut order), [0, 3, 5, 2, 1]);
    }
}

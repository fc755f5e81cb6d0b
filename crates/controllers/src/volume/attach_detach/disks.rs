//! Disks that no attacher has to attach, which are iSCSI's: their nodes reach them by themselves, once they are told that they
//! may. Nothing but `volumesAttached` of nodes says who has them. It is read when a node is first seen, and written as decided
//! here from then on (`actualStateOfWorld`, v1.36): so a cache that is late changes nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use api::sort::CompactSort as _;
use k8s_openapi::api::core::v1::Node;

use super::plan::{Force, VolumeId};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Attached,
    /// From here on the node does not report it; it goes when the node has been told.
    Detaching(Option<Force>),
}

/// Which nodes have which disks.
#[derive(Debug, Default)]
pub(super) struct Disks {
    nodes: HashMap<String, BTreeMap<VolumeId, State>>,
    /// Nodes whose status was read.
    known: BTreeSet<String>,
}

impl Disks {
    /// Takes over what the status of a node says that was not seen before.
    pub(super) fn read(&mut self, name: &str, node: &Node) {
        if !self.known.insert(name.to_owned()) {
            return;
        }
        let attached = node.status.as_ref().and_then(|status| status.volumes_attached.as_deref()).unwrap_or_default();
        for disk in attached.iter().filter_map(|volume| VolumeId::of_disk(&volume.name)) {
            self.attach(disk, name);
        }
    }

    /// A node is gone. Disks that it used may still be used there.
    pub(super) fn node_gone(&mut self, name: &str, in_use: &BTreeSet<String>) {
        self.known.remove(name);
        if let Some(disks) = self.nodes.get_mut(name) {
            disks.retain(|disk, _| in_use.contains(&disk.unique_name()));
        }
        self.nodes.retain(|_, disks| !disks.is_empty());
    }

    pub(super) fn attach(&mut self, disk: VolumeId, node: &str) {
        self.nodes.entry(node.to_owned()).or_default().insert(disk, State::Attached);
    }

    pub(super) fn begin_detaching(&mut self, disk: &VolumeId, node: &str, force: Option<Force>) {
        if let Some(state) = self.nodes.get_mut(node).and_then(|disks| disks.get_mut(disk)) {
            *state = State::Detaching(force);
        }
    }

    pub(super) fn detached(&mut self, disk: &VolumeId, node: &str) {
        if let Some(disks) = self.nodes.get_mut(node) {
            disks.remove(disk);
        }
        self.nodes.retain(|_, disks| !disks.is_empty());
    }

    /// Nodes that have the disk, and whether it is being taken from them.
    pub(super) fn holders(&self, disk: &VolumeId) -> Vec<(String, bool)> {
        let with = self.nodes.iter().filter_map(|(node, disks)| Some((node.clone(), *disks.get(disk)?)));
        let mut holders: Vec<_> = with.map(|(node, state)| (node, state != State::Attached)).collect();
        holders.compact_sort();
        holders
    }

    pub(super) fn of_node(&self, node: &str) -> Vec<VolumeId> {
        self.nodes.get(node).into_iter().flat_map(|disks| disks.keys().cloned()).collect()
    }

    /// What the node should report.
    pub(super) fn reported(&self, node: &str) -> Vec<String> {
        let attached = self.nodes.get(node).into_iter().flatten().filter(|(_, state)| **state == State::Attached);
        attached.map(|(disk, _)| disk.unique_name()).collect()
    }

    /// What goes from the node when it has been told.
    pub(super) fn leaving(&self, node: &str) -> Vec<(VolumeId, Option<Force>)> {
        let disks = self.nodes.get(node).into_iter().flatten();
        let leaving = disks.filter_map(|(disk, state)| match state {
            State::Attached => None,
            State::Detaching(force) => Some((disk.clone(), *force)),
        });
        leaving.collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(attached: &[&str]) -> Node {
        let attached: Vec<_> = attached.iter().map(|name| json!({ "name": name, "devicePath": "" })).collect();
        serde_json::from_value(json!({ "status": { "volumesAttached": attached } })).unwrap()
    }

    #[test]
    fn what_nodes_have_is_read_once_and_then_decided() {
        let name = "kubernetes.io/iscsi/10.0.0.1:iqn.2003-01.org.x:a:0";
        let disk = VolumeId::of_disk(name).unwrap();
        let mut disks = Disks::default();
        disks.read("a", &node(&[name, "kubernetes.io/csi/d^h"]));
        assert_eq!(disks.holders(&disk), [("a".to_owned(), false)]);
        assert_eq!(disks.reported("a"), [name]);
        disks.begin_detaching(&disk, "a", Some(Force::Timeout));
        assert_eq!(disks.holders(&disk), [("a".to_owned(), true)]);
        assert_eq!(disks.reported("a"), [""; 0]);
        assert_eq!(disks.leaving("a"), [(disk.clone(), Some(Force::Timeout))]);
        disks.read("a", &node(&[name]));
        assert_eq!(disks.reported("a"), [""; 0], "an older status says nothing");
        disks.detached(&disk, "a");
        assert!(disks.holders(&disk).is_empty());
        // What a node used that is gone, it may still use; what it did not use is free.
        for (in_use, expected) in [(vec![name.to_owned()], 1), (vec![], 0)] {
            disks.attach(disk.clone(), "b");
            disks.node_gone("b", &in_use.into_iter().collect());
            assert_eq!(disks.holders(&disk).len(), expected);
        }
        assert!(disks.of_node("b").is_empty());
    }
}
